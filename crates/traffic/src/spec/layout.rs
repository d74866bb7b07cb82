//! A checked pipeline with its queues one by one, and what each change does to it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Change, Dualpi2Spec, FilterSpec, Leftover, LimitSpec, MAX_FILTERS, MAX_QUEUES, PacerSpec, PipelineSpec,
    PolicerSpec, QueueKind, QueueSpec, References, SPEC_VERSION, SchedulerSpec, ShaperSpec, SpecError, TargetSpec,
};
use crate::packet::QueueId;
use crate::parse::PduFormat;

/// A pipeline whose parts fit together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) pdu: PduFormat,
    pub(crate) limit: LimitSpec,
    pub(crate) filters: BTreeMap<u32, FilterSpec>,
    pub(crate) queues: BTreeMap<QueueId, QueueSpec>,
    pub(crate) scheduler: SchedulerSpec,
    pub(crate) pacer: PacerSpec,
}

/// One step of a change, after it was found to be possible.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    PutFilter(Box<FilterSpec>),
    RemoveFilter(u32),
    AddQueue(QueueSpec),
    ModifyQueue(QueueId, QueueKind),
    RemoveQueue(QueueId, Leftover),
    SetPolicer(QueueId, Option<PolicerSpec>),
    SetShaper(QueueId, Option<ShaperSpec>),
    SetScheduler(SchedulerSpec),
    SetPacer(PacerSpec),
    SetLimit(LimitSpec),
}

impl Layout {
    /// Checks a pipeline.
    pub(crate) fn new(spec: &PipelineSpec) -> Result<Self, SpecError> {
        if spec.version != SPEC_VERSION {
            return Err(SpecError::Version { found: spec.version });
        }
        let mut layout = Self {
            pdu: spec.pdu,
            limit: spec.limit,
            filters: BTreeMap::new(),
            queues: BTreeMap::new(),
            scheduler: spec.scheduler.clone(),
            pacer: spec.pacer.clone(),
        };
        let mut effects = Vec::new();
        for queue in &spec.queues {
            layout.add_queue(queue, &mut effects)?;
        }
        for filter in &spec.filters {
            layout.add_filter(filter, &mut effects)?;
        }
        layout.check()?;
        Ok(layout)
    }

    /// The pipeline as a file has it: equal neighbours become one entry with a count.
    pub(crate) fn to_spec(&self) -> PipelineSpec {
        let mut queues: Vec<QueueSpec> = Vec::new();
        for queue in self.queues.values() {
            if let Some(last) = queues.last_mut()
                && last.id.0 + last.count == queue.id.0
                && (&last.kind, &last.policer, &last.shaper) == (&queue.kind, &queue.policer, &queue.shaper)
            {
                last.count += 1;
            } else {
                queues.push(queue.clone());
            }
        }
        PipelineSpec {
            version: SPEC_VERSION,
            pdu: self.pdu,
            limit: self.limit,
            filters: self.filters.values().cloned().collect(),
            queues,
            scheduler: self.scheduler.clone(),
            pacer: self.pacer.clone(),
        }
    }

