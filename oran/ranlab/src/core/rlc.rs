//! RLC as far as queues go (TS 38.322): the transmitter's buffer with segmentation, and the receiver's reassembly with
//! delivery in order.

use std::collections::{BTreeMap, VecDeque};

use insane_traffic::{Packet, Span, Time};
use serde::{Deserialize, Serialize};

use super::pdu::Pdu;

/// Bytes of MAC subheader and RLC header before each piece: a subheader with a 16-bit length, and an 18-bit acknowledged
/// mode header.
pub const PIECE_HEADER: u32 = 3 + 3;

/// What happens to a piece that the HARQ gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RlcMode {
    /// It is sent again, before anything new.
    #[default]
    Acknowledged,
    /// Its packet is lost.
    Unacknowledged,
}

/// A part of a packet in a transport block. The packet itself travels with its last part.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Which bearer of the UE, by position.
    pub bearer: usize,
    /// The RLC's number of the packet.
    pub sn: u64,
    /// Bytes of the packet.
    pub bytes: u32,
    /// The packet, with its last part; and how many bytes it has with its PDCP and SDAP headers.
    pub last: Option<(Box<Pdu>, u32)>,
}

#[derive(Clone, Debug)]
struct Waiting {
    sn: u64,
    count: u64,
    left: u32,
    size: u32,
    pdu: Box<Pdu>,
}

/// What an RLC transmitter counts, in the names of the RLC service model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RlcStats {
    /// Packets accepted.
    pub rxsdu_pkts: u64,
    /// Packets refused because the buffer was full.
    pub rxsdu_dd_pkts: u64,
    /// Bytes in the buffer.
    pub txbuf_occ_bytes: u64,
    /// Packets in the buffer.
    pub txbuf_occ_pkts: u64,
    /// Packets whose last byte was sent.
    pub txpdu_pkts: u64,
    /// Bytes sent for the first time, without MAC and RLC headers.
    pub txpdu_bytes: u64,
    /// Pieces of packets that did not fit a block whole.
    pub txpdu_segmented: u64,
    /// Pieces sent again after the HARQ gave up.
    pub txpdu_retx_pkts: u64,
    /// Sum of the packets' times in the buffer, in nanoseconds.
    pub txpdu_wt_ns: u64,
    /// How long the first packet in the buffer has been there, in nanoseconds.
    pub head_sojourn_ns: u64,
}

/// The transmitter's buffer of one bearer.
#[derive(Clone, Debug)]
pub struct Buffer {
    limit: u64,
    limit_packets: usize,
    waiting: VecDeque<Waiting>,
    again: VecDeque<Piece>,
    bytes: u64,
    next_sn: u64,
    /// The PDCP count of the packet whose last byte was sent last.
    pub(super) transmitted: Option<u64>,
    stats: RlcStats,
}

impl Buffer {
    /// A buffer that takes packets as long as it stays within `limit` bytes and `limit_packets` packets.
    #[must_use]
    pub fn new(limit: u64, limit_packets: usize) -> Self {
        Self {
            limit,
            limit_packets,
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            bytes: 0,
            next_sn: 0,
            transmitted: None,
            stats: RlcStats::default(),
        }
    }

    /// Takes a packet whose PDCP count is `count`, which is `overhead` bytes longer here than it is; gives it back if it
    /// does not fit.
    ///
    /// # Errors
    /// The packet.
    pub fn push(&mut self, now: Time, count: u64, overhead: u32, mut pdu: Box<Pdu>) -> Result<(), Box<Pdu>> {
        let size = pdu.size() + overhead;
        if self.bytes + u64::from(size) > self.limit || self.waiting.len() >= self.limit_packets {
            self.stats.rxsdu_dd_pkts += 1;
            return Err(pdu);
        }
        pdu.at_rlc = now;
        self.waiting.push_back(Waiting { sn: self.next_sn, count, left: size, size, pdu });
        self.next_sn += 1;
        self.bytes += u64::from(size);
        self.stats.rxsdu_pkts += 1;
        Ok(())
    }

    /// Bytes that are not yet sent.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that it may hold.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Packets of which not all is sent.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes that a block must have to take everything, with headers.
    #[must_use]
    pub fn demand(&self) -> u64 {
        let again: u64 = self.again.iter().map(|p| u64::from(p.bytes + PIECE_HEADER)).sum();
        again + self.bytes + self.waiting.len() as u64 * u64::from(PIECE_HEADER)
    }

    /// When the first packet came.
    #[must_use]
    pub fn head_since(&self) -> Option<Time> {
        self.waiting.front().map(|w| w.pdu.at_rlc)
    }

