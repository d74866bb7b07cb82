//! One cell of the matrix: a world of six processes, one of them held at a step, some killed, and what must hold after it.

use crate::board::{Command, Word};
use crate::law;
use crate::process::{Process, Seen, until};
use crate::table::{Party, Row, Trigger};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(12);

/// How many messages must pass to call a channel alive.
const ALIVE: u64 = 30;

/// The memory of a session, so little that a large message needs that of small ones.
const SESSION_MIB: usize = 12;

/// The size of a large message in bytes. A stream has half of its session's memory, of which the segments of the other messages
/// take 4 MiB, or 6 if there are packs.
pub const LARGE: usize = 4 << 20;

/// The programs under test, built with the labelled steps.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The runtime.
    pub insaned: PathBuf,
    /// A source or a sink.
    pub party: PathBuf,
}

/// The workspace.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the parties with the labelled steps, in a target directory of their own.
///
/// # Panics
/// When they do not build.
#[must_use]
pub fn build() -> Programs {
    let target = root().join("target/hooks");
    let mut build = std::process::Command::new(env!("CARGO"));
    build.current_dir(root()).args(["build", "--locked", "-j2", "-p", "insaned", "-p", "insane-tests-killmatrix"]);
    // The directory is not what is killed here, and takes longer to build than all the rest.
    build.args([
        "--bins",
        "--no-default-features",
        "--features",
        "insaned/test-hooks,insane-tests-killmatrix/hooks",
        "--target-dir",
    ]);
    let status = build.arg(&target).status().expect("cargo runs");
    assert!(status.success(), "the parties do not build");
    Programs { insaned: target.join("debug/insaned"), party: target.join("debug/party") }
}

/// Descriptors and mappings of a process in steady state.
pub type Footprint = [(usize, usize); 4];

/// Slots of all sources that were found nowhere, or twice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slots {
    /// Found nowhere.
    pub lost: u64,
    /// Found twice.
    pub doubly: u64,
}

/// A runtime, a channel with a source and two sinks, and a channel of bystanders.
#[derive(Debug)]
pub struct World {
    programs: Programs,
    dir: tempfile::TempDir,
    next: u32,
    reliable: bool,
    /// The runtime.
    pub runtime: Process,
    /// The source.
    pub source: Process,
    /// The sink that is held or killed.
    pub sink: Process,
    /// The other sink of the channel.
    pub other: Process,
    /// The bystanders.
    pub bystanders: [Process; 2],
    late: Option<Process>,
    past: Vec<Process>,
    failed_slots: Slots,
    /// The source was made to give segments back.
    reshaped: bool,
}

fn start_runtime(programs: &Programs, dir: &tempfile::TempDir, next: &mut u32, hold: Option<&str>) -> Process {
    *next += 1;
    let (socket, board) = (dir.path().join("s"), dir.path().join(format!("b{next}")));
    let config = dir.path().join("insaned.toml");
    std::fs::write(&config, format!("[quota]\nmemory_mib_per_session = {SESSION_MIB}\n")).expect("a configuration");
    let config = config.to_string_lossy();
    let arguments = ["--config", &config, "--socket", &socket.to_string_lossy(), "--log", "error"];
    Process::start("runtime", &programs.insaned, &arguments, &board, hold)
}

fn start_party(
    programs: &Programs,
    dir: &tempfile::TempDir,
    next: &mut u32,
    role: (&str, &str),
    reliable: bool,
    hold: Option<&str>,
) -> Process {
    *next += 1;
    let (socket, board) = (dir.path().join("s"), dir.path().join(format!("b{next}")));
    let kind = if reliable { "reliable" } else { "best-effort" };
    let arguments = [role.0, &socket.to_string_lossy(), role.1, &board.to_string_lossy(), kind];
    Process::start(role.0, &programs.party, &arguments, &board, hold)
}

fn opened(process: &mut Process, held: bool) -> Result<(), String> {
    let name = process.name.clone();
    until(&format!("{name} has opened"), SHORT, || {
        process.board.get(Word::Open) == 1 || (held && process.look() == Seen::Stopped)
    })
}

