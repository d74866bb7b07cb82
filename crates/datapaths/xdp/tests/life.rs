//! A datapath's life: what is missing is said, what another process has is waited for, nothing is left behind, and no frame of
//! the UMEM is ever lost.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Cable, config};
use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::conformance::{Rig, pattern};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath, DatapathError};
use insane_datapath_xdp::{Attach, Filter, Queues, XdpConfig, XdpDatapath};
use insane_tests_namespaces::set_queues;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Opens and expects not to be able to, for a reason that is returned.
fn refused(result: Result<XdpDatapath, DatapathError>) -> String {
    match result {
        Err(DatapathError::Unavailable { technology: "xdp", reason }) => reason,
        other => panic!("it should be unavailable: {other:?}"),
    }
}

#[test]
fn what_is_missing_is_said_with_what_to_do() {
    let Some(cable) = Cable::new(1500, 2) else { return };
    let on = config(Attach::NativeOrGeneric);
    for (config, parts) in [
        (XdpConfig::new("nowhere0"), ["no interface nowhere0", "ip link"]),
        (XdpConfig::new("a-name-far-too-long-for-one"), ["no interface a-name-far-too-long-for-one", "ip link"]),
        (XdpConfig::new("lo"), ["lo", "no Ethernet"]),
        (XdpConfig { queues: Queues::These(vec![0, 2]), ..on.clone() }, ["no queue 2", "0 to 1"]),
        (XdpConfig { queues: Queues::These(vec![1, 1]), ..on.clone() }, ["queue 1", "twice"]),
        (XdpConfig { queues: Queues::These(vec![]), ..on.clone() }, ["no queue", "take all"]),
        (XdpConfig { frames: 100, ..on.clone() }, ["100 frames", "power of two"]),
        (XdpConfig { mtu: Some(9000), ..on.clone() }, ["carries 1500", "ip link set dev veth0 mtu 9000"]),
        (
            XdpConfig { filter: Filter { ethertypes: vec![], ..Filter::default() }, ..on.clone() },
            ["takes no frame", "give it"],
        ),
    ] {
        let reason = refused(cable.try_open(0, &config));
        assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
    }
}

#[test]
fn a_missing_right_is_said_and_three_are_enough() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let three = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    let with = |rights: CapabilitySet| {
        cable.0.inside(0, || {
            let sets = CapabilitySets { effective: rights, permitted: rights, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).expect("root may give rights up");
            let mut xdp = XdpDatapath::new(XdpConfig { frames: 256, ..config(Attach::NativeOrGeneric) });
            xdp.open().map(|()| xdp)
        })
    };
    for rights in [
        CapabilitySet::empty(),
        CapabilitySet::NET_RAW,
        three - CapabilitySet::NET_RAW,
        three - CapabilitySet::NET_ADMIN,
    ] {
        let reason = refused(with(rights));
        assert!(reason.contains("CAP_NET_RAW") && reason.contains("CAP_BPF"), "{reason}");
    }
    let xdp = with(three).expect("three rights are enough");
    assert!(xdp.address().is_some());
}

#[test]
fn memory_that_may_not_be_pinned_is_said() {
    use rustix::process::{Resource, getrlimit};
    let Some(cable) = Cable::new(1500, 1) else { return };
    let Some(limit) = getrlimit(Resource::Memlock).current.filter(|limit| *limit < 100 << 20) else {
        println!("SKIPPED: RLIMIT_MEMLOCK is too high to be met");
        return;
    };
    let rights = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    let result = cable.0.inside(0, || {
        let sets = CapabilitySets { effective: rights, permitted: rights, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).expect("root may give rights up");
        let mut xdp = XdpDatapath::new(XdpConfig { frames: 65_536, ..config(Attach::NativeOrGeneric) });
        xdp.open().map(|()| xdp)
    });
    let reason = refused(result);
    assert!(reason.contains("RLIMIT_MEMLOCK") && reason.contains("CAP_IPC_LOCK"), "{limit}: {reason}");
}

