//! Which way streams go to a host, and how they move from one to another while they run.
//!
//! A flow moves by a second flow of the same source over the other path, its heir: what the first was given it still delivers,
//! and ends; the host at the other end accepts the heir only then, so that nothing is reordered. Where the first one's path does
//! not stand, what a reliable flow has under way is taken back and given to the heir, and the sinks' cursor says what of it they
//! have; of a best-effort flow it is unconfirmed. The two ends may find out in any order that a path is lost: a reliable heir
//! is given nothing before the first flow is done, and a flow that is not accepted yet does not move but with its path.

use crate::config::{Kind, Via};
use crate::core::Conn;
use crate::network::FromNetwork;
use crate::network::damping::Holds;
use crate::network::host::{Host, OutFlow, path_config};
use crate::network::hub::Hub;
use crate::network::lanes::{FlowId, HOME};
use crate::network::marked::Looker;
use crate::network::ports::Port;
use crate::policy::{Choice, Standing};
use crate::rebind::{Asked, Refusal};
use insane_datapath::Address;
use insane_transport::Path;
use insane_wire::control::{self, ToClient, to_client};
use insane_wire::error::Code;
use insane_wire::host::{self as wire, to_host::Body};
use insane_wire::qos::Qos;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// So many streams are named in a refusal.
const MOST_NAMED: usize = 16;

/// For which stream a way is sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One that opens, or is to move at once: what stands is good enough.
    New,
    /// One that goes over this lane. It comes back to another only when that has stood for long enough since it was lost.
    Running(usize),
}

/// How long moves to a host took: from the decision until the other host had accepted the flow by which the stream goes on. For so
/// long what its source emits waits, unless it is still under way by the path before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MoveTimes {
    pub(crate) count: u64,
    pub(crate) last: Duration,
    pub(crate) most: Duration,
    sum: Duration,
}

impl MoveTimes {
    fn note(&mut self, took: Duration) {
        (self.count, self.last, self.most) = (self.count + 1, took, self.most.max(took));
        self.sum += took;
    }

    /// For reports, in microseconds.
    pub(crate) fn report(&self) -> Value {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mean = us(self.sum).checked_div(self.count).unwrap_or(0);
        json!({"count": self.count, "last_us": us(self.last), "mean_us": mean, "most_us": us(self.most)})
    }
}

impl Hub {
    /// What other hosts are told of this one's datapaths beside UDP.
    pub(crate) fn reach(&self) -> Vec<wire::Reach> {
        let beside = self.ports.iter().skip(HOME + 1);
        let told = beside.filter_map(|port| Some((port.via(), port.datapath.address()?)));
        told.map(|(way, address)| wire::Reach { kind: way.name().into(), address: address.to_string() }).collect()
    }

    /// A host has said how it is reached: paths are sought over what both have, and others given up.
    pub(crate) fn offered(&mut self, host: usize, reach: &[wire::Reach], now: Duration) {
        (HOME + 1..self.ports.len()).for_each(|port| self.offered_by(port, host, reach, now));
    }

    /// As [`Self::offered`], over one port. Over one that is absent nothing changes until it is there.
    pub(crate) fn offered_by(&mut self, port: usize, host: usize, reach: &[wire::Reach], now: Duration) {
        if self.ports[port].absent.is_some() {
            return;
        }
        let wanted = self.counterpart(port, reach);
        let known = self.hosts[host].lanes.get(port).map(|lane| lane.address);
        if known == wanted {
            self.hosts[host].lanes.expect(port, now);
            return;
        }
        if known.is_some() {
            self.drop_lane(host, port, now);
        }
        let Some(address) = wanted else { return };
        if self.by_address.find(port, address).is_some() {
            tracing::warn!(host = self.hosts[host].name, %address, "datapath refused: the address is another host's");
            return;
        }
        let datapath = &mut self.ports[port].datapath;
        let (limit, can) = (datapath.frame_limit(address), datapath.capabilities());
        let mut config = path_config(&self.settings, self.run, limit, can.detects_changes);
        config.copy_bytes = self.ports[port].copies_up_to(limit);
        // What is larger than its interface takes does not come in here, and nobody says so to who sent it.
        config.max_frame = u32::try_from(can.max_frame).unwrap_or(u32::MAX);
        // How much the network carries TCP finds out.
        config.dedicated |= self.ports[port].via().tcp;
        let seed = insane_wire::id::SessionId::random().0 as u64;
        self.hosts[host].lanes.put(port, address, Path::new(config, seed, now), now);
        self.by_address.insert(port, address, host);
    }

