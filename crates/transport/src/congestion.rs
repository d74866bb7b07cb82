//! How much may be under way, and how fast it goes out (ADR 12).
//!
//! The window grows as TCP's does (slow start, then about one frame a round trip), shrinks to 0.7 once a round trip on loss
//! (RFC 9002 §7 with CUBIC's factor), and to 0.85 once a round trip when even the quickest answer of that round says that a
//! queue stands. What it allows is spread over the round trip. A link declared dedicated has neither. On any, no more is under way
//! than the peer can hold of what it has not taken yet, where it says how much that is.

use std::time::Duration;

/// Bytes that may go out back to back on any path: two pieces of segmentation offload.
const BURST: f64 = 131_072.0;

/// On a fast one it is what the pace lets go in so many seconds, at most so many bytes: pieces would be cut short otherwise, and each
/// costs the same. Whom they meet on their way waits no longer for it.
const FAST_BURST: (f64, f64) = (100e-6, 1_048_576.0);

/// Bytes that may go beyond that, to end a message's run of frames: one more piece.
const OVERDRAFT: f64 = BURST / 2.0;

/// What a frame takes of the peer's room besides its bytes, as the peer's socket counts it: Linux has 2304 bytes for a datagram of 1472
/// from most network cards, and 768 for the least.
const HELD: f64 = 832.0;

/// The least delay above the path's own that counts as a queue.
const QUEUE: Duration = Duration::from_millis(2);

/// How long the path's own delay is remembered: routes change.
const MEMORY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Congestion {
    dedicated: bool,
    frame: f64,
    window: f64,
    threshold: f64,
    /// What the peer can hold.
    room: f64,
    in_flight: u64,
    frames: u64,
    /// Losses of frames that were sent before this were answered already. After time-outs, until the next answer, all were.
    answered: Duration,
    base: Duration,
    base_at: Duration,
    round_ends: Duration,
    round_best: Duration,
    tokens: f64,
    refilled: Duration,
    /// Windows that were cut, for reports.
    pub(crate) cuts: u64,
}

impl Congestion {
    pub(crate) fn new(dedicated: bool, frame: usize) -> Self {
        let frame = frame as f64;
        Self {
            dedicated,
            frame,
            window: frame * 32.0,
            threshold: f64::INFINITY,
            room: f64::INFINITY,
            in_flight: 0,
            frames: 0,
            answered: Duration::ZERO,
            base: Duration::MAX,
            base_at: Duration::ZERO,
            round_ends: Duration::ZERO,
            round_best: Duration::MAX,
            tokens: BURST,
            refilled: Duration::ZERO,
            cuts: 0,
        }
    }

    /// How many bytes may be under way.
    pub(crate) fn window(&self) -> u64 {
        self.limit() as u64
    }

    fn limit(&self) -> f64 {
        if self.dedicated { self.room } else { self.window.min(self.room) }
    }

    /// Frames are so long from now on. Of shorter ones as many may be under way as before.
    pub(crate) fn set_frame(&mut self, frame: usize) {
        let shorter = (frame as f64 / self.frame).min(1.0);
        self.window *= shorter;
        self.threshold *= shorter;
        self.frame = frame as f64;
    }

    /// The peer can hold so many bytes of what it has not taken yet. A few frames may be under way however few they are.
    pub(crate) fn set_room(&mut self, bytes: u64) {
        self.room = (bytes as f64).max((self.frame + HELD) * 4.0);
    }

