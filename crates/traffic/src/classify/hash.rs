//! The stochastic classifier (McKenney's stochastic fair queueing): a keyed hash of the flow chooses the queue.
//!
//! The hash chooses a bucket, the bucket a queue. When queues come or go, only as many buckets move as must, and a bucket
//! moves only after its last packet has left: a flow's packets never overtake each other because of a change.

use std::collections::BTreeSet;

use super::{Classifier, Decision, PacketView};
use crate::packet::QueueId;
use crate::parse::{Flow, Fragment, Shape};
use crate::random::keyed_hash;
use crate::spec::{NumberSet, TargetSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// The fewest buckets: enough for a few queues to have nearly equal shares of them.
const MIN_BUCKETS: usize = 1_024;
/// How many bits of a ticket's tag are the bucket; the rest tells generations of the table apart.
const BUCKET_BITS: u32 = 17;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Where its packets go as long as any are on their way.
    queue: QueueId,
    /// Where they go after that.
    next: QueueId,
    /// Packets on their way.
    inflight: u32,
}

/// Spreads flows over queues.
#[derive(Clone, Debug)]
pub struct Hash {
    key: [u64; 2],
    only: Option<NumberSet>,
    members: BTreeSet<QueueId>,
    buckets: Vec<Bucket>,
    epoch: u32,
    /// Members changed since the buckets were dealt out.
    stale: bool,
    moved: u64,
}

impl Hash {
    /// Spreads over the queues in `only`, or over all. `key` keeps senders from aiming.
    #[must_use]
    pub const fn new(key: [u64; 2], only: Option<NumberSet>) -> Self {
        let members = BTreeSet::new();
        Self { key, only, members, buckets: Vec::new(), epoch: 0, stale: true, moved: 0 }
    }

    fn wants(&self, queue: QueueId) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(queue.0))
    }

    /// Deals the buckets out so that each member has as many as any other, give or take one, moving as few as possible.
    fn deal(&mut self) {
        self.stale = false;
        let Some(&first) = self.members.first() else { return };
        let wanted = self.members.len().next_power_of_two().max(MIN_BUCKETS);
        if wanted > self.buckets.len() {
            self.buckets.clear();
            self.buckets.resize(wanted, Bucket { queue: QueueId(u32::MAX), next: QueueId(u32::MAX), inflight: 0 });
            self.epoch = self.epoch.wrapping_add(1) & (u32::MAX >> BUCKET_BITS);
        }
        let top = self.members.last().map_or(0, |q| q.index()) + 1;
        let share = self.buckets.len() / self.members.len();
        let mut spare = self.buckets.len() % self.members.len();
        let mut has = vec![0_usize; top];
        let mut homeless = Vec::new();
        for (n, bucket) in self.buckets.iter().enumerate() {
            let held = self.members.contains(&bucket.next).then(|| &mut has[bucket.next.index()]);
            match held {
                Some(count) if *count < share => *count += 1,
                Some(count) if *count == share && spare > 0 => {
                    *count += 1;
                    spare -= 1;
                }
                _ => homeless.push(n),
            }
        }
        let mut members = self.members.iter().copied();
        let mut taker = first;
        for n in homeless {
            while has[taker.index()] >= share + usize::from(spare > 0) {
                let Some(next) = members.next() else { break };
                taker = next;
            }
            has[taker.index()] += 1;
            spare = spare.saturating_sub(usize::from(has[taker.index()] > share));
            self.buckets[n].next = taker;
            self.moved += 1;
        }
    }
}

/// What makes a flow: addresses, protocol and ports; no ports for fragments, for most parts of a packet have none.
fn words(flow: &Flow) -> [u64; 5] {
    let ports = match flow.ports {
        Some((src, dst)) if flow.fragment == Fragment::No => u64::from(src) << 16 | u64::from(dst),
        _ => u64::from(flow.spi),
    };
    let rest = ports << 16 | u64::from(flow.proto) << 1 | u64::from(flow.src.v6);
    let (src, dst) = (flow.src.bits, flow.dst.bits);
    [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64, rest]
}

impl Classifier for Hash {
    fn classify(&mut self, _now: Time, packet: &PacketView<'_>) -> Decision {
        let hash = match (packet.flow, packet.headers.shape) {
            (Some(flow), _) => keyed_hash(self.key, &[flow]),
            (None, Shape::Ip) => {
                let flow = packet.headers.inner();
                let words = words(flow);
                // Half of an IPv4 flow's words are zero: they need not be hashed.
                if flow.src.v6 {
                    keyed_hash(self.key, &words)
                } else {
                    keyed_hash(self.key, &[words[1] << 32 | words[3], words[4]])
                }
            }
            (None, Shape::Ethernet) => match packet.headers.ethernet {
                Some(e) => {
                    let address = |a: [u8; 6]| u64::from_be_bytes([0, 0, a[0], a[1], a[2], a[3], a[4], a[5]]);
                    keyed_hash(self.key, &[address(e.src), address(e.dst), e.ether_type.into()])
                }
                None => return Decision::Pass,
            },
            (None, Shape::Garbage | Shape::Unstructured) => return Decision::Pass,
        };
        if self.stale {
            self.deal();
        }
        if self.members.is_empty() {
            return Decision::Pass;
        }
        let place = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        let bucket = &mut self.buckets[place];
        if bucket.inflight == 0 {
            bucket.queue = bucket.next;
        }
        bucket.inflight += 1;
        Decision::Tracked(bucket.queue, self.epoch << BUCKET_BITS | place as u32)
    }

