//! Every message for a sink of another host ends in exactly one count at its source, and what is delivered is what the sink's
//! application saw.

use insane::{Qos, Sink, Source};
use insane_datapath::fault::{Faulty, Plan};
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_network::{
    LIMIT, config, eventually, free_addresses, gives_back_all, hosts, law, law_holds, network_count, reliable, status,
};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(30);
const MESSAGES: u64 = 10_000;

/// A payload that says its number.
fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; len.max(8)];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Takes what comes until nothing has come for a while; the numbers in their order.
fn drain(sink: &Sink, quiet: Duration) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok(message) = sink.consume_timeout(quiet) {
        let bytes = message.to_vec();
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes == payload(number, bytes.len()), "message {number} is not what was sent");
        numbers.push(number);
    }
    numbers
}

fn emit(source: &Source, len: usize, pause_every: u64) {
    for number in 0..MESSAGES {
        source.send(&payload(number, len)).unwrap();
        if number % pause_every == pause_every - 1 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn ten_thousand_best_effort_messages_are_accounted_for() {
    let _watchdog = Watchdog::start("best effort", TEST);
    let hosts = hosts(2, |_, _| ());
    for (round, len) in [16usize, 300, 4000].into_iter().enumerate() {
        let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
        let before = status(&a);
        let channel = format!("load-{len}");
        let sink = b.stream(Qos::default()).unwrap().sink(channel.as_str()).unwrap();
        let source = a.stream(Qos::default()).unwrap().source(channel.as_str()).unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        let reader = std::thread::spawn(move || drain(&sink, Duration::from_millis(700)));
        emit(&source, len, [64, 32, 8][round]);
        let seen = reader.join().unwrap();
        assert!(seen.windows(2).all(|w| w[0] < w[1]), "out of order, or twice");
        let delta = |name| network_count(&status(&a), name) - network_count(&before, name);
        let ends = || insane_tests_network::ENDS.iter().map(|name| delta(name)).sum::<u64>();
        let account = || insane_tests_host::account(&a.counts());
        let holds = || account().intended == account().at_source + ends();
        assert!(eventually(holds), "{len} bytes: {:?} {}", account(), law(&a));
        assert_eq!((account().intended, delta("delivered")), (MESSAGES, seen.len() as u64), "{len} bytes: {}", law(&a));
        assert!(!seen.is_empty(), "{len} bytes: {}", law(&a));
        gives_back_all(&b);
    }
}

/// Of two sinks of one session one takes nothing: it loses what comes then, and the source's host hears how much; the other loses nothing.
#[test]
fn a_sink_that_takes_nothing_stops_no_other_of_its_session_and_its_losses_are_counted_on_both_hosts() {
    let _watchdog = Watchdog::start("takes nothing", TEST);
    let hosts = hosts(2, |_, config| {
        config.quota.link_entries = 64;
        config.quota.message_mib = 1;
        config.network.get_or_insert_default().memory_mib = 8;
    });
    // The small ones fill the entries of the link from the runtime, the large ones half of the runtime's memory, which it may keep.
    for len in [8usize, 300, 100_000] {
        let (a, b) = (hosts[0].session("source"), hosts[1].session("sinks"));
        let before = status(&a);
        let delta = |name| network_count(&status(&a), name) - network_count(&before, name);
        let (stream, sinks) = (a.stream(Qos::default()).unwrap(), b.stream(Qos::default()).unwrap());
        let [reads, sleeps] = ["reads", "sleeps"].map(|channel| sinks.sink(channel).unwrap());
        let sources = ["sleeps", "reads"].map(|channel| stream.source(channel).unwrap());
        assert!(sources.iter().all(|source| source.wait_for_sinks(1, LIMIT) == 1));
        for number in 0..500 {
            for source in &sources {
                source.send(&payload(number, len)).unwrap();
            }
            let message =
                reads.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{len} bytes, {number}: {e}, {}", law(&a)));
            assert_eq!(message.to_vec(), payload(number, len));
        }
        let seen = drain(&sleeps, Duration::from_millis(100));
        assert!(
            (10..60).contains(&seen.len()) && seen.iter().copied().eq(0..seen.len() as u64),
            "{len} bytes: {seen:?}"
        );
        let (came, lost) = (500 + seen.len() as u64, 500 - seen.len() as u64);
        assert!(eventually(|| (delta("delivered"), delta("sink_full")) == (came, lost)), "{len} bytes: {}", law(&a));
        let account = insane_tests_host::account(&a.counts());
        assert_eq!((account.intended, account.at_source), (1000, 0), "{len} bytes: {}", law(&a));
        gives_back_all(&b);
    }
}

#[test]
fn ten_thousand_reliable_messages_arrive_once_and_in_order() {
    let _watchdog = Watchdog::start("reliable", TEST);
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = b.stream(reliable()).unwrap().sink("load").unwrap();
    let stream = a.stream(reliable()).unwrap();
    let source = stream.source("load").unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
    let reader = std::thread::spawn(move || drain(&sink, Duration::from_millis(1500)));
    emit(&source, 300, u64::MAX);
    let seen = reader.join().unwrap();
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>(), "{}", law(&a));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    assert_eq!(network_count(&status(&a), "delivered"), MESSAGES);
    assert!(eventually(|| stream.audit().held == 0), "{:?}", stream.audit());
    gives_back_all(&b);
}

#[test]
fn a_bad_network_costs_only_what_is_counted() {
    let _watchdog = Watchdog::start("bad network", TEST);
    let addresses = free_addresses(2);
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { lose_ppm: 20_000, repeat_ppm: 20_000, delay_ppm: 20_000, ..Plan::default() };
    let (told, controls) = std::sync::mpsc::channel();
    let servers: Vec<Server> = (0..2)
        .map(|at| {
            let mut config = config(&format!("host-{at}"), addresses[at], &addresses);
            config.runtime.socket = dir.path().join(at.to_string());
            let told = told.clone();
            Server::start_over(config, move |_, udp| {
                let faulty = Faulty::new(udp, plan, 7 + at as u64);
                told.send(faulty.control()).unwrap();
                Box::new(faulty)
            })
            .unwrap()
        })
        .collect();
    let controls: Vec<_> = controls.try_iter().collect();
    let session = |at: usize, app: &str| insane::Session::builder(app).socket(servers[at].socket()).open().unwrap();
    let (a, b) = (session(0, "source"), session(1, "sink"));
    for qos in [reliable(), Qos::default()] {
        let before = status(&a);
        let (intended, lost) = (insane_tests_host::account(&a.counts()), controls[0].injected().lost);
        let sink = b.stream(qos).unwrap().sink("load").unwrap();
        let source = a.stream(qos).unwrap().source("load").unwrap();
        assert_eq!(source.wait_for_sinks(1, LIMIT), 1);
        let reader = std::thread::spawn(move || drain(&sink, Duration::from_millis(2500)));
        emit(&source, 700, 16);
        let mut seen = reader.join().unwrap();
        assert!(controls[0].injected().lost > lost, "the injector had nothing to do");
        if qos == reliable() {
            assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>(), "{}", law(&a));
        } else {
            let arrived = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), arrived, "a message came twice");
        }
        let delta = |name| network_count(&status(&a), name) - network_count(&before, name);
        let ends = || insane_tests_network::ENDS.iter().map(|name| delta(name)).sum::<u64>();
        let account = || insane_tests_host::account(&a.counts());
        let holds = || account().intended - intended.intended == account().at_source - intended.at_source + ends();
        assert!(eventually(holds), "{:?} {}", account(), law(&a));
        assert_eq!(delta("delivered"), seen.len() as u64, "{}", law(&a));
        if qos == Qos::default() {
            assert!(delta("dropped") > 0, "losses are counted: {}", law(&a));
        }
        gives_back_all(&b);
        source.close();
    }
}
