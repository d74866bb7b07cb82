//! Whose turn it is to send.
//!
//! Flows take turns of some kilobytes each: what goes together arrives together, and a run of one flow's messages costs less to
//! build, to take and to hand on than as many that alternate. One that had nothing to send and has now comes next, so that it need
//! not wait for the turns of all that are busy. After that turn it is one of those, also if it has nothing more: it cannot keep them
//! waiting by coming anew (the new and old flows of FQ-CoDel, RFC 8290 §4.2).

use std::collections::VecDeque;

/// How much a turn is, in bytes; the message that reaches it, or the part, still goes.
pub(crate) const TURN_BYTES: u32 = 32 << 10;

/// The same of the turn of one that had nothing to send before: about a frame, for others may have come as it did.
const FIRST_TURN_BYTES: u32 = 2 << 10;

/// Flows that wait for their turn, and how much of it the first one has used.
#[derive(Debug, Default)]
struct Row {
    flows: VecDeque<u32>,
    used: u32,
}

impl Row {
    fn next(&mut self) -> Option<u32> {
        self.used = 0;
        self.flows.pop_front()
    }
}

/// Flows that have something to send.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    fresh: Row,
    busy: Row,
}

impl Turns {
    /// A flow that is not among them has something to send now.
    pub(crate) fn add(&mut self, flow: u32) {
        self.fresh.flows.push_back(flow);
    }

    /// Whose turn it is.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        self.fresh.flows.front().or(self.busy.flows.front()).copied()
    }

    /// Whether nobody has anything to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.front().is_none()
    }

    /// How many times so many bytes the first one may send, one at least, before it is another's turn.
    #[inline]
    pub(crate) fn left(&self, bytes: u32) -> u32 {
        let is_busy = self.fresh.flows.is_empty();
        let (row, turn) = if is_busy { (&self.busy, TURN_BYTES) } else { (&self.fresh, FIRST_TURN_BYTES) };
        turn.saturating_sub(row.used).div_ceil(bytes.max(1)).max(1)
    }

    /// The first one has sent so many bytes.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u32) {
        let is_busy = self.fresh.flows.is_empty();
        let (row, turn) = if is_busy { (&mut self.busy, TURN_BYTES) } else { (&mut self.fresh, FIRST_TURN_BYTES) };
        row.used = row.used.saturating_add(bytes);
        if row.used >= turn {
            self.pass();
        }
    }

    /// The first one's turn is over.
    pub(crate) fn pass(&mut self) {
        let flow = if self.fresh.flows.is_empty() { self.busy.next() } else { self.fresh.next() };
        self.busy.flows.extend(flow);
    }

    /// The first one has nothing to send. Says whether it is no longer among them.
    pub(crate) fn has_nothing(&mut self) -> bool {
        let is_busy = self.fresh.flows.is_empty();
        if is_busy {
            self.busy.next();
        } else {
            self.pass();
        }
        is_busy
    }

    /// Nobody has anything to send.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows 1 and 2 are busy, and 1 has its turn.
    fn two_busy() -> Turns {
        let mut turns = Turns::default();
        turns.add(1);
        turns.pass();
        turns.add(2);
        turns.pass();
        turns
    }

    #[test]
    fn who_is_busy_has_turns_of_equal_size() {
        let (mut turns, mut sent) = (two_busy(), [0, 0, 0]);
        for _ in 0..1000 {
            let flow = turns.front().unwrap();
            // Messages of different sizes.
            let bytes = if flow == 1 { 1000 } else { 250 };
            sent[flow as usize] += bytes;
            turns.sent(bytes);
        }
        assert!(sent[1].abs_diff(sent[2]) <= TURN_BYTES + 1000, "{sent:?}");
    }

    #[test]
    fn who_comes_is_next_and_does_not_use_up_the_turn_of_who_was_interrupted() {
        let mut turns = two_busy();
        turns.sent(TURN_BYTES - 1);
        turns.add(3);
        assert_eq!(turns.front(), Some(3));
        turns.sent(64);
        assert!(!turns.has_nothing(), "it is one of those that are busy first");
        assert_eq!(turns.front(), Some(1));
        turns.sent(1);
        assert_eq!(turns.front(), Some(2));
    }

    #[test]
    fn nobody_waits_for_ever_for_those_who_come_anew() {
        let (mut turns, mut is_there, mut sent) = (two_busy(), false, [0_u32; 4]);
        for _ in 0..10_000 {
            // Whenever it is not there it comes, with one message.
            if !is_there {
                is_there = true;
                turns.add(3);
                assert_eq!(turns.front(), Some(3));
                sent[3] += 64;
                turns.sent(64);
                assert!(!turns.has_nothing());
            }
            match turns.front().unwrap() {
                3 => is_there = !turns.has_nothing(),
                flow => {
                    sent[flow as usize] += 64;
                    turns.sent(64);
                }
            }
        }
        assert!(sent[1].abs_diff(sent[2]) <= TURN_BYTES, "{sent:?}");
        // Once in each of their turns.
        assert!(sent[3] / 64 >= (sent[1] + sent[2]) / TURN_BYTES / 2, "{sent:?}");
    }

    #[test]
    fn who_has_nothing_leaves() {
        let mut turns = two_busy();
        turns.add(3);
        assert!(!turns.has_nothing());
        assert_eq!([turns.has_nothing(), turns.has_nothing(), turns.has_nothing()], [true; 3]);
        assert!(turns.is_empty());
    }
}