    fn queue_added(&mut self, queue: QueueId) {
        if self.wants(queue) {
            self.members.insert(queue);
            self.stale = true;
        }
    }

    fn queue_removed(&mut self, queue: QueueId, moved_to: QueueId) {
        if !self.members.remove(&queue) {
            return;
        }
        self.stale = true;
        // Flows whose packets were moved stay behind them until those have left.
        self.buckets.iter_mut().filter(|b| b.queue == queue).for_each(|b| b.queue = moved_to);
    }

    fn left(&mut self, tag: u32) {
        if tag >> BUCKET_BITS == self.epoch
            && let Some(bucket) = self.buckets.get_mut((tag & ((1 << BUCKET_BITS) - 1)) as usize)
        {
            bucket.inflight = bucket.inflight.saturating_sub(1);
        }
    }

    fn modify(&mut self, to: &TargetSpec, queues: &[QueueId]) -> bool {
        let TargetSpec::Hash { queues: only } = to else { return false };
        self.only.clone_from(only);
        self.members = queues.iter().copied().filter(|&q| self.wants(q)).collect();
        self.stale = true;
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("queues", self.members.len() as u64);
        out.count("buckets", self.buckets.len() as u64);
        out.count("buckets_moved", self.moved);
        out.count("inflight", self.buckets.iter().map(|b| u64::from(b.inflight)).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Headers;
    use std::collections::HashMap;

    fn choose(hash: &mut Hash, flow: u64) -> (QueueId, u32) {
        let headers = Headers::default();
        let view = PacketView { bytes: &[], size: 1, class: 0, qfi: None, flow: Some(flow), headers: &headers };
        match hash.classify(Time::ZERO, &view) {
            Decision::Tracked(queue, tag) => (queue, tag),
            other => panic!("{other:?}"),
        }
    }

    fn shares(hash: &mut Hash, flows: u64) -> HashMap<QueueId, u64> {
        let mut shares = HashMap::new();
        for flow in 0..flows {
            let (queue, tag) = choose(hash, flow);
            hash.left(tag);
            *shares.entry(queue).or_default() += 1;
        }
        shares
    }

    #[test]
    fn flows_are_spread_evenly_over_any_number_of_queues() {
        for count in [1, 2, 3, 7, 1000, 1024, 1500] {
            let mut hash = Hash::new([1, 2], None);
            (0..count).for_each(|q| hash.queue_added(QueueId(q)));
            hash.deal();
            let mut buckets = HashMap::new();
            hash.buckets.iter().for_each(|b| *buckets.entry(b.next).or_insert(0) += 1);
            assert_eq!(buckets.len() as u32, count);
            assert!(buckets.values().max().unwrap() - buckets.values().min().unwrap() <= 1, "{count}");
        }
        let mut hash = Hash::new([1, 2], None);
        (0..4).for_each(|q| hash.queue_added(QueueId(q)));
        assert!(shares(&mut hash, 40_000).values().all(|&n| (9_000..11_000).contains(&n)));
    }

    #[test]
    fn a_new_queue_takes_only_its_share_of_the_flows() {
        let mut hash = Hash::new([1, 2], None);
        (0..4).for_each(|q| hash.queue_added(QueueId(q)));
        let before: Vec<_> = (0..10_000).map(|f| choose(&mut hash, f)).collect();
        before.iter().for_each(|(_, tag)| hash.left(*tag));
        hash.queue_added(QueueId(4));
        let moved = (0..10_000).filter(|&f| choose(&mut hash, f).0 != before[f as usize].0).count();
        assert!((1_500..2_500).contains(&moved), "{moved}");
    }

    #[test]
    fn a_flow_moves_only_after_its_last_packet_left() {
        let mut hash = Hash::new([1, 2], None);
        hash.queue_added(QueueId(0));
        let held: Vec<_> = (0..100).map(|f| choose(&mut hash, f)).collect();
        hash.queue_added(QueueId(1));
        hash.queue_removed(QueueId(0), QueueId(7));
        assert!((0..100).all(|f| choose(&mut hash, f).0 == QueueId(7)), "they follow their packets");
        for (_, tag) in held {
            hash.left(tag);
            hash.left(tag);
        }
        assert!((0..100).all(|f| choose(&mut hash, f).0 == QueueId(1)));
    }
}
