//! The datapaths that the runtime has: opened as the configuration says, one after the other. What cannot be opened is absent, with
//! the reason; only kernel UDP must be there.

use crate::config::{self, Kind, Mode};
use insane_datagrams::{DatagramConfig, Datagrams};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::memory::Slot;
use insane_datapath::tap::{Control, Tap};
use insane_datapath::{Datapath, DatapathError};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_datapath_xdp::{Attach, Filter, Queues, Vlan, XdpConfig, XdpDatapath};
use serde_json::{Value, json};

/// Slots to receive into, of each datapath.
const RECEIVE_SLOTS: u64 = 64;

/// What may be put over a datapath that was opened; see [`crate::server::Server::start_over`].
pub(crate) type Over<'a> = dyn FnMut(Kind, Box<dyn Datapath>) -> Box<dyn Datapath> + 'a;

/// A datapath that is open, with what is on its way through it.
pub(crate) struct Port {
    pub(crate) kind: Kind,
    pub(crate) datapath: Box<dyn Datapath>,
    /// By which it is captured.
    pub(crate) tap: Control,
    pub(crate) rx: RxBatch,
    pub(crate) tx: TxBatch<'static>,
}

/// What became of a datapath that the configuration names, for reports.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) kind: Kind,
    pub(crate) interface: String,
    pub(crate) address: String,
    /// What was chosen when it was opened, or why it is absent.
    pub(crate) is: Result<String, String>,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.is {
            Ok(_) => write!(f, "{} is", self.kind.name()),
            Err(why) => write!(f, "{} is absent: {why}", self.kind.name()),
        }
    }
}

impl State {
    /// For a report.
    pub(crate) fn report(&self) -> Value {
        let (state, text) = match &self.is {
            Ok(text) => ("open", text),
            Err(text) => ("absent", text),
        };
        json!({
            "kind": self.kind.name(), "interface": self.interface, "address": self.address, "state": state, "text": text,
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
        let free = (0..RECEIVE_SLOTS).map(|id| Slot::owned(id, bytes)).collect();
        Self { kind, datapath, tap, rx: RxBatch { free, ..RxBatch::default() }, tx: TxBatch::default() }
    }
}

/// Opens kernel UDP. What the kernel gives less of than was asked is logged.
fn udp(settings: &config::Network) -> Result<UdpDatapath, DatapathError> {
    let mut udp = UdpConfig::new(settings.listen);
    udp.interface = (!settings.interface.is_empty()).then(|| settings.interface.clone());
    let mut datapath = UdpDatapath::new(udp);
    datapath.open()?;
    datapath.notes().iter().for_each(|note| tracing::warn!(note, "network"));
    Ok(datapath)
}

/// Opens AF_XDP with a station of its own on the interface, and says what was chosen.
fn xdp(settings: &config::Datapath) -> Result<(Datagrams<Tap<XdpDatapath>>, String), DatapathError> {
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
    if !settings.queues.is_empty() {
        xdp.queues = Queues::These(settings.queues.clone());
    }
    // All to the station, and the questions for its address; the kernel gets the rest.
    xdp.filter = Filter {
        ethertypes: Vec::new(),
        udp_ports: Vec::new(),
        station: Some(station),
        addresses: vec![address.address],
        vlan: Vlan::Untagged,
    };
    let gateway = settings.gateway.parse().ok();
    let xdp = Tap::new(XdpDatapath::new(xdp));
    let mut datapath = Datagrams::new(xdp, DatagramConfig { address, port: settings.port, gateway });
    datapath.open()?;
    let chosen = datapath.raw().inner().chosen().map(ToString::to_string).unwrap_or_default();
    Ok((datapath, chosen))
}

/// Opens everything that the configuration names: the ports that there are, kernel UDP first, and what became of each.
///
/// # Errors
/// What is wrong with kernel UDP. Opening another one may take three seconds, if another process still has its interface.
pub(crate) fn open(settings: &config::Network, over: &mut Over<'_>) -> Result<(Vec<Port>, Vec<State>), DatapathError> {
    let home = udp(settings)?;
    let address = home.address().map(|address| address.to_string()).unwrap_or_default();
    let (interface, is) = (settings.interface.clone(), Ok("kernel UDP".into()));
    let mut states = vec![State { kind: Kind::Udp, interface, address, is }];
    let mut ports = vec![Port::new(Kind::Udp, over(Kind::Udp, Box::new(home)))];
    for one in &settings.datapath {
        let opened = xdp(one);
        let is = match opened {
            Ok((datapath, chosen)) => {
                tracing::info!(kind = one.kind.name(), address = one.address, chosen, "datapath open");
                let tap = datapath.raw().control();
                ports.push(Port::tapped(one.kind, over(one.kind, Box::new(datapath)), tap));
                Ok(chosen)
            }
            Err(e) => {
                let reason = e.to_string();
                tracing::warn!(kind = one.kind.name(), interface = one.interface, reason, "datapath absent");
                Err(reason)
            }
        };
        let (interface, address) = (one.interface.clone(), one.address.clone());
        states.push(State { kind: one.kind, interface, address, is });
    }
    Ok((ports, states))
}
