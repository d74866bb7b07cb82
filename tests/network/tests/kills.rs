//! Runtimes killed under load on each datapath: nothing of them remains, they start again on the same configuration, and the
//! streams go on over the same datapath. Without root or what the datapath takes: SKIPPED.

use insane::{Qos, Stream};
use insane_runtime::config::Config;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::run;
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, ends, on_dpdk, unsparing};
use insane_tests_network::load::{in_order, numbers};
use insane_tests_network::{Process, eventually, law, reliable};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// The folders in which DPDK leaves files, if any: hugepages, and what it shares between processes.
fn folders() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("the mounts");
    let huge = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("hugetlbfs"));
    let huge = huge.filter_map(|line| Some(line.split(' ').nth(1)?.into()));
    huge.chain(["/run/dpdk/rte", "/dev/shm", "/dev/vfio"].map(PathBuf::from)).collect()
}

/// What is in them.
fn files() -> Vec<PathBuf> {
    let entries = folders().into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// What an end's namespace has of a runtime: sockets, addresses that the interface lets in, and an XDP program, if that is looked for.
fn held(cables: &Cables, end: usize, program: bool) -> Vec<String> {
    let mut all = Vec::new();
    for table in ["udp", "tcp", "packet", "raw"] {
        let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        let text = cables.0.inside(end, read);
        all.extend(text.lines().skip(1).map(|line| format!("{table}: {}", line.trim())));
    }
    let link = cables.0.ip(end, "-d link show dev veth1").expect("it is there");
    if program && link.contains("xdp") || !link.contains("promiscuity 0") {
        all.push(link);
    }
    let stations = run("bridge", &format!("-n {} fdb show dev veth1", cables.0.name(end))).expect("addresses");
    all.extend(
        stations.lines().filter(|line| !line.starts_with("33:33:") && !line.starts_with("01:00:5e")).map(str::to_owned),
    );
    all
}

/// What a runtime says of its datapath beside UDP, if it serves; without such a one, of UDP.
fn state(runtime: &Process) -> Option<Value> {
    let session = insane::Session::builder("operator").socket(runtime.socket()).open().ok()?;
    let report: Value = serde_json::from_str(&session.report("status").ok()?).ok()?;
    report["network"]["datapaths"].as_array()?.last().cloned()
}

/// A way of data that is killed.
struct Way<'a> {
    /// Its name, in reports.
    datapath: &'a str,
    /// What a stream that takes it asks for.
    qos: fn(Qos) -> Qos,
    /// Whether the peer of one that is killed bears that: the driver of memif may take it down, too.
    bears: bool,
    /// Whether one that is killed leaves its XDP program, which gives the kernel all that comes: DPDK's AF_XDP attaches it so that
    /// it outlives the process.
    leaves_program: bool,
    /// The configuration of an end.
    config: &'a dyn Fn(&mut Config, usize),
}

