//! Tables with a fixed number of places: what a peer does never makes them larger.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasher, Hash, Hasher};

/// A hash with a secret, so that nobody outside chooses who shares a bucket. The secret is the caller's: nothing here
/// reads the machine's randomness.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Secret(pub(crate) u64);

impl BuildHasher for Secret {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// Values by key, each with a place of its own that does not move.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    index: HashMap<K, u32, Secret>,
    places: Vec<Option<(K, V)>>,
    free: Vec<u32>,
}

impl<K: Hash + Eq + Copy, V> Table<K, V> {
    /// Room for `capacity` values and never more.
    pub(crate) fn new(capacity: usize, secret: u64) -> Self {
        let capacity = capacity.clamp(1, 1 << 20);
        Self {
            // Twice the room: a map that is at most half full clears its tombstones in place and does not grow.
            index: HashMap::with_capacity_and_hasher(2 * capacity, Secret(secret)),
            places: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn find(&self, key: &K) -> Option<usize> {
        self.index.get(key).map(|at| *at as usize)
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.at(self.find(key)?).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?;
        self.at_mut(at).map(|(_, value)| value)
    }

    pub(crate) fn at(&self, place: usize) -> Option<(K, &V)> {
        self.places.get(place)?.as_ref().map(|(key, value)| (*key, value))
    }

    pub(crate) fn at_mut(&mut self, place: usize) -> Option<(K, &mut V)> {
        self.places.get_mut(place)?.as_mut().map(|(key, value)| (*key, value))
    }

    /// Adds a value under a new key; `None` if the table is full or has the key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<usize> {
        if self.index.contains_key(&key) {
            return None;
        }
        let at = self.free.pop()?;
        self.index.insert(key, at);
        if let Some(place) = self.places.get_mut(at as usize) {
            *place = Some((key, value));
        }
        Some(at as usize)
    }

    pub(crate) fn remove(&mut self, place: usize) -> Option<(K, V)> {
        let (key, value) = self.places.get_mut(place)?.take()?;
        self.index.remove(&key);
        self.free.push(place as u32);
        Some((key, value))
    }

    /// All values with their keys and places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, K, &V)> {
        self.places.iter().enumerate().filter_map(|(at, place)| place.as_ref().map(|(key, value)| (at, *key, value)))
    }
}

/// Bytes in blocks of one size, from one piece of memory: a chain of blocks holds a packet, or the pieces of one.
#[derive(Debug)]
pub(crate) struct Blocks {
    memory: Vec<u8>,
    free: Vec<u16>,
}

/// The size of a block in bytes.
pub(crate) const BLOCK: usize = 2048;
/// The most blocks of a chain: those of the largest packet.
pub(crate) const CHAIN: usize = 65_536 / BLOCK;

/// The blocks of one packet, by their place in it; only those that were written to are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    blocks: [u16; CHAIN],
    count: u16,
}

const NONE: u16 = u16::MAX;

impl Chain {
    pub(crate) const EMPTY: Self = Self { blocks: [NONE; CHAIN], count: 0 };

    /// How many blocks it has.
    pub(crate) const fn blocks(&self) -> usize {
        self.count as usize
    }

    /// How many more it needs so that `len` bytes can be written at `at`.
    pub(crate) fn missing(&self, at: usize, len: usize) -> usize {
        if len == 0 {
            return 0;
        }
        let end = (at + len).div_ceil(BLOCK).min(CHAIN);
        self.blocks[(at / BLOCK).min(end)..end].iter().filter(|block| **block == NONE).count()
    }
}

impl Blocks {
    /// So many blocks and never more.
    pub(crate) fn new(count: usize) -> Self {
        let count = count.min(usize::from(NONE) - 1);
        Self { memory: vec![0; count * BLOCK], free: (0..count as u16).rev().collect() }
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Writes at `at`; `false`, and nothing was written, if there are too few blocks or the end is beyond the chain.
    pub(crate) fn write(&mut self, chain: &mut Chain, mut at: usize, mut bytes: &[u8]) -> bool {
        if at + bytes.len() > CHAIN * BLOCK || chain.missing(at, bytes.len()) > self.free.len() {
            return false;
        }
        while !bytes.is_empty() {
            let (number, offset) = (at / BLOCK, at % BLOCK);
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - offset));
            if chain.blocks[number] == NONE {
                let Some(block) = self.free.pop() else { return false };
                chain.blocks[number] = block;
                chain.count += 1;
            }
            let start = usize::from(chain.blocks[number]) * BLOCK + offset;
            self.memory[start..start + now.len()].copy_from_slice(now);
            (at, bytes) = (at + now.len(), later);
        }
        true
    }

    /// The bytes from `at` on, up to `len`, in pieces; what was never written is missing.
    pub(crate) fn read<'a>(&'a self, chain: &'a Chain, at: usize, len: usize) -> impl Iterator<Item = &'a [u8]> {
        let end = (at + len).min(CHAIN * BLOCK);
        (at / BLOCK..end.div_ceil(BLOCK)).filter(|n| chain.blocks[*n] != NONE).map(move |number| {
            let (low, high) = (at.max(number * BLOCK), end.min((number + 1) * BLOCK));
            let start = usize::from(chain.blocks[number]) * BLOCK;
            &self.memory[start + low - number * BLOCK..start + high - number * BLOCK]
        })
    }

    /// Gives all blocks of a chain back.
    pub(crate) fn release(&mut self, chain: &mut Chain) {
        self.free.extend(chain.blocks.iter().filter(|block| **block != NONE));
        *chain = Chain::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_never_grows() {
        let mut table = Table::new(8, 1);
        let capacity = table.index.capacity();
        for round in 0..10_000u64 {
            if table.len() == 8 {
                assert_eq!(table.insert(u64::MAX, 0), None);
                assert!(table.remove((round % 8) as usize).is_some());
            }
            assert!(table.insert(round, round).is_some());
            assert_eq!(table.get(&round), Some(&round));
        }
        assert_eq!((table.len(), table.index.capacity()), (8, capacity));
    }

    #[test]
    fn chains_hold_what_was_written() {
        let mut blocks = Blocks::new(4);
        let mut chain = Chain::EMPTY;
        let bytes: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        assert!(blocks.write(&mut chain, 1000, &bytes));
        assert_eq!((blocks.free(), chain.blocks()), (1, 3));
        assert_eq!(blocks.read(&chain, 1000, 5000).collect::<Vec<_>>().concat(), bytes);
        assert!(!blocks.write(&mut chain, 7000, &bytes));
        assert!(!blocks.write(&mut chain, 65_000, &bytes));
        assert_eq!(blocks.free(), 1);
        blocks.release(&mut chain);
        assert_eq!((blocks.free(), chain.blocks()), (4, 0));
    }
}
