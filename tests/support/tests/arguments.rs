//! Bad input on the command lines: every argument of every command, as a table that is complete by the programs' own help.
//! Each mistake is one line on standard error that names the argument and says what it takes, with `--json` also one object
//! on standard output; nothing panics or hangs, and a channel that is in use meanwhile loses nothing.

use insane::{Qos, Session};
use insane_tests_host::pair::Pair;
use insane_tests_host::programs::{Said, program, run};
use insane_tests_host::{Host, Watchdog};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// What hangs for this long hangs.
const HANGS: Duration = Duration::from_secs(20);

const NAMES: &str = "1 to 255 bytes without control characters";
const SECONDS: &str = "seconds from 0 to 1000000000";

/// A wrong value, the exit code, and what the line says besides the argument.
type Wrong = (&'static str, i32, &'static str);

/// One argument: the commands that have it (`*`: all), its name in the help, a right value, and wrong ones. `LONG` stands for
/// a text of 300 letters, `DIR` for the test's directory.
type Row = (&'static str, &'static str, &'static str, &'static [Wrong]);

const BAD_SECONDS: &[Wrong] = &[
    ("x", 2, SECONDS),
    ("-1", 2, SECONDS),
    ("", 2, SECONDS),
    ("nan", 2, SECONDS),
    ("inf", 2, SECONDS),
    ("1e10", 2, SECONDS),
];
const BAD_NAMES: &[Wrong] = &[("", 2, NAMES), ("a\nb", 2, NAMES), ("LONG", 2, NAMES)];
const BAD_STEMS: &[Wrong] = &[("", 2, "1 to 250 bytes"), ("a\tb", 2, "1 to 250 bytes"), ("LONG", 2, "1 to 250 bytes")];
const BAD_SIZES: &[Wrong] = &[
    ("x", 2, "128M"),
    ("", 2, "128M"),
    ("-8", 2, "128M"),
    ("1.5", 2, "128M"),
    ("129M", 2, "128M"),
    ("99999999999999999999", 2, "128M"),
];
const BAD_SINKS: &[Wrong] = &[("x", 2, "0 to 65535"), ("-1", 2, "0 to 65535"), ("65536", 2, "0 to 65535")];
const BAD_COUNTS: &[Wrong] = &[
    ("x", 2, "whole number from"),
    ("-1", 2, "whole number from"),
    ("1.5", 2, "whole number from"),
    ("", 2, "whole number from"),
    ("18446744073709551616", 2, "whole number from"),
];
const ZERO: &[Wrong] = &[("0", 2, "whole number from 1")];
const TOO_SMALL: &[Wrong] = &[("7", 2, "8 bytes to 128M"), ("0", 2, "8 bytes to 128M")];
#[rustfmt::skip]
const INSANE: &[Row] = &[
    ("*", "--socket <PATH>", "SOCKET", &[("", 2, "needs a value"), ("DIR/nobody", 1, "no INSANE runtime"), ("DIR", 1, "no INSANE runtime"), ("LONG", 1, "no INSANE runtime")]),
    ("*", "--domain <NAME>", "default", &[("", 2, NAMES), ("a\nb", 2, NAMES), ("LONG", 2, NAMES), ("nowhere", 1, "nowhere")]),
    ("ping,pong,perf source,perf sink,pub,sub", "--stream <NAME>", "other", &[("", 2, NAMES), ("LONG", 2, NAMES), ("a\x1b[2J", 2, NAMES), ("qos:x", 2, "--qos"), ("taken", 1, "another QoS")]),
    ("ping,pong,perf source,perf sink,pub,sub", "--qos <QOS>", "timing=sensitive", &[("speed=11", 2, "acceleration=none|preferred"), ("reliability", 2, "reliability=best-effort|reliable")]),
    ("ping,pong,perf source,perf sink,sub", "--wait <WAIT>", "sleep", &[("never", 2, "spin, adaptive or sleep"), ("", 2, "spin, adaptive or sleep"), ("Spin", 2, "spin, adaptive or sleep")]),
    ("ping,pong,perf source,perf sink,sub", "--core <CORE>", "0", &[("x", 2, "0 to 65535"), ("-1", 2, "0 to 65535"), ("65536", 2, "0 to 65535"), ("65535", 2, "it takes one of ")]),
    ("ping,pong,perf source", "--size <SIZE>", "64", BAD_SIZES),
    ("ping,perf source", "--size <SIZE>", "64", TOO_SMALL),
    ("ping,pong", "--channel <NAME>", "a", BAD_STEMS),
    ("ping,capture", "--count <COUNT>", "1", BAD_COUNTS),
    ("ping,capture", "--count <COUNT>", "1", ZERO),
    ("capture", "--datapath <KIND>", "udp", &[("", 2, "udp or xdp"), ("tcp", 2, "udp or xdp"), ("UDP", 2, "udp or xdp")]),
    ("capture", "--write <FILE>", "DIR/capture", &[("", 2, "needs a value"), ("FILE", 2, "it exists already"), ("DIR", 2, "it exists already"), ("DIR/none/x", 2, "cannot be written")]),
    ("capture", "--seconds <SECONDS>", "1", BAD_SECONDS),
    ("metrics", "--write <FILE>", "DIR/metrics.prom", &[("", 2, "needs a value"), ("DIR", 1, "DIR"), ("DIR/none/x", 1, "No such file")]),
    ("metrics", "--listen <ADDRESS>", "127.0.0.1:0", &[("", 2, "it takes a port"), ("x", 2, "it takes a port"), ("65536", 2, "it takes a port"), ("localhost:1", 2, "it takes a port"), ("0.0.0.0:1", 2, "--beyond-loopback"), ("[::]:1", 2, "--beyond-loopback")]),
    ("metrics", "--most-series <COUNT>", "10", BAD_COUNTS),
    ("metrics", "--most-series <COUNT>", "10", ZERO),
    ("rebind", "--datapath <KIND>", "udp", &[("", 2, "or auto"), ("tcp", 2, "or auto"), ("UDP", 2, "or auto")]),
    ("rebind", "--stream <NAME>", "other", BAD_NAMES),
    ("rebind", "--host <NAME>", "other", BAD_NAMES),
    ("ping", "--warm-up <WARM_UP>", "1", BAD_COUNTS),
    ("ping", "--interval <INTERVAL>", "0", BAD_SECONDS),
    ("ping", "--timeout <TIMEOUT>", "1", BAD_SECONDS),
    ("perf source,perf sink", "--channel <NAME>", "a", BAD_NAMES),
    ("perf source", "--duration <DURATION>", "1", BAD_SECONDS),
    ("perf source", "--sinks <SINKS>", "1", BAD_SINKS),
    ("perf source", "--rate <N>", "1000", &[("x", 2, "0.000001 to"), ("0", 2, "0.000001 to"), ("-1", 2, "0.000001 to"), ("nan", 2, "0.000001 to"), ("inf", 2, "0.000001 to")]),
    ("perf source", "--batch <N>", "8", &[("x", 2, "1 to 64"), ("0", 2, "1 to 64"), ("65", 2, "1 to 64"), ("-1", 2, "1 to 64")]),
    ("perf sink", "--duration <DURATION>", "1", BAD_SECONDS),
    ("perf sink", "--silence <SILENCE>", "1", BAD_SECONDS),
    ("perf sink", "--patience <PATIENCE>", "1", BAD_SECONDS),
    ("pub,sub", "<CHANNEL>", "a", BAD_NAMES),
    // Any text is a message.
    ("pub", "[MESSAGES]...", "text", &[]),
    ("pub", "--file <FILE>", "FILE", &[("", 2, "needs a value"), ("DIR/none", 2, "No such file"), ("DIR", 2, "takes a file"), ("HUGE", 2, "at most 128M")]),
    ("pub", "--repeat <REPEAT>", "1", BAD_COUNTS),
    ("pub", "--repeat <REPEAT>", "1", ZERO),
    ("pub", "--interval <INTERVAL>", "0", BAD_SECONDS),
    ("pub", "--sinks <SINKS>", "1", BAD_SINKS),
    ("pub", "--timeout <TIMEOUT>", "1", BAD_SECONDS),
    ("sub", "--count <COUNT>", "1", BAD_COUNTS),
    ("sub", "--count <COUNT>", "1", ZERO),
    ("sub", "--duration <DURATION>", "1", BAD_SECONDS),
    ("sub", "--to <DIR>", "DIR", &[("", 2, "needs a value"), ("FILE", 2, "File exists"), ("FILE/below", 2, "Not a directory")]),
    ("tc show,tc add,tc mod,tc del,tc load", "--lab <NAME>", "lab", BAD_STEMS),
    ("tc show,tc add,tc mod,tc del,tc load", "--bearer <BEARER>", "1/1", &[("", 2, "RNTI/ID"), ("1", 2, "RNTI/ID"), ("x/1", 2, "RNTI/ID"), ("65536/1", 2, "RNTI/ID"), ("0x4601/256", 2, "RNTI/ID"), ("-1/1", 2, "RNTI/ID"), ("+1/1", 2, "RNTI/ID")]),
    ("tc show,tc add,tc mod,tc del,tc load", "--timeout <TIMEOUT>", "1", BAD_SECONDS),
    ("tc add,tc mod,tc del,tc load", "--generation <GENERATION>", "1", BAD_COUNTS),
    ("tc add,tc mod,tc del", "<STAGE>", "queue/1", &[("", 2, "queue/ID"), ("queue", 2, "queue/ID"), ("queue/", 2, "queue/ID"), ("queue/-1", 2, "queue/ID"), ("queue/4294967296", 2, "queue/ID"), ("pacer/1", 2, "queue/ID"), ("stage", 2, "queue/ID")]),
    ("tc add,tc mod", "[KEY=VALUE]...", "a=1", &[("x", 2, "such as kind.type"), ("=1", 2, "such as kind.type"), ("a..b=1", 2, "such as kind.type"), ("a b=1", 2, "such as kind.type")]),
    ("tc load", "<PIPELINE>", "fq-codel", &[("", 2, "needs a value"), ("DIR/none", 2, "no preset, and No such file"), ("DIR", 2, "<PIPELINE>"), ("FILE", 2, "cannot read the pipeline"), ("HUGE", 2, "at most 1M")]),
    ("config check", "<FILE>", "FILE", &[("", 2, "needs a value"), ("DIR/none", 2, "No such file"), ("DIR", 2, "directory"), ("WRONG", 2, "did you mean `link_entries`"), ("RANGE", 2, "quota.sessions = 0: it takes 1 to 1000000"), ("HUGE", 2, "at most 1 MiB")]),
];

