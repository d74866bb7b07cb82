//! Which flows to other hosts a session may open: those that the core has matched for it. Over its pair it could name any source of
//! its domain, and what is said of that is about another session's messages.

use crate::network::FromNetwork;
use crate::network::domain::Domain;
use crate::network::hub::Hub;
use crate::network::moves::Whose;
use insane_wire::control::Flow;
use insane_wire::host::Announce;
use insane_wire::id::{Epoch, SessionId, SinkId};
use insane_wire::qos::EffectiveQos;
use std::collections::BTreeSet;

/// A flow that a local session wants to open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Its link, of which generation that is, and the number of its source there.
    pub(crate) link: usize,
    pub(crate) generation: u32,
    pub(crate) source: u32,
    pub(crate) epoch: Epoch,
    pub(crate) sink: SinkId,
    pub(crate) channel: u64,
    pub(crate) strict: bool,
}

/// What the core has matched of one session's sources, with sinks of other hosts.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    all: BTreeSet<(SinkId, Epoch)>,
    /// Those that were refused under `strict`.
    refused: BTreeSet<(SinkId, Epoch)>,
}

impl Matches {
    fn forget(&mut self, sink: SinkId) {
        let of = (sink, Epoch(0))..=(sink, Epoch(u128::MAX));
        let gone: Vec<_> = self.all.range(of).copied().collect();
        gone.iter().for_each(|one| self.remove(one));
    }

    fn remove(&mut self, one: &(SinkId, Epoch)) {
        self.all.remove(one);
        self.refused.remove(one);
    }
}

impl Domain {
    /// Whether the core has matched a flow for the session that wants it; `None` if that is gone.
    fn is_matched(&self, wanted: &Wanted) -> Option<bool> {
        let intake = self.intakes.get(wanted.link)?.as_ref();
        let intake = intake.filter(|intake| !intake.gone && intake.generation == wanted.generation)?;
        let pair = self.pairs.get(intake.pair)?.as_ref()?;
        Some(pair.matches.all.contains(&(wanted.sink, wanted.epoch)))
    }

    /// Every pair with a session: one that comes back has two for a moment.
    fn matches_with(&mut self, peer: SessionId) -> impl Iterator<Item = &mut Matches> {
        self.pairs.iter_mut().flatten().filter(move |pair| pair.peer == peer).map(|pair| &mut pair.matches)
    }

    /// A flow that a session wants is refused under `strict`: it is asked again once there is a better datapath.
    pub(crate) fn note_refused(&mut self, link: usize, flow: (SinkId, Epoch)) {
        let pair = self.intakes[link].as_ref().and_then(|intake| self.pairs[intake.pair].as_mut());
        if let Some(pair) = pair.filter(|pair| pair.matches.all.contains(&flow)) {
            pair.matches.refused.insert(flow);
        }
    }

    /// A sink of another host is gone: the core does not say that of each of its flows.
    pub(crate) fn forget_matches(&mut self, sink: SinkId) {
        self.pairs.iter_mut().flatten().for_each(|pair| pair.matches.forget(sink));
    }
}

impl Hub {
    /// The core has matched a source of a session with a sink of another host, or has ended that.
    pub(crate) fn matched(&mut self, at: usize, flow: &Flow, lives: bool) {
        let ids = (Epoch::from_bytes(&flow.epoch), SinkId::from_bytes(&flow.sink), SessionId::from_bytes(&flow.peer));
        let (Some(epoch), Some(sink), Some(peer)) = ids else { return };
        // Of one that is gone already nothing more will be said.
        let there = self.sinks.get(&sink).is_some_and(|known| known.domain == at);
        for matches in self.domains[at].matches_with(peer) {
            if lives && there {
                matches.all.insert((sink, epoch));
            } else {
                matches.remove(&(sink, epoch));
            }
        }
    }

    /// Has the sessions of sources asked again for flows to a host that were refused under `strict`, and would not be now.
    pub(crate) fn ask_again(&mut self, host: usize) {
        for at in 0..self.domains.len() {
            let refused = self.domains[at].pairs.iter().flatten().flat_map(|pair| &pair.matches.refused);
            let is_served = |(sink, _): &&(SinkId, Epoch)| {
                let known = self.sinks.get(sink).filter(|known| known.host == host);
                known.is_some_and(|known| self.serves(host, &known.announced).is_some())
            };
            let again: Vec<_> = refused.filter(is_served).copied().collect();
            for (sink, epoch) in again {
                for pair in self.domains[at].pairs.iter_mut().flatten() {
                    pair.matches.refused.remove(&(sink, epoch));
                }
                let _ = self.ends.outbox.send(FromNetwork::Again(self.domains[at].conn, epoch, sink));
                self.ends.out_bell.ring();
            }
        }
    }

    /// What the stream of a sink gets between this host and another, if that is all that it asks for.
    fn serves(&self, host: usize, sink: &Announce) -> Option<EffectiveQos> {
        let effective = self.choose(host, &sink.stream, sink.qos.unwrap_or_default(), Whose::New).effective;
        Some(effective).filter(|effective| effective.reasons.is_empty())
    }

    /// A sink of this host may get what a host sends. If that had refused it, its session is told that it does so no more.
    pub(crate) fn is_served(&mut self, host: usize, sink: SinkId) {
        if !self.hosts[host].refused.contains(&sink) {
            return;
        }
        let Some(effective) = self.directory.own(sink).and_then(|own| self.serves(host, own)) else { return };
        self.hosts[host].refused.remove(&sink);
        let _ = self.ends.outbox.send(FromNetwork::Served(sink, effective));
        self.ends.out_bell.ring();
    }

    /// A session wants to open a flow.
    pub(crate) fn wanted_by_session(&mut self, at: usize, wanted: Wanted) {
        match self.domains[at].is_matched(&wanted) {
            Some(true) => self.wanted(at, wanted),
            Some(false) => self.domains[at].early.push(wanted),
            None => {}
        }
    }

    /// Looks again at flows that the core had not matched when they were read. It tells this thread before it tells the session, so
    /// what it has said of them has come by now: the others are none of that session's.
    pub(crate) fn look_at_early(&mut self) {
        while self.domains.iter().any(|domain| !domain.early.is_empty()) {
            let early: Vec<Vec<Wanted>> = self.domains.iter_mut().map(|d| std::mem::take(&mut d.early)).collect();
            self.take_orders();
            for (at, early) in early.into_iter().enumerate() {
                early.into_iter().for_each(|wanted| self.decide(at, wanted));
            }
        }
    }

    fn decide(&mut self, at: usize, wanted: Wanted) {
        match self.domains[at].is_matched(&wanted) {
            Some(true) => self.wanted(at, wanted),
            Some(false) => {
                tracing::debug!(epoch = %wanted.epoch, sink = %wanted.sink, "a flow that is none of its session's");
                self.domains[at].detach(wanted.link, wanted.source, wanted.sink);
            }
            None => {}
        }
    }

    /// Looks again at flows that were wanted while the ones before had not ended.
    pub(crate) fn look_at_held(&mut self) {
        for at in 0..self.domains.len() {
            let held = std::mem::take(&mut self.domains[at].held);
            held.into_values().for_each(|wanted| self.decide(at, wanted));
        }
    }
}
