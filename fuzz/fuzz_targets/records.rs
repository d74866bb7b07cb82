//! A stranger that opens TCP connections to a host and sends bytes of any kind by them, in any pieces: nothing breaks, what a host takes is
//! what one of them has sent whole, behind who it said it is, and how many there are is bounded.
#![no_main]

use std::net::SocketAddr;

use insane_datagrams::{DatagramConfig, MAX_RECORD, StreamStats, Streams, with_streams};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::memory::Slot;
use insane_datapath::raw::RawDatapath;
use insane_datapath::{Address, Datapath};
use insane_netstack::tcp::{Connection, TcpConfig, TcpState};
use insane_netstack::{Arrival, Config, Engine, Interface, Mac};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/datagrams/tests/common/mod.rs"]
mod common;

use common::{Wire, cable};

const HOST: ([u8; 4], u16) = ([10, 0, 0, 1], 7400);
const STRANGER: [u8; 4] = [10, 0, 0, 10];

/// The most connections from one address, and those that the stranger has at a time.
const MOST: u64 = 4;
const OPEN: usize = 6;

/// A connection of the stranger's, as long as there is one, and all that it has sent by it.
struct Way {
    connection: Option<Connection>,
    sent: Vec<u8>,
}

impl Way {
    /// The port that it has said, if it began as a peer does.
    fn port(&self) -> Option<u16> {
        let greeting = self.sent.get(..12)?.strip_prefix(b"\x08\0\0\0INSA\x01\0")?;
        Some(u16::from_le_bytes([greeting[0], greeting[1]])).filter(|port| *port != 0)
    }

    /// The records behind that which were sent whole, up to what is none.
    fn records(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.sent.get(12..).unwrap_or(&[]);
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let record = behind.get(..length).filter(|_| (1..=MAX_RECORD).contains(&length))?;
            rest = &behind[length..];
            Some(record)
        })
    }
}

struct Stranger {
    wire: Wire,
    engine: Engine,
    now: u64,
    ways: Vec<Way>,
    /// How many records the host has taken.
    taken: usize,
}

impl Stranger {
    /// Sends what it has to, and hears what has come.
    fn turn(&mut self) {
        self.now += 1_000_000;
        let (mut out, mut tx) = (Vec::new(), TxBatch::default());
        let Self { wire, engine, now, .. } = self;
        wire.receive_in_place(256, &mut |frame| {
            engine.receive(*now, &Arrival::new(0, frame.first()), &mut out);
            true
        });
        engine.poll(*now, &mut out);
        out.iter().for_each(|(_, frame)| tx.frame(Address::Ethernet([2; 6]), frame, 0));
        wire.transmit(&mut tx);
    }

    fn connect(&mut self) {
        if self.ways.iter().filter(|way| way.connection.is_some()).count() < OPEN
            && let Ok(connection) = self.engine.tcp_connect(self.now, SocketAddr::from(HOST))
        {
            self.ways.push(Way { connection: Some(connection), sent: Vec::new() });
        }
    }

    /// One of the last connections.
    fn way(&mut self, number: u8) -> Option<(Connection, &mut Vec<u8>)> {
        let way = self.ways.iter_mut().rev().nth(usize::from(number) % OPEN)?;
        Some((way.connection?, &mut way.sent))
    }

    fn send(&mut self, way: u8, bytes: &[u8]) {
        let Some((connection, _)) = self.way(way) else { return };
        let took = self.engine.tcp_send(connection, bytes).unwrap_or(0);
        self.way(way).into_iter().for_each(|(_, sent)| sent.extend_from_slice(&bytes[..took]));
    }

    fn end(&mut self, way: u8, by_force: bool) {
        let Some((connection, _)) = self.way(way) else { return };
        let _ = if by_force { self.engine.tcp_abort(connection) } else { self.engine.tcp_close(connection) };
    }

