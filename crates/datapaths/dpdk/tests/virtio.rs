//! DPDK's virtio-user and vhost, two ports of one process over a Unix socket: no hugepages, no rights, no interface.

mod common;

use std::path::Path;
use std::time::Instant;

use common::{PATIENCE, conform_while_both_live, dpdk, outcomes, serial, station, wait_for_links};
use insane_datapath::Datapath;
use insane_datapath::batch::TxBatch;
use insane_datapath::conformance::{self as suite, End, Form, Rig, pattern};
use insane_datapath_dpdk::{Dpdk, DpdkConfig};
use insane_datapath_plugin::PluginDatapath;
use tempfile::TempDir;

/// One end, closed: virtio-user, which connects, is 0, and vhost, which listens, 1.
fn port(dpdk: Dpdk, folder: &Path, end: usize, mtu: u16) -> PluginDatapath {
    let (number, socket) = (serial(), folder.join("vhost"));
    let device = match end {
        0 => format!("net_virtio_user{number},path={}", socket.display()),
        _ => format!("net_vhost{number},iface={}", socket.display()),
    };
    let config = DpdkConfig { station: Some(station(end)), mtu: Some(mtu), ..DpdkConfig::new(device) };
    dpdk.port(&config).expect("a configuration that can be")
}

/// Two ends in a folder of their own, connected.
fn rig(dpdk: Dpdk, folder: &TempDir, mtu: u16) -> Rig {
    let place = folder.path().join(serial().to_string());
    std::fs::create_dir(&place).expect("a folder");
    let [mut a, mut b] = [0, 1].map(|end| Box::new(port(dpdk, &place, end, mtu)));
    b.open().unwrap_or_else(|e| panic!("vhost opens: {e}"));
    a.open().unwrap_or_else(|e| panic!("virtio-user opens: {e}"));
    wait_for_links(&mut [&mut *a, &mut *b]);
    Rig { a, b }
}

/// Opens an end again, and waits until virtio-user has its link.
fn reopen(end: End, datapath: &mut dyn Datapath) {
    datapath.open().expect("it opens again");
    if end == End::A {
        wait_for_links(&mut [datapath]);
    }
}

/// The suite but for ends of which vhost goes: virtio-user does not connect again by itself, and says so
/// ([`who_listens_may_go_and_come_back`]).
fn conform(mtu: u16) {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    conform_while_both_live(|| rig(dpdk, &folder, mtu), &mut reopen);
    suite::a_sleeper_is_woken_every_time(&mut rig(dpdk, &folder, mtu));
    // The other way round it is virtio-user that goes and comes back.
    let turned = || {
        let Rig { a, b } = rig(dpdk, &folder, mtu);
        Rig { a: b, b: a }
    };
    suite::frames_arrive_whole(&mut turned());
    suite::order_is_kept_and_nothing_repeated(&mut turned());
    suite::bursts_beyond_all_room_do_no_harm(&mut turned());
    suite::a_peer_that_restarts_is_reached_again(&mut turned(), &mut suite::open_again);
}

#[test]
fn conforms_over_virtio_user() {
    conform(1500);
}

#[test]
fn conforms_over_virtio_user_with_jumbo_frames() {
    conform(9000);
}

#[test]
fn every_frame_has_an_outcome() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    outcomes(&mut rig(dpdk, &folder, 1500));
}

/// Frames are under way when vhost goes: virtio-user is lost, cannot be opened while nobody listens, and then works again.
#[test]
fn who_listens_may_go_and_come_back() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = rig(dpdk, &folder, 1500);
    for round in 0..5 {
        let (to, form) = (rig.b.address().expect("it is open"), Form::of(&rig));
        let mut tx = TxBatch::default();
        (0..5000).for_each(|number| form.add(&mut tx, to, &pattern(number, 700), number));
        for _ in 0..=round {
            rig.a.transmit(&mut tx);
        }
        rig.b.close();
        let start = Instant::now();
        // Whoever only receives is told, too.
        while rig.a.lost().is_none() {
            if round % 2 == 0 {
                rig.a.transmit(&mut tx);
            } else {
                rig.a.receive(&mut common::slots(&*rig.a), None);
            }
            assert!(start.elapsed() < PATIENCE, "nobody says that it is gone: {:?}", rig.a.stats());
        }
        rig.a.close();
        let error = rig.a.open().expect_err("nobody listens").to_string();
        assert!(error.contains("does not come into being"), "{error}");
        rig.b.open().expect("it opens again");
        rig.a.open().expect("somebody listens");
        wait_for_links(&mut [&mut *rig.a, &mut *rig.b]);
        suite::frames_arrive_whole(&mut rig);
    }
}

/// A killed vhost's socket stays in its folder; what another program listens on, and what is no socket, is left alone.
#[test]
fn only_a_socket_that_nobody_listens_on_is_taken_away() {
    let Some(dpdk) = dpdk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vhost");
    let open = || port(dpdk, folder.path(), 1, 1500).open().map_err(|error| error.to_string());
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let error = open().expect_err("somebody listens");
    assert!(error.contains("is there already") && path.exists(), "{error}");
    drop(listener);
    open().expect("nobody listens any more");
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, b"kept").expect("a file");
    open().expect_err("it is no socket");
    assert_eq!(std::fs::read(&path).expect("the file"), b"kept");
}
