//! Large messages over AF_XDP for sinks that take them where their frames arrived: what comes, what is copied, and what becomes of the
//! frames. Without root: SKIPPED.

use insane::{CopyCounts, Message, Qos, RawMessage, Session, Sink, SinkOptions, Source, SourceOptions, Stream};
use insane_datapath::fault::Plan;
use insane_runtime::config::{Config, Domain};
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{Cables, accelerated, dpdk_object, goes_over, on_dpdk, unsparing};
use insane_tests_network::{LIMIT, eventually, hosts, law, law_holds, reliable, status};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// The message size that is spoken of.
const LARGE: usize = 64 << 10;

/// Which goes in one frame of an MTU of 1500.
const ONE_FRAME: usize = 1400;

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
        if let Ok(message) = sink.consume_timeout(Duration::from_secs(1)) {
            return message;
        }
    }
    panic!("it never came: {}", law(of));
}

/// Sends a message until it has come in its frames. The first ones come before the link knows of the interface's memory, and on a busy
/// machine the stream may go over UDP for a while, or a frame is taken for lost and comes again: such a message is put together.
fn pass_in_frames<'s>(source: &Source, sink: &'s Sink, bytes: &[u8], of: &Session) -> Message<'s> {
    let mut came = None;
    let in_frames = eventually(|| {
        // What came as one is given back before the next is sent.
        drop(came.take());
        let message = pass(source, sink, bytes, of);
        let is_scattered = message.pieces().len() > 1;
        came = Some(message);
        is_scattered
    });
    assert!(in_frames, "it never came in its frames: {}", status(of));
    came.expect("one came")
}

/// How many frames the runtime of a session has lent out of the memory of its second port.
fn lent(session: &Session) -> u64 {
    status(session)["network"]["ports"][1]["lent"].as_u64().expect("it is reported")
}

/// Messages of 64 KiB come over a datapath in the frames that the runtime receives into, and nobody copies them.
fn come_in_frames(cables: &Cables, datapath: &str, asking: impl Fn(Qos) -> Qos, change: impl Fn(&mut Config)) {
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, &change));
    let (a, b) = (one.session("source"), two.session("sink"));
    for (name, qos) in [("plain", asking(Qos::default())), ("sure", asking(reliable()))] {
        let sink = scattered(&b, qos, name);
        let (stream, source) = source(&a, qos, name, 1);
        goes_over(&stream, "host-1", datapath);
        drop(pass_in_frames(&source, &sink, &payload(0, LARGE), &a));
        let (before, mut whole) = (sink.copies(), 0);
        for number in 1..=100 {
            let sent = payload(number, LARGE + number);
            let message = pass(&source, &sink, &sent, &a);
            assert!(by_pieces(&message) == sent, "message {number} of {name} differs");
            // On a busy machine the stream may go over UDP for a while.
            if message.pieces().len() == 1 {
                whole += 1;
                continue;
            }
            // 64 KiB take 44 frames and more with an MTU of 1500.
            assert!(message.pieces().len() >= 44, "{} pieces", message.pieces().len());
            assert_eq!(message.copies(), 0);
        }
        let after = sink.copies();
        let scattered = after.scattered - before.scattered;
        assert!(whole <= 10 && scattered >= 100 - whole, "{whole} in one piece: {after:?}");
        assert!(after.all() - before.all() <= whole && after.pieces - before.pieces >= 44 * scattered, "{after:?}");
        // As one it costs a copy, once.
        let sent = payload(7, LARGE);
        let message = pass_in_frames(&source, &sink, &sent, &a);
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

#[test]
fn large_messages_are_read_in_the_frames_in_which_they_came() {
    let _watchdog = Watchdog::start("scattered over xdp", TEST);
    let Some(cables) = Cables::new() else { return };
    come_in_frames(&cables, "xdp", accelerated, |_| ());
}

#[test]
fn and_so_they_are_over_dpdk() {
    let _watchdog = Watchdog::start("scattered over dpdk", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    come_in_frames(&cables, "dpdk", unsparing, |config| on_dpdk(config, &library));
}

/// Sends a message until it has come where its frames are, one or several: until the link knows the memory, as in [`pass_in_frames`].
fn pass_where_it_came<'s>(source: &Source, sink: &'s Sink, bytes: &[u8], of: &Session) -> Message<'s> {
    let mut came = None;
    let in_frame = eventually(|| {
        drop(came.take());
        let before = sink.copies().scattered;
        came = Some(pass(source, sink, bytes, of));
        sink.copies().scattered > before
    });
    assert!(in_frame, "it was copied each time: {}", status(of));
    came.expect("one came")
}

