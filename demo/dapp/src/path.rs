//! The ways to the xApps and back: INSANE, datagram sockets, ZeroMQ.

use crate::{Arguments, Failure};
use insane::{CellState, Code, Count, Qos, Session, Sink, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One of the ways to the xApps and back.
pub(crate) enum Path {
    Insane(Box<Insane>),
    Unix(UnixDatagram, PathBuf),
    Udp(UdpSocket, Vec<SocketAddr>),
    #[cfg(feature = "zeromq")]
    ZeroMq(crate::zeromq::ZeroMq),
}

pub(crate) struct Insane {
    session: Session,
    source: Source,
    sink: Sink,
    sinks: usize,
    emitted: usize,
    /// The numbers of messages for which a sink was not in view that should have been, once for each such sink.
    out_of_view: Vec<usize>,
}

/// Waits until there is something to read, at most `left`.
fn readable(fd: &impl AsFd, left: Duration) -> bool {
    // Of a socket's own time-out the kernel makes whole ticks of its clock.
    let left = Timespec::try_from(left).ok();
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()), Ok(1..))
}

impl Path {
    pub(crate) fn open(a: &Arguments) -> Result<Self, Failure> {
        match a.path.as_str() {
            "insane" => {
                let session = Session::open("dApp")?;
                let stream = session.stream_named("e2", Qos::default())?;
                let sink = stream.sink("control")?;
                let source = stream.source("indication")?;
                if source.wait_for_sinks(a.sinks, Duration::from_secs(20)) < a.sinks {
                    return Err(format!("fewer than {} sinks within 20 s", a.sinks).into());
                }
                Ok(Self::Insane(Box::new(Insane {
                    session,
                    source,
                    sink,
                    sinks: a.sinks,
                    emitted: 0,
                    out_of_view: Vec::new(),
                })))
            }
            "unix" => Ok(Self::Unix(UnixDatagram::bind(a.dir.join("dapp.sock"))?, a.dir.join("xapp.sock"))),
            "udp" => {
                let peers = a.peer.iter().map(|p| p.parse()).collect::<Result<_, _>>();
                let peers = peers.map_err(|e| format!("--peer: {e}"))?;
                Ok(Self::Udp(UdpSocket::bind((a.address, 0))?, peers))
            }
            #[cfg(feature = "zeromq")]
            "zeromq" => Ok(Self::ZeroMq(crate::zeromq::ZeroMq::open(&a.peer, &a.back)?)),
            other => Err(format!("--path {other}: this build takes insane, unix, udp{}", crate::ALSO).into()),
        }
    }

    pub(crate) fn emit(&mut self, payload: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Insane(i) => {
                let token = i.source.send(payload)?;
                let meant = i.source.outcome(token)?.intended as usize;
                i.out_of_view.extend(std::iter::repeat_n(i.emitted, i.sinks.saturating_sub(meant)));
                i.emitted += 1;
            }
            // Nobody there is no failure: the xApp may be killed on purpose, or the link be cut.
            Self::Unix(socket, to) => drop(socket.send_to(payload, to)),
            Self::Udp(socket, peers) => peers.iter().for_each(|to| drop(socket.send_to(payload, to))),
            #[cfg(feature = "zeromq")]
            Self::ZeroMq(z) => z.emit(payload)?,
        }
        Ok(())
    }

    /// Waits for an answer, at most `left`: when it came, and what it says. `None` when none came.
    pub(crate) fn answer(&self, left: Duration) -> Result<Option<(Instant, Vec<u8>)>, Failure> {
        let mut buffer = [0u8; 2048];
        let left = left.max(Duration::from_micros(1));
        let n = match self {
            Self::Insane(i) => {
                return match i.sink.consume_timeout(left) {
                    Ok(message) => Ok(Some((Instant::now(), message.to_vec()))),
                    Err(e) if e.code() == Code::Timeout => Ok(None),
                    Err(e) => Err(e.into()),
                };
            }
            // What a socket reports of earlier datagrams (nobody was there) is no answer.
            Self::Unix(socket, _) => readable(socket, left).then(|| socket.recv(&mut buffer)),
            Self::Udp(socket, _) => readable(socket, left).then(|| socket.recv(&mut buffer)),
            #[cfg(feature = "zeromq")]
            Self::ZeroMq(z) => return Ok(z.answer(left)),
        };
        Ok(n.and_then(Result::ok).map(|n| (Instant::now(), buffer[..n].to_vec())))
    }

    /// What INSANE counted of this dApp's indications, at the source's end, and what is needed to find the other end.
    pub(crate) fn accounting(&self) -> Value {
        let Self::Insane(i) = self else { return Value::Null };
        let cells = i.session.counts();
        let flows = cells.iter().filter(|c| c.state == CellState::Producing);
        let flows: Vec<Value> = flows
            .map(|c| {
                let count = |k| c.get(k);
                json!({
                    "sink": format!("{:032x}", c.sink), "ended": c.ended, "intended": count(Count::Intended),
                    "sink_full": count(Count::SinkFull), "dropped": count(Count::Dropped),
                    "expired": count(Count::Expired), "unconfirmed": count(Count::Unconfirmed),
                })
            })
            .collect();
        json!({
            "source": format!("{:032x}", i.source.epoch().0), "sink": format!("{:032x}", i.sink.id().0), "flows": flows,
            "out_of_view": i.out_of_view,
        })
    }
}