    /// What is left of the peer's room.
    fn room_left(&self) -> f64 {
        self.room - self.in_flight as f64 - self.frames as f64 * HELD
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether a frame may go now as far as the window is concerned.
    pub(crate) fn has_room(&self) -> bool {
        (self.dedicated || (self.in_flight as f64) < self.window) && self.room_left() > 0.0
    }

    /// When the next frame may go as far as the pace is concerned.
    pub(crate) fn pace(&mut self, now: Duration, rtt: Duration) -> Duration {
        // Mostly it is one of many that are built at once.
        if self.dedicated || (now == self.refilled && self.tokens > 0.0) {
            return now;
        }
        let gain = if self.window < self.threshold { 2.0 } else { 1.25 };
        let rate = gain * self.window / rtt.as_secs_f64().max(1e-6);
        let passed = now.saturating_sub(self.refilled).as_secs_f64();
        let most = (rate * FAST_BURST.0).clamp(BURST, FAST_BURST.1);
        self.tokens = (self.tokens + rate * passed).min(most.max(self.frame));
        self.refilled = now;
        if self.tokens > 0.0 { now } else { now + Duration::from_secs_f64((-self.tokens / rate).min(1.0) + 1e-6) }
    }

    /// Whether there is so much left of what may go now that nobody need look at the clock for a frame that comes alone.
    #[inline]
    pub(crate) fn has_plenty(&self) -> bool {
        self.has_room() && self.tokens > BURST / 2.0
    }

    /// Whether a run of frames that was begun may go on against the pace, which is made up for after it.
    pub(crate) fn may_end_run(&self) -> bool {
        self.tokens > -OVERDRAFT
    }

    /// How many frames of so many bytes may go now, if one may ([`Self::has_room`], [`Self::pace`], or [`Self::may_end_run`] with
    /// `ends_run`).
    pub(crate) fn frames(&self, bytes: usize, ends_run: bool) -> usize {
        let bytes = bytes.max(1) as f64;
        let mut frames = self.room_left() / (bytes + HELD);
        if !self.dedicated {
            let tokens = if ends_run { self.tokens + OVERDRAFT } else { self.tokens };
            frames = frames.min(tokens.min(self.window - self.in_flight as f64) / bytes);
        }
        (frames.ceil() as usize).max(1)
    }

    /// Frames of one length have been sent.
    pub(crate) fn sent(&mut self, frames: usize, len: usize) {
        let bytes = frames * len;
        self.in_flight += bytes as u64;
        self.frames += frames as u64;
        self.tokens -= bytes as f64;
    }

    /// A frame that is no longer under way.
    pub(crate) fn forget(&mut self, bytes: usize) {
        self.in_flight = self.in_flight.saturating_sub(bytes as u64);
        self.frames = self.frames.saturating_sub(1);
    }

    /// The peer has answered, after so long.
    pub(crate) fn delay(&mut self, now: Duration, sample: Duration, smoothed: Duration) {
        self.answered = self.answered.min(now);
        if sample <= self.base || now.saturating_sub(self.base_at) > MEMORY {
            (self.base, self.base_at) = (sample, now);
        }
        self.round_best = self.round_best.min(sample);
        if now < self.round_ends {
            return;
        }
        let queue = self.round_best != Duration::MAX && self.round_best > self.base + self.base.max(QUEUE);
        (self.round_ends, self.round_best) = (now + smoothed, Duration::MAX);
        if queue && !self.dedicated {
            self.cut(0.85);
        }
    }

    pub(crate) fn acknowledged(&mut self, bytes: usize, used_up: bool) {
        self.forget(bytes);
        // A window that is not used says nothing about the path.
        if !used_up {
            return;
        }
        let bytes = bytes as f64;
        self.window += if self.window < self.threshold { bytes } else { self.frame * bytes / self.window };
        self.window = self.window.min(self.room).min(1e9);
    }

    pub(crate) fn lost(&mut self, now: Duration, bytes: usize, sent_at: Duration) {
        self.forget(bytes);
        if sent_at >= self.answered {
            self.answered = now;
            self.cut(0.7);
        }
    }

    /// Nothing was answered for a long time: begin anew, and grow fast up to half of what was possible before. The second time it is known
    /// already how much that is (RFC 5681 §3.1), and what is lost until the next answer comes needs no other ([`Self::delay`]).
    pub(crate) fn collapsed(&mut self) {
        let least = self.frame * 4.0;
        if self.window > least {
            self.threshold = (self.window / 2.0).max(least);
        }
        (self.window, self.answered) = (least, Duration::MAX);
    }

    fn cut(&mut self, factor: f64) {
        self.cuts += 1;
        self.window = (self.window * factor).max(self.frame * 4.0);
        self.threshold = self.window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_window_grows_without_loss_and_shrinks_once_a_round_trip_with_it() {
        let mut c = Congestion::new(false, 1000);
        let start = c.window();
        c.acknowledged(10_000, true);
        assert_eq!(c.window(), start + 10_000);
        c.lost(MS * 10, 1000, MS * 5);
        let cut = c.window();
        assert!(cut < start + 10_000);
        c.lost(MS * 11, 1000, MS * 6);
        assert_eq!(c.window(), cut);
        c.lost(MS * 30, 1000, MS * 20);
        assert!(c.window() < cut);
    }

    #[test]
    fn after_time_outs_it_grows_fast_to_half_of_what_it_was() {
        let mut c = Congestion::new(false, 1000);
        c.acknowledged(1_000_000 - 32_000, true);
        assert_eq!(c.window(), 1_000_000);
        (0..3).for_each(|_| c.collapsed());
        assert_eq!((c.window(), c.threshold as u64), (4000, 500_000));
        // What went until the next answer is found to be lost when that comes.
        c.lost(MS * 390, 1000, MS * 250);
        c.delay(MS * 400, MS * 20, MS * 20);
        c.lost(MS * 400, 1000, MS * 390);
        assert_eq!((c.window(), c.threshold as u64), (4000, 500_000));
        // What goes after it is lost for another reason.
        c.acknowledged(100_000, true);
        c.lost(MS * 500, 1000, MS * 450);
        assert_eq!(c.threshold as u64, 72_800);
        // Of what is less than a few frames nothing is taken.
        let mut c = Congestion::new(false, 1000);
        c.window = 5000.0;
        c.collapsed();
        assert_eq!((c.window(), c.threshold as u64), (4000, 4000));
    }

    #[test]
    fn no_more_is_under_way_than_the_peer_can_hold() {
        for dedicated in [false, true] {
            let mut c = Congestion::new(dedicated, 1000);
            c.set_room(18_320);
            assert_eq!((c.window(), c.frames(1000, true)), (18_320, 10));
            c.sent(9, 1000);
            assert!(c.has_room());
            assert_eq!(c.frames(1000, false), 1);
            c.sent(1, 1000);
            assert!(!c.has_room());
            c.acknowledged(1000, true);
            assert!(c.has_room());
            assert_eq!(c.window(), 18_320, "what is acknowledged makes it no larger");
            // Small ones take more than their bytes.
            (0..9).for_each(|_| c.forget(1000));
            assert_eq!((c.in_flight(), c.frames(16, true)), (0, 22));
            // Less than a few frames would stop it.
            c.set_room(0);
            assert_eq!(c.frames(1000, true), 4);
        }
    }

    #[test]
    fn a_standing_queue_shrinks_it_and_a_dedicated_link_takes_no_notice() {
        for dedicated in [false, true] {
            let mut c = Congestion::new(dedicated, 1000);
            let before = c.window();
            for n in 0..10u32 {
                c.delay(MS * n, MS, MS);
            }
            assert_eq!(c.window(), before);
            for n in 10..20u32 {
                c.delay(MS * n, MS * 9, MS);
            }
            assert_eq!(c.window() < before, !dedicated);
        }
    }

    #[test]
    fn the_pace_spreads_a_window_over_a_round_trip() {
        let mut c = Congestion::new(false, 1000);
        c.threshold = 0.0;
        let (mut now, mut sent) = (MS * 100, 0u64);
        while now < MS * 1100 {
            if c.pace(now, MS * 10) <= now {
                c.sent(1, 1000);
                sent += 1000;
            } else {
                now = c.pace(now, MS * 10);
            }
        }
        // 32 frames of 1000 bytes each 10 ms, a quarter more, and the burst.
        assert!((3_900_000..4_300_000).contains(&sent), "{sent}");
    }

    #[test]
    fn a_fast_path_takes_what_it_carries_in_a_moment_back_to_back() {
        // 1 MB in 250 us is 5 GB/s with the gain of a quarter: 500 kB in 100 us. As much in 100 ms is 12 MB/s: two pieces.
        for (rtt, burst) in [(Duration::from_micros(250), 500_000), (MS * 100, BURST as usize)] {
            let mut c = Congestion::new(false, 1000);
            (c.window, c.threshold) = (1e6, 0.0);
            let (start, mut sent) = (Duration::from_secs(1), 0);
            while c.pace(start, rtt) <= start {
                let run = c.frames(1000, false).min(64);
                c.sent(run, 1000);
                sent += run * 1000;
            }
            assert!((burst..burst + 1000).contains(&sent), "{sent}");
        }
    }

    #[test]
    fn shorter_frames_make_a_smaller_window() {
        let mut c = Congestion::new(false, 65_507);
        c.set_frame(1472);
        assert!((c.window - 32.0 * 1472.0).abs() < 1.0, "{}", c.window);
        // Longer ones may be as many as before only once the window has grown.
        c.set_frame(8972);
        assert!((c.window - 32.0 * 1472.0).abs() < 1.0 && c.threshold.is_infinite(), "{}", c.window);
    }

    #[test]
    fn what_ends_a_run_is_made_up_for() {
        let mut c = Congestion::new(false, 1000);
        c.threshold = 0.0;
        let (start, mut sent) = (MS * 100, 0);
        while c.pace(start, MS * 10) <= start {
            c.sent(1, 1000);
            sent += 1000;
        }
        let plain = c.pace(start, MS * 10);
        while c.may_end_run() {
            c.sent(1, 1000);
            sent += 1000;
        }
        assert!((190_000..200_000).contains(&sent), "{sent}");
        // 65 kB more, at 4 MB/s.
        let later = c.pace(start, MS * 10) - plain;
        assert!((MS * 15..MS * 18).contains(&later), "{later:?}");
    }
}
