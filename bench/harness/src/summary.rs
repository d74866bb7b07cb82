//! Samples to figures.

use serde::Serialize;

/// Where the distribution is kept for CDF plots: parts per 100 000.
pub const CDF_POINTS: [u32; 27] = [
    0, 1_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 45_000, 50_000, 55_000, 60_000, 65_000,
    70_000, 75_000, 80_000, 85_000, 90_000, 95_000, 98_000, 99_000, 99_500, 99_900, 99_990, 100_000,
];

/// The result line of a latency measurement. Times in nanoseconds.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Latency {
    /// Measured messages.
    pub samples: u64,
    /// Length of the window.
    pub elapsed_ns: u64,
    /// CPU time of all processes of the repetition in the window.
    pub cpu_ns: u64,
    /// Percentiles.
    pub min_ns: u64,
    /// 50th percentile.
    pub median_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The largest.
    pub max_ns: u64,
    /// The distribution at [`CDF_POINTS`].
    pub cdf_ns: Vec<u64>,
    /// Whether the receiver read the very memory that the sender wrote, where that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<bool>,
}

/// The result line of a rate measurement.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Rate {
    /// Messages in the window.
    pub samples: u64,
    /// Length of the window in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of all processes in the window, where this role reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Of that, the CPU time of helpers, where this role tells them apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helpers_cpu_ns: Option<u64>,
    /// Messages missing in the window, by sequence numbers.
    pub lost: u64,
    /// Copies of payloads by user code of the receiving end's host in the window, where the system counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<u64>,
}

/// The sample at `part` of 100 000 of sorted samples.
#[must_use]
pub fn at(sorted: &[u64], part: u32) -> u64 {
    let last = sorted.len() - 1;
    let index = (sorted.len() as u128 * u128::from(part) / 100_000) as usize;
    sorted[index.min(last)]
}

/// Sorts the samples and draws the percentiles.
///
/// # Panics
/// If there are no samples.
#[must_use]
pub fn latency(mut samples: Vec<u64>, elapsed_ns: u64, cpu_ns: u64) -> Latency {
    samples.sort_unstable();
    Latency {
        samples: samples.len() as u64,
        elapsed_ns,
        cpu_ns,
        min_ns: samples[0],
        median_ns: at(&samples, 50_000),
        p99_ns: at(&samples, 99_000),
        p999_ns: at(&samples, 99_900),
        max_ns: samples[samples.len() - 1],
        cdf_ns: CDF_POINTS.iter().map(|&p| at(&samples, p)).collect(),
        in_place: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_set() {
        let samples: Vec<u64> = (1..=1000).rev().collect();
        let l = latency(samples, 5, 6);
        assert_eq!((l.min_ns, l.median_ns, l.p99_ns, l.p999_ns, l.max_ns), (1, 501, 991, 1000, 1000));
        assert!(l.cdf_ns.is_sorted());
        assert_eq!(l.cdf_ns.len(), CDF_POINTS.len());
    }

    #[test]
    fn one_sample_is_enough() {
        let l = latency(vec![7], 1, 1);
        assert_eq!((l.min_ns, l.median_ns, l.p999_ns, l.max_ns), (7, 7, 7, 7));
    }
}
