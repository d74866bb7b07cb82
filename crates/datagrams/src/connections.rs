//! Frames over TCP (RFC 9293): each is a record of one connection to its peer.
//!
//! A record is its length in four bytes, little-endian, and so many bytes, 1 to [`MAX_RECORD`]. Who opens a connection says first at
//! which port it listens itself, by a record of [`PREFACE`] and the port's two bytes: so both ends know each other by the addresses at
//! which they listen, and what a peer says of itself holds for its own IP address alone. An end sends to a peer by one connection until
//! that has ended, and receives by all of them: should both open one at the same time, both are used.

use std::net::{IpAddr, SocketAddr};

use insane_datapath::Address;
use insane_datapath::batch::{Outcome, RxBatch, RxReport, Taken, TxBatch, TxFrame};
use insane_netstack::tcp::{Connection, Listener, TcpConfig, TcpError, TcpState};
use insane_netstack::{Emit, Engine};

use crate::receive::behind;

/// The largest frame of a connection in bytes.
pub const MAX_RECORD: usize = 16 << 10;

/// What a connection takes of frames that nobody has received, counted as [`insane_datapath::Capabilities::holds`] says: three quarters
/// of what TCP holds at either end.
pub(crate) const HOLDS: usize = BUFFER / 4 * 3;

/// What TCP holds of a connection at either end, each way, in bytes.
const BUFFER: usize = 256 << 10;

/// What stands before a record: its length.
const LENGTH: usize = 4;

/// How a connection begins, before the port's two bytes: a name and a version.
const PREFACE: [u8; 6] = *b"INSA\x01\x00";

/// The most connections that are used, for so many peers: two for each, as both ends may open one at once, no fewer than 64 and no more
/// than 1024. One more takes the place of that which was idle for longest.
pub(crate) fn most(peers: usize) -> usize {
    peers.saturating_mul(2).clamp(64, 1024)
}

/// The most connections from one address: a host needs one, and a second while it does not know yet that the first has ended.
const MOST_FROM_ONE: usize = 4;

/// Connections that are held ready for those who open one.
const READY: usize = 8;

/// Connections that end: they keep their place until the peer knows.
const LEAVING: usize = 8;

/// How long a peer may take to say who it is, in nanoseconds.
const SILENCE: u64 = 2_000_000_000;

/// How long frames for a peer that takes nothing hold up those for others, in nanoseconds; then they are refused. TCP that has lost
/// something has sent it again by then.
const STALL: u64 = 500_000_000;

/// From one attempt to reach a peer to the next, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// The engine's TCP for so many connections as they are here. A peer that is gone is known to be within five seconds.
pub(crate) fn tcp(most: usize) -> TcpConfig {
    let (receive_bytes, send_bytes) = (BUFFER, BUFFER);
    let connections = most + READY + LEAVING;
    TcpConfig { connections, receive_bytes, send_bytes, patience_ns: 5_000_000_000, ..TcpConfig::default() }
}

/// What became of connections since the datapath was opened. Counts only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StreamStats {
    /// Opened by this end.
    pub opened: u64,
    /// Opened by a peer.
    pub accepted: u64,
    /// Ended by the peer or the network, at whatever stage.
    pub ended: u64,
    /// Ended here to make room for another one.
    pub evicted: u64,
    /// Ended here as the peer has opened another one.
    pub replaced: u64,
    /// Ended here as what came is nothing that a peer sends, or its first record did not come in time.
    pub hostile: u64,
    /// Frames that were refused as their peer took nothing for a while.
    pub stalled: u64,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// It has this outcome.
    Settled(Outcome),
    /// There is no room for it now.
    Later,
}

/// One connection.
#[derive(Debug)]
struct Carrier {
    connection: Connection,
    /// The other end's IP address.
    at: IpAddr,
    /// At which address the peer listens, once that is known.
    peer: Option<SocketAddr>,
    /// This end opened it.
    own: bool,
    /// Its first record was sent, or has come.
    greeted: bool,
    /// What is for the peer goes by it.
    chosen: bool,
    /// The length of the record that comes, once that was read.
    length: Option<usize>,
    /// When it began, and when it was last used.
    born: u64,
    used: u64,
    /// What room there was to send, and since when there was not more.
    room: (usize, u64),
}

/// Something came that no peer sends.
#[derive(Debug)]
struct Hostile;

impl Carrier {
    const fn new(connection: Connection, at: IpAddr, own: bool, now: u64) -> Self {
        let (peer, greeted, chosen, length) = (None, false, false, None);
        Self { connection, at, peer, own, greeted, chosen, length, born: now, used: now, room: (0, now) }
    }

