//! Changes of stages: from messages to what the pipeline understands, and back.

use insane_traffic::spec::{
    Change, FilterSpec, Leftover, LimitSpec, PacerSpec, PolicerSpec, QueueKind, QueueSpec, References, SchedulerSpec,
    ShaperSpec,
};
use insane_traffic::{PipelineSpec, QueueId};
use serde::de::DeserializeOwned;

use crate::bearers::Refusal;
use crate::messages::{Action, Outcome, Stage, StageChange};
use crate::value::{Kind, Value, ValueError};

/// How many queues one request may add, and how many stages it may touch: what a request costs the data path is bounded by
/// that.
pub const MAX_STEPS: usize = 4_096;

fn malformed(error: &ValueError) -> Refusal {
    Refusal::new(Outcome::Malformed, error.to_string())
}

/// What a modified queue becomes; its policer and shaper are stages of their own.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Kinded {
    kind: QueueKind,
}

impl StageChange {
    /// A deletion that is refused if anything needs the stage.
    #[must_use]
    pub fn delete(stage: Stage, id: u32) -> Self {
        Self { action: Action::Delete.into(), stage: stage.into(), id, ..Self::default() }
    }

    /// An addition or a modification.
    #[must_use]
    pub fn put(action: Action, stage: Stage, id: u32, spec: Value) -> Self {
        Self { action: action.into(), stage: stage.into(), id, spec: Some(spec), ..Self::default() }
    }

    /// What it means to a pipeline.
    ///
    /// # Errors
    /// It lacks something, its stage cannot be treated so, or what it says of the stage cannot be read.
    pub fn to_change(&self) -> Result<Change, Refusal> {
        let queue = QueueId(self.id);
        let (action, stage) = (self.action(), self.stage());
        Ok(match (stage, action) {
            (Stage::Filter, Action::Add) => Change::AddFilter { filter: self.with_id()? },
            (Stage::Filter, Action::Modify) => Change::ModifyFilter { filter: self.with_id()? },
            (Stage::Filter, Action::Delete) => Change::DeleteFilter { id: self.id },
            (Stage::Queue, Action::Add) => {
                let queue: QueueSpec = self.with_id()?;
                if queue.count as usize > MAX_STEPS {
                    return Err(too_many(queue.count as usize));
                }
                Change::AddQueue { queue }
            }
            (Stage::Queue, Action::Modify) => Change::ModifyQueue { id: queue, kind: self.spec::<Kinded>()?.kind },
            (Stage::Queue, Action::Delete) => Change::DeleteQueue {
                id: queue,
                packets: leftover(self.drop_packets),
                references: if self.remove_references { References::Remove } else { References::Refuse },
            },
            (Stage::Policer, Action::Add) => Change::AddPolicer { queue, policer: self.spec::<PolicerSpec>()? },
            (Stage::Policer, Action::Modify) => Change::ModifyPolicer { queue, policer: self.spec::<PolicerSpec>()? },
            (Stage::Policer, Action::Delete) => Change::DeletePolicer { queue },
            (Stage::Shaper, Action::Add) => Change::AddShaper { queue, shaper: self.spec::<ShaperSpec>()? },
            (Stage::Shaper, Action::Modify) => Change::ModifyShaper { queue, shaper: self.spec::<ShaperSpec>()? },
            (Stage::Shaper, Action::Delete) => Change::DeleteShaper { queue },
            (Stage::Scheduler, Action::Modify) => Change::SetScheduler { scheduler: self.spec::<SchedulerSpec>()? },
            (Stage::Scheduler, Action::Delete) => Change::DeleteScheduler {},
            (Stage::Pacer, Action::Modify) => Change::SetPacer { pacer: self.spec::<PacerSpec>()? },
            (Stage::Pacer, Action::Delete) => Change::DeletePacer {},
            (Stage::Limit, Action::Modify) => Change::SetLimit { limit: self.spec::<LimitSpec>()? },
            (Stage::Scheduler | Stage::Pacer | Stage::Limit, Action::Add) => {
                let text = "a pipeline has one scheduler, one pacer and one limit: modify it";
                return Err(Refusal::new(Outcome::Exists, text));
            }
            (Stage::Limit, Action::Delete) => {
                return Err(Refusal::new(Outcome::InUse, "a pipeline has a limit always: modify it"));
            }
            (Stage::Unspecified, _) | (_, Action::Unspecified) => {
                let text = format!("a change of stage {} by action {} is not known here", self.stage, self.action);
                return Err(Refusal::new(Outcome::Unsupported, text));
            }
        })
    }

