//! The xApp of Fig. 4, as a process of its own: takes an indication each period, and half a period later asks for a change.

use std::path::Path;
use std::time::{Duration, Instant};

use insane_traffic::spec::{Change, LimitSpec};
use insane_traffic_control::{Client, ClientError, ClientOptions};
use serde::{Deserialize, Serialize};

/// What the probe saw, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// From the sending of each request to the lab's having it.
    pub control: Vec<u64>,
    /// From the sending of each request to the change's being in force.
    pub in_force: Vec<u64>,
    /// From the sending of each indication to the probe's having it.
    pub indication: Vec<u64>,
    /// From the lab's look at its counters to the probe's having them.
    pub since_look: Vec<u64>,
    /// Periods that the lab had no indication in time for.
    pub late: u64,
    /// Indications that the probe had no room for.
    pub dropped: u64,
}

/// Where and how a probe works.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// The runtime's socket.
    pub socket: &'a Path,
    /// The lab's prefix.
    pub prefix: &'a str,
    /// How it waits.
    pub wait: insane::Wait,
    /// How often.
    pub period: Duration,
    /// How many periods; the first tenth is warm-up and not counted.
    pub count: u32,
}

/// How long the lab may keep the probe waiting.
const PATIENCE: Duration = Duration::from_secs(5);

impl Probe<'_> {
    /// Probes; blocks for as long as that takes.
    ///
    /// # Errors
    /// The lab does not answer, or refuses.
    pub fn run(&self) -> Result<Probed, ClientError> {
        let session = insane::Session::builder("ranlab probe").socket(self.socket).open()?;
        let options = ClientOptions { timeout: PATIENCE, wait: self.wait, ..ClientOptions::new(self.prefix) };
        let client = Client::open(&session, &options)?;
        let bearer = client.list()?.first().copied().ok_or_else(|| ClientError::Protocol("no bearers".into()))?;
        let mut subscription = client.subscribe(&[bearer], self.period, PATIENCE)?;
        let limit = client.show(bearer)?.0.limit;
        let mut probed = Probed::default();
        let (mut late, mut dropped) = (0, 0);
        for n in 0..self.count {
            let counted = n >= self.count / 10;
            let indication = subscription.next(PATIENCE)?;
            let received = Instant::now();
            if counted {
                probed.indication.push(indication.received_ns.saturating_sub(indication.sent_ns));
                probed.since_look.push(indication.received_ns.saturating_sub(indication.taken_ns));
                probed.late = indication.late - late;
                probed.dropped = indication.dropped - dropped;
            } else {
                (late, dropped) = (indication.late, indication.dropped);
            }
            // Half a period later, so that nobody is awake from the indication.
            self.until(received + self.period / 2);
            let limit = LimitSpec { packets: limit.packets - n % 2, ..limit };
            client.change(bearer, &[Change::SetLimit { limit }], None)?;
            let way = client.timing();
            if counted {
                probed.control.push(way.taken_ns.saturating_sub(way.sent_ns));
                probed.in_force.push(way.done_ns.saturating_sub(way.sent_ns));
            }
        }
        client.change(bearer, &[Change::SetLimit { limit }], None)?;
        Ok(probed)
    }

    fn until(&self, instant: Instant) {
        if self.wait == insane::Wait::Spin {
            while Instant::now() < instant {
                std::hint::spin_loop();
            }
        } else {
            std::thread::sleep(instant.saturating_duration_since(Instant::now()));
        }
    }
}