    /// Fills up to `budget` bytes of a block with pieces; returns how many bytes they take with their headers.
    pub fn fill(&mut self, now: Time, bearer: usize, budget: u32, into: &mut Vec<Piece>) -> u32 {
        let mut left = budget;
        while left > PIECE_HEADER
            && let Some(mut piece) = self.again.pop_front()
        {
            let room = left - PIECE_HEADER;
            if piece.bytes > room {
                let first = Piece { bearer, sn: piece.sn, bytes: room, last: None };
                piece.bytes -= room;
                self.again.push_front(piece);
                piece = first;
            }
            left -= piece.bytes + PIECE_HEADER;
            self.stats.txpdu_retx_pkts += 1;
            into.push(piece);
        }
        while left > PIECE_HEADER
            && let Some(head) = self.waiting.front_mut()
        {
            let bytes = head.left.min(left - PIECE_HEADER);
            left -= bytes + PIECE_HEADER;
            self.bytes -= u64::from(bytes);
            self.stats.txpdu_bytes += u64::from(bytes);
            if bytes < head.left {
                head.left -= bytes;
                self.stats.txpdu_segmented += 1;
                into.push(Piece { bearer, sn: head.sn, bytes, last: None });
                break;
            }
            let Some(mut done) = self.waiting.pop_front() else { break };
            done.pdu.left_rlc = now;
            self.transmitted = Some(done.count);
            self.stats.txpdu_pkts += 1;
            self.stats.txpdu_wt_ns += now.since(done.pdu.at_rlc).nanos();
            into.push(Piece { bearer, sn: done.sn, bytes, last: Some((done.pdu, done.size)) });
        }
        budget - left
    }

    /// Takes a piece back that did not arrive, to send it before anything else.
    pub fn send_again(&mut self, piece: Piece) {
        self.again.push_back(piece);
    }

    /// What is counted, with the state at `now`.
    #[must_use]
    pub fn stats(&self, now: Time) -> RlcStats {
        RlcStats {
            txbuf_occ_bytes: self.bytes,
            txbuf_occ_pkts: self.waiting.len() as u64,
            head_sojourn_ns: self.head_since().map_or(0, |at| now.since(at).nanos()),
            ..self.stats
        }
    }

    /// Packets here, those in pieces to be sent again too.
    pub(super) fn held(&self) -> usize {
        self.waiting.len() + self.again.iter().filter(|p| p.last.is_some()).count()
    }
}

#[derive(Clone, Debug)]
struct Partial {
    got: u32,
    whole: Option<(Box<Pdu>, u32)>,
    lost: bool,
}

/// The receiver of one bearer: puts pieces together and delivers packets in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Receiver {
    reordering: Span,
    next: u64,
    pending: BTreeMap<u64, Partial>,
    /// Since when something waits for something missing, and up to which number the wait counts.
    blocked: Option<(Time, u64)>,
    /// What is missing below this is not waited for.
    give_up: u64,
    lost: u64,
}

impl Receiver {
    /// A receiver that waits for a missing packet so long (t-Reordering).
    #[must_use]
    pub const fn new(reordering: Span) -> Self {
        Self { reordering, next: 0, pending: BTreeMap::new(), blocked: None, give_up: 0, lost: 0 }
    }

    /// A piece arrived.
    pub fn receive(&mut self, piece: Piece) {
        if piece.sn < self.next {
            self.lost += u64::from(piece.last.is_some());
            return;
        }
        let partial = self.pending.entry(piece.sn).or_insert(Partial { got: 0, whole: None, lost: false });
        partial.got += piece.bytes;
        if piece.last.is_some() {
            partial.whole = piece.last;
        }
    }

    /// A piece will never arrive, and so its packet will never be whole.
    pub fn never(&mut self, piece: &Piece) {
        self.lost += u64::from(piece.last.is_some());
        if piece.sn >= self.next {
            let partial = self.pending.entry(piece.sn).or_insert(Partial { got: 0, whole: None, lost: false });
            partial.lost = true;
        }
    }

    /// The next packet in order, if it is there or what is before it was waited for long enough.
    pub fn deliver(&mut self, now: Time) -> Option<Box<Pdu>> {
        loop {
            let alone = self.pending.len() == 1;
            let highest = self.pending.last_key_value().map(|(sn, _)| *sn)?;
            let first = self.pending.first_entry()?;
            let (sn, partial) = (*first.key(), first.get());
            let complete = !partial.lost && partial.whole.as_ref().is_some_and(|(_, size)| partial.got >= *size);
            if sn == self.next && complete {
                let whole = first.remove().whole;
                self.next += 1;
                self.blocked = None;
                return whole.map(|(pdu, _)| pdu);
            }
            // The rest of this packet is not sent yet, and nothing waits behind it.
            if sn == self.next && !partial.lost && alone {
                return None;
            }
            // Something is missing. What is lost and what is late look the same from here; when the timer ends,
            // everything missing that it ran for is given up at once.
            if sn >= self.give_up {
                let (since, upto) = *self.blocked.get_or_insert((now, highest + 1));
                if since + self.reordering > now {
                    return None;
                }
                self.give_up = upto;
            }
            self.blocked = None;
            if complete {
                self.next = sn;
            } else {
                self.lost += u64::from(first.remove().whole.is_some());
                self.next = sn + 1;
            }
        }
    }

