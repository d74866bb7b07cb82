//! Control of the lab's pipelines from other processes, over INSANE channels. A thread of its own talks to the channels,
//! reads and prepares what it is asked for, and hands the thread that moves packets what is left to be done: a commit
//! between two packets, or a look at the counters.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use insane_traffic::{Draft, Plan, SpecError};
use insane_traffic_control::{
    BearerId, BearerState, Bearers, Control, ControlOptions, Edit, MAX_STEPS, Outcome, Refusal, Rlc,
};

use super::HostError;
use super::lab::Request;
use crate::config::{Absent, Config, ControlSpec, ControlWait};
use crate::core::cell::{ChangeError, Look};
use crate::core::pdu::Pdu;
use crate::core::rlc::RlcStats;

/// How long the thread that moves packets is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer is looked for without sleeping where that was asked for.
const SPIN: Duration = Duration::from_millis(1);
/// How long until the runtime is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// The bearers of a lab, from another thread.
pub(super) struct LabBearers {
    requests: Sender<Request>,
    wake: File,
    list: Vec<BearerId>,
    spin: bool,
    /// The pipelines as they were last seen, to plan changes of them here.
    drafts: BTreeMap<BearerId, Draft<Box<Pdu>>>,
}

fn gone() -> Refusal {
    Refusal::new(Outcome::Unavailable, "the lab's data path does not answer")
}

impl LabBearers {
    pub(super) fn new(requests: Sender<Request>, wake: File, config: &Config, spec: &ControlSpec) -> Self {
        let of = |ue: &crate::config::UeSpec| {
            let rnti = ue.rnti.into();
            ue.bearers.iter().map(move |b| BearerId { rnti, drb: b.id.into() }).collect::<Vec<_>>()
        };
        let mut list: Vec<BearerId> = config.ues.iter().flat_map(of).collect();
        list.sort_unstable();
        Self { requests, wake, list, spin: spec.wait == ControlWait::Spin, drafts: BTreeMap::new() }
    }

    fn ask<T>(&self, request: Request, answer: &Receiver<T>) -> Result<T, Refusal> {
        self.requests.send(request).map_err(|_| gone())?;
        // A pipe that is full has woken the thread already.
        let _ = (&self.wake).write(&[0]);
        let began = Instant::now();
        while self.spin && began.elapsed() < SPIN {
            match answer.try_recv() {
                Ok(answer) => return Ok(answer),
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return Err(gone()),
            }
        }
        answer.recv_timeout(PATIENCE).map_err(|_: RecvTimeoutError| gone())
    }

    fn look(&self, bearers: &[BearerId], most: usize) -> Result<(u64, Vec<Look>), Refusal> {
        let (answer, looked) = sync_channel(1);
        self.ask(Request::Look(bearers.iter().filter_map(small).collect(), most, answer), &looked)
    }

    /// The draft of a bearer's pipeline as it is: the one that is here if it is that.
    fn draft(&mut self, bearer: BearerId) -> Result<&Draft<Box<Pdu>>, Refusal> {
        if !self.list.contains(&bearer) {
            return Err(Refusal::no_bearer(bearer));
        }
        let now = self.look(&[bearer], 0)?.1.first().map(|l| l.pipeline.generation);
        if now != self.drafts.get(&bearer).map(Draft::generation) {
            let (answer, taken) = sync_channel(1);
            let (rnti, drb) = small(&bearer).ok_or_else(|| Refusal::no_bearer(bearer))?;
            let draft = self.ask(Request::Draft(rnti, drb, answer), &taken)?;
            self.drafts.insert(bearer, draft.ok_or_else(|| Refusal::no_bearer(bearer))?);
        }
        self.drafts.get(&bearer).ok_or_else(|| Refusal::no_bearer(bearer))
    }

    fn commit(&self, bearer: BearerId, plan: Plan<Box<Pdu>>) -> Result<u64, Refusal> {
        let (answer, committed) = sync_channel(1);
        let (rnti, drb) = small(&bearer).ok_or_else(|| Refusal::no_bearer(bearer))?;
        self.ask(Request::Commit(rnti, drb, Box::new(plan), answer), &committed)?.map_err(|e| match e {
            ChangeError::NoBearer { .. } => Refusal::no_bearer(bearer),
            ChangeError::Refused(e) => e.into(),
        })
    }
}

/// A bearer's name in the cell.
fn small(bearer: &BearerId) -> Option<(u16, u8)> {
    Some((u16::try_from(bearer.rnti).ok()?, u8::try_from(bearer.drb).ok()?))
}

const fn rlc(stats: &RlcStats) -> Rlc {
    Rlc {
        rxsdu_pkts: stats.rxsdu_pkts,
        rxsdu_dd_pkts: stats.rxsdu_dd_pkts,
        txbuf_occ_bytes: stats.txbuf_occ_bytes,
        txbuf_occ_pkts: stats.txbuf_occ_pkts,
        txpdu_pkts: stats.txpdu_pkts,
        txpdu_bytes: stats.txpdu_bytes,
        txpdu_segmented: stats.txpdu_segmented,
        txpdu_retx_pkts: stats.txpdu_retx_pkts,
        txpdu_wt_ns: stats.txpdu_wt_ns,
        head_sojourn_ns: stats.head_sojourn_ns,
    }
}

