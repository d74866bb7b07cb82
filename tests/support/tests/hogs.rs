//! Waiting on a core that somebody else computes on.

use insane::{Qos, Reliability, SinkOptions, Wait};
use insane_tests_host::{Host, Watchdog, reconcile};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Round trips within a second and a half, two threads and one that computes on one core.
fn round_trips_beside_a_hog(mut ask: impl FnMut() -> bool + Send, answer: impl FnMut() -> bool + Send) -> u32 {
    let over = AtomicBool::new(false);
    let mine = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|core| mine.is_set(*core)).unwrap();
    let one = || {
        let mut core = CpuSet::new();
        core.set(first);
        sched_setaffinity(None, &core).unwrap();
    };
    let mut answer = answer;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one();
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        scope.spawn(|| {
            one();
            while answer() {}
        });
        let asks = scope.spawn(|| {
            one();
            let (began, mut count) = (Instant::now(), 0);
            while began.elapsed() < Duration::from_millis(1500) {
                assert!(ask());
                count += 1;
            }
            over.store(true, Ordering::Relaxed);
            count
        });
        asks.join().unwrap()
    })
}

#[test]
fn who_computes_on_the_same_core_has_no_time_slice_for_each_message() {
    let _watchdog = Watchdog::start("hog", LIMIT);
    let (mut a, b) = UnixDatagram::pair().unwrap();
    let trip = |socket: &mut UnixDatagram| socket.send(&[1; 8]).and_then(|_| socket.recv(&mut [0; 8])).is_ok();
    b.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let sockets = round_trips_beside_a_hog(
        || trip(&mut a),
        || {
            let heard = b.recv(&mut [0; 8]).is_ok();
            heard && b.send(&[1; 8]).is_ok()
        },
    );
    for wait in [Wait::Adaptive, Wait::Sleep] {
        for reliability in [Reliability::BestEffort, Reliability::Reliable] {
            let host = Host::start();
            let mut qos = Qos::default();
            qos.set_reliability(reliability);
            let (a, b) = (host.session("asks"), host.session("answers"));
            let (to, from) = (a.stream(qos).unwrap(), b.stream(qos).unwrap());
            let options = SinkOptions { wait, ..SinkOptions::default() };
            let (asked, answered) =
                (from.sink_with("ask", options.clone()).unwrap(), to.sink_with("answer", options).unwrap());
            let (ask, answer) = (to.source("ask").unwrap(), from.source("answer").unwrap());
            assert!(ask.wait_for_sinks(1, LIMIT) == 1 && answer.wait_for_sinks(1, LIMIT) == 1);
            let count = round_trips_beside_a_hog(
                || ask.send(&[1; 8]).is_ok() && answered.consume_timeout(LIMIT).is_ok(),
                || asked.consume_timeout(Duration::from_millis(500)).is_ok() && answer.send(&[1; 8]).is_ok(),
            );
            println!("{wait:?} {reliability:?}: {count}, sockets {sockets}");
            assert!(count > sockets / 10, "{wait:?}, {reliability:?}: {count} round trips, {sockets} over sockets");
            reconcile([&a, &b], 2 * u64::from(count), 2 * u64::from(count));
        }
    }
}
