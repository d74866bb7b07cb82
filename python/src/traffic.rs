//! The client of traffic control; `insane.tc` gives it types. What is nested crosses as JSON text.

use crate::session::{Session, wait_of};
use crate::values::{Born, Text, Time, Whole};
use crate::{invalid, raise};
use insane::{Code, Error};
use insane_traffic::PipelineSpec;
use insane_traffic_control::value::Value;
use insane_traffic_control::{
    Action, BearerId, Client, ClientError, ClientOptions, Indicated, Stage, StageChange, Subscription,
};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a blocked call looks for signals such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// Makes the Python exception of what a client says.
fn failed(error: ClientError) -> PyErr {
    match error {
        ClientError::Session(e) => raise(e),
        ClientError::NoServer(_) | ClientError::Timeout => raise(Error::new(Code::Timeout, error.to_string())),
        ClientError::Protocol(text) => raise(Error::new(Code::Protocol, text)),
        ClientError::Refused(refusal) => Python::attach(|py| {
            let made = py
                .import("insane.tc")
                .and_then(|m| m.getattr("Refused"))
                .and_then(|class| class.call1((refusal.outcome.name(), refusal.reason)));
            made.map_or_else(|failure| failure, PyErr::from_value)
        }),
    }
}

fn bearer(rnti: &Whole, drb: &Whole) -> PyResult<BearerId> {
    let (rnti, drb) = (rnti.within("rnti", 0, 65_535)?, drb.within("drb", 0, 255)?);
    Ok(BearerId { rnti: rnti as u32, drb: drb as u32 })
}

/// One change, as `insane.tc` writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    action: String,
    stage: String,
    #[serde(default)]
    id: u32,
    #[serde(default)]
    spec: serde_json::Value,
    #[serde(default)]
    drop_packets: bool,
    #[serde(default)]
    remove_references: bool,
}

impl Written {
    fn read(self) -> PyResult<StageChange> {
        let action = match self.action.as_str() {
            "add" => Action::Add,
            "modify" => Action::Modify,
            "delete" => Action::Delete,
            other => return Err(invalid(format!("action is {other:?}: it takes 'add', 'modify' or 'delete'"))),
        };
        let stage = match self.stage.as_str() {
            "filter" => Stage::Filter,
            "policer" => Stage::Policer,
            "queue" => Stage::Queue,
            "scheduler" => Stage::Scheduler,
            "shaper" => Stage::Shaper,
            "pacer" => Stage::Pacer,
            "limit" => Stage::Limit,
            other => {
                let takes = "'filter', 'policer', 'queue', 'scheduler', 'shaper', 'pacer' or 'limit'";
                return Err(invalid(format!("stage is {other:?}: it takes {takes}")));
            }
        };
        let spec = Value::from_json(self.spec).map_err(|e| invalid(e.to_string()))?;
        let spec = if action == Action::Delete { None } else { Some(spec) };
        Ok(StageChange {
            action: action.into(),
            stage: stage.into(),
            id: self.id,
            spec,
            drop_packets: self.drop_packets,
            remove_references: self.remove_references,
        })
    }
}

/// A client of traffic control.
#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct TrafficClient {
    inner: Client,
    /// Its channels end with the session.
    _session: Py<Session>,
    born: Born,
}

impl TrafficClient {
    fn call<R: Send>(&self, py: Python<'_>, f: impl FnOnce(&Client) -> Result<R, ClientError> + Send) -> PyResult<R> {
        self.born.check()?;
        py.detach(|| f(&self.inner)).map_err(failed)
    }
}

#[pymethods]
impl TrafficClient {
    #[new]
    #[pyo3(signature = (session, prefix, *, timeout=Time(2.0), wait=None))]
    fn new(py: Python<'_>, session: Py<Session>, prefix: Text, timeout: Time, wait: Option<Text>) -> PyResult<Self> {
        let wait = wait_of(wait.as_ref().map_or(Ok("adaptive"), |w| w.get("wait"))?)?;
        let options =
            ClientOptions { timeout: timeout.get("timeout")?, wait, ..ClientOptions::new(prefix.get("prefix")?) };
        let opened = session.get().with(py, |s| Ok(Client::open(s, &options)))?;
        Ok(Self { inner: opened.map_err(failed)?, _session: session, born: Born::now() })
    }

    fn list(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32)>> {
        let bearers = self.call(py, Client::list)?;
        Ok(bearers.into_iter().map(|b| (b.rnti, b.drb)).collect())
    }

