//! Threads that end unasked, and what a server that stops or does not come to be leaves behind.

use super::*;
use insane_datapath::batch::{Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::{Address, Armed, Capabilities, DatapathError, Stats};

/// A datapath that panics when it is asked for what has come.
struct Panics(Box<dyn Datapath>);

impl Datapath for Panics {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.0.open()
    }

    fn address(&self) -> Option<Address> {
        self.0.address()
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.0.transmit(batch)
    }

    fn receive(&mut self, _batch: &mut RxBatch, _place: Option<&mut dyn Place>) -> RxReport {
        panic!("as it was to")
    }

    fn arm(&mut self) -> Armed {
        self.0.arm()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    fn close(&mut self) {
        self.0.close();
    }
}

fn with_network(folder: &Path) -> Config {
    let mut config = Config::default();
    config.runtime.socket = folder.join("s");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    config.network = Some(crate::config::Network { listen: free, ..Default::default() });
    config
}

#[test]
fn a_network_thread_that_panics_is_noticed_and_the_server_still_stops() {
    let folder = tempfile::tempdir().unwrap();
    let config = with_network(folder.path());
    let server = Server::start_over(config.clone(), |_, datapath| Box::new(Panics(datapath))).unwrap();
    let why = server.watch().wait();
    assert_eq!(why.as_deref(), Some("the network thread has ended: it panicked: as it was to"));
    assert_eq!(server.watch().failed(), why);
    server.stop();
    assert!(!config.runtime.socket.exists());
}

#[test]
fn a_polling_thread_that_panics_is_noticed_and_the_server_still_stops() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_network(folder.path());
    let thread = crate::config::Thread { datapaths: vec!["udp".into()], ..Default::default() };
    config.network.get_or_insert_default().thread.push(thread);
    let server = Server::start_over(config.clone(), |_, datapath| Box::new(Panics(datapath))).unwrap();
    let why = server.watch().wait();
    assert_eq!(why.as_deref(), Some("the polling 0 thread has ended: it panicked: as it was to"));
    server.stop();
    assert!(!config.runtime.socket.exists());
    // Its end at a stop is none.
    let server = Server::start(config).unwrap();
    let watch = server.watch();
    server.stop();
    assert_eq!(watch.wait(), None);
}

#[test]
fn a_server_that_was_told_to_stop_has_not_failed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(with_network(folder.path())).unwrap();
    let watch = server.watch();
    assert_eq!(watch.failed(), None);
    server.stop();
    assert_eq!(watch.wait(), None);
}

#[test]
fn a_server_that_does_not_come_to_be_leaves_no_socket_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.runtime.socket = dir.path().join("s");
    // Of the addresses for documentation no host has one.
    config.network = Some(crate::config::Network { listen: ([192, 0, 2, 1], 7400).into(), ..Default::default() });
    let refused = Server::start(config.clone());
    assert!(matches!(refused, Err(StartError::Network(_))), "{refused:?}");
    assert!(!config.runtime.socket.exists());
    // Nor does one that finds another there take that one's away.
    config.network = None;
    let server = Server::start(config.clone()).unwrap();
    assert!(matches!(Server::start(config.clone()), Err(StartError::Running { .. })));
    assert!(config.runtime.socket.exists());
    server.stop();
    assert!(!config.runtime.socket.exists());
}
