//! Sessions that open and close sources and sinks all the time.

use insane::{Code, Event, Qos, Reliability, Session, Stream};
use insane_tests_host::{Host, Watchdog, reconcile};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Rounds until what is kept has its size, and in all.
const ROUNDS: (u64, u64) = (100, 1500);

/// A stream of two sessions, of one that comes and goes and one that stays.
fn streams(sessions: &[Session; 2], qos: Qos) -> [Stream; 2] {
    [0, 1].map(|of| sessions[of].stream(qos).unwrap())
}

/// The channels, sources and sinks of which a runtime knows.
fn in_the_runtime(session: &Session) -> String {
    let status: serde_json::Value = serde_json::from_str(&session.report("status").unwrap()).unwrap();
    let endpoints = |of: &serde_json::Value| of["endpoints"].as_u64();
    let sessions: Option<Vec<_>> = status["sessions"].as_array().map(|all| all.iter().map(endpoints).collect());
    let channels = |of: &serde_json::Value| of["channels"].as_array().map(Vec::len);
    let streams: Option<Vec<_>> = status["streams"].as_array().map(|all| all.iter().map(channels).collect());
    assert!(sessions.is_some() && streams.is_some(), "{status}");
    format!("{sessions:?} {streams:?}")
}

/// Opens and closes a source and a sink in each round, each with a message to or from an end that stays, and one to the other of the
/// two.
fn turn_over(qos: Qos) {
    let _watchdog = Watchdog::start("turnover", 3 * LIMIT);
    let host = Host::start();
    let sessions = [host.session("goes"), host.session("stays")];
    let [goes, stays] = streams(&sessions, qos);
    let (sink, source) = (stays.sink("to").unwrap(), stays.source("from").unwrap());
    // A handle on what is closed, and a source that lives, are in the way of others all the time.
    let (closed, lives) = (goes.source("to").unwrap(), goes.source("to").unwrap());
    closed.close();
    let (mut kept, mut known) = ([0; 2], String::new());
    for round in 1..=ROUNDS.1 {
        let (out, into, between) = (goes.source("to").unwrap(), goes.sink("from").unwrap(), goes.sink("to").unwrap());
        assert_eq!((out.wait_for_sinks(2, LIMIT), source.wait_for_sinks(1, LIMIT)), (2, 1));
        let token = out.send(&round.to_le_bytes()).unwrap();
        source.send(&round.to_le_bytes()).unwrap();
        for one in [&sink, &into, &between] {
            assert_eq!(one.consume_timeout(LIMIT).unwrap().to_vec(), round.to_le_bytes());
        }
        let outcome = out.outcome(token).unwrap();
        assert_eq!((outcome.intended, outcome.delivered, outcome.dropped), (2, 2, 0), "round {round}");
        assert_eq!(closed.send(b"no").unwrap_err().code(), Code::Closed);
        drop((out, into, between));
        assert_eq!(source.sinks(), 0);
        if round % ROUNDS.0 == 0 {
            let (now, there) = ([&goes, &stays].map(Stream::records), in_the_runtime(&sessions[1]));
            if round == ROUNDS.0 {
                (kept, known) = (now, there);
            } else {
                assert!(now.iter().zip(&kept).all(|(now, before)| *now <= before + 8), "{now:?}, {kept:?} before");
                assert_eq!(there, known, "round {round}");
            }
        }
    }
    lives.send(b"lives").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"lives");
    // No cell of those that have ended was used again.
    reconcile(&sessions, 3 * ROUNDS.1 + 1, 3 * ROUNDS.1 + 1);
}

#[test]
fn what_a_session_keeps_of_closed_sources_and_sinks_is_bounded() {
    turn_over(Qos::default());
}

#[test]
fn what_it_keeps_of_them_on_a_reliable_stream_is_bounded() {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    turn_over(qos);
}

/// Waits for something that the library tells of its own accord.
fn hears(session: &Session, what: &Event) {
    let until = Instant::now() + LIMIT;
    while session.next_event().as_ref() != Some(what) {
        assert!(Instant::now() < until, "{what:?} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_is_kept_of_what_was_given_up_while_there_was_no_runtime() {
    let _watchdog = Watchdog::start("given up", LIMIT);
    let mut host = Host::start();
    let session = host.session("waits");
    let stream = session.stream(Qos::default()).unwrap();
    let kept = stream.sink("kept").unwrap();
    // Those that are given up get the places of these.
    drop((stream.sink("c").unwrap(), stream.source("c").unwrap()));
    let before = (stream.records(), in_the_runtime(&session));
    host.stop();
    hears(&session, &Event::RuntimeLost);
    std::thread::scope(|scope| {
        let asks = [scope.spawn(|| stream.sink("c").map(drop)), scope.spawn(|| stream.source("c").map(drop))];
        for asks in asks {
            assert_eq!(asks.join().unwrap().unwrap_err().code(), Code::RuntimeLost);
        }
    });
    host.restart();
    hears(&session, &Event::RuntimeBack);
    assert_eq!((stream.records(), in_the_runtime(&session)), before);
    let other = host.session("other");
    let source = other.stream(Qos::default()).unwrap().source("kept").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source.send(b"kept").unwrap();
    assert_eq!(kept.consume_timeout(LIMIT).unwrap().to_vec(), b"kept");
    reconcile([&session, &other], 1, 1);
}
