//! Two runtimes with a datapath from somebody's shared object: the template in C that comes with `insane_datapath.h`, frames over
//! Unix sockets. Without a C compiler: SKIPPED.

use insane::{Event, Qos, Reliability, Session};
use insane_runtime::config::{Config, Datapath, Kind, Policy};
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{
    accelerated, alone_on_plugin, ends, goes_over, plugin_template as template, towards,
};
use insane_tests_network::load::{are_whole, flows, numbers, take_the_rest};
use insane_tests_network::{LIMIT, Process, config, eventually, free_addresses, law, law_holds, reliable, status};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_runtime");

/// Two hosts on loopback addresses, whose plug-ins meet in a folder.
fn two(library: &Path, folder: &Path, change: impl Fn(usize, &mut Datapath)) -> [Process; 2] {
    let addresses = free_addresses(2);
    let row = |when: &str, datapaths: &[Kind]| Policy {
        when: when.into(),
        datapaths: datapaths.to_vec(),
        ..Policy::default()
    };
    [0, 1].map(|end| {
        let mut config: Config = config(&format!("host-{end}"), addresses[end], &addresses);
        let place = |end: usize| folder.join(format!("end{end}")).to_string_lossy().into_owned();
        let options =
            [("path", place(end)), ("peer", place(1 - end)), ("address", format!("02:99:00:00:00:0{}", end + 1))];
        let mut datapath = Datapath {
            kind: Kind::Plugin,
            library: library.to_string_lossy().into_owned(),
            address: format!("10.0.0.{}/24", 101 + end),
            options: options.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            ..Datapath::default()
        };
        change(end, &mut datapath);
        let network = config.network.as_mut().expect("a network");
        network.datapath = vec![datapath];
        network.policy = vec![row("acceleration=preferred", &[Kind::Plugin, Kind::Udp]), row("", &[Kind::Udp])];
        Process::start(PROGRAM, None, &config)
    })
}