    /// The address at which a host is reached over a port, of the same kind and family: the first that it names.
    fn counterpart(&self, port: usize, reach: &[wire::Reach]) -> Option<Address> {
        let (way, own) = (self.ports[port].via(), self.ports[port].datapath.address()?);
        let Address::Ip(own) = own else { return None };
        let at = |one: &wire::Reach| one.address.parse::<SocketAddr>().ok();
        let fits = |to: &SocketAddr| {
            let special = to.ip().is_unspecified() || to.ip().is_multicast() || to.ip().is_loopback();
            to.is_ipv4() == own.is_ipv4() && *to != own && to.port() != 0 && !special
        };
        reach.iter().filter(|one| one.kind == way.name()).filter_map(at).find(fits).map(Address::Ip)
    }

    /// A host is not reached over a port any more.
    fn drop_lane(&mut self, host: usize, port: usize, now: Duration) {
        if let Some(path) = self.hosts[host].lanes.path(port) {
            path.disconnect(now);
        }
        self.events(host, now, None);
        // Of what was to end there nothing more will come.
        self.hosts[host].withdraw_requests(port);
        let gone = self.hosts[host].drain_closing(now);
        gone.into_iter().for_each(|token| self.released(token, insane_transport::End::Unconfirmed));
        self.hosts[host].push_waiting();
        self.events(host, now, None);
        self.by_address.forget(host, Some(port));
        self.hosts[host].lanes.remove(port);
    }

    /// Whether a stream can go over a port now.
    fn is_open_to(&self, whose: Whose, host: usize, port: usize) -> bool {
        let lanes = &self.hosts[host].lanes;
        let takes = match whose {
            Whose::New => true,
            Whose::Running(on) => on == port || !lanes.is_held(port),
        };
        takes && lanes.is_up(port)
    }

    /// What this host and another have of a kind of datapath, or of TCP over it.
    fn standing(&self, host: usize, way: Via, whose: Whose) -> Standing {
        let home = way == Via::of(Kind::Udp);
        let (mut here, mut there, mut held) = (home, home, false);
        let of = |one: &Port| one.via() == way;
        for (port, _) in self.ports.iter().enumerate().filter(|(_, one)| of(one) && one.absent.is_none()) {
            here = true;
            there |= self.hosts[host].lanes.get(port).is_some();
            if home || self.is_open_to(whose, host, port) {
                return Standing::Connected;
            }
            held |= self.hosts[host].lanes.is_up(port);
        }
        if held {
            return Standing::Held;
        }
        let absent = self.ports.iter().filter(|one| of(one)).find_map(|one| one.absent.as_deref());
        let none = if way.tcp { "no such network.datapath has tcp = true" } else { "network.datapath names none" };
        let why = absent.unwrap_or(none);
        Standing::of(if here { Ok(()) } else { Err(why) }, there, false)
    }

    /// What a stream of this QoS gets towards a host now.
    pub(crate) fn choose(&self, host: usize, stream: &str, qos: Qos, whose: Whose) -> Choice {
        let names = (self.own_name.as_str(), self.hosts[host].name.as_str());
        let standing = |way: Via| self.standing(host, way, whose);
        let asked = self.requests.kind(stream, names.1);
        if let Some(kind) = asked.filter(|kind| standing(Via::of(*kind)) == Standing::Connected) {
            return self.table.asked(kind, qos, names, standing);
        }
        self.table.choose(qos, names, standing)
    }

    /// Moves what an operator wants moved, and answers.
    pub(crate) fn asked_to_rebind(&mut self, conn: Conn, request: u64, asked: Asked) {
        let body = match self.rebind_as_asked(asked) {
            Ok(rebound) => to_client::Body::Rebound(rebound),
            Err((code, text)) => to_client::Body::Refused(control::Refused { code: code.number(), text }),
        };
        let _ = self.ends.outbox.send(FromNetwork::Answer(conn, ToClient { request, body: Some(body) }));
        self.ends.out_bell.ring();
    }