    fn show(&self, py: Python<'_>, rnti: Whole, drb: Whole) -> PyResult<String> {
        let bearer = bearer(&rnti, &drb)?;
        let (pipeline, state) = self.call(py, |c| c.show(bearer))?;
        Ok(json!({"pipeline": pipeline, "state": state}).to_string())
    }

    #[pyo3(signature = (rnti, drb, changes, generation=None))]
    fn change(
        &self,
        py: Python<'_>,
        rnti: Whole,
        drb: Whole,
        changes: Text,
        generation: Option<Whole>,
    ) -> PyResult<u64> {
        let bearer = bearer(&rnti, &drb)?;
        let generation = generation.map(|g| g.within("generation", 0, u64::MAX)).transpose()?;
        let written: Vec<Written> =
            serde_json::from_str(changes.get("changes")?).map_err(|e| invalid(format!("changes: {e}")))?;
        let changes = written.into_iter().map(Written::read).collect::<PyResult<Vec<_>>>()?;
        self.call(py, |c| c.change_stages(bearer, changes, generation))
    }

    #[pyo3(signature = (rnti, drb, pipeline, drop_packets=false, generation=None))]
    fn load(
        &self,
        py: Python<'_>,
        rnti: Whole,
        drb: Whole,
        pipeline: Text,
        drop_packets: bool,
        generation: Option<Whole>,
    ) -> PyResult<u64> {
        let bearer = bearer(&rnti, &drb)?;
        let generation = generation.map(|g| g.within("generation", 0, u64::MAX)).transpose()?;
        let text = pipeline.get("pipeline")?;
        let spec = match PipelineSpec::preset(text) {
            Ok(spec) => spec,
            Err(_) => PipelineSpec::from_toml(text).map_err(|e| invalid(format!("pipeline: {e}")))?,
        };
        self.call(py, |c| c.load(bearer, &spec, drop_packets, generation))
    }

    fn timing(&self) -> (u64, u64, u64, u64) {
        let t = self.inner.timing();
        (t.sent_ns, t.taken_ns, t.done_ns, t.received_ns)
    }

    fn subscribe(
        &self,
        py: Python<'_>,
        bearers: Vec<(Whole, Whole)>,
        period: Time,
        lease: Time,
    ) -> PyResult<TrafficSubscription> {
        let bearers = bearers.iter().map(|(r, d)| bearer(r, d)).collect::<PyResult<Vec<_>>>()?;
        let (period, lease) = (period.get("period")?, lease.get("lease")?);
        let inner = self.call(py, |c| c.subscribe(&bearers, period, lease))?;
        Ok(TrafficSubscription { inner: Mutex::new(Some(inner)), born: self.born })
    }
}

/// Indications.
#[pyclass(module = "insane", frozen)]
#[derive(Debug)]
pub(crate) struct TrafficSubscription {
    inner: Mutex<Option<Subscription>>,
    born: Born,
}

fn closed() -> ClientError {
    ClientError::Session(Code::Closed.into())
}

impl TrafficSubscription {
    fn next_within(&self, slice: Duration) -> Result<Indicated, ClientError> {
        let mut held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().ok_or_else(closed)?.next(slice)
    }
}

#[pymethods]
impl TrafficSubscription {
    #[pyo3(signature = (timeout=Time(1.0)))]
    fn next(&self, py: Python<'_>, timeout: Time) -> PyResult<String> {
        self.born.check()?;
        let until = Instant::now() + timeout.get("timeout")?;
        let found = loop {
            let left = until.saturating_duration_since(Instant::now());
            match py.detach(|| self.next_within(left.min(SLICE))) {
                Err(ClientError::Timeout) if left > SLICE => py.check_signals()?,
                other => break other.map_err(failed)?,
            }
        };
        let text = json!({
            "number": found.number, "late": found.late, "dropped": found.dropped, "taken_ns": found.taken_ns,
            "sent_ns": found.sent_ns, "received_ns": found.received_ns, "missing": found.missing,
            "bearers": found.bearers,
        });
        Ok(text.to_string())
    }

    #[getter]
    fn restarts(&self, py: Python<'_>) -> PyResult<u64> {
        self.born.check()?;
        let count = py.detach(|| {
            let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map(Subscription::restarts)
        });
        count.ok_or_else(|| failed(closed()))
    }

    fn close(&self, py: Python<'_>) {
        if !self.born.forked() {
            py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
        }
    }
}