    /// When [`Self::deliver`] may have something though nothing arrives.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        self.blocked.map(|(since, _)| since + self.reordering)
    }

    /// Packets given up.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Whole packets here.
    pub(super) fn held(&self) -> usize {
        self.pending.values().filter(|p| p.whole.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(bytes: usize, mark: u8) -> Box<Pdu> {
        Box::new(Pdu::new(vec![mark; bytes].into(), 9, Time::ZERO))
    }

    fn filled(sizes: &[usize]) -> Buffer {
        let mut buffer = Buffer::new(1 << 20, 1000);
        for (n, &size) in sizes.iter().enumerate() {
            buffer.push(Time::ZERO, n as u64, 0, pdu(size, n as u8)).unwrap();
        }
        buffer
    }

    fn take(buffer: &mut Buffer, budget: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let used = buffer.fill(Time::from_millis(1), 0, budget, &mut pieces);
        assert!(used <= budget);
        assert_eq!(used, pieces.iter().map(|p| p.bytes + PIECE_HEADER).sum::<u32>());
        pieces
    }

    #[test]
    fn packets_are_cut_where_the_block_ends_and_put_together_again() {
        let mut buffer = filled(&[1000, 1000, 1000]);
        let mut receiver = Receiver::new(Span::from_millis(10));
        let mut out = Vec::new();
        for _ in 0..8 {
            take(&mut buffer, 500).into_iter().for_each(|p| receiver.receive(p));
            while let Some(pdu) = receiver.deliver(Time::ZERO) {
                out.push((pdu.bytes[0], pdu.bytes.len()));
            }
        }
        assert_eq!(out, [(0, 1000), (1, 1000), (2, 1000)]);
        assert_eq!((buffer.bytes(), buffer.held(), receiver.held()), (0, 0, 0));
    }

    #[test]
    fn a_block_too_small_for_a_header_takes_nothing() {
        let mut buffer = filled(&[1000]);
        assert!(take(&mut buffer, PIECE_HEADER).is_empty());
        assert_eq!(take(&mut buffer, PIECE_HEADER + 1)[0].bytes, 1);
    }

    #[test]
    fn a_piece_that_comes_late_holds_up_those_behind_it_and_no_order_is_lost() {
        let mut buffer = filled(&[300, 300, 300]);
        let mut receiver = Receiver::new(Span::from_millis(10));
        let mut pieces = take(&mut buffer, 2000);
        let late = pieces.remove(0);
        pieces.into_iter().for_each(|p| receiver.receive(p));
        assert!(receiver.deliver(Time::from_millis(1)).is_none());
        receiver.receive(late);
        let order: Vec<u8> =
            std::iter::from_fn(|| receiver.deliver(Time::from_millis(9))).map(|p| p.bytes[0]).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn what_never_comes_is_waited_for_once_and_given_up() {
        let mut buffer = filled(&[300, 300, 300]);
        let mut receiver = Receiver::new(Span::from_millis(10));
        let pieces = take(&mut buffer, 2000);
        for (n, piece) in pieces.into_iter().enumerate() {
            if n == 0 { receiver.never(&piece) } else { receiver.receive(piece) }
        }
        assert!(receiver.deliver(Time::from_millis(1)).is_none());
        assert_eq!(receiver.wake_at(), Some(Time::from_millis(11)));
        assert!(receiver.deliver(Time::from_millis(10)).is_none());
        let order: Vec<u8> =
            std::iter::from_fn(|| receiver.deliver(Time::from_millis(11))).map(|p| p.bytes[0]).collect();
        assert_eq!(order, [1, 2]);
        assert_eq!((receiver.lost(), receiver.held(), receiver.wake_at()), (1, 0, None));
    }

    #[test]
    fn pieces_sent_again_go_first_and_may_be_cut_once_more() {
        let mut buffer = filled(&[1000, 1000]);
        let mut receiver = Receiver::new(Span::from_millis(10));
        take(&mut buffer, 1006).into_iter().for_each(|p| buffer.send_again(p));
        let mut blocks = 0;
        while buffer.demand() > 0 {
            take(&mut buffer, 306).into_iter().for_each(|p| receiver.receive(p));
            blocks += 1;
        }
        let order: Vec<u8> = std::iter::from_fn(|| receiver.deliver(Time::ZERO)).map(|p| p.bytes[0]).collect();
        assert_eq!((order, blocks), (vec![0, 1], 7));
    }

    #[test]
    fn a_full_buffer_gives_packets_back() {
        let mut buffer = Buffer::new(1_000, 2);
        assert!(buffer.push(Time::ZERO, 0, 4, pdu(996, 0)).is_ok());
        assert!(buffer.push(Time::ZERO, 1, 4, pdu(1, 1)).is_err());
        let mut buffer = Buffer::new(1_000, 2);
        let results = [10, 10, 10].map(|n| buffer.push(Time::ZERO, 0, 0, pdu(n, 0)).is_ok());
        assert_eq!(results, [true, true, false]);
        assert_eq!(buffer.stats(Time::from_millis(3)).rxsdu_dd_pkts, 1);
        assert_eq!(buffer.stats(Time::from_millis(3)).head_sojourn_ns, 3_000_000);
    }
}
