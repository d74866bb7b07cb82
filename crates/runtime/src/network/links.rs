//! What local sources emit: taken from their links and given to the paths of the hosts that have sinks.

use crate::network::control::{Held, Lent, Place, Spot, inside};
use crate::network::damping::Steadiness;
use crate::network::domain::Domain;
use crate::network::events::{clock_ns, give_back, give_back_all, lend, realtime_ahead};
use crate::network::hub::Hub;
use crate::network::lanes::HOME;
use crate::network::ports::Port;
use insane_shm::counters::Count;
use insane_shm::link::{Broken, Delivery, Descriptor, FLAG_LAUNCH_TIME, FLAG_PACKED, FLAG_TIMESTAMP, FLAG_WIDE, Fate};
use insane_shm::pack::{MAX_COPIED, MAX_MESSAGE, MAX_MESSAGES, bytes_for, lengths};
use insane_shm::segment::SegmentView;
use insane_transport::Outgoing;
use insane_wire::frame::record::{MAX_BUNDLE, MAX_BUNDLED, bundle_append, is_bundle};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::time::Duration;

/// Messages of one link that are taken before the others have their turn.
const BURST: usize = 256;

/// Nothing is taken from a link while so many messages of one of its flows wait.
pub(crate) const ENOUGH: u64 = 2048;

// A pack in a slot is a bundle in a frame.
const _: () = assert!(MAX_BUNDLE == MAX_MESSAGES && MAX_BUNDLED == MAX_MESSAGE);

/// Where the payload is of what is sent.
#[derive(Debug)]
enum Load {
    /// Where its descriptor says.
    There,
    /// Copied: one message.
    Copied(Vec<u8>),
    /// Copied: those of a bundle.
    Bundle(Vec<u8>),
    /// In the slot of a pack; the lengths of its messages.
    Pack(Vec<u16>),
    /// In slots, of reliable messages; copied as a bundle.
    Run(Vec<u8>, Vec<Spot>),
    /// In slots, of larger ones.
    Slots(Vec<Lent>),
}

impl Hub {
    /// Takes what is on the links from local sources, a bounded burst each.
    pub(crate) fn take_from_links(&mut self, now: Duration) -> bool {
        let mut busy = false;
        for domain in 0..self.domains.len() {
            for link in 0..self.domains[domain].intakes.len() {
                if self.domains[domain].intakes[link].is_some() {
                    busy |= self.take_from(domain, link, now);
                }
            }
        }
        busy
    }

