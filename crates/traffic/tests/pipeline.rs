//! The pipeline end to end: one of each stage, packets in order, changes without loss.

use insane_traffic::spec::Leftover;
use insane_traffic::{Change, Dequeued, Discipline, DropReason, Pipeline, PipelineSpec, QueueId, SpecError, Time};

/// A UDP packet of `size` bytes from 10.0.0.1 to `10.0.0.2:port`.
fn udp(port: u16, size: usize) -> Vec<u8> {
    let mut packet = vec![0; size.max(28)];
    let len = u16::try_from(packet.len()).unwrap().to_be_bytes();
    packet[..4].copy_from_slice(&[0x45, 0, len[0], len[1]]);
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet
}

const ALL_STAGES: &str = r#"
    version = 1
    [[filter]]
    id = 1
    match = { dst_port = "5201-5204", proto = 17 }
    to = { type = "queue", queue = 1 }
    [[queue]]
    id = 0
    [[queue]]
    id = 1
    kind = { type = "codel" }
    policer = { type = "srtcm", cir = "8mbit", cbs = "3000", colours = { red = "drop" } }
    shaper = { type = "token-bucket", rate = "8mbit", burst = "1000" }
    [scheduler]
    type = "round-robin"
    [pacer]
    type = "none"
"#;

fn pipeline(text: &str) -> Pipeline<Vec<u8>> {
    Pipeline::new(&PipelineSpec::from_toml(text).unwrap(), 1).unwrap()
}

#[test]
fn a_packet_goes_through_all_six_stages() {
    let mut pipeline = pipeline(ALL_STAGES);
    let now = Time::from_millis(1);
    assert_eq!(pipeline.enqueue(now, udp(80, 500), &mut ()), Ok(QueueId(0)));
    for _ in 0..3 {
        assert_eq!(pipeline.enqueue(now, udp(5201, 1000), &mut ()), Ok(QueueId(1)));
    }
    // The fourth 1000 bytes are beyond the policer's 3000.
    assert_eq!(pipeline.enqueue(now, udp(5201, 1000), &mut ()), Err(DropReason::Policer));
    assert!(matches!(pipeline.dequeue(now, &mut ()), Dequeued::Packet(_, QueueId(0))));
    assert!(matches!(pipeline.dequeue(now, &mut ()), Dequeued::Packet(_, QueueId(1))));
    // 8 Mbit/s are 1000 bytes per ms, the burst is spent.
    assert_eq!(pipeline.dequeue(now, &mut ()), Dequeued::Wait(Time::from_millis(2)));
    assert_eq!(pipeline.wake_at(), Some(Time::from_millis(2)));
    assert!(matches!(pipeline.dequeue(Time::from_millis(2), &mut ()), Dequeued::Packet(_, QueueId(1))));
    assert!(matches!(pipeline.dequeue(Time::from_millis(3), &mut ()), Dequeued::Packet(_, QueueId(1))));
    assert_eq!(pipeline.dequeue(Time::from_millis(3), &mut ()), Dequeued::Empty);
    pipeline.audit().unwrap();
    let stats = pipeline.stats();
    assert_eq!((stats.packets_in, stats.basic.packets, stats.basic.drops), (5, 4, 1));
    assert_eq!(stats.dropped.get_count("policer"), Some(1));
}

#[test]
fn deleting_a_queue_moves_its_packets_in_order() {
    let mut pipeline = pipeline(ALL_STAGES);
    let now = Time::ZERO;
    let sent: Vec<_> = (0..3).map(|n| udp(5201, 100 + n)).collect();
    for packet in &sent {
        pipeline.enqueue(now, packet.clone(), &mut ()).unwrap();
    }
    let delete = |references| Change::DeleteQueue { id: QueueId(1), packets: Leftover::Rehome, references };
    let before = pipeline.spec();
    let refused = pipeline.apply(now, &[delete(Default::default())], &mut ());
    assert!(matches!(&refused, Err(SpecError::InUse { by, .. }) if by == "filter 1"), "{refused:?}");
    assert_eq!(pipeline.spec(), before);
    pipeline.apply(now, &[delete(insane_traffic::spec::References::Remove)], &mut ()).unwrap();
    let got: Vec<_> = std::iter::from_fn(|| pipeline.dequeue(now, &mut ()).packet()).collect();
    assert_eq!(got, sent);
    pipeline.audit().unwrap();
}

#[test]
fn a_pipeline_is_a_discipline() {
    let mut pipeline = pipeline("version = 1\n[[queue]]\nid = 0");
    assert_eq!(pipeline.push(|| Time::ZERO, vec![1], &mut ()), None);
    assert_eq!(pipeline.pull(|| Time::ZERO, &mut ()), Some(vec![1]));
    assert!(!Discipline::is_pass_through(&pipeline));
}