    /// Nothing is changed if a stream that it is about cannot go there.
    pub(crate) fn rebind_as_asked(&mut self, asked: Asked) -> Result<control::Rebound, Refusal> {
        let mut flows = Vec::new();
        for (host, one) in self.hosts.iter().enumerate() {
            let open = |flow: &&OutFlow| !flow.closing && !flow.lost && asked.is_for(&flow.about.stream, &one.name);
            let found = one.flows.iter().enumerate().filter(|(_, flow)| flow.as_ref().as_ref().is_some_and(open));
            flows.extend(found.map(|(at, _)| (host, at)));
        }
        if flows.is_empty() {
            let there = self.hosts.iter().flat_map(|host| {
                let open = host.flows.iter().flatten().filter(|flow| !flow.closing && !flow.lost);
                open.map(|flow| format!("`{}` to {}", flow.about.stream, host.name))
            });
            let there: BTreeSet<String> = there.collect();
            let there: Vec<String> = there.into_iter().take(MOST_NAMED).collect();
            let text = if there.is_empty() { "none goes to another host now".into() } else { there.join(", ") };
            return Err((Code::NotFound, format!("no such stream goes to such a host from here; {text}")));
        }
        let why_not = |(host, _): &(usize, usize)| {
            let kind = asked.kind?;
            self.standing(*host, Via::of(kind), Whose::New)
                .why_not(Via::of(kind), (&self.own_name, &self.hosts[*host].name))
        };
        if let Some(why) = flows.iter().find_map(why_not) {
            return Err((Code::NotFound, why));
        }
        self.requests.add(asked)?;
        let (now, mut rebound) = (self.now(), control::Rebound::default());
        for (host, at) in flows {
            let before = self.hosts[host].moves;
            self.rebind_if_better(host, (at, true), now);
            let one = &mut self.hosts[host];
            if one.moves != before {
                rebound.moving += 1;
            } else if let Some(flow) = one.flows[at].as_mut().filter(|flow| !flow.accepted) {
                flow.asked = true;
                rebound.later += 1;
            } else {
                rebound.there += 1;
            }
        }
        Ok(rebound)
    }

    /// The port of a choice: of several a steady one.
    pub(crate) fn port_of(&self, host: usize, way: Via, whose: Whose) -> usize {
        let open = |(port, one): &(usize, &Port)| one.via() == way && self.is_open_to(whose, host, *port);
        let all = self.ports.iter().enumerate().filter(open).map(|(port, _)| port);
        all.min_by_key(|port| self.hosts[host].lanes.is_held(*port)).unwrap_or(HOME)
    }

    /// Whether a better datapath than those that stand is about to: what has just been offered is worth waiting for.
    pub(crate) fn is_coming(&self, host: usize, qos: Qos, now: Duration) -> bool {
        let better = self.table.ways(qos);
        let mut better = better.take_while(|way| !matches!(self.standing(host, *way, Whose::New), Standing::Connected));
        let coming = |way: Via| {
            let ports = self.ports.iter().enumerate().filter(|(_, one)| one.via() == way);
            ports.into_iter().any(|(port, _)| self.hosts[host].lanes.is_coming(port, now))
        };
        // What it has just offered was not looked at yet.
        let offered = self.hosts[host].offers.as_ref();
        let news = |way: Via| {
            let here = self.ports.iter().any(|port| port.via() == way && port.absent.is_none());
            here && offered.is_some_and(|reach| reach.iter().any(|one| one.kind == way.name()))
        };
        better.any(|way| coming(way) || news(way))
    }

    /// The connection over a path beside the home stands.
    pub(crate) fn lane_connected(&mut self, host: usize, lane: usize, now: Duration) {
        self.log_lane(host, lane, "path connected");
        if self.ports[lane].via().tcp {
            // No more than a connection takes, so that frames for one host never wait for room with those for others behind them.
            let holds = self.ports[lane].datapath.capabilities().holds as u64;
            self.hosts[host].lanes.path(lane).into_iter().for_each(|path| path.set_room(holds));
        }
        let held = self.hosts[host].lanes.stands(lane, now, Holds::new(&self.settings));
        self.rebind_all(host, now);
        if held {
            self.tell_all_moved(host);
        }
    }

