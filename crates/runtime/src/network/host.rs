//! One other host: its paths, the flows to and from it, the control flow, and the accounts of its sinks.

use crate::config;
use crate::network::account::Account;
use crate::network::control::{Held, Underway};
use crate::network::domain::Domain;
use crate::network::egress::{Egress, IN_THE_PATH, Item};
use crate::network::kept::Kept;
use crate::network::lanes::{FlowId, HOME, Lanes};
use crate::network::later::Claims;
use crate::network::long_words::LongWords;
use crate::network::marked::{Looker, Marked};
use crate::network::moves::MoveTimes;
use insane_datapath::Address;
use insane_shm::counters::Count;
use insane_transport::{Config, Counts, FlowSpec, Outgoing, Path, SendError, Share};
use insane_wire::encode;
use insane_wire::host::{self as wire, CONTROL, Report, ToHost, to_host::Body};
use insane_wire::id::{Epoch, SinkId};
use insane_wire::keyed::{Key, Keyed};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Words for the host that wait for it to take those before, at most: more would be more than all that there is to say.
const CONTROL_WAITING: usize = 1 << 20;

/// Among so few attached sinks those of sources that have ended are not looked for.
const FEW_READY: usize = 64;

/// Messages of a best-effort flow that wait for their turn, at most.
const MOST_QUEUED: u64 = 4096;

/// About what a frame carries on most networks.
const FRAME_BYTES: u64 = 1024;

/// Where a flow's messages come from: the domain, the link, and the source's number on it.
pub(crate) type Origin = (usize, usize, u32);

/// A flow to the host: what one local source emits for its sinks there.
#[derive(Debug)]
pub(crate) struct OutFlow {
    /// Its path and its number there.
    pub(crate) number: FlowId,
    pub(crate) spec: FlowSpec,
    pub(crate) from: Origin,
    pub(crate) epoch: Epoch,
    pub(crate) reliable: bool,
    /// The accounts of its sinks.
    pub(crate) accounts: Vec<usize>,
    /// What the other host is told before the flow, and again after each loss of the connection.
    pub(crate) about: insane_wire::host::Source,
    seen: Counts,
    /// The path does not know yet whose some of it is.
    unshared: bool,
    /// Reliable: what the path did not take yet.
    pub(crate) backlog: VecDeque<Outgoing>,
    /// Messages in the scheduler.
    pub(crate) queued: u64,
    pub(crate) closing: bool,
    /// The path has been told.
    closed: bool,
    /// The flow to which its stream has moved, by its place and number: that one goes on when this one is done.
    pub(crate) heir: Option<(usize, FlowId)>,
    /// It is an heir, and the flow before it is not done: what a reliable one is given waits.
    pub(crate) behind: bool,
    /// The token of the word by which the other host is told of it, until that has it.
    pub(crate) word: Option<u64>,
    /// The other host has accepted it, in this connection of its path.
    pub(crate) accepted: bool,
    /// Since when its stream is on its way to it: until the other host has accepted it, or is lost.
    pub(crate) moving: Option<Duration>,
    /// Before that it was asked to go elsewhere: then it does so at once.
    pub(crate) asked: bool,
    /// Another of its source's ended without being accepted: the other host may still wait for that.
    unheard: bool,
    /// The connection that carried it was lost, and no other will, or its sinks were given up: what its source still emits for them, until
    /// that has let go of them, ends here.
    pub(crate) lost: bool,
}

/// A flow that the host wants to open: of which domain, and whether reliable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) flow: FlowId,
    pub(crate) domain: u32,
    pub(crate) reliable: bool,
}

