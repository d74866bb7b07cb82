//! Round trips and one-way rates over veth between two network namespaces, by AF_XDP:
//!
//! - `raw`: a bare loop over the rings; payload lies in the UMEM already and is not looked at when it comes;
//! - `view`: the datapath with received frames looked at where they lie, payload copied once into the UMEM for sending;
//! - `slots`: the datapath by its trait, which copies received frames into the caller's slots too.
//!
//! `xdp_rates [REPETITIONS]` as root makes the namespaces, runs each in the driver and before the stack, in turn, both ends
//! spinning on a core of their own, and removes the namespaces. It prints medians over the repetitions, tails, loss, and the
//! ratios to `raw` of the same repetition.

mod datapath;
mod raw;

use insane_tests_namespaces::Namespaces;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SECONDS: f64 = 1.0;
const ROUND_TRIPS: usize = 20_000;
const WARM: usize = 2_000;
const DEVICE: &str = "veth0";
/// Frame sizes in bytes, with the MTU of the cable that carries them.
const SIZES: [(usize, u32); 3] = [(64, 1500), (1024, 1500), (8192, 9000)];
const MODES: [&str; 3] = ["raw", "view", "slots"];

/// The addresses of the two ends, and the ethertype of all frames.
const MACS: [[u8; 6]; 2] = [[2, 0x97, 0, 0, 0, 1], [2, 0x97, 0, 0, 0, 2]];
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Where a frame's number is.
const NUMBER: core::ops::Range<usize> = 16..24;

/// The figures of one repetition: of its round trips, and of its one-way rate.
type Seen = (Vec<f64>, Vec<f64>);

/// One end of a cable, whatever moves the frames.
trait Mover {
    /// Sends frames with these numbers, as many as go now; says how many.
    fn send(&mut self, first: u64, count: usize) -> usize;
    /// Hands the numbers of frames that have come to `see`; says how many came.
    fn receive(&mut self, see: &mut dyn FnMut(u64)) -> usize;
}

/// A frame of a size from one end to the other, with room for its number.
fn template(end: usize, size: usize) -> Vec<u8> {
    let mut frame = [&MACS[1 - end][..], &MACS[end], &ETHERTYPE].concat();
    frame.resize(size, 0x5a);
    frame
}

/// The number of a frame of ours, from its first bytes.
fn number(frame: &[u8]) -> Option<u64> {
    let bytes = frame.get(NUMBER)?.try_into().ok()?;
    (frame[12..14] == ETHERTYPE).then(|| u64::from_le_bytes(bytes))
}

/// Round trips, one at a time: their times in nanoseconds, and how many were lost.
fn ping(mover: &mut dyn Mover) -> (Vec<u64>, usize) {
    let (mut times, mut lost, begin) = (Vec::with_capacity(ROUND_TRIPS), 0, Instant::now());
    let mut next = 1;
    while times.len() < ROUND_TRIPS + WARM && begin.elapsed() < Duration::from_secs(15) {
        let start = Instant::now();
        while mover.send(next, 1) == 0 {}
        let mut back = false;
        while !back && start.elapsed() < Duration::from_millis(100) {
            mover.receive(&mut |number| back |= number == next);
        }
        if back {
            times.push(start.elapsed().as_nanos() as u64);
        } else if times.len() > WARM {
            lost += 1;
        }
        next += 1;
    }
    times.drain(..WARM.min(times.len()));
    (times, lost)
}

/// Sends each frame back, until none comes any more.
fn pong(mover: &mut dyn Mover) {
    let (mut last, mut any) = (Instant::now(), false);
    while last.elapsed() < Duration::from_millis(if any { 400 } else { 8000 }) {
        let mut got = None;
        if mover.receive(&mut |number| got = Some(number)) > 0 {
            last = Instant::now();
            any = true;
        }
        if let Some(number) = got {
            while mover.send(number, 1) == 0 {}
        }
    }
}

/// Sends for so long.
fn send(mover: &mut dyn Mover) {
    let (mut next, start) = (1, Instant::now());
    while start.elapsed().as_secs_f64() < SECONDS {
        next += mover.send(next, 64) as u64;
    }
}

/// Receives until nothing comes any more: frames, seconds, and how many were missing.
fn receive(mover: &mut dyn Mover) -> (u64, f64, u64) {
    let (mut count, mut highest, mut first) = (0u64, 0u64, None);
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(if first.is_some() { 300 } else { 8000 }) {
        let came = mover.receive(&mut |number| highest = highest.max(number));
        if came > 0 {
            last = Instant::now();
            first.get_or_insert(last);
            count += came as u64;
        }
    }
    let seconds = first.map_or(1e-9, |first| (last - first).as_secs_f64());
    (count, seconds, highest.saturating_sub(count))
}

