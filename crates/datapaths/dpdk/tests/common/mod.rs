//! The object, built where it can be, and ports of it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, End, Form, Reopen, Rig, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath};
use insane_datapath_dpdk::{Dpdk, DpdkConfig, OBJECT};
use insane_datapath_plugin::PluginDatapath;
use tempfile::TempDir;

/// The limit of everything that waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Where the object is, built when it is first asked for; or why it cannot be.
fn built() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(OBJECT);
    let output = Command::new("make").arg(format!("OUT={}", object.display())).current_dir(source).output();
    let output = output.map_err(|e| format!("there is no make: {e}"))?;
    if output.status.success() {
        return Ok(object);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Without DPDK's headers nothing is wrong; with them everything that does not build is.
    assert!(said.contains("there is no DPDK"), "{said}");
    Err("there is no DPDK 22.11 to build with: scripts/setup dpdk".into())
}

/// DPDK, or `None` where there is none; then it has said so.
pub(crate) fn dpdk() -> Option<Dpdk> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match BUILT.get_or_init(built) {
        Ok(path) => Some(Dpdk::load(path).unwrap_or_else(|e| panic!("what was just built is loaded: {e}"))),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

/// A number that no other device in this process has.
pub(crate) fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The MAC address of an end.
pub(crate) const fn station(end: usize) -> [u8; 6] {
    [2, 0x97, 0, 0, 0, 1 + end as u8]
}

/// One end of a cable of memif's, closed: the client is 0, the server 1.
pub(crate) fn memif(dpdk: Dpdk, folder: &Path, end: usize, mtu: u16) -> PluginDatapath {
    let (number, role, socket) = (serial(), ["client", "server"][end], folder.join("memif"));
    let device = format!("net_memif{number},role={role},socket={},socket-abstract=no", socket.display());
    let config = DpdkConfig { station: Some(station(end)), mtu: Some(mtu), ..DpdkConfig::new(device) };
    dpdk.port(&config).expect("a configuration that can be")
}

pub(crate) fn slots(datapath: &dyn Datapath) -> RxBatch {
    let bytes = datapath.capabilities().slot_bytes;
    RxBatch { free: (0..64).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() }
}

/// A frame of the suite's kind for nobody.
fn hello(from: &dyn Datapath, to: [u8; 6]) -> Vec<u8> {
    let Some(Address::Ethernet(from)) = from.address() else { panic!("it is open") };
    [&to[..], &from, &[0x88, 0xb5, 0, 0]].concat()
}

/// Sends what nobody wants, until all of these have sent some.
pub(crate) fn wait_for_links(ends: &mut [&mut dyn Datapath]) {
    let (start, mut sent) = (Instant::now(), vec![false; ends.len()]);
    while sent.contains(&false) {
        for (end, sent) in ends.iter_mut().zip(&mut sent) {
            let mut tx = TxBatch::default();
            tx.frame(Address::Ethernet([2; 6]), &hello(&**end, [2; 6]), 0);
            end.transmit(&mut tx);
            *sent |= tx.frames()[0].outcome == Outcome::Sent;
            // A client gives its server room by receiving.
            let came = end.receive(&mut slots(&**end), None);
            assert_eq!(came.frames, 0, "it is for nobody");
        }
        assert!(start.elapsed() < PATIENCE, "there is no link: {:?}", ends[0].stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every frame has its outcome, and is counted by it, between ends that have exchanged some before.
pub(crate) fn outcomes(rig: &mut Rig) {
    let (to, form, before) = (rig.b.address().expect("it is open"), Form::of(rig), rig.a.stats());
    let mut tx = TxBatch::default();
    form.add(&mut tx, to, &pattern(1, 1514 - form.head_bytes()), 0);
    form.add(&mut tx, to, &pattern(1, 1515 - form.head_bytes()), 1);
    form.add(&mut tx, to, &pattern(1, 9), 2);
    let report = rig.a.transmit(&mut tx);
    assert_eq!((report.sent, report.refused, report.pending), (2, 1, 0));
    let outcomes: Vec<Outcome> = tx.frames().iter().map(|frame| frame.outcome).collect();
    assert_eq!(outcomes, [Outcome::Sent, Outcome::TooLarge, Outcome::Sent]);
    let after = rig.a.stats();
    assert_eq!((after.sent_frames - before.sent_frames, after.refused_frames - before.refused_frames), (2, 1));
}

/// Two ends of memif, connected.
pub(crate) fn memif_rig(dpdk: Dpdk, folder: &TempDir, mtu: u16) -> Rig {
    let place = folder.path().join(serial().to_string());
    std::fs::create_dir(&place).expect("a folder");
    let [mut a, mut b] = [0, 1].map(|end| Box::new(memif(dpdk, &place, end, mtu)));
    b.open().expect("the server opens");
    a.open().expect("the client opens");
    wait_for_links(&mut [&mut *a, &mut *b]);
    Rig { a, b }
}

/// Opens an end of memif again. The client waits for its link; the server's comes when the client finds it.
pub(crate) fn reopen_memif(end: End, datapath: &mut dyn Datapath) {
    datapath.open().expect("it opens again");
    if end == End::A {
        wait_for_links(&mut [datapath]);
    }
}

/// The part of the suite in which no end goes while the other one is in use.
pub(crate) fn conform_while_both_live(rig: impl Fn() -> Rig, reopen: Reopen<'_>) {
    for check in [
        suite::frames_arrive_whole,
        suite::order_is_kept_and_nothing_repeated,
        suite::payload_is_gathered,
        suite::every_slot_comes_back,
        suite::nothing_waits,
        suite::a_sleeper_is_woken,
        suite::payload_lands_where_it_belongs,
        suite::bursts_beyond_all_room_do_no_harm,
    ] {
        check(&mut rig());
    }
    suite::closing_ends_it(rig(), reopen);
}