    /// Makes one change, or says why not; `self` is only of use afterwards if it was made.
    pub(crate) fn apply(&mut self, change: &Change, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        match change {
            Change::AddFilter { filter } => self.add_filter(filter, effects),
            Change::ModifyFilter { filter } => self.modify_filter(filter, effects),
            Change::DeleteFilter { id } => self.delete_filter(*id, effects),
            Change::AddQueue { queue } => self.add_queue(queue, effects),
            Change::ModifyQueue { id, kind } => {
                self.queue_mut(*id)?.kind = kind.clone();
                effects.push(Effect::ModifyQueue(*id, kind.clone()));
                Ok(())
            }
            Change::DeleteQueue { id, packets, references } => self.delete_queue(*id, *packets, *references, effects),
            Change::AddPolicer { queue, policer } => self.set_policer(*queue, Some(policer), Verb::Add, effects),
            Change::ModifyPolicer { queue, policer } => self.set_policer(*queue, Some(policer), Verb::Modify, effects),
            Change::DeletePolicer { queue } => self.set_policer(*queue, None, Verb::Modify, effects),
            Change::AddShaper { queue, shaper } => self.set_shaper(*queue, Some(shaper), Verb::Add, effects),
            Change::ModifyShaper { queue, shaper } => self.set_shaper(*queue, Some(shaper), Verb::Modify, effects),
            Change::DeleteShaper { queue } => self.set_shaper(*queue, None, Verb::Modify, effects),
            Change::SetScheduler { scheduler } => {
                self.scheduler = scheduler.clone();
                effects.push(Effect::SetScheduler(scheduler.clone()));
                Ok(())
            }
            Change::DeleteScheduler {} => Err(SpecError::InUse {
                what: "the scheduler".into(),
                by: "the pipeline; set another one instead".into(),
            }),
            Change::SetPacer { pacer } => self.set_pacer(pacer.clone(), effects),
            Change::DeletePacer {} => self.set_pacer(PacerSpec::None {}, effects),
            Change::SetLimit { limit } => {
                self.limit = *limit;
                effects.push(Effect::SetLimit(*limit));
                Ok(())
            }
        }
    }

    fn queue_mut(&mut self, id: QueueId) -> Result<&mut QueueSpec, SpecError> {
        self.queues.get_mut(&id).ok_or_else(|| SpecError::unknown_queue(id))
    }

    fn add_filter(&mut self, filter: &FilterSpec, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        if self.filters.contains_key(&filter.id) {
            return Err(SpecError::Exists { what: "filter", id: filter.id });
        }
        if self.filters.len() >= MAX_FILTERS {
            return Err(SpecError::TooMany { what: "filters", count: self.filters.len() + 1, limit: MAX_FILTERS });
        }
        self.filters.insert(filter.id, filter.clone());
        effects.push(Effect::PutFilter(Box::new(filter.clone())));
        Ok(())
    }

    fn modify_filter(&mut self, filter: &FilterSpec, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        let Some(old) = self.filters.get_mut(&filter.id) else {
            return Err(SpecError::Unknown { what: "filter", id: filter.id.to_string() });
        };
        *old = filter.clone();
        effects.push(Effect::PutFilter(Box::new(filter.clone())));
        Ok(())
    }

    fn delete_filter(&mut self, id: u32, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        if self.filters.remove(&id).is_none() {
            return Err(SpecError::Unknown { what: "filter", id: id.to_string() });
        }
        effects.push(Effect::RemoveFilter(id));
        Ok(())
    }

    fn add_queue(&mut self, queue: &QueueSpec, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        let fits = queue.count >= 1 && u64::from(queue.id.0) + u64::from(queue.count) <= u64::from(MAX_QUEUES);
        if !fits {
            let value = format!("{} with count {}", queue.id, queue.count);
            return Err(SpecError::invalid("queue.id", value, "count must be at least 1 and all ids below 65536"));
        }
        for id in queue.id.0..queue.id.0 + queue.count {
            let single = QueueSpec { id: QueueId(id), count: 1, ..queue.clone() };
            if self.queues.insert(QueueId(id), single.clone()).is_some() {
                return Err(SpecError::Exists { what: "queue", id });
            }
            effects.push(Effect::AddQueue(single));
        }
        Ok(())
    }

