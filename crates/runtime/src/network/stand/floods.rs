//! A host that says more than there is to say, or hears nothing: what is kept of it is bounded.

use super::*;
use insane_wire::host::{self as wire, to_host::Body};

#[test]
fn a_host_that_takes_nothing_that_is_said_to_it_is_left() {
    let mut stand = Stand::new();
    let say = |hub: &mut Hub| {
        let Hub { hosts, underway, .. } = hub;
        hosts[0].say_as(Body::Ready(wire::Ready { answer: true, ..Default::default() }), underway).is_some()
    };
    let mut said = 0;
    while say(&mut stand.hub) {
        said += 1;
        assert!(said < 2 << 20, "it is said more and more");
    }
    // What finds no room leaves nothing behind, and does not go missing among what is said later.
    let held = stand.hub.underway.len();
    assert!(!say(&mut stand.hub) && stand.hub.underway.len() == held);
    assert_eq!(stand.hub.hosts[0].lost, 0);
    stand.pass(Duration::from_millis(100));
    assert_eq!(stand.hub.hosts[0].lost, 1);
    stand.connect();
    stand.pass(Duration::from_secs(5));
    assert!(stand.is_connected() && say(&mut stand.hub), "it is met again");
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.holds().under_way, stand.hub.hosts[0].lost), (0, 1));
}
