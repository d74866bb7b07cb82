//! A producer that takes no notice of its credit.

use insane_shm::link::{Broken, Descriptor, pair_on_heap};

#[test]
fn a_producer_without_credit_breaks_its_link() {
    let (mut producer, mut consumer) = pair_on_heap(8);
    let mut read = 0;
    let broken = loop {
        assert!(read <= 8, "{read} descriptors are kept for a link with credit for 8");
        if producer.credit() == 0 {
            producer.dissolve(|_, _| {});
        }
        producer.push(&Descriptor::default(), b"more");
        match consumer.poll() {
            Ok(Some(_)) => read += 1,
            Ok(None) => panic!("a descriptor was published"),
            Err(broken) => break broken,
        }
    };
    assert_eq!((read, broken), (8, Broken::NoCredit { owed: 8, entries: 8 }));
}
