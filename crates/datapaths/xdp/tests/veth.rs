//! The conformance suite over a veth pair between two network namespaces: in the driver and before the stack, with ordinary
//! and jumbo frames, with one queue and several.

mod common;

use common::{Cable, DEVICE, config};
use insane_datapath::Datapath;
use insane_datapath::conformance::{self as suite, End};
use insane_datapath_xdp::{Attach, Attached, XdpConfig};

/// The whole suite.
fn conform(cable: &Cable, config: &XdpConfig) {
    suite::every_frame_has_an_outcome(&mut cable.rig(config));
    cable.conform(|| cable.rig(config));
}

#[test]
fn conforms_in_the_driver() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    conform(&cable, &config(Attach::Native));
}

#[test]
fn conforms_before_the_stack() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    conform(&cable, &config(Attach::Generic));
}

#[test]
fn conforms_with_jumbo_frames() {
    let Some(cable) = Cable::new(9000, 1) else { return };
    conform(&cable, &config(Attach::Native));
}

#[test]
fn conforms_with_jumbo_frames_before_the_stack() {
    let Some(cable) = Cable::new(9000, 1) else { return };
    conform(&cable, &config(Attach::Generic));
}

#[test]
fn conforms_with_several_queues() {
    let Some(cable) = Cable::new(1500, 4) else { return };
    conform(&cable, &config(Attach::Native));
}

/// Behind a tap that captures, and behind a fault injector, which does what it counts.
#[test]
fn conforms_behind_the_wrappers() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let config = config(Attach::Native);
    let reopen = |end: End, datapath: &mut dyn Datapath| {
        cable.0.inside(usize::from(end == End::B), || datapath.open().expect("it opens again"));
    };
    suite::all_behind_a_tap(|| cable.rig(&config), &mut { reopen });
    suite::all_behind_a_fault_injector(|| cable.rig(&config), &mut { reopen });
}

#[test]
fn conforms_with_hardly_any_buffers() {
    let Some(cable) = Cable::new(9000, 1) else { return };
    let few = XdpConfig { frames: 64, ..config(Attach::Native) };
    suite::frames_arrive_whole(&mut cable.rig(&few));
    suite::every_frame_has_an_outcome(&mut cable.rig(&few));
    suite::every_slot_comes_back(&mut cable.rig(&few));
    suite::a_sleeper_is_woken_every_time(&mut cable.rig(&few));
}

#[test]
fn what_was_chosen_is_said() {
    for (mtu, queues, buffer_bytes, several) in [(1500, 1, 2048, false), (3000, 2, 4096, false), (9000, 1, 4096, true)]
    {
        let Some(cable) = Cable::new(mtu, queues) else { return };
        let xdp = cable.open(0, &XdpConfig::new(DEVICE));
        let chosen = xdp.chosen().expect("it was opened");
        assert_eq!((chosen.attached, chosen.zero_copy, chosen.driver.as_str()), (Attached::Native, false, "veth"));
        assert_eq!((chosen.buffer_bytes, chosen.several_buffers), (buffer_bytes, several));
        assert_eq!(chosen.max_frame, mtu as usize + 14);
        assert_eq!(chosen.queues, (0..queues).collect::<Vec<_>>());
        let text = chosen.to_string();
        for part in ["veth0 (veth)", "in the driver", "one copy by the kernel", "the driver veth has no zero-copy"] {
            assert!(text.contains(part), "{text}");
        }
        drop(xdp);
        let generic = cable.open(0, &config(Attach::Generic));
        assert_eq!(generic.chosen().expect("it was opened").attached, Attached::Generic);
    }
}

#[test]
fn a_smaller_mtu_is_kept_to_and_the_interfaces_is_followed() {
    let Some(cable) = Cable::new(1500, 1) else { return };
    let small = XdpConfig { mtu: Some(1000), ..config(Attach::Native) };
    let mut xdp = cable.open(0, &small);
    let to = xdp.address().expect("it is open");
    assert_eq!((xdp.capabilities().max_frame, xdp.frame_limit(to)), (1014, 1014));
    cable.0.ip(0, &format!("link set {DEVICE} mtu 900")).expect("an MTU that veth can have");
    assert_eq!(xdp.frame_limit(to), 914);
    drop(xdp);
    let error = cable.try_open(0, &small).expect_err("the interface has too small an MTU").to_string();
    assert!(error.contains("ip link set dev veth0 mtu 1000"), "{error}");
}

