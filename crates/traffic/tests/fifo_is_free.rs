//! First in, first out costs nothing: forwarding through [`PassThrough`] takes no more instructions than forwarding without
//! any discipline. Counted by callgrind; skipped, loudly, where valgrind is missing.

use std::hint::black_box;
use std::process::Command;

use insane_traffic::{Discipline, PassThrough, Time};

/// A descriptor as a runtime moves it: a slot, a place in it, a length, a class.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    slot: u32,
    offset: u32,
    len: u32,
    class: u32,
}

const BATCH: usize = 32;

/// What a polling thread does without a scheduler: from the link into the batch while there is room. The first two
/// arguments are those of the other function, so that calling it costs the same.
#[inline(never)]
fn forward_without(
    _discipline: &mut PassThrough,
    _clock: &std::time::Instant,
    link: &[Descriptor],
    batch: &mut [Descriptor; BATCH],
) -> usize {
    let mut used = 0;
    for &descriptor in link {
        if used == BATCH {
            break;
        }
        batch[used] = descriptor;
        used += 1;
    }
    used
}

/// The same with a discipline between the two: what it says may leave at once leaves, then what it held.
#[inline(never)]
fn forward_through<D: Discipline<Descriptor>>(
    discipline: &mut D,
    clock: &std::time::Instant,
    link: &[Descriptor],
    batch: &mut [Descriptor; BATCH],
) -> usize {
    let now = || Time::from_nanos(clock.elapsed().as_nanos() as u64);
    let mut used = 0;
    for &descriptor in link {
        if used == BATCH {
            break;
        }
        if let Some(descriptor) = discipline.push(now, descriptor, &mut ()) {
            batch[used] = descriptor;
            used += 1;
        }
    }
    while used < BATCH {
        let Some(descriptor) = discipline.pull(now, &mut ()) else { break };
        batch[used] = descriptor;
        used += 1;
    }
    used
}

type Forward = fn(&mut PassThrough, &std::time::Instant, &[Descriptor], &mut [Descriptor; BATCH]) -> usize;

/// What is counted. In a release build the compiler finds the two functions identical and keeps one of them; the marks keep
/// these two apart, so that callgrind can tell them by name.
#[inline(never)]
fn counted_without(link: &[Descriptor], batch: &mut [Descriptor; BATCH], clock: &std::time::Instant) -> usize {
    black_box(1);
    (forward_without as Forward)(&mut PassThrough, clock, link, batch)
}

#[inline(never)]
fn counted_through(link: &[Descriptor], batch: &mut [Descriptor; BATCH], clock: &std::time::Instant) -> usize {
    black_box(2);
    (forward_through::<PassThrough> as Forward)(&mut PassThrough, clock, link, batch)
}

const CASE: &str = "INSANE_TRAFFIC_FIFO_CASE";
const ROUNDS: u64 = 1_000;

/// Run under callgrind by the test below; does nothing by itself.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let link: Vec<Descriptor> =
        (0..24).map(|n| Descriptor { slot: n, offset: 64, len: 1000 + n, class: n % 4 }).collect();
    let mut batch = [Descriptor { slot: 0, offset: 0, len: 0, class: 0 }; BATCH];
    let clock = std::time::Instant::now();
    for _ in 0..ROUNDS {
        let used = match case.as_str() {
            "without" => counted_without(black_box(&link), black_box(&mut batch), black_box(&clock)),
            _ => counted_through(black_box(&link), black_box(&mut batch), black_box(&clock)),
        };
        assert_eq!(used, 24);
    }
    let sum: u64 = batch.iter().map(|d| u64::from(d.slot ^ d.offset ^ d.len ^ d.class)).sum();
    assert_ne!(sum, 0);
}

/// Instructions that callgrind counts inside the forwarding function.
fn instructions(case: &str, function: &str) -> Option<u64> {
    let out = std::env::temp_dir().join(format!("insane-traffic-fifo-{}-{case}", std::process::id()));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--test-threads=1"])
        .env(CASE, case)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{text}");
    let profile = std::fs::read_to_string(&out).unwrap();
    let _ = std::fs::remove_file(&out);
    let totals = profile.lines().find_map(|l| l.strip_prefix("totals: ").or_else(|| l.strip_prefix("summary: ")));
    Some(totals.expect("a total in the profile").trim().parse().expect("a number"))
}

#[test]
fn a_pass_through_costs_no_instruction() {
    // Without optimisation the callers differ in how they pass their marks, and the functions themselves are kept apart.
    let counted = if cfg!(debug_assertions) { "forward" } else { "counted" };
    let Some(without) = instructions("without", &format!("{counted}_without")) else {
        println!("SKIPPED: valgrind is not installed");
        return;
    };
    let through = instructions("through", &format!("{counted}_through")).unwrap();
    println!("{without} instructions without a discipline, {through} through PassThrough, {ROUNDS} rounds of 24");
    assert!(without > ROUNDS * 24, "the loop was not counted");
    assert!(through <= without, "{through} instructions through PassThrough, {without} without");
}
