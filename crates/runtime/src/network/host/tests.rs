//! What a host at the other end is told, and what becomes of what goes to it.

use super::*;
use crate::network::account::Cells;
use crate::network::control::Sources;
use crate::network::kept::Kept;
use crate::network::memory::Memory;
use crate::network::pages::Pages;
use insane_shm::counters::{Counters, bytes};
use insane_shm::memory::Heap;
use insane_transport::{Event, Lies, LostReason};
use insane_wire::decode;
use std::sync::Arc;

const EPOCH: Epoch = Epoch(7);
pub(crate) const SINK: SinkId = SinkId(9);

/// A host, and the path of its runtime at the other end.
pub(crate) struct Rig {
    pub(crate) now: Duration,
    pub(crate) host: Host,
    pub(crate) underway: Underway,
    peer: Path,
    /// Whether it accepts flows.
    accepts: bool,
    pub(crate) cells: Cells,
    /// The control flow as the other end knows it, and what came over it.
    control: Option<u32>,
    words: Vec<Body>,
    /// The numbers of the messages that came over other flows: its sinks have them.
    pub(crate) arrived: Vec<u64>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let settings = config::Network::default();
        let address = Address::Ip(settings.listen);
        let egress = Egress::new(&settings).unwrap();
        let counters = Counters::create(Arc::new(Heap::new(bytes(4))), 4).unwrap();
        Self {
            now: Duration::ZERO,
            host: Host::new((address, 2), path_config(&settings, 1, 1472, true), egress, 1, Duration::ZERO),
            underway: Underway::default(),
            peer: Self::runtime(2),
            accepts: true,
            cells: Cells::new(counters),
            control: None,
            words: Vec::new(),
            arrived: Vec::new(),
        }
    }

    pub(crate) fn runtime(seed: u64) -> Path {
        Path::new(path_config(&config::Network::default(), 2, 1472, true), seed, Duration::ZERO)
    }

    /// Lets both ends talk for a while. The other accepts every flow; returns how many, and what was lost here. What is
    /// emitted for `after` once something is lost ends at once.
    pub(crate) fn talk(&mut self, after: Option<(usize, usize)>) -> (usize, Vec<LostReason>) {
        let (mut requested, mut lost, none) = (0, Vec::new(), Keyed::with_hasher(Key::new(1)));
        for _ in 0..200 {
            self.now += Duration::from_millis(1);
            let (mut there, mut here, mut sent) = (Vec::new(), Vec::new(), Vec::new());
            let mut sources = Sources { underway: &self.underway, domains: &[] };
            while self.host.lanes.path(HOME).unwrap().transmit(self.now, &mut there, &mut sources).is_some() {
                self.peer.receive(
                    self.now,
                    &there,
                    sent.len() as u64,
                    &mut Memory {
                        domains: &mut [],
                        incoming: &none,
                        lane: HOME,
                        control: None,
                        long_words: &mut LongWords::default(),
                        kept: &mut Kept::default(),
                        loan: None,
                    },
                );
                sent.push(std::mem::take(&mut there));
            }
            while self.peer.transmit(self.now, &mut here, &mut sources).is_some() {
                self.host.lanes.path(HOME).unwrap().receive(
                    self.now,
                    &here,
                    0,
                    &mut Memory {
                        domains: &mut [],
                        incoming: &none,
                        lane: HOME,
                        control: None,
                        long_words: &mut LongWords::default(),
                        kept: &mut Kept::default(),
                        loan: None,
                    },
                );
                here.clear();
            }
            requested += self.peer_events(&sent);
            while let Some((lane, event)) = self.host.lanes.event() {
                match event {
                    Event::Lost(reason) => {
                        lost.push(reason);
                        self.host.lose_flows();
                    }
                    Event::Accepted { flow } => {
                        let at = self.host.by_number.get(&FlowId { lane, number: flow }).copied();
                        at.and_then(|at| self.host.flows[at].as_mut()).into_iter().for_each(|f| f.accepted = true);
                    }
                    Event::Closed { flow, counts } => {
                        let flow = FlowId { lane, number: flow };
                        self.host.flow_closed(flow, counts, &mut self.underway);
                    }
                    _ => {}
                }
                if let Some(to) = after.filter(|_| !lost.is_empty()) {
                    assert_eq!(self.give(to), Some(Count::Unconfirmed), "after {event:?}");
                }
            }
        }
        (requested, lost)
    }

    /// The other end accepts every flow, unless it is told not to; how many came with these frames. What comes over the control flow is kept.
    fn peer_events(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut requested = 0;
        while let Some(event) = self.peer.event() {
            match event {
                Event::Requested { domain, open } => {
                    requested += 1;
                    if self.accepts {
                        self.peer.accept(open.flow, 0);
                    }
                    self.control = self.control.or(((domain, open.channel) == CONTROL).then_some(open.flow));
                }
                Event::Message { flow, lies: Lies::Frame { token, at, len }, .. } if self.control == Some(flow) => {
                    let word = &frames[token as usize][at..at + len];
                    self.words.extend(decode::<ToHost>(word).unwrap().body);
                }
                Event::Message { flow, message, .. } => {
                    self.peer.consumed(flow, 1, 0);
                    self.peer.advance(flow, message.sequence);
                    self.arrived.push(message.sequence);
                }
                _ => {}
            }
        }
        requested
    }

    /// What was said since the last time of sources: whether it was their end.
    fn said(&mut self) -> Vec<bool> {
        let words = std::mem::take(&mut self.words).into_iter();
        let about = words.filter_map(|word| match word {
            Body::Source(_) => Some(false),
            Body::Ended(ended) => {
                assert_eq!(ended.epoch, EPOCH.to_bytes());
                Some(true)
            }
            _ => None,
        });
        about.collect()
    }

    /// A best-effort flow with one sink; their places.
    fn open(&mut self) -> (usize, usize) {
        self.open_as(false)
    }

    pub(crate) fn open_as(&mut self, reliable: bool) -> (usize, usize) {
        self.open_of(EPOCH, reliable)
    }

    /// The flow of a source.
    fn open_of(&mut self, epoch: Epoch, reliable: bool) -> (usize, usize) {
        let spec = FlowSpec { domain: 5, epoch: epoch.0, channel: 3, reliable, first: 1 };
        let about = insane_wire::host::Source::default();
        let flow = self.host.flow_of(HOME, (spec, (0, 0, 0)), about, &mut self.underway);
        let cell = self.cells.start(epoch, SINK).unwrap();
        let account = self.host.add_account(Account::new(0, SINK, (0, 0), reliable, cell));
        self.host.flows[flow].as_mut().unwrap().accounts.push(account);
        (flow, account)
    }

    /// What the network's thread does with a message; how it ended if it did at once.
    fn give(&mut self, (flow, account): (usize, usize)) -> Option<Count> {
        let token = self.underway.add(Held::Bytes(vec![1; 8]), 1);
        self.account(account).give(1);
        let why = self.host.give(self.now, flow, Outgoing { token, len: 8, ..Outgoing::default() }).err()?;
        self.account(account).end(why, 1);
        Some(why)
    }

    /// A reliable source emits messages of these numbers for its one sink.
    pub(crate) fn emit(&mut self, (flow, account): (usize, usize), numbers: std::ops::RangeInclusive<u64>) {
        for sequence in numbers {
            let token = self.underway.add(Held::Bytes(vec![1; 8]), 1);
            self.account(account).give(1);
            let next = Outgoing { token, len: 8, sequence, ..Outgoing::default() };
            assert_eq!(self.host.give(self.now, flow, next), Ok(()));
        }
    }

    /// The flows that have ended are forgotten; whatever else the paths say is not heard.
    pub(crate) fn forget_ended(&mut self) {
        while let Some((lane, event)) = self.host.lanes.event() {
            if let Event::Closed { flow, counts } = event {
                self.host.flow_closed(FlowId { lane, number: flow }, counts, &mut self.underway);
            }
        }
    }

    pub(crate) fn account(&mut self, at: usize) -> &mut Account {
        self.host.accounts[at].as_mut().unwrap()
    }
}

