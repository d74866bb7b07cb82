//! TCP between the engine and the kernel.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;

use insane_netstack::Reason;
use insane_netstack::icmp::Problem;
use insane_netstack::tcp::{Connection, TcpConfig, TcpError, TcpState};

use crate::net::{Cable, FAR, Host, KERNEL, LIMIT, MAC, V4, V6};
use crate::{address, content};

/// Takes one connection in the kernel: reads all, then writes the same back and closes.
fn echo(cable: &Cable, host: usize, ip: &str) -> JoinHandle<usize> {
    let at = address(ip, 44002);
    let listener = cable.inside(host, move || TcpListener::bind(at).expect("it binds"));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.set_read_timeout(Some(LIMIT)).expect("it may");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("it can be read");
        stream.write_all(&all).expect("it can be written");
        all.len()
    })
}

/// Sends `bytes` and reads until the peer has closed.
fn exchange(host: &mut Host, connection: Connection, bytes: &[u8]) -> Vec<u8> {
    let (mut sent, mut closed, mut got) = (0, false, Vec::new());
    let mut buffer = vec![0; 65_536];
    host.until("everything has come back", |host| {
        while sent < bytes.len() {
            match host.engine.tcp_send(connection, &bytes[sent..]) {
                Ok(0) => break,
                Ok(taken) => sent += taken,
                Err(error) => panic!("{error}: {sent} sent"),
            }
        }
        if sent == bytes.len() && !closed {
            host.engine.tcp_close(connection).expect("it is open");
            closed = true;
        }
        loop {
            match host.engine.tcp_receive(connection, &mut buffer) {
                Ok(0) => return false,
                Ok(len) => got.extend_from_slice(&buffer[..len]),
                Err(TcpError::Ended) => return closed,
                Err(error) => panic!("{error}: {} read", got.len()),
            }
        }
    });
    got
}

/// Opens a connection to the kernel, sends so many bytes there and reads them back.
pub fn to_the_kernel(cable: &Cable, host: &mut Host, ip: &str, size: usize) {
    let kernel = echo(cable, if FAR.contains(&ip) { 2 } else { 0 }, ip);
    let now = host.wire.now();
    let connection = host.engine.tcp_connect(now, address(ip, 44002)).expect("there is a way");
    assert_eq!(host.engine.tcp_state(connection), Ok(TcpState::Opening));
    host.until("it is open", |host| host.engine.tcp_state(connection) == Ok(TcpState::Open));
    let bytes = content(size);
    assert!(exchange(host, connection, &bytes) == bytes);
    assert_eq!(kernel.join().expect("it ends"), size);
    host.engine.tcp_release(connection);
    assert_eq!(host.engine.tcp_state(connection), Err(TcpError::NotOpen));
}

#[test]
fn megabytes_go_to_the_kernel_and_back() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |config| config.tcp = Some(TcpConfig::default()));
    for ip in KERNEL {
        to_the_kernel(&cable, &mut host, ip, 4_000_000);
    }
    assert!(host.engine.stats().adds_up());
}

#[test]
fn the_kernel_opens_connections_to_the_engine() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |config| config.tcp = Some(TcpConfig { connections: 6, ..TcpConfig::default() }));
    let listener = host.engine.tcp_listen(None, 44003, 2).expect("it is free");
    assert_eq!(host.engine.tcp_listen(None, 44003, 1), Err(TcpError::InUse(44003)));
    for round in 0..4 {
        let to = address(if round % 2 == 0 { V4 } else { V6 }, 44003);
        let bytes = content(2_000_000 + round);
        let expected = bytes.clone();
        let kernel = cable.inside(0, move || {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(to).expect("it is taken");
                stream.set_read_timeout(Some(LIMIT)).expect("it may");
                let mut writer = stream.try_clone().expect("a second handle");
                let sender = std::thread::spawn(move || {
                    writer.write_all(&bytes).expect("it can be written");
                    writer.shutdown(Shutdown::Write).expect("it is open");
                });
                let mut all = Vec::new();
                stream.read_to_end(&mut all).expect("it can be read");
                sender.join().expect("it ends");
                all
            })
        });
        let mut accepted = None;
        host.until("a connection comes", |host| {
            let now = host.wire.now();
            accepted = host.engine.tcp_accept(now, listener);
            accepted.is_some()
        });
        let connection = accepted.expect("just seen");
        assert_eq!(host.engine.tcp_ends(connection).expect("it is open").0, to);
        // Both send at the same time.
        assert!(exchange(&mut host, connection, &expected) == expected);
        host.engine.tcp_release(connection);
        host.until("the kernel has all", |_| kernel.is_finished());
        assert!(kernel.join().expect("it ends") == expected);
    }
    assert!(host.engine.tcp_unlisten(listener));
}

#[test]
fn closed_ports_are_refused_both_ways() {
    let Some(cable) = Cable::new(false) else { return };
    let mut host = Host::new(&cable, |config| config.tcp = Some(TcpConfig::default()));
    for (ours, kernels) in [(V4, KERNEL[0]), (V6, KERNEL[1])] {
        let to = address(ours, 44004);
        let kernel = cable.inside(0, move || std::thread::spawn(move || TcpStream::connect(to).map(drop)));
        host.until("the kernel is refused", |_| kernel.is_finished());
        let error = kernel.join().expect("it ends").expect_err("nobody listens");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        let now = host.wire.now();
        let connection = host.engine.tcp_connect(now, address(kernels, 44005)).expect("there is a way");
        host.until("the kernel refuses", |host| host.engine.tcp_state(connection) == Ok(TcpState::Closed));
        assert_eq!(host.engine.tcp_receive(connection, &mut [0; 8]), Err(TcpError::Reset));
    }
    let mut host = Host::new(&cable, |_| ());
    let now = host.wire.now();
    assert_eq!(host.engine.tcp_connect(now, address(KERNEL[0], 1)), Err(TcpError::Off));
    assert_eq!(host.engine.stats().dropped(Reason::TcpOff), 0);
}

#[test]
fn streams_follow_the_paths_mtu() {
    let Some(cable) = Cable::new(true) else { return };
    let mut host = Host::new(&cable, |config| config.tcp = Some(TcpConfig::default()));
    host.wire.keep = 10_000;
    for ip in FAR {
        to_the_kernel(&cable, &mut host, ip, 1_000_000);
        // The router has said that segments were too large, and from then on they went in fragments.
        let report = host.reports.pop().expect("a report");
        assert_eq!((report.problem, report.binding, report.to), (Problem::TooBig(1400), None, address(ip, 44002)));
        let ours = host.wire.seen.iter().filter(|(_, frame)| frame[6..12] == MAC.0);
        let fragments = ours.filter(|(_, frame)| match frame[12..14] {
            [8, 0] => frame[20] & 0x3f != 0,
            _ => frame[20] == 44,
        });
        assert!(fragments.count() > 100);
        assert!(host.wire.seen.iter().all(|(_, frame)| frame.len() <= 1514));
        host.wire.seen.clear();
    }
}
