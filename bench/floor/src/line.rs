//! Round trips: a flag and a payload each way, written by one side, read whole and answered by the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::memory::{Shared, futex_wait, futex_wake};

/// Two sides that hand each other a message, in turns, by number from 1.
#[derive(Debug)]
pub struct Line {
    shared: Shared,
    payload: usize,
    /// What the second side answers with: as much as it got, except in `large`.
    answer: usize,
    patience: Patience,
}

/// What a side does until its turn has come. Both sides of a line look at its flag, or neither does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It looks at the flag.
    Spins,
    /// It sleeps on a word of its own.
    Sleeps,
    /// It looks at that word and lets others have the core between two looks.
    Yields,
}

/// The flag has a cache line pair to itself, so that the payload's prefetching does not touch it.
const FLAG_BYTES: usize = 128;
/// The sleeping class waits on a 32-bit word of its own, and says in another that it does.
///
/// Waking without being asked would be simpler, but then the two sides can fall into step: each answers while the
/// other is still in its needless system call, nobody ever sleeps, and the figure is that of two system calls.
const FUTEX_OFFSET: usize = 64;
const ASLEEP_OFFSET: usize = 96;

fn stride(payload: usize) -> usize {
    FLAG_BYTES + payload.next_multiple_of(128)
}

impl Line {
    /// Bytes of shared memory for messages of `payload` bytes.
    pub fn bytes(payload: usize) -> usize {
        2 * stride(payload)
    }

    /// A line in zeroed memory of [`Line::bytes`].
    pub fn new(shared: Shared, payload: usize, answer: usize, patience: Patience) -> Self {
        Self { shared, payload, answer, patience }
    }

    /// The first side's turn: message `n` and its answer.
    #[inline]
    pub fn ask(&self, n: u64) {
        self.send(0, n, self.payload);
        self.receive(stride(self.payload), n, self.answer);
    }

    /// The turn of somebody between two lines: what comes by this one goes on by the other, and the answer back.
    #[inline]
    pub fn pass_on(&self, to: &Self, n: u64) {
        self.await_message(n);
        to.ask(n);
        self.answer_to(n);
    }

    /// The second side's turn.
    #[inline]
    pub fn answer(&self, n: u64) {
        self.await_message(n);
        self.answer_to(n);
    }

    /// The turn of somebody between this line and something else: awaits message `n`.
    #[inline]
    pub fn await_message(&self, n: u64) {
        self.receive(0, n, self.payload);
    }

    /// The same: answers message `n`.
    #[inline]
    pub fn answer_to(&self, n: u64) {
        self.send(stride(self.payload), n, self.answer);
    }

    #[inline]
    fn send(&self, side: usize, n: u64, len: usize) {
        self.shared.fill(side + FLAG_BYTES, len, n as u8);
        if self.patience != Patience::Spins {
            let word = self.shared.word32(side + FUTEX_OFFSET);
            word.store(n as u32, Release); // pairs with: receive
            fence(SeqCst); // with: receive. Either we see the sleeper or it sees the message.
            if self.shared.word32(side + ASLEEP_OFFSET).load(Relaxed) != 0 {
                futex_wake(word, 1);
            }
        } else {
            self.shared.word64(side).store(n, Release); // pairs with: receive
        }
    }

    #[inline]
    fn receive(&self, side: usize, n: u64, len: usize) {
        let word = self.shared.word32(side + FUTEX_OFFSET);
        match self.patience {
            Patience::Sleeps => {
                let asleep = self.shared.word32(side + ASLEEP_OFFSET);
                while word.load(Acquire) != n as u32 {
                    // pairs with: send
                    asleep.store(1, Relaxed);
                    fence(SeqCst); // with: send
                    let seen = word.load(Relaxed);
                    if seen != n as u32 {
                        futex_wait(word, seen);
                    }
                    asleep.store(0, Relaxed);
                }
            }
            Patience::Yields => {
                // pairs with: send
                while word.load(Acquire) != n as u32 {
                    std::thread::yield_now();
                }
            }
            Patience::Spins => {
                let flag = self.shared.word64(side);
                while flag.load(Acquire) != n {} // pairs with: send
            }
        }
        self.shared.read_all(side + FLAG_BYTES, len);
    }
}
