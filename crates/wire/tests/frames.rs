//! Frames: what is written is read again, and no bytes whatever make the reader fail.

use insane_wire::frame::control::{Account, Ask, Close, Closed, Credit, FlowAck, FlowOpen, Hello};
use insane_wire::frame::record::{
    BUNDLE_BYTES, MAX_BUNDLED, MAX_SEQUENCE, Message, Part, Place, Record, Records, bundle_append, bundle_longest,
    bundle_prefix, bundled,
};
use insane_wire::frame::{
    CHECKED, FrameBuilder, FrameError, HEADER_BYTES, Header, LONE_BYTES, SEALED, build_lone, checksum, followers,
    lone_head, parse, read_lone, stride,
};
use proptest::prelude::*;

fn message() -> impl Strategy<Value = Message> {
    (any::<(u32, u32, u64, u32)>(), 0u8..16, any::<(u64, u64)>()).prop_map(|(ids, priority, times)| Message {
        joined: (times.0 >> 8) as u8,
        flow: ids.0,
        index: ids.1,
        sequence: ids.2 & MAX_SEQUENCE,
        lifetime_us: ids.3,
        priority,
        timestamp_ns: times.0 & 1,
        launch_ns: times.1 & 0xff,
    })
}

proptest! {
    #[test]
    fn a_message_alone_is_built_and_read_as_with_others(
        message in message(), payload in proptest::collection::vec(any::<u8>(), 0..300), appended in 0usize..400,
        counter: u64, flags in 0u8..3, limit in 32usize..400,
    ) {
        let header = Header { flags: flags & CHECKED, domain: 9, connection: 8, counter, sent_us: 6, ..Header::default() };
        let (mut built, mut alone) = (vec![0xaa; 5], vec![0xaa; 5]);
        let mut frame = FrameBuilder::new(&mut built, header, limit);
        // What is appended need not be as long as was said.
        let fill = |out: &mut Vec<u8>| out.extend(payload.iter().copied().cycle().take(if payload.is_empty() { 0 } else { appended }));
        let fits = frame.message_from(&message, payload.len(), fill);
        let plain = header.flags == 0 && message.option_bytes() == 0;
        let len = build_lone(&mut alone, &header, &message, (payload.len(), limit & !7), fill);
        if fits && plain {
            prop_assert_eq!(len, Some(frame.finish()));
            prop_assert_eq!(&alone, &built);
            let (head, size) = lone_head(&alone[5..]).unwrap();
            let (read, said) = read_lone(&head).unwrap();
            prop_assert_eq!((read, said, size), (Header { length: read.length, ..header }, message, payload.len()));
            prop_assert_eq!(parse(&alone[5..]).unwrap().0, read);
        } else {
            prop_assert_eq!((len, alone.len()), (None, 5));
        }
    }

    #[test]
    fn frames_that_were_joined_say_how_far_apart_they_are(
        size in 1usize..300, shorter in proptest::collection::vec(0usize..300, 0..6), last in 0usize..300,
    ) {
        // As they are joined: all of one length, which the longer of the first two has, filled up with zeros; the last is not.
        let len = lone_frames(1, size)[0].len();
        let sizes = shorter.iter().map(|less| size - less.min(&(size - 1)));
        let mut bytes: Vec<u8> = Vec::new();
        for (n, size) in sizes.enumerate() {
            bytes.extend_from_slice(&lone_frames(1, size)[0]);
            bytes.resize((n + 1) * len, 0);
        }
        let alone = bytes.is_empty();
        bytes.extend_from_slice(&lone_frames(1, last.clamp(1, size))[0]);
        prop_assert_eq!(stride(&bytes), if alone { bytes.len() } else { len });
        // One that was filled up and is alone is one.
        if alone {
            let longer = bytes.len() + last;
            bytes.resize(longer, 0);
            prop_assert_eq!(stride(&bytes), longer);
        }
    }

    #[test]
    fn bytes_that_are_no_frames_are_apart_somehow(bytes in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..3) {
        let mut bytes = bytes;
        let good = &lone_frames(1, 8)[0];
        let kept = [0, 4, 6][keep].min(bytes.len());
        bytes[..kept].copy_from_slice(&good[..kept]);
        let apart = stride(&bytes);
        prop_assert!(apart == bytes.len() || (HEADER_BYTES..bytes.len()).contains(&apart), "{} of {}", apart, bytes.len());
    }

    #[test]
    fn no_head_is_read_alone_that_is_not_read_with_others(mut head: [u8; LONE_BYTES], keep in 0u8..4) {
        let good = &lone_frames(1, 8)[0];
        // Some of them begin as frames do.
        let kept = [0, 4, 32, 36][usize::from(keep)];
        head[..kept].copy_from_slice(&good[..kept]);
        let mut frame = good.clone();
        frame[..LONE_BYTES].copy_from_slice(&head);
        if let (Some((head, _)), Ok((header, mut records))) = (lone_head(&frame), parse(&frame)) {
            let read = read_lone(&head).map(|(header, message)| (header, Some(message)));
            let first = match records.next() {
                Some(Ok(Record::Message(message, _))) => Some(message),
                _ => None,
            };
            prop_assert_eq!(read, Some((header, first)));
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in(
        list in proptest::collection::vec((message(), proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
        checked: bool,
    ) {
        let mut bytes = vec![0xaa; 5];
        let flags = if checked { CHECKED } else { 0 };
        let header = Header { flags, domain: 9, connection: 8, counter: 7, sent_us: 6, ..Header::default() };
        let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
        let taken = list.iter().take_while(|(message, payload)| frame.message(message, payload)).count();
        let len = frame.finish();
        prop_assert!(len <= 1472 && len.is_multiple_of(8) && bytes.len() == 5 + len);
        // Padding of the network after the frame is not the frame's.
        bytes.extend_from_slice(&[0xff; 20]);
        let frame = &bytes[5..];
        let (read, records) = parse(frame).unwrap();
        prop_assert_eq!((read.domain, read.connection, read.counter, read.sent_us), (9, 8, 7, 6));
        let mut seen = 0;
        for (record, (message, payload)) in records.zip(&list) {
            let Ok(Record::Message(got, place)) = record else { panic!("{record:?}") };
            prop_assert_eq!((&got, &frame[place.range()]), (message, &payload[..]));
            prop_assert!(place.at.is_multiple_of(8));
            seen += 1;
        }
        prop_assert_eq!(seen, taken);
    }

    #[test]
    fn bundles_come_out_as_they_went_in_and_are_cut_between_messages(
        lens in proptest::collection::vec(prop_oneof![0usize..=64, 65..=MAX_BUNDLED as usize], 1..=64),
        room in 200usize..9000,
        head in message(),
        value: u8,
    ) {
        let list: Vec<Vec<u8>> = lens.iter().map(|len| vec![value; *len]).collect();
        let mut all = Vec::new();
        list.iter().for_each(|payload| bundle_append(&mut all, payload));
        let longest = lens.iter().copied().max().unwrap_or(0);
        prop_assert_eq!(bundle_longest(&all), longest as u32);
        let places = bundled(&all, Place { at: 0, len: all.len() });
        prop_assert!(places.map(|place| &all[place.range()]).eq(list.iter().map(|payload| &payload[..])));
        // With room for the longest.
        let limit = room.max(HEADER_BYTES + BUNDLE_BYTES + 8 + longest.next_multiple_of(8));
        let (mut at, mut seen) = (0, 0u16);
        while at < all.len() {
            let mut bytes = Vec::new();
            let mut frame = FrameBuilder::new(&mut bytes, Header::default(), limit);
            let left = list.len() as u16 - seen;
            let (len, count) = bundle_prefix(&all[at..], frame.bundle_room(), left).unwrap();
            prop_assert!(count > 0, "a frame has room for one");
            let first = Message { lifetime_us: 0, timestamp_ns: 0, launch_ns: 0, ..head };
            prop_assert!(frame.bundle_from(&first, count, len, |out| out.extend_from_slice(&all[at..at + len])));
            prop_assert!(frame.finish() <= limit);
            let (_, mut records) = parse(&bytes).unwrap();
            let Some(Ok(Record::Bundle(got, n, place))) = records.next() else { panic!("no bundle") };
            prop_assert_eq!((got, n, &bytes[place.range()]), (first, count, &all[at..at + len]));
            (at, seen) = (at + len, seen + count);
        }
        prop_assert_eq!(usize::from(seen), list.len());
    }

    #[test]
    fn a_bundle_that_lies_is_refused(at in 32usize..64, value: u8, count in 0u16..70) {
        let three: Vec<u8> = [5u64, 1, 0, 64].iter().flat_map(|n| n.to_le_bytes()).chain([7; 64]).collect();
        let said = |count| {
            let mut bytes = Vec::new();
            let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 1472);
            assert!(frame.bundle_from(&Message::default(), count, three.len(), |out| out.extend_from_slice(&three)));
            frame.finish();
            bytes
        };
        let (honest, truth) = (said(count), said(3));
        let mut bytes = honest.clone();
        bytes[at] = value;
        let (_, mut records) = parse(&bytes).unwrap();
        match records.next() {
            Some(Ok(Record::Bundle(_, n, place))) => {
                // Still three messages: of five, nothing and sixty-four bytes.
                prop_assert_eq!((n, place.len), (3, 96));
                // A count that was wrong may have become right.
                prop_assert_eq!(&bytes[56..], &truth[56..]);
            }
            other => prop_assert!(count != 3 || bytes != honest, "{:?}", other),
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), frame_like: bool) {
        if frame_like && bytes.len() >= HEADER_BYTES {
            let length = u16::try_from(bytes.len()).unwrap();
            let head = Header { length, ..Header::default() }.to_bytes();
            bytes[..HEADER_BYTES].copy_from_slice(&head);
        }
        let _ = Records::peek(&bytes);
        if let Ok((_, records)) = parse(&bytes) {
            for record in records {
                match record {
                    Ok(Record::Message(_, place) | Record::Fragment(_, _, place)) => {
                        prop_assert!(bytes.get(place.range()).is_some());
                    }
                    Ok(Record::Bundle(_, count, place)) => {
                        let payload = bytes.get(place.range()).unwrap();
                        prop_assert_eq!(bundle_prefix(payload, usize::MAX, count), Some((place.len, count)));
                    }
                    Ok(Record::Ack(ack)) => {
                        let mut below = u64::MAX;
                        for (first, last) in ack.ranges() {
                            prop_assert!(first >= 1 && first <= last && last < below);
                            below = first;
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_of_a_checked_frame_is_seen(at in 0usize..88, change in 1u8..=255) {
        let mut bytes = Vec::new();
        let mut frame = FrameBuilder::new(&mut bytes, Header { flags: CHECKED, ..Header::default() }, 1472);
        prop_assert!(frame.message(&Message::default(), b"payload that is kept whole"));
        let len = frame.finish();
        prop_assert_eq!(len, 88);
        bytes[at] ^= change;
        match parse(&bytes) {
            Err(_) => {}
            // The flag itself may be what changed; then nothing says that there is a check.
            Ok((header, _)) => prop_assert!(at == 2 && header.flags & CHECKED == 0),
        }
    }

    #[test]
    fn acknowledged_runs_come_out_as_they_went_in(runs in proptest::collection::vec((1u64..1000, 1u64..1000), 1..64)) {
        let mut ranges = Vec::new();
        let mut next = 1;
        for (gap, len) in &runs {
            ranges.push((next + gap, next + gap + len - 1));
            next += gap + len;
        }
        ranges.reverse();
        let mut bytes = Vec::new();
        let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 1472);
        prop_assert!(frame.ack(17, ranges.iter().copied()));
        frame.finish();
        let (_, mut records) = parse(&bytes).unwrap();
        let Some(Ok(Record::Ack(ack))) = records.next() else { panic!() };
        prop_assert_eq!(ack.delay_us, 17);
        prop_assert_eq!(ack.ranges().collect::<Vec<_>>(), ranges);
        prop_assert!(records.next().is_none());
    }
}

/// What a frame with nothing but this acknowledgement acknowledges.
fn acknowledged(runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 1472);
    assert!(frame.ack(0, runs.iter().copied()));
    frame.finish();
    let Some(Ok(Record::Ack(ack))) = parse(&bytes).unwrap().1.next() else { panic!() };
    ack.ranges().collect()
}

#[test]
fn runs_that_are_too_long_to_be_said_are_cut_at_their_old_end() {
    const MOST: u64 = u32::MAX as u64;
    assert_eq!(acknowledged(&[(1, MOST)]), [(1, MOST)]);
    assert_eq!(acknowledged(&[(1, MOST + 1)]), [(2, MOST + 1)]);
    assert_eq!(acknowledged(&[(1, u64::MAX - 1)]), [(u64::MAX - MOST, u64::MAX - 1)]);
    // What lies behind what cannot be said is not said.
    assert_eq!(acknowledged(&[(MOST + 9, MOST + 12), (3, MOST + 7)]), [(MOST + 9, MOST + 12), (8, MOST + 7)]);
    assert_eq!(acknowledged(&[(9, MOST + 12), (3, 7)]), [(13, MOST + 12)]);
    assert_eq!(acknowledged(&[(MOST + 9, MOST + 12), (3, 7)]), [(MOST + 9, MOST + 12)]);
    assert_eq!(acknowledged(&[(MOST + 8, MOST + 12), (3, 7)]), [(MOST + 8, MOST + 12), (3, 7)]);
}

#[test]
fn control_records_come_out_as_they_went_in() {
    let account = Account { cursor: 1, settled: 2, delivered: 3, lost: 4, dropped: 5, expired: 6 };
    let hello = Hello { host: 2 << 90, incarnation: 3, echo: 4, max_frame: 5, adopted: true };
    let open = FlowOpen { flow: 1, reliable: true, epoch: 1 << 100, channel: 2, first: 3 };
    let ack = FlowAck { flow: 1, status: 2, cursor: 3, limit_index: 4, limit_bytes: 5 };
    let credit = Credit { flow: 7, limit_index: 8, limit_bytes: 9, account };
    let (close, closed) = (Close { flow: 1, end: 1 << 40, last: true }, Closed { flow: 1, account });
    let ask = Ask { flow: 1, at: 1 << 41 };
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 1472);
    assert!(frame.hello(&hello) && frame.flow_open(&open) && frame.flow_ack(&ack) && frame.credit(&credit));
    assert!(frame.close(&close) && frame.closed(&closed) && frame.ask(&ask) && frame.ping() && frame.bye());
    frame.finish();
    let (_, records) = parse(&bytes).unwrap();
    let read: Vec<_> = records.map(Result::unwrap).collect();
    let wanted = [
        Record::Hello(hello),
        Record::FlowOpen(open),
        Record::FlowAck(ack),
        Record::Credit(credit),
        Record::Close(close),
        Record::Closed(closed),
        Record::Ask(ask),
        Record::Ping,
        Record::Bye,
    ];
    assert_eq!(read, wanted);
}

#[test]
fn a_frame_never_grows_over_its_limit() {
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 100);
    assert!(!frame.message(&Message::default(), &[0; 48]) && frame.is_empty());
    assert!(!frame.credit(&Credit::default()));
    assert!(frame.message(&Message::default(), &[0; 40]) && !frame.ping());
    assert_eq!(frame.finish(), 96);
    let mut frame = FrameBuilder::new(&mut bytes, Header::default(), 1472);
    assert!(frame.fragment_apart(&Message::default(), Part { total: 5000, offset: 0 }, 1400) && !frame.ping());
    assert_eq!((frame.finish(), bytes.len()), (32 + 32 + 1400, 96 + 64));
}

#[test]
fn frames_of_others_are_told_apart() {
    let good = Header { length: 32, ..Header::default() }.to_bytes();
    assert!(parse(&good).is_ok());
    let spoiled = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        parse(&bad).unwrap_err()
    };
    assert_eq!(spoiled(0, b'X'), FrameError::Magic { found: b'X' });
    assert_eq!(spoiled(1, 2), FrameError::Version { found: 2 });
    assert_eq!(spoiled(2, 0x80), FrameError::Flags { found: 0x80 });
    assert_eq!(spoiled(4, 33), FrameError::Truncated { bytes: 32 });
    assert_eq!(spoiled(4, 31), FrameError::Truncated { bytes: 31 });
    assert_eq!(parse(&good[..31]).unwrap_err(), FrameError::Truncated { bytes: 31 });
}

/// What is reserved for sealing and checking is free for them: nobody sets it to anything meanwhile.
#[test]
fn a_key_or_a_check_without_its_flag_is_refused() {
    let of = |flags, key, check| {
        let mut bytes = Header { flags, key, check, length: 64, ..Header::default() }.to_bytes().to_vec();
        bytes.resize(64, 0);
        if flags & CHECKED != 0 && check == 0 {
            let sum = checksum(&[&bytes]);
            bytes[28..32].copy_from_slice(&sum.to_le_bytes());
        }
        parse(&bytes).map(|_| ())
    };
    assert_eq!(
        (of(0, 0, 0), of(SEALED, 9, 0), of(CHECKED, 0, 0), of(SEALED | CHECKED, 9, 0)),
        (Ok(()), Ok(()), Ok(()), Ok(()))
    );
    assert_eq!(of(0, 1, 0), Err(FrameError::Unflagged { key: 1, check: 0 }));
    assert_eq!(of(0, 0, 1 << 31), Err(FrameError::Unflagged { key: 0, check: 1 << 31 }));
    assert_eq!(of(CHECKED, 0x100, 0), Err(FrameError::Unflagged { key: 0x100, check: 0 }));
    assert_eq!(of(SEALED, 9, 5), Err(FrameError::Unflagged { key: 0, check: 5 }));
}

/// Frames of `size` bytes of payload, with a message each, built one after the other.
fn lone_frames(count: u64, size: usize) -> Vec<Vec<u8>> {
    let frame = |n: u64| {
        let mut bytes = Vec::new();
        let header = Header { domain: 7, connection: 3, counter: 100 + n, sent_us: n as u32, ..Header::default() };
        let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
        let (index, sequence) = (5 + n as u32, 9 + n);
        let message = Message { flow: 4, index, sequence, priority: 3, joined: 2, ..Message::default() };
        assert!(frame.message(&message, &vec![n as u8; size]));
        frame.finish();
        bytes
    };
    (0..count).map(frame).collect()
}

#[test]
fn frames_that_follow_are_known_by_the_first_and_any_other_byte_of_a_head_ends_them() {
    for size in [0, 8, 63, 1000] {
        let frames = lone_frames(5, size);
        let (head, payload) = lone_head(&frames[0]).unwrap();
        assert_eq!(payload, size);
        for padding in [0, 24] {
            let stride = frames[0].len() + padding;
            let padded = |frame: &Vec<u8>| frame.iter().copied().chain(vec![0xab; padding]).collect::<Vec<_>>();
            let rest: Vec<u8> = frames[1..].iter().flat_map(padded).collect();
            assert_eq!(followers(&head, &rest, stride), 4);
            // The last is cut short.
            assert_eq!(followers(&head, &rest[..rest.len() - padding - 1], stride), 3);
            assert_eq!(followers(&head, &[], stride), 0);
            for at in (0..LONE_BYTES).filter(|at| !(24..28).contains(at)) {
                for bit in 0..8 {
                    let mut other = rest.clone();
                    other[2 * stride + at] ^= 1 << bit;
                    assert_eq!(followers(&head, &other, stride), 2, "byte {at}, bit {bit}");
                }
            }
        }
        // One that is missing.
        let rest: Vec<u8> = [&frames[1], &frames[3]].into_iter().flatten().copied().collect();
        assert_eq!(followers(&head, &rest, frames[0].len()), 1);
        let mut second = frames[0].clone();
        second.truncate(LONE_BYTES - 1);
        assert!(lone_head(&second).is_none());
    }
    // With a time, with two messages, with none, checked.
    let build = |header: Header, fill: &dyn Fn(&mut FrameBuilder<'_>)| {
        let mut bytes = Vec::new();
        let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
        fill(&mut frame);
        frame.finish();
        bytes
    };
    let message = Message { flow: 4, index: 5, sequence: 9, ..Message::default() };
    let plain = Header { domain: 7, connection: 3, counter: 100, ..Header::default() };
    let one = |frame: &mut FrameBuilder<'_>| assert!(frame.message(&message, &[1; 64]));
    assert!(lone_head(&build(plain, &one)).is_some());
    assert!(lone_head(&build(Header { flags: CHECKED, ..plain }, &one)).is_none());
    let timed = Message { timestamp_ns: 1, ..message };
    assert!(lone_head(&build(plain, &|frame| assert!(frame.message(&timed, &[1; 64])))).is_none());
    let two =
        |frame: &mut FrameBuilder<'_>| assert!(frame.message(&message, &[1; 64]) && frame.message(&message, &[1; 64]));
    assert!(lone_head(&build(plain, &two)).is_none());
    assert!(lone_head(&build(plain, &|frame| assert!(frame.ping()))).is_none());
}

#[test]
fn a_sign_of_life_fills_a_frame_up_to_a_size() {
    for (bytes, flags) in [(40, 0), (512, CHECKED), (1472, 0), (8968, 0), (65_528, CHECKED)] {
        let mut out = vec![9; 3];
        let mut frame =
            FrameBuilder::new(&mut out, Header { flags, connection: 3, counter: 1, ..Header::default() }, bytes);
        assert!(!frame.ping_up_to(bytes + 8) && !frame.ping_up_to(32) && frame.is_empty());
        assert!(frame.ping_up_to(bytes) && !frame.ping());
        assert_eq!(frame.finish(), bytes);
        assert_eq!(out.len(), bytes + 3);
        let (_, records) = parse(&out[3..]).unwrap();
        assert!(records.map(Result::unwrap).eq([Record::Ping]), "{bytes}");
        assert!(out[3 + 40..].iter().all(|byte| *byte == 0));
    }
}
