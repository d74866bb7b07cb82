//! Putting packets together again (RFC 791 §3.2, RFC 8200 §4.5), in a fixed amount of memory.
//!
//! Pieces that overlap spoil their packet, in both families (RFC 5722): nothing that comes for it later is taken either. A
//! piece that repeats what is there, byte for byte, is passed over. What is unfinished is bounded in number and in bytes, per
//! source and in all: the oldest makes room, of the same source if that has its share already.

use std::net::IpAddr;

use crate::ip::{Head, Ip, MAX_PACKET, V4_BYTES, V6_BYTES};
use crate::stats::Reason;
use crate::table::{BLOCK, Blocks, Chain};

/// Separate runs of bytes within one packet.
const RUNS: usize = 64;
/// How long a packet may be unfinished, in nanoseconds: as Linux, less than the minute that RFC 1122 §3.3.2 speaks of,
/// because numbers of packets repeat after 65536 (RFC 4963).
const V4_PATIENCE_NS: u64 = 30_000_000_000;
/// The same for IPv6 (RFC 8200 §4.5).
const V6_PATIENCE_NS: u64 = 60_000_000_000;

/// What may be unfinished.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
    pub(crate) source_packets: usize,
    pub(crate) source_bytes: usize,
    /// The least payload of a piece that is not the last.
    pub(crate) smallest: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id {
    from: IpAddr,
    to: IpAddr,
    ident: u32,
    /// IPv4 numbers packets per protocol.
    protocol: u8,
}

#[derive(Debug)]
struct Open {
    id: Id,
    began: u64,
    until: u64,
    chain: Chain,
    runs: [(u16, u16); RUNS],
    count: usize,
    total: Option<u16>,
    /// Of the first piece.
    protocol: u8,
    hop_limit: u8,
    /// Its pieces contradicted each other.
    spoiled: bool,
}

enum Fits {
    Anew,
    Within,
    Overlaps,
    TooMany,
}

impl Open {
    /// Notes that bytes are there.
    fn add(&mut self, start: u16, end: u16) -> Fits {
        let runs = &self.runs[..self.count];
        let at = runs.partition_point(|run| run.1 <= start);
        let next = runs.get(at).copied();
        if let Some((low, high)) = next.filter(|run| run.0 < end) {
            return if low <= start && end <= high { Fits::Within } else { Fits::Overlaps };
        }
        let joins_before = at > 0 && runs[at - 1].1 == start;
        let joins_after = next.is_some_and(|run| run.0 == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.copy_within(at + 1..self.count, at);
                self.count -= 1;
            }
            (true, false) => self.runs[at - 1].1 = end,
            (false, true) => self.runs[at].0 = start,
            (false, false) if self.count == RUNS => return Fits::TooMany,
            (false, false) => {
                self.runs.copy_within(at..self.count, at + 1);
                self.runs[at] = (start, end);
                self.count += 1;
            }
        }
        Fits::Anew
    }

    fn is_whole(&self) -> bool {
        self.count == 1 && self.total.is_some_and(|total| self.runs[0] == (0, total))
    }

    fn has_start(&self) -> bool {
        self.count > 0 && self.runs[0].0 == 0
    }
}

/// A packet that was given up in time, of which the start is there: its source is to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expired {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// Its headers and the first bytes of its payload.
    pub(crate) start: [u8; V6_BYTES + 8],
    pub(crate) len: usize,
}

/// The unfinished packets.
#[derive(Debug)]
pub(crate) struct Reassembly {
    bounds: Bounds,
    open: Vec<Open>,
    blocks: Blocks,
    pub(crate) evicted: u64,
}

