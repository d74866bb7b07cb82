//! One direction of the radio: the MAC scheduler, transport blocks, HARQ, and the way to the receiver.

use std::collections::VecDeque;

use insane_traffic::{Rng, Span, Time};
use serde::{Deserialize, Serialize};

use super::channel::Mcs;
use super::delay::{DelayLine, pop_if};
use super::pdu::Pdu;
use super::phy::Sizes;
use super::rlc::{Buffer, Piece, Receiver, RlcMode, RlcStats};

/// How errors are repaired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Harq {
    /// Probability that a block's first transmission is in error.
    pub bler: f64,
    /// The same for each later one, which the receiver combines with those before.
    pub bler_again: f64,
    /// From a transmission to the next of the same block at the earliest.
    pub delay: Span,
    /// Transmissions of a block at most.
    pub transmissions: u8,
    /// Blocks under repair per UE at most.
    pub processes: usize,
}

/// When a transmitter that was idle may send: uplink senders ask first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// From the request to the grant.
    pub request: Span,
    /// A sender silent for so long must ask again.
    pub idle: Span,
}

/// What the MAC counts about one UE, in the names of the MAC service model, without their `dl_` and `ul_`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacStats {
    /// Bytes of all blocks sent for the first time, padding included.
    pub aggr_tbs: u64,
    /// Resource blocks used, those of retransmissions included.
    pub aggr_prb: u64,
    /// Resource blocks used by retransmissions.
    pub aggr_retx_prb: u64,
    /// Blocks sent for the first time.
    pub blocks: u64,
    /// Transmissions in error.
    pub errors: u64,
    /// Blocks given up.
    pub given_up: u64,
    /// Bytes of padding.
    pub padding: u64,
    /// The index of the scheme in use.
    pub mcs: u8,
}

/// A transport block on its way.
#[derive(Clone, Debug)]
struct Block {
    ue: usize,
    prbs: u16,
    attempts: u8,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct Flow {
    buffer: Buffer,
    receiver: Receiver,
    priority: u8,
    mode: RlcMode,
}

#[derive(Debug)]
struct Terminal {
    mcs: Mcs,
    flows: Vec<Flow>,
    /// Positions of the flows in the order in which a block is filled.
    order: Vec<usize>,
    repairs: VecDeque<(Time, Block)>,
    /// When it may send at the earliest, and when it last did.
    granted: Time,
    active: Time,
    stats: MacStats,
}

/// What one direction of a bearer needs to know.
#[derive(Clone, Copy, Debug)]
pub struct FlowSettings {
    /// Bytes that the buffer may hold.
    pub limit: u64,
    /// Packets that it may hold.
    pub limit_packets: usize,
    /// Lower numbers are served first.
    pub priority: u8,
    /// What happens when the HARQ gives up.
    pub mode: RlcMode,
    /// t-Reordering.
    pub reordering: Span,
}

/// A packet that arrived at the other end of the radio.
#[derive(Debug)]
pub struct Arrived {
    /// Which UE, by position.
    pub ue: usize,
    /// Which bearer, by position.
    pub bearer: usize,
    /// The packet.
    pub pdu: Box<Pdu>,
}

/// One direction of the radio for all UEs.
#[derive(Debug)]
pub struct Air {
    harq: Harq,
    grant: Option<Grant>,
    ues: Vec<Terminal>,
    flying: DelayLine<Block>,
    rng: Rng,
    turn: usize,
    available: u64,
}

impl Air {
    /// A direction without UEs; what is sent arrives `delay` after its slot began.
    #[must_use]
    pub fn new(harq: Harq, grant: Option<Grant>, delay: Span, seed: u64) -> Self {
        let flying = DelayLine::new(delay, usize::MAX);
        Self { harq, grant, ues: Vec::new(), flying, rng: Rng::new(seed), turn: 0, available: 0 }
    }

