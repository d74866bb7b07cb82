//! The Wireshark dissector reads what this crate writes: a capture with every kind of record goes through tshark, and the
//! fields that it shows are compared.

use std::path::Path;
use std::process::Command;

use insane_wire::frame::control::{Account, Ask, Close, Closed, Credit, FlowAck, FlowOpen, Hello};
use insane_wire::frame::record::{Message, Part};
use insane_wire::frame::{CHECKED, FrameBuilder, Header, SEALED};

fn frame(header: Header, fill: impl FnOnce(&mut FrameBuilder<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut frame = FrameBuilder::new(&mut bytes, header, 1472);
    fill(&mut frame);
    frame.finish();
    bytes
}

fn every_kind() -> Vec<Vec<u8>> {
    let header = Header { domain: 0x1234_5678, connection: 0x0bad_cafe, counter: 77, sent_us: 5, ..Header::default() };
    let account = Account { cursor: 21, settled: 10, delivered: 7, lost: 2, dropped: 1, expired: 0 };
    let data = frame(Header { flags: CHECKED, ..header }, |frame| {
        let message =
            Message { flow: 3, index: 4, sequence: 5, lifetime_us: 6, priority: 9, joined: 203, ..Message::default() };
        assert!(frame.message(&message, b"hello"));
        assert!(frame.message(&Message { timestamp_ns: 1111, launch_ns: 2222, sequence: 6, ..message }, b""));
        assert!(frame.fragment(&Message { sequence: 7, ..message }, Part { total: 5000, offset: 1400 }, &[1; 16]));
        let two: Vec<u8> = [2, 0x6968, 1, 0x21].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let bundle = Message { sequence: 8, lifetime_us: 0, ..message };
        assert!(frame.bundle_from(&bundle, 2, two.len(), |out| out.extend_from_slice(&two)));
        assert!(frame.ack(50, [(90, 100), (70, 80), (1, 2)]));
    });
    let control = frame(header, |frame| {
        assert!(frame.hello(&Hello { host: 1, incarnation: 0xaa, echo: 0xbb, max_frame: 9000, adopted: true }));
        assert!(frame.flow_open(&FlowOpen { flow: 31, reliable: true, epoch: 2, channel: 0xcc, first: 41 }));
        assert!(frame.flow_ack(&FlowAck { flow: 32, status: 3, cursor: 51, limit_index: 61, limit_bytes: 71 }));
        assert!(frame.credit(&Credit { flow: 33, limit_index: 62, limit_bytes: 72, account }));
        assert!(frame.close(&Close { flow: 34, end: 81, last: true }));
        assert!(frame.closed(&Closed { flow: 35, account }));
        assert!(frame.ask(&Ask { flow: 36, at: 91 }));
        assert!(frame.ping() && frame.bye());
    });
    let mut sealed = frame(Header { flags: SEALED, key: 12, ..header }, |frame| assert!(frame.ping()));
    sealed.extend_from_slice(&[0xdd; 16]);
    // Cut off in the middle of a record, which the header does not know of: the record is longer than its frame.
    let mut torn = frame(header, |frame| assert!(frame.ping()));
    torn[34] = 99;
    vec![data, control, sealed, torn]
}

/// Frames as they were joined, and one with flags that nobody knows.
fn joined_and_odd() -> Vec<Vec<u8>> {
    let of = |counter: u64, size: usize| {
        let header = Header { domain: 1, connection: 2, counter, ..Header::default() };
        frame(header, |frame| {
            assert!(frame.message(&Message { flow: counter as u32, ..Message::default() }, &vec![7; size]))
        })
    };
    let alike = [of(1, 16), of(2, 16), of(3, 8)].concat();
    // The first is shorter, and filled up to where the next begins; the last is filled up by the network.
    let mut filled = [of(4, 8), vec![0; 8], of(5, 16), of(6, 16)].concat();
    filled.resize(filled.len() + 5, 0);
    let (mut odd, mut odd_bundle) = (of(7, 8), of(8, 8));
    odd[33] |= 4;
    odd_bundle[32..34].copy_from_slice(&[12, 1]);
    vec![alike, filled, [of(9, 8), vec![0; 30]].concat(), odd, odd_bundle]
}

/// A capture file of UDP packets (the classic format, Ethernet).
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for frame in frames {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let (udp, ip) = (frame.len() as u16 + 8, frame.len() as u16 + 28);
        packet.extend_from_slice(&[0x45, 0]);
        packet.extend_from_slice(&ip.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend_from_slice(&45_700u16.to_be_bytes());
        packet.extend_from_slice(&45_701u16.to_be_bytes());
        packet.extend_from_slice(&udp.to_be_bytes());
        packet.extend_from_slice(&[0, 0]);
        packet.extend_from_slice(frame);
        for word in [0, 0, packet.len() as u32, packet.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&packet);
    }
    out
}

/// What tshark shows of these fields, one packet a line.
fn tshark(file: &Path, fields: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/insane.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(file).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua: "), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

fn has_tshark() -> bool {
    let has = Command::new("tshark").arg("--version").output().is_ok();
    if !has {
        println!("SKIPPED: tshark is not installed (Debian: apt-get install tshark)");
    }
    has
}

#[test]
#[cfg_attr(miri, ignore = "starts another program")]
fn the_dissector_shows_every_frame_of_a_packet_and_what_is_malformed() {
    if !has_tshark() {
        return;
    }
    let file = std::env::temp_dir().join(format!("insane-dissector-joined-{}.pcap", std::process::id()));
    std::fs::write(&file, capture(&joined_and_odd())).expect("a temporary file");
    let shown = tshark(&file, &["insane.counter", "insane.flow", "_ws.col.Info"]);
    let wanted =
        ["1,2,3\t1,2,3\tMessage; Message; Message", "4,5,6\t4,5,6\tMessage; Message; Message", "9\t9\tMessage"];
    assert_eq!(shown[..3], wanted);
    let malformed: Vec<bool> = tshark(&file, &["insane.malformed"]).iter().map(|shown| !shown.is_empty()).collect();
    assert_eq!(malformed, [false, false, false, true, true]);
    std::fs::remove_file(&file).expect("the temporary file is there");
}

#[test]
#[cfg_attr(miri, ignore = "starts another program")]
fn the_dissector_shows_what_was_written() {
    if !has_tshark() {
        return;
    }
    let file = std::env::temp_dir().join(format!("insane-dissector-{}.pcap", std::process::id()));
    std::fs::write(&file, capture(&every_kind())).expect("a temporary file");
    let shown = |fields: &[&str]| tshark(&file, fields);

    let protocols = shown(&["_ws.col.Protocol", "_ws.col.Info"]);
    assert_eq!(protocols[0], "INSANE\tMessage, Message, Fragment, Bundle, Ack");
    assert_eq!(protocols[1], "INSANE\tHello, Flow open, Flow ack, Credit, Close, Closed, Ask, Ping, Bye");
    assert_eq!(protocols[2], "INSANE\tSealed");

    let header = ["insane.domain", "insane.connection", "insane.counter", "insane.key", "insane.tag"];
    let heads = shown(&header);
    assert_eq!(heads[0], "0x12345678\t0x0badcafe\t77\t0\t");
    assert_eq!(heads[2], format!("0x12345678\t0x0badcafe\t77\t12\t{}", "dd".repeat(16)));

    let data = ["insane.flow", "insane.sequence", "insane.priority", "insane.timestamp_ns", "insane.launch_ns"];
    assert_eq!(shown(&data)[0], "3,3,3,3\t5,6,7,8\t9,9,9,9\t1111\t2222");
    let payload = ["insane.payload", "insane.fragment.total", "insane.fragment.offset", "insane.bundle.count"];
    assert_eq!(shown(&payload)[0], format!("68656c6c6f,{},6869,21\t5000\t1400\t2", "01".repeat(16)));
    assert_eq!(shown(&["insane.ack.delay_us", "insane.ack.range"])[0], "50\t90-100,70-80,1-2");

    let hello = ["insane.hello.incarnation", "insane.hello.echo", "insane.hello.max_frame", "insane.hello.adopted"];
    assert_eq!(shown(&hello)[1].replace("True", "1"), "0x00000000000000aa\t0x00000000000000bb\t9000\t1");
    let flows = ["insane.flow", "insane.flow.channel", "insane.flow.first", "insane.flow.status", "insane.cursor"];
    assert_eq!(shown(&flows)[1], "31,32,33,34,35,36\t0x00000000000000cc\t41\t3\t51,21,21");
    let told = ["insane.account.lost", "insane.close.end", "insane.ask.at"];
    let credit = [&["insane.credit.index", "insane.credit.bytes"][..], &told].concat();
    assert_eq!(shown(&credit)[1], "61,62\t71,72\t2,2\t81\t91");
    assert!(!shown(&["insane.malformed"])[3].is_empty() && shown(&["insane.malformed"])[1].is_empty());
    std::fs::remove_file(&file).expect("the temporary file is there");
}
