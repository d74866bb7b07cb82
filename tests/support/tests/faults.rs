//! Faults on the links of one host: every one is known, and the accounts balance with them.

use insane::faults::{Control, Injected, Plan};
use insane::{Code, Count, Event, Qos, Reliability, Session, Sink, SinkOptions, Source, SourceOptions, Wait, WhenFull};
use insane_tests_host::programs::run;
use insane_tests_host::{Host, Watchdog, payload, reconcile};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const ALL: u32 = 1_000_000;

const QUIET: Plan = Plan { lose_ppm: 0, delay_ppm: 0, delay: Duration::from_micros(300), refuse_ppm: 0, cut: false };

/// A source and a sink of two sessions.
struct Ends {
    source: Source,
    sink: Sink,
    a: Session,
    b: Session,
    _host: Host,
}

fn qos(reliable: bool) -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(if reliable { Reliability::Reliable } else { Reliability::BestEffort });
    qos
}

fn ends_with(reliable: bool, options: SourceOptions) -> Ends {
    let host = Host::start();
    let (a, b) = (host.session("source"), host.session("sink"));
    let sink = b.stream(qos(reliable)).unwrap().sink("loop").unwrap();
    let source = a.stream(qos(reliable)).unwrap().source_with("loop", options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    Ends { source, sink, a, b, _host: host }
}

fn ends(reliable: bool) -> Ends {
    // Nobody is given up because a machine is busy.
    ends_with(reliable, SourceOptions { deadline: LIMIT, ..SourceOptions::default() })
}

fn sum(session: &Session, count: Count) -> u64 {
    session.counts().iter().map(|cell| cell.get(count)).sum()
}

#[test]
fn what_a_plan_loses_is_counted_where_a_full_link_counts_it() {
    const MESSAGES: u64 = 1000;
    let _watchdog = Watchdog::start("losses", LIMIT);
    for len in [8, 300, 1500, 5000] {
        let Ends { source, sink, a, b, _host } = ends(false);
        let faults = source.inject(Plan { lose_ppm: 100_000, ..QUIET }, 42).unwrap();
        let mut tokens = Vec::new();
        for n in 0..MESSAGES {
            let message = payload(n, len);
            let token = match n % 4 {
                0 => source.send(&message).unwrap(),
                1 => source.send_more(&message).unwrap(),
                more => {
                    let mut buffer = source.buffer(len).unwrap();
                    buffer.copy_from_slice(&message);
                    if more == 2 { source.emit_more(buffer).unwrap() } else { source.emit(buffer).unwrap() }
                }
            };
            let came = sink.try_consume().unwrap();
            assert!(came.as_ref().is_none_or(|m| m.to_vec() == message && m.sequence() == token.0), "{len}: {n}");
            tokens.push((token, came.is_some()));
        }
        for (token, came) in &tokens {
            let outcome = source.outcome(*token).unwrap();
            let is = (outcome.intended, outcome.delivered, outcome.dropped);
            assert_eq!(is, (1, u32::from(*came), u32::from(!*came)), "{len}: {outcome:?}");
        }
        let seen = tokens.iter().filter(|(_, came)| *came).count() as u64;
        let lost = MESSAGES - seen;
        assert!((50..200).contains(&lost), "{len}: {lost} of 1000 at ten in a hundred");
        assert_eq!(faults.injected(), Injected { seen: MESSAGES, lost, ..Injected::default() });
        assert_eq!((sum(&a, Count::SinkFull), sum(&b, Count::Delivered)), (lost, seen), "{len}");
        reconcile([&a, &b], MESSAGES, seen);
    }
}

#[test]
fn on_a_reliable_stream_everything_comes_once_and_in_order_under_a_plan() {
    const MESSAGES: u64 = 2000;
    let _watchdog = Watchdog::start("reliable", 2 * LIMIT);
    for wait in [Wait::Adaptive, Wait::Sleep, Wait::Spin] {
        let host = Host::start();
        let [a, b, c] = ["source", "first", "second"].map(|app| host.session(app));
        let sinks = [&b, &c].map(|session| session.stream(qos(true)).unwrap().sink("loop").unwrap());
        let options = SourceOptions { deadline: LIMIT, wait, ..SourceOptions::default() };
        let source = a.stream(qos(true)).unwrap().source_with("loop", options).unwrap();
        assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
        let faults = source.inject(Plan { lose_ppm: 20_000, delay_ppm: 20_000, ..QUIET }, 7).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..MESSAGES {
                    assert_eq!(source.send(&payload(n, n as usize % 700)).unwrap().0, n + 1);
                }
            });
            for n in 0..MESSAGES {
                for sink in &sinks {
                    let message = sink.consume_timeout(LIMIT).unwrap();
                    assert_eq!((message.sequence(), message.to_vec()), (n + 1, payload(n, n as usize % 700)));
                }
            }
        });
        let Injected { seen, lost, cut, delayed, full, refused } = faults.injected();
        assert_eq!((seen, lost, cut, refused), (2 * MESSAGES, 0, 0, 0), "{wait:?}");
        assert!(delayed > 20 && full > 20, "{wait:?}: {delayed} late, {full} times full");
        assert_eq!((sum(&a, Count::SinkFull), sum(&a, Count::Dropped)), (0, 0), "{wait:?}");
        reconcile([&a, &b, &c], 2 * MESSAGES, 2 * MESSAGES);
    }
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_mended() {
    let _watchdog = Watchdog::start("best effort", LIMIT);
    let Ends { source, sink, a, b, _host } = ends(false);
    let faults = source.inject(QUIET, 1).unwrap();
    let gets = |n: u64| assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(n, 300));
    source.send(&payload(0, 300)).unwrap();
    gets(0);
    faults.cut(true);
    for n in 1..=10 {
        let outcome = source.outcome(source.send(&payload(n, 300)).unwrap()).unwrap();
        assert_eq!((outcome.intended, outcome.dropped), (1, 1), "{outcome:?}");
    }
    // Who asks loses nothing.
    assert_eq!(source.try_send(&payload(11, 300)).unwrap(), None);
    assert_eq!(source.try_send(&[1; 8]).unwrap(), None);
    assert_eq!(source.wait_for_room(Duration::from_millis(20)).unwrap_err().code(), Code::Timeout);
    assert!(sink.try_consume().unwrap().is_none());
    faults.cut(false);
    source.wait_for_room(LIMIT).unwrap();
    assert!(source.try_send(&payload(11, 300)).unwrap().is_some());
    gets(11);
    assert_eq!(faults.injected(), Injected { seen: 12, cut: 10, ..Injected::default() });
    reconcile([&a, &b], 12, 2);
}

