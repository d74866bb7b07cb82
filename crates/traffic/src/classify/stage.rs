//! The list of filters.

use super::fragments::Fragments;
use super::hints::{self, Hints};
use super::{Classifier, Decision, Matcher, PacketView};
use crate::packet::{QueueId, Ticket};
use crate::parse::{Fragment, Headers, Shape};
use crate::spec::TargetSpec;
use crate::stats::{FilterStats, StatMap};
use crate::time::Time;

/// What a filter does with what it matches.
pub(crate) enum Action {
    Queue(QueueId),
    Drop,
    Choose(Box<dyn Classifier>),
}

/// A filter in place.
pub(crate) struct Filter {
    pub(crate) id: u32,
    pub(crate) priority: u32,
    pub(crate) matcher: Matcher,
    pub(crate) action: Action,
    /// Whether the action reads headers.
    pub(crate) action_needs_headers: bool,
    /// Tells this filter from an earlier one of the same id in a ticket.
    pub(crate) serial: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    Queue(QueueId, Ticket),
    Drop,
}

/// The classifier stage of a pipeline.
pub(crate) struct ClassifierStage {
    filters: Vec<Filter>,
    /// The serial and place of each filter that chooses.
    choosers: Vec<(u32, usize)>,
    needs_headers: bool,
    next_serial: u32,
    /// Whether any filter asks for server names.
    needs_names: bool,
    fragments: Fragments,
    hints: Hints,
    pub(crate) unmatched: u64,
}

impl ClassifierStage {
    pub(crate) const fn new(hash_key: [u64; 2]) -> Self {
        Self {
            filters: Vec::new(),
            choosers: Vec::new(),
            needs_headers: false,
            next_serial: 1,
            needs_names: false,
            fragments: Fragments::new(hash_key),
            hints: Hints::new(hash_key),
            unmatched: 0,
        }
    }

    /// Whether any filter needs the packets' headers.
    pub(crate) const fn needs_headers(&self) -> bool {
        self.needs_headers
    }

    /// Gives fragments of the same packet the same ports.
    #[inline]
    pub(crate) fn resolve_fragments(&mut self, now: Time, headers: &mut Headers) {
        if headers.inner().fragment != Fragment::No {
            self.fragments.resolve(now, headers.inner_mut());
        }
    }

    /// Where a packet goes: the first filter that decides.
    pub(crate) fn route(&mut self, now: Time, packet: &PacketView<'_>) -> Routed {
        if self.needs_names {
            self.hints.observe(now, packet.headers, packet.bytes);
        }
        for filter in &mut self.filters {
            if !filter.matcher.matches(packet) {
                continue;
            }
            if self.needs_names && !name_fits(&mut self.hints, now, filter.matcher.server_names(), packet.headers) {
                continue;
            }
            let routed = match &mut filter.action {
                Action::Queue(queue) => Routed::Queue(*queue, Ticket::NONE),
                Action::Drop => Routed::Drop,
                Action::Choose(classifier) => match classifier.classify(now, packet) {
                    Decision::Pass => continue,
                    Decision::Queue(queue) => Routed::Queue(queue, Ticket::NONE),
                    Decision::Tracked(queue, tag) => Routed::Queue(queue, Ticket { filter: filter.serial, tag }),
                    Decision::Drop => Routed::Drop,
                },
            };
            filter.packets += 1;
            filter.bytes += u64::from(packet.size);
            return routed;
        }
        self.unmatched += 1;
        Routed::Queue(QueueId::DEFAULT, Ticket::NONE)
    }

    /// Learns server names from a packet that does not go through the pipeline: the other direction's.
    pub(crate) fn observe(&mut self, now: Time, headers: &Headers, bytes: &[u8]) {
        if self.needs_names {
            self.hints.observe(now, headers, bytes);
        }
    }

