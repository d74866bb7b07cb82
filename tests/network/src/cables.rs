//! Hosts with AF_XDP beside kernel UDP, in network namespaces.

use crate::{LIMIT, Process, config, eventually, free_addresses, law};
use insane::{Acceleration, EffectiveQos, Qos, Resources, Session, Sink, Source, SourceOptions, Stream};
use insane_runtime::config::{Config, Datapath, Kind, Policy};
use insane_tests_namespaces::{Namespaces, has_af_xdp, run};
use std::path::{Path, PathBuf};

/// Two namespaces with two cables between them: UDP is bound to the first, AF_XDP to the second.
#[derive(Debug)]
pub struct Cables(pub Namespaces);

impl Cables {
    /// `None` where namespaces or AF_XDP sockets cannot be made; then it has said so.
    #[must_use]
    pub fn new() -> Option<Self> {
        let namespaces = Namespaces::new(["pa", "pb"], |names| {
            let [a, b] = names;
            let mut steps: Vec<String> = ["veth0", "veth1"]
                .map(|device| format!("link add {device} netns {a} type veth peer name {device} netns {b}"))
                .into();
            for (end, name) in (1..).zip(names) {
                for (net, device) in ["veth0", "veth1"].iter().enumerate() {
                    steps.push(format!("-n {name} addr add 10.9{}.0.{end}/24 dev {device}", 5 + net));
                    steps.push(format!("-n {name} link set {device} up"));
                }
            }
            steps
        })?;
        has_af_xdp().then_some(Self(namespaces))
    }

    /// The configuration of an end, with AF_XDP.
    #[must_use]
    pub fn config(end: usize) -> Config {
        let addresses = [1, 2].map(|host| format!("10.95.0.{host}:7400").parse().expect("an address"));
        let mut config = config(&format!("host-{end}"), addresses[end], &addresses);
        let network = config.network.get_or_insert_default();
        network.interface = "veth0".into();
        network.datapath.push(Datapath {
            interface: "veth1".into(),
            address: format!("10.96.0.10{end}/24"),
            ..Datapath::default()
        });
        config
    }

    /// A runtime at an end. `program` is the test crate's `runtime`.
    #[must_use]
    pub fn runtime(&self, program: &str, end: usize, change: impl FnOnce(&mut Config)) -> Process {
        let mut config = Self::config(end);
        change(&mut config);
        Process::start(program, Some(self.0.name(end)), &config)
    }

    /// Pings by the kernel from the first end.
    ///
    /// # Errors
    /// What was not answered.
    pub fn ping(&self, to: &str) -> Result<String, String> {
        run("ip", &format!("netns exec {} ping -n -q -c 3 -i 0.02 -W 5 {to}", self.0.name(0)))
    }

    /// Takes a cable away, at both ends.
    ///
    /// # Panics
    /// When it is not there.
    pub fn take_away(&self, device: &str) {
        self.0.ip(0, &format!("link del {device}")).expect("it is there");
    }

    /// Makes it again as it was.
    ///
    /// # Panics
    /// When that cannot be done.
    pub fn make_again(&self, device: &str) {
        self.make(device, "");
    }

    /// The same, with so many queues each way at both ends.
    ///
    /// # Panics
    /// When that cannot be done.
    pub fn make_with_queues(&self, device: &str, queues: u32) {
        self.make(device, &format!("numrxqueues {queues} numtxqueues {queues} "));
    }

    fn make(&self, device: &str, like: &str) {
        let there = self.0.name(1);
        let link = format!("link add {device} {like}type veth peer name {device} {like}netns {there}");
        self.0.ip(0, &link).expect("it can be made");
        let net = if device == "veth0" { 95 } else { 96 };
        for end in 0..2 {
            self.0.ip(end, &format!("addr add 10.{net}.0.{}/24 dev {device}", end + 1)).expect("an address");
            self.0.ip(end, &format!("link set {device} up")).expect("it goes up");
        }
    }

    /// Whether an XDP program is attached to an end's interface.
    ///
    /// # Panics
    /// When the interface is gone.
    #[must_use]
    pub fn has_program(&self, end: usize) -> bool {
        self.0.ip(end, "link show dev veth1").expect("it is there").contains("xdp")
    }
}

/// The object with DPDK, built into `folder`; `None` where there is no DPDK to build it with, and then it has said so.
///
/// # Panics
/// When DPDK is there and it does not build.
#[must_use]
pub fn dpdk_object(folder: &str) -> Option<PathBuf> {
    let object = Path::new(folder).join("libinsane_dpdk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/datapaths/dpdk/c");
    match run("make", &format!("-C {} OUT={}", source.display(), object.display())) {
        Ok(_) => Some(object),
        Err(said) => {
            assert!(said.contains("there is no DPDK"), "{said}");
            println!("SKIPPED: there is no DPDK 22.11 to build with: scripts/setup dpdk");
            None
        }
    }
}