#[test]
fn a_reliable_source_waits_for_a_cut_link_as_for_a_full_one() {
    let _watchdog = Watchdog::start("reliable", LIMIT);
    for wait in [Wait::Adaptive, Wait::Sleep, Wait::Spin] {
        let Ends { source, sink, a, b, _host } =
            ends_with(true, SourceOptions { deadline: LIMIT, wait, ..SourceOptions::default() });
        let faults = source.inject(Plan { cut: true, ..QUIET }, 1).unwrap();
        let emitted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                source.send(&payload(0, 300)).unwrap();
                emitted.store(true, Ordering::Release);
            });
            assert_eq!(sink.consume_timeout(Duration::from_millis(50)).unwrap_err().code(), Code::Timeout);
            assert!(!emitted.load(Ordering::Acquire) && source.try_send(&[1; 300]).unwrap().is_none());
            faults.cut(false);
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(0, 300));
        });
        assert_eq!(faults.injected(), Injected { seen: 1, ..Injected::default() });
        reconcile([&a, &b], 1, 1);
    }
    let (deadline, when_full) = (Duration::from_millis(30), WhenFull::Fail);
    let Ends { source, sink, a, b, _host } =
        ends_with(true, SourceOptions { deadline, when_full, ..SourceOptions::default() });
    let faults = source.inject(Plan { cut: true, ..QUIET }, 1).unwrap();
    assert_eq!(source.send(&payload(0, 300)).unwrap_err().code(), Code::SinkFull);
    faults.cut(false);
    source.send(&payload(1, 300)).unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(1, 300));
    reconcile([&a, &b], 1, 1);
    // The default is to go on without that sink.
    let Ends { source, sink: _sink, a, b: _b, _host } =
        ends_with(true, SourceOptions { deadline, ..SourceOptions::default() });
    source.inject(Plan { cut: true, ..QUIET }, 1).unwrap();
    source.send(&payload(0, 300)).unwrap();
    assert_eq!(source.sinks(), 0);
    assert!(a.events().iter().any(|e| matches!(e, Event::SinkGivenUp { .. })));
}

/// Which of many messages come.
fn came(seed: u64) -> Vec<u32> {
    let Ends { source, sink, a, b, _host } = ends(false);
    source.inject(Plan { lose_ppm: 200_000, ..QUIET }, seed).unwrap();
    let mut came = Vec::new();
    for n in 0..500u32 {
        source.send(&n.to_le_bytes()).unwrap();
        came.extend(sink.try_consume().unwrap().map(|m| u32::from_le_bytes(m.to_vec().try_into().unwrap())));
    }
    reconcile([&a, &b], 500, came.len() as u64);
    came
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    let _watchdog = Watchdog::start("seeds", LIMIT);
    let first = came(1);
    assert_eq!(first, came(1));
    assert_ne!(first, came(2));
}

