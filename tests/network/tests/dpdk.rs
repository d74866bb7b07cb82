//! Two runtimes with DPDK on AF_PACKET beside kernel UDP, in network namespaces. Without root or DPDK: SKIPPED.

use insane::{Qos, Session};
use insane_runtime::config::{Datapath, Kind};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, dpdk_object, ends, goes_over, on_dpdk, towards, unsparing};
use insane_tests_network::{LIMIT, Process, config, eventually, free_addresses, law, law_holds, reliable, status};
use std::path::Path;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

fn datapaths(session: &Session) -> Vec<(String, String, String)> {
    let status = status(session);
    let all = status["network"]["datapaths"].as_array().expect("datapaths").iter();
    all.map(|d| ["kind", "state", "text"].map(|key| d[key].as_str().unwrap_or_default().to_owned()).into()).collect()
}

#[test]
fn streams_that_spare_no_resources_go_over_dpdk_and_others_over_udp() {
    let _watchdog = Watchdog::start("over dpdk", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let [one, mut two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |config| on_dpdk(config, &library)));
    let (a, b) = (one.session("ping"), two.session("pong"));
    let (kind, state, text) = datapaths(&a).pop().expect("two");
    assert_eq!((kind.as_str(), state.as_str()), ("dpdk", "open"), "{text}");
    assert!(text.contains("(net_af_packet), MTU 1500") && text.contains("it wakes sleepers"), "{text}");
    let doctor = a.report("doctor").unwrap();
    assert!(doctor.contains("it wakes sleepers"), "{doctor}");
    let kinds = [
        (Qos::default(), "udp", "datagram"),
        (unsparing(Qos::default()), "dpdk", "datagram"),
        (unsparing(reliable()), "dpdk", "reliable"),
    ];
    let mut pairs = Vec::new();
    for (qos, datapath, transport) in kinds {
        let (there, back) = (ends(&a, &b, qos, "ping"), ends(&b, &a, qos, "pong"));
        for (stream, host) in [(&there.0, "host-1"), (&back.0, "host-0")] {
            let effective = towards(stream, host);
            assert_eq!((effective.datapath.as_str(), effective.transport.as_str()), (datapath, transport));
            assert!(effective.reasons.is_empty() && effective.qos == Some(qos), "{effective:?}");
        }
        pairs.push((there, back));
    }
    for round in 0..50_usize {
        for (n, (there, back)) in pairs.iter().enumerate() {
            let payload: Vec<u8> = (0..round * 29 + n).map(|i| (i * 31 + round) as u8).collect();
            there.1.send(&payload).unwrap();
            let message = there.2.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round} {n}: {e}; {}", law(&a)));
            assert!(message.to_vec() == payload, "round {round} of {n}");
            back.1.send(&message.to_vec()).unwrap();
            let message = back.2.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round} {n}: {e}; {}", law(&b)));
            assert!(message.to_vec() == payload, "round {round} of {n}, back");
        }
    }
    // A reliable stream of much, through the packet engine; the kernel's own traffic keeps flowing on that interface.
    for len in [1400, 65_536, 3 << 20] {
        let payload: Vec<u8> = (0..len).map(|i: usize| (i * 31 + len) as u8).collect();
        pairs[2].0.1.send(&payload).unwrap();
        let message = pairs[2].0.2.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len}: {e}; {}", law(&a)));
        assert!(message.to_vec() == payload, "{len} bytes");
    }
    cables.ping("10.96.0.2").unwrap();
    for session in [&a, &b] {
        assert!(eventually(|| law_holds(session)), "{}", law(session));
    }
    // A runtime that dies and comes back is reached over DPDK again.
    drop(b);
    two.kill();
    two.again();
    let b = two.session("again");
    let (stream, source, sink) = ends(&a, &b, unsparing(reliable()), "again");
    goes_over(&stream, "host-1", "dpdk");
    source.send(b"once more").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"once more");
}

/// The first end of a memif has this MTU and room for a whole message in a frame.
#[test]
fn a_port_has_the_mtu_that_it_is_given() {
    let _watchdog = Watchdog::start("mtu", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("memif");
    let [one, two] = ["server", "client"].map(|role| {
        cables.runtime(PROGRAM, usize::from(role == "client"), |config| {
            on_dpdk(config, &library);
            let datapath = &mut config.network.get_or_insert_default().datapath[0];
            datapath.interface.clear();
            datapath.device = format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display());
            datapath.mtu = 9000;
        })
    });
    let (a, b) = (one.session("one"), two.session("two"));
    for session in [&a, &b] {
        let (_, state, text) = datapaths(session).pop().expect("two");
        assert!(state == "open" && text.contains("(net_memif), MTU 9000, "), "{text}");
    }
    let (stream, source, sink) = ends(&a, &b, unsparing(reliable()), "jumbo");
    goes_over(&stream, "host-1", "dpdk");
    for len in [8000, 9000, 100_000] {
        let payload: Vec<u8> = (0..len).map(|i: usize| (i * 31 + len) as u8).collect();
        source.send(&payload).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len}: {e}; {}", law(&a)));
        assert!(message.to_vec() == payload, "{len} bytes");
    }
}