#[test]
fn streams_go_over_a_plugin_where_the_policy_names_it() {
    let _watchdog = Watchdog::start("plugin", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let [one, mut two] = two(&library, folder.path(), |_, _| ());
    let (a, b) = (one.session("source"), two.session("sink"));
    let report = status(&a)["network"]["datapaths"][1].clone();
    assert_eq!((report["kind"].as_str(), report["state"].as_str()), (Some("plugin"), Some("open")), "{report}");
    assert!(report["text"].as_str().is_some_and(|text| text.starts_with("unix-frames: ")), "{report}");
    for (qos, datapath) in
        [(accelerated(reliable()), "plugin"), (accelerated(Qos::default()), "plugin"), (reliable(), "udp")]
    {
        let (stream, source, sink) = ends(&a, &b, qos, "c");
        goes_over(&stream, "host-1", datapath);
        assert!(towards(&stream, "host-1").reasons.is_empty());
        for len in [0usize, 1, 64, 1400, 5000, 60_000] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            source.send(&bytes).unwrap();
            let message = sink.consume_timeout(LIMIT).unwrap_or_else(|e| panic!("{datapath}, {len}: {e}; {}", law(&a)));
            assert_eq!(message.to_vec(), bytes);
        }
    }
    // Its host dies and comes back: the plug-in's socket is left behind, and taken over.
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "after");
    two.again();
    for n in 0..100u32 {
        source.send(&n.to_le_bytes()).unwrap();
    }
    for n in 0..100u32 {
        assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), n.to_le_bytes(), "{}", law(&a));
    }
    goes_over(&stream, "host-1", "plugin");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_plugin_that_cannot_be_had_is_absent_with_its_reason() {
    let _watchdog = Watchdog::start("absent", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let [one, two] = two(&library, folder.path(), |end, datapath| {
        if end == 0 {
            datapath.options.insert("colour".into(), "blue".into());
        } else {
            datapath.library = "/usr/lib/insane/no-such-object.so".into();
        }
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    for (session, text) in [(&a, "colour"), (&b, "no-such-object.so")] {
        let report = status(session)["network"]["datapaths"][1].clone();
        assert_eq!(report["state"].as_str(), Some("absent"), "{report}");
        assert!(report["text"].as_str().is_some_and(|said| said.contains(text)), "{report}");
    }
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    let effective = towards(&stream, "host-1");
    assert_eq!(effective.datapath, "udp");
    assert!(
        effective.reasons[0].contains("host-0 has no plugin: ") && effective.reasons[0].contains("colour"),
        "{effective:?}"
    );
    source.send(b"over udp").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"over udp");
}

#[test]
fn a_plugin_whose_object_comes_later_is_taken_then() {
    let _watchdog = Watchdog::start("later", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let elsewhere = folder.path().join("aside.so");
    std::fs::rename(&library, &elsewhere).unwrap();
    let [one, two] = two(&library, folder.path(), |_, _| ());
    let (a, b) = (one.session("source"), two.session("sink"));
    let report = || status(&a)["network"]["datapaths"][1].clone();
    assert_eq!(report()["state"].as_str(), Some("absent"), "{}", report());
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "udp");
    assert!(eventually(|| report()["tries"].as_u64() > Some(1)), "{}", report());
    std::fs::rename(&elsewhere, &library).unwrap();
    goes_over(&stream, "host-1", "plugin");
    assert_eq!((report()["state"].as_str(), report()["tries"].as_u64()), (Some("open"), Some(0)), "{}", report());
    source.send(b"by the plug-in").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"by the plug-in");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

/// What is in the way changes: there is no object at first, then something that is none.
#[test]
fn the_reason_that_is_given_for_a_datapaths_absence_is_the_newest() {
    let _watchdog = Watchdog::start("newest reason", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    std::fs::remove_file(&library).unwrap();
    let [one, two] = two(&library, folder.path(), |_, _| ());
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    let reasons = || towards(&stream, "host-1").reasons.join("; ");
    for (file, why) in [(None, "No such file or directory"), (Some("text"), "it is no shared object")] {
        file.into_iter().for_each(|text| std::fs::write(&library, text).unwrap());
        assert!(eventually(|| reasons().contains(why)), "{}", reasons());
        let effective = || status(&a)["streams"][0]["effective"].to_string();
        assert!(eventually(|| effective().contains(why)), "{}", effective());
        let report = status(&a)["network"]["datapaths"][1].clone();
        assert!(report["reason"].as_str().is_some_and(|said| said.contains(why)), "{report}");
        assert!(a.report("doctor").unwrap().contains(why));
        let told =
            |event| matches!(event, Event::QosChanged { effective, .. } if effective.reasons.join("").contains(why));
        // The first may have been there before the stream was.
        assert!(file.is_none() || eventually(|| a.events().into_iter().any(told)), "nobody is told");
    }
    source.send(b"meanwhile").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"meanwhile");
}

#[test]
fn a_plugin_that_takes_long_to_open_is_taken_then_and_nobody_waits_for_it() {
    let _watchdog = Watchdog::start("slow", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let [one, two] = two(&library, folder.path(), |end, datapath| {
        if end == 0 {
            datapath.options.insert("hang_open".into(), "8000".into());
        }
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let report = || status(&a)["network"]["datapaths"][1].clone();
    let first = report();
    assert_eq!(
        (first["state"].as_str(), first["text"].as_str()),
        (Some("absent"), Some("it is being opened")),
        "{first}"
    );
    let (stream, source, sink) = ends(&a, &b, accelerated(reliable()), "c");
    goes_over(&stream, "host-1", "udp");
    let is = towards(&stream, "host-1");
    assert!(is.reasons[0].contains("host-0 has no plugin: it is being opened"), "{is:?}");
    source.send(b"meanwhile").unwrap();
    assert_eq!(sink.consume_timeout(LIMIT).unwrap().to_vec(), b"meanwhile");
    // That it comes late is no loss: streams are not held off.
    goes_over(&stream, "host-1", "plugin");
    let report = report();
    assert_eq!((report["losses"].as_u64(), report["tries"].as_u64()), (Some(0), Some(0)), "{report}");
    assert!(eventually(|| law_holds(&a)), "{}", law(&a));
}

#[test]
fn a_datapath_whose_opening_panics_is_absent_with_that_reason_and_tried_again() {
    let _watchdog = Watchdog::start("opening panics", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let config = alone_on_plugin(&library, folder.path());
    let works = Arc::new(AtomicBool::new(false));
    let over = works.clone();
    let server = Server::start_over(config.clone(), move |kind, datapath| {
        assert!(kind != Kind::Plugin || over.load(Ordering::SeqCst), "as it was to");
        datapath
    });
    let server = server.unwrap();
    let session = Session::builder("asks").socket(&config.runtime.socket).open().unwrap();
    let report = || status(&session)["network"]["datapaths"][1].clone();
    assert!(eventually(|| report()["tries"].as_u64() > Some(1)), "{}", report());
    let said = report();
    assert_eq!((said["state"].as_str(), &said["final"]), (Some("absent"), &false.into()), "{said}");
    assert_eq!(said["reason"].as_str(), Some("opening it panicked: as it was to"));
    works.store(true, Ordering::SeqCst);
    assert!(eventually(|| report()["state"] == "open"), "{}", report());
    assert_eq!(server.watch().failed(), None);
    server.stop();
}

/// A plug-in of the source's host says after so many frames that a call of its does not work any more, each time that it was opened: the
/// stream goes on over UDP, and comes back.
fn fails_under_a_stream(qos: Qos, call: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = template(folder.path()) else { return };
    let [one, two] = two(&library, folder.path(), |end, datapath| {
        if end == 0 {
            datapath.options.insert(format!("fail_{call}_after"), "300".into());
        }
    });
    let (a, b) = (one.session("source"), two.session("sink"));
    let (stream, source, sink) = ends(&a, &b, qos, "c");
    goes_over(&stream, "host-1", "plugin");
    let reliable = qos.reliability() == Reliability::Reliable;
    let report = || status(&a)["network"]["datapaths"][1].clone();
    let (sent, mut got) = numbers(&source, &sink, reliable, |seen| {
        flows(seen, &a);
        assert!(eventually(|| report()["losses"].as_u64() >= Some(2)), "{}", report());
        flows(seen, &a);
    });
    take_the_rest(&sink, &mut got, &a);
    are_whole(sent, &got, reliable, &a);
    let why = format!("`{call}` says that it does not work any more");
    assert!(report()["lost"].as_str().is_some_and(|said| said.contains(&why)), "{}", report());
    let doctor = a.report("doctor").unwrap();
    assert!(doctor.contains("times, the last because: ") && doctor.contains(&why), "{doctor}");
    // The source was told each time, and of its way back.
    let told = |event: Event| if let Event::QosChanged { effective, .. } = event { Some(effective) } else { None };
    let told: Vec<_> = a.events().into_iter().filter_map(told).collect();
    let failed = told.iter().position(|is| is.datapath == "udp" && is.reasons.iter().any(|said| said.contains(&why)));
    let back = failed.is_some_and(|at| told[at..].iter().any(|is| is.datapath == "plugin" && is.reasons.is_empty()));
    assert!(back, "{told:?}");
}

#[test]
fn a_plugin_that_fails_under_a_reliable_stream_costs_it_nothing_and_says_why() {
    let _watchdog = Watchdog::start("reliable, fails", TEST);
    ["send", "receive"].into_iter().for_each(|call| fails_under_a_stream(accelerated(reliable()), call));
}

#[test]
fn a_plugin_that_fails_under_a_best_effort_stream_leaves_it_in_order() {
    let _watchdog = Watchdog::start("best effort, fails", TEST);
    ["send", "receive"].into_iter().for_each(|call| fails_under_a_stream(accelerated(Qos::default()), call));
}