#[rustfmt::skip]
const INSANED: &[Row] = &[
    ("*", "--config <FILE>", "FILE", &[("", 2, "needs a value"), ("DIR/none", 2, "No such file"), ("DIR", 2, "directory"), ("WRONG", 2, "line 2, column 1"), ("RANGE", 2, "quota.sessions = 0")]),
    ("*", "--socket <PATH>", "DIR/s2", &[("", 2, "1 to 107 bytes"), ("LONG", 2, "1 to 107 bytes"), ("SOCKET", 1, "another insaned is serving"), ("FILE", 1, "FILE"), ("FILE/s", 1, "FILE/s")]),
    ("*", "--log <LEVEL>", "error", &[("loud", 2, "error, warn, info, debug, trace"), ("", 2, "")]),
];

/// Flags that take nothing, and may be given once.
const FLAGS: &[&str] = &[
    "--json",
    "--strict",
    "--drop",
    "--references",
    "--hex",
    "--observer",
    "--beyond-loopback",
    "--ended",
    "--check",
    "--print-config",
    "--print-default-config",
];

/// May be given more than once.
const REPEATED: &[&str] = &["--file <FILE>", "[MESSAGES]...", "[KEY=VALUE]..."];

/// What does not go together: the command line, the exit code, what is said.
#[rustfmt::skip]
const TOGETHER: &[(&str, &str, i32, &[&str])] = &[
    ("insane", "sub a --to DIR --hex", 2, &["--to <DIR>", "--hex"]),
    ("insane", "perf source --drop --qos reliability=reliable", 2, &["--drop", "reliability=reliable"]),
    ("insane", "pub a --repeat 3", 2, &["--repeat <REPEAT>", "messages or --file"]),
    ("insane", "sub a --strict --qos timing=sensitive", 1, &["strict", "cannot be served"]),
    ("insane", "ping --count 1 --timeout 0", 1, &["nobody answers"]),
    ("insane", "pub a text --timeout 0", 1, &["0 of 1 sinks", "--timeout"]),
    ("insane", "tc show --timeout 0", 1, &["nobody serves traffic control on `ranlab`", "--lab"]),
    ("insane", "tc add queue/1 kind.type=codel kind=1", 2, &["[KEY=VALUE]...", "kind twice"]),
    ("insane", "capture --datapath udp --write DIR/nothing", 2, &["no [network] section"]),
    ("insane", "capture", 2, &["--datapath <KIND> is missing: "]),
    ("insane", "metrics --write DIR/m --listen 0", 2, &["--write <FILE>", "--listen <ADDRESS>"]),
    ("insane", "metrics --beyond-loopback", 2, &["--listen <ADDRESS>"]),
    ("insane", "--json metrics", 2, &["--json", "insane status --json"]),
    ("insane", "rebind --datapath auto", 2, &["no [network] section"]),
    ("insane", "rebind", 2, &["--datapath <KIND> is missing: "]),
    ("insane", "--json capture --datapath udp --write -", 2, &["--write <FILE>", "standard output"]),
    ("insaned", "--check --print-config", 2, &["--check", "--print-config"]),
    ("insaned", "--check --print-default-config", 2, &["--check", "--print-default-config"]),
    ("insaned", "--print-config --print-default-config", 2, &["--print-config", "--print-default-config"]),
    ("insaned", "--print-default-config --config FILE", 2, &["--config <FILE>", "--print-default-config"]),
];

