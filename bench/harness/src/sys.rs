//! The few system calls that the standard library does not offer.

use std::io;
use std::time::Duration;

/// Pins the calling process (threads made later inherit it) to `cores`.
///
/// # Errors
/// A core that does not exist or that this process may not use.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        if core >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("core {core} does not exist")));
        }
        // SAFETY: `core` is below CPU_SETSIZE, checked above.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the set is valid for reads of its own size.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the kernel to kill this process when its parent dies, so that no repetition outlives the orchestrator.
pub fn die_with_parent() {
    // SAFETY: PR_SET_PDEATHSIG takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// CPU time (user and system, all threads) that process `pid` has used, by its POSIX CPU-time clock.
///
/// # Errors
/// The process is gone.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // The kernel's encoding of another process's clock (clock_getcpuclockid(3)): ~pid in the upper bits, and 2, the
    // scheduler's account, in the lower three.
    let clock = (!(pid as libc::clockid_t) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; an unknown clock is an error, not undefined.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// CLOCK_MONOTONIC in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until the monotonic clock shows so many nanoseconds; returns early if a signal comes.
pub fn sleep_until(at_ns: u64) {
    let at = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the time is valid for reads, and no rest is asked for.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const at, std::ptr::null_mut()) };
}

/// The calling thread sleeps as long as it says, and not some 50 µs longer, as the kernel takes the liberty to.
pub fn sleep_precisely() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// The calling thread runs before all that are not real-time threads, too.
///
/// # Errors
/// It may not: that takes CAP_SYS_NICE.
pub fn before_everybody() -> io::Result<()> {
    let how = libc::sched_param { sched_priority: 10 };
    // SAFETY: the structure is valid for reads.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const how) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let me = std::process::id();
        let before = cpu_time(me).expect("own clock");
        let start = now_ns();
        let mut sum = 0u64;
        while now_ns() - start < 20_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let worked = cpu_time(me).expect("own clock") - before;
        assert!(worked > Duration::from_millis(1), "{worked:?}");
        let mut child = std::process::Command::new("sleep").arg("5").spawn().expect("sleep");
        std::thread::sleep(Duration::from_millis(100));
        let asleep = cpu_time(child.id()).expect("the child's clock");
        assert!(asleep < Duration::from_millis(90), "a sleeper was charged {asleep:?}");
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(cpu_time(child.id()).is_err(), "a dead process still has a clock");
    }

    #[test]
    fn a_missing_core_is_an_error() {
        assert!(pin(&[100_000]).is_err());
        assert!(pin(&[1000]).is_err());
    }
}
