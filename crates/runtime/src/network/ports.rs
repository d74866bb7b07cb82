//! The datapaths that the runtime has: opened as the configuration says. What is not open is absent, with the reason, and keeps its
//! place: it may come later (`reopen`). Only kernel UDP must be there.

use crate::config::{self, Kind, Mode, Via};
use crate::network::control::Sources;
use crate::network::hub::HANDFUL;
use crate::network::lanes::HOME;
use crate::network::scatter::Loans;
use crate::network::threads::Threads;
use insane_datagrams::{DatagramConfig, Datagrams, StreamCounts, with_streams};
use insane_datapath::batch::{Outcome, Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::raw::RawDatapath;
use insane_datapath::tap::{Control, Running, Tap};
use insane_datapath::thread::{OnThread, PollingThread, Spread};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Foreign, Stats};
use insane_datapath_dpdk::{Dpdk, DpdkConfig};
use insane_datapath_plugin::{Plugin, PluginDatapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_datapath_xdp::{Attach, Filter, Queues, Vlan, XdpConfig, XdpDatapath};
use insane_netstack::Prefix;
use insane_transport::{Gather, Landings};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// So many hosts that the directory finds, beside the configured ones, have connections over TCP at a time. Strangers may have them as well,
/// and each takes memory.
const FOUND_OVER_TCP: usize = 64;

/// Slots to receive into, of each datapath.
const RECEIVE_SLOTS: u64 = 64;

/// Shorter payload is copied into its frame whatever the datapath can: naming it costs more.
const LEAST_APART: u32 = 512;

/// Why a datapath is absent that was not opened yet.
const NOT_YET: &str = "it is being opened";

/// For payload that is no longer there; no frame is longer.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// What may be put over a datapath that was opened; see [`crate::server::Server::start_over`].
pub(crate) type Over = Arc<Mutex<dyn FnMut(Kind, Box<dyn Datapath>) -> Box<dyn Datapath> + Send>>;

fn put_over(over: &Over, kind: Kind, datapath: Box<dyn Datapath>) -> Box<dyn Datapath> {
    (over.lock().unwrap_or_else(PoisonError::into_inner))(kind, datapath)
}

/// Puts a datapath on the threads that run it, if that is not the network's own.
fn put_on(
    threads: &[PollingThread],
    datapath: Box<dyn Datapath>,
) -> Result<(Box<dyn Datapath>, Option<Spread>), DatapathError> {
    let [first, further @ ..] = threads else { return Ok((datapath, None)) };
    let on = OnThread::spread(first, further, datapath)
        .map_err(|source| DatapathError::System { call: "a polling thread", source })?;
    let spread = on.threads();
    if let Some(why) = spread.short() {
        let (has, wanted) = (spread.received().len(), spread.wanted());
        tracing::warn!(datapath = on.capabilities().technology, has, wanted, why, "fewer threads than were named");
    }
    Ok((Box::new(on), Some(spread)))
}

/// A datapath on which nothing came for so long is quiet.
const QUIET: Duration = Duration::from_millis(1);

/// So many frames, none so long after the one before, end that. Not one: over kernel UDP hosts say every few milliseconds what became of
/// messages, and who answers that says so soon after.
const STREAK: usize = 4;

/// How often a quiet datapath is looked at as long as another is not quiet.
const SELDOM: Duration = Duration::from_micros(25);

/// When a datapath was asked for frames. A question may be a system call, and the frames of one datapath that come every few
/// microseconds should not wait for the answers of those on which nothing ever comes.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// When it should be asked again, whatever the others bring.
    due_at: Duration,
    /// When it is quiet, if nothing comes until then.
    quiet_at: Duration,
    /// Frames since it was last quiet, up to [`STREAK`].
    streak: usize,
}

impl Looks {
    /// Whether it brings frames again and again.
    pub(crate) fn is_lively(&self, now: Duration) -> bool {
        self.streak == STREAK && now < self.quiet_at
    }

    /// Whether it should be asked; `others` says that some datapath is lively.
    pub(crate) fn is_due(&self, now: Duration, others: bool) -> bool {
        !others || self.is_lively(now) || now >= self.due_at
    }

    /// It was asked, and brought so many frames.
    pub(crate) fn note(&mut self, now: Duration, frames: usize) {
        self.due_at = now + SELDOM;
        if frames > 0 {
            let before = if now < self.quiet_at { self.streak } else { 0 };
            self.streak = before.saturating_add(frames).min(STREAK);
            self.quiet_at = now + QUIET;
        }
    }
}