/// What the table's words stand for.
struct Place {
    dir: tempfile::TempDir,
    socket: PathBuf,
}

impl Place {
    fn new(socket: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
        write("FILE", "[runtime]\n");
        write("WRONG", "[quota]\nlink_entires = 64\n");
        write("RANGE", "[quota]\nsessions = 0\n");
        let huge = std::fs::File::create(dir.path().join("HUGE")).expect("a file");
        huge.set_len(129 << 20).expect("a file with a hole");
        Self { dir, socket }
    }

    fn word(&self, word: &str) -> String {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let (first, rest) = word.split_once('/').map_or((word, ""), |(first, rest)| (first, rest));
        let made = match first {
            "LONG" => "a".repeat(300),
            "SOCKET" => self.socket.display().to_string(),
            "DIR" => self.dir.path().display().to_string(),
            "FILE" | "WRONG" | "RANGE" | "HUGE" => path(first),
            _ => return word.to_owned(),
        };
        if rest.is_empty() { made } else { format!("{made}/{rest}") }
    }

    fn words<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        words.into_iter().map(|w| self.word(w)).collect()
    }
}

/// A command, as its own help describes it.
#[derive(Debug, Default)]
struct Described {
    /// `perf source`; empty for a program without commands.
    path: String,
    commands: Vec<String>,
    /// `--size <SIZE>`, `--drop`, `<CHANNEL>`.
    arguments: Vec<String>,
    /// Those of the options that must be given.
    required: Vec<String>,
}