    fn take_from(&mut self, domain: usize, link: usize, now: Duration) -> bool {
        let Some(intake) = self.domains[domain].intakes[link].as_mut() else { return false };
        if intake.broken.is_some() || !intake.consumer.ready() {
            intake.held = false;
            intake.consumer.settle_if_short();
            intake.give_notice();
            return false;
        }
        if intake.allowance == 0 && self.is_held(domain, link) {
            return false;
        }
        let Some(intake) = self.domains[domain].intakes[link].as_mut() else { return false };
        let polled = intake.consumer.poll();
        let alone = matches!(&polled, Ok(Some(delivery)) if self.send_at_once(domain, link, now, delivery));
        let taken = if alone { 1 } else { self.take_burst(domain, link, now, polled) };
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            intake.allowance = intake.allowance.saturating_sub(taken as u64);
            if alone {
                intake.consumer.settle_if_short();
            }
            intake.give_notice();
        }
        taken > 0
    }

    /// Takes up to a burst of messages that do not go alone, beginning with the one that was polled. Returns how many.
    // Apart from those that do: together they are more than a processor's first cache of instructions holds.
    #[inline(never)]
    fn take_burst(
        &mut self,
        domain: usize,
        link: usize,
        now: Duration,
        polled: Result<Option<Delivery>, Broken>,
    ) -> usize {
        let mut taken = 0;
        let clock = Clock::default();
        let mut run = Run::default();
        let mut first = Some(polled);
        while taken < BURST {
            let Some(intake) = self.domains[domain].intakes[link].as_mut().filter(|l| l.broken.is_none()) else {
                break;
            };
            match first.take().unwrap_or_else(|| intake.consumer.poll()) {
                Ok(Some(delivery)) => {
                    let larger = intake.is_plain_larger(&delivery.descriptor);
                    let takes = run.takes(&delivery.descriptor, larger);
                    let mut plain = (larger || intake.is_plain(&delivery.descriptor))
                        && (takes || intake.is_steady(delivery.descriptor.source));
                    if !plain || !takes {
                        self.send_run(domain, link, now, &clock, &mut run);
                        if plain && larger {
                            run.whole = self.whole_bytes(domain, link, delivery.descriptor.source);
                            plain = delivery.descriptor.length <= run.whole;
                        }
                    }
                    if plain && run.needs_lists() {
                        (run.bytes, run.spots) = (self.underway.bytes(), self.underway.spots());
                    }
                    let intake = self.domains[domain].intakes[link].as_ref().filter(|_| plain);
                    if intake.is_some_and(|intake| run.append(&delivery, larger, &intake.segments)) {
                        taken += 1;
                        continue;
                    }
                    self.send_run(domain, link, now, &clock, &mut run);
                    if delivery.descriptor.flags & FLAG_PACKED == 0 {
                        self.send(domain, link, now, &clock, &delivery, Load::There);
                        taken += 1;
                    } else if self.send_pack(domain, link, now, &clock, &delivery) {
                        taken += usize::from(delivery.descriptor.count);
                    } else {
                        self.break_off(domain, link, Broken::of(&delivery.descriptor));
                        break;
                    }
                }
                Ok(None) => {
                    intake.consumer.settle_if_short();
                    break;
                }
                Err(broken) => {
                    self.break_off(domain, link, broken);
                    break;
                }
            }
        }
        if run.first.is_some() {
            self.send_run(domain, link, now, &clock, &mut run);
        }
        taken
    }

    /// Sends small messages that came one after the other, and gives them back.
    fn send_run(&mut self, domain: usize, link: usize, now: Duration, clock: &Clock, run: &mut Run) {
        let Some(first) = run.first.take() else { return };
        let (bytes, count) = (std::mem::take(&mut run.bytes), std::mem::take(&mut run.count));
        let (spots, lent) = (std::mem::take(&mut run.spots), std::mem::take(&mut run.lent));
        if count == 1 {
            self.send(domain, link, now, clock, &first, Load::There);
            return;
        }
        if !lent.is_empty() {
            self.send(domain, link, now, clock, &first, Load::Slots(lent));
            return;
        }
        let d = first.descriptor;
        if !spots.is_empty() {
            self.send(domain, link, now, clock, &first, Load::Run(bytes, spots));
            return;
        }
        let pack = Descriptor { flags: FLAG_PACKED, count, ..d };
        let fate = self.send(domain, link, now, clock, &Delivery { descriptor: pack, ..first }, Load::Bundle(bytes));
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            for n in 0..u64::from(count) {
                give_back(intake, &Descriptor { sequence: d.sequence.wrapping_add(n), ..d }, fate);
            }
        }
    }

    /// A session broke the protocol of a link: nothing more is read from it.
    fn break_off(&mut self, domain: usize, link: usize, broken: Broken) {
        tracing::warn!(%broken, "a session broke a link");
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            intake.broken = Some(broken);
            let pair = intake.pair;
            self.end_pair(domain, pair);
        }
    }

    /// Sends a pack as it is. Its slot is given back at once if its messages are small, otherwise when they have gone. `false`: the
    /// pack lies.
    fn send_pack(&mut self, domain: usize, link: usize, now: Duration, clock: &Clock, pack: &Delivery) -> bool {
        let d = pack.descriptor;
        let Some(intake) = self.domains[domain].intakes[link].as_ref() else { return true };
        let view = intake.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let Some(lengths) = view.and_then(|view| lengths(view, &d)) else { return false };
        let plain = d.deadline_ns == 0 && d.flags & (FLAG_TIMESTAMP | FLAG_LAUNCH_TIME) == 0;
        let longest = u32::from(lengths.iter().copied().max().unwrap_or(0));
        if !plain || (longest > MAX_COPIED && longest > self.whole_bytes(domain, link, d.source)) {
            return self.unpack(domain, link, now, clock, pack, &lengths);
        }
        if d.flags & FLAG_WIDE != 0 {
            self.send(domain, link, now, clock, pack, Load::Pack(lengths));
            return true;
        }
        let length = d.length.next_multiple_of(8) as usize;
        // A copy: what was checked must be what is sent, and the slot is its owner's again at once.
        let mut bytes = self.underway.bytes();
        bytes.reserve(length);
        let there = view.is_some_and(|view| view.append(d.slot, d.offset, d.length, &mut bytes));
        // The last message of a pack need not be filled up.
        bytes.resize(length, 0);
        if !there || !is_bundle(&bytes, d.count) {
            return false;
        }
        let fate = self.send(domain, link, now, clock, pack, Load::Bundle(bytes));
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            give_back(intake, &d, fate);
        }
        true
    }

    /// The longest message that goes in one frame to every host that has sinks of a source.
    fn whole_bytes(&self, domain: usize, link: usize, source: u32) -> u32 {
        let intake = self.domains[domain].intakes[link].as_ref();
        let source = intake.and_then(|intake| intake.sources.get(&source));
        let whole = source.into_iter().flat_map(|source| &source.routes).filter_map(|route| {
            let host = &self.hosts[route.host];
            let lane = host.flows[route.flow].as_ref()?.number.lane;
            host.lanes.get(lane).map(|lane| lane.path.whole_bytes())
        });
        whole.min().unwrap_or(0)
    }

    /// Sends the messages of a pack one by one, copied, as if none had come with the others, and gives the slot back. `false`: the
    /// pack lies.
    fn unpack(
        &mut self,
        domain: usize,
        link: usize,
        now: Duration,
        clock: &Clock,
        pack: &Delivery,
        lengths: &[u16],
    ) -> bool {
        let d = pack.descriptor;
        let (mut told, mut at) = ((d.sequence, Fate::AsCounted), d.offset);
        for (sequence, length) in (d.sequence..).zip(lengths.iter().copied().map(u32::from)) {
            let Some(intake) = self.domains[domain].intakes[link].as_ref() else { return true };
            let view = intake.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
            let mut bytes = Vec::with_capacity(length as usize);
            if !view.is_some_and(|view| view.append(d.slot, at + bytes_for(0), length, &mut bytes)) {
                return false;
            }
            at += bytes_for(length);
            let one = Delivery { descriptor: Descriptor { sequence, length, count: 1, ..d }, ..*pack };
            let fate = self.send(domain, link, now, clock, &one, Load::Copied(bytes));
            if told.1 == Fate::AsCounted && fate != Fate::AsCounted {
                told = (sequence, fate);
            }
        }
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            give_back(intake, &Descriptor { sequence: told.0, ..d }, told.1);
        }
        true
    }

    /// Whether a link's messages are all for one host that has enough to do. Then they stay where they are, and the source sees
    /// its link fill up. With several hosts none may hold up the others: what one has no room for is dropped for it alone.
    ///
    /// Otherwise it need not be asked again before so many more were taken that one of them can have: a session may have hundreds of
    /// sources, and each has a flow to be looked at.
    #[inline(never)]
    fn is_held(&mut self, domain: usize, link: usize) -> bool {
        let Some(intake) = self.domains[domain].intakes[link].as_mut() else { return false };
        let mut routes = intake.sources.values().flat_map(|s| s.routes.iter()).peekable();
        let first = routes.peek().map(|r| r.host);
        let mut most = 0;
        for route in routes {
            let host = &self.hosts[route.host];
            let flow = host.flows[route.flow]
                .as_ref()
                .filter(|f| Some(route.host) == first && host.lanes.is_up(f.number.lane));
            let Some(flow) = flow else {
                most = 0;
                break;
            };
            most = most.max(host.lanes.waiting(flow.number) + flow.held_back());
        }
        intake.allowance = ENOUGH.saturating_sub(most);
        intake.held = intake.allowance == 0;
        intake.held
    }

    /// Gives one message, or those of a bundle or pack, to the hosts of its sinks. Returns what its source is to be told, which the caller is to do for what was copied.
    fn send(
        &mut self,
        domain: usize,
        link: usize,
        now: Duration,
        clock: &Clock,
        delivery: &Delivery,
        load: Load,
    ) -> Fate {
        let Self { domains, hosts, underway, .. } = self;
        let Some(intake) = domains[domain].intakes[link].as_mut() else { return Fate::AsCounted };
        let d = delivery.descriptor;
        let copied = matches!(load, Load::Copied(_) | Load::Bundle(_));
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let (bundled, len) = match &load {
            Load::There | Load::Copied(_) => (0, d.length),
            Load::Bundle(bytes) => (d.count, length(bytes)),
            Load::Pack(_) => (d.count, d.length.next_multiple_of(bytes_for(0))),
            Load::Run(bytes, spots) => (u16::try_from(spots.len()).unwrap_or(u16::MAX), length(bytes)),
            Load::Slots(lent) => (u16::try_from(lent.len()).unwrap_or(u16::MAX), lent.last().map_or(0, Lent::end)),
        };
        let messages = u64::from(bundled.max(1));
        let launch = d.flags & FLAG_LAUNCH_TIME != 0;
        let left = (d.deadline_ns != 0 && !launch).then(|| d.deadline_ns.checked_sub(clock.now()));
        let late = left == Some(None);
        let position = delivery.position;
        let is_for = |s: &crate::network::intake::Sink| s.takes(position);
        intake.sources.get_mut(&d.source).into_iter().for_each(|source| source.look(&d, position));
        let place = Place { domain, link, generation: intake.generation, descriptor: d };
        let held = match load {
            Load::Copied(bytes) | Load::Bundle(bytes) => Held::Bytes(bytes),
            Load::Pack(lengths) => Held::Pack(place, lengths),
            Load::Run(bytes, spots) => Held::Run(place, bytes, spots),
            Load::Slots(lent) => Held::Slots(place, lent),
            Load::There if delivery.is_inline() => inside(delivery),
            Load::There => Held::Slot(place),
        };
        let lent = held.place().is_some();
        let short = intake.is_short();
        lend(intake, &held);
        let routes = intake.sources.get(&d.source).map_or(&[][..], |s| &s.routes);
        let mut count = 0;
        for route in routes.iter().filter(|r| r.sinks.iter().any(is_for)) {
            count += 1;
            for sink in route.sinks.iter().filter(|s| is_for(s)) {
                if let Some(account) = hosts[route.host].accounts[sink.account].as_mut() {
                    account.give(messages);
                    if late {
                        account.end(Count::Expired, messages);
                    }
                }
            }
        }
        if late || count == 0 {
            let fate = if late { Fate::Expired } else { Fate::Dropped };
            if lent {
                give_back_all(intake, &held, fate);
            } else if !copied {
                give_back(intake, &d, fate);
            }
            return fate;
        }
        let token = underway.add(held, count);
        let next = Outgoing {
            token,
            len,
            sequence: d.sequence,
            deadline: left.flatten().map(|left| now + Duration::from_nanos(left)),
            priority: d.priority,
            timestamp_ns: if d.timestamp_ns == 0 {
                0
            } else {
                d.timestamp_ns.wrapping_add(clock.realtime_ahead()).max(1)
            },
            launch_ns: if launch { d.deadline_ns } else { 0 },
            bundle: bundled,
            ..Outgoing::default()
        };
        let (mut refused, mut next) = (0, next);
        for route in routes.iter().filter(|r| r.sinks.iter().any(is_for)) {
            next.joined = route.joined.unwrap_or(0);
            let host = &mut hosts[route.host];
            // Nobody waits for observers, wherever they are.
            let watched = short && route.is_watched(position);
            let given = if watched { Err(Count::SinkFull) } else { host.give(now, route.flow, next) };
            let Err(why) = given else { continue };
            refused += 1;
            for sink in route.sinks.iter().filter(|s| is_for(s)) {
                if let Some(account) = host.accounts[sink.account].as_mut() {
                    account.end(why, messages);
                }
            }
        }
        // Its payload was copied, its credit is the source's again.
        if !lent && !copied {
            give_back(intake, &d, Fate::AsCounted);
        }
        for _ in 0..refused {
            if let Some(held) = underway.release(token) {
                give_back_all(intake, &held, Fate::Dropped);
            }
        }
        Fate::AsCounted
    }

    /// As [`Self::prune`], of all links.
    pub(crate) fn prune_all(&mut self) {
        for domain in 0..self.domains.len() {
            for link in 0..self.domains[domain].intakes.len() {
                self.prune(domain, link);
            }
        }
    }

    /// Ends the flows whose last message was taken, and the link if it is spent.
    fn prune(&mut self, domain: usize, link: usize) {
        let Self { domains, hosts, .. } = self;
        let Some(intake) = domains[domain].intakes[link].as_mut() else { return };
        // A session may have hundreds of sources, and this is asked every few microseconds.
        if !std::mem::take(&mut intake.ending) && !intake.gone && intake.broken.is_none() {
            return;
        }
        let head = intake.consumer.position();
        let over = intake.broken.is_some() || (intake.gone && !intake.consumer.ready());
        let ending = &mut intake.ending;
        intake.sources.retain(|_, source| {
            source.routes.retain_mut(|route| {
                let host = &mut hosts[route.host];
                route.sinks.retain_mut(|sink| {
                    let late = sink.meant_late();
                    if let Some(account) = host.accounts[sink.account].as_mut().filter(|_| late > 0) {
                        account.give(late);
                        account.end(Count::SinkClosed, late);
                    }
                    let ends = over || sink.end.is_some_and(|end| head >= end);
                    if let Some(account) = host.accounts[sink.account].as_mut().filter(|_| ends) {
                        account.closing = true;
                    }
                    *ending |= !ends && sink.end.is_some();
                    !ends
                });
                if route.sinks.is_empty() {
                    host.close_flow(route.flow);
                }
                !route.sinks.is_empty()
            });
            !source.routes.is_empty()
        });
        if intake.is_spent() {
            domains[domain].intakes[link] = None;
        }
    }

    /// What the network has to say in a status report.
    pub(crate) fn report(&self) -> Value {
        let hosts: Vec<Value> = self
            .hosts
            .iter()
            .map(|h| {
                let s = h.lanes.get(HOME).map(|lane| lane.path.stats()).unwrap_or_default();
                let flows = |port| h.flows.iter().flatten().filter(|f| f.number.lane == port).count();
                let paths: Vec<Value> = h.lanes.all().map(|(port, lane)| {
                    let s = lane.path.stats();
                    let hold = h.lanes.steadiness(port).and_then(Steadiness::hold).map_or(0, |(_, hold)| hold.as_millis() as u64);
                    json!({
                        "hold_ms": hold, "datapath": self.ports[port].via().name(), "address": lane.address.to_string(),
                        "connected": lane.path.is_connected(), "flows_out": flows(port), "rtt_us": s.rtt_us,
                        "sent_frames": s.sent_frames, "received_frames": s.received_frames, "lost_frames": s.lost_frames,
                        "connections": s.connections, "frame_bytes": s.frame_bytes, "most_frame_bytes": s.most_frame_bytes,
                        "duplicates": s.duplicates, "foreign": s.foreign, "malformed": s.malformed, "stray": s.stray,
                        "overtaken": s.overtaken, "refused": s.refused,
                    })
                }).collect();
                let pending: u64 = h.accounts.iter().flatten().map(crate::network::account::Account::pending).sum();
                json!({
                    "address": h.address.to_string(), "name": h.name, "connected": h.is_connected(), "paths": paths, "moves": h.moves,
                    "moved": h.move_times.report(),
                    "known": h.known.word(),
                    "losses": h.lost, "sinks": self.sinks.values().filter(|s| std::ptr::eq(&raw const self.hosts[s.host], h)).count(),
                    "flows_out": h.flows.iter().flatten().count(), "flows_in": h.incoming.len(), "pending": pending,
                    "rtt_us": s.rtt_us, "sent_frames": s.sent_frames, "received_frames": s.received_frames,
                    "lost_frames": s.lost_frames, "duplicates": s.duplicates, "foreign": s.foreign + h.foreign, "malformed": s.malformed,
                    "stray": s.stray + h.stray, "mismatched": h.mismatched, "overtaken": s.overtaken, "refused": s.refused, "connections": s.connections,
                    "in_flight": s.in_flight, "window": s.window,
                })
            })
            .collect();
        let stats = |port: &Port| {
            let d = port.datapath.stats();
            json!({
                "name": port.via().name(), "sent_frames": d.sent_frames, "received_frames": d.received_frames, "calls": d.calls,
                "overruns": d.overruns, "dropped": d.dropped, "refused_frames": d.refused_frames, "placed": d.placed, "busy": d.busy, "lent": port.loans.out(),
                "connections": port.connections(),
            })
        };
        json!({
            "listen": self.settings.listen.to_string(), "hosts": hosts, "under_way": self.underway.len(),
            "rebind_requests": self.requests.len(), "memory": self.domains.iter().map(Domain::report_memory).collect::<Vec<_>>(),
            "unknown_senders": self.unknown, "refused": self.refusals, "last_refusal": self.last_refusal,
            "datapath": self.ports.first().map(stats), "ports": self.ports.iter().filter(|port| port.absent.is_none()).map(stats).collect::<Vec<_>>(),
        })
    }
}