    /// Brings streams back to what has stood for long enough since it was lost.
    pub(crate) fn end_holds(&mut self, now: Duration) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].lanes.end_holds(now) {
                self.rebind_all(host, now);
            }
        }
    }

    /// It is lost; its flows from the host have ended already.
    pub(crate) fn lane_lost(&mut self, host: usize, lane: usize, now: Duration) {
        self.log_lane(host, lane, "path lost");
        self.hosts[host].lanes.falls(lane, now, Holds::new(&self.settings));
        self.hosts[host].withdraw_requests(lane);
        let others: Vec<_> = self.hosts[host].requested.keys().copied().collect();
        others.into_iter().for_each(|epoch| self.try_accept(host, epoch));
        for at in 0..self.hosts[host].flows.len() {
            if let Some(flow) = self.hosts[host].flows[at].as_mut().filter(|flow| flow.number.lane == lane) {
                flow.accepted = false;
                self.hosts[host].fold(at);
            }
        }
        self.rebind_all(host, now);
    }

    fn log_lane(&self, host: usize, lane: usize, what: &str) {
        let one = &self.hosts[host];
        let address = one.lanes.get(lane).map(|lane| lane.address.to_string()).unwrap_or_default();
        tracing::info!(host = one.name, datapath = self.ports[lane].via().name(), address, "{what}");
    }

    /// It has become known what passes over a path. Whoever looks after the network is to hear of it: the interfaces say otherwise.
    pub(crate) fn log_size(&self, host: usize, lane: usize, passes: usize, most: usize) {
        let (name, datapath) = (&self.hosts[host].name, self.ports[lane].via().name());
        let words = size_in_words((name, datapath), passes, most);
        if passes < most {
            tracing::warn!(host = name, datapath, "{words}");
        } else {
            tracing::info!(host = name, datapath, "{words}");
        }
    }

    /// Moves every stream towards a host for which another datapath is now the one to be used, and has asked again for what was refused
    /// for want of it.
    pub(crate) fn rebind_all(&mut self, host: usize, now: Duration) {
        (0..self.hosts[host].flows.len()).for_each(|at| self.rebind_if_better(host, (at, false), now));
        self.ask_again(host);
    }

    /// Moves a flow if another datapath is now the one to be used, or would be for a new one if that was `asked` for.
    fn rebind_if_better(&mut self, host: usize, (at, asked): (usize, bool), now: Duration) {
        let one = &self.hosts[host];
        let Some(flow) = one.flows[at].as_ref().filter(|flow| !flow.closing && !flow.lost) else { return };
        if !flow.accepted && one.lanes.is_up(flow.number.lane) {
            return;
        }
        let (qos, from) = (flow.about.qos.unwrap_or_default(), flow.number.lane);
        let whose = if asked { Whose::New } else { Whose::Running(from) };
        let choice = self.choose(host, &flow.about.stream, qos, whose);
        let to = self.port_of(host, choice.via, whose);
        // One of two of a kind is as good as the other, as long as it stands.
        if to != from && (self.ports[from].via() != choice.via || !one.lanes.is_up(from)) {
            self.rebind(host, at, to, now);
        }
    }

    /// A host has accepted a flow: now it can move, if that was to be.
    pub(crate) fn accepted(&mut self, host: usize, flow: FlowId, now: Duration) {
        let one = &mut self.hosts[host];
        let Some(at) = one.by_number.get(&flow).copied() else { return };
        let Some(flow) = one.flows[at].as_mut() else { return };
        flow.accepted = true;
        let asked = std::mem::take(&mut flow.asked);
        if let Some(since) = flow.moving.take() {
            let took = now.saturating_sub(since);
            one.move_times.note(took);
            tracing::info!(
                host = one.name, stream = flow.about.stream, epoch = %flow.epoch, to = self.ports[flow.number.lane].via().name(),
                took_us = took.as_micros(), "stream has moved"
            );
            self.has_moved(host, at, took);
        }
        if self.ports.len() > 1 {
            self.rebind_if_better(host, (at, asked), now);
        }
    }

    /// A flow has come where it was to go: once all of its link have, the session is told how long that took at most.
    fn has_moved(&mut self, host: usize, at: usize, took: Duration) {
        let one = &mut self.hosts[host];
        let Some(flow) = one.flows[at].as_ref().filter(|flow| !flow.closing) else { return };
        let (link, lane) = ((flow.from.0, flow.from.1), flow.number.lane);
        let longest = one.pauses.entry(link).or_default();
        *longest = (*longest).max(took);
        if one.is_moving(link) {
            return;
        }
        let took = one.pauses.remove(&link);
        let Some(flow) = one.flows[at].as_ref() else { return };
        let (stream, qos) = (flow.about.stream.clone(), flow.about.qos.unwrap_or_default());
        let effective = self.choose(host, &stream, qos, Whose::Running(lane)).effective;
        self.tell_effective(link.0, link.1, effective, took);
    }

    /// Moves a flow to another path.
    fn rebind(&mut self, host: usize, at: usize, to: usize, now: Duration) {
        let one = &mut self.hosts[host];
        let Some(flow) = one.flows[at].as_ref() else { return };
        let (about, accounts) = (one.about(flow, &self.sinks), flow.accounts.clone());
        // If it had not come here yet it has been on its way since it left.
        let (since, link) = (flow.moving.unwrap_or(now), (flow.from.0, flow.from.1));
        tracing::info!(
            host = one.name, stream = about.stream, epoch = %flow.epoch, from = self.ports[flow.number.lane].via().name(),
            to = self.ports[to].via().name(), "stream moves"
        );
        let is_up = one.lanes.is_up(flow.number.lane);
        let said = wire::Source { gone: !is_up, ..about.clone() };
        let word = one.say_as(Body::Source(said), &mut self.underway);
        self.words += usize::from(word.is_some());
        one.moves += 1;
        if !one.is_moving(link) {
            // One that moved at last was closed on its way.
            one.pauses.remove(&link);
        }
        let Some(heir) = one.open_heir(at, to, about, word) else { return };
        one.flows[heir].iter_mut().for_each(|flow| flow.moving = Some(since));
        if !is_up {
            one.schedule_again(now, at);
        }
        let routes = self.domains.iter_mut().flat_map(|d| d.intakes.iter_mut().flatten());
        let routes = routes.flat_map(|intake| intake.sources.values_mut()).flat_map(|source| source.routes.iter_mut());
        routes.filter(|route| (route.host, route.flow) == (host, at)).for_each(|route| route.flow = heir);
        self.hosts[host].close_flow(at);
        self.tell_moved(host, to, &accounts);
    }

    /// Another host has something that was said to it, or will never have it: perhaps what it had to know of a flow.
    pub(crate) fn word_ended(&mut self, token: u64) {
        // Counted anew: one that has ended meanwhile has taken its word with it.
        self.words = 0;
        for host in &mut self.hosts {
            for flow in host.flows.marked_mut(Looker::Chores) {
                if flow.word == Some(token) {
                    flow.word = None;
                    host.goes_on = true;
                }
                self.words += usize::from(flow.word.is_some());
            }
        }
    }

    /// Tells the sessions of all sources what their streams get towards a host now.
    pub(crate) fn tell_all_moved(&mut self, host: usize) {
        let open = self.hosts[host].flows.iter().flatten().filter(|flow| !flow.closing && !flow.lost);
        let all: Vec<_> = open.map(|flow| (flow.number.lane, flow.accounts.clone())).collect();
        all.into_iter().for_each(|(lane, accounts)| self.tell_moved(host, lane, &accounts));
    }

    /// Tells the sessions of sources what their stream, which goes over this lane, gets now.
    fn tell_moved(&mut self, host: usize, lane: usize, accounts: &[usize]) {
        for account in accounts {
            let is = self.hosts[host].accounts[*account].as_ref().filter(|account| account.was_attached);
            let Some((at, link, sink)) = is.map(|is| (is.domain, is.link, is.sink)) else { continue };
            let Some(announced) = self.sinks.get(&sink).map(|sink| &sink.announced) else { continue };
            let (stream, qos) = (&announced.stream, announced.qos.unwrap_or_default());
            let effective = self.choose(host, stream, qos, Whose::Running(lane)).effective;
            self.tell_effective(at, link, effective, None);
        }
    }
}

