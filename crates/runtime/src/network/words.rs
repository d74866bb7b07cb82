//! What this host and others tell each other: sinks, sources, what is attached, what became of messages.

use crate::network::FromNetwork;
use crate::network::account::Account;
use crate::network::directory::Change;
use crate::network::events::{RemoteSink, Want};
use crate::network::host::{Asked, Incoming, OutFlow};
use crate::network::hub::{Hub, LET_GO};
use crate::network::intake::{Route, Sink, later};
use crate::network::lanes::HOME;
use crate::network::marked::Looker;
use crate::network::matches::Wanted;
use crate::network::moves::Whose;
use crate::network::outlet::{Remote, Tap, TapState};
use crate::policy;
use insane_shm::counters::Count;
use insane_shm::steps::{Step, reach};
use insane_transport::{End, FlowSpec};
use insane_wire::control::{self, to_runtime};
use insane_wire::host::{self as wire, HOST_PROTOCOL, to_host::Body};
use insane_wire::id::{Epoch, SinkId, channel_id, valid_name};
use insane_wire::qos::{EffectiveQos, Reliability};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The most sources that one host may have here.
const MAX_REMOTES: usize = 4096;

/// The most sinks that are waited for before a flow is accepted; they fit one control message.
const MAX_EXPECTED: usize = 1024;

/// The most datapaths of one host that are looked at.
const MAX_REACH: usize = 32;

/// Each host has at least so much of the room for what comes, in bytes, if there is as much: two pieces of segmentation offload.
const LEAST_ROOM: u64 = 128 << 10;

/// The most reasons for a refusal that are passed on, and the most characters of one.
const MAX_REASONS: usize = 8;
const MAX_REASON: usize = 512;

/// The most pairs of a local source and a sink of one host.
const MAX_READY: usize = 1 << 20;

/// Whether what another host names can be a channel of a stream. What is kept of it is no longer than names are, and a name and an id
/// that do not belong together are no channel.
fn is_channel((domain, stream): (&str, &str), id: u64, name: Option<&str>) -> bool {
    let names = [Some(domain), Some(stream), name].into_iter().flatten().all(valid_name);
    names && name.is_none_or(|name| channel_id(domain, stream, name).0 == id)
}

/// What is kept of a word about a source that is to be heard again.
fn kept(about: &wire::Source) -> wire::Source {
    let sinks = about.sinks.iter().filter(|sink| SinkId::from_bytes(sink).is_some());
    wire::Source { gone: false, sinks: sinks.take(MAX_EXPECTED).cloned().collect(), ..about.clone() }
}

impl Hub {
    /// The connection to a host stands: everything is said anew.
    pub(crate) fn connected(&mut self, host: usize) {
        // There may have been no route when it was asked for.
        let address = self.hosts[host].address;
        let limit = self.ports[HOME].datapath.frame_limit(address);
        self.hosts[host].lanes.path(HOME).into_iter().for_each(|path| path.set_frame_limit(limit));
        let hello = self.hello();
        let one = &mut self.hosts[host];
        one.note_unsaid();
        let gone = one.begin_control(Epoch::random());
        gone.into_iter().for_each(|token| drop(self.underway.release(token)));
        one.say(Body::Hello(hello), &mut self.underway);
        one.room_said = 0;
        let sources: Vec<_> =
            one.flows.iter().flatten().filter(|f| !f.closing && !f.lost).map(|f| one.about(f, &self.sinks)).collect();
        sources.into_iter().for_each(|about| one.say(Body::Source(about), &mut self.underway));
        self.say_room();
        self.directory.connected(host);
        for remote in self.domains.iter_mut().flat_map(|d| d.remotes.iter_mut().flatten()) {
            if remote.host == host {
                remote.tell_again();
            }
        }
        self.serve_directory();
    }

    /// Who this host is and how it is reached.
    pub(crate) fn hello(&self) -> wire::Hello {
        let open = self.ports.iter().filter(|port| port.absent.is_none());
        wire::Hello {
            protocol: HOST_PROTOCOL,
            host: self.own_name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            datapaths: open.map(|port| port.via().name().into()).collect(),
            run: self.run.to_le_bytes().to_vec(),
            reach: self.reach(),
        }
    }

    /// Tells the hosts how much each may have under way to this one: together no more than the socket holds, so that nothing is lost
    /// however late this thread gets to receive it. Shares change when there are twice or half as many hosts.
    fn say_room(&mut self) {
        let holds = self.ports[HOME].datapath.capabilities().holds as u64;
        let connected = self.hosts.iter().filter(|host| host.is_connected()).count().max(1);
        let bytes = (holds / connected.next_power_of_two() as u64).max(LEAST_ROOM.min(holds));
        for host in self.hosts.iter_mut().filter(|host| host.is_connected() && host.room_said != bytes) {
            host.room_said = bytes;
            host.say(Body::Room(wire::Room { bytes }), &mut self.underway);
        }
    }