    fn delete_queue(
        &mut self,
        id: QueueId,
        packets: Leftover,
        references: References,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SpecError> {
        if id == QueueId::DEFAULT {
            let by = "every packet that no filter wants; the default queue cannot be deleted".into();
            return Err(SpecError::InUse { what: "queue 0".into(), by });
        }
        if !self.queues.contains_key(&id) {
            return Err(SpecError::unknown_queue(id));
        }
        if references == References::Remove {
            self.forget(id, effects);
        } else if let Some(by) = self.user_of(id) {
            return Err(SpecError::InUse { what: format!("queue {id}"), by });
        }
        self.queues.remove(&id);
        effects.push(Effect::RemoveQueue(id, packets));
        Ok(())
    }

    /// Who names a queue.
    fn user_of(&self, id: QueueId) -> Option<String> {
        let filter = self.filters.values().find(|f| f.to.names(id)).map(|f| format!("filter {}", f.id));
        let policer = || {
            let redirects =
                |q: &&QueueSpec| q.id != id && q.policer.as_ref().is_some_and(|p| p.redirects().any(|r| r == id));
            self.queues.values().find(redirects).map(|q| format!("the policer of queue {}", q.id))
        };
        let scheduler = || self.scheduler.names().contains(&id).then(|| "the scheduler".to_owned());
        filter.or_else(policer).or_else(scheduler)
    }

    /// Takes a queue out of all that name it.
    fn forget(&mut self, id: QueueId, effects: &mut Vec<Effect>) {
        let users: Vec<u32> = self.filters.values().filter(|f| f.to.names(id)).map(|f| f.id).collect();
        for filter in users {
            let keep = self.filters.get_mut(&filter).is_some_and(|f| f.to.forget(id));
            match self.filters.get(&filter) {
                Some(spec) if keep => effects.push(Effect::PutFilter(Box::new(spec.clone()))),
                _ => {
                    self.filters.remove(&filter);
                    effects.push(Effect::RemoveFilter(filter));
                }
            }
        }
        for queue in self.queues.values_mut() {
            if let Some(policer) = &mut queue.policer
                && policer.redirects().any(|r| r == id)
            {
                policer.forget(id);
                effects.push(Effect::SetPolicer(queue.id, Some(policer.clone())));
            }
        }
        if self.scheduler.names().contains(&id) {
            self.scheduler.forget(id);
            effects.push(Effect::SetScheduler(self.scheduler.clone()));
        }
    }

    fn set_policer(
        &mut self,
        queue: QueueId,
        policer: Option<&PolicerSpec>,
        verb: Verb,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SpecError> {
        let slot = &mut self.queue_mut(queue)?.policer;
        verb.check(slot.is_some(), "policer of queue", queue)?;
        *slot = policer.cloned();
        effects.push(Effect::SetPolicer(queue, policer.cloned()));
        Ok(())
    }

    fn set_shaper(
        &mut self,
        queue: QueueId,
        shaper: Option<&ShaperSpec>,
        verb: Verb,
        effects: &mut Vec<Effect>,
    ) -> Result<(), SpecError> {
        let slot = &mut self.queue_mut(queue)?.shaper;
        verb.check(slot.is_some(), "shaper of queue", queue)?;
        *slot = shaper.cloned();
        effects.push(Effect::SetShaper(queue, shaper.cloned()));
        Ok(())
    }

    fn set_pacer(&mut self, pacer: PacerSpec, effects: &mut Vec<Effect>) -> Result<(), SpecError> {
        self.pacer = pacer.clone();
        effects.push(Effect::SetPacer(pacer));
        Ok(())
    }

    /// Whether a queue belongs to this DualPI2 pair.
    pub(crate) fn has_pair(&self, pair: &str) -> bool {
        self.queues.values().any(|q| matches!(&q.kind, QueueKind::Dualpi2(spec) if spec.pair == pair))
    }

    /// Whether DualPI2's queues come as at most one of each role per pair, with the same parameters.
    fn check_pairs(&self) -> Result<(), SpecError> {
        let mut pairs: BTreeMap<&str, (QueueId, &Dualpi2Spec)> = BTreeMap::new();
        let mut full: BTreeSet<&str> = BTreeSet::new();
        for queue in self.queues.values() {
            let QueueKind::Dualpi2(spec) = &queue.kind else { continue };
            let Some((id, other)) = pairs.insert(&spec.pair, (queue.id, spec)) else { continue };
            let what = format!("pair `{}` of queues {id} and {}", spec.pair, queue.id);
            if other.role == spec.role || !full.insert(&spec.pair) {
                let expected = "a pair has one queue of role l4s and one of role classic";
                return Err(SpecError::invalid(what, "two queues of one role", expected));
            }
            if !spec.agrees(other) {
                let expected = "both must have the same, but for role and limit.packets; change both at once";
                return Err(SpecError::invalid(what, "two sets of parameters", expected));
            }
        }
        Ok(())
    }

    /// Whether all parts are in range and name only what exists.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        self.limit.validate()?;
        if !self.queues.contains_key(&QueueId::DEFAULT) {
            return Err(SpecError::Unknown {
                what: "queue",
                id: "0, the default queue that every pipeline needs".into(),
            });
        }
        let exists =
            |id: QueueId| if self.queues.contains_key(&id) { Ok(()) } else { Err(SpecError::unknown_queue(id)) };
        for filter in self.filters.values() {
            filter.validate()?;
            filter.to.queues().into_iter().try_for_each(exists)?;
        }
        let mut previous: Option<&QueueSpec> = None;
        for queue in self.queues.values() {
            // A thousand equal queues are checked once.
            let same = previous
                .is_some_and(|p| p.kind == queue.kind && p.policer == queue.policer && p.shaper == queue.shaper);
            previous = Some(queue);
            if !same {
                queue.kind.validate()?;
                queue.shaper.as_ref().map_or(Ok(()), ShaperSpec::validate)?;
            }
            if let Some(policer) = &queue.policer {
                policer.validate()?;
                policer.redirects().try_for_each(exists)?;
            }
        }
        self.check_pairs()?;
        self.scheduler.validate()?;
        self.scheduler.names().into_iter().try_for_each(exists)?;
        self.pacer.validate()
    }
}

/// Whether a stage must be absent or present for a change to make sense.
#[derive(Clone, Copy)]
enum Verb {
    Add,
    Modify,
}

impl Verb {
    fn check(self, present: bool, what: &'static str, queue: QueueId) -> Result<(), SpecError> {
        match (self, present) {
            (Self::Add, true) => Err(SpecError::Exists { what, id: queue.0 }),
            (Self::Modify, false) => Err(SpecError::Unknown { what, id: queue.to_string() }),
            _ => Ok(()),
        }
    }
}

impl TargetSpec {
    /// Whether it names a queue.
    fn names(&self, id: QueueId) -> bool {
        match self {
            Self::Queue { queue } => *queue == id,
            Self::Hash { queues: Some(set) } | Self::RoundRobin { queues: Some(set) } => set.contains(id.0),
            Self::Qfi { map } => map.iter().any(|m| m.queue == id),
            Self::Class { queues } => queues.contains(&id),
            Self::L4s { l4s, classic } => *l4s == id || *classic == id,
            Self::Hash { queues: None } | Self::RoundRobin { queues: None } | Self::Drop {} | Self::Plugin { .. } => {
                false
            }
        }
    }