/// Reads a command's help, and those of the commands below it that can be called.
fn describe(program: &Path, path: &str, all: &mut Vec<Described>) {
    let said = run(Command::new(program).args(path.split_whitespace()).arg("--help"), HANGS);
    assert!(said.code() == 0 && said.err.is_empty(), "{path} --help: {said:?}");
    assert!(!path.is_empty() || said.out.contains("Exit codes: 0"), "no exit codes: {}", said.out);
    let (mut this, mut section) = (Described { path: path.into(), ..Described::default() }, "");
    for line in said.out.lines() {
        if let Some(usage) = line.strip_prefix("Usage: ") {
            let words: Vec<&str> = usage.split_whitespace().collect();
            let pairs = words.windows(2).filter(|pair| pair[0].starts_with("--") && pair[1].starts_with('<'));
            this.required.extend(pairs.map(|pair| pair.join(" ")));
        }
        if !line.starts_with(' ') {
            section = line.split(':').next().unwrap_or_default();
            continue;
        }
        let Some(line) = line.strip_prefix("  ") else { continue };
        match section {
            "Commands" if !line.starts_with(' ') => {
                this.commands.extend(line.split_whitespace().next().filter(|n| *n != "help").map(str::to_owned));
            }
            "Arguments" if line.starts_with(['<', '[']) => {
                this.arguments.extend(line.split_whitespace().next().map(str::to_owned));
            }
            "Options" => {
                let Some(at) = line.find("--").filter(|at| line[..*at].len() <= 4) else { continue };
                let mut words = line[at..].split_whitespace();
                let name = words.next().unwrap_or_default();
                let value = words.next().filter(|v| v.starts_with('<'));
                this.arguments.push(value.map_or_else(|| name.to_owned(), |v| format!("{name} {v}")));
            }
            _ => {}
        }
    }
    this.arguments.retain(|a| a != "--help" && a != "--version");
    for command in &this.commands {
        describe(program, format!("{path} {command}").trim(), all);
    }
    all.push(this);
}

