//! Two runtimes with AF_XDP beside kernel UDP, in network namespaces: how streams move when a datapath fails, an interface goes away
//! or runtimes die. Without root: SKIPPED.

use insane::{Event, Qos, Reliability};
use insane_datapath::fault::Plan;
use insane_runtime::config::Config;
use insane_tests_host::Watchdog;
use insane_tests_host::programs::{Said, program, run};
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, ends, goes_over, on_dpdk, towards, unsparing};
use insane_tests_network::load::{Pace, are_whole, flows, numbers, numbers_at, take_the_rest};
use insane_tests_network::{LIMIT, Random, eventually, law, law_holds, network_count, reliable, status};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

#[test]
fn a_bad_network_over_xdp_costs_only_what_is_counted() {
    let _watchdog = Watchdog::start("bad", TEST);
    let Some(cables) = Cables::new() else { return };
    let mut runtimes = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let plan = Plan { lose_ppm: 20_000, repeat_ppm: 20_000, delay_ppm: 20_000, change_ppm: 5000, cut: false };
    for (runtime, seed) in runtimes.iter_mut().zip([3, 5]) {
        runtime.again_with(plan, seed);
    }
    let [one, two] = &runtimes;
    let (a, b) = (one.session("source"), two.session("sink"));
    for qos in [accelerated(Qos::default()), accelerated(reliable())] {
        let (stream, source, sink) = ends(&a, &b, qos, "load");
        goes_over(&stream, "host-1", "xdp");
        let reliable = qos.reliability() == Reliability::Reliable;
        let (sent, got) = numbers(&source, &sink, reliable, |_| std::thread::sleep(Duration::from_millis(700)));
        assert!(!got.is_empty() && sent > 100, "{} of {sent}", got.len());
        let mut once = got.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), got.len(), "repeated");
        if reliable {
            assert!(got.iter().copied().eq(0..sent), "{} of {sent}", got.len());
        }
        assert!(eventually(|| law_holds(&a)), "{qos:?}: {}; there {}", law(&a), status(&b));
    }
    assert!(network_count(&status(&a), "dropped") > 0, "nothing was lost: {}", law(&a));
}

