//! `insane tc`: the traffic pipelines of a RAN that serves control of them.

use std::path::PathBuf;
use std::time::Duration;

use insane_arguments::{seconds, whole};
use insane_traffic::PipelineSpec;
use insane_traffic::spec::PRESETS;
use insane_traffic_control::value::Value;
use insane_traffic_control::{Action, BearerId, BearerState, Client, ClientError, ClientOptions, Stage, StageChange};
use serde_json::json;

use crate::common::{Context, Failure, Outcome, parse_stem};

/// Show and change traffic pipelines.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Tc {
    /// Show pipelines and what they count.
    Show(Show),
    /// Add a filter, a queue, or the policer or shaper of a queue.
    Add(Put),
    /// Give a stage other parameters, or make it one of another kind.
    Mod(Put),
    /// Delete a stage that nothing needs.
    Del(Del),
    /// Put a whole pipeline in the place of the one that is there. Queues that both have keep their packets.
    Load(Load),
}

/// Whose pipeline.
#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// The name that the server's channels are below.
    #[arg(long, default_value = "ranlab", value_name = "NAME", value_parser = parse_stem)]
    lab: String,
    /// The bearer: RNTI/ID, such as 0x4601/1. If there is one only, that one.
    #[arg(long, value_name = "BEARER", value_parser = parse_bearer)]
    bearer: Option<BearerId>,
    /// How long the server and its answer are waited for, in seconds.
    #[arg(long, default_value = "2", value_parser = seconds)]
    timeout: Duration,
}

/// Show pipelines and what they count.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    #[command(flatten)]
    place: Where,
}

/// Add or change a stage.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// filter/ID, queue/ID, policer/QUEUE, shaper/QUEUE, scheduler, pacer or limit.
    #[arg(value_parser = parse_stage)]
    stage: (Stage, u32),
    /// Parameters by the names of the pipeline file, such as kind.type=codel kind.target=5ms.
    #[arg(value_name = "KEY=VALUE", value_parser = parse_parameter)]
    parameters: Vec<(Vec<String>, serde_json::Value)>,
    /// Only if the pipeline is of this generation.
    #[arg(long, value_parser = whole(0, u64::MAX))]
    generation: Option<u64>,
    #[command(flatten)]
    place: Where,
}

/// Delete a stage.
#[derive(Debug, clap::Args)]
pub(crate) struct Del {
    /// filter/ID, queue/ID, policer/QUEUE, shaper/QUEUE or pacer.
    #[arg(value_parser = parse_stage)]
    stage: (Stage, u32),
    /// Drop the packets of a queue rather than put them at the end of queue 0.
    #[arg(long)]
    drop: bool,
    /// Delete the filters that send to a queue too, and make the others that name it forget it.
    #[arg(long)]
    references: bool,
    /// Only if the pipeline is of this generation.
    #[arg(long, value_parser = whole(0, u64::MAX))]
    generation: Option<u64>,
    #[command(flatten)]
    place: Where,
}

/// Load a pipeline.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// A pipeline file, or the name of a preset.
    pipeline: PathBuf,
    /// Drop the packets of queues that the new pipeline does not have rather than put them at the end of queue 0.
    #[arg(long)]
    drop: bool,
    /// Only if the pipeline is of this generation.
    #[arg(long, value_parser = whole(0, u64::MAX))]
    generation: Option<u64>,
    #[command(flatten)]
    place: Where,
}

/// A number, decimal or hexadecimal.
fn number(text: &str, most: u32) -> Option<u32> {
    let digits = |t: &str, radix| (!t.starts_with('+')).then(|| u32::from_str_radix(t, radix).ok()).flatten();
    let found = text.strip_prefix("0x").map_or_else(|| digits(text, 10), |hex| digits(hex, 16));
    found.filter(|n| *n <= most)
}

fn parse_bearer(text: &str) -> Result<BearerId, String> {
    let parts = text.split_once('/');
    let found = parts.and_then(|(rnti, drb)| Some(BearerId { rnti: number(rnti, 65_535)?, drb: number(drb, 255)? }));
    found.ok_or_else(|| "it takes RNTI/ID, such as 0x4601/1".into())
}

