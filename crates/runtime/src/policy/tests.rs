use super::{Choice, DEFAULT, Kind, Standing, Table, local, refused, when::every_qos};
use crate::config::Policy;
use insane_wire::qos::{Acceleration, Qos, REFUSED, Reliability, Resources, Timing};
use std::collections::BTreeSet;

/// Two hosts: which accelerated datapaths each has, and by which they are connected.
struct Pair {
    has: [Vec<Kind>; 2],
    connected: Vec<Kind>,
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

/// What each of two hosts can have, and every part of what they have in common that can be connected.
fn pairs() -> Vec<Pair> {
    let sets = sets();
    let mut pairs = Vec::new();
    for has in sets.iter().flat_map(|one| sets.iter().map(move |other| [one.clone(), other.clone()])) {
        let common = |set: &&Vec<Kind>| set.iter().all(|kind| has.iter().all(|has| has.contains(kind)));
        pairs.extend(sets.iter().filter(common).map(|set| Pair { has: has.clone(), connected: set.clone() }));
    }
    pairs
}

const NAMES: [&str; 2] = ["one", "two"];

impl Pair {
    fn standing(&self, from: usize, kind: Kind) -> Standing {
        let has = |end: usize| kind == Kind::Udp || self.has[end].contains(&kind);
        let here = if has(from) { Ok(()) } else { Err("no such interface") };
        Standing::of(here, has(1 - from), kind == Kind::Udp || self.connected.contains(&kind))
    }

    fn choose(&self, table: &Table, qos: Qos, from: usize) -> Choice {
        table.choose(qos, (NAMES[from], NAMES[1 - from]), |kind| self.standing(from, kind))
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
}

/// The default, every order of all kinds with a list's end for each length, and one that depends on all fields.
fn tables() -> Vec<Table> {
    use Kind::{Dpdk, Plugin, Udp, Xdp};
    let row = |when: &str, datapaths: &[Kind]| Policy { when: when.into(), datapaths: datapaths.to_vec() };
    let mut tables = vec![Table::default()];
    for order in [
        [Xdp, Dpdk, Plugin],
        [Xdp, Plugin, Dpdk],
        [Dpdk, Xdp, Plugin],
        [Dpdk, Plugin, Xdp],
        [Plugin, Xdp, Dpdk],
        [Plugin, Dpdk, Xdp],
    ] {
        for length in 0..=order.len() {
            tables.push(Table::new(&[row("", &[&order[..length], &[Udp]].concat())]).unwrap());
        }
    }
    let rows = [
        row("acceleration=none,reliability=reliable", &[Plugin, Udp]),
        row("acceleration=none", &[Udp]),
        row("timing=sensitive", &[Plugin, Dpdk, Udp]),
        row("resources=unlimited,reliability=reliable", &[Dpdk, Xdp, Udp]),
        row("", &[Xdp, Plugin, Udp]),
    ];
    tables.push(Table::new(&rows).unwrap());
    tables
}

/// Every QoS, every set of datapaths at each end, every part of them that is connected, and many tables: the choice is the best that
/// both have, there is a reason for each downgrade and for nothing else, and the other end would choose the same the other way.
#[test]
fn what_is_chosen_is_the_best_that_both_have_and_both_agree() {
    let (tables, pairs, mut seen) = (tables(), pairs(), BTreeSet::new());
    let cases = tables.iter().flat_map(|table| pairs.iter().map(move |pair| (table, pair)));
    for (table, pair, qos) in cases.flat_map(|(table, pair)| every_qos().map(move |qos| (table, pair, qos))) {
        let choices = [0, 1].map(|from| pair.choose(table, qos, from));
        for (from, Choice { kind, effective }) in choices.iter().enumerate() {
            let carries = |kind: &Kind| *kind == Kind::Udp || pair.connected.contains(kind);
            let wanted = table.datapaths(qos);
            assert_eq!(Some(kind), wanted.iter().find(|kind| carries(kind)), "{qos:?}");
            assert!(*kind == Kind::Udp || pair.has.iter().all(|set| set.contains(kind)), "{kind:?}");
            assert_eq!((effective.datapath.as_str(), effective.peer.as_str()), (kind.name(), NAMES[1 - from]));
            let served = effective.qos.unwrap();
            // What is a downgrade has its reason, each one; and nothing else has one.
            let slower = qos.acceleration() == Acceleration::Preferred && *kind == Kind::Udp;
            let untimed = qos.timing() == Timing::Sensitive;
            assert_eq!(served.acceleration() == qos.acceleration(), !slower);
            assert_eq!(served.timing(), Timing::BestEffort);
            assert_eq!((served.reliability(), served.resources()), (qos.reliability(), qos.resources()));
            assert_eq!(effective.transport == "reliable", qos.reliability() == Reliability::Reliable);
            let reasons = |field: &str| effective.reasons.iter().filter(|reason| reason.starts_with(field)).count();
            let counts = [reasons("acceleration=preferred: "), reasons("timing=sensitive: ")];
            assert_eq!(counts, [slower, untimed].map(usize::from), "{:?}", effective.reasons);
            assert_eq!((effective.reasons.len(), effective.reasons.is_empty()), (counts.iter().sum(), served == qos));
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
                None => assert_eq!(served, qos),
                Some(none) => {
                    assert!(served != qos && none.datapath == REFUSED && none.transport == REFUSED);
                    let told = effective.reasons.iter().map(|reason| format!("refused under strict: {reason}"));
                    assert!(none.reasons.iter().cloned().eq(told), "{none:?}");
                }
            }
            seen.insert((*kind, slower));
        }
        let [one, two] = choices;
        assert_eq!(
            (one.kind, one.effective.qos, one.effective.transport),
            (two.kind, two.effective.qos, two.effective.transport)
        );
    }
    // Each kind was chosen, and UDP both as wanted and for want of better.
    let all = Kind::ALL.into_iter().map(|kind| (kind, false)).chain([(Kind::Udp, true)]);
    assert_eq!(seen, all.collect());
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
        let choice = table.choose(qos, ("paris", "berlin"), |_| standing.clone());
        assert!(choice.effective.reasons[0].contains(text), "{:?}", choice.effective.reasons);
    }
}