/// What is said of the frames that pass over a path.
fn size_in_words((host, datapath): (&str, &str), passes: usize, most: usize) -> String {
    if passes >= most {
        return format!("frames of {passes} bytes reach host {host} over {datapath} again");
    }
    format!(
        "frames above {passes} bytes do not reach host {host} over {datapath}, though the interfaces take {most}: something between \
         them carries less"
    )
}

impl Host {
    /// Whether a flow of a link is on its way to another path.
    fn is_moving(&self, link: (usize, usize)) -> bool {
        let mut flows = self.flows.iter().flatten();
        flows.any(|flow| flow.moving.is_some() && !flow.closing && (flow.from.0, flow.from.1) == link)
    }

    /// Opens the heir of a flow over another path. `word`: by which the other host is told.
    pub(crate) fn open_heir(
        &mut self,
        at: usize,
        lane: usize,
        about: wire::Source,
        word: Option<u64>,
    ) -> Option<usize> {
        let old = self.flows[at].as_ref()?;
        let (spec, accounts, from) = ((old.spec, old.from), old.accounts.clone(), old.number.lane);
        let heir = self.open_flow(lane, spec, about);
        let flow = self.flows[heir].as_mut()?;
        (flow.accounts, flow.word, flow.behind) = (accounts, word, true);
        let number = flow.number;
        self.flows[at].iter_mut().for_each(|old| old.heir = Some((heir, number)));
        if !self.lanes.is_up(from) {
            self.fold(at);
        }
        Some(heir)
    }

