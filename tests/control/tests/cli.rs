//! `insane tc` against a server without a radio: what the guide shows is what the commands say.

use insane_tests_control::{PREFIX, Process};
use insane_tests_host::programs::{Said, program, run};
use insane_tests_host::{Host, Watchdog};
use std::process::Command;
use std::time::Duration;

fn tc(host: &Host, line: &str) -> Said {
    let mut command = Command::new(program("insane-cli", "insane"));
    command.args(line.split_whitespace()).args(["--lab", PREFIX, "--timeout", "20"]);
    run(command.env("INSANE_SOCKET", host.socket()), Duration::from_secs(60))
}

#[test]
fn the_guide_shows_what_the_commands_say() {
    let _watchdog = Watchdog::start("the guide's commands", Duration::from_secs(120));
    let host = Host::start();
    let _server = Process::start(&host);
    let guide = include_str!("../../../docs/guide/README.md");
    let block = guide.split("<!-- test: the_guide_shows_what_the_commands_say -->\n```console\n").nth(1);
    let block = block.and_then(|b| b.split("\n```").next()).expect("the guide's block");
    let mut commands = 0;
    for part in format!("\n{block}").split("\n$ insane ").skip(1) {
        let (line, expected) = part.split_once('\n').unwrap_or((part, ""));
        let said = tc(&host, line);
        let text = format!("{}{}", said.out, said.err);
        assert_eq!(text.trim_end(), expected.trim_end(), "insane {line}");
        commands += 1;
    }
    assert!(commands >= 5, "{commands} commands");
}

#[test]
fn json_holds_pipelines_states_and_generations() {
    let _watchdog = Watchdog::start("JSON", Duration::from_secs(120));
    let host = Host::start();
    let _server = Process::start(&host);
    let json = |line: &str| -> serde_json::Value {
        let said = tc(&host, &format!("--json {line}"));
        assert_eq!(said.code(), 0, "{line}: {said:?}");
        serde_json::from_str(&said.out).expect(line)
    };
    let shown = json("tc show");
    assert_eq!(shown.as_array().map(Vec::len), Some(2));
    assert_eq!(shown[1]["bearer"], serde_json::json!({"rnti": 0x4601, "drb": 2}));
    assert_eq!(json("tc mod pacer type=5g-bdp --bearer 0x4601/2")["generation"], 1);
    assert_eq!(json("tc load slicing --bearer 0x4601/2 --generation 1")["generation"], 2);
    let shown = json("tc show --bearer 0x4601/2");
    assert_eq!(shown[0]["pipeline"]["filter"][0]["match"]["dst_port"], "5201-5203");
    assert_eq!(shown[0]["state"]["pipeline"]["queues"][1]["kind"], "fifo");
    let said = tc(&host, "--json tc del queue/1 --bearer 0x4601/2");
    let error: serde_json::Value = serde_json::from_str(&said.out).expect("an error as JSON");
    assert_eq!(
        (said.code(), error["error"]["text"].as_str()),
        (1, Some("refused, in-use: queue 1 is in use by filter 1"))
    );
    let said = tc(&host, "tc mod pacer type=5g-bdp");
    assert_eq!(
        (said.code(), said.err.contains("--bearer <BEARER> is needed: there are 2 (0x4601/1, 0x4601/2)")),
        (1, true)
    );
}
