//! Without each of the checks on returned slots the owner would be fooled: that is what makes the checks worth something.
//! A program of its own, since the switch is one for the whole process. `cargo test -p insane-shm --features mutate`
#![cfg(all(feature = "mutate", not(loom)))]

use insane_shm::link::{Descriptor, Fate, Returned, pair_on_heap};
use insane_shm::mutate::{Mutation, leave_out};
use std::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

/// Counts what the producer takes back of one slot and one inline message, returned twice each, or of a slot that is not.
fn taken(mutation: Option<Mutation>, lie: Descriptor) -> u32 {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (mut producer, mut consumer) = pair_on_heap(8);
    producer.add_segment(0, 4);
    consumer.add_segment(0, 64, 256);
    producer.push(&Descriptor { sequence: 1, slot: 2, length: 1, ..Descriptor::default() }, &[]);
    producer.push(&Descriptor { sequence: 2, ..Descriptor::default() }, b"x");
    consumer.poll().unwrap();
    consumer.poll().unwrap();
    for _ in 0..2 {
        consumer.release(&lie, Fate::AsCounted);
        consumer.settle();
    }
    leave_out(mutation);
    let mut count = 0;
    let _ = producer.reclaim(|r| {
        count += match r {
            Returned::Credit { count, .. } => count,
            Returned::Slot { .. } => 1,
        }
    });
    leave_out(None);
    count
}

#[test]
fn without_the_check_of_holds_a_slot_comes_back_twice() {
    let lie = Descriptor { sequence: 1, slot: 2, length: 1, ..Descriptor::default() };
    assert_eq!((taken(None, lie), taken(Some(Mutation::ReturnHeld), lie)), (1, 2));
}

#[test]
fn without_the_check_of_range_a_foreign_slot_comes_back() {
    let lie = Descriptor { sequence: 1, slot: 40, length: 1, ..Descriptor::default() };
    assert_eq!((taken(None, lie), taken(Some(Mutation::ReturnRange), lie)), (0, 2));
}

#[test]
fn without_the_check_of_credit_too_much_comes_back() {
    let lie = Descriptor { sequence: 2, flags: insane_shm::link::FLAG_INLINE, ..Descriptor::default() };
    assert_eq!((taken(None, lie), taken(Some(Mutation::ReturnCredit), lie)), (1, 2));
}
