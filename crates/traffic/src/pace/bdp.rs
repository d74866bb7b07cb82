//! The 5G-BDP pacer: keeps the RLC buffer at the bandwidth-delay product of the gaps that it must bridge.

use super::{Pace, Pacer, RlcStatus};
use crate::spec::{BdpSpec, PacerSpec};
use crate::stats::StatMap;
use crate::time::{Span, Time};

/// Estimates what the MAC takes per time and lets the buffer hold that for a horizon: the report's period, the longest gap
/// between two downlink slots, and the jitter of both.
#[derive(Clone, Debug)]
pub struct Bdp {
    spec: BdpSpec,
    /// Bytes per nanosecond.
    rate: f64,
    /// How much the buffer may hold, in bytes: computed when something that it follows from changes, not for each packet.
    target: u64,
    /// Bytes in the buffer: the last report and what was sent since.
    held: u64,
    last_report: Option<Time>,
    /// When the current measurement began, what the MAC took since, and whether the buffer was ever empty in it.
    window_start: Time,
    taken: u64,
    ran_empty: bool,
    desired_bytes: Option<u64>,
    sent: u64,
    packets: u64,
    reports: u64,
    waits: u64,
    late: u64,
}

#[expect(clippy::cast_precision_loss, reason = "byte counts and times are far below 2^53")]
#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "the target is clamped to sizes")]
impl Bdp {
    /// A pacer that knows nothing yet and begins with the smallest target.
    #[must_use]
    pub fn new(spec: BdpSpec) -> Self {
        let mut pacer = Self {
            spec,
            rate: 0.0,
            target: 0,
            held: 0,
            last_report: None,
            window_start: Time::ZERO,
            taken: 0,
            ran_empty: false,
            desired_bytes: None,
            sent: 0,
            packets: 0,
            reports: 0,
            waits: 0,
            late: 0,
        };
        pacer.aim();
        pacer
    }

    /// How much the buffer may hold, in bytes.
    #[must_use]
    pub const fn target(&self) -> u64 {
        self.target
    }

    fn aim(&mut self) {
        let product = self.rate * self.spec.horizon.0.nanos() as f64 + 2.0 * f64::from(self.spec.mtu);
        let target = (product as u64).clamp(self.spec.min.0, self.spec.max.0);
        // What the other side asks for is a bound, but never less than a packet, or nothing would ever move.
        self.target = self.desired_bytes.map_or(target, |desired| target.min(desired.max(self.spec.mtu.into())));
    }

    /// The estimated rate in bit/s.
    #[must_use]
    pub fn rate_bps(&self) -> f64 {
        self.rate * 8e9
    }

    /// What the MAC has taken is a sample at the end of each window. A window in which the buffer ran empty says how much
    /// there was to send, not how much could have been: it may only raise the estimate.
    fn measure(&mut self, now: Time, elapsed: Span) {
        let sample = self.taken as f64 / elapsed.nanos() as f64;
        if sample > self.rate {
            self.rate = sample;
        } else if !self.ran_empty {
            self.rate += self.spec.gain * (sample - self.rate);
        }
        self.window_start = now;
        self.taken = 0;
        self.ran_empty = false;
    }

    /// When to go on without a report.
    fn deadline(&self) -> Option<Time> {
        self.last_report.map(|at| at + self.spec.stale.0)
    }
}

impl Pacer for Bdp {
    fn admit(&mut self, now: Time, size: u32) -> Pace {
        if self.held == 0 || self.held + u64::from(size) <= self.target {
            return Pace::Pass;
        }
        self.waits += 1;
        let deadline = *self.last_report.get_or_insert(now) + self.spec.stale.0;
        if now < deadline {
            return Pace::Wait(deadline);
        }
        // No report for long: take the buffer for empty once, so that a lost report cannot stop everything. That bounds
        // the rate without reports to one target per `stale`.
        self.late += 1;
        self.held = 0;
        self.last_report = Some(now);
        Pace::Pass
    }

    fn sent(&mut self, _now: Time, size: u32) {
        self.held += u64::from(size);
        self.sent += u64::from(size);
        self.packets += 1;
    }

    fn report(&mut self, now: Time, status: &RlcStatus) {
        self.reports += 1;
        self.desired_bytes = status.desired_bytes;
        self.taken += self.held.saturating_sub(status.bytes);
        self.held = status.bytes;
        self.ran_empty |= status.bytes == 0;
        // After a silence it is not known how much was taken when: the measurement begins again.
        if self.deadline().is_none_or(|deadline| now > deadline) {
            (self.window_start, self.taken, self.ran_empty) = (now, 0, status.bytes == 0);
        }
        self.last_report = Some(now);
        let elapsed = now.since(self.window_start);
        if elapsed >= self.spec.window.0 {
            self.measure(now, elapsed);
        }
        if let Some(rate) = status.desired_rate {
            self.rate = rate as f64 / 8e9;
        }
        self.aim();
    }

