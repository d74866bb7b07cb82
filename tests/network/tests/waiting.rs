//! However a network thread waits, what comes is taken and what goes is sent, while one thing or both happen.

use insane::Qos;
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable};
use std::time::Duration;

/// What is configured: the least and the most that it looks for more before it sleeps, in microseconds.
const WAYS: [(&str, u64, u64); 3] =
    [("sleeps at once", 0, 0), ("as shipped", 0, 200), ("has its own core", 2000, 2000)];

const ROUNDS: u64 = 300;

/// Messages that go one way meanwhile: alike, so that they come in rows, but for some.
const ONE_WAY: u64 = 20_000;

#[test]
fn however_the_network_thread_waits_nothing_is_missed() {
    let _watchdog = Watchdog::start("waiting", Duration::from_secs(100));
    for (way, least, most) in WAYS {
        let hosts = hosts(2, |_, config| {
            let network = config.network.get_or_insert_default();
            (network.spin_us, network.spin_most_us) = (least, most);
        });
        let (near, far) = (hosts[0].session("near"), hosts[1].session("far"));
        let (a, b) = (near.stream(Qos::default()).unwrap(), far.stream(Qos::default()).unwrap());
        let (there, back) = (b.sink("there").unwrap(), a.sink("back").unwrap());
        let (out, reply) = (a.source("there").unwrap(), b.source("back").unwrap());
        let (from, to) = (near.stream(reliable()).unwrap(), far.stream(reliable()).unwrap());
        let (bulk, taken) = (from.source("bulk").unwrap(), to.sink("bulk").unwrap());
        for source in [&out, &reply, &bulk] {
            assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{way}");
        }
        // First alone, then beside what goes one way.
        for beside in [false, true] {
            std::thread::scope(|scope| {
                if beside {
                    scope.spawn(|| {
                        for n in 0..ONE_WAY {
                            let len = if n % 500 == 7 { 3000 } else { 1024 };
                            bulk.send(&vec![n as u8; len]).unwrap();
                        }
                    });
                    scope.spawn(|| {
                        for n in 0..ONE_WAY {
                            let message = taken.consume_timeout(LIMIT).unwrap();
                            assert_eq!(message.sequence(), n + 1, "{way}");
                            assert!(message.to_vec().iter().all(|byte| *byte == n as u8), "{way}: {n} is changed");
                        }
                    });
                }
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let message = there.consume_timeout(LIMIT).unwrap();
                        reply.send(&message.to_vec()).unwrap();
                    }
                });
                for n in 0..ROUNDS {
                    out.send(&n.to_le_bytes()).unwrap();
                    assert_eq!(back.consume_timeout(LIMIT).unwrap().to_vec(), n.to_le_bytes(), "{way}");
                }
            });
        }
        for session in [&near, &far] {
            assert!(eventually(|| law_holds(session)), "{way}: {}", law(session));
        }
        assert!(eventually(|| [&a, &b, &from, &to].iter().all(|stream| stream.audit().held == 0)), "{way}");
    }
}
