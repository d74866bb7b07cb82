//! Messages that come alone, as most do that matter to a control loop: sent past the queues that they would find empty, and taken
//! without the records and events that frames with several take. What is counted, kept and said is as if they had gone the long way.

use std::time::Duration;

use insane_wire::frame::record::Message;
use insane_wire::frame::{Header, LONE_BYTES, build_lone, lone_head, read_lone};

use crate::config::Outgoing;
use crate::inflow::Verdict;
use crate::outflow::on_the_wire;
use crate::path::{Event, Path, Row, TICK};
use crate::receive::forget_parts;
use crate::rtt::SOONEST;

impl Path {
    /// Builds a frame at the end of `out` with a message that is to go at once and nothing else, past its flow's queue; `fill` appends its
    /// payload. It is the caller's again when this returns, and no [`Event::Released`] follows. Returns the frame's length in bytes; `None`,
    /// with nothing done, if something goes before the message or with it, and for all that is not a small best-effort message without
    /// deadline and times: then it is for [`Path::send`].
    pub fn send_at_once(
        &mut self,
        now: Duration,
        flow: u32,
        message: &Outgoing,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Option<usize> {
        let peer = self.peer?;
        let plain = message.deadline.is_none() && message.timestamp_ns == 0 && message.launch_ns == 0;
        let small = message.bundle == 0 && message.len <= self.config.copy_bytes;
        let goes = self.congestion.has_plenty() || self.may_send(now);
        if !plain || !small || self.config.checked || self.has_something(now) || !goes {
            return None;
        }
        let limit = self.frame_limit();
        let source = self.out.get_mut(&flow).filter(|source| source.goes_at_once())?;
        let (domain, sent_us) = (source.spec.domain, now.as_micros() as u32);
        let header = Header { domain, connection: peer.send, counter: self.counter, sent_us, ..Header::default() };
        let head = on_the_wire(flow, source.end(), message, now);
        let len = build_lone(out, &header, &head, (message.len as usize, limit), fill)?;
        source.went_at_once(message);
        if !self.ticking {
            (self.ticking, self.next_tick) = (true, now + TICK);
            self.stir_at(self.next_tick);
        }
        self.nothing_follows();
        // Its acknowledgement is not waited for in vain sooner.
        self.stir_at(now + SOONEST);
        let contents = self.spare.pop().unwrap_or_default();
        self.register(now, len, (true, false), contents);
        Some(len)
    }

    /// Takes a frame that carries one whole message and nothing else, if both are the next and no event waits: as
    /// [`Path::receive_alike`] takes those that follow it. `None`, with nothing done: it is for [`Path::receive`].
    pub fn receive_alone(&mut self, now: Duration, frame: &[u8]) -> Option<Row> {
        let (_, header, message, len) = self.read_lone(frame)?;
        // The first of a connection is not looked for here: nothing was seen that it could come after. And what has come before and was
        // not handled yet goes before it.
        let next = self.seen.largest() > 0 && header.counter == self.seen.largest() + 1;
        if !next || !self.events.is_empty() {
            return None;
        }
        self.take_row(now, &header, message, 1, len)
    }

    /// What a frame says that carries one whole message and nothing else: its head, what stands there, and the size of the payload.
    #[inline]
    pub(crate) fn read_lone(&self, frame: &[u8]) -> Option<([u8; LONE_BYTES], Header, Message, usize)> {
        let (head, len) = lone_head(frame).filter(|_| !self.config.checked)?;
        let (header, message) = read_lone(&head)?;
        Some((head, header, message, len))
    }

    /// Takes the next messages of a flow, which came in as many frames that are the next.
    pub(crate) fn take_row(
        &mut self,
        now: Duration,
        header: &Header,
        message: Message,
        count: u16,
        len: usize,
    ) -> Option<Row> {
        self.peer.filter(|peer| peer.receive == header.connection)?;
        let (flow, events) = (message.flow, &mut self.events);
        let incoming = self.incoming.get_mut(&flow).filter(|incoming| incoming.domain == header.domain)?;
        let first = incoming.index(message.index);
        if incoming.open.reliable {
            let hand_on = |message, lies| events.push_back(Event::Message { flow, message, lies });
            let bytes = (len as u64 * u64::from(count), len as u64);
            if !incoming.came_next((first, count), bytes, || (), hand_on) {
                return None;
            }
            forget_parts(&mut self.unfinished, events, incoming, (first, count));
        } else {
            if incoming.is_late(first) || incoming.judge_all(first, count) != Verdict::Take {
                return None;
            }
            incoming.came(first, count);
            self.ticking |= incoming.needs_ticks();
        }
        self.parts_lately = false;
        self.seen.goes_on(count.into());
        self.stats.received_frames += u64::from(count);
        (self.last_heard, self.largest_at) = (now, now);
        self.note_arrivals(now, count.into(), true);
        self.stir_at(self.ack_due.unwrap_or(now));
        if self.ticking {
            self.stir_at(self.next_tick);
        }
        Some(Row { flow, message, count, at: LONE_BYTES, len })
    }
}