#[test]
fn one_process_has_an_interface_and_another_is_told_or_waits() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = XdpConfig { patience: Duration::from_millis(200), ..config(Attach::NativeOrGeneric) };
    let first = cable.open(0, &on);
    let start = Instant::now();
    let reason = refused(cable.try_open(0, &on));
    assert!(reason.contains("another XDP program") && reason.contains("ip link show dev veth0"), "{reason}");
    assert!(start.elapsed() >= Duration::from_millis(200), "it did not wait");
    // It goes away while the second one waits.
    let patient = XdpConfig { patience: Duration::from_secs(20), ..on };
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| cable.open(0, &patient));
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
        second.join().expect("it opens")
    });
    let chosen = second.chosen().expect("it is open");
    assert!(chosen.waited >= Duration::from_millis(200) && chosen.busy > 10, "{chosen}");
    assert!(chosen.to_string().contains("for another process's end"), "{chosen}");
}

#[test]
fn it_opens_again_at_once_and_as_often_as_you_like() {
    let Some(cable) = Cable::new(1500, 2) else { return };
    let before = std::fs::read_dir("/proc/self/fd").expect("our descriptors").count();
    cable.0.inside(0, || {
        let mut xdp = XdpDatapath::new(config(Attach::NativeOrGeneric));
        for round in 0..20 {
            xdp.open().unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert!(cable.show(0).contains("xdp"), "the filter is not there");
            xdp.close();
            assert!(!cable.show(0).contains("xdp"), "the filter is still there");
            assert_eq!((xdp.address(), xdp.frames().all), (None, 0));
        }
    });
    // Tests that run beside this one have descriptors of their own.
    let after = std::fs::read_dir("/proc/self/fd").expect("our descriptors").count();
    assert!(after < before + 100, "{before} descriptors have become {after}");
}

/// The counts, once the kernel is through with what it has.
fn settled(xdp: &mut XdpDatapath) -> insane_datapath_xdp::FrameCounts {
    let start = Instant::now();
    loop {
        // An empty batch would do nothing; arming looks at the rings.
        xdp.arm();
        let counts = xdp.frames();
        if counts.kernel == 0 && counts.send == 0 || start.elapsed() > Duration::from_secs(5) {
            return counts;
        }
        std::thread::yield_now();
    }
}

#[test]
fn frames_of_the_umem_are_conserved() {
    for (mtu, queues, attach) in [(1500, 1, Attach::Native), (1500, 3, Attach::Generic), (9000, 1, Attach::Native)] {
        let Some(cable) = Cable::new(mtu, queues) else { return };
        let on = config(attach);
        let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
        let all = on.frames * queues;
        let fresh = a.frames();
        assert_eq!((fresh.all, fresh.free, fresh.fill, fresh.sum()), (all, all / 2, all / 2, all));
        let (Some(Address::Ethernet(from)), Some(Address::Ethernet(to))) = (a.address(), b.address()) else {
            panic!("both are open");
        };
        let mut rx =
            RxBatch { free: (0..64).map(|id| Slot::owned(id, mtu as usize + 32)).collect(), ..RxBatch::default() };
        let limit = a.frame_limit(Address::Ethernet(to));
        let (mut state, mut received) = (7u64, 0u64);
        for round in 0..400u64 {
            let mut tx = TxBatch::default();
            for _ in 0..200 {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let len = 14 + (state >> 33) as usize % (limit - 13);
                let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
                frame.resize(len, round as u8);
                tx.frame(Address::Ethernet(to), &frame, 0);
            }
            a.transmit(&mut tx);
            // Nothing is received in some rounds, so that rings and buffers run over.
            while round % 10 < 7 && b.receive(&mut rx, None).frames > 0 {
                received += rx.taken.len() as u64;
                rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
            }
            for counts in [a.frames(), b.frames()] {
                assert_eq!((counts.all, counts.sum()), (all, all), "round {round}: {counts:?}");
            }
        }
        // A kernel that is late brings more after a look that finds nothing.
        let start = Instant::now();
        loop {
            while b.receive(&mut rx, None).frames > 0 {
                received += rx.taken.len() as u64;
                rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
            }
            let through = received + b.stats().overruns + a.counts().dropped_by_device;
            if through == a.stats().sent_frames || start.elapsed() > Duration::from_secs(5) {
                break;
            }
            std::thread::yield_now();
        }
        let (sender, receiver) = (settled(&mut a), settled(&mut b));
        let (sent, lost) = (a.stats().sent_frames, b.stats().overruns);
        assert_eq!((sender.fill, sender.receive, sender.send, sender.kernel), (all / 2, 0, 0, 0), "{sender:?}");
        assert_eq!((sender.free + sender.completion, receiver.free), (all / 2, all / 2), "{sender:?} {receiver:?}");
        // After a drop the kernel may keep a few buffers at hand for the next frame.
        assert!(receiver.kernel <= 16 * queues && receiver.receive == 0, "{receiver:?}");
        assert_eq!(receiver.fill + receiver.kernel, all / 2, "{receiver:?}");
        let counts = a.counts();
        assert_eq!((counts.invalid, counts.lies, b.counts().invalid, b.counts().lies), (0, 0, 0, 0));
        assert!(received > 10_000 && lost > 0, "{received} received, {lost} lost");
        assert_eq!(sent, received + lost + counts.dropped_by_device, "{counts:?} {:?}", b.counts());
    }
}