#[test]
fn what_a_source_emits_for_a_lost_host_before_it_hears_of_it_ends_and_does_not_wait_for_the_next_connection() {
    let mut rig = Rig::new();
    rig.talk(None);
    let old = rig.open();
    assert_eq!(rig.talk(None).0, 1);
    assert_eq!(rig.give(old), None);
    // Another runtime in its place: the connection begins anew in the same moment in which the loss is known, and the source's
    // session has not let go of the sink.
    rig.peer = Rig::runtime(3);
    assert_eq!(rig.talk(Some(old)), (0, vec![LostReason::Restarted]));
    assert!(rig.host.is_connected());
    assert_eq!(rig.give(old), Some(Count::Unconfirmed));
    assert_eq!(rig.account(old.1).pending(), 0);
    // The next of the same source is another, also when the old one is let go of after it was opened.
    let new = rig.open();
    assert_ne!(new.0, old.0);
    rig.account(old.1).closing = true;
    assert!(rig.account(old.1).is_over());
    rig.host.close_flow(old.0);
    assert!(rig.host.flows[old.0].is_none());
    assert_eq!(rig.host.by_epoch.get(&EPOCH), Some(&new.0));
    assert_eq!((rig.give(new), rig.talk(None).0), (None, 1));
}

#[test]
fn with_classes_the_path_is_given_only_as_many_bundles_as_fill_some_frames() {
    for (bundle, len, most) in [(64, 64 * 1032, 64), (64, 64 * 72, 16 * 64), (0, 1024, 64)] {
        let mut rig = Rig::new();
        let strict = config::Network { scheduler: config::Scheduler::Strict, ..config::Network::default() };
        rig.host.egress = Egress::new(&strict).unwrap();
        let (flow, _) = rig.open_as(true);
        for _ in 0..200 {
            let token = rig.underway.add(Held::Bytes(Vec::new()), 1);
            assert_eq!(rig.host.give(rig.now, flow, Outgoing { token, len, bundle, ..Outgoing::default() }), Ok(()));
        }
        assert_eq!(rig.host.pump(rig.now), Vec::<u64>::new());
        let number = rig.host.flows[flow].as_ref().unwrap().number;
        assert_eq!(rig.host.lanes.counts(number).unwrap().waiting, most, "{bundle} of {len} bytes");
    }
}

