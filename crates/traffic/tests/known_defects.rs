//! Defects that an earlier implementation of this pipeline is known to have; each must stay impossible here.

#[path = "common/wire.rs"]
mod wire;

use insane_traffic::spec::{QueueKind, References};
use insane_traffic::{Change, Dequeued, DropReason, Ecn, Pipeline, PipelineSpec, QueueId, Span, SpecError, Time};
use wire::{TCP, UDP, ipv4, ipv4_with, ipv6, tcp, udp};

const SERVER: [u8; 4] = [10, 1, 2, 3];
const UE: [u8; 4] = [192, 168, 0, 7];

fn pipeline(text: &str) -> Pipeline<Vec<u8>> {
    Pipeline::new(&PipelineSpec::from_toml(text).unwrap(), 1).unwrap()
}

/// Port filters looked at the IP header's own bytes instead of what follows it.
#[test]
fn ports_are_read_behind_the_ip_header_whatever_its_length() {
    let mut pipeline = pipeline(
        "version = 1\nqueue = [{ id = 0 }, { id = 1 }]\n\
         filter = [{ id = 1, match = { src_port = 5201 }, to = { type = \"queue\", queue = 1 } }]",
    );
    for options in (0..=40).step_by(4) {
        let mut queue_of = |src| {
            let packet = ipv4_with(SERVER.into(), UE.into(), TCP, 0, options, 0, &tcp(src, 40_000, b"x"));
            pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap()
        };
        assert_eq!((queue_of(5201), queue_of(5202)), (QueueId(1), QueueId(0)), "{options} bytes of options");
    }
    // Bytes 0 to 3 of an IP header that would read as the port looked for are not taken for it.
    let mut decoy = ipv4(SERVER, UE, UDP, &udp(7, 7, &[0; 5201 - 0x4500 % 5201]));
    decoy[1] = 0x51;
    assert_eq!(pipeline.enqueue(Time::ZERO, decoy, &mut ()), Ok(QueueId(0)));
}

/// Rates were compared as bytes with bits: off by 8.
#[test]
fn eight_megabit_per_second_are_a_million_bytes() {
    let mut policed =
        pipeline("version = 1\n[[queue]]\nid = 0\npolicer = { type = \"srtcm\", cir = \"8mbit\", cbs = \"1500\" }");
    let mut shaped = pipeline(
        "version = 1\n[[queue]]\nid = 0\nshaper = { type = \"token-bucket\", rate = \"8mbit\", burst = \"1500\" }",
    );
    let (mut passed, mut sent, mut now) = (0_u64, 0_u64, Time::ZERO);
    // 2 Mbyte/s are offered for ten seconds.
    for n in 0..20_000 {
        now = Time::from_micros(500 * n);
        passed += u64::from(policed.enqueue(now, vec![0; 1000], &mut ()).is_ok()) * 1000;
        let _ = shaped.enqueue(now, vec![0; 1000], &mut ());
        while let Dequeued::Packet(packet, _) = shaped.dequeue(now, &mut ()) {
            sent += packet.len() as u64;
        }
        let _ = policed.dequeue(now, &mut ());
    }
    assert_eq!(now, Time::from_micros(9_999_500));
    assert!((9_990_000..=10_002_000).contains(&passed), "{passed}");
    assert!((9_990_000..=10_002_000).contains(&sent), "{sent}");
}

