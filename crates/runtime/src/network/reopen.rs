//! Datapaths that come, or go and come back: one that is opened for the first time, whose device was not there at the start, whose
//! interface was taken away, or whose plug-in has failed.
//!
//! A port keeps its number, and the paths over it stay, as over an interface that is down: flows move to other paths, and back. Opening
//! blocks, and nobody knows for how long, so each datapath beside kernel UDP has a thread that does nothing else, from the first time on,
//! and sleeps while the datapath is there. It tries at once, then a second later, and half as often each time down to every 30 s; at once again when an interface of the name
//! appears; never twice within a second; no more when it says that there is no use in it. When streams come back to it is said elsewhere
//! (`damping`).
//!
//! What was lost stays as long as somebody has a frame that it has lent: memory is let go of when nobody can read it any more. Until then what
//! comes in its place lends nothing, so that no more than one of each is kept, whatever sessions do.

use crate::config::Kind;
use crate::network::hub::Hub;
use crate::network::lanes::HOME;
use crate::network::ports::{Interface, Opening, Port, State, States, note, note_open};
use crate::network::{Bell, ToNetwork};
use crate::watch::attempt;
use insane_datapath::Datapath;
use insane_wire::host::to_host::Body;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The shortest time between two attempts, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How often it is looked whether an interface is there while it is waited for.
const LOOK: Duration = Duration::from_millis(200);

/// For how long a network side waits for datapaths that are opened for the first time before it speaks to other hosts: most are there by
/// then, DPDK's EAL among them, and no stream goes elsewhere first. What takes longer comes later. Sessions are served meanwhile.
const QUICK: Duration = Duration::from_secs(1);

/// For how long the end of a runtime waits for the threads that open datapaths: longer than opening one takes whose queue another process
/// still has, which is three seconds. What takes longer may take for ever.
const LAST: Duration = Duration::from_secs(5);

/// What the thread of a datapath is told. It ends as well when nobody can tell it anything any more.
pub(crate) enum Order {
    /// Nobody needs this any more; closing it takes long.
    Close(Box<dyn Datapath>),
    /// It is gone, to be opened anew.
    Open,
    /// Nothing more is wanted.
    End,
}

/// When to try next.
#[derive(Debug)]
struct Rhythm {
    tried: Option<Duration>,
    pause: Duration,
    /// The interface's number at the last attempt.
    seen: Option<u32>,
}

impl Rhythm {
    fn new() -> Self {
        Self { tried: None, pause: Duration::ZERO, seen: None }
    }

    /// Whether it is time; `there` is the number of the interface, if there is one.
    fn is_due(&self, now: Duration, there: Option<u32>) -> bool {
        let Some(tried) = self.tried else { return true };
        let pause = if there.is_some() && there != self.seen { PAUSE.0 } else { self.pause };
        now.saturating_sub(tried) >= pause
    }

    /// It is tried.
    fn try_at(&mut self, now: Duration, there: Option<u32>) {
        self.pause = (self.pause * 2).clamp(PAUSE.0, PAUSE.1);
        (self.tried, self.seen) = (Some(now), there);
    }

    /// It was open, and is gone.
    fn begin_anew(&mut self) {
        self.pause = PAUSE.0;
    }
}

/// The threads that open datapaths, one for each beside kernel UDP. Dropped, it waits for their ends, no longer than [`LAST`].
#[derive(Debug)]
pub(crate) struct Openers {
    all: Vec<Running>,
    /// It is cut off when all have ended. Behind a lock as several threads may have a server.
    ended: Mutex<Receiver<()>>,
}

/// One of them, with what it opens.
#[derive(Debug)]
struct Running {
    kind: &'static str,
    place: String,
    to: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Openers {
    /// Starts them. Each tries at once; when all have, what is returned beside is cut off.
    pub(crate) fn start(
        openings: Vec<Opening>,
        states: &States,
        network: &(Sender<ToNetwork>, Bell),
    ) -> std::io::Result<(Self, Receiver<()>)> {
        let ((first, tried), (end, ended)) = (channel(), channel());
        let mut openers = Self { all: Vec::new(), ended: Mutex::new(ended) };
        for opening in openings {
            let (kind, place) = (opening.settings.kind.name(), opening.settings.place().to_owned());
            let ((to, orders), (first, end)) = (channel(), (first.clone(), end.clone()));
            let (states, network, rhythm) = (states.clone(), network.clone(), Rhythm::new());
            let opener = Opener { opening, states, network, rhythm, stands: Stands::Absent, told: None };
            let thread = std::thread::Builder::new().name("insane-open".into()).spawn(move || {
                opener.serve(first, &orders);
                drop(end);
            })?;
            openers.all.push(Running { kind, place, to, thread });
        }
        Ok((openers, tried))
    }

    /// By what each is told something.
    pub(crate) fn orders(&self) -> Vec<Sender<Order>> {
        self.all.iter().map(|one| one.to.clone()).collect()
    }

    /// Ends them. What they have been told before is done.
    pub(crate) fn end(&mut self) {
        if self.all.is_empty() {
            return;
        }
        for one in &self.all {
            let _ = one.to.send(Order::End);
        }
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let all = matches!(ended.recv_timeout(LAST), Err(RecvTimeoutError::Disconnected));
        for Running { kind, place, thread, .. } in self.all.drain(..) {
            if all || thread.is_finished() {
                let _ = thread.join();
            } else {
                tracing::warn!(kind, place, "the runtime ends while its datapath is still being opened or closed");
            }
        }
    }
}

impl Drop for Openers {
    fn drop(&mut self) {
        self.end();
    }
}

/// How it stands with a datapath.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Open,
    Absent,
    /// It is absent, and nothing changes that any more.
    Over,
}

