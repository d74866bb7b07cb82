//! The pairs of a session: sockets to other sessions, over which links, segments and flows are set up and taken down
//! (`insane_wire::peer`). Used by the service thread alone. Everything that a peer sends is checked; a peer that breaks the
//! protocol loses its own pair and nothing else.

use crate::error::{Code, Error, Result};
use crate::fork::Guarded;
use crate::revive::Reopened;
use crate::rx::{FlowSink, Late, Rx, RxFlow, Tally};
use crate::service::{FIRST_PEER, watch};
use crate::session::{Endpoint, Event, Shared, lock};
use crate::stream::StreamShared;
use crate::tx::{Tx, TxFlow, TxLink};
use insane_shm::counters::{CellState, Counters, bytes as counter_bytes};
use insane_shm::link::{Consumer, DeliveryBlock, Producer, ReturnBlock};
use insane_shm::memory::{SharedMemory, map_peer, whole_pages};
use insane_shm::ring::LAYOUT;
use insane_shm::segment::{Geometry, SegmentView, most_mapped};
use insane_shm::slab::{MAX_SEGMENTS, may_map};
use insane_shm::socket::{Outbox, Received, receive};
use insane_shm::steps::{Step, reach};
use insane_wire::control::{Flow, PairClaim};
use insane_wire::id::{Epoch, PairToken, SessionId, SinkId};
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod bells;
mod lag;
mod opening;
mod parking;

use bells::FIRST_BELL;
use opening::{offer, open_waiting, send_segments};

/// A flow that is to be opened: the source's number and epoch, the sink, the channel, and whether the sink observes.
type Wanted = (u32, Epoch, SinkId, u64, bool);

/// A flow that a sink was asked for and has not answered.
#[derive(Debug)]
struct Asked {
    observer: bool,
    /// It was added once more: the sink was gone meanwhile, which may be the answer.
    again: Option<Wanted>,
}

/// A link that this session produces on.
#[derive(Debug)]
struct Outgoing {
    stream: Arc<StreamShared>,
    /// Before it is accepted: the memory to make the producer of, and how many entries it was made for: the session's limits may be
    /// others by then.
    offered: Option<(Arc<SharedMemory>, u32)>,
    at: usize,
    waiting: Vec<Wanted>,
    asked: HashMap<(u32, SinkId), Asked>,
    /// Flows that were added once more while they are open: their sink was gone meanwhile and is back, and they are asked for again
    /// once the peer has closed them. That says it on the pair, and nobody knows which of the two sockets is read first.
    again: HashMap<(u32, SinkId), Wanted>,
    /// Flows of a parked link that are open here too: their cells, and the numbers under which their sinks joined.
    reopened: HashMap<(u32, SinkId), Reopened>,
    /// Other flows that were opened while there was one.
    late: Vec<peer::FlowOpened>,
}

/// A link that this session consumes on.
#[derive(Debug)]
struct Incoming {
    stream: Arc<StreamShared>,
    at: usize,
    mapped: u64,
    /// How many segments that is.
    segments: usize,
}

#[derive(Debug)]
struct PairEnd {
    socket: Guarded,
    peer: SessionId,
    token: PairToken,
    app: String,
    trusted: bool,
    initiator: bool,
    /// The peer is the runtime, for the sources and sinks of other hosts.
    network: bool,
    unsent: Outbox,
    outgoing: HashMap<u32, Outgoing>,
    incoming: HashMap<u32, Incoming>,
    next_link: u32,
    /// Since when it has closed a bell that it is to ring, and is there.
    deaf: Option<Instant>,
    failed: Option<String>,
}

/// All pairs of a session.
#[derive(Debug)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
    pairs: Vec<Option<PairEnd>>,
    epoll: Arc<OwnedFd>,
    bells: HashMap<u64, bells::Bell>,
    next_bell: u64,
    unsent: bool,
    parked: Vec<parking::ParkedLink>,
    /// Sources, by their numbers, to be closed when their flows have a runtime again.
    closing: Vec<(Arc<StreamShared>, u32, Epoch)>,
    runtime_lost: Option<Instant>,
    /// This process lacked something for a pair that the other end did nothing wrong on.
    pub(crate) short: bool,
}

impl PairEnd {
    /// The links of a stream that were taken.
    fn links_of(&self, stream: &Arc<StreamShared>) -> Vec<u32> {
        let of = self.outgoing.iter().filter(|(_, o)| o.offered.is_none() && Arc::ptr_eq(&o.stream, stream));
        of.map(|(link, _)| *link).collect()
    }

    /// Says that a flow of this session's has ended at a position of the ring.
    fn say_closed(&mut self, link: u32, (source, sink): (u32, SinkId), position: u64) {
        let closed = peer::FlowClosed { source, sink: sink.to_bytes(), position, given_up: false };
        self.send(link, Body::FlowClosed(closed), &[]);
    }

