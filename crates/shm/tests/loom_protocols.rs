//! The models of the protocols hold.
//! `RUSTFLAGS="--cfg loom" cargo test -p insane-shm --release --test loom_protocols`
#![cfg(loom)]

mod models;

#[test]
fn loom_no_wake_up_is_lost_for_a_consumer() {
    models::no_wake_up_is_lost_for_a_consumer();
}

#[test]
fn loom_no_wake_up_is_lost_for_a_producer_without_room() {
    models::no_wake_up_is_lost_for_a_producer_without_room();
}

#[test]
fn loom_entries_are_used_again_only_after_they_were_read() {
    models::entries_are_used_again_only_after_they_were_read();
}

#[test]
fn loom_the_biased_lock_excludes() {
    models::the_biased_lock_excludes();
}

#[test]
fn loom_a_second_thread_ends_the_bias() {
    models::a_second_thread_ends_the_bias();
}
