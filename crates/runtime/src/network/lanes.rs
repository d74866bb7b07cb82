//! The ways to one other host: a path over each datapath that both have. The first, over kernel UDP, is the home of the control
//! flow: by it the host is there or not, and what is said over it names the addresses of the others.

use crate::network::damping::{Holds, Steadiness};
use insane_datapath::Address;
use insane_transport::{Counts, Event, FlowSpec, Outgoing, Path, SendError, Share};
use std::time::Duration;

/// The port of the datapath over which hosts find and hear each other.
pub(crate) const HOME: usize = 0;

/// A path that does not stand is waited for so long before streams go another way: to find the neighbour and say hello takes
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A flow of a host: the runtime's port that its path is over, and its number on that path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowId {
    pub(crate) lane: usize,
    pub(crate) number: u32,
}

/// A path over one datapath.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) address: Address,
    pub(crate) path: Path,
    /// Since when it is sought.
    since: Duration,
}

/// All of a host, by the runtime's ports.
#[derive(Debug)]
pub(crate) struct Lanes {
    all: Vec<Option<Lane>>,
    /// How steady each is; this outlives the lane.
    steady: Vec<Steadiness>,
}

impl Lanes {
    /// The home alone, of a runtime with so many ports.
    pub(crate) fn new(ports: usize, address: Address, path: Path, now: Duration) -> Self {
        let mut all: Vec<Option<Lane>> = (0..ports.max(1)).map(|_| None).collect();
        all[HOME] = Some(Lane { address, path, since: now });
        Self { steady: vec![Steadiness::default(); all.len()], all }
    }

    /// One lane.
    pub(crate) fn get(&self, lane: usize) -> Option<&Lane> {
        self.all.get(lane).and_then(Option::as_ref)
    }

    /// As [`Self::get`], to be sent along.
    pub(crate) fn lane(&mut self, lane: usize) -> Option<&mut Lane> {
        self.all.get_mut(lane).and_then(Option::as_mut)
    }

    /// The path of one lane.
    pub(crate) fn path(&mut self, lane: usize) -> Option<&mut Path> {
        self.all.get_mut(lane).and_then(Option::as_mut).map(|lane| &mut lane.path)
    }

