//! Keeping a best-effort flow without loss: a sender is faster than its receiver, and what nobody has room for is lost, but a rate
//! with loss says little. So the receiver tells now and then how far it is, and the sender stays within a window of that.

/// A receiver tells its progress so many times per window.
const WORDS_PER_WINDOW: u64 = 8;

/// The sender's account of what is on its way, in messages.
#[derive(Debug)]
pub struct Window {
    most: u64,
    sent: u64,
    /// What the receiver has seen, and what was lost without a trace.
    seen: u64,
    gone: u64,
}

impl Window {
    /// For messages of `payload` bytes, of which at most `bytes` are on their way, but at least one message.
    #[must_use]
    pub fn new(bytes: usize, payload: usize) -> Self {
        Self { most: (bytes / payload).max(1) as u64, sent: 0, seen: 0, gone: 0 }
    }

    /// `count` more are on their way.
    #[inline]
    pub fn add(&mut self, count: u64) {
        self.sent += count;
    }

    /// Whether the receiver has to tell its progress first.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.sent.saturating_sub(self.seen + self.gone) >= self.most
    }

    /// The receiver's word: how many messages it has received or found missing.
    pub fn progress(&mut self, word: [u8; 8]) {
        self.seen = self.seen.max(u64::from_le_bytes(word));
    }

    /// No word has come for long: what is on its way is lost, or the word is.
    pub fn forget(&mut self) {
        self.gone = self.sent.saturating_sub(self.seen);
    }
}

/// When a receiver tells its progress.
#[derive(Debug)]
pub struct Words {
    every: u64,
    told: u64,
}

impl Words {
    /// For a window of the same `bytes` and `payload`.
    #[must_use]
    pub fn new(bytes: usize, payload: usize) -> Self {
        Self { every: ((bytes / payload) as u64 / WORDS_PER_WINDOW).max(1), told: 0 }
    }

    /// What to tell, if it is time, having received or missed `seen` messages.
    #[inline]
    pub fn due(&mut self, seen: u64) -> Option<[u8; 8]> {
        if seen - self.told < self.every {
            return None;
        }
        self.told = seen;
        Some(seen.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_with_the_receivers_word_or_when_all_is_lost() {
        let (mut window, mut words) = (Window::new(32 * 1024, 1024), Words::new(32 * 1024, 1024));
        window.add(31);
        assert!(!window.is_full());
        window.add(1);
        assert!(window.is_full());
        assert_eq!(words.due(3), None);
        window.progress(words.due(4).expect("an eighth of the window is there"));
        assert_eq!(words.due(5), None);
        assert!(!window.is_full());
        window.add(4);
        assert!(window.is_full());
        window.forget();
        window.add(31);
        assert!(!window.is_full());
    }

    #[test]
    fn a_message_longer_than_the_window_goes_alone() {
        let (mut window, mut words) = (Window::new(1024, 8192), Words::new(1024, 8192));
        assert!(!window.is_full());
        window.add(1);
        assert!(window.is_full());
        window.progress(words.due(1).expect("each is told"));
        assert!(!window.is_full());
    }
}