#[test]
fn every_queue_is_received_from_and_wakes_its_sleeper() {
    use insane_datapath::batch::TxBatch;
    use insane_datapath_xdp::Queues;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::time::{Duration, Instant};
    let Some(cable) = Cable::new(1500, 4) else { return };
    let mut all = cable.open(1, &config(Attach::NativeOrGeneric));
    let to = all.address().expect("it is open");
    let frame = [&common::mac(1)[..], &common::mac(0), &[0x88, 0xb5, 0, 0]].concat();
    let awake = |xdp: &insane_datapath_xdp::XdpDatapath, wait: Duration| {
        let handle = xdp.wake_handle().expect("it is open");
        let limit = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) == Ok(1)
    };
    for number in 0..4 {
        let mut one =
            cable.open(0, &XdpConfig { queues: Queues::These(vec![number]), ..config(Attach::NativeOrGeneric) });
        assert_eq!(one.frames().all * 4, all.frames().all);
        for _ in 0..100 {
            all.arm();
            assert!(!awake(&all, Duration::ZERO), "there is nothing yet");
            let mut tx = TxBatch::default();
            (0..10).for_each(|_| tx.frame(to, &frame, 0));
            one.transmit(&mut tx);
            assert!(awake(&all, Duration::from_secs(20)), "queue {number} woke nobody");
            let (mut came, start) = (0, Instant::now());
            while came < 10 {
                came += all.receive_with(64, |received| assert_eq!(received.queue, number)).frames;
                assert!(start.elapsed() < Duration::from_secs(20), "{came} frames came by queue {number}");
            }
        }
    }
    // Queues that are not taken stay the kernel's.
    drop(all);
    let mut some = cable.open(1, &XdpConfig { queues: Queues::These(vec![3, 1]), ..config(Attach::NativeOrGeneric) });
    for number in 0..4 {
        let mut one =
            cable.open(0, &XdpConfig { queues: Queues::These(vec![number]), ..config(Attach::NativeOrGeneric) });
        let mut tx = TxBatch::default();
        (0..10).for_each(|_| tx.frame(to, &frame, 0));
        one.transmit(&mut tx);
        let came = awake(&some, Duration::from_millis(if number % 2 == 1 { 20_000 } else { 200 }));
        assert_eq!(came, number % 2 == 1, "queue {number}");
        while some.receive_with(64, |received| assert_eq!(received.queue, number)).frames > 0 {}
    }
}

#[test]
fn queues_that_only_receive_are_not_sent_by() {
    use insane_datapath::Address;
    use insane_datapath::batch::{Outcome, TxBatch};
    use insane_datapath_xdp::Queues;
    use std::time::{Duration, Instant};
    let Some(cable) = Cable::with_queues(1500, 3, 1) else { return };
    for (queues, taken) in [(Queues::All, vec![0, 1, 2]), (Queues::These(vec![2, 0]), vec![0, 2])] {
        let on = XdpConfig { queues, ..config(Attach::NativeOrGeneric) };
        let (mut a, mut b) = (cable.open(0, &on), cable.open(1, &on));
        let mut came = 0;
        for peer in 0..200u8 {
            let to = [2, 0x98, 1, 0, 0, peer];
            let mut tx = TxBatch::default();
            let frame = [&to[..], &common::mac(0), &[0x88, 0xb5, 0, 0]].concat();
            (0..5).for_each(|_| tx.frame(Address::Ethernet(to), &frame, 0));
            a.transmit(&mut tx);
            assert!(tx.frames().iter().all(|frame| frame.outcome == Outcome::Sent), "{:?}", tx.frames());
            let start = Instant::now();
            while came < (usize::from(peer) + 1) * 5 {
                came += b.receive_with(64, |_| {}).frames;
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "{came} frames came of {} peers: {:?}",
                    peer + 1,
                    a.frames()
                );
            }
        }
        assert_eq!((a.frames().send, a.counts().downs), (0, 0));
        let chosen = a.chosen().expect("it is open");
        assert!(chosen.queues == taken && chosen.to_string().contains("receive only"), "{chosen}");
    }
    let only = XdpConfig { queues: Queues::These(vec![1, 2]), ..config(Attach::NativeOrGeneric) };
    let error = cable.try_open(0, &only).expect_err("nothing could be sent").to_string();
    assert!(error.contains("veth0 sends by queue 0 alone"), "{error}");
}

#[test]
fn an_interface_that_hides_tags_is_noted() {
    use insane_datapath_xdp::{Filter, Vlan};
    let Some(cable) = Cable::new(1500, 1) else { return };
    let open = |vlan| {
        let filter = Filter { vlan, ..Filter::default() };
        let xdp = cable.open(0, &XdpConfig { filter, ..config(Attach::NativeOrGeneric) });
        xdp.chosen().expect("it is open").to_string()
    };
    let note = "takes VLAN tags off";
    assert!(open(Vlan::Untagged).contains(note) && !open(Vlan::Any).contains(note));
    cable.0.inside(0, || insane_tests_namespaces::leave_tags(DEVICE)).expect("it can be told");
    assert!(!open(Vlan::Untagged).contains(note));
}