    /// Adds a UE with its bearers.
    pub fn add(&mut self, mcs: Mcs, flows: &[FlowSettings]) {
        let flow = |s: &FlowSettings| Flow {
            buffer: Buffer::new(s.limit, s.limit_packets),
            receiver: Receiver::new(s.reordering),
            priority: s.priority,
            mode: s.mode,
        };
        let flows: Vec<Flow> = flows.iter().map(flow).collect();
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|&n| flows[n].priority);
        let stats = MacStats::default();
        let (granted, active) = (Time::ZERO, Time::ZERO);
        self.ues.push(Terminal { mcs, flows, order, repairs: VecDeque::new(), granted, active, stats });
    }

    /// Puts a packet into a bearer's buffer; gives it back if the buffer is full.
    ///
    /// # Errors
    /// The packet.
    pub fn push(
        &mut self,
        now: Time,
        ue: usize,
        bearer: usize,
        count: u64,
        overhead: u32,
        pdu: Box<Pdu>,
    ) -> Result<(), Box<Pdu>> {
        let grant = self.grant;
        let Some(terminal) = self.ues.get_mut(ue) else { return Err(pdu) };
        let idle = terminal.flows.iter().all(|f| f.buffer.demand() == 0);
        let Some(flow) = terminal.flows.get_mut(bearer) else { return Err(pdu) };
        flow.buffer.push(now, count, overhead, pdu)?;
        if let Some(grant) = grant
            && idle
            && now.since(terminal.active) > grant.idle
        {
            terminal.granted = now + grant.request;
        }
        Ok(())
    }

    /// One slot with `prbs` resource blocks of the given sizes.
    pub fn slot(&mut self, now: Time, prbs: u16, sizes: &Sizes) {
        self.available += u64::from(prbs);
        for ue in &mut self.ues {
            ue.stats.mcs = ue.mcs.at(now);
        }
        if self.ues.is_empty() {
            return;
        }
        self.turn = (self.turn + 1) % self.ues.len();
        let (mut left, busy) = self.repair(now, prbs);
        // Max-min fair over resource blocks: who needs least is served first and leaves the rest to the others.
        let mut needs: Vec<(u16, usize)> = (0..self.ues.len())
            .map(|n| (n + self.turn) % self.ues.len())
            .filter(|n| !busy.contains(n))
            .filter_map(|n| self.need(now, n, sizes).map(|need| (need, n)))
            .collect();
        needs.sort_by_key(|&(need, _)| need);
        let waiting = needs.len();
        for (served, (need, n)) in needs.into_iter().enumerate() {
            let share = left / u16::try_from(waiting - served).unwrap_or(u16::MAX);
            let given = need.min(share);
            if given > 0 && self.send(now, n, given, sizes) {
                left -= given;
            }
        }
    }

    /// Sends blocks again whose time has come; what is left, and which UEs have had their block in this slot.
    fn repair(&mut self, now: Time, prbs: u16) -> (u16, Vec<usize>) {
        let (mut left, mut busy) = (prbs, Vec::new());
        let (count, turn) = (self.ues.len(), self.turn);
        for n in (0..count).map(|n| (n + turn) % count) {
            let ue = &mut self.ues[n];
            let Some((_, block)) = pop_if(&mut ue.repairs, |(due, block)| *due <= now && block.prbs <= left) else {
                continue;
            };
            left -= block.prbs;
            ue.stats.aggr_prb += u64::from(block.prbs);
            ue.stats.aggr_retx_prb += u64::from(block.prbs);
            busy.push(n);
            self.transmit(now, block);
        }
        (left, busy)
    }

    fn need(&self, now: Time, n: usize, sizes: &Sizes) -> Option<u16> {
        let ue = &self.ues[n];
        let demand: u64 = ue.flows.iter().map(|f| f.buffer.demand()).sum();
        let may = now >= ue.granted && ue.repairs.len() < self.harq.processes;
        (demand > 0 && may).then(|| sizes.needed(ue.stats.mcs, demand)).filter(|need| *need > 0)
    }

