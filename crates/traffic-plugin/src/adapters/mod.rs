//! The tables' calls as the stages of `insane-traffic`. Every answer is checked here; what cannot be is counted and replaced
//! by the default that the header names. No packet ever leaves the host's hands.

mod classifier;
mod policer;
mod queue;
mod scheduler;
mod timing;

pub(crate) use classifier::Classifier;
pub(crate) use policer::Policer;
pub(crate) use queue::Queue;
pub(crate) use scheduler::Scheduler;
pub(crate) use timing::{Pacer, Shaper};

use insane_traffic::QueueId;
use insane_traffic::classify::PacketView;
use insane_traffic::parse::{Address, Shape};
use insane_traffic::spec::MAX_QUEUES;

use crate::abi;

/// A queue's id, if the number can be one.
fn queue_id(answer: i64) -> Option<QueueId> {
    u32::try_from(answer).ok().filter(|id| *id < MAX_QUEUES).map(QueueId)
}

/// A set of queues, one bit each.
#[derive(Debug, Default)]
struct QueueSet {
    words: Vec<u64>,
    count: usize,
}

impl QueueSet {
    fn contains(&self, queue: QueueId) -> bool {
        self.words.get(queue.index() / 64).is_some_and(|word| word >> (queue.index() % 64) & 1 == 1)
    }

    /// True if it was not in.
    fn insert(&mut self, queue: QueueId) -> bool {
        if queue.0 >= MAX_QUEUES || self.contains(queue) {
            return false;
        }
        let word = queue.index() / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (queue.index() % 64);
        self.count += 1;
        true
    }

    /// True if it was in.
    fn remove(&mut self, queue: QueueId) -> bool {
        if !self.contains(queue) {
            return false;
        }
        self.words[queue.index() / 64] &= !(1 << (queue.index() % 64));
        self.count -= 1;
        true
    }
}

fn octets(address: Address) -> [u8; 16] {
    let mut octets = [0; 16];
    if address.v6 {
        octets = address.bits.to_be_bytes();
    } else {
        octets[..4].copy_from_slice(&(address.bits as u32).to_be_bytes());
    }
    octets
}

/// A packet as the calls see it. Its pointer is good as long as the view's bytes are.
fn packet(view: &PacketView<'_>) -> abi::Packet {
    let mut packet = abi::Packet {
        bytes: if view.bytes.is_empty() { std::ptr::null() } else { view.bytes.as_ptr() },
        flow: view.flow.unwrap_or(0),
        length: u32::try_from(view.bytes.len()).unwrap_or(u32::MAX),
        size: view.size,
        traffic_class: view.class,
        qfi: view.qfi.map_or(-1, i32::from),
        src_port: 0,
        dst_port: 0,
        src: [0; 16],
        dst: [0; 16],
        ip_version: 0,
        protocol: 0,
        dscp: 0,
        ecn: 0,
        has_flow: view.flow.is_some().into(),
        has_ports: 0,
        reserved: [0; 2],
    };
    if view.headers.shape == Shape::Ip {
        let flow = view.headers.inner();
        packet.ip_version = if flow.src.v6 { 6 } else { 4 };
        (packet.src, packet.dst) = (octets(flow.src), octets(flow.dst));
        (packet.protocol, packet.dscp, packet.ecn) = (flow.proto, flow.dscp, flow.ecn as u8);
        if let Some((src, dst)) = flow.ports {
            (packet.src_port, packet.dst_port, packet.has_ports) = (src, dst, 1);
        }
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_knows_what_is_in_it_and_how_many() {
        let mut set = QueueSet::default();
        for id in [0, 63, 64, 65_535] {
            assert!(set.insert(QueueId(id)) && !set.insert(QueueId(id)));
        }
        assert!(!set.insert(QueueId(MAX_QUEUES)), "no queue has this id, and memory is bounded");
        assert_eq!(set.count, 4);
        assert!(set.remove(QueueId(64)) && !set.remove(QueueId(64)) && !set.remove(QueueId(70_000)));
        assert_eq!((set.count, set.contains(QueueId(63)), set.contains(QueueId(64))), (3, true, false));
    }

    #[test]
    fn only_ids_that_can_be_are_taken_from_an_answer() {
        assert_eq!(queue_id(65_535), Some(QueueId(65_535)));
        for answer in [-1, 65_536, i64::MAX, i64::MIN, 1 << 32] {
            assert_eq!(queue_id(answer), None, "{answer}");
        }
    }
}
