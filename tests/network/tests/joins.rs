//! Sinks of another host that join a source while it emits, and leave again, beside one that stays: what is for each begins and
//! ends with the message that its source says.

use insane::{Qos, Sink, Source};
use insane_shm::counters::{CellCounts, CellState, Count, FINAL_AT_SINK};
use insane_tests_host::Watchdog;
use insane_tests_network::{Ends, LIMIT, eventually, hosts, law, law_holds, reliable};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const JOINS: u64 = 60;

/// Emits messages small and large until told to stop, in bursts between which what is best effort can be taken.
fn emit(source: &Source, over: &AtomicBool) -> u64 {
    let mut n = 0;
    while !over.load(Ordering::Relaxed) {
        n += 1;
        source.send(&vec![n as u8; [16, 300, 4000][n as usize % 3]]).unwrap();
        if n % 16 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    n
}

/// What a sink has taken.
#[derive(Default)]
struct Taken {
    count: u64,
    last: Option<u64>,
}

impl Taken {
    fn note(&mut self, number: u64, gapless: bool) {
        let last = self.last;
        assert!(last.is_none_or(|last| number == last + 1 || (!gapless && number > last)), "{number} after {last:?}");
        (self.count, self.last) = (self.count + 1, Some(number));
    }
}

/// Takes what comes until it is over and nothing has come for a while.
fn take(sink: &Sink, gapless: bool, over: &AtomicBool) -> u64 {
    let mut taken = Taken::default();
    loop {
        match sink.consume_timeout(Duration::from_millis(1500)) {
            Ok(message) => taken.note(message.sequence(), gapless),
            Err(_) if over.load(Ordering::Relaxed) => return taken.count,
            Err(_) => {}
        }
    }
}

/// Takes what comes to either sink until each has had so much. They share a link with all others of their session: one that took
/// nothing meanwhile would fill it, and then nothing would come to any.
fn take_both(sinks: &[Sink; 2], most: u64, gapless: bool) -> [u64; 2] {
    let mut taken = [Taken::default(), Taken::default()];
    eventually(|| {
        for (sink, taken) in sinks.iter().zip(&mut taken) {
            while let Some(message) = sink.try_consume().unwrap() {
                taken.note(message.sequence(), gapless);
            }
        }
        taken.iter().all(|taken| taken.count >= most)
    });
    taken.map(|taken| taken.count)
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
        let taking = scope.spawn(|| take(&always, gapless, &over));
        let ends = Ends(&over);
        let mut seen = 0;
        for join in 0..JOINS {
            // Two at once, and now and then one that leaves before anything came.
            let pair = [sinks.sink("joins").unwrap(), sinks.sink("joins").unwrap()];
            if join % 7 != 6 {
                let came = take_both(&pair, 20, gapless);
                assert!(came.iter().all(|came| *came >= 20), "join {join}: {came:?}; {}", law(&a));
                seen += came.iter().sum::<u64>();
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