#[test]
fn an_interface_that_goes_away_costs_only_its_datapath() {
    let _watchdog = Watchdog::start("gone", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "xdp");
    cables.0.ip(0, "link del veth1").unwrap();
    for round in 0..200u32 {
        source.send(&round.to_le_bytes()).unwrap();
    }
    for round in 0..200u32 {
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{round}: {e}; {}", law(&a)));
        assert_eq!(message.to_vec(), round.to_le_bytes());
    }
    goes_over(&stream, "host-1", "udp");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// A stream moves from one datapath to the other while it runs, when its cable is cut and when it is mended.
fn moves(qos: Qos) {
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", "xdp");
    let reliable = qos.reliability() == Reliability::Reliable;
    let (sent, got) = numbers(&source, &sink, reliable, |seen| {
        let flowing = || flows(seen, &a);
        for _ in 0..2 {
            flowing();
            cables.0.ip(0, "link set veth1 down").unwrap();
            goes_over(&stream, "host-1", "udp");
            let effective = towards(&stream, "host-1");
            assert!(effective.reasons[0].contains("host-0 does not reach host-1 over xdp"), "{effective:?}");
            flowing();
            cables.0.ip(0, "link set veth1 up").unwrap();
            goes_over(&stream, "host-1", "xdp");
        }
        flowing();
    });
    are_whole(sent, &got, reliable, &a);
    let moved = status(&a)["network"]["hosts"][0]["moves"].as_u64();
    assert!(moved >= Some(4), "{}", law(&a));
}

#[test]
fn a_reliable_stream_moves_without_a_loss() {
    let _watchdog = Watchdog::start("reliable moves", TEST);
    moves(accelerated(reliable()));
}

#[test]
fn a_best_effort_stream_moves_in_order() {
    let _watchdog = Watchdog::start("best effort moves", TEST);
    moves(accelerated(Qos::default()));
}

/// In so many seconds streams may come back so often, if a hold begins with each loss and each is twice as long as the one before, up
/// to 8 s.
fn returns(mut seconds: f64) -> u64 {
    let holds = [1.0, 2.0, 4.0].into_iter().chain(std::iter::repeat(8.0));
    let fit = holds.take_while(|hold| {
        seconds -= hold;
        seconds >= 0.0
    });
    fit.count() as u64
}

/// A cable that comes and goes at random under a stream moves it away at once, and back only when it has stood for a while.
fn outlives_a_cable_that_flaps(qos: Qos, seed: u64) {
    let Some(cables) = Cables::new() else { return };
    let change = |config: &mut Config| config.network.get_or_insert_default().return_most_ms = 8000;
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, change));
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", "xdp");
    let host = || status(&a)["network"]["hosts"][0].clone();
    let moved = || host()["moves"].as_u64().unwrap_or(0);
    let reliable = qos.reliability() == Reliability::Reliable;
    let (sent, got) = numbers(&source, &sink, reliable, |seen| {
        flows(seen, &a);
        let (mut chance, before, start, mut held) = (Random(seed), moved(), Instant::now(), Vec::new());
        // Each time for so short that the path seldom stands again, and shows its hold: on until one was seen that is longer.
        for round in 0..60 {
            if round >= 20 && held.iter().max() > Some(&1000) {
                break;
            }
            cables.0.ip(0, "link set veth1 down").unwrap();
            std::thread::sleep(Duration::from_millis(20 + chance.below(180)));
            cables.0.ip(0, "link set veth1 up").unwrap();
            std::thread::sleep(Duration::from_millis(150 + chance.below(500)));
            let paths = host()["paths"].as_array().cloned().unwrap_or_default();
            held.extend(paths.iter().filter_map(|path| path["hold_ms"].as_u64()).filter(|hold| *hold > 0));
        }
        let (moves, most) = (moved() - before, 1 + 2 * returns(start.elapsed().as_secs_f64()));
        assert!((1..=most).contains(&moves), "{moves} moves, {most} at most; {}", law(&a));
        assert!(held.iter().max() > Some(&1000), "{held:?}: each loss holds it off for longer");
        let said = "host-0 reaches host-1 over xdp again, and streams come back once it has stood for a while";
        let waits = || {
            let effective = towards(&stream, "host-1");
            let waits = effective.datapath == "udp" && effective.reasons.iter().any(|reason| reason.contains(said));
            waits || effective.datapath == "xdp"
        };
        // The last flap may not be over for the path.
        assert!(eventually(waits), "{:?}", towards(&stream, "host-1"));
        goes_over(&stream, "host-1", "xdp");
        assert!(towards(&stream, "host-1").reasons.is_empty());
        flows(seen, &a);
    });
    are_whole(sent, &got, reliable, &a);
}

#[test]
fn a_reliable_stream_outlives_a_cable_that_flaps_with_few_moves_and_no_loss() {
    let _watchdog = Watchdog::start("reliable, flaps", TEST);
    outlives_a_cable_that_flaps(accelerated(reliable()), 3);
}

#[test]
fn a_best_effort_stream_outlives_a_cable_that_flaps_with_few_moves_and_in_order() {
    let _watchdog = Watchdog::start("best effort, flaps", TEST);
    outlives_a_cable_that_flaps(accelerated(Qos::default()), 5);
}

/// What an operator says: `insane rebind` at the runtime of the source.
fn rebind(socket: &Path, more: &[&str]) -> Said {
    // Looking for it asks cargo, which takes long.
    static INSANE: LazyLock<std::path::PathBuf> = LazyLock::new(|| program("insane-cli", "insane"));
    let mut command = Command::new(&*INSANE);
    run(command.arg("--json").arg("--socket").arg(socket).arg("rebind").args(more), LIMIT)
}