/// A flow from the host, and where its source is as long as that is not forgotten.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    pub(crate) domain: usize,
    pub(crate) source: usize,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Host {
    /// Over UDP.
    pub(crate) address: Address,
    pub(crate) name: String,
    pub(crate) lanes: Lanes,
    pub(crate) egress: Egress,
    control_out: Option<FlowId>,
    control_sequence: u64,
    control_waiting: VecDeque<(u64, Outgoing)>,
    pub(crate) control_in: Option<FlowId>,
    pub(crate) long_words: LongWords,
    pub(crate) flows: Marked<OutFlow>,
    pub(crate) by_epoch: HashMap<Epoch, usize>,
    pub(crate) by_number: HashMap<FlowId, usize>,
    pub(crate) incoming: Keyed<FlowId, Incoming>,
    /// Flows that the host wants to open and that are not accepted yet: nothing was said of their sources, or the one before is
    /// not at its end. By source, in their order.
    pub(crate) requested: HashMap<Epoch, VecDeque<Asked>>,
    /// How many sinks of the host were to join each local source.
    pub(crate) joins: HashMap<Epoch, u32>,
    /// The largest number that a sink of the host ever had.
    last_join: u32,
    /// Sinks of the host that are attached to local sources.
    pub(crate) ready: BTreeSet<(SinkId, Epoch)>,
    /// How many of those there are when sources that have ended are to be looked for among them.
    enough_ready: usize,
    /// Sinks of this host that it has refused, and whose sessions were told, as long as they are there or until it serves them: also
    /// by another connection, so that they are told then.
    pub(crate) refused: HashSet<SinkId>,
    pub(crate) accounts: Marked<Account>,
    pub(crate) by_key: HashMap<(Epoch, SinkId), usize>,
    /// The places of a sink's accounts.
    by_sink: HashMap<SinkId, Vec<usize>>,
    pub(crate) kept: Kept,
    /// Sources of which something old is still to be finished.
    pub(crate) postponed: Vec<insane_wire::host::Source>,
    /// Sources that another host has.
    pub(crate) claims: Claims,
    /// Which of its runtimes it was that spoke last.
    pub(crate) run: u128,
    /// It has said in this connection which of its runtimes it is: flows may be accepted.
    pub(crate) greeted: bool,
    /// Flows that it wanted to open in domains that are not served here.
    pub(crate) foreign: u64,
    /// Flows that it opened as reliable though their source is not, or the reverse.
    pub(crate) mismatched: u64,
    pub(crate) stray: u64,
    pub(crate) lost: u64,
    pub(crate) known: Known,
    /// How it says that it is reached, not looked at yet.
    pub(crate) offers: Option<Vec<insane_wire::host::Reach>>,
    /// How it said last that it is reached: for datapaths that are opened later.
    pub(crate) reach: Vec<insane_wire::host::Reach>,
    /// How much it was told that can be held here of what it sends, in bytes; 0: nothing.
    pub(crate) room_said: u64,
    /// Streams that moved from one path to another, and how long it took those that came there.
    pub(crate) moves: u64,
    pub(crate) move_times: MoveTimes,
    /// The longest pause of those flows of a link, by its domain and place, that have moved while others of it still do.
    pub(crate) pauses: HashMap<(usize, usize), Duration>,
    /// More is to be said to it than can wait: it does not listen.
    deaf: bool,
    /// Something that moves can go on: what waits is looked at with the next turn.
    pub(crate) goes_on: bool,
}

/// From where a host is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The configuration names it.
    Configured,
    /// The directory has it.
    Found,
    /// The directory has it no more; since when it has not been heard either.
    Gone(Option<Duration>),
    /// Both have been silent for so long that nothing is sent to it.
    Dormant,
}

/// What a path is told. Everything is copied into its frames, unless its port can do better (`Port::copies_up_to`).
pub(crate) fn path_config(settings: &config::Network, host: u128, frame_limit: usize, can_check: bool) -> Config {
    let silence = Duration::from_millis(settings.silence_ms);
    Config {
        host,
        frame_limit,
        checked: !can_check,
        dedicated: settings.dedicated,
        silence,
        stale: Duration::from_millis(settings.stale_ms),
        heartbeat: (silence / 7).min(Duration::from_millis(250)),
        copy_bytes: u32::MAX,
        ..Config::default()
    }
}

impl Known {
    /// For reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Found => "found",
            Self::Gone(_) => "gone",
            Self::Dormant => "dormant",
        }
    }
}