    /// The connection to a host is lost, and with it all flows from it.
    pub(crate) fn lost(&mut self, host: usize, now: Duration) {
        let remotes = self.domains.iter_mut().flat_map(|d| d.remotes.iter_mut().flatten());
        for remote in remotes.filter(|r| r.host == host) {
            self.freed.push(remote.epoch);
            (remote.flow, remote.flows) = (None, 0);
            if remote.reliable {
                remote.orphaned.get_or_insert(now);
            } else {
                (remote.ending, remote.mute) = (true, true);
            }
        }
        let one = &mut self.hosts[host];
        one.lost += 1;
        one.end_control();
        // What was not said yet is said anew with the next connection, or never.
        let unsaid = one.forget_control();
        (one.control_in, one.greeted) = (None, false);
        one.requested.clear();
        one.postponed.clear();
        one.claims.clear();
        one.ready.clear();
        one.lose_flows();
        one.lanes.begin_anew(now);
        unsaid.into_iter().for_each(|token| self.released(token, End::Unconfirmed));
        self.say_room();
        self.directory.lost(host, now);
        self.serve_directory();
    }

    /// A host has said something.
    pub(crate) fn take_word(&mut self, host: usize, now: Duration, body: Body) {
        match &body {
            Body::Hello(hello) => {
                let run = <[u8; 16]>::try_from(&hello.run[..]).map_or(0, u128::from_le_bytes);
                let one = &mut self.hosts[host];
                let was = valid_name(&hello.host).then(|| std::mem::replace(&mut one.name, hello.host.clone()));
                // What sessions were told is of the host by its name.
                if was.as_ref().is_some_and(|was| *was != one.name) {
                    one.refused.clear();
                }
                tracing::info!(host = one.name, address = %one.address, version = hello.version, "host found");
                was.into_iter().for_each(|name| self.forget_name(name));
                let one = &mut self.hosts[host];
                // Said again in one connection it tells how the host is reached now: its sinks and sources are what they were.
                let again = std::mem::replace(&mut one.greeted, true) && one.run == run;
                if one.run != run {
                    one.run = run;
                    one.began_anew();
                    let back = one.lanes.forget_losses();
                    self.end_old_sources(host);
                    if back {
                        self.rebind_all(host, now);
                    }
                }
                let asked: Vec<_> = self.hosts[host].requested.keys().copied().collect();
                asked.into_iter().for_each(|epoch| self.try_accept(host, epoch));
                self.hosts[host].offers = Some(hello.reach.iter().take(MAX_REACH).cloned().collect());
                if !again {
                    self.directory.heard(host, &body, now);
                }
            }
            Body::Announce(announced) => {
                let name = announced.name.as_deref();
                if is_channel((&announced.domain, &announced.stream), announced.channel, name) {
                    self.directory.heard(host, &body, now);
                } else {
                    self.hosts[host].stray += 1;
                }
            }
            Body::Source(about) => self.hear_of_source(host, about, now),
            Body::Ready(ready) => {
                let key = Epoch::from_bytes(&ready.epoch).zip(SinkId::from_bytes(&ready.sink));
                if let Some((epoch, sink)) = key {
                    if ready.answer {
                        self.numbered(host, epoch, sink, ready.join);
                    } else if !self.ready(host, epoch, sink, ready.join) && ready.join == 0 {
                        // Nobody wants it, or not yet.
                        let none = wire::Ready { answer: true, ..ready.clone() };
                        self.hosts[host].say(Body::Ready(none), &mut self.underway);
                    }
                }
            }
            Body::Room(room) => {
                let bytes = if room.bytes == 0 { u64::MAX } else { room.bytes };
                self.hosts[host].lanes.path(HOME).into_iter().for_each(|path| path.set_room(bytes));
            }
            Body::Ended(ended) => self.source_ended(host, &ended.epoch),
            Body::Report(report) => self.hosts[host].reported(report),
            Body::Refused(refused) => {
                if let Some(sink) = SinkId::from_bytes(&refused.sink) {
                    self.refused(host, sink, &refused.reasons);
                }
            }
            _ => self.directory.heard(host, &body, now),
        }
        self.serve_directory();
    }

    /// A host's runtime is another one. Its sources are accounted for anew there, so they are here: what the old ones brought goes to
    /// the sinks first, whose cursors then say what comes a second time.
    fn end_old_sources(&mut self, host: usize) {
        for domain in &mut self.domains {
            for remote in domain.remotes.iter_mut().flatten().filter(|r| r.host == host) {
                (remote.ending, remote.mute) = (true, true);
            }
        }
    }

