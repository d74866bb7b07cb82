//! Sinks that hold a reliable source up: who they are is the consumer's to say, and the producer's to give them up.

use super::{Peers, refuse};
use crate::error::Result;
use crate::session::Event;
use crate::stream::StreamShared;
use crate::tx::{Ask, Question};
use insane_wire::id::SinkId;
use insane_wire::peer::{self, to_peer::Body};
use std::sync::Arc;

impl Peers {
    /// Asks the consumers of links who holds a source up. What is not asked because a link has ended is forgotten with it.
    pub(crate) fn ask_who_lags(&mut self, stream: &Arc<StreamShared>, asks: &[Ask]) {
        for Ask { question: Question { number, link: at, source }, sinks } in asks {
            let sinks = sinks.iter().map(|sink| sink.to_bytes()).collect();
            let body = Body::FlowLag(peer::FlowLag { source: *source, number: *number, sinks });
            self.say_on(stream, *at, body);
        }
    }

    /// Says something on the link of a stream that has this place.
    fn say_on(&mut self, stream: &Arc<StreamShared>, at: usize, body: Body) {
        for pair in self.pairs.iter_mut().flatten() {
            let mut outgoing = pair.outgoing.iter();
            let link = outgoing.find(|(_, o)| o.offered.is_none() && o.at == at && Arc::ptr_eq(&o.stream, stream));
            if let Some(link) = link.map(|(link, _)| *link) {
                return pair.send(link, body, &[]);
            }
        }
    }

    /// A source of the peer is held up, and asks by whom.
    pub(super) fn asked_who_lags(&mut self, at: usize, link: u32, asked: &peer::FlowLag) -> Result<()> {
        let Some(pair) = self.pairs[at].as_mut() else { return Ok(()) };
        let incoming = pair.incoming.get(&link).ok_or_else(|| refuse("a question about an unknown link"))?;
        let sinks: Vec<SinkId> = asked.sinks.iter().filter_map(|sink| SinkId::from_bytes(sink)).collect();
        let lagging = incoming.stream.rx.visit().lagging(incoming.at, asked.source, &sinks);
        let sinks = lagging.iter().map(|sink| sink.to_bytes()).collect();
        let answer = peer::FlowLag { source: asked.source, number: asked.number, sinks };
        pair.send(link, Body::FlowLagging(answer), &[]);
        Ok(())
    }

    /// The peer says who holds up a source of this session. If that waits no more, nobody does.
    pub(super) fn told_who_lags(&mut self, at: usize, link: u32, answer: &peer::FlowLag) -> Result<()> {
        let outgoing = self.outgoing(at, link)?;
        let (stream, at) = (outgoing.stream.clone(), outgoing.at);
        let question = Question { number: answer.number, link: at, source: answer.source };
        if !stream.tx.visit().is_asked(&question) {
            return Ok(());
        }
        let named: Vec<SinkId> = answer.sinks.iter().filter_map(|sink| SinkId::from_bytes(sink)).collect();
        let mut sinks = sinks_of(&stream, answer.source, at);
        sinks.retain(|sink| named.contains(sink));
        self.give_up_sinks(&stream, answer.source, at, &sinks);
        stream.tx.visit().answered(&question);
        Ok(())
    }

    /// A reliable source gives all of its sinks on some links up.
    pub(crate) fn give_up(&mut self, stream: &Arc<StreamShared>, number: u32, links: &[usize]) {
        for at in links {
            let sinks = sinks_of(stream, number, *at);
            self.give_up_sinks(stream, number, *at, &sinks);
        }
    }

    fn give_up_sinks(&mut self, stream: &Arc<StreamShared>, number: u32, at: usize, sinks: &[SinkId]) {
        // First the event: who sees that the sink is gone finds it.
        for sink in sinks {
            self.shared.event(Event::SinkGivenUp { stream: stream.name.clone(), sink: *sink });
        }
        self.end_flows(stream, number, at, sinks, true);
    }

    /// Ends flows of a source on a link: its sinks get what is on its way, unless they were given up and others want the room.
    pub(super) fn end_flows(
        &mut self,
        stream: &Arc<StreamShared>,
        number: u32,
        at: usize,
        sinks: &[SinkId],
        given_up: bool,
    ) {
        for sink in sinks {
            let (cell, position) = {
                let mut tx = stream.tx.visit();
                let cell = tx.end_flow(at, number, *sink, false);
                if given_up {
                    tx.note_given_up(number, *sink);
                }
                (cell, tx.links[at].as_ref().map_or(0, |l| l.producer.position()))
            };
            if let Some(cell) = cell {
                self.shared.cells().end(cell.index());
            }
            let closed = peer::FlowClosed { source: number, sink: sink.to_bytes(), position, given_up };
            self.say_on(stream, at, Body::FlowClosed(closed));
        }
    }
}

/// The sinks of a source on a link.
fn sinks_of(stream: &Arc<StreamShared>, number: u32, at: usize) -> Vec<SinkId> {
    stream.tx.visit().source(number).map_or_else(Vec::new, |s| {
        s.routes.iter().filter(|r| r.link == at).flat_map(|r| r.flows.iter().map(|f| f.sink)).collect()
    })
}