/// Messages that go in one frame come in it, and nobody copies them, whatever the sink reads them as; shorter ones are copied as ever.
fn come_in_one_frame(
    cables: &Cables,
    (datapath, len): (&str, usize),
    asking: impl Fn(Qos) -> Qos,
    change: impl Fn(&mut Config),
) {
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, &change));
    let (a, b) = (one.session("source"), two.session("sink"));
    for (name, qos) in [("plain", asking(Qos::default())), ("sure", asking(reliable()))] {
        let sink = scattered(&b, qos, name);
        let (stream, source) = source(&a, qos, name, 1);
        goes_over(&stream, "host-1", datapath);
        drop(pass_where_it_came(&source, &sink, &payload(0, len), &a));
        let (before, mut copied) = (sink.copies(), 0);
        for number in 1..=100 {
            let sent = payload(number, len - number);
            let message = pass(&source, &sink, &sent, &a);
            assert!(by_pieces(&message) == sent && message.to_vec() == sent, "message {number} of {name} differs");
            assert!(message.pieces().len() == 1 && message.contiguous().as_ptr() == message.as_ptr());
            assert_eq!(
                Some(message.as_ptr()),
                message.pieces().next().map(|piece| piece.as_ptr()),
                "it is read in place"
            );
            // On a busy machine the stream may go over UDP for a while, or a message comes again and waits for others.
            copied += u64::from(message.copies());
        }
        let after = sink.copies();
        let (scattered, pieces) = (after.scattered - before.scattered, after.pieces - before.pieces);
        assert!(copied <= 10 && scattered >= 90 && pieces == scattered, "{copied} copied: {after:?}");
        assert_eq!((after.here, after.runtime - before.runtime), (0, copied));
        let message = pass_where_it_came(&source, &sink, &payload(7, len), &a);
        assert!(eventually(|| lent(&b) >= 1), "what is out is counted");
        assert!(by_pieces(&message) == payload(7, len));
        drop(message);
        // What is short is copied: its frame would be out for the sake of little.
        let (before, small) = (sink.copies(), payload(3, 700));
        let message = pass(&source, &sink, &small, &a);
        assert!(by_pieces(&message) == small && message.copies() == 1);
        assert_eq!(sink.copies().scattered, before.scattered);
        drop(message);
        assert!(eventually(|| lent(&b) == 0), "{} frames are out", lent(&b));
    }
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn messages_of_one_frame_are_read_in_it() {
    let _watchdog = Watchdog::start("one frame over xdp", TEST);
    let Some(cables) = Cables::new() else { return };
    come_in_one_frame(&cables, ("xdp", ONE_FRAME), accelerated, |_| ());
}

#[test]
fn and_so_are_those_of_one_frame_over_dpdk() {
    let _watchdog = Watchdog::start("one frame over dpdk", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    come_in_one_frame(&cables, ("dpdk", ONE_FRAME), unsparing, |config| on_dpdk(config, &library));
}

#[test]
fn a_jumbo_frame_has_all_of_a_larger_message() {
    let _watchdog = Watchdog::start("jumbo frames", TEST);
    let Some(library) = dpdk_object(env!("CARGO_TARGET_TMPDIR")) else { return };
    let Some(cables) = Cables::new() else { return };
    (0..2).for_each(|end| cables.0.ip(end, "link set dev veth1 mtu 9000").map(drop).expect("an interface for them"));
    let jumbo = |config: &mut Config| {
        on_dpdk(config, &library);
        config.network.get_or_insert_default().datapath[0].mtu = 9000;
    };
    come_in_one_frame(&cables, ("dpdk", 8 << 10), unsparing, jumbo);
    // And several smaller ones, each a piece of it.
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, jumbo));
    let (a, b) = (one.session("source"), two.session("sink"));
    let qos = unsparing(reliable());
    let sink = scattered(&b, qos, "several");
    let (stream, source) = source(&a, qos, "several", 1);
    goes_over(&stream, "host-1", "dpdk");
    drop(pass_where_it_came(&source, &sink, &payload(0, 2000), &a));
    let frames = || status(&b)["network"]["ports"][1]["received_frames"].as_u64().expect("it is reported");
    let several = eventually(|| {
        let before = (frames(), sink.copies());
        (0..32).for_each(|number| assert!(source.send_more(&payload(number, 2000 - number)).is_ok()));
        source.flush().unwrap();
        for number in 0..32 {
            let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("message {number}: {e}; {}", law(&a)));
            assert!(by_pieces(&message) == payload(number, 2000 - number), "message {number} differs");
        }
        let in_frames = sink.copies().scattered - before.1.scattered;
        // One in a frame would take 32 and more.
        in_frames == 32 && frames() - before.0 < 32
    });
    assert!(several, "{:?}; {}", sink.copies(), status(&b));
}