    /// A host will send what a source emits.
    fn hear_of_source(&mut self, host: usize, about: &wire::Source, now: Duration) {
        let Some(epoch) = Epoch::from_bytes(&about.epoch) else { return };
        tracing::debug!(me = self.own_name, host = self.hosts[host].name, %epoch, "source");
        let domain = self.domains.iter().position(|d| d.name == about.domain);
        let is_one = is_channel((&about.domain, &about.stream), about.channel, about.name.as_deref());
        let Some(at) = domain.filter(|_| is_one) else {
            self.hosts[host].stray += 1;
            return;
        };
        let domain = &mut self.domains[at];
        if let Some(remote) = domain.remotes.find_mut(|r| r.epoch == epoch && !r.closing) {
            // The sender has lost that path, and this end need not find it out by itself.
            let lane =
                remote.flow.filter(|flow| about.gone && remote.host == host && flow.lane != HOME).map(|flow| flow.lane);
            if let Some(path) = lane.and_then(|lane| self.hosts[host].lanes.path(lane)) {
                path.disconnect(now);
            }
            if remote.host == host && !remote.ending {
                (remote.flows, remote.orphaned) = (remote.flows + 1, None);
                remote.astray &= !about.gone;
                let attached = remote.taps.iter().filter(|t| t.state == TapState::Open).map(|t| t.sink.to_bytes());
                let words: Vec<_> = attached
                    .map(|sink| wire::Ready { epoch: epoch.to_bytes(), sink, join: 0, answer: false })
                    .collect();
                words.into_iter().for_each(|w| self.hosts[host].say(Body::Ready(w), &mut self.underway));
                self.try_accept(host, epoch);
            } else if remote.host == host && self.hosts[host].postponed.len() < MAX_REMOTES {
                // The old one has its last words to say.
                self.hosts[host].postponed.push(kept(about));
            } else if remote.host != host && self.hosts[host].claims.fits(epoch) {
                // It is somewhere else now, unless the host where it was is there.
                if !self.hosts[remote.host].is_connected() {
                    (remote.ending, remote.mute) = (true, true);
                }
                self.hosts[host].claims.add(epoch, kept(about));
            }
            return;
        }
        if domain.remotes.iter().flatten().filter(|r| r.host == host).count() >= MAX_REMOTES {
            self.hosts[host].stray += 1;
            return;
        }
        let reliable = about.qos.unwrap_or_default().reliability() == Reliability::Reliable;
        let mut remote = Remote::new(epoch, host, about.stream.clone(), about.channel, reliable);
        if reliable && about.sinks.len() <= MAX_EXPECTED {
            remote.expected = (about.sinks.iter().filter_map(|s| SinkId::from_bytes(s)).collect(), now);
        }
        let source = domain.add_remote(remote);
        let (conn, about) = (domain.conn, about.clone());
        self.ask(Want::Source(source, epoch), |request| FromNetwork::OpenSource(conn, request, about));
    }

    /// A host has ended all flows of a source that it announced until now: those whose openings never came are not waited for.
    fn source_ended(&mut self, host: usize, epoch: &[u8]) {
        let one = &mut self.hosts[host];
        one.postponed.retain(|about| about.epoch != epoch);
        let Some(epoch) = Epoch::from_bytes(epoch) else { return };
        one.claims.take(epoch);
        for (at, domain) in self.domains.iter_mut().enumerate() {
            let is_it = |r: &Remote| r.epoch == epoch && r.host == host && !r.closing;
            let Some(source) = domain.remotes.position(is_it) else { continue };
            let Some(remote) = domain.remotes[source].as_mut() else { continue };
            // One that stands, or waits to be accepted, ends by itself: over a path that only the host knows to be lost, or it has
            // overtaken the word by which it is announced.
            let stands = one.incoming.values().any(|flow| (flow.domain, flow.source) == (at, source))
                || one.requested.contains_key(&epoch);
            remote.flows = 0;
            remote.ending |= !stands;
        }
    }

    /// Accepts a flow once its host has said hello, its source is known and a sink is attached.
    pub(crate) fn try_accept(&mut self, host: usize, epoch: Epoch) {
        // The peer says how many there are that are refused.
        while self.refuses_next(host, epoch) {}
        self.accept_next(host, epoch);
    }

