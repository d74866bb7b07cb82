//! An application that can run on any host: answers each indication that it gets with its number, until its standard input ends; then it
//! says how many it has seen. The runtime's socket and `reliable` or `best-effort` are its arguments; what carries its channels it never
//! asks.

use insane::{Code, Session};
use insane_tests_network::cables::unsparing;
use insane_tests_network::reliable;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().expect("the runtime's socket");
    let qos = if arguments.next().as_deref() == Some("reliable") { reliable() } else { insane::Qos::default() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0u8; 1]);
            stop.store(true, Ordering::Relaxed);
        });
        let session = Session::builder("wanderer").socket(socket).open().expect("a runtime");
        let stream = session.stream(unsparing(qos)).expect("a stream");
        let (sink, source) = (stream.sink("indications").expect("a sink"), stream.source("answers").expect("a source"));
        let mut seen = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            match sink.consume_timeout(Duration::from_millis(20)) {
                Ok(message) => {
                    seen += 1;
                    // Who asked may not have found this source's sink yet, or be gone: it asks again.
                    let _ = source.send(&message.to_vec());
                }
                Err(e) => assert_eq!(e.code(), Code::Timeout, "{e}"),
            }
        }
        println!("{seen}");
    });
}
