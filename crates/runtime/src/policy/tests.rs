use super::{Choice, DEFAULT, Kind, Standing, Table, local, refused, when::every_qos};
use crate::config::{Policy, Transport, Via};
use insane_wire::qos::{Acceleration, Qos, REFUSED, Reliability, Resources, Timing};
use std::collections::BTreeSet;

/// Two hosts: which accelerated datapaths each has, by which they are connected, and of these by which over TCP, too.
struct Pair {
    has: [Vec<Kind>; 2],
    connected: Vec<Kind>,
    tcp: Vec<Kind>,
}

/// Every set of the accelerated kinds.
fn sets() -> Vec<Vec<Kind>> {
    let mut sets = vec![Vec::new()];
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_accelerated()) {
        let with: Vec<Vec<Kind>> = sets.iter().map(|set| [set.as_slice(), &[kind]].concat()).collect();
        sets.extend(with);
    }
    sets
}

/// What each of two hosts can have, and every part of what they have in common that can be connected, and every part of that over TCP.
fn pairs() -> Vec<Pair> {
    let sets = sets();
    let mut pairs = Vec::new();
    for has in sets.iter().flat_map(|one| sets.iter().map(move |other| [one.clone(), other.clone()])) {
        let common = |set: &&Vec<Kind>| set.iter().all(|kind| has.iter().all(|has| has.contains(kind)));
        for connected in sets.iter().filter(common) {
            let tcp = sets.iter().filter(|tcp| tcp.iter().all(|kind| connected.contains(kind)));
            pairs.extend(tcp.map(|tcp| Pair { has: has.clone(), connected: connected.clone(), tcp: tcp.clone() }));
        }
    }
    pairs
}

const NAMES: [&str; 2] = ["one", "two"];

impl Pair {
    fn standing(&self, from: usize, Via { kind, tcp }: Via) -> Standing {
        let has = |end: usize| kind == Kind::Udp || self.has[end].contains(&kind);
        let here = if has(from) { Ok(()) } else { Err("no such interface") };
        if tcp {
            return Standing::of(here, self.tcp.contains(&kind), true);
        }
        Standing::of(here, has(1 - from), kind == Kind::Udp || self.connected.contains(&kind))
    }

    fn choose(&self, table: &Table, qos: Qos, from: usize) -> Choice {
        table.choose(qos, (NAMES[from], NAMES[1 - from]), |way| self.standing(from, way))
    }

    /// What an end says of a datapath that is passed over.
    fn passed(&self, from: usize, kind: Kind) -> String {
        let ([own, host], name) = ([NAMES[from], NAMES[1 - from]], kind.name());
        if !self.has[from].contains(&kind) {
            format!("{own} has no {name}: no such interface")
        } else if !self.has[1 - from].contains(&kind) {
            format!("{host} offers no {name}")
        } else {
            format!("{own} does not reach {host} over {name}")
        }
    }

    /// What an end says of TCP that is passed over.
    fn without(&self, from: usize, kind: Kind) -> String {
        let ([own, host], name) = ([NAMES[from], NAMES[1 - from]], kind.name());
        let here = self.has[from].contains(&kind);
        if here {
            format!("{host} offers no {name} with TCP")
        } else {
            format!("{own} has no {name} with TCP: no such interface")
        }
    }
}

fn row(when: &str, datapaths: &[Kind]) -> Policy {
    Policy { when: when.into(), datapaths: datapaths.to_vec(), ..Policy::default() }
}

/// The default, every order of all kinds with a list's end for each length, and one that depends on all fields; but for the default,
/// each without TCP and with it for what is reliable.
fn tables() -> Vec<(Table, bool)> {
    use Kind::{Dpdk, Plugin, Udp, Xdp};
    let mut tables = vec![vec![]];
    for order in [
        [Xdp, Dpdk, Plugin],
        [Xdp, Plugin, Dpdk],
        [Dpdk, Xdp, Plugin],
        [Dpdk, Plugin, Xdp],
        [Plugin, Xdp, Dpdk],
        [Plugin, Dpdk, Xdp],
    ] {
        for length in 0..=order.len() {
            tables.push(vec![row("", &[&order[..length], &[Udp]].concat())]);
        }
    }
    let rows = [
        row("acceleration=none,reliability=reliable", &[Plugin, Udp]),
        row("acceleration=none", &[Udp]),
        row("timing=sensitive", &[Plugin, Dpdk, Udp]),
        row("resources=unlimited,reliability=reliable", &[Dpdk, Xdp, Udp]),
        row("", &[Xdp, Plugin, Udp]),
    ];
    tables.push(rows.to_vec());
    let mut all = vec![(Table::default(), false)];
    for rows in tables.into_iter().filter(|rows| !rows.is_empty()) {
        all.push((Table::new(&rows).unwrap(), false));
        // To the row for what has no acceleration come no reliable streams: they have one before it.
        let tcp = |row: Policy| match row.when.as_str() {
            "acceleration=none" => row,
            _ => Policy { transport: Transport::Tcp, ..row },
        };
        all.push((Table::new(&rows.into_iter().map(tcp).collect::<Vec<_>>()).unwrap(), true));
    }
    all
}

