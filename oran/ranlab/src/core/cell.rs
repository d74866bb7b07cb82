//! The cell: everything between the server's and the UEs' devices, as one state machine.

use std::collections::VecDeque;
use std::sync::Arc;

use insane_traffic::classify::{Matcher, PacketView};
use insane_traffic::parse::{PduFormat, parse};
use insane_traffic::spec::Change;
use insane_traffic::stats::PipelineStats;
use insane_traffic::{Dequeued, Draft, Packet, Pipeline, Plan, Plugins, RlcStatus, SpecError, Time};

use super::air::{Air, Arrived, FlowSettings, Grant, Harq};
use super::channel::Mcs;
use super::delay::{DelayLine, pop_if};
use super::f1u::{DeliveryStatus, MAX_RANGES};
use super::pdcp::{SnLength, nearest};
use super::pdu::Pdu;
use super::phy::{Allocation, Sizes};
use super::rlc::RlcStats;
use super::slots::{Pattern, SlotKind};
use super::stats::{BearerStats, CellStats, Spread, Tally, UeStats};
use crate::config::{Config, ConfigError, Feedback, Radio};

/// Where a packet comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// At the server.
    Server,
    /// At a UE, by position.
    Ue(usize),
}

/// A packet that comes out of the lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Where.
    pub to: Side,
    /// When.
    pub at: Time,
    /// What.
    pub pdu: Box<Pdu>,
}

/// Why a bearer could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no such bearer.
    #[error("there is no bearer {drb} of RNTI {rnti:#06x}")]
    NoBearer {
        /// Which UE.
        rnti: u16,
        /// Which bearer.
        drb: u8,
    },
    /// The pipeline refused.
    #[error(transparent)]
    Refused(#[from] SpecError),
}

/// What a look at a bearer shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The UE.
    pub rnti: u16,
    /// The bearer.
    pub drb: u8,
    /// The downlink pipeline.
    pub pipeline: PipelineStats,
    /// How many queues and filters are left out of it.
    pub left_out: usize,
    /// The downlink RLC.
    pub rlc: RlcStats,
    /// The uplink RLC.
    pub uplink_rlc: RlcStats,
}

struct Bearer {
    id: u8,
    pipeline: Pipeline<Box<Pdu>>,
    /// The PDCP count of the next packet.
    next_count: u64,
    /// What the central unit believes to be in the distributed unit: counts and sizes; and the sum of the sizes.
    unsent: VecDeque<(u64, u32)>,
    unsent_bytes: u64,
    /// What the distributed unit refused and has not yet reported, as ranges of counts.
    missing: VecDeque<(u64, u64)>,
    /// Packets given to the RLC, and of those the ones that it refused.
    to_rlc: u64,
    refused: u64,
    /// Packets that came from the UE's devices, and of those the ones that its RLC refused.
    from_ue: u64,
    refused_up: u64,
    delivered: Tally,
    received: Tally,
    sojourn: [Spread; 3],
    status_frames: [u64; 2],
}

struct Ue {
    name: String,
    rnti: u16,
    qfi: u8,
    /// Position of the bearer of each QoS flow.
    map: [u8; 64],
    bearers: Vec<Bearer>,
}

/// What a link between two units or sides carries: which bearer, by positions, and the item.
type Addressed<T> = (usize, usize, T);

/// The cell. One thread at a time uses it; it never reads a clock.
pub struct Cell {
    now: Time,
    pattern: Pattern,
    next_slot: u64,
    prbs: u16,
    /// Sizes of full and mixed slots, downlink and uplink.
    sizes: [[Option<Sizes>; 2]; 2],
    feedback: Feedback,
    report_every: insane_traffic::Span,
    next_report: Time,
    sn: SnLength,
    header: u32,
    rules: Vec<(Matcher, u8)>,
    ues: Vec<Ue>,
    wan_down: DelayLine<Addressed<Box<Pdu>>>,
    wan_up: DelayLine<Addressed<Box<Pdu>>>,
    wan_drops: [u64; 2],
    entered_down: u64,
    to_du: DelayLine<Addressed<(u64, Box<Pdu>)>>,
    to_cu: DelayLine<Addressed<Vec<u8>>>,
    down: Air,
    up: Air,
    out: VecDeque<Delivery>,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("now", &self.now).field("next_slot", &self.next_slot).finish_non_exhaustive()
    }
}

