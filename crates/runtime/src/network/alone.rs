//! Messages that come alone: what a control loop sends one of at a time waits for no other, so it goes past the queues, the scheduler
//! and the list of what is under way, and what comes alone goes straight to the only sink that waits for it.

use crate::network::events::give_back;
use crate::network::host::Incoming;
use crate::network::hub::Hub;
use crate::network::lanes::FlowId;
use crate::network::ports::Port;
use insane_shm::link::{Delivery, Descriptor, FLAG_INLINE, Fate};
use insane_shm::steps::{Step, reach};
use insane_transport::{Outgoing, Row};
use std::time::Duration;

/// Whether nothing is said of a message but its priority.
fn is_plain(d: &Descriptor) -> bool {
    d.flags & !FLAG_INLINE == 0 && d.deadline_ns == 0
}

impl Hub {
    /// Hands on a message that came alone, if that is all there is to do: small, best effort, for one sink of this host that has room for
    /// it. Whether it was; otherwise nothing was done.
    pub(crate) fn take_at_once(&mut self, host: usize, flow: FlowId, row: &Row, frame: &[u8]) -> bool {
        let one = &mut self.hosts[host];
        // What comes with it goes to the sinks with it.
        if self.coming > 0 || one.control_in == Some(flow) {
            return false;
        }
        let Some(&Incoming { domain, source }) = one.incoming.get(&flow) else { return false };
        let Some(payload) = frame.get(row.at..row.at + row.len) else { return false };
        let taken = self.domains[domain].hand_on_at_once(source, &row.message, payload);
        if taken {
            one.lanes.consumed(flow, 1, row.len as u64);
        }
        taken
    }

    /// Sends a message that was just taken from a link, if it is alone and can go before this returns: small, best effort, for sinks of one
    /// host, with no other on any link or on its way out. Whether it was sent; otherwise nothing was done.
    pub(crate) fn send_at_once(&mut self, domain: usize, link: usize, now: Duration, delivery: &Delivery) -> bool {
        let d = &delivery.descriptor;
        // Others that come with it share its system call, or its frame.
        if !is_plain(d) || self.has_input() {
            return false;
        }
        let Self { domains, hosts, ports, .. } = self;
        let Some(intake) = domains[domain].intakes[link].as_mut().filter(|intake| !intake.reliable) else {
            return false;
        };
        let routes = intake.sources.get(&d.source).map_or(&[][..], |source| &source.routes);
        let [route] = routes else { return false };
        // Each has joined or is yet to, and none is about to leave: there is nothing to be seen about them by this message.
        if !route.sinks.iter().all(|sink| sink.is_steady())
            || !route.sinks.iter().any(|sink| sink.takes(delivery.position))
        {
            return false;
        }
        let host = &mut hosts[route.host];
        let Some(number) = host.flow_at_once(route.flow) else { return false };
        let (Some(Port { tx, datapath, polled, .. }), Some(lane)) =
            (ports.get_mut(number.lane), host.lanes.lane(number.lane))
        else {
            return false;
        };
        if !tx.is_done() {
            return false;
        }
        tx.clear();
        let segment = intake.segments.get(usize::from(d.segment)).and_then(Option::as_ref);
        let fill = |out: &mut Vec<u8>| {
            if delivery.is_inline() {
                out.extend_from_slice(delivery.inline_bytes());
            } else {
                // What is no longer there is zeros, as everywhere.
                let _ = segment.is_some_and(|view| view.append(d.slot, d.offset, d.length, out));
            }
        };
        let next = Outgoing {
            len: d.length,
            sequence: d.sequence,
            priority: d.priority,
            joined: route.joined.unwrap_or(0),
            ..Outgoing::default()
        };
        if lane.path.send_at_once(now, number.number, &next, tx.buffer(), fill).is_none() {
            return false;
        }
        tx.commit(lane.address, 0, None, 0);
        for sink in route.sinks.iter().filter(|sink| sink.takes(delivery.position)) {
            host.accounts[sink.account].iter_mut().for_each(|account| account.give(1));
        }
        reach(Step::Transmit);
        let report = datapath.hand_over(tx);
        if report.sent > 0 && *polled {
            self.polled_at = Some(now);
        }
        // Its payload was copied, its credit is the source's again.
        if !delivery.is_inline() {
            reach(Step::Complete);
        }
        give_back(intake, d, Fate::AsCounted);
        if report.refused > 0 {
            self.note_refused(number.lane, now);
        }
        self.went_alone = true;
        true
    }
}
