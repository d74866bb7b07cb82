//! Runtimes killed under load on each datapath: nothing of them remains, they start again on the same configuration, and the
//! streams go on over the same datapath. Without root or what the datapath takes: SKIPPED.

use insane::{Qos, Stream};
use insane_runtime::config::Config;
use insane_tests_host::Watchdog;
use insane_tests_namespaces::run;
use insane_tests_network::cables::{
    Cables, accelerated, dpdk_object, ends, on_dpdk, on_plugin, plugin_template, unsparing,
};
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
    kill_and_look(way, &mut |_| ());
}

/// The same. `look` is called while both run, with none, and when some have been killed, with how many.
fn kill_and_look(way: &Way<'_>, look: &mut dyn FnMut(usize)) {
    let Some(cables) = Cables::new() else { return };
    let untouched = [0, 1].map(|end| held(&cables, end, true));
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
                    look(0);
                    killed.iter().for_each(|end| runtimes[*end].kill());
                    // The kernel cleans up when the last descriptor is closed, which may be a moment after the process's end.
                    for end in killed {
                        assert!(eventually(|| held(*end) == clean[*end]), "{:?} of {:?}", held(*end), clean[*end]);
                    }
                    // The kernel has the interface, whatever remains of a program.
                    let answered = if killed.len() == 2 { cables.ping("10.96.0.2") } else { Ok(String::new()) };
                    assert!(answered.is_ok(), "{answered:?}");
                    assert_eq!(files(), before, "files of a killed runtime");
                    look(killed.len());
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
    // In good order they leave nothing at all, also not of those that were killed before them.
    runtimes.iter_mut().for_each(Process::leave);
    for (end, untouched) in untouched.iter().enumerate() {
        let held = || self::held(&cables, end, true);
        assert!(eventually(|| held() == *untouched), "{:?} of {untouched:?}", held());
    }
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
fn runtimes_killed_over_virtio_user_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over virtio-user", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let config = |config: &mut Config, end: usize| {
        let at = folder.path().join("vhost");
        let device = [format!("net_vhost0,iface={}", at.display()), format!("net_virtio_user0,path={}", at.display())];
        with_device(config, &library, device[end].clone());
    };
    kill(&Way { datapath: "dpdk", qos: unsparing, bears: true, leaves_program: false, config: &config });
}

/// Whatever a plug-in leaves in its folder, its successor takes over.
#[test]
fn runtimes_killed_over_a_plugin_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over a plug-in", TEST);
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = plugin_template(folder.path()) else { return };
    let config = |config: &mut Config, end: usize| on_plugin(config, &library, folder.path(), end);
    kill(&Way { datapath: "plugin", qos: accelerated, bears: true, leaves_program: false, config: &config });
}

/// Large pages of 2 MiB that the machine sets aside for as long as this lives.
struct LargePages {
    had: u64,
}

impl LargePages {
    const FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

    fn read(name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("{}/{name}", Self::FOLDER)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// `None` where the machine has not got them; then it has said so.
    fn reserve(count: u64) -> Option<Self> {
        let this = Self { had: Self::read("nr_hugepages") };
        let asked = std::fs::write(format!("{}/nr_hugepages", Self::FOLDER), (this.had + count).to_string());
        if asked.is_ok() && Self::read("nr_hugepages") >= this.had + count && Self::read("free_hugepages") >= count {
            return Some(this);
        }
        println!("SKIPPED: {count} hugepages of 2 MiB cannot be reserved here: {asked:?}");
        None
    }

    /// How many are in use, by whomever.
    fn used() -> u64 {
        Self::read("nr_hugepages") - Self::read("free_hugepages")
    }
}

impl Drop for LargePages {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{}/nr_hugepages", Self::FOLDER), self.had.to_string());
    }
}

#[test]
fn runtimes_killed_over_dpdk_leave_no_hugepage() {
    let _watchdog = Watchdog::start("killed with hugepages", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(_pages) = LargePages::reserve(64) else { return };
    let used = LargePages::used();
    let config = |config: &mut Config, _| {
        on_dpdk(config, &library);
        let datapath = &mut config.network.get_or_insert_default().datapath[0];
        datapath.eal = "--in-memory --single-file-segments --no-pci -m 56".into();
    };
    // Each of the two has as many.
    let mut both = 0;
    let way = Way { datapath: "dpdk", qos: unsparing, bears: true, leaves_program: false, config: &config };
    kill_and_look(&way, &mut |killed| {
        let now = || LargePages::used() - used;
        if killed == 0 {
            both = now();
            assert!(both > 0, "what is looked at shows no hugepages");
        } else {
            let rest = both / 2 * (2 - killed as u64);
            assert!(eventually(|| now() == rest), "{} hugepages are in use, of {both}", now());
        }
    });
    assert!(eventually(|| LargePages::used() == used), "{} hugepages are in use", LargePages::used());
}

#[test]
fn runtimes_killed_over_dpdks_af_xdp_leave_nothing_and_their_streams_go_on() {
    let _watchdog = Watchdog::start("killed over DPDK's AF_XDP", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let config = |config: &mut Config, _| with_device(config, &library, "net_af_xdp0,iface=veth1".into());
    kill(&Way { datapath: "dpdk", qos: unsparing, bears: true, leaves_program: true, config: &config });
}
