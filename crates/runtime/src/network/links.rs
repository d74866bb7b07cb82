//! What local sources emit: taken from their links and given to the paths of the hosts that have sinks.

use crate::network::control::{Held, Place, inside};
use crate::network::events::{clock_ns, give_back, realtime_ahead};
use crate::network::hub::Hub;
use crate::network::lanes::HOME;
use crate::network::ports::Port;
use insane_shm::counters::Count;
use insane_shm::link::{
    Broken, Delivery, Descriptor, FLAG_INLINE, FLAG_LAUNCH_TIME, FLAG_PACKED, FLAG_TIMESTAMP, Fate,
};
use insane_shm::pack::Messages;
use insane_transport::Outgoing;
use insane_wire::frame::record::{MAX_BUNDLE, MAX_BUNDLED, bundle_append, is_bundle};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::time::Duration;

/// Messages of one link that are taken before the others have their turn.
const BURST: usize = 256;

/// Nothing is taken from a link while so many messages of one of its flows wait.
const ENOUGH: u64 = 2048;

// A pack in a slot is a bundle in a frame.
const _: () = assert!(MAX_BUNDLE == insane_shm::pack::MAX_MESSAGES && MAX_BUNDLED == insane_shm::pack::MAX_COPIED);

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
        let mut taken = 0;
        let mut clock = None;
        let mut run = Run::default();
        if self.is_held(domain, link) {
            self.prune(domain, link);
            return false;
        }
        while taken < BURST {
            let Some(intake) = self.domains[domain].intakes[link].as_mut().filter(|l| l.broken.is_none()) else {
                break;
            };
            match intake.consumer.poll() {
                Ok(Some(delivery)) => {
                    let clock = *clock.get_or_insert_with(|| (clock_ns(ClockId::Monotonic), realtime_ahead()));
                    let takes = run.takes(&delivery.descriptor);
                    if intake.is_plain(&delivery.descriptor) && (takes || intake.is_steady(delivery.descriptor.source))
                    {
                        if !takes {
                            self.send_run(domain, link, now, clock, &mut run);
                        }
                        run.append(&delivery);
                        taken += 1;
                        continue;
                    }
                    self.send_run(domain, link, now, clock, &mut run);
                    if delivery.descriptor.flags & FLAG_PACKED == 0 {
                        self.send(domain, link, now, clock, &delivery, None);
                        taken += 1;
                    } else if self.send_pack(domain, link, now, clock, &delivery) {
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
        self.send_run(domain, link, now, clock.unwrap_or_default(), &mut run);
        if let Some(intake) = self.domains[domain].intakes[link].as_mut()
            && std::mem::take(&mut intake.returned)
            && intake.reliable
        {
            intake.consumer.settle();
            intake.consumer.wake();
        }
        self.prune(domain, link);
        taken > 0
    }

    /// Sends small messages that came one after the other, and gives them back.
    fn send_run(&mut self, domain: usize, link: usize, now: Duration, clock: (u64, u64), run: &mut Run) {
        let Some(first) = run.first.take() else { return };
        let (bytes, count) = (std::mem::take(&mut run.bytes), std::mem::take(&mut run.count));
        if count == 1 {
            self.send(domain, link, now, clock, &first, None);
            return;
        }
        let d = first.descriptor;
        let pack = Descriptor { flags: FLAG_PACKED, count, ..d };
        let fate = self.send(domain, link, now, clock, &Delivery { descriptor: pack, ..first }, Some(bytes));
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

    /// Sends a pack as it is, and gives the slot back. `false`: the pack lies.
    fn send_pack(&mut self, domain: usize, link: usize, now: Duration, clock: (u64, u64), pack: &Delivery) -> bool {
        let d = pack.descriptor;
        if d.deadline_ns != 0 || d.flags & (FLAG_TIMESTAMP | FLAG_LAUNCH_TIME) != 0 {
            return self.unpack(domain, link, now, clock, pack);
        }
        let Some(intake) = self.domains[domain].intakes[link].as_ref() else { return true };
        let view = intake.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let length = d.length.next_multiple_of(8) as usize;
        // A copy: what was checked must be what is sent, and the slot is its owner's again at once.
        let mut bytes = Vec::with_capacity(length);
        let there = view.is_some_and(|view| view.append(d.slot, d.offset, d.length, &mut bytes));
        // The last message of a pack need not be filled up.
        bytes.resize(length, 0);
        if !there || !is_bundle(&bytes, d.count) {
            return false;
        }
        let fate = self.send(domain, link, now, clock, pack, Some(bytes));
        if let Some(intake) = self.domains[domain].intakes[link].as_mut() {
            give_back(intake, &d, fate);
        }
        true
    }

    /// Sends the messages of a pack one by one, as if each had come inside a descriptor of its own, and gives the slot back.
    /// `false`: the pack lies.
    fn unpack(&mut self, domain: usize, link: usize, now: Duration, clock: (u64, u64), pack: &Delivery) -> bool {
        let d = pack.descriptor;
        let Some(intake) = self.domains[domain].intakes[link].as_ref() else { return true };
        let view = intake.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let Some(messages) = view.and_then(|view| Messages::of(view, &d)) else { return false };
        // Copied first: the path may change the links.
        let Ok(messages) = messages.collect::<Result<Vec<_>, _>>() else { return false };
        let mut told = (d.sequence, Fate::AsCounted);
        for (n, (inline, length)) in (0u64..).zip(messages) {
            let sequence = d.sequence.wrapping_add(n);
            let descriptor = Descriptor { sequence, length, flags: d.flags | FLAG_INLINE, ..d };
            let one = Delivery { descriptor, inline, position: pack.position };
            let fate = self.send(domain, link, now, clock, &one, None);
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
    fn is_held(&mut self, domain: usize, link: usize) -> bool {
        let Some(intake) = self.domains[domain].intakes[link].as_mut() else { return false };
        let mut routes = intake.sources.values().flat_map(|s| s.routes.iter()).peekable();
        let first = routes.peek().map(|r| r.host);
        let mut full = false;
        for route in routes {
            let host = &self.hosts[route.host];
            let flow = host.flows[route.flow]
                .as_ref()
                .filter(|f| Some(route.host) == first && host.lanes.is_up(f.number.lane));
            let Some(flow) = flow else {
                full = false;
                break;
            };
            let counts = host.lanes.counts(flow.number).unwrap_or_default();
            full |= counts.waiting + (flow.queued + flow.backlog.len()) as u64 >= ENOUGH;
        }
        intake.held = full;
        full
    }

    /// Gives one message, or those of a `bundle`, to the hosts of its sinks. `clock` is now by CLOCK_MONOTONIC, and what
    /// CLOCK_REALTIME is ahead of it. Returns what its source is to be told, which has been done unless it came in a pack.
    fn send(
        &mut self,
        domain: usize,
        link: usize,
        now: Duration,
        clock: (u64, u64),
        delivery: &Delivery,
        bundle: Option<Vec<u8>>,
    ) -> Fate {
        let Self { domains, hosts, underway, .. } = self;
        let Some(intake) = domains[domain].intakes[link].as_mut() else { return Fate::AsCounted };
        let d = delivery.descriptor;
        let packed = d.flags & FLAG_PACKED != 0;
        let (bundled, len) = match &bundle {
            Some(bytes) => (d.count, u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
            None => (0, d.length),
        };
        let messages = u64::from(bundled.max(1));
        let launch = d.flags & FLAG_LAUNCH_TIME != 0;
        let left = (d.deadline_ns != 0 && !launch).then(|| d.deadline_ns.checked_sub(clock.0));
        let late = left == Some(None);
        let position = delivery.position;
        let is_for = |s: &crate::network::intake::Sink| s.takes(position);
        intake.sources.get_mut(&d.source).into_iter().for_each(|source| source.look(&d, position));
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
            if !packed {
                give_back(intake, &d, fate);
            }
            return fate;
        }
        let held = if let Some(bytes) = bundle {
            Held::Bytes(bytes)
        } else if delivery.is_inline() {
            inside(delivery)
        } else {
            intake.out += 1;
            Held::Slot(Place { domain, link, generation: intake.generation, descriptor: d })
        };
        let token = underway.add(held, count);
        let next = Outgoing {
            token,
            len,
            sequence: d.sequence,
            deadline: left.flatten().map(|left| now + Duration::from_nanos(left)),
            priority: d.priority,
            timestamp_ns: if d.timestamp_ns == 0 { 0 } else { d.timestamp_ns.wrapping_add(clock.1).max(1) },
            launch_ns: if launch { d.deadline_ns } else { 0 },
            bundle: bundled,
            joined: 0,
        };
        let (mut refused, mut next) = (0, next);
        for route in routes.iter().filter(|r| r.sinks.iter().any(is_for)) {
            next.joined = route.joined.unwrap_or(0);
            let host = &mut hosts[route.host];
            let Err(why) = host.give(now, route.flow, next) else { continue };
            refused += 1;
            for sink in route.sinks.iter().filter(|s| is_for(s)) {
                if let Some(account) = host.accounts[sink.account].as_mut() {
                    account.end(why, messages);
                }
            }
        }
        // Its payload was copied, its credit is the source's again.
        if delivery.is_inline() && !packed {
            give_back(intake, &d, Fate::AsCounted);
        }
        for _ in 0..refused {
            if let Some(Held::Slot(_)) = underway.release(token) {
                give_back(intake, &d, Fate::Dropped);
                intake.out -= 1;
            }
        }
        Fate::AsCounted
    }

    /// Ends the flows whose last message was taken, and the link if it is spent.
    fn prune(&mut self, domain: usize, link: usize) {
        let Self { domains, hosts, .. } = self;
        let Some(intake) = domains[domain].intakes[link].as_mut() else { return };
        let head = intake.consumer.position();
        let over = intake.broken.is_some() || (intake.gone && !intake.consumer.ready());
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
                    json!({
                        "datapath": self.ports[port].kind.name(), "address": lane.address.to_string(),
                        "connected": lane.path.is_connected(), "flows_out": flows(port), "rtt_us": s.rtt_us,
                        "sent_frames": s.sent_frames, "received_frames": s.received_frames, "lost_frames": s.lost_frames,
                        "connections": s.connections,
                    })
                }).collect();
                let pending: u64 = h.accounts.iter().flatten().map(crate::network::account::Account::pending).sum();
                json!({
                    "address": h.address.to_string(), "name": h.name, "connected": h.is_connected(), "paths": paths, "moves": h.moves,
                    "known": h.known.word(),
                    "losses": h.lost, "sinks": self.sinks.values().filter(|s| std::ptr::eq(&raw const self.hosts[s.host], h)).count(),
                    "flows_out": h.flows.iter().flatten().count(), "flows_in": h.incoming.len(), "pending": pending,
                    "rtt_us": s.rtt_us, "sent_frames": s.sent_frames, "received_frames": s.received_frames,
                    "lost_frames": s.lost_frames, "duplicates": s.duplicates, "foreign": s.foreign, "malformed": s.malformed,
                    "stray": s.stray + h.stray, "refused": s.refused, "connections": s.connections,
                    "in_flight": s.in_flight, "window": s.window,
                })
            })
            .collect();
        let stats = |port: &Port| {
            let d = port.datapath.stats();
            json!({
                "name": port.kind.name(), "sent_frames": d.sent_frames, "received_frames": d.received_frames, "calls": d.calls,
                "overruns": d.overruns, "refused_frames": d.refused_frames, "placed": d.placed, "busy": d.busy,
            })
        };
        json!({
            "listen": self.settings.listen.to_string(), "hosts": hosts, "under_way": self.underway.len(),
            "rebind_requests": self.requests.len(),
            "unknown_senders": self.unknown, "refused": self.refusals, "last_refusal": self.last_refusal,
            "datapath": self.ports.first().map(stats), "ports": self.ports.iter().map(stats).collect::<Vec<_>>(),
        })
    }
}

/// Small messages of one source that follow each other on a link, as a bundle has them.
#[derive(Debug, Default)]
struct Run {
    first: Option<Delivery>,
    bytes: Vec<u8>,
    count: u16,
}

impl Run {
    /// Whether a message can follow those that are there.
    fn takes(&self, d: &Descriptor) -> bool {
        self.first.is_some_and(|first| {
            let f = first.descriptor;
            let next = f.sequence.wrapping_add(self.count.into());
            self.count < MAX_BUNDLE && (f.source, f.priority, next) == (d.source, d.priority, d.sequence)
        })
    }

    fn append(&mut self, delivery: &Delivery) {
        if self.count == 0 {
            self.first = Some(*delivery);
        }
        bundle_append(&mut self.bytes, delivery.inline_bytes());
        self.count += 1;
    }
}