    fn send(&mut self, link: u32, body: Body, fds: &[BorrowedFd<'_>]) {
        let bytes = encode(&ToPeer { link, body: Some(body) });
        if let Err(unread) = self.unsent.send(self.socket.as_fd(), bytes, fds) {
            self.failed = Some(unread.to_string());
        }
    }

    fn flush(&mut self) -> bool {
        self.unsent.flush(self.socket.as_fd())
    }
}

fn refuse(text: impl Into<String>) -> Error {
    Error::new(Code::Protocol, text)
}

impl Peers {
    /// What is listened to is put into the `epoll`.
    pub(crate) fn new(shared: Arc<Shared>, epoll: Arc<OwnedFd>) -> Self {
        Self {
            shared,
            pairs: Vec::new(),
            epoll,
            bells: HashMap::new(),
            next_bell: FIRST_BELL,
            unsent: false,
            parked: Vec::new(),
            closing: Vec::new(),
            runtime_lost: None,
            short: false,
        }
    }

    /// The pairs that live, for a new runtime.
    pub(crate) fn claims(&self) -> Vec<PairClaim> {
        let live = self.pairs.iter().flatten();
        live.map(|p| PairClaim { peer: p.peer.to_bytes(), token: p.token.to_bytes() }).collect()
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let unsent = self.unsent.then(|| Instant::now() + Duration::from_millis(2));
        [unsent, self.parked_at(), self.deaf_at()].into_iter().flatten().min()
    }

    /// Takes a new pair from the runtime.
    pub(crate) fn add(&mut self, pair: &insane_wire::control::Pair, fds: Vec<OwnedFd>) {
        let (Some(peer), Some(token), Some(fd)) =
            (SessionId::from_bytes(&pair.peer), PairToken::from_bytes(&pair.token), fds.into_iter().next())
        else {
            return;
        };
        // The runtime made a new pair because the other side no longer had the old one.
        let old = self.pairs.iter().position(|p| p.as_ref().is_some_and(|p| p.peer == peer && p.token != token));
        if let Some(old) = old {
            self.end(old);
        }
        let at = self.pairs.iter().position(Option::is_none).unwrap_or(self.pairs.len());
        if at == self.pairs.len() {
            self.pairs.push(None);
        }
        if watch(self.epoll.as_fd(), fd.as_fd(), FIRST_PEER + at as u64).is_err() {
            return;
        }
        self.pairs[at] = Some(PairEnd {
            socket: Guarded::new(fd),
            peer,
            token,
            app: pair.app.clone(),
            trusted: pair.trusted,
            initiator: pair.initiator,
            network: pair.network,
            unsent: Outbox::default(),
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            next_link: 1,
            deaf: None,
            failed: None,
        });
    }

    /// Something is to be read.
    pub(crate) fn ready(&mut self, data: u64) {
        if data >= FIRST_BELL {
            return self.rung(data);
        }
        let at = usize::try_from(data - FIRST_PEER).unwrap_or(usize::MAX);
        for _ in 0..256 {
            let Some(pair) = self.pairs.get_mut(at).and_then(Option::as_mut) else { return };
            match receive(pair.socket.as_fd(), MAX_CONTROL_BYTES) {
                Ok(Received::Message(bytes, fds)) => {
                    let result = decode::<ToPeer>(&bytes)
                        .map_err(|e| refuse(e.to_string()))
                        .and_then(|m| self.take(at, m.link, m.body, fds));
                    if let (Err(e), Some(pair)) = (result, self.pairs[at].as_mut()) {
                        pair.failed = Some(e.to_string());
                        return;
                    }
                }
                Ok(Received::Nothing) => return,
                Ok(Received::End) | Err(_) => return self.end(at),
                Ok(Received::Overlong) => {
                    pair.failed = Some("it sent an overlong message".into());
                    return;
                }
                Ok(Received::Short) => {
                    self.short = true;
                    pair.failed = Some("this process has no descriptors left for what it sent".into());
                    return;
                }
            }
        }
    }

    /// Sends what waits, and ends pairs that failed.
    pub(crate) fn tidy(&mut self) {
        self.tend_parked();
        self.tend_deaf();
        self.unsent = false;
        for at in 0..self.pairs.len() {
            let Some(pair) = self.pairs[at].as_mut() else { continue };
            self.unsent |= !pair.flush();
            if let Some(text) = pair.failed.take() {
                self.shared.event(Event::PeerBroken { app: pair.app.clone(), text });
                self.end(at);
            }
        }
    }