/// A shaper that said no, or a turn that met an empty queue, ended the whole round of sending.
#[test]
fn a_shaped_queue_holds_back_no_other() {
    for scheduler in [
        "round-robin",
        "drr",
        "weighted",
        "fq-codel",
        "strict\"\norder = [[1], [0]]\n#",
        "conditional\"\nhigh = [1]\n#",
    ] {
        let mut pipeline = pipeline(&format!(
            "version = 1\nqueue = [{{ id = 0 }}, \
             {{ id = 1, shaper = {{ type = \"token-bucket\", rate = \"1mbit\", burst = \"100\" }} }}, {{ id = 2 }}, {{ id = 3 }}]\n\
             filter = [{{ id = 1, match = {{ dst_port = 1 }}, to = {{ type = \"queue\", queue = 1 }} }}, \
             {{ id = 3, match = {{ dst_port = 3 }}, to = {{ type = \"queue\", queue = 3 }} }}]\n\
             [scheduler]\ntype = \"{scheduler}\""
        ));
        let now = Time::from_millis(1);
        for port in [1, 3, 9] {
            (0..5).for_each(|_| {
                pipeline.enqueue(now, ipv4(SERVER, UE, UDP, &udp(1, port, &[0; 72])), &mut ()).unwrap();
            });
        }
        let mut sent = [0; 4];
        while let Dequeued::Packet(_, queue) = pipeline.dequeue(now, &mut ()) {
            sent[queue.index()] += 1;
        }
        assert_eq!(sent, [5, 1, 0, 5], "{scheduler}: all of the others, and what the burst allows");
        // And the shaped one goes on exactly when its tokens are there: 100 bytes at 1 Mbit/s.
        assert_eq!(pipeline.wake_at(), Some(now + Span::from_micros(800)), "{scheduler}");
        assert!(matches!(pipeline.dequeue(now + Span::from_micros(800), &mut ()), Dequeued::Packet(_, QueueId(1))));
    }
}

/// The AQM decided again on the same head each time the shaper or the pacer made it wait: one packet was marked a hundred
/// times, and the drop rate grew for nothing.
#[test]
fn an_aqm_decides_once_per_head_however_often_it_is_asked() {
    let kinds = [
        "{ type = \"codel\", ecn = true }",
        "{ type = \"codel\" }",
        "{ type = \"dualpi2\", pair = \"x\", role = \"l4s\" }",
        "{ type = \"dualpi2\", pair = \"x\", role = \"classic\" }",
        "{ type = \"pie\", ecn = true }",
        "{ type = \"red\", ecn = true, min = \"2000\", max = \"6000\" }",
    ];
    for kind in kinds {
        let text = |shaper: &str| format!("version = 1\n[[queue]]\nid = 0\nkind = {kind}\n{shaper}");
        let run = |asks: u32| {
            let shaper = "shaper = { type = \"token-bucket\", rate = \"1mbit\", burst = \"1000\" }";
            let mut pipeline = pipeline(&text(shaper));
            let (mut sent, mut marked, mut now) = (0, 0, Time::ZERO);
            for n in 0..3_000_u32 {
                now = Time::from_millis(u64::from(n) * 4);
                let ecn = if n % 3 == 0 { Ecn::NotEct } else { Ecn::Ect1 };
                let packet = ipv4_with(SERVER.into(), UE.into(), UDP, ecn as u8, 0, 0, &udp(1, 2, &[0; 972]));
                let _ = pipeline.enqueue(now, packet, &mut ());
                for ask in 0..asks {
                    let now = now + Span::from_nanos(u64::from(ask));
                    while let Dequeued::Packet(packet, _) = pipeline.dequeue(now, &mut ()) {
                        sent += 1;
                        marked += u32::from(packet[1] & 3 == 3);
                    }
                }
            }
            assert!(sent > 1_000, "{kind} at {now:?}: {sent}");
            let xstats = pipeline.stats().queues[0].xstats.clone();
            let marks = xstats.get_count("ecn_mark").unwrap();
            // Of the packets marked some still stand in the queue, where the AQM marks on arrival.
            assert!(
                marks >= u64::from(marked) && marks <= u64::from(marked) + pipeline.packets(),
                "{kind}: {marks} {marked}"
            );
            (sent, marked, pipeline.stats().basic.drops)
        };
        let (once, often) = (run(1), run(50));
        assert!(once.1 > 0 || once.2 > 0, "{kind}: the AQM never acted");
        assert_eq!(once, often, "{kind}");
    }
}

