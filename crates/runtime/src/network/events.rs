//! What the paths say, and what the server and the sessions of this host say.

use crate::core::Conn;
use crate::network::control::Held;
use crate::network::domain::Note;
use crate::network::gather::Lined;
use crate::network::host::{Asked, Incoming};
use crate::network::hub::{Hub, Watched};
use crate::network::lanes::{FlowId, HOME};
use crate::network::memory::slot_of;
use crate::network::outlet::{Arrived, Remote};
use crate::network::scatter::Loan;
use crate::network::{FromNetwork, intake};
use insane_shm::link::{Descriptor, FLAG_LAUNCH_TIME, FLAG_TIMESTAMP, Fate};
use insane_shm::steps::{Step, reach};
use insane_transport::{End, Event, Lies, Row};
use insane_wire::control::{self, ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::decode;
use insane_wire::error::Code;
use insane_wire::frame::record::Message;
use insane_wire::host::{self as wire, CONTROL, ToHost, to_host::Body};
use insane_wire::id::{Epoch, SinkId};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

/// A frame that was just received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// The name under which its path has it.
    pub(crate) name: u64,
    pub(crate) bytes: &'a [u8],
    /// If it is lent.
    pub(crate) loan: Option<&'a Arc<Loan>>,
}

/// A sink of another host.
#[derive(Debug)]
pub(crate) struct RemoteSink {
    pub(crate) host: usize,
    pub(crate) domain: usize,
    pub(crate) announced: wire::Announce,
    /// Its stream is open here with another QoS.
    pub(crate) conflicts: bool,
}

/// A flow from a host that has ended: its number, its source if it was not accepted, and where it went if it was.
type EndedFlow = (FlowId, Option<Epoch>, Option<Incoming>);

/// What an answer of the core is for.
#[derive(Debug)]
pub(crate) enum Want {
    Sink(SinkId),
    Source(usize, Epoch),
    Nothing,
}

/// A clock in nanoseconds.
pub(crate) fn clock_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// What one clock is ahead of another, in nanoseconds, wrapping.
pub(crate) fn realtime_ahead() -> u64 {
    clock_ns(ClockId::Realtime).wrapping_sub(clock_ns(ClockId::Monotonic))
}

impl Hub {
    pub(crate) fn ask(&mut self, want: Want, make: impl FnOnce(u64) -> FromNetwork) {
        let request = self.next_request;
        self.next_request += 1;
        self.wants.insert(request, want);
        let _ = self.ends.outbox.send(make(request));
        self.ends.out_bell.ring();
    }

    pub(crate) fn ask_core(&mut self, conn: Conn, body: to_runtime::Body) {
        self.ask(Want::Nothing, |request| FromNetwork::Request(conn, ToRuntime { request, body: Some(body) }));
    }

    /// The core says something to the network's session of a domain.
    pub(crate) fn told(&mut self, conn: Conn, message: ToClient, fd: Option<OwnedFd>) {
        let Some(at) = self.domains.iter().position(|d| d.conn == conn) else { return };
        match message.body {
            Some(to_client::Body::Pair(pair)) => {
                let Some(place) = fd.and_then(|fd| self.domains[at].add_pair(&pair, fd)) else { return };
                let data = self.new_watch(Watched::Pair(at, place));
                if let Some(pair) = self.domains[at].pairs[place].as_ref() {
                    let _ = epoll::add(&self.epoll, &pair.socket, data, epoll::EventFlags::IN);
                }
                // What was said before this end was watched.
                self.read_pair(at, place);
            }
            Some(to_client::Body::FlowAdded(flow)) if flow.producer => {
                tracing::debug!(me = self.own_name, ?flow, "flow added");
                if let Err(text) = self.domains[at].flow_added(&flow) {
                    tracing::warn!(text, "no link to a sink");
                }
            }
            Some(to_client::Body::FlowAdded(flow)) => self.matched(at, &flow, true),
            Some(to_client::Body::FlowRemoved(flow)) if !flow.producer => self.matched(at, &flow, false),
            Some(to_client::Body::Refused(refused)) => match self.wants.remove(&message.request) {
                Some(Want::Sink(sink)) => {
                    self.note_refusal(self.sinks.get(&sink).map(|s| s.host), "sink", &refused.text);
                    let known = self.sinks.get_mut(&sink).filter(|_| refused.code == Code::QosConflict.number());
                    known.into_iter().for_each(|known| known.conflicts = true);
                    tracing::warn!(%sink, refused.text, "a sink of another host does not fit here");
                }
                Some(Want::Source(source, epoch)) => {
                    let host = self.domains[at].remotes.get(source).and_then(Option::as_ref).map(|r| r.host);
                    self.note_refusal(host, "source", &refused.text);
                    tracing::warn!(%epoch, refused.text, "a source of another host does not fit here");
                    self.refuse_remote(at, source, epoch);
                }
                _ => {}
            },
            // The answers to this end's requests: an open stream comes before what is in it.
            Some(to_client::Body::StreamOpened(_)) | None => {}
            Some(_) => drop(self.wants.remove(&message.request)),
        }
        self.notes(at);
    }

