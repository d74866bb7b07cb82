//! The way in: classifier, policer, queue.

use super::slots::Exit;
use super::{Pipeline, Volume};
use crate::classify::{PacketView, Routed};
use crate::packet::{DropReason, Dropped, Drops, Ecn, Meta, Packet, QueueId, Queued, Ticket};
use crate::parse::{self, Headers};
use crate::police::{Policer, Verdict};
use crate::queue::Queue;
use crate::spec::Overflow;
use crate::time::Time;

/// Packets dropped at once from the fattest queue, at most (RFC 8290 §4.1.3).
const DROP_BATCH: usize = 64;

impl<P: Packet> Pipeline<P> {
    /// Hands a packet in. What the pipeline drops, now or later, goes to `drops`.
    ///
    /// Returns the queue that took it, or why it was dropped at the entrance.
    ///
    /// # Errors
    /// The reason for which it was dropped.
    pub fn enqueue(&mut self, now: Time, packet: P, drops: &mut impl Drops<P>) -> Result<QueueId, DropReason> {
        let size = packet.size();
        self.arrived.add(size);
        self.maxpacket = self.maxpacket.max(size);
        let (mut meta, routed) = self.classify(now, &packet, size);
        let (queue, ticket) = match routed {
            Ok(routed) => routed,
            Err((queue, reason)) => {
                self.dropped[reason as usize].add(size);
                drops.dropped(packet, Dropped { queue, reason });
                return Err(reason);
            }
        };
        meta.ticket = ticket;
        self.admit(now, queue, Queued { packet, meta }, drops)
    }

    /// Stages 1 and 2.
    #[expect(clippy::type_complexity, reason = "used once, in the line above")]
    fn classify(
        &mut self,
        now: Time,
        packet: &P,
        size: u32,
    ) -> (Meta, Result<(QueueId, Ticket), (QueueId, DropReason)>) {
        let bytes = packet.bytes();
        let parsed = !bytes.is_empty() && self.classifier.needs_headers();
        let mut headers = Headers::default();
        let ecn = if parsed {
            headers.read(bytes, self.layout.pdu);
            self.classifier.resolve_fragments(now, &mut headers);
            headers.ip_offset.map(|at| (at, headers.outer.ecn))
        } else {
            parse::ecn_of(bytes, self.layout.pdu)
        };
        let (ip_offset, ecn) = ecn.unwrap_or((Meta::NO_IP, Ecn::NotEct));
        let meta = Meta { at: now, size, ecn, ip_offset, ticket: Ticket::NONE };
        let qfi = packet.qfi().or(headers.qfi);
        let view = PacketView { bytes, size, class: packet.class(), qfi, flow: packet.flow(), headers: &headers };
        let (queue, ticket) = match self.classifier.route(now, &view) {
            Routed::Queue(queue, ticket) => (queue, ticket),
            Routed::Drop => return (meta, Err((QueueId::DEFAULT, DropReason::Filter))),
        };
        // A classifier from outside may name a queue that does not exist.
        let queue = if self.slots.get(queue).is_some() { queue } else { QueueId::DEFAULT };
        let Some(slot) = self.slots.get_mut(queue) else { return (meta, Err((queue, DropReason::Plugin))) };
        let Some(policer) = &mut slot.policer else { return (meta, Ok((queue, ticket))) };
        match policer.police(now, &view) {
            Verdict::Pass => (meta, Ok((queue, ticket))),
            Verdict::Drop => {
                slot.basic.drops += 1;
                self.classifier.left(ticket);
                (meta, Err((queue, DropReason::Policer)))
            }
            Verdict::Redirect(other) => {
                let other = if self.slots.get(other).is_some() {
                    other
                } else {
                    // Only a policer from outside names a queue that does not exist.
                    if let Some(policer) = self.slots.get_mut(queue).and_then(|slot| slot.policer.as_mut()) {
                        policer.misdirected();
                    }
                    QueueId::DEFAULT
                };
                if let Some(slot) = self.slots.get_mut(other) {
                    slot.basic.requeues += 1;
                    self.requeues += 1;
                }
                (meta, Ok((other, ticket)))
            }
        }
    }

    /// Stage 3.
    fn admit(
        &mut self,
        now: Time,
        id: QueueId,
        item: Queued<P>,
        drops: &mut impl Drops<P>,
    ) -> Result<QueueId, DropReason> {
        let size = item.meta.size;
        let limit = self.limit;
        let alone_too_big = u64::from(size) > limit.bytes.0;
        let full = self.held.packets >= u64::from(limit.packets) || self.held.bytes + u64::from(size) > limit.bytes.0;
        let Some(slot) = self.slots.get_mut(id) else { return Err(DropReason::Plugin) };
        if alone_too_big || (full && limit.overflow == Overflow::Tail) {
            slot.basic.drops += 1;
            slot.basic.overlimits += 1;
            self.overlimits += 1;
            self.dropped[DropReason::PipelineLimit as usize].add(size);
            self.classifier.left(item.meta.ticket);
            drops.dropped(item.packet, Dropped { queue: id, reason: DropReason::PipelineLimit });
            return Err(DropReason::PipelineLimit);
        }
        let mut exit = Exit {
            classifier: &mut self.classifier,
            dropped: &mut self.dropped,
            queue: id,
            drops,
            volume: Volume::default(),
            last: None,
        };
        slot.queue.enqueue(now, item, &mut exit);
        let (gone, last) = (exit.volume, exit.last);
        self.held.add(size);
        self.held.sub(gone);
        slot.basic.drops += gone.packets;
        slot.basic.maxpacket = slot.basic.maxpacket.max(u64::from(size));
        let bytes = slot.queue.bytes();
        if slot.queue.packets() == 1 && slot.blocked.is_none() {
            self.scheduler.activate(id);
        }
        self.slots.note(id, bytes);
        if full {
            self.shed_fattest(drops);
        }
        last.map_or(Ok(id), Err)
    }

    /// Makes room by dropping from the head of the queue with the most bytes.
    fn shed_fattest(&mut self, drops: &mut impl Drops<P>) {
        while self.held.packets > u64::from(self.limit.packets) || self.held.bytes > self.limit.bytes.0 {
            let id = self.slots.fattest();
            let Some(slot) = self.slots.get_mut(id) else { return };
            let batch = (slot.queue.packets() / 2).clamp(1, DROP_BATCH);
            let mut exit = Exit {
                classifier: &mut self.classifier,
                dropped: &mut self.dropped,
                queue: id,
                drops,
                volume: Volume::default(),
                last: None,
            };
            for _ in 0..batch {
                let Some(item) = slot.queue.shed() else { break };
                crate::packet::Outlet::dropped(&mut exit, item, DropReason::PipelineLimit);
            }
            let gone = exit.volume;
            self.held.sub(gone);
            self.overlimits += gone.packets;
            slot.basic.drops += gone.packets;
            slot.basic.overlimits += gone.packets;
            let bytes = slot.queue.bytes();
            self.slots.note(id, bytes);
            if gone.packets == 0 {
                return;
            }
        }
    }
}
