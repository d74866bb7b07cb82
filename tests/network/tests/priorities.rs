//! What goes first where the network is slower than what is sent. Without root: SKIPPED.

use insane::{Session, Sink, Source, SourceOptions, Stream};
use insane_runtime::config::Scheduler;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::{Namespaces, run};
use insane_tests_network::{Ends, LIMIT, Process, config, eventually, law, law_holds, reliable};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(180);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// The sources without priority: each has a turn of its own, whoever goes first.
const LOW: usize = 8;

/// Messages of high priority that come at once, more than go in one turn, and how often they do.
const BURST: u64 = 512;
const BURSTS: u64 = 4;

/// How long each message is, and how many without priority wait when the others come.
const LENGTH: usize = 1000;
const BACKLOG: u64 = 1200;

/// Two hosts with a cable that carries 20 Mbit/s from the first to the second.
fn slow_cable() -> Option<Namespaces> {
    let cable = Namespaces::new(["pl", "pr"], |[a, b]| {
        let mut steps = vec![format!("link add veth0 netns {a} type veth peer name veth0 netns {b}")];
        for (end, name) in (1..).zip([a, b]) {
            steps.push(format!("-n {name} addr add 10.92.0.{end}/24 dev veth0"));
            steps.push(format!("-n {name} link set veth0 up"));
        }
        steps
    })?;
    let slow = format!("-n {} qdisc add dev veth0 root tbf rate 20mbit burst 16kb limit 32kb", cable.name(0));
    match run("tc", &slow) {
        Ok(_) => Some(cable),
        Err(why) => {
            println!("SKIPPED: a cable cannot be made slow here: {why}");
            None
        }
    }
}

fn runtimes(cable: &Namespaces, scheduler: Scheduler) -> [Process; 2] {
    let addresses = [1, 2].map(|host| SocketAddr::from(([10, 92, 0, host], 7400)));
    [0, 1].map(|at| {
        let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
        let network = config.network.get_or_insert_default();
        (network.scheduler, network.interface) = (scheduler, "veth0".into());
        Process::start(PROGRAM, Some(cable.name(at)), &config)
    })
}

/// What has come, of each source in order.
struct Taker<'a> {
    low: &'a Sink,
    high: &'a Sink,
    last: HashMap<u128, u64>,
    came: &'a [AtomicU64; 2],
}

impl Taker<'_> {
    /// Takes what there is; whether there was anything. Those of high priority are looked for after each other one, so that it is known
    /// what came before them.
    fn take(&mut self) -> bool {
        let mut any = false;
        for (which, sink) in [self.low, self.high].into_iter().enumerate() {
            if let Some(message) = sink.try_consume().unwrap() {
                assert_eq!(message.priority(), [0, 15][which]);
                let last = self.last.entry(message.source().0).or_insert(0);
                assert_eq!(message.sequence(), *last + 1, "of one source out of order, or not all");
                *last += 1;
                self.came[which].fetch_add(1, Ordering::Relaxed);
                any = true;
            }
        }
        any
    }
}

fn source(stream: &Stream, channel: &str, priority: u8) -> Source {
    let options = SourceOptions { priority, deadline: LIMIT, ..SourceOptions::default() };
    let source = stream.source_with(channel, options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    source
}

/// Emits without end, as far as there is room.
fn fill(source: &Source, emitted: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        source.send(&[0; LENGTH]).unwrap();
        emitted.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many messages without priority come on average between the emission of a burst with it and the arrival of its last, while many
/// wait.
fn come_before(cable: &Namespaces, scheduler: Scheduler) -> u64 {
    let [one, two] = runtimes(cable, scheduler);
    let (a, b) = (one.session("sources"), two.session("sinks"));
    // Streams of their own have links of their own: on one link whoever comes first goes first.
    let streams = |session: &Session| ["low", "high"].map(|name| session.stream_named(name, reliable()).unwrap());
    let sinks = streams(&b).map(|stream| stream.sink("c").unwrap());
    let [low, high] = streams(&a);
    let (many, high) = ([0; LOW].map(|priority| source(&low, "c", priority)), source(&high, "c", 15));
    let (emitted, over, taken) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let came = [AtomicU64::new(0), AtomicU64::new(0)];
    let now = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let mut before = 0;
    std::thread::scope(|scope| {
        let ends = [Ends(&over), Ends(&taken)];
        let mut taker = Taker { low: &sinks[0], high: &sinks[1], last: HashMap::new(), came: &came };
        let taken = &taken;
        let taker = scope.spawn(move || {
            while !taken.load(Ordering::Relaxed) {
                if !taker.take() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        let (count, stop) = (&emitted, &over);
        let fillers: Vec<_> = many.iter().map(|source| scope.spawn(move || fill(source, count, stop))).collect();
        let waiting = || now(&emitted).saturating_sub(now(&came[0]));
        for burst in 1..=BURSTS {
            assert!(eventually(|| waiting() > BACKLOG), "{burst}: {} wait, {}", waiting(), law(&a));
            let first = now(&came[0]);
            for _ in 0..BURST {
                high.send(&[1; LENGTH]).unwrap();
            }
            let arrived = || now(&came[1]) == burst * BURST || taker.is_finished();
            assert!(eventually(arrived), "{burst}: {came:?} came, {}", law(&a));
            before += now(&came[0]) - first;
            assert!(waiting() > BACKLOG / 2, "{burst}: there was nothing to overtake, {} wait", waiting());
        }
        let [over, taken] = ends;
        drop(over);
        fillers.into_iter().for_each(|filler| filler.join().unwrap());
        let all = || now(&came[0]) == now(&emitted) || taker.is_finished();
        assert!(eventually(all), "{came:?} of {emitted:?} came, {}", law(&a));
        assert!(eventually(|| law_holds(&a)), "{}", law(&a));
        drop(taken);
        taker.join().unwrap();
    });
    assert_eq!((now(&came[0]), now(&came[1])), (now(&emitted), BURSTS * BURST), "{}", law(&a));
    before / BURSTS
}

/// With `scheduler = "strict"` a burst waits for what its path has been given already, and no longer; without, each of the many others has
/// its turns beside it. Only how many come in between is compared, however long that takes.
#[test]
fn a_stream_of_higher_priority_overtakes_what_waits_for_a_slow_network() {
    let _watchdog = Watchdog::start("overtakes", TEST);
    let Some(cable) = slow_cable() else { return };
    let [fifo, strict] = [Scheduler::Fifo, Scheduler::Strict].map(|scheduler| come_before(&cable, scheduler));
    println!("before the last of {BURST}: {fifo} with fifo, {strict} with strict");
    assert!(fifo > 3 * strict, "{fifo} came in between with fifo, {strict} with strict");
    assert!(fifo > BURST, "{fifo}: nothing stood in the way without priorities");
}