/// Every QoS, every set of datapaths at each end, every part of them that is connected, and many tables: the choice is the best that
/// both have, there is a reason for each downgrade and for nothing else, and the other end would choose the same the other way.
#[test]
fn what_is_chosen_is_the_best_that_both_have_and_both_agree() {
    let (tables, pairs, mut seen) = (tables(), pairs(), BTreeSet::new());
    let cases = tables.iter().flat_map(|table| pairs.iter().map(move |pair| (table, pair)));
    for ((table, tcp), pair, qos) in cases.flat_map(|(table, pair)| every_qos().map(move |qos| (table, pair, qos))) {
        let choices = [0, 1].map(|from| pair.choose(table, qos, from));
        for (from, Choice { via: Via { kind, tcp: over_tcp }, effective }) in choices.iter().enumerate() {
            let carries = |kind: &Kind| *kind == Kind::Udp || pair.connected.contains(kind);
            let wanted = table.datapaths(qos);
            // TCP of any of the datapaths goes before none, if that is wanted.
            let reliable = qos.reliability() == Reliability::Reliable;
            let with_tcp = wanted.iter().find(|kind| *tcp && reliable && pair.tcp.contains(kind));
            let best = with_tcp.or_else(|| wanted.iter().find(|kind| carries(kind)));
            assert_eq!((Some(kind), *over_tcp), (best, with_tcp.is_some()), "{qos:?}");
            assert!(*kind == Kind::Udp || pair.has.iter().all(|set| set.contains(kind)), "{kind:?}");
            assert_eq!((effective.datapath.as_str(), effective.peer.as_str()), (kind.name(), NAMES[1 - from]));
            let served = effective.qos.unwrap();
            // What is a downgrade has its reason, each one; and nothing else has one.
            let slower = qos.acceleration() == Acceleration::Preferred && *kind == Kind::Udp;
            let untimed = qos.timing() == Timing::Sensitive;
            assert_eq!(served.acceleration() == qos.acceleration(), !slower);
            assert_eq!(served.timing(), Timing::BestEffort);
            assert_eq!((served.reliability(), served.resources()), (qos.reliability(), qos.resources()));
            let transports = ["datagram", "reliable", "tcp"];
            let transport = usize::from(reliable) + usize::from(*over_tcp);
            assert_eq!(effective.transport, transports[transport]);
            let without = *tcp && reliable && !over_tcp;
            let reasons = |field: &str| effective.reasons.iter().filter(|reason| reason.starts_with(field)).count();
            let counts = ["acceleration=preferred: ", "timing=sensitive: ", "transport=tcp: "].map(reasons);
            assert_eq!(counts, [slower, untimed, without].map(usize::from), "{:?}", effective.reasons);
            let none = served == qos && !without;
            assert_eq!((effective.reasons.len(), effective.reasons.is_empty()), (counts.iter().sum(), none));
            if without {
                let passed = wanted.iter().filter(|kind| **kind != Kind::Udp).map(|kind| pair.without(from, *kind));
                let passed = passed.collect::<Vec<_>>().join("; ");
                let text = format!(" no TCP in common: {passed}; the runtime's own reliability carries it");
                assert!(effective.reasons.iter().any(|reason| reason.ends_with(&text)), "{effective:?}");
            }
            // It says of each datapath that the table names why not, in the table's order, or that it names none.
            if slower {
                let passed = wanted.iter().filter(|kind| **kind != Kind::Udp).map(|kind| pair.passed(from, *kind));
                let passed = passed.collect::<Vec<_>>().join("; ");
                let passed = if passed.is_empty() { "network.policy names none for it".into() } else { passed };
                assert!(
                    effective.reasons[0].ends_with(&format!(" no accelerated datapath in common: {passed}")),
                    "{effective:?}"
                );
            }
            // Under `strict` what is served with a reason is not served, and the reasons go along.
            match refused(effective.clone()) {
                None => assert!(served == qos && !without),
                Some(none) => {
                    assert!((served != qos || without) && none.datapath == REFUSED && none.transport == REFUSED);
                    let told = effective.reasons.iter().map(|reason| format!("refused under strict: {reason}"));
                    assert!(none.reasons.iter().cloned().eq(told), "{none:?}");
                }
            }
            seen.insert((*kind, slower, *over_tcp));
        }
        let [one, two] = choices;
        assert_eq!(
            (one.via, one.effective.qos, one.effective.transport),
            (two.via, two.effective.qos, two.effective.transport)
        );
    }
    // Each kind was chosen, with TCP and without, and UDP both as wanted and for want of better.
    let plain = Kind::ALL.into_iter().map(|kind| (kind, false, false)).chain([(Kind::Udp, true, false)]);
    let tcp = Kind::ALL.into_iter().filter(|kind| kind.is_accelerated()).map(|kind| (kind, false, true));
    assert_eq!(seen, plain.chain(tcp).collect());
}