    /// The length of the next record, once all of it is there.
    fn record(&mut self, engine: &mut Engine) -> Result<Option<usize>, Hostile> {
        let mut readable = engine.tcp_readable(self.connection).unwrap_or(0);
        if self.length.is_none() && readable >= LENGTH {
            let mut length = [0; LENGTH];
            engine.tcp_receive(self.connection, &mut length).map_err(|_| Hostile)?;
            let length = u32::from_le_bytes(length) as usize;
            if !(1..=MAX_RECORD).contains(&length) {
                return Err(Hostile);
            }
            readable -= LENGTH;
            self.length = Some(length);
        }
        Ok(self.length.filter(|length| readable >= *length))
    }

    /// Reads the record that is there, which is as long as `to`.
    fn read(&mut self, engine: &mut Engine, to: &mut [u8]) -> Result<(), Hostile> {
        self.length = None;
        match engine.tcp_receive(self.connection, to) {
            Ok(len) if len == to.len() => Ok(()),
            _ => Err(Hostile),
        }
    }

    /// Reads who the peer is, if it has said so.
    fn greeting(&mut self, engine: &mut Engine) -> Result<Option<SocketAddr>, Hostile> {
        let Some(length) = self.record(engine)? else {
            // Nothing else can come first, so nobody waits for the rest of it.
            let other = self.length.is_some_and(|length| length != PREFACE.len() + 2);
            return if other { Err(Hostile) } else { Ok(None) };
        };
        let mut first = [0; PREFACE.len() + 2];
        if length != first.len() {
            return Err(Hostile);
        }
        self.read(engine, &mut first)?;
        let (name, port) = first.split_at(PREFACE.len());
        let port = u16::from_le_bytes([port[0], port[1]]);
        let known = name == PREFACE && port != 0;
        if known { Ok(Some(SocketAddr::new(self.at, port))) } else { Err(Hostile) }
    }
}

/// How a connection ends here.
#[derive(Debug, Clone, Copy)]
enum End {
    /// As it has ended already, or its peer wants it.
    Quietly,
    /// At once, and the peer is told.
    Reset,
}

/// All connections of an engine.
#[derive(Debug)]
pub(crate) struct Connections {
    own: SocketAddr,
    listener: Listener,
    most: usize,
    all: Vec<Carrier>,
    /// Those that were reset: given back after the engine has told their peers.
    reset: Vec<Connection>,
    /// Who must not be tried again before when.
    pauses: Vec<(SocketAddr, u64)>,
    /// Who was not reached when that was last tried: what is for them holds nobody up while it is tried again.
    absent: Vec<SocketAddr>,
    /// From which on is received next.
    turn: usize,
    /// A frame in one piece.
    scratch: Vec<u8>,
    pub(crate) stats: StreamStats,
}

impl Connections {
    /// Listens at an address; up to `most` connections are used.
    pub(crate) fn new(engine: &mut Engine, own: SocketAddr, most: usize) -> Result<Self, TcpError> {
        let listener = engine.tcp_listen(Some(own.ip()), own.port(), READY)?;
        let (all, reset, pauses, absent, scratch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self { own, listener, most, all, reset, pauses, absent, turn: 0, scratch, stats: StreamStats::default() })
    }

    /// Ends all of them, and says so.
    pub(crate) fn close(mut self, engine: &mut Engine, now: u64, out: &mut dyn Emit) {
        engine.tcp_unlisten(self.listener);
        (0..self.all.len()).rev().for_each(|at| self.end(engine, at, End::Reset));
        engine.poll(now, out);
        self.reset.drain(..).for_each(|connection| engine.tcp_release(connection));
    }

    fn end(&mut self, engine: &mut Engine, at: usize, how: End) {
        let ended = self.all.swap_remove(at);
        match how {
            End::Quietly => engine.tcp_release(ended.connection),
            End::Reset => {
                // What is not open any more was given back by nobody else.
                let _ = engine.tcp_abort(ended.connection);
                self.reset.push(ended.connection);
            }
        }
        if let Some(peer) = ended.peer.filter(|_| ended.own) {
            self.pauses.retain(|(other, _)| *other != peer);
            if self.pauses.len() >= self.most {
                self.pauses.remove(0);
            }
            self.pauses.push((peer, ended.born.saturating_add(PAUSE)));
            if !ended.greeted {
                self.absent.retain(|other| *other != peer);
                if self.absent.len() >= self.most {
                    self.absent.remove(0);
                }
                self.absent.push(peer);
            }
        }
    }

    fn hostile(&mut self, engine: &mut Engine, at: usize) {
        self.stats.hostile += 1;
        self.end(engine, at, End::Reset);
    }