impl Reassembly {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let blocks = Blocks::new(bounds.bytes.div_ceil(BLOCK));
        Self { bounds, open: Vec::with_capacity(bounds.packets.max(1)), blocks, evicted: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Takes a piece of a packet. When the packet is whole it is written to `out`, a header without options first, and its
    /// length returned.
    pub(crate) fn offer(&mut self, now: u64, ip: &Ip, bytes: &[u8], out: &mut [u8]) -> Result<Option<usize>, Reason> {
        let (Some(fragment), Some(payload)) = (ip.fragment, bytes.get(ip.header..ip.end)) else {
            return Err(Reason::FragmentMalformed);
        };
        let (start, len) = (usize::from(fragment.offset), payload.len());
        let header = if ip.to.is_ipv4() { V4_BYTES } else { 0 };
        if len == 0 || fragment.more && len % 8 != 0 || start + len + header > MAX_PACKET {
            return Err(Reason::FragmentMalformed);
        }
        let smallest = usize::from(self.bounds.smallest);
        if fragment.more && len < smallest || start > 0 && start < smallest {
            return Err(Reason::FragmentTiny);
        }
        let protocol = if ip.to.is_ipv4() { ip.protocol } else { 0 };
        let id = Id { from: ip.from, to: ip.to, ident: fragment.ident, protocol };
        let known = self.open.iter().position(|open| open.id == id);
        let mut at = known.unwrap_or_else(|| self.begin(now, id, ip));
        if !self.open[at].spoiled {
            at = self.make_room(at, start, len);
        }
        let (start, end) = (start as u16, (start + len) as u16);
        match self.take(at, ip, start, end, fragment.more, payload) {
            Ok(true) => Ok(Some(self.finish(at, out))),
            Ok(false) => Ok(None),
            Err(reason) => {
                if matches!(reason, Reason::FragmentOverlap | Reason::FragmentHoles) {
                    let open = &mut self.open[at];
                    open.spoiled = true;
                    self.blocks.release(&mut open.chain);
                } else if self.open[at].count == 0 && !self.open[at].spoiled {
                    self.open.swap_remove(at);
                }
                Err(reason)
            }
        }
    }

    /// Gives up others until a packet can have so many bytes more, or there are no others; where the packet is then.
    fn make_room(&mut self, mut at: usize, start: usize, len: usize) -> usize {
        while let Some(of) = self.shortage(at, start, len) {
            let Some((gone, moved)) = self.evict(Some(at), of) else { break };
            if at == moved {
                at = gone;
            }
        }
        at
    }

    /// Whether a packet cannot have so many bytes more: whose packets, this source's or (`None`) anybody's, are in the way.
    fn shortage(&self, at: usize, start: usize, len: usize) -> Option<Option<IpAddr>> {
        let open = &self.open[at];
        let missing = open.chain.missing(start, len);
        let of_source = self.open.iter().filter(|other| other.id.from == open.id.from);
        let blocks = of_source.map(|other| other.chain.blocks()).sum::<usize>() + missing;
        if missing > 0 && blocks * BLOCK > self.bounds.source_bytes {
            return Some(Some(open.id.from));
        }
        (missing > self.blocks.free()).then_some(None)
    }

    fn begin(&mut self, now: u64, id: Id, ip: &Ip) -> usize {
        // A source's newer packets push out its older ones: after a loss those never become whole.
        let of_source = self.open.iter().filter(|open| open.id.from == id.from).count();
        if of_source >= self.bounds.source_packets.max(1) {
            self.evict(None, Some(id.from));
        }
        if self.open.len() >= self.bounds.packets.max(1) {
            self.evict(None, None);
        }
        let patience = if ip.to.is_ipv4() { V4_PATIENCE_NS } else { V6_PATIENCE_NS };
        self.open.push(Open {
            id,
            began: now,
            until: now.saturating_add(patience),
            chain: Chain::EMPTY,
            runs: [(0, 0); RUNS],
            count: 0,
            total: None,
            protocol: ip.protocol,
            hop_limit: ip.hop_limit,
            spoiled: false,
        });
        self.open.len() - 1
    }

    /// Gives up the oldest, of one source or of all, but not the one at `keep`. The one at the second place is then at the
    /// first.
    fn evict(&mut self, keep: Option<usize>, of: Option<IpAddr>) -> Option<(usize, usize)> {
        let may = |(at, open): &(usize, &Open)| {
            keep.is_none_or(|keep| keep != *at && open.chain.blocks() > 0) && of.is_none_or(|of| of == open.id.from)
        };
        let oldest = self.open.iter().enumerate().filter(may).min_by_key(|(_, open)| open.began).map(|(at, _)| at)?;
        self.blocks.release(&mut self.open[oldest].chain);
        self.open.swap_remove(oldest);
        self.evicted += 1;
        Some((oldest, self.open.len()))
    }

    /// Takes the bytes; whether the packet is whole with them.
    fn take(&mut self, at: usize, ip: &Ip, start: u16, end: u16, more: bool, payload: &[u8]) -> Result<bool, Reason> {
        let open = &self.open[at];
        if open.spoiled {
            return Err(Reason::FragmentOfDropped);
        }
        let known_end = open.runs[..open.count].last().map_or(0, |run| run.1);
        let beyond = open.total.is_some_and(|total| end > total || !more && end != total);
        if beyond || !more && known_end > end {
            return Err(Reason::FragmentOverlap);
        }
        if self.shortage(at, usize::from(start), payload.len()).is_some() {
            // Nothing changes for those before: the packet may still become whole.
            return Err(Reason::FragmentsFull);
        }
        let open = &mut self.open[at];
        match open.add(start, end) {
            Fits::Overlaps => return Err(Reason::FragmentOverlap),
            Fits::TooMany => return Err(Reason::FragmentHoles),
            Fits::Within => {
                let there = self.blocks.read(&open.chain, usize::from(start), payload.len()).flatten();
                return if there.eq(payload) { Ok(false) } else { Err(Reason::FragmentOverlap) };
            }
            Fits::Anew => {}
        }
        if start == 0 {
            (open.protocol, open.hop_limit) = (ip.protocol, ip.hop_limit);
        }
        if !more {
            open.total = Some(end);
        }
        self.blocks.write(&mut open.chain, usize::from(start), payload);
        Ok(open.is_whole())
    }

    fn head(open: &Open, payload: u16) -> Head {
        Head {
            from: open.id.from,
            to: open.id.to,
            protocol: open.protocol,
            hop_limit: open.hop_limit,
            class: 0,
            payload,
            fragment: None,
        }
    }

    fn finish(&mut self, at: usize, out: &mut [u8]) -> usize {
        let mut open = self.open.swap_remove(at);
        let total = open.total.unwrap_or(0);
        let mut len = Self::head(&open, total).write(out);
        for piece in self.blocks.read(&open.chain, 0, usize::from(total)) {
            if let Some(out) = out.get_mut(len..len + piece.len()) {
                out.copy_from_slice(piece);
            }
            len += piece.len();
        }
        self.blocks.release(&mut open.chain);
        len
    }

    /// When the next packet is given up.
    pub(crate) fn next(&self) -> u64 {
        self.open.iter().map(|open| open.until).min().unwrap_or(u64::MAX)
    }

    /// Gives up one packet whose time has come: whether it was complete nonsense or some of it is to be reported.
    pub(crate) fn expire(&mut self, now: u64) -> Option<(bool, Option<Expired>)> {
        let at = self.open.iter().position(|open| open.until <= now)?;
        let mut open = self.open.swap_remove(at);
        let mut told = None;
        if !open.spoiled && open.has_start() {
            let mut start = [0; V6_BYTES + 8];
            let known = open.total.unwrap_or(open.runs[..open.count].last().map_or(0, |run| run.1));
            let mut len = Self::head(&open, known).write(&mut start);
            for piece in self.blocks.read(&open.chain, 0, usize::from(open.runs[0].1.min(8))) {
                start[len..len + piece.len()].copy_from_slice(piece);
                len += piece.len();
            }
            told = Some(Expired { from: open.id.from, to: open.id.to, start, len });
        }
        self.blocks.release(&mut open.chain);
        Some((open.spoiled, told))
    }
}

#[cfg(test)]
mod tests;
