//! Changing a live pipeline: everything that can fail happens before anything is touched.

use std::sync::Arc;

use super::build::{Builder, Couplings};
use super::kinds::{AnyPolicer, AnyQueue, AnyShaper};
use super::slots::{Exit, Slot};
use super::{Pipeline, Plugins, Volume};
use crate::classify::Filter;
use crate::pace::Pacer;
use crate::packet::{DropReason, Drops, Outlet, Packet, QueueId};
use crate::police::Policer;
use crate::queue::Queue;
use crate::schedule::Scheduler;
use crate::shape::Shaper;
use crate::spec::{
    Change, Effect, Layout, Leftover, LimitSpec, PacerSpec, PolicerSpec, QueueKind, SchedulerSpec, ShaperSpec,
    SpecError, TargetSpec,
};
use crate::time::Time;

/// How many changes may be made at once.
const MAX_CHANGES: usize = 1_024;

/// A step with the stage that it needs, ready made.
pub(super) enum Step<P> {
    PutFilter(Box<(Filter, TargetSpec)>),
    RemoveFilter(u32),
    AddQueue(QueueId, Box<Slot<P>>),
    ModifyQueue(QueueId, QueueKind, AnyQueue<P>),
    RemoveQueue(QueueId, Leftover),
    SetPolicer(QueueId, Option<(PolicerSpec, AnyPolicer)>),
    SetShaper(QueueId, Option<(ShaperSpec, AnyShaper)>),
    SetScheduler(SchedulerSpec, Box<dyn Scheduler>),
    SetPacer(PacerSpec, Box<dyn Pacer>),
    SetLimit(LimitSpec),
}

/// What is needed to plan changes away from the thread that moves packets.
pub struct Draft<P> {
    pub(super) layout: Layout,
    pub(super) generation: u64,
    pub(super) plugins: Option<Arc<dyn Plugins<P>>>,
    pub(super) seed: [u64; 2],
    pub(super) couplings: Couplings,
}

/// Changes that were checked and prepared, for one generation of one pipeline.
pub struct Plan<P> {
    pub(super) generation: u64,
    pub(super) layout: Layout,
    pub(super) couplings: Couplings,
    pub(super) steps: Vec<Step<P>>,
}

impl<P> std::fmt::Debug for Draft<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl<P> std::fmt::Debug for Plan<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("generation", &self.generation).field("steps", &self.steps.len()).finish()
    }
}

impl<P: Packet> Draft<P> {
    /// Prepares changes: all of them, or none if one is not possible.
    ///
    /// # Errors
    /// The first change that is not possible, and why.
    pub fn plan(&self, changes: &[Change]) -> Result<Plan<P>, SpecError> {
        if changes.len() > MAX_CHANGES {
            return Err(SpecError::TooMany { what: "changes at once", count: changes.len(), limit: MAX_CHANGES });
        }
        let mut layout = self.layout.clone();
        let mut effects = Vec::new();
        for change in changes {
            layout.apply(change, &mut effects)?;
        }
        self.plan_for(layout, effects)
    }

    /// Prepares the steps to a layout.
    pub(super) fn plan_for(&self, layout: Layout, effects: Vec<Effect>) -> Result<Plan<P>, SpecError> {
        layout.check()?;
        let mut builder = Builder::new(self.plugins.clone(), self.seed, self.couplings.clone());
        let steps = effects.into_iter().map(|effect| step(&mut builder, effect)).collect::<Result<_, _>>()?;
        let mut couplings = builder.couplings;
        couplings.retain(|pair, _| layout.has_pair(pair));
        Ok(Plan { generation: self.generation, layout, couplings, steps })
    }
}

fn step<P: Packet>(builder: &mut Builder<P>, effect: Effect) -> Result<Step<P>, SpecError> {
    Ok(match effect {
        Effect::PutFilter(spec) => Step::PutFilter(Box::new((builder.filter(&spec)?, spec.to))),
        Effect::RemoveFilter(id) => Step::RemoveFilter(id),
        Effect::AddQueue(spec) => Step::AddQueue(spec.id, Box::new(builder.slot(&spec)?)),
        Effect::ModifyQueue(id, kind) => {
            let queue = builder.queue(id, &kind)?;
            Step::ModifyQueue(id, kind, queue)
        }
        Effect::RemoveQueue(id, leftover) => Step::RemoveQueue(id, leftover),
        Effect::SetPolicer(id, spec) => {
            let made = spec.map(|spec| builder.policer(&spec).map(|policer| (spec, policer)));
            Step::SetPolicer(id, made.transpose()?)
        }
        Effect::SetShaper(id, spec) => {
            let made = spec.map(|spec| builder.shaper(&spec).map(|shaper| (spec, shaper)));
            Step::SetShaper(id, made.transpose()?)
        }
        Effect::SetScheduler(spec) => {
            let scheduler = builder.scheduler(&spec)?;
            Step::SetScheduler(spec, scheduler)
        }
        Effect::SetPacer(spec) => {
            let pacer = builder.pacer(&spec)?;
            Step::SetPacer(spec, pacer)
        }
        Effect::SetLimit(limit) => Step::SetLimit(limit),
    })
}

impl<P: Packet> Pipeline<P> {
    /// What is needed to plan changes elsewhere.
    #[must_use]
    pub fn draft(&self) -> Draft<P> {
        Draft {
            layout: self.layout.clone(),
            generation: self.generation,
            plugins: self.plugins.clone(),
            seed: self.seed,
            couplings: self.couplings.clone(),
        }
    }

