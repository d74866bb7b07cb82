//! Sessions that open and close sources and sinks all the time, towards another host.

use insane::{Code, Qos, Session, Stream};
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable, status, two};
use std::time::Duration;

/// Rounds until what is kept has its size, and in all.
const ROUNDS: (u64, u64) = (50, 500);

/// What a runtime has of the other host: flows there and from there, messages pending there, its sinks, and the sources and sinks of it that
/// take part here.
fn there(session: &Session) -> [Option<u64>; 5] {
    let report = status(session);
    let host = &report["network"]["hosts"][0];
    let network = report["sessions"].as_array().into_iter().flatten().find(|s| s["app"] == "network");
    let [out, into, pending, sinks] = ["flows_out", "flows_in", "pending", "sinks"].map(|name| host[name].as_u64());
    [out, into, pending, sinks, network.and_then(|network| network["endpoints"].as_u64())]
}

/// Opens and closes a source and a sink in each round, each with a message to or from an end of the other host, which stays.
fn turn_over(qos: Qos) {
    let _watchdog = Watchdog::start("turnover", Duration::from_secs(240));
    let hosts = hosts(2, |_, _| ());
    let [a, b] = [hosts[0].session("goes"), hosts[1].session("stays")];
    let [goes, stays] = [&a, &b].map(|session| session.stream(qos).unwrap());
    let (sink, source) = (stays.sink("to").unwrap(), stays.source("from").unwrap());
    let mut kept = [0; 2];
    for round in 1..=ROUNDS.1 {
        let (out, into) = (goes.source("to").unwrap(), goes.sink("from").unwrap());
        assert_eq!((out.wait_for_sinks(1, LIMIT), source.wait_for_sinks(1, LIMIT)), (1, 1), "{round}: {}", law(&a));
        out.send(&round.to_le_bytes()).unwrap();
        source.send(&round.to_le_bytes()).unwrap();
        for one in [&sink, &into] {
            assert_eq!(one.consume_timeout(LIMIT).unwrap().to_vec(), round.to_le_bytes());
        }
        drop((out, into));
        assert!(eventually(|| source.sinks() == 0), "{round}: {}", law(&b));
        if round % ROUNDS.0 == 0 {
            let rests = || [&a, &b].map(there) == [[0, 0, 0, 1, 1], [0; 5]].map(|all| all.map(Some));
            assert!(eventually(rests), "round {round}: {:?}", [&a, &b].map(there));
            let now = [&goes, &stays].map(Stream::records);
            if round == ROUNDS.0 {
                kept = now;
            }
            assert!(now.iter().zip(&kept).all(|(now, before)| *now <= before + 8), "{now:?}, {kept:?} before");
        }
    }
    assert!(eventually(|| law_holds(&a) && law_holds(&b)), "{}, {}", law(&a), law(&b));
}

#[test]
fn what_two_hosts_keep_of_closed_sources_and_sinks_is_bounded() {
    turn_over(Qos::default());
}

#[test]
fn what_they_keep_of_them_on_a_reliable_stream_is_bounded() {
    turn_over(reliable());
}

#[test]
fn an_answer_that_nobody_waits_for_any_more_is_no_other_request_s() {
    let _watchdog = Watchdog::start("late answers", LIMIT);
    let [one, _two] = two(env!("CARGO_BIN_EXE_runtime"));
    let session = one.session("asks");
    let stream = session.stream(Qos::default()).unwrap();
    // So many that a report comes in several parts.
    let sinks: Vec<_> =
        (0..600).map(|at| stream.sink(&*format!("a-channel-of-which-the-report-has-the-name-{at}")).unwrap()).collect();
    let whole = |session: &Session| session.report("status").unwrap();
    assert!(whole(&session).len() > 1 << 16, "{}", whole(&session).len());
    let before = stream.records();
    one.hold();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asks: Vec<_> = (0..4).map(|_| scope.spawn(|| session.report("status").map(|_| ()))).collect();
        asks.into_iter().map(|asks| asks.join().unwrap().unwrap_err().code()).collect()
    });
    assert_eq!(answers, [Code::RuntimeLost; 4]);
    one.go_on();
    for _ in 0..20 {
        serde_json::from_str::<serde_json::Value>(&whole(&session)).unwrap();
    }
    assert_eq!(stream.records(), before);
    drop(sinks);
}