/// The clocks of what was taken from a link together, looked at if a message says a time: most say none.
#[derive(Debug, Default)]
struct Clock {
    now: OnceCell<u64>,
    ahead: OnceCell<u64>,
}

impl Clock {
    /// CLOCK_MONOTONIC, in nanoseconds.
    fn now(&self) -> u64 {
        *self.now.get_or_init(|| clock_ns(ClockId::Monotonic))
    }

    /// What CLOCK_REALTIME is ahead of it.
    fn realtime_ahead(&self) -> u64 {
        *self.ahead.get_or_init(realtime_ahead)
    }
}

/// Messages of one source that follow each other on a link, as a bundle has them: small ones, or larger ones of a reliable stream.
#[derive(Debug, Default)]
struct Run {
    first: Option<Delivery>,
    bytes: Vec<u8>,
    count: u16,
    /// Where they are, unless they came inside their descriptors.
    spots: Vec<Spot>,
    /// Where larger ones are. They are not copied yet.
    lent: Vec<Lent>,
    /// The longest of these that goes in a frame.
    whole: u32,
}

impl Run {
    /// Whether a second message is to come behind one that has not been copied, and there is no room for the two yet.
    fn needs_lists(&self) -> bool {
        self.count == 1 && self.lent.is_empty() && self.bytes.capacity() == 0
    }

