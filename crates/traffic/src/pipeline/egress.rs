//! The way out: scheduler, queue's AQM, shaper, pacer.

use std::cmp::Reverse;

use super::slots::Exit;
use super::{Dequeued, Pipeline, Volume};
use crate::pace::Pace;
use crate::packet::{Drops, Packet, QueueId};
use crate::queue::Queue;
use crate::shape::{Readiness, Shaper};
use crate::time::{Span, Time};

/// What one queue answered when it was its turn.
enum Turn<P> {
    Sent(P),
    Next,
    Wait(Time),
}

impl<P: Packet> Pipeline<P> {
    /// Asks for a packet. What the AQMs drop on the way goes to `drops`.
    pub fn dequeue(&mut self, now: Time, drops: &mut impl Drops<P>) -> Dequeued<P> {
        self.pacer_wait = None;
        self.fire_timers(now);
        // Asked also when nothing is queued: it is then that schedulers and AQMs find their queues empty.
        // Each turn finds a queue empty, blocks it or passes it over; only a faulty plug-in takes more turns than this.
        for _ in 0..4 * self.slots.count + 64 {
            let Some(id) = self.scheduler.next(now, &self.slots) else { return self.idle(now) };
            match self.turn(now, id, drops) {
                Turn::Sent(packet) => return Dequeued::Packet(packet, id),
                Turn::Next => {}
                Turn::Wait(until) => {
                    self.pacer_wait = Some(until);
                    return Dequeued::Wait(self.wake_at().unwrap_or(until));
                }
            }
        }
        self.scheduler_faults += 1;
        let retry = now + Span::from_millis(1);
        self.pacer_wait = Some(retry);
        Dequeued::Wait(retry)
    }

    /// No queue may send: all are empty, or held back by their shapers.
    fn idle(&mut self, now: Time) -> Dequeued<P> {
        match self.wake_at() {
            _ if self.held.packets == 0 => Dequeued::Empty,
            Some(at) => Dequeued::Wait(at),
            None => {
                // Packets, no timer, nobody's turn: a scheduler that lost a queue. It gets all of them again.
                self.scheduler_faults += 1;
                let waiting: Vec<QueueId> =
                    self.slots.iter().filter(|(_, s)| s.queue.packets() > 0).map(|(id, _)| id).collect();
                waiting.into_iter().for_each(|id| self.scheduler.activate(id));
                let retry = now + Span::from_millis(1);
                self.pacer_wait = Some(retry);
                Dequeued::Wait(retry)
            }
        }
    }

    fn turn(&mut self, now: Time, id: QueueId, drops: &mut impl Drops<P>) -> Turn<P> {
        let Some(slot) = self.slots.get_mut(id) else {
            self.scheduler_faults += 1;
            self.scheduler.remove(id);
            return Turn::Next;
        };
        let mut exit = Exit {
            classifier: &mut self.classifier,
            dropped: &mut self.dropped,
            queue: id,
            drops,
            volume: Volume::default(),
            last: None,
        };
        let head = slot.queue.head(now, &mut exit);
        let gone = exit.volume;
        if gone.packets > 0 {
            self.held.sub(gone);
            slot.basic.drops += gone.packets;
            let bytes = slot.queue.bytes();
            self.slots.note(id, bytes);
        }
        let Some(size) = head else {
            self.scheduler.emptied(id);
            return Turn::Next;
        };
        if !self.scheduler.offer(id, size) {
            return Turn::Next;
        }
        let Some(slot) = self.slots.get_mut(id) else { return Turn::Next };
        if let Some(shaper) = &mut slot.shaper
            && let Readiness::At(at) = shaper.ready(now, size)
        {
            let at = at.max(now + Span::from_nanos(1));
            slot.blocked = Some(at);
            slot.basic.overlimits += 1;
            self.overlimits += 1;
            self.scheduler.block(id);
            self.arm(at, id);
            return Turn::Next;
        }
        if let Pace::Wait(until) = self.pacer.admit(now, size) {
            return Turn::Wait(until.max(now + Span::from_nanos(1)));
        }
        self.send(now, id)
    }

    fn send(&mut self, now: Time, id: QueueId) -> Turn<P> {
        let Some(slot) = self.slots.get_mut(id) else { return Turn::Next };
        let Some(item) = slot.queue.pop(now) else {
            self.scheduler.emptied(id);
            return Turn::Next;
        };
        let size = item.meta.size;
        slot.forwarded(size, now.since(item.meta.at));
        if let Some(shaper) = &mut slot.shaper {
            shaper.sent(now, size);
        }
        let bytes = slot.queue.bytes();
        self.slots.note(id, bytes);
        self.scheduler.sent(id, size);
        self.pacer.sent(now, size);
        self.classifier.left(item.meta.ticket);
        self.forwarded.add(size);
        self.held.sub(Volume { packets: 1, bytes: u64::from(size) });
        Turn::Sent(item.packet)
    }

    fn arm(&mut self, at: Time, id: QueueId) {
        self.timers.push(Reverse((at, id.0)));
        // Changes leave timers behind that mean nothing any more; they must not pile up.
        if self.timers.len() > 2 * self.slots.count + 64 {
            let slots = &self.slots;
            self.timers.retain(|Reverse((at, id))| slots.get(QueueId(*id)).is_some_and(|s| s.blocked == Some(*at)));
        }
    }

    fn fire_timers(&mut self, now: Time) {
        while let Some(&Reverse((at, id))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let id = QueueId(id);
            if let Some(slot) = self.slots.get_mut(id)
                && slot.blocked == Some(at)
            {
                slot.blocked = None;
                self.scheduler.unblock(id);
            }
        }
    }
}
