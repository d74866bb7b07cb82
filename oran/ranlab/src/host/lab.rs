//! The thread that moves packets, and the handle that the rest of the program has of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use insane_traffic::spec::Change;
use insane_traffic::{Draft, Plan, Time};
use insane_traffic_plugin::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::{LabBearers, Service};
use super::namespaces::{Namespaces, destination};
use super::{HostError, sys};
use crate::config::Config;
use crate::core::cell::{Cell, ChangeError, Look, Side};
use crate::core::pdu::Pdu;
use crate::core::stats::CellStats;

/// Packets read from one device before the clock is looked at again.
const BURST: usize = 512;

/// What the thread is asked to do.
pub(super) enum Request {
    Change(u16, u8, Vec<Change>, SyncSender<Result<u64, String>>),
    Commit(u16, u8, Box<Plan<Box<Pdu>>>, SyncSender<Result<u64, ChangeError>>),
    Draft(u16, u8, SyncSender<Option<Draft<Box<Pdu>>>>),
    Look(Vec<(u16, u8)>, usize, SyncSender<(u64, Vec<Look>)>),
    Stats(SyncSender<Box<Sample>>),
    Stop,
}

/// The state of the lab at one instant.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// Everything that the cell counts.
    pub cell: CellStats,
    /// How late the thread was at worst since the sample before, in nanoseconds.
    pub late_ns: u64,
    /// Packets that no device took, and that were for no UE.
    pub undelivered: [u64; 2],
}

/// A lab that runs. Any thread may use it.
#[derive(Debug)]
pub struct Lab {
    /// Its namespaces. Removed when the lab goes.
    pub namespaces: Namespaces,
    /// The objects that stages come from: more can be loaded, replaced and unloaded while it runs.
    pub plugins: Arc<Registry>,
    requests: Sender<Request>,
    wake: File,
    began: Instant,
    thread: Option<JoinHandle<()>>,
    /// Control from other processes, if the configuration has it.
    control: Option<Service>,
}