/// One end in a process of its own, sending and receiving until it is killed; it says when it has begun.
fn child(namespace: &str) -> ! {
    insane_tests_namespaces::enter(namespace);
    let mut xdp = XdpDatapath::new(config(Attach::NativeOrGeneric));
    let start = Instant::now();
    xdp.open().unwrap_or_else(|error| panic!("{error}"));
    println!("OPEN {}", start.elapsed().as_millis());
    let Some(Address::Ethernet(from)) = xdp.address() else { panic!("it is open") };
    let to = common::mac(1);
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), ..RxBatch::default() };
    for number in 0u64.. {
        let mut tx = TxBatch::default();
        for _ in 0..64 {
            let body = pattern(number, 500);
            tx.frame(Address::Ethernet(to), &[&to[..], &from, &[0x88, 0xb5], &body].concat(), 0);
        }
        xdp.transmit(&mut tx);
        xdp.receive(&mut rx, None);
        rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
    }
    unreachable!("it is killed before")
}

/// A process that is killed in any case.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    if let Ok(namespace) = std::env::var("INSANE_XDP_CHILD") {
        child(&namespace);
    }
    let Some(cable) = Cable::new(1500, 1) else { return };
    let mut other = cable.open(1, &config(Attach::NativeOrGeneric));
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), ..RxBatch::default() };
    for round in 0..5 {
        let process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_killed_process_leaves_nothing_behind", "--nocapture"])
            .env("INSANE_XDP_CHILD", cable.0.name(0))
            .stdout(Stdio::piped())
            .spawn();
        let mut process = Ends(process.expect("it starts"));
        let lines = BufReader::new(process.0.stdout.take().expect("a pipe")).lines();
        let opened = lines.map_while(Result::ok).find(|line| line.starts_with("OPEN"));
        assert!(opened.is_some(), "round {round}: it did not open");
        assert!(cable.show(0).contains("xdp"), "the filter is not there: the test would show nothing");
        // Under load, in both directions.
        let (start, mut frames) = (Instant::now(), 0);
        let Some(Address::Ethernet(from)) = other.address() else { panic!("it is open") };
        while frames < 5000 {
            frames += other.receive(&mut rx, None).frames;
            rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
            let mut tx = TxBatch::default();
            let to = common::mac(0);
            tx.frame(Address::Ethernet(to), &[&to[..], &from, &[0x88, 0xb5], &[0; 100]].concat(), 0);
            other.transmit(&mut tx);
            assert!(start.elapsed() < Duration::from_secs(20), "round {round}: {frames} frames came");
        }
        drop(process);
        let shown = cable.show(0);
        assert!(!shown.contains("xdp"), "round {round}: {shown}");
    }
    // The place is free at once: a new one opens within its patience and is reached.
    let a = cable.open(0, &config(Attach::NativeOrGeneric));
    let mut rig = Rig { a: Box::new(a), b: Box::new(other) };
    insane_datapath::conformance::every_slot_comes_back(&mut {
        drain(&mut rig);
        rig
    });
}

