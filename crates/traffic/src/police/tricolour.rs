//! A policer made of a three-colour meter and an action per colour.

use super::{Colour, Meter, Policer, Verdict};
use crate::classify::PacketView;
use crate::spec::{ColourAction, PolicerSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// Meters every packet and passes, redirects or drops it by its colour.
#[derive(Clone, Debug)]
pub struct Tricolour {
    meter: Meter,
    actions: [ColourAction; 3],
    colour_aware: bool,
    packets: [u64; 3],
    bytes: [u64; 3],
    drops: u64,
    redirects: u64,
}

impl Tricolour {
    /// A policer as `spec` describes it; `None` if it describes another kind.
    #[must_use]
    pub fn new(spec: &PolicerSpec) -> Option<Self> {
        let (meter, colours, colour_aware) = match spec {
            PolicerSpec::Srtcm { cir, cbs, ebs, colours, colour_aware } => {
                (Meter::single_rate(cir.0, cbs.0, ebs.0), colours, *colour_aware)
            }
            PolicerSpec::Trtcm { cir, cbs, pir, pbs, colours, colour_aware } => {
                (Meter::two_rate(cir.0, cbs.0, pir.0, pbs.0), colours, *colour_aware)
            }
            PolicerSpec::Plugin { .. } => return None,
        };
        let actions = [colours.green, colours.yellow, colours.red];
        Some(Self { meter, actions, colour_aware, packets: [0; 3], bytes: [0; 3], drops: 0, redirects: 0 })
    }
}

/// The colour that the drop precedence of an assured-forwarding class stands for (RFC 2597 §6); green for all others.
const fn colour_of_dscp(dscp: u8) -> Colour {
    match (dscp >> 3, dscp & 7) {
        (1..=4, 4) => Colour::Yellow,
        (1..=4, 6) => Colour::Red,
        _ => Colour::Green,
    }
}

impl Policer for Tricolour {
    fn police(&mut self, now: Time, packet: &PacketView<'_>) -> Verdict {
        let before = if self.colour_aware { colour_of_dscp(packet.headers.outer.dscp) } else { Colour::Green };
        let colour = self.meter.colour(now, packet.size, before) as usize;
        self.packets[colour] += 1;
        self.bytes[colour] += u64::from(packet.size);
        match self.actions[colour] {
            ColourAction::Pass => Verdict::Pass,
            ColourAction::Drop => {
                self.drops += 1;
                Verdict::Drop
            }
            ColourAction::Redirect(queue) => {
                self.redirects += 1;
                Verdict::Redirect(queue)
            }
        }
    }

    fn modify(&mut self, spec: &PolicerSpec) -> bool {
        let Some(mut new) = Self::new(spec) else { return false };
        new.meter.inherit(&self.meter);
        (self.meter, self.actions, self.colour_aware) = (new.meter, new.actions, new.colour_aware);
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.count("bytes", self.bytes.iter().sum());
        out.count("packets", self.packets.iter().sum());
        out.count("drops", self.drops);
        out.count("overlimits", self.packets[1] + self.packets[2]);
        out.count("redirects", self.redirects);
        for (n, colour) in ["green", "yellow", "red"].into_iter().enumerate() {
            out.count(format!("{colour}_packets"), self.packets[n]);
            out.count(format!("{colour}_bytes"), self.bytes[n]);
        }
        let (tc, t2) = self.meter.tokens();
        out.count("tokens", tc);
        out.count("ptokens", t2);
    }
}
