//! loom models of the protocols between two sides: every interleaving of these few steps, with a model futex.

use insane_shm::biased::BiasedLock;
use insane_shm::link::{Consumer, Descriptor, Fate, Producer, Returned, pair_on_heap};
use insane_shm::wait::{SleepKinds, wait_any};
use loom::sync::Arc;
use loom::thread;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Two involuntary switches find what two sides with a handful of steps can do to each other; the rest is time.
    builder.preemption_bound.get_or_insert(2);
    builder.check(f);
}

fn push(producer: &mut Producer, sequence: u64) {
    let descriptor = Descriptor { channel: 5, sequence, ..Descriptor::default() };
    producer.push(&descriptor, &sequence.to_le_bytes());
}

/// Takes the next message, sleeping when there is none: INV-WAIT-1 says that this ends.
fn take(consumer: &mut Consumer) -> u64 {
    loop {
        if let Some(delivery) = consumer.poll().unwrap() {
            assert_eq!(delivery.inline_bytes(), delivery.descriptor.sequence.to_le_bytes(), "a torn message");
            consumer.release(&delivery.descriptor, Fate::AsCounted);
            return delivery.descriptor.sequence;
        }
        let announced = consumer.prepare_sleep(SleepKinds::FUTEX);
        if insane_shm::mutate::left_out(insane_shm::mutate::Mutation::SleeperRecheck) || !consumer.ready() {
            wait_any(&[consumer.wait_word(announced)], None);
        }
        consumer.awake();
    }
}

pub(crate) fn no_wake_up_is_lost_for_a_consumer() {
    model(|| {
        let (mut producer, mut consumer) = pair_on_heap(4);
        let sender = thread::spawn(move || {
            for sequence in 1..=2 {
                push(&mut producer, sequence);
                producer.wake();
            }
        });
        assert_eq!((take(&mut consumer), take(&mut consumer)), (1, 2));
        sender.join().unwrap();
    });
}

pub(crate) fn no_wake_up_is_lost_for_a_producer_without_room() {
    model(|| {
        let (mut producer, mut consumer) = pair_on_heap(4);
        for sequence in 1..=4 {
            push(&mut producer, sequence);
        }
        let sender = thread::spawn(move || {
            while producer.credit() == 0 {
                producer.reclaim(|_| ()).unwrap();
                if producer.credit() > 0 {
                    break;
                }
                let announced = producer.prepare_sleep();
                if producer.reclaim(|_| ()).unwrap() == 0 {
                    wait_any(&[producer.wait_word(announced)], None);
                }
                producer.awake();
            }
            push(&mut producer, 5);
        });
        let delivery = consumer.poll().unwrap().unwrap();
        consumer.release(&delivery.descriptor, Fate::AsCounted);
        consumer.settle();
        consumer.wake();
        sender.join().unwrap();
    });
}

pub(crate) fn entries_are_used_again_only_after_they_were_read() {
    model(|| {
        let (mut producer, mut consumer) = pair_on_heap(4);
        let sender = thread::spawn(move || {
            let mut back = 0;
            for sequence in 1..=6 {
                while producer.credit() == 0 {
                    let count = |r| match r {
                        Returned::Credit { count, .. } => back += count,
                        Returned::Slot { .. } => panic!("no slot was given"),
                    };
                    producer.reclaim(count).unwrap();
                    thread::yield_now();
                }
                push(&mut producer, sequence);
            }
            assert!(back >= 2);
        });
        for expected in 1..=6u64 {
            let delivery = loop {
                if let Some(delivery) = consumer.poll().unwrap() {
                    break delivery;
                }
                thread::yield_now();
            };
            assert_eq!(delivery.descriptor.sequence, expected);
            assert_eq!(delivery.inline_bytes(), expected.to_le_bytes());
            consumer.release(&delivery.descriptor, Fate::AsCounted);
        }
        sender.join().unwrap();
    });
}

pub(crate) fn the_biased_lock_excludes() {
    model(|| {
        let lock = Arc::new(BiasedLock::new((0u32, 0u32)));
        // This thread owns the bias from here on.
        *lock.lock() = (1, 1);
        let other = lock.clone();
        let visitor = thread::spawn(move || {
            let mut guard = other.visit();
            guard.0 += 1;
            thread::yield_now();
            guard.1 += 1;
            assert_eq!(guard.0, guard.1);
        });
        for _ in 0..2 {
            let mut guard = lock.lock();
            guard.0 += 1;
            thread::yield_now();
            guard.1 += 1;
            assert_eq!(guard.0, guard.1);
        }
        visitor.join().unwrap();
        assert_eq!(*lock.lock(), (4, 4));
    });
}

pub(crate) fn a_second_thread_ends_the_bias() {
    model(|| {
        let lock = Arc::new(BiasedLock::new(0u32));
        *lock.lock() += 1;
        let other = lock.clone();
        let second = thread::spawn(move || {
            *other.lock() += 1;
            *other.lock() += 1;
        });
        *lock.lock() += 1;
        second.join().unwrap();
        assert_eq!(*lock.lock(), 4);
    });
}
