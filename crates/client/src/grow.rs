//! Segments that are made when messages need them, within the stream's share and the session's quota.

use crate::error::{Code, Error, Result};
use crate::session::lock;
use crate::source::Source;
use insane_shm::ShmError;
use insane_shm::segment::Segment;
use insane_shm::slab::geometry_for;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// About how large a segment is made, in bytes, unless one message needs more.
const SEGMENT_BYTES: u64 = 2 << 20;

/// How long a stream does not ask the others again for what they do not need: that takes their locks, and who waits for memory asks often.
const AGAIN: Duration = Duration::from_millis(10);

impl Source {
    /// Makes a segment for messages of `len` bytes if none is free and the stream's share and the session's quota allow it.
    pub(crate) fn ensure_slots(&self, len: usize) -> Result<()> {
        let session = &self.stream.session;
        let limits = session.limits();
        if len as u64 > limits.message_bytes {
            let text = format!("{len} bytes, the limit is {}", limits.message_bytes);
            return Err(Error::new(Code::MessageTooLarge, text));
        }
        let too_large = |e: ShmError| Error::new(Code::MessageTooLarge, e.to_string());
        let geometry_in = |target| geometry_for(len as u64, target).map_err(too_large);
        // One slot at least.
        let needed = geometry_in(1)?.bytes();
        // One stream at a time: what it finds left is its own until it has taken it.
        let growing = lock(&session.growing);
        let (geometry, given_back) = {
            let mut tx = self.stream.tx.visit();
            tx.reclaim_all();
            if tx.slab.available(len as u64) > 0 {
                return Ok(());
            }
            let mut given_back = Vec::new();
            let mut left = tx.share.saturating_sub(tx.slab.bytes());
            if left < needed {
                given_back = tx.make_room(needed - left, len as u64);
                left = tx.share.saturating_sub(tx.slab.bytes());
            }
            if left < needed {
                let (has, share) = (tx.slab.bytes(), tx.share);
                let text = format!("the stream has {has} of its {share} bytes in use, {needed} more were needed");
                return Err(Error::new(Code::NoBuffer, text));
            }
            let unused = || limits.memory_bytes.saturating_sub(session.segment_bytes.load(Ordering::Acquire));
            if unused() < needed {
                given_back.extend(tx.make_room(needed - unused(), len as u64));
            }
            let asks = unused() < needed && tx.asked_others.is_none_or(|asked| asked.elapsed() >= AGAIN);
            if asks {
                tx.asked_others = Some(Instant::now());
            }
            drop(tx);
            if asks {
                self.take_from_others(needed, limits.memory_bytes);
            }
            let unused = unused();
            if unused < needed {
                let quota = limits.memory_bytes;
                if !given_back.is_empty() {
                    session.tell_segments(&self.stream);
                }
                let text = format!(
                    "the streams of the session have {} of its {quota} bytes in use (quota.memory_mib_per_session), {needed} more \
                     were needed",
                    quota - unused
                );
                return Err(Error::new(Code::NoBuffer, text));
            }
            // Of the last that is left a stream does not take all at once.
            let usual = if unused < left { (unused / 2).max(needed) } else { left };
            (geometry_in(SEGMENT_BYTES.min(usual))?, given_back)
        };
        drop(given_back);
        // Without a free huge page an application runs on ordinary ones; `insane doctor` says so.
        let huge = limits.huge_pages.then(|| Segment::create(geometry, true).ok()).flatten();
        let segment = huge.map_or_else(|| Segment::create(geometry, false), Ok);
        let segment = Arc::new(segment.inspect_err(|_| session.tell_segments(&self.stream))?);
        let number = self.stream.tx.visit().add_segment(segment)?;
        // Before others can have what was given back: who is told of their memory first would see more than the quota.
        session.tell_segments(&self.stream);
        drop(growing);
        session.await_mapped(&self.stream, number);
        Ok(())
    }

    /// Has the session's other streams give back segments that hold nothing, until `needed` bytes of its `quota` are unused.
    fn take_from_others(&self, needed: u64, quota: u64) {
        let session = &self.stream.session;
        let others = lock(&session.streams).clone();
        for stream in others.iter().filter(|stream| !Arc::ptr_eq(stream, &self.stream)) {
            let missing = (session.segment_bytes.load(Ordering::Acquire) + needed).saturating_sub(quota);
            if missing == 0 {
                return;
            }
            let given_back = {
                let mut tx = stream.tx.visit();
                tx.reclaim_all();
                tx.give_up_idle(missing)
            };
            if !given_back.is_empty() {
                session.tell_segments(stream);
            }
        }
    }
}
