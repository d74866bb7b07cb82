//! Bearers without a radio: for tests, demonstrations, and to try a pipeline file out.

use std::collections::BTreeMap;
use std::time::Instant;

use insane_traffic::{Pipeline, PipelineSpec, SpecError, Time};

use crate::bearers::{BearerState, Bearers, Edit, Refusal};
use crate::edit::MAX_STEPS;
use crate::messages::{BearerId, Outcome};
use crate::replies::Rlc;

/// Bearers whose pipelines are real and whose packets go nowhere.
#[derive(Debug)]
pub struct StandIn {
    began: Instant,
    bearers: BTreeMap<BearerId, (Pipeline<Vec<u8>>, Rlc)>,
}

impl StandIn {
    /// Bearers of these names, each with such a pipeline.
    ///
    /// # Errors
    /// What in the pipeline cannot be.
    pub fn new(bearers: &[BearerId], spec: &PipelineSpec) -> Result<Self, SpecError> {
        let one = |id: &BearerId| Ok((*id, (Pipeline::new(spec, 1)?, Rlc::default())));
        Ok(Self { began: Instant::now(), bearers: bearers.iter().map(one).collect::<Result<_, SpecError>>()? })
    }

    /// Its time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Puts a packet into a bearer's pipeline, which may drop it.
    pub fn enqueue(&mut self, bearer: BearerId, packet: Vec<u8>) {
        let now = self.now();
        if let Some((pipeline, rlc)) = self.bearers.get_mut(&bearer) {
            rlc.rxsdu_pkts += 1;
            pipeline.enqueue(now, packet, &mut ()).ok();
        }
    }

    /// Says what a bearer's RLC is to count.
    pub fn set_rlc(&mut self, bearer: BearerId, rlc: Rlc) {
        if let Some(one) = self.bearers.get_mut(&bearer) {
            one.1 = rlc;
        }
    }

    /// Whether every pipeline's books are in order.
    ///
    /// # Errors
    /// What does not add up.
    pub fn audit(&self) -> Result<(), String> {
        self.bearers.values().try_for_each(|(pipeline, _)| pipeline.audit())
    }
}

impl Bearers for StandIn {
    fn list(&mut self) -> Result<Vec<BearerId>, Refusal> {
        Ok(self.bearers.keys().copied().collect())
    }

    fn pipeline(&mut self, bearer: BearerId) -> Result<PipelineSpec, Refusal> {
        self.bearers.get(&bearer).map(|(p, _)| p.spec()).ok_or_else(|| Refusal::no_bearer(bearer))
    }

    fn edit(&mut self, bearer: BearerId, edit: &Edit, generation: Option<u64>) -> Result<u64, Refusal> {
        let now = self.now();
        let (pipeline, _) = self.bearers.get_mut(&bearer).ok_or_else(|| Refusal::no_bearer(bearer))?;
        let current = pipeline.generation();
        if let Some(planned) = generation.filter(|g| *g != current) {
            return Err(SpecError::Stale { planned, current }.into());
        }
        let draft = pipeline.draft();
        let plan = match edit {
            Edit::Change(changes) => draft.plan(changes)?,
            Edit::Load(spec, packets) => draft.replace(spec, *packets)?,
        };
        if plan.steps() > MAX_STEPS {
            return Err(Refusal::new(Outcome::TooMany, format!("{} stages at once are too many", plan.steps())));
        }
        Ok(pipeline.commit(now, plan, &mut ())?)
    }

    fn states(&mut self, bearers: &[BearerId], most: usize) -> Result<Vec<BearerState>, Refusal> {
        let time_ns = self.now().nanos();
        let wanted = |id: &BearerId| bearers.is_empty() || bearers.contains(id);
        let one = |(id, (pipeline, rlc)): (&BearerId, &(Pipeline<Vec<u8>>, Rlc))| {
            let (stats, left_out) = pipeline.stats_within(most);
            let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
            BearerState { bearer: *id, time_ns, pipeline: stats, left_out, rlc: *rlc, uplink_rlc: Rlc::default() }
        };
        Ok(self.bearers.iter().filter(|(id, _)| wanted(id)).map(one).collect())
    }
}
