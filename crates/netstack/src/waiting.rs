//! Packets of ours that wait until the station of their next hop is known, in a fixed amount of memory.

use std::net::IpAddr;

use crate::table::{BLOCK, Blocks, CHAIN, Chain};

/// What is known of a packet but its payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    pub(crate) class: u8,
    /// Over this interface alone.
    pub(crate) interface: Option<u8>,
    /// It may go in pieces.
    pub(crate) may_cut: bool,
}

#[derive(Debug)]
struct Parked {
    /// The neighbour's place in the cache.
    neighbour: usize,
    order: u64,
    meta: Meta,
    chain: Chain,
    len: usize,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    parked: Vec<Parked>,
    blocks: Blocks,
    packets: usize,
    per_neighbour: usize,
    order: u64,
}

impl Waiting {
    pub(crate) fn new(packets: usize, bytes: usize, per_neighbour: usize) -> Self {
        let blocks = Blocks::new(bytes.div_ceil(BLOCK));
        Self { parked: Vec::with_capacity(packets), blocks, packets, per_neighbour, order: 0 }
    }

    /// Whether there is room for so many bytes for a neighbour, if what waits for it already makes room.
    fn fits(&self, neighbour: usize, len: usize) -> bool {
        let own = self.parked.iter().filter(|parked| parked.neighbour == neighbour);
        let (count, blocks) = own.fold((0, 0), |(count, blocks), one| (count + 1, blocks + one.chain.blocks()));
        self.per_neighbour > 0
            && self.parked.len() - count < self.packets
            && len <= CHAIN * BLOCK
            && Chain::EMPTY.missing(0, len) <= self.blocks.free() + blocks
    }

    /// Keeps a packet. How many others of this neighbour it pushed out; `None`, with none pushed out, if there is no room for it.
    pub(crate) fn park(&mut self, neighbour: usize, meta: &Meta, pieces: &[&[u8]]) -> Option<usize> {
        let mut pushed = 0;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if !self.fits(neighbour, len) {
            return None;
        }
        loop {
            let mine = self.parked.iter().filter(|parked| parked.neighbour == neighbour).count();
            let room = self.parked.len() < self.packets && Chain::EMPTY.missing(0, len) <= self.blocks.free();
            if mine < self.per_neighbour && room {
                break;
            }
            self.take(neighbour).map(|mut old| self.blocks.release(&mut old.chain))?;
            pushed += 1;
        }
        let mut chain = Chain::EMPTY;
        let mut at = 0;
        for piece in pieces {
            if !self.blocks.write(&mut chain, at, piece) {
                self.blocks.release(&mut chain);
                return None;
            }
            at += piece.len();
        }
        self.order += 1;
        self.parked.push(Parked { neighbour, order: self.order, meta: *meta, chain, len });
        Some(pushed)
    }

    fn take(&mut self, neighbour: usize) -> Option<Parked> {
        let of_it = self.parked.iter().enumerate().filter(|(_, parked)| parked.neighbour == neighbour);
        let oldest = of_it.min_by_key(|(_, parked)| parked.order).map(|(at, _)| at)?;
        Some(self.parked.swap_remove(oldest))
    }

    /// The oldest packet for a neighbour, its payload written to `out`; how long that is.
    pub(crate) fn unpark(&mut self, neighbour: usize, out: &mut [u8]) -> Option<(Meta, usize)> {
        let mut parked = self.take(neighbour)?;
        let mut len = 0;
        for piece in self.blocks.read(&parked.chain, 0, parked.len) {
            if let Some(out) = out.get_mut(len..len + piece.len()) {
                out.copy_from_slice(piece);
            }
            len += piece.len();
        }
        self.blocks.release(&mut parked.chain);
        Some((parked.meta, len))
    }

    /// Gives up a packet for a neighbour, if there is one.
    pub(crate) fn give_up(&mut self, neighbour: usize) -> bool {
        self.take(neighbour).map(|mut parked| self.blocks.release(&mut parked.chain)).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_neighbour_makes_room_and_order_is_kept() {
        let to = IpAddr::from([10, 0, 0, 1]);
        let meta = Meta { from: to, to, protocol: 17, hop_limit: 1, class: 0, interface: None, may_cut: true };
        let mut waiting = Waiting::new(4, 16 * 2048, 3);
        let mut out = vec![0; 65_536];
        for n in 0..5u8 {
            assert_eq!(waiting.park(1, &meta, &[&[n; 1000], &[n; 2000]]), Some(usize::from(n > 2)));
        }
        assert_eq!(waiting.park(2, &meta, &[&[9; 10]]), Some(0));
        assert_eq!(waiting.park(3, &meta, &[&[9; 10]]), None);
        // What finds no room in any case pushes nothing out: of 16 blocks others have one.
        assert_eq!(waiting.park(1, &meta, &[&[0; 15 * BLOCK], &[0]]), None);
        assert_eq!(waiting.park(1, &meta, &[&[0; 40_000], &[0; 40_000]]), None);
        assert_eq!(waiting.len(), 4);
        for n in 2..5 {
            assert!(waiting.unpark(1, &mut out).is_some_and(|(_, len)| out[..len] == [n; 3000]));
        }
        assert!(waiting.unpark(1, &mut out).is_none() && waiting.give_up(2) && !waiting.give_up(2));
        assert_eq!((waiting.len(), waiting.blocks.free()), (0, 16));
        assert_eq!(waiting.park(1, &meta, &[&[0; 40_000]]), None);
        assert_eq!(waiting.park(1, &meta, &[&[0; 10]]), Some(0));
        assert_eq!(waiting.park(1, &meta, &[&[0; 16 * BLOCK]]), Some(1));
        assert_eq!((waiting.len(), waiting.blocks.free()), (1, 0));
    }
}