    /// Makes room for one more connection; with `from`, for one that comes from there.
    fn make_room(&mut self, engine: &mut Engine, from: Option<IpAddr>) {
        let idle = |all: &[Carrier], only: Option<IpAddr>| {
            let all = all.iter().enumerate().filter(|(_, one)| only.is_none_or(|at| !one.own && one.at == at));
            all.min_by_key(|(_, one)| (one.peer.is_some(), one.used)).map(|(at, _)| at)
        };
        let alike = |one: &&Carrier| !one.own && Some(one.at) == from;
        let victim = if self.all.iter().filter(alike).count() >= MOST_FROM_ONE {
            idle(&self.all, from)
        } else if self.all.len() >= self.most {
            idle(&self.all, None)
        } else {
            return;
        };
        if let Some(at) = victim {
            self.stats.evicted += 1;
            self.end(engine, at, End::Reset);
        }
    }

    /// Takes what peers have opened, learns who they are, and lets go of what has ended. To be called after the engine was polled.
    pub(crate) fn tend(&mut self, engine: &mut Engine, now: u64) {
        self.reset.drain(..).for_each(|connection| engine.tcp_release(connection));
        while let Some(connection) = engine.tcp_accept(now, self.listener) {
            let Ok((_, peer)) = engine.tcp_ends(connection) else {
                engine.tcp_release(connection);
                continue;
            };
            self.stats.accepted += 1;
            self.make_room(engine, Some(peer.ip()));
            self.all.push(Carrier::new(connection, peer.ip(), false, now));
        }
        let mut at = self.all.len();
        while let Some(next) = at.checked_sub(1) {
            at = next;
            self.tend_one(engine, at, now);
            // One that has ended may have taken others along.
            at = at.min(self.all.len());
        }
    }

    fn tend_one(&mut self, engine: &mut Engine, at: usize, now: u64) {
        let Some(one) = self.all.get_mut(at) else { return };
        let state = engine.tcp_state(one.connection).unwrap_or(TcpState::Closed);
        if one.own && !one.greeted && state == TcpState::Open {
            let port = self.own.port().to_le_bytes();
            let length = (PREFACE.len() + port.len()) as u32;
            let greeting = [&length.to_le_bytes()[..], &PREFACE, &port].concat();
            // The first bytes of a connection have room.
            one.greeted = engine.tcp_send(one.connection, &greeting) == Ok(greeting.len());
            one.room = (engine.tcp_room(one.connection).unwrap_or(0), now);
            let peer = one.peer;
            self.absent.retain(|absent| Some(*absent) != peer);
        }
        let Some(one) = self.all.get_mut(at) else { return };
        if !one.own && !one.greeted {
            match one.greeting(engine) {
                Ok(Some(peer)) => return self.greeted(engine, at, peer, now),
                Ok(None) if now.saturating_sub(one.born) < SILENCE => {}
                _ => return self.hostile(engine, at),
            }
        }
        let over = matches!(state, TcpState::Closed | TcpState::PeerClosed);
        match if one.greeted { one.record(engine) } else { Ok(None) } {
            // What has come whole is still received.
            Ok(Some(_)) => {}
            Ok(None) if over => {
                self.stats.ended += 1;
                self.end(engine, at, End::Quietly);
            }
            Ok(None) => {}
            Err(Hostile) => self.hostile(engine, at),
        }
    }

    /// A peer has said who it is: what it opened before is nothing to it any more.
    fn greeted(&mut self, engine: &mut Engine, at: usize, peer: SocketAddr, now: u64) {
        let connection = self.all[at].connection;
        while let Some(older) =
            self.all.iter().position(|one| one.peer == Some(peer) && !one.own && one.connection != connection)
        {
            self.stats.replaced += 1;
            self.end(engine, older, End::Reset);
        }
        if let Some(one) = self.all.iter_mut().find(|one| one.connection == connection) {
            (one.peer, one.greeted, one.used) = (Some(peer), true, now);
            one.room = (engine.tcp_room(connection).unwrap_or(0), now);
        }
        self.absent.retain(|absent| *absent != peer);
    }

    /// When [`Self::tend`] has something to do that no segment announces.
    pub(crate) fn due(&self) -> u64 {
        if !self.reset.is_empty() {
            return 0;
        }
        let silent = self.all.iter().filter(|one| !one.own && !one.greeted);
        silent.map(|one| one.born.saturating_add(SILENCE)).min().unwrap_or(u64::MAX)
    }

    /// The connection by which goes what is for a peer: one that is open, if there is any, else one that opens; a new one if there is none.
    fn to(&mut self, engine: &mut Engine, to: SocketAddr, now: u64) -> Option<usize> {
        let of = |one: &Carrier| one.peer == Some(to);
        if let Some(at) = self.all.iter().position(|one| of(one) && one.chosen) {
            return Some(at);
        }
        if let Some(at) = self.all.iter().position(|one| of(one) && one.greeted) {
            let one = self.all.get_mut(at)?;
            (one.chosen, one.room.1) = (true, now);
            return Some(at);
        }
        self.all.iter().position(of).or_else(|| self.open(engine, to, now))
    }

