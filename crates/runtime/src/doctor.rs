//! What this host can do, what is odd, and who may join a domain.

use crate::config::{Domain, distance};
use crate::core::{Channel, Conn, Core, Credentials};
use serde_json::{Value, json};

fn check(check: &str, ok: bool, text: impl Into<String>, hint: &str) -> Value {
    let state = if ok { "ok" } else { "warn" };
    json!({"check": check, "state": state, "text": text.into(), "hint": if ok { "" } else { hint }})
}

/// The report `doctor`: a list of checks, each with a state, a text and a hint. `datapaths` are those that the configuration names,
/// as in the report `status`.
#[must_use]
pub fn report(core: &Core, datapaths: &[Value]) -> Value {
    let mut checks = Vec::new();
    let probe = insane_shm::memory::SharedMemory::create("insane-doctor", 4096, false, false);
    let text = probe.as_ref().map_or_else(ToString::to_string, |_| "memory can be sealed".into());
    checks.push(check("sealing", probe.is_ok(), text, "a kernel from 5.1 on has F_SEAL_FUTURE_WRITE"));
    let huge = insane_shm::memory::SharedMemory::create("insane-doctor", 1, true, false);
    let wanted = core.config().memory.huge_pages;
    let text = if huge.is_ok() { "2 MB pages are to be had" } else { "no 2 MB pages are reserved" };
    checks.push(check(
        "huge-pages",
        huge.is_ok() || !wanted,
        text,
        "sysctl vm.nr_hugepages=512, or memory.huge_pages = false",
    ));
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let needs = u64::from(core.config().quota.sessions) * 4;
    let text = format!("{files} descriptors, about {needs} for quota.sessions");
    checks.push(check("descriptors", files >= needs, text, "raise LimitNOFILE in the unit, or lower quota.sessions"));
    let knob = rustix::fs::access("/dev/cpu_dma_latency", rustix::fs::Access::WRITE_OK).is_ok();
    let text = if knob { "the CPU latency knob may be held" } else { "the CPU latency knob is not open to this user" };
    let hint = "set wait.cpu_latency_knob = false, or give access to /dev/cpu_dma_latency (systemd: PrivateDevices=no)";
    checks.push(check("cpu-latency", knob || !core.config().wait.cpu_latency_knob, text, hint));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    checks.push(check(
        "cores",
        cores >= 2,
        format!("{cores} cores"),
        "spinning ends want a core each: let them wait adaptively",
    ));
    for one in datapaths {
        let word = |key: &str| one[key].as_str().unwrap_or_default();
        let on = if word("interface").is_empty() { String::new() } else { format!(" on {}", word("interface")) };
        let lost = one["losses"].as_u64().filter(|losses| *losses > 0 && !word("lost").is_empty());
        let lost = lost.map(|losses| format!(" (lost {losses} times, the last because: {})", word("lost")));
        let (kind, address, state, said) = (word("kind"), word("address"), word("state"), word("text"));
        let text = format!("{kind}{on} at {address}: {state}: {said}{}", lost.unwrap_or_default());
        let hint =
            "streams go by another datapath until this one is there: it is tried again by itself, at least every 30 s";
        checks.push(check("datapath", word("state") == "open", text, hint));
    }
    for (one, two) in near_misses(core) {
        let text = format!("`{one}` and `{two}` are spelt nearly alike");
        checks.push(check("names", false, text, "if they should be the same, one of both is misspelt"));
    }
    json!({"checks": checks})
}

/// Pairs of channels or streams of one domain whose names differ by one or two letters. Of channels only such of which one has
/// just sources and the other just sinks, and not of the same application: who asks on one and waits for answers on the other
/// means both names.
fn near_misses(core: &Core) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for stream in core.streams.values() {
        let ends = |sources: bool| -> Vec<(&str, Vec<Conn>)> {
            let with =
                stream.channels.values().filter(|c| c.sources.is_empty() != sources && c.sinks.is_empty() == sources);
            let sessions = |c: &Channel| c.sources.values().copied().chain(c.sinks.values().map(|s| s.0)).collect();
            with.filter_map(|c| Some((c.name.as_deref()?, sessions(c)))).take(256).collect()
        };
        let sinks = ends(false);
        for (one, asking) in ends(true) {
            for (two, waiting) in &sinks {
                if alike(one, two) && !asking.iter().any(|session| waiting.contains(session)) {
                    found.push((one.to_owned(), (*two).to_owned()));
                }
            }
        }
    }
    let names: Vec<&str> = core.streams.keys().map(|(_, n)| n.as_str()).take(256).collect();
    for (i, one) in names.iter().enumerate() {
        found.extend(names[i + 1..].iter().filter(|two| alike(one, two)).map(|two| ((*one).into(), (*two).to_owned())));
    }
    found.truncate(64);
    found
}

/// Whether one of two names may be the other one misspelt.
fn alike(one: &str, two: &str) -> bool {
    one.len() > 3 && (1..=2).contains(&distance(one, two))
}

/// Whether a user may join a domain: root and the runtime's own user always, others as the configuration says.
#[must_use]
pub fn may_join(domain: &Domain, who: Credentials) -> bool {
    if domain.all_users || who.is_operator() {
        return true;
    }
    let user = lookup("/etc/passwd", 2, who.uid);
    let is_user = |u: &String| u.parse() == Ok(who.uid) || Some(u) == user.as_ref();
    let groups = groups_of(user.as_deref(), who.gid);
    domain.users.iter().any(is_user) || domain.groups.iter().any(|g| groups.contains(g))
}

/// The name in a file like `/etc/passwd` whose number stands in this column.
fn lookup(file: &str, column: usize, number: u32) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let parts: Vec<&str> = line.split(':').collect();
        (parts.get(column)?.parse() == Ok(number)).then(|| parts[0].to_owned())
    })
}

/// The groups of a user, each by name and by number.
fn groups_of(user: Option<&str>, gid: u32) -> Vec<String> {
    let mut groups = vec![gid.to_string()];
    for line in std::fs::read_to_string("/etc/group").unwrap_or_default().lines() {
        let parts: Vec<&str> = line.split(':').collect();
        let [name, _, number, members] = parts[..] else { continue };
        if number.parse() == Ok(gid) || user.is_some_and(|u| members.split(',').any(|m| m == u)) {
            groups.extend([name.to_owned(), number.to_owned()]);
        }
    }
    groups
}
