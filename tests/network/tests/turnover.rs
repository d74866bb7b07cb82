//! Sessions that open and close sources and sinks all the time, towards another host.

use insane::{Qos, Session, Stream};
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable, status};
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
