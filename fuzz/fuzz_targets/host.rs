//! Another runtime that says anything over a control flow that stands, in any order, while sessions of this host come and go:
//! nothing breaks, what is held is bounded by what was said, words that are not understood are counted, and nothing is left when
//! the host and the sessions are gone.
#![no_main]

use std::time::Duration;

use insane_runtime::network::stand::{Stand, stream_name};
use insane_wire::host::{self as wire, ToHost, to_host::Body};
use insane_wire::qos::{Qos, Reliability};
use libfuzzer_sys::fuzz_target;

/// Few, so that those of words, flows and sessions meet.
fn id(of: u8) -> [u8; 16] {
    [of % 4 + 1; 16]
}

fn qos(of: u8) -> Option<Qos> {
    let mut qos = Qos::default();
    if of & 1 != 0 {
        qos.set_reliability(Reliability::Reliable);
    }
    (of & 2 == 0).then_some(qos)
}

/// A word that fits what the sessions have, or nearly: `a` says what, `b` about whom, `c` how.
fn word(a: u8, b: u8, c: u8) -> Body {
    let domain = if c & 8 == 0 { "default" } else { "elsewhere" }.to_owned();
    let stream = stream_name(c.into()).to_owned();
    let (channel, name) = (u64::from(b >> 4 & 3), (c & 16 != 0).then(|| "name".to_owned()));
    let (sink, epoch) = (id(b).to_vec(), id(b >> 2).to_vec());
    match a % 9 {
        0 => {
            let reach = wire::Reach { kind: "xdp".into(), address: "10.98.0.2:7400".into() };
            let hello =
                wire::Hello { run: vec![c; 16], host: "there".into(), reach: vec![reach], ..Default::default() };
            Body::Hello(hello)
        }
        1 | 2 => {
            let (observer, strict) = (c & 32 != 0, c & 64 != 0);
            Body::Announce(wire::Announce { domain, stream, qos: qos(c), channel, name, sink, observer, strict })
        }
        3 => Body::Withdraw(wire::Withdraw { sink }),
        4 => {
            // Many are longer than a frame.
            let count = if c >> 6 == 3 { 250 } else { c >> 6 };
            let sinks = (0..count).map(|n| id(b.wrapping_add(n)).to_vec()).collect();
            let gone = c & 32 != 0;
            Body::Source(wire::Source { epoch, domain, stream, qos: qos(c), channel, name, sinks, gone })
        }
        5 => Body::Ready(wire::Ready { epoch, sink, join: u32::from(c & 15), answer: c & 128 != 0 }),
        6 => Body::Report(wire::Report {
            epoch,
            sink,
            delivered: c.into(),
            sink_full: (c & 3).into(),
            join: u32::from(c >> 6),
            ..Default::default()
        }),
        7 => Body::Ended(wire::Ended { epoch }),
        _ => Body::Refused(wire::Refused { sink, reasons: vec!["a reason".into(); (c & 15).into()] }),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stand = Stand::new();
    assert!(stand.is_connected());
    let (mut steps, mut rest) = (0, data);
    while let [kind, a, b, c, tail @ ..] = rest {
        // Each step turns both ends several times.
        steps += 1;
        if steps > 64 {
            break;
        }
        rest = tail;
        let number = u64::from(*c);
        let mut bytes = |most: usize| {
            let (bytes, tail) = rest.split_at(most.min(rest.len()));
            rest = tail;
            bytes.to_vec()
        };
        match kind % 12 {
            0 => {
                let bytes = bytes(usize::from(*a));
                let understood = insane_wire::decode::<ToHost>(&bytes).is_ok_and(|word| word.body.is_some());
                let strays = stand.strays();
                stand.say(&bytes);
                assert!(understood || !stand.is_connected() || stand.strays() > strays, "ignored and not counted");
            }
            1..=4 => {
                let said = ToHost { body: Some(word(*a, *b, *c)) };
                let bytes = insane_wire::encode(&said);
                assert_eq!(insane_wire::decode::<ToHost>(&bytes), Ok(said));
                stand.say(&bytes);
            }
            5 => stand.sink(number, id(*b), u64::from(b >> 4 & 3), a & 1 == 0),
            6 => stand.source(number, id(b >> 2), u64::from(b >> 4 & 3), a & 1 == 0),
            7 => {
                let domain = if c & 8 == 0 { "default" } else { "elsewhere" };
                stand.open(domain, u128::from_le_bytes(id(b >> 2)), u64::from(b >> 4 & 3), c & 1 != 0);
            }
            8 => {
                let bytes = bytes(usize::from(*a) * 8);
                if c & 15 == 0 { stand.close((*b).into()) } else { stand.give((*b % 8).into(), &bytes) }
            }
            9 => {
                let strangers = stand.strangers();
                let bytes = bytes(usize::from(*a));
                stand.frame(&bytes, c & 1 != 0);
                assert!(c & 1 == 0 || bytes.is_empty() || stand.strangers() > strangers, "a stranger was heard");
            }
            10 if c & 7 == 0 => stand.restart(),
            10 if a & 1 == 0 => stand.comes(number),
            10 => stand.goes(number),
            _ => stand.pass(Duration::from_millis(u64::from(*a) * 10)),
        }
        // A word makes a few entries at most: of a sink, what is asked of the core for it, and what is said of it.
        assert!(stand.holds().sum() <= 64 * (steps + 8), "{:?} after {steps} steps", stand.holds());
    }
    stand.end();
    let left = stand.holds();
    assert_eq!(left.sum(), 0, "{left:?}");
});