    /// A packet has left.
    #[inline]
    pub(crate) fn left(&mut self, ticket: Ticket) {
        if ticket == Ticket::NONE {
            return;
        }
        let Some(&(_, place)) = self.choosers.iter().find(|(serial, _)| *serial == ticket.filter) else { return };
        if let Action::Choose(classifier) = &mut self.filters[place].action {
            classifier.left(ticket.tag);
        }
    }

    /// Puts a filter in its place, instead of the one of the same id if there is one. True if its classifier is new and
    /// does not know the queues yet.
    pub(crate) fn put(&mut self, mut filter: Filter, target: &TargetSpec, queues: &[QueueId]) -> bool {
        let mut is_new = matches!(filter.action, Action::Choose(_));
        if let Some(old) = self.filters.iter().position(|f| f.id == filter.id) {
            let old = self.filters.remove(old);
            (filter.packets, filter.bytes) = (old.packets, old.bytes);
            if let Action::Choose(mut kept) = old.action
                && kept.modify(target, queues)
            {
                filter.action = Action::Choose(kept);
                filter.serial = old.serial;
                is_new = false;
            }
        }
        if filter.serial == 0 {
            filter.serial = self.next_serial;
            self.next_serial = self.next_serial.checked_add(1).unwrap_or(1);
        }
        let place = self.filters.partition_point(|f| (f.priority, f.id) < (filter.priority, filter.id));
        self.filters.insert(place, filter);
        self.reindex();
        is_new
    }

    /// Tells one filter's classifier which queues there are.
    pub(crate) fn introduce(&mut self, id: u32, queues: &[QueueId]) {
        if let Some(Action::Choose(classifier)) = self.filters.iter_mut().find(|f| f.id == id).map(|f| &mut f.action) {
            queues.iter().for_each(|&queue| classifier.queue_added(queue));
        }
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.filters.retain(|f| f.id != id);
        self.reindex();
    }

    fn reindex(&mut self) {
        let choosers = self.filters.iter().enumerate().filter(|(_, f)| matches!(f.action, Action::Choose(_)));
        self.choosers = choosers.map(|(place, f)| (f.serial, place)).collect();
        self.needs_names = self.filters.iter().any(|f| !f.matcher.server_names().is_empty());
        self.needs_headers = self.filters.iter().any(|f| f.action_needs_headers || f.matcher.needs_headers());
    }

    fn classifiers(&mut self) -> impl Iterator<Item = &mut Box<dyn Classifier>> {
        self.filters.iter_mut().filter_map(|f| match &mut f.action {
            Action::Choose(classifier) => Some(classifier),
            _ => None,
        })
    }

    pub(crate) fn queue_added(&mut self, queue: QueueId) {
        self.classifiers().for_each(|c| c.queue_added(queue));
    }

    pub(crate) fn queue_removed(&mut self, queue: QueueId, moved_to: QueueId) {
        self.classifiers().for_each(|c| c.queue_removed(queue, moved_to));
    }

    pub(crate) fn filter_stats(&self, most: usize) -> Vec<FilterStats> {
        let one = |f: &Filter| {
            let mut xstats = StatMap::default();
            if let Action::Choose(classifier) = &f.action {
                classifier.stats(&mut xstats);
            }
            FilterStats { id: f.id, packets: f.packets, bytes: f.bytes, xstats }
        };
        self.filters.iter().take(most).map(one).collect()
    }

    pub(crate) fn stats(&self, out: &mut StatMap) {
        out.count("fragments_resolved", self.fragments.resolved);
        out.count("fragments_unresolved", self.fragments.unresolved);
        if self.needs_names {
            self.hints.stats(out);
        }
    }
}

/// Whether the name of the server behind the packet fits one of the patterns; true if there are none.
fn name_fits(hints: &mut Hints, now: Time, patterns: &[String], headers: &Headers) -> bool {
    if patterns.is_empty() {
        return true;
    }
    if headers.shape != Shape::Ip {
        return false;
    }
    let Some(name) = hints.name_of(now, headers.inner()) else { return false };
    patterns.iter().any(|pattern| hints::fits(pattern, name))
}