    /// All lanes with their ports.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &Lane)> {
        self.all.iter().enumerate().filter_map(|(port, lane)| Some((port, lane.as_ref()?)))
    }

    /// All paths.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut Path> {
        self.all.iter_mut().flatten().map(|lane| &mut lane.path)
    }

    /// Sets up a lane beside the home.
    pub(crate) fn put(&mut self, lane: usize, address: Address, path: Path, now: Duration) {
        if let Some(place) = self.all.get_mut(lane).filter(|_| lane != HOME) {
            *place = Some(Lane { address, path, since: now });
        }
    }

    /// Takes a lane away that no flow needs any more; never the home.
    pub(crate) fn remove(&mut self, lane: usize) -> Option<Lane> {
        self.all.get_mut(lane).filter(|_| lane != HOME).and_then(Option::take)
    }

    /// Whether the connection of a lane stands.
    pub(crate) fn is_up(&self, lane: usize) -> bool {
        self.get(lane).is_some_and(|lane| lane.path.is_connected())
    }

    /// Whether a lane does not stand and is worth waiting for.
    pub(crate) fn is_coming(&self, lane: usize, now: Duration) -> bool {
        self.get(lane).is_some_and(|lane| !lane.path.is_connected() && now < lane.since + PATIENCE)
    }

    /// The host has said again that it is reached by a lane: from now on it is worth waiting for.
    pub(crate) fn expect(&mut self, lane: usize, now: Duration) {
        self.all.get_mut(lane).and_then(Option::as_mut).into_iter().for_each(|lane| lane.since = now);
    }

    /// The home was lost: the others are lost with it.
    pub(crate) fn begin_anew(&mut self, now: Duration) {
        self.all.iter_mut().skip(HOME + 1).flatten().for_each(|lane| lane.path.disconnect(now));
    }

    /// The connection of a lane stands. Returns whether streams are to wait before they come back to it.
    pub(crate) fn stands(&mut self, lane: usize, now: Duration, holds: Holds) -> bool {
        self.steady.get_mut(lane).is_some_and(|steady| {
            steady.stands(now, holds);
            steady.is_held()
        })
    }

    /// It is lost.
    pub(crate) fn falls(&mut self, lane: usize, now: Duration, holds: Holds) {
        self.steady.get_mut(lane).into_iter().for_each(|steady| steady.falls(now, holds));
    }

    /// How steady a lane is.
    pub(crate) fn steadiness(&self, lane: usize) -> Option<&Steadiness> {
        self.steady.get(lane)
    }

    /// Whether streams that go elsewhere are to wait before they come back to a lane.
    pub(crate) fn is_held(&self, lane: usize) -> bool {
        self.steadiness(lane).is_some_and(Steadiness::is_held)
    }

    /// When the first of the lanes that streams wait for has stood for long enough.
    pub(crate) fn holds_end(&self) -> Option<Duration> {
        self.steady.iter().filter_map(Steadiness::hold).map(|(until, _)| until).min()
    }

    /// Time has passed. Returns whether streams may come back to one of the lanes from now on.
    pub(crate) fn end_holds(&mut self, now: Duration) -> bool {
        self.steady.iter_mut().filter_map(|steady| steady.on_time(now).then_some(())).count() > 0
    }

    /// The host's runtime is another one: how steady the lanes to the one before were is of no meaning. Returns as [`Self::end_holds`].
    pub(crate) fn forget_losses(&mut self) -> bool {
        self.steady.iter_mut().filter_map(|steady| steady.forget().then_some(())).count() > 0
    }

    /// The next event of any of the paths.
    pub(crate) fn event(&mut self) -> Option<(usize, Event)> {
        self.all.iter_mut().enumerate().find_map(|(port, lane)| Some((port, lane.as_mut()?.path.event()?)))
    }

    /// Whether a path has events.
    pub(crate) fn has_events(&self, lane: usize) -> bool {
        self.get(lane).is_some_and(|lane| lane.path.has_events())
    }

    /// Whether no path has anything to do.
    pub(crate) fn rest(&mut self, now: Duration) -> bool {
        self.all.iter_mut().flatten().all(|lane| lane.path.rests(now))
    }

    pub(crate) fn open(&mut self, lane: usize, spec: FlowSpec) -> FlowId {
        // What is not there cannot be chosen; if it is all the same, the home carries it.
        let lane = if self.get(lane).is_some() { lane } else { HOME };
        FlowId { lane, number: self.path(lane).map_or(0, |path| path.open(spec)) }
    }

    pub(crate) fn send(&mut self, flow: FlowId, message: Outgoing) -> Result<(), SendError> {
        self.path(flow.lane).map_or(Err(SendError::NoFlow), |path| path.send(flow.number, message))
    }

    pub(crate) fn counts(&self, flow: FlowId) -> Option<Counts> {
        self.get(flow.lane)?.path.counts(flow.number)
    }

    pub(crate) fn take_shares(&mut self, flow: FlowId) -> (Vec<Share>, bool) {
        self.path(flow.lane).map(|path| path.take_shares(flow.number)).unwrap_or((Vec::new(), true))
    }

    /// Messages of a flow that have not gone yet, if it can go on.
    pub(crate) fn about_to_go(&self, flow: FlowId) -> u64 {
        self.get(flow.lane).map_or(0, |lane| lane.path.about_to_go(flow.number))
    }

    /// Messages of a flow that have not gone yet.
    pub(crate) fn waiting(&self, flow: FlowId) -> u64 {
        self.get(flow.lane).map_or(0, |lane| lane.path.waiting(flow.number))
    }

    /// The number at the source of the first message of a flow that the sinks are not known to have.
    pub(crate) fn oldest(&self, flow: FlowId) -> Option<u64> {
        self.get(flow.lane).and_then(|lane| lane.path.oldest(flow.number))
    }

    pub(crate) fn close(&mut self, flow: FlowId) {
        self.path(flow.lane).into_iter().for_each(|path| path.close(flow.number));
    }

    pub(crate) fn abandon(&mut self, flow: FlowId) {
        self.path(flow.lane).into_iter().for_each(|path| path.abandon(flow.number));
    }

    pub(crate) fn take_back(&mut self, flow: FlowId) -> Vec<Outgoing> {
        self.path(flow.lane).map_or_else(Vec::new, |path| path.take_back(flow.number))
    }

    pub(crate) fn accept(&mut self, flow: FlowId, cursor: u64) {
        self.path(flow.lane).into_iter().for_each(|path| path.accept(flow.number, cursor));
    }

    pub(crate) fn refuse(&mut self, flow: FlowId, status: u8) {
        self.path(flow.lane).into_iter().for_each(|path| path.refuse(flow.number, status));
    }

    pub(crate) fn advance(&mut self, flow: FlowId, cursor: u64) {
        self.path(flow.lane).into_iter().for_each(|path| path.advance(flow.number, cursor));
    }

    pub(crate) fn consumed(&mut self, flow: FlowId, messages: u32, bytes: u64) {
        self.path(flow.lane).into_iter().for_each(|path| path.consumed(flow.number, messages, bytes));
    }
}