    /// Ends pairs on whose links the peer lied.
    pub(crate) fn close_broken(&mut self) {
        self.note_deaf();
        for at in 0..self.pairs.len() {
            let Some(pair) = self.pairs[at].as_mut() else { continue };
            let out =
                pair.outgoing.values().filter(|o| o.offered.is_none()).find_map(|o| {
                    o.stream.tx.visit().links[o.at].as_ref().and_then(|l| l.broken).map(|b| b.to_string())
                });
            let found = out.or_else(|| {
                pair.incoming.values().find_map(|i| {
                    i.stream.rx.visit().links[i.at].as_ref().and_then(|l| l.broken).map(|b| b.to_string())
                })
            });
            if let Some(text) = found {
                self.shared.event(Event::PeerBroken { app: pair.app.clone(), text });
                self.end(at);
            }
        }
    }

    /// A pair is gone, in whatever way: its links end.
    fn end(&mut self, at: usize) {
        let Some(pair) = self.pairs.get_mut(at).and_then(Option::take) else { return };
        let (before, over) = (self.parked.len(), self.shared.closed.load(Ordering::Acquire));
        for outgoing in pair.outgoing.into_values().filter(|o| o.offered.is_none()) {
            if pair.network && outgoing.stream.reliable && !over {
                self.park(&outgoing, &pair.app);
                continue;
            }
            if let Some(link) = outgoing.stream.tx.visit().links[outgoing.at].as_mut().filter(|_| over) {
                // The runtime lives, and its counts with it.
                link.network = false;
            }
            let cells = outgoing.stream.tx.visit().dissolve(outgoing.at);
            for cell in cells {
                self.shared.cells().end(cell.index());
            }
        }
        for incoming in pair.incoming.into_values() {
            self.take_bells_down(&incoming);
            let mut rx = incoming.stream.rx.visit();
            rx.remember_cursors(incoming.at);
            rx.bereave(incoming.at);
            rx.sweep(incoming.at);
            rx.interrupt();
            self.end_cells(&mut rx);
            drop(rx);
            // Its last word will not come: sinks that waited for it are forgotten.
            self.forget_closed(std::slice::from_ref(&incoming.stream));
        }
        if pair.peer != self.shared.id && self.parked.len() == before {
            self.shared.event(Event::PeerLost { app: pair.app });
        }
    }

    /// Ends the counter cells of links that were unmapped, so that they can be used again.
    fn end_cells(&self, rx: &mut Rx) {
        for cell in std::mem::take(&mut rx.ended) {
            self.shared.cells().end(cell);
        }
    }

    /// Ends everything: the session closes.
    pub(crate) fn close_all(&mut self) {
        for at in 0..self.pairs.len() {
            self.end(at);
        }
        self.end_parked();
    }

    /// Whether sinks still wait for their producers' last word.
    pub(crate) fn is_closing(&self) -> bool {
        let streams: Vec<_> =
            self.pairs.iter().flatten().flat_map(|p| p.incoming.values()).map(|i| &i.stream).collect();
        streams.iter().any(|s| s.rx.visit().sinks.iter().any(Option::is_some))
    }

    /// A sink was matched with one of this session's sources: bring the flow into being, and a link if there is none.
    pub(crate) fn flow_added(&mut self, flow: &Flow) {
        let (Some(epoch), Some(sink), Some(peer)) =
            (Epoch::from_bytes(&flow.epoch), SinkId::from_bytes(&flow.sink), SessionId::from_bytes(&flow.peer))
        else {
            return;
        };
        let found = lock(&self.shared.endpoints).iter().find_map(|e| match e {
            Endpoint::Source { stream, epoch: e, number, .. } if *e == epoch => Some((stream.clone(), *number)),
            _ => None,
        });
        let Some((stream, number)) = found else { return };
        let parked = self.parked_flows(&stream);
        let waits = parked.as_ref().is_some_and(|p| p.contains(&(number, sink)));
        let known = !waits
            && stream
                .tx
                .visit()
                .source(number)
                .is_none_or(|s| s.routes.iter().any(|r| r.flows.iter().any(|f| f.sink == sink)));
        // With itself a session has both ends of a pair; it produces on the first.
        let own = self.shared.id;
        let pair = self.pairs.iter_mut().flatten().find(|p| p.peer == peer && (peer != own || p.initiator));
        let Some(pair) = pair else { return };
        let wanted = (number, epoch, sink, flow.channel, flow.observer);
        if known {
            let outgoing = pair.outgoing.values_mut().find(|o| Arc::ptr_eq(&o.stream, &stream));
            if let Some(outgoing) = outgoing.filter(|_| pair.network) {
                outgoing.again.insert((number, sink), wanted);
            }
            return;
        }
        let link = pair.outgoing.iter().find(|(_, o)| Arc::ptr_eq(&o.stream, &stream)).map(|(l, _)| *l);
        let link = match link {
            Some(link) => link,
            None => match offer(pair, &stream, self.shared.limits().link_entries) {
                Ok(link) => link,
                Err(e) => {
                    pair.failed = Some(e.to_string());
                    return;
                }
            },
        };
        if let Some(outgoing) = pair.outgoing.get_mut(&link) {
            outgoing.waiting.push(wanted);
        }
        open_waiting(pair, link, parked.as_deref());
    }

