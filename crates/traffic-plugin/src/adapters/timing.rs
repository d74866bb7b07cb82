//! Stages 5 and 6 from an object: both answer when a packet may leave.

use insane_traffic::pace::{self, Pace};
use insane_traffic::shape::{self, Readiness};
use insane_traffic::spec::{PacerSpec, ShaperSpec};
use insane_traffic::stats::StatMap;
use insane_traffic::{RlcStatus, Span, Time};

use crate::abi;
use crate::stage::Instance;

/// A stage is asked again after so long, whatever it answered.
const LONGEST: Span = Span::from_secs(1);

/// The time of an answer, `None` if it is not after `now`.
fn when(now: Time, answer: u64, faults: &mut u64) -> Option<Time> {
    let (at, last) = (Time::from_nanos(answer), now + LONGEST);
    *faults += u64::from(at > last);
    (at > now).then(|| at.min(last))
}

/// A shaper.
#[derive(Debug)]
pub(crate) struct Shaper {
    stage: Instance,
    ready: abi::When,
    sent: abi::HasLeft,
    faults: u64,
}

impl Shaper {
    pub(crate) const fn new(stage: Instance, ready: abi::When, sent: abi::HasLeft) -> Self {
        Self { stage, ready, sent, faults: 0 }
    }
}

impl shape::Shaper for Shaper {
    fn ready(&mut self, now: Time, size: u32) -> Readiness {
        // SAFETY: the stage lives.
        let answer = unsafe { (self.ready)(self.stage.raw(), now.nanos(), size) };
        when(now, answer, &mut self.faults).map_or(Readiness::Now, Readiness::At)
    }

    fn sent(&mut self, now: Time, size: u32) {
        // SAFETY: the stage lives.
        unsafe { (self.sent)(self.stage.raw(), now.nanos(), size) };
    }

    fn modify(&mut self, spec: &ShaperSpec) -> bool {
        let ShaperSpec::Plugin { name, options } = spec else { return false };
        self.stage.modify(name, options)
    }

    fn stats(&self, out: &mut StatMap) {
        self.stage.stats(&[("faults", self.faults)], out);
    }
}

/// A pacer.
#[derive(Debug)]
pub(crate) struct Pacer {
    stage: Instance,
    admit: abi::When,
    sent: abi::HasLeft,
    calls: abi::PacerCalls,
    faults: u64,
}

impl Pacer {
    pub(crate) const fn new(stage: Instance, admit: abi::When, sent: abi::HasLeft, calls: abi::PacerCalls) -> Self {
        Self { stage, admit, sent, calls, faults: 0 }
    }
}

impl pace::Pacer for Pacer {
    fn admit(&mut self, now: Time, size: u32) -> Pace {
        // SAFETY: the stage lives.
        let answer = unsafe { (self.admit)(self.stage.raw(), now.nanos(), size) };
        when(now, answer, &mut self.faults).map_or(Pace::Pass, Pace::Wait)
    }

    fn sent(&mut self, now: Time, size: u32) {
        // SAFETY: the stage lives.
        unsafe { (self.sent)(self.stage.raw(), now.nanos(), size) };
    }

    fn report(&mut self, now: Time, status: &RlcStatus) {
        let Some(report) = self.calls.report else { return };
        let told = abi::Rlc {
            bytes: status.bytes,
            packets: status.packets.unwrap_or(abi::UNKNOWN),
            desired_bytes: status.desired_bytes.unwrap_or(abi::UNKNOWN),
            desired_rate: status.desired_rate.unwrap_or(abi::UNKNOWN),
        };
        // SAFETY: the stage lives, and what it is told lives through the call.
        unsafe { report(self.stage.raw(), now.nanos(), &raw const told) };
    }

    fn modify(&mut self, spec: &PacerSpec) -> bool {
        let PacerSpec::Plugin { name, options } = spec else { return false };
        self.stage.modify(name, options)
    }

    fn stats(&self, out: &mut StatMap) {
        self.stage.stats(&[("faults", self.faults)], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_stops_a_stage_for_longer_than_a_second() {
        let (now, mut faults) = (Time::from_millis(5), 0);
        for past in [0, 1, now.nanos()] {
            assert_eq!(when(now, past, &mut faults), None);
        }
        assert_eq!(when(now, now.nanos() + 1, &mut faults), Some(now + Span::from_nanos(1)));
        assert_eq!(when(now, (now + LONGEST).nanos(), &mut faults), Some(now + LONGEST));
        assert_eq!(faults, 0);
        assert_eq!(when(now, u64::MAX, &mut faults), Some(now + LONGEST));
        assert_eq!(faults, 1);
        assert_eq!(when(Time::MAX, u64::MAX, &mut faults), None, "the clock cannot go further");
    }
}