impl World {
    /// Starts everything: the bystanders first, the sink that may be held last, so that all others are under load then.
    ///
    /// # Errors
    /// What did not open.
    pub fn start(programs: &Programs, reliable: bool, hold: Option<(Party, &str)>) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let of = |party| hold.filter(|(p, _)| *p == party).map(|(_, h)| h);
        let mut next = 0;
        let runtime = start_runtime(programs, &dir, &mut next, of(Party::Runtime));
        let mut party = |role, hold: Option<&str>| {
            let mut process = start_party(programs, &dir, &mut next, role, reliable, hold);
            opened(&mut process, hold.is_some()).map(|()| process)
        };
        let bystanders = [party(("source", "aside"), None)?, party(("sink", "aside"), None)?];
        let source = party(("source", "main"), of(Party::Source))?;
        let other = party(("sink", "main"), None)?;
        let sink = party(("sink", "main"), of(Party::Sink))?;
        let programs = programs.clone();
        let (late, past, failed_slots, reshaped) = (None, Vec::new(), Slots::default(), false);
        Ok(Self {
            programs,
            dir,
            next,
            reliable,
            runtime,
            source,
            sink,
            other,
            bystanders,
            late,
            past,
            failed_slots,
            reshaped,
        })
    }

    fn of(&mut self, party: Party) -> &mut Process {
        match party {
            Party::Source => &mut self.source,
            Party::Sink => &mut self.sink,
            Party::Runtime => &mut self.runtime,
        }
    }

    fn fresh(&mut self, role: (&str, &str)) -> Process {
        start_party(&self.programs, &self.dir, &mut self.next, role, self.reliable, None)
    }

    /// Starts a party anew that was killed.
    pub fn restart(&mut self, party: Party) {
        let new = match party {
            Party::Runtime => start_runtime(&self.programs, &self.dir, &mut self.next, None),
            Party::Source => self.fresh(("source", "main")),
            Party::Sink => self.fresh(("sink", "main")),
        };
        let old = std::mem::replace(self.of(party), new);
        self.past.push(old);
    }

    fn trigger(&mut self, trigger: Trigger) -> Result<(), String> {
        match trigger {
            Trigger::Load => {}
            Trigger::Reshape => {
                self.flows()?;
                self.source.request(Command::Reshape);
                self.reshaped = true;
            }
            Trigger::Reopen => {
                self.sink.request(Command::Reopen);
            }
            Trigger::Restart => {
                self.runtime.kill()?;
                self.restart(Party::Runtime);
            }
            Trigger::Join => self.late = Some(self.fresh(("sink", "main"))),
            Trigger::Leave => {
                let mut late = self.fresh(("sink", "main"));
                opened(&mut late, false)?;
                late.kill()?;
                self.past.push(late);
            }
            Trigger::Choke => self.sink.hold(),
        }
        Ok(())
    }

    fn bystanders_go_on(&self, when: &str) -> Result<(), String> {
        let seen = self.bystanders[1].board.get(Word::Count);
        until(&format!("the bystanders go on {when}"), SHORT, || {
            self.bystanders[1].board.get(Word::Count) >= seen + ALIVE
        })
    }

    fn flows(&mut self) -> Result<(), String> {
        let (source, sink, other) = (&self.source.board, &self.sink.board, &self.other.board);
        until("the second segment and both sinks in the source's view", LONG, || {
            source.get(Word::Grown) == 1 && source.get(Word::Sinks) == 2
        })
        .map_err(|e| format!("{e}: {} sinks, {} messages", source.get(Word::Sinks), source.get(Word::Count)))?;
        let before = (sink.get(Word::Count), other.get(Word::Count));
        until("both sinks go on", SHORT, || {
            sink.get(Word::Count) >= before.0 + ALIVE && other.get(Word::Count) >= before.1 + ALIVE
        })
    }

    /// Descriptors and mappings of the runtime, the source and both sinks.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        [&self.runtime, &self.source, &self.sink, &self.other].map(|p| (p.fds(), p.maps()))
    }

    /// Checks what must hold when everybody is back: flow, slots, the law, descriptors and mappings.
    ///
    /// # Errors
    /// What does not.
    pub fn settle(&mut self, baseline: Option<&Footprint>) -> Result<Footprint, String> {
        if let Some(mut late) = self.late.take() {
            late.kill()?;
            self.past.push(late);
        }
        self.bystanders_go_on("at the end")?;
        self.flows()?;
        for source in [&mut self.source, &mut self.bystanders[0]] {
            source.ask(Command::Pause)?;
            let board = &source.board;
            let slots = || (board.get(Word::Held), board.get(Word::Lost), board.get(Word::Doubly));
            let quiet = until("every slot of the source is free", SHORT, || slots() == (0, 0, 0));
            self.failed_slots.lost += slots().1;
            self.failed_slots.doubly += slots().2;
            quiet.map_err(|e| format!("{e}: (held, lost, twice) {:?} of {}", slots(), board.get(Word::Total)))?;
        }
        let [b0, b1] = &mut self.bystanders;
        let mut all = vec![&mut self.source, &mut self.sink, &mut self.other, b0, b1];
        for process in &mut all {
            process.map_counters();
            if !process.lives() {
                return Err(format!("{} ended by itself", process.name));
            }
            let wrong = process.board.get(Word::Wrong);
            if wrong > 0 {
                return Err(format!("{} saw {wrong} broken messages", process.name));
            }
        }
        let mut law = Ok(());
        let all = || {
            let now = [&self.source, &self.sink, &self.other, &self.bystanders[0], &self.bystanders[1]];
            self.past.iter().chain(now)
        };
        let _ = until("the law", SHORT, || {
            law = law::check(all());
            law.is_ok()
        });
        law?;
        if let Some(baseline) = baseline {
            until("descriptors and mappings at their baseline", SHORT, || self.is_as(baseline))
                .map_err(|e| format!("{e}: {:?}, baseline {baseline:?}", self.footprint()))?;
        }
        Ok(self.footprint())
    }

    /// Whether everybody has the descriptors and mappings of the baseline. A source that gave segments back may have one more
    /// or less, as its messages came, if its sinks map as many.
    fn is_as(&self, baseline: &Footprint) -> bool {
        let now = self.footprint();
        let more = |who: usize| {
            let difference = |now: usize, then: usize| now.cast_signed() - then.cast_signed();
            (difference(now[who].0, baseline[who].0), difference(now[who].1, baseline[who].1))
        };
        let segments = if self.reshaped { more(1).0.clamp(-1, 1) } else { 0 };
        [0, 1, 2, 3].map(more) == [(0, 0), (segments, segments), (0, segments), (0, segments)]
    }

    /// Lets the sources go on after [`Self::settle`].
    ///
    /// # Errors
    /// When one does not.
    pub fn resume(&mut self) -> Result<(), String> {
        self.source.ask(Command::Run)?;
        self.bystanders[0].ask(Command::Run)
    }

    /// Slots that were lost or doubly owned in audits.
    #[must_use]
    pub fn slots(&self) -> Slots {
        self.failed_slots
    }
}