    /// Refuses the flow that is to be accepted next if it is not what its source was announced as; whether it was so. What a reliable
    /// flow brings is kept until its sinks have it, for a source that nobody waits for so; what another loses of a reliable source is
    /// missed by nobody.
    fn refuses_next(&mut self, host: usize, epoch: Epoch) -> bool {
        let Some((Asked { flow, reliable, .. }, at, source)) = self.next_asked(host, epoch) else { return false };
        if self.domains[at].remotes[source].as_ref().is_none_or(|remote| remote.reliable == reliable) {
            return false;
        }
        let one = &mut self.hosts[host];
        one.mismatched += 1;
        one.withdraw_request(flow);
        one.lanes.refuse(flow, 4);
        if one.mismatched == 1 {
            tracing::warn!(host = one.name, %epoch, reliable, "refused a flow that is not what its source was announced as");
        }
        true
    }

    /// The flow that is to be accepted next of a source, with the places of its domain and of the source, if those are known.
    fn next_asked(&self, host: usize, epoch: Epoch) -> Option<(Asked, usize, usize)> {
        // One that overtook the hello of another runtime would be the old one's.
        let one = Some(&self.hosts[host]).filter(|one| one.greeted)?;
        let asked = *one.requested.get(&epoch)?.front()?;
        let at = self.domains.iter().position(|d| d.number == asked.domain)?;
        let fits = |r: &Remote| r.epoch == epoch && r.host == host && !r.ending && !r.closing;
        Some((asked, at, self.domains[at].remotes.position(fits)?))
    }

    fn accept_next(&mut self, host: usize, epoch: Epoch) {
        // One that overtook the hello of another runtime would be the old one's.
        let one = Some(&self.hosts[host]).filter(|one| one.greeted);
        let asked = one.and_then(|one| one.requested.get(&epoch)).and_then(|asked| asked.front());
        let Some(number) = asked.map(|asked| asked.domain) else { return };
        if !self.domains.iter().any(|d| d.number == number) {
            let one = &mut self.hosts[host];
            let asked = one.requested.remove(&epoch).unwrap_or_default();
            one.foreign += asked.len() as u64;
            asked.into_iter().for_each(|asked| one.lanes.refuse(asked.flow, 2));
            return;
        }
        let Some((Asked { flow, .. }, at, source)) = self.next_asked(host, epoch) else { return };
        if !self.domains[at].remotes[source].as_ref().is_some_and(Remote::is_attached) {
            return;
        }
        // What comes by the one before is before it. So it is on one path, too: what still waits to go there takes turns with what is
        // given to this one, and of two reliable flows one alone would be told how far its sinks are.
        if self.domains[at].remotes[source].as_ref().is_some_and(|r| r.flow.is_some()) {
            return;
        }
        let one = &mut self.hosts[host];
        tracing::debug!(host = one.name, %epoch, ?flow, "flow accepted");
        one.withdraw_request(flow);
        one.incoming.insert(flow, Incoming { domain: at, source });
        if let Some(remote) = self.domains[at].remotes[source].as_mut() {
            (remote.flow, remote.orphaned) = (Some(flow), None);
            one.lanes.accept(flow, if remote.reliable { remote.cursor } else { 0 });
            let open = remote.taps.iter().filter(|t| t.state == TapState::Open && one.refused.contains(&t.sink));
            let refused: Vec<SinkId> = open.map(|t| t.sink).collect();
            refused.into_iter().for_each(|sink| self.is_served(host, sink));
        }
    }

    /// Waits no longer for sinks that have not come back.
    fn stop_waiting(&mut self, now: Duration) {
        let patience = Duration::from_millis(self.settings.patience_ms);
        let mut late = Vec::new();
        for domain in &mut self.domains {
            for remote in domain.remotes.marked_mut(Looker::Chores) {
                if !remote.expected.0.is_empty() && now >= remote.expected.1 + patience {
                    remote.expected.0.clear();
                    late.push((remote.host, remote.epoch));
                }
            }
        }
        late.into_iter().for_each(|(host, epoch)| self.try_accept(host, epoch));
    }

    /// A sink of this host joins a source of another as number `join`: it takes the first message that says so, and what follows. 0:
    /// it has no number yet.
    fn numbered(&mut self, host: usize, epoch: Epoch, sink: SinkId, join: u32) {
        let is_it = |r: &Remote| r.epoch == epoch && r.host == host && !r.closing;
        let is_open = |t: &Tap| t.sink == sink && t.state == TapState::Open;
        let has_it = |r: &Remote| is_it(r) && r.taps.iter().any(is_open);
        let remote = self.domains.iter_mut().find_map(|domain| domain.remotes.find_mut(has_it));
        let Some(tap) = remote.and_then(|r| r.taps.iter_mut().find(|t| is_open(t))) else { return };
        tap.answered = true;
        if join != 0 {
            tap.joins_as(join);
            let word = wire::Ready { epoch: epoch.to_bytes(), sink: sink.to_bytes(), join, answer: false };
            self.hosts[host].say(Body::Ready(word), &mut self.underway);
        }
        self.try_accept(host, epoch);
    }

