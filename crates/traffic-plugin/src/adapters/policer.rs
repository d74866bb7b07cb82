//! Stage 2 from an object.

use insane_traffic::Time;
use insane_traffic::classify::PacketView;
use insane_traffic::police::{self, Verdict};
use insane_traffic::spec::PolicerSpec;
use insane_traffic::stats::StatMap;

use super::{packet, queue_id};
use crate::abi;
use crate::stage::Instance;

/// A policer.
#[derive(Debug)]
pub(crate) struct Policer {
    stage: Instance,
    police: abi::Decide,
    faults: u64,
}

impl Policer {
    pub(crate) const fn new(stage: Instance, police: abi::Decide) -> Self {
        Self { stage, police, faults: 0 }
    }
}

impl police::Policer for Policer {
    fn police(&mut self, now: Time, view: &PacketView<'_>) -> Verdict {
        let packet = packet(view);
        // SAFETY: the stage lives, and packet and bytes live through the call.
        let answer = unsafe { (self.police)(self.stage.raw(), now.nanos(), &raw const packet) };
        match answer {
            abi::PASS => Verdict::Pass,
            abi::DROP => Verdict::Drop,
            _ => queue_id(answer).map_or_else(
                || {
                    self.faults += 1;
                    Verdict::Pass
                },
                Verdict::Redirect,
            ),
        }
    }

    fn misdirected(&mut self) {
        self.faults += 1;
    }

    fn modify(&mut self, spec: &PolicerSpec) -> bool {
        let PolicerSpec::Plugin { name, options } = spec else { return false };
        self.stage.modify(name, options)
    }

    fn stats(&self, out: &mut StatMap) {
        self.stage.stats(&[("faults", self.faults)], out);
    }
}