    /// The queues that it names.
    fn queues(&self) -> Vec<QueueId> {
        match self {
            Self::Queue { queue } => vec![*queue],
            Self::Hash { queues: Some(set) } | Self::RoundRobin { queues: Some(set) } => {
                set.numbers(MAX_QUEUES as usize).map(QueueId).collect()
            }
            Self::Qfi { map } => map.iter().map(|m| m.queue).collect(),
            Self::Class { queues } => queues.clone(),
            Self::L4s { l4s, classic } => vec![*l4s, *classic],
            Self::Hash { queues: None } | Self::RoundRobin { queues: None } | Self::Drop {} | Self::Plugin { .. } => {
                vec![]
            }
        }
    }

    /// Takes a queue out; false if what is left makes no sense.
    fn forget(&mut self, id: QueueId) -> bool {
        match self {
            Self::Queue { queue } => *queue != id,
            Self::Hash { queues: Some(set) } | Self::RoundRobin { queues: Some(set) } => set.remove(id.0),
            Self::Qfi { map } => {
                map.retain(|m| m.queue != id);
                !map.is_empty()
            }
            Self::Class { queues } => {
                // Classes keep their numbers: those of the queue that goes are served by the default queue.
                queues.iter_mut().filter(|q| **q == id).for_each(|q| *q = QueueId::DEFAULT);
                true
            }
            Self::L4s { l4s, classic } => *l4s != id && *classic != id,
            Self::Hash { queues: None } | Self::RoundRobin { queues: None } | Self::Drop {} | Self::Plugin { .. } => {
                true
            }
        }
    }
}