#[test]
fn every_combination_has_its_row() {
    let table = Table::new(&[]).unwrap();
    for qos in every_qos() {
        let effective = local(qos);
        assert_eq!(effective.datapath, "shm");
        let served = effective.qos.unwrap();
        // A downgrade has a reason, and nothing else has one.
        assert_eq!(served != qos, !effective.reasons.is_empty(), "{qos:?}");
        assert_eq!((served.reliability(), served.acceleration()), (qos.reliability(), qos.acceleration()));
        let unlimited = qos.resources() == Resources::Unlimited;
        let wanted: &[Kind] = match qos.acceleration() {
            Acceleration::Preferred if unlimited => &[Kind::Dpdk, Kind::Xdp, Kind::Udp],
            Acceleration::Preferred => &[Kind::Xdp, Kind::Udp],
            Acceleration::None => &[Kind::Udp],
        };
        assert_eq!(table.datapaths(qos), wanted, "{qos:?}");
    }
}

#[test]
fn a_fall_back_says_what_is_missing_and_where() {
    let table = Table::new(&[]).unwrap();
    let mut qos = Qos::default();
    qos.set_acceleration(Acceleration::Preferred);
    for (standing, text) in [
        (Standing::NotThere, "berlin offers no xdp"),
        (Standing::NotHere("no right".into()), "paris has no xdp: no right"),
        (Standing::Unconnected, "paris does not reach berlin over xdp"),
        (Standing::Held, "paris reaches berlin over xdp again, and streams come back once it has stood for a while"),
    ] {
        let choice = table.choose(qos, ("paris", "berlin"), |_: Via| standing.clone());
        assert!(choice.effective.reasons[0].contains(text), "{:?}", choice.effective.reasons);
    }
}

#[test]
fn who_spares_no_resources_gets_dpdk_or_the_next_best() {
    let table = Table::new(&[]).unwrap();
    let qos = Qos::parse("acceleration=preferred,resources=unlimited").unwrap();
    let with = |has: &[Kind]| {
        let standing = |way: Via| if has.contains(&way.kind) { Standing::Connected } else { Standing::NotThere };
        table.choose(qos, ("here", "there"), standing)
    };
    assert_eq!(with(&[Kind::Udp, Kind::Xdp, Kind::Dpdk]).via, Via::of(Kind::Dpdk));
    let next = with(&[Kind::Udp, Kind::Xdp]);
    assert_eq!((next.via, next.effective.reasons.len()), (Via::of(Kind::Xdp), 0), "it is accelerated all the same");
    let last = with(&[Kind::Udp]);
    assert!(last.effective.reasons[0].contains("there offers no dpdk; there offers no xdp"), "{last:?}");
}

#[test]
fn what_was_asked_for_is_served_with_its_reasons() {
    for qos in every_qos() {
        for kind in Kind::ALL {
            let choice = Table::default().asked(kind, qos, ("here", "there"), |_| Standing::Connected);
            let effective = choice.effective;
            assert_eq!((choice.via.kind, effective.datapath.as_str()), (kind, kind.name()));
            assert_eq!(effective.qos != Some(qos), !effective.reasons.is_empty(), "{qos:?}");
            let less = qos.acceleration() == Acceleration::Preferred && kind == Kind::Udp;
            assert_eq!(effective.reasons.iter().any(|reason| reason.contains("asked to go over udp")), less);
        }
    }
}