    fn take(&mut self, at: usize, link: u32, body: Option<Body>, fds: Vec<OwnedFd>) -> Result<()> {
        match body {
            Some(Body::LinkOffer(offer)) => self.offered(at, link, &offer, &fds),
            Some(Body::LinkAccept(accept)) => self.accepted(at, link, &accept, fds),
            Some(Body::LinkRefuse(_)) => self.refused(at, link),
            Some(Body::SegmentAdd(segment)) => self.segment_added(at, link, &segment, fds),
            Some(Body::SegmentAck(segment)) => self.segment_acked(at, link, segment.segment),
            Some(Body::FlowOpen(flow)) => self.flow_open(at, link, &flow),
            Some(Body::FlowOpened(flow)) => self.flow_opened(at, link, &flow),
            Some(Body::FlowClose(flow)) => self.flow_close(at, link, &flow),
            Some(Body::FlowClosed(flow)) => self.flow_closed(at, link, &flow),
            Some(Body::Doorbell(_)) => {
                let outgoing = self.outgoing(at, link)?;
                if let Some(l) = outgoing.stream.tx.visit().links[outgoing.at].as_mut() {
                    l.doorbell.install(fds.into_iter().next());
                }
                Ok(())
            }
            Some(Body::LinkRoom(room)) => {
                let incoming = self.pairs[at].as_ref().and_then(|pair| pair.incoming.get(&link));
                let incoming = incoming.ok_or_else(|| refuse(format!("link {link} was not offered")))?;
                if let Some(l) = incoming.stream.rx.visit().links[incoming.at].as_mut() {
                    l.room = room.bytes;
                }
                Ok(())
            }
            Some(Body::SegmentRemove(segment)) => self.segment_removed(at, link, segment.segment),
            Some(Body::FlowLag(asked)) => self.asked_who_lags(at, link, &asked),
            Some(Body::FlowLagging(answer)) => self.told_who_lags(at, link, &answer),
            // Said by a newer version: passed over.
            Some(Body::SegmentRefuse(_)) | None => Ok(()),
        }
    }

    fn outgoing(&mut self, at: usize, link: u32) -> Result<&mut Outgoing> {
        let pair = self.pairs[at].as_mut().ok_or_else(|| refuse("no such pair"))?;
        pair.outgoing
            .get_mut(&link)
            .filter(|o| o.offered.is_none())
            .ok_or_else(|| refuse(format!("link {link} is none of ours")))
    }

    fn offered(&mut self, at: usize, link: u32, offer: &peer::LinkOffer, fds: &[OwnedFd]) -> Result<()> {
        let limits = self.shared.limits();
        let stream = lock(&self.shared.streams).iter().find(|s| s.name == offer.stream).cloned();
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let Some(stream) = stream else {
            let body = peer::Refuse { code: Code::NotFound.number(), text: "no such stream here".into() };
            pair.send(link, Body::LinkRefuse(body), &[]);
            return Ok(());
        };
        let known = pair.incoming.contains_key(&link) || pair.incoming.len() >= limits.streams.max(1) as usize;
        if known || offer.layout != LAYOUT || offer.entries > limits.link_entries.max(1) {
            return Err(refuse(format!("link {link} cannot be offered so")));
        }
        if pair.incoming.values().any(|i| Arc::ptr_eq(&i.stream, &stream)) {
            return Err(refuse(format!("link {link} is a second one for stream `{}`", stream.name)));
        }
        let fd = fds.first().ok_or_else(|| refuse("a link without memory"))?;
        let needs = DeliveryBlock::bytes(offer.entries)? as u64;
        let theirs = Arc::new(map_peer(fd.as_fd(), needs, whole_pages(needs))?);
        let delivery = DeliveryBlock::open(theirs, offer.entries)?;
        let memory = SharedMemory::create("insane-returns", ReturnBlock::bytes(offer.entries)?, false, true)
            .inspect_err(|_| self.short = true)?;
        let memory = Arc::new(memory);
        let returns = ReturnBlock::create(memory.clone(), offer.entries)?;
        let consumer = Consumer::new(returns, delivery);
        let place = {
            let mut rx = stream.rx.visit();
            let place = rx.add_link(consumer, (offer.reliable, pair.network), pair.trusted, self.shared.clone());
            rx.interrupt();
            place
        };
        reach(Step::Accept);
        let accept =
            peer::LinkAccept { counter_bytes: insane_shm::memory::Backing::len(&*self.shared.counter_memory) as u64 };
        pair.send(link, Body::LinkAccept(accept), &[memory.fd(), self.shared.counter_memory.fd()]);
        pair.incoming.insert(link, Incoming { stream, at: place, mapped: 0, segments: 0 });
        Ok(())
    }