fn sizes(radio: &Radio, prbs: u16) -> [Option<Sizes>; 2] {
    let of = |symbols: u8| {
        let allocation = Allocation {
            symbols: symbols.into(),
            dmrs: radio.dmrs.into(),
            overhead: radio.overhead.into(),
            layers: radio.layers.into(),
        };
        (symbols > 0).then(|| Sizes::new(allocation, radio.table, prbs))
    };
    [of(radio.symbols), of(radio.mixed_symbols)]
}

fn harq(radio: &Radio) -> Harq {
    Harq {
        bler: radio.harq.bler,
        bler_again: radio.harq.bler_again,
        delay: radio.harq.delay.0,
        transmissions: radio.harq.transmissions,
        processes: radio.harq.processes.into(),
    }
}

impl Cell {
    /// A cell at time zero.
    ///
    /// # Errors
    /// What in the configuration cannot be.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Self::with_plugins(config, None)
    }

    /// A cell at time zero whose pipelines may have stages from elsewhere, at once or by later changes.
    ///
    /// # Errors
    /// What in the configuration cannot be, a stage that is not there among it.
    pub fn with_plugins(config: &Config, plugins: Option<Arc<dyn Plugins<Box<Pdu>>>>) -> Result<Self, ConfigError> {
        config.check()?;
        let mut seeds = insane_traffic::Rng::new(config.seed);
        let invalid = |key: &str| {
            let key = key.to_owned();
            move |e: SpecError| ConfigError::Value { key, fault: e.to_string() }
        };
        let grant = Grant { request: config.grant.request.0, idle: config.grant.idle.0 };
        let mut down = Air::new(harq(&config.downlink), None, config.downlink.delay.0, seeds.bits());
        let mut up = Air::new(harq(&config.uplink), Some(grant), config.uplink.delay.0, seeds.bits());
        let mut ues = Vec::new();
        for spec in &config.ues {
            let mut map = [0_u8; 64];
            let (mut bearers, mut flows) = (Vec::new(), Vec::new());
            for (n, bearer) in spec.bearers.iter().enumerate() {
                bearer.qfi.iter().for_each(|&qfi| map[usize::from(qfi & 63)] = n as u8);
                let pipeline = Pipeline::with_plugins(&bearer.spec()?, seeds.bits(), plugins.clone())
                    .map_err(invalid("ue.bearer.pipeline"))?;
                bearers.push(Bearer::new(bearer.id, pipeline));
                flows.push(FlowSettings {
                    limit: config.rlc.limit.0,
                    limit_packets: config.rlc.limit_packets as usize,
                    priority: bearer.priority,
                    mode: config.rlc.mode,
                    reordering: config.rlc.reordering.0,
                });
            }
            down.add(Mcs::new(spec.mcs.clone().unwrap_or_else(|| config.downlink.mcs.clone()), seeds.bits()), &flows);
            let uplink_mcs = spec.uplink_mcs.clone().unwrap_or_else(|| config.uplink.mcs.clone());
            up.add(Mcs::new(uplink_mcs, seeds.bits()), &flows);
            ues.push(Ue { name: spec.name.clone(), rnti: spec.rnti, qfi: spec.qfi, map, bearers });
        }
        let rule = |r: &crate::config::QosRule| Matcher::new(&r.matches).map(|m| (m, r.qfi));
        let rules = config.qos_rules.iter().map(rule).collect::<Result<_, _>>().map_err(invalid("qos_rule.match"))?;
        let wan = || DelayLine::new(config.wan.delay.0, config.wan.limit_packets as usize);
        let sn = config.pdcp.sn_bits;
        Ok(Self {
            now: Time::ZERO,
            pattern: config.pattern()?,
            next_slot: 0,
            prbs: config.carrier.prbs,
            sizes: [sizes(&config.downlink, config.carrier.prbs), sizes(&config.uplink, config.carrier.prbs)],
            feedback: config.feedback.path,
            report_every: config.feedback.period.0,
            next_report: Time::ZERO,
            sn,
            header: sn.header() + u32::from(config.pdcp.sdap_header),
            rules,
            ues,
            wan_down: wan(),
            wan_up: wan(),
            wan_drops: [0; 2],
            entered_down: 0,
            // What is under way is bounded by the pipelines that feed it; without a pacer by the RLC's limit for each.
            to_du: DelayLine::new(config.feedback.delay.0, usize::MAX),
            to_cu: DelayLine::new(config.feedback.delay.0, usize::MAX),
            down,
            up,
            out: VecDeque::new(),
        })
    }

    /// The lab's time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// When the next slot begins. Packets that are noticed late may be handed in as of this instant and still be in time
    /// for it.
    #[must_use]
    pub const fn next_slot(&self) -> Time {
        self.pattern.start(self.next_slot)
    }

    /// How many UEs there are.
    #[must_use]
    pub const fn ue_count(&self) -> usize {
        self.ues.len()
    }

    /// A packet from the server to a UE. Times that are before what was processed count as now.
    pub fn downlink(&mut self, at: Time, ue: usize, bytes: &[u8]) {
        let at = at.max(self.now);
        let Some(to) = self.ues.get(ue) else { return };
        let qfi = mark(&self.rules, to.qfi, bytes);
        let bearer = usize::from(to.map[usize::from(qfi & 63)]);
        self.entered_down += 1;
        if self.wan_down.push(at, (ue, bearer, Box::new(Pdu::new(bytes.into(), qfi, at)))).is_err() {
            self.wan_drops[0] += 1;
        }
    }

    /// A packet from a UE to the server, on the bearer that its QoS flow is mapped to: uplink packets take the UE's default
    /// flow.
    pub fn uplink(&mut self, at: Time, ue: usize, bytes: &[u8]) {
        let at = at.max(self.now);
        let header = self.header;
        let Some(from) = self.ues.get_mut(ue) else { return };
        let n = usize::from(from.map[usize::from(from.qfi & 63)]);
        let Some(bearer) = from.bearers.get_mut(n) else { return };
        bearer.from_ue += 1;
        bearer.pipeline.observe(at, bytes);
        let pdu = Box::new(Pdu::new(bytes.into(), from.qfi, at));
        if self.up.push(at, ue, n, 0, header, pdu).is_err() {
            bearer.refused_up += 1;
        }
    }

    /// Changes the pipeline of a bearer, all of the changes or none.
    ///
    /// # Errors
    /// There is no such bearer, or why a change is not possible.
    pub fn change(&mut self, rnti: u16, drb: u8, changes: &[Change]) -> Result<u64, ChangeError> {
        let (ue, n) = self.place(rnti, drb)?;
        let generation = self.ues[ue].bearers[n].pipeline.apply(self.now, changes, &mut ())?;
        self.egress(self.now, ue, n);
        Ok(generation)
    }

    /// Makes changes that were planned elsewhere.
    ///
    /// # Errors
    /// There is no such bearer, or its pipeline changed meanwhile.
    pub fn commit(&mut self, rnti: u16, drb: u8, plan: Plan<Box<Pdu>>) -> Result<u64, ChangeError> {
        let (ue, n) = self.place(rnti, drb)?;
        let generation = self.ues[ue].bearers[n].pipeline.commit(self.now, plan, &mut ())?;
        self.egress(self.now, ue, n);
        Ok(generation)
    }

    /// What is needed to plan changes of a bearer's pipeline elsewhere.
    #[must_use]
    pub fn draft(&self, rnti: u16, drb: u8) -> Option<Draft<Box<Pdu>>> {
        let (ue, n) = self.place(rnti, drb).ok()?;
        Some(self.ues[ue].bearers[n].pipeline.draft())
    }

    /// The positions of a bearer.
    fn place(&self, rnti: u16, drb: u8) -> Result<(usize, usize), ChangeError> {
        let of = |ue: &Ue| ue.bearers.iter().position(|b| b.id == drb);
        let found = self.ues.iter().enumerate().find(|(_, u)| u.rnti == rnti).and_then(|(n, ue)| Some((n, of(ue)?)));
        found.ok_or(ChangeError::NoBearer { rnti, drb })
    }

    /// Looks at pipelines and RLC of these bearers, of all without any; of each pipeline at at most `most` queues and filters.
    #[must_use]
    pub fn look(&self, bearers: &[(u16, u8)], most: usize) -> Vec<Look> {
        let all = self
            .ues
            .iter()
            .enumerate()
            .flat_map(|(u, ue)| ue.bearers.iter().enumerate().map(move |(n, bearer)| (u, n, ue.rnti, bearer)));
        let wanted = all.filter(|(_, _, rnti, b)| bearers.is_empty() || bearers.contains(&(*rnti, b.id)));
        let look = |(u, n, rnti, bearer): (usize, usize, u16, &Bearer)| {
            let (pipeline, left_out) = bearer.pipeline.stats_within(most);
            let (rlc, uplink_rlc) = (self.down.rlc_stats(self.now, u, n), self.up.rlc_stats(self.now, u, n));
            Look { rnti, drb: bearer.id, pipeline, left_out, rlc, uplink_rlc }
        };
        wanted.map(look).collect()
    }

    /// Turns the clock to `now`: every slot, report and arrival up to then takes place at its own time.
    pub fn advance(&mut self, now: Time) {
        while let Some(next) = self.next_event().filter(|next| *next <= now) {
            self.now = self.now.max(next);
            self.step(self.now);
        }
        self.now = self.now.max(now);
    }

    /// When there is something to do though nothing arrives; slots make that always a time not far away.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        let wakes = self.ues.iter().flat_map(|ue| &ue.bearers).filter_map(|b| b.pipeline.wake_at());
        let lines = [
            Some(self.next_slot()),
            Some(self.next_report),
            self.wan_down.next_at(),
            self.wan_up.next_at(),
            self.to_du.next_at(),
            self.to_cu.next_at(),
            self.down.next_at(),
            self.up.next_at(),
        ];
        lines.into_iter().flatten().chain(wakes).min()
    }

    /// The next packet that has come out.
    pub fn pop(&mut self) -> Option<Delivery> {
        self.out.pop_front()
    }

    fn step(&mut self, now: Time) {
        while let Some((_, (ue, n, mut pdu))) = self.wan_down.pop(now) {
            pdu.at_bearer = now;
            // The pipeline counts what it refuses.
            let _ = self.ues[ue].bearers[n].pipeline.enqueue(now, pdu, &mut ());
            self.egress(now, ue, n);
        }
        while let Some((_, (ue, n, (count, pdu)))) = self.to_du.pop(now) {
            self.give_rlc(now, ue, n, count, pdu);
        }
        while let Some((_, (ue, n, frame))) = self.to_cu.pop(now) {
            self.delivery_status(now, ue, n, &frame);
        }
        self.radio_arrivals(now);
        while let Some((at, (_, _, pdu))) = self.wan_up.pop(now) {
            self.out.push_back(Delivery { to: Side::Server, at, pdu });
        }
        while self.next_slot() <= now {
            let (n, at) = (self.next_slot, self.next_slot());
            self.next_slot += 1;
            self.slot(n, at);
        }
        if self.next_report <= now {
            self.next_report += self.report_every;
            self.reports(now);
        }
        for ue in 0..self.ues.len() {
            for n in 0..self.ues[ue].bearers.len() {
                if self.ues[ue].bearers[n].pipeline.wake_at().is_some_and(|at| at <= now) {
                    self.egress(now, ue, n);
                }
            }
        }
    }

    fn slot(&mut self, n: u64, at: Time) {
        let kind = self.pattern.kind(n);
        let mixed = usize::from(kind == SlotKind::Mixed);
        let down = matches!(kind, SlotKind::Downlink | SlotKind::Mixed);
        let up = matches!(kind, SlotKind::Uplink | SlotKind::Mixed);
        if let Some(sizes) = self.sizes[0][mixed].as_ref().filter(|_| down) {
            self.down.slot(at, self.prbs, sizes);
        }
        if let Some(sizes) = self.sizes[1][mixed].as_ref().filter(|_| up) {
            self.up.slot(at, self.prbs, sizes);
        }
    }

    fn radio_arrivals(&mut self, now: Time) {
        let (ues, out) = (&mut self.ues, &mut self.out);
        self.down.arrivals(now, |Arrived { ue, bearer, pdu }| {
            let bearer = &mut ues[ue].bearers[bearer];
            bearer.delivered.add(pdu.bytes.len());
            let [pipeline, rlc, radio] = &mut bearer.sojourn;
            pipeline.add(pdu.at_rlc.since(pdu.at_bearer).nanos());
            rlc.add(pdu.left_rlc.since(pdu.at_rlc).nanos());
            radio.add(now.since(pdu.left_rlc).nanos());
            out.push_back(Delivery { to: Side::Ue(ue), at: now, pdu });
        });
        let (wan, drops) = (&mut self.wan_up, &mut self.wan_drops[1]);
        self.up.arrivals(now, |Arrived { ue, bearer, pdu }| {
            ues[ue].bearers[bearer].received.add(pdu.bytes.len());
            if wan.push(now, (ue, bearer, pdu)).is_err() {
                *drops += 1;
            }
        });
    }

    /// Takes out of a pipeline what its pacer lets go.
    fn egress(&mut self, now: Time, ue: usize, n: usize) {
        loop {
            let bearer = &mut self.ues[ue].bearers[n];
            let Dequeued::Packet(pdu, _) = bearer.pipeline.dequeue(now, &mut ()) else { return };
            let count = bearer.next_count;
            bearer.next_count += 1;
            bearer.to_rlc += 1;
            match self.feedback {
                Feedback::Direct => self.give_rlc(now, ue, n, count, pdu),
                Feedback::F1u => {
                    let size = pdu.size() + self.header;
                    bearer.unsent.push_back((count, size));
                    bearer.unsent_bytes += u64::from(size);
                    // The line has no limit of its own.
                    let _ = self.to_du.push(now, (ue, n, (count, pdu)));
                }
            }
        }
    }

    fn give_rlc(&mut self, now: Time, ue: usize, n: usize, count: u64, pdu: Box<Pdu>) {
        if self.down.push(now, ue, n, count, self.header, pdu).is_err() {
            let bearer = &mut self.ues[ue].bearers[n];
            bearer.refused += 1;
            if self.feedback == Feedback::F1u {
                match bearer.missing.back_mut() {
                    Some((_, last)) if *last + 1 == count => *last = count,
                    _ => bearer.missing.push_back((count, count)),
                }
            }
        }
    }

    /// Tells every pipeline, or the central unit, what its RLC holds.
    fn reports(&mut self, now: Time) {
        for ue in 0..self.ues.len() {
            for n in 0..self.ues[ue].bearers.len() {
                let Some(buffer) = self.down.buffer(ue, n) else { continue };
                match self.feedback {
                    Feedback::Direct => {
                        let packets = Some(buffer.packets() as u64);
                        let status = RlcStatus { bytes: buffer.bytes(), packets, ..RlcStatus::default() };
                        self.ues[ue].bearers[n].pipeline.report(now, &status);
                        self.egress(now, ue, n);
                    }
                    Feedback::F1u => {
                        let missing = &mut self.ues[ue].bearers[n].missing;
                        let ranges = missing.drain(..missing.len().min(MAX_RANGES));
                        let low = |count: u64| (count & 0x00ff_ffff) as u32;
                        let status = DeliveryStatus {
                            lost: ranges.map(|(first, last)| (low(first), low(last))).collect(),
                            desired_buffer: u32::try_from(buffer.limit()).unwrap_or(u32::MAX),
                            transmitted: buffer.transmitted.map(|count| self.sn.truncate(count)),
                            ..DeliveryStatus::default()
                        };
                        // The line has no limit of its own: one frame per period.
                        let _ = self.to_cu.push(now, (ue, n, status.encode()));
                    }
                }
            }
        }
    }

    /// A delivery status reached the central unit.
    fn delivery_status(&mut self, now: Time, ue: usize, n: usize, frame: &[u8]) {
        let bearer = &mut self.ues[ue].bearers[n];
        let Ok(status) = DeliveryStatus::decode(frame) else {
            bearer.status_frames[1] += 1;
            return;
        };
        bearer.status_frames[0] += 1;
        let reference = bearer.next_count;
        for (first, last) in status.lost {
            // Packets are numbered alike on F1-U and in PDCP, but for the width.
            let (first, last) = (nearest(first, 24, reference), nearest(last, 24, reference));
            let from = bearer.unsent.partition_point(|(count, _)| *count < first);
            let to = bearer.unsent.partition_point(|(count, _)| *count <= last).max(from);
            bearer.unsent_bytes -= bearer.unsent.drain(from..to).map(|(_, size)| u64::from(size)).sum::<u64>();
        }
        if let Some(sn) = status.transmitted {
            let count = self.sn.expand(sn, bearer.unsent.front().map_or(bearer.next_count, |(count, _)| *count));
            while let Some((_, size)) = pop_if(&mut bearer.unsent, |(c, _)| *c <= count) {
                bearer.unsent_bytes -= u64::from(size);
            }
        }
        let known = RlcStatus {
            bytes: bearer.unsent_bytes,
            packets: Some(bearer.unsent.len() as u64),
            desired_bytes: Some(status.desired_buffer.into()),
            desired_rate: status.desired_rate.map(|bytes| u64::from(bytes) * 8),
        };
        bearer.pipeline.report(now, &known);
        self.egress(now, ue, n);
    }

    /// Everything that is counted.
    #[must_use]
    pub fn stats(&self) -> CellStats {
        let ue = |(u, ue): (usize, &Ue)| UeStats {
            name: ue.name.clone(),
            rnti: ue.rnti,
            downlink: self.down.mac_stats(u),
            uplink: self.up.mac_stats(u),
            bearers: ue.bearers.iter().enumerate().map(|(n, bearer)| self.bearer_stats(u, n, bearer)).collect(),
        };
        CellStats {
            time_ns: self.now.nanos(),
            slots: self.next_slot,
            available_prbs: [self.down.available_prbs(), self.up.available_prbs()],
            wan_drops: self.wan_drops,
            ues: self.ues.iter().enumerate().map(ue).collect(),
        }
    }

    fn bearer_stats(&self, u: usize, n: usize, bearer: &Bearer) -> BearerStats {
        BearerStats {
            id: bearer.id,
            pipeline: bearer.pipeline.stats(),
            rlc: self.down.rlc_stats(self.now, u, n),
            uplink_rlc: self.up.rlc_stats(self.now, u, n),
            delivered: bearer.delivered,
            received: bearer.received,
            lost: [self.down.lost(u, n), self.up.lost(u, n)],
            sojourn: bearer.sojourn,
            status_frames: bearer.status_frames,
        }
    }

    /// Checks that every packet handed in has come out, was dropped for a counted reason, or is somewhere here, found by
    /// looking for it.
    ///
    /// # Errors
    /// What does not add up.
    pub fn audit(&self) -> Result<(), String> {
        let mut arrived_down = 0;
        for (u, ue) in self.ues.iter().enumerate() {
            for (n, bearer) in ue.bearers.iter().enumerate() {
                bearer.pipeline.audit()?;
                let pipeline = bearer.pipeline.stats();
                arrived_down += pipeline.packets_in;
                let under_way = self.to_du.iter().filter(|(a, b, _)| (*a, *b) == (u, n)).count() as u64;
                let what = format!("UE {} bearer {}", ue.name, bearer.id);
                equal(&format!("{what}, pipeline to RLC"), pipeline.basic.packets, bearer.to_rlc)?;
                let down = [bearer.refused, under_way, bearer.delivered.packets, self.down.lost(u, n)];
                equal(&format!("{what}, downlink"), bearer.to_rlc, down.iter().sum::<u64>() + self.down.held(u, n))?;
                let up = [bearer.refused_up, bearer.received.packets, self.up.lost(u, n)];
                equal(&format!("{what}, uplink"), bearer.from_ue, up.iter().sum::<u64>() + self.up.held(u, n))?;
                let bytes: u64 = bearer.unsent.iter().map(|(_, size)| u64::from(*size)).sum();
                equal(&format!("{what}, unsent bytes"), bytes, bearer.unsent_bytes)?;
            }
        }
        let inside = self.wan_down.len() as u64 + self.wan_drops[0];
        equal("wide area, downlink", self.entered_down, inside + arrived_down)
    }
}

fn equal(what: &str, a: u64, b: u64) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a} is not {b}")) }
}

/// The QoS flow that the core marks a packet with.
fn mark(rules: &[(Matcher, u8)], default: u8, bytes: &[u8]) -> u8 {
    if rules.is_empty() {
        return default;
    }
    let headers = parse(bytes, PduFormat::default());
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let view = PacketView { bytes, size, class: 0, qfi: None, flow: None, headers: &headers };
    rules.iter().find(|(matcher, _)| matcher.matches(&view)).map_or(default, |(_, qfi)| *qfi)
}

impl Bearer {
    fn new(id: u8, pipeline: Pipeline<Box<Pdu>>) -> Self {
        Self {
            id,
            pipeline,
            next_count: 0,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            missing: VecDeque::new(),
            to_rlc: 0,
            refused: 0,
            from_ue: 0,
            refused_up: 0,
            delivered: Tally::default(),
            received: Tally::default(),
            sojourn: [Spread::default(); 3],
            status_frames: [0; 2],
        }
    }
}