/// Takes out what is still there.
fn drain(rig: &mut Rig) {
    let mut rx = RxBatch { free: (0..64).map(|id| Slot::owned(id, 2048)).collect(), ..RxBatch::default() };
    while rig.b.receive(&mut rx, None).frames > 0 {
        rx.free.extend(rx.taken.drain(..).map(|taken| taken.slot));
    }
}

#[test]
fn an_interface_that_goes_away_is_unreachable_and_can_come_back() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let on = config(Attach::NativeOrGeneric);
    let (mut a, b) = (cable.open(0, &on), cable.open(1, &on));
    let to = b.address().expect("it is open");
    let frame = [&common::mac(1)[..], &common::mac(0), &[0x88, 0xb5, 0, 0]].concat();
    cable.0.ip(0, "link del veth0").expect("it can be deleted");
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        let mut tx = TxBatch::default();
        tx.frame(to, &frame, 0);
        a.transmit(&mut tx);
        outcomes.push(tx.frames()[0].outcome);
        assert_eq!(a.receive(&mut RxBatch::default(), None).frames, 0);
        a.arm();
    }
    assert_eq!(outcomes.last(), Some(&insane_datapath::batch::Outcome::Unreachable), "{outcomes:?}");
    assert_eq!((a.counts().downs, a.frames().sum()), (1, on.frames));
    drop((a, b));
    let two = cable.0.name(1);
    cable.0.ip(0, &format!("link add veth0 type veth peer name veth0 netns {two}")).expect("it can be made again");
    [0, 1].iter().for_each(|end| cable.set_up(*end, true));
    let rig = &mut cable.rig(&on);
    insane_datapath::conformance::frames_arrive_whole(rig);
}

#[test]
fn an_interface_made_again_is_another_one_until_it_is_opened_again() {
    use insane_datapath::batch::Outcome;
    let to = Address::Ethernet(common::mac(1));
    let frame = [&common::mac(1)[..], &common::mac(0), &[0x88, 0xb5, 0, 0]].concat();
    let send = |xdp: &mut XdpDatapath| {
        let mut tx = TxBatch::default();
        tx.frame(to, &frame, 0);
        xdp.transmit(&mut tx);
        xdp.arm();
        tx.frames()[0].outcome
    };
    // It is found to be gone before, or only after it was made again.
    for found in [true, false] {
        let Some(cable) = Cable::new(1500, 1) else { return };
        let on = config(Attach::NativeOrGeneric);
        let mut a = cable.open(0, &on);
        assert_eq!(send(&mut a), Outcome::Sent);
        assert_eq!(a.lost(), None);
        cable.0.ip(0, "link del veth0").expect("it can be deleted");
        if found {
            send(&mut a);
            assert_eq!(send(&mut a), Outcome::Unreachable);
        }
        let two = cable.0.name(1);
        cable.0.ip(0, &format!("link add veth0 type veth peer name veth0 netns {two}")).expect("it can be made again");
        [0, 1].iter().for_each(|end| cable.set_up(*end, true));
        if !found {
            send(&mut a);
        }
        let sent = a.stats().sent_frames;
        for number in 0..3 * on.frames {
            assert_eq!(send(&mut a), Outcome::Unreachable, "frame {number}, found before: {found}");
        }
        assert_eq!((a.stats().sent_frames, a.counts().downs), (sent, 1));
        assert_eq!(a.lost().as_deref(), Some("the interface veth0 was taken away"));
        a.close();
        cable.0.inside(0, || a.open().expect("it opens again"));
        assert_eq!(a.lost(), None);
        let rig = &mut Rig { a: Box::new(a), b: Box::new(cable.open(1, &on)) };
        insane_datapath::conformance::frames_arrive_whole(rig);
    }
}