fn is_of(row: &Row, path: &str) -> bool {
    row.0 == "*" || row.0.split(',').any(|p| p == path)
}

/// One call that must fail.
#[derive(Debug)]
struct Call {
    program: &'static str,
    arguments: Vec<String>,
    code: i32,
    says: Vec<String>,
}

/// Everything that is wrong with one command by the table and by its help.
fn calls(program: &'static str, rows: &'static [Row], command: &Described, place: &Place) -> Vec<Call> {
    let path = command.path.as_str();
    let positional = |name: &str| rows.iter().find(|r| r.1 == name && is_of(r, path)).map(|r| place.word(r.2));
    let needed: Vec<(&str, String)> = command
        .arguments
        .iter()
        .filter(|a| a.starts_with('<') || command.required.contains(a))
        .map(|a| {
            let value = positional(a).unwrap_or_else(|| panic!("{program} {path} {a} has no row"));
            let name = a.split(' ').next().filter(|name| name.starts_with('-'));
            (a.as_str(), name.map_or_else(|| value.clone(), |name| format!("{name}={value}")))
        })
        .collect();
    let mut all = Vec::new();
    let mut call = |needed: &[(&str, String)], more: &[String], code: i32, says: &[&str]| {
        let mut arguments: Vec<String> = path.split_whitespace().map(str::to_owned).collect();
        arguments.extend(more.iter().cloned());
        // What is given wrongly is not given rightly as well.
        let given = |name: &str| {
            name.starts_with('-') && more.iter().any(|m| m.starts_with(name.split(' ').next().unwrap_or(name)))
        };
        arguments.extend(needed.iter().filter(|(name, _)| !given(name)).map(|(_, value)| value.clone()));
        let says = says.iter().map(|s| place.word(s)).collect();
        all.push(Call { program, arguments, code, says });
    };
    for argument in &command.arguments {
        let name = argument.split(' ').next().unwrap_or_default();
        if FLAGS.contains(&argument.as_str()) {
            call(&needed, &[format!("{name}=1")], 2, &[name, "takes no value"]);
            call(&needed, &[name.into(), name.into()], 2, &[name, "given twice"]);
            continue;
        }
        let mut found = 0;
        for row in rows.iter().filter(|r| r.1 == argument && is_of(r, path)) {
            found += 1;
            // Only what asks the runtime can be refused by it.
            let asks = command.commands.is_empty() && !path.starts_with("config");
            for (value, code, says) in row.3.iter().filter(|(_, code, _)| asks || *code == 2 || program == "insaned") {
                let value = place.word(value);
                // A failure of the runtime's names what it failed on, not the argument.
                let named = if *code == 2 { argument.as_str() } else { "" };
                if argument.starts_with('-') {
                    call(&needed, &[format!("{name}={value}")], *code, &[named, says]);
                } else {
                    let mut needed = needed.clone();
                    needed.iter_mut().filter(|(n, _)| n == argument).for_each(|(_, v)| v.clone_from(&value));
                    if argument.starts_with('[') {
                        needed.push((argument, value));
                    }
                    call(&needed, &["--".into()], *code, &[named, says]);
                }
            }
            if argument.starts_with('-') {
                let good = format!("{name}={}", place.word(row.2));
                let mut last = vec![good.clone(), good];
                if !REPEATED.contains(&argument.as_str()) {
                    call(&needed, &last, 2, &[argument, "given twice"]);
                }
                let others = needed.iter().filter(|(n, _)| n != argument).map(|(_, v)| v.clone());
                last = others.chain([name.to_owned()]).collect();
                call(&[], &last, 2, &[argument, "needs a value: "]);
                if command.required.contains(argument) {
                    let others: Vec<_> = needed.iter().filter(|(n, _)| n != argument).cloned().collect();
                    call(&others, &[], 2, &[argument, "is missing: "]);
                }
            } else if argument.starts_with('<') {
                call(&[], &[], 2, &[argument, "is missing: "]);
            }
        }
        assert!(found > 0, "{program} {path} {argument} has no row");
    }
    if command.commands.is_empty() {
        call(&needed, &["--no-such-thing".into()], 2, &["--no-such-thing", "--help"]);
        call(&needed, &["-%".into()], 2, &["-%", "--help"]);
        if !command.arguments.iter().any(|a| a.ends_with("...")) {
            let extra: Vec<String> = needed.iter().map(|(_, v)| v.clone()).chain(["extra".to_owned()]).collect();
            call(&[], &extra, 2, &["unexpected argument 'extra'"]);
        }
    } else {
        call(&[], &[], 2, &["a command is missing", &command.commands.join(", ")]);
        call(&[], &["no-such-command".into()], 2, &["no-such-command", &command.commands.join(", ")]);
    }
    all
}

