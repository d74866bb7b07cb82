//! A datapath on a thread of its own, which finds out later what was refused.

use super::*;
use crate::network::lanes::HOME;
use insane_datapath::loopback::Hub as Loopbacks;
use insane_datapath::thread::{OnThread, PollingThread, Settings, Waiting};

/// The stand's, of which something was refused since.
struct Late {
    inner: Box<dyn Datapath>,
    refused: Vec<(Address, Outcome)>,
    limit: usize,
}

impl Datapath for Late {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.inner.open()
    }

    fn address(&self) -> Option<Address> {
        self.inner.address()
    }

    fn frame_limit(&mut self, _to: Address) -> usize {
        self.limit
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.inner.transmit(batch)
    }

    fn refused_later(&mut self, refused: &mut Vec<(Address, Outcome)>) {
        refused.append(&mut self.refused);
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        self.inner.receive(batch, place)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

#[test]
fn a_path_takes_its_new_size_from_what_a_thread_was_refused_later() {
    const LIMIT: usize = 1200;
    let settings = Settings { name: "polls".into(), core: None, waiting: Waiting::Sleep };
    let thread = PollingThread::start(settings).unwrap();
    for (outcome, most) in [(Outcome::TooLarge, LIMIT as u64), (Outcome::Unreachable, MAX_FRAME as u64)] {
        let mut stand = Stand::new();
        let is = |stand: &Stand| stand.hub.hosts[0].lanes.get(HOME).map(|lane| lane.path.stats().most_frame_bytes);
        assert_eq!(is(&stand), Some(MAX_FRAME as u64));
        let port = &mut stand.hub.ports[HOME];
        let inner = std::mem::replace(&mut port.datapath, Port::absent(Kind::Udp, String::new()).datapath);
        port.datapath = Box::new(Late { inner, refused: vec![(stand.peer_address, outcome)], limit: LIMIT });
        port.threads = Some(OnThread::new(&thread, Box::new(Loopbacks::default().port(1))).unwrap().threads());
        stand.pass(Duration::from_millis(10));
        assert_eq!(is(&stand), Some(most), "{outcome:?}");
        // Home is the last way: a host is not lost for what could not be reached once.
        assert!(stand.is_connected());
    }
}