    fn open(&mut self, engine: &mut Engine, to: SocketAddr, now: u64) -> Option<usize> {
        self.pauses.retain(|(_, until)| *until > now);
        if to == self.own || self.pauses.iter().any(|(peer, _)| *peer == to) {
            return None;
        }
        self.make_room(engine, None);
        let connection = engine.tcp_connect(now, to).ok()?;
        self.stats.opened += 1;
        let since = if self.absent.contains(&to) { now.saturating_sub(STALL) } else { now };
        self.all.push(Carrier { peer: Some(to), room: (0, since), ..Carrier::new(connection, to.ip(), true, now) });
        Some(self.all.len() - 1)
    }

    /// Sends a frame of a batch, whole or not at all.
    pub(crate) fn send(&mut self, engine: &mut Engine, batch: &TxBatch<'_>, frame: &TxFrame<'_>, now: u64) -> Went {
        let len = frame.len();
        let Address::Ip(to) = frame.to else { return Went::Settled(Outcome::Unreachable) };
        if len > MAX_RECORD {
            return Went::Settled(Outcome::TooLarge);
        }
        let Some(at) = self.to(engine, to, now) else { return Went::Settled(Outcome::Unreachable) };
        let one = &mut self.all[at];
        if len == 0 {
            // As of a datagram without bytes nobody hears of it.
            return Went::Settled(Outcome::Sent);
        }
        let room = if one.greeted { engine.tcp_room(one.connection).unwrap_or(0) } else { 0 };
        if room > one.room.0 {
            one.room = (room, now);
        }
        if room < LENGTH + len {
            let stalled = now.saturating_sub(one.room.1) >= STALL;
            self.stats.stalled += u64::from(stalled);
            return if stalled { Went::Settled(Outcome::Unreachable) } else { Went::Later };
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&(len as u32).to_le_bytes());
        batch.copy_to(frame, &mut self.scratch);
        // There is room for all of it.
        if engine.tcp_send(one.connection, &self.scratch) != Ok(self.scratch.len()) {
            return Went::Settled(Outcome::Unreachable);
        }
        (one.used, one.room) = (now, (room - self.scratch.len(), now));
        Went::Settled(Outcome::Sent)
    }

    /// Whether something can be received.
    pub(crate) fn is_ready(&mut self, engine: &mut Engine) -> bool {
        self.all.iter_mut().any(|one| one.greeted && !matches!(one.record(engine), Ok(None)))
    }

    /// Receives what has come whole, from the connections in turn. How many bytes those were is added to `bytes`.
    pub(crate) fn receive(&mut self, engine: &mut Engine, batch: &mut RxBatch, now: u64, bytes: &mut u64) -> RxReport {
        let (mut report, before) = (RxReport::default(), batch.taken.len());
        let count = self.all.len();
        let first = if count == 0 { 0 } else { self.turn % count };
        let mut bad = Vec::new();
        for at in (first..count).chain(0..first) {
            let one = &mut self.all[at];
            let Some(peer) = one.peer.filter(|_| one.greeted) else { continue };
            let (from, served) = (Address::Ip(peer), report.frames);
            loop {
                let read = match one.record(engine) {
                    Ok(None) => break,
                    Ok(Some(len)) => {
                        let new = batch.taken.get_mut(before..).and_then(|new| new.last_mut());
                        if let Some(room) = behind(new, from, len) {
                            one.read(engine, room)
                        } else if batch.taken.len() - before < batch.limit
                            && let Some(mut slot) = batch.free.pop_if(|slot| slot.len() >= MAX_RECORD)
                        {
                            let read = slot.bytes_mut().get_mut(..len).map_or(Ok(()), |room| one.read(engine, room));
                            batch.taken.push(Taken { slot, len, stride: len, from });
                            read
                        } else {
                            // Who had its turn waits for the others.
                            self.turn = at + usize::from(report.frames > served);
                            report.more = true;
                            break;
                        }
                        .inspect(|()| *bytes += len as u64)
                    }
                    Err(hostile) => Err(hostile),
                };
                if read.is_err() {
                    bad.push(one.connection);
                    break;
                }
                report.frames += 1;
                one.used = now;
            }
            if report.more {
                break;
            }
        }
        for connection in bad {
            if let Some(at) = self.all.iter().position(|one| one.connection == connection) {
                self.hostile(engine, at);
            }
        }
        report
    }
}
