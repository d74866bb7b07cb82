//! DPDK's memif between two ports of one process: no hugepages, no rights, no interface.

mod common;

use std::time::Instant;

use common::{PATIENCE, dpdk, memif, memif_rig, outcomes, reopen_memif, slots, wait_for_links};
use insane_datagrams::{DatagramConfig, Datagrams};
use insane_datapath::batch::TxBatch;
use insane_datapath::conformance::{self as suite, Form, Rig, pattern};
use insane_datapath::memory::Piece;
use insane_datapath::{Address, Armed, Datapath, Foreign};
use insane_datapath_dpdk::DpdkConfig;
use insane_datapath_plugin::PluginDatapath;

fn conform(mtu: u16) {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    suite::all_but_outcomes(&mut || memif_rig(dpdk, &folder, mtu), &mut reopen_memif);
}

#[test]
fn conforms_over_memif() {
    conform(1500);
}

#[test]
fn conforms_over_memif_with_jumbo_frames() {
    conform(9000);
}

/// A link takes messages of both ends, and the end of one is an event for the other: each is handled while the bursts of both ports are
/// kept out, and without any nobody is heard.
#[test]
fn peers_are_heard_between_bursts_alone() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let heard = |port: &PluginDatapath| {
        let text = port.describe();
        let count = text.rsplit_once("; peers heard between bursts: ").expect("it is said").1.parse::<u64>();
        count.expect("a count")
    };
    let [mut a, mut b] = [0, 1].map(|end| memif(dpdk, folder.path(), end, 1500));
    b.open().expect("the server opens");
    a.open().expect("the client opens");
    wait_for_links(&mut [&mut a, &mut b]);
    // The server hears of a connection, who the client is, of its memory, its rings and that it is ready; the client as often what is
    // answered. Other ports of this process may have links of their own.
    let linked = [heard(&a), heard(&b)];
    assert!(linked.iter().all(|count| *count >= 6), "{linked:?}");
    a.close();
    let start = Instant::now();
    while heard(&b) == linked[1] {
        assert!(start.elapsed() < PATIENCE, "that the client goes is not heard");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn every_frame_has_an_outcome() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    outcomes(&mut memif_rig(dpdk, &folder, 1500));
}

/// Payload stays where it is until the driver copies it; what arrives is right, also beside payload that is too small for that.
#[test]
fn payload_is_read_where_it_lies() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for mtu in [1500, 9000] {
        let mut rig = memif_rig(dpdk, &folder, mtu);
        assert_eq!(rig.a.capabilities().foreign, Foreign::Gathers);
        let (to, form, payload) = (rig.b.address().expect("it is open"), Form::of(&rig), pattern(9, 9000));
        let sizes: Vec<usize> = (0..2000).map(|n| (n * 37) % (usize::from(mtu) - 100)).collect();
        let mut tx = TxBatch::default();
        for (number, size) in sizes.iter().enumerate() {
            let start = tx.buffer().len();
            form.begin(tx.buffer(), 8 + size);
            tx.buffer().extend_from_slice(&(number as u64).to_le_bytes());
            tx.commit(to, start, Some(Piece::of(&payload[..*size])), 0);
        }
        let (mut rx, mut got, start) = (slots(&*rig.b), 0, Instant::now());
        while got < sizes.len() {
            rig.a.transmit(&mut tx);
            rig.b.receive(&mut rx, None);
            for taken in rx.taken.drain(..) {
                for frame in taken.frames() {
                    let body = form.unwrap(frame);
                    assert_eq!(body[..8], (got as u64).to_le_bytes(), "order");
                    assert!(body[8..] == payload[..sizes[got]], "frame {got} of {} bytes", sizes[got]);
                    got += 1;
                }
                rx.free.push(taken.slot);
            }
            assert!(start.elapsed() < PATIENCE, "{got} came");
        }
    }
}

