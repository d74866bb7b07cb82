//! The template in C, built by its own Makefile and loaded, passes what every datapath passes, alone and below the packet engine.

mod common;

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use common::{folder, no_compiler, port, template};
use insane_datagrams::{DatagramConfig, Datagrams};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, Rig};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath, Foreign};
use insane_datapath_plugin::{Plugin, PluginDatapath};
use tempfile::TempDir;

fn open(plugin: Plugin, folder: &TempDir, end: usize, mtu: &str) -> PluginDatapath {
    let mut port = port(plugin, folder, end, mtu);
    port.open().unwrap();
    port
}

#[test]
fn the_template_conforms() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let plugin = template(&folder);
    for mtu in ["1500", "9000"] {
        suite::all(|| {
            let [a, b] = [0, 1].map(|end| Box::new(open(plugin, &folder, end, mtu)));
            Rig { a, b }
        });
    }
}

#[test]
fn what_it_is_is_said() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let plugin = template(&folder);
    let port = open(plugin, &folder, 0, "1500");
    let can = port.capabilities();
    assert_eq!((can.technology, can.max_frame, can.foreign), ("unix-frames", 1514, Foreign::Gathers));
    assert!(can.needs_packet_engine && can.places && !can.detects_changes);
    assert!(port.describe().contains("payload is gathered by the kernel"), "{}", port.describe());
    assert_eq!(port.address().unwrap().to_string(), "02:99:00:00:00:01");
    let again = Plugin::load(folder.path().join("../").join(folder.path().file_name().unwrap()).join("unix_frames.so"));
    assert_eq!(again.unwrap().path(), plugin.path(), "an object is loaded once");
    for (options, reason) in [
        (
            &[("path", "/x"), ("colour", "red")][..],
            "there is no such option; there are path, peer, address, mtu, fail_send_after, fail_receive_after, hang_open: colour",
        ),
        (&[("fail_send_after", "-1")], "fail_send_after must be a number of frames: -1"),
        (&[("hang_open", "long")], "hang_open must be a number of milliseconds: long"),
        (&[("fail_receive_after", "ten")], "fail_receive_after must be a number of frames: ten"),
        (&[("mtu", "70000")], "mtu must be 68 to 9000: 70000"),
        (&[], "path, peer and address must be given"),
        (&[("path", "/a\0b")], "an option has a NUL in it"),
    ] {
        let error = plugin.port(options).unwrap_err().to_string();
        assert!(error.starts_with("unix-frames is not available here: ") && error.contains(reason), "{error}");
    }
    let nowhere = [("path", "/no/such/folder/x"), ("peer", "/y"), ("address", "02:00:00:00:00:01")];
    let error = plugin.port(&nowhere).unwrap().open().unwrap_err().to_string();
    assert!(error.contains("/no/such/folder/x: No such file or directory"), "{error}");
}

/// A killed port's socket stays in its folder; what another program receives by, and what is no socket, is left alone, at the beginning
/// and at the end.
#[test]
fn only_a_socket_that_nobody_receives_by_is_taken_away() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let (plugin, path) = (template(&folder), folder.path().join("end0"));
    let mut one = port(plugin, &folder, 0, "1500");
    let refused = |one: &mut PluginDatapath| {
        let error = one.open().expect_err("it is taken").to_string();
        assert!(error.contains("end0: Address already in use"), "{error}");
    };
    std::fs::write(&path, b"kept").unwrap();
    refused(&mut one);
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    std::fs::remove_file(&path).unwrap();
    let other = UnixDatagram::bind(&path).unwrap();
    refused(&mut one);
    UnixDatagram::unbound().unwrap().send_to(b"still", &path).unwrap();
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 5);
    drop(other);
    one.open().expect("nobody receives by it any more");
    std::fs::remove_file(&path).unwrap();
    let successor = UnixDatagram::bind(&path).unwrap();
    one.close();
    UnixDatagram::unbound().unwrap().send_to(b"still", &path).unwrap();
    assert_eq!(successor.recv(&mut [0; 8]).unwrap(), 5);
    drop(successor);
    one.open().expect("nobody receives by it any more");
    one.close();
    assert!(!path.exists(), "its own goes with it");
}

