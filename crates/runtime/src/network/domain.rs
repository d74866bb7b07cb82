//! One domain on the shared-memory side: the network's session in it, with its pairs to other sessions, speaking the peers'
//! protocol at both ends: as the consumer of local sources and as the producer for local sinks. Everything that a session sends
//! is checked; one that breaks the protocol loses its own pair and nothing else.

use crate::again;
use crate::config::Config;
use crate::core::Conn;
use crate::network::NetworkError;
use crate::network::account::{CELLS, Cells};
use crate::network::gather::Gather;
use crate::network::intake::{Intake, Sink, Source};
use crate::network::kept::Waiting;
use crate::network::lag::Lag;
use crate::network::marked::{Looker, Marked};
use crate::network::matches::{Matches, Wanted};
use crate::network::outlet::{Outlet, Remote, TapState};
use crate::network::pages::Pages;
use crate::network::scatter::Scatter;
use insane_shm::counters::{Counters, bytes as counter_bytes};
use insane_shm::link::{Consumer, DeliveryBlock, Producer, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer, whole_pages};
use insane_shm::ring::LAYOUT;
use insane_shm::segment::{Geometry, SegmentView, most_mapped};
use insane_shm::slab::{MAX_SEGMENTS, Slab, may_map};
use insane_shm::socket::{Outbox, Received, receive};
use insane_wire::control::Flow;
use insane_wire::frame::domain_id;
use insane_wire::id::{Epoch, SessionId, SinkId};
use insane_wire::keyed::{Key, Keyed};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a session loses its pair.
pub(crate) type Refusal = String;

/// What the hub is to do.
#[derive(Debug)]
pub(crate) enum Note {
    /// Something new to be woken by, for links over a pair.
    Watch(usize, OwnedFd),
    /// A local source wants a flow to a sink of another host: answer when it is attached.
    Wanted(Wanted),
    /// A local session asks who holds its source up.
    Lag(Lag),
    /// A source has given sinks up.
    GivenUp { link: usize, source: u32 },
    /// A source of another host is closed: the core is to forget it.
    Closed(Epoch),
    /// A local sink is attached to a remote source.
    Attached { source: usize, sink: SinkId },
    /// One is attached no more, or will not be: what waited for it waits no longer.
    Left { source: usize },
}

/// A socket to a session of this host.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: SessionId,
    unsent: Outbox,
    /// When what waits is tried again, and after which wait that is.
    again: Option<(Duration, Duration)>,
    outgoing: HashMap<u32, usize>,
    incoming: HashMap<u32, usize>,
    next_link: u32,
    /// What its session may open.
    pub(crate) matches: Matches,
    pub(crate) failed: Option<Refusal>,
    /// This process lacked something for it; the session has done nothing wrong.
    pub(crate) short: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) conn: Conn,
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) cells: Cells,
    counter_memory: Arc<SharedMemory>,
    pub(crate) pairs: Vec<Option<Pair>>,
    pub(crate) intakes: Vec<Option<Intake>>,
    pub(crate) outlets: Marked<Outlet>,
    /// How many of those there are.
    pub(crate) links: u64,
    /// The sources of other hosts, by their number on the links to local sinks.
    pub(crate) remotes: Marked<Remote>,
    pub(crate) slab: Slab,
    pub(crate) pages: Pages,
    /// What has arrived and is handed out together with what comes next.
    pub(crate) gathering: Option<Gather>,
    /// What has arrived in frames that a datapath lends.
    pub(crate) scatter: Scatter,
    /// When segments were last given back for others.
    pub(crate) gave_back: Option<Instant>,
    pub(crate) memory_limit: u64,
    /// What waits in copies for messages before it, and how much may.
    pub(crate) waiting: Waiting,
    pub(crate) huge_pages: bool,
    entries: u32,
    streams: usize,
    session_memory: u64,
    generation: u32,
    next_number: u32,
    pub(crate) notes: Vec<Note>,
    /// Flows of which the core had said nothing when sessions wanted them.
    pub(crate) early: Vec<Wanted>,
    /// Flows that are wanted again while what was emitted for the ones before is still to be taken.
    pub(crate) held: BTreeMap<(usize, u32, SinkId), Wanted>,
}