impl Lab {
    /// Makes the namespaces and starts to move packets. Slot 0 begins now. `samples`, if given, gets the state at every
    /// `every`; one that is not taken in time is dropped.
    ///
    /// # Errors
    /// What of the configuration or the machine stands in the way.
    pub fn start(config: &Config, samples: Option<(Duration, SyncSender<Box<Sample>>)>) -> Result<Self, HostError> {
        let plugins = super::plugins::load(config)?;
        let cell = Cell::with_plugins(config, Some(plugins.clone())).map_err(|e| HostError::new("configuration", e))?;
        let namespaces = Namespaces::new(config)?;
        let pipe = |e| HostError::new("pipe", e);
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).map_err(pipe)?;
        let copy = |file: &File| file.try_clone().map_err(|e| HostError::new("descriptor", e));
        let (requests, inbox) = channel();
        let began = Instant::now();
        let mut mover = Mover {
            cell,
            began,
            core: copy(&namespaces.core)?,
            ues: namespaces.ues.iter().map(copy).collect::<Result<_, _>>()?,
            woken: woken.into(),
            inbox,
            samples: samples.map(|(every, to)| Sampler { every, next: Duration::ZERO, to }),
            buffer: vec![0; 65_536],
            late_ns: 0,
            undelivered: [0; 2],
        };
        let realtime = config.host.realtime;
        let run = move || {
            if realtime && let Err(error) = sys::realtime() {
                eprintln!("ranlab: no real-time scheduling, expect some slots to be late: {error}");
            }
            mover.run();
        };
        let thread = std::thread::Builder::new()
            .name("ranlab-cell".into())
            .spawn(run)
            .map_err(|e| HostError::new("thread", e))?;
        let mut lab =
            Self { namespaces, plugins, requests, wake: wake.into(), began, thread: Some(thread), control: None };
        if let Some(spec) = &config.control {
            let bearers = LabBearers::new(lab.requests.clone(), copy(&lab.wake)?, config, spec);
            lab.control = Some(Service::start(spec, bearers)?);
        }
        Ok(lab)
    }

    /// How long it has been running, on the clock of its samples.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Changes a bearer's pipeline, all or nothing. Returns the pipeline's new generation.
    ///
    /// # Errors
    /// Why not, or that the lab has ended.
    pub fn change(&self, rnti: u16, drb: u8, changes: &[Change]) -> Result<u64, HostError> {
        let (answer, result) = sync_channel(1);
        self.ask(Request::Change(rnti, drb, changes.to_vec(), answer))?;
        let answer = result.recv().map_err(|_| HostError::new("change", "the lab has ended"))?;
        answer.map_err(|e| HostError::new("change", e))
    }

    /// Its state now.
    ///
    /// # Errors
    /// The lab has ended.
    pub fn sample(&self) -> Result<Box<Sample>, HostError> {
        let (answer, result) = sync_channel(1);
        self.ask(Request::Stats(answer))?;
        result.recv().map_err(|_| HostError::new("sample", "the lab has ended"))
    }

    fn ask(&self, request: Request) -> Result<(), HostError> {
        self.requests.send(request).map_err(|_| HostError::new("request", "the lab has ended"))?;
        // A pipe that is full has woken the thread already.
        let _ = (&self.wake).write(&[0]);
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.control = None;
        // It may have ended already.
        let _ = self.ask(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sampler {
    every: Duration,
    next: Duration,
    to: SyncSender<Box<Sample>>,
}

/// The state of the thread.
struct Mover {
    cell: Cell,
    began: Instant,
    core: File,
    ues: Vec<File>,
    woken: File,
    inbox: Receiver<Request>,
    samples: Option<Sampler>,
    buffer: Vec<u8>,
    late_ns: u64,
    undelivered: [u64; 2],
}

impl Mover {
    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn run(&mut self) {
        loop {
            let now = self.now();
            self.late_ns = self.late_ns.max(now.since(self.cell.next_slot()).nanos());
            // What was read only now may have been there before slots that were missed, and is in time for them.
            self.read(now.min(self.cell.next_slot()));
            self.cell.advance(now);
            self.deliver();
            if !self.answer() {
                return;
            }
            self.offer_sample();
            self.sleep();
        }
    }

    fn read(&mut self, at: Time) {
        let Self { cell, core, ues, buffer, undelivered, .. } = self;
        for _ in 0..BURST {
            let Ok(length) = core.read(buffer) else { break };
            match destination(&buffer[..length]).filter(|n| *n < ues.len()) {
                Some(ue) => cell.downlink(at, ue, &buffer[..length]),
                None => undelivered[1] += 1,
            }
        }
        for (n, device) in ues.iter_mut().enumerate() {
            for _ in 0..BURST {
                let Ok(length) = device.read(buffer) else { break };
                cell.uplink(at, n, &buffer[..length]);
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(delivery) = self.cell.pop() {
            let device = match delivery.to {
                Side::Server => &mut self.core,
                Side::Ue(n) => match self.ues.get_mut(n) {
                    Some(device) => device,
                    None => continue,
                },
            };
            self.undelivered[0] += u64::from(device.write(&delivery.pdu.bytes).is_err());
        }
    }

    /// Does what was asked; false if that was to stop.
    fn answer(&mut self) -> bool {
        let mut bytes = [0; 64];
        while matches!(self.woken.read(&mut bytes), Ok(n) if n == bytes.len()) {}
        while let Ok(request) = self.inbox.try_recv() {
            // Who asked may have stopped waiting.
            match request {
                Request::Change(rnti, drb, changes, answer) => {
                    let _ = answer.send(self.cell.change(rnti, drb, &changes).map_err(|e| e.to_string()));
                }
                Request::Commit(rnti, drb, plan, answer) => {
                    let _ = answer.send(self.cell.commit(rnti, drb, *plan));
                }
                Request::Draft(rnti, drb, answer) => {
                    let _ = answer.send(self.cell.draft(rnti, drb));
                }
                Request::Look(bearers, most, answer) => {
                    let _ = answer.send((self.cell.now().nanos(), self.cell.look(&bearers, most)));
                }
                Request::Stats(answer) => {
                    let _ = answer.send(self.sample());
                }
                Request::Stop => return false,
            }
        }
        true
    }

    fn sample(&self) -> Box<Sample> {
        Box::new(Sample { cell: self.cell.stats(), late_ns: self.late_ns, undelivered: self.undelivered })
    }

    fn offer_sample(&mut self) {
        let elapsed = self.began.elapsed();
        if self.samples.as_ref().is_none_or(|s| elapsed < s.next) {
            return;
        }
        let sample = self.sample();
        self.late_ns = 0;
        if let Some(sampler) = &mut self.samples {
            // A reader that is too slow, or gone, misses it.
            let _ = sampler.to.try_send(sample);
            while sampler.next <= elapsed {
                sampler.next += sampler.every;
            }
        }
    }

    fn sleep(&self) {
        let next = self.cell.next_event().unwrap_or(Time::ZERO);
        let left = next.since(self.now()).nanos();
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let devices = self.ues.iter().map(AsFd::as_fd).chain([self.core.as_fd(), self.woken.as_fd()]);
        let mut fds: Vec<PollFd<'_>> = devices.map(readable).collect();
        let timeout = Timespec { tv_sec: (left / 1_000_000_000).cast_signed(), tv_nsec: (left % 1_000_000_000) as _ };
        // Interrupted or not, the next turn looks at everything.
        let _ = poll(&mut fds, Some(&timeout));
    }
}