    /// The peer does not take a link. One that it has accepted it cannot refuse: what that holds ends with the pair.
    fn refused(&mut self, at: usize, link: u32) -> Result<()> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        if pair.outgoing.get(&link).is_none_or(|o| o.offered.is_none()) {
            return Err(refuse(format!("link {link} was refused and is not on offer")));
        }
        pair.outgoing.remove(&link);
        Ok(())
    }

    fn accepted(&mut self, at: usize, link: u32, accept: &peer::LinkAccept, fds: Vec<OwnedFd>) -> Result<()> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let outgoing = pair.outgoing.get_mut(&link).ok_or_else(|| refuse("a link that was not offered"))?;
        let (memory, entries) = outgoing.offered.clone().ok_or_else(|| refuse("a link that was accepted twice"))?;
        let [returns, counters] = &fds[..] else { return Err(refuse("an accepted link without memory")) };
        let needs = ReturnBlock::bytes(entries)? as u64;
        let returns = Arc::new(map_peer(returns.as_fd(), needs, whole_pages(needs))?);
        let limit = counter_bytes(insane_shm::counters::MAX_CELLS) as u64;
        let counters = Counters::open(Arc::new(map_peer(counters.as_fd(), accept.counter_bytes, limit)?))?;
        let producer = Producer::new(DeliveryBlock::open(memory, entries)?, ReturnBlock::open(returns, entries)?);
        let mut tx = outgoing.stream.tx.visit();
        let place = tx.links.iter().position(Option::is_none).unwrap_or(tx.links.len());
        if place == tx.links.len() {
            tx.links.push(None);
        }
        let kind = (pair.network, outgoing.stream.reliable);
        tx.links[place] = Some(TxLink::new(producer, counters, kind, self.shared.clone()));
        tx.share_out();
        drop(tx);
        // Only now: until all was checked there is no link to be ended with the pair.
        (outgoing.offered, outgoing.at) = (None, place);
        let stream = outgoing.stream.clone();
        send_segments(pair, link);
        self.share_room(&stream);
        let parked = self.parked_flows(&stream);
        if let Some(pair) = self.pairs[at].as_mut() {
            open_waiting(pair, link, parked.as_deref());
        }
        Ok(())
    }

    /// A stream has a new segment: its links hear of it.
    pub(crate) fn share_segments(&mut self, stream: &Arc<StreamShared>) {
        for pair in self.pairs.iter_mut().flatten() {
            for link in pair.links_of(stream) {
                send_segments(pair, link);
            }
        }
    }

    /// A stream has one link more, and so each of them less room: they hear of it.
    fn share_room(&mut self, stream: &Arc<StreamShared>) {
        let mut tx = stream.tx.visit();
        let bytes = tx.link_cap;
        tx.links.iter_mut().flatten().for_each(|link| link.room = link.room.min(bytes));
        drop(tx);
        for pair in self.pairs.iter_mut().flatten() {
            for link in pair.links_of(stream) {
                pair.send(link, Body::LinkRoom(peer::LinkRoom { bytes }), &[]);
            }
        }
    }

    fn segment_added(&mut self, at: usize, link: u32, add: &peer::SegmentAdd, fds: Vec<OwnedFd>) -> Result<()> {
        let most = most_mapped(self.shared.limits().memory_bytes);
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let of_pair: usize = pair.incoming.values().map(|i| i.segments).sum();
        let mapped: u64 = pair.incoming.values().map(|i| i.mapped).sum();
        let all = self.shared.maps.load(Ordering::Relaxed);
        // The network has each of its segments on every link.
        if !pair.network && !may_map(of_pair, all) {
            return Err(refuse(format!("one more segment than its {of_pair}, of {all} in all")));
        }
        let incoming = pair.incoming.get_mut(&link).ok_or_else(|| refuse("a segment of an unknown link"))?;
        let number = u16::try_from(add.segment).ok().filter(|n| usize::from(*n) < MAX_SEGMENTS);
        let number = number.ok_or_else(|| refuse(format!("segment number {}", add.segment)))?;
        if add.headroom != 0 {
            return Err(refuse("a segment with headroom"));
        }
        let geometry = Geometry::checked(add.stride, add.slots)?;
        let fd = fds.first().ok_or_else(|| refuse("a segment without memory"))?;
        // Twice what another session may own, with all its streams. The network's memory is the runtime's, which its own configuration bounds.
        let limit = if pair.network { u64::MAX } else { most.saturating_sub(mapped) };
        let view = SegmentView::map(fd.as_fd(), geometry, limit).map_err(|e| refuse(e.about_segment(mapped, most)))?;
        incoming.mapped += view.bytes();
        let mut rx = incoming.stream.rx.visit();
        if let Some(l) = rx.links[incoming.at].as_mut() {
            let slot = usize::from(number);
            if l.segments.len() <= slot {
                l.segments.resize(slot + 1, None);
            }
            if l.segments[slot].is_some() {
                return Err(refuse("a segment number that is in use"));
            }
            l.segments[slot] = Some(view);
            l.maps.add();
            incoming.segments += 1;
            l.consumer.add_segment(number, geometry.slots, geometry.stride);
        }
        drop(rx);
        pair.send(link, Body::SegmentAck(peer::SegmentRef { segment: add.segment }), &[]);
        Ok(())
    }

    fn segment_acked(&mut self, at: usize, link: u32, segment: u32) -> Result<()> {
        let outgoing = self.outgoing(at, link)?;
        let mut tx = outgoing.stream.tx.visit();
        let Tx { slab, links, .. } = &mut *tx;
        let link = links[outgoing.at].as_mut().ok_or_else(|| refuse("a link that is gone"))?;
        Ok(link.told.answered(segment, slab, &mut link.producer)?)
    }

    /// The peer has given a segment back.
    fn segment_removed(&mut self, at: usize, link: u32, segment: u32) -> Result<()> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let incoming = pair.incoming.get_mut(&link).ok_or_else(|| refuse("a segment of an unknown link"))?;
        let number = u16::try_from(segment).map_err(|_| refuse(format!("segment number {segment}")))?;
        let view = {
            let mut rx = incoming.stream.rx.visit();
            let Some(l) = rx.links[incoming.at].as_mut() else { return Ok(()) };
            l.consumer.remove_segment(number).map_err(|e| refuse(e.to_string()))?;
            l.maps.remove();
            incoming.segments -= 1;
            l.segments.get_mut(usize::from(number)).and_then(Option::take)
        };
        // Unmapped here, without the lock: that takes time.
        incoming.mapped -= view.map_or(0, |v| v.bytes());
        Ok(())
    }

    fn flow_open(&mut self, at: usize, link: u32, flow: &peer::FlowOpen) -> Result<()> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let incoming = pair.incoming.get(&link).ok_or_else(|| refuse("a flow of an unknown link"))?;
        let (Some(epoch), Some(sink)) = (Epoch::from_bytes(&flow.epoch), SinkId::from_bytes(&flow.sink)) else {
            return Err(refuse("a flow without identities"));
        };
        let mut rx = incoming.stream.rx.visit();
        let index = rx.sinks.iter().position(|s| s.as_ref().is_some_and(|s| s.id == sink && s.open));
        let Some(l) = rx.links[incoming.at].as_mut() else { return Ok(()) };
        // A sink that was closed meanwhile: its producer hears of the close by the runtime's ear, or not at all.
        let Some(index) = index else {
            drop(rx);
            let close = peer::FlowRef { source: flow.source, sink: flow.sink.clone() };
            pair.send(link, Body::FlowClose(close), &[]);
            return Ok(());
        };
        let known = l.flows.get(&flow.source);
        if known.is_some_and(|f| f.epoch != epoch || f.sinks.iter().any(|s| s.id == sink)) {
            return Err(refuse("a flow that cannot be"));
        }
        // Only the network has something that lies in several places.
        let scattered = pair.network && rx.sinks[index].as_ref().is_some_and(|sink| sink.copies.is_some());
        let cursor = rx.cursor_for(incoming.at, epoch, sink);
        let left = std::mem::take(&mut rx.ended);
        let l = rx.links[incoming.at].as_mut();
        let (mut cells, Some(l)) = (self.shared.cells(), l) else { return Ok(()) };
        left.into_iter().for_each(|cell| cells.end(cell));
        let entry = l.flows.entry(flow.source).or_insert_with(|| RxFlow::new(epoch));
        let cell = cells.start_for(at, CellState::Consuming, epoch, sink)?;
        drop(cells);
        let number = cell.index();
        entry.joins = entry.joins.wrapping_add(1);
        let join = entry.joins;
        entry.sinks.push(FlowSink {
            index,
            id: sink,
            cell,
            end: None,
            cursor,
            join,
            joined: false,
            late: Late::default(),
            has: Tally::default(),
        });
        l.forget_recent();
        if let Some(s) = rx.sinks[index].as_mut() {
            s.flows += 1;
        }
        // The new one wants the room.
        rx.let_go(incoming.at);
        drop(rx);
        reach(Step::Flow);
        let (source, sink, join) = (flow.source, flow.sink.clone(), join.into());
        let opened = peer::FlowOpened { source, sink, cell: number, cursor, join, scattered };
        pair.send(link, Body::FlowOpened(opened), &[]);
        Ok(())
    }

    fn flow_opened(&mut self, at: usize, link: u32, flow: &peer::FlowOpened) -> Result<()> {
        let outgoing = self.outgoing(at, link)?;
        let sink = SinkId::from_bytes(&flow.sink).ok_or_else(|| refuse("a flow without a sink"))?;
        let asked = outgoing.asked.remove(&(flow.source, sink));
        let Asked { observer, .. } = asked.ok_or_else(|| refuse("a flow that was not asked for"))?;
        let stream = outgoing.stream.clone();
        if let Some(parked) = self.parked_flows(&stream) {
            let key = (flow.source, sink);
            let outgoing = self.outgoing(at, link)?;
            if parked.contains(&key) {
                outgoing.reopened.insert(key, Reopened { cell: flow.cell, join: flow.join as u16 });
            } else if !observer {
                outgoing.late.push(flow.clone());
            }
            return Ok(());
        }
        self.add_flow(at, link, flow, observer)
    }

    /// A flow begins with the next message.
    fn add_flow(&mut self, at: usize, link: u32, flow: &peer::FlowOpened, observer: bool) -> Result<()> {
        let shared = self.shared.clone();
        let outgoing = self.outgoing(at, link)?;
        let sink = SinkId::from_bytes(&flow.sink).ok_or_else(|| refuse("a flow without a sink"))?;
        let mut tx = outgoing.stream.tx.visit();
        // What waits was not meant for the new sink.
        tx.place_of(flow.source).into_iter().for_each(|place| tx.close_pack(place, false));
        let position = tx.links[outgoing.at].as_ref().map_or(0, |l| l.producer.position());
        let source = tx.source_mut(flow.source);
        let epoch = lock(&shared.endpoints).iter().find_map(|e| match e {
            Endpoint::Source { stream, epoch, number, .. }
                if *number == flow.source && Arc::ptr_eq(stream, &outgoing.stream) =>
            {
                Some(*epoch)
            }
            _ => None,
        });
        let (Some(source), Some(epoch)) = (source, epoch) else {
            // It closed meanwhile: the sink is not to wait for what never comes.
            drop(tx);
            if let Some(pair) = self.pairs[at].as_mut() {
                pair.say_closed(link, (flow.source, sink), position);
            }
            return Ok(());
        };
        let cell = shared.cells().start(CellState::Producing, epoch, sink)?;
        let new = TxFlow::new(sink, cell, flow.cell, observer, source.sequence + 1);
        match source.routes.iter_mut().find(|r| r.link == outgoing.at) {
            Some(route) => {
                route.flows.push(new);
                route.joined = flow.join as u16;
            }
            None => {
                let route = crate::tx::Route { link: outgoing.at, flows: vec![new], joined: flow.join as u16 };
                source.routes.push(route);
            }
        }
        tx.note_sharing(outgoing.at);
        Ok(())
    }

    /// The peer's sink closes: nothing emitted from here on is for it.
    fn flow_close(&mut self, at: usize, link: u32, flow: &peer::FlowRef) -> Result<()> {
        let sink = SinkId::from_bytes(&flow.sink).ok_or_else(|| refuse("a flow without a sink"))?;
        let outgoing = self.outgoing(at, link)?;
        let key = (flow.source, sink);
        // This is about what it was asked first. It is back, and asked anew when it has heard that.
        let back = outgoing.asked.remove(&(flow.source, sink)).and_then(|asked| asked.again);
        let back = outgoing.again.remove(&key).or(back);
        outgoing.reopened.remove(&key);
        outgoing.late.retain(|f| (f.source, &f.sink) != (flow.source, &flow.sink));
        outgoing.waiting.retain(|w| (w.0, w.2) != key);
        outgoing.waiting.extend(back);
        let (stream, on) = (outgoing.stream.clone(), outgoing.at);
        // What has no runtime yet ends by the word of the next, whose link is to take it over.
        let is_network = self.pairs[at].as_ref().is_some_and(|p| p.network);
        let parked = self.parked_place(&stream).filter(|_| is_network);
        let (cell, position) = {
            let mut tx = stream.tx.visit();
            let mut places = [Some(on), parked].into_iter().flatten();
            let cell = places.find_map(|on| tx.end_flow(on, flow.source, sink, false));
            (cell, tx.links[on].as_ref().map_or(0, |l| l.producer.position()))
        };
        if let Some(cell) = cell {
            self.shared.cells().end(cell.index());
        }
        let parked = back.and_then(|_| self.parked_flows(&stream));
        if let Some(pair) = self.pairs[at].as_mut() {
            pair.say_closed(link, (flow.source, sink), position);
            if back.is_some() {
                open_waiting(pair, link, parked.as_deref());
            }
        }
        Ok(())
    }

    /// A flow from the peer has ended at a position of the ring.
    fn flow_closed(&mut self, at: usize, link: u32, flow: &peer::FlowClosed) -> Result<()> {
        let sink = SinkId::from_bytes(&flow.sink).ok_or_else(|| refuse("a flow without a sink"))?;
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let incoming = pair.incoming.get(&link).ok_or_else(|| refuse("a flow of an unknown link"))?;
        let cells = {
            let mut rx = incoming.stream.rx.visit();
            if let Some(l) = rx.links[incoming.at].as_mut() {
                let ended = l.flows.get_mut(&flow.source).into_iter().flat_map(|f| f.sinks.iter_mut());
                for s in ended.filter(|s| s.id == sink) {
                    s.end_at(flow.position);
                }
                l.forget_recent();
            }
            // Bounded by the ring; what is for open sinks waits in their queues.
            rx.drain_to(incoming.at, flow.position);
            if flow.given_up {
                rx.note_given_up(incoming.at, flow.source, sink);
            }
            let cells = rx.prune(incoming.at);
            rx.let_go(incoming.at);
            cells
        };
        for cell in cells {
            self.shared.cells().end(cell);
        }
        self.forget_closed(&self.streams_of(at));
        Ok(())
    }

    fn streams_of(&self, at: usize) -> Vec<Arc<StreamShared>> {
        let pair = self.pairs[at].as_ref();
        pair.into_iter().flat_map(|p| p.incoming.values()).map(|i| i.stream.clone()).collect()
    }

    /// Forgets closed sinks that no flow names any more.
    fn forget_closed(&self, streams: &[Arc<StreamShared>]) {
        for stream in streams {
            let mut rx = stream.rx.visit();
            let named: HashSet<SinkId> = rx
                .links
                .iter()
                .flatten()
                .filter(|l| !l.peer_gone)
                .flat_map(|l| l.flows.values().flat_map(|f| f.sinks.iter().map(|s| s.id)))
                .collect();
            for sink in &mut rx.sinks {
                if sink.as_ref().is_some_and(|s| !s.open && !named.contains(&s.id)) {
                    *sink = None;
                }
            }
        }
    }

    /// A sink of this session closes; it was closed in its stream already.
    pub(crate) fn close_sink(&mut self, stream: &Arc<StreamShared>, id: SinkId) {
        reach(Step::Detach);
        for pair in self.pairs.iter_mut().flatten() {
            let links: Vec<(u32, usize)> =
                pair.incoming.iter().filter(|(_, i)| Arc::ptr_eq(&i.stream, stream)).map(|(l, i)| (*l, i.at)).collect();
            for (link, at) in links {
                let sources: Vec<u32> = stream.rx.visit().links[at].as_ref().map_or_else(Vec::new, |l| {
                    l.flows.iter().filter(|(_, f)| f.sinks.iter().any(|s| s.id == id)).map(|(s, _)| *s).collect()
                });
                for source in sources {
                    let close = peer::FlowRef { source, sink: id.to_bytes() };
                    pair.send(link, Body::FlowClose(close), &[]);
                }
            }
        }
        // What dead peers left is counted now; nobody else will look at it.
        let mut rx = stream.rx.visit();
        for at in 0..rx.links.len() {
            if rx.links[at].as_ref().is_some_and(|l| l.peer_gone) {
                rx.drain_to(at, u64::MAX);
                rx.sweep(at);
            }
        }
        drop(rx);
        self.forget_closed(std::slice::from_ref(stream));
    }

    /// A source of this session closes: its sinks get what is on its way.
    pub(crate) fn close_source(&mut self, stream: &Arc<StreamShared>, number: u32) {
        let routes: Vec<(usize, Vec<SinkId>)> = stream.tx.visit().source(number).map_or_else(Vec::new, |s| {
            s.routes.iter().map(|r| (r.link, r.flows.iter().map(|f| f.sink).collect())).collect()
        });
        for (at, sinks) in routes {
            self.end_flows(stream, number, at, &sinks, false);
        }
        for outgoing in self.pairs.iter_mut().flatten().flat_map(|p| p.outgoing.values_mut()) {
            if Arc::ptr_eq(&outgoing.stream, stream) {
                outgoing.again.retain(|(source, _), _| *source != number);
                outgoing.waiting.retain(|wanted| wanted.0 != number);
            }
        }
        let source = stream.tx.visit().take_source(number);
        if let Some(source) = source {
            self.shared.cells().end(source.cell.index());
        }
    }
}