impl OutFlow {
    /// Whether nothing becomes of it, nor of what it was given, before something happens to it here.
    fn rests(&self) -> bool {
        let gone = self.queued == 0 && self.backlog.is_empty();
        let known = self.seen.waiting + self.seen.under_way == 0 && !self.unshared;
        gone && known && !self.closing && !self.lost && self.heir.is_none() && self.word.is_none()
    }

    /// Messages that the path does not have yet.
    pub(crate) fn held_back(&self) -> u64 {
        self.queued + self.backlog.iter().map(Outgoing::messages).sum::<u64>()
    }
}

impl Host {
    pub(crate) fn new(
        (address, ports): (Address, usize),
        config: Config,
        egress: Egress,
        seed: u64,
        now: Duration,
    ) -> Self {
        Self {
            address,
            name: address.to_string(),
            lanes: Lanes::new(ports, address, Path::new(config, seed, now), now),
            egress,
            control_out: None,
            control_sequence: 0,
            control_waiting: VecDeque::new(),
            control_in: None,
            long_words: LongWords::default(),
            flows: Marked::default(),
            by_epoch: HashMap::new(),
            by_number: HashMap::new(),
            incoming: Keyed::with_hasher(Key::new(seed.rotate_left(23))),
            requested: HashMap::new(),
            joins: HashMap::new(),
            last_join: 0,
            ready: BTreeSet::new(),
            enough_ready: FEW_READY,
            refused: HashSet::new(),
            accounts: Marked::default(),
            by_key: HashMap::new(),
            by_sink: HashMap::new(),
            kept: Kept::default(),
            postponed: Vec::new(),
            claims: Claims::default(),
            run: 0,
            greeted: false,
            foreign: 0,
            mismatched: 0,
            stray: 0,
            lost: 0,
            known: Known::Configured,
            offers: None,
            reach: Vec::new(),
            room_said: 0,
            moves: 0,
            move_times: MoveTimes::default(),
            pauses: HashMap::new(),
            deaf: false,
            goes_on: false,
        }
    }

    /// Whether the host is there.
    pub(crate) fn is_connected(&self) -> bool {
        self.lanes.is_up(HOME)
    }

    /// A flow is not asked for any more; its source if it was.
    pub(crate) fn withdraw_request(&mut self, flow: FlowId) -> Option<Epoch> {
        let is_it = |asked: &VecDeque<Asked>| asked.iter().position(|one| one.flow == flow);
        let (epoch, at) = self.requested.iter().find_map(|(epoch, asked)| Some((*epoch, is_it(asked)?)))?;
        let asked = self.requested.get_mut(&epoch)?;
        asked.remove(at);
        if asked.is_empty() {
            self.requested.remove(&epoch);
        }
        Some(epoch)
    }

    /// A source is forgotten: its place may be another's soon, and what its flows still bring strays.
    pub(crate) fn forget_source(&mut self, domain: usize, source: usize) {
        self.incoming.retain(|_, flow| (flow.domain, flow.source) != (domain, source));
    }

    /// A path is lost, and with it the flows that were asked for over it.
    pub(crate) fn withdraw_requests(&mut self, lane: usize) {
        self.requested.retain(|_, asked| {
            asked.retain(|one| one.flow.lane != lane);
            !asked.is_empty()
        });
    }

    /// Whether nothing is sent to it, and nothing taken from it.
    pub(crate) fn is_dormant(&self) -> bool {
        self.known == Known::Dormant
    }

    /// Whether there is nothing to be sent to it by any lane.
    pub(crate) fn rests(&mut self, now: Duration) -> bool {
        !self.goes_on && (self.is_dormant() || (self.egress.waiting() == 0 && self.lanes.rest(now)))
    }