/// A datapath that is open, with what is on its way through it.
pub(crate) struct Port {
    pub(crate) kind: Kind,
    /// It is the TCP of a device, whose datagrams go by the port of this number.
    pub(crate) over: Option<usize>,
    pub(crate) datapath: Box<dyn Datapath>,
    /// By which it is captured.
    pub(crate) tap: Control,
    pub(crate) rx: RxBatch,
    /// Where some of that lands, and the host of each landing, by its number.
    pub(crate) landings: Landings,
    pub(crate) owners: Vec<usize>,
    pub(crate) tx: TxBatch<'static>,
    /// Which of its frames have payload that is to be attached before they are handed over.
    pub(crate) apart: Vec<Apart>,
    /// Why it is absent, if it is.
    pub(crate) absent: Option<String>,
    /// Received frames that it lends, the most of them now, and the most that it may.
    pub(crate) loans: Loans,
    pub(crate) most_lent: u32,
    pub(crate) may_lend: u32,
    /// Its number among all that ever lent: what is opened again lends out of other memory.
    pub(crate) lender: usize,
    /// The interface that it is on, if it does not look after that by itself.
    interface: Option<Interface>,
    /// Whether payload that lands is copied there by the packet engine, and not by the kernel.
    pub(crate) copies: bool,
    /// It could wake nobody when that was last asked of it.
    pub(crate) polled: bool,
    pub(crate) looks: Looks,
    /// What polling threads do for it, if it is on any.
    pub(crate) threads: Option<Spread>,
    /// Of the TCP of a device: what became of its connections.
    connections: Option<StreamCounts>,
}

/// Frames of a batch whose payload lies elsewhere.
pub(crate) struct Apart {
    pub(crate) first: usize,
    pub(crate) frames: usize,
    /// The payload of the first, and from where one's begins to where the next one's does.
    pub(crate) gather: Gather,
    pub(crate) every: u32,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("way", &self.via()).field("absent", &self.absent).finish_non_exhaustive()
    }
}

/// An interface, by name, and its number when that was last asked for.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    name: String,
    number: Option<u32>,
}

impl Interface {
    /// The interface of this name, which need not be there. `None` where there is no socket to ask by.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        let mut interface = Self { socket, name: name.to_owned(), number: None };
        interface.number = interface.now();
        Some(interface)
    }

    /// Its number; `None` if it is not there.
    pub(crate) fn now(&self) -> Option<u32> {
        netdevice::name_to_index(&self.socket, &self.name).ok()
    }

    fn lost(&self) -> Option<String> {
        (self.now() != self.number).then(|| format!("the interface {} was taken away", self.name))
    }
}

/// What is in the place of a datapath that is absent: nothing comes, and nobody is in its reach.
#[derive(Debug)]
struct Nothing(Kind);

impl Datapath for Nothing {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.0.name(), 0)
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        Err(DatapathError::Closed)
    }

    fn address(&self) -> Option<Address> {
        None
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let refused = batch.pending().len();
        batch.settle(refused, Outcome::Unreachable);
        TxReport { refused, ..TxReport::default() }
    }

    fn receive(&mut self, _batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        RxReport::default()
    }

    fn arm(&mut self) -> Armed {
        // Nothing will come.
        Armed::Sleep
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn close(&mut self) {}
}

/// What became of a datapath that the configuration names, for reports.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) via: Via,
    pub(crate) interface: String,
    pub(crate) address: String,
    /// What was chosen when it was opened, or why it is absent.
    pub(crate) is: Result<String, String>,
    /// It is absent for as long as this process lives.
    pub(crate) is_final: bool,
    /// By which it is captured while it is open.
    pub(crate) tap: Option<Control>,
    /// What polling threads do for it while it is open, if it is on any.
    pub(crate) threads: Option<Spread>,
    /// How often it was lost while it was open, and how often it could not be opened since it last was.
    pub(crate) losses: u64,
    pub(crate) tries: u64,
    /// Why it was lost last.
    pub(crate) lost: Option<String>,
}

/// What became of all of them, by their ports: shared by who opens them, who uses them and who reports.
pub(crate) type States = Arc<Mutex<Vec<State>>>;

