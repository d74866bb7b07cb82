//! Three hosts that join and leave at random, by order or killed, while sinks and sources of 200 channels come and go on them:
//! whenever that stops for a moment, every source has exactly the sinks that there are, and reaches each once.
//! `INSANE_SECONDS` says for how long, `SEED` for which course of events.

use insane::{Event, Qos, Session, Sink, Source};
use insane_tests_host::Watchdog;
use insane_tests_network::{
    LIMIT, Process, Random, config, free_addresses, law, leave, length, progress, status, within,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
const HOSTS: usize = 3;
const CHANNELS: u64 = 200;

/// Between two looks at what everybody sees.
const ROUND: Duration = Duration::from_secs(8);

/// What a source may take to see what there is, once nothing changes any more.
const SETTLE: Duration = LIMIT;

struct Party {
    session: Session,
    sinks: BTreeMap<u64, Vec<Sink>>,
    sources: BTreeMap<u64, Source>,
}

impl Party {
    fn new(host: &Process) -> Self {
        Self { session: host.session("party"), sinks: BTreeMap::new(), sources: BTreeMap::new() }
    }
}

struct Host {
    /// Before the runtime, so that they end while it is there.
    parties: Vec<Party>,
    runtime: Process,
    there: bool,
}

/// What was done.
#[derive(Default)]
struct Done {
    steps: u64,
    left: u64,
    killed: u64,
    joined: u64,
    checks: u64,
    sources: u64,
    sinks: u64,
    messages: u64,
}

/// Opens with patience: a runtime that was started a moment ago may not know the session yet.
fn patiently<T>(mut open: impl FnMut() -> insane::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match open() {
            Ok(end) => return end,
            Err(e) => assert!(start.elapsed() < LIMIT, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn name(channel: u64) -> String {
    format!("channel-{channel}")
}

struct World {
    random: Random,
    hosts: Vec<Host>,
    /// When a host comes or goes next.
    next: Instant,
    done: Done,
}

impl World {
    fn start(seed: u64) -> Self {
        let addresses = free_addresses(HOSTS);
        let start =
            |at: usize| Process::start(PROGRAM, None, &config(&format!("host-{at}"), addresses[at], &addresses));
        let hosts = (0..HOSTS).map(start).map(|runtime| {
            let parties = (0..2).map(|_| Party::new(&runtime)).collect();
            Host { parties, runtime, there: true }
        });
        let (hosts, next, done) = (hosts.collect(), Instant::now(), Done::default());
        let mut world = Self { random: Random(seed), hosts, next, done };
        world.fill();
        world
    }

    /// Opens as many as there are on average, so that the first check is no easier than the last.
    fn fill(&mut self) {
        for party in self.hosts.iter_mut().flat_map(|h| &mut h.parties) {
            let stream = party.session.stream(Qos::default()).expect("a stream");
            for channel in 0..CHANNELS {
                if self.random.below(4) > 0 {
                    party.sinks.entry(channel).or_default().push(stream.sink(&name(channel)).expect("a sink"));
                }
                if self.random.below(3) == 0 {
                    party.sources.insert(channel, stream.source(&name(channel)).expect("a source"));
                }
            }
        }
    }

    /// A host leaves, by order or killed, and comes back at once or some time later.
    fn come_or_go(&mut self) {
        let at = self.random.below(HOSTS as u64) as usize;
        let (host, kill, at_once) = (&mut self.hosts[at], self.random.below(2) == 0, self.random.below(3) == 0);
        if host.there {
            if kill {
                host.runtime.kill()
            } else {
                host.runtime.leave()
            }
            self.done.killed += u64::from(kill);
            self.done.left += u64::from(!kill);
            host.there = false;
        }
        if !host.there && (at_once || self.hosts.iter().filter(|h| h.there).count() == 0) {
            self.join(at);
        } else if let Some(other) = (0..HOSTS).find(|other| *other != at && !self.hosts[*other].there) {
            self.join(other);
        }
        self.next = Instant::now() + Duration::from_millis(200 + self.random.below(1800));
    }

    fn join(&mut self, at: usize) {
        self.hosts[at].runtime.again();
        self.hosts[at].there = true;
        self.done.joined += 1;
    }

    fn step(&mut self) {
        if Instant::now() >= self.next {
            self.come_or_go();
        }
        self.done.steps += 1;
        if self.done.steps.is_multiple_of(64) {
            self.drain();
        }
        let (at, channel) = (self.random.below(HOSTS as u64) as usize, self.random.below(CHANNELS));
        let (what, which, opens) = (self.random.below(10_000), self.random.below(2) as usize, self.random.below(5) < 2);
        let (host, name) = (&mut self.hosts[at], name(channel));
        let party = &mut host.parties[which];
        let stream = || patiently(|| party.session.stream(Qos::default()));
        match what {
            0..2 if host.there => host.parties[which] = Party::new(&host.runtime),
            0..6000 => {
                let open = party.sinks.get(&channel).map_or(0, Vec::len);
                if opens && open < 2 && host.there {
                    let stream = stream();
                    party.sinks.entry(channel).or_default().push(patiently(|| stream.sink(name.as_str())));
                } else if let Some(sinks) = party.sinks.get_mut(&channel) {
                    sinks.pop();
                }
            }
            6000..9000 => {
                if party.sources.remove(&channel).is_none() && opens && host.there {
                    let stream = stream();
                    party.sources.insert(channel, patiently(|| stream.source(name.as_str())));
                }
            }
            _ => {
                for source in party.sources.values().take(20) {
                    source.send(&[0; 100]).expect("it is emitted");
                }
            }
        }
    }

    /// Takes what has come to any sink: what lies unread in one holds up the others of its session.
    fn drain(&self) {
        for sink in self.hosts.iter().flat_map(|h| &h.parties).flat_map(|p| p.sinks.values().flatten()) {
            while sink.try_consume().expect("it can be read").is_some() {}
        }
    }

    /// The parties of the hosts that are there.
    fn there(&self) -> impl Iterator<Item = &Party> {
        self.hosts.iter().filter(|h| h.there).flat_map(|h| &h.parties)
    }

    /// The sinks of a channel on the hosts that are there.
    fn sinks(&self, channel: u64) -> impl Iterator<Item = &Sink> {
        self.there().filter_map(move |p| p.sinks.get(&channel)).flatten()
    }

    /// The sources of a channel on the hosts that are there.
    fn sources(&self, channel: u64) -> impl Iterator<Item = (&Party, &Source)> {
        self.there().filter_map(move |p| Some((p, p.sources.get(&channel)?)))
    }

    /// Sees to it that every source has exactly the sinks that there are, and that a message of each reaches each of them once.
    fn check(&mut self) {
        for party in self.hosts.iter().flat_map(|h| &h.parties) {
            let broken = |e: &Event| matches!(e, Event::PeerBroken { .. });
            let events: Vec<_> = party.session.events().into_iter().filter(broken).collect();
            assert!(events.is_empty(), "{events:?}");
        }
        self.drain();
        let settling = Instant::now();
        let (mut sources, mut sinks) = (0, 0);
        for channel in 0..CHANNELS {
            let there = self.sinks(channel).count();
            sinks += there;
            for (party, source) in self.sources(channel) {
                sources += 1;
                assert!(
                    within(SETTLE.saturating_sub(settling.elapsed()), || self.has_all(channel, party, source)),
                    "channel {channel}: source {} has {} sinks of {there}: {:?} of {:?}; {}\n{}",
                    source.epoch(),
                    source.sinks(),
                    producing(&party.session, source),
                    self.sinks(channel).map(|s| s.id().to_string()).collect::<Vec<_>>(),
                    law(&party.session),
                    status(&party.session)["streams"]
                );
            }
        }
        // None that was seen in time was seen too early: nothing changes any more.
        let right = |channel| self.sources(channel).all(|(party, source)| self.has_all(channel, party, source));
        assert!((0..CHANNELS).all(right), "a source lost a sink, or saw another, after it had what there is");
        self.drain();
        let messages: u64 = (0..CHANNELS).map(|channel| self.reaches(channel)).sum();
        let done = &mut self.done;
        (done.checks, done.messages) = (done.checks + 1, done.messages + messages);
        (done.sources, done.sinks) = (done.sources + sources, done.sinks + sinks as u64);
        progress(&format!(
            "check {}: settled in {:?}, {} hosts, {sources} sources, {sinks} sinks, {messages} messages",
            done.checks,
            settling.elapsed(),
            self.hosts.iter().filter(|h| h.there).count()
        ));
    }

    /// Whether a source has exactly the sinks that there are: as many of them, and these and no others.
    fn has_all(&self, channel: u64, party: &Party, source: &Source) -> bool {
        let mut there: Vec<String> = self.sinks(channel).map(|s| s.id().to_string()).collect();
        let mut known = producing(&party.session, source);
        there.sort_unstable();
        known.sort_unstable();
        source.sinks() == there.len() && known == there
    }

    /// Emits a message from each source of a channel, and takes one of each from each sink. Returns how many came.
    fn reaches(&self, channel: u64) -> u64 {
        // What was emitted before the check is all zeros; what an earlier check emitted says its number.
        let round = self.done.checks + 1;
        let message = |number: usize| [round.to_le_bytes(), (number as u64).to_le_bytes()].concat();
        let sources: Vec<&Source> = self.sources(channel).map(|(_, source)| source).collect();
        for (number, source) in sources.iter().enumerate() {
            source.send(&message(number)).expect("it is emitted");
        }
        let mut came = 0;
        for sink in self.sinks(channel) {
            let mut missing: Vec<Vec<u8>> = (0..sources.len()).map(message).collect();
            let start = Instant::now();
            while !missing.is_empty() && start.elapsed() < LIMIT {
                let Ok(got) = sink.consume_timeout(Duration::from_millis(20)) else { continue };
                let bytes = got.to_vec();
                if let Some(at) = missing.iter().position(|m| *m == bytes) {
                    missing.swap_remove(at);
                    came += 1;
                } else {
                    assert!(!bytes.starts_with(&round.to_le_bytes()), "channel {channel}: a message came twice");
                }
            }
            assert!(
                missing.is_empty(),
                "channel {channel}: {} of {} messages are missing at {}",
                missing.len(),
                sources.len(),
                sink.id()
            );
        }
        came
    }
}

/// The sinks of a source that its session knows.
fn producing(session: &Session, source: &Source) -> Vec<String> {
    let cells = session.counts();
    let own =
        cells.iter().filter(|c| c.epoch == source.epoch().0 && c.state == insane_shm::counters::CellState::Producing);
    own.filter(|c| !c.ended).map(|c| format!("{:032x}", c.sink)).collect()
}

fn churn(length: Duration) -> Value {
    let _watchdog = Watchdog::start("churn", length + 6 * LIMIT);
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x2545_f491_4f6c_dd1d);
    println!("SEED={seed}");
    let mut world = World::start(seed);
    let start = Instant::now();
    while start.elapsed() < length {
        let round = Instant::now();
        while round.elapsed() < ROUND && start.elapsed() < length {
            world.step();
        }
        world.check();
    }
    let done = &world.done;
    assert!(done.joined > 0 && done.left + done.killed > 0 && done.messages > 0);
    let report = json!({
        "seconds": start.elapsed().as_secs(), "seed": seed, "hosts": HOSTS, "channels": CHANNELS, "steps": done.steps,
        "hosts_left": done.left, "hosts_killed": done.killed, "hosts_joined": done.joined, "checks": done.checks,
        "sources_checked": done.sources, "sinks_checked": done.sinks, "messages": done.messages,
        "stale_sinks": 0, "missed_sinks": 0,
    });
    println!("{report}");
    report
}

#[test]
fn no_sink_is_stale_and_none_is_missed() {
    churn(length("INSANE_SECONDS", 60));
}

#[test]
#[ignore = "ten minutes"]
fn soak_no_sink_is_stale_and_none_is_missed() {
    leave(&churn(length("INSANE_SOAK_SECONDS", 600)));
}
