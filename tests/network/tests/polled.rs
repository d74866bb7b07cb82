//! Runtimes whose network side has no thread: one loop polls two of them, and is their applications too; another sleeps between messages.

use insane::{Message, Session, Sink, SinkOptions, SourceOptions, Wait, WaitSet};
use insane_runtime::config::Config;
use insane_runtime::network::Poller;
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_network::{Ends, LIMIT, config, eventually, free_addresses, reliable};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 2000;

fn configuration(folder: &Path, at: usize, addresses: &[SocketAddr]) -> Config {
    let mut config = config(&format!("host-{at}"), addresses[at], addresses);
    config.runtime.socket = folder.join(format!("{at}.sock"));
    config.network.get_or_insert_default().patience_ms = 500;
    config
}

fn start(folder: &Path, at: usize, addresses: &[SocketAddr]) -> (Server, Poller) {
    let (server, poller) = Server::start_polled(configuration(folder, at, addresses)).unwrap();
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

#[test]
fn a_loop_that_sleeps_is_woken_by_its_network_and_by_what_else_it_waits_for() {
    let _watchdog = Watchdog::start("polled asleep", TEST);
    let folder = tempfile::tempdir().unwrap();
    let addresses = free_addresses(2);
    let (server, poller) = start(folder.path(), 0, &addresses);
    let far = Server::start(configuration(folder.path(), 1, &addresses)).unwrap();
    let open = |at: usize| Session::builder("polled").socket(folder.path().join(format!("{at}.sock"))).open().unwrap();
    let (here, there, beside) = (open(0), open(1), open(0));
    let mut pollers = [poller];
    let (asked, answers, asks, answered, near) = polled(&mut pollers, || {
        let streams = [&here, &there, &beside].map(|session| session.stream(reliable()).unwrap());
        let asked = streams[0].sink("questions").unwrap();
        let answered = streams[1].sink("answers").unwrap();
        let answers = streams[0].source("answers").unwrap();
        let (asks, near) = (streams[1].source("questions").unwrap(), streams[2].source("questions").unwrap());
        for source in [&asks, &near, &answers] {
            assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        }
        (asked, answers, asks, answered, near)
    });
    let [mut poller] = pollers;
    let (over, turns, sleeps) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    // Relaxed: nothing is read on the strength of these.
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut set = WaitSet::new().unwrap();
            set.add(&asked).unwrap();
            while !over.load(Ordering::Relaxed) {
                let mut busy = poller.turn();
                turns.fetch_add(1, Ordering::Relaxed);
                while let Some(question) = asked.try_consume().unwrap() {
                    answers.send(&question.to_vec()).unwrap();
                    busy = true;
                }
                if !busy && poller.idle() && set.arm().unwrap() {
                    sleeps.fetch_add(1, Ordering::Relaxed);
                    poller.sleep(&[set.as_fd()], Duration::from_secs(1));
                }
            }
        });
        let _ends = Ends(&over);
        let slept = count(&sleeps);
        for round in 1..=100u64 {
            // Every third by a session of the same host: that does not pass the network side. Some find it awake, others asleep.
            let by = if round % 3 == 0 { &near } else { &asks };
            by.send(&round.to_le_bytes()).unwrap();
            assert_eq!(answered.consume_timeout(LIMIT).unwrap().to_vec(), round.to_le_bytes().to_vec());
            std::thread::sleep(Duration::from_millis(round % 4));
        }
        assert!(count(&sleeps) > slept, "{} sleeps", count(&sleeps));
        // Who looked again and again would look some hundred thousand times.
        let before = count(&turns);
        std::thread::sleep(Duration::from_secs(1));
        let looked = count(&turns) - before;
        assert!(looked < 5_000, "{looked} turns in a second in which nothing came");
    });
    // Nothing comes: it sleeps for as long as it may, in several pieces where something is due before.
    let (began, mut most) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        while poller.turn() || !poller.idle() {}
        poller.sleep(&[], Duration::from_millis(20));
        most = most.max(start.elapsed());
    }
    assert!(most >= Duration::from_millis(4), "the longest sleep took {most:?}");
    // A server that has stopped wakes it, and it sleeps no more.
    server.stop();
    let began = Instant::now();
    for _ in 0..3 {
        poller.sleep(&[], LIMIT);
    }
    assert!(began.elapsed() < LIMIT && poller.idle() && !poller.turn(), "{:?}", began.elapsed());
    far.stop();
}
