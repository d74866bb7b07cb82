//! Three hosts: one with a radio, one with DPDK and one with sockets only. An application stops on one and starts on another, the same
//! program: its channels resume by themselves, by what that host has, and every message is accounted for. Without root or DPDK:
//! SKIPPED.

use insane::{Qos, SourceOptions};
use insane_runtime::config::{Config, Datapath, Kind};
use insane_tests_host::Watchdog;
use insane_tests_namespaces::Namespaces;
use insane_tests_network::cables::{dpdk_object, goes_over, towards, unsparing};
use insane_tests_network::{Process, at_the_source, config, eventually, law, law_holds, network_count, reliable};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");
const WANDERER: &str = env!("CARGO_BIN_EXE_wanderer");

/// Longer than this nobody takes it for a pause.
const PAUSE: Duration = Duration::from_secs(10);

/// The first host with a cable to each of the others, and one more to the second, for DPDK.
fn cables() -> Option<Namespaces> {
    Namespaces::new(["ma", "mb", "mc"], |[a, b, c]| {
        let cable = |x: &str, device: &str, y: &str| {
            format!("link add {device} netns {x} type veth peer name {device} netns {y}")
        };
        let mut steps = vec![cable(a, "veth0", b), cable(a, "veth1", b), cable(a, "veth2", c)];
        for (name, device, address) in [
            (a, "veth0", "10.95.0.1"),
            (a, "veth1", "10.96.0.1"),
            (a, "veth2", "10.97.0.1"),
            (b, "veth0", "10.95.0.2"),
            (b, "veth1", "10.96.0.2"),
            (c, "veth2", "10.97.0.3"),
        ] {
            steps.push(format!("-n {name} addr add {address}/24 dev {device}"));
            steps.push(format!("-n {name} link set {device} up"));
        }
        // The first host's runtime has one address.
        steps.push(format!("-n {c} route add 10.95.0.1 via 10.97.0.1"));
        steps
    })
}

fn configs(library: &Path) -> [Config; 3] {
    let addresses = ["10.95.0.1:7400", "10.95.0.2:7400", "10.97.0.3:7400"].map(|a| a.parse().expect("an address"));
    let peers = [&addresses[..], &addresses[..2], &[addresses[0], addresses[2]]];
    let mut configs = [0, 1, 2].map(|host| config(&format!("host-{host}"), addresses[host], peers[host]));
    for (host, config) in configs.iter_mut().take(2).enumerate() {
        config.network.get_or_insert_default().datapath.push(Datapath {
            kind: Kind::Dpdk,
            interface: "veth1".into(),
            address: format!("10.96.0.10{host}/24"),
            library: library.display().to_string(),
            ..Datapath::default()
        });
    }
    configs
}

/// The application on a host.
struct App(Child);

impl App {
    fn start(host: &Process, kind: &str) -> Self {
        let mut command = Command::new(WANDERER);
        command.arg(host.socket()).arg(kind).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("it starts"))
    }

    /// Tells it to stop; how many indications it has seen.
    fn stop(mut self) -> u64 {
        drop(self.0.stdin.take());
        let mut said = String::new();
        self.0.stdout.take().expect("a pipe").read_to_string(&mut said).expect("it says something");
        assert!(self.0.wait().expect("it ends").success());
        said.trim().parse().expect("a number")
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn moves_and_resumes(qos: Qos, kind: &str) {
    let _watchdog = Watchdog::start("moving", Duration::from_secs(150));
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = cables() else { return };
    let configs = configs(&library);
    let hosts = [0, 1, 2].map(|host| Process::start(PROGRAM, Some(cables.name(host)), &configs[host]));
    let ran = hosts[0].session("ran");
    let stream = ran.stream(unsparing(qos)).unwrap();
    // A source that waits for one that moves would hold the radio up.
    let options = SourceOptions { deadline: Duration::ZERO, ..SourceOptions::default() };
    let source = stream.source_with("indications", options).unwrap();
    let sink = stream.sink("answers").unwrap();
    let stop = AtomicBool::new(false);
    let answered = Mutex::new((0_u64, Instant::now()));
    let count = || answered.lock().unwrap().0;
    // So many more answers from now on.
    let answers = |more: u64| {
        let before = count();
        assert!(eventually(|| count() >= before + more), "{} of {more} answers: {}", count() - before, law(&ran));
    };
    let mut seen = 0;
    let emitted = std::thread::scope(|scope| {
        let emitting = scope.spawn(|| {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                // What is emitted while nobody listens is for nobody.
                source.send(&number.to_le_bytes()).unwrap();
                number += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            number
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if sink.consume_timeout(Duration::from_millis(20)).is_ok() {
                    let mut now = answered.lock().unwrap();
                    *now = (now.0 + 1, Instant::now());
                }
            }
        });
        let mut app = App::start(&hosts[1], kind);
        goes_over(&stream, "host-1", "dpdk");
        answers(200);
        for (to, datapath) in [(2, "udp"), (1, "dpdk"), (2, "udp")] {
            seen += app.stop();
            let last = answered.lock().unwrap().1;
            let before = count();
            app = App::start(&hosts[to], kind);
            assert!(eventually(|| count() > before), "nobody answers: {}", law(&ran));
            let pause = answered.lock().unwrap().1 - last;
            let host = format!("host-{to}");
            goes_over(&stream, &host, datapath);
            println!("to {host}, over {datapath}, {kind}: no answer for {:.1} ms", pause.as_secs_f64() * 1e3);
            assert!(pause < PAUSE, "{pause:?}");
            answers(200);
        }
        let effective = towards(&stream, "host-2");
        let why = effective.reasons.iter().any(|reason| reason.contains("host-2 offers no dpdk"));
        assert!(why, "{effective:?}");
        stop.store(true, Ordering::Relaxed);
        let emitted = emitting.join().unwrap();
        // What is on its way arrives before the last one stops.
        std::thread::sleep(Duration::from_millis(200));
        seen += app.stop();
        emitted
    });
    drop((source, sink));
    assert!(eventually(|| law_holds(&ran)), "{}", law(&ran));
    let (intended, _, report) = at_the_source(&ran);
    let delivered = network_count(&report, "delivered");
    println!("{kind}: {emitted} emitted, {intended} intended, {delivered} delivered, {seen} seen");
    // A sink that was given a message and stopped before it said so may have seen it.
    assert!(delivered <= seen && seen <= intended && intended <= emitted, "{seen} seen: {}", law(&ran));
}

#[test]
fn an_application_moves_between_unlike_hosts_and_its_best_effort_channels_resume() {
    moves_and_resumes(Qos::default(), "best-effort");
}

#[test]
fn an_application_moves_between_unlike_hosts_and_its_reliable_channels_resume() {
    moves_and_resumes(reliable(), "reliable");
}