impl Pair {
    pub(crate) fn send(&mut self, link: u32, body: Body, fds: &[BorrowedFd<'_>]) {
        let bytes = encode(&ToPeer { link, body: Some(body) });
        if let Err(unread) = self.unsent.send(self.socket.as_fd(), bytes, fds) {
            self.failed = Some(unread.to_string());
        }
    }

    /// Sends what waits, as far as there is room: the session has said something, so it may have read.
    pub(crate) fn flush(&mut self) {
        self.unsent.flush(self.socket.as_fd());
        self.again = None;
    }

    /// Sends what waits if it is time to, and says when to try again. A session that has read says nothing of it, and a full socket is
    /// not all that can be in the way (descriptors under way are limited, too): it is looked at less and less often while nothing
    /// goes.
    fn retry(&mut self, now: Duration) -> Option<Duration> {
        let before = self.unsent.waiting();
        if before == 0 || self.again.is_some_and(|(at, _)| now < at) {
            return self.again.map(|(at, _)| at).filter(|_| before > 0);
        }
        let all = self.unsent.flush(self.socket.as_fd());
        let last = self.again.map(|(_, wait)| wait).filter(|_| self.unsent.waiting() == before);
        let wait = again::pause(last);
        self.again = (!all).then_some((now + wait, wait));
        self.again.map(|(at, _)| at)
    }
}

/// The first free place of a list.
pub(crate) fn place<T>(list: &mut Vec<Option<T>>, value: T) -> usize {
    if let Some(at) = list.iter().position(Option::is_none) {
        list[at] = Some(value);
        return at;
    }
    list.push(Some(value));
    list.len() - 1
}

fn memory_error(e: insane_shm::ShmError) -> Refusal {
    e.to_string()
}

impl Domain {
    pub(crate) fn new(conn: Conn, name: String, config: &Config, pages: Pages) -> Result<Self, NetworkError> {
        let memory = Arc::new(SharedMemory::create("insane-counters", counter_bytes(CELLS), false, false)?);
        let counters = Counters::create(memory.clone(), CELLS)?;
        let network = config.network.clone().unwrap_or_default();
        Ok(Self {
            conn,
            number: domain_id(&name),
            name,
            cells: Cells::new(counters),
            counter_memory: memory,
            pairs: Vec::new(),
            intakes: Vec::new(),
            outlets: Marked::default(),
            links: 0,
            remotes: Marked::default(),
            slab: Slab::default(),
            pages,
            gathering: None,
            scatter: Scatter::default(),
            gave_back: None,
            memory_limit: network.memory_mib << 20,
            waiting: Waiting { bytes: 0, most: network.memory_mib << 20 },
            huge_pages: config.memory.huge_pages,
            entries: config.quota.link_entries,
            streams: config.quota.streams_per_session as usize,
            session_memory: config.quota.memory_mib_per_session << 20,
            generation: 0,
            next_number: 0,
            notes: Vec::new(),
            early: Vec::new(),
            held: BTreeMap::new(),
        })
    }

    /// Whether local sinks have messages that they have not counted.
    pub(crate) fn is_awaited(&self) -> bool {
        self.remotes.marked(Looker::Links).any(Remote::is_awaited)
            || self.outlets.marked(Looker::Links).any(Outlet::is_behind)
    }

    /// Whether a stream that is moving here waits for a sink.
    pub(crate) fn holds_up_a_move(&self) -> bool {
        let mut awaited = self.remotes.marked(Looker::Links).filter(|remote| remote.is_awaited());
        awaited.any(|remote| remote.reliable && remote.flows > 1)
    }

    /// What one link may hold of the domain's memory: with all of them full, one part is left for what arrives.
    pub(crate) fn link_cap(&self) -> u64 {
        self.memory_limit / (self.links + 1)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.cells.counters.clone()
    }