/// What is wrong with what a program said, if anything is.
fn wrong(call: &Call, said: &Said, json: bool) -> Option<String> {
    let line = said.err.strip_suffix('\n').unwrap_or(&said.err);
    let text = line.strip_prefix(call.program).and_then(|l| l.strip_prefix(": "));
    let why = if said.status.is_none() {
        "it hangs".to_owned()
    } else if said.code() != call.code {
        format!("exit code {}, not {}", said.code(), call.code)
    } else if line.contains('\n') || text.is_none_or(str::is_empty) || line.chars().any(char::is_control) {
        "it is not told in one line".to_owned()
    } else if let Some(missing) = call.says.iter().find(|s| !line.contains(s.as_str())) {
        format!("the line does not say `{missing}`")
    } else if json {
        let told: Result<serde_json::Value, _> = serde_json::from_str(&said.out);
        let ok = told.is_ok_and(|v| v["error"]["text"].as_str() == text && v["error"]["code"].as_u64() > Some(0));
        if ok { return None } else { "standard output is not that error as JSON".to_owned() }
    } else if !said.out.is_empty() {
        "it printed to standard output".to_owned()
    } else {
        return None;
    };
    let cut = |text: &str| text.chars().take(300).collect::<String>();
    Some(format!(
        "{} {}: {why}\n  {:?} {:?}",
        call.program,
        cut(&format!("{:?}", call.arguments)),
        cut(&said.out),
        cut(&said.err)
    ))
}

fn attempt(call: &Call, programs: &[(&str, PathBuf)], socket: &Path) -> Vec<String> {
    let program = &programs.iter().find(|(n, _)| *n == call.program).expect("a program").1;
    // A flag that is given twice is not given three times.
    let has_json = call.arguments.iter().any(|a| a.starts_with("--json"));
    let both: &[bool] = if call.program == "insane" && !has_json { &[false, true] } else { &[has_json] };
    let both = if has_json && call.arguments.iter().all(|a| a != "--json") { &[false][..] } else { both };
    let mut bad = Vec::new();
    for json in both {
        let mut command = Command::new(program);
        command.env("INSANE_SOCKET", socket);
        if *json && !has_json {
            command.arg("--json");
        }
        let said = run(command.args(&call.arguments), HANGS);
        bad.extend(wrong(call, &said, *json));
    }
    bad
}