    /// What a reliable flow that has an heir has not delivered goes to that, in front of what it has: the flow's path does not
    /// stand, or not for long. Nothing happens to other flows.
    pub(crate) fn fold(&mut self, at: usize) {
        let Some(old) = self.flows[at].as_mut().filter(|old| old.reliable) else { return };
        let Some(heir) = old.heir.take() else { return };
        let (from, backlog) = (old.number, std::mem::take(&mut old.backlog));
        let Some(flow) = self.heir(heir) else {
            // The source is closed, and nobody waits for the rest.
            self.flows[at].iter_mut().for_each(|old| old.backlog.clone_from(&backlog));
            return;
        };
        let later = std::mem::take(&mut flow.backlog);
        self.pass_over((at, from), heir);
        let mut back = VecDeque::from(self.lanes.take_back(from));
        back.extend(backlog);
        back.extend(later);
        self.heir(heir).into_iter().for_each(|flow| flow.backlog = std::mem::take(&mut back));
    }

    /// An heir, unless it has ended.
    fn heir(&mut self, (at, number): (usize, FlowId)) -> Option<&mut OutFlow> {
        self.flows.get_mut(at)?.as_mut().filter(|flow| flow.number == number)
    }

    /// A flow is done: its heir, if it has one, goes on.
    pub(crate) fn succeed(&mut self, at: usize, flow: &OutFlow) {
        flow.heir.into_iter().for_each(|heir| self.pass_over((at, flow.number), heir));
    }

    /// Nothing more goes by a flow whose stream has moved. If one before it has still to end, because the stream moved on before it had
    /// moved, that one's heir is now this one's, which goes on waiting.
    fn pass_over(&mut self, gone: (usize, FlowId), heir: (usize, FlowId)) {
        // Who has an heir never rests.
        let flows = self.flows.marked_mut(Looker::Chores);
        let mut before = flows.filter(|flow| flow.heir == Some(gone)).peekable();
        let waits = before.peek().is_some();
        before.for_each(|flow| flow.heir = Some(heir));
        self.heir(heir).into_iter().for_each(|flow| flow.behind = waits);
    }

    /// Messages of a flow that the scheduler still holds go to the flow that its source has now.
    fn schedule_again(&mut self, now: Duration, at: usize) {
        let Some(flow) = self.flows[at].as_ref().filter(|flow| flow.reliable && flow.queued > 0) else { return };
        let (epoch, number) = (flow.epoch, flow.number);
        let Some(to) = self.by_epoch.get(&epoch).copied() else { return };
        let items: Vec<_> = std::iter::from_fn(|| self.egress.pull(now)).collect();
        for mut item in items {
            if item.flow == (at, number) {
                let Some(heir) = self.flows[to].as_mut() else { continue };
                item.flow = (to, heir.number);
                heir.queued += item.next.messages();
                self.flows[at].iter_mut().for_each(|flow| flow.queued -= item.next.messages());
            }
            // What has classes keeps what it is given.
            let _ = self.egress.push(now, item);
        }
    }