/// A stream is moved to and fro on request, hundreds of times while messages flow; nothing is reordered, repeated or, if reliable,
/// lost. With the object of DPDK it is that beside UDP, on AF_PACKET, else AF_XDP.
fn moves_on_request(qos: Qos, rounds: u64, pace: Pace, dpdk: Option<&Path>) {
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| dpdk.into_iter().for_each(|library| on_dpdk(config, library)))
    });
    let beside = if dpdk.is_some() { "dpdk" } else { "xdp" };
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", beside);
    let moved = || status(&a)["network"]["hosts"][0]["moves"].as_u64().unwrap_or(0);
    let socket = one.socket();
    let reliable = qos.reliability() == Reliability::Reliable;
    let (sent, mut got) = numbers_at(pace, &source, &sink, reliable, |seen| {
        let before = moved();
        let mut chance = Random(rounds);
        let (mut at, mut asked) = (beside, 0u64);
        // A request that comes before the last move is through may find the stream where it is to be: where moves take long, more of them are
        // needed.
        for round in 0.. {
            if round >= rounds && moved() >= before + rounds / 4 {
                break;
            }
            let to = ["udp", beside, "auto"][chance.below(3) as usize];
            // The table says what is beside.
            let (from, real) = (at, if to == "auto" { beside } else { to });
            at = real;
            let said = rebind(&socket, &["--datapath", to]);
            assert_eq!(said.code(), 0, "{said:?}");
            let report: serde_json::Value = serde_json::from_str(&said.out).expect("json");
            let count = |what: &str| report[what].as_u64().unwrap_or(u64::MAX);
            assert_eq!(count("moving") + count("there") + count("later"), 1, "{report}");
            assert!(from != real || count("moving") == 0, "{report}");
            asked += u64::from(from != real);
            std::thread::sleep(Duration::from_millis(chance.below(8)));
        }
        goes_over(&stream, "host-1", at);
        flows(seen, &a);
        assert!(asked > rounds / 4, "{asked} asked");
    });
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, reliable, &a);
    // How long each took is known once it is through.
    let host = || status(&a)["network"]["hosts"][0].clone();
    assert!(eventually(|| host()["moved"]["count"] == host()["moves"]), "{}", host());
    let [last, mean, most] = ["last_us", "mean_us", "most_us"].map(|key| host()["moved"][key].as_u64().unwrap_or(0));
    assert!(0 < last && last <= most && 0 < mean && mean <= most, "{}", host()["moved"]);
    // The session is told of each, and what they took.
    let mut pauses = Vec::new();
    let told = || {
        pauses.extend(a.events().into_iter().filter_map(|event| match event {
            Event::QosChanged { effective, moved: Some(moved), .. } if effective.peer == "host-1" => Some(moved),
            _ => None,
        }));
        pauses.last().is_some_and(|pause| pause.as_micros() == u128::from(last))
    };
    assert!(eventually(told), "{pauses:?}, not {last} us");
}

#[test]
fn a_reliable_stream_moves_on_request_without_a_loss() {
    let _watchdog = Watchdog::start("reliable, on request", TEST);
    moves_on_request(accelerated(reliable()), 250, Pace::Steady, None);
}

#[test]
fn a_best_effort_stream_moves_on_request_in_order() {
    let _watchdog = Watchdog::start("best effort, on request", TEST);
    moves_on_request(accelerated(Qos::default()), 250, Pace::Steady, None);
}

#[test]
fn a_reliable_stream_under_full_load_moves_on_request_without_a_loss() {
    let _watchdog = Watchdog::start("reliable, full load", TEST);
    moves_on_request(accelerated(reliable()), 250, Pace::Full, None);
}

#[test]
fn a_best_effort_stream_under_full_load_moves_on_request_in_order() {
    let _watchdog = Watchdog::start("best effort, full load", TEST);
    moves_on_request(accelerated(Qos::default()), 250, Pace::Full, None);
}

