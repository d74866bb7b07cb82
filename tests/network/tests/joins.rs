//! Sinks of another host that join a source while it emits, and leave again, beside one that stays: what is for each begins and
//! ends with the message that its source says.

use insane::{Qos, Sink, Source};
use insane_shm::counters::{CellCounts, CellState, Count, FINAL_AT_SINK};
use insane_tests_host::Watchdog;
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(60);
const JOINS: u64 = 60;

/// Emits messages small and large until told to stop, in bursts between which what is best effort can be taken.
fn emit(source: &Source, over: &AtomicBool) -> u64 {
    let mut n = 0;
    while !over.load(Ordering::Acquire) {
        n += 1;
        source.send(&vec![n as u8; [16, 300, 4000][n as usize % 3]]).unwrap();
        if n % 16 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    n
}

/// Takes what comes until `most` have, or nothing has for a while and nothing more `may`.
fn take(sink: &Sink, most: u64, gapless: bool, may: impl Fn() -> bool) -> u64 {
    let (mut seen, mut last) = (0, None);
    while seen < most {
        let message = match sink.consume_timeout(Duration::from_millis(1500)) {
            Ok(message) => message,
            // A source that emits as fast as it can beside much else may keep its messages waiting for longer.
            Err(_) if may() => continue,
            Err(_) => break,
        };
        let number = message.sequence();
        assert!(last.is_none_or(|last| number == last + 1 || (!gapless && number > last)), "{number} after {last:?}");
        (seen, last) = (seen + 1, Some(number));
    }
    seen
}

/// Ends what runs until then, also when a check fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What cells say of each sink: the sum of some counts.
fn per_sink(cells: &[CellCounts], state: CellState, counts: &[Count]) -> HashMap<u128, u64> {
    let mut sums = HashMap::new();
    for cell in cells.iter().filter(|c| c.state == state) {
        *sums.entry(cell.sink).or_default() += counts.iter().map(|c| cell.get(*c)).sum::<u64>();
    }
    sums
}

fn check(qos: Qos, gapless: bool) {
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sinks"));
    let source = a.stream(qos).unwrap().source("joins").unwrap();
    let sinks = b.stream(qos).unwrap();
    let always = sinks.sink("joins").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let emitting = scope.spawn(|| emit(&source, &over));
        let taking = scope.spawn(|| take(&always, u64::MAX, gapless, || !over.load(Ordering::Acquire)));
        let ends = Ends(&over);
        let mut seen = 0;
        for join in 0..JOINS {
            // Two at once, and now and then one that leaves before anything came.
            let pair = [sinks.sink("joins").unwrap(), sinks.sink("joins").unwrap()];
            if join % 7 != 6 {
                for sink in &pair {
                    let joined = Instant::now();
                    let came = take(sink, 20, gapless, || joined.elapsed() < LIMIT);
                    assert_eq!(came, 20, "join {join}: {}", law(&a));
                    seen += came;
                }
            }
        }
        drop(ends);
        let emitted = emitting.join().unwrap();
        let always = taking.join().unwrap();
        assert!(always == emitted || !gapless, "{always} of {emitted}");
        seen + always
    });
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    let counted = || per_sink(&b.counts(), CellState::Consuming, &[Count::Delivered]).values().sum::<u64>();
    assert!(eventually(|| counted() == seen), "{} counted, {seen} seen", counted());
    let intended = per_sink(&a.counts(), CellState::Producing, &[Count::Intended]);
    let came = per_sink(&b.counts(), CellState::Consuming, &FINAL_AT_SINK);
    assert!(intended.len() > JOINS as usize, "{} sinks", intended.len());
    for (sink, came) in came {
        let meant = intended.get(&sink).copied().unwrap_or(0);
        assert!(came <= meant, "{came} messages came to {sink:032x}, {meant} were meant for it");
    }
}

#[test]
fn what_is_for_a_sink_of_another_host_begins_where_its_source_counts_from() {
    let _watchdog = Watchdog::start("joins", TEST);
    check(Qos::default(), false);
}

#[test]
fn it_does_so_between_hosts_on_reliable_streams() {
    let _watchdog = Watchdog::start("reliable joins", TEST);
    check(reliable(), true);
}
