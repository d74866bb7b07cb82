//! Private memory that is lent and given back: the payloads of small messages, and what a session keeps of the messages that
//! its sinks have.
//!
//! Pieces keep their addresses, so that a message can be handed on as one pointer and its payload stays where it is; the one
//! given back last is lent first, so that a control loop always uses the same cache lines.
//!
//! Invariant `INV-BLOCK-1`: a piece is on the free list, or lent once; it lives as long as the pool.

use insane_shm::link::INLINE_BYTES;
use std::ptr::NonNull;

/// A payload that travels inside its descriptor.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [u64; INLINE_BYTES / 8]);

const CHUNK: usize = 32;

/// A pool of `T`s; grows by demand, which the links' credit bounds. What is lent holds whatever was written last.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    free: Vec<NonNull<T>>,
    chunks: Vec<NonNull<[T]>>,
}

// SAFETY: INV-BLOCK-1; the addresses are of memory that this value owns.
unsafe impl<T: Send> Send for Pool<T> {}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { free: Vec::new(), chunks: Vec::new() }
    }
}

impl<T: Default> Pool<T> {
    /// Lends a piece.
    #[inline]
    pub(crate) fn lend(&mut self) -> NonNull<T> {
        match self.free.pop() {
            Some(piece) => piece,
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> NonNull<T> {
        let pieces: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
        let chunk = NonNull::from(Box::leak(pieces));
        self.chunks.push(chunk);
        // SAFETY: INV-BLOCK-1; all of these lie in the chunk.
        self.free.extend((1..CHUNK).rev().map(|i| unsafe { chunk.cast::<T>().add(i) }));
        chunk.cast()
    }

    /// Takes a piece back that was lent by this pool.
    #[inline]
    pub(crate) fn give_back(&mut self, piece: NonNull<T>) {
        self.free.push(piece);
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: INV-BLOCK-1; it was leaked by `grow`, and nobody uses what was lent after the pool is gone.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Pool};

    #[test]
    fn pieces_are_lent_once() {
        let mut pool = Pool::<Block>::default();
        let mut lent: Vec<_> = (0..100).map(|_| pool.lend()).collect();
        lent.sort();
        lent.dedup();
        assert_eq!(lent.len(), 100);
        let last = lent[7];
        pool.give_back(last);
        assert_eq!(pool.lend(), last);
    }
}