/// Two packet engines find each other over it and exchange datagrams both ways.
#[test]
fn two_engines_exchange_datagrams() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // In one process the server must come first.
    let [mut b, mut a] = [1, 0].map(|end| {
        let address = format!("10.97.0.{}/24", end + 1).parse().expect("a prefix");
        let config = DatagramConfig { address, port: 7400, gateway: None, vlan: None };
        let mut datagrams = Datagrams::new(memif(dpdk, folder.path(), end, 1500), config);
        datagrams.open().expect("it opens");
        datagrams
    });
    let payload = pattern(3, 1400);
    let (mut came, start) = ([0; 2], Instant::now());
    let [mut rx_a, mut rx_b] = [slots(&a), slots(&b)];
    while came != [200; 2] {
        for end in 0..2 {
            let (from, to, rx) = if end == 0 { (&mut a, &mut b, &mut rx_b) } else { (&mut b, &mut a, &mut rx_a) };
            if came[end] < 200 {
                // One after the other: the first of them go before there is a link, and are lost.
                let mut tx = TxBatch::default();
                let at = tx.buffer().len();
                tx.buffer().extend_from_slice(&(came[end] as u32).to_le_bytes());
                let piece = Piece::of(&payload[..came[end] * 7]);
                tx.commit(to.address().expect("it is open"), at, Some(piece), 0);
                from.transmit(&mut tx);
            }
            to.receive(rx, None);
            for taken in rx.taken.drain(..) {
                let frame = taken.frames().next().expect("a frame");
                if frame[..4] == (came[end] as u32).to_le_bytes() {
                    assert_eq!(
                        (&frame[4..], taken.from),
                        (&payload[..came[end] * 7], from.address().expect("it is open"))
                    );
                    came[end] += 1;
                }
                rx.free.push(taken.slot);
            }
        }
        assert!(start.elapsed() < PATIENCE, "{came:?} came: {:?} {:?}", a.stats(), b.stats());
    }
    assert!(a.engine_stats().is_some());
}

/// Who polls a client serves others too: connecting to a server that is not there keeps it in no call. A thread that waits is put to sleep,
/// which the kernel counts.
#[test]
fn a_client_without_its_server_keeps_nobody() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = memif(dpdk, folder.path(), 0, 1500);
    client.open().expect("its server may come later");
    let mut rx = slots(&client);
    let sleeps = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("the thread's state");
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count")
    };
    let (start, before) = (Instant::now(), sleeps());
    while start.elapsed().as_millis() < 500 {
        client.receive(&mut rx, None);
        assert!(matches!(client.arm(), Armed::Poll | Armed::Ready), "it can be polled");
    }
    // Some fifty attempts.
    assert!(sleeps() - before < 5, "{}", sleeps() - before);
    // In one process, who names a socket first says for good whether it listens: the server names it in other words.
    let mut server = memif(dpdk, &folder.path().join("."), 1, 1500);
    server.open().expect("a server");
    wait_for_links(&mut [&mut client, &mut server]);
    drop(server);
    client.close();
}

/// A killed server's socket stays in its folder; what another program listens on, and what is no socket, is left alone.
#[test]
fn only_a_socket_that_nobody_listens_on_is_taken_away() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let open = || {
        let device = format!("net_memif{},role=server,socket={}", common::serial(), path.display());
        let mut port = dpdk.port(&DpdkConfig::new(device)).expect("a configuration that can be");
        port.open().map_err(|error| error.to_string())
    };
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let error = open().expect_err("somebody listens");
    assert!(error.contains("does not come into being") && path.exists(), "{error}");
    drop(listener);
    open().expect("nobody listens any more");
    let names = std::fs::read_to_string("/proc/net/unix").expect("the sockets");
    assert!(!names.contains(&format!("@{}", path.display())), "an abstract name is anybody's");
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, b"kept").expect("a file");
    open().expect_err("it is no socket");
    assert_eq!(std::fs::read(&path).expect("the file"), b"kept");
}

