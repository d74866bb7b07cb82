//! Numbers that look random but follow from a seed, and the keyed hash of flows.

/// A small seeded generator (SplitMix64: Steele, Lea, Flood 2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that always gives the same numbers for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// SipHash-1-3 over whole words: a sender that does not know the key cannot aim at another flow's queue.
#[must_use]
#[inline]
pub fn keyed_hash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for &word in words {
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    let last = (words.len() as u64 & 0x1f) << 59;
    v[3] ^= last;
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
const fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_siphash_1_3() {
        // The standard library's default hasher is SipHash-1-3 with a zero key: an independent implementation.
        use std::hash::Hasher;
        for words in [vec![], vec![0], vec![1, 2, 3], vec![u64::MAX; 7], (0..40).collect()] {
            let mut other = std::collections::hash_map::DefaultHasher::new();
            words.iter().for_each(|&w| other.write_u64(w));
            assert_eq!(keyed_hash([0, 0], &words), other.finish());
        }
        assert_ne!(keyed_hash([1, 2], &[3]), keyed_hash([1, 3], &[3]));
    }

    #[test]
    fn unit_is_uniform_enough() {
        let mut rng = Rng::new(7);
        let mean = (0..100_000).map(|_| rng.unit()).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