    /// A sink of a host can get what a local source emits. It is given a number, in whose order sinks join; once its host has that
    /// as well and says so (`join`), the source's session is told. Returns whether it has a number.
    fn ready(&mut self, host: usize, epoch: Epoch, sink: SinkId, join: u32) -> bool {
        let one = &mut self.hosts[host];
        tracing::debug!(host = one.name, %epoch, %sink, "attached there");
        // One that is gone was taken from its source's session already, which is not to hear of it again.
        let known = self.sinks.get(&sink).map(|s| s.host == host);
        if !known.unwrap_or_else(|| self.later.has(sink, host)) || one.ready.len() >= MAX_READY {
            one.stray += 1;
            return false;
        }
        one.ready.insert((sink, epoch));
        let Some(account) = one.by_key.get(&(epoch, sink)).copied() else { return false };
        let Some(is) = one.accounts[account].as_mut() else { return false };
        if (join == 0 && is.was_attached) || (join != 0 && is.number == join) {
            is.is_attached_again();
        }
        if is.closing || (join != 0 && is.number != join) {
            return false;
        }
        if join == 0 {
            // Messages may say the number that it has.
            let join = if is.number == 0 { one.next_join(epoch) } else { is.number };
            one.accounts[account].iter_mut().for_each(|is| is.number = join);
            let (epoch, sink) = (epoch.to_bytes(), sink.to_bytes());
            one.say(Body::Ready(wire::Ready { epoch, sink, join, answer: true }), &mut self.underway);
            return true;
        }
        let (at, link, source, cell) = (is.domain, is.link, is.source, is.cell.index());
        let Some(intake) = self.domains[at].intakes[link].as_mut() else { return false };
        let Some(of) = intake.sources.get_mut(&source) else { return false };
        // One that was taken from its session hears no more of what was asked before.
        let is_it = |s: &Sink| s.account == account && s.id == sink && s.end.is_none() && !s.detached;
        let Some(route) = of.routes.iter_mut().find(|r| r.sinks.iter().any(is_it)) else { return false };
        let Some(entry) = route.sinks.iter_mut().find(|s| is_it(s)) else { return false };
        entry.number = join as u8;
        if entry.open {
            // It comes back with the next runtime of its host.
            if entry.joined {
                route.joined = Some(later(route.joined, entry.number));
            }
            return false;
        }
        of.joins = of.joins.wrapping_add(1);
        (entry.open, entry.join) = (true, of.joins);
        let (join, flow) = (of.joins, route.flow);
        let lane = self.hosts[host].flows[flow].as_ref().map(|flow| flow.number.lane);
        self.domains[at].attach(link, source, sink, (cell, join));
        let announced = self.sinks.get(&sink).map(|s| &s.announced);
        let whose = lane.map_or(Whose::New, Whose::Running);
        let effective = announced.map(|a| self.choose(host, &a.stream, a.qos.unwrap_or_default(), whose).effective);
        effective.into_iter().for_each(|effective| self.tell_effective(at, link, effective, None));
        true
    }

    /// Tells a source's session what its stream gets towards a host. The core, which knows what the session has open, passes
    /// on what has changed, and how long it took to move there.
    pub(crate) fn tell_effective(&mut self, at: usize, link: usize, effective: EffectiveQos, took: Option<Duration>) {
        let domain = &self.domains[at];
        let Some(intake) = domain.intakes[link].as_ref() else { return };
        let Some(pair) = domain.pairs[intake.pair].as_ref() else { return };
        let moved_us = took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let said = FromNetwork::Effective(pair.peer, intake.stream.clone(), effective, moved_us);
        let _ = self.ends.outbox.send(said);
        self.ends.out_bell.ring();
    }

