//! The network thread: it polls the datapath and the links, and sleeps when there is nothing. Nothing it does waits for a client
//! or for another host.

use crate::config;
use crate::network::addresses::Addresses;
use crate::network::burst::Burst;
use crate::network::control::{Sources, Underway};
use crate::network::directory::{Directory, Told};
use crate::network::domain::Domain;
use crate::network::egress::Egress;
use crate::network::events::{Frame, RemoteSink, Want};
use crate::network::host::{Host, path_config};
use crate::network::lanes::{FlowId, HOME, Lane};
use crate::network::later::Later;
use crate::network::memory::{Memory, Placer};
use crate::network::outlet::Found;
use crate::network::patience::{Last, Patience};
use crate::network::ports::{Apart, Port, States};
use crate::network::reopen::{Order, Retired};
use crate::network::scatter::Loan;
use crate::network::{Bell, FromNetwork, NetworkError, ToNetwork};
use crate::policy;
use crate::rebind::Requests;
use insane_datapath::Address;
use insane_datapath::batch::{Outcome, RxReport};
use insane_shm::steps::{Step, reach};
use insane_transport::{Alike, End, Lies, Path};
use insane_wire::id::{Epoch, SinkId};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod sleep;

const BELL: u64 = 0;
const FIRST: u64 = 1;

/// How often, while it is busy, the thread looks for what would have woken it.
const GLANCE: Duration = Duration::from_micros(200);

/// A look so soon after the one before, which had something to do, finds no frames if that one took the last.
const AT_ONCE: Duration = Duration::from_micros(10);

/// How often, while it does not sleep, it tends links.
const TENDING: Duration = Duration::from_micros(10);

/// How often it looks whether sinks whose turn has not come can have it.
const LATER: Duration = Duration::from_millis(5);

/// How long a sink that was gone and is back waits for the sessions of its sources to let go of it: they mostly do at once.
pub(crate) const LET_GO: Duration = Duration::from_millis(200);

/// How often what is not urgent is done: accounts, reports, directory.
const CHORES: Duration = Duration::from_millis(1);

/// How long it sleeps at least and at most while a datapath has no way to wake it.
const POLLING: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// How many times the longest spinning a datapath that has no way to wake the thread is looked at after its last frame. A sleep then
/// is a wait for a timer, whatever comes meanwhile, and each frame that is answered late makes the next one late.
const LIVELY: u32 = 5;

/// How long it sleeps at most while local sinks have messages that they have not counted.
const AWAITING: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// How long it sleeps at first while a stream that moves waits for what they have not counted: nothing wakes it then.
const MOVING: Duration = Duration::from_micros(50);

/// After so many bytes that were received the core is offered to others, who may be the sinks: they find it in their caches. About as
/// much is received at once.
pub(crate) const HANDFUL: usize = 256 << 10;

/// How often the report is written.
const REPORT: Duration = Duration::from_millis(100);

/// The thread's ends of what it shares with the server.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) inbox: Receiver<ToNetwork>,
    pub(crate) bell: Bell,
    pub(crate) outbox: Sender<FromNetwork>,
    pub(crate) out_bell: Bell,
    pub(crate) report: Arc<Mutex<serde_json::Value>>,
}

/// What an event of the epoll set is about.
#[derive(Debug)]
pub(crate) enum Watched {
    /// The socket of a pair.
    Pair(usize, usize),
    /// The doorbell of a link from a local source, over a pair.
    Doorbell { domain: usize, pair: usize, bell: OwnedFd },
}

