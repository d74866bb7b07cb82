//! Datagrams over an interface whose queues are received from by two threads, each end's by others than it sends by: all that comes,
//! comes by the part, questions for addresses and segments of TCP among it, which are for the engine of the first.

mod common;

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Cable, config};
use insane_datagrams::{DatagramConfig, Datagrams, station_of, with_streams};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::{Rig, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::tap::Tap;
use insane_datapath::thread::{OnThread, PollingThread, Settings, Spread, Waiting};
use insane_datapath::{Address, Datapath};
use insane_datapath_xdp::{Attach, Filter, Queues, Vlan, XdpConfig, XdpDatapath};

const PATIENCE: Duration = Duration::from_secs(20);

fn threads() -> [PollingThread; 2] {
    let settings = || Settings { name: "polls".into(), core: None, waiting: Waiting::Sleep };
    [(); 2].map(|()| PollingThread::start(settings()).unwrap())
}

/// A station on all queues, of which it sends by its own.
fn station(end: usize, own: &str) -> (XdpDatapath, DatagramConfig) {
    let address: insane_netstack::Prefix = own.parse().unwrap();
    let filter = Filter {
        ethertypes: vec![],
        udp_ports: vec![],
        station: Some(station_of(address.address)),
        addresses: vec![address.address],
        vlan: Vlan::Untagged,
    };
    // The first of them sends, and stays with the engine.
    let queues = Queues::These([[0, 1], [1, 0]][end].to_vec());
    let raw = XdpDatapath::new(XdpConfig { filter, queues, ..config(Attach::NativeOrGeneric) });
    (raw, DatagramConfig { address, port: 7400, gateway: None, vlan: None })
}

fn slots(datapath: &dyn Datapath) -> RxBatch {
    let bytes = datapath.capabilities().slot_bytes;
    RxBatch { free: (0..64).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() }
}

/// Each end sends frames, again as long as none has come, until both have some.
fn meet(rig: &mut Rig) {
    let (mut came, start) = ([0; 2], Instant::now());
    while came.contains(&0) {
        let to = [rig.b.address(), rig.a.address()].map(Option::unwrap);
        for (end, datapath) in [&mut rig.a, &mut rig.b].into_iter().enumerate() {
            let (mut tx, mut rx) = (TxBatch::default(), slots(&**datapath));
            tx.frame(to[end], b"hello", 0);
            datapath.transmit(&mut tx);
            came[end] += datapath.receive(&mut rx, None).frames;
        }
        assert!(start.elapsed() < PATIENCE, "they never met: {:?} {:?}", rig.a.stats(), rig.b.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(50) {
        for datapath in [&mut rig.a, &mut rig.b] {
            datapath.receive(&mut slots(&**datapath), None);
        }
    }
}

/// That everything that was received came by the part.
fn came_by_the_parts(ends: &[Spread]) {
    for end in ends {
        let received = end.received();
        assert!(received.len() == 2 && received[1] > 0, "{received:?}, {:?}", end.short());
    }
}

fn conform(own: [&str; 2]) {
    let Some(cable) = Cable::new(1500, 2) else { return };
    let seen = Mutex::new(Vec::new());
    cable.conform(|| {
        let [one, two] = threads();
        let [a, b] = [0, 1].map(|end| {
            cable.0.inside(end, || {
                let (raw, config) = station(end, own[end]);
                let mut datagrams = Datagrams::new(Tap::new(raw), config);
                datagrams.open().unwrap();
                OnThread::spread(&one, std::slice::from_ref(&two), Box::new(datagrams)).unwrap()
            })
        });
        let ends = [&a, &b].map(OnThread::threads);
        let mut rig = Rig { a: Box::new(a), b: Box::new(b) };
        meet(&mut rig);
        came_by_the_parts(&ends);
        seen.lock().unwrap().push(ends);
        rig
    });
    assert!(seen.lock().unwrap().len() > 3, "the suite has had rigs");
}

#[test]
fn conforms_on_two_threads_over_ipv4() {
    conform(["10.98.0.101/24", "10.98.0.102/24"]);
}

#[test]
fn conforms_on_two_threads_over_ipv6() {
    conform(["fd98::101/64", "fd98::102/64"]);
}

#[test]
fn tcp_goes_on_beside_datagrams_on_two_threads() {
    let Some(cable) = Cable::new(1500, 2) else { return };
    let [one, two] = threads();
    let ends = [0, 1].map(|end| {
        cable.0.inside(end, || {
            let (raw, config) = station(end, ["10.98.0.101/24", "10.98.0.102/24"][end]);
            let (mut datagrams, mut streams) = with_streams(raw, config, 1);
            datagrams.open().unwrap();
            streams.open().unwrap();
            let datagrams = OnThread::spread(&one, std::slice::from_ref(&two), Box::new(datagrams)).unwrap();
            (datagrams, OnThread::new(&one, Box::new(streams)).unwrap())
        })
    });
    let [(a_datagrams, a), (b_datagrams, b)] = ends;
    let spread = [&a_datagrams, &b_datagrams].map(OnThread::threads);
    let mut rig = Rig { a: Box::new(a_datagrams), b: Box::new(b_datagrams) };
    meet(&mut rig);
    came_by_the_parts(&spread);
    let [mut a, mut b] = [a, b];
    let (to, start) = (b.address().unwrap(), Instant::now());
    let (mut sent, mut next, mut rx) = (0, 0, slots(&b));
    while next < 500 {
        if sent < 500 {
            let mut tx = TxBatch::default();
            tx.frame(to, &pattern(sent, 1000), 0);
            sent += a.transmit(&mut tx).sent as u64;
        }
        b.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            for frame in taken.frames() {
                assert!(frame == pattern(next, 1000), "frame {next}");
                next += 1;
            }
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "{next} of {sent}: {:?} {:?}", a.stats(), b.stats());
    }
    assert!(matches!(to, Address::Ip(at) if at.ip() == "10.98.0.102".parse::<IpAddr>().unwrap()));
}

#[test]
fn queues_are_dealt_and_there_are_no_more_parts_than_those() {
    use insane_datapath::raw::RawDatapath;
    let Some(cable) = Cable::new(1500, 4) else { return };
    let mut all = cable.open(1, &config(Attach::NativeOrGeneric));
    let frames = all.frames().all;
    let split = cable.0.inside(1, || all.split_raw(1));
    assert_eq!((split.parts.len(), split.short), (1, None));
    assert_eq!(all.frames().all * 2, frames);
    drop(split.parts);
    all.close();
    cable.0.inside(1, || all.open()).expect("all of it was let go of");
    let mut split = cable.0.inside(1, || all.split_raw(7));
    assert_eq!(split.parts.len(), 3);
    assert!(split.short.unwrap().contains("each takes a queue, of which veth0 has 4"));
    // Each frame comes by the part that has its queue, and wakes it alone.
    let to = all.address().unwrap();
    let frame = [&common::mac(1)[..], &common::mac(0), &[0x88, 0xb5, 0, 0]].concat();
    for number in 0..4 {
        let queues = Queues::These(vec![number]);
        let mut one = cable.open(0, &XdpConfig { queues, ..config(Attach::NativeOrGeneric) });
        let mut tx = TxBatch::default();
        (0..10).for_each(|_| tx.frame(to, &frame, 0));
        one.transmit(&mut tx);
        let (mut came, start) = ([0; 4], Instant::now());
        while came.iter().sum::<usize>() < 10 {
            came[0] += all.receive_in_place(64, &mut |_| true).frames;
            for (part, came) in split.parts.iter_mut().zip(&mut came[1..]) {
                *came += part.receive_in_place(64, &mut |_| true).frames;
            }
            assert!(start.elapsed() < PATIENCE, "{came:?}");
        }
        assert_eq!(came[number as usize], 10, "queue {number}: {came:?}");
    }
    let part = &mut split.parts[0];
    part.close();
    assert!(part.open().is_err() && part.address().is_none(), "a part is one for as long as it is open");
}