/// What a port's datapath is known as once it is open.
pub(crate) fn note_open(states: &States, number: usize, port: &Port, chosen: &str) {
    note(states, number, |state| {
        // What goes over TCP is captured with the datagrams, as both leave: once.
        let tap = (!port.via().tcp).then(|| port.tap.clone());
        (state.is, state.is_final, state.tap, state.tries) = (Ok(chosen.to_owned()), false, tap, 0);
        state.threads = port.threads.clone();
    });
}

/// Changes what is known of one.
pub(crate) fn note(states: &States, port: usize, change: impl FnOnce(&mut State)) {
    let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(state) = states.get_mut(port) {
        change(state);
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.is {
            Ok(_) => write!(f, "{} is", self.via.name()),
            Err(why) => write!(f, "{} is absent: {why}", self.via.name()),
        }
    }
}

impl State {
    /// Of one that was not lost or tried yet.
    fn new(via: Via, (interface, address): (String, String), is: Result<String, String>) -> Self {
        let (is_final, tap, threads, losses, tries, lost) = (false, None, None, 0, 0, None);
        Self { via, interface, address, is, is_final, tap, threads, losses, tries, lost }
    }

    /// For a report, with the capture that is on.
    pub(crate) fn report(&self) -> Value {
        let threads = self.threads.as_ref().map(|is| (is.wanted(), is.received(), is.short()));
        let by = match &threads {
            Some((wanted, received, Some(why))) => {
                format!("; received by {} of {wanted} threads: {why}", received.len())
            }
            Some((_, received, None)) if received.len() > 1 => format!("; received by {} threads", received.len()),
            _ => String::new(),
        };
        let threads =
            threads.map(|(wanted, received, short)| json!({"wanted": wanted, "received": received, "short": short}));
        let (state, text) = match (&self.is, self.tries) {
            (Ok(text), _) => ("open", format!("{text}{by}")),
            (Err(text), _) if self.is_final => {
                ("absent", format!("{text} (not tried again before the runtime restarts)"))
            }
            (Err(text), 0) => ("absent", text.clone()),
            (Err(text), 1) => ("absent", format!("{text} (tried once, and it will be again)")),
            (Err(text), tries) => ("absent", format!("{text} (tried {tries} times, and it will be again)")),
        };
        let capture = self.tap.as_ref().and_then(Control::running);
        let capture = capture.map(|Running { by, age, counts }| {
            json!({"by": by, "seconds": age.as_secs(), "frames": counts.captured, "dropped": counts.dropped})
        });
        json!({
            "kind": self.via.name(), "interface": self.interface, "address": self.address, "state": state, "text": text,
            "reason": self.is.as_ref().err(), "final": self.is_final, "capture": capture, "losses": self.losses,
            "tries": self.tries, "lost": self.lost, "threads": threads,
        })
    }
}

impl Port {
    pub(crate) fn new(kind: Kind, datapath: Box<dyn Datapath>) -> Self {
        let tap = Tap::new(datapath);
        let control = tap.control();
        Self::tapped(kind, Box::new(tap), control)
    }

    /// One whose frames are captured further below.
    fn tapped(kind: Kind, datapath: Box<dyn Datapath>, tap: Control) -> Self {
        let bytes = datapath.capabilities().slot_bytes;
        let slots = if datapath.address().is_some() { RECEIVE_SLOTS } else { 0 };
        let free = (0..slots).map(|id| Slot::owned(id, bytes)).collect();
        let limit = (HANDFUL / bytes.max(1)).clamp(4, 16);
        let may_lend = datapath.lends().iter().map(|memory| memory.most).sum();
        let rx = RxBatch { free, limit, ..RxBatch::default() };
        let (landings, owners) = (Landings::default(), Vec::new());
        let (tx, apart) = (TxBatch::default(), Vec::new());
        let (loans, copies) = (Loans::default(), kind != Kind::Udp);
        let looks = Looks::default();
        let (absent, interface, most_lent, lender, polled) = (None, None, 0, 0, false);
        let (threads, connections) = (None, None);
        Self {
            kind,
            over: None,
            datapath,
            tap,
            rx,
            landings,
            owners,
            tx,
            apart,
            absent,
            loans,
            most_lent,
            may_lend,
            lender,
            interface,
            copies,
            polled,
            looks,
            threads,
            connections,
        }
    }

    /// One that is absent, and why.
    pub(crate) fn absent(kind: Kind, why: String) -> Self {
        Self { absent: Some(why), ..Self::new(kind, Box::new(Nothing(kind))) }
    }