/// The plug-in in C that comes with `insane_datapath.h`, built as its maker would: a copy of its folder and of the header, and its own
/// Makefile. `None` where there is no C compiler; then it has said so.
///
/// # Panics
/// When it does not build.
#[must_use]
pub fn plugin_template(folder: &Path) -> Option<PathBuf> {
    if run("cc", "--version").is_err() {
        println!("SKIPPED: there is no C compiler");
        return None;
    }
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/datapath-plugin");
    for file in ["examples/unix_frames/Makefile", "examples/unix_frames/unix_frames.c", "include/insane_datapath.h"] {
        let name = Path::new(file).file_name().expect("a file");
        std::fs::copy(from.join(file), folder.join(name)).expect("it is copied");
    }
    run("make", &format!("-C {} INCLUDE=.", folder.display())).expect("it builds");
    Some(folder.join("unix_frames.so"))
}

/// A configuration with that plug-in, by this object, where the cables would have AF_XDP: the ends meet in a folder, and streams with
/// acceleration go there.
pub fn on_plugin(config: &mut Config, library: &Path, folder: &Path, end: usize) {
    let place = |end: usize| folder.join(format!("end{end}")).to_string_lossy().into_owned();
    let options = [("path", place(end)), ("peer", place(1 - end)), ("address", format!("02:99:00:00:00:0{}", end + 1))];
    let row = |when: &str, datapaths: &[Kind]| Policy {
        when: when.into(),
        datapaths: datapaths.to_vec(),
        ..Policy::default()
    };
    let network = config.network.get_or_insert_default();
    let datapath = &mut network.datapath[0];
    (datapath.kind, datapath.library) = (Kind::Plugin, library.display().to_string());
    datapath.interface.clear();
    datapath.options = options.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    network.policy = vec![row("acceleration=preferred", &[Kind::Plugin, Kind::Udp]), row("", &[Kind::Udp])];
}

/// The configuration of a host in this process that has that plug-in and knows no other host; its socket and the plug-in's are in a folder.
#[must_use]
pub fn alone_on_plugin(library: &Path, folder: &Path) -> Config {
    let address = free_addresses(1);
    let mut config = config("host-0", address[0], &address);
    config.runtime.socket = folder.join("s");
    let datapath = Datapath { address: "10.0.0.101/24".into(), ..Datapath::default() };
    config.network.get_or_insert_default().datapath.push(datapath);
    on_plugin(&mut config, library, folder, 0);
    config
}

/// A configuration with DPDK, by this object, where the cables would have AF_XDP.
pub fn on_dpdk(config: &mut Config, library: &Path) {
    let datapath = &mut config.network.get_or_insert_default().datapath[0];
    datapath.kind = Kind::Dpdk;
    datapath.library = library.display().to_string();
}

/// A QoS that DPDK is for.
#[must_use]
pub fn unsparing(mut qos: Qos) -> Qos {
    qos.set_resources(Resources::Unlimited);
    accelerated(qos)
}

/// A QoS with acceleration.
#[must_use]
pub fn accelerated(mut qos: Qos) -> Qos {
    qos.set_acceleration(Acceleration::Preferred);
    qos
}

/// What a stream gets towards a host, once that is known.
///
/// # Panics
/// When it does not get known.
#[must_use]
pub fn towards(stream: &Stream, host: &str) -> EffectiveQos {
    let mut found = None;
    let known = eventually(|| {
        found = stream.effective_qos().into_iter().find(|e| e.peer == host);
        found.is_some()
    });
    assert!(known, "{:?}", stream.effective_qos());
    found.expect("just found")
}

/// Waits until a stream goes over a datapath.
///
/// # Panics
/// When it does not.
pub fn goes_over(stream: &Stream, host: &str, datapath: &str) {
    let there = eventually(|| stream.effective_qos().iter().any(|e| e.peer == host && e.datapath == datapath));
    assert!(there, "not over {datapath}: {:?}", stream.effective_qos());
}

/// A source at one end and a sink at the other, of a stream of this QoS. On a busy machine a host may be away for longer than a
/// source waits for one that is slow: this one waits.
///
/// # Panics
/// When they do not meet.
#[must_use]
pub fn ends(from: &Session, to: &Session, qos: Qos, channel: &str) -> (Stream, Source, Sink) {
    let sink = to.stream(qos).unwrap().sink(channel).unwrap();
    let stream = from.stream(qos).unwrap();
    let options = SourceOptions { deadline: LIMIT, ..SourceOptions::default() };
    let source = stream.source_with(channel, options).unwrap();
    assert_eq!(source.wait_for_sinks(1, LIMIT), 1, "{}", law(from));
    (stream, source, sink)
}