#[test]
fn with_classes_a_flow_that_is_not_accepted_holds_up_no_other() {
    let mut rig = Rig::new();
    let strict = config::Network { scheduler: config::Scheduler::Strict, ..config::Network::default() };
    rig.host.egress = Egress::new(&strict).unwrap();
    rig.talk(None);
    // Its sinks have not come back.
    rig.accepts = false;
    let waits = rig.open_as(true);
    rig.emit(waits, 1..=200);
    assert_eq!((rig.host.pump(rig.now), rig.talk(None).0), (Vec::new(), 1));
    rig.accepts = true;
    let goes = rig.open_of(Epoch(8), true);
    assert_eq!(rig.talk(None).0, 1);
    rig.emit(goes, 1001..=1010);
    for _ in 0..10 {
        assert!(rig.host.pump(rig.now).is_empty());
        rig.talk(None);
    }
    assert_eq!(rig.arrived, (1001..=1010).collect::<Vec<_>>());
}

/// Its sinks are given up: all that was under way ends at once, wherever it waited, and the next flow of the source begins anew.
#[test]
fn a_flow_whose_sinks_are_given_up_ends_at_once_with_those_before_it() {
    let mut rig = Rig::new();
    rig.talk(None);
    let (first, account) = rig.open_as(true);
    assert_eq!(rig.talk(None).0, 1);
    rig.emit((first, account), 1..=5);
    let heir = rig.host.open_heir(first, HOME, insane_wire::host::Source::default(), None).unwrap();
    rig.host.close_flow(first);
    rig.emit((heir, account), 6..=10);
    assert_eq!(rig.host.oldest(heir), Some(1));
    // What waits for the one before it is no path's yet.
    assert_eq!(rig.host.give_up(heir).len(), 5);
    assert_eq!((rig.account(account).pending(), rig.host.oldest(heir)), (0, None));
    assert_eq!(rig.cells.counters.get(0).unwrap().get(Count::Unconfirmed), 10);
    assert!(rig.host.give_up(heir).is_empty());
    assert_eq!(rig.give((heir, account)), Some(Count::Unconfirmed));
    let (next, other) = rig.open_as(true);
    assert!(next != heir && rig.host.by_epoch.get(&EPOCH) == Some(&next));
    rig.account(account).closing = true;
    rig.host.close_flow(heir);
    rig.emit((next, other), 11..=11);
    rig.talk(None);
    assert_eq!(rig.arrived, [11]);
    assert!([first, heir].iter().all(|at| rig.host.flows[*at].is_none()));
}