/// What it took and could not send is seen above it, where the datapath's other counts are.
#[test]
fn what_it_lost_is_counted() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let (plugin, place) = (template(&folder), folder.path().join("end0"));
    // Nobody can ever be there.
    let peer = folder.path().join("unix_frames.so/peer");
    let options =
        [("path", place.to_str().unwrap()), ("peer", peer.to_str().unwrap()), ("address", "02:99:00:00:00:01")];
    let address = "10.99.0.1/24".parse().unwrap();
    let config = DatagramConfig { address, port: 7400, gateway: None, vlan: None };
    let mut datagrams = Datagrams::new(plugin.port(&options).unwrap(), config);
    datagrams.open().unwrap();
    let mut tx = TxBatch::default();
    tx.frame(Address::Ip(([10, 99, 0, 2], 7400).into()), b"to nobody", 0);
    datagrams.transmit(&mut tx);
    // The question for its station.
    assert_eq!((datagrams.stats().dropped, datagrams.raw().stats().dropped), (1, 1));
    datagrams.close();
    assert_eq!(datagrams.stats().dropped, 1, "what was counted stays");
}

/// Who sends what is no frame does not keep the host in a call for as long as that comes.
#[test]
fn what_is_no_frame_counts_as_one_that_was_looked_at() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let mut one = open(template(&folder), &folder, 0, "1500");
    let sender = UnixDatagram::unbound().unwrap();
    let (path, frame) = (folder.path().join("end0"), [2; 60]);
    for bytes in [&[0; 13][..], &[0; 1515], &[0; 0], &[0; 13], &[0; 13], &frame] {
        sender.send_to(bytes, &path).unwrap();
    }
    let free = (0..2).map(|id| Slot::owned(id, 1514)).collect();
    let mut rx = RxBatch { free, limit: 2, ..RxBatch::default() };
    for calls in [2, 4, 6] {
        assert!(rx.taken.is_empty());
        one.receive(&mut rx, None);
        assert_eq!(one.stats().calls, calls);
    }
    assert_eq!(rx.taken.iter().map(|taken| taken.bytes()).collect::<Vec<_>>(), [frame]);
}

/// Two packet engines over it: neighbours are found, and datagrams are what they were.
#[test]
fn datagrams_go_over_it() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let plugin = template(&folder);
    let [mut a, mut b] = [0, 1].map(|end| {
        let address = format!("10.99.0.{}/24", end + 1).parse().unwrap();
        let config = DatagramConfig { address, port: 7400, gateway: None, vlan: None };
        let mut datagrams = Datagrams::new(port(plugin, &folder, end, "1500"), config);
        datagrams.open().unwrap();
        datagrams
    });
    let (to, payload, start) = (b.address().unwrap(), suite::pattern(7, 1200), Instant::now());
    let mut tx = TxBatch::default();
    for number in 0..50 {
        let at = tx.buffer().len();
        tx.buffer().extend_from_slice(b"head");
        // Gathered, copied, and of odd lengths.
        let piece = insane_datapath::memory::Piece::of(&payload[..number * 24 + number % 2]);
        tx.commit(to, at, Some(piece), 0);
    }
    let mut rx = RxBatch { free: (0..16).map(|id| Slot::owned(id, 1500)).collect(), ..RxBatch::default() };
    let mut got = Vec::new();
    while got.len() < 50 {
        a.transmit(&mut tx);
        b.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            got.extend(taken.frames().map(<[u8]>::to_vec));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} of 50 came", got.len());
    }
    for (number, datagram) in got.iter().enumerate() {
        assert_eq!((&datagram[..4], &datagram[4..]), (&b"head"[..], &payload[..number * 24 + number % 2]));
    }
}
