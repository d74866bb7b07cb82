//! Messages that came whole in frames that are lent.

use super::*;
use crate::network::scatter::{Loan, Loans};
use insane_datapath::Lendable;
use insane_datapath::memory::{Lent, Slot};
use insane_shm::segment::{Geometry, Segment};
use insane_wire::frame::record::bundle_append;

const STRIDE: u64 = 8192;
const LENDER: usize = 3;

/// So many frames may be lent.
const MOST: u32 = 3;

/// A rig whose two sinks, on one link, take messages where they came, and what a port has lent.
struct Borrower {
    rig: Rig,
    loans: Loans,
    source: usize,
    sequence: u64,
}

impl Borrower {
    fn new(reliable: bool) -> Self {
        let mut rig = Rig::new();
        let source = rig.two_sinks();
        let memory = Segment::create(Geometry::checked(STRIDE, 8).unwrap(), false).unwrap();
        let lendable = Lendable { memory: memory.fd(), stride: STRIDE, slots: 8, most: MOST };
        rig.domain.borrow_from(LENDER, &[lendable]).unwrap();
        rig.domain.scatter_to(0);
        rig.domain.outlets[0].as_mut().unwrap().reliable = reliable;
        let remote = rig.domain.remotes[source].as_mut().unwrap();
        remote.reliable = reliable;
        remote.taps.iter_mut().for_each(|tap| tap.scattered = true);
        // Segments of the slots that are needed; the session is told of them now, not while something waits for that.
        for len in (6..14).map(|bits| 1 << bits) {
            let slot = rig.domain.take_slot(len).unwrap();
            rig.domain.discard(slot);
        }
        rig.talk();
        Self { rig, loans: Loans::default(), source, sequence: 0 }
    }

    /// A frame of these bytes, which is lent.
    fn frame(&mut self, bytes: &[u8]) -> Arc<Loan> {
        self.loans.lend(Slot::as_lent(1, Lent { memory: 0, slot: 5, offset: 100 }, bytes), LENDER)
    }

    fn next(&mut self, count: u64) -> Descriptor {
        self.sequence += count;
        Descriptor { sequence: self.sequence + 1 - count, joined: 2, ..Descriptor::default() }
    }

    /// A message of so many bytes comes whole in a frame.
    fn comes(&mut self, len: usize) {
        let (loan, d) = (self.frame(&vec![7; 60 + len]), self.next(1));
        let domain = &mut self.rig.domain;
        assert!(domain.deliver(
            self.source,
            d,
            &domain.arrived(self.source, &loan.bytes()[50..50 + len], Some(&loan)),
            0
        ));
    }

    /// Messages of these bytes come in a bundle in one frame. How many have left the network's memory, and their bytes.
    fn come(&mut self, lens: &[usize]) -> (u32, u64) {
        let mut bundle = Vec::new();
        lens.iter().for_each(|len| bundle_append(&mut bundle, &vec![7; *len]));
        let (loan, d) = (self.frame(&bundle), self.next(lens.len() as u64));
        let bundle = (loan.bytes(), lens.len() as u16);
        self.rig.domain.deliver_bundle(self.source, d, bundle, Some(&loan), 0)
    }

    /// Messages left in frames, their pieces, and messages copied together for want of frames.
    fn counts(&self) -> (u64, u64, u64) {
        let counts = self.rig.domain.scatter.counts;
        (counts.messages, counts.pieces, counts.copied)
    }
}

#[test]
fn a_message_of_one_frame_stays_there_up_to_a_share_and_beyond_it_is_copied() {
    for reliable in [false, true] {
        let mut to = Borrower::new(reliable);
        (0..5).for_each(|_| to.comes(1400));
        assert_eq!((to.counts(), to.loans.out()), ((3, 3, 2), MOST), "reliable: {reliable}");
        assert_eq!(to.rig.drains().0, 5);
        assert_eq!((to.loans.out(), to.rig.domain.slab.in_use()), (0, 0), "it all went back");
        // The share is there again; the shortest that stays, and the longest that does not.
        to.comes(1024);
        to.comes(1023);
        assert_eq!((to.counts(), to.loans.out()), ((4, 4, 2), 1), "reliable: {reliable}");
        to.rig.drains();
        assert_eq!(to.rig.player.seen, (1..=7).collect::<Vec<_>>());
        assert_eq!((to.loans.out(), to.rig.domain.slab.in_use()), (0, 0));
    }
}

#[test]
fn messages_of_a_bundle_stay_in_their_frame_each_by_itself() {
    for reliable in [false, true] {
        let mut to = Borrower::new(reliable);
        assert_eq!(to.come(&[2000, 100, 1500]), (3, 3600));
        assert_eq!((to.counts(), to.loans.out()), ((2, 2, 0), 1), "one frame has them: {reliable}");
        assert_eq!(to.rig.drains().0, 3, "descriptors");
        assert_eq!((to.loans.out(), to.rig.domain.slab.in_use()), (0, 0));
        // Nothing of it is large: as ever.
        let (messages, _) = to.come(&[500, 600]);
        assert_eq!((messages, to.counts(), to.loans.out()), (2, (2, 2, 0), 0));
        assert_eq!(to.rig.drains().0, if reliable { 2 } else { 1 }, "descriptors");
        assert_eq!(to.rig.player.seen, (1..=5).collect::<Vec<_>>());
    }
}

#[test]
fn what_waits_for_a_full_link_is_in_no_frame() {
    let mut to = Borrower::new(true);
    (0..=Config::default().quota.link_entries).for_each(|_| to.comes(0));
    assert!(to.rig.domain.outlets[0].as_ref().unwrap().is_behind());
    let before = to.sequence;
    (0..3).for_each(|_| to.comes(1400));
    assert_eq!((to.counts(), to.loans.out()), ((0, 0, 3), 0));
    assert_eq!(to.rig.drains().0, before + 3);
    assert_eq!((to.loans.out(), to.rig.domain.slab.in_use()), (0, 0));
}

#[test]
fn who_does_not_ask_gets_packs_as_ever_beside_who_does() {
    let mut to = Borrower::new(false);
    let remote = to.rig.domain.remotes[to.source].as_mut().unwrap();
    remote.taps.iter_mut().for_each(|tap| tap.scattered = false);
    to.comes(1400);
    assert_eq!(to.come(&[2000, 1500]).0, 2);
    assert_eq!((to.counts(), to.loans.out()), ((0, 0, 0), 0));
    assert_eq!(to.rig.drains().0, 2, "descriptors");
}

#[test]
fn what_a_port_lent_is_copied_once_it_lends_no_more() {
    let mut to = Borrower::new(false);
    to.comes(1400);
    to.rig.domain.borrow_no_more(LENDER);
    to.comes(1400);
    assert_eq!((to.counts(), to.loans.out()), ((1, 1, 0), 1), "what is out stays out");
    assert_eq!(to.rig.drains().0, 2);
    assert_eq!(to.loans.out(), 0);
}