    /// What another host has does not fit what is here: the report says so, for those who wonder why two ends do not meet.
    fn note_refusal(&mut self, host: Option<usize>, what: &str, why: &str) {
        self.refusals += 1;
        let host = host.map_or("?", |at| self.hosts[at].name.as_str());
        self.last_refusal = format!("a {what} of {host}: {why}");
    }

    /// Nobody has a stream open any more: the sinks of other hosts that did not fit it are offered again.
    pub(crate) fn stream_closed(&mut self, domain: &str, stream: &str) {
        let mut fits = Vec::new();
        for (sink, known) in self.sinks.iter_mut().filter(|(_, known)| known.conflicts) {
            if known.announced.domain == domain && known.announced.stream == stream {
                known.conflicts = false;
                fits.push((*sink, self.domains[known.domain].conn, known.announced.clone()));
            }
        }
        for (sink, conn, announced) in fits {
            self.ask(Want::Sink(sink), |request| FromNetwork::OpenSink(conn, request, announced));
        }
    }

    fn refuse_remote(&mut self, domain: usize, source: usize, epoch: Epoch) {
        let remotes = &mut self.domains[domain].remotes;
        if let Some(remote) = remotes.get_mut(source).and_then(|r| r.take_if(|r| r.epoch == epoch)) {
            self.freed.push(epoch);
            let host = &mut self.hosts[remote.host];
            host.forget_source(domain, source);
            let asked = host.requested.remove(&epoch).unwrap_or_default();
            asked.into_iter().for_each(|asked| host.lanes.refuse(asked.flow, 1));
        }
    }

    fn new_watch(&mut self, what: Watched) -> epoll::EventData {
        let data = self.next_watch;
        self.next_watch += 1;
        self.watched.insert(data, what);
        epoll::EventData::new_u64(data)
    }

    /// Something that is watched has something to say.
    pub(crate) fn woken(&mut self, data: u64) {
        match self.watched.get(&data) {
            Some(Watched::Pair(domain, pair)) => {
                let (domain, pair) = (*domain, *pair);
                if !self.read_pair(domain, pair) {
                    self.watched.remove(&data);
                }
            }
            Some(Watched::Doorbell { bell, .. }) => {
                let there = insane_shm::doorbell::silence(bell.as_fd());
                if !there {
                    // The link is gone with the other end.
                    let _ = epoll::delete(&self.epoll, bell);
                    self.watched.remove(&data);
                }
            }
            None => {}
        }
    }

    /// Reads what sessions have said so far.
    pub(crate) fn read_pairs(&mut self) {
        let is_pair = |watched: &Watched| matches!(watched, Watched::Pair(..));
        let pairs: Vec<u64> = self.watched.iter().filter(|(_, one)| is_pair(one)).map(|(data, _)| *data).collect();
        pairs.into_iter().for_each(|data| self.woken(data));
    }