#[test]
fn a_port_has_the_queues_that_it_is_told() {
    let _watchdog = Watchdog::start("queues", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("memif");
    let [one, two] = ["server", "client"].map(|role| {
        cables.runtime(PROGRAM, usize::from(role == "client"), |config| {
            on_dpdk(config, &library);
            let datapath = &mut config.network.get_or_insert_default().datapath[0];
            datapath.interface.clear();
            datapath.device = format!("net_memif0,role={role},socket={}", socket.display());
            datapath.queue_count = 2;
        })
    });
    let (a, b) = (one.session("one"), two.session("two"));
    for session in [&a, &b] {
        let (_, state, text) = datapaths(session).pop().expect("two");
        let said = "(net_memif), MTU 1500, 2 queues, of which who sends chooses, no flow rule: the device takes none";
        assert!(state == "open" && text.contains(said), "{text}");
        assert!(session.report("doctor").unwrap().contains(said));
    }
    let (stream, source, sink) = ends(&a, &b, unsparing(reliable()), "by two");
    goes_over(&stream, "host-1", "dpdk");
    for len in [8, 100_000] {
        let payload: Vec<u8> = (0..len).map(|i: usize| (i * 31 + len) as u8).collect();
        source.send(&payload).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len}: {e}; {}", law(&a)));
        assert!(message.to_vec() == payload, "{len} bytes");
    }
}

#[test]
fn an_mtu_that_the_device_has_not_is_said() {
    let _watchdog = Watchdog::start("mtu too large", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let one = cables.runtime(PROGRAM, 0, |config| {
        on_dpdk(config, &library);
        config.network.get_or_insert_default().datapath[0].mtu = 9000;
    });
    let a = one.session("one");
    let (_, state, text) = datapaths(&a).pop().expect("two");
    assert!(state == "absent" && text.contains("veth1 has an MTU of 1500, and mtu is 9000"), "{text}");
    assert!(a.report("doctor").unwrap().contains("veth1 has an MTU of 1500, and mtu is 9000"));
}

/// The first device on an interface has a name that the runtime made, the second one that stands in the configuration.
#[test]
fn an_interface_and_a_named_device_are_two_ports() {
    let _watchdog = Watchdog::start("two ports", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    let one = cables.runtime(PROGRAM, 0, |config| {
        on_dpdk(config, &library);
        let datapaths = &mut config.network.get_or_insert_default().datapath;
        let mut second = datapaths[0].clone();
        second.interface.clear();
        second.device = "net_af_packet0,iface=veth0".into();
        second.address = "10.95.0.100/24".into();
        datapaths.push(second);
    });
    let a = one.session("one");
    let found = datapaths(&a).into_iter().filter(|(kind, _, _)| kind == "dpdk").collect::<Vec<_>>();
    assert!(found.len() == 2 && found.iter().all(|(_, state, _)| state == "open"), "{found:?}");
}

#[test]
fn a_host_without_the_object_falls_back_and_says_why() {
    let _watchdog = Watchdog::start("without dpdk", TEST);
    let Some(cables) = Cables::new() else { return };
    let missing = Path::new("/no/such/folder/libinsane_dpdk.so");
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |config| on_dpdk(config, missing)));
    let (a, b) = (one.session("one"), two.session("two"));
    let (_, state, text) = datapaths(&a).pop().expect("two");
    assert!(state == "absent" && text.contains("/no/such/folder/libinsane_dpdk.so: No such file"), "{text}");
    let (stream, source, sink) = ends(&a, &b, unsparing(Qos::default()), "c");
    let effective = towards(&stream, "host-1");
    assert_eq!(effective.datapath, "udp");
    assert!(effective.reasons.iter().any(|reason| reason.contains("host-0 has no dpdk: ")), "{effective:?}");
    source.send(b"by the kernel").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"by the kernel");
}

/// Neither of two ports is tried again, and both say what was wrong when DPDK was started: a later reason would hide it.
#[test]
fn why_dpdk_did_not_start_is_said_for_good_and_no_other_try_is_promised() {
    let _watchdog = Watchdog::start("dpdk does not start", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let address = free_addresses(1);
    let mut config = config("host-0", address[0], &address);
    // More memory than an address space has.
    let eal = "--no-huge -m 200000000 --no-pci";
    let port = |number: usize| Datapath {
        kind: Kind::Dpdk,
        library: library.display().to_string(),
        device: format!("net_null{number}"),
        eal: eal.into(),
        address: format!("10.96.{number}.100/24"),
        ..Datapath::default()
    };
    config.network.get_or_insert_default().datapath = [0, 1].map(port).into();
    let one = Process::start(PROGRAM, None, &config);
    let a = one.session("one");
    let reports = || status(&a)["network"]["datapaths"].as_array().expect("datapaths")[1..].to_vec();
    assert!(eventually(|| reports().iter().all(|report| report["tries"] == 1)), "{:?}", reports());
    let first = reports();
    let why = first[0]["reason"].as_str().unwrap_or_default();
    assert!(why.contains(&format!(" does not start with \"{eal}\": ")), "{why}");
    assert!(
        why.ends_with(": said when DPDK was started in this process; restart the runtime after mending it"),
        "{why}"
    );
    for report in &first {
        assert_eq!((report["reason"].as_str(), &report["final"]), (Some(why), &true.into()));
        let text = report["text"].as_str().unwrap_or_default();
        assert!(text.contains("not tried again") && !text.contains("it will be"), "{text}");
    }
    let doctor = a.report("doctor").unwrap();
    assert!(doctor.contains("restart the runtime") && !doctor.contains("tried again by itself"), "{doctor}");
    // What may be there again is tried a second later.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(reports(), first);
}