    /// A local source is to have a sink of another host.
    pub(crate) fn wanted(&mut self, at: usize, wanted: Wanted) {
        let Wanted { link, source, epoch, sink, channel, strict, .. } = wanted;
        let known = self.sinks.get(&sink).filter(|s| s.domain == at && s.announced.channel == channel);
        tracing::debug!(me = self.own_name, %epoch, %sink, known = known.is_some(), "wanted");
        let Some(known) = known else { return self.domains[at].detach(link, source, sink) };
        let (host, announced) = (known.host, known.announced.clone());
        let choice = self.choose(host, &announced.stream, announced.qos.unwrap_or_default(), Whose::New);
        if (strict || announced.strict) && !choice.effective.reasons.is_empty() {
            return self.refuse(at, (link, source), (sink, epoch), host, choice.effective);
        }
        let lane = self.port_of(host, choice.via, Whose::New);
        let reliable = announced.qos.unwrap_or_default().reliability() == Reliability::Reliable;
        let domain = &mut self.domains[at];
        let fits = domain.intakes[link].as_ref().is_some_and(|l| l.stream == announced.stream);
        let before = self.hosts[host].by_key.get(&(epoch, sink)).copied();
        let mut before = before.and_then(|at| self.hosts[host].accounts[at].as_mut());
        if before.as_ref().is_some_and(|before| !before.closing) {
            // Its source's session has let go of the one before, or is about to: then there may be another.
            if domain.is_ending(link, source, sink) {
                domain.held.insert((link, source, sink), wanted);
            }
            return;
        }
        if !fits || domain.source(link, source, epoch).is_none() {
            return domain.detach(link, source, sink);
        }
        let Some(cell) = domain.cells.start(epoch, sink) else { return domain.detach(link, source, sink) };
        // From now on the sink's host counts for the next account.
        before.iter_mut().for_each(|before| before.end(Count::Unconfirmed, before.pending()));
        let about = wire::Source {
            epoch: epoch.to_bytes(),
            domain: announced.domain,
            stream: announced.stream,
            qos: announced.qos,
            channel,
            name: announced.name,
            sinks: Vec::new(),
            gone: false,
        };
        let spec = FlowSpec { domain: domain.number, epoch: epoch.0, channel, reliable, first: 1 };
        let one = &mut self.hosts[host];
        let flow = one.flow_of(lane, (spec, (at, link, source)), about, &mut self.underway);
        let account = one.add_account(Account::new(at, sink, (link, source), reliable, cell));
        one.by_key.insert((epoch, sink), account);
        if let Some(flow) = one.flows[flow].as_mut() {
            flow.accounts.push(account);
        }
        let entry = Sink {
            id: sink,
            observer: announced.observer,
            account,
            open: false,
            join: 0,
            joined: false,
            number: 0,
            end: None,
            given_up: false,
            detached: false,
            late: VecDeque::new(),
        };
        if let Some(of) = domain.source(link, source, epoch) {
            match of.routes.iter_mut().find(|r| r.host == host && r.flow == flow) {
                Some(route) => route.sinks.push(entry),
                None => of.routes.push(Route { host, flow, joined: None, sinks: vec![entry] }),
            }
        }
        if self.hosts[host].ready.contains(&(sink, epoch)) {
            self.ready(host, epoch, sink, 0);
        }
    }

    /// A host serves less than what was asked for under `strict`: its sink is refused, and both ends are told.
    fn refuse(
        &mut self,
        at: usize,
        (link, source): (usize, u32),
        (sink, epoch): (SinkId, Epoch),
        host: usize,
        served: EffectiveQos,
    ) {
        self.domains[at].detach(link, source, sink);
        self.domains[at].note_refused(link, (sink, epoch));
        tracing::info!(host = self.hosts[host].name, %sink, reasons = ?served.reasons, "refused under strict");
        let refused = wire::Refused { sink: sink.to_bytes(), reasons: served.reasons.clone() };
        self.hosts[host].say(Body::Refused(refused), &mut self.underway);
        policy::refused(served).into_iter().for_each(|none| self.tell_effective(at, link, none, None));
    }

    /// A host has refused a sink of this one.
    fn refused(&mut self, host: usize, sink: SinkId, reasons: &[String]) {
        let one = &mut self.hosts[host];
        // A word about one that has closed meanwhile is of no use to anybody.
        if self.directory.own(sink).is_none() || !one.refused.insert(sink) {
            return;
        }
        // They are shown to people: of another host, so only what can be a reason.
        let plain = |reason: &String| reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        let reasons = reasons.iter().take(MAX_REASONS).map(plain).collect();
        let _ = self.ends.outbox.send(FromNetwork::Refused(sink, one.name.clone(), reasons));
        self.ends.out_bell.ring();
    }

    /// Tells other hosts what has changed here.
    pub(crate) fn pass_on(&mut self) {
        while let Some((host, body)) = self.directory.outgoing() {
            self.hosts[host].say(body, &mut self.underway);
        }
    }

