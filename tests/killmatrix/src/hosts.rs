//! One cell of the matrix of two hosts: a runtime each, a channel each way, and a channel of bystanders on the first host.
//! Kernel UDP on loopback addresses that no other cell uses.

use crate::board::{Command, Word};
use crate::cell::{Programs, Slots};
use crate::law::{self, Ends};
use crate::process::{Process, Seen, until};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(5);

/// A host that is silent is given up after two seconds, and what it had comes back after that.
const LONG: Duration = Duration::from_secs(20);

/// How many messages must pass to call a channel alive.
const ALIVE: u64 = 30;

/// Every cell has two addresses of its own, and all the same port.
const PORT: u16 = 21_500;

/// Who can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The runtime of the first host.
    Near,
    /// That of the second.
    Far,
    /// The process with the source on the first host.
    Source,
    /// That with its sink on the second.
    Sink,
}

impl Part {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Near, Self::Far, Self::Source, Self::Sink];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near runtime",
            Self::Far => "far runtime",
            Self::Source => "source",
            Self::Sink => "sink",
        }
    }
}

/// What makes the step come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The load alone.
    Load,
    /// One more sink joins on the second host.
    Join,
}

/// A row: a step, at which passing a runtime is held there, and what makes it come by. Each is held on either host: as there is
/// a channel each way, both transmit, complete, receive, place and announce. Before a sink joins each has three: its own, that
/// of the other host's, and the bystanders'.
pub type Row = (&'static str, u32, Cause);

/// See [`Row`].
pub const TABLE: &[Row] = &[
    ("transmit", 1000, Cause::Load),
    ("complete", 1000, Cause::Load),
    ("receive", 1000, Cause::Load),
    ("place", 1000, Cause::Load),
    ("announce", 4, Cause::Join),
];

/// A source on one host and its sink on the other.
#[derive(Debug)]
struct Channel {
    name: &'static str,
    /// The host of its source.
    from: usize,
    source: Process,
    sink: Process,
    past: Vec<Process>,
}

/// Descriptors of both runtimes and of both ends of both channels, in steady state: all of them, and those of segments.
pub type Footprint = [(usize, usize); 6];

/// See the module's head.
#[derive(Debug)]
pub struct Hosts {
    programs: Programs,
    dir: tempfile::TempDir,
    next: u32,
    reliable: bool,
    runtimes: [Process; 2],
    /// How often each runtime was killed.
    killed: [u32; 2],
    channels: [Channel; 2],
    bystanders: [Process; 2],
    late: Option<Process>,
    /// What was lost or owned twice in audits.
    pub slots: Slots,
}

/// Starts the processes of a cell.
struct Starter<'a> {
    programs: &'a Programs,
    dir: &'a std::path::Path,
    next: &'a mut u32,
    reliable: bool,
}

impl Starter<'_> {
    fn board(&mut self) -> std::path::PathBuf {
        *self.next += 1;
        self.dir.join(format!("board{}", self.next))
    }

    fn runtime(&mut self, at: usize, hold: Option<&str>) -> Process {
        let board = self.board();
        let path = |what: &str| self.dir.join(format!("{what}{at}")).to_string_lossy().into_owned();
        let arguments = ["--config", &path("config"), "--socket", &path("socket"), "--log", "error"];
        Process::start(Part::ALL[at].name(), &self.programs.insaned, &arguments, &board, hold)
    }

    fn party(&mut self, at: usize, role: &str, channel: &str) -> Process {
        let board = self.board();
        let socket = self.dir.join(format!("socket{at}"));
        let kind = if self.reliable { "reliable" } else { "best-effort" };
        let arguments = [role, &socket.to_string_lossy(), channel, &board.to_string_lossy(), kind];
        let name = format!("the {role} of {channel:?}");
        Process::start(&name, &self.programs.party, &arguments, &board, None)
    }
}

/// Two addresses that no other cell has.
fn addresses() -> [SocketAddrV4; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let cell = NEXT.fetch_add(1, Ordering::Relaxed) % 120;
    let last = |at: u32| u8::try_from(1 + cell * 2 + at).unwrap_or(1);
    [0, 1].map(|at| SocketAddrV4::new(Ipv4Addr::new(127, 64 + high % 64, low, last(at)), PORT))
}

