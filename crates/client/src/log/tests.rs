use super::*;
use insane_shm::link::{Consumer, DeliveryBlock, Fate, ReturnBlock};
use insane_shm::memory::Heap;
use std::sync::Arc;

const ENTRIES: u32 = 8;
const SLOTS: u32 = 6;

fn link() -> (Producer, Consumer) {
    let delivery = Arc::new(Heap::new(DeliveryBlock::bytes(ENTRIES).unwrap()));
    let returns = Arc::new(Heap::new(ReturnBlock::bytes(ENTRIES).unwrap()));
    let (own, back) = (DeliveryBlock::create(delivery.clone(), ENTRIES), ReturnBlock::create(returns.clone(), ENTRIES));
    let (own, back) = (own.unwrap(), back.unwrap());
    let mut producer = Producer::new(own, ReturnBlock::open(returns, ENTRIES).unwrap());
    let mut consumer = Consumer::new(back, DeliveryBlock::open(delivery, ENTRIES).unwrap());
    producer.add_segment(0, SLOTS);
    consumer.add_segment(0, SLOTS, 64);
    (producer, consumer)
}

/// Numbers that follow from a seed.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Slots are used again and again and come back in any order; the ring has long been written over where the oldest stood.
#[test]
fn what_is_under_way_is_what_was_put_and_has_not_come_back() {
    for seed in 0..if cfg!(miri) { 3 } else { 200u64 } {
        let (mut producer, mut consumer) = link();
        let (mut log, mut seed) = (Log::default(), seed);
        let (mut free, mut taken) = ((0..SLOTS).collect::<Vec<_>>(), Vec::new());
        // The model: what is out, in the order in which it was put; `None` for those without a slot.
        let mut out: Vec<(u64, Option<u32>)> = Vec::new();
        for sequence in 1..400 {
            match next(&mut seed) % 8 {
                0..=3 if producer.credit() > 0 && !free.is_empty() => {
                    let at = next(&mut seed) as usize % free.len();
                    let slot = free.remove(at);
                    let d = Descriptor { sequence, slot, length: 9, ..Descriptor::default() };
                    log.put(&producer, &d, true, &[]);
                    producer.push(&d, &[]);
                    out.push((sequence, Some(slot)));
                }
                4 if producer.credit() > 0 => {
                    let d = Descriptor { sequence, ..Descriptor::default() };
                    log.put(&producer, &d, false, &[]);
                    producer.push(&d, &[]);
                    out.push((sequence, None));
                }
                5 => {
                    while let Some(d) = consumer.poll().unwrap() {
                        taken.push(d.descriptor);
                    }
                }
                _ if !taken.is_empty() => {
                    let at = next(&mut seed) as usize % taken.len();
                    let d = taken.remove(at);
                    consumer.release(&d, Fate::AsCounted);
                    consumer.settle();
                    producer.reclaim(|_| ()).unwrap();
                    if d.flags & FLAG_INLINE == 0 {
                        out.retain(|(s, _)| *s != d.sequence);
                        free.push(d.slot);
                    }
                    log.trim(&producer);
                }
                _ => {}
            }
            let left: Vec<(u64, Option<u32>)> = log
                .iter()
                .filter(|e| e.is_out(&producer))
                .map(|e| (e.descriptor.sequence, (e.descriptor.flags & FLAG_INLINE == 0).then_some(e.descriptor.slot)))
                .collect();
            // Those without a slot are forgotten by their flows' counts alone; here nobody counts.
            assert_eq!(left, out);
        }
    }
}

#[test]
fn it_is_gone_through_by_position_and_shortened_when_it_is_long() {
    let (mut producer, _) = link();
    let mut log = Log::default();
    for sequence in 1..=5 {
        let d = Descriptor { sequence, ..Descriptor::default() };
        log.put(&producer, &d, false, &[1, 2]);
        producer.push(&d, &[1, 2]);
    }
    log.retain(|e| e.descriptor.sequence % 2 == 0);
    let after = |position| log.from(position).map(|e| (e.descriptor.sequence, e.inline.to_vec()));
    assert_eq!((after(0), after(2)), (Some((2, vec![1, 2])), Some((4, vec![1, 2]))));
    assert_eq!((after(4), log.is_long()), (None, false));
}