fn parse_stage(text: &str) -> Result<(Stage, u32), String> {
    let (name, id) = text.split_once('/').map_or((text, None), |(name, id)| (name, Some(id)));
    let id = id.map(|id| number(id, u32::MAX));
    match (name, id) {
        ("filter", Some(Some(id))) => Ok((Stage::Filter, id)),
        ("queue", Some(Some(id))) => Ok((Stage::Queue, id)),
        ("policer", Some(Some(id))) => Ok((Stage::Policer, id)),
        ("shaper", Some(Some(id))) => Ok((Stage::Shaper, id)),
        ("scheduler", None) => Ok((Stage::Scheduler, 0)),
        ("pacer", None) => Ok((Stage::Pacer, 0)),
        ("limit", None) => Ok((Stage::Limit, 0)),
        _ => Err("it takes filter/ID, queue/ID, policer/QUEUE, shaper/QUEUE, scheduler, pacer or limit".into()),
    }
}

/// Reads `match.dst_port=5201`: names between dots, and a value as TOML has it, or else a text.
fn parse_parameter(text: &str) -> Result<(Vec<String>, serde_json::Value), String> {
    let refuse = || "it takes KEY=VALUE with a key such as kind.type".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(refuse)?;
    let names: Vec<String> = key.split('.').map(str::to_owned).collect();
    let plain = |n: &String| !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if names.len() > 8 || !names.iter().all(plain) {
        return Err(refuse());
    }
    // More than one line would be more than one value.
    let read = toml::from_str::<toml::Table>(&format!("value = {value}")).ok().filter(|t| t.len() == 1);
    let read = read.and_then(|mut table| table.remove("value")).filter(|v| !v.is_datetime());
    let value = match read {
        Some(read) => serde_json::to_value(read).map_err(|e| e.to_string())?,
        None => value.into(),
    };
    Ok((names, value))
}

/// Parameters put together.
fn together(parameters: &[(Vec<String>, serde_json::Value)]) -> Result<serde_json::Value, Failure> {
    let mut all = serde_json::Map::new();
    for (names, value) in parameters {
        let twice = || Failure::usage(format!("[KEY=VALUE]... has {} twice", names.join(".")));
        let (last, above) = names.split_last().ok_or_else(twice)?;
        let mut map = &mut all;
        for name in above {
            let inner = map.entry(name).or_insert_with(|| json!({}));
            map = inner.as_object_mut().ok_or_else(twice)?;
        }
        if map.insert(last.clone(), value.clone()).is_some() {
            return Err(twice());
        }
    }
    Ok(all.into())
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        use insane::Code;
        let code = match &error {
            ClientError::Session(e) => return e.clone().into(),
            ClientError::NoServer(_) | ClientError::Timeout => Code::Timeout,
            ClientError::Refused(_) => Code::InvalidArgument,
            ClientError::Protocol(_) => Code::Protocol,
        };
        let text = match &error {
            ClientError::NoServer(lab) => format!("nobody serves traffic control on `{lab}` (--lab, --domain)"),
            ClientError::Refused(refusal) => format!("refused, {}: {}", refusal.outcome.name(), refusal.reason),
            other => other.to_string(),
        };
        Self { number: code.number(), text, usage: false }
    }
}

impl Where {
    /// The session, which must outlive the client, and the client.
    fn client(&self, context: &Context) -> Result<(insane::Session, Client), Failure> {
        let session = context.session("insane tc")?;
        let options = ClientOptions { timeout: self.timeout, ..ClientOptions::new(&self.lab) };
        let client = Client::open(&session, &options)?;
        Ok((session, client))
    }

    fn bearer(&self, client: &Client) -> Result<BearerId, Failure> {
        if let Some(bearer) = self.bearer {
            return Ok(bearer);
        }
        match client.list()?[..] {
            [one] => Ok(one),
            ref several => {
                let names: Vec<String> = several.iter().map(|b| format!("{:#06x}/{}", b.rnti, b.drb)).collect();
                let text = format!("--bearer <BEARER> is needed: there are {} ({})", several.len(), names.join(", "));
                Err(Failure { usage: false, ..Failure::usage(text) })
            }
        }
    }
}

