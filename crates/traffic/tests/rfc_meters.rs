//! The meters against models that count token by token, as RFC 2697 §3 and RFC 2698 §3 word it: to the byte.

use insane_traffic::police::{Colour, Meter};
use insane_traffic::{Rng, Time};

/// A clock that grants one byte each time another 1/rate of a second is over.
struct Ticks {
    rate: u128,
    granted: u128,
}

impl Ticks {
    /// Calls `tick` for every byte granted until `at` nanoseconds.
    fn until(&mut self, at: u64, mut tick: impl FnMut()) {
        while (self.granted + 1) * 8_000_000_000 <= u128::from(at) * self.rate {
            self.granted += 1;
            tick();
        }
    }
}

struct SingleRate {
    ticks: Ticks,
    cbs: u64,
    ebs: u64,
    tc: u64,
    te: u64,
}

impl SingleRate {
    fn colour(&mut self, at: u64, size: u64, before: Colour) -> Colour {
        let (cbs, ebs) = (self.cbs, self.ebs);
        let (tc, te) = (&mut self.tc, &mut self.te);
        self.ticks.until(at, || {
            if *tc < cbs {
                *tc += 1;
            } else if *te < ebs {
                *te += 1;
            }
        });
        if before == Colour::Green && self.tc >= size {
            self.tc -= size;
            Colour::Green
        } else if before != Colour::Red && self.te >= size {
            self.te -= size;
            Colour::Yellow
        } else {
            Colour::Red
        }
    }
}

struct TwoRate {
    committed: Ticks,
    peak: Ticks,
    cbs: u64,
    pbs: u64,
    tc: u64,
    tp: u64,
}

impl TwoRate {
    fn colour(&mut self, at: u64, size: u64, before: Colour) -> Colour {
        let (cbs, pbs) = (self.cbs, self.pbs);
        let (tc, tp) = (&mut self.tc, &mut self.tp);
        self.committed.until(at, || *tc = (*tc + 1).min(cbs));
        self.peak.until(at, || *tp = (*tp + 1).min(pbs));
        if before == Colour::Red || self.tp < size {
            Colour::Red
        } else if before == Colour::Yellow || self.tc < size {
            self.tp -= size;
            Colour::Yellow
        } else {
            self.tp -= size;
            self.tc -= size;
            Colour::Green
        }
    }
}

/// Packets with random gaps, sizes and colours; calls `check` for each.
fn traffic(rng: &mut Rng, mut check: impl FnMut(u64, u32, Colour) -> Colour) -> [u32; 3] {
    let mut seen = [0; 3];
    let mut at = 0;
    for _ in 0..3_000 {
        let gap = [0, 1, 1_000, 1_000_000, 20_000_000][(rng.bits() % 5) as usize];
        at += rng.bits() % (gap + 1);
        let size = 1 + (rng.bits() % 1500) as u32;
        let before = [Colour::Green, Colour::Green, Colour::Yellow, Colour::Red][(rng.bits() % 4) as usize];
        seen[check(at, size, before) as usize] += 1;
    }
    seen
}

#[test]
fn the_single_rate_meter_is_rfc_2697_to_the_byte() {
    let mut seen = [0; 3];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let rate = 1 + rng.bits() % 4_000_000;
        let (cbs, ebs) = (rng.bits() % 6_000, 1 + rng.bits() % 6_000);
        let mut meter = Meter::single_rate(rate, cbs, ebs);
        let ticks = Ticks { rate: rate.into(), granted: 0 };
        let mut model = SingleRate { ticks, cbs, ebs, tc: cbs, te: ebs };
        meter.colour(Time::ZERO, 0, Colour::Green);
        let counts = traffic(&mut rng, |at, size, before| {
            let colour = meter.colour(Time::from_nanos(at), size, before);
            assert_eq!(colour, model.colour(at, size.into(), before), "seed {seed} at {at}");
            assert_eq!(meter.tokens(), (model.tc, model.te), "seed {seed} at {at}");
            colour
        });
        (0..3).for_each(|n| seen[n] += counts[n]);
    }
    assert!(seen.iter().all(|&n| n > 1_000), "{seen:?}");
}

#[test]
fn the_two_rate_meter_is_rfc_2698_to_the_byte() {
    let mut seen = [0; 3];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let cir = 1 + rng.bits() % 2_000_000;
        let pir = cir + rng.bits() % 2_000_000;
        let (cbs, pbs) = (1 + rng.bits() % 6_000, 1 + rng.bits() % 6_000);
        let mut meter = Meter::two_rate(cir, cbs, pir, pbs);
        let committed = Ticks { rate: cir.into(), granted: 0 };
        let peak = Ticks { rate: pir.into(), granted: 0 };
        let mut model = TwoRate { committed, peak, cbs, pbs, tc: cbs, tp: pbs };
        meter.colour(Time::ZERO, 0, Colour::Green);
        let counts = traffic(&mut rng, |at, size, before| {
            let colour = meter.colour(Time::from_nanos(at), size, before);
            assert_eq!(colour, model.colour(at, size.into(), before), "seed {seed} at {at}");
            assert_eq!(meter.tokens(), (model.tc, model.tp), "seed {seed} at {at}");
            colour
        });
        (0..3).for_each(|n| seen[n] += counts[n]);
    }
    assert!(seen.iter().all(|&n| n > 1_000), "{seen:?}");
}

#[test]
fn a_long_pause_at_a_high_rate_does_not_overflow() {
    let mut meter = Meter::two_rate(1_000_000_000_000, 5_000, 1_000_000_000_000, 5_000);
    meter.colour(Time::ZERO, 5_000, Colour::Green);
    assert_eq!(meter.tokens(), (0, 0));
    assert_eq!(meter.colour(Time::MAX, 5_000, Colour::Green), Colour::Green);
    // A clock that goes back grants nothing.
    assert_eq!(meter.colour(Time::ZERO, 1, Colour::Green), Colour::Red);
}