#[test]
fn the_messages_of_bundles_that_wait_are_counted_one_by_one() {
    let mut rig = Rig::new();
    rig.talk(None);
    let (flow, account) = rig.open_as(true);
    rig.host.flows[flow].as_mut().unwrap().behind = true;
    for bundle in [0, 3, 64] {
        let token = rig.underway.add(Held::Bytes(vec![0; 64 * 8]), 1);
        let next = Outgoing { token, len: u32::from(bundle.max(1)) * 8, bundle, ..Outgoing::default() };
        rig.account(account).give(next.messages());
        assert_eq!(rig.host.give(rig.now, flow, next), Ok(()));
    }
    let waits = rig.host.flows[flow].as_ref().unwrap();
    assert_eq!((waits.held_back(), waits.queued, rig.host.again(account)), (68, 0, 68));
    // They will come again, so none of them has been had by a sink that its runtime had no time to report.
    rig.host.note_unsaid();
    assert_eq!(rig.account(account).unsaid, 0);
}

#[test]
fn a_host_is_told_of_the_end_of_a_flow_whose_opening_it_may_not_have_seen() {
    let mut rig = Rig::new();
    rig.talk(None);
    rig.host.begin_control(Epoch(1));
    rig.talk(None);
    // Accepted before it ends: the other end sees that by itself.
    let (flow, _) = rig.open();
    assert_eq!(rig.talk(None).0, 1);
    rig.host.close_flow(flow);
    rig.talk(None);
    assert_eq!((rig.said(), rig.host.by_number.len()), (vec![false], 0));
    // Its opening has not left.
    let (flow, _) = rig.open();
    rig.host.close_flow(flow);
    assert_eq!(rig.talk(None).0, 0);
    assert_eq!((rig.said(), rig.host.by_number.len()), (vec![false, true], 0));
    // Its source goes on by another, and ends with that.
    let (flow, _) = rig.open();
    rig.host.close_flow(flow);
    let (next, _) = rig.open();
    assert_eq!(rig.talk(None).0, 1);
    assert_eq!((rig.said(), rig.host.by_number.len()), (vec![false, false], 1));
    rig.host.close_flow(next);
    rig.talk(None);
    assert_eq!((rig.said(), rig.host.by_number.len()), (vec![true], 0));
}

#[test]
fn what_is_quiet_is_not_looked_at_and_what_is_not_is_until_it_ends() {
    let mut rig = Rig::new();
    let mut domain = Domain::new(1, "default".into(), &config::Config::default(), Pages::without_thread()).unwrap();
    rig.talk(None);
    let (flow, account) = rig.open_as(true);
    let mut looked_at = |rig: &mut Rig| {
        rig.host.settle_all();
        rig.host.push_waiting();
        rig.host.sweep(std::slice::from_mut(&mut domain));
        let flows = rig.host.flows.marked(Looker::Chores).count();
        (flows, rig.host.accounts.marked(Looker::Chores).count())
    };
    assert_eq!(rig.talk(None).0, 1);
    looked_at(&mut rig);
    assert_eq!((looked_at(&mut rig), rig.host.is_awaited()), ((0, 0), false));
    // What its sink has and its host has not reported yet is not through.
    rig.emit((flow, account), 1..=5);
    assert_eq!(looked_at(&mut rig), (1, 1));
    rig.talk(None);
    assert_eq!((looked_at(&mut rig), rig.arrived.len(), rig.host.is_awaited()), ((0, 1), 5, true));
    let report = Report { delivered: 5, ..Report::default() };
    rig.account(account).reported(&report);
    looked_at(&mut rig);
    assert_eq!((looked_at(&mut rig), rig.host.is_awaited()), ((0, 0), false));
    // What ends is, until it has.
    rig.account(account).closing = true;
    rig.host.close_flow(flow);
    assert!(looked_at(&mut rig).0 == 1 && rig.host.accounts[account].is_none());
    rig.talk(None);
    assert!(rig.host.flows[flow].is_none());
    assert_eq!(looked_at(&mut rig), (0, 0));
}

