//! What goes for good and what comes back: names that hosts use and use no more.

use super::tests::{reliable_qos, word};
use super::*;
use insane_wire::host::{self as wire, to_host::Body};

fn sink_on(stream: &str, sink: u8, qos: Qos) -> Body {
    let (domain, stream, qos, sink) = ("default".to_owned(), stream.to_owned(), Some(qos), vec![sink; 16]);
    Body::Announce(wire::Announce { domain, stream, qos, channel: 5, sink, ..Default::default() })
}

fn gone(sink: u8) -> Body {
    Body::Withdraw(wire::Withdraw { sink: vec![sink; 16] })
}

#[test]
fn streams_of_which_hosts_have_no_sink_any_more_are_closed() {
    let mut stand = Stand::new();
    let own = stand.core.streams.len();
    for number in 0..1000 {
        let name = format!("stream {number}");
        stand.say(&word(sink_on(&name, 3, reliable_qos())));
        assert_eq!((stand.core.streams.len(), stand.holds().in_the_core), (own + 1, 1), "{name}");
        stand.say(&word(gone(3)));
    }
    assert_eq!((stand.core.streams.len(), stand.core.sessions[&NETWORK].streams()), (own, 0));
    // Of another QoS now.
    stand.say(&word(sink_on("stream 7", 3, Qos::default())));
    assert_eq!((stand.core.streams.len(), stand.hub.refusals), (own + 1, 0));
}

#[test]
fn a_sink_that_did_not_fit_takes_part_once_what_it_did_not_fit_is_gone() {
    let mut stand = Stand::new();
    // Here this stream is best effort, for two sessions.
    stand.say(&word(sink_on(stream_name(0), 3, reliable_qos())));
    stand.say(&word(sink_on(stream_name(0), 4, reliable_qos())));
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 0));
    stand.goes(0);
    stand.say(&word(gone(4)));
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 0));
    stand.goes(2);
    assert_eq!((stand.hub.refusals, stand.holds().in_the_core), (2, 1));
    // Now it is its own stream, which a session is refused.
    stand.comes(0);
    assert!(!stand.streams.contains_key(&SESSIONS));
    stand.say(&word(gone(3)));
    assert_eq!(stand.holds(), Holds::default());
}