    /// Plans and makes changes, all or none. Returns the new generation.
    ///
    /// # Errors
    /// Why not; the pipeline is as it was.
    pub fn apply(&mut self, now: Time, changes: &[Change], drops: &mut impl Drops<P>) -> Result<u64, SpecError> {
        let plan = self.draft().plan(changes)?;
        self.commit(now, plan, drops)
    }

    /// Makes the changes of a plan, between two packets and without failing half-way. No packet is lost but those of a
    /// deleted queue whose deletion asks for it. Returns the new generation.
    ///
    /// # Errors
    /// [`SpecError::Stale`] if the pipeline changed since the draft was taken; nothing is done then.
    pub fn commit(&mut self, now: Time, plan: Plan<P>, drops: &mut impl Drops<P>) -> Result<u64, SpecError> {
        if plan.generation != self.generation {
            return Err(SpecError::Stale { planned: plan.generation, current: self.generation });
        }
        for step in plan.steps {
            self.take(now, step, drops);
        }
        self.layout = plan.layout;
        self.couplings = plan.couplings;
        self.generation += 1;
        Ok(self.generation)
    }

    fn take(&mut self, now: Time, step: Step<P>, drops: &mut impl Drops<P>) {
        match step {
            Step::PutFilter(put) => {
                let (filter, target) = *put;
                let id = filter.id;
                let ids: Vec<QueueId> = self.slots.iter().map(|(id, _)| id).collect();
                if self.classifier.put(filter, &target, &ids) {
                    self.classifier.introduce(id, &ids);
                }
            }
            Step::RemoveFilter(id) => self.classifier.remove(id),
            Step::AddQueue(id, slot) => {
                self.slots.insert(id, slot);
                self.scheduler.add(id);
                self.classifier.queue_added(id);
            }
            Step::ModifyQueue(id, kind, new) => self.modify_queue(now, id, &kind, new),
            Step::RemoveQueue(id, leftover) => self.remove_queue(id, leftover, drops),
            Step::SetPolicer(id, new) => {
                let Some(slot) = self.slots.get_mut(id) else { return };
                slot.policer = match (slot.policer.take(), new) {
                    (Some(mut old), Some((spec, new))) => Some(if old.modify(&spec) { old } else { new }),
                    (_, new) => new.map(|(_, new)| new),
                };
            }
            Step::SetShaper(id, new) => self.set_shaper(id, new),
            Step::SetScheduler(spec, new) => {
                if !self.scheduler.modify(&spec) {
                    self.replace_scheduler(new);
                }
            }
            Step::SetPacer(spec, new) => {
                if !self.pacer.modify(&spec) {
                    self.pacer = new;
                }
                self.pacer_wait = None;
            }
            Step::SetLimit(limit) => self.limit = limit,
        }
    }

    fn modify_queue(&mut self, now: Time, id: QueueId, kind: &QueueKind, mut new: AnyQueue<P>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.queue.modify(now, kind) {
            return;
        }
        while let Some(item) = slot.queue.shed() {
            new.restore(item);
        }
        slot.queue = new;
    }

    fn remove_queue(&mut self, id: QueueId, leftover: Leftover, drops: &mut impl Drops<P>) {
        self.scheduler.remove(id);
        let Some(mut slot) = self.slots.remove(id) else { return };
        match leftover {
            Leftover::Rehome => self.rehome(&mut slot),
            Leftover::Drop => {
                let mut exit = Exit {
                    classifier: &mut self.classifier,
                    dropped: &mut self.dropped,
                    queue: id,
                    drops,
                    volume: Volume::default(),
                    last: None,
                };
                while let Some(item) = slot.queue.shed() {
                    exit.dropped(item, DropReason::Change);
                }
                let gone = exit.volume;
                self.held.sub(gone);
            }
        }
        self.classifier.queue_removed(id, QueueId::DEFAULT);
    }

    /// Moves a queue's packets to the end of the default queue.
    fn rehome(&mut self, from: &mut Slot<P>) {
        let Some(home) = self.slots.get_mut(QueueId::DEFAULT) else { return };
        let was_empty = home.queue.packets() == 0;
        while let Some(item) = from.queue.shed() {
            home.basic.requeues += 1;
            self.requeues += 1;
            home.queue.restore(item);
        }
        if was_empty && home.queue.packets() > 0 && home.blocked.is_none() {
            self.scheduler.activate(QueueId::DEFAULT);
        }
        let bytes = home.queue.bytes();
        self.slots.note(QueueId::DEFAULT, bytes);
    }

    fn set_shaper(&mut self, id: QueueId, new: Option<(ShaperSpec, AnyShaper)>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.shaper = match (slot.shaper.take(), new) {
            (Some(mut old), Some((spec, new))) => Some(if old.modify(&spec) { old } else { new }),
            (_, new) => new.map(|(_, new)| new),
        };
        // Whatever the old shaper said, the new one is asked.
        if slot.blocked.take().is_some() {
            self.scheduler.unblock(id);
        }
    }

    fn replace_scheduler(&mut self, new: Box<dyn Scheduler>) {
        self.scheduler = new;
        for (id, slot) in self.slots.iter() {
            self.scheduler.add(id);
            if slot.queue.packets() > 0 && slot.blocked.is_none() {
                self.scheduler.activate(id);
            }
        }
    }
}