impl Hosts {
    /// Starts everything; the runtime of host `hold.0` is held where `hold.1` says.
    ///
    /// # Errors
    /// What did not open.
    pub fn start(programs: &Programs, reliable: bool, hold: Option<(usize, &str)>) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let listen = addresses();
        for at in [0, 1] {
            let (own, other) = (listen[at], listen[1 - at]);
            let text =
                format!("[runtime]\nhost = \"host-{at}\"\n[network]\nlisten = \"{own}\"\npeers = [\"{other}\"]\n");
            std::fs::write(dir.path().join(format!("config{at}")), text).map_err(|e| e.to_string())?;
        }
        let mut next = 0;
        let mut start = Starter { programs, dir: dir.path(), next: &mut next, reliable };
        let runtimes = [0, 1].map(|at| start.runtime(at, hold.filter(|(held, _)| *held == at).map(|(_, step)| step)));
        let bystanders = ["source", "sink"].map(|role| start.party(0, role, "aside"));
        let channels = [("there", 0), ("back", 1)].map(|(name, from)| {
            let (source, sink) = (start.party(from, "source", name), start.party(1 - from, "sink", name));
            Channel { name, from, source, sink, past: Vec::new() }
        });
        let (programs, killed, late, slots) = (programs.clone(), [0, 0], None, Slots::default());
        let mut hosts = Self { programs, dir, next, reliable, runtimes, killed, channels, bystanders, late, slots };
        hosts.opened(hold.is_some())?;
        Ok(hosts)
    }

    fn opened(&mut self, held: bool) -> Result<(), String> {
        let (runtimes, channels) = (&mut self.runtimes, &self.channels);
        let all = || channels.iter().flat_map(|c| [&c.source, &c.sink]).chain(&self.bystanders);
        until("all have opened", LONG, || {
            all().all(|p| p.board.get(Word::Open) == 1)
                || held && runtimes.iter_mut().any(|r| r.look() == Seen::Stopped)
        })
    }

    fn starter(&mut self) -> Starter<'_> {
        let reliable = self.reliable;
        Starter { programs: &self.programs, dir: self.dir.path(), next: &mut self.next, reliable }
    }

    fn cause(&mut self, cause: Cause) -> Result<(), String> {
        if cause == Cause::Join {
            self.flows()?;
            self.late = Some(self.starter().party(1, "sink", "there"));
        }
        Ok(())
    }

    fn kill(&mut self, part: Part) -> Result<(), String> {
        let [there, _] = &mut self.channels;
        match part {
            Part::Near => self.runtimes[0].kill(),
            Part::Far => self.runtimes[1].kill(),
            Part::Source => there.source.kill(),
            Part::Sink => there.sink.kill(),
        }
    }

    fn restart(&mut self, part: Part) {
        match part {
            Part::Near | Part::Far => {
                let at = usize::from(part == Part::Far);
                // What it had counted its sources' sessions take over.
                self.runtimes[at] = self.starter().runtime(at, None);
                self.killed[at] += 1;
            }
            Part::Source => {
                let new = self.starter().party(0, "source", "there");
                let there = &mut self.channels[0];
                there.past.push(std::mem::replace(&mut there.source, new));
            }
            Part::Sink => {
                let new = self.starter().party(1, "sink", "there");
                let there = &mut self.channels[0];
                there.past.push(std::mem::replace(&mut there.sink, new));
            }
        }
    }

    fn bystanders_go_on(&self, when: &str) -> Result<(), String> {
        let board = &self.bystanders[1].board;
        let seen = board.get(Word::Count);
        until(&format!("the bystanders go on {when}"), SHORT, || board.get(Word::Count) >= seen + ALIVE)
    }

    /// Waits until each source knows its sink alone and that gets messages, also of several frames.
    fn flows(&self) -> Result<(), String> {
        for Channel { name, source, sink, .. } in &self.channels {
            let (source, sink) = (&source.board, &sink.board);
            let seen = || format!("{} sinks, {} emitted", source.get(Word::Sinks), source.get(Word::Count));
            until(&format!("{name:?} has its sink and large messages"), LONG, || {
                source.get(Word::Sinks) == 1 && source.get(Word::Grown) == 1
            })
            .map_err(|e| format!("{e}: {}", seen()))?;
            let before = sink.get(Word::Count);
            until(&format!("{name:?} goes on"), LONG, || sink.get(Word::Count) >= before + ALIVE)
                .map_err(|e| format!("{e}: {}, {before} and {} came", seen(), sink.get(Word::Count)))?;
        }
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        let [there, back] = &self.channels;
        let [near, far] = &self.runtimes;
        [near, far, &there.source, &there.sink, &back.source, &back.sink].map(|p| (p.fds(), p.segments()))
    }

    /// Whether everybody has the descriptors of the baseline. On best-effort streams a party has segments for the sizes of what it
    /// packed together, which is as messages came: fewer, or one or two more. On reliable ones that is settled but for runtimes: a small
    /// message travels inside a link's entry, and takes a slot of a segment of small ones only if it comes while the link has no room, as
    /// when its sink is just being connected. A runtime in which none did, or the one of the baseline, has one segment less.
    fn is_as(&self, baseline: &Footprint) -> bool {
        self.footprint().iter().zip(baseline).enumerate().all(|(party, (now, then))| {
            let others = |(all, segments): &(usize, usize)| all - segments;
            let segments = match self.reliable {
                true => now.1.abs_diff(then.1) <= usize::from(party < self.runtimes.len()),
                false => now.1 <= then.1 + 2,
            };
            segments && others(now) == others(then)
        })
    }

    fn audited(&mut self) -> Result<(), String> {
        let [there, back] = &mut self.channels;
        for source in [&mut there.source, &mut back.source, &mut self.bystanders[0]] {
            source.ask(Command::Pause)?;
            let board = &source.board;
            let slots = || (board.get(Word::Held), board.get(Word::Lost), board.get(Word::Doubly));
            let quiet = until("every slot of the source is free", LONG, || slots() == (0, 0, 0));
            self.slots.lost += slots().1;
            self.slots.doubly += slots().2;
            let total = board.get(Word::Total);
            quiet.map_err(|e| format!("{e}: {}: (held, lost, twice) {:?} of {total}", source.name, slots()))?;
        }
        Ok(())
    }

    fn sound(&mut self) -> Result<(), String> {
        let parties = self.channels.iter_mut().flat_map(|c| [&mut c.source, &mut c.sink]);
        for process in parties.chain(&mut self.bystanders).chain(&mut self.runtimes) {
            process.map_counters();
            if !process.lives() {
                return Err(format!("{} ended by itself", process.name));
            }
            let (wrong, disorder) = (process.board.get(Word::Wrong), process.board.get(Word::Disorder));
            if (wrong, disorder) != (0, 0) {
                return Err(format!("{} saw {wrong} broken messages, {disorder} out of their order", process.name));
            }
        }
        Ok(())
    }

    fn law(&self) -> Result<(), String> {
        self.channels.iter().try_for_each(|channel| {
            let Channel { from, source, sink, past, .. } = channel;
            let ends = Ends {
                runtime: &self.runtimes[*from],
                runtime_killed: self.killed[*from] > 0,
                parties: past.iter().chain(self.late.as_ref()).chain([source, sink]).collect(),
                reliable: self.reliable,
            };
            law::check_between_hosts(&ends).map_err(|e| format!("{:?}: {e}", channel.name))
        })
    }

    /// Checks what must hold when everybody is back: flow, slots, order, the law, descriptors.
    ///
    /// # Errors
    /// What does not.
    pub fn settle(&mut self, baseline: Option<&Footprint>) -> Result<Footprint, String> {
        if let Some(mut late) = self.late.take() {
            late.kill()?;
            self.channels[0].past.push(late);
        }
        self.bystanders_go_on("at the end")?;
        self.flows()?;
        self.audited()?;
        self.sound()?;
        // What waits for a reliable sink that died while its host was away waits for the patience.
        let mut law = Ok(());
        let _ = until("the law", LONG, || {
            law = self.law();
            law.is_ok()
        });
        law?;
        if let Some(baseline) = baseline {
            until("descriptors at their baseline", SHORT, || self.is_as(baseline))
                .map_err(|e| format!("{e}: {:?}, baseline {baseline:?}", self.footprint()))?;
        }
        Ok(self.footprint())
    }
}

/// Runs one cell: the runtime of host `at` is held at the step, the victims are killed, all come back.
///
/// # Errors
/// What did not hold.
pub fn run(
    programs: &Programs,
    row: &Row,
    at: usize,
    reliable: bool,
    victims: &[Part],
    baseline: &Footprint,
    slots: &mut Slots,
) -> Result<(), String> {
    let (step, passing, cause) = *row;
    let mut hosts = Hosts::start(programs, reliable, Some((at, &format!("{step}:{passing}"))))?;
    hosts.cause(cause)?;
    until("the step is reached", LONG, || hosts.runtimes[at].look() == Seen::Stopped)?;
    hosts.bystanders_go_on("while the runtime is held")?;
    for victim in victims {
        hosts.kill(*victim)?;
    }
    hosts.bystanders_go_on("after the kill")?;
    hosts.runtimes[at].go_on();
    for victim in victims {
        hosts.restart(*victim);
    }
    let result = hosts.settle(Some(baseline)).map(|_| ());
    slots.lost += hosts.slots.lost;
    slots.doubly += hosts.slots.doubly;
    result
}