    /// Tells the core of what has changed on other hosts, and them of what has changed here.
    pub(crate) fn serve_directory(&mut self) {
        self.pass_on();
        let now = self.now();
        while let Some(change) = self.directory.change() {
            match change {
                Change::Added { host, sink: announced } => {
                    let Some(sink) = SinkId::from_bytes(&announced.sink) else { continue };
                    self.offer(sink, host, announced, now);
                }
                Change::Removed { host, sink } => {
                    self.later.remove(sink);
                    self.letting_go.remove(&sink);
                    tracing::debug!(me = self.own_name, host, %sink, "sink gone");
                    let Some(gone) = self.sinks.remove(&sink) else { continue };
                    self.domains[gone.domain].forget_matches(sink);
                    let conn = self.domains[gone.domain].conn;
                    let close = control::CloseSink { sink: sink.to_bytes() };
                    self.ask_core(conn, to_runtime::Body::CloseSink(close));
                    let one = &mut self.hosts[host];
                    one.sink_gone(sink);
                    let open = one.accounts_of(sink).filter(|a| !a.closing);
                    let ends: Vec<_> = open.map(|a| (a.domain, a.link, a.source)).collect();
                    ends.into_iter()
                        .for_each(|(domain, link, source)| self.domains[domain].withdraw(link, source, sink));
                }
            }
        }
    }

    /// Tells the core of a sink of another host, when it can have it.
    fn offer(&mut self, sink: SinkId, host: usize, announced: wire::Announce, now: Duration) {
        // It was gone and is back, there or at another host, and its sources' sessions have not yet let go of it. Who does not in time is
        // stopped, and no reason for others to do without: it asks when it goes on.
        let held = self.hosts.iter().any(|host| host.accounts_of(sink).any(|a| !a.closing))
            && now < *self.letting_go.entry(sink).or_insert(now + LET_GO);
        // What it asks for is about to be there.
        if held || self.is_coming(host, announced.qos.unwrap_or_default(), now) {
            return self.later.add(sink, host, announced);
        }
        let Some(domain) = self.domains.iter().position(|d| d.name == announced.domain) else {
            self.hosts[host].stray += 1;
            return;
        };
        let conn = self.domains[domain].conn;
        tracing::debug!(me = self.own_name, host, %sink, "sink");
        reach(Step::Announce);
        self.letting_go.remove(&sink);
        self.sinks.insert(sink, RemoteSink { host, domain, announced: announced.clone(), conflicts: false });
        self.ask(Want::Sink(sink), |request| FromNetwork::OpenSink(conn, request, announced));
    }

    /// Looks at some of the sinks whose turn had not come.
    pub(crate) fn offer_later(&mut self) {
        let now = self.now();
        for (sink, host, announced) in self.later.next() {
            self.note_again();
            self.offer(sink, host, announced, now);
        }
    }

    /// Something that waited is looked at again.
    fn note_again(&mut self) {
        #[cfg(test)]
        {
            self.again += 1;
        }
    }

    /// Tells the other hosts what became of their messages.
    pub(crate) fn tell_reports(&mut self, now: Duration) {
        for domain in &mut self.domains {
            for remote in domain.remotes.marked_mut(Looker::Chores) {
                let host = &mut self.hosts[remote.host];
                if host.hears_reports() && remote.reports_at().is_some_and(|at| at <= now) {
                    remote.reports(now).for_each(|report| host.say(Body::Report(report), &mut self.underway));
                }
            }
        }
    }

    /// When [`Self::tell_reports`] has something to say.
    pub(crate) fn reports_at(&self) -> Option<Duration> {
        let remotes = self.domains.iter().flat_map(|d| d.remotes.marked(Looker::Chores));
        remotes.filter(|r| self.hosts[r.host].hears_reports()).filter_map(Remote::reports_at).min()
    }

    /// Forgets sources of other hosts of which nothing more will come.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.stop_waiting(now);
        let patience = Duration::from_millis(self.settings.patience_ms);
        for (number, domain) in self.domains.iter_mut().enumerate() {
            let mut from = 0;
            while let Some(at) = domain.remotes.next(Looker::Chores, from) {
                from = at + 1;
                if domain.remotes[at].as_ref().is_none_or(Remote::needs_no_chores) {
                    domain.remotes.rest(Looker::Chores, at);
                    continue;
                }
                let Some(remote) = domain.remotes[at].as_mut() else { continue };
                // The patience with a lost host begins when the directory has lost it as well.
                if !self.hosts[remote.host].is_connected() && self.directory.lists(remote.host) {
                    remote.orphaned.iter_mut().for_each(|since| *since = now);
                }
                if remote.orphaned.is_some_and(|since| now >= since + patience) {
                    remote.ending = true;
                }
                // Without its host nobody wants to know what became of the rest.
                let alone = remote.closing && remote.flow.is_none() && !self.hosts[remote.host].is_connected();
                if remote.is_over() || alone {
                    self.hosts[remote.host].forget_source(number, at);
                    self.freed.push(remote.epoch);
                    domain.remotes[at] = None;
                }
            }
        }
        for host in 0..self.hosts.len() {
            let again = std::mem::take(&mut self.hosts[host].postponed);
            again.iter().for_each(|about| self.hear_of_source(host, about, now));
        }
        for epoch in std::mem::take(&mut self.freed) {
            for host in 0..self.hosts.len() {
                let Some((about, words)) = self.hosts[host].claims.take(epoch) else { continue };
                for _ in 0..words {
                    self.note_again();
                    self.hear_of_source(host, &about, now);
                }
            }
        }
        for domain in 0..self.domains.len() {
            self.notes(domain);
        }
    }
}

