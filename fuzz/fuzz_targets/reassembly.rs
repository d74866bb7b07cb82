//! Fragments in any order, size and contradiction, against one flag a byte; bounds are kept and every slot comes back once.
#![no_main]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use insane_wire::frame::record::Part;
use insane_wire::reassembly::{Key, Limits, Reassembler};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = Limits {
        source_bytes: 4096,
        source_messages: 4,
        domain_bytes: 8192,
        domain_messages: 6,
        runs: 8,
        ..Limits::default()
    };
    let mut unfinished = Reassembler::new(limits);
    let mut bytes: HashMap<u64, Vec<bool>> = HashMap::new();
    let (mut now, mut slots, mut next) = (Duration::ZERO, HashSet::new(), 0u64);
    for op in data.chunks_exact(8) {
        now += Duration::from_millis(u64::from(op[0]) * 8);
        let key =
            Key { domain: u32::from(op[1] & 1), source: u64::from(op[1] >> 1 & 3), message: u64::from(op[2] & 7) };
        let total = u32::from(op[3]) * 16;
        let (offset, len) = (u32::from(op[4]) * 16, u32::from(op[5]) * 4 + u32::from(op[6] & 3));
        match op[7] % 8 {
            0 => {
                if let Some(slot) = unfinished.forget(key) {
                    assert!(slots.remove(&slot));
                }
            }
            1 => unfinished.expire(now),
            2 => unfinished.forget_source(key.domain, key.source),
            n => {
                let reserve = |_| {
                    next += 1;
                    slots.insert(next);
                    Some(next)
                };
                let free = unfinished.where_to(key, offset, len);
                if let Ok(placed) = unfinished.offer(now, key, Part { total, offset }, len, n == 3, reserve) {
                    let there = bytes.entry(placed.slot).or_insert_with(|| vec![false; total as usize]);
                    let range = &mut there[offset as usize..(offset + len) as usize];
                    let fresh = range.iter().filter(|there| !**there).count();
                    assert_eq!(fresh, placed.fresh as usize);
                    assert!(free.is_none() || free == Some(placed.slot) && placed.fresh == len);
                    range.fill(true);
                    assert_eq!(placed.complete, there.iter().all(|there| *there));
                    if placed.complete {
                        assert!(slots.remove(&placed.slot));
                    }
                }
            }
        }
        while let Some(gone) = unfinished.given_up() {
            assert!(slots.remove(&gone.slot));
        }
        assert_eq!(unfinished.len(), slots.len());
        assert!(slots.len() <= 12);
    }
});
