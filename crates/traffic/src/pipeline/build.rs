//! Making stages out of their descriptions.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::kinds::{AnyPolicer, AnyQueue, AnyShaper};
use super::slots::{Slot, Slots};
use super::{Pipeline, Volume};
use crate::classify::{self, Action, Classifier, ClassifierStage, Filter, Matcher};
use crate::pace::{Bdp, Dql, NoPacer, Pacer};
use crate::packet::{DropReason, Packet, QueueId};
use crate::police::{Policer, Tricolour};
use crate::queue::{Codel, Coupling, Dualpi2, Fifo, Pie, Queue, Red};
use crate::schedule::{Conditional, Drr, FqCodel, RoundRobin, Scheduler, Strict, Weighted};
use crate::shape::{Shaper, TokenBucket};
use crate::spec::{
    FilterSpec, Layout, PacerSpec, PolicerSpec, QueueKind, QueueLimit, QueueSpec, SchedulerSpec, ShaperSpec, SpecError,
    TargetSpec,
};
use crate::stats::Basic;
use crate::time::Span;

/// Why a plug-in could not make a stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PluginError(pub String);

/// Where stages of other origin come from: the shared objects that are loaded.
///
/// Each method makes a stage by the name of its plug-in and the text that the file has for it. The default of each says
/// that there is no such plug-in.
pub trait Plugins<P>: Send + Sync {
    /// Makes a classifier.
    ///
    /// # Errors
    /// No plug-in of this name and stage, or one that does not take the options.
    fn classifier(&self, _name: &str, _options: &str) -> Result<Box<dyn Classifier>, PluginError> {
        Err(PluginError("no such classifier is loaded".into()))
    }
    /// Makes a policer.
    ///
    /// # Errors
    /// As for [`Self::classifier`].
    fn policer(&self, _name: &str, _options: &str) -> Result<Box<dyn Policer>, PluginError> {
        Err(PluginError("no such policer is loaded".into()))
    }
    /// Makes a queue.
    ///
    /// # Errors
    /// As for [`Self::classifier`].
    fn queue(&self, _name: &str, _options: &str, _limit: QueueLimit) -> Result<Box<dyn Queue<P>>, PluginError> {
        Err(PluginError("no such queue is loaded".into()))
    }
    /// Makes a scheduler.
    ///
    /// # Errors
    /// As for [`Self::classifier`].
    fn scheduler(&self, _name: &str, _options: &str) -> Result<Box<dyn Scheduler>, PluginError> {
        Err(PluginError("no such scheduler is loaded".into()))
    }
    /// Makes a shaper.
    ///
    /// # Errors
    /// As for [`Self::classifier`].
    fn shaper(&self, _name: &str, _options: &str) -> Result<Box<dyn Shaper>, PluginError> {
        Err(PluginError("no such shaper is loaded".into()))
    }
    /// Makes a pacer.
    ///
    /// # Errors
    /// As for [`Self::classifier`].
    fn pacer(&self, _name: &str, _options: &str) -> Result<Box<dyn Pacer>, PluginError> {
        Err(PluginError("no such pacer is loaded".into()))
    }
}

/// No shared objects.
struct NoPlugins;

impl<P> Plugins<P> for NoPlugins {}

/// Makes stages.
pub(super) struct Builder<P> {
    plugins: Arc<dyn Plugins<P>>,
    seed: [u64; 2],
    /// What the DualPI2 pairs share, by their names; queues that join a pair later find it here.
    pub(super) couplings: Couplings,
}

pub(super) type Couplings = BTreeMap<String, Arc<Coupling>>;

fn named<T>(name: &str, made: Result<T, PluginError>) -> Result<T, SpecError> {
    made.map_err(|e| SpecError::Plugin { name: name.to_owned(), text: e.0 })
}

impl<P: Packet> Builder<P> {
    pub(super) fn new(plugins: Option<Arc<dyn Plugins<P>>>, seed: [u64; 2], couplings: Couplings) -> Self {
        Self { plugins: plugins.unwrap_or_else(|| Arc::new(NoPlugins)), seed, couplings }
    }

    pub(super) fn filter(&self, spec: &FilterSpec) -> Result<Filter, SpecError> {
        let matcher = Matcher::new(&spec.matches)?;
        let action = match &spec.to {
            TargetSpec::Queue { queue } => Action::Queue(*queue),
            TargetSpec::Drop {} => Action::Drop,
            TargetSpec::Hash { queues } => {
                let key = [self.seed[0], crate::random::keyed_hash(self.seed, &[u64::from(spec.id), 1])];
                Action::Choose(Box::new(classify::Hash::new(key, queues.clone())))
            }
            TargetSpec::RoundRobin { queues } => Action::Choose(Box::new(classify::RoundRobin::new(queues.clone()))),
            TargetSpec::Qfi { map } => Action::Choose(Box::new(classify::ByQfi::new(map))),
            TargetSpec::Class { queues } => Action::Choose(Box::new(classify::ByClass::new(queues))),
            TargetSpec::L4s { l4s, classic } => {
                Action::Choose(Box::new(classify::ByL4s { l4s: *l4s, classic: *classic }))
            }
            TargetSpec::Plugin { name, options } => {
                Action::Choose(named(name, self.plugins.classifier(name, options))?)
            }
        };
        let action_needs_headers = match &spec.to {
            TargetSpec::Queue { .. } | TargetSpec::Drop {} => false,
            TargetSpec::RoundRobin { .. } | TargetSpec::Class { .. } => false,
            TargetSpec::Hash { .. } | TargetSpec::Qfi { .. } | TargetSpec::L4s { .. } | TargetSpec::Plugin { .. } => {
                true
            }
        };
        let (id, priority) = (spec.id, spec.priority);
        Ok(Filter { id, priority, matcher, action, action_needs_headers, serial: 0, packets: 0, bytes: 0 })
    }

