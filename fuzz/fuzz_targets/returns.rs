//! A return ring of random words: the producer never panics, never takes back more than it gave, and in the end each hold is
//! found once.
#![no_main]

use insane_shm::link::{Descriptor, Producer, Returned};
use insane_shm::memory::{Backing, Heap};
use insane_shm::ring::Block;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fuzz_target!(|data: &[u8]| {
    let delivery = Arc::new(Heap::new(Block::<16>::bytes(4).unwrap()));
    let returns = Arc::new(Heap::new(Block::<2>::bytes(4).unwrap()));
    Block::<2>::create(returns.clone(), 4).unwrap();
    let mut producer = Producer::new(Block::create(delivery, 4).unwrap(), Block::open(returns.clone(), 4).unwrap());
    producer.add_segment(0, 2);
    let mut held = [0i64; 2];
    for (slot, holds) in held.iter_mut().enumerate() {
        producer.push(&Descriptor { slot: slot as u32, length: 1, ..Descriptor::default() }, &[]);
        *holds += 1;
    }
    producer.push(&Descriptor::default(), b"inside");
    for (i, word) in data.chunks_exact(8).take(8).enumerate() {
        let at = returns.base().cast::<AtomicU64>();
        // SAFETY: 48 words of head and 8 of entries lie inside the block; all are atomic.
        unsafe { at.add(48 + i).as_ref() }.store(u64::from_le_bytes(word.try_into().unwrap()), Ordering::Release);
    }
    let mut credit = 0;
    let _ = producer.reclaim(|r| match r {
        Returned::Slot { slot, .. } => held[slot as usize] -= 1,
        Returned::Credit { count, .. } => credit += count,
    });
    assert!(credit <= 1 && held.iter().all(|n| *n >= 0));
    producer.dissolve(|_, slot| held[slot as usize] -= 1);
    assert_eq!(held, [0, 0]);
});