    /// Reads a pair; whether it lives.
    fn read_pair(&mut self, domain: usize, pair: usize) -> bool {
        let end = self.domains[domain].read_pair(pair).err();
        let failed = self.domains[domain].pairs[pair].as_mut().and_then(|p| {
            p.flush();
            p.failed.take()
        });
        let lives = match end.or(failed) {
            Some(text) => {
                let short = self.domains[domain].pairs[pair].as_ref().filter(|pair| pair.short).map(|pair| pair.peer);
                if let Some(session) = short {
                    tracing::error!(text, "too little is left for a session, which begins anew");
                    let _ = self.ends.outbox.send(FromNetwork::PairLost(self.domains[domain].conn, session));
                } else if !text.is_empty() {
                    tracing::warn!(text, "a session broke the protocol and was cut off");
                }
                self.end_pair(domain, pair);
                false
            }
            None => self.domains[domain].pairs[pair].is_some(),
        };
        self.notes(domain);
        lives
    }

    pub(crate) fn end_pair(&mut self, domain: usize, pair: usize) {
        if let Some(pair) = self.domains[domain].pairs.get(pair).and_then(Option::as_ref) {
            tracing::debug!(me = self.own_name, session = %pair.peer, "pair ended");
            let _ = epoll::delete(&self.epoll, &pair.socket);
        }
        // The bells too: who keeps its ends of them open could take all descriptors so.
        self.watched.retain(|_, watched| match watched {
            Watched::Pair(d, p) | Watched::Doorbell { domain: d, pair: p, .. } => (*d, *p) != (domain, pair),
        });
        self.domains[domain].end_pair(pair);
    }

    /// Does what a domain has noted.
    pub(crate) fn notes(&mut self, at: usize) {
        for note in std::mem::take(&mut self.domains[at].notes) {
            match note {
                Note::Watch(pair, bell) => {
                    // It may have ended since.
                    if self.domains[at].pairs.get(pair).is_none_or(Option::is_none) {
                        continue;
                    }
                    let data = epoll::EventData::new_u64(self.next_watch);
                    let _ = epoll::add(&self.epoll, &bell, data, epoll::EventFlags::IN);
                    self.new_watch(Watched::Doorbell { domain: at, pair, bell });
                }
                Note::Wanted(wanted) => self.wanted_by_session(at, wanted),
                Note::Lag(asked) => self.tell_who_lags(at, &asked),
                Note::GivenUp { link, source } => self.give_up(at, (link, source)),
                Note::Closed(epoch) => {
                    let close = control::CloseSource { epoch: epoch.to_bytes() };
                    self.ask_core(self.domains[at].conn, to_runtime::Body::CloseSource(close));
                }
                Note::Left { source } => {
                    let remote = self.domains[at].remotes[source].as_ref().map(|r| (r.host, r.epoch));
                    remote.into_iter().for_each(|(host, epoch)| self.try_accept(host, epoch));
                }
                Note::Attached { source, sink } => {
                    let Some(remote) = self.domains[at].remotes[source].as_ref() else { continue };
                    let (host, epoch) = (remote.host, remote.epoch);
                    tracing::debug!(me = self.own_name, %epoch, %sink, "attached here");
                    let ready = wire::Ready { epoch: epoch.to_bytes(), sink: sink.to_bytes(), join: 0, answer: false };
                    self.hosts[host].say(Body::Ready(ready), &mut self.underway);
                    self.is_served(host, sink);
                    self.try_accept(host, epoch);
                }
            }
        }
    }

