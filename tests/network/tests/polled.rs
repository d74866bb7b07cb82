//! Runtimes whose network side has no thread: one loop polls two of them, and is their applications too.

use insane::{Message, Session, Sink, SinkOptions, SourceOptions, Wait};
use insane_runtime::config::Config;
use insane_runtime::network::Poller;
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, free_addresses, reliable};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 2000;

fn start(folder: &Path, at: usize, addresses: &[SocketAddr]) -> (Server, Poller) {
    let mut config = Config::default();
    config.runtime.socket = folder.join(format!("{at}.sock"));
    config.runtime.host = format!("host-{at}");
    let network = config.network.get_or_insert_default();
    network.listen = addresses[at];
    network.peers = vec![addresses[1 - at]];
    network.patience_ms = 500;
    let (server, poller) = Server::start_polled(config).unwrap();
    (server, poller.unwrap())
}

fn turns(pollers: &mut [Poller]) {
    for poller in pollers {
        poller.turn();
    }
}

/// Polls until a sink has a message.
fn take<'s>(pollers: &mut [Poller], sink: &'s Sink) -> Message<'s> {
    loop {
        turns(pollers);
        if let Some(message) = sink.try_consume().unwrap() {
            return message;
        }
    }
}

/// Polls as long as `work`, on a thread of its own, is not done.
fn polled<T: Send>(pollers: &mut [Poller], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            turns(pollers);
            std::thread::yield_now();
        }
        worker.join().unwrap()
    })
}

#[test]
fn one_loop_polls_two_runtimes_and_is_their_applications() {
    let _watchdog = Watchdog::start("polled", TEST);
    let folder = tempfile::tempdir().unwrap();
    let addresses = free_addresses(2);
    let (servers, mut pollers): (Vec<Server>, Vec<Poller>) =
        [0, 1].map(|at| start(folder.path(), at, &addresses)).into_iter().unzip();
    let (here, there, asks, asked, answers, answered) = polled(&mut pollers, || {
        let open =
            |at: usize| Session::builder("polled").socket(folder.path().join(format!("{at}.sock"))).open().unwrap();
        let (here, there) = (open(0), open(1));
        let sink = || SinkOptions { wait: Wait::Spin, ..SinkOptions::default() };
        let source = || SourceOptions { wait: Wait::Spin, ..SourceOptions::default() };
        let (near, far) = (here.stream(reliable()).unwrap(), there.stream(reliable()).unwrap());
        let asked = far.sink_with("questions", sink()).unwrap();
        let answered = near.sink_with("answers", sink()).unwrap();
        let asks = near.source_with("questions", source()).unwrap();
        let answers = far.source_with("answers", source()).unwrap();
        assert_eq!((asks.wait_for_sinks(1, LIMIT), answers.wait_for_sinks(1, LIMIT)), (1, 1));
        (here, there, asks, asked, answers, answered)
    });
    for round in 1..=ROUNDS {
        asks.send(&round.to_le_bytes()).unwrap();
        let question = take(&mut pollers, &asked);
        assert_eq!((question.sequence(), question.to_vec()), (round, round.to_le_bytes().to_vec()));
        answers.send(&question.to_vec()).unwrap();
        drop(question);
        let answer = take(&mut pollers, &answered);
        assert_eq!((answer.sequence(), answer.to_vec()), (round, round.to_le_bytes().to_vec()));
    }
    // Who drops its poller has left the network, and the other hears of it.
    drop(pollers.pop());
    assert!(polled(&mut pollers, || eventually(|| asks.sinks() == 0)), "{} sinks", asks.sinks());
    drop((asks, asked, answers, answered, here, there));
    // A server that has stopped has nothing to be polled for.
    servers.into_iter().for_each(Server::stop);
    assert!(eventually(|| !pollers[0].turn()));
}
