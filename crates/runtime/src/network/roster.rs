//! Hosts come and go: what the directory finds gets a path, and what both it and the path have not heard of for long costs nothing
//! more. Places of hosts are used again, so that strangers that come and go do not add up.

use crate::network::FromNetwork;
use crate::network::discovery::MAX_HOSTS;
use crate::network::egress::Egress;
use crate::network::host::{Host, Known, path_config};
use crate::network::hub::Hub;
use crate::network::lanes::HOME;
use insane_datapath::Address;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a host that the directory has no more and that is not heard is still called, at least.
const CALLED: Duration = Duration::from_secs(2);

impl Hub {
    /// The directory has found a host.
    pub(crate) fn found(&mut self, address: SocketAddr) {
        let address = Address::Ip(address);
        self.take_found(address);
        self.list(address, true);
    }

    fn take_found(&mut self, address: Address) {
        match self.hosts.iter().position(|h| h.address == address) {
            Some(at) if self.hosts[at].known == Known::Configured => {}
            Some(at) => {
                self.hosts[at].known = Known::Found;
                self.by_address.insert(HOME, address, at);
            }
            None => {
                let found = self.hosts.iter().filter(|h| h.known != Known::Configured).count();
                let place = if found < MAX_HOSTS { Some(self.hosts.len()) } else { self.free_place() };
                let Some(at) = place else {
                    tracing::warn!(%address, "directory: too many hosts");
                    return;
                };
                if let Err(e) = self.add(at, address) {
                    tracing::warn!(%address, error = %e, "directory: a host was not taken");
                }
            }
        }
    }

    /// The directory has it no more. Its path may still hear it, and then nothing has happened.
    pub(crate) fn gone(&mut self, address: SocketAddr) {
        let address = Address::Ip(address);
        self.list(address, false);
        if let Some(host) = self.hosts.iter_mut().find(|h| h.address == address && h.known == Known::Found) {
            host.known = Known::Gone(None);
        }
    }

    /// What is waited for of a host that its path has lost, is as long as the directory has it: also of one that is configured.
    fn list(&mut self, address: Address, listed: bool) {
        let now = self.now();
        if let Some(at) = self.hosts.iter().position(|h| h.address == address) {
            self.directory.list(at, listed, now);
        }
    }

    fn add(&mut self, at: usize, address: Address) -> Result<(), insane_traffic::SpecError> {
        let home = &mut self.ports[HOME].datapath;
        let can = home.capabilities();
        let config = path_config(&self.settings, self.run, home.frame_limit(address), can.detects_changes);
        let seed = insane_wire::id::SessionId::random().0 as u64;
        let egress = Egress::new(&self.settings)?;
        let mut host = Host::new((address, self.ports.len()), config, egress, seed, self.now());
        host.known = Known::Found;
        if at < self.hosts.len() {
            let was = std::mem::replace(&mut self.hosts[at], host).name;
            self.forget_name(was);
        } else {
            self.hosts.push(host);
            self.directory.host_added();
        }
        self.by_address.insert(HOME, address, at);
        Ok(())
    }

    /// A host has this name no more: unless another has it, nobody is to be told of it.
    pub(crate) fn forget_name(&mut self, name: String) {
        if !self.hosts.iter().any(|host| host.name == name) {
            let _ = self.ends.outbox.send(FromNetwork::HostForgotten(name));
            self.ends.out_bell.ring();
        }
    }

    /// Lets hosts that both the directory and their paths have lost go dormant.
    pub(crate) fn watch_found(&mut self, now: Duration) {
        let patience = Duration::from_millis(self.settings.patience_ms).max(CALLED);
        for at in 0..self.hosts.len() {
            let Known::Gone(silent) = self.hosts[at].known else { continue };
            if self.hosts[at].is_connected() {
                self.hosts[at].known = Known::Gone(None);
                continue;
            }
            let since = silent.unwrap_or(now);
            self.hosts[at].known = Known::Gone(Some(since));
            if now.saturating_sub(since) < patience || !self.is_unused(at) {
                continue;
            }
            let host = &mut self.hosts[at];
            host.known = Known::Dormant;
            tracing::info!(host = host.name, address = %host.address, "host gone");
            // Its lanes beside the home come back with its next hello.
            self.by_address.forget(at, None);
            (HOME + 1..self.ports.len()).for_each(|lane| drop(host.lanes.remove(lane)));
            for token in host.forget_control() {
                self.underway.release(token);
            }
        }
    }

    /// Whether nothing is left that a host had here.
    fn is_unused(&self, at: usize) -> bool {
        let host = &self.hosts[at];
        let here = self.domains.iter().flat_map(|d| d.remotes.iter().flatten()).any(|r| r.host == at);
        !here
            && host.is_idle()
            && !self.directory.knows(at)
            && self.sinks.values().all(|s| s.host != at)
            && !self.later.has_any_of(at)
    }

    /// The place of a dormant host.
    fn free_place(&self) -> Option<usize> {
        self.hosts.iter().position(Host::is_dormant)
    }
}