    /// Takes the events of a host's paths. `frame` is the one that one of them was just given.
    pub(crate) fn events(&mut self, host: usize, now: Duration, frame: Option<Frame<'_>>) {
        let mut ended = Vec::<EndedFlow>::new();
        while let Some((lane, event)) = self.hosts[host].lanes.event() {
            let id = |number| FlowId { lane, number };
            match event {
                Event::Connected { .. } if lane == HOME => self.connected(host),
                Event::Connected { .. } => self.lane_connected(host, lane, now),
                Event::Lost(_) if lane != HOME => {
                    // They ended with the connection, not because their host wanted it; their sources will be heard of again.
                    let (lost, others) = ended.into_iter().partition(|(flow, ..): &EndedFlow| flow.lane == lane);
                    ended = others;
                    for (flow, asked, known) in lost {
                        self.flow_ended(host, flow, asked, known, (now, true));
                    }
                    self.lane_lost(host, lane, now);
                }
                Event::Lost(reason) => {
                    tracing::warn!(host = self.hosts[host].name, ?reason, "host lost");
                    // They ended with the connection, not because their host wanted it.
                    ended.clear();
                    self.lost(host, now);
                }
                Event::Requested { domain, open } => {
                    let flow = id(open.flow);
                    if (domain, open.channel) == CONTROL && lane == HOME {
                        let one = &mut self.hosts[host];
                        // A connection has one, in which all that is said comes and is in order.
                        if one.control_in.is_none() && open.reliable {
                            one.control_in = Some(flow);
                            one.lanes.accept(flow, 0);
                        } else {
                            one.stray += 1;
                            one.lanes.refuse(flow, 1);
                        }
                    } else {
                        let asked = Asked { flow, domain, reliable: open.reliable };
                        self.hosts[host].requested.entry(Epoch(open.epoch)).or_default().push_back(asked);
                        self.try_accept(host, Epoch(open.epoch));
                    }
                }
                Event::Ended { flow, .. } => {
                    let (one, flow) = (&mut self.hosts[host], id(flow));
                    one.control_in = one.control_in.filter(|control| *control != flow);
                    let asked = one.withdraw_request(flow);
                    let known = one.incoming.remove(&flow);
                    ended.push((flow, asked, known));
                }
                Event::Message { flow, message, lies } => {
                    self.message(host, now, id(flow), (&message, 0), lies, frame);
                }
                Event::Bundle { flow, message, count, lies } => {
                    self.message(host, now, id(flow), (&message, count), lies, frame);
                }
                Event::Discard(lies) => self.discard(host, lies),
                Event::FrameSize { passes, most } => self.log_size(host, lane, passes, most),
                Event::Accepted { flow } => self.accepted(host, id(flow), now),
                Event::Refused { flow, status } => {
                    // Its sinks are never attached, so nothing waits for it; it is closed with its source.
                    tracing::warn!(host = self.hosts[host].name, flow, status, "a flow was refused");
                }
                Event::Released { token, end, .. } => self.released(token, end),
                Event::Shared { flow, share } => self.hosts[host].shared(id(flow), &share),
                Event::Closed { flow, counts } => {
                    let gone = self.hosts[host].flow_closed(id(flow), counts, &mut self.underway);
                    gone.into_iter().for_each(|token| self.released(token, End::Unconfirmed));
                }
                _ => {}
            }
        }
        for (flow, asked, known) in ended {
            self.flow_ended(host, flow, asked, known, (now, false));
        }
    }

    /// A flow from a host has ended, accepted or not: with the last one its source is gone. Unless it was `lost` with its path:
    /// then the source is waited for, as if its host were, also if one that stood ends before the host has said how it goes on.
    fn flow_ended(
        &mut self,
        host: usize,
        flow: FlowId,
        asked: Option<Epoch>,
        known: Option<Incoming>,
        (now, lost): (Duration, bool),
    ) {
        let is_it = |r: &Remote| Some(r.epoch) == asked && r.host == host && !r.closing;
        let remote = match known {
            Some(known) => self.domains[known.domain].remotes[known.source].as_mut(),
            None => self.domains.iter_mut().find_map(|domain| domain.remotes.find_mut(is_it)),
        };
        let Some(remote) = remote else { return };
        remote.flow = remote.flow.filter(|f| *f != flow);
        remote.flows = remote.flows.saturating_sub(1);
        tracing::debug!(epoch = %remote.epoch, ?flow, left = remote.flows, "flow ended");
        remote.astray |= lost;
        if remote.flows == 0 && remote.astray {
            remote.orphaned.get_or_insert(now);
        } else {
            remote.ending |= remote.flows == 0;
        }
        // The one by which its source goes on may have waited for it.
        let epoch = remote.epoch;
        self.try_accept(host, epoch);
    }

