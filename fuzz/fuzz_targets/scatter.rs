//! A list of a message's pieces of random words: what is read says of itself what it is, and what is written again is the same.
#![no_main]

use insane_shm::scatter::{MAX_PIECES, bytes_for, parse, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((total, places)) = parse(data) else { return };
    assert!((1..=MAX_PIECES).contains(&places.len()) && data.len() == bytes_for(places.len()));
    assert!(places.iter().all(|place| place.length > 0));
    let sum: u64 = places.iter().map(|place| u64::from(place.length)).sum();
    assert_eq!(sum, u64::from(total));
    let mut again = vec![0; data.len()];
    assert_eq!(write(&places, &mut again), Some(data.len()));
    assert_eq!(again, data);
});
