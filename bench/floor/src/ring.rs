//! One-way: a ring of slots. The sender writes every byte, each reader reads every byte in place, a sequence number
//! in the slot says that it is full, and a reader's progress is read only when the ring looks full.
//!
//! With one polling reader this is the one-way floor. With several, or with sleeping ones, it is the barest fan-out:
//! each message is written once, and one system call wakes all who sleep.

use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use bench_harness::Stop;

use crate::memory::{Shared, futex_wait, futex_wake};

/// Slots in the ring.
pub const SLOTS: u64 = 1024;
/// A reader tells its progress once per so many messages.
const REPORT_EVERY: u64 = 32;
/// Every shared word has a cache line pair to itself.
const LINE: usize = 128;
/// A slot's sequence number stands before its payload.
const SEQUENCE_BYTES: usize = 8;

/// How sleeping readers are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nobody sleeps.
    Never,
    /// Nobody sleeps, and who waits lets others have the core.
    Yield,
    /// All readers sleep on one word: one system call wakes them.
    Together,
    /// Each reader sleeps on its own word: one system call for each that sleeps.
    Each,
}

/// The ring, as seen by the sender and by each reader.
#[derive(Clone, Debug)]
pub struct Ring {
    shared: Rc<Shared>,
    payload: usize,
    readers: usize,
    wake: Wake,
}

fn slot_stride(payload: usize) -> usize {
    // As in the method: a slot starts on a cache line and its header takes a whole one.
    (64 + payload).next_multiple_of(64)
}

impl Ring {
    /// Bytes of shared memory for `readers` readers of `payload` bytes.
    pub fn bytes(payload: usize, readers: usize) -> usize {
        Self::slots_offset(readers) + slot_stride(payload) * SLOTS as usize
    }

    /// A ring in zeroed memory of [`Ring::bytes`].
    pub fn new(shared: Shared, payload: usize, readers: usize, wake: Wake) -> Self {
        Self { shared: Rc::new(shared), payload, readers, wake }
    }

    /// Memory: the common wake word, the count of sleepers, then per reader its progress and its own wake word.
    const WAKE_WORD: usize = 0;
    const SLEEPERS: usize = LINE;

    fn progress(reader: usize) -> usize {
        (2 + 2 * reader) * LINE
    }

    fn own_word(reader: usize) -> usize {
        (3 + 2 * reader) * LINE
    }

    fn slots_offset(readers: usize) -> usize {
        (2 + 2 * readers) * LINE
    }

    fn slot(&self, n: u64) -> usize {
        Self::slots_offset(self.readers) + (n % SLOTS) as usize * slot_stride(self.payload)
    }

    /// The slowest reader's progress.
    fn slowest(&self) -> u64 {
        let progress = |reader| self.shared.word64(Self::progress(reader)).load(Acquire); // pairs with: Reader::take
        (0..self.readers).map(progress).min().expect("a ring has readers")
    }

    /// Wakes readers that went to sleep before message `n` was published.
    fn wake_sleepers(&self) {
        match self.wake {
            Wake::Never | Wake::Yield => {}
            Wake::Together => {
                fence(SeqCst); // with: Reader::sleep. Either we see the sleeper or it sees the message.
                if self.shared.word32(Self::SLEEPERS).load(Relaxed) != 0 {
                    let word = self.shared.word32(Self::WAKE_WORD);
                    word.fetch_add(1, Release);
                    futex_wake(word, i32::MAX);
                }
            }
            Wake::Each => {
                fence(SeqCst); // as above
                for reader in 0..self.readers {
                    let word = self.shared.word32(Self::own_word(reader));
                    if word.load(Relaxed) == 1 {
                        word.store(0, Release);
                        futex_wake(word, 1);
                    }
                }
            }
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    seen: u64,
}

impl Writer {
    /// The one writer of a ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, seen: 0 }
    }

    /// Writes message `n`, waiting for room; `false` if told to stop while it waited.
    #[inline]
    pub fn put(&mut self, n: u64, stop: &Stop) -> bool {
        while !self.has_room(n) {
            if stop.requested() {
                return false;
            }
            if self.ring.wake == Wake::Yield {
                std::thread::yield_now();
            }
        }
        self.ring.shared.fill(self.ring.slot(n) + SEQUENCE_BYTES, self.ring.payload, n as u8);
        self.publish(n);
        true
    }

    /// Passes message `n` on, which somebody else has written, if there is room.
    #[inline]
    pub fn pass(&mut self, n: u64, message: &[u8]) -> bool {
        let room = self.has_room(n);
        if room {
            self.ring.shared.write(self.ring.slot(n) + SEQUENCE_BYTES, message);
            self.publish(n);
        }
        room
    }

    /// Readers' progress is read only when the ring looks full.
    #[inline]
    fn has_room(&mut self, n: u64) -> bool {
        if n - self.seen >= SLOTS {
            self.seen = self.ring.slowest();
        }
        n - self.seen < SLOTS
    }

    #[inline]
    fn publish(&self, n: u64) {
        self.ring.shared.word64(self.ring.slot(n)).store(n + 1, Release); // pairs with: Reader::take
        self.ring.wake_sleepers();
    }
}

/// A reading end.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    index: usize,
    next: u64,
}

impl Reader {
    /// Reader `index` of a ring.
    pub fn new(ring: Ring, index: usize) -> Self {
        Self { ring, index, next: 0 }
    }

    /// Awaits the next message and reads all of it.
    #[inline]
    pub fn take(&mut self) {
        let slot = self.ring.slot(self.next);
        let sequence = self.ring.shared.word64(slot);
        while sequence.load(Acquire) != self.next + 1 {
            // pairs with: Writer::put
            if self.ring.wake == Wake::Never {
                continue;
            }
            // What was read is given back before resting: the writer may be waiting for just that.
            self.report();
            if self.ring.wake == Wake::Yield {
                std::thread::yield_now();
            } else {
                self.sleep(slot);
            }
        }
        self.ring.shared.read_all(slot + SEQUENCE_BYTES, self.ring.payload);
        self.advance();
    }

    /// Copies the next message, if it is there, for who passes it on.
    #[inline]
    pub fn copy(&mut self, out: &mut [u8]) -> bool {
        let slot = self.ring.slot(self.next);
        // pairs with: Writer::put
        if self.ring.shared.word64(slot).load(Acquire) != self.next + 1 {
            return false;
        }
        self.ring.shared.read(slot + SEQUENCE_BYTES, out);
        self.advance();
        true
    }

    #[inline]
    fn advance(&mut self) {
        self.next += 1;
        if self.next.is_multiple_of(REPORT_EVERY) {
            self.report();
        }
    }

    fn report(&self) {
        self.ring.shared.word64(Ring::progress(self.index)).store(self.next, Release); // pairs with: slowest
    }

    fn sleep(&self, slot: usize) {
        let shared = &self.ring.shared;
        let here = || shared.word64(slot).load(Relaxed) == self.next + 1;
        if self.ring.wake == Wake::Together {
            let (word, sleepers) = (shared.word32(Ring::WAKE_WORD), shared.word32(Ring::SLEEPERS));
            let seen = word.load(Relaxed);
            sleepers.fetch_add(1, Relaxed);
            fence(SeqCst); // with: wake_sleepers
            if !here() {
                futex_wait(word, seen);
            }
            sleepers.fetch_sub(1, Relaxed);
        } else {
            let word = shared.word32(Ring::own_word(self.index));
            word.store(1, Relaxed);
            fence(SeqCst); // with: wake_sleepers
            if !here() {
                futex_wait(word, 1);
            }
            word.store(0, Relaxed);
        }
    }
}