/// Frames are spread over all queues of an interface: one that was opened on all of them, and gets more, is to be opened again.
#[test]
fn queues_that_come_later_are_noticed_by_who_was_to_have_all() {
    let Some(cable) = Cable::new(1500, 4) else { return };
    let set = |receive, send| {
        for end in 0..2 {
            let done = cable.0.inside(end, || set_queues(common::DEVICE, receive, send));
            done.unwrap_or_else(|e| panic!("{receive} and {send} queues: {e}"));
        }
    };
    set(2, 2);
    let all = config(Attach::NativeOrGeneric);
    let (mut a, mut b) =
        (cable.open(0, &all), cable.open(1, &XdpConfig { queues: Queues::These(vec![0, 1]), ..all.clone() }));
    assert_eq!(a.chosen().expect("it is open").queues, [0, 1]);
    // It asks twice a second.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!((a.lost(), b.lost()), (None, None));
    set(4, 2);
    set(4, 4);
    let start = Instant::now();
    let lost = loop {
        if let Some(lost) = a.lost() {
            break lost;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody has noticed");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(lost.starts_with("the interface veth0 has 4 queues to receive and "), "{lost}");
    assert!(lost.ends_with("now, and had 2 queues to receive and 2 to send by when it was opened"), "{lost}");
    assert_eq!(a.lost(), Some(lost), "until it is opened again");
    assert_eq!(b.lost(), None, "those that it was to have are there");
    a.close();
    assert_eq!(a.lost(), None);
    cable.0.inside(0, || a.open().expect("it opens again"));
    assert_eq!(a.chosen().expect("it is open").queues, [0, 1, 2, 3]);
    drop(b);
    let rig = &mut Rig { a: Box::new(a), b: Box::new(cable.open(1, &all)) };
    insane_datapath::conformance::frames_arrive_whole(rig);
}

/// A socket on queue 0 that is none of ours: it holds the queue without a filter.
fn hold_queue() -> std::os::fd::OwnedFd {
    use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, netdevice, socket, socket_with, sockopt};
    const BYTES: usize = 64 * 2048;
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).expect("a socket");
    let index = netdevice::name_to_index(&any, common::DEVICE).expect("the interface");
    // Programs that other tests start meanwhile must not have it.
    let held = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).expect("a socket");
    // Page-aligned, and never used again: nothing is ever received into it.
    let memory = vec![0u8; BYTES + 4096].leak();
    let at = (&raw const memory[0]).addr().next_multiple_of(4096) as u64;
    let umem = XdpUmemReg {
        addr: at,
        len: BYTES as u64,
        chunk_size: 2048,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&held, umem).expect("the memory");
    sockopt::set_xdp_umem_fill_ring_size(&held, 64).expect("a ring");
    sockopt::set_xdp_umem_completion_ring_size(&held, 64).expect("a ring");
    sockopt::set_xdp_rx_ring_size(&held, 64).expect("a ring");
    bind(&held, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, index, 0)).expect("the queue is free");
    held
}

#[test]
fn a_queue_that_is_busy_is_waited_for_but_not_for_ever() {
    let Some(cable) = Cable::new(1500, 2) else { return };
    let held = cable.0.inside(0, hold_queue);
    let on = XdpConfig { patience: Duration::from_millis(200), ..config(Attach::NativeOrGeneric) };
    let start = Instant::now();
    let reason = refused(cable.try_open(0, &on));
    assert!(reason.contains("queue 0 of veth0 has another socket"), "{reason}");
    assert!(start.elapsed() >= Duration::from_millis(200), "it did not wait");
    assert!(!cable.show(0).contains("xdp"), "the filter was left behind");
    // The other queue is free.
    drop(cable.open(0, &XdpConfig { queues: Queues::These(vec![1]), ..on.clone() }));
    let patient = XdpConfig { patience: Duration::from_secs(20), ..on };
    let xdp = std::thread::scope(|scope| {
        let opens = scope.spawn(|| cable.open(0, &patient));
        // It is a while before the other comes to the queue.
        std::thread::sleep(Duration::from_secs(1));
        drop(held);
        opens.join().expect("it opens")
    });
    let chosen = xdp.chosen().expect("it is open");
    assert!(chosen.busy > 10 && chosen.waited >= Duration::from_millis(200), "{chosen}");
}
