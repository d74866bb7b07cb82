//! The accounting law over the counter memory of every process of a cell, dead ones too, against the applications' own
//! counts.
//!
//! What a kill leaves open: the one message whose call never returned. A killed source has counted it as emitted or meant for
//! a sink, and its application has not; a killed sink has counted it as delivered, and its application has not seen it. So a
//! difference of one is allowed at a killed process, in that direction only, and none anywhere else; where a source packs
//! messages, of one pack: its messages are counted and published together, and the one that closes it comes after. Where both ends of a
//! flow were killed, nobody is left to count what was under way: there the sum may be short, never over.

use crate::board::Word;
use crate::process::Process;
use insane_shm::counters::{CellCounts, CellState, Count, FINAL_AT_SINK};
use std::collections::BTreeMap;

/// The most messages that the matrix's sources put into one pack.
pub const PACKED: u64 = 3;

#[derive(Debug, Default)]
struct Flow {
    intended: u64,
    at_source: u64,
    at_sink: u64,
    source_killed: bool,
    sink_killed: bool,
    ends: (bool, bool),
}

fn sum(cell: &CellCounts, counts: &[Count]) -> u64 {
    counts.iter().map(|c| cell.get(*c)).sum()
}

/// Checks the law.
///
/// # Errors
/// What does not add up.
pub fn check<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Result<(), String> {
    let mut flows: BTreeMap<(u128, u128), Flow> = BTreeMap::new();
    for process in processes {
        let Some(counters) = process.counters() else {
            if process.killed || process.name == "runtime" {
                continue;
            }
            return Err(format!("{} has no counters", process.name));
        };
        let (mut emitted, mut delivered) = (0, 0);
        for cell in counters.live() {
            let flow = flows.entry((cell.epoch, cell.sink));
            match cell.state {
                CellState::Source => emitted += cell.get(Count::Emitted),
                CellState::Producing => {
                    let flow = flow.or_default();
                    flow.intended += cell.get(Count::Intended);
                    let ended = [Count::SinkFull, Count::Expired, Count::Unconfirmed, Count::Dropped];
                    flow.at_source += sum(&cell, &ended);
                    flow.source_killed |= process.killed;
                    flow.ends.0 = true;
                }
                CellState::Consuming => {
                    delivered += cell.get(Count::Delivered);
                    let flow = flow.or_default();
                    flow.at_sink += sum(&cell, &FINAL_AT_SINK);
                    flow.sink_killed |= process.killed;
                    flow.ends.1 = true;
                }
                _ => {}
            }
        }
        let (counted, own) = (emitted.max(delivered), process.board.get(Word::Count));
        let open = match (process.killed, emitted) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, _) => PACKED + 1,
        };
        if counted < own || counted - own > open {
            return Err(format!("{}: its counters say {counted}, its application {own}", process.name));
        }
    }
    for ((epoch, sink), flow) in &flows {
        let ended = flow.at_source + flow.at_sink;
        let open = i128::from(flow.intended) - i128::from(ended);
        let most = match (flow.source_killed, flow.sink_killed) {
            (true, true) => i128::MAX,
            // The source counts first and publishes then: the last pack may be in no ring.
            (true, false) => i128::from(PACKED),
            _ => 0,
        };
        // A sink that died before its source knew the flow has a cell without another end.
        if !(0..=most).contains(&open) {
            return Err(format!("source {epoch:032x} sink {sink:032x}: {open} messages in no state: {flow:?}"));
        }
    }
    Ok(())
}

/// The processes at the ends of a channel between two hosts.
#[derive(Debug)]
pub struct Ends<'a> {
    /// The runtime of the sources' host that lives.
    pub runtime: &'a Process,
    /// One before it was killed.
    pub runtime_killed: bool,
    /// All that had a source or a sink of the channel, dead ones too.
    pub parties: Vec<&'a Process>,
    /// Whether its stream is reliable.
    pub reliable: bool,
}

