//! The three-colour meters of RFC 2697 (one rate, two bursts) and RFC 2698 (two rates), exact to the byte.

use crate::time::Time;

/// Nanoseconds times bits in one byte-second: what a rate in bit/s times a time in ns is divided by to give bytes.
const BIT_NANOS_PER_BYTE: u64 = 8_000_000_000;

/// Counts the whole bytes that a rate has granted since it began: the "incremented by one, rate times per second" of the
/// RFCs without stepping through it. The part of a byte that is not granted yet is kept exactly.
#[derive(Clone, Debug)]
pub struct TokenClock {
    rate: u64,
    partial: u64,
    last: Option<Time>,
}

impl TokenClock {
    /// A clock of `rate` bit/s that begins at the first instant it is asked about.
    #[must_use]
    pub const fn new(rate: u64) -> Self {
        Self { rate, partial: 0, last: None }
    }

    /// The rate in bit/s.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Goes on with another rate from the last instant it was asked about.
    pub const fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// The bytes granted since the last call.
    pub fn grant(&mut self, now: Time) -> u64 {
        let Some(last) = self.last else {
            self.last = Some(now);
            return 0;
        };
        if now <= last {
            return 0;
        }
        self.last = Some(now);
        let elapsed = now.since(last).nanos();
        // The short way is taken for everything but minutes of idleness at tens of Gbit/s.
        if let Some(sum) = elapsed.checked_mul(self.rate).and_then(|n| n.checked_add(self.partial)) {
            self.partial = sum % BIT_NANOS_PER_BYTE;
            return sum / BIT_NANOS_PER_BYTE;
        }
        let sum = u128::from(elapsed) * u128::from(self.rate) + u128::from(self.partial);
        self.partial = u64::try_from(sum % u128::from(BIT_NANOS_PER_BYTE)).unwrap_or(0);
        u64::try_from(sum / u128::from(BIT_NANOS_PER_BYTE)).unwrap_or(u64::MAX)
    }

    /// The first instant at which `bytes` more will have been granted; never, at rate 0.
    #[must_use]
    pub fn when(&self, bytes: u64) -> Time {
        let Some(last) = self.last else { return Time::ZERO };
        if self.rate == 0 {
            return Time::MAX;
        }
        let needed = u128::from(bytes) * u128::from(BIT_NANOS_PER_BYTE)
            - u128::from(self.partial).min(u128::from(bytes) * u128::from(BIT_NANOS_PER_BYTE));
        let nanos = needed.div_ceil(u128::from(self.rate));
        Time::from_nanos(u64::try_from(nanos + u128::from(last.nanos())).unwrap_or(u64::MAX))
    }
}

/// A packet's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate and burst.
    Green = 0,
    /// Over it, but within the excess burst or the peak rate.
    Yellow = 1,
    /// Over both.
    Red = 2,
}

/// A three-colour meter.
#[derive(Clone, Debug)]
pub struct Meter {
    committed: TokenClock,
    /// The peak rate of RFC 2698; without one this is RFC 2697's meter.
    peak: Option<TokenClock>,
    /// CBS and its tokens Tc.
    cbs: u64,
    tc: u64,
    /// EBS and Te of RFC 2697, or PBS and Tp of RFC 2698.
    second: u64,
    t2: u64,
}

impl Meter {
    /// The single-rate meter of RFC 2697: `cir` in bit/s, `cbs` and `ebs` in bytes. Both buckets begin full.
    #[must_use]
    pub const fn single_rate(cir: u64, cbs: u64, ebs: u64) -> Self {
        Self { committed: TokenClock::new(cir), peak: None, cbs, tc: cbs, second: ebs, t2: ebs }
    }

    /// The two-rate meter of RFC 2698: `cir` and `pir` in bit/s, `cbs` and `pbs` in bytes. Both buckets begin full.
    #[must_use]
    pub const fn two_rate(cir: u64, cbs: u64, pir: u64, pbs: u64) -> Self {
        Self { committed: TokenClock::new(cir), peak: Some(TokenClock::new(pir)), cbs, tc: cbs, second: pbs, t2: pbs }
    }

    /// The tokens in the committed and in the second bucket, in bytes.
    #[must_use]
    pub const fn tokens(&self) -> (u64, u64) {
        (self.tc, self.t2)
    }

    /// Takes over the tokens of `old`, as far as this meter's buckets hold them.
    pub fn inherit(&mut self, old: &Self) {
        self.tc = old.tc.min(self.cbs);
        self.t2 = old.t2.min(self.second);
        (self.committed.last, self.committed.partial) = (old.committed.last, old.committed.partial);
        if let Some(peak) = &mut self.peak {
            peak.last = old.peak.as_ref().map_or(old.committed.last, |p| p.last);
        }
    }

    fn refill(&mut self, now: Time) {
        let granted = self.committed.grant(now);
        let room = self.cbs - self.tc;
        self.tc += granted.min(room);
        let into_second = match &mut self.peak {
            // RFC 2697 §2: what the committed bucket cannot hold fills the excess bucket.
            None => granted.saturating_sub(room),
            Some(peak) => peak.grant(now),
        };
        self.t2 = self.t2.saturating_add(into_second).min(self.second);
    }

    /// Colours a packet of `size` bytes. `before` is the colour that it already has: green in colour-blind mode.
    pub fn colour(&mut self, now: Time, size: u32, before: Colour) -> Colour {
        self.refill(now);
        let size = u64::from(size);
        if self.peak.is_some() { self.two_rates(size, before) } else { self.one_rate(size, before) }
    }

    const fn one_rate(&mut self, size: u64, before: Colour) -> Colour {
        if matches!(before, Colour::Green) && self.tc >= size {
            self.tc -= size;
            return Colour::Green;
        }
        if !matches!(before, Colour::Red) && self.t2 >= size {
            self.t2 -= size;
            return Colour::Yellow;
        }
        Colour::Red
    }

    const fn two_rates(&mut self, size: u64, before: Colour) -> Colour {
        if matches!(before, Colour::Red) || self.t2 < size {
            return Colour::Red;
        }
        self.t2 -= size;
        if matches!(before, Colour::Yellow) || self.tc < size {
            return Colour::Yellow;
        }
        self.tc -= size;
        Colour::Green
    }
}
