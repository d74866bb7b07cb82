//! What arrives as a frame: it is read or refused, every payload lies in it, and its messages written again read the same.
#![no_main]

use insane_wire::frame::record::{Record, Records, bundle_prefix};
use insane_wire::frame::{FrameBuilder, HEADER_BYTES, Header, LONE_BYTES, followers, lone_head, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Records::peek(data);
    if let Some((head, len)) = lone_head(data) {
        assert!(LONE_BYTES + len <= data.len());
        followers(&head, data, data.len() / 2);
    }
    check(data);
    // Most inputs are no frame; with a header in front the records are reached.
    if let Ok(length) = u16::try_from(data.len() + HEADER_BYTES) {
        let mut framed = Header { length, ..Header::default() }.to_bytes().to_vec();
        framed.extend_from_slice(data);
        let _ = Records::peek(&framed);
        check(&framed);
    }
});

fn check(bytes: &[u8]) {
    let Ok((header, records)) = parse(bytes) else { return };
    let mut out = Vec::new();
    // Without the flags the fields that they give a meaning to are not there either.
    let mut again = FrameBuilder::new(&mut out, Header { flags: 0, key: 0, check: 0, ..header }, 65_528);
    let mut wanted = Vec::new();
    for record in records {
        let Ok(record) = record else { break };
        let added = match record {
            Record::Message(message, place) => again.message(&message, &bytes[place.range()]),
            Record::Fragment(message, part, place) => {
                assert!(part.offset as usize + place.len <= part.total as usize);
                again.fragment(&message, part, &bytes[place.range()])
            }
            Record::Bundle(message, count, place) => {
                let payload = &bytes[place.range()];
                assert_eq!(bundle_prefix(payload, usize::MAX, count), Some((place.len, count)));
                again.bundle_from(&message, count, place.len, |out| out.extend_from_slice(payload))
            }
            Record::Ack(ack) => {
                let ranges: Vec<_> = ack.ranges().collect();
                assert!(ranges.windows(2).all(|pair| pair[0].0 > pair[1].1));
                again.ack(ack.delay_us, ranges)
            }
            Record::Hello(hello) => again.hello(&hello),
            Record::FlowOpen(open) => again.flow_open(&open),
            Record::FlowAck(ack) => again.flow_ack(&ack),
            Record::Credit(credit) => again.credit(&credit),
            Record::Close(close) => again.close(&close),
            Record::Closed(closed) => again.closed(&closed),
            Record::Ask(ask) => again.ask(&ask),
            Record::Ping => again.ping(),
            Record::Bye => again.bye(),
            Record::Unknown(_) => continue,
        };
        if !added {
            break;
        }
        wanted.push(record);
    }
    again.finish();
    let (_, records) = parse(&out).expect("what was written is a frame");
    let mut count = 0;
    for (got, wanted) in records.zip(&wanted) {
        match (got.expect("what was written is read"), wanted) {
            (Record::Message(a, x), Record::Message(b, y)) => assert_eq!((a, &out[x.range()]), (*b, &bytes[y.range()])),
            (Record::Fragment(a, p, x), Record::Fragment(b, q, y)) => {
                assert_eq!((a, p, &out[x.range()]), (*b, *q, &bytes[y.range()]));
            }
            (Record::Bundle(a, n, x), Record::Bundle(b, m, y)) => {
                assert_eq!((a, n, &out[x.range()]), (*b, *m, &bytes[y.range()]));
            }
            // Runs that touch or are said to reach below the first frame are written in another way.
            (Record::Ack(a), Record::Ack(b)) => assert_eq!(a.largest, b.largest),
            (a, b) => assert_eq!(a, *b),
        }
        count += 1;
    }
    assert_eq!(count, wanted.len());
}
