//! Which hosts hold a reliable source of this one up, and how its sinks there are given up.
//!
//! What is known of a flow to another host is how far all of its sinks are, together: so of a host all sinks of a source are given up, or
//! none. The other hosts' stay.

use crate::network::host::Host;
use crate::network::hub::Hub;
use crate::network::intake::Route;
use insane_shm::counters::Count;
use insane_transport::{End, Outgoing};
use insane_wire::id::SinkId;
use insane_wire::peer::{self, to_peer::Body};

/// A local session asks who holds one of its sources up.
#[derive(Debug)]
pub(crate) struct Lag {
    /// Its link, of which generation that is.
    pub(crate) link: usize,
    pub(crate) generation: u32,
    /// The source's number there, and the question's.
    pub(crate) source: u32,
    pub(crate) number: u32,
    /// Sinks that have taken nothing for a while.
    pub(crate) sinks: Vec<SinkId>,
}

impl Hub {
    /// Answers a session that asks who holds its source up.
    pub(crate) fn tell_who_lags(&mut self, at: usize, asked: &Lag) {
        let sinks = self.lagging(at, asked).iter().map(|sink| sink.to_bytes()).collect();
        let domain = &mut self.domains[at];
        let Some(intake) = domain.intakes[asked.link].as_ref().filter(|i| i.generation == asked.generation && !i.gone)
        else {
            return;
        };
        let answer = peer::FlowLag { source: asked.source, number: asked.number, sinks };
        if let Some(pair) = domain.pairs[intake.pair].as_mut() {
            pair.send(intake.number, Body::FlowLagging(answer), &[]);
        }
    }

    /// The sinks of the hosts that have the oldest of what is under way from a source, as all there have taken something since if none of
    /// them is asked about.
    fn lagging(&self, at: usize, asked: &Lag) -> Vec<SinkId> {
        let intake = self.domains[at].intakes[asked.link].as_ref();
        let intake = intake.filter(|intake| intake.generation == asked.generation && intake.reliable);
        let Some(source) = intake.and_then(|intake| intake.sources.get(&asked.source)) else { return Vec::new() };
        let oldest = |route: &Route| self.hosts[route.host].oldest(route.flow);
        let Some(first) = source.routes.iter().filter_map(oldest).min() else { return Vec::new() };
        let is_asked = |route: &Route| route.sinks.iter().any(|sink| sink.open && asked.sinks.contains(&sink.id));
        let late = source.routes.iter().filter(|route| oldest(route) == Some(first) && is_asked(route));
        late.flat_map(|route| &route.sinks).filter(|sink| sink.open && sink.end.is_none()).map(|sink| sink.id).collect()
    }

    /// A source has given sinks up: where it has no other on a host, its flow there ends at once, and what that kept is the source's again.
    pub(crate) fn give_up(&mut self, at: usize, (link, source): (usize, u32)) {
        let Self { domains, hosts, .. } = self;
        let of = domains[at].intakes[link].as_ref().and_then(|intake| intake.sources.get(&source));
        let (mut gone, mut left, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        for route in of.into_iter().flat_map(|of| &of.routes) {
            let over = route.sinks.iter().all(|sink| sink.end.is_some() || !sink.open);
            if !over || !route.sinks.iter().any(|sink| sink.given_up) {
                continue;
            }
            gone.extend(hosts[route.host].give_up(route.flow));
            given_up.push(route.host);
            // Those that were about to join begin with another flow.
            left.extend(route.sinks.iter().filter(|sink| !sink.open).map(|sink| sink.id));
        }
        for host in given_up {
            // What the scheduler has of it is not to wait for its turn.
            if !self.hosts[host].egress.is_fifo() {
                let now = self.now();
                gone.extend(self.hosts[host].drain_closing(now));
            }
        }
        gone.into_iter().for_each(|token| self.released(token, End::Unconfirmed));
        left.into_iter().for_each(|sink| self.domains[at].withdraw(link, source, sink));
    }
}

impl Host {
    /// The flows by which what a source emits goes here: one, and those before it that are not done.
    fn flows_of(&self, at: usize) -> Vec<usize> {
        let of = |at: usize| self.flows.get(at)?.as_ref().map(|flow| (flow.epoch, flow.from));
        let Some(source) = of(at) else { return Vec::new() };
        (0..self.flows.len()).filter(|at| of(*at) == Some(source)).collect()
    }

    /// The number of the first message of a flow's source that the sinks here are not known to have; `None` if they have all.
    pub(crate) fn oldest(&self, at: usize) -> Option<u64> {
        let flows = self.flows_of(at).into_iter().filter_map(|at| self.flows[at].as_ref());
        let first = flows.filter_map(|flow| {
            let waits = flow.backlog.front().map(|next| next.sequence);
            // Which those in the scheduler are is not known; they are the newest.
            let queued = (flow.queued > 0).then_some(u64::MAX);
            [self.lanes.oldest(flow.number), waits, queued].into_iter().flatten().min()
        });
        first.min()
    }

    /// The sinks of a flow's source are given up: all of its flows here end at once, of which the other end is told, and what is not known to
    /// have come is unconfirmed. Returns what is no longer under way, but for what the path and the scheduler release.
    pub(crate) fn give_up(&mut self, at: usize) -> Vec<u64> {
        let mut gone = Vec::new();
        for at in self.flows_of(at) {
            let Some(flow) = self.flows[at].as_mut().filter(|flow| !flow.lost) else { continue };
            tracing::info!(host = self.name, epoch = %flow.epoch, "sinks are given up");
            (flow.lost, flow.heir, flow.behind, flow.moving) = (true, None, false, None);
            let (number, backlog) = (flow.number, std::mem::take(&mut flow.backlog));
            for next in &backlog {
                self.end_of((at, number), next.joined, (Count::Unconfirmed, next.messages()));
            }
            gone.extend(backlog.iter().filter_map(Outgoing::releases));
            self.lanes.abandon(number);
            self.settle(at, None);
            self.forget_epoch(at);
        }
        self.goes_on = true;
        gone
    }
}