    /// Of each account, what its reliable flows have not brought to the sinks.
    pub(crate) fn again(&self, account: usize) -> u64 {
        let flows = self.flows.marked(Looker::Chores);
        let flows = flows.filter(|flow| flow.reliable && flow.accounts.contains(&account));
        let of = |flow: &OutFlow| {
            let counts = self.lanes.counts(flow.number).unwrap_or_default();
            counts.waiting + counts.under_way + flow.held_back()
        };
        flows.map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::network::host::tests::Rig;

    #[test]
    fn what_does_not_pass_is_said_in_words() {
        let words = size_in_words(("ric", "udp"), 1472, 8968);
        let expected = "frames above 1472 bytes do not reach host ric over udp, though the interfaces take 8968: something between them \
                        carries less";
        assert_eq!(words, expected);
        assert_eq!(size_in_words(("ric", "udp"), 8968, 8968), "frames of 8968 bytes reach host ric over udp again");
    }

    #[test]
    fn a_stream_that_moves_on_before_it_has_moved_loses_nothing_with_its_host() {
        let mut rig = Rig::new();
        rig.talk(None);
        let settings = config::Network::default();
        let beside = Path::new(path_config(&settings, 1, 1472, true), 5, rig.now);
        rig.host.lanes.put(HOME + 1, Address::Ip(settings.listen), beside, rig.now);
        let (first, account) = rig.open_as(true);
        assert_eq!(rig.talk(None).0, 1);
        // Under way over the first path, and not confirmed; what follows is for the second.
        rig.emit((first, account), 1..=3);
        let about = wire::Source::default();
        let spec = rig.host.flows[first].as_ref().map(|flow| (flow.spec, flow.from)).unwrap();
        let second = rig.host.open_flow(HOME + 1, spec, about.clone());
        let number = rig.host.flows[second].as_ref().unwrap().number;
        rig.host.flows[first].iter_mut().for_each(|flow| flow.heir = Some((second, number)));
        rig.host.flows[second].iter_mut().for_each(|flow| (flow.behind, flow.accounts) = (true, vec![account]));
        rig.host.close_flow(first);
        rig.emit((second, account), 4..=5);
        // That is lost, and the stream goes on over the first, whose flow is not done.
        let third = rig.host.open_heir(second, HOME, about, None).unwrap();
        rig.host.close_flow(second);
        rig.forget_ended();
        rig.emit((third, account), 6..=6);
        assert!(rig.host.flows[second].is_none() && rig.host.flows[first].is_some());
        // So is the host, and comes back.
        let now = rig.now;
        rig.host.lanes.path(HOME).unwrap().disconnect(now);
        rig.talk(None);
        rig.host.push_waiting();
        rig.talk(None);
        assert_eq!(rig.arrived, [1, 2, 3, 4, 5, 6]);
        assert_eq!((rig.account(account).pending(), rig.host.again(account)), (6, 0));
        assert!(rig.host.flows[first].is_none());
    }

    #[test]
    fn a_stream_that_moved_twice_goes_on_when_all_before_is_through() {
        let mut rig = Rig::new();
        rig.talk(None);
        let (first, account) = rig.open_as(true);
        assert_eq!(rig.talk(None).0, 1);
        rig.emit((first, account), 1..=3);
        let about = wire::Source::default();
        let second = rig.host.open_heir(first, HOME, about.clone(), None).unwrap();
        rig.emit((second, account), 4..=5);
        let third = rig.host.open_heir(second, HOME, about, None).unwrap();
        rig.emit((third, account), 6..=6);
        // The second is given up before the first is through.
        rig.host.fold(second);
        [first, second].into_iter().for_each(|at| rig.host.close_flow(at));
        let behind = |rig: &Rig| rig.host.flows[third].as_ref().unwrap().behind;
        assert!(behind(&rig));
        for _ in 0..3 {
            rig.talk(None);
            rig.host.push_waiting();
        }
        assert!(!behind(&rig));
        assert_eq!(rig.arrived, [1, 2, 3, 4, 5, 6]);
    }
}
