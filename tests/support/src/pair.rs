//! A source and a sink that go on while something else happens, and must lose nothing.

use crate::Host;
use insane::{Qos, Reliability, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// A reliable channel under traffic.
#[derive(Debug)]
pub struct Pair {
    sessions: [Session; 2],
    stop: Arc<AtomicBool>,
    threads: [JoinHandle<u64>; 2],
}

impl Pair {
    /// Starts it in two sessions with a runtime.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(host: &Host) -> Self {
        let sessions = ["pair source", "pair sink"].map(|app| host.session(app));
        let mut qos = Qos::default();
        qos.set_reliability(Reliability::Reliable);
        let sink = sessions[1].stream(qos).expect("a stream").sink("pair").expect("a sink");
        let source = sessions[0].stream(qos).expect("a stream").source("pair").expect("a source");
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let emitting = std::thread::spawn(move || {
            let mut emitted = 0u64;
            while !stopped.load(Ordering::Relaxed) || emitted == 0 {
                emitted += 1;
                source.send(&emitted.to_le_bytes().repeat(1 + emitted as usize % 40)).expect("an emit");
                std::thread::sleep(Duration::from_micros(500));
            }
            // The end, which the sink counts too.
            source.send(&[]).expect("an emit");
            emitted + 1
        });
        let consuming = std::thread::spawn(move || {
            let mut seen = 0u64;
            loop {
                let bytes = sink.consume_timeout(LIMIT).expect("a message").to_vec();
                seen += 1;
                if bytes.is_empty() {
                    return seen;
                }
                assert_eq!(bytes, seen.to_le_bytes().repeat(1 + seen as usize % 40), "message {seen} is another one");
            }
        });
        Self { sessions, stop, threads: [emitting, consuming] }
    }

    /// Stops it. Returns how many messages crossed.
    ///
    /// # Panics
    /// When a message was lost, came twice or is not in exactly one counted state.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let [emitted, seen] = self.threads.map(|t| t.join().expect("neither end saw anything wrong"));
        assert_eq!(emitted, seen, "emitted and seen");
        crate::reconcile(&self.sessions, emitted, seen);
        seen
    }
}
