//! Large messages over AF_XDP for sinks that take them where their frames arrived: what comes, what is copied, and what becomes of the
//! frames. Without root: SKIPPED.

use insane::{Message, Qos, RawMessage, Session, Sink, SinkOptions, Source, SourceOptions, Stream};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, accelerated, goes_over};
use insane_tests_network::{LIMIT, eventually, law, law_holds, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// The message size that is spoken of.
const LARGE: usize = 64 << 10;

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number * 7 + at / 251) as u8).collect()
}

/// The payload by its pieces, which are checked to be all of it.
fn by_pieces(message: &RawMessage) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in message.pieces() {
        let mut bytes = vec![0; piece.len()];
        assert_eq!(piece.read(&mut bytes), piece.len());
        if let Some(slice) = piece.as_slice() {
            assert!(slice == bytes, "a piece's slice is other bytes");
        }
        all.extend(bytes);
    }
    assert_eq!(all.len(), message.len());
    all
}

fn scattered(session: &Session, qos: Qos, channel: &str) -> Sink {
    let options = SinkOptions { scattered: true, ..SinkOptions::default() };
    session.stream(qos).unwrap().sink_with(channel, options).unwrap()
}

/// A source, once it has so many sinks.
fn source(session: &Session, qos: Qos, channel: &str, sinks: usize) -> (Stream, Source) {
    let stream = session.stream(qos).unwrap();
    let options = SourceOptions { deadline: LIMIT, message_bytes: LARGE, ..SourceOptions::default() };
    let source = stream.source_with(channel, options).unwrap();
    assert_eq!(source.wait_for_sinks(sinks, LIMIT), sinks, "{}", law(session));
    (stream, source)
}

/// Sends a message until it has come; a reliable one comes the first time.
fn pass<'s>(source: &Source, sink: &'s Sink, bytes: &[u8], of: &Session) -> Message<'s> {
    for _ in 0..20 {
        source.send(bytes).unwrap();
        if let Ok(message) = sink.consume_timeout(Duration::from_secs(2)) {
            return message;
        }
    }
    panic!("it never came: {}", law(of));
}

/// How many frames the runtime of a session has lent out of the memory of its second port.
fn lent(session: &Session) -> u64 {
    status(session)["network"]["ports"][1]["lent"].as_u64().expect("it is reported")
}

#[test]
fn large_messages_are_read_in_the_frames_in_which_they_came() {
    let _watchdog = Watchdog::start("scattered", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b) = (one.session("source"), two.session("sink"));
    for (name, qos) in [("plain", accelerated(Qos::default())), ("sure", accelerated(reliable()))] {
        let sink = scattered(&b, qos, name);
        let (stream, source) = source(&a, qos, name, 1);
        goes_over(&stream, "host-1", "xdp");
        // The link learns of the interface's memory beside the flow: what comes sooner is copied together.
        assert!(eventually(|| pass(&source, &sink, &payload(0, LARGE), &a).pieces().len() > 1), "{}", status(&b));
        let before = sink.copies();
        for number in 1..=100 {
            let sent = payload(number, LARGE + number);
            let message = pass(&source, &sink, &sent, &a);
            assert!(by_pieces(&message) == sent, "message {number} of {name} differs");
            // 64 KiB take 44 frames and more with an MTU of 1500.
            assert!(message.pieces().len() >= 44, "{} pieces", message.pieces().len());
            assert_eq!(message.copies(), 0);
        }
        let after = sink.copies();
        assert_eq!((after.scattered - before.scattered, after.all() - before.all()), (100, 0), "{after:?}");
        assert!(after.pieces - before.pieces >= 4400, "{after:?}");
        // As one it costs a copy, once.
        let sent = payload(7, LARGE);
        let message = pass(&source, &sink, &sent, &a);
        assert!(message.to_vec() == sent && message.copies() == 0, "to copy it out by oneself is not counted");
        let mut whole = vec![0; LARGE];
        assert_eq!(message.contiguous().read(&mut whole), LARGE);
        assert!(whole == sent && message.as_slice() == Some(&sent[..]) && by_pieces(&message) == sent);
        assert_eq!((message.copies(), sink.copies().here - after.here), (1, 1));
        assert!(eventually(|| lent(&b) >= 44), "what is out is counted: {}", lent(&b));
        drop(message);
        // Small ones come as ever.
        let small = payload(3, 100);
        let message = pass(&source, &sink, &small, &a);
        assert!(by_pieces(&message) == small && message.pieces().len() == 1);
        drop(message);
        assert!(eventually(|| lent(&b) == 0), "{} frames are out", lent(&b));
    }
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}
