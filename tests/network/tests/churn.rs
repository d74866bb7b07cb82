//! Three hosts on which sinks and sources come and go at random, and whose runtimes restart: afterwards every source has exactly
//! the sinks that there are, and reaches each once.

use insane::{Qos, Session, Sink, Source};
use insane_tests_host::{Host, Watchdog};
use insane_tests_network::{Random, hosts, law, status, within};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(30);
const CHANNELS: u64 = 6;

struct Party {
    session: Session,
    sinks: BTreeMap<u64, Vec<Sink>>,
    sources: BTreeMap<u64, Source>,
}

impl Party {
    fn new(host: &Host) -> Self {
        Self { session: host.session("party"), sinks: BTreeMap::new(), sources: BTreeMap::new() }
    }
}

fn step(random: &mut Random, hosts: &mut [Host], parties: &mut [Vec<Party>]) {
    let (at, channel) = (random.below(3) as usize, random.below(CHANNELS));
    let name = format!("channel-{channel}");
    let which = random.below(parties[at].len() as u64) as usize;
    match random.below(100) {
        0 => hosts[at].restart(),
        1..4 => parties[at][which] = Party::new(&hosts[at]),
        4..50 => {
            let party = &mut parties[at][which];
            let sinks = party.sinks.entry(channel).or_default();
            if sinks.len() < 2 && random.below(2) == 0 {
                sinks.push(party.session.stream(Qos::default()).unwrap().sink(name.as_str()).unwrap());
            } else {
                sinks.pop();
            }
        }
        50..75 => {
            let party = &mut parties[at][which];
            if party.sources.remove(&channel).is_none() {
                let source = party.session.stream(Qos::default()).unwrap().source(name.as_str()).unwrap();
                party.sources.insert(channel, source);
            }
        }
        _ => {
            for source in parties[at][which].sources.values() {
                source.send(&[7; 100]).unwrap();
            }
        }
    }
}

/// The sinks of a source that its session knows.
fn producing(session: &Session, source: &Source) -> Vec<String> {
    let cells = session.counts();
    let own =
        cells.iter().filter(|c| c.epoch == source.epoch().0 && c.state == insane_shm::counters::CellState::Producing);
    own.filter(|c| !c.ended).map(|c| format!("{:032x}", c.sink)).collect()
}

#[test]
fn no_sink_is_stale_and_none_is_missed() {
    let _watchdog = Watchdog::start("churn", TEST);
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x2545_f491_4f6c_dd1d);
    println!("SEED={seed}");
    if let Ok(filter) = std::env::var("LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let mut random = Random(seed);
    let mut hosts = hosts(3, |_, _| ());
    let mut parties: Vec<Vec<Party>> = hosts.iter().map(|h| vec![Party::new(h), Party::new(h)]).collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        step(&mut random, &mut hosts, &mut parties);
    }
    println!("settling after {:?}", start.elapsed());
    let all = || parties.iter().flatten();
    for party in all() {
        let broken = |e: &insane::Event| matches!(e, insane::Event::PeerBroken { .. });
        let events: Vec<_> = party.session.events().into_iter().filter(broken).collect();
        assert!(events.is_empty(), "{events:?}");
    }
    for channel in 0..CHANNELS {
        let there: usize = all().filter_map(|p| p.sinks.get(&channel)).map(Vec::len).sum();
        for (party, source) in all().filter_map(|p| Some((p, p.sources.get(&channel)?))) {
            let sees = || source.sinks();
            assert!(
                within(Duration::from_secs(6), || sees() == there),
                "channel {channel}: source {} has {} sinks of {there}: {:?} of {:?}; {}\n{}",
                source.epoch(),
                sees(),
                producing(&party.session, source),
                all().filter_map(|p| p.sinks.get(&channel)).flatten().map(|s| s.id().to_string()).collect::<Vec<_>>(),
                law(&party.session),
                status(&party.session)["streams"]
            );
        }
    }
    println!("settled after {:?}", start.elapsed());
    // What was emitted before is taken first.
    for sink in all().flat_map(|p| p.sinks.values().flatten()) {
        while sink.consume_timeout(Duration::from_millis(20)).is_ok() {}
    }
    for (number, source) in all().flat_map(|p| p.sources.values()).enumerate() {
        source.send(&number.to_le_bytes()).unwrap();
    }
    for channel in 0..CHANNELS {
        let sources = all().filter(|p| p.sources.contains_key(&channel)).count();
        for sink in all().filter_map(|p| p.sinks.get(&channel)).flatten() {
            let mut got: Vec<Vec<u8>> = (0..sources)
                .filter_map(|_| Some(sink.consume_timeout(Duration::from_secs(2)).ok()?.to_vec()))
                .collect();
            got.sort();
            got.dedup();
            assert_eq!(got.len(), sources, "channel {channel}: a message of each source, once");
        }
    }
}