/// Says that it is over, also when a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_plan_changes_while_messages_flow() {
    const MESSAGES: u64 = 20_000;
    let _watchdog = Watchdog::start("changes", LIMIT);
    let Ends { source, sink, a, b, _host } = ends(false);
    let faults = source.inject(QUIET, 3).unwrap();
    let over = AtomicBool::new(false);
    let change = |control: Control| {
        let mut turn = 0;
        while !over.load(Ordering::Acquire) {
            let plans = [
                Plan { lose_ppm: 300_000, ..QUIET },
                Plan { delay_ppm: 50_000, ..QUIET },
                Plan { cut: true, ..QUIET },
                Plan { lose_ppm: 10_000, delay_ppm: 10_000, delay: Duration::from_millis(2), ..QUIET },
                QUIET,
            ];
            control.set(plans[turn % plans.len()]);
            turn += 1;
            std::thread::sleep(Duration::from_micros(700));
        }
    };
    let (mut seen, mut last) = (0, 0);
    let mut note = |message: insane::Message<'_>| {
        assert!(message.sequence() > last, "{} after {last}", message.sequence());
        assert_eq!(message.to_vec(), payload(message.sequence(), 100));
        last = message.sequence();
    };
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| change(faults.clone()));
        for n in 1..=MESSAGES {
            source.send(&payload(n, 100)).unwrap();
            loop {
                while let Some(message) = sink.try_consume().unwrap() {
                    note(message);
                    seen += 1;
                }
                // The link itself has always room: what is lost is the plan's doing.
                let Injected { lost, cut, .. } = faults.injected();
                if n - lost - cut - seen < 500 {
                    break;
                }
            }
        }
    });
    faults.set(QUIET);
    let injected = faults.injected();
    assert_eq!(sum(&a, Count::SinkFull), injected.lost + injected.cut, "{injected:?}");
    // This one waits behind all that is held back.
    source.send(&payload(MESSAGES + 1, 100)).unwrap();
    for _ in 0..=MESSAGES {
        let message = sink.consume_timeout(LIMIT).unwrap();
        let is_last = message.sequence() == MESSAGES + 1;
        note(message);
        seen += 1;
        if is_last {
            break;
        }
    }
    let Injected { lost, cut, delayed, .. } = injected;
    assert!(lost > 0 && cut > 0 && delayed > 0, "{injected:?}");
    assert_eq!(seen + lost + cut, MESSAGES + 1, "{injected:?}");
    reconcile([&a, &b], MESSAGES + 1, seen);
}

#[test]
fn what_is_held_back_comes_though_nothing_follows_it() {
    let _watchdog = Watchdog::start("held back", LIMIT);
    for (reliable, len) in [(false, 8), (false, 3000), (true, 8), (true, 3000)] {
        let Ends { source, sink, a, b, _host } = ends(reliable);
        let delay = Duration::from_millis(30);
        let faults = source.inject(Plan { delay_ppm: ALL, delay, ..QUIET }, 1).unwrap();
        let began = Instant::now();
        let token = source.send(&payload(1, len)).unwrap();
        assert_eq!(source.outcome(token).unwrap().intended, 1);
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(1, len));
        assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
        // Another plan, and the end of the source or the sink, let it go.
        faults.set(Plan { delay_ppm: ALL, delay: HOUR, ..QUIET });
        let late = source.send(&payload(2, len)).unwrap();
        assert!(sink.try_consume().unwrap().is_none());
        assert_eq!(source.outcome(late).unwrap().pending, 1);
        let faults = source.inject(Plan { delay_ppm: ALL, delay: HOUR, ..QUIET }, 2).unwrap();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(2, len));
        source.send(&payload(3, len)).unwrap();
        assert!(sink.try_consume().unwrap().is_none());
        source.close();
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(3, len));
        assert_eq!(faults.injected(), Injected { seen: 1, delayed: 1, ..Injected::default() });
        assert_eq!(a.stream(qos(reliable)).unwrap().audit().held, 0);
        reconcile([&a, &b], 3, 3);
    }
}

