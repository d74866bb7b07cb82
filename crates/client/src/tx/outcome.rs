//! What became of an emitted message.

use super::{Tx, TxFlow, TxLink};
use crate::error::{Code, Error, Result};
use insane_shm::counters::Count;

/// How many intended sinks of a message are in each state (INSANE paper figure 2, `check_emit_outcome`).
///
/// Of sinks of other hosts, best effort, losses are counted and not named: a message is said to be delivered once as many have ended as
/// were emitted before and with it. Their counts are exact ([`crate::Session::counts`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Sinks that the message was meant for.
    pub intended: u32,
    /// Not final yet.
    pub pending: u32,
    /// Handed to the application.
    pub delivered: u32,
    /// Dropped, at either end.
    pub dropped: u32,
    /// Past its deadline.
    pub expired: u32,
    /// The peer was lost before it was known.
    pub unconfirmed: u32,
}

impl Outcome {
    /// Whether every intended sink is in a final state.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.pending == 0
    }

    /// One more was meant for a sink that was given up before it took it: let go of, or on another host, of which it is not known.
    fn note_given_up(&mut self, network: bool) {
        self.intended += 1;
        let ended = if network { &mut self.unconfirmed } else { &mut self.dropped };
        *ended += 1;
    }
}

impl TxLink {
    /// Whether a message of a flow that was given up has ended there without having been taken: sinks take in order.
    fn let_go_of(&self, flow: &TxFlow, sequence: u64, finished: u64) -> bool {
        let counted = self.peer.get(flow.peer_cell).filter(|cell| cell.sink == flow.sink.0);
        let taken =
            counted.map_or(finished, |cell| flow.before + cell.get(Count::Delivered) + cell.get(Count::Expired));
        let is_dropped = flow.drops.contains(&sequence);
        !flow.observer && !is_dropped && (taken + 1..=finished).contains(&flow.ordinal(sequence))
    }
}

impl Tx {
    /// The outcome of message `sequence` of a source. One that still waits for more to be packed with it is sent.
    pub(crate) fn outcome(&mut self, index: usize, sequence: u64) -> Result<Outcome> {
        self.close_pack(index, false);
        self.reclaim_all();
        let source = self.sources.get(index).and_then(Option::as_ref).ok_or_else(|| self.closed(index))?;
        if sequence == 0 || sequence > source.sequence {
            return Err(Error::new(Code::UnknownToken, format!("this source has emitted {}", source.sequence)));
        }
        let mut outcome = Outcome::default();
        for route in &source.routes {
            let Some(link) = self.links[route.link].as_ref() else { continue };
            for flow in route.flows.iter().filter(|f| f.start <= sequence) {
                if flow.forgotten > 0 && flow.drops.front().is_some_and(|d| sequence < *d) {
                    return Err(Code::UnknownToken.into());
                }
                flow.state(sequence, link.finished_of(flow), false, &mut outcome);
            }
        }
        for ended in source.ended.iter().filter(|e| e.flow.start <= sequence && sequence <= e.end) {
            let flow = &ended.flow;
            match ended.link.and_then(|at| self.links[at].as_ref()) {
                Some(link) => {
                    let finished = link.finished(flow.sink, flow.peer_cell, flow.given, flow.before).max(flow.known);
                    if ended.given_up && link.let_go_of(flow, sequence, finished) {
                        outcome.note_given_up(link.network);
                    } else {
                        flow.state(sequence, finished, false, &mut outcome);
                    }
                }
                None => flow.state(sequence, ended.finished, true, &mut outcome),
            }
        }
        Ok(outcome)
    }
}