    /// Fills and sends a new block; false if nothing fits.
    fn send(&mut self, now: Time, n: usize, prbs: u16, sizes: &Sizes) -> bool {
        let ue = &mut self.ues[n];
        let size = sizes.bytes(ue.stats.mcs, prbs);
        let (mut left, mut pieces) = (size, Vec::new());
        for &bearer in &ue.order {
            left -= ue.flows[bearer].buffer.fill(now, bearer, left, &mut pieces);
        }
        if pieces.is_empty() {
            return false;
        }
        ue.stats.aggr_tbs += u64::from(size);
        ue.stats.aggr_prb += u64::from(prbs);
        ue.stats.blocks += 1;
        ue.stats.padding += u64::from(left);
        ue.active = now;
        self.transmit(now, Block { ue: n, prbs, attempts: 0, pieces });
        true
    }

    fn transmit(&mut self, now: Time, mut block: Block) {
        let bler = if block.attempts == 0 { self.harq.bler } else { self.harq.bler_again };
        block.attempts += 1;
        if self.rng.unit() >= bler {
            // The line has no limit but what the blocks of a few slots can be.
            let _ = self.flying.push(now, block);
            return;
        }
        let ue = &mut self.ues[block.ue];
        ue.stats.errors += 1;
        if block.attempts < self.harq.transmissions {
            ue.repairs.push_back((now + self.harq.delay, block));
            return;
        }
        ue.stats.given_up += 1;
        for piece in block.pieces {
            let flow = &mut ue.flows[piece.bearer];
            match flow.mode {
                RlcMode::Acknowledged => flow.buffer.send_again(piece),
                RlcMode::Unacknowledged => flow.receiver.never(&piece),
            }
        }
    }

    /// Receives what has arrived by `now` and hands on what is complete and in order.
    pub fn arrivals(&mut self, now: Time, mut out: impl FnMut(Arrived)) {
        while let Some((_, block)) = self.flying.pop(now) {
            let Some(ue) = self.ues.get_mut(block.ue) else { continue };
            block.pieces.into_iter().for_each(|piece| ue.flows[piece.bearer].receiver.receive(piece));
        }
        for (ue, terminal) in self.ues.iter_mut().enumerate() {
            for (bearer, flow) in terminal.flows.iter_mut().enumerate() {
                while let Some(pdu) = flow.receiver.deliver(now) {
                    out(Arrived { ue, bearer, pdu });
                }
            }
        }
    }

    /// When [`Self::arrivals`] has something to do.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        let flows = self.ues.iter().flat_map(|ue| &ue.flows);
        self.flying.next_at().into_iter().chain(flows.filter_map(|f| f.receiver.wake_at())).min()
    }

    /// A bearer's buffer.
    #[must_use]
    pub fn buffer(&self, ue: usize, bearer: usize) -> Option<&Buffer> {
        Some(&self.ues.get(ue)?.flows.get(bearer)?.buffer)
    }

    /// A bearer's counts at `now`.
    #[must_use]
    pub fn rlc_stats(&self, now: Time, ue: usize, bearer: usize) -> RlcStats {
        self.buffer(ue, bearer).map(|b| b.stats(now)).unwrap_or_default()
    }

    /// A UE's counts.
    #[must_use]
    pub fn mac_stats(&self, ue: usize) -> MacStats {
        self.ues.get(ue).map(|u| u.stats).unwrap_or_default()
    }

    /// Resource blocks that there were in all slots so far.
    #[must_use]
    pub const fn available_prbs(&self) -> u64 {
        self.available
    }

    /// Packets of a bearer given up on the radio.
    #[must_use]
    pub fn lost(&self, ue: usize, bearer: usize) -> u64 {
        self.ues.get(ue).and_then(|u| u.flows.get(bearer)).map_or(0, |f| f.receiver.lost())
    }

    /// Packets of a bearer that are anywhere here, counted one by one.
    pub(super) fn held(&self, ue: usize, bearer: usize) -> u64 {
        let Some(terminal) = self.ues.get(ue) else { return 0 };
        let Some(flow) = terminal.flows.get(bearer) else { return 0 };
        let whole = |b: &Block| b.pieces.iter().filter(|p| p.bearer == bearer && p.last.is_some()).count();
        let repairs: usize = terminal.repairs.iter().map(|(_, b)| whole(b)).sum();
        let flying: usize = self.flying.iter().filter(|b| b.ue == ue).map(whole).sum();
        (flow.buffer.held() + flow.receiver.held() + repairs + flying) as u64
    }
}