/// Runs one cell: the holder is held at the step, the victims are killed, all come back.
///
/// # Errors
/// What did not hold.
pub fn run(
    programs: &Programs,
    row: &Row,
    reliable: bool,
    victims: &[Party],
    baseline: &Footprint,
    slots: &mut Slots,
) -> Result<(), String> {
    let (step, holder, at, trigger) = *row;
    let mut world = World::start(programs, reliable, Some((holder, &format!("{step}:{at}"))))?;
    world.trigger(trigger)?;
    until("the step is reached", LONG, || world.of(holder).look() == Seen::Stopped)?;
    world.bystanders_go_on("while the holder is held")?;
    // A reliable source waits for a sink that is held, and its other sinks with it.
    if holder == Party::Runtime || holder == Party::Sink && !reliable {
        let seen = world.other.board.get(Word::Count);
        let other = &world.other.board;
        until("the other sink goes on", SHORT, || other.get(Word::Count) >= seen + ALIVE)?;
    }
    for victim in victims {
        world.of(*victim).kill()?;
    }
    world.bystanders_go_on("after the kill")?;
    world.of(holder).go_on();
    if trigger == Trigger::Choke {
        world.sink.go_on();
    }
    for victim in victims {
        world.restart(*victim);
    }
    let result = world.settle(Some(baseline)).map(|_| ());
    slots.lost += world.slots().lost;
    slots.doubly += world.slots().doubly;
    result
}
