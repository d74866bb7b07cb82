//! What this host can do, what is odd, and who may join a domain.

use crate::config::{Domain, distance};
use crate::core::{Channel, Conn, Core, Credentials};
use serde_json::{Value, json};

fn check(check: &str, ok: bool, text: impl Into<String>, hint: &str) -> Value {
    let state = if ok { "ok" } else { "warn" };
    json!({"check": check, "state": state, "text": text.into(), "hint": if ok { "" } else { hint }})
}

/// The report `doctor` for the session of a connection: a list of checks, each with a state, a text and a hint. `datapaths` are those
/// that the configuration names and `threads` those of the network side, as in the report `status`.
#[must_use]
pub fn report(core: &Core, asker: Conn, datapaths: &[Value], threads: &[Value]) -> Value {
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
        let (open, short) = (state == "open", one["threads"]["short"].is_string());
        let hint = if open {
            "name it in no more network.thread than it can be received by: the others have nothing of it to do"
        } else if one["final"] == true {
            "streams go by another datapath: nothing brings this one back but what its reason says; then restart the runtime"
        } else {
            "streams go by another datapath until this one is there: it is tried again by itself, at least every 30 s"
        };
        checks.push(check("datapath", open && !short, text, hint));
    }
    for one in threads {
        let word = |key: &str| one[key].as_str().unwrap_or_default();
        let hint =
            "name a core that the runtime may use (taskset, CPUAffinity=, the container's cpuset), or -1 for any";
        let runs: Vec<&str> = one["runs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let runs = if runs.is_empty() { "no datapath".into() } else { runs.join(", ") };
        let text = format!("{}: {}; runs {runs}", word("name"), word("text"));
        checks.push(check("thread", word("state") == "ok", text, hint));
    }
    for (one, two) in near_misses(core, asker) {
        let text = format!("`{one}` and `{two}` are spelt nearly alike");
        checks.push(check("names", false, text, "if they should be the same, one of both is misspelt"));
    }
    json!({"checks": checks})
}

/// Pairs of channels or streams of one domain whose names differ by one or two letters. Of channels only such of which one has
/// just sources and the other just sinks, and not of the same application: who asks on one and waits for answers on the other
/// means both names. Of domains that the asker is shown.
fn near_misses(core: &Core, asker: Conn) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let shown = || core.streams.iter().filter(|((domain, _), _)| core.shows(asker, domain));
    for (_, stream) in shown() {
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
    let names: Vec<_> = shown().map(|(key, _)| key).take(256).collect();
    for (i, (domain, one)) in names.iter().enumerate() {
        let others = names[i + 1..].iter().filter(|(of, two)| of == domain && alike(one, two));
        found.extend(others.map(|(_, two)| (one.clone(), two.clone())));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use insane_wire::PROTOCOL;
    use insane_wire::control::{self, ToRuntime, to_runtime};
    use insane_wire::id::SessionId;

    /// Adds a session of a domain that has a source of one channel and streams of these names.
    fn session(core: &mut Core, conn: Conn, who: Credentials, domain: &str, streams: &[&str]) {
        let mut ask = |body| {
            core.request(conn, who, ToRuntime { request: 1, body: Some(body) }, |_| true);
        };
        ask(to_runtime::Body::Hello(control::Hello {
            protocol_min: PROTOCOL,
            protocol_max: PROTOCOL,
            app: "app".into(),
            domain: domain.into(),
            session: SessionId::random().to_bytes(),
            ..control::Hello::default()
        }));
        for name in streams {
            ask(to_runtime::Body::OpenStream(control::OpenStream { name: (*name).into(), ..Default::default() }));
        }
    }

    /// Gives a session's first stream a source or a sink of a channel.
    fn end(core: &mut Core, conn: Conn, producer: bool, name: &str) {
        let who = core.sessions[&conn].credentials;
        let (stream, channel) = (1, Some(control::Channel { name: Some(name.into()), id: None }));
        let id = SessionId::random().to_bytes();
        let body = if producer {
            to_runtime::Body::OpenSource(control::OpenSource { stream, channel, epoch: id })
        } else {
            to_runtime::Body::OpenSink(control::OpenSink { stream, channel, sink: id, observer: false })
        };
        core.request(conn, who, ToRuntime { request: 1, body: Some(body) }, |_| true);
    }

    #[test]
    fn names_of_other_domains_are_shown_to_the_operator_alone() {
        let mut config = Config::default();
        for domain in ["red", "blue"] {
            config.domains.insert(domain.into(), Domain::default());
        }
        let own = rustix::process::getuid().as_raw();
        let tenant = Credentials { pid: Some(1), uid: own + 1, gid: 0 };
        let operator = Credentials { uid: own, ..tenant };
        let mut core = Core::new(config, "here".into());
        session(&mut core, 1, tenant, "red", &["pressure", "presure", "shared"]);
        session(&mut core, 2, tenant, "red", &["pressure"]);
        session(&mut core, 3, tenant, "blue", &["voltage", "voltag", "sharedd"]);
        session(&mut core, 4, tenant, "blue", &["voltage"]);
        session(&mut core, 5, operator, "blue", &[]);
        for (source, sink, name) in [(1, 2, "telemetry"), (3, 4, "commands")] {
            end(&mut core, source, true, name);
            end(&mut core, sink, false, &name[1..]);
        }
        let named = |asker: Conn| -> Vec<String> {
            let report = report(&core, asker, &[], &[]);
            let names = report["checks"].as_array().into_iter().flatten().filter(|check| check["check"] == "names");
            let text = |check: &Value| check["text"].as_str().unwrap_or_default().split('`').nth(1).map(str::to_owned);
            names.filter_map(text).collect()
        };
        assert_eq!(named(1), ["telemetry", "pressure"]);
        assert_eq!(named(2), named(1));
        assert_eq!(named(3), ["commands", "voltag"]);
        // Names of two domains are not compared: nobody has mistaken one for the other.
        assert_eq!(named(5), ["commands", "telemetry", "voltag", "pressure"]);
        assert!(named(99).is_empty(), "of no session");
    }
}
