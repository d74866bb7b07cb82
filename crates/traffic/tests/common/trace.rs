//! Random traffic for the comparisons with reference models: phases of overload and of calm, any packet sizes and ECN
//! fields.
#![allow(unreachable_pub, dead_code, reason = "a module in several tests, each of which uses a part")]

use insane_traffic::{DropReason, Ecn, Outlet, Queued, Rng, Time};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet with this number, size, ECN field and flow arrives.
    Arrive { number: u32, size: u32, ecn: Ecn, flow: u8 },
    /// The link asks for a packet.
    Depart,
}

/// `events` events in the order of time, in nanoseconds. Arrivals come at 0.3 to 3 times the rate of departures, in phases
/// of about `phase_ms`.
pub fn events(seed: u64, events: usize, phase_ms: u64) -> Vec<(u64, Event)> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(events);
    let (mut now, mut phase_end, mut load, mut number) = (1_u64, 0, 0.0, 0);
    let service = 200_000 + rng.bits() % 800_000;
    let (mut next_arrival, mut next_departure) = (1_u64, 1_u64);
    while out.len() < events {
        if now >= phase_end {
            phase_end = now + rng.bits() % (2 * phase_ms * 1_000_000);
            load = [0.3, 0.9, 1.1, 1.5, 3.0][(rng.bits() % 5) as usize];
        }
        if next_arrival <= next_departure {
            now = next_arrival;
            let size = [60, 200, 576, 1000, 1514][(rng.bits() % 5) as usize];
            let ecn = Ecn::from_bits((rng.bits() % 4) as u8);
            let flow = (rng.bits() % 12).min(rng.bits() % 12) as u8;
            out.push((now, Event::Arrive { number, size, ecn, flow }));
            number += 1;
            next_arrival = now + (service as f64 / load * 2.0 * rng.unit()) as u64;
        } else {
            now = next_departure;
            out.push((now, Event::Depart));
            next_departure = now + service / 2 + rng.bits() % service;
        }
    }
    out
}

/// The packet of an arrival: an IPv4/UDP packet whose number is in its last bytes.
pub fn packet(number: u32, size: u32, ecn: Ecn, flow: u8) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    let total = (size as u16).to_be_bytes();
    bytes[..4].copy_from_slice(&[0x45, ecn as u8, total[0], total[1]]);
    bytes[9] = 17;
    bytes[12..20].copy_from_slice(&[10, 0, 0, flow, 10, 0, 1, 1]);
    bytes[20..24].copy_from_slice(&[0, 100 + flow, 0x14, 0x51]);
    let at = size as usize - 4;
    bytes[at..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The number in a packet.
pub fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[packet.len() - 4..].try_into().unwrap())
}

/// Whether a packet is marked.
pub fn is_ce(packet: &[u8]) -> bool {
    packet[1] & 3 == 3
}

/// What became of packets: number, and `'d'` dropped, `'s'` sent, `'m'` sent marked, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(pub Vec<(u32, char)>);

impl Log {
    pub fn sent(&mut self, packet: &[u8]) {
        self.0.push((number(packet), if is_ce(packet) { 'm' } else { 's' }));
    }

    pub fn count(&self, what: char) -> usize {
        self.0.iter().filter(|(_, c)| *c == what).count()
    }
}

impl Outlet<Vec<u8>> for Log {
    fn dropped(&mut self, item: Queued<Vec<u8>>, _reason: DropReason) {
        self.0.push((number(&item.packet), 'd'));
    }
}

/// Runs one queue through events and logs what becomes of each packet.
pub fn run(queue: &mut impl insane_traffic::queue::Queue<Vec<u8>>, events: &[(u64, Event)]) -> Log {
    let mut log = Log::default();
    for &(at, event) in events {
        let now = Time::from_nanos(at);
        match event {
            Event::Arrive { number, size, ecn, flow } => {
                queue.enqueue(now, Queued::new(packet(number, size, ecn, flow), now), &mut log);
            }
            Event::Depart => {
                if queue.head(now, &mut log).is_some() {
                    log.sent(&queue.pop(now).unwrap().packet);
                }
            }
        }
    }
    log
}

/// Compares two logs and shows where they part.
pub fn same(ours: &Log, model: &Log, what: &str) {
    if let Some(n) = (0..ours.0.len().max(model.0.len())).find(|&n| ours.0.get(n) != model.0.get(n)) {
        let from = n.saturating_sub(5);
        panic!(
            "{what}: event {n} differs: ours {:?}, model {:?}",
            &ours.0[from..ours.0.len().min(n + 3)],
            &model.0[from..model.0.len().min(n + 3)]
        );
    }
}