#[test]
fn a_sink_that_closes_gets_what_was_held_back_into_its_account() {
    let _watchdog = Watchdog::start("closing", LIMIT);
    let Ends { source, sink, a, b, _host } = ends(false);
    source.inject(Plan { delay_ppm: ALL, delay: HOUR, ..QUIET }, 1).unwrap();
    let tokens: Vec<_> = (0..5).map(|n| source.send(&payload(n, 300)).unwrap()).collect();
    assert!(sink.try_consume().unwrap().is_none());
    drop(sink);
    let end = Instant::now() + LIMIT;
    for token in tokens {
        while !source.outcome(token).unwrap().is_final() {
            assert!(Instant::now() < end, "{:?}", source.outcome(token));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(sum(&b, Count::SinkClosed), 5);
    reconcile([&a, &b], 5, 0);
    assert_eq!(a.stream(qos(false)).unwrap().audit().held, 0);
}

#[test]
fn a_refused_call_emits_nothing_and_says_that_there_is_no_buffer() {
    let _watchdog = Watchdog::start("refusals", LIMIT);
    for (reliable, len) in [(false, 8), (false, 3000), (true, 8), (true, 3000)] {
        let Ends { source, sink, a, b, _host } = ends(reliable);
        let faults = source.inject(Plan { refuse_ppm: 500_000, ..QUIET }, 9).unwrap();
        let (mut emitted, mut refused) = (0, 0);
        for n in 0..300 {
            let token = match n % 3 {
                0 => source.send(&payload(n, len)),
                1 => source.buffer(len).and_then(|mut buffer| {
                    buffer.copy_from_slice(&payload(n, len));
                    source.emit(buffer)
                }),
                _ => source.try_send(&payload(n, len)).and_then(|token| token.ok_or_else(|| Code::NoBuffer.into())),
            };
            if let Err(e) = token {
                assert_eq!((e.code(), sink.try_consume().unwrap().is_none()), (Code::NoBuffer, true));
                refused += 1;
                continue;
            }
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(n, len));
            emitted += 1;
        }
        assert!(emitted > 50 && refused > 50, "{emitted} and {refused}");
        assert_eq!(faults.injected(), Injected { seen: emitted, refused, ..Injected::default() });
        reconcile([&a, &b], emitted, emitted);
    }
}

#[test]
fn each_link_loses_by_itself_and_an_observer_sees_what_was_emitted() {
    const MESSAGES: u64 = 500;
    let _watchdog = Watchdog::start("links", LIMIT);
    let host = Host::start();
    let [a, b, c, d] = ["source", "first", "second", "observer"].map(|app| host.session(app));
    let options = SinkOptions { observer: true, ..SinkOptions::default() };
    let observer = d.stream(qos(false)).unwrap().sink_with("loop", options).unwrap();
    let sinks = [&b, &c].map(|session| session.stream(qos(false)).unwrap().sink("loop").unwrap());
    let source = a.stream(qos(false)).unwrap().source("loop").unwrap();
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    // An observer looks on as soon as it sees something.
    let mut before = 0;
    while observer.try_consume().unwrap().is_none() {
        source.send(b"are you there?").unwrap();
        sinks.iter().for_each(|sink| drop(sink.consume_timeout(LIMIT).unwrap()));
        before += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    while observer.try_consume().unwrap().is_some() {}
    let faults = source.inject(Plan { lose_ppm: 300_000, ..QUIET }, 4).unwrap();
    let mut came = [0; 2];
    let mut apart = 0;
    for n in 0..MESSAGES {
        source.send(&payload(n, 40)).unwrap();
        let now = [0, 1].map(|n| sinks[n].try_consume().unwrap().is_some());
        apart += u64::from(now[0] != now[1]);
        came.iter_mut().zip(now).for_each(|(sum, came)| *sum += u64::from(came));
        assert_eq!(observer.try_consume().unwrap().map(|m| m.to_vec()), Some(payload(n, 40)));
    }
    assert!(apart > 100, "{apart} of 500 came to one of two");
    let lost = 2 * MESSAGES - came[0] - came[1];
    assert_eq!(faults.injected(), Injected { seen: 2 * MESSAGES, lost, ..Injected::default() });
    reconcile([&a, &b, &c], 2 * (MESSAGES + before), came[0] + came[1] + 2 * before);
}

fn as_shown() -> Result<(), insane::Error> {
    include!(concat!(env!("OUT_DIR"), "/faults.rs"));
    Ok(())
}

#[test]
fn the_guide_loses_what_it_says() {
    let _watchdog = Watchdog::start("the example", LIMIT);
    // The example finds its runtime by the environment, which only a new process can be given safely.
    if std::env::var_os("INSANE_EXAMPLE").is_some() {
        as_shown().expect("it runs");
        return;
    }
    let host = Host::start();
    let mut this = Command::new(std::env::current_exe().expect("this program"));
    this.args(["--exact", "the_guide_loses_what_it_says", "--nocapture"]);
    let said = run(this.env("INSANE_EXAMPLE", "1").env("INSANE_SOCKET", host.socket()), LIMIT);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/README.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let shown = guide.split("<!-- test: the_guide_loses_what_it_says -->\n```text\n").nth(1).expect("what it says");
    let shown = shown.split("```").next().expect("its end");
    assert!(said.code() == 0 && !shown.is_empty() && said.out.contains(shown), "{shown} is not in {said:?}");
}
