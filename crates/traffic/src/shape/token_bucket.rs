//! A token bucket (tc: tbf without its queue).

use super::{Readiness, Shaper};
use crate::police::TokenClock;
use crate::spec::ShaperSpec;
use crate::stats::StatMap;
use crate::time::Time;

/// Sends at a rate, with bursts up to the bucket's size.
///
/// A packet larger than the bucket leaves when the bucket is full and puts it in debt, so that it is neither stuck nor
/// free.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    clock: TokenClock,
    burst: i64,
    tokens: i64,
    bytes: u64,
    packets: u64,
    overlimits: u64,
}

impl TokenBucket {
    /// A full bucket: `rate` in bit/s, `burst` in bytes.
    #[must_use]
    pub fn new(rate: u64, burst: u64) -> Self {
        let burst = i64::try_from(burst).unwrap_or(i64::MAX);
        Self { clock: TokenClock::new(rate), burst, tokens: burst, bytes: 0, packets: 0, overlimits: 0 }
    }

    fn refill(&mut self, now: Time) {
        let granted = i64::try_from(self.clock.grant(now)).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(granted).min(self.burst);
    }
}

impl Shaper for TokenBucket {
    fn ready(&mut self, now: Time, size: u32) -> Readiness {
        self.refill(now);
        let needed = i64::from(size).min(self.burst);
        if self.tokens >= needed {
            return Readiness::Now;
        }
        self.overlimits += 1;
        Readiness::At(self.clock.when((needed - self.tokens).unsigned_abs()))
    }

    fn sent(&mut self, now: Time, size: u32) {
        self.refill(now);
        self.tokens -= i64::from(size);
        self.bytes += u64::from(size);
        self.packets += 1;
    }

    fn modify(&mut self, spec: &ShaperSpec) -> bool {
        let ShaperSpec::TokenBucket { rate, burst } = spec else { return false };
        self.clock.set_rate(rate.0);
        self.burst = i64::try_from(burst.0).unwrap_or(i64::MAX);
        self.tokens = self.tokens.min(self.burst);
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("rate_bps", self.clock.rate());
        out.count("burst", self.burst.unsigned_abs());
        out.count("bytes", self.bytes);
        out.count("packets", self.packets);
        out.count("overlimits", self.overlimits);
        out.signed("tokens", self.tokens);
    }
}