#[test]
fn a_flow_that_is_given_something_past_the_queues_is_looked_at() {
    let mut rig = Rig::new();
    rig.talk(None);
    let (flow, _) = rig.open();
    rig.host.settle_all();
    assert_eq!(rig.host.flows.marked(Looker::Chores).count(), 0);
    assert!(rig.host.flow_at_once(flow).is_some());
    assert_eq!(rig.host.flows.marked(Looker::Chores).count(), 1);
}

/// What is lost of a best-effort flow is a loss of the sinks that its source knew of when it was emitted.
#[test]
fn a_sink_that_joins_is_not_charged_with_what_was_lost_before() {
    let mut rig = Rig::new();
    rig.talk(None);
    let (flow, old) = rig.open();
    rig.talk(None);
    let cell = rig.cells.start(EPOCH, SinkId(10)).unwrap();
    let new = rig.host.add_account(Account::new(0, SinkId(10), (0, 0), false, cell));
    rig.host.flows[flow].as_mut().unwrap().accounts.push(new);
    for account in [old, new] {
        let number = rig.host.next_join(EPOCH);
        rig.account(account).number = number;
        rig.account(account).is_attached_again();
    }
    let burst = |rig: &mut Rig, joined: u8, accounts: &[usize], lost: bool| {
        for sequence in 1..=10 {
            accounts.iter().for_each(|account| rig.account(*account).give(1));
            let token = rig.underway.add(Held::Bytes(vec![1; 8]), 1);
            let next = Outgoing { token, len: 8, sequence, joined, ..Outgoing::default() };
            assert_eq!(rig.host.give(rig.now, flow, next), Ok(()));
        }
        let (now, mut frame) = (rig.now, Vec::new());
        let mut sources = Sources { underway: &rig.underway, domains: &[] };
        while lost && rig.host.lanes.path(HOME).unwrap().transmit(now, &mut frame, &mut sources).is_some() {
            frame.clear();
        }
    };
    burst(&mut rig, 1, &[old], true);
    burst(&mut rig, 2, &[old, new], false);
    for _ in 0..5 {
        rig.talk(None);
        rig.host.settle_all();
    }
    assert_eq!(rig.arrived.len(), 10);
    assert_eq!((rig.account(old).pending(), rig.account(new).pending()), (10, 10), "their host has not reported");
    burst(&mut rig, 2, &[old, new], true);
    for _ in 0..5 {
        rig.talk(None);
        rig.host.settle_all();
    }
    let lost = |rig: &Rig, cell| rig.cells.counters.get(cell).unwrap().get(Count::Dropped);
    assert_eq!((lost(&rig, 0), lost(&rig, 1)), (20, 10));
    assert_eq!((rig.account(old).pending(), rig.account(new).pending()), (10, 10));
}

/// A sink keeps its place among those that joined, however many come after it.
#[test]
fn a_sink_is_charged_with_what_is_lost_after_many_others_joined() {
    let mut rig = Rig::new();
    let (flow, account) = rig.open();
    let number = rig.host.next_join(EPOCH);
    rig.account(account).number = number;
    rig.account(account).give(3);
    let at = (flow, rig.host.flows[flow].as_ref().unwrap().number);
    for more in [1, 150, 300] {
        let last = (0..more).map(|_| rig.host.next_join(EPOCH)).last().unwrap();
        let before = rig.account(account).pending();
        rig.host.end_of(at, last as u8, (Count::Dropped, 1));
        assert_eq!(rig.account(account).pending(), before - 1, "{more}");
    }
}
