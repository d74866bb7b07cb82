//! A delivery ring of random words: the consumer never panics and never takes a descriptor outside of what it has mapped.
#![no_main]

use insane_shm::link::{Consumer, Fate};
use insane_shm::memory::{Backing, Heap};
use insane_shm::ring::Block;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fuzz_target!(|data: &[u8]| {
    let delivery = Arc::new(Heap::new(Block::<16>::bytes(4).unwrap()));
    let returns = Arc::new(Heap::new(Block::<2>::bytes(4).unwrap()));
    Block::<16>::create(delivery.clone(), 4).unwrap();
    let mut consumer = Consumer::new(Block::create(returns, 4).unwrap(), Block::open(delivery.clone(), 4).unwrap());
    consumer.add_segment(0, 8, 256);
    consumer.add_segment(2, 1, 4096);
    for (i, word) in data.chunks_exact(8).take(64).enumerate() {
        let at = delivery.base().cast::<AtomicU64>();
        // SAFETY: 48 words of head and 64 of entries lie inside the block; all are atomic.
        unsafe { at.add(48 + i).as_ref() }.store(u64::from_le_bytes(word.try_into().unwrap()), Ordering::Release);
    }
    for _ in 0..8 {
        let Ok(Some(d)) = consumer.poll() else { break };
        let (s, o) = (d.descriptor, d.is_inline());
        let limit = if s.segment == 0 { (8, 256) } else { (1, 4096) };
        assert!(o || (s.slot < limit.0 && u64::from(s.offset) + u64::from(s.length) <= limit.1));
        assert!(!o || d.inline_bytes().len() <= 64);
        consumer.release(&s, Fate::AsCounted);
    }
});