    fn modify(&mut self, spec: &PacerSpec) -> bool {
        let PacerSpec::Bdp(spec) = spec else { return false };
        self.spec = *spec;
        self.aim();
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.text("type", "5g-bdp");
        out.real("rate_bps", self.rate_bps());
        out.count("target", self.target);
        out.count("rlc_bytes", self.held);
        out.count("bytes", self.sent);
        out.count("packets", self.packets);
        out.count("overlimits", self.waits);
        out.count("reports", self.reports);
        out.count("late_reports", self.late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MAC that takes `per_ms` bytes each millisecond out of what the pacer lets through; reports every millisecond.
    fn run(pacer: &mut Bdp, from_ms: u64, to_ms: u64, per_ms: impl Fn(u64) -> u64, mut rlc: u64) -> (u64, u64, u64) {
        let (mut served, mut peak) = (0, 0);
        for ms in from_ms..to_ms {
            let now = Time::from_millis(ms);
            while pacer.admit(now, 1500) == Pace::Pass {
                pacer.sent(now, 1500);
                rlc += 1500;
            }
            peak = peak.max(rlc);
            let taken = per_ms(ms).min(rlc);
            rlc -= taken;
            served += taken;
            pacer.report(now + Span::from_micros(900), &RlcStatus { bytes: rlc, ..RlcStatus::default() });
        }
        (served, peak, rlc)
    }

    /// The pattern DDDDDDDMUU at 5000 bytes per millisecond on average: 7 of 10 slots.
    fn tdd(ms: u64) -> u64 {
        [7142, 7142, 7142, 3574, 0][ms as usize % 5]
    }

    #[test]
    fn it_fills_the_link_and_keeps_the_buffer_small() {
        let mut pacer = Bdp::new(BdpSpec::default());
        let (_, _, rlc) = run(&mut pacer, 0, 200, tdd, 0);
        let (served, peak, _) = run(&mut pacer, 200, 1200, tdd, rlc);
        let offered: u64 = (200..1200).map(tdd).sum();
        assert!(served * 100 >= offered * 99, "{served} of {offered}");
        assert!(peak <= 20_000, "{peak}");
    }

    #[test]
    fn it_follows_the_rate_up_and_down() {
        let mut pacer = Bdp::new(BdpSpec::default());
        let (_, _, rlc) = run(&mut pacer, 0, 300, |_| 10_000, 0);
        assert!((pacer.rate_bps() / 80e6 - 1.0).abs() < 0.05, "{}", pacer.rate_bps());
        run(&mut pacer, 300, 1000, |_| 2_000, rlc);
        assert!((pacer.rate_bps() / 16e6 - 1.0).abs() < 0.1, "{}", pacer.rate_bps());
    }

    #[test]
    fn an_application_that_sends_little_does_not_shrink_the_estimate() {
        let mut pacer = Bdp::new(BdpSpec::default());
        run(&mut pacer, 0, 300, |_| 10_000, 0);
        let before = pacer.rate_bps();
        for ms in 300..1000 {
            pacer.report(Time::from_millis(ms), &RlcStatus::default());
        }
        assert!(pacer.rate_bps() >= before);
    }

    #[test]
    fn without_reports_it_slows_down_but_never_stops() {
        let mut pacer = Bdp::new(BdpSpec::default());
        let mut sent = 0_u64;
        let mut now = Time::from_millis(1);
        while now < Time::from_millis(1001) {
            match pacer.admit(now, 1500) {
                Pace::Pass => {
                    pacer.sent(now, 1500);
                    sent += 1500;
                }
                Pace::Wait(until) => {
                    assert!(until > now);
                    now = until;
                }
            }
        }
        let stale = 1000 / (BdpSpec::default().stale.0.nanos() / 1_000_000);
        assert!((stale * 7_500..=stale * 12_000).contains(&sent), "{sent}");
    }

    #[test]
    fn the_other_side_can_ask_for_less() {
        let mut pacer = Bdp::new(BdpSpec::default());
        pacer.report(Time::ZERO, &RlcStatus { desired_bytes: Some(3_000), ..RlcStatus::default() });
        assert_eq!(pacer.target(), 3_000);
        pacer.report(Time::ZERO, &RlcStatus { desired_bytes: Some(0), ..RlcStatus::default() });
        assert!(pacer.target() >= 1_500, "never nothing");
    }
}
