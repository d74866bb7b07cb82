//! Means, quantiles, and windows of time series.

/// A value at an instant in seconds.
pub type Point = [f64; 2];

/// The values in order of size, without those that are no numbers.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// A quantile of sorted values, between two of them by proportion; not a number if there are none.
#[must_use]
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// The median; not a number if there are none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The mean; not a number if there are none.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The values from one instant to another.
#[must_use]
pub fn within(points: &[Point], from: f64, to: f64) -> Vec<f64> {
    points.iter().filter(|p| (from..to).contains(&p[0])).map(|p| p[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values = sorted(&[4.0, f64::NAN, 1.0, 3.0, 2.0]);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert_eq!(quantile(&values, 0.5), 2.5);
        assert_eq!(quantile(&values, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn windows_take_their_beginning_and_not_their_end() {
        let points = [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]];
        assert_eq!(within(&points, 0.0, 2.0), [1.0, 2.0]);
        assert!(mean(&within(&points, 5.0, 6.0)).is_nan());
    }
}
