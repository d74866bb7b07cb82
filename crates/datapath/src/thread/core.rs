//! Which core a thread is on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Why a thread stays on whichever core the kernel gives it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The core is not there, or this thread was told before to keep off it (`taskset`, `CPUAffinity=`, a container's cpuset).
    #[error("core {core} is not among those that this process may use: {allowed}")]
    NotAllowed {
        /// Which was asked for.
        core: usize,
        /// Those that may be used, as `0-3, 6`.
        allowed: String,
    },
    /// The operating system refused it.
    #[error("core {core}: sched_setaffinity: {source}")]
    System {
        /// Which was asked for.
        core: usize,
        /// Its answer.
        source: std::io::Error,
    },
}

/// Keeps the calling thread on one core (sched_setaffinity(2)), counted from 0 as the kernel does. Threads that it starts afterwards
/// stay there, too. Two system calls; does not wait.
///
/// # Errors
/// [`PinError`]; the thread may then use the cores that it might before.
pub fn pin(core: usize) -> Result<(), PinError> {
    let system = |e: rustix::io::Errno| PinError::System { core, source: e.into() };
    let may = sched_getaffinity(None).map_err(system)?;
    if core >= CpuSet::MAX_CPU || !may.is_set(core) {
        return Err(PinError::NotAllowed { core, allowed: ranges(&may) });
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).map_err(system)
}

/// The cores of a set, as `0-3, 6`.
fn ranges(set: &CpuSet) -> String {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for core in (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
        match all.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => all.push((core, core)),
        }
    }
    let text =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    all.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_on_a_core_that_it_may_use_and_no_other() {
        // A thread of its own: what it is told stays with it.
        std::thread::spawn(|| {
            let may = sched_getaffinity(None).unwrap();
            let last = (0..CpuSet::MAX_CPU).rev().find(|core| may.is_set(*core)).unwrap();
            for odd in [last + 1, CpuSet::MAX_CPU, usize::MAX] {
                let refused = pin(odd).unwrap_err().to_string();
                assert!(refused.starts_with(&format!("core {odd} is not among those")), "{refused}");
                assert_eq!(sched_getaffinity(None).unwrap(), may, "it may still use all that it might");
            }
            pin(last).unwrap();
            let now = sched_getaffinity(None).unwrap();
            assert_eq!((now.count(), now.is_set(last)), (1, true));
            if last > 0 {
                assert!(matches!(pin(last - 1), Err(PinError::NotAllowed { .. })), "it was told to keep off that");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cores_are_named_in_ranges() {
        let mut set = CpuSet::new();
        assert_eq!(ranges(&set), "");
        [0, 1, 2, 3, 6, 8, 9].into_iter().for_each(|core| set.set(core));
        assert_eq!(ranges(&set), "0-3, 6, 8-9");
    }
}
