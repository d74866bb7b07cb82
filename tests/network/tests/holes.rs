//! Two runtimes in network namespaces whose interfaces take jumbo frames, with a switch between them that carries less and drops what is
//! larger without a word. Without root: SKIPPED.

use insane::{Qos, Session, Sink, Source, Stream};
use insane_runtime::config::Datapath;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::{Namespaces, has_af_xdp};
use insane_tests_network::cables::{accelerated, ends, goes_over};
use insane_tests_network::load::{are_whole, flows, numbers};
use insane_tests_network::{LIMIT, Process, config, eventually, law, law_holds, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Two hosts with a switch between them, by two cables each: UDP is bound to the first, AF_XDP to the second.
struct Switched(Namespaces);

impl Switched {
    /// `None` where namespaces cannot be made; then it has said so.
    fn new() -> Option<Self> {
        Namespaces::new(["ha", "hb", "hs"], |[a, b, switch]| {
            let mut steps = Vec::new();
            for cable in 0..2 {
                steps.push(format!("-n {switch} link add br{cable} type bridge"));
                steps.push(format!("-n {switch} link set br{cable} up"));
                for (end, host) in (1..).zip([a, b]) {
                    let port = format!("port{end}{cable}");
                    steps.push(format!("link add veth{cable} netns {host} type veth peer name {port} netns {switch}"));
                    steps.push(format!("-n {host} addr add 10.9{}.0.{end}/24 dev veth{cable}", 2 + cable));
                    // A switch does not see frames that are still joined, as a bridge would.
                    steps.push(format!("-n {host} link set veth{cable} mtu 9000 gso_max_segs 1 up"));
                    steps.push(format!("-n {switch} link set {port} mtu 9000 master br{cable} up"));
                }
            }
            steps
        })
        .map(Self)
    }

    /// Frames of more than so many bytes of payload are dropped at the second host's port from now on, both ways.
    fn carries(&self, cable: usize, bytes: usize) {
        self.0.ip(2, &format!("link set port2{cable} mtu {bytes}")).expect("a port of the switch");
    }

    fn runtimes(&self, xdp: bool) -> [Process; 2] {
        let addresses = [1, 2].map(|host| format!("10.92.0.{host}:7400").parse().expect("an address"));
        [0, 1].map(|end| {
            let mut config = config(&format!("host-{end}"), addresses[end], &addresses);
            let network = config.network.get_or_insert_default();
            network.interface = "veth0".into();
            if xdp {
                let (interface, address) = ("veth1".into(), format!("10.93.0.10{end}/24"));
                network.datapath.push(Datapath { interface, address, ..Datapath::default() });
            }
            Process::start(PROGRAM, Some(self.0.name(end)), &config)
        })
    }
}

/// The size of frames that is in use to the only other host over a datapath, and what the interfaces take; 0 as long as no report says
/// it.
fn sizes(session: &Session, datapath: &str) -> (u64, u64) {
    let status = status(session);
    let paths = status["network"]["hosts"][0]["paths"].as_array().cloned().unwrap_or_default();
    let path = paths.iter().find(|path| path["datapath"] == datapath);
    let number = |key: &str| path.map_or(0, |path| path[key].as_u64().expect("a number"));
    (number("frame_bytes"), number("most_frame_bytes"))
}

/// Waits until frames have a size.
fn is_in_use(session: &Session, datapath: &str, size: (u64, u64)) {
    assert!(eventually(|| sizes(session, datapath) == size), "{:?}; {}", sizes(session, datapath), law(session));
}

/// Sends large messages and sees that they come.
fn deliver((_, source, sink): &(Stream, Source, Sink), count: u8, session: &Session) {
    for n in 0..count {
        let payload: Vec<u8> = (0..65_536u32).map(|at| (at * 31 + u32::from(n)) as u8).collect();
        source.send(&payload).unwrap();
        let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {n}: {e}; {}", law(session)));
        assert!(message.to_vec() == payload, "message {n} differs");
    }
}

#[test]
fn large_messages_arrive_through_a_switch_that_drops_large_frames() {
    let _watchdog = Watchdog::start("hole", TEST);
    let Some(switched) = Switched::new() else { return };
    switched.carries(0, 1500);
    let [one, mut two] = switched.runtimes(false);
    let (a, b) = (one.session("source"), two.session("sink"));
    deliver(&ends(&a, &b, reliable(), "c"), 20, &a);
    for session in [&a, &b] {
        is_in_use(session, "udp", (1472, 8968));
    }
    deliver(&ends(&a, &b, Qos::default(), "d"), 20, &a);
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    // It stays, whoever begins anew.
    two.again();
    let b = two.session("sink");
    deliver(&ends(&a, &b, reliable(), "e"), 5, &a);
    is_in_use(&a, "udp", (1472, 8968));
}

#[test]
fn a_switch_that_drops_large_frames_from_some_moment_on_costs_a_reliable_stream_nothing() {
    let _watchdog = Watchdog::start("hole in mid-stream", TEST);
    let Some(switched) = Switched::new() else { return };
    let [one, two] = switched.runtimes(false);
    let (a, b) = (one.session("source"), two.session("sink"));
    for qos in [reliable(), Qos::default()] {
        let is_reliable = qos == reliable();
        switched.carries(0, 9000);
        is_in_use(&a, "udp", (8968, 8968));
        let all = ends(&a, &b, qos, "c");
        let (sent, got) = numbers(&all.1, &all.2, is_reliable, |seen| {
            flows(seen, &a);
            switched.carries(0, 1500);
            // Its largest fit no frame that passes; nothing else is lost that is seen here.
            is_in_use(&a, "udp", (1472, 8968));
            flows(seen, &a);
        });
        are_whole(sent, &got, is_reliable, &a);
        deliver(&all, 5, &a);
        assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    }
}

#[test]
fn over_xdp_large_messages_arrive_through_a_switch_that_drops_large_frames() {
    let _watchdog = Watchdog::start("hole, xdp", TEST);
    let Some(switched) = Switched::new().filter(|_| has_af_xdp()) else { return };
    switched.carries(1, 1500);
    let [one, two] = switched.runtimes(true);
    let (a, b) = (one.session("source"), two.session("sink"));
    for qos in [reliable(), Qos::default()] {
        let all = ends(&a, &b, accelerated(qos), "c");
        goes_over(&all.0, "host-1", "xdp");
        deliver(&all, 10, &a);
    }
    is_in_use(&a, "xdp", (1472, 8968));
    is_in_use(&a, "udp", (8968, 8968));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}