/// Three sinks of one source: one keeps all that it gets, one takes messages as they come, one is as any other. So many messages of so many
/// bytes are sent, which have no fewer pieces than this; so many do not fit into the miser's share.
fn hoard(cables: &Cables, len: usize, (count, least): (usize, usize), fits_not: std::ops::RangeInclusive<u32>) {
    let [one, two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, miser, quick, other) =
        (one.session("source"), two.session("miser"), two.session("quick"), two.session("other"));
    let qos = accelerated(reliable());
    let (hoards, takes) = (scattered(&miser, qos, "c"), scattered(&quick, qos, "c"));
    let plain = other.stream(qos).unwrap().sink("c").unwrap();
    let (stream, source) = source(&a, qos, "c", 3);
    goes_over(&stream, "host-1", "xdp");
    let send = |number: usize| {
        source.send(&payload(number, len)).unwrap();
        let [hoarded, taken, contiguous] = [&hoards, &takes, &plain]
            .map(|sink| sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{number}: {e}; {}", law(&a))));
        let sent = payload(number, len);
        assert!([&hoarded, &taken, &contiguous].iter().all(|message| by_pieces(message) == sent), "message {number}");
        assert_eq!((contiguous.pieces().len(), contiguous.copies()), (1, 0), "nothing changes for who does not ask");
        let taken = (taken.pieces().len(), taken.copies());
        (hoarded, taken)
    };
    // Both links know the memory.
    assert!(
        eventually(|| {
            let (hoarded, taken) = send(0);
            hoarded.copies() == 0 && taken.1 == 0
        }),
        "{}",
        status(&quick)
    );
    // What was taken so far is nobody's share any more.
    assert!(eventually(|| lent(&quick) == 0), "{} frames are out", lent(&quick));
    let mut hoard = Vec::new();
    let (mut beyond, mut repeated, mut is_used_up) = (0, 0, false);
    for number in 0..count {
        let (hoarded, (pieces, copies)) = send(number);
        let copied = hoarded.copies();
        assert_eq!(hoarded.pieces().len() < least, copied == 1 && least > 1, "message {number}");
        beyond += copied;
        if copies > 0 {
            // On a busy machine frames are taken for lost and come again: such a message is put together for everybody.
            assert_eq!((pieces, copies, copied), (1, 1, 1), "message {number}");
            repeated += 1;
        } else {
            assert!(pieces >= least, "message {number} came in {pieces} pieces to who keeps none");
            // As long as there is something left of the miser's share, he has it as it came; then it is copied for him.
            assert!(copied == 1 || !is_used_up, "message {number}");
            is_used_up |= copied == 1;
        }
        hoard.push(hoarded);
    }
    assert!(repeated <= count / 10, "{repeated} of {count} messages were copied for who keeps none");
    assert!(fits_not.contains(&beyond), "{:?}", hoards.copies());
    assert_eq!(hoards.copies().here, 0);
    for (number, message) in hoard.iter().enumerate() {
        assert!(by_pieces(message) == payload(number, len), "what is kept was written over: message {number}");
    }
    drop(hoard);
    // He has all of it again.
    assert!(
        eventually(|| {
            let (hoarded, taken) = send(1);
            hoarded.copies() == 0 && taken.1 == 0
        }),
        "{}",
        status(&quick)
    );
    assert!(eventually(|| lent(&quick) == 0), "{} frames are out", lent(&quick));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// Of 2048 frames that receive 1024 are lent at most, 512 to each of two who ask, and a message takes 44 to 48.
#[test]
fn who_hoards_messages_stops_nobody_and_keeps_what_he_has() {
    let _watchdog = Watchdog::start("hoard", TEST);
    let Some(cables) = Cables::new() else { return };
    hoard(&cables, LARGE, (100, 44), 88..=90);
}

/// As above, and a message takes one.
#[test]
fn who_hoards_messages_of_one_frame_stops_nobody_either() {
    let _watchdog = Watchdog::start("hoard of small ones", TEST);
    let Some(cables) = Cables::new() else { return };
    hoard(&cables, ONE_FRAME, (600, 1), 88..=88);
}

/// A session ends without a word while it has messages: their frames go back. A runtime is killed: what its sinks have stays as it is.
#[test]
fn frames_come_back_from_the_dead_and_outlive_a_runtime() {
    let _watchdog = Watchdog::start("deaths", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, mut two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    let (a, b, watcher) = (one.session("source"), two.session("sink"), two.session("watcher"));
    let qos = accelerated(reliable());
    let sink = scattered(&b, qos, "c");
    let (stream, from) = source(&a, qos, "c", 1);
    goes_over(&stream, "host-1", "xdp");
    drop(pass_in_frames(&from, &sink, &payload(0, LARGE), &a));
    let (mut number, mut kept) = (0, 0);
    let keeps_five = eventually(|| {
        from.send(&payload(number, LARGE)).unwrap();
        number += 1;
        // SAFETY: not used again, and never given back: its session goes with it.
        let message = unsafe { sink.consume_raw(Some(LIMIT)) }.unwrap();
        kept += usize::from(message.pieces().len() > 40);
        kept == 5
    });
    assert!(keeps_five, "{kept} of {number} came in their frames: {}", status(&b));
    assert!(eventually(|| lent(&watcher) >= 5 * 44), "{}", lent(&watcher));
    drop((sink, b));
    assert!(eventually(|| lent(&watcher) == 0), "{} frames are out", lent(&watcher));

    let b = two.session("next");
    let sink = scattered(&b, qos, "d");
    let (stream, from) = source(&a, qos, "d", 1);
    goes_over(&stream, "host-1", "xdp");
    let kept = pass_in_frames(&from, &sink, &payload(7, LARGE), &a);
    assert!(kept.pieces().len() > 40);
    two.again();
    // The next runtime receives into other memory, and the session gets to know that.
    let next = || {
        let message = pass(&from, &sink, &payload(9, LARGE), &a);
        assert!(by_pieces(&message) == payload(9, LARGE));
        message.pieces().len() > 40
    };
    assert!(eventually(next), "{}", law(&a));
    assert!(by_pieces(&kept) == payload(7, LARGE) && kept.copies() == 0, "what was kept is not what it was");
}

/// Sends so many messages over a network that loses, repeats, delays and changes frames: how many came and how many of them in their frames.
/// What comes is whole and in order.
fn by_a_bad_network(qos: Qos, count: usize, sent: impl Fn(usize) -> Vec<u8> + Sync) -> Option<(usize, u64)> {
    let cables = Cables::new()?;
    let [mut one, mut two] = [0, 1].map(|end| cables.runtime(PROGRAM, end, |_| ()));
    one.again_with(Plan { lose_ppm: 5_000, repeat_ppm: 20_000, delay_ppm: 20_000, change_ppm: 5_000, cut: false }, 11);
    // Both check frames, or none does.
    two.again_with(Plan { lose_ppm: 1_000, repeat_ppm: 1_000, delay_ppm: 1_000, change_ppm: 0, cut: false }, 12);
    let (a, b) = (one.session("source"), two.session("sink"));
    let qos = accelerated(qos);
    let sink = scattered(&b, qos, "c");
    let (stream, source) = source(&a, qos, "c", 1);
    goes_over(&stream, "host-1", "xdp");
    let first = pass_where_it_came(&source, &sink, &sent(0), &a).sequence() + 1;
    let before = sink.copies().scattered;
    let mut came = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                source.send(&sent(number)).unwrap();
                // Best effort nothing keeps the sender from being faster than the rest.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let mut next = first;
        let patience = if qos == accelerated(reliable()) { LIMIT } else { Duration::from_secs(2) };
        while next < first + count as u64 {
            let Ok(message) = sink.consume_timeout(patience) else { break };
            // What was sent before may still come.
            let Some(number) = message.sequence().checked_sub(first) else { continue };
            assert!(message.sequence() >= next, "message {number} is not in order");
            next = message.sequence() + 1;
            let pieces = message.pieces().len();
            assert!(by_pieces(&message) == sent(number as usize), "message {number} of {pieces} pieces differs");
            came += 1;
        }
    });
    let scattered = sink.copies().scattered - before;
    assert!(eventually(|| lent(&b) == 0), "{} frames are out", lent(&b));
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
    Some((came, scattered))
}

#[test]
fn what_is_lost_repeated_or_out_of_order_is_put_right() {
    let _watchdog = Watchdog::start("faults", TEST);
    let sent = |number: usize| payload(number, 2000 + number * 997);
    let Some((came, scattered)) = by_a_bad_network(reliable(), 150, sent) else { return };
    assert!(came == 150 && scattered > 75, "{came} came, {scattered} of them in their frames");
}

#[test]
fn and_so_it_is_with_messages_of_one_frame() {
    let _watchdog = Watchdog::start("faults of small ones", TEST);
    let sent = |number: usize| payload(number, 1024 + number % 400);
    let Some((came, scattered)) = by_a_bad_network(reliable(), 500, sent) else { return };
    assert!(came == 500 && scattered > 250, "{came} came, {scattered} of them in their frames");
    let Some((came, scattered)) = by_a_bad_network(Qos::default(), 500, sent) else { return };
    assert!((400..=500).contains(&came) && scattered > 250, "{came} came, {scattered} of them in their frames");
}

/// With two domains an interface's memory is nobody's to see: messages come copied, and say so.
#[test]
fn where_there_are_two_domains_nothing_is_shown() {
    let _watchdog = Watchdog::start("two domains", TEST);
    let Some(cables) = Cables::new() else { return };
    let [one, two] = [0, 1].map(|end| {
        cables.runtime(PROGRAM, end, |config| {
            for name in ["default", "other"] {
                config.domains.insert(name.into(), Domain::default());
            }
        })
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let qos = accelerated(reliable());
    let sink = scattered(&b, qos, "c");
    let (stream, source) = source(&a, qos, "c", 1);
    goes_over(&stream, "host-1", "xdp");
    for number in 0..10 {
        let message = pass(&source, &sink, &payload(number, LARGE), &a);
        assert!(by_pieces(&message) == payload(number, LARGE));
        assert_eq!((message.pieces().len(), message.copies()), (1, 1));
    }
    assert_eq!(sink.copies(), CopyCounts { runtime: 10, ..CopyCounts::default() });
    assert_eq!(lent(&b), 0);
}

/// Where there are no frames, there is one piece, and the sink's program is the same.
#[test]
fn over_udp_and_on_one_host_there_is_one_piece() {
    let _watchdog = Watchdog::start("one piece", TEST);
    let hosts = hosts(2, |_, _| ());
    let (a, b) = (hosts[0].session("source"), hosts[1].session("sink"));
    let sink = scattered(&b, reliable(), "c");
    let (_stream, remote) = source(&a, reliable(), "c", 1);
    let mut copies = 0;
    for number in 0..50 {
        let message = pass(&remote, &sink, &payload(number, LARGE), &a);
        assert!(by_pieces(&message) == payload(number, LARGE) && message.pieces().len() == 1);
        copies += message.copies();
    }
    // The kernel puts fragments where they belong, but for those of which it is not known in time.
    assert!(copies < 50 && u64::from(copies) == sink.copies().all(), "{copies} of 50 were copied: {:?}", sink.copies());
    let here = scattered(&a, reliable(), "here");
    let (_stream, local) = source(&a, reliable(), "here", 1);
    let message = pass(&local, &here, &payload(1, LARGE), &a);
    assert!(by_pieces(&message) == payload(1, LARGE) && message.pieces().len() == 1 && message.copies() == 0);
    assert_eq!(here.copies(), CopyCounts::default());
}
