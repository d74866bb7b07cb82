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
