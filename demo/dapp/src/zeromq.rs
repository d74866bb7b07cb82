//! The same loop over ZeroMQ: PUB to the xApps, PULL from them, over TCP.

use crate::Failure;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use zmq::{Context, Socket};

/// How long the reading thread may sleep before it looks again.
const LOOK_MS: i32 = 100;

pub(crate) struct ZeroMq {
    out: Socket,
    answers: Receiver<(Instant, Vec<u8>)>,
    // Outlives its sockets.
    _context: Context,
}

impl ZeroMq {
    pub(crate) fn open(peers: &[String], back: &[String]) -> Result<Self, Failure> {
        let context = Context::new();
        let (out, answering) = (context.socket(zmq::PUB)?, context.socket(zmq::PULL)?);
        for socket in [&out, &answering] {
            socket.set_linger(0)?;
        }
        peers.iter().try_for_each(|p| out.connect(&format!("tcp://{p}")))?;
        back.iter().try_for_each(|p| answering.connect(&format!("tcp://{p}")))?;
        answering.set_rcvtimeo(LOOK_MS)?;
        let (sender, answers) = channel();
        // ZeroMQ waits in whole milliseconds, the tick of the loop. What a thread of its own takes has the time at which it
        // was taken, so that the way to the loop's thread does not count.
        std::thread::spawn(move || {
            loop {
                match answering.recv_bytes(0) {
                    Ok(bytes) => {
                        if sender.send((Instant::now(), bytes)).is_err() {
                            break;
                        }
                    }
                    Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => {}
                    Err(_) => break,
                }
            }
        });
        Ok(Self { out, answers, _context: context })
    }

    pub(crate) fn emit(&self, payload: &[u8]) -> Result<(), Failure> {
        match self.out.send(payload, zmq::DONTWAIT) {
            // A publisher drops what a subscriber has no room for; it never says EAGAIN.
            Ok(()) | Err(zmq::Error::EAGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn answer(&self, left: Duration) -> Option<(Instant, Vec<u8>)> {
        self.answers.recv_timeout(left).ok()
    }
}
