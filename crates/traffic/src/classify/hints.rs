//! What DNS answers and TLS greetings tell about the servers behind addresses.
//!
//! A hint is a guess, not an identity: anybody can write a DNS answer. It only moves packets between queues.

use crate::parse::{Address, Flow, Fragment, Headers, Shape, dns, tls};
use crate::stats::StatMap;
use crate::table::{Table, Words};
use crate::time::{Span, Time};

/// Names remembered by address, and by flow.
const SETS: usize = 512;
/// Bytes kept of a greeting that came in several segments.
const MAX_HELLO: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressKey(Address);

impl Words for AddressKey {
    fn words(&self) -> [u64; 5] {
        [(self.0.bits >> 64) as u64, self.0.bits as u64, self.0.v6.into(), 0, 0]
    }
}

/// A TCP connection, seen from either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FlowKey {
    low: (Address, u16),
    high: (Address, u16),
}

impl FlowKey {
    fn of(flow: &Flow) -> Option<Self> {
        let (src_port, dst_port) = flow.ports?;
        let (a, b) = ((flow.src, src_port), (flow.dst, dst_port));
        Some(Self { low: a.min(b), high: a.max(b) })
    }
}

impl Words for FlowKey {
    fn words(&self) -> [u64; 5] {
        let (low, high) = (self.low.0.bits, self.high.0.bits);
        let ports = u64::from(self.low.1) << 17 | u64::from(self.high.1) << 1 | u64::from(self.low.0.v6);
        [(low >> 64) as u64, low as u64, (high >> 64) as u64, high as u64, ports]
    }
}

/// What was learnt, each kind for at most 2048 addresses or connections.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    by_address: Table<AddressKey, Box<str>>,
    by_flow: Table<FlowKey, Box<str>>,
    /// Greetings whose name has not come yet.
    partial: Table<FlowKey, Vec<u8>>,
    dns_names: u64,
    tls_names: u64,
}

impl Hints {
    pub(crate) const fn new(hash_key: [u64; 2]) -> Self {
        Self {
            by_address: Table::new(SETS, Span::from_secs(3_600), hash_key),
            by_flow: Table::new(SETS, Span::from_secs(600), hash_key),
            partial: Table::new(16, Span::from_secs(5), hash_key),
            dns_names: 0,
            tls_names: 0,
        }
    }

    /// Learns from a packet of either direction.
    pub(crate) fn observe(&mut self, now: Time, headers: &Headers, bytes: &[u8]) {
        let flow = headers.inner();
        if headers.shape != Shape::Ip || flow.fragment != Fragment::No {
            return;
        }
        let Some((src_port, _)) = flow.ports else { return };
        let payload = bytes.get(usize::from(headers.payload)..).unwrap_or_default();
        match flow.proto {
            17 if src_port == 53 => {
                dns::read(payload, |name, address| {
                    self.by_address.insert(now, AddressKey(address), name.into());
                    self.dns_names += 1;
                });
            }
            6 if !payload.is_empty() => self.observe_stream(now, flow, payload),
            _ => {}
        }
    }

    fn observe_stream(&mut self, now: Time, flow: &Flow, payload: &[u8]) {
        let Some(key) = FlowKey::of(flow) else { return };
        let begun = self.partial.get(now, &key).filter(|begun| !begun.is_empty()).map(std::mem::take);
        let hello = match begun {
            Some(mut begun) => {
                begun.extend(&payload[..payload.len().min(MAX_HELLO.saturating_sub(begun.len()))]);
                let hello = tls::read(&begun);
                if hello == tls::Hello::Truncated && begun.len() < MAX_HELLO {
                    self.partial.insert(now, key, begun);
                }
                hello
            }
            None => {
                let hello = tls::read(payload);
                if hello == tls::Hello::Truncated {
                    self.partial.insert(now, key, payload[..payload.len().min(MAX_HELLO)].to_vec());
                }
                hello
            }
        };
        if let tls::Hello::Name(name) = hello {
            self.by_flow.insert(now, key, name.into());
            self.tls_names += 1;
        }
    }

    /// The name of the server that a flow has to do with: the connection's own, else that of either address.
    pub(crate) fn name_of(&mut self, now: Time, flow: &Flow) -> Option<&str> {
        if let Some(key) = FlowKey::of(flow)
            && flow.proto == 6
            && self.by_flow.get(now, &key).is_some()
        {
            return self.by_flow.get(now, &key).map(|name| &**name);
        }
        let key = AddressKey(flow.src);
        let key = if self.by_address.get(now, &key).is_some() { key } else { AddressKey(flow.dst) };
        self.by_address.get(now, &key).map(|name| &**name)
    }

    pub(crate) fn stats(&self, out: &mut StatMap) {
        out.count("dns_names", self.dns_names);
        out.count("tls_names", self.tls_names);
        out.count("hints_by_address", self.by_address.len() as u64);
        out.count("hints_by_flow", self.by_flow.len() as u64);
        out.count("hints_evicted", self.by_address.evicted + self.by_flow.evicted);
    }
}

/// Whether a name fits a pattern: itself, or `*.` and a name for everything below it.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        None => pattern.eq_ignore_ascii_case(name),
        Some(parent) => {
            let Some(cut) = name.len().checked_sub(parent.len() + 1) else { return false };
            cut > 0 && name.as_bytes()[cut] == b'.' && name[cut + 1..].eq_ignore_ascii_case(parent)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_name_or_what_is_below_it() {
        assert!(fits("slither.io", "slither.io") && fits("*.slither.io", "a.b.Slither.io"));
        assert!(!fits("*.slither.io", "slither.io") && !fits("*.slither.io", "notslither.io"));
        assert!(!fits("slither.io", "a.slither.io") && !fits("*.slither.io", ".slither.io"));
    }
}