    pub(super) fn queue(&mut self, id: QueueId, kind: &QueueKind) -> Result<AnyQueue<P>, SpecError> {
        let seed = crate::random::keyed_hash(self.seed, &[id.0.into()]);
        let other: Box<dyn Queue<P>> = match kind {
            QueueKind::Fifo { limit } => return Ok(AnyQueue::Fifo(Fifo::new(*limit))),
            QueueKind::Codel(spec) => return Ok(AnyQueue::Codel(Codel::new(*spec))),
            QueueKind::Red(spec) => Box::new(Red::new(*spec, seed)),
            QueueKind::Pie(spec) => Box::new(Pie::new(*spec, seed)),
            QueueKind::Dualpi2(spec) => {
                let coupling = self.couplings.entry(spec.pair.clone()).or_default();
                Box::new(Dualpi2::new(spec.clone(), coupling.clone()))
            }
            QueueKind::Plugin { name, options, limit } => named(name, self.plugins.queue(name, options, *limit))?,
        };
        Ok(AnyQueue::Other(other))
    }

    pub(super) fn policer(&self, spec: &PolicerSpec) -> Result<AnyPolicer, SpecError> {
        if let PolicerSpec::Plugin { name, options } = spec {
            return Ok(AnyPolicer::Other(named(name, self.plugins.policer(name, options))?));
        }
        let policer =
            Tricolour::new(spec).ok_or_else(|| SpecError::invalid("policer", "a plug-in", "it must be a meter"))?;
        Ok(AnyPolicer::Tricolour(policer))
    }

    pub(super) fn shaper(&self, spec: &ShaperSpec) -> Result<AnyShaper, SpecError> {
        Ok(match spec {
            ShaperSpec::TokenBucket { rate, burst } => AnyShaper::TokenBucket(TokenBucket::new(rate.0, burst.0)),
            ShaperSpec::Plugin { name, options } => AnyShaper::Other(named(name, self.plugins.shaper(name, options))?),
        })
    }

    pub(super) fn slot(&mut self, spec: &QueueSpec) -> Result<Slot<P>, SpecError> {
        Ok(Slot {
            queue: self.queue(spec.id, &spec.kind)?,
            policer: spec.policer.as_ref().map(|p| self.policer(p)).transpose()?,
            shaper: spec.shaper.as_ref().map(|s| self.shaper(s)).transpose()?,
            blocked: None,
            basic: Basic::default(),
            avg_sojourn: Span::ZERO,
            last_sojourn: Span::ZERO,
        })
    }

    pub(super) fn scheduler(&self, spec: &SchedulerSpec) -> Result<Box<dyn Scheduler>, SpecError> {
        Ok(match spec {
            SchedulerSpec::RoundRobin {} => Box::new(RoundRobin::default()),
            SchedulerSpec::Drr { quantum, weights } => Box::new(Drr::new(*quantum, weights)),
            SchedulerSpec::Strict { order } => Box::new(Strict::new(order)),
            SchedulerSpec::Conditional { high, protection } => Box::new(Conditional::new(high, *protection)),
            SchedulerSpec::Weighted { weights } => Box::new(Weighted::new(weights)),
            SchedulerSpec::FqCodel { quantum } => Box::new(FqCodel::new(*quantum)),
            SchedulerSpec::Plugin { name, options } => named(name, self.plugins.scheduler(name, options))?,
        })
    }

    pub(super) fn pacer(&self, spec: &PacerSpec) -> Result<Box<dyn Pacer>, SpecError> {
        Ok(match spec {
            PacerSpec::None {} => Box::new(NoPacer),
            PacerSpec::Dql(spec) => Box::new(Dql::new(*spec)),
            PacerSpec::Bdp(spec) => Box::new(Bdp::new(*spec)),
            PacerSpec::Plugin { name, options } => named(name, self.plugins.pacer(name, options))?,
        })
    }
}

/// A whole pipeline.
pub(super) fn pipeline<P: Packet>(
    layout: Layout,
    seed: [u64; 2],
    plugins: Option<Arc<dyn Plugins<P>>>,
) -> Result<Pipeline<P>, SpecError> {
    let mut builder = Builder::new(plugins.clone(), seed, Couplings::new());
    let mut classifier = ClassifierStage::new(seed);
    let mut slots = Slots::new();
    let mut scheduler = builder.scheduler(&layout.scheduler)?;
    for filter in layout.filters.values() {
        let _new = classifier.put(builder.filter(filter)?, &filter.to, &[]);
    }
    for (&id, spec) in &layout.queues {
        slots.insert(id, Box::new(builder.slot(spec)?));
        scheduler.add(id);
        classifier.queue_added(id);
    }
    debug_assert!(slots.get(QueueId::DEFAULT).is_some(), "checked by the layout");
    Ok(Pipeline {
        pacer: builder.pacer(&layout.pacer)?,
        limit: layout.limit,
        layout,
        generation: 0,
        seed,
        plugins,
        classifier,
        couplings: builder.couplings,
        slots,
        scheduler,
        timers: BinaryHeap::new(),
        pacer_wait: None,
        arrived: Volume::default(),
        forwarded: Volume::default(),
        held: Volume::default(),
        dropped: [Volume::default(); DropReason::ALL.len()],
        overlimits: 0,
        requeues: 0,
        maxpacket: 0,
        scheduler_faults: 0,
    })
}