impl Bearers for LabBearers {
    fn list(&mut self) -> Result<Vec<BearerId>, Refusal> {
        Ok(self.list.clone())
    }

    fn pipeline(&mut self, bearer: BearerId) -> Result<insane_traffic::PipelineSpec, Refusal> {
        Ok(self.draft(bearer)?.spec())
    }

    fn edit(&mut self, bearer: BearerId, edit: &Edit, generation: Option<u64>) -> Result<u64, Refusal> {
        // Somebody else may change the pipeline between the look and the commit: once more then, and no oftener.
        for last in [false, true] {
            let known = self.drafts.get(&bearer).filter(|d| !last && generation.is_none_or(|g| g == d.generation()));
            let draft = if known.is_some() { known } else { Some(self.draft(bearer)?) };
            let Some(draft) = draft else { continue };
            let current = draft.generation();
            if let Some(planned) = generation.filter(|g| *g != current) {
                return Err(SpecError::Stale { planned, current }.into());
            }
            let plan = match edit {
                Edit::Change(changes) => draft.plan(changes)?,
                Edit::Load(spec, packets) => draft.replace(spec, *packets)?,
            };
            if plan.steps() > MAX_STEPS {
                let text = format!("{} stages would change at once, more than {MAX_STEPS}", plan.steps());
                return Err(Refusal::new(Outcome::TooMany, text));
            }
            let after = draft.after(&plan);
            match self.commit(bearer, plan) {
                Err(refusal) if refusal.outcome == Outcome::Stale && generation.is_none() && !last => {}
                Err(refusal) => return Err(refusal),
                Ok(generation) => {
                    self.drafts.insert(bearer, after);
                    return Ok(generation);
                }
            }
        }
        Err(gone())
    }

    fn states(&mut self, bearers: &[BearerId], most: usize) -> Result<Vec<BearerState>, Refusal> {
        let (time_ns, looks) = self.look(bearers, most)?;
        let one = |look: Look| BearerState {
            bearer: BearerId { rnti: look.rnti.into(), drb: look.drb.into() },
            time_ns,
            pipeline: look.pipeline,
            left_out: u32::try_from(look.left_out).unwrap_or(u32::MAX),
            rlc: rlc(&look.rlc),
            uplink_rlc: rlc(&look.uplink_rlc),
        };
        let mut states: Vec<BearerState> = looks.into_iter().map(one).collect();
        states.sort_by_key(|s| s.bearer);
        Ok(states)
    }
}

/// The thread that serves control, as long as this lives.
#[derive(Debug)]
pub(super) struct Service {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts it.
    ///
    /// # Errors
    /// There is no runtime, and the configuration says that this is an error.
    pub(super) fn start(spec: &ControlSpec, mut bearers: LabBearers) -> Result<Self, HostError> {
        let first = match open(spec) {
            Err(e) if spec.absent == Absent::Fail => return Err(HostError::new("control", e)),
            other => other,
        };
        let (stop, spec) = (Arc::new(AtomicBool::new(false)), spec.clone());
        let ended = Arc::clone(&stop);
        let run = move || serve(&spec, first, &mut bearers, &ended);
        let thread = std::thread::Builder::new().name("ranlab-control".into()).spawn(run);
        Ok(Self { stop, thread: Some(thread.map_err(|e| HostError::new("thread", e))?) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

fn open(spec: &ControlSpec) -> insane::Result<(insane::Session, Control)> {
    let mut builder = insane::Session::builder("ranlab");
    if let Some(socket) = &spec.socket {
        builder = builder.socket(socket);
    }
    if !spec.domain.is_empty() {
        builder = builder.domain(&spec.domain);
    }
    let session = builder.open()?;
    let wait = match spec.wait {
        ControlWait::Spin => insane::Wait::Spin,
        ControlWait::Adaptive => insane::Wait::Adaptive,
        ControlWait::Sleep => insane::Wait::Sleep,
    };
    let control = Control::open(&session, &ControlOptions { prefix: spec.prefix.clone(), wait })?;
    Ok((session, control))
}

fn serve(
    spec: &ControlSpec,
    first: insane::Result<(insane::Session, Control)>,
    bearers: &mut LabBearers,
    stop: &AtomicBool,
) {
    let (mut opened, mut told) = (first, None);
    while !stop.load(Ordering::Relaxed) {
        // A session that is open finds a runtime that starts anew by itself.
        let ended = opened.and_then(|(session, mut control)| {
            told = None;
            let ended = control.serve(bearers, stop);
            drop(session);
            ended
        });
        if let Err(error) = ended {
            let text = error.to_string();
            if told.as_ref() != Some(&text) {
                eprintln!("ranlab: nobody can control the pipelines, trying every second: {text}");
                told = Some(text);
            }
        }
        let until = Instant::now() + AGAIN;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        opened = open(spec);
    }
}