    /// Hands over what was built, with payload that its datapath reads where it lies. That is no longer needed when this returns: what
    /// cannot go now keeps a copy.
    pub(crate) fn transmit(&mut self, sources: &Sources<'_>) -> TxReport {
        let Self { tx, datapath, apart, .. } = self;
        if apart.is_empty() {
            return datapath.hand_over(tx);
        }
        let mut batch: TxBatch<'_> = std::mem::take(tx);
        for Apart { first, frames, gather, every } in apart.drain(..) {
            let Gather { token, mut offset, len } = gather;
            for at in first..first + frames {
                // What is no longer there is zeros, as with what is copied.
                let zeros = || Piece::of(&ZEROS).part(0, len as usize);
                let piece = sources.piece(token, offset, len).or_else(zeros);
                piece.into_iter().for_each(|piece| batch.attach(at, piece));
                offset = offset.wrapping_add(every);
            }
        }
        let report = datapath.transmit(&mut batch);
        *tx = batch.into_owned();
        report
    }

    /// Up to how many bytes payload is copied into frames of so many; longer ones, and their parts, the datapath copies once from where
    /// they lie, to where it sends from, or sends from there.
    ///
    /// Not over kernel UDP: it takes a list of pieces, and copies many small ones badly (ADR 11). Nor over TCP, whose records are put
    /// together first, by a thread of its own, which is given frames to keep, or what reads on after it has returned.
    pub(crate) fn copies_up_to(&self, frame_limit: usize) -> u32 {
        let foreign = self.datapath.capabilities().foreign;
        let kept = self.threads.is_some() || foreign == Foreign::InPlace;
        if self.kind == Kind::Udp || self.over.is_some() || kept {
            return u32::MAX;
        }
        // Of what is shorter than half a frame several share one.
        u32::try_from(frame_limit / 2).map_or(u32::MAX, |half| half.max(LEAST_APART))
    }

    /// What became of its connections, for a report, if it is the TCP of a device.
    pub(crate) fn connections(&self) -> Option<Value> {
        self.connections.as_ref().map(|counts| {
            let is = counts();
            json!({
                "opened": is.opened, "accepted": is.accepted, "ended": is.ended, "evicted": is.evicted, "replaced": is.replaced,
                "hostile": is.hostile, "stalled": is.stalled,
            })
        })
    }

    /// As the TCP of a device, if there is the number of its port.
    pub(crate) fn over(self, over: Option<usize>) -> Self {
        Self { over, ..self }
    }

    /// What it is a way over.
    pub(crate) const fn via(&self) -> Via {
        Via { kind: self.kind, tcp: self.over.is_some() }
    }

    /// Why it must be opened afresh, if it must.
    pub(crate) fn lost(&mut self) -> Option<String> {
        self.datapath.lost().or_else(|| self.interface.as_ref()?.lost())
    }
}

/// How kernel UDP is opened.
fn udp_config(settings: &config::Network) -> UdpConfig {
    let mut udp = UdpConfig::new(settings.listen);
    udp.interface = (!settings.interface.is_empty()).then(|| settings.interface.clone());
    udp.receive_buffer = usize::try_from(settings.receive_buffer_kib << 10).unwrap_or(usize::MAX);
    udp.busy_poll = (settings.busy_poll_us > 0).then(|| Duration::from_micros(settings.busy_poll_us));
    udp.stride = Some(insane_wire::frame::stride);
    udp
}

/// Opens kernel UDP. What the kernel gives less of than was asked is logged.
fn udp(settings: &config::Network) -> Result<UdpDatapath, DatapathError> {
    let mut datapath = UdpDatapath::new(udp_config(settings));
    datapath.open()?;
    datapath.notes().iter().for_each(|note| tracing::warn!(note, "network"));
    Ok(datapath)
}

/// What was opened: the datapath, its TCP if that was asked for, by what both are captured, and what was chosen.
struct Opened {
    datagrams: Box<dyn Datapath>,
    streams: Option<(Box<dyn Datapath>, StreamCounts)>,
    tap: Control,
    chosen: String,
}