/// See the module's head.
pub(crate) struct Hub {
    pub(crate) settings: config::Network,
    pub(crate) own_name: String,
    pub(crate) run: u128,
    /// The datapaths; the first is kernel UDP.
    pub(crate) ports: Vec<Port>,
    /// Who opens those beside it again, what was lost and somebody has still something of, and the number of the next lender.
    pub(crate) openers: Vec<Sender<Order>>,
    pub(crate) retired: Vec<Retired>,
    pub(crate) next_lender: usize,
    pub(crate) states: States,
    pub(crate) table: policy::Table,
    /// What was asked for instead of what the table says.
    pub(crate) requests: Requests,
    /// Bytes that were ever received, and how many when others were last offered this core after a handful.
    pub(crate) received: usize,
    handed: usize,
    /// What was done last.
    last: Last,
    /// When there were no more frames to receive, if that was in the look before: this one, if it is at once, does not ask again.
    drained: Option<Duration>,
    /// Whether it sleeps at once when there is nothing.
    sleeps: bool,
    /// A message went past the queues in this turn; the turn before ended with that.
    pub(crate) went_alone: bool,
    put_off: bool,
    /// Something was received, and what is due was not sent yet.
    behind: bool,
    /// How many of the frames that were received together are still to be looked at.
    pub(crate) coming: usize,
    /// They may have to be put in order.
    pub(crate) sorts: bool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) by_address: Addresses,
    pub(crate) domains: Vec<Domain>,
    pub(crate) directory: Box<dyn Directory>,
    pub(crate) sinks: HashMap<SinkId, RemoteSink>,
    pub(crate) wants: HashMap<u64, Want>,
    pub(crate) next_request: u64,
    /// Sinks whose turn has not come.
    pub(crate) later: Later,
    /// Until when the sessions of sources may let go of sinks that were gone and are back.
    pub(crate) letting_go: HashMap<SinkId, Duration>,
    /// Sources that have ended, or whose hosts are lost: those that claim them are heard again.
    pub(crate) freed: Vec<Epoch>,
    /// How much that waited was looked at again.
    #[cfg(test)]
    pub(crate) again: usize,
    pub(crate) underway: Underway,
    /// Flows of which another host is being told.
    pub(crate) words: usize,
    pub(crate) ends: Ends,
    pub(crate) epoll: OwnedFd,
    pub(crate) watched: HashMap<u64, Watched>,
    pub(crate) next_watch: u64,
    start: Instant,
    chores_at: Duration,
    /// Something has happened since the last time.
    chores_due: bool,
    report_at: Duration,
    glance_at: Duration,
    tend_at: Duration,
    directory_at: Option<Duration>,
    /// How long it sleeps next while sinks are waited for; not known while there is something to do.
    awaiting: Option<Duration>,
    /// How long a port without a way to be woken is left alone now.
    polling: Duration,
    /// When a frame went through such a port last.
    pub(crate) polled_at: Option<Duration>,
    pub(crate) unknown: u64,
    /// Sinks and sources of other hosts that do not fit, and why the last did not.
    pub(crate) refusals: u64,
    pub(crate) last_refusal: String,
    stopping: bool,
}

/// Whether what was due `at` a time has waited for as long again as it may. Seldom asked, and so not where it is asked.
#[cold]
#[inline(never)]
fn is_late(now: Duration, at: Duration, every: Duration) -> bool {
    now.saturating_sub(at) >= every
}