/// Two namespaces with a veth between them.
fn namespaces(mtu: u32) -> Option<Namespaces> {
    Namespaces::new(["ra", "rb"], |names| {
        let [a, b] = names;
        let mut steps =
            vec![format!("link add {DEVICE} netns {a} mtu {mtu} type veth peer name {DEVICE} netns {b} mtu {mtu}")];
        for (name, mac) in names.iter().zip(MACS) {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            steps.push(format!("-n {name} link set {DEVICE} address {mac} addrgenmode none"));
            steps.push(format!("-n {name} link set {DEVICE} up"));
        }
        steps
    })
}

/// The last two cores that this process may use.
fn cores() -> [String; 2] {
    let set = rustix::thread::sched_getaffinity(None).expect("the own cores");
    let all: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    let at = |back: usize| all[all.len().saturating_sub(back)].to_string();
    [at(2), at(1)]
}

/// This program again, in a namespace, as one end; its last line of output.
fn run(namespaces: &Namespaces, what: [&str; 2], attach: &str, mode: &str, size: usize) -> Option<Vec<f64>> {
    let me = std::env::current_exe().ok()?;
    let start = |end: usize| {
        Command::new("ip")
            .args(["netns", "exec", namespaces.name(end), "taskset", "-c", &cores()[end]])
            .arg(&me)
            .args(["end", what[end], attach, mode, &size.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .ok()
    };
    let second = start(1)?;
    std::thread::sleep(Duration::from_millis(250));
    let first = start(0)?;
    let outputs = [first.wait_with_output().ok()?, second.wait_with_output().ok()?];
    let text: String = outputs.iter().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).collect();
    let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (!figures.is_empty()).then_some(figures)
}

fn end(arguments: &[String]) {
    let [what, attach, mode, size] = arguments else { panic!("see the head of this program") };
    let size: usize = size.parse().expect("a size in bytes");
    let at = usize::from(["pong", "rx"].contains(&what.as_str()));
    let mover: &mut dyn Mover = match mode.as_str() {
        "raw" => &mut raw::Raw::open(at, size, attach == "generic"),
        mode => &mut datapath::Ours::open(at, size, attach == "generic", mode == "slots"),
    };
    match what.as_str() {
        "ping" => {
            let (mut times, lost) = ping(mover);
            times.sort_unstable();
            let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or(0) as f64 / 1e3;
            println!("{} {} {} {lost}", at(0.5), at(0.99), at(0.999));
        }
        "pong" => pong(mover),
        "tx" => send(mover),
        _ => {
            let (count, seconds, lost) = receive(mover);
            println!("{} {} {}", count as f64 / seconds / 1e6, lost as f64 / (count + lost).max(1) as f64, seconds);
        }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "end") {
        return end(&arguments[1..]);
    }
    let repetitions: usize = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(3);
    for (size, mtu) in SIZES {
        let Some(namespaces) = namespaces(mtu) else { return };
        for attach in ["native", "generic"] {
            let mut seen = [const { Vec::new() }; MODES.len()];
            for _ in 0..repetitions {
                for (mode, seen) in MODES.iter().zip(&mut seen) {
                    let trips = run(&namespaces, ["ping", "pong"], attach, mode, size);
                    let rate = run(&namespaces, ["tx", "rx"], attach, mode, size);
                    let (Some(trips), Some(rate)) = (trips, rate) else {
                        println!("{mode} {attach} {size}: it could not be measured");
                        return;
                    };
                    seen.push((trips, rate));
                }
            }
            for (mode, own) in MODES.iter().zip(&seen) {
                let trip = |n: usize| median(own.iter().map(|(trips, _)| trips[n]));
                let rate = |n: usize| median(own.iter().map(|(_, rate)| rate[n]));
                let ratio =
                    |of: &dyn Fn(&Seen) -> f64| median(own.iter().zip(&seen[0]).map(|(own, raw)| of(own) / of(raw)));
                println!(
                    "{attach:7} {mode:5} {size:5} B  round trip p50 {:6.2} p99 {:6.2} p99.9 {:7.2} us, lost {}, {:.2} of raw   \
                     one way {:.3} M/s {:6.2} Gbit/s, loss {:.1} %, {:.2} of raw",
                    trip(0),
                    trip(1),
                    trip(2),
                    own.iter().map(|(trips, _)| trips[3]).sum::<f64>(),
                    ratio(&|(trips, _)| trips[0]),
                    rate(0),
                    rate(0) * size as f64 * 8e-3,
                    rate(1) * 100.0,
                    ratio(&|(_, rate)| rate[0]),
                );
            }
        }
    }
}