#[test]
fn bad_arguments_are_told_in_one_line_and_cost_nothing() {
    let _watchdog = Watchdog::start("arguments", Duration::from_secs(280));
    let host = Host::start();
    let taken: Session = host.session("taken");
    let mut sensitive = Qos::default();
    sensitive.set_timing(insane::Timing::Sensitive);
    let _stream = taken.stream_named("taken", sensitive).expect("a stream");
    let pair = Pair::start(&host);
    let place = Place::new(host.socket());
    let programs = [("insane", program("insane-cli", "insane")), ("insaned", program("insaned", "insaned"))];
    let mut all = Vec::new();
    for ((name, path), rows) in programs.iter().zip([INSANE, INSANED]) {
        let mut commands = Vec::new();
        describe(path, "", &mut commands);
        // The table has no more than the help either: a row that nothing has tests nothing.
        for row in rows {
            for of in row.0.split(',') {
                let has = |c: &&Described| (of == "*" || c.path == of) && c.arguments.iter().any(|a| a == row.1);
                assert!(commands.iter().any(|c| has(&c)), "{name} {of} has no {}", row.1);
            }
        }
        let known: BTreeSet<&str> = commands.iter().flat_map(|c| c.arguments.iter().map(String::as_str)).collect();
        println!("{name}: {} commands, {} arguments", commands.len(), known.len());
        all.extend(commands.iter().flat_map(|c| calls(name, rows, c, &place)));
    }
    for (program, line, code, says) in TOGETHER {
        let says = says.iter().map(|s| place.word(s)).collect();
        all.push(Call { program, arguments: place.words(line.split_whitespace()), code: *code, says });
    }
    let (count, calls, bad) = (all.len(), Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(call) = calls.lock().unwrap().pop() else { return };
                    let found = attempt(&call, &programs, &place.socket);
                    bad.lock().unwrap().extend(found);
                }
            });
        }
    });
    let crossed = pair.finish();
    let bad = bad.into_inner().unwrap();
    println!("{count} mistakes, while {crossed} messages crossed");
    assert!(bad.is_empty(), "{} of {count}:\n{}", bad.len(), bad.join("\n"));
    assert_eq!(std::fs::read_to_string(place.word("FILE")).unwrap(), "[runtime]\n", "a file was written over");
}

#[test]
fn output_that_nobody_reads_is_a_failure_and_no_panic() {
    let host = Host::start();
    let place = Place::new(host.socket());
    let program = program("insane-cli", "insane");
    for line in ["status", "doctor", "--json status", "config default", "config check FILE", "pub x y --sinks 0"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(&program);
        command.args(place.words(line.split_whitespace())).env("INSANE_SOCKET", host.socket());
        command.stdin(std::process::Stdio::null()).stdout(writer).stderr(std::process::Stdio::piped());
        let done = command.output().expect("it runs");
        let err = String::from_utf8_lossy(&done.stderr);
        let one_line = err.lines().count() == 1 && err.starts_with("insane: Broken pipe");
        assert!(done.status.code() == Some(1) && one_line, "{line}: {done:?}");
    }
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a device that is full");
    for line in ["--print-default-config", "--print-config", "--check"] {
        let done =
            Command::new(self::program("insaned", "insaned")).arg(line).stdout(full()).output().expect("it runs");
        let err = String::from_utf8_lossy(&done.stderr);
        let one_line = err.lines().count() == 1 && err.starts_with("insaned: standard output: ");
        assert!(done.status.code() == Some(1) && one_line, "{line}: {done:?}");
    }
}

#[test]
fn the_shipped_configuration_is_json_where_json_is_asked_for() {
    let insane = program("insane-cli", "insane");
    let said = |arguments: &[&str]| run(Command::new(&insane).args(arguments), HANGS);
    let (plain, json) = (said(&["config", "default"]), said(&["--json", "config", "default"]));
    assert_eq!((plain.code(), json.code()), (0, 0), "{plain:?} {json:?}");
    let keys: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    for key in ["runtime", "quota", "memory", "wait"] {
        assert!(plain.out.contains(&format!("[{key}]")) && keys[key].is_object(), "{key}: {keys}");
    }
    assert_eq!(keys["wait"]["cpu_latency_knob"], plain.out.contains("cpu_latency_knob = true"));
}

#[test]
fn insaned_serves_where_applications_look() {
    let insaned = program("insaned", "insaned");
    let said = |arguments: &[&str], socket: &str| {
        run(Command::new(&insaned).args(arguments).env("INSANE_SOCKET", socket), HANGS)
    };
    let there = |said: &Said, socket: &str| said.out.contains(&format!("socket = \"{socket}\"\n"));
    assert!(there(&said(&["--print-config"], "/run/of/this/test.sock"), "/run/of/this/test.sock"));
    assert!(there(&said(&["--print-config"], ""), ""), "set to nothing is not set");
    let both = said(&["--print-config", "--socket", "/run/of/the/flag.sock"], "/run/of/this/test.sock");
    assert!(there(&both, "/run/of/the/flag.sock"), "{both:?}");
    let long = said(&["--print-config"], &"x".repeat(108));
    assert!(long.code() == 2 && long.err.contains("INSANE_SOCKET") && long.err.contains("1 to 107 bytes"), "{long:?}");
}