#[test]
fn a_reliable_stream_moves_between_dpdk_and_udp_on_request_without_a_loss() {
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    for pace in [Pace::Steady, Pace::Full] {
        let _watchdog = Watchdog::start("reliable, dpdk", TEST);
        moves_on_request(unsparing(reliable()), 120, pace, Some(&library));
    }
}

#[test]
fn a_best_effort_stream_moves_between_dpdk_and_udp_on_request_in_order() {
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    for pace in [Pace::Steady, Pace::Full] {
        let _watchdog = Watchdog::start("best effort, dpdk", TEST);
        moves_on_request(unsparing(Qos::default()), 120, pace, Some(&library));
    }
}

/// What cannot be done changes nothing and says why; what was asked for says so in the reasons, holds for streams that are opened
/// later, and is taken back by `auto`.
#[test]
fn a_request_that_cannot_be_met_says_why() {
    let _watchdog = Watchdog::start("requests", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    let socket = one.socket();
    let refused = |more: &[&str], text: &str| {
        let said = rebind(&socket, more);
        assert!(said.code() == 2 && said.err.contains(text), "{more:?}: {said:?}");
    };
    refused(&["--datapath", "udp"], "none goes to another host now");
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "xdp");
    let name = stream.name().to_owned();
    refused(&["--datapath", "dpdk"], "host-0 has no dpdk");
    refused(&["--datapath", "udp", "--host", "host-7"], &format!("`{name}` to host-1"));
    refused(&["--datapath", "udp", "--stream", "another"], "no such stream goes to such a host");
    let said = rebind(&socket, &["--datapath", "tcp"]);
    assert!(said.code() == 2 && said.err.contains("or auto"), "{said:?}");
    goes_over(&stream, "host-1", "xdp");
    assert_eq!(rebind(&socket, &["--datapath", "udp", "--host", "host-1", "--stream", &name]).code(), 0);
    goes_over(&stream, "host-1", "udp");
    let effective = towards(&stream, "host-1");
    assert!(effective.reasons[0].contains("it was asked to go over udp"), "{effective:?}");
    source.send(b"over udp").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"over udp");
    assert_eq!(rebind(&socket, &["--datapath", "auto"]).code(), 0);
    goes_over(&stream, "host-1", "xdp");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Whichever runtime dies, and whatever the network does meanwhile, a reliable stream delivers every number once and in order.
#[test]
fn runtimes_die_again_and_again_and_the_stream_stays_whole() {
    let _watchdog = Watchdog::start("again and again", TEST);
    let Some(cables) = Cables::new() else { return };
    let mut runtimes = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let plan = Plan { lose_ppm: 5000, repeat_ppm: 5000, delay_ppm: 5000, change_ppm: 1000, cut: false };
    for (runtime, seed) in runtimes.iter_mut().zip([11, 13]) {
        runtime.again_with(plan, seed);
    }
    let (a, b) = (runtimes[0].session("source"), runtimes[1].session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    let (sent, got) = numbers(&source, &sink, true, |_| {
        for round in 0..8u64 {
            // At another moment of the paths' lives each time.
            std::thread::sleep(Duration::from_millis(60 + round * 35));
            match round % 4 {
                0 => runtimes[1].again(),
                1 => cables.0.ip(0, "link set veth1 down").map(drop).unwrap(),
                2 => runtimes[0].again(),
                _ => {
                    cables.0.ip(0, "link set veth1 up").unwrap();
                    runtimes.iter_mut().for_each(insane_tests_network::Process::again);
                }
            }
        }
        goes_over(&stream, "host-1", "xdp");
    });
    let missing: Vec<u32> = (0..sent).filter(|number| got.binary_search(number).is_err()).take(20).collect();
    assert!(sent > 100 && got.iter().copied().eq(0..sent), "{} of {sent}, not {missing:?}; {}", got.len(), law(&a));
}
