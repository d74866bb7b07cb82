//! What an application opens while its runtime is away is opened once it is back.

use insane::Qos;
use insane_tests_host::{Host, Watchdog, reconcile};
use std::time::Duration;

#[test]
fn ends_opened_while_the_runtime_is_away_are_open_when_it_is_back() {
    let limit = Duration::from_secs(20);
    let _watchdog = Watchdog::start("reopen", Duration::from_secs(60));
    let mut host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let (out, into) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
    host.stop();
    std::thread::sleep(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let source = scope.spawn(|| out.source("away"));
        let sink = scope.spawn(|| into.sink("away"));
        std::thread::sleep(Duration::from_millis(200));
        host.restart();
        let (source, sink) = (source.join().unwrap().expect("a source"), sink.join().unwrap().expect("a sink"));
        assert_eq!(source.wait_for_sinks(1, limit), 1);
        source.send(b"back").unwrap();
        assert_eq!(sink.consume_timeout(limit).unwrap().to_vec(), b"back");
    });
    reconcile([&a, &b], 1, 1);
}
