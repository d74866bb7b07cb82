//! Links of reliable streams to a runtime that is gone, and the links of the next that take over from them; see
//! [`crate::revive`].

use super::opening::open_waiting;
use super::{Outgoing, Peers};
use crate::session::Event;
use crate::stream::StreamShared;
use insane_wire::id::{Epoch, SinkId};
use insane_wire::peer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the ends of reliable streams outlive the runtime if it does not say.
const PATIENCE: Duration = Duration::from_secs(10);

/// Within so long of the end of its links a runtime is seen to be gone; if it is not, it has ended the links alone.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// How often a link that takes over is given more.
const AGAIN: Duration = Duration::from_millis(1);

/// A link without a runtime.
#[derive(Debug)]
pub(super) struct ParkedLink {
    stream: Arc<StreamShared>,
    at: usize,
    since: Instant,
    app: String,
    /// Another link is being given its messages.
    busy: bool,
}

impl Peers {
    /// A link to a runtime has ended.
    pub(super) fn park(&mut self, outgoing: &Outgoing, app: &str) {
        let (cells, parked) = {
            let mut tx = outgoing.stream.tx.visit();
            let cells = tx.park(outgoing.at);
            (cells, tx.links[outgoing.at].is_some())
        };
        for cell in cells {
            self.shared.cells().end(cell.index());
        }
        if parked {
            let (stream, at) = (outgoing.stream.clone(), outgoing.at);
            self.parked.push(ParkedLink { stream, at, since: Instant::now(), app: app.to_owned(), busy: false });
        }
    }

    /// The connection with the runtime is lost.
    pub(crate) fn runtime_lost(&mut self) {
        self.runtime_lost = Some(Instant::now());
    }

    /// The place of a stream's link that has no runtime.
    pub(super) fn parked_place(&self, stream: &Arc<StreamShared>) -> Option<usize> {
        self.parked.iter().find(|p| Arc::ptr_eq(&p.stream, stream)).map(|p| p.at)
    }

    /// The sinks of sources, by the sources' numbers, that wait for a link of a stream; `None`: none do.
    pub(super) fn parked_flows(&self, stream: &Arc<StreamShared>) -> Option<Vec<(u32, SinkId)>> {
        let parked = self.parked_place(stream)?;
        let flows = stream.tx.visit().flows_on(parked);
        Some(flows.into_iter().map(|(number, sink, _)| (number, sink)).collect())
    }

    /// When there is something to be done for parked links.
    pub(super) fn parked_at(&self) -> Option<Instant> {
        let patience = self.patience();
        let at = |p: &ParkedLink| {
            let now = Instant::now();
            let check = p.since + GONE_WITHIN;
            let end = p.since + patience;
            if p.busy {
                now + AGAIN
            } else if check > now {
                check.min(end)
            } else {
                end
            }
        };
        self.parked.iter().map(at).min()
    }

    fn patience(&self) -> Duration {
        match self.shared.limits().patience_ms {
            0 => PATIENCE,
            ms => Duration::from_millis(ms.into()),
        }
    }

    /// Lets the links of the next runtime take over, and gives up what nothing takes over in time.
    pub(super) fn tend_parked(&mut self) {
        let patience = self.patience();
        for n in (0..self.parked.len()).rev() {
            let (stream, at) = (self.parked[n].stream.clone(), self.parked[n].at);
            let flows = stream.tx.visit().flows_on(at);
            let heir = self.heir(&stream).map(|heir| (heir.at, heir.reopened.clone()));
            let is_back = |(number, sink, _): &(u32, SinkId, bool)| {
                heir.as_ref().is_some_and(|(_, reopened)| reopened.contains_key(&(*number, *sink)))
            };
            let (back, missing): (Vec<_>, Vec<_>) = flows.into_iter().partition(is_back);
            if self.parked[n].busy && (back.is_empty() || !missing.is_empty()) {
                // The next runtime is gone as well, and another is waited for.
                (self.parked[n].busy, self.parked[n].since) = (false, Instant::now());
            }
            let since = self.parked[n].since;
            let seen = self.runtime_lost.is_some_and(|lost| lost + GONE_WITHIN >= since);
            let waited = since.elapsed();
            let over = waited >= patience || (waited >= GONE_WITHIN && !seen);
            if !missing.is_empty() && !over {
                continue;
            }
            let Some((to, reopened)) = heir.filter(|_| !back.is_empty()) else {
                let parked = self.parked.remove(n);
                self.give_up_parked(&parked, &missing);
                self.open_rest(&stream);
                continue;
            };
            // Sinks that are not back are gone, and no reason to give up those that are.
            self.give_up_flows(&stream, at, &missing);
            self.parked[n].busy = true;
            let mut tx = stream.tx.visit();
            if tx.hand_on(at, to, &reopened) {
                tx.succeed(at, to, &reopened);
                drop(tx);
                self.parked.remove(n);
                self.open_rest(&stream);
            }
        }
    }

