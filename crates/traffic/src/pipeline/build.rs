//! Making stages out of their descriptions.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::slots::{Slot, Slots};
use super::{Pipeline, Volume};
use crate::classify::{Action, Classifier, ClassifierStage, Filter, Matcher};
use crate::pace::{NoPacer, Pacer};
use crate::packet::{DropReason, Packet, QueueId};
use crate::police::{Policer, Tricolour};
use crate::queue::{Codel, Fifo, Queue};
use crate::schedule::{RoundRobin, Scheduler};
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
}

fn named<T>(name: &str, made: Result<T, PluginError>) -> Result<T, SpecError> {
    made.map_err(|e| SpecError::Plugin { name: name.to_owned(), text: e.0 })
}

impl<P: Packet> Builder<P> {
    pub(super) fn new(plugins: Option<Arc<dyn Plugins<P>>>) -> Self {
        Self { plugins: plugins.unwrap_or_else(|| Arc::new(NoPlugins)) }
    }

    pub(super) fn filter(&self, spec: &FilterSpec) -> Result<Filter, SpecError> {
        let matcher = Matcher::new(&spec.matches)?;
        let action = match &spec.to {
            TargetSpec::Queue { queue } => Action::Queue(*queue),
            TargetSpec::Drop {} => Action::Drop,
            TargetSpec::Plugin { name, options } => {
                Action::Choose(named(name, self.plugins.classifier(name, options))?)
            }
        };
        let action_needs_headers = matches!(action, Action::Choose(_));
        let (id, priority) = (spec.id, spec.priority);
        Ok(Filter { id, priority, matcher, action, action_needs_headers, serial: 0, packets: 0, bytes: 0 })
    }

    pub(super) fn queue(&self, kind: &QueueKind) -> Result<Box<dyn Queue<P>>, SpecError> {
        Ok(match kind {
            QueueKind::Fifo { limit } => Box::new(Fifo::new(*limit)),
            QueueKind::Codel(spec) => Box::new(Codel::new(*spec)),
            QueueKind::Plugin { name, options, limit } => named(name, self.plugins.queue(name, options, *limit))?,
        })
    }

    pub(super) fn policer(&self, spec: &PolicerSpec) -> Result<Box<dyn Policer>, SpecError> {
        if let PolicerSpec::Plugin { name, options } = spec {
            return named(name, self.plugins.policer(name, options));
        }
        let policer =
            Tricolour::new(spec).ok_or_else(|| SpecError::invalid("policer", "a plug-in", "it must be a meter"))?;
        Ok(Box::new(policer))
    }

    pub(super) fn shaper(&self, spec: &ShaperSpec) -> Result<Box<dyn Shaper>, SpecError> {
        Ok(match spec {
            ShaperSpec::TokenBucket { rate, burst } => Box::new(TokenBucket::new(rate.0, burst.0)),
            ShaperSpec::Plugin { name, options } => named(name, self.plugins.shaper(name, options))?,
        })
    }

    pub(super) fn slot(&self, spec: &QueueSpec) -> Result<Slot<P>, SpecError> {
        Ok(Slot {
            queue: self.queue(&spec.kind)?,
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
            SchedulerSpec::Plugin { name, options } => named(name, self.plugins.scheduler(name, options))?,
        })
    }

    pub(super) fn pacer(&self, spec: &PacerSpec) -> Result<Box<dyn Pacer>, SpecError> {
        Ok(match spec {
            PacerSpec::None {} => Box::new(NoPacer),
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
    let builder = Builder::new(plugins.clone());
    let mut classifier = ClassifierStage::new(seed);
    let mut slots = Slots::new();
    let mut scheduler = builder.scheduler(&layout.scheduler)?;
    for filter in layout.filters.values() {
        let _new = classifier.put(builder.filter(filter)?, &filter.to);
    }
    for (&id, spec) in &layout.queues {
        slots.insert(id, builder.slot(spec)?);
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