    /// Gives back the connections that have ended.
    fn forget(&mut self) {
        for way in &mut self.ways {
            let ended = |of: &mut Connection| matches!(self.engine.tcp_state(*of), Ok(TcpState::Closed) | Err(_));
            way.connection.take_if(ended).into_iter().for_each(|connection| self.engine.tcp_release(connection));
        }
    }

    /// The host has taken a record from a peer: one of those that said to be it has sent it, and no more were sent in all.
    fn is_taken(&mut self, from: Address, bytes: &[u8]) {
        let Address::Ip(from) = from else { panic!("{from:?} is no peer") };
        assert_eq!(from.ip(), std::net::IpAddr::from(STRANGER));
        let mut of = self.ways.iter().filter(|way| way.port() == Some(from.port()));
        assert!(of.any(|way| way.records().any(|record| record == bytes)), "the host has taken what nobody sent");
        self.taken += 1;
        let sent = self.ways.iter().filter(|way| way.port().is_some()).map(|way| way.records().count());
        assert!(self.taken <= sent.sum(), "the host has taken more than was sent");
    }
}

/// Lets both go on until the host has taken what it can.
fn go_on(host: &mut Streams<Wire>, rx: &mut RxBatch, stranger: &mut Stranger) {
    for _ in 0..4 {
        stranger.turn();
        while host.receive(rx, None).more || !rx.taken.is_empty() {
            for taken in rx.taken.drain(..) {
                taken.frames().for_each(|frame| stranger.is_taken(taken.from, frame));
                rx.free.push(taken.slot);
            }
        }
    }
    let StreamStats { accepted, ended, evicted, replaced, hostile, .. } = host.stream_stats();
    let gone = ended + evicted + replaced + hostile;
    assert!(gone <= accepted && accepted - gone <= MOST, "{:?}", host.stream_stats());
}

fuzz_target!(|data: &[u8]| {
    let [near, mut far] = cable();
    let prefix = |ip: [u8; 4]| format!("{}/24", std::net::Ipv4Addr::from(ip)).parse().expect("a prefix");
    let config = DatagramConfig { address: prefix(HOST.0), port: HOST.1, gateway: None, vlan: None };
    let (_, mut host) = with_streams(near, config, 1);
    host.open().expect("it opens");
    far.open().expect("it opens");
    let mut config = Config::new(vec![Interface::new(Mac([2, 0, 0, 0, 0, 2]), vec![prefix(STRANGER)])], 7);
    config.tcp = Some(TcpConfig { connections: 16, send_bytes: 64 << 10, ..TcpConfig::default() });
    let engine = Engine::new(&config).expect("an engine");
    let mut stranger = Stranger { wire: far, engine, now: 0, ways: Vec::new(), taken: 0 };
    let bytes = host.capabilities().slot_bytes;
    let mut rx = RxBatch { free: (0..4).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() };
    let (mut steps, mut rest) = (0, data);
    while let [what, way, len, tail @ ..] = rest {
        // Each turns both ends several times.
        steps += 1;
        if steps > 40 {
            break;
        }
        let (own, next) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = next;
        match what % 8 {
            0 => stranger.connect(),
            1 => {
                let port = [own.first().copied().unwrap_or(1) & 3, 0];
                stranger.send(*way, &[&b"\x08\0\0\0INSA\x01\0"[..], &port].concat());
            }
            2 | 3 => stranger.send(*way, own),
            // A record as it is to be, of up to twice as much as may be in one.
            4 | 5 => {
                let length = if what & 8 == 0 { own.len() } else { usize::from(*len) * 129 };
                let record: Vec<u8> = own.iter().copied().chain(std::iter::repeat(*what)).take(length).collect();
                stranger.send(*way, &[&(length as u32).to_le_bytes(), &record[..]].concat());
            }
            6 => stranger.end(*way, what & 16 != 0),
            _ => stranger.forget(),
        }
        if what & 64 == 0 {
            go_on(&mut host, &mut rx, &mut stranger);
        }
    }
    go_on(&mut host, &mut rx, &mut stranger);
});
