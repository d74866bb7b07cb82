//! Sinks that hold a reliable source up are given up at its deadline, and no others.

use insane::{Event, Message, Qos, Reliability, Session, Sink, Source, SourceOptions, Stream, WhenFull};
use insane_shm::counters::{CellState, Count};
use insane_tests_host::{Host, Watchdog, reconcile};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What a link has room for.
const ENTRIES: u32 = 16;

/// Names the runtime's socket to the process that this test starts.
const SOCKET: &str = "INSANE_TEST_LAGGING";

fn reliable() -> Qos {
    let mut qos = Qos::default();
    qos.set_reliability(Reliability::Reliable);
    qos
}

fn small_host() -> Host {
    Host::with(|config| config.quota.link_entries = ENTRIES)
}

fn source(stream: &Stream, channel: &str, deadline: Duration) -> Source {
    stream.source_with(channel, SourceOptions { deadline, ..SourceOptions::default() }).unwrap()
}

fn payload(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(30)
}

fn emit(source: &Source, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        source.send(&payload(number)).unwrap();
    }
}

/// Sees to it that a sink gets all of these messages, in order, each once, and nothing else.
fn takes_all(sink: Sink, count: u32) -> JoinHandle<Sink> {
    std::thread::spawn(move || {
        for number in 0..count {
            assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), payload(number), "message {number}");
        }
        assert!(sink.try_consume().unwrap().is_none());
        sink
    })
}

/// The sinks that a session's sources have given up.
fn given_up(session: &Session) -> Vec<insane::Event> {
    session.events().into_iter().filter(|event| matches!(event, Event::SinkGivenUp { .. })).collect()
}

fn is_of(event: &Event, sink: &Sink) -> bool {
    matches!(event, Event::SinkGivenUp { sink: id, .. } if *id == sink.id())
}

fn nothing_is_held(stream: &Stream) {
    let audit = stream.audit();
    assert_eq!((audit.held, audit.lost, audit.doubly_owned), (0, 0, 0), "{audit:?}");
}

#[test]
fn a_sink_that_takes_nothing_is_given_up_and_its_sister_loses_nothing() {
    const MESSAGES: u32 = 500;
    let _watchdog = Watchdog::start("sister", LIMIT);
    let host = small_host();
    let (a, b) = (host.session("source"), host.session("sinks"));
    let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let (stuck, reads) = (from.sink("one").unwrap(), from.sink("one").unwrap());
    let source = source(&to, "one", Duration::from_millis(200));
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let reader = takes_all(reads, MESSAGES);
    let tokens: Vec<_> = (0..MESSAGES).map(|number| source.send(&payload(number)).unwrap()).collect();
    let reads = reader.join().unwrap();
    assert_eq!(source.sinks(), 1);
    let events = given_up(&a);
    assert!(events.len() == 1 && is_of(&events[0], &stuck), "{events:?}");
    // What it had not taken found no room beside what was for others.
    assert!(stuck.try_consume().unwrap().is_none());
    let full = b.counts().iter().map(|cell| cell.get(Count::SinkFull)).sum::<u64>();
    assert_eq!(full, u64::from(ENTRIES));
    reconcile([&a, &b], u64::from(MESSAGES + ENTRIES), MESSAGES.into());
    let first = source.outcome(tokens[0]).unwrap();
    assert_eq!((first.intended, first.delivered, first.dropped), (2, 1, 1), "{first:?}");
    let last = source.outcome(tokens[MESSAGES as usize - 1]).unwrap();
    assert_eq!((last.intended, last.delivered), (1, 1), "{last:?}");
    nothing_is_held(&to);
    drop(reads);
}

