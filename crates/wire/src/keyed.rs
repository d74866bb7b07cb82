//! Maps by small numbers that are looked up for every frame: a hash of one multiplication, keyed at random for each path, so
//! that a peer that chooses the numbers cannot make them collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map from small numbers, made by `Keyed::with_hasher(Key::new(seed))`.
pub type Keyed<K, V> = HashMap<K, V, Key>;

/// The key of a map's hash.
#[derive(Debug, Clone, Copy)]
pub struct Key(u64);

impl Key {
    /// A key from an unpredictable seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A key that nobody outside of this process knows.
    #[must_use]
    pub fn random() -> Self {
        Self::new(RandomState::new().hash_one(0))
    }
}

/// Hashes numbers.
#[derive(Debug)]
pub struct Number(u64, u64);

impl BuildHasher for Key {
    type Hasher = Number;

    fn build_hasher(&self) -> Number {
        Number(self.0, 0)
    }
}

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.1
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        let wide = u128::from(self.1 ^ u64::from(number) ^ 0x9e37_79b9_7f4a_7c15) * u128::from(self.0);
        self.1 = (wide as u64) ^ ((wide >> 64) as u64);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.write_u32(number as u32);
        if let high @ 1.. = (number >> 32) as u32 {
            self.write_u32(high);
        }
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
}