/// Opens raw frames with the packet engine over them, and a tap between the two; `chosen` says what was, once they are open.
fn with_engine<R: RawDatapath + 'static>(
    raw: R,
    settings: &config::Datapath,
    (address, peers): (Prefix, usize),
    chosen: impl FnOnce(&R) -> String,
) -> Result<Opened, DatapathError> {
    let gateway = settings.gateway.parse().ok();
    let config = DatagramConfig { address, port: settings.port, gateway, vlan: settings.tag() };
    let (raw, ask) = (Tap::new(raw), |raw: &Tap<R>| (chosen(raw.inner()), raw.control()));
    let (datagrams, streams, (mut chosen, tap)): (Box<dyn Datapath>, _, _) = if settings.tcp {
        let (mut datagrams, mut streams) = with_streams(raw, config, peers);
        datagrams.open()?;
        streams.open()?;
        let asked = datagrams.with_raw(ask);
        let counts = streams.counts();
        (Box::new(datagrams), Some((Box::new(streams) as Box<dyn Datapath>, counts)), asked)
    } else {
        let mut datagrams = Datagrams::new(raw, config);
        datagrams.open()?;
        let asked = ask(datagrams.raw());
        (Box::new(datagrams), None, asked)
    };
    settings.tag().into_iter().for_each(|vlan| chosen += &format!("; in VLAN {vlan}"));
    Ok(Opened { datagrams, streams, tap, chosen })
}

/// Opens AF_XDP with a station of its own on the interface, and says what was chosen.
fn xdp(settings: &config::Datapath, peers: usize, may_lend: bool) -> Result<Opened, DatapathError> {
    let unavailable = |reason: &str| DatapathError::Unavailable { technology: "xdp", reason: reason.into() };
    let (Some(address), Some(station)) = (settings.prefix(), settings.mac()) else {
        return Err(unavailable("network.datapath has no address"));
    };
    let mut xdp = XdpConfig::new(&settings.interface);
    xdp.attach = match settings.mode {
        Mode::Auto => Attach::NativeOrGeneric,
        Mode::Native => Attach::Native,
        Mode::Generic => Attach::Generic,
    };
    xdp.zero_copy = settings.zero_copy;
    xdp.frames = settings.frames;
    // Who may see what is lent sees all that comes by the interface.
    xdp.lend = settings.lend && may_lend;
    if !settings.queues.is_empty() {
        xdp.queues = Queues::These(settings.queues.clone());
    }
    // All to the station, and the questions for its address; the kernel gets the rest.
    xdp.filter = Filter {
        ethertypes: Vec::new(),
        udp_ports: Vec::new(),
        station: Some(station),
        addresses: vec![address.address],
        vlan: settings.tag().map_or(Vlan::Untagged, Vlan::Tagged),
    };
    let chosen = |xdp: &XdpDatapath| xdp.chosen().map(ToString::to_string).unwrap_or_default();
    with_engine(XdpDatapath::new(xdp), settings, (address, peers), chosen)
}

/// Finds DPDK's object: what the configuration names, or the first of the usual places that has one.
fn library(settings: &config::Datapath) -> Result<PathBuf, DatapathError> {
    if !settings.library.is_empty() {
        return Ok(settings.library.clone().into());
    }
    let places = insane_datapath_dpdk::usual_places();
    let list: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    places.into_iter().find(|place| place.exists()).ok_or_else(|| DatapathError::Unavailable {
        technology: insane_datapath_dpdk::NAME,
        reason: format!(
            "there is no {}: install DPDK 22.11 with its headers and run `make install` again, or name it as library",
            list.join(", and no ")
        ),
    })
}

/// AF_PACKET on an interface as DPDK's device; `at` is the datapath's number. Its name is none that a `device` would have by chance:
/// names are a process's, and the second of two with one is absent.
fn on_interface(at: usize, interface: &str) -> String {
    format!("net_af_packet_insane{at},iface={interface}")
}

/// Opens one of DPDK's ports with a station of its own, and says what was chosen. `at` is the datapath's number, for a name; `on` the
/// interface that it is on, as it was before.
fn dpdk(
    settings: &config::Datapath,
    (at, peers): (usize, usize),
    may_lend: bool,
    on: Option<&Interface>,
) -> Result<Opened, DatapathError> {
    let unavailable = |reason| DatapathError::Unavailable { technology: insane_datapath_dpdk::NAME, reason };
    let address = settings.prefix().ok_or_else(|| unavailable("network.datapath has no address".into()))?;
    let device =
        if settings.device.is_empty() { on_interface(at, &settings.interface) } else { settings.device.clone() };
    let dpdk = Dpdk::load(library(settings)?)?;
    // If it came only now, the port could be on it, and whoever looks after that would take it for another one.
    if on.is_some_and(|on| on.number.is_none()) {
        return Err(unavailable(format!("there is no interface {} here", settings.interface)));
    }
    let raw = dpdk.port(&DpdkConfig {
        station: settings.mac(),
        eal: (!settings.eal.is_empty()).then(|| settings.eal.clone()),
        buffers: settings.frames,
        queues: settings.queue_count,
        steer: Some((address.address, settings.port).into()),
        interrupts: settings.interrupts,
        tagged: settings.vlan != 0,
        lend: settings.lend && may_lend,
        mtu: (settings.mtu != 0).then_some(settings.mtu),
        ..DpdkConfig::new(device)
    })?;
    with_engine(raw, settings, (address, peers), PluginDatapath::describe)
}