    /// The link of the next runtime.
    fn heir(&self, stream: &Arc<StreamShared>) -> Option<&Outgoing> {
        let mut outgoing = self.pairs.iter().flatten().filter(|p| p.network).flat_map(|p| p.outgoing.values());
        outgoing.find(|o| o.offered.is_none() && Arc::ptr_eq(&o.stream, stream))
    }

    /// Ends flows of a parked link: their sinks did not come back.
    fn give_up_flows(&self, stream: &Arc<StreamShared>, at: usize, flows: &[(u32, SinkId, bool)]) {
        for (number, sink, _) in flows {
            self.shared.event(Event::SinkGivenUp { stream: stream.name.clone(), sink: *sink });
            let cell = stream.tx.visit().end_flow(at, *number, *sink, true);
            if let Some(cell) = cell {
                self.shared.cells().end(cell.index());
            }
        }
    }

    /// The session closes: nothing is waited for.
    pub(super) fn end_parked(&mut self) {
        for parked in std::mem::take(&mut self.parked) {
            self.give_up_parked(&parked, &[]);
        }
    }

    fn give_up_parked(&self, parked: &ParkedLink, flows: &[(u32, SinkId, bool)]) {
        // First the event: who sees that the sink is gone finds it.
        for (_, sink, _) in flows {
            self.shared.event(Event::SinkGivenUp { stream: parked.stream.name.clone(), sink: *sink });
        }
        if !flows.is_empty() {
            self.shared.event(Event::PeerLost { app: parked.app.clone() });
        }
        let cells = {
            let mut tx = parked.stream.tx.visit();
            if let Some(heir) = tx.heir_of(parked.at) {
                tx.disinherit(heir);
            }
            tx.dissolve(parked.at)
        };
        for cell in cells {
            self.shared.cells().end(cell.index());
        }
    }

    /// Nothing waits on a stream any more: what had to wait for that is done.
    fn open_rest(&mut self, stream: &Arc<StreamShared>) {
        let mut late: Vec<(usize, u32, peer::FlowOpened)> = Vec::new();
        for (at, pair) in self.pairs.iter_mut().enumerate() {
            let Some(pair) = pair.as_mut().filter(|p| p.network) else { continue };
            let links: Vec<u32> =
                pair.outgoing.iter().filter(|(_, o)| Arc::ptr_eq(&o.stream, stream)).map(|(l, _)| *l).collect();
            for link in links {
                if let Some(outgoing) = pair.outgoing.get_mut(&link) {
                    outgoing.reopened.clear();
                    late.extend(outgoing.late.drain(..).map(|flow| (at, link, flow)));
                }
                open_waiting(pair, link, None);
            }
        }
        for (at, link, flow) in late {
            // What cannot be is found out by the pair's next message.
            let _ = self.add_flow(at, link, &flow, false);
        }
    }

    /// Whether a source is to be closed only when its flows have a runtime again, which is then seen to.
    pub(crate) fn close_later(&mut self, stream: &Arc<StreamShared>, number: u32, epoch: Epoch) -> bool {
        let parked = stream.tx.visit().is_parked(number);
        if parked {
            self.closing.push((stream.clone(), number, epoch));
        }
        parked
    }

    /// The sources that can be closed now.
    pub(crate) fn closable(&mut self) -> Vec<(Arc<StreamShared>, u32, Epoch)> {
        let (later, now) =
            std::mem::take(&mut self.closing).into_iter().partition(|(s, number, _)| s.tx.visit().is_parked(*number));
        self.closing = later;
        now
    }
}