#[test]
fn what_an_application_keeps_of_a_source_that_gave_its_sink_up_stays_readable() {
    const MESSAGES: u32 = 200;
    let _watchdog = Watchdog::start("kept", LIMIT);
    let host = small_host();
    let (a, b) = (host.session("source"), host.session("sinks"));
    let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let (keeps, reads) = (from.sink("one").unwrap(), from.sink("one").unwrap());
    // Long enough for what is released after the first to come before the next.
    let source = source(&to, "one", Duration::from_secs(2));
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let reader = takes_all(reads, MESSAGES);
    let emitter = std::thread::spawn(move || {
        emit(&source, 0..MESSAGES);
        source
    });
    let kept: Vec<Message<'_>> = (0..ENTRIES).map(|_| keeps.consume_timeout(LIMIT).unwrap()).collect();
    let event = loop {
        match a.next_event() {
            Some(event) => break event,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(is_of(&event, &keeps), "{event:?}");
    // The link is short of what is kept: nobody has written over it, and the other gets on once it is released.
    let of_kept = |(number, message): (u32, &Message<'_>)| assert_eq!(message.to_vec(), payload(number));
    (0..).zip(&kept).for_each(of_kept);
    drop(kept);
    let (source, reads) = (emitter.join().unwrap(), reader.join().unwrap());
    assert_eq!((source.sinks(), given_up(&a)), (1, Vec::new()));
    reconcile([&a, &b], u64::from(MESSAGES + ENTRIES), u64::from(MESSAGES + ENTRIES));
    nothing_is_held(&to);
    drop(reads);
}

/// The room is kept by a sink that goes on, if slowly: its application takes one message after the other and keeps them all for a while.
#[test]
fn a_sink_that_takes_something_is_not_given_up_nor_is_its_sister() {
    const KEPT: u32 = 35;
    const MESSAGES: u32 = 100;
    let _watchdog = Watchdog::start("slow", LIMIT);
    let host = Host::with(|config| config.quota.link_entries = 64);
    let (a, b) = (host.session("source"), host.session("sinks"));
    let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let (slow, reads) = (from.sink("one").unwrap(), from.sink("one").unwrap());
    let source = source(&to, "one", Duration::from_secs(1));
    assert_eq!(source.wait_for_sinks(2, LIMIT), 2);
    let readers = [
        takes_all(reads, MESSAGES),
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for number in 0..KEPT {
                let message = slow.consume_timeout(LIMIT).unwrap();
                assert_eq!(message.to_vec(), payload(number));
                kept.push(message);
                // So that it takes longer than the source waits, three times.
                std::thread::sleep(Duration::from_millis(100));
            }
            drop(kept);
            for number in KEPT..MESSAGES {
                assert_eq!(slow.consume_timeout(LIMIT).unwrap().to_vec(), payload(number), "message {number}");
            }
            slow
        }),
    ];
    emit(&source, 0..MESSAGES);
    let sinks = readers.map(|reader| reader.join().unwrap());
    assert_eq!((source.sinks(), given_up(&a)), (2, Vec::new()));
    reconcile([&a, &b], 2 * u64::from(MESSAGES), 2 * u64::from(MESSAGES));
    drop(sinks);
}

/// One that fills the link with what nobody takes, and one that emits beside it over the same link: that one is not stopped, whether the
/// first one emits on or not.
#[test]
fn another_source_of_the_link_gives_up_no_sink_for_one_that_is_not_its_own() {
    const MESSAGES: u32 = 300;
    let _watchdog = Watchdog::start("beside", LIMIT);
    for goes_on in [true, false] {
        let host = small_host();
        let (a, b) = (host.session("sources"), host.session("sinks"));
        let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
        let (stuck, reads) = (from.sink("stuck").unwrap(), from.sink("reads").unwrap());
        let deadline = Duration::from_millis(200);
        let (first, second) = (source(&to, "stuck", deadline), source(&to, "reads", deadline));
        assert_eq!((first.wait_for_sinks(1, LIMIT), second.wait_for_sinks(1, LIMIT)), (1, 1));
        let reader = takes_all(reads, MESSAGES);
        emit(&first, 0..ENTRIES);
        let beside = std::thread::spawn(move || {
            if goes_on {
                first.send(&payload(ENTRIES)).unwrap();
            }
            first
        });
        emit(&second, 0..MESSAGES);
        let (first, reads) = (beside.join().unwrap(), reader.join().unwrap());
        assert_eq!((first.sinks(), second.sinks()), (0, 1), "{goes_on}");
        let events = given_up(&a);
        assert!(events.len() == 1 && is_of(&events[0], &stuck), "{goes_on}: {events:?}");
        let all = u64::from(MESSAGES + ENTRIES);
        let sum = reconcile([&a, &b], all, MESSAGES.into());
        assert_eq!(sum.at_sink, all, "{goes_on}");
        nothing_is_held(&to);
        drop(reads);
    }
}

/// The link is full of what is for a sink that its source may not give up: whoever else emits there does not wait for ever, but for longer
/// than for a sink of its own.
#[test]
fn beside_a_source_that_gives_nobody_up_a_source_waits_twice_and_gives_up_its_own() {
    let _watchdog = Watchdog::start("twice", LIMIT);
    let host = small_host();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let (stuck, reads) = (from.sink("stuck").unwrap(), from.sink("reads").unwrap());
    let options = SourceOptions { when_full: WhenFull::Fail, ..SourceOptions::default() };
    let first = to.source_with("stuck", options).unwrap();
    let deadline = Duration::from_millis(100);
    let second = source(&to, "reads", deadline);
    assert_eq!((first.wait_for_sinks(1, LIMIT), second.wait_for_sinks(1, LIMIT)), (1, 1));
    emit(&first, 0..ENTRIES);
    let began = Instant::now();
    second.send(&payload(0)).unwrap();
    assert!(began.elapsed() >= 2 * deadline);
    assert_eq!((first.sinks(), second.sinks()), (1, 0));
    let events = given_up(&a);
    assert!(events.len() == 1 && is_of(&events[0], &reads), "{events:?}");
    // Nothing was lost to the one that is stuck.
    takes_all(stuck, ENTRIES).join().unwrap();
    reconcile([&a, &b], ENTRIES.into(), ENTRIES.into());
}

/// What waits for a sink that was given up it may still take while nobody else wants the room; then it goes.
#[test]
fn what_a_sink_that_was_given_up_has_goes_when_another_flow_begins() {
    let _watchdog = Watchdog::start("begins", LIMIT);
    let host = small_host();
    let (a, b) = (host.session("sources"), host.session("sinks"));
    let (to, from) = (a.stream(reliable()).unwrap(), b.stream(reliable()).unwrap());
    let stuck = from.sink("stuck").unwrap();
    let first = source(&to, "stuck", Duration::from_millis(50));
    assert_eq!(first.wait_for_sinks(1, LIMIT), 1);
    emit(&first, 0..=ENTRIES);
    assert_eq!((first.sinks(), given_up(&a).len()), (0, 1));
    assert_eq!(stuck.consume_timeout(LIMIT).unwrap().to_vec(), payload(0));
    let reads = from.sink("reads").unwrap();
    let second = source(&to, "reads", Duration::from_millis(50));
    assert_eq!(second.wait_for_sinks(1, LIMIT), 1);
    for number in 0..3 * ENTRIES {
        second.send(&payload(number)).unwrap();
        assert_eq!(reads.consume_timeout(LIMIT).unwrap().to_vec(), payload(number));
    }
    assert!(stuck.try_consume().unwrap().is_none());
    assert_eq!((second.sinks(), given_up(&a)), (1, Vec::new()));
    reconcile([&a, &b], u64::from(4 * ENTRIES), u64::from(3 * ENTRIES + 1));
    nothing_is_held(&to);
}

/// A process of this test with two sinks, which is killed when this is dropped.
struct Sinks(Child);

impl Drop for Sinks {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_sinks_of_a_process_that_is_stopped_are_given_up_without_its_answer() {
    const NAME: &str = "the_sinks_of_a_process_that_is_stopped_are_given_up_without_its_answer";
    let _watchdog = Watchdog::start("stopped", LIMIT);
    if let Some(socket) = std::env::var_os(SOCKET) {
        // Stopped, it would outlive a test that is ended.
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        let session = Session::builder("stopped").socket(socket).open().unwrap();
        let stream = session.stream(reliable()).unwrap();
        let _sinks = [stream.sink("one").unwrap(), stream.sink("one").unwrap()];
        eprintln!("ready");
        std::thread::sleep(LIMIT);
        return;
    }
    let host = small_host();
    let (a, b) = (host.session("source"), host.session("reads"));
    let to = a.stream(reliable()).unwrap();
    let reads = b.stream(reliable()).unwrap().sink("one").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--exact", "--nocapture"]).env(SOCKET, host.socket());
    let mut stopped = Sinks(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(stopped.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.into_iter().any(|line| line == "ready"));
    let source = source(&to, "one", Duration::from_millis(100));
    assert_eq!(source.wait_for_sinks(3, LIMIT), 3);
    kill_process(Pid::from_child(&stopped.0), Signal::STOP).unwrap();
    let reader = takes_all(reads, 100);
    emit(&source, 0..100);
    let reads = reader.join().unwrap();
    let events = given_up(&a);
    assert_eq!((source.sinks(), events.len()), (1, 2), "{events:?}");
    assert!(!events.iter().any(|event| is_of(event, &reads)), "{events:?}");
    // Its end says what became of the rest.
    drop(stopped);
    let pending = || {
        let cells = a.counts();
        let of =
            |count| cells.iter().filter(|c| c.state == CellState::Producing).map(move |c| c.get(count)).sum::<u64>();
        of(Count::Intended) - of(Count::Unconfirmed)
    };
    while pending() != 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
}