    /// Whether a message can follow those that are there.
    fn takes(&self, d: &Descriptor, larger: bool) -> bool {
        self.first.is_some_and(|first| {
            let f = first.descriptor;
            let next = f.sequence.wrapping_add(self.count.into());
            let same = (f.source, f.priority, next) == (d.source, d.priority, d.sequence);
            same && self.count < MAX_BUNDLE && larger != self.lent.is_empty() && (!larger || d.length <= self.whole)
        })
    }

    /// Adds a message. `false`: it is not where it should be, nothing was changed. The first is copied with the second: most come
    /// alone, and go as they are.
    fn append(&mut self, delivery: &Delivery, larger: bool, segments: &[Option<SegmentView>]) -> bool {
        let d = &delivery.descriptor;
        if larger {
            let Ok(len) = u16::try_from(d.length) else { return false };
            let at = self.lent.last().map_or(0, Lent::end);
            self.lent.push(Lent { spot: (d.segment, d.slot), offset: d.offset, at, len });
        } else if let Some(first) = self.first {
            if self.count == 1 && !self.copy(&first, segments) {
                return false;
            }
            if !self.copy(delivery, segments) {
                if self.count == 1 {
                    self.bytes.clear();
                    self.spots.clear();
                }
                return false;
            }
        }
        if self.count == 0 {
            self.first = Some(*delivery);
        }
        self.count += 1;
        true
    }

    /// Copies a small message behind those that are there.
    fn copy(&mut self, delivery: &Delivery, segments: &[Option<SegmentView>]) -> bool {
        let d = &delivery.descriptor;
        if delivery.is_inline() {
            bundle_append(&mut self.bytes, delivery.inline_bytes());
            return true;
        }
        let view = segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&u64::from(d.length).to_le_bytes());
        if !view.is_some_and(|view| view.append(d.slot, d.offset, d.length, &mut self.bytes)) {
            self.bytes.truncate(start);
            return false;
        }
        self.bytes.resize(start + bytes_for(d.length) as usize, 0);
        self.spots.push((d.segment, d.slot));
        true
    }
}