#[derive(Debug, Default)]
struct Far {
    intended: u64,
    ended: u64,
    /// Of these, by the source's end and its runtime.
    delivered: u64,
    unconfirmed: u64,
    /// By the sink's end.
    seen: u64,
    source_killed: bool,
    sink_killed: bool,
    ends: (bool, bool),
}

/// Checks the law of a channel whose sinks are on another host: what was meant for one of them ended in a count of the source's
/// session or of its runtime, once, and the sink has counted what is said to be delivered, with what is unconfirmed at most. What
/// a runtime that was killed had counted the source's session has taken over.
///
/// # Errors
/// What does not add up.
pub fn check_between_hosts(ends: &Ends<'_>) -> Result<(), String> {
    let mut flows: BTreeMap<(u128, u128), Far> = BTreeMap::new();
    for process in &ends.parties {
        let Some(counters) = process.counters() else {
            if process.killed {
                continue;
            }
            return Err(format!("{} has no counters", process.name));
        };
        let mut delivered = 0;
        for cell in counters.live() {
            match cell.state {
                CellState::Producing => {
                    let flow = flows.entry((cell.epoch, cell.sink)).or_default();
                    flow.intended += cell.get(Count::Intended);
                    flow.ended += sum(&cell, &FINAL_AT_SINK);
                    flow.delivered += cell.get(Count::Delivered);
                    flow.unconfirmed += cell.get(Count::Unconfirmed);
                    flow.source_killed |= process.killed;
                    flow.ends.0 = true;
                }
                CellState::Consuming => {
                    delivered += cell.get(Count::Delivered);
                    let flow = flows.entry((cell.epoch, cell.sink)).or_default();
                    flow.seen += cell.get(Count::Delivered);
                    flow.sink_killed |= process.killed;
                    flow.ends.1 = true;
                }
                _ => {}
            }
        }
        let own = process.board.get(Word::Count);
        if delivered > 0 && (delivered < own || delivered - own > u64::from(process.killed)) {
            return Err(format!("{}: its counters say {delivered}, its application {own}", process.name));
        }
    }
    let counters = ends.runtime.counters().ok_or("the runtime has no counters")?;
    for cell in counters.live().into_iter().filter(|c| c.state == CellState::Consuming) {
        // Of the other channels there are none here: their sources are elsewhere, or their sinks are.
        if let Some(flow) = flows.get_mut(&(cell.epoch, cell.sink)) {
            flow.ended += sum(&cell, &FINAL_AT_SINK);
            flow.delivered += cell.get(Count::Delivered);
            flow.unconfirmed += cell.get(Count::Unconfirmed);
        }
    }
    for ((epoch, sink), flow) in &flows {
        let named = |what: &str| format!("source {epoch:032x} sink {sink:032x}: {what}: {flow:?}");
        let open = i128::from(flow.intended) - i128::from(flow.ended);
        // The last pack of a killed source may be in no ring; if its runtime died too, nobody has counted what was under way.
        let most = match (flow.source_killed, ends.runtime_killed) {
            (true, true) => i128::MAX,
            (true, false) => i128::from(PACKED),
            _ => 0,
        };
        // What had not begun at one end when that was killed has nothing to compare with.
        let one_sided = flow.ends != (true, true) && (flow.source_killed || flow.sink_killed || flow.seen == 0);
        if flow.ends.0 && !(0..=most).contains(&open) {
            return Err(named(&format!("{open} messages in no state")));
        }
        if one_sided {
            continue;
        }
        // A killed sink may have counted one that its application has not seen, and its runtime may not have read it.
        let fits = flow.delivered <= flow.seen && flow.seen <= flow.delivered + flow.unconfirmed;
        if !fits && !flow.source_killed && !flow.sink_killed {
            return Err(named("the sink has counted others"));
        }
        if ends.reliable && !flow.source_killed && !flow.sink_killed && flow.seen != flow.intended {
            return Err(named("a reliable message did not arrive"));
        }
    }
    let alive = flows.values().any(|flow| flow.ends == (true, true) && flow.seen > 0);
    if alive { Ok(()) } else { Err("nothing was counted at both ends".into()) }
}
