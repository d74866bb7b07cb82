//! The measuring loops, the same for every system.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;

use crate::control::CpuWatch;
use crate::summary::{Rate, latency};
use crate::sys::now_ns;
use crate::{Args, Control, Description, Role, Stop, Tally, sys};

/// The asking end of `rtt` and `large`; in `open`, what opens and closes.
pub trait Pinger {
    /// Writes all of message `n`, sends it, awaits the answer and reads all of it. In `open`: opens and closes once.
    ///
    /// # Errors
    /// Whatever makes the repetition void.
    fn exchange(&mut self, n: u64) -> Result<()>;

    /// Whether the other end read the very memory that this end wrote, where the program has checked it.
    fn in_place(&self) -> Option<bool> {
        None
    }
}

/// The answering end of `rtt` and `large`.
pub trait Echoer {
    /// Answers what has come, or returns after a bounded wait if the system needs a clean end.
    ///
    /// # Errors
    /// Whatever makes the repetition void.
    fn serve(&mut self) -> Result<()>;
}

/// The sending end of `oneway`, `fanout`, `apps` and `threads`.
pub trait Producer {
    /// Writes all of message `n` and sends it, to every sink. A lossless system waits for room, or returns early
    /// with `false` (nothing sent) when `stop` is requested.
    ///
    /// # Errors
    /// Whatever makes the repetition void.
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool>;
}

/// The receiving end of `oneway`, `fanout`, `apps` and `threads`.
pub trait Consumer {
    /// Takes what is there, at least trying once; every message goes through [`Tally::take`] or [`Tally::take_pieces`].
    ///
    /// # Errors
    /// Whatever makes the repetition void.
    fn receive(&mut self, tally: &mut Tally) -> Result<()>;

    /// How often payloads were copied by user code of this end's host up to now, where the system counts that.
    fn copies(&self) -> Option<u64> {
        None
    }
}

/// A messaging system under test.
pub trait System {
    /// How long a process may take to end by itself; zero for systems that leave nothing behind.
    const GRACE: Duration = Duration::ZERO;

    /// What the program can do.
    fn describe() -> Description;

    /// The asking end.
    ///
    /// # Errors
    /// The mode is not offered, or its set-up failed.
    fn pinger(args: &Args) -> Result<impl Pinger>;

    /// The answering end.
    ///
    /// # Errors
    /// The mode is not offered, or its set-up failed.
    fn echoer(args: &Args) -> Result<impl Echoer>;

    /// The sending end.
    ///
    /// # Errors
    /// The mode is not offered, or its set-up failed.
    fn producer(args: &Args) -> Result<impl Producer>;

    /// The receiving end.
    ///
    /// # Errors
    /// The mode is not offered, or its set-up failed.
    fn consumer(args: &Args) -> Result<impl Consumer>;

    /// An end of `rebind`, from its `ready` to its end.
    ///
    /// # Errors
    /// The system has nothing that moves, or whatever makes the repetition void.
    fn rebind(_args: &Args, _control: &Control) -> Result<()> {
        bail!("this system moves no streams")
    }

    /// Both ends of `calls` in one thread, from its `ready` to its end.
    ///
    /// # Errors
    /// The system does not measure its calls, or whatever makes the repetition void.
    fn calls(_args: &Args, _control: &Control) -> Result<()> {
        bail!("this system does not measure its calls")
    }

    /// All of `turns` in one thread, from its `ready` to its end.
    ///
    /// # Errors
    /// The system cannot be polled by one thread, or whatever makes the repetition void.
    fn turns(_args: &Args, _control: &Control) -> Result<()> {
        bail!("this system cannot be polled by one thread")
    }

    /// The helper process; says `ready` and returns when asked to stop.
    ///
    /// # Errors
    /// The system has none.
    fn aux(_args: &Args, _control: &Control) -> Result<()> {
        bail!("this system has no helper process")
    }
}

/// The whole of a system program's `main`.
///
/// # Errors
/// The repetition is void; the text goes to standard error.
pub fn main<S: System>() -> Result<()> {
    let args = Args::parse();
    if args.role == Role::Describe {
        println!("{}", serde_json::to_string(&S::describe())?);
        return Ok(());
    }
    sys::die_with_parent();
    sys::pin(&args.core)?;
    run::<S>(&args)
}

fn run<S: System>(args: &Args) -> Result<()> {
    let control = Control::new(S::GRACE);
    let stop = control.stop();
    match args.role {
        Role::Describe => unreachable!("handled by the caller"),
        Role::Aux => S::aux(args, &control),
        Role::RebindSource | Role::RebindSink => S::rebind(args, &control),
        Role::Calls => S::calls(args, &control),
        Role::Turns => S::turns(args, &control),
        Role::RttServer | Role::LargeSink => {
            let mut end = S::echoer(args)?;
            control.ready()?;
            control.await_go()?;
            while !stop.requested() {
                end.serve()?;
            }
            Ok(())
        }
        Role::RttClient | Role::LargeSource | Role::Open => {
            let mut end = S::pinger(args)?;
            control.ready()?;
            let cpu = control.await_go()?;
            ask(args, &control, &cpu, &mut end)
        }
        Role::OnewaySource | Role::FanoutSource | Role::AppSource => {
            let mut end = S::producer(args)?;
            control.ready()?;
            let cpu = control.await_go()?;
            produce(args, &control, &cpu, &mut end)
        }
        Role::OnewaySink | Role::FanoutSink | Role::AppSink => {
            let mut end = S::consumer(args)?;
            control.ready()?;
            let cpu = control.await_go()?;
            consume(args, &control, &cpu, &mut end)
        }
    }
}

