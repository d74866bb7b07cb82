//! A host that says more than there is to say, or hears nothing: what is kept of it is bounded.

use super::*;
use insane_wire::encode;
use insane_wire::host::{self as wire, ToHost, to_host::Body};
use insane_wire::id::channel_id;

const MANY: u64 = 100;

fn word(body: Body) -> Vec<u8> {
    encode(&ToHost { body: Some(body) })
}

/// Names that are none, as the domain, the stream and the channel.
fn misnomers() -> [(String, String, Option<String>); 6] {
    let (long, domain, stream) = ("x".repeat(16 << 10), "default".to_owned(), stream_name(0).to_owned());
    [
        (domain.clone(), long.clone(), None),
        (long.clone(), stream.clone(), None),
        (domain.clone(), stream.clone(), Some(long)),
        (domain.clone(), "\u{1b}[2J".into(), None),
        (domain.clone(), stream, Some(String::new())),
        (domain, String::new(), None),
    ]
}

#[test]
fn sinks_and_sources_under_names_that_are_none_are_not_kept() {
    let mut stand = Stand::new();
    let mut strays = 0;
    for (n, (domain, stream, name)) in (0..MANY).flat_map(|n| misnomers().map(|names| (n, names))) {
        let id = name.as_ref().map_or(5, |name| channel_id(&domain, &stream, name).0);
        strays += 2;
        let sink = u128::from(strays).to_le_bytes().to_vec();
        let announced = wire::Announce { domain, stream, name, channel: id, sink: sink.clone(), ..Default::default() };
        let wire::Announce { domain, stream, name, .. } = announced.clone();
        stand.say(&word(Body::Announce(announced)));
        let about = wire::Source { epoch: sink, domain, stream, name, channel: id, ..Default::default() };
        stand.say(&word(Body::Source(about)));
        stand.pass(Duration::from_millis(10));
        assert_eq!((stand.holds().sum(), stand.strays()), (0, strays), "{n}: {stand:?}");
    }
    assert!(stand.is_connected() && !stand.hub.directory.knows(0));
}

#[test]
fn a_connection_has_one_control_flow() {
    let mut stand = Stand::new();
    let first = stand.hub.hosts[0].control_in;
    for epoch in 2..2 + u128::from(MANY) {
        let spec = FlowSpec { domain: CONTROL.0, epoch, channel: CONTROL.1, reliable: true, first: 1 };
        stand.peer.open(spec);
        stand.settle();
    }
    stand.pass(Duration::from_secs(1));
    assert_eq!((stand.hub.hosts[0].control_in, stand.strays()), (first, MANY));
    // And the one is heard.
    let (domain, stream) = ("default".to_owned(), stream_name(0).to_owned());
    let sink = vec![3; 16];
    stand.say(&word(Body::Announce(wire::Announce { domain, stream, channel: 5, sink, ..Default::default() })));
    assert_eq!((stand.holds().in_the_core, stand.strays()), (1, MANY));
    // So is that of the next connection.
    stand.restart();
    assert!(stand.hub.hosts[0].control_in.is_some());
}

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

#[test]
fn what_is_kept_of_refused_sinks_goes_with_them() {
    let mut stand = Stand::new();
    let refuse = |stand: &mut Stand, sink: [u8; 16]| {
        stand.say(&word(Body::Refused(wire::Refused { sink: sink.to_vec(), reasons: Vec::new() })));
    };
    for sink in 1..=u8::MAX {
        stand.sink(0, [sink; 16], 5, true);
        refuse(&mut stand, [sink; 16]);
        assert_eq!(stand.hub.hosts[0].refused.len(), 1, "{sink}");
        stand.sink(0, [sink; 16], 5, false);
        // It was said before it was heard that the sink is gone; of others nobody has heard at all.
        refuse(&mut stand, [sink; 16]);
        refuse(&mut stand, [0; 16]);
        assert_eq!(stand.hub.hosts[0].refused.len(), 0, "{sink}");
    }
}