fn changed(context: &Context, bearer: BearerId, generation: u64) -> Outcome {
    if context.json {
        say!("{}", json!({"bearer": bearer, "generation": generation}));
    } else {
        say!("{bearer} is at generation {generation}");
    }
    Ok(())
}

impl Tc {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Show(show) => show.run(context),
            Self::Add(put) => put.run(context, Action::Add),
            Self::Mod(put) => put.run(context, Action::Modify),
            Self::Del(del) => {
                let (stage, id) = del.stage;
                let (drop_packets, remove_references) = (del.drop, del.references);
                let change = StageChange { drop_packets, remove_references, ..StageChange::delete(stage, id) };
                change_one(context, &del.place, change, del.generation)
            }
            Self::Load(load) => load.run(context),
        }
    }
}

fn change_one(context: &Context, place: &Where, change: StageChange, generation: Option<u64>) -> Outcome {
    let (_session, client) = place.client(context)?;
    let bearer = place.bearer(&client)?;
    let generation = client.change_stages(bearer, vec![change], generation)?;
    changed(context, bearer, generation)
}

impl Put {
    fn run(&self, context: &Context, action: Action) -> Outcome {
        let (stage, id) = self.stage;
        let spec = Value::from_json(together(&self.parameters)?).map_err(|e| Failure::usage(e.to_string()))?;
        change_one(context, &self.place, StageChange::put(action, stage, id, spec), self.generation)
    }
}

impl Load {
    fn read(&self) -> Result<PipelineSpec, Failure> {
        if let Some(preset) = PRESETS.iter().find(|p| self.pipeline.as_os_str() == p.name) {
            return PipelineSpec::from_toml(preset.toml).map_err(|e| Failure::usage(e.to_string()));
        }
        let refuse = |why: String| Failure::usage(format!("<PIPELINE> is '{}': {why}", self.pipeline.display()));
        let size = std::fs::metadata(&self.pipeline).map_err(|e| refuse(format!("no preset, and {e}")))?.len();
        if size > 1 << 20 {
            return Err(refuse("it takes a file of at most 1M".into()));
        }
        let text = std::fs::read_to_string(&self.pipeline).map_err(|e| refuse(e.to_string()))?;
        PipelineSpec::from_toml(&text).map_err(|e| refuse(e.to_string()))
    }

    fn run(&self, context: &Context) -> Outcome {
        let spec = self.read()?;
        let (_session, client) = self.place.client(context)?;
        let bearer = self.place.bearer(&client)?;
        let generation = client.load(bearer, &spec, self.drop, self.generation)?;
        changed(context, bearer, generation)
    }
}

impl Show {
    fn run(&self, context: &Context) -> Outcome {
        let (_session, client) = self.place.client(context)?;
        let bearers = self.place.bearer.map_or_else(|| client.list(), |b| Ok(vec![b]))?;
        let mut all = Vec::new();
        for bearer in bearers {
            all.push((bearer, client.show(bearer)?));
        }
        if context.json {
            let one = |(bearer, (pipeline, state)): &(BearerId, (PipelineSpec, BearerState))| json!({"bearer": bearer, "pipeline": pipeline, "state": state});
            say!("{}", serde_json::Value::from(all.iter().map(one).collect::<Vec<_>>()));
            return Ok(());
        }
        for (_, (pipeline, state)) in &all {
            show(pipeline, state)?;
        }
        Ok(())
    }
}

/// `type=codel target=5ms`: parameters as they can be given again.
fn parameters(value: &serde_json::Value) -> String {
    fn walk(value: &serde_json::Value, path: &str, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) if !map.is_empty() => {
                for (name, value) in map {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    walk(value, &path, out);
                }
            }
            serde_json::Value::Object(_) | serde_json::Value::Null => {}
            serde_json::Value::String(text) => out.push(format!("{path}={text}")),
            other => out.push(format!("{path}={other}")),
        }
    }
    let mut out = Vec::new();
    walk(value, "", &mut out);
    out.join(" ")
}

fn written<T: serde::Serialize>(spec: &T) -> String {
    let mut json = serde_json::to_value(spec).unwrap_or_default();
    if let Some(map) = json.as_object_mut() {
        map.remove("id");
    }
    parameters(&json)
}