/// Opens a port of somebody's plug-in, and says what that chose.
fn plugin(settings: &config::Datapath, peers: usize) -> Result<Opened, DatapathError> {
    let unavailable = |reason: String| DatapathError::Unavailable { technology: "plugin", reason };
    let address = settings.prefix().ok_or_else(|| unavailable("network.datapath has no address".into()))?;
    let plugin = Plugin::load(&settings.library).map_err(|e| unavailable(e.to_string()))?;
    let options: Vec<(&str, &str)> =
        settings.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    with_engine(plugin.port(&options)?, settings, (address, peers), |port| match port.describe().as_str() {
        "" => plugin.name().to_owned(),
        said => format!("{}: {said}", plugin.name()),
    })
}

/// One of the datapaths beside kernel UDP, and all that it takes to open it, now or later, on any thread.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) settings: config::Datapath,
    /// Its place among those of the configuration.
    pub(crate) at: usize,
    /// The number of the port for its TCP, if it has that.
    pub(crate) tcp: Option<usize>,
    pub(crate) one_domain: bool,
    /// How many other hosts there may be.
    pub(crate) peers: usize,
    pub(crate) over: Over,
    /// The threads that run it, unless that is the network's own.
    pub(crate) threads: Vec<PollingThread>,
}

impl Opening {
    /// The numbers of its ports: for datagrams, and for TCP.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        [Some(self.at + 1), self.tcp].into_iter().flatten()
    }

    /// The ports for as long as it was not opened.
    fn absent(&self) -> impl Iterator<Item = Port> {
        let over = |number| (number != self.at + 1).then_some(self.at + 1);
        self.numbers().map(move |number| Port::absent(self.settings.kind, NOT_YET.to_owned()).over(over(number)))
    }

    /// Opens it. Returns its ports with their numbers, and what was chosen.
    ///
    /// # Errors
    /// Why not. That may take three seconds, if another process still has its interface.
    pub(crate) fn open(&self) -> Result<(Vec<(usize, Port)>, String), DatapathError> {
        let Self { settings: one, at, one_domain, peers, over, threads, .. } = self;
        // A thread in between lends nothing.
        let may_lend = *one_domain && threads.is_empty();
        // Asked for first: if it is made again meanwhile, that is found.
        let on =
            (one.kind == Kind::Dpdk && !one.interface.is_empty()).then(|| Interface::new(&one.interface)).flatten();
        let Opened { datagrams, streams, tap, chosen } = match one.kind {
            Kind::Dpdk => dpdk(one, (*at, *peers), may_lend, on.as_ref())?,
            Kind::Plugin => plugin(one, *peers)?,
            _ => xdp(one, *peers, may_lend)?,
        };
        tracing::info!(kind = one.kind.name(), address = one.address, chosen, "datapath open");
        let port = |datapath, tap, threads: &[PollingThread]| {
            let (datapath, spread) = put_on(threads, put_over(over, one.kind, datapath))?;
            let mut port = Port::tapped(one.kind, datapath, tap);
            port.threads = spread;
            Ok(port)
        };
        // A thread looks at the one that was made first before the other, as the network's own does: what comes is mostly for that.
        let mut datagrams = port(datagrams, tap.clone(), threads)?;
        let first = threads.get(..1).unwrap_or(&[]);
        let tcp = streams.zip(self.tcp).map(|((streams, counts), number)| {
            let port: Port = port(streams, tap, first)?;
            Ok((number, Port { connections: Some(counts), ..port.over(Some(*at + 1)) }))
        });
        let tcp = tcp.transpose()?;
        // A plug-in that lends does so whatever the configuration says; and what it lends is for those to see who may see all of it.
        datagrams.may_lend = if one.lend && may_lend { datagrams.may_lend } else { 0 };
        datagrams.interface = on;
        Ok(([(*at + 1, datagrams)].into_iter().chain(tcp).collect(), chosen))
    }
}

