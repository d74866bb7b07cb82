//! Which sinks of a reliable source hold it up, as far as the producing end of a link knows.

use super::{Tx, TxSource};
use insane_wire::id::SinkId;
use std::collections::HashMap;
use std::time::Duration;

/// What the consumer of a link was asked and has not answered: which sinks of a source hold that up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) number: u32,
    pub(crate) link: usize,
    /// The source's number.
    pub(crate) source: u32,
}

/// A question to be asked, about these sinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) question: Question,
    pub(crate) sinks: Vec<SinkId>,
}

/// How much sinks had taken: by link, source and sink, the messages that had ended.
pub(crate) type Taken = HashMap<(usize, u32, SinkId), u64>;

/// What a full link is to a source that has waited long enough.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It goes on, if slowly.
    Nobody,
    /// What is on it is not the source's, nor that of one whose sinks may be given up for it.
    Others,
    /// This source has one sink on it, which takes nothing.
    All(u32),
    /// One or more of these sinks of a source, which have taken nothing: its consumer knows which.
    Among(u32, Vec<SinkId>),
}

impl Tx {
    /// What the sinks on these links have taken so far, of any source.
    pub(crate) fn taken_on(&self, links: &[usize]) -> Taken {
        let mut taken = Taken::new();
        for source in self.sources.iter().flatten() {
            for route in source.routes.iter().filter(|r| links.contains(&r.link)) {
                let Some(link) = self.links[route.link].as_ref() else { continue };
                let flows = route.flows.iter();
                taken.extend(flows.map(|f| ((route.link, source.number, f.sink), link.finished_of(f))));
            }
        }
        taken
    }

    /// The source whose messages keep most of a full link, if that is another than this one and its sinks may be given up after so
    /// long; else this one, if it keeps anything of it that matters.
    fn holder(&self, at: usize, source: u32, waited: Duration) -> Option<u32> {
        let link = self.links[at].as_ref()?;
        // Full of bytes, as there are entries.
        let bytes = link.producer.credit() > 0;
        let mut kept = HashMap::<u32, u64>::new();
        for (number, segment) in link.producer.kept() {
            *kept.entry(number).or_default() += if bytes { self.slab.stride(segment) } else { 1 };
        }
        let own = kept.get(&source).copied().unwrap_or(0);
        let (most, by) = kept.into_iter().map(|(number, kept)| (kept, number)).max()?;
        if own >= most {
            return Some(source);
        }
        let is_patient = |s: &TxSource| s.gives_up.is_none_or(|after| after > waited);
        self.source(by).is_some_and(|s| !is_patient(s)).then_some(by)
    }

    /// Who holds up a source on a full link for which it has waited so long, given what sinks had taken a while ago.
    pub(crate) fn who_holds(&self, at: usize, source: u32, waited: Duration, before: &Taken) -> Holder {
        let Some(link) = self.links[at].as_ref() else { return Holder::Nobody };
        let Some(by) = self.holder(at, source, waited) else { return self.or_nobody(at, [source, source], before) };
        let routes = self.source(by).into_iter().flat_map(|s| &s.routes).filter(|r| r.link == at);
        let flows: Vec<_> = routes.flat_map(|r| &r.flows).collect();
        let rests = |sink: SinkId, taken: u64| before.get(&(at, by, sink)).is_none_or(|then| *then == taken);
        let taken = flows.iter().map(|f| (*f, link.finished_of(f)));
        // What a sink of this host has taken the application may keep; of other hosts their runtimes keep nothing that was taken.
        let late = taken.filter(|(f, taken)| rests(f.sink, *taken) && (!link.network || *taken < f.given));
        let late: Vec<SinkId> = late.map(|(f, _)| f.sink).collect();
        match (late.len(), flows.len()) {
            (0, _) => self.or_nobody(at, [source, by], before),
            (1, 1) => Holder::All(by),
            _ => Holder::Among(by, late),
        }
    }

    /// Nobody holds a source up if sinks of these have taken something on the link since.
    fn or_nobody(&self, at: usize, sources: [u32; 2], before: &Taken) -> Holder {
        if self.have_taken(at, sources, before) { Holder::Nobody } else { Holder::Others }
    }

    /// Whether a sink of these sources has taken something on a link since.
    pub(crate) fn have_taken(&self, at: usize, sources: [u32; 2], before: &Taken) -> bool {
        let taken = self.taken_on(&[at]);
        let mut of_these = taken.iter().filter(|((_, source, _), _)| sources.contains(source));
        of_these.any(|(key, taken)| before.get(key).is_some_and(|then| then != taken))
    }

    /// The flow to a sink that a source has just ended was given up.
    pub(crate) fn note_given_up(&mut self, number: u32, sink: SinkId) {
        let ended = self.source_mut(number).and_then(|source| source.ended.back_mut());
        ended.filter(|ended| ended.flow.sink == sink).into_iter().for_each(|ended| ended.given_up = true);
    }

    /// How many sinks a source has on a link, observers too.
    pub(crate) fn sinks_on(&self, at: usize, source: u32) -> usize {
        let routes = self.source(source).into_iter().flat_map(|s| &s.routes).filter(|r| r.link == at);
        routes.map(|r| r.flows.len()).sum()
    }

    /// Notes questions that are asked together; under which number.
    pub(crate) fn ask(&mut self, about: Vec<(usize, u32, Vec<SinkId>)>) -> (u32, Vec<Ask>) {
        self.questions_asked = self.questions_asked.wrapping_add(1);
        let number = self.questions_asked;
        let ask = |(link, source, sinks)| Ask { question: Question { number, link, source }, sinks };
        let all: Vec<Ask> = about.into_iter().map(ask).collect();
        self.questions.extend(all.iter().map(|ask| ask.question));
        (number, all)
    }

    /// The links of questions of this number that have no answer.
    pub(crate) fn unanswered(&self, number: u32) -> Vec<usize> {
        self.questions.iter().filter(|q| q.number == number).map(|q| q.link).collect()
    }

    /// Whether a question has no answer yet, and one is waited for.
    pub(crate) fn is_asked(&self, question: &Question) -> bool {
        self.questions.contains(question)
    }

    /// A question is answered.
    pub(crate) fn answered(&mut self, question: &Question) {
        self.questions.retain(|q| q != question);
    }

    /// Nobody waits any more for the answers to questions of this number.
    pub(crate) fn ask_no_more(&mut self, number: u32) {
        self.questions.retain(|q| q.number != number);
    }

    /// A link has ended, or waits for the next runtime: what was asked over it is not answered.
    pub(crate) fn forget_questions(&mut self, at: usize) {
        self.questions.retain(|q| q.link != at);
    }
}