/// Only IPv4 was understood; other protocols aborted the program.
#[test]
fn ipv6_and_unknown_protocols_are_packets_like_any_other() {
    let mut pipeline =
        pipeline("version = 1\nqueue = [{ id = 0, count = 4 }]\nfilter = [{ id = 1, to = { type = \"hash\" } }]");
    for proto in 0..=255 {
        pipeline.enqueue(Time::ZERO, ipv4(SERVER, UE, proto, &[0x50; 60]), &mut ()).unwrap();
        let packet = ipv6("::1".parse().unwrap(), "::2".parse().unwrap(), proto, 0, &[0x50; 60]);
        pipeline.enqueue(Time::ZERO, packet, &mut ()).unwrap();
    }
    assert_eq!(pipeline.packets(), 512);
    pipeline.audit().unwrap();
}

/// A full queue aborted the program.
#[test]
fn a_full_queue_drops_and_counts() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0\nkind = { type = \"fifo\", limit = { packets = 2 } }");
    let mut back = Vec::new();
    let mut results = vec![];
    for n in 0..3_u8 {
        results.push(pipeline.enqueue(Time::ZERO, vec![n], &mut |packet: Vec<u8>, what| back.push((packet, what))));
    }
    assert_eq!(results, [Ok(QueueId(0)), Ok(QueueId(0)), Err(DropReason::QueuePackets)]);
    assert_eq!(back.len(), 1, "its owner gets the packet back");
    assert_eq!(back[0].0, [2]);
    assert_eq!(pipeline.stats().queues[0].basic.drops, 1);
}

/// Unknown ids aborted the program; every control was answered with OK.
#[test]
fn an_unknown_id_is_an_error_that_changes_nothing() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    let before = (pipeline.spec(), pipeline.generation());
    let unknown = [
        Change::DeleteFilter { id: 7 },
        Change::ModifyQueue { id: QueueId(7), kind: QueueKind::default() },
        Change::DeleteQueue { id: QueueId(7), packets: Default::default(), references: References::Remove },
        Change::DeletePolicer { queue: QueueId(7) },
        Change::DeleteShaper { queue: QueueId(0) },
    ];
    for change in unknown {
        let refused = pipeline.apply(Time::ZERO, std::slice::from_ref(&change), &mut ());
        assert!(matches!(refused, Err(SpecError::Unknown { .. })), "{change:?}: {refused:?}");
        assert_eq!((pipeline.spec(), pipeline.generation()), before);
    }
}