/// A port that is to have another's name is refused, and the other one is not closed in its place: whether it has a link yet or not.
#[test]
fn a_port_works_on_when_another_is_to_have_its_name() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // As above: a client whose server comes later finds it by another path.
    let [mut a, mut b] =
        [(0, folder.path()), (1, &folder.path().join("."))].map(|(end, place)| Box::new(memif(dpdk, place, end, 1500)));
    let refused = |port: &PluginDatapath| {
        let text = port.describe();
        let other = DpdkConfig::new(text.split(' ').next().expect("a name"));
        let error = dpdk.port(&other).expect("a configuration that can be").open().expect_err("the name is taken");
        assert!(error.to_string().contains("in this process already: give this one another number"), "{error}");
    };
    a.open().expect("its server may come later");
    refused(&a);
    b.open().expect("the server opens");
    wait_for_links(&mut [&mut *a, &mut *b]);
    refused(&a);
    refused(&b);
    suite::order_is_kept_and_nothing_repeated(&mut Rig { a, b });
}

#[test]
fn what_was_chosen_and_what_cannot_be_is_said() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut port = memif(dpdk, folder.path(), 1, 1500);
    port.open().expect("it opens");
    let text = port.describe();
    for part in ["(net_memif)", "it reads payload where it lies", "it can only be polled", "--no-huge -m 256 --no-pci"]
    {
        assert!(text.contains(part), "{text}");
    }
    // Its peer is heard between bursts.
    assert!(!text.contains("may end this process"), "{text}");
    assert!(port.wake_handle().is_none() && port.arm() == Armed::Poll);
    assert_eq!(port.address(), Some(Address::Ethernet(common::station(1))));
    let name = text.split(' ').next().expect("a name");
    for (config, reason) in [
        (DpdkConfig::new(name), "in this process already: give this one another number"),
        (
            DpdkConfig { eal: Some("--no-huge -m 64".into()), ..DpdkConfig::new("net_null7") },
            "DPDK was started in this process with \"--no-huge -m 256 --no-pci\", and it starts once: for \"--no-huge -m 64\" the runtime must restart",
        ),
        (DpdkConfig::new("0000:00:00.0"), "the runtime must restart"),
        (DpdkConfig::new("net_no_such_driver0"), "net_no_such_driver0 does not come into being"),
        (
            DpdkConfig::new("net_memif_x0,role=server,socket=/no/such/folder/m,socket-abstract=no"),
            "does not come into being",
        ),
        (DpdkConfig::new("net_af_packet990,iface=no-such-if0"), "there is no interface no-such-if0 here"),
        (DpdkConfig::new("net_af_packet991"), "takes iface=NAME"),
        (
            DpdkConfig { buffers: 262_144, mtu: Some(9000), ..DpdkConfig::new("net_null8") },
            "no memory for 262144 buffers",
        ),
    ] {
        let mut port = dpdk.port(&config).expect("a configuration that can be");
        let error = port.open().expect_err(reason);
        assert_eq!(error.is_final(), reason.ends_with("the runtime must restart"), "{config:?}: {error}");
        let error = error.to_string();
        assert!(error.starts_with("dpdk is not available here: ") && error.contains(reason), "{config:?}: {error}");
    }
    for (config, reason) in [
        (DpdkConfig::new(""), "device is missing"),
        (DpdkConfig { mtu: Some(20_000), ..DpdkConfig::new("net_null0") }, "mtu must be 68 to 9000: 20000"),
        (DpdkConfig { buffers: 3, ..DpdkConfig::new("net_null0") }, "buffers must be 256 to 262144: 3"),
        (DpdkConfig { ring: 1, ..DpdkConfig::new("net_null0") }, "ring must be 64 to 8192: 1"),
        (DpdkConfig { station: Some([1, 0, 0, 0, 0, 0]), ..DpdkConfig::new("net_null0") }, "no station's MAC address"),
    ] {
        let error = dpdk.port(&config).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}