    /// What was sent is its owner's again.
    pub(crate) fn released(&mut self, token: u64, end: End) {
        let held = self.underway.release(token);
        if self.words > 0 {
            self.word_ended(token);
        }
        let Some(held) = held else { return };
        let place = held.place().copied();
        let intake = place.and_then(|place| {
            let intake = self.domains[place.domain].intakes[place.link].as_mut();
            intake.filter(|l| l.generation == place.generation)
        });
        if let Some(intake) = intake {
            let fate = match end {
                End::Expired => Fate::Expired,
                End::Dropped | End::Unconfirmed => Fate::Dropped,
                _ => Fate::AsCounted,
            };
            reach(Step::Complete);
            give_back_all(intake, &held, fate);
        }
        self.underway.recycle(held);
    }

    fn discard(&mut self, host: usize, lies: Lies) {
        match lies {
            Lies::Slot { slot, .. } if self.hosts[host].long_words.take(slot).is_some() => {}
            Lies::Slot { slot, .. } => {
                let (domain, slot) = slot_of(slot);
                if let Some(domain) = self.domains.get_mut(domain) {
                    domain.discard(slot);
                }
            }
            Lies::Frame { token, at, len } => drop(self.take_kept(host, token, (at, len))),
        }
    }

    /// Takes what an event refers to in what is kept of a host.
    fn take_kept(&mut self, host: usize, name: u64, place: (usize, usize)) -> Option<Vec<u8>> {
        let domains = &mut self.domains;
        self.hosts[host].kept.take(name, place, |domain| domains.get_mut(domain).map(|domain| &mut domain.waiting))
    }

    /// Takes a message, or so many as a bundle has, if it has any; `frame` is the one that was just received.
    pub(crate) fn message(
        &mut self,
        host: usize,
        now: Duration,
        flow: FlowId,
        (message, bundle): (&Message, u16),
        lies: Lies,
        frame: Option<Frame<'_>>,
    ) {
        let one = &mut self.hosts[host];
        let control = one.control_in == Some(flow);
        let incoming = one.incoming.get(&flow).copied();
        let kept: Vec<u8>;
        let mut loan = None;
        let (arrived, len) = match lies {
            Lies::Slot { slot, len } => (Arrived::Slot(slot_of(slot).1, len), u64::from(len)),
            Lies::Frame { token, at, len } => {
                let bytes = match frame.filter(|frame| frame.name == token) {
                    Some(frame) => {
                        loan = frame.loan;
                        frame.bytes.get(at..at + len).unwrap_or(&[])
                    }
                    None => {
                        kept = self.take_kept(host, token, (at, len)).unwrap_or_default();
                        &kept
                    }
                };
                (Arrived::Bytes(bytes), len as u64)
            }
        };
        if control {
            match (arrived, lies) {
                (Arrived::Bytes(bytes), _) => self.heard(host, now, bytes),
                (_, Lies::Slot { slot, .. }) => {
                    let word = self.hosts[host].long_words.take(slot);
                    word.into_iter().for_each(|word| self.heard(host, now, &word));
                }
                _ => {}
            }
            self.hosts[host].lanes.advance(flow, message.sequence);
            self.hosts[host].lanes.consumed(flow, 1, len);
        } else if let Some(Incoming { domain, source }) = incoming {
            let d = self.descriptor(domain, source, message);
            let to = &mut self.domains[domain];
            let (messages, bytes) = match arrived {
                Arrived::Bytes(all) if bundle > 0 => to.deliver_bundle(source, d, (all, bundle), loan, self.coming),
                _ => {
                    let arrived = match arrived {
                        Arrived::Bytes(all) => to.arrived(source, all, loan),
                        other => other,
                    };
                    (u32::from(to.deliver(source, d, &arrived, self.coming)), len)
                }
            };
            if messages > 0 {
                self.hosts[host].lanes.consumed(flow, messages, bytes);
            }
        } else {
            self.hosts[host].stray += 1;
            if let Lies::Slot { .. } = lies {
                self.discard(host, lies);
            }
        }
    }

