//! Two runtimes on loopback addresses carry channels between applications that know nothing of it.

use insane::{Qos, Reliability};
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(30);

fn reliable() -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    qos
}

#[test]
fn ping_pong_between_two_hosts() {
    let _watchdog = Watchdog::start("ping-pong", TEST);
    let hosts = hosts(2, |_, _| ());
    for qos in [Qos::default(), reliable()] {
        let (ping, pong) = (hosts[0].session("ping"), hosts[1].session("pong"));
        let (a, b) = (ping.stream(qos).unwrap(), pong.stream(qos).unwrap());
        let (there, back) = (b.sink("there").unwrap(), a.sink("back").unwrap());
        let (out, reply) = (a.source("there").unwrap(), b.source("back").unwrap());
        assert_eq!((out.wait_for_sinks(1, LIMIT), reply.wait_for_sinks(1, LIMIT)), (1, 1));
        for len in [0usize, 1, 64, 65, 1000, 1472, 5000, 70_000, 1 << 20] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
            let token = out.send(&payload).unwrap();
            let message = there.consume_timeout(LIMIT).unwrap();
            assert_eq!((message.source(), message.sequence()), (out.epoch(), token.0));
            let bytes = message.to_vec();
            assert!(bytes == payload, "{len} bytes differ");
            drop(message);
            reply.send(&bytes).unwrap();
            assert!(back.consume_timeout(LIMIT).unwrap().to_vec() == payload, "{len} bytes differ on the way back");
            let outcome = || out.outcome(token).unwrap();
            assert!(eventually(|| outcome().is_final()), "{:?}", outcome());
            assert_eq!((outcome().intended, outcome().delivered), (1, 1), "{len} bytes: {:?}", outcome());
        }
        let effective = a.effective_qos();
        let there = effective.iter().find(|e| e.peer == "host-1").expect("the other host's");
        assert_eq!(there.datapath, "udp");
        assert_eq!(there.transport, if qos == reliable() { "reliable" } else { "datagram" });
        assert!(eventually(|| a.audit().held == 0 && b.audit().held == 0), "{:?} {:?}", a.audit(), b.audit());
    }
}
