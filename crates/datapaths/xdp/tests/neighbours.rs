//! INSANE's frames and the kernel's on one interface: ping, UDP and TCP go on through the kernel under load, and a station of
//! INSANE's own gets what is for it and nothing else.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Cable, DEVICE, config, mac};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::pattern;
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath};
use insane_datapath_xdp::{Attach, Filter, XdpConfig, XdpDatapath};

const PATIENCE: Duration = Duration::from_secs(20);

fn slots() -> RxBatch {
    RxBatch { free: (0..64).map(|id| Slot::owned(id, 16_384)).collect(), ..RxBatch::default() }
}

/// Runs `ping` from one end; how many answers came.
fn ping(cable: &Cable, end: usize, arguments: &str) -> (String, usize) {
    let output = Command::new("ip")
        .args(["netns", "exec", cable.0.name(end), "ping", "-n", "-q"])
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else { return ("no ping".into(), 0) };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let received =
        words.iter().position(|word| word.starts_with("received")).and_then(|at| words.get(at - 1)?.parse().ok());
    (text, received.unwrap_or(0))
}

/// Sends frames of INSANE's from one end to the other until told to stop; how many came, and that each is whole.
fn load(from: &mut XdpDatapath, to: &mut XdpDatapath, stop: &AtomicBool, came: &AtomicU64) {
    let (mut rx, head) = (slots(), [&mac(1)[..], &mac(0), &[0x88, 0xb5]].concat());
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let mut tx = TxBatch::default();
        for _ in 0..64 {
            tx.frame(Address::Ethernet(mac(1)), &[&head[..], &pattern(number, 1000)].concat(), 0);
            number += 1;
        }
        from.transmit(&mut tx);
        while to.receive(&mut rx, None).frames > 0 {
            for taken in rx.taken.drain(..) {
                let frame = taken.frames().next().expect("a frame");
                assert_eq!(frame[..14], head[..], "what is not INSANE's was taken");
                let number = u64::from_le_bytes(frame[14..22].try_into().expect("eight bytes"));
                assert!(frame[14..] == pattern(number, 1000));
                came.fetch_add(1, Ordering::Relaxed);
                rx.free.push(taken.slot);
            }
        }
    }
}

/// Datagrams to an echo behind the kernel's stack and back. Under load some may be lost: each is sent until it is answered.
fn udp(cable: &Cable, rounds: u32) {
    let (server, address) = cable.0.inside(1, || {
        let socket = UdpSocket::bind("10.98.0.2:0").expect("a port");
        let address = socket.local_addr().expect("it is bound");
        (socket, address)
    });
    let client = cable.0.inside(0, || UdpSocket::bind("10.98.0.1:0").expect("a port"));
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((len, from)) = server.recv_from(&mut buffer) {
                    let _ = server.send_to(&buffer[..len], from);
                }
            }
        });
        let start = Instant::now();
        for round in 0..rounds {
            let datagram = pattern(u64::from(round), 8 + round as usize * 13 % 1400);
            let mut buffer = [0; 2048];
            loop {
                client.send_to(&datagram, address).expect("it can be sent");
                match client.recv_from(&mut buffer) {
                    Ok((len, _)) if buffer[..len] == datagram => break,
                    _ => assert!(start.elapsed() < PATIENCE, "datagram {round} is not answered"),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A few megabytes through a TCP connection: large segments, with checksums that the interface is to make.
fn tcp(cable: &Cable, bytes: usize) {
    let listener = cable.0.inside(1, || TcpListener::bind("10.98.0.2:0").expect("a port"));
    let address = listener.local_addr().expect("it is bound");
    let payload: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("all of it");
            got
        });
        let mut stream = cable.0.inside(0, || TcpStream::connect_timeout(&address, PATIENCE).expect("a connection"));
        stream.write_all(&payload).expect("it can be sent");
        drop(stream);
        assert!(receiver.join().expect("it ends") == payload, "the bytes are not what was sent");
    });
}

fn the_kernels_traffic_keeps_flowing(attach: Attach, mtu: u32) {
    let Some(cable) = Cable::new(mtu, 1) else { return };
    let on = config(attach);
    let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(&mut a, &mut b, &stop, &came));
        // Stops the load even if something here fails.
        let result = std::panic::catch_unwind(|| {
            let begun = came.load(Ordering::Relaxed);
            let (text, received) = ping(&cable, 0, "-c 50 -i 0.01 -W 5 10.98.0.2");
            assert!(received >= 40, "{text}");
            let (text, received) = ping(&cable, 1, "-6 -c 50 -i 0.01 -W 5 fd98::1");
            assert!(received >= 40, "{text}");
            udp(&cable, 300);
            tcp(&cable, 4 << 20);
            assert!(came.load(Ordering::Relaxed) > begun + 1000, "there was no load");
        });
        stop.store(true, Ordering::Relaxed);
        loaded.join().expect("it ends");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(came.load(Ordering::Relaxed) > 1000);
}

#[test]
fn the_kernels_traffic_keeps_flowing_beside_a_filter_in_the_driver() {
    the_kernels_traffic_keeps_flowing(Attach::Native, 1500);
}