/// Kills one end, the other, and both, while numbers go both ways.
fn kill(way: &Way<'_>) {
    let Some(cables) = Cables::new() else { return };
    let held = |end: usize| held(&cables, end, !way.leaves_program);
    let (clean, before) = ([0, 1].map(held), files());
    let mut runtimes = [0, 1].map(|end| cables.runtime(PROGRAM, end, |config| (way.config)(config, end)));
    let (a, b) = (runtimes[0].session("one"), runtimes[1].session("two"));
    assert!([0, 1].iter().all(|end| held(*end) != clean[*end]), "what is looked at shows no runtime");
    let there = ends(&a, &b, (way.qos)(reliable()), "there");
    let back = ends(&b, &a, (way.qos)(reliable()), "back");
    let newest = ends(&a, &b, (way.qos)(Qos::default()), "newest");
    let streams = [(&there.0, "host-1"), (&back.0, "host-0"), (&newest.0, "host-1")];
    // Both have the datapath, the streams go over it, and messages go on coming by each.
    let resume = |runtimes: &mut [Process; 2], seen: &[&AtomicUsize]| {
        let mut states = [None, None];
        let open = |state: &Option<Value>| state.as_ref().is_some_and(|state| state["state"] == "open");
        let over = |(stream, host): &(&Stream, &str)| {
            stream.effective_qos().iter().any(|e| e.peer == *host && e.datapath == way.datapath)
        };
        let mut count: Option<Vec<usize>> = None;
        let resumed = eventually(|| {
            for runtime in runtimes.iter_mut() {
                if runtime.lives() {
                    continue;
                }
                assert!(!way.bears, "it died of another's death, or of its own start");
                (count, states) = (None, [None, None]);
                runtime.again();
            }
            if !states.iter().all(open) {
                states = [state(&runtimes[0]), state(&runtimes[1])];
            }
            let all = states.iter().all(open) && streams.iter().all(over);
            let now = || seen.iter().map(|seen| seen.load(Ordering::Relaxed));
            match &count {
                Some(before) if all => now().zip(before).all(|(now, before)| now > before + 100),
                _ => {
                    count = all.then(|| now().collect());
                    false
                }
            }
        });
        assert!(resumed, "{states:?}; {}", law(&a));
    };
    let (mut backwards, mut best) = ((0, Vec::new()), (0, Vec::new()));
    let forwards = numbers(&there.1, &there.2, true, |one| {
        backwards = numbers(&back.1, &back.2, true, |two| {
            best = numbers(&newest.1, &newest.2, false, |three| {
                for killed in [&[1][..], &[0], &[0, 1]] {
                    resume(&mut runtimes, &[one, two, three]);
                    killed.iter().for_each(|end| runtimes[*end].kill());
                    // The kernel cleans up when the last descriptor is closed, which may be a moment after the process's end.
                    for end in killed {
                        assert!(eventually(|| held(*end) == clean[*end]), "{:?} of {:?}", held(*end), clean[*end]);
                    }
                    // The kernel has the interface, whatever remains of a program.
                    let answered = if killed.len() == 2 { cables.ping("10.96.0.2") } else { Ok(String::new()) };
                    assert!(answered.is_ok(), "{answered:?}");
                    assert_eq!(files(), before, "files of a killed runtime");
                    killed.iter().for_each(|end| runtimes[*end].again());
                }
                resume(&mut runtimes, &[one, two, three]);
                // At once: nobody has time to clean up after them.
                runtimes.iter_mut().for_each(Process::again);
                resume(&mut runtimes, &[one, two, three]);
            });
        });
    });
    in_order(forwards.0, &forwards.1, true, &a);
    in_order(backwards.0, &backwards.1, true, &b);
    in_order(best.0, &best.1, false, &a);
}

/// Without another datapath than kernel UDP.
fn alone(config: &mut Config, _: usize) {
    config.network.get_or_insert_default().datapath.clear();
}

/// DPDK with one of its devices in software instead of AF_PACKET on the interface.
fn with_device(config: &mut Config, library: &Path, device: String) {
    on_dpdk(config, library);
    let datapath = &mut config.network.get_or_insert_default().datapath[0];
    (datapath.interface, datapath.device) = (String::new(), device);
}

#[test]
fn runtimes_killed_over_udp_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over udp", TEST);
    kill(&Way { datapath: "udp", qos: |qos| qos, bears: true, leaves_program: false, config: &alone });
}

#[test]
fn runtimes_killed_over_xdp_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over xdp", TEST);
    kill(&Way { datapath: "xdp", qos: accelerated, bears: true, leaves_program: false, config: &|_, _| () });
}

#[test]
fn runtimes_killed_over_dpdk_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over AF_PACKET", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    kill(&Way {
        datapath: "dpdk",
        qos: unsparing,
        bears: true,
        leaves_program: false,
        config: &|config, _| on_dpdk(config, &library),
    });
}

#[test]
fn runtimes_killed_over_memif_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over memif", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let config = |config: &mut Config, end: usize| {
        let (role, at) = (["server", "client"][end], folder.path().join("memif"));
        let device = format!("net_memif0,role={role},socket={},socket-abstract=no", at.display());
        with_device(config, &library, device);
    };
    kill(&Way { datapath: "dpdk", qos: unsparing, bears: false, leaves_program: false, config: &config });
}

#[test]
fn runtimes_killed_over_dpdks_af_xdp_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over DPDK's AF_XDP", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let config = |config: &mut Config, _| with_device(config, &library, "net_af_xdp0,iface=veth1".into());
    kill(&Way { datapath: "dpdk", qos: unsparing, bears: true, leaves_program: true, config: &config });
}