    fn spec<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let value = self.spec.clone().unwrap_or_else(|| Value { kind: Some(Kind::Map(crate::value::Map::default())) });
        value.read().map_err(|e| malformed(&e))
    }

    /// Reads what has an id in its file; the message's is it.
    fn with_id<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let mut json = self.spec.clone().unwrap_or_default().into_json().map_err(|e| malformed(&e))?;
        if json.is_null() {
            json = serde_json::Value::Object(serde_json::Map::new());
        }
        if let Some(map) = json.as_object_mut() {
            let id = serde_json::Value::from(self.id);
            if map.get("id").is_some_and(|other| *other != id) {
                return Err(Refusal::new(Outcome::Malformed, "two different ids"));
            }
            map.insert("id".into(), id);
        }
        serde_json::from_value(json).map_err(|e| Refusal::new(Outcome::Malformed, e.to_string()))
    }

    /// The message of a change.
    ///
    /// # Errors
    /// A number in it is not finite.
    pub fn from_change(change: &Change) -> Result<Self, ValueError> {
        let put = |action, stage, id, spec: Result<Value, ValueError>| Ok(Self::put(action, stage, id, spec?));
        match change {
            Change::AddFilter { filter } => put(Action::Add, Stage::Filter, filter.id, Value::of::<FilterSpec>(filter)),
            Change::ModifyFilter { filter } => put(Action::Modify, Stage::Filter, filter.id, Value::of(filter)),
            Change::DeleteFilter { id } => Ok(Self::delete(Stage::Filter, *id)),
            Change::AddQueue { queue } => put(Action::Add, Stage::Queue, queue.id.0, Value::of(queue)),
            Change::ModifyQueue { id, kind } => {
                put(Action::Modify, Stage::Queue, id.0, Value::of(&Kinded { kind: kind.clone() }))
            }
            Change::DeleteQueue { id, packets, references } => Ok(Self {
                drop_packets: *packets == Leftover::Drop,
                remove_references: *references == References::Remove,
                ..Self::delete(Stage::Queue, id.0)
            }),
            Change::AddPolicer { queue, policer } => put(Action::Add, Stage::Policer, queue.0, Value::of(policer)),
            Change::ModifyPolicer { queue, policer } => {
                put(Action::Modify, Stage::Policer, queue.0, Value::of(policer))
            }
            Change::DeletePolicer { queue } => Ok(Self::delete(Stage::Policer, queue.0)),
            Change::AddShaper { queue, shaper } => put(Action::Add, Stage::Shaper, queue.0, Value::of(shaper)),
            Change::ModifyShaper { queue, shaper } => put(Action::Modify, Stage::Shaper, queue.0, Value::of(shaper)),
            Change::DeleteShaper { queue } => Ok(Self::delete(Stage::Shaper, queue.0)),
            Change::SetScheduler { scheduler } => put(Action::Modify, Stage::Scheduler, 0, Value::of(scheduler)),
            Change::DeleteScheduler {} => Ok(Self::delete(Stage::Scheduler, 0)),
            Change::SetPacer { pacer } => put(Action::Modify, Stage::Pacer, 0, Value::of(pacer)),
            Change::DeletePacer {} => Ok(Self::delete(Stage::Pacer, 0)),
            Change::SetLimit { limit } => put(Action::Modify, Stage::Limit, 0, Value::of(limit)),
        }
    }
}

fn too_many(count: usize) -> Refusal {
    Refusal::new(Outcome::TooMany, format!("{count} queues in one request are more than the {MAX_STEPS} allowed"))
}

/// What becomes of packets without a queue.
pub(crate) const fn leftover(drop: bool) -> Leftover {
    if drop { Leftover::Drop } else { Leftover::Rehome }
}

/// Several changes; together they may not add more queues than [`MAX_STEPS`].
pub(crate) fn changes(messages: &[StageChange]) -> Result<Vec<Change>, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::new(Outcome::Malformed, "there are no changes in it"));
    }
    let changes = messages.iter().map(StageChange::to_change).collect::<Result<Vec<_>, _>>()?;
    let added = |c: &Change| if let Change::AddQueue { queue } = c { queue.count as usize } else { 0 };
    match changes.iter().map(added).sum() {
        0..=MAX_STEPS => Ok(changes),
        count => Err(too_many(count)),
    }
}

/// A whole pipeline of at most [`MAX_STEPS`] queues.
pub(crate) fn pipeline(value: Option<Value>) -> Result<PipelineSpec, Refusal> {
    let value = value.ok_or_else(|| Refusal::new(Outcome::Malformed, "there is no pipeline in it"))?;
    let spec: PipelineSpec = value.read().map_err(|e| malformed(&e))?;
    match spec.queues.iter().map(|q| q.count as usize).sum() {
        0..=MAX_STEPS => Ok(spec),
        count => Err(too_many(count)),
    }
}