#[test]
fn the_kernels_traffic_keeps_flowing_beside_a_filter_before_the_stack() {
    the_kernels_traffic_keeps_flowing(Attach::Generic, 1500);
}

#[test]
fn the_kernels_traffic_keeps_flowing_with_jumbo_frames() {
    the_kernels_traffic_keeps_flowing(Attach::Native, 9000);
}

/// Receives until a frame is as wanted; all frames that came on the way.
fn receive_until(xdp: &mut XdpDatapath, mut wanted: impl FnMut(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let (mut rx, mut came, start) = (slots(), Vec::new(), Instant::now());
    loop {
        xdp.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            came.extend(taken.frames().map(<[u8]>::to_vec));
            rx.free.push(taken.slot);
        }
        if came.iter().any(|frame| wanted(frame)) {
            return came;
        }
        assert!(start.elapsed() < PATIENCE, "it did not come; {} others did", came.len());
    }
}

#[test]
fn a_station_of_its_own_gets_what_is_for_it_and_the_kernel_the_rest() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let station = [2, 0x98, 0, 0, 0, 0x77];
    let (v4, v6): (IpAddr, IpAddr) = ("10.98.0.77".parse().expect("one"), "fd98::77".parse().expect("one"));
    let filter = Filter { ethertypes: vec![], station: Some(station), addresses: vec![v4, v6], ..Filter::default() };
    let mut xdp = cable.open(1, &XdpConfig { filter, ..config(Attach::NativeOrGeneric) });
    assert_eq!(xdp.address(), Some(Address::Ethernet(station)));
    // The kernel at the other end asks for the station, by ARP to everybody and by neighbour solicitation to a group.
    let (asks, asked) = (cable.0.name(0).to_owned(), [v4, v6]);
    let pings = std::thread::spawn(move || {
        for address in asked {
            let _ = Command::new("ip")
                .args(["netns", "exec", &asks, "ping", "-n", "-q", "-c", "1", "-W", "1", &address.to_string()])
                .stdin(Stdio::null())
                .output();
        }
    });
    let arp =
        |frame: &[u8]| frame[..6] == [0xff; 6] && frame[12..14] == [0x08, 0x06] && frame[38..42] == [10, 98, 0, 77];
    let solicitation = |frame: &[u8]| frame[..3] == [0x33, 0x33, 0xff] && frame.get(54) == Some(&135);
    let (mut arps, mut solicitations) = (0, 0);
    let first = receive_until(&mut xdp, arp);
    let second = receive_until(&mut xdp, solicitation);
    pings.join().expect("they end");
    for frame in first.iter().chain(&second) {
        arps += u32::from(arp(frame));
        solicitations += u32::from(solicitation(frame));
        assert!(arp(frame) || solicitation(frame), "this is the kernel's: {frame:02x?}");
    }
    assert!(arps > 0 && solicitations > 0);
    // Once it knows the station's address, everything to it comes; here an echo request.
    let [a, b, c, d, e, g] = station;
    let lladdr = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}");
    cable.0.ip(0, &format!("neigh replace {v4} lladdr {lladdr} dev {DEVICE}")).expect("a neighbour");
    let (text, answers) = ping(&cable, 0, "-c 1 -W 1 10.98.0.77");
    assert_eq!(answers, 0, "nobody answers here: {text}");
    receive_until(&mut xdp, |frame| frame[..6] == station && frame[23] == 1 && frame[34] == 8);
    // The kernel's own station on the same interface answers as always: ARP, echo, datagrams.
    cable.0.ip(0, &format!("neigh flush dev {DEVICE}")).expect("it can be flushed");
    let (text, answers) = ping(&cable, 0, "-c 5 -i 0.01 -W 5 10.98.0.2");
    assert_eq!(answers, 5, "{text}");
    udp(&cable, 20);
}

#[test]
fn datagrams_to_listed_ports_are_taken_and_others_reach_the_kernel() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let filter = Filter { ethertypes: vec![], udp_ports: vec![7411], ..Filter::default() };
    let mut xdp = cable.open(1, &XdpConfig { filter, ..config(Attach::NativeOrGeneric) });
    for (bind, to) in [("10.98.0.1:0", "10.98.0.2"), ("[fd98::1]:0", "[fd98::2]")] {
        let client = cable.0.inside(0, || UdpSocket::bind(bind).expect("a port"));
        let server = cable.0.inside(1, || UdpSocket::bind(format!("{to}:7412")).expect("the port"));
        server.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let taken = cable.0.inside(1, || UdpSocket::bind(format!("{to}:7411")).expect("the port"));
        taken.set_nonblocking(true).expect("it can be");
        let mut buffer = [0; 64];
        for n in 0..10u8 {
            client.send_to(&[n; 20], format!("{to}:7411")).expect("it can be sent");
            client.send_to(&[n; 30], format!("{to}:7412")).expect("it can be sent");
            assert_eq!(server.recv(&mut buffer).expect("the kernel has it"), 30);
            receive_until(&mut xdp, |frame| frame.ends_with(&[n; 20]));
            assert!(taken.recv(&mut buffer).is_err(), "the kernel has it too");
        }
    }
}