/// A port for each datapath that the configuration names, kernel UDP first, then one for the TCP of each that has it; what became of each,
/// and how to open those beside kernel UDP.
pub(crate) struct All {
    pub(crate) ports: Vec<Port>,
    pub(crate) states: Vec<State>,
    pub(crate) openings: Vec<Opening>,
}

/// Opens kernel UDP. All else that the configuration names is absent: opening it takes who knows how long (`reopen`).
///
/// # Errors
/// What is wrong with kernel UDP.
pub(crate) fn open(
    settings: &config::Network,
    one_domain: bool,
    over: &Over,
    threads: &Threads,
) -> Result<All, DatapathError> {
    let home = udp(settings)?;
    let address = home.address().map(|address| address.to_string()).unwrap_or_default();
    let tap = Tap::new(put_over(over, Kind::Udp, Box::new(home)));
    let control = tap.control();
    let (home, spread) = put_on(&threads.of(Kind::Udp.name()), Box::new(tap))?;
    let mut home = Port::tapped(Kind::Udp, home, control);
    home.threads = spread.clone();
    let place = (settings.interface.clone(), address);
    let state = State::new(Via::of(Kind::Udp), place, Ok("kernel UDP".into()));
    let state = State { tap: Some(home.tap.clone()), threads: spread, ..state };
    let mut all = All { ports: vec![home], states: vec![state], openings: Vec::new() };
    // Those for TCP come after all others.
    let mut next = HOME + 1 + settings.datapath.len();
    let mut with_tcp = Vec::new();
    let peers = settings.peers.len() + settings.directory.as_ref().map_or(0, |_| FOUND_OVER_TCP);
    for (at, one) in settings.datapath.iter().enumerate() {
        let tcp = one.tcp.then_some(next);
        next += usize::from(one.tcp);
        let (settings, over, threads) = (one.clone(), over.clone(), threads.of(one.place()));
        let opening = Opening { settings, at, tcp, one_domain, peers, over, threads };
        for port in opening.absent() {
            let place = (one.place().to_owned(), one.address.clone());
            let state = State::new(port.via(), place, Err(NOT_YET.to_owned()));
            if state.via.tcp {
                with_tcp.push((port, state));
            } else {
                all.ports.push(port);
                all.states.push(state);
            }
        }
        all.openings.push(opening);
    }
    let (ports, states): (Vec<_>, Vec<_>) = with_tcp.into_iter().unzip();
    all.ports.extend(ports);
    all.states.extend(states);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of some datapaths is asked in so many looks, one a microsecond; `brings` says which brings a frame when.
    fn asked(count: usize, looks: u64, brings: impl Fn(usize, u64) -> bool) -> Vec<u64> {
        let mut ports: Vec<Looks> = (0..count).map(|_| Looks::default()).collect();
        let mut asked = vec![0; count];
        for at in 0..looks {
            let now = Duration::from_micros(at);
            let lively = ports.iter().any(|port| port.is_lively(now));
            for (number, port) in ports.iter_mut().enumerate().filter(|(_, port)| port.is_due(now, lively)) {
                asked[number] += 1;
                port.note(now, usize::from(brings(number, at)));
            }
        }
        asked
    }

    #[test]
    fn the_device_is_polled_if_that_is_configured_and_not_otherwise() {
        let of = |busy_poll_us| udp_config(&config::Network { busy_poll_us, ..config::Network::default() }).busy_poll;
        assert_eq!((of(0), of(50)), (None, Some(Duration::from_micros(50))));
    }

    /// The report on a datapath of a hub that so many threads run, and what `doctor` makes of it.
    fn run_by(count: usize) -> (Value, Value) {
        use insane_datapath::loopback;
        use insane_datapath::thread::{Settings, Waiting};
        let settings = || Settings { name: "polls".into(), core: None, waiting: Waiting::Sleep };
        let threads: Vec<_> = (0..count).map(|_| PollingThread::start(settings()).unwrap()).collect();
        let mut inner = loopback::Hub::default().port(1);
        inner.open().unwrap();
        let (_datapath, threads) = put_on(&threads, Box::new(inner)).unwrap();
        let state = State::new(Via::of(Kind::Udp), Default::default(), Ok("as was chosen".into()));
        reported(&State { threads, ..state })
    }

    /// The report on a datapath, and what `doctor` makes of it.
    fn reported(state: &State) -> (Value, Value) {
        let (report, core) = (state.report(), crate::core::Core::new(config::Config::default(), "here".into()));
        let doctor = crate::doctor::report(&core, 0, std::slice::from_ref(&report), &[]);
        let check = doctor["checks"].as_array().unwrap().iter().find(|check| check["check"] == "datapath").unwrap();
        (report, check.clone())
    }

    #[test]
    fn a_datapath_with_fewer_threads_than_were_named_says_so_in_status_and_doctor() {
        let (report, check) = run_by(3);
        let why = "loopback is received by one thread";
        assert_eq!(report["text"], format!("as was chosen; received by 1 of 3 threads: {why}"));
        assert_eq!(report["threads"], json!({"wanted": 3, "received": [0], "short": why}));
        assert_eq!(check["state"], "warn");
        assert!(check["text"].as_str().unwrap().contains(why), "{check}");
        assert!(check["hint"].as_str().unwrap().contains("network.thread"), "{check}");
        for (count, threads) in [(0, Value::Null), (1, json!({"wanted": 1, "received": [0], "short": null}))] {
            let (report, check) = run_by(count);
            assert_eq!((&report["text"], &report["threads"]), (&"as was chosen".into(), &threads));
            assert_eq!((&check["state"], &check["hint"]), (&"ok".into(), &"".into()));
        }
    }

    #[test]
    fn what_is_absent_for_good_promises_no_other_try_and_what_is_not_does() {
        let absent = |is_final| {
            let state = State::new(Via::of(Kind::Dpdk), Default::default(), Err("it does not start".into()));
            reported(&State { is_final, tries: 3, ..state })
        };
        let (report, check) = absent(true);
        assert_eq!(report["text"], "it does not start (not tried again before the runtime restarts)");
        assert_eq!((&report["final"], &report["reason"]), (&true.into(), &"it does not start".into()));
        let hint = check["hint"].as_str().unwrap();
        assert!(hint.contains("restart the runtime") && !hint.contains("by itself"), "{hint}");
        let (report, check) = absent(false);
        assert_eq!(report["text"], "it does not start (tried 3 times, and it will be again)");
        assert_eq!(report["final"], false);
        assert!(check["hint"].as_str().unwrap().contains("tried again by itself"), "{check}");
    }

    #[test]
    fn a_quiet_datapath_is_seldom_asked_beside_a_lively_one() {
        // The second brings a frame every half millisecond, the first and the third nothing.
        let [first, second, third] = asked(3, 100_000, |number, at| number == 1 && at % 500 == 0)[..] else { panic!() };
        // Until its fourth frame none is lively.
        let seldom = 1_501 + (100_000 - 1_501) / 25;
        assert_eq!((first, second, third), (seldom, 100_000, seldom));
    }

    #[test]
    fn all_are_asked_each_time_when_none_is_lively_or_all_are() {
        assert_eq!(asked(2, 1_000, |_, _| false), [1_000, 1_000]);
        // The first look of all finds a frame on both, and the next one comes before they are quiet.
        assert_eq!(asked(2, 100_000, |_, at| at % 500 == 0), [100_000, 100_000]);
    }

    #[test]
    fn a_datapath_that_was_quiet_is_soon_asked_again_and_again() {
        // From the second millisecond on both bring a frame with each look: the first four come as the seldom looks do.
        let [_, second] = asked(2, 4_000, |number, at| number == 0 || at >= 2_000)[..] else { panic!() };
        assert_eq!(second, 2_000 / 25 + 4 + (2_000 - 3 * 25 - 1));
    }

    #[test]
    fn what_hosts_say_now_and_then_does_not_make_a_datapath_lively() {
        // Every few milliseconds three frames, a word, its answer and another word; beside it one that brings a frame each time.
        let words = |at: u64| [0, 100, 600].contains(&(at % 8_000));
        let [first, second] = asked(2, 80_000, |number, at| number == 1 || words(at))[..] else { panic!() };
        assert_eq!((first, second), (4 + (80_000 - 4) / 25, 80_000));
        // Many at once are more than that.
        let mut looks = Looks::default();
        looks.note(QUIET, 16);
        assert!(looks.is_lively(QUIET) && !looks.is_lively(QUIET * 2));
    }
}