/// Policers, schedulers and pacers could not be added or deleted, filters not deleted.
#[test]
fn every_stage_can_be_added_modified_and_deleted() {
    let change = |text: &str| toml::from_str::<Change>(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    let before = pipeline.spec();
    for text in [
        "op = 'add-queue'\nqueue = { id = 1, kind = { type = 'codel' } }",
        "op = 'modify-queue'\nid = 1\nkind = { type = 'codel', target = '10ms' }",
        "op = 'add-filter'\nfilter = { id = 1, to = { type = 'queue', queue = 1 } }",
        "op = 'modify-filter'\nfilter = { id = 1, match = { proto = 6 }, to = { type = 'queue', queue = 1 } }",
        "op = 'add-policer'\nqueue = 1\npolicer = { type = 'srtcm', cir = '1mbit', cbs = '1k' }",
        "op = 'modify-policer'\nqueue = 1\npolicer = { type = 'trtcm', cir = '1mbit', cbs = '1k', pir = '2mbit', pbs = '1k' }",
        "op = 'add-shaper'\nqueue = 1\nshaper = { type = 'token-bucket', rate = '1mbit', burst = '1k' }",
        "op = 'modify-shaper'\nqueue = 1\nshaper = { type = 'token-bucket', rate = '2mbit', burst = '1k' }",
        "op = 'set-scheduler'\nscheduler = { type = 'drr' }",
        "op = 'set-scheduler'\nscheduler = { type = 'strict', order = [[0]] }",
        "op = 'set-pacer'\npacer = { type = '5g-bdp' }",
        "op = 'set-pacer'\npacer = { type = 'dql' }",
        "op = 'delete-pacer'",
        "op = 'set-scheduler'\nscheduler = { type = 'round-robin' }",
        "op = 'delete-shaper'\nqueue = 1",
        "op = 'delete-policer'\nqueue = 1",
        "op = 'delete-filter'\nid = 1",
        "op = 'delete-queue'\nid = 1",
    ] {
        let spec = pipeline.spec();
        pipeline.apply(Time::ZERO, &[change(text)], &mut ()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_ne!(pipeline.spec(), spec, "{text}");
    }
    assert_eq!(pipeline.spec(), before);
    assert!(matches!(
        pipeline.apply(Time::ZERO, &[change("op = 'delete-scheduler'")], &mut ()),
        Err(SpecError::InUse { .. })
    ));
}

/// A policer counted packets when they had been forwarded, so that what it dropped or what waited did not count.
#[test]
fn a_policer_counts_what_is_offered() {
    let mut pipeline = pipeline(
        "version = 1\n[[queue]]\nid = 0\nkind = { type = \"fifo\", limit = { packets = 1 } }\n\
         policer = { type = \"srtcm\", cir = \"8kbit\", cbs = \"3000\", colours = { red = \"drop\" } }",
    );
    // Nothing is ever taken out; the second and third do not even fit into the queue.
    let results = [(); 4].map(|()| pipeline.enqueue(Time::ZERO, vec![0; 1000], &mut ()));
    let full = Err(DropReason::QueuePackets);
    assert_eq!(results, [Ok(QueueId(0)), full, full, Err(DropReason::Policer)]);
    let police = pipeline.stats().queues[0].police.clone().unwrap();
    assert_eq!((police.get_count("packets"), police.get_count("drops")), (Some(4), Some(1)));
}

/// A queue that was added moved the flows of a stochastic classifier while their packets were still queued: they overtook
/// each other.
#[test]
fn adding_and_deleting_queues_reorders_no_flow() {
    let mut pipeline = pipeline(
        "version = 1\nqueue = [{ id = 0, count = 3 }]\nfilter = [{ id = 1, to = { type = \"hash\" } }]\n\
         scheduler = { type = \"drr\" }",
    );
    let mut rng = insane_traffic::Rng::new(9);
    let (mut next, mut last) = ([0_u32; 40], [0_u32; 40]);
    for step in 0..40_000_u32 {
        let now = Time::from_micros(u64::from(step));
        let flow = (rng.bits() % 40) as u16;
        if rng.bits() % 100 < 51 {
            next[usize::from(flow)] += 1;
            let payload = next[usize::from(flow)].to_be_bytes();
            pipeline.enqueue(now, ipv4(SERVER, UE, UDP, &udp(flow, 9, &payload)), &mut ()).unwrap();
        } else if let Dequeued::Packet(packet, _) = pipeline.dequeue(now, &mut ()) {
            let flow = usize::from(u16::from_be_bytes([packet[20], packet[21]]));
            let number = u32::from_be_bytes(packet[28..32].try_into().unwrap());
            assert_eq!(number, last[flow] + 1, "flow {flow} at step {step}");
            last[flow] = number;
        }
        if step % 97 == 0 {
            let id = QueueId(3 + (rng.bits() % 6) as u32);
            let add = Change::AddQueue { queue: insane_traffic::spec::QueueSpec::new(id, QueueKind::default()) };
            let delete = Change::DeleteQueue { id, packets: Default::default(), references: References::Refuse };
            let done = pipeline.apply(now, &[add], &mut ()).or_else(|_| pipeline.apply(now, &[delete], &mut ()));
            done.unwrap();
        }
    }
    assert!(last.iter().all(|&n| n > 100));
}