impl Hub {
    pub(crate) fn new(
        settings: config::Network,
        (own_name, run): (String, u128),
        (mut ports, states, openers): (Vec<Port>, States, Vec<Sender<Order>>),
        domains: Vec<Domain>,
        ends: Ends,
    ) -> Result<Self, NetworkError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd, data| epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN);
        watch(ends.bell.as_fd(), BELL)?;
        let table = policy::Table::new(&settings.policy)?;
        let count = ports.len();
        let home = &mut ports[HOME].datapath;
        let can = home.capabilities();
        let mut hosts = Vec::new();
        let mut by_address = Addresses::default();
        for (at, peer) in settings.peers.iter().enumerate() {
            let address = Address::Ip(*peer);
            let config = path_config(&settings, run, home.frame_limit(address), can.detects_changes);
            let seed = insane_wire::id::SessionId::random().0 as u64;
            let egress = Egress::new(&settings)?;
            hosts.push(Host::new((address, count), config, egress, seed, Duration::ZERO));
            by_address.insert(HOME, address, at);
        }
        let directory = Told::new(hosts.len(), Duration::from_millis(settings.patience_ms));
        let sleeps = settings.spin_us == 0 && settings.spin_most_us == 0;
        let mut hub = Self {
            settings,
            own_name,
            run,
            ports,
            openers,
            retired: Vec::new(),
            next_lender: 0,
            states,
            table,
            requests: Requests::default(),
            received: 0,
            handed: 0,
            last: Last::default(),
            drained: None,
            sleeps,
            went_alone: false,
            put_off: false,
            behind: false,
            coming: 0,
            sorts: false,
            hosts,
            by_address,
            domains,
            directory: Box::new(directory),
            sinks: HashMap::new(),
            wants: HashMap::new(),
            next_request: 1,
            later: Later::default(),
            letting_go: HashMap::new(),
            freed: Vec::new(),
            #[cfg(test)]
            again: 0,
            underway: Underway::default(),
            words: 0,
            ends,
            epoll,
            watched: HashMap::new(),
            next_watch: FIRST,
            start: Instant::now(),
            chores_at: Duration::ZERO,
            chores_due: true,
            report_at: Duration::ZERO,
            glance_at: Duration::ZERO,
            tend_at: Duration::ZERO,
            directory_at: None,
            awaiting: None,
            polling: POLLING.0,
            polled_at: None,
            unknown: 0,
            refusals: 0,
            last_refusal: String::new(),
            stopping: false,
        };
        (0..count).for_each(|number| hub.lend_out(number));
        Ok(hub)
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        tracing::info!(listen = %self.settings.listen, peers = self.hosts.len(), "network");
        let sleeps = self.sleeps;
        let mut patience = Patience::new(&self.settings);
        while !self.stopping {
            let now = self.now();
            if self.look_round(now, &mut patience) {
                let enough = if sleeps { 1 } else { HANDFUL };
                if patience.polite && self.received - self.handed >= enough {
                    self.handed = self.received;
                    // Who sleeps at once has nothing to look for before whom it woke has run, unless that has run already.
                    let keeps = patience.is_crowded(now, || self.done()) || (sleeps && self.has_input());
                    if !keeps {
                        patience.offer(|| self.done());
                    }
                }
                continue;
            }
            if self.may_sleep(now, &patience) {
                self.sleep_patiently(now, &mut patience, &[], Duration::MAX);
            } else {
                patience.go_on(|| self.done());
            }
        }
        self.farewell();
    }

    /// A turn, of which it is remembered when there was something to do. Returns whether there was.
    pub(crate) fn look_round(&mut self, now: Duration, patience: &mut Patience) -> bool {
        let busy = self.turn(now);
        if busy {
            patience.busy_at = now;
            self.awaiting = None;
            self.polling = POLLING.0;
        }
        busy
    }

    /// How much there has ever been to do: entries of links, and each two KiB that were received.
    pub(crate) fn done(&self) -> u64 {
        let intakes = self.domains.iter().flat_map(|domain| domain.intakes.iter().flatten());
        intakes.map(|intake| intake.consumer.position()).sum::<u64>() + (self.received as u64 >> 11)
    }

    /// Whether there was nothing for so long that it is time to sleep, or others want this core who do not give it back.
    pub(crate) fn may_sleep(&self, now: Duration, patience: &Patience) -> bool {
        let over = || patience.is_over(now, self.last) && !self.is_lively(now, patience.most * LIVELY);
        patience.is_crowded(now, || self.done()) || over()
    }

    /// Sleeps until something happens or is due, here or at one of `also`, and learns from that how patient to be. Returns whether
    /// something happened.
    pub(crate) fn sleep_patiently(
        &mut self,
        now: Duration,
        patience: &mut Patience,
        also: &[BorrowedFd<'_>],
        at_most: Duration,
    ) -> bool {
        let woken = self.sleep(now, also, at_most);
        patience.slept(self.now(), woken, self.last);
        woken
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether a port that can only be polled had a frame so short a time ago that the next may be on its way.
    fn is_lively(&self, now: Duration, patience: Duration) -> bool {
        self.polled_at.is_some_and(|at| now.saturating_sub(at) < patience)
    }

    /// One look at everything, messages first. Returns whether there was something to do.
    pub(crate) fn turn(&mut self, now: Duration) -> bool {
        // First what the one who had the core until now may have left.
        let took = self.take_from_links(now);
        if took {
            self.last = Last::Took;
        }
        // What went alone is on its way: the rest is for the next turn, which comes at once, but not for ever.
        let put_off = std::mem::take(&mut self.put_off);
        if std::mem::take(&mut self.went_alone) && !put_off {
            (self.put_off, self.chores_due) = (true, true);
            self.drained = self.drained.filter(|_| self.sleeps);
            return true;
        }
        let sends = took || std::mem::take(&mut self.behind);
        let mut busy = took;
        busy |= sends && self.transmit(now);
        let drained = if self.sleeps {
            self.drained.is_some_and(|at| now.saturating_sub(at) < GLANCE)
        } else {
            self.drained.take().is_some_and(|at| now.saturating_sub(at) < AT_ONCE)
        };
        let received = !drained && self.receive(now);
        busy |= received;
        if !sends && received {
            // Whoever waits for it goes before what is said about it: that is for the next turn.
            self.behind = true;
        } else if !sends {
            busy |= self.transmit(now);
        }
        if busy {
            for domain in &mut self.domains {
                if domain.wake_sinks() {
                    self.last = Last::HandedOut;
                }
            }
        }
        busy |= self.tidy(now, busy);
        self.chores_due |= busy;
        if !busy {
            // Whoever looks again because there was nothing looks at everything.
            self.drained = self.drained.filter(|_| self.sleeps);
        }
        busy
    }

    /// What is to be done now and then, in turns that have nothing else to do as long as there are some. Returns whether there was
    /// something to do.
    fn tidy(&mut self, now: Duration, busy: bool) -> bool {
        let is_due = |at: Duration, every: Duration| now >= at && (!busy || is_late(now, at, every));
        let mut found = false;
        // Looking at what sinks have counted and given back takes it from their caches: not with each look.
        if self.sleeps || is_due(self.tend_at, TENDING) {
            self.tend_at = now + TENDING;
            found |= self.tend();
        }
        if is_due(self.glance_at, GLANCE) {
            self.glance_at = now + GLANCE;
            found |= self.look();
        }
        if is_due(self.chores_at, CHORES) {
            (self.chores_at, self.chores_due) = (now + CHORES, false);
            self.chores(now);
        }
        found
    }

    /// Tends the links to local sinks, and gives credit for what has left this thread's memory.
    fn tend(&mut self) -> bool {
        let mut busy = false;
        self.prune_all();
        self.look_at_held();
        let mut found = Found::default();
        for domain in &mut self.domains {
            busy |= domain.tend(&mut found);
        }
        for (host, flow, messages, bytes) in found.gone {
            self.hosts[host].lanes.consumed(flow, messages, bytes);
        }
        for (host, flow, cursor) in found.cursors {
            self.hosts[host].lanes.advance(flow, cursor);
        }
        // At once: what is closed here must reach the core before what is opened after it.
        for domain in 0..self.domains.len() {
            self.notes(domain);
        }
        busy
    }

    fn chores(&mut self, now: Duration) {
        for host in 0..self.hosts.len() {
            if let Some(reach) = self.hosts[host].offers.take() {
                self.offered(host, &reach, now);
                self.hosts[host].reach = reach;
            }
            if self.hosts[host].leave_if_deaf(now) {
                self.events(host, now, None);
            }
            if !self.hosts[host].egress.is_fifo() && !self.hosts[host].is_connected() {
                let gone = self.hosts[host].drain_closing(now);
                gone.into_iter().for_each(|token| self.released(token, End::Unconfirmed));
            }
        }
        for host in &mut self.hosts {
            host.settle_all();
            host.push_waiting();
            host.sweep(&mut self.domains);
        }
        self.end_holds(now);
        self.tell_reports(now);
        self.flush_pairs(now);
        if self.directory_at.is_none_or(|at| at <= now) {
            self.directory_at = self.directory.on_time(now);
        }
        self.serve_directory();
        self.offer_later();
        self.forget(now);
        self.watch_found(now);
        if now >= self.report_at {
            self.report_at = now + REPORT;
            self.look_after_ports(now);
            self.publish();
        }
    }

    /// Writes the report anew.
    pub(crate) fn publish(&self) {
        let report = self.report();
        if let Ok(mut shared) = self.ends.report.lock() {
            *shared = report;
        }
    }

    /// Sends sessions what their sockets had no room for; when to come back for what they still have none for.
    fn flush_pairs(&mut self, now: Duration) -> Option<Duration> {
        self.domains.iter_mut().filter_map(|domain| domain.flush_pairs(now)).min()
    }

    /// Whether a local source has something for another host.
    pub(crate) fn has_input(&mut self) -> bool {
        let mut intakes = self.domains.iter_mut().flat_map(|d| d.intakes.iter_mut().flatten());
        intakes.any(|i| i.broken.is_none() && !i.gone && !i.held && i.consumer.ready())
    }

    /// Receives what is there, a bounded number of pieces from each datapath.
    fn receive(&mut self, now: Duration) -> bool {
        let (mut busy, mut more) = (false, false);
        let lively = self.ports.iter().any(|port| port.looks.is_lively(now));
        for port in 0..self.ports.len() {
            if !self.ports[port].looks.is_due(now, lively) {
                continue;
            }
            let report = self.receive_by(port, now);
            if self.ports[port].threads.is_some() {
                self.note_refused_later(port, now);
            }
            self.ports[port].looks.note(now, report.frames);
            busy |= report.frames > 0;
            more |= report.more;
        }
        self.drained = (!more).then_some(now);
        busy
    }

    fn receive_by(&mut self, port: usize, now: Duration) -> RxReport {
        let Self { hosts, domains, ports, by_address, .. } = self;
        let Port { datapath, rx, landings, owners, loans, most_lent, copies, .. } = &mut ports[port];
        if *most_lent > 0 {
            loans.returned(&mut rx.back);
            let room = loans.out().saturating_add(rx.limit as u32) <= *most_lent;
            rx.lend = room && domains.iter().any(Domain::wants_scattered);
        }
        owners.clear();
        let mut placer = Placer { hosts, domains, by_address, port, copies: *copies, now, landings, owners };
        let report = datapath.receive(rx, Some(&mut placer));
        if !owners.is_empty() {
            self.received += rx.landed.iter().map(|landed| landed.len).sum::<usize>();
            self.receive_landed(port, now);
        }
        let mut all = std::mem::take(&mut self.ports[port].rx.taken);
        self.take_batch(now, port, &mut all);
        // Its room is used again.
        self.ports[port].rx.taken = all;
        self.domains.iter_mut().for_each(Domain::hand_out_gathered);
        if report.frames > 0 && self.ports[port].polled {
            self.polled_at = Some(now);
        }
        report
    }

    /// Takes what was received straight to where it belongs, and what strayed.
    fn receive_landed(&mut self, port: usize, now: Duration) {
        let Self { hosts, domains, ports, .. } = self;
        let Port { rx, landings, owners, .. } = &mut ports[port];
        for landed in rx.landed.drain(..) {
            let Ok(number) = usize::try_from(landed.token) else { continue };
            let Some(host) = owners.get(number) else { continue };
            let Host { lanes, incoming, control_in, long_words, kept, .. } = &mut hosts[*host];
            let control = *control_in;
            let mut store = Memory { domains, incoming, lane: port, control, long_words, kept, loan: None };
            let Some(path) = lanes.path(port) else { continue };
            let read = (&rx.heads[landed.heads], &rx.heads[landed.tails]);
            path.receive_run(now, read, number, landings, &mut store);
        }
        for stray in landings.finish() {
            let host = self.ports[port].owners[stray.number];
            reach(Step::Receive);
            // Its messages wait for what else was received with it.
            let (name, events) = self.give_to_path(now, (host, port), &stray.frame, None);
            self.hosts[host].kept.keep(name, stray.frame, events);
        }
        // In the order of the messages, now that all were looked at. What was taken has come after what landed.
        let mut owners = std::mem::take(&mut self.ports[port].owners);
        owners.dedup();
        for host in owners.drain(..) {
            self.events(host, now, None);
        }
        self.ports[port].owners = owners;
    }

    /// Gives a frame, which may be lent, to its path; the name under which that has it, and how many events refer to it.
    fn give_to_path(
        &mut self,
        now: Duration,
        (host, lane): (usize, usize),
        frame: &[u8],
        loan: Option<&Arc<Loan>>,
    ) -> (u64, u32) {
        let Host { lanes, incoming, control_in, long_words, kept, .. } = &mut self.hosts[host];
        let (control, domains, name) = (*control_in, &mut self.domains, kept.name());
        let mut store = Memory { domains, incoming, lane, control, long_words, kept, loan };
        let receipt = lanes.path(lane).map(|path| path.receive(now, frame, name, &mut store));
        (name, receipt.map_or(0, |receipt| receipt.kept))
    }

    /// Takes frames that lie one every `stride` bytes, up to one that comes early: where that begins.
    pub(crate) fn frames(&mut self, now: Duration, at: (usize, usize), bytes: &[u8], stride: usize) -> Option<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (frame, behind) = rest.split_at(stride.clamp(1, rest.len()));
            self.coming -= 1;
            if !self.frame(now, at, frame, None) {
                self.coming += 1;
                return Some(bytes.len() - rest.len());
            }
            rest = behind;
            let more = if rest.is_empty() { 0 } else { self.frames_alike(now, at, frame, rest, stride) };
            rest = rest.get(more * stride..).unwrap_or(&[]);
        }
        None
    }

    /// Takes those of the frames in `rest` that are like the one before them; how many.
    fn frames_alike(
        &mut self,
        now: Duration,
        (host, lane): (usize, usize),
        before: &[u8],
        rest: &[u8],
        stride: usize,
    ) -> usize {
        let row = self.hosts[host].lanes.path(lane).and_then(|path| path.receive_alike(now, before, rest, stride));
        let Some(row) = row else { return 0 };
        reach(Step::Receive);
        self.coming -= usize::from(row.count);
        self.row(host, now, lane, &row, (rest, stride));
        self.events(host, now, None);
        row.count.into()
    }

    /// Takes a frame, which may be lent; `false`, with nothing done, if it is not and comes early ([`Hub::is_early`]).
    pub(crate) fn frame(
        &mut self,
        now: Duration,
        (host, lane): (usize, usize),
        frame: &[u8],
        loan: Option<&Arc<Loan>>,
    ) -> bool {
        reach(Step::Receive);
        let alone = |path: &mut Path| path.receive_alone(now, frame);
        if let Some(row) = self.hosts[host].lanes.path(lane).filter(|_| loan.is_none()).and_then(alone) {
            let flow = FlowId { lane, number: row.flow };
            if !self.take_at_once(host, flow, &row, frame) {
                let lies = Lies::Frame { token: 0, at: row.at, len: row.len };
                self.message(host, now, flow, (&row.message, 0), lies, Some(Frame { name: 0, bytes: frame, loan }));
            }
            if self.hosts[host].lanes.has_events(lane) {
                self.events(host, now, None);
            }
            return true;
        }
        if loan.is_none() && self.is_early((host, lane), frame) {
            return false;
        }
        let (name, _) = self.give_to_path(now, (host, lane), frame, loan);
        self.events(host, now, Some(Frame { name, bytes: frame, loan }));
        true
    }

    /// Builds frames and sends them, until there are none or the datapaths are busy.
    fn transmit(&mut self, now: Duration) -> bool {
        // Most looks find that, and that is all they look at.
        if self.ports.iter().all(|port| port.tx.is_done()) && self.hosts.iter_mut().all(|host| host.rests(now)) {
            return false;
        }
        let mut busy = false;
        for host in self.hosts.iter_mut().filter(|host| host.goes_on) {
            host.goes_on = false;
            host.push_waiting();
            busy = true;
        }
        let mut looked = busy;
        for port in 0..self.ports.len() {
            if self.goes_by(port, now) {
                looked = true;
                busy |= self.transmit_by(port, now);
            }
        }
        if looked {
            for host in 0..self.hosts.len() {
                self.events(host, now, None);
            }
        }
        busy
    }

    /// Whether something may have to be sent by a port.
    fn goes_by(&mut self, port: usize, now: Duration) -> bool {
        let rests = |host: &mut Host| {
            let lane_rests = |lane: &mut Lane| lane.path.rests(now);
            host.is_dormant() || (host.egress.waiting() == 0 && host.lanes.lane(port).is_none_or(lane_rests))
        };
        !self.ports[port].tx.is_done() || !self.hosts.iter_mut().all(rests)
    }

    fn transmit_by(&mut self, port: usize, now: Duration) -> bool {
        let (mut busy, mut more) = (false, true);
        for _ in 0..8 {
            if self.ports[port].tx.is_done() {
                if !std::mem::take(&mut more) {
                    break;
                }
                self.ports[port].tx.clear();
                self.pump(now);
                let Port { tx, datapath, apart, .. } = &mut self.ports[port];
                let mut can = None;
                for host in self.hosts.iter_mut().filter(|h| !h.is_dormant()) {
                    let Some(to) = host.lanes.get(port).map(|lane| lane.address) else { continue };
                    let Some(path) = host.lanes.path(port) else { continue };
                    let mut batch = Burst::default();
                    while !batch.is_full() {
                        let first = tx.buffer().len();
                        let mut sources = Sources { underway: &self.underway, domains: &self.domains };
                        let Some(built) = path.transmit(now, tx.buffer(), &mut sources) else { break };
                        let at = tx.frames().len();
                        apart.extend(built.gather.map(|gather| Apart { first: at, frames: 1, gather, every: 0 }));
                        tx.commit(to, first, None, 0);
                        let can = can.get_or_insert_with(|| datapath.capabilities());
                        batch.add(built.len, can);
                        if built.may_pad {
                            tx.allow_padding();
                        }
                        let (first, room) = (tx.buffer().len(), batch.room());
                        if let Some(alike) = path.transmit_alike(now, tx.buffer(), &mut sources, room) {
                            let (at, Alike { frames, every, .. }) = (tx.frames().len(), alike);
                            apart.extend(alike.gather.map(|gather| Apart { first: at, frames, gather, every }));
                            tx.commit_alike(to, first, alike.in_buffer(), alike.may_pad);
                            (0..alike.frames).for_each(|_| batch.add(alike.len, can));
                        }
                    }
                    // Otherwise it has no more, unless it was not given all there is.
                    more |= batch.is_full() || host.egress.waiting() > 0;
                }
            }
            if self.ports[port].tx.frames().is_empty() {
                break;
            }
            reach(Step::Transmit);
            let sources = Sources { underway: &self.underway, domains: &self.domains };
            let report = self.ports[port].transmit(&sources);
            // A thread that is behind with all it was given wakes this one, as TCP does that had no room: they may need the core for that.
            let wakes = self.ports[port].threads.is_some() || self.ports[port].via().tcp;
            busy |= !wakes || report.sent + report.refused > 0;
            if report.sent > 0 && self.ports[port].polled {
                self.polled_at = Some(now);
            }
            if report.refused > 0 {
                self.note_refused(port, now);
            }
            if !self.ports[port].tx.is_done() {
                break;
            }
        }
        busy
    }

    /// Gives the paths what the schedulers let go.
    fn pump(&mut self, now: Duration) {
        for host in 0..self.hosts.len() {
            let refused = self.hosts[host].pump(now);
            refused.into_iter().for_each(|token| self.released(token, End::Unconfirmed));
        }
    }

    pub(crate) fn note_refused(&mut self, port: usize, now: Duration) {
        let frames = self.ports[port].tx.frames().iter();
        let refused = frames.filter(|f| !matches!(f.outcome, Outcome::Sent | Outcome::Pending));
        let refused = refused.map(|f| (f.to, f.outcome)).collect();
        self.note_outcomes(port, refused, now);
    }

    /// What a thread in between has found out since.
    fn note_refused_later(&mut self, port: usize, now: Duration) {
        let mut refused = Vec::new();
        self.ports[port].datapath.refused_later(&mut refused);
        if !refused.is_empty() {
            self.note_outcomes(port, refused.into_iter().collect(), now);
        }
    }

    fn note_outcomes(&mut self, port: usize, refused: HashSet<(Address, Outcome)>, now: Duration) {
        let datapath = &mut self.ports[port].datapath;
        let of = |outcome| refused.iter().filter(move |(_, is)| *is == outcome).map(|(to, _)| *to);
        for address in of(Outcome::TooLarge) {
            let host = self.by_address.find(port, address);
            if let Some(path) = host.and_then(|host| self.hosts[host].lanes.path(port)) {
                path.set_frame_limit(datapath.frame_limit(address));
            }
        }
        // An interface that is down, a neighbour that does not answer: streams that have another way need not wait until the
        // silence is long enough. The home is the last way, and a host is not lost for a hiccup.
        if port != HOME {
            for address in of(Outcome::Unreachable) {
                let host = self.by_address.find(port, address);
                host.and_then(|host| self.hosts[host].lanes.path(port))
                    .into_iter()
                    .for_each(|path| path.disconnect(now));
            }
        }
    }

    pub(crate) fn take_orders(&mut self) {
        let mut withdrawn = Vec::new();
        while let Ok(order) = self.ends.inbox.try_recv() {
            match order {
                ToNetwork::Stop => self.stopping = true,
                ToNetwork::Opened(ports, chosen) => self.opened(ports, &chosen),
                ToNetwork::NotOpened(numbers, why) => self.not_opened(&numbers, &why),
                ToNetwork::Found(address) => self.found(address),
                ToNetwork::Gone(address) => self.gone(address),
                ToNetwork::Announce(sink) => {
                    self.withdraw(&mut withdrawn);
                    reach(Step::Announce);
                    self.directory.announce(&sink);
                    // At once: a host that hears that a sink is attached before it hears of the sink does not take it for one.
                    self.pass_on();
                }
                ToNetwork::Withdraw(sink) => withdrawn.push(sink),
                ToNetwork::StreamClosed(domain, stream) => self.stream_closed(&domain, &stream),
                ToNetwork::Message(conn, message, fd) => self.told(conn, message, fd),
                ToNetwork::Rebind(conn, request, asked) => self.asked_to_rebind(conn, request, asked),
            }
        }
        self.withdraw(&mut withdrawn);
        self.serve_directory();
    }

    /// Sinks of this host are gone. Their sessions have said before that their links end here: so they do before their sources hear
    /// that they are gone, and may send what is not meant for them any more.
    fn withdraw(&mut self, sinks: &mut Vec<SinkId>) {
        if !sinks.is_empty() {
            self.read_pairs();
            for sink in sinks.drain(..) {
                for host in &mut self.hosts {
                    host.refused.remove(&sink);
                }
                self.directory.withdraw(sink);
            }
            self.pass_on();
        }
    }

    /// Whether it was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// The last words to the other hosts.
    pub(crate) fn farewell(&mut self) {
        self.hosts.iter_mut().flat_map(|h| h.lanes.paths()).for_each(Path::goodbye);
        let now = self.now();
        self.transmit(now);
        self.ports.iter_mut().for_each(|port| port.datapath.close());
    }
}
