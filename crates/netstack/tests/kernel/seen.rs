//! What went over the cable, as Wireshark sees it.

use std::process::Command;

use insane_netstack::tcp::TcpConfig;

use crate::net::{Cable, Host, KERNEL, V4, V6};
use crate::{address, content};

/// A capture file: the classic format with nanoseconds, Ethernet.
fn capture(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for (at, frame) in frames {
        let (seconds, rest) = ((at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32);
        for word in [seconds, rest, frame.len() as u32, frame.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(frame);
    }
    out
}

/// What Wireshark's experts call a warning; what is worse is more.
const WARNING: u32 = 0x60_0000;

/// Warnings that streams may have. Whoever reads gets the processor later than whoever sends, and the window is as large as what may
/// wait for that: it fills up, and while it has no room, that is said.
const EXPECTED: [&str; 2] = ["TCP window specified by the receiver is now completely full", "TCP Zero Window segment"];

/// How many frames Wireshark has read, and those at which its experts warn, or worse, of what is not expected; `None` without tshark.
fn experts(frames: &[(u64, Vec<u8>)], expected: &[&str]) -> Option<(usize, Vec<String>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("seen.pcap");
    std::fs::write(&file, capture(frames)).expect("it can be written");
    let mut command = Command::new("tshark");
    command.args([
        "-r",
        file.to_str()?,
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "occurrence=a",
        "-E",
        "aggregator=^",
    ]);
    for preference in ["ip.check_checksum", "udp.check_checksum", "tcp.check_checksum"] {
        command.args(["-o", &format!("{preference}:TRUE")]);
    }
    for field in ["frame.number", "_ws.expert.severity", "_ws.expert.message", "_ws.malformed"] {
        command.args(["-e", field]);
    }
    let Ok(output) = command.output() else {
        println!("SKIPPED: tshark is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let bad = |line: &&str| {
        let [_, severities, messages, malformed] = line.split('|').collect::<Vec<_>>()[..] else { return true };
        let warns = |(severity, message): (&str, &str)| {
            severity.parse::<u32>().is_ok_and(|severity| severity >= WARNING) && !expected.contains(&message)
        };
        severities.split('^').zip(messages.split('^')).any(warns) || !malformed.is_empty()
    };
    Some((text.lines().count(), text.lines().filter(bad).map(str::to_owned).collect()))
}

#[test]
fn wiresharks_experts_find_nothing_wrong() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |_| ());
    host.wire.keep = 20_000;
    let bound = host.engine.bind(None, 44000).expect("it is free");
    for (ours, kernels, family) in [(V4, KERNEL[0], "-4"), (V6, KERNEL[1], "-6")] {
        for size in [56, 8000] {
            let output = host.while_runs(cable.start(0, &format!("ping {family} -n -c 1 -W 10 -s {size} {ours}")));
            assert!(output.status.success());
        }
        let socket = cable.udp(0, &address(kernels, 44001).to_string(), Some(address(ours, 44000)));
        let closed = cable.udp(0, &address(kernels, 0).to_string(), Some(address(ours, 44999)));
        closed.send(b"closed").expect("it goes");
        for size in [0, 1, 17, 1000, 1472, 1473, 5000, 65_507] {
            let sent = content(size);
            let now = host.wire.now();
            host.engine.send(now, bound, address(kernels, 44001), &[&sent], &mut host.wire).expect("it goes");
            socket.send(&sent).expect("it goes");
            let mut buffer = vec![0; 65_536];
            host.until("both get it", |host| {
                let _ = socket.recv(&mut buffer);
                host.got.pop().is_some()
            });
        }
    }
    let frames = std::mem::take(&mut host.wire.seen);
    assert!(frames.len() > 200, "{}", frames.len());
    let Some((read, bad)) = experts(&frames, &[]) else { return };
    assert_eq!(read, frames.len());
    assert!(bad.is_empty(), "{bad:#?}");
    // The same with one bit changed in each: the experts do look.
    let broken: Vec<_> = frames.iter().map(|(at, frame)| (*at, flipped(frame))).collect();
    let found = experts(&broken, &[]).map_or(0, |(_, bad)| bad.len());
    assert!(found > frames.len() / 20, "{found}");
}

#[test]
fn wiresharks_experts_find_nothing_wrong_in_streams() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |config| config.tcp = Some(TcpConfig::default()));
    host.wire.keep = 20_000;
    for kernels in KERNEL {
        crate::streams::to_the_kernel(&cable, &mut host, kernels, 300_000);
    }
    let frames = std::mem::take(&mut host.wire.seen);
    assert!(frames.len() > 300, "{}", frames.len());
    let Some((read, bad)) = experts(&frames, &EXPECTED) else { return };
    assert_eq!(read, frames.len());
    assert!(bad.is_empty(), "{bad:#?}");
    // The same with holes in it: the experts do look.
    let holed: Vec<_> = frames.into_iter().enumerate().filter(|(n, _)| n % 10 != 5).map(|(_, frame)| frame).collect();
    assert!(experts(&holed, &EXPECTED).is_some_and(|(_, bad)| !bad.is_empty()));
}

fn flipped(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(byte) = frame.get_mut(20) {
        *byte ^= 1;
    }
    frame
}