impl crate::network::host::Host {
    /// Whether it can be told what became of its messages.
    fn hears_reports(&self) -> bool {
        self.control_in.is_some() && self.is_connected()
    }

    /// What the host is told of a flow's source.
    pub(crate) fn about(&self, flow: &OutFlow, sinks: &HashMap<SinkId, RemoteSink>) -> wire::Source {
        let mut about = flow.about.clone();
        if flow.reliable {
            let attached = flow.accounts.iter().filter_map(|a| self.accounts[*a].as_ref()).filter(|a| !a.closing);
            // Nobody waits for an observer, nor for one that was not attached yet.
            let counts = |s: &SinkId| sinks.get(s).is_some_and(|known| !known.announced.observer);
            let attached = attached.filter(|a| a.was_attached).map(|a| a.sink).filter(counts);
            about.sinks = attached.take(MAX_EXPECTED).map(|s| s.to_bytes()).collect();
        }
        about
    }

    /// The connection is lost, or there again: what its sinks have of reliable messages, because their cursors covered it, and their
    /// runtime has not reported; and what that has reported and goes again. Until it is there again other paths to the runtime that
    /// was there may have said more.
    pub(crate) fn note_unsaid(&mut self) {
        self.settle_all();
        for at in 0..self.accounts.len() {
            let again = self.again(at);
            self.accounts[at]
                .iter_mut()
                .filter(|account| account.reliable)
                .for_each(|account| account.note_again(again));
        }
    }

    /// The host's runtime is another one, which counts from nothing: what the old one had not reported it will not.
    pub(crate) fn began_anew(&mut self) {
        self.settle_all();
        self.accounts.iter_mut().flatten().filter(|a| a.reliable).for_each(Account::begin_anew);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::network::domain::Domain;
    use crate::network::host::tests::{Rig, SINK};
    use crate::network::lanes::HOME;
    use crate::network::pages::Pages;
    use insane_shm::counters::Count;

    #[test]
    fn what_a_sink_has_and_its_lost_host_did_not_report_is_unconfirmed() {
        // The sink is gone before its host is lost, or is taken for gone after; the host, with the same runtime, is back before its
        // source lets go of it, or not.
        for (gone_before, comes_back) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut rig = Rig::new();
            let mut domain = Domain::new(1, "default".into(), &Config::default(), Pages::without_thread()).unwrap();
            rig.talk(None);
            let (flow, account) = rig.open_as(true);
            rig.account(account).is_attached_again();
            assert_eq!(rig.talk(None).0, 1);
            rig.emit((flow, account), 1..=10);
            rig.talk(None);
            assert_eq!((rig.arrived.len(), rig.account(account).pending(), rig.host.again(account)), (10, 10, 0));
            if gone_before {
                rig.host.sink_gone(SINK);
            }
            let now = rig.now;
            rig.host.lanes.path(HOME).unwrap().disconnect(now);
            rig.host.lose_flows();
            if !gone_before {
                rig.host.sink_gone(SINK);
            }
            rig.forget_ended();
            if comes_back {
                rig.talk(None);
            }
            assert_eq!(rig.host.is_connected(), comes_back);
            rig.account(account).closing = true;
            rig.host.close_flow(flow);
            rig.forget_ended();
            if comes_back {
                rig.talk(None);
            }
            domain.cells = std::mem::replace(&mut rig.cells, domain.cells);
            rig.host.sweep(std::slice::from_mut(&mut domain));
            let case = format!("{gone_before} {comes_back}");
            assert_eq!(domain.cells.counters.get(0).unwrap().get(Count::Unconfirmed), 10, "{case}");
            assert!(!rig.host.is_awaited() && rig.host.is_idle(), "{case}");
        }
    }

    #[test]
    fn a_sink_that_comes_back_with_its_runtime_is_waited_for() {
        let mut rig = Rig::new();
        rig.talk(None);
        let (_, account) = rig.open_as(true);
        rig.account(account).is_attached_again();
        rig.account(account).give(10);
        rig.host.lanes.path(HOME).unwrap().disconnect(rig.now);
        rig.host.lose_flows();
        rig.host.sink_gone(SINK);
        rig.account(account).is_attached_again();
        rig.account(account).closing = true;
        assert!(!rig.account(account).is_over());
        assert_eq!(rig.account(account).pending(), 10);
    }
}
