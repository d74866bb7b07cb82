//! Flows from the host to sinks of this one.

use super::*;

/// The host's flow of a source goes to a sink that is attached, with its number.
fn goes_to(stand: &mut Stand, number: u64, epoch: u8, sink: u8) {
    let ready = wire::Ready { epoch: vec![epoch; 16], sink: vec![sink; 16], join: 1, answer: true };
    stand.say(&word(Body::Ready(ready)));
    stand.open("default", u128::from_le_bytes([epoch; 16]), 5, number % 2 == 1);
}

#[test]
fn a_host_that_sends_empty_messages_to_a_stopped_sink_is_held() {
    let mut stand = Stand::new();
    stand.sink(1, [1; 16], 5, true);
    stand.say(&source(1, 4, 5));
    let mut players = attached(&mut stand);
    goes_to(&mut stand, 1, 4, 1);
    assert_eq!(stand.hub.hosts[0].incoming.len(), 1);
    stand.hub.domains[0].memory_limit = 1 << 20;
    let (flow, mut sent) = (stand.flows[0], 0);
    // As a runtime does: what is not gone waits, and then its sources do.
    for _ in 0..200 {
        while stand.peer.waiting(flow) < 2048 && sent < 60_000 {
            let next = Outgoing { token: sent + 1000, sequence: sent + 1, joined: 1, ..Outgoing::default() };
            stand.peer.send(flow, next).expect("room for what waits");
            sent += 1;
        }
        stand.pass(Duration::from_millis(10));
    }
    assert!((4096..30_000).contains(&sent), "{sent} sent");
    let mut took = 0;
    for _ in 0..200 {
        players.iter_mut().for_each(Player::read);
        took += players.iter_mut().map(Player::take).sum::<usize>() as u64;
        stand.pass(Duration::from_millis(10));
    }
    assert_eq!((took, stand.peer.waiting(flow)), (sent, 0));
}