    /// What is said of a message on the links to local sinks.
    fn descriptor(&self, domain: usize, source: usize, message: &Message) -> Descriptor {
        let lifetime = u64::from(message.lifetime_us) * 1000;
        let mut d = Descriptor {
            channel: self.domains[domain].remotes[source].as_ref().map_or(0, |r| r.channel),
            sequence: message.sequence,
            priority: message.priority,
            flags: flags(message.timestamp_ns, message.launch_ns),
            joined: message.joined.into(),
            ..Descriptor::default()
        };
        if message.timestamp_ns != 0 {
            d.timestamp_ns = message.timestamp_ns.wrapping_sub(realtime_ahead()).max(1);
        }
        if message.launch_ns != 0 {
            d.deadline_ns = message.launch_ns;
        } else if lifetime != 0 {
            d.deadline_ns = clock_ns(ClockId::Monotonic) + lifetime;
        }
        d
    }

    /// Takes messages that came one in each of frames that are alike; those lie one every `stride` bytes.
    pub(crate) fn row(&mut self, host: usize, now: Duration, lane: usize, row: &Row, (frames, stride): (&[u8], usize)) {
        let flow = FlowId { lane, number: row.flow };
        let known = self.hosts[host].incoming.get(&flow).copied();
        let known = known.filter(|known| !self.domains[known.domain].is_reliable(known.source));
        let Some(Incoming { domain, source }) = known else {
            for (message, at) in row.messages(stride) {
                let frame = frames.get(at..at + row.len).unwrap_or(&[]);
                let lies = Lies::Frame { token: 0, at: 0, len: row.len };
                let frame = Frame { name: 0, bytes: frame, loan: None };
                self.message(host, now, flow, (&message, 0), lies, Some(frame));
            }
            return;
        };
        let d = self.descriptor(domain, source, &row.message);
        let lined = Lined::new(frames.get(row.at..).unwrap_or(&[]), stride, row.len, row.count);
        let taken = self.domains[domain].deliver_row(source, d, lined, self.coming);
        if taken > 0 {
            self.hosts[host].lanes.consumed(flow, taken, u64::from(taken) * row.len as u64);
        }
    }

    /// Something came over the control flow.
    fn heard(&mut self, host: usize, now: Duration, bytes: &[u8]) {
        let body = match decode::<ToHost>(bytes) {
            Ok(ToHost { body: Some(body) }) => body,
            // Said by a newer version.
            Ok(_) => {
                self.hosts[host].stray += 1;
                tracing::debug!(host = self.hosts[host].name, "an unknown control message");
                return;
            }
            Err(e) => {
                self.hosts[host].stray += 1;
                tracing::warn!(host = self.hosts[host].name, error = %e, "malformed control message");
                return;
            }
        };
        self.take_word(host, now, body);
    }
}

/// Gives the slots of what is no longer under way back to its source's session.
pub(crate) fn give_back_all(intake: &mut intake::Intake, held: &Held, fate: Fate) {
    for descriptor in held.descriptors() {
        give_back(intake, &descriptor, fate);
        intake.out -= 1;
        intake.out_bytes -= u64::from(descriptor.length);
    }
}

/// The slots of what is under way are lent until [`give_back_all`].
pub(crate) fn lend(intake: &mut intake::Intake, held: &Held) {
    for descriptor in held.descriptors() {
        intake.out += 1;
        intake.out_bytes += u64::from(descriptor.length);
    }
}

/// Gives a message back to its source's session.
pub(crate) fn give_back(intake: &mut intake::Intake, descriptor: &Descriptor, fate: Fate) {
    intake.consumer.release(descriptor, fate);
    intake.returned = true;
}

/// The flags of a descriptor for what a message's header says.
fn flags(timestamp_ns: u64, launch_ns: u64) -> u16 {
    (if timestamp_ns != 0 { FLAG_TIMESTAMP } else { 0 }) | (if launch_ns != 0 { FLAG_LAUNCH_TIME } else { 0 })
}
