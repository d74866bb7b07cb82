//! Received frames that are lent where they lie: who may see them and write them, how many, and what becomes of them.

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::{Cable, config};
use insane_datagrams::{DatagramConfig, Datagrams, station_of};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::pattern;
use insane_datapath::memory::Slot;
use insane_datapath::{Datapath, Lendable};
use insane_datapath_xdp::{Attach, Filter, Vlan, XdpConfig, XdpDatapath};
use insane_netstack::Prefix;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PATIENCE: Duration = Duration::from_secs(20);

/// So few that a test can use them up: 64 receive, 32 of them are lent at most.
const FRAMES: u32 = 128;

fn open(cable: &Cable, end: usize, lend: bool) -> Datagrams<XdpDatapath> {
    let address: Prefix = format!("10.98.0.10{end}/24").parse().expect("a prefix");
    let filter = Filter {
        ethertypes: vec![],
        udp_ports: vec![],
        station: Some(station_of(address.address)),
        addresses: vec![address.address],
        vlan: Vlan::Untagged,
    };
    let raw = XdpDatapath::new(XdpConfig { filter, lend, frames: FRAMES, ..config(Attach::NativeOrGeneric) });
    let mut datagrams = Datagrams::new(raw, DatagramConfig { address, port: 7400, gateway: None, vlan: None });
    cable.0.inside(end, || datagrams.open().unwrap_or_else(|e| panic!("it opens: {e}")));
    datagrams
}

/// Sends datagrams from one end, few at a time, and takes them at the other.
fn pass(
    from: &mut dyn Datapath,
    to: &mut dyn Datapath,
    rx: &mut RxBatch,
    numbers: core::ops::Range<u64>,
) -> Vec<(Slot, usize)> {
    let (address, mut taken, start) = (to.address().expect("it is open"), Vec::new(), Instant::now());
    for number in numbers.clone() {
        let mut tx = TxBatch::default();
        tx.frame(address, &pattern(number, 1400), number);
        while taken.len() < (number - numbers.start + 1) as usize {
            from.transmit(&mut tx);
            // Answers to questions for a neighbour.
            from.receive(&mut RxBatch { free: vec![Slot::owned(0, 2048)], ..RxBatch::default() }, None);
            to.receive(rx, None);
            taken.extend(rx.taken.drain(..).map(|one| (one.slot, one.len)));
            assert!(start.elapsed() < PATIENCE, "{number} did not come: {:?}", to.stats());
        }
    }
    taken
}

/// What another process sees of a memory.
fn shown(memory: &Lendable<'_>) -> Vec<u8> {
    let len = memory.stride as usize * memory.slots as usize;
    // SAFETY: a new mapping where the kernel likes it.
    let base = unsafe { mmap(core::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, memory.memory, 0) };
    let base = base.expect("it can be mapped to be read");
    // SAFETY: mapped above; what this test compares was received and is lent, so nobody writes to it.
    let bytes = unsafe { core::slice::from_raw_parts(base.cast::<u8>(), len) }.to_vec();
    // SAFETY: mapped above with this length, and nobody has it any more.
    unsafe { munmap(base, len) }.expect("it can be unmapped");
    bytes
}

