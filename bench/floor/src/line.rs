//! Round trips: a flag and a payload each way, written by one side, read whole and answered by the other.

use std::sync::atomic::Ordering::{Acquire, Release};

use bench_harness::Waiting;

use crate::memory::{Shared, futex_wait, futex_wake};

/// Two sides that hand each other a message, in turns, by number from 1.
#[derive(Debug)]
pub struct Line {
    shared: Shared,
    payload: usize,
    /// What the second side answers with: as much as it got, except in `large`.
    answer: usize,
    sleeps: bool,
}

/// The flag has a cache line pair to itself, so that the payload's prefetching does not touch it.
const FLAG_BYTES: usize = 128;
/// The futex class waits on a 32-bit word of its own.
const FUTEX_OFFSET: usize = 64;

fn stride(payload: usize) -> usize {
    FLAG_BYTES + payload.next_multiple_of(128)
}

impl Line {
    /// Bytes of shared memory for messages of `payload` bytes.
    pub fn bytes(payload: usize) -> usize {
        2 * stride(payload)
    }

    /// A line in zeroed memory of [`Line::bytes`].
    pub fn new(shared: Shared, payload: usize, answer: usize, waiting: Waiting) -> Self {
        Self { shared, payload, answer, sleeps: waiting == Waiting::Sleep }
    }

    /// The first side's turn: message `n` and its answer.
    #[inline]
    pub fn ask(&self, n: u64) {
        self.send(0, n, self.payload);
        self.receive(stride(self.payload), n, self.answer);
    }

    /// The second side's turn.
    #[inline]
    pub fn answer(&self, n: u64) {
        self.receive(0, n, self.payload);
        self.send(stride(self.payload), n, self.answer);
    }

    #[inline]
    fn send(&self, side: usize, n: u64, len: usize) {
        self.shared.fill(side + FLAG_BYTES, len, n as u8);
        if self.sleeps {
            let word = self.shared.word32(side + FUTEX_OFFSET);
            word.store(n as u32, Release); // pairs with: receive
            futex_wake(word, 1);
        } else {
            self.shared.word64(side).store(n, Release); // pairs with: receive
        }
    }

    #[inline]
    fn receive(&self, side: usize, n: u64, len: usize) {
        if self.sleeps {
            let word = self.shared.word32(side + FUTEX_OFFSET);
            loop {
                let seen = word.load(Acquire); // pairs with: send
                if seen == n as u32 {
                    break;
                }
                futex_wait(word, seen);
            }
        } else {
            let flag = self.shared.word64(side);
            while flag.load(Acquire) != n {} // pairs with: send
        }
        self.shared.read_all(side + FLAG_BYTES, len);
    }
}