#[test]
fn who_spares_no_resources_gets_dpdk_or_the_next_best() {
    let table = Table::new(&[]).unwrap();
    let qos = Qos::parse("acceleration=preferred,resources=unlimited").unwrap();
    let with = |has: &[Kind]| {
        let standing = |kind| if has.contains(&kind) { Standing::Connected } else { Standing::NotThere };
        table.choose(qos, ("here", "there"), standing)
    };
    assert_eq!(with(&[Kind::Udp, Kind::Xdp, Kind::Dpdk]).kind, Kind::Dpdk);
    let next = with(&[Kind::Udp, Kind::Xdp]);
    assert_eq!((next.kind, next.effective.reasons.len()), (Kind::Xdp, 0), "it is accelerated all the same");
    let last = with(&[Kind::Udp]);
    assert!(last.effective.reasons[0].contains("there offers no dpdk; there offers no xdp"), "{last:?}");
}

#[test]
fn what_was_asked_for_is_served_with_its_reasons() {
    for qos in every_qos() {
        for kind in Kind::ALL {
            let choice = Table::asked(kind, qos, "there");
            let effective = choice.effective;
            assert_eq!((choice.kind, effective.datapath.as_str()), (kind, kind.name()));
            assert_eq!(effective.qos != Some(qos), !effective.reasons.is_empty(), "{qos:?}");
            let less = qos.acceleration() == Acceleration::Preferred && kind == Kind::Udp;
            assert_eq!(effective.reasons.iter().any(|reason| reason.contains("asked to go over udp")), less);
        }
    }
}

#[test]
fn the_users_table_replaces_the_default() {
    let row = |when: &str, datapaths: &[Kind]| Policy { when: when.into(), datapaths: datapaths.to_vec() };
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
        assert_eq!(choice.kind, if xdp { Kind::Xdp } else { Kind::Udp }, "{qos:?}");
        if qos.acceleration() == Acceleration::Preferred && !xdp {
            assert!(choice.effective.reasons[0].contains("network.policy names none"), "{qos:?}");
        }
    }
    assert_ne!(table, Table::new(&[]).unwrap());
    assert!(DEFAULT.iter().all(|(_, datapaths)| datapaths.last() == Some(&Kind::Udp)));
}
