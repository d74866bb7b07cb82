//! How many messages a second go one way between two network namespaces over veth, by kernel UDP:
//!
//! - `raw`: bare UDP with segmentation offload and joined receive, no header, nothing looked at;
//! - `framed`: the UDP datapath with frames that are built and parsed, nothing acknowledged;
//! - `path`: a whole `insane-transport` path over it, reliable, on a link declared dedicated.
//!
//! `udp_rates [SIZE...]` as root makes the namespaces, runs each for two seconds and removes them. It prints, for each, what
//! arrived, in messages a second and Gbit/s, the loss, and the ratio to `raw`.

mod framed;
mod path;
mod raw;

use insane_tests_namespaces::Namespaces;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SECONDS: f64 = 2.0;
const PORT: u16 = 45_700;

/// What a receiver saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    pub(crate) lost: u64,
}

/// A clock that both ends stop by: the sender runs for so long, the receiver until nothing comes any more.
#[derive(Debug)]
pub(crate) struct Watch {
    first: Option<Instant>,
    last: Instant,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { first: None, last: Instant::now() }
    }

    /// Something came.
    pub(crate) fn tick(&mut self) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
    }

    /// Whether the sender has ended.
    pub(crate) fn over(&self) -> bool {
        self.last.elapsed() > Duration::from_millis(if self.first.is_some() { 400 } else { 8000 })
    }

    pub(crate) fn time(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last - first)
    }
}

/// Two namespaces with a veth between them.
fn namespaces() -> Option<Namespaces> {
    Namespaces::new(["ra", "rb"], |[a, b]| {
        vec![
            format!("link add veth0 netns {a} type veth peer name veth0 netns {b}"),
            format!("-n {a} addr add 10.97.0.1/24 dev veth0"),
            format!("-n {b} addr add 10.97.0.2/24 dev veth0"),
            format!("-n {a} link set veth0 up"),
            format!("-n {b} link set veth0 up"),
        ]
    })
}

/// This program again, in a namespace, as one end.
fn end(namespace: &str, core: &str, mode: &str, role: &str, size: usize) -> Command {
    let me = std::env::current_exe().expect("the program's own path");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "taskset", "-c", core]).arg(me).args([mode, role, &size.to_string()]);
    command
}

fn measure(namespaces: &Namespaces, mode: &str, size: usize) -> Option<f64> {
    let (a, b) = (namespaces.name(0), namespaces.name(1));
    let receiver = end(b, "3", mode, "rx", size).stdout(Stdio::piped()).spawn().ok()?;
    std::thread::sleep(Duration::from_millis(300));
    let mut sender = end(a, "2", mode, "tx", size).stdout(Stdio::null()).spawn().ok()?;
    let output = receiver.wait_with_output().ok()?;
    sender.wait().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [messages, bytes, seconds, lost] = fields[..] else { return None };
    let rate = messages / seconds;
    let loss = 100.0 * lost / (messages + lost).max(1.0);
    let gbits = bytes * 8e-9 / seconds;
    println!("{mode:7} {size:8} B  {:9.3} M/s  {gbits:7.2} Gbit/s  loss {loss:.3} %", rate / 1e6);
    Some(rate)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, role, size] = &arguments[..]
        && ["tx", "rx"].contains(&role.as_str())
    {
        let size = size.parse().expect("a size in bytes");
        let (here, there) = if role == "rx" { ("10.97.0.2", "10.97.0.1") } else { ("10.97.0.1", "10.97.0.2") };
        let address = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), PORT);
        let (here, there, receive) = (address(here), address(there), role == "rx");
        let seen = match mode.as_str() {
            "raw" => raw::run(here, there, size, receive, SECONDS),
            "framed" => framed::run(here, there, size, receive, SECONDS),
            _ => path::run(here, there, size, receive, SECONDS),
        };
        println!("{} {} {} {}", seen.messages, seen.bytes, seen.time.as_secs_f64(), seen.lost);
        return;
    }
    let Some(namespaces) = namespaces() else { return };
    let sizes: Vec<usize> = arguments.iter().filter_map(|size| size.parse().ok()).collect();
    for size in if sizes.is_empty() { vec![64, 1024, 8192, 65_536] } else { sizes } {
        let raw = measure(&namespaces, "raw", size);
        for mode in ["framed", "path"] {
            if let (Some(rate), Some(raw)) = (measure(&namespaces, mode, size), raw) {
                println!("        {:.0} % of raw", 100.0 * rate / raw);
            }
        }
    }
}