#[test]
fn frames_are_lent_up_to_a_bound_and_come_back() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let [mut a, mut b] = [0, 1].map(|end| open(&cable, end, true));
    let all = b.raw().frames();
    assert_eq!((all.all, all.lent), (FRAMES, 0));
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), lend: true, ..RxBatch::default() };
    let taken = pass(&mut a, &mut b, &mut rx, 0..60);
    // Beyond what is lent at most they are copied, and nothing is lost.
    assert!(taken[..32].iter().all(|(slot, _)| slot.place().is_some()));
    assert!(taken[32..].iter().all(|(slot, _)| slot.place().is_none()));
    for (number, (slot, len)) in (0..).zip(&taken) {
        assert!(slot.bytes()[..*len] == pattern(number, 1400), "datagram {number} differs");
    }
    // Others see them where they are said to lie.
    let lends = b.lends();
    let [memory] = &lends[..] else { panic!("{lends:?}") };
    assert_eq!((memory.slots, memory.stride, memory.most), (FRAMES / 2, 2048, FRAMES / 4));
    let shown = shown(memory);
    for (number, (slot, len)) in (0..).zip(&taken).take(32) {
        let place = slot.place().expect("it is lent");
        let at = place.slot as usize * 2048 + place.offset as usize;
        assert!(place.memory == 0 && shown[at..at + len] == pattern(number, 1400), "datagram {number} lies elsewhere");
    }
    drop(lends);
    assert_eq!((b.raw().frames().lent, b.raw().frames().sum()), (32, FRAMES));
    // Given back, they are received into again, all of them, and no frame is lost on the way.
    for round in 1..20 {
        taken_back(&mut rx, &mut a, &mut b, round);
    }
    taken.into_iter().for_each(|(slot, _)| rx.give_back(slot));
    b.receive(&mut rx, None);
    assert_eq!((b.raw().frames().lent, b.raw().frames().sum(), rx.free.len()), (0, FRAMES, 64));
    assert!(pass(&mut a, &mut b, &mut rx, 0..32).iter().all(|(slot, _)| slot.place().is_some()));
}

/// With all lent that can be, what is left is enough for others.
fn taken_back(rx: &mut RxBatch, a: &mut dyn Datapath, b: &mut dyn Datapath, round: u64) {
    let copied = pass(a, b, rx, round * 100..round * 100 + 4);
    for (number, (slot, len)) in (round * 100..).zip(copied) {
        assert!(slot.place().is_none() && slot.bytes()[..len] == pattern(number, 1400));
        rx.give_back(slot);
    }
}

#[test]
fn nobody_can_write_what_is_lent() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let b = open(&cable, 1, true);
    let lends = b.lends();
    let memory = lends[0].memory;
    let map = |fd: std::os::fd::BorrowedFd<'_>| {
        // SAFETY: a new mapping where the kernel likes it, if it lets there be one.
        unsafe { mmap(core::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0) }
    };
    assert!(map(memory).is_err(), "it can be mapped to be written");
    // A descriptor that was opened anew is no other.
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("it can be opened");
    assert!(map(again.as_fd()).is_err(), "opened anew it can be mapped to be written");
    assert!(rustix::io::pwrite(&again, b"x", 0).is_err(), "it can be written to");
    assert!(rustix::fs::ftruncate(&again, 0).is_err(), "it can be made smaller");
}

#[test]
fn what_is_lent_outlives_its_datapath_and_is_none_of_the_next() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let [mut a, mut b] = [0, 1].map(|end| open(&cable, end, true));
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), lend: true, ..RxBatch::default() };
    let old = pass(&mut a, &mut b, &mut rx, 0..8);
    b.close();
    cable.0.inside(1, || b.open().expect("it opens again"));
    let new = pass(&mut a, &mut b, &mut rx, 8..16);
    for (number, (slot, len)) in (0..).zip(old.iter().chain(&new)) {
        assert!(slot.place().is_some() && slot.bytes()[..*len] == pattern(number, 1400), "datagram {number} differs");
    }
    // What was lent before is not taken for what is lent now.
    old.into_iter().for_each(|(slot, _)| rx.give_back(slot));
    b.receive(&mut rx, None);
    assert_eq!(b.raw().frames().lent, 8);
    new.into_iter().for_each(|(slot, _)| rx.give_back(slot));
    b.receive(&mut rx, None);
    assert_eq!(b.raw().frames().lent, 0);
}

#[test]
fn nothing_is_lent_that_is_not_asked_for() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let [mut a, mut b] = [true, false].map(|lend| open(&cable, usize::from(!lend), lend));
    assert!(b.lends().is_empty());
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), lend: true, ..RxBatch::default() };
    assert!(pass(&mut a, &mut b, &mut rx, 0..8).iter().all(|(slot, _)| slot.place().is_none()));
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), ..RxBatch::default() };
    assert!(pass(&mut b, &mut a, &mut rx, 0..8).iter().all(|(slot, _)| slot.place().is_none()));
    // A frame of several buffers is not.
    drop((a, b, cable));
    let Some(cable) = Cable::new(9000, 1) else { return };
    assert!(open(&cable, 1, true).lends().is_empty());
}