    /// What it has of the memory for what arrives, for reports: when nothing is under way and sinks hold nothing, none is in use.
    pub(crate) fn report_memory(&self) -> Value {
        json!({
            "domain": self.name, "slots": self.slab.in_use(), "bytes": self.slab.bytes_in_use(),
            "copied_bytes": self.waiting.bytes, "segment_bytes": self.slab.bytes(), "most_bytes": self.memory_limit,
        })
    }

    /// Takes a new pair from the core.
    pub(crate) fn add_pair(&mut self, pair: &insane_wire::control::Pair, fd: OwnedFd) -> Option<usize> {
        let peer = SessionId::from_bytes(&pair.peer)?;
        let new = Pair {
            socket: fd,
            peer,
            unsent: Outbox::default(),
            again: None,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            next_link: 1,
            matches: Matches::default(),
            failed: None,
            short: false,
        };
        Some(place(&mut self.pairs, new))
    }

    /// Sends sessions what their sockets had no room for; when to come back for what they still have none for.
    pub(crate) fn flush_pairs(&mut self, now: Duration) -> Option<Duration> {
        self.pairs.iter_mut().flatten().filter_map(|pair| pair.retry(now)).min()
    }

    /// Takes what a session has said. `Err`: the pair is to be ended.
    pub(crate) fn read_pair(&mut self, at: usize) -> Result<(), Refusal> {
        for _ in 0..256 {
            let Some(pair) = self.pairs.get_mut(at).and_then(Option::as_mut) else { return Ok(()) };
            match receive(pair.socket.as_fd(), MAX_CONTROL_BYTES) {
                Ok(Received::Message(bytes, fds)) => {
                    let message = decode::<ToPeer>(&bytes).map_err(|e| e.to_string())?;
                    self.take(at, message.link, message.body, fds)?;
                }
                Ok(Received::Nothing) => return Ok(()),
                Ok(Received::End) | Err(_) => return Err(String::new()),
                Ok(Received::Overlong) => return Err("it sent an overlong message".into()),
                Ok(Received::Short) => {
                    pair.short = true;
                    return Err("no descriptors left for what it sent".into());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, link: u32, body: Option<Body>, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        match body {
            Some(Body::LinkOffer(offer)) => self.offered(at, link, &offer, &fds),
            Some(Body::LinkAccept(accept)) => self.accepted(at, link, &accept, &fds),
            Some(Body::LinkRefuse(_)) => {
                let outlet = self.pairs[at].as_mut().and_then(|p| p.outgoing.remove(&link));
                // What was to go over it knows its place, which may be another session's soon.
                outlet.into_iter().for_each(|outlet| self.dissolve(outlet));
                Ok(())
            }
            Some(Body::SegmentAdd(segment)) => self.segment_added(at, link, &segment, &fds),
            Some(Body::SegmentAck(segment)) => self.segment_acked(at, link, segment.segment),
            Some(Body::FlowOpen(flow)) => {
                let link = self.intake_of(at, link)?;
                let ids = (Epoch::from_bytes(&flow.epoch), SinkId::from_bytes(&flow.sink));
                let (Some(epoch), Some(sink)) = ids else { return Err("a flow without identities".into()) };
                let (source, channel, strict) = (flow.source, flow.channel, flow.strict);
                let generation = self.intakes[link].as_ref().map_or(0, |intake| intake.generation);
                self.notes.push(Note::Wanted(Wanted { link, generation, source, epoch, sink, channel, strict }));
                Ok(())
            }
            Some(Body::FlowOpened(flow)) => self.flow_opened(at, link, &flow),
            Some(Body::FlowClose(flow)) => self.flow_close(at, link, &flow),
            Some(Body::FlowClosed(flow)) => {
                let link = self.intake_of(at, link)?;
                let sink = SinkId::from_bytes(&flow.sink).ok_or("a flow without a sink")?;
                let Some(intake) = self.intakes[link].as_mut() else { return Ok(()) };
                intake.ending = true;
                let sources = intake.sources.get_mut(&flow.source);
                for route in sources.into_iter().flat_map(|s| s.routes.iter_mut()) {
                    for s in route.sinks.iter_mut().filter(|s| s.id == sink && s.end.is_none()) {
                        (s.end, s.given_up) = (Some(flow.position), flow.given_up);
                    }
                }
                if flow.given_up {
                    self.notes.push(Note::GivenUp { link, source: flow.source });
                }
                Ok(())
            }
            Some(Body::Doorbell(_)) => {
                let outlet = self.outlet_of(at, link)?;
                if let Some(outlet) = self.outlets[outlet].as_mut() {
                    outlet.doorbell.install(fds.into_iter().next());
                }
                Ok(())
            }
            Some(Body::SegmentRemove(segment)) => self.segment_removed(at, link, segment.segment),
            Some(Body::FlowLag(peer::FlowLag { source, number, sinks })) => {
                let link = self.intake_of(at, link)?;
                let generation = self.intakes[link].as_ref().map_or(0, |intake| intake.generation);
                let sinks = sinks.iter().filter_map(|sink| SinkId::from_bytes(sink)).collect();
                self.notes.push(Note::Lag(Lag { link, generation, source, number, sinks }));
                Ok(())
            }
            Some(Body::LinkRoom(room)) => {
                let intake = self.intake_of(at, link).ok().and_then(|intake| self.intakes[intake].as_mut());
                intake.into_iter().for_each(|intake| intake.room = room.bytes);
                Ok(())
            }
            // Nothing was asked, and `None` is said by a newer version.
            Some(Body::SegmentRefuse(_) | Body::FlowLagging(_)) | None => Ok(()),
        }
    }

    fn intake_of(&self, at: usize, link: u32) -> Result<usize, Refusal> {
        let found = self.pairs[at].as_ref().and_then(|p| p.incoming.get(&link)).copied();
        found.filter(|l| self.intakes[*l].is_some()).ok_or_else(|| format!("link {link} was not offered"))
    }

    fn outlet_of(&self, at: usize, link: u32) -> Result<usize, Refusal> {
        let found = self.pairs[at].as_ref().and_then(|p| p.outgoing.get(&link)).copied();
        found.filter(|l| self.outlets[*l].is_some()).ok_or_else(|| format!("link {link} is none of ours"))
    }

    // ---- as the consumer of local sources ----

    fn offered(&mut self, at: usize, link: u32, offer: &peer::LinkOffer, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let known = pair.incoming.contains_key(&link) || pair.incoming.len() >= self.streams.max(1);
        if known || offer.layout != LAYOUT || offer.entries > self.entries {
            return Err(format!("link {link} cannot be offered so"));
        }
        let intakes = &self.intakes;
        if pair.incoming.values().any(|i| intakes[*i].as_ref().is_some_and(|i| i.stream == offer.stream)) {
            return Err(format!("link {link} is a second one for its stream"));
        }
        let fd = fds.first().ok_or("a link without memory")?;
        let needs = DeliveryBlock::bytes(offer.entries).map_err(memory_error)? as u64;
        let theirs = Arc::new(map_peer(fd.as_fd(), needs, whole_pages(needs)).map_err(memory_error)?);
        let delivery = DeliveryBlock::open(theirs, offer.entries).map_err(memory_error)?;
        let bytes = ReturnBlock::bytes(offer.entries).map_err(memory_error)?;
        let memory = SharedMemory::create("insane-returns", bytes, false, true);
        let memory = Arc::new(memory.inspect_err(|_| pair.short = true).map_err(memory_error)?);
        let returns = ReturnBlock::create(memory.clone(), offer.entries).map_err(memory_error)?;
        let bells = insane_shm::doorbell::pair();
        let (bell, theirs) = bells.inspect_err(|_| pair.short = true).map_err(memory_error)?;
        self.notes.push(Note::Watch(at, bell));
        self.generation = self.generation.wrapping_add(1);
        let intake = Intake {
            stream: offer.stream.clone(),
            reliable: offer.reliable,
            consumer: Consumer::new(returns, delivery),
            segments: Vec::new(),
            mapped: 0,
            maps: 0,
            sources: Keyed::with_hasher(Key::random()),
            gone: false,
            broken: None,
            pair: at,
            number: link,
            generation: self.generation,
            entries: offer.entries,
            room: u64::MAX,
            out: 0,
            out_bytes: 0,
            armed: false,
            ending: false,
            held: false,
            allowance: 0,
            returned: false,
        };
        let accept = peer::LinkAccept { counter_bytes: Backing::len(&*self.counter_memory) as u64 };
        pair.send(link, Body::LinkAccept(accept), &[memory.fd(), self.counter_memory.fd()]);
        pair.send(link, Body::Doorbell(peer::Empty {}), &[theirs.as_fd()]);
        pair.incoming.insert(link, place(&mut self.intakes, intake));
        Ok(())
    }

    fn segment_added(&mut self, at: usize, link: u32, add: &peer::SegmentAdd, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let intake = self.intake_of(at, link)?;
        let (mut of_pair, mut mapped, mut all) = (0, 0, 0);
        for one in self.intakes.iter().flatten() {
            all += one.maps;
            if one.pair == at && !one.gone {
                of_pair += one.maps;
                mapped += one.mapped;
            }
        }
        if !may_map(of_pair, all) {
            return Err(format!("one more segment than its {of_pair}, of {all} in all"));
        }
        let (Some(pair), Some(intake)) = (self.pairs[at].as_mut(), self.intakes[intake].as_mut()) else {
            return Ok(());
        };
        let number = u16::try_from(add.segment).ok().filter(|n| usize::from(*n) < MAX_SEGMENTS);
        let number = number.ok_or_else(|| format!("segment number {}", add.segment))?;
        if add.headroom != 0 {
            return Err("a segment with headroom".into());
        }
        let geometry = Geometry::checked(add.stride, add.slots).map_err(memory_error)?;
        let fd = fds.first().ok_or("a segment without memory")?;
        // Twice what the session may own, with all its streams.
        let most = most_mapped(self.session_memory);
        let view = SegmentView::map(fd.as_fd(), geometry, most.saturating_sub(mapped));
        let view = view.map_err(|e| e.about_segment(mapped, most))?;
        intake.mapped += view.bytes();
        let slot = usize::from(number);
        if intake.segments.len() <= slot {
            intake.segments.resize(slot + 1, None);
        }
        if intake.segments[slot].is_some() {
            return Err("a segment number that is in use".into());
        }
        intake.segments[slot] = Some(view);
        intake.maps += 1;
        intake.consumer.add_segment(number, geometry.slots, geometry.stride);
        pair.send(link, Body::SegmentAck(peer::SegmentRef { segment: add.segment }), &[]);
        Ok(())
    }

    /// The session has given a segment back.
    fn segment_removed(&mut self, at: usize, link: u32, segment: u32) -> Result<(), Refusal> {
        let intake = self.intake_of(at, link)?;
        let Some(intake) = self.intakes[intake].as_mut() else { return Ok(()) };
        let number = u16::try_from(segment).map_err(|_| format!("segment number {segment}"))?;
        intake.consumer.remove_segment(number).map_err(|e| e.to_string())?;
        let view = intake.segments.get_mut(usize::from(number)).and_then(Option::take);
        intake.maps -= usize::from(view.is_some());
        intake.mapped -= view.map_or(0, |v| v.bytes());
        Ok(())
    }

    /// Answers a flow that was wanted.
    pub(crate) fn attach(&mut self, link: usize, source: u32, sink: SinkId, (cell, join): (u32, u16)) {
        let Some(intake) = self.intakes[link].as_ref() else { return };
        let opened =
            peer::FlowOpened { source, sink: sink.to_bytes(), cell, cursor: 0, join: join.into(), scattered: false };
        let (pair, number) = (intake.pair, intake.number);
        if let Some(pair) = self.pairs[pair].as_mut().filter(|_| !intake.gone) {
            pair.send(number, Body::FlowOpened(opened), &[]);
        }
    }

    /// A sink of another host is gone: its source is to end the flow.
    pub(crate) fn detach(&mut self, link: usize, source: u32, sink: SinkId) {
        let Some(intake) = self.intakes[link].as_mut() else { return };
        intake.sources.get_mut(&source).into_iter().for_each(|of| of.detach(sink));
        let close = peer::FlowRef { source, sink: sink.to_bytes() };
        let (pair, number) = (intake.pair, intake.number);
        if let Some(pair) = self.pairs[pair].as_mut().filter(|_| !intake.gone) {
            pair.send(number, Body::FlowClose(close), &[]);
        }
    }

    /// As [`Self::detach`], unless its source was told already, or has ended the flow by itself: each is told once, so that what it says
    /// to that is not taken for the end of a flow that it opens afterwards.
    pub(crate) fn withdraw(&mut self, link: usize, source: u32, sink: SinkId) {
        if self.flows_to(link, source, sink).any(|s| s.end.is_none() && !s.detached) {
            self.detach(link, source, sink);
        }
    }

    /// Whether a flow of a source to a sink has ended, or its source was told that it has, and what was emitted for it is not all taken.
    pub(crate) fn is_ending(&self, link: usize, source: u32, sink: SinkId) -> bool {
        self.flows_to(link, source, sink).any(|s| s.end.is_some() || s.detached)
    }

    /// What a source of a link has of a sink of another host.
    fn flows_to(&self, link: usize, source: u32, sink: SinkId) -> impl Iterator<Item = &Sink> {
        let of = self.intakes[link].as_ref().and_then(|intake| intake.sources.get(&source));
        let sinks = of.into_iter().flat_map(|of| of.routes.iter()).flat_map(|route| route.sinks.iter());
        sinks.filter(move |s| s.id == sink)
    }

    /// The source of a link under its number, new if it is not known.
    pub(crate) fn source(&mut self, link: usize, number: u32, epoch: Epoch) -> Option<&mut Source> {
        let Intake { sources, ending, .. } = self.intakes[link].as_mut()?;
        // It goes again if it gets no flow.
        *ending |= !sources.contains_key(&number);
        Some(sources.entry(number).or_insert_with(|| Source::new(epoch))).filter(|s| s.epoch == epoch)
    }

    // ---- as the producer for local sinks ----

    /// A local sink was matched with a source of another host: bring the flow into being, and a link if there is none.
    pub(crate) fn flow_added(&mut self, flow: &Flow) -> Result<(), Refusal> {
        let ids = (Epoch::from_bytes(&flow.epoch), SinkId::from_bytes(&flow.sink), SessionId::from_bytes(&flow.peer));
        let (Some(epoch), Some(sink), Some(peer)) = ids else { return Ok(()) };
        let lives = |r: &Remote| r.epoch == epoch && !r.ending && !r.closing;
        let found = self.remotes.position(lives);
        let Some((source, at)) = found.zip(self.pairs.iter().position(|p| p.as_ref().is_some_and(|p| p.peer == peer)))
        else {
            return Ok(());
        };
        let Some(remote) = self.remotes[source].as_ref().filter(|r| r.taps.iter().all(|t| t.sink != sink)) else {
            return Ok(());
        };
        let (stream, reliable, source_number) = (remote.stream.clone(), remote.reliable, remote.number);
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let known = pair.outgoing.values().find(|o| self.outlets[**o].as_ref().is_some_and(|o| o.stream == stream));
        let outlet = match known {
            Some(outlet) => *outlet,
            None => {
                let bytes = DeliveryBlock::bytes(self.entries).map_err(memory_error)?;
                let memory = SharedMemory::create("insane-delivery", bytes, false, true).map_err(memory_error)?;
                let memory = Arc::new(memory);
                DeliveryBlock::create(memory.clone(), self.entries).map_err(memory_error)?;
                let number = pair.next_link;
                pair.next_link += 1;
                let offer = peer::LinkOffer { stream: stream.clone(), entries: self.entries, reliable, layout: LAYOUT };
                pair.send(number, Body::LinkOffer(offer), &[memory.fd()]);
                let outlet = self.outlets.place(Outlet::new(stream, reliable, at, number, memory));
                self.links += 1;
                pair.outgoing.insert(number, outlet);
                outlet
            }
        };
        if let Some(remote) = self.remotes[source].as_mut() {
            remote.add_tap(sink, outlet, flow.observer);
        }
        if let Some(one) = self.outlets[outlet].as_mut() {
            one.waiting.push((source_number, sink, flow.channel));
        }
        self.open_waiting(outlet);
        Ok(())
    }

    fn accepted(&mut self, at: usize, link: u32, accept: &peer::LinkAccept, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let place = self.outlet_of(at, link)?;
        let Some(outlet) = self.outlets[place].as_mut() else { return Ok(()) };
        let memory = outlet.offered.take().ok_or("a link that was accepted twice")?;
        let [returns, counters] = fds else { return Err("an accepted link without memory".into()) };
        let needs = ReturnBlock::bytes(self.entries).map_err(memory_error)? as u64;
        let returns = Arc::new(map_peer(returns.as_fd(), needs, whole_pages(needs)).map_err(memory_error)?);
        let limit = counter_bytes(insane_shm::counters::MAX_CELLS) as u64;
        let counters = map_peer(counters.as_fd(), accept.counter_bytes, limit).map_err(memory_error)?;
        outlet.counters = Some(Counters::open(Arc::new(counters)).map_err(memory_error)?);
        let own = DeliveryBlock::open(memory, self.entries).map_err(memory_error)?;
        let theirs = ReturnBlock::open(returns, self.entries).map_err(memory_error)?;
        outlet.producer = Some(Producer::new(own, theirs));
        self.send_segments(place);
        self.share_room();
        self.open_waiting(place);
        Ok(())
    }

    /// There is one link more, and so each has less room: they hear of it.
    fn share_room(&mut self) {
        let bytes = self.link_cap();
        for outlet in self.outlets.iter().flatten().filter(|outlet| outlet.producer.is_some()) {
            if let Some(pair) = self.pairs[outlet.pair].as_mut() {
                pair.send(outlet.number, Body::LinkRoom(peer::LinkRoom { bytes }), &[]);
            }
        }
    }

    /// Tells a link of the segments that it does not know.
    pub(crate) fn send_segments(&mut self, outlet: usize) {
        let Some(outlet) = self.outlets[outlet].as_mut() else { return };
        let Some(producer) = &outlet.producer else { return };
        let Some(pair) = self.pairs[outlet.pair].as_mut() else { return };
        let news = outlet.told.news(&self.slab, producer, outlet.scattered);
        for number in news.gone {
            pair.send(outlet.number, Body::SegmentRemove(peer::SegmentRef { segment: number.into() }), &[]);
        }
        for (number, segment) in &news.new {
            let geometry = segment.geometry();
            let add = peer::SegmentAdd {
                segment: u32::from(*number),
                stride: geometry.stride,
                slots: geometry.slots,
                headroom: 0,
                bytes: segment.bytes(),
            };
            pair.send(outlet.number, Body::SegmentAdd(add), &[segment.fd()]);
        }
    }

    fn open_waiting(&mut self, outlet: usize) {
        let Some(outlet) = self.outlets[outlet].as_mut().filter(|o| o.producer.is_some()) else { return };
        let Some(pair) = self.pairs[outlet.pair].as_mut() else { return };
        for (number, sink, channel) in std::mem::take(&mut outlet.waiting) {
            let Some(remote) = self.remotes.iter().flatten().find(|r| r.number == number) else { continue };
            if !outlet.asked.insert((number, sink)) {
                continue;
            }
            let (epoch, sink) = (remote.epoch.to_bytes(), sink.to_bytes());
            pair.send(
                outlet.number,
                Body::FlowOpen(peer::FlowOpen { source: number, epoch, sink, channel, strict: false }),
                &[],
            );
        }
    }

    fn segment_acked(&mut self, at: usize, link: u32, segment: u32) -> Result<(), Refusal> {
        let outlet = self.outlet_of(at, link)?;
        let outlet = self.outlets[outlet].as_mut();
        let ends = outlet.and_then(|o| Some((&mut o.told, o.producer.as_mut()?)));
        let (told, producer) = ends.ok_or("a segment that was not offered")?;
        told.answered(segment, &self.slab, producer).map_err(memory_error)
    }

    fn flow_opened(&mut self, at: usize, link: u32, flow: &peer::FlowOpened) -> Result<(), Refusal> {
        let outlet = self.outlet_of(at, link)?;
        let sink = SinkId::from_bytes(&flow.sink).ok_or("a flow without a sink")?;
        let asked = self.outlets[outlet].as_mut().is_some_and(|o| o.asked.remove(&(flow.source, sink)));
        if !asked {
            return Err("a flow that was not asked for".into());
        }
        let Some(source) = self.remote_of(flow.source) else { return Ok(()) };
        let Some(remote) = self.remotes[source].as_mut() else { return Ok(()) };
        if let Some(tap) = remote.taps.iter_mut().find(|t| t.sink == sink && t.state == TapState::Opening) {
            (tap.state, tap.cell, tap.cursor) = (TapState::Open, flow.cell, flow.cursor);
            (tap.join, tap.scattered) = (flow.join as u16, flow.scattered);
            self.notes.push(Note::Attached { source, sink });
        }
        if flow.scattered {
            self.scatter_to(outlet);
        }
        Ok(())
    }

    /// A local sink closes: nothing that arrives from here on is for it.
    fn flow_close(&mut self, at: usize, link: u32, flow: &peer::FlowRef) -> Result<(), Refusal> {
        let place = self.outlet_of(at, link)?;
        let sink = SinkId::from_bytes(&flow.sink).ok_or("a flow without a sink")?;
        self.flush_backlog(place);
        if let Some(outlet) = self.outlets[place].as_mut() {
            outlet.asked.remove(&(flow.source, sink));
        }
        if let Some(source) = self.remote_of(flow.source) {
            self.take_back(place, source, sink);
            self.end_tap(place, source, sink);
            self.notes.push(Note::Left { source });
        }
        let position = self.outlets[place].as_ref().map_or(0, Outlet::position);
        if let Some(pair) = self.pairs[at].as_mut() {
            let closed = peer::FlowClosed { source: flow.source, sink: flow.sink.clone(), position, given_up: false };
            pair.send(link, Body::FlowClosed(closed), &[]);
        }
        Ok(())
    }

    /// Adds a source of another host; its place.
    pub(crate) fn add_remote(&mut self, mut remote: Remote) -> usize {
        self.next_number = self.next_number.wrapping_add(1);
        remote.number = self.next_number;
        self.remotes.place(remote)
    }

    /// The place of a source of another host, by its number on the links.
    fn remote_of(&self, number: u32) -> Option<usize> {
        self.remotes.position(|r| r.number == number)
    }

    /// A source of another host has ended: its sinks get what is on its way.
    pub(crate) fn close_remote(&mut self, source: usize) {
        let Some(remote) = self.remotes.get(source).and_then(Option::as_ref) else { return };
        let number = remote.number;
        let open: Vec<(SinkId, usize)> = remote
            .taps
            .iter()
            .filter(|t| t.state != TapState::Closed)
            .filter_map(|t| Some((t.sink, t.outlet?)))
            .collect();
        for (sink, outlet) in open {
            self.flush_backlog(outlet);
            self.end_tap(outlet, source, sink);
            let Some(one) = self.outlets[outlet].as_mut() else { continue };
            if one.withdraw(number, sink) {
                continue;
            }
            let (sink, position) = (sink.to_bytes(), one.position());
            let body = peer::FlowClosed { source: number, sink, position, given_up: false };
            if let Some(pair) = self.pairs[one.pair].as_mut() {
                pair.send(one.number, Body::FlowClosed(body), &[]);
            }
        }
        if let Some(remote) = self.remotes[source].as_mut() {
            remote.closing = true;
            self.notes.push(Note::Closed(remote.epoch));
        }
    }

    /// A pair is gone, in whatever way: its links end.
    pub(crate) fn end_pair(&mut self, at: usize) {
        let Some(pair) = self.pairs.get_mut(at).and_then(Option::take) else { return };
        for intake in pair.incoming.into_values() {
            if let Some(intake) = self.intakes[intake].as_mut() {
                intake.gone = true;
            }
        }
        for outlet in pair.outgoing.into_values() {
            self.dissolve(outlet);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