fn show(pipeline: &PipelineSpec, state: &BearerState) -> Outcome {
    let (stats, rlc) = (&state.pipeline, &state.rlc);
    let ms = |ns: u64| ns as f64 / 1e6;
    say!("{}: generation {}, pdu {}", state.bearer, stats.generation, written(&pipeline.pdu));
    say!("  limit     {}", written(&pipeline.limit));
    for filter in &pipeline.filters {
        say!("  filter    {} {}", filter.id, written(filter));
        if let Some(f) = stats.filters.iter().find(|f| f.id == filter.id) {
            say!("            matched {} bytes {} pkt", f.bytes, f.packets);
        }
    }
    for queue in &pipeline.queues {
        let ids = queue.id.0..queue.id.0.saturating_add(queue.count);
        let last = ids.end.saturating_sub(1);
        let name = if queue.count == 1 { ids.start.to_string() } else { format!("{}-{last}", ids.start) };
        say!("  queue     {name} {}", written(queue));
        for q in stats.queues.iter().filter(|q| ids.contains(&q.id) && (queue.count == 1 || q.basic.packets > 0)) {
            let b = &q.basic;
            let name = if queue.count == 1 { String::new() } else { format!("{}: ", q.id) };
            say!(
                "            {name}sent {} bytes {} pkt (dropped {}, overlimits {} requeues {}) backlog {}b {}p, {:.1} ms",
                b.bytes,
                b.packets,
                b.drops,
                b.overlimits,
                b.requeues,
                b.backlog,
                b.qlen,
                ms(q.avg_sojourn_ns)
            );
        }
    }
    if state.left_out > 0 {
        say!("            counts of {} more are left out", state.left_out);
    }
    say!("  scheduler {}", written(&pipeline.scheduler));
    say!("  pacer     {}", written(&pipeline.pacer));
    let b = &stats.basic;
    say!(
        "  all       sent {} bytes {} pkt (dropped {}, overlimits {} requeues {}) backlog {}b {}p",
        b.bytes,
        b.packets,
        b.drops,
        b.overlimits,
        b.requeues,
        b.backlog,
        b.qlen
    );
    say!(
        "  rlc       holds {}b {}p, the first for {:.1} ms; sent {} bytes {} pkt, dropped {}",
        rlc.txbuf_occ_bytes,
        rlc.txbuf_occ_pkts,
        ms(rlc.head_sojourn_ns),
        rlc.txpdu_bytes,
        rlc.txpdu_pkts,
        rlc.rxsdu_dd_pkts
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_toml_values_or_texts_and_can_be_given_again() {
        let words = [
            "kind.type=codel",
            "kind.target=5ms",
            "kind.ecn=true",
            "count=3",
            "match.dst_port=5201-5204",
            "to.queues=[1, 2]",
        ];
        let read: Vec<_> = words.iter().map(|w| parse_parameter(w).unwrap()).collect();
        let all = together(&read).unwrap_or_default();
        let expected = json!({"kind": {"type": "codel", "target": "5ms", "ecn": true}, "count": 3,
            "match": {"dst_port": "5201-5204"}, "to": {"queues": [1, 2]}});
        assert_eq!(all, expected);
        let again = parameters(&all);
        let read: Vec<_> = again.split(' ').map(|w| parse_parameter(w).unwrap()).collect();
        assert_eq!(together(&read).unwrap_or_default(), expected);
    }

    #[test]
    fn a_value_of_two_lines_is_one_text_and_a_date_is_no_date() {
        assert_eq!(parse_parameter("a=1\nb = 2").unwrap().1, json!("1\nb = 2"));
        assert_eq!(parse_parameter("a=2026-01-01").unwrap().1, json!("2026-01-01"));
        assert_eq!(parse_parameter("a=").unwrap().1, json!(""));
    }

    #[test]
    fn parameters_that_are_there_twice_are_refused() {
        for words in [["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"]] {
            let read: Vec<_> = words.iter().map(|w| parse_parameter(w).unwrap()).collect();
            assert!(together(&read).is_err(), "{words:?}");
        }
    }
}