#[test]
fn the_users_table_replaces_the_default() {
    let rows = [
        row("acceleration=preferred, reliability=reliable", &[Kind::Udp]),
        row("timing=sensitive", &[Kind::Xdp, Kind::Udp]),
        row("", &[Kind::Udp]),
    ];
    let table = Table::new(&rows).unwrap();
    for qos in every_qos() {
        let choice = table.choose(qos, ("here", "there"), |_| Standing::Connected);
        let both = qos.acceleration() == Acceleration::Preferred && qos.reliability() == Reliability::Reliable;
        let xdp = !both && qos.timing() == Timing::Sensitive;
        assert_eq!(choice.via, Via::of(if xdp { Kind::Xdp } else { Kind::Udp }), "{qos:?}");
        if qos.acceleration() == Acceleration::Preferred && !xdp {
            assert!(choice.effective.reasons[0].contains("network.policy names none"), "{qos:?}");
        }
    }
    assert_ne!(table, Table::new(&[]).unwrap());
    assert!(DEFAULT.iter().all(|(_, datapaths)| datapaths.last() == Some(&Kind::Udp)));
}

/// What an operator has asked for goes over TCP where its row says so, of that datapath alone.
#[test]
fn what_was_asked_for_has_its_own_tcp_or_says_that_it_has_none() {
    let tcp = |row: Policy| Policy { transport: Transport::Tcp, ..row };
    let table = Table::new(&[tcp(row("", &[Kind::Dpdk, Kind::Xdp, Kind::Udp]))]).unwrap();
    let names = ("here", "there");
    let standing = |way: Via| match way {
        Via { kind: Kind::Dpdk, tcp: true } => Standing::NotThere,
        _ => Standing::Connected,
    };
    let reliable = Qos::parse("reliability=reliable,acceleration=preferred").unwrap();
    let asked = |kind, qos| table.asked(kind, qos, names, standing);
    let xdp = asked(Kind::Xdp, reliable);
    assert_eq!((xdp.via, xdp.effective.transport.as_str()), (Via::tcp_of(Kind::Xdp), "tcp"));
    assert!(xdp.effective.reasons.is_empty(), "{xdp:?}");
    for (kind, text) in [
        (Kind::Dpdk, "go over dpdk, which has no TCP here: there offers no dpdk with TCP; the runtime's own"),
        (Kind::Udp, "go over udp, which has no TCP here; the runtime's own"),
    ] {
        let choice = asked(kind, reliable);
        assert_eq!((choice.via, choice.effective.transport.as_str()), (Via::of(kind), "reliable"));
        let reason = choice.effective.reasons.last().unwrap();
        assert!(reason.starts_with("transport=tcp: ") && reason.contains(text), "{reason}");
    }
    let best_effort = asked(Kind::Xdp, Qos::default());
    assert_eq!((best_effort.via, best_effort.effective.transport.as_str()), (Via::of(Kind::Xdp), "datagram"));
    // Who waits for what is better waits for TCP, too.
    let ways = |qos| table.ways(qos).map(Via::name).collect::<Vec<_>>();
    assert_eq!(ways(reliable), ["dpdk+tcp", "xdp+tcp", "dpdk", "xdp", "udp"]);
    assert_eq!(ways(Qos::default()), ["dpdk", "xdp", "udp"]);
}

#[test]
fn tcp_for_streams_that_are_not_reliable_is_refused() {
    let tcp = |row: Policy| Policy { transport: Transport::Tcp, ..row };
    let kinds = [Kind::Xdp, Kind::Udp];
    for rows in [
        [row("reliability=reliable", &kinds), tcp(row("", &kinds))],
        [tcp(row("reliability=best-effort", &kinds)), row("", &kinds)],
    ] {
        let at = rows.iter().position(|row| row.transport == Transport::Tcp).unwrap();
        let error = Table::new(&rows).unwrap_err().to_string();
        assert!(error.contains(&format!("network.policy[{at}].transport")) && error.contains("no reliable"), "{error}");
    }
    assert!(Table::new(&[tcp(row("reliability=reliable", &kinds)), row("", &kinds)]).is_ok());
}
