//! DQL's behaviour as Linux documents it. (5G-BDP is tested beside its code.)

use insane_traffic::pace::{Dql, Pace, Pacer};
use insane_traffic::spec::DqlSpec;
use insane_traffic::{RlcStatus, Span, Time};

/// A buffer that is drained by `per_ms` bytes each millisecond and reports once per millisecond.
fn run(dql: &mut Dql, from_ms: u64, to_ms: u64, per_ms: u64, buffer: &mut u64) -> (u64, u64) {
    let (mut served, mut peak) = (0, 0);
    for ms in from_ms..to_ms {
        let now = Time::from_millis(ms);
        while dql.admit(now, 1500) == Pace::Pass {
            dql.sent(now, 1500);
            *buffer += 1500;
        }
        peak = peak.max(*buffer);
        let taken = per_ms.min(*buffer);
        *buffer -= taken;
        served += taken;
        dql.report(now + Span::from_micros(900), &RlcStatus { bytes: *buffer, ..RlcStatus::default() });
    }
    (served, peak)
}

#[test]
fn dql_finds_a_limit_that_keeps_the_buffer_from_running_dry() {
    let mut dql = Dql::new(DqlSpec::default());
    let mut buffer = 0;
    run(&mut dql, 1, 500, 20_000, &mut buffer);
    let (served, peak) = run(&mut dql, 500, 1_500, 20_000, &mut buffer);
    assert!(served >= 1_000 * 20_000 * 97 / 100, "{served}");
    assert!(peak <= 3 * 20_000, "{peak}");
}

#[test]
fn dql_lowers_the_limit_when_the_drain_slows_down() {
    let mut dql = Dql::new(DqlSpec::default());
    let mut buffer = 0;
    run(&mut dql, 1, 500, 40_000, &mut buffer);
    let high = dql.limit();
    run(&mut dql, 500, 2_500, 2_000, &mut buffer);
    assert!(dql.limit() < high / 2, "{} after {high}", dql.limit());
}

#[test]
fn dql_stays_between_its_bounds_and_never_stops_without_reports() {
    let spec = DqlSpec { max_limit: "20000".parse().unwrap(), ..DqlSpec::default() };
    let mut dql = Dql::new(spec);
    let mut buffer = 0;
    run(&mut dql, 1, 500, 1_000_000, &mut buffer);
    assert_eq!(dql.limit(), 20_000);
    let (mut now, mut sent) = (Time::from_millis(600), 0);
    while now < Time::from_millis(1_600) {
        match dql.admit(now, 1500) {
            Pace::Pass => {
                dql.sent(now, 1500);
                sent += 1;
            }
            Pace::Wait(until) => {
                assert!(until > now);
                now = until;
            }
        }
    }
    assert!(sent > 50, "{sent}");
}

#[test]
fn dql_is_linux_step_by_step() {
    // Worked by hand from lib/dynamic_queue_limits: the limit begins at its minimum of 100.
    let spec = DqlSpec { min_limit: "100".parse().unwrap(), hold_time: "10ms".parse().unwrap(), ..DqlSpec::default() };
    let mut dql = Dql::new(spec);
    let at = Time::from_millis;
    // 300 are queued over the limit of 100, all are done at once: starved by 200 and by what came beyond the last check.
    dql.sent(at(0), 300);
    assert!(matches!(dql.admit(at(0), 1), Pace::Wait(_)) || dql.limit() == 100);
    dql.completed(at(1), 300);
    assert_eq!(dql.limit(), 400);
    // 400 are within the limit and only half done: nothing changes.
    dql.sent(at(2), 400);
    dql.completed(at(3), 200);
    assert_eq!(dql.limit(), 400);
    // Slack is what two completions leave of the limit; after the hold time it is taken away.
    dql.sent(at(4), 200);
    dql.completed(at(5), 100);
    assert_eq!(dql.limit(), 400);
    dql.sent(at(20), 100);
    dql.completed(at(20), 100);
    assert_eq!(dql.limit(), 200);
}