/// What the thread of a datapath has.
struct Opener {
    opening: Opening,
    states: States,
    network: (Sender<ToNetwork>, Bell),
    rhythm: Rhythm,
    stands: Stands,
    /// The reason that the network side was told last while it is absent.
    told: Option<String>,
}

impl Opener {
    /// Opens it whenever it is time to, until nobody wants that any more.
    fn serve(mut self, first: Sender<()>, orders: &Receiver<Order>) {
        let start = Instant::now();
        let name = Some(self.opening.settings.interface.clone()).filter(|name| !name.is_empty());
        let interface = name.and_then(|name| Interface::new(&name));
        let there = || interface.as_ref().and_then(Interface::now);
        let mut first = Some(first);
        loop {
            let look = if first.is_some() { Duration::ZERO } else { LOOK };
            let order = match self.stands {
                Stands::Absent => orders.recv_timeout(look),
                Stands::Open | Stands::Over => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match order {
                Ok(Order::Close(datapath)) => close(datapath),
                Ok(Order::Open) => {
                    (self.stands, self.told) = (Stands::Absent, None);
                    self.rhythm.begin_anew();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let (now, index) = (start.elapsed(), there());
            if self.stands != Stands::Absent || !self.rhythm.is_due(now, index) {
                continue;
            }
            self.rhythm.try_at(now, index);
            // What panics is no reason to leave it at that: the next time it may not.
            let told = match attempt(|| self.opening.open()) {
                Ok(Ok((ports, chosen))) => {
                    self.stands = Stands::Open;
                    self.tell(ToNetwork::Opened(ports, chosen))
                }
                Ok(Err(e)) => self.failed(e.to_string(), e.is_final()),
                Err(text) => self.failed(format!("opening it panicked: {text}"), false),
            };
            if !told {
                return;
            }
            first = None;
        }
    }

    /// It could not be opened. Returns as [`Self::tell`].
    fn failed(&mut self, reason: String, is_final: bool) -> bool {
        if is_final {
            self.stands = Stands::Over;
        }
        let failed = |state: &mut State| {
            state.tries += 1;
            if state.is.as_ref().err() != Some(&reason) {
                tracing::warn!(kind = state.via.name(), interface = state.interface, reason, "datapath absent");
            }
            (state.is, state.is_final) = (Err(reason.clone()), is_final);
        };
        self.opening.numbers().for_each(|number| note(&self.states, number, failed));
        // Reports have it by now. Those whose streams would be over it hear of each that is another one.
        if self.told.as_ref() == Some(&reason) {
            return true;
        }
        self.told = Some(reason.clone());
        self.tell(ToNetwork::NotOpened(self.opening.numbers().collect(), reason))
    }

    /// Tells the network side. Returns whether that is there.
    fn tell(&self, message: ToNetwork) -> bool {
        let (to, bell) = &self.network;
        let told = to.send(message).is_ok();
        bell.ring();
        told
    }
}

/// Closes what nobody needs any more. If that panics it is opened again all the same.
fn close(mut datapath: Box<dyn Datapath>) {
    // One by one: what panics once more while it unwinds ends the process.
    for ended in [attempt(|| datapath.close()), attempt(move || drop(datapath))] {
        ended.unwrap_or_else(|text| tracing::error!(text, "closing a datapath panicked"));
    }
}

/// A port that is gone, of which somebody still has frames.
pub(crate) struct Retired {
    number: usize,
    port: Port,
}

impl Hub {
    /// Waits until all datapaths were tried for the first time, no longer than [`QUICK`], and takes what there is then.
    pub(crate) fn begin(&mut self, tried: &Receiver<()>) {
        let _ = tried.recv_timeout(QUICK);
        self.take_orders();
        self.publish();
    }

    /// Looks which ports are gone. A system call or two for each.
    pub(crate) fn look_after_ports(&mut self, now: Duration) {
        for number in 0..self.ports.len() {
            let port = &mut self.ports[number];
            match if port.absent.is_none() { port.lost() } else { None } {
                None => {}
                Some(why) if number == HOME => self.open_home(&why),
                Some(why) => self.port_lost(number, why, now),
            }
        }
        self.tend_retired();
    }

    /// Kernel UDP must be opened afresh, which takes microseconds. Until its address is there again it is tried with each look.
    fn open_home(&mut self, why: &str) {
        let home = &mut self.ports[HOME].datapath;
        home.close();
        let result = home.open();
        note(&self.states, HOME, |state| match &result {
            Ok(()) => {
                tracing::info!(why, "kernel UDP open again");
                state.losses += 1;
                (state.is, state.tries, state.lost) = (Ok("kernel UDP".into()), 0, Some(why.to_owned()));
            }
            Err(e) => {
                state.tries += 1;
                state.is = Err(e.to_string());
            }
        });
        if result.is_ok() {
            self.tell_limits(HOME);
        }
    }

    /// A port does not work any more, nor does what else is over its device: streams go elsewhere, and the device is opened anew.
    pub(crate) fn port_lost(&mut self, number: usize, why: String, now: Duration) {
        let device = self.device_of(number);
        for number in (0..self.ports.len()).filter(|number| self.device_of(*number) == device).collect::<Vec<_>>() {
            if self.ports[number].absent.is_none() {
                self.take_down(number, why.clone(), now);
            }
        }
        self.order(device, Order::Open);
    }

    /// The port of a device's datagrams, of a port over that device.
    fn device_of(&self, number: usize) -> usize {
        self.ports.get(number).and_then(|port| port.over).unwrap_or(number)
    }

    fn take_down(&mut self, number: usize, why: String, now: Duration) {
        let (kind, over) = (self.ports[number].kind, self.ports[number].over);
        tracing::warn!(kind = self.ports[number].via().name(), why, "datapath lost");
        note(&self.states, number, |state| {
            state.losses += 1;
            (state.is, state.tap, state.tries, state.lost) = (Err(why.clone()), None, 0, Some(why.clone()));
            state.threads = None;
        });
        let mut port = std::mem::replace(&mut self.ports[number], Port::absent(kind, why).over(over));
        self.domains.iter_mut().for_each(|domain| domain.borrow_no_more(port.lender));
        for host in 0..self.hosts.len() {
            self.hosts[host].lanes.path(number).into_iter().for_each(|path| path.disconnect(now));
            self.events(host, now, None);
            // Those that moved before this was known have been told another reason.
            self.tell_all_moved(host);
        }
        if [Kind::Dpdk, Kind::Plugin].contains(&kind) {
            // What it has lent stays when it is closed, and two of one name cannot be.
            let closed = Port::absent(kind, String::new()).datapath;
            self.order(number, Order::Close(std::mem::replace(&mut port.datapath, closed)));
        }
        self.retired.push(Retired { number, port });
        self.tend_retired();
    }

    fn order(&self, number: usize, order: Order) {
        // It ends after this side alone.
        let opener = self.device_of(number).checked_sub(HOME + 1).and_then(|at| self.openers.get(at));
        if let Some(opener) = opener {
            let _ = opener.send(order);
        }
    }

    /// Lets go of what is gone and nobody has anything of any more.
    fn tend_retired(&mut self) {
        for Retired { number, mut port } in std::mem::take(&mut self.retired) {
            port.loans.returned(&mut port.rx.back);
            if port.loans.out() > 0 {
                self.retired.push(Retired { number, port });
                continue;
            }
            // It takes back what it has lent; nothing else is wanted any more.
            port.rx.lend = false;
            port.datapath.receive(&mut port.rx, None);
            self.domains.iter_mut().for_each(|domain| domain.forget_lender(port.lender));
            self.order(number, Order::Close(port.datapath));
            self.lend_out(number);
        }
    }

    /// Shows the domain what a port lends out of, unless somebody has still something of its predecessor.
    pub(crate) fn lend_out(&mut self, number: usize) {
        // What a port lends is for those to see who may see all of it.
        let [domain] = &mut self.domains[..] else { return };
        let port = &mut self.ports[number];
        if port.may_lend == 0 || port.most_lent > 0 || self.retired.iter().any(|retired| retired.number == number) {
            return;
        }
        port.lender = self.next_lender;
        self.next_lender += 1;
        match domain.borrow_from(port.lender, &port.datapath.lends()) {
            Ok(()) => port.most_lent = port.may_lend,
            Err(e) => {
                tracing::warn!(datapath = port.kind.name(), error = %e, "what it would lend cannot be shown: it is copied");
                domain.borrow_no_more(port.lender);
                domain.forget_lender(port.lender);
                port.may_lend = 0;
            }
        }
    }

    /// Ports are open again, or at last: they are sought by and for all hosts that have their kinds, and streams come to them as paths
    /// stand.
    pub(crate) fn opened(&mut self, ports: Vec<(usize, Port)>, chosen: &str) {
        let now = self.now();
        let mut numbers = Vec::new();
        for (number, port) in ports {
            tracing::info!(kind = port.via().name(), chosen, "datapath taken");
            note_open(&self.states, number, &port, chosen);
            self.ports[number] = port;
            self.lend_out(number);
            self.tell_limits(number);
            numbers.push(number);
        }
        self.pass_on();
        for host in 0..self.hosts.len() {
            // Others say how they are reached with their next connection.
            if self.hosts[host].is_connected() {
                let reach = std::mem::take(&mut self.hosts[host].reach);
                numbers.iter().for_each(|number| self.offered_by(*number, host, &reach, now));
                self.hosts[host].reach = reach;
                let hello = self.hello();
                self.hosts[host].say(Body::Hello(hello), &mut self.underway);
                // Runtimes that do not know of a second hello take it for that of a new connection, which names all sinks.
                self.directory.connected(host);
            }
        }
        self.pass_on();
    }

    /// Ports could not be opened, for another reason than was known: streams that would be over them are told why.
    pub(crate) fn not_opened(&mut self, numbers: &[usize], why: &str) {
        for number in numbers {
            let absent = self.ports.get_mut(*number).and_then(|port| port.absent.as_mut());
            absent.into_iter().for_each(|absent| why.clone_into(absent));
        }
        (0..self.hosts.len()).for_each(|host| self.tell_all_moved(host));
    }

    /// Frames of another length may go by a port now, and come.
    fn tell_limits(&mut self, number: usize) {
        let port = &mut self.ports[number];
        let most = u32::try_from(port.datapath.capabilities().max_frame).unwrap_or(u32::MAX);
        for lane in self.hosts.iter_mut().filter_map(|host| host.lanes.lane(number)) {
            let limit = port.datapath.frame_limit(lane.address);
            lane.path.set_frame_limit(limit);
            lane.path.set_copy_bytes(port.copies_up_to(limit));
            if number != HOME {
                lane.path.set_max_frame(most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it is tried in so many seconds; `there` says which interface is there when.
    fn tries(rhythm: &mut Rhythm, seconds: std::ops::Range<u64>, there: impl Fn(Duration) -> Option<u32>) -> Vec<u64> {
        let mut all = Vec::new();
        for now in (seconds.start * 1000..seconds.end * 1000).step_by(100).map(Duration::from_millis) {
            if rhythm.is_due(now, there(now)) {
                rhythm.try_at(now, there(now));
                all.push(now.as_millis() as u64);
            }
        }
        all
    }

    #[test]
    fn what_cannot_be_opened_is_tried_less_and_less_often_but_for_ever() {
        let all = tries(&mut Rhythm::new(), 0..181, |_| None);
        assert_eq!(all, [0, 1, 3, 7, 15, 31, 61, 91, 121, 151].map(|second| second * 1000));
    }

    #[test]
    fn an_interface_that_appears_is_tried_at_once_and_one_that_flaps_once_a_second() {
        // It comes long after the last attempt.
        let appears = |now: Duration| (now.as_millis() >= 20_300).then_some(7);
        assert_eq!(tries(&mut Rhythm::new(), 0..30, appears), [0, 1000, 3000, 7000, 15_000, 20_300]);
        // Another one every 200 ms.
        let flaps = |now: Duration| u32::try_from(now.as_millis() / 200).ok();
        assert_eq!(tries(&mut Rhythm::new(), 0..5, flaps), [0, 1000, 2000, 3000, 4000]);
    }

    #[test]
    fn what_was_open_is_tried_at_once_when_it_goes_but_never_twice_in_a_second() {
        let mut rhythm = Rhythm::new();
        assert_eq!(tries(&mut rhythm, 0..20, |_| None).last(), Some(&15_000));
        // That succeeded; it goes after five seconds, and again half a second after it was back.
        rhythm.begin_anew();
        assert!(rhythm.is_due(Duration::from_secs(20), Some(1)));
        rhythm.try_at(Duration::from_secs(20), Some(1));
        rhythm.begin_anew();
        assert_eq!(tries(&mut rhythm, 20..24, |_| Some(2)), [21_000, 23_000]);
    }
}
