//! A model without one of its parts fails: that is what makes the models worth something. A program of its own, since the
//! switch is one for the whole process.
//! `RUSTFLAGS="--cfg loom" cargo test -p insane-shm --release --features mutate --test loom_mutations`
#![cfg(all(loom, feature = "mutate"))]

#[allow(dead_code, reason = "the others are not needed here")]
mod models;

use insane_shm::mutate::{Mutation, leave_out};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// The switch is one for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn fails_without(mutation: Mutation, f: fn()) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    leave_out(Some(mutation));
    let result = catch_unwind(AssertUnwindSafe(f));
    leave_out(None);
    assert!(result.is_err(), "the model does not need {mutation:?}");
}

#[test]
fn loom_without_the_sleepers_fence_a_wake_up_is_lost() {
    fails_without(Mutation::SleeperFence, models::no_wake_up_is_lost_for_a_consumer);
}

#[test]
fn loom_without_the_wakers_fence_a_wake_up_is_lost() {
    fails_without(Mutation::WakerFence, models::no_wake_up_is_lost_for_a_consumer);
}

#[test]
fn loom_without_the_second_look_a_wake_up_is_lost() {
    fails_without(Mutation::SleeperRecheck, models::no_wake_up_is_lost_for_a_consumer);
}

#[test]
fn loom_without_release_a_message_is_torn() {
    fails_without(Mutation::PublishRelease, models::no_wake_up_is_lost_for_a_consumer);
}

#[test]
fn loom_without_its_fence_the_biased_lock_does_not_exclude() {
    fails_without(Mutation::BiasedFence, models::the_biased_lock_excludes);
}