    /// Begins a new control flow; what waited in the old one is forgotten. Returns what is no longer under way.
    pub(crate) fn begin_control(&mut self, epoch: Epoch) -> Vec<u64> {
        self.end_control();
        let gone = self.control_waiting.drain(..).map(|(token, _)| token).collect();
        let spec = FlowSpec { domain: CONTROL.0, epoch: epoch.0, channel: CONTROL.1, reliable: true, first: 1 };
        self.control_out = Some(self.lanes.open(HOME, spec));
        self.control_sequence = 0;
        self.deaf = false;
        gone
    }

    /// Whether nothing goes to it or comes from it, and nothing is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.flows.iter().all(Option::is_none)
            && self.accounts.iter().all(Option::is_none)
            && self.incoming.is_empty()
            && self.requested.is_empty()
            && self.postponed.is_empty()
            && self.claims.len() == 0
            && self.kept.len() == 0
            && self.egress.waiting() == 0
    }

    /// What was to be said to it. Returns what is no longer under way.
    pub(crate) fn forget_control(&mut self) -> Vec<u64> {
        self.control_waiting.drain(..).map(|(token, _)| token).collect()
    }

    /// Gives the control flow up.
    pub(crate) fn end_control(&mut self) {
        if let Some(old) = self.control_out.take() {
            self.lanes.abandon(old);
        }
    }

    /// Says something over the control flow. Without a connection it is not said: everything is said anew with the next.
    pub(crate) fn say(&mut self, body: Body, underway: &mut Underway) {
        let _ = self.say_as(body, underway);
    }

    /// As [`Self::say`]; says under which token it is under way.
    pub(crate) fn say_as(&mut self, body: Body, underway: &mut Underway) -> Option<u64> {
        let flow = self.control_out?;
        if self.control_waiting.len() >= CONTROL_WAITING {
            if !std::mem::replace(&mut self.deaf, true) {
                tracing::warn!(host = self.name, waiting = CONTROL_WAITING, "a host takes nothing that is said to it");
            }
            return None;
        }
        let bytes = encode(&ToHost { body: Some(body) });
        self.control_sequence += 1;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let token = underway.add(Held::Bytes(bytes), 1);
        let next = Outgoing { token, len, sequence: self.control_sequence, ..Outgoing::default() };
        let goes = self.control_waiting.is_empty() && self.lanes.send(flow, next).is_ok();
        if !goes {
            self.control_waiting.push_back((token, next));
        }
        Some(token)
    }

    /// Ends the connection to a host that does not listen: what it was not told it is told with the next. Returns whether that was so.
    pub(crate) fn leave_if_deaf(&mut self, now: Duration) -> bool {
        let deaf = std::mem::take(&mut self.deaf);
        self.lanes.path(HOME).filter(|_| deaf).into_iter().for_each(|path| path.disconnect(now));
        deaf
    }

    /// Gives the path what it did not take before.
    pub(crate) fn push_waiting(&mut self) {
        while let Some((_, next)) = self.control_waiting.front() {
            if self.control_out.is_none_or(|flow| self.lanes.send(flow, *next).is_err()) {
                break;
            }
            self.control_waiting.pop_front();
        }
        // Who does not know of an heir would take the end of the flow before it for that of the source.
        let mut untold: Vec<FlowId> = Vec::new();
        let flows = || self.flows.marked(Looker::Chores);
        if flows().any(|flow| flow.heir.is_some()) {
            untold.extend(flows().filter(|flow| flow.word.is_some()).map(|flow| flow.number));
        }
        let Self { flows, accounts, lanes, .. } = self;
        for flow in flows.marked_mut(Looker::Chores) {
            while let Some(next) = flow.backlog.front().filter(|_| !flow.behind) {
                if lanes.send(flow.number, *next).is_err() {
                    break;
                }
                flow.backlog.pop_front();
            }
            // Without a sink the host will not accept it.
            let is_gone = |a: &usize| accounts[*a].as_ref().is_none_or(|a| a.gone);
            let unwanted = !flow.accepted && flow.accounts.iter().all(is_gone);
            if flow.closing && flow.queued == 0 && (!flow.closed || unwanted) {
                if !lanes.is_up(flow.number.lane) || unwanted {
                    flow.closed = true;
                    lanes.abandon(flow.number);
                } else if flow.backlog.is_empty()
                    && !flow.behind
                    && flow.heir.is_none_or(|(_, heir)| !untold.contains(&heir))
                {
                    flow.closed = true;
                    lanes.close(flow.number);
                }
            }
        }
    }

    /// The flow of a source, opened over `lane` if there is none.
    pub(crate) fn flow_of(
        &mut self,
        lane: usize,
        (spec, from): (FlowSpec, Origin),
        about: insane_wire::host::Source,
        underway: &mut Underway,
    ) -> usize {
        // A session may give one source two numbers. Each then ends its own flow, and knows the place of no other.
        let known = self.by_epoch.get(&Epoch(spec.epoch)).copied();
        if let Some(at) = known.filter(|at| self.flows[*at].as_ref().is_some_and(|flow| flow.from == from)) {
            return at;
        }
        self.say(Body::Source(about.clone()), underway);
        self.open_flow(lane, (spec, from), about)
    }

    /// Opens a flow, from now on its source's.
    pub(crate) fn open_flow(
        &mut self,
        lane: usize,
        (spec, from): (FlowSpec, Origin),
        about: insane_wire::host::Source,
    ) -> usize {
        let (epoch, number) = (Epoch(spec.epoch), self.lanes.open(lane, spec));
        let flow = OutFlow {
            number,
            spec,
            from,
            epoch,
            reliable: spec.reliable,
            accounts: Vec::new(),
            about,
            seen: Counts::default(),
            unshared: false,
            backlog: VecDeque::new(),
            queued: 0,
            closing: false,
            closed: false,
            heir: None,
            behind: false,
            word: None,
            accepted: false,
            moving: None,
            asked: false,
            unheard: false,
            lost: false,
        };
        let at = self.flows.place(flow);
        self.by_epoch.insert(epoch, at);
        self.by_number.insert(number, at);
        at
    }

    /// Ends a flow when everything that was given has gone.
    pub(crate) fn close_flow(&mut self, at: usize) {
        let Some(flow) = self.flows[at].as_mut() else { return };
        flow.closing = true;
        // Of one that was lost the path may know nothing any more.
        if flow.lost && !self.by_number.contains_key(&flow.number) {
            self.flows[at] = None;
            return;
        }
        self.forget_epoch(at);
        self.push_waiting();
    }

    /// A flow is no more the one that its source's next sinks here get. Another may be already.
    pub(crate) fn forget_epoch(&mut self, at: usize) {
        if let Some(flow) = self.flows[at].as_ref().filter(|f| self.by_epoch.get(&f.epoch) == Some(&at)) {
            self.by_epoch.remove(&flow.epoch);
        }
    }

    /// The connection is lost, and with it the flows that do not outlive one: of what is pending for their sinks nothing will be
    /// known. Those that are best effort must not go on over the next: their sinks are gone with the host, to come back with flows
    /// and accounts of their own. What was to be said last by those that are closing has nobody to hear it.
    pub(crate) fn lose_flows(&mut self) {
        self.pauses.clear();
        self.note_unsaid();
        self.accounts.iter_mut().flatten().filter(|a| a.reliable && a.gone).for_each(Account::forsake);
        (0..self.flows.len()).for_each(|at| self.fold(at));
        for account in self.accounts.iter_mut().flatten().filter(|a| !a.reliable || a.closing) {
            account.end(Count::Unconfirmed, account.pending());
        }
        for at in 0..self.flows.len() {
            self.flows[at].iter_mut().for_each(|f| (f.accepted, f.moving) = (false, None));
            let Some(flow) = self.flows[at].as_mut().filter(|f| !f.reliable || f.closing) else { continue };
            flow.lost = true;
            self.lanes.abandon(flow.number);
            self.forget_epoch(at);
        }
    }

    /// The path has ended a flow. Returns what is no longer under way.
    pub(crate) fn flow_closed(&mut self, number: FlowId, counts: Counts, underway: &mut Underway) -> Vec<u64> {
        let Some(at) = self.by_number.remove(&number) else { return Vec::new() };
        self.settle(at, Some(counts));
        self.forget_epoch(at);
        // Its source's session may not have let go of it.
        let Some(flow) = self.flows[at].take_if(|f| f.closing || !f.lost) else { return Vec::new() };
        self.succeed(at, &flow);
        self.note_unheard(&flow, underway);
        self.goes_on |= flow.heir.is_some();
        // The path's counts do not have what it did not take.
        let left = flow.backlog.iter().map(Outgoing::messages).sum();
        for account in &flow.accounts {
            self.accounts[*account].iter_mut().for_each(|a| a.end(Count::Unconfirmed, left));
        }
        flow.backlog.iter().filter_map(Outgoing::releases).collect()
    }

    /// A flow has ended. If the other host has not accepted it, it may know of it by word only, and would wait for it: once the source
    /// has no other, it is told.
    fn note_unheard(&mut self, flow: &OutFlow, underway: &mut Underway) {
        if flow.accepted && !flow.unheard {
            return;
        }
        match self.flows.find_mut(|other| other.epoch == flow.epoch) {
            Some(other) => other.unheard = true,
            None => self.say(Body::Ended(wire::Ended { epoch: flow.epoch.to_bytes() }), underway),
        }
    }

    /// The flow's number on its path, if what it is given goes there at once.
    pub(crate) fn flow_at_once(&mut self, at: usize) -> Option<FlowId> {
        let flow = self.flows[at].as_mut().filter(|_| self.egress.is_fifo())?;
        let rests = flow.queued == 0 && flow.backlog.is_empty() && flow.heir.is_none() && !flow.behind;
        (rests && !flow.lost && !flow.closing).then_some(flow.number)
    }

    /// Gives a message to a flow, by way of the scheduler. `Err`: it was not taken, and why it ends for the flow's sinks.
    pub(crate) fn give(&mut self, now: Duration, at: usize, next: Outgoing) -> Result<(), Count> {
        let Some(flow) = self.flows[at].as_mut() else { return Err(Count::Dropped) };
        if flow.lost {
            return Err(Count::Unconfirmed);
        }
        // What is held back is bounded by the links for reliable flows, and here for others.
        if !flow.reliable && flow.queued >= MOST_QUEUED {
            return Err(Count::SinkFull);
        }
        flow.queued += next.messages();
        let class = self.egress.class(flow.about.qos.as_ref(), next.priority);
        match self.egress.push(now, Item { flow: (at, flow.number), next, class }) {
            Some(item) => self.hand_over(item),
            None => Ok(()),
        }
    }

    /// Gives the path what the scheduler lets go. Returns what was not taken: it is no longer under way.
    pub(crate) fn pump(&mut self, now: Duration) -> Vec<u64> {
        let mut refused = Vec::new();
        if self.egress.waiting() == 0 {
            return refused;
        }
        // A flow that cannot go on holds up no other: what it is given waits there, as it would without a scheduler.
        let there = self.flows.marked(Looker::Chores).map(|flow| self.lanes.about_to_go(flow.number));
        let mut room = IN_THE_PATH.saturating_sub(there.sum());
        while room > 0 {
            let Some(item) = self.egress.pull(now) else { break };
            // A bundle is as long on its way as the frames that it fills.
            let frames = u64::from(item.next.len) / FRAME_BYTES;
            room = room.saturating_sub(if item.next.bundle > 0 { frames.max(1) } else { 1 });
            if let Err(why) = self.hand_over(item) {
                self.end_of(item.flow, item.next.joined, (why, item.next.messages()));
                refused.extend(item.next.releases());
            }
        }
        refused
    }

    /// `Err`: it was not taken, and why it ends for the sinks.
    fn hand_over(&mut self, item: Item) -> Result<(), Count> {
        let (at, number) = item.flow;
        let Some(flow) = self.flows[at].as_mut().filter(|f| f.number == number) else {
            return Err(Count::Dropped);
        };
        flow.queued -= item.next.messages();
        let waits = !flow.backlog.is_empty() || (flow.behind && flow.reliable);
        let result = if !waits { self.lanes.send(number, item.next) } else { Err(SendError::Full) };
        match result {
            Ok(()) => Ok(()),
            Err(SendError::Full) if flow.reliable => {
                flow.backlog.push_back(item.next);
                Ok(())
            }
            Err(SendError::Full) => Err(Count::SinkFull),
            Err(_) => Err(Count::Dropped),
        }
    }

    /// Takes out of the scheduler what is for flows that are to be given up. Returns what is no longer under way.
    pub(crate) fn drain_closing(&mut self, now: Duration) -> Vec<u64> {
        let mut gone = Vec::new();
        let items: Vec<Item> = std::iter::from_fn(|| self.egress.pull(now)).collect();
        for item in items {
            let flow = self.flows[item.flow.0].as_mut().filter(|f| f.number == item.flow.1);
            match flow {
                Some(flow) if !flow.closing && !flow.lost => drop(self.egress.push(now, item)),
                flow => {
                    if let Some(flow) = flow {
                        let messages = item.next.messages();
                        flow.queued -= messages;
                        self.end_of(item.flow, item.next.joined, (Count::Unconfirmed, messages));
                    }
                    gone.extend(item.next.releases());
                }
            }
        }
        gone
    }

    /// Brings the accounts of a flow's sinks up to date with what the path says of its messages.
    pub(crate) fn settle(&mut self, at: usize, counts: Option<Counts>) {
        let Some(flow) = self.flows[at].as_mut() else { return };
        let number = flow.number;
        let Some(counts) = counts.or_else(|| self.lanes.counts(number)) else { return };
        flow.seen = counts;
        let (shares, all) = self.lanes.take_shares(number);
        flow.unshared = !all;
        shares.iter().for_each(|share| self.share((at, number), share));
    }

    /// The path says what ended of a flow, before it says that it has closed.
    pub(crate) fn shared(&mut self, number: FlowId, share: &Share) {
        self.by_number.get(&number).copied().into_iter().for_each(|at| self.share((at, number), share));
    }

    fn share(&mut self, flow: (usize, FlowId), share: &Share) {
        let ends = [
            (Count::Dropped, share.lost),
            (Count::SinkFull, share.dropped),
            (Count::Expired, share.expired),
            (Count::Unconfirmed, share.unconfirmed),
        ];
        for (count, messages) in ends.into_iter().filter(|(_, messages)| *messages > 0) {
            self.end_of(flow, share.joined, (count, messages));
        }
    }

    /// Messages of a flow that say this number of the sink that joined last have ended: those are charged with it that had joined.
    pub(crate) fn end_of(&mut self, (at, number): (usize, FlowId), joined: u8, (count, messages): (Count, u64)) {
        let Some(flow) = self.flows[at].as_ref().filter(|flow| flow.number == number) else { return };
        // Messages say the low bits of the last number that was given, or of one not long before.
        let last = self.joins.get(&flow.epoch).copied().unwrap_or_default();
        let joined = last.wrapping_sub(u32::from((last as u8).wrapping_sub(joined)));
        for account in &flow.accounts {
            let meant = self.accounts[*account].as_mut().filter(|account| account.is_meant(joined));
            meant.into_iter().for_each(|account| account.end(count, messages));
        }
    }

    /// The number under which the next sink of the host is to join a source. A source that was forgotten begins with others than it had:
    /// the host may not have forgotten its sinks. Their low bits, which messages say, begin with 1.
    pub(crate) fn next_join(&mut self, epoch: Epoch) -> u32 {
        let first = self.last_join.checked_next_multiple_of(256).unwrap_or(0);
        let last = self.joins.entry(epoch).or_insert(first);
        *last = last.wrapping_add(1).max(1);
        self.last_join = self.last_join.max(*last);
        *last
    }

    pub(crate) fn settle_all(&mut self) {
        let mut from = 0;
        while let Some(at) = self.flows.next(Looker::Chores, from) {
            from = at + 1;
            self.settle(at, None);
            if self.flows[at].as_ref().is_none_or(OutFlow::rests) {
                self.flows.rest(Looker::Chores, at);
            }
        }
    }

    /// The host says what became of messages for one of its sinks.
    pub(crate) fn reported(&mut self, report: &Report) {
        let key = Epoch::from_bytes(&report.epoch).zip(SinkId::from_bytes(&report.sink));
        let account = key.and_then(|key| self.by_key.get(&key)).and_then(|at| self.accounts[*at].as_mut());
        match account {
            Some(account) => account.reported(report),
            None => self.stray += 1,
        }
    }

    /// Begins an account; its place.
    pub(crate) fn add_account(&mut self, account: Account) -> usize {
        let sink = account.sink;
        let at = self.accounts.place(account);
        self.by_sink.entry(sink).or_default().push(at);
        at
    }

    /// The accounts of a sink.
    pub(crate) fn accounts_of(&self, sink: SinkId) -> impl Iterator<Item = &Account> {
        self.by_sink.get(&sink).into_iter().flatten().filter_map(|at| self.accounts[*at].as_ref())
    }

    /// A sink of the host is gone, or is taken to be because the host is lost: then nobody may be left to say what became of messages.
    pub(crate) fn sink_gone(&mut self, sink: SinkId) {
        let connected = self.is_connected();
        let Self { ready, by_sink, accounts, .. } = self;
        let attached: Vec<_> = ready.range((sink, Epoch(0))..=(sink, Epoch(u128::MAX))).copied().collect();
        attached.iter().for_each(|pair| {
            ready.remove(pair);
        });
        for at in by_sink.get(&sink).into_iter().flatten() {
            if let Some(account) = accounts[*at].as_mut() {
                account.gone = true;
                if !connected {
                    account.forsake();
                }
            }
        }
    }

    /// Ends the accounts of which nothing more will come.
    pub(crate) fn sweep(&mut self, domains: &mut [Domain]) {
        let mut ended = HashSet::new();
        let mut from = 0;
        while let Some(at) = self.accounts.next(Looker::Chores, from) {
            from = at + 1;
            let Some(account) = self.accounts[at].take_if(|a| a.is_over()) else {
                if self.accounts[at].as_ref().is_none_or(|a| !a.closing && a.pending() == 0) {
                    self.accounts.rest(Looker::Chores, at);
                }
                continue;
            };
            domains[account.domain].cells.end(account.cell.index());
            if let Some(places) = self.by_sink.get_mut(&account.sink) {
                places.retain(|place| *place != at);
                if places.is_empty() {
                    self.by_sink.remove(&account.sink);
                }
            }
            ended.insert(at);
        }
        if !ended.is_empty() {
            self.by_key.retain(|_, place| !ended.contains(place));
            self.flows.iter_mut().flatten().for_each(|f| f.accounts.retain(|a| !ended.contains(a)));
        }
        // Counted on for as long as the other host may have heard of the source.
        if self.joins.len() > self.flows.len() {
            let Self { joins, flows, .. } = self;
            joins.retain(|epoch, _| flows.iter().flatten().any(|flow| flow.epoch == *epoch));
        }
        self.forget_ready();
    }

    /// Forgets what was attached to sources that have no flow to the host any more, once there may be much of that. With a flow's
    /// beginning the host is told of its source, and says again what is attached there.
    fn forget_ready(&mut self) {
        if self.ready.len() > self.enough_ready {
            let live: HashSet<Epoch> = self.flows.iter().flatten().map(|flow| flow.epoch).collect();
            self.ready.retain(|(_, epoch)| live.contains(epoch));
            self.enough_ready = FEW_READY.max(2 * self.ready.len());
        }
    }

    /// Whether something is pending at the host.
    pub(crate) fn is_awaited(&self) -> bool {
        self.accounts.marked(Looker::Chores).any(|a| a.pending() > 0)
    }
}

#[cfg(test)]
pub(crate) mod tests;