/// The window's length in nanoseconds.
fn window_ns(args: &Args) -> u64 {
    (args.seconds * 1e9) as u64
}

/// The CPU time so far of those that are watched, if any are.
fn total_ns(watched: Option<&CpuWatch>) -> Result<Option<u64>> {
    watched.map(CpuWatch::total_ns).transpose()
}

fn ask(args: &Args, control: &Control, cpu: &CpuWatch, end: &mut impl Pinger) -> Result<()> {
    let (stop, limit) = (control.stop(), window_ns(args));
    let mut samples = vec![0u64; usize::try_from(args.count)?];
    for n in 1..=args.warmup {
        end.exchange(n)?;
        if stop.requested() {
            return Ok(());
        }
    }
    let (cpu_start, start) = (cpu.total_ns()?, now_ns());
    let (mut n, mut taken, mut finish) = (args.warmup, 0usize, start);
    for sample in &mut samples {
        n += 1;
        let sent = now_ns();
        end.exchange(n)?;
        finish = now_ns();
        *sample = finish - sent;
        taken += 1;
        if finish - start >= limit || stop.requested() {
            break;
        }
    }
    let cpu_ns = cpu.total_ns()? - cpu_start;
    samples.truncate(taken);
    let mut result = latency(samples, finish - start, cpu_ns);
    result.in_place = end.in_place();
    control.result(&result)?;
    control.await_stop();
    Ok(())
}

/// Sends until told to stop. In `fanout` this end also times a window of its own, to charge CPU time per message.
fn produce(args: &Args, control: &Control, cpu: &CpuWatch, end: &mut impl Producer) -> Result<()> {
    let (stop, limit) = (control.stop(), window_ns(args));
    let measures = args.role == Role::FanoutSource;
    let (mut n, mut first, mut start, mut cpu_start, mut done) = (0u64, 0u64, 0u64, 0u64, !measures);
    while !stop.requested() {
        if !end.send(n, &stop)? {
            break;
        }
        n += 1;
        if done || n % 64 != 0 {
            continue;
        }
        if start == 0 {
            if n >= args.warmup {
                (first, cpu_start) = (n, cpu.total_ns()?);
                start = now_ns();
            }
        } else if now_ns() - start >= limit {
            let elapsed_ns = now_ns() - start;
            let cpu_ns = Some(cpu.total_ns()? - cpu_start);
            let samples = n - first;
            control.result(&Rate { samples, elapsed_ns, cpu_ns, helpers_cpu_ns: None, lost: 0, copies: None })?;
            done = true;
        }
    }
    Ok(())
}

/// Receives until told to stop, and reports once its window is over: a sink that left early would ease the load on
/// the others.
fn consume(args: &Args, control: &Control, cpu: &CpuWatch, end: &mut impl Consumer) -> Result<()> {
    let (stop, limit) = (control.stop(), window_ns(args));
    let watched = matches!(args.role, Role::OnewaySink | Role::AppSink).then_some(cpu);
    let helpers = (args.role == Role::AppSink).then(|| cpu.first(args.helpers));
    let mut tally = Tally::new(args.payload);
    while tally.received <= args.warmup && !stop.requested() {
        end.receive(&mut tally)?;
    }
    let (cpu_start, helpers_start) = (total_ns(watched)?, total_ns(helpers.as_ref())?);
    let (start, first, lost, copied) = (now_ns(), tally.received, tally.lost, end.copies());
    let mut look = first;
    while !stop.requested() {
        end.receive(&mut tally)?;
        // The clock costs as much as a message of a fast system: look at it every 256 messages.
        if tally.received - look < 256 {
            continue;
        }
        look = tally.received;
        let elapsed_ns = now_ns() - start;
        if elapsed_ns >= limit {
            let since = |now: Option<u64>, start| now.zip(start).map(|(now, start): (u64, u64)| now - start);
            let cpu_ns = since(total_ns(watched)?, cpu_start);
            let helpers_cpu_ns = since(total_ns(helpers.as_ref())?, helpers_start);
            let (samples, lost) = (tally.received - first, tally.lost - lost);
            let copies = end.copies().zip(copied).map(|(now, before)| now - before);
            control.result(&Rate { samples, elapsed_ns, cpu_ns, helpers_cpu_ns, lost, copies })?;
            break;
        }
    }
    while !stop.requested() {
        end.receive(&mut tally)?;
    }
    Ok(())
}
