use super::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn key(host: u8) -> Key {
    (0, IpAddr::from([10, 0, 0, host]))
}

fn answer(mac: Mac) -> Said {
    Said::Answer { mac: Some(mac), solicited: None, overrides: true }
}

fn cache() -> Neighbours {
    Neighbours::new(4, SECOND, 1)
}

/// What is due until `until`, with the seconds at which it was.
fn run(cache: &mut Neighbours, until: u64) -> Vec<(u64, Due)> {
    let mut seen = Vec::new();
    while cache.next() <= until * SECOND {
        let now = cache.next();
        let mut from = 0;
        while let Some((place, _, due)) = cache.due(now, from) {
            from = place + 1;
            seen.push((now / SECOND, due));
        }
        cache.settle(now);
    }
    seen
}

#[test]
fn questions_are_repeated_less_and_less_and_given_up() {
    let mut cache = cache();
    assert!(matches!(cache.find(0, key(1)), Found::Ask(_)));
    assert!(matches!(cache.find(1, key(1)), Found::Asked(_)));
    let seen = run(&mut cache, 7);
    assert_eq!(seen, [(1, Due::Ask(None)), (3, Due::Ask(None)), (7, Due::Silent)]);
    assert_eq!(cache.find(7 * SECOND + 1, key(1)), Found::Silent);
    assert_eq!((run(&mut cache, 8), cache.len()), (vec![], 0));
    assert!(matches!(cache.find(8 * SECOND, key(1)), Found::Ask(_)));
}

#[test]
fn an_answer_resolves_and_what_is_used_is_asked_after() {
    let mut cache = cache();
    let Found::Ask(place) = cache.find(0, key(1)) else { panic!("it is new") };
    assert_eq!(cache.hear(SECOND / 2, key(1), answer(A)), Learnt::Resolved(place));
    assert_eq!(cache.find(SECOND, key(1)), Found::Station(A, REACHABLE_NS + SECOND / 2));
    assert_eq!(run(&mut cache, 31), []);
    // Stale, then used: a delay, three questions by unicast, and it is forgotten.
    assert_eq!(cache.find(40 * SECOND, key(1)), Found::Station(A, 45 * SECOND));
    let seen = run(&mut cache, 100);
    assert_eq!(seen, [45, 46, 47].map(|at| (at, Due::Ask(Some(A)))));
    assert!(matches!(cache.find(100 * SECOND, key(1)), Found::Ask(_)));
}

#[test]
fn an_answer_while_probing_makes_it_reachable_again() {
    let mut cache = cache();
    cache.find(0, key(1));
    cache.hear(0, key(1), answer(A));
    cache.find(40 * SECOND, key(1));
    assert_eq!(run(&mut cache, 45).len(), 1);
    let generation = cache.generation;
    assert_eq!(cache.hear(45 * SECOND, key(1), answer(A)), Learnt::Known);
    assert_eq!(cache.find(46 * SECOND, key(1)), Found::Station(A, 75 * SECOND));
    assert_eq!(cache.generation, generation);
}

#[test]
fn announcements_of_strangers_are_not_taken_and_those_of_known_hosts_are() {
    let mut cache = cache();
    assert_eq!(cache.hear(0, key(1), answer(A)), Learnt::Unasked);
    assert_eq!(cache.len(), 0);
    cache.find(0, key(1));
    cache.hear(0, key(1), answer(A));
    let generation = cache.generation;
    assert_eq!(cache.hear(1, key(1), answer(B)), Learnt::Known);
    assert_ne!(cache.generation, generation);
    // It is used, but asked after: an announcement alone is no proof.
    assert_eq!(cache.find(2, key(1)), Found::Station(B, 2 + DELAY_NS));
}

#[test]
fn an_answer_that_does_not_override_casts_doubt_only() {
    let mut cache = cache();
    cache.find(0, key(1));
    let told = |mac, solicited, overrides| Said::Answer { mac, solicited: Some(solicited), overrides };
    assert_eq!(cache.hear(0, key(1), told(None, true, true)), Learnt::Unasked);
    assert!(matches!(cache.hear(0, key(1), told(Some(A), true, false)), Learnt::Resolved(_)));
    cache.hear(1, key(1), told(Some(B), true, false));
    assert_eq!(cache.find(2, key(1)), Found::Station(A, 2 + DELAY_NS));
    cache.hear(3, key(1), told(None, true, false));
    assert_eq!(cache.find(4, key(1)), Found::Station(A, 3 + REACHABLE_NS));
}

#[test]
fn what_neighbours_cause_never_pushes_out_what_is_used() {
    let mut cache = cache();
    for host in 1..=2 {
        cache.find(0, key(host));
        cache.hear(0, key(host), answer(A));
    }
    for host in 10..200 {
        assert_eq!(cache.hear(u64::from(host), key(host), Said::Question(B)), Learnt::Known);
        assert!(cache.len() <= 4);
    }
    assert!(matches!(cache.find(300, key(1)), Found::Station(..)));
    // What we need does push out what neighbours caused, and then the oldest of ours that is known.
    for host in [3, 4] {
        assert!(matches!(cache.find(400, key(host)), Found::Ask(_)));
    }
    assert_eq!(cache.hear(500, key(9), Said::Question(B)), Learnt::Full);
    assert!(matches!(cache.find(500, key(5)), Found::Ask(_)));
    assert!(matches!(cache.find(500, key(6)), Found::Ask(_)));
    assert_eq!(cache.find(500, key(7)), Found::Full);
}
