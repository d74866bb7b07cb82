//! What must not be loaded is refused with a reason, and what lies is closed before its lie is used.

mod common;

use std::path::Path;

use common::{bad, cc, folder, no_compiler, source};
use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Armed, Datapath};
use insane_datapath_plugin::{LoadError, Plugin, PluginDatapath};

const OWN: Address = Address::Ethernet([2, 0x99, 0, 0, 0, 1]);

#[test]
fn bad_objects_are_refused_with_the_reason() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    for (fault, reason) in [
        ("NO_TABLE", "NO_TABLE.so offers nothing: insane_datapath() is NULL"),
        ("VERSION", "it was built for version 7 of insane_datapath.h; this release takes version 1"),
        ("SIZE", "its table has 104 bytes, less than the 112 of version 1"),
        ("NAME", "a datapath's name must be 1 to 32 of"),
        ("NO_NAME", "a datapath's name must be 1 to 32 of"),
        ("LONG_NAME", "a datapath's name must be 1 to 32 of"),
        ("NULL_CREATE", "datapath mirror has NULL for `create`"),
        ("NULL_RELEASE", "datapath mirror has NULL for `release`"),
    ] {
        let error = bad(&folder, fault).expect_err(fault).to_string();
        assert!(error.contains(reason), "{fault}: {error}");
    }
    for (define, reason) in [
        ("WITHOUT_SYMBOL", "object.so does not define insane_datapath: it is no datapath"),
        ("WITH_UNRESOLVED", "object.so: undefined symbol: no_such_function_anywhere"),
    ] {
        let path = folder.path().join("object.so");
        cc(&source("tests/objects/bad.c"), &path, &["-shared", "-fPIC", "-DBAD=NOTHING", &format!("-D{define}")]);
        let error = Plugin::load(&path).expect_err(define).to_string();
        assert!(error.contains(reason), "{define}: {error}");
    }
}

#[test]
fn only_an_absolute_path_to_a_file_that_others_cannot_write_is_loaded() {
    use std::os::unix::fs::PermissionsExt;
    if no_compiler() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("NOTHING.so");
    let refused = |asked: &Path, reason: &str| {
        let error = Plugin::load(asked).unwrap_err();
        assert!(matches!(&error, LoadError::Object(insane_object::LoadError::Distrust(_))), "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    };
    refused(Path::new("plugin.so"), "plugin.so is not an absolute path");
    refused(Path::new("./plugin.so"), "is not an absolute path");
    refused(Path::new(""), "is not an absolute path");
    refused(&path, "No such file");
    refused(folder.path(), "it is no regular file");
    cc(&source("tests/objects/bad.c"), &path, &["-shared", "-fPIC", "-DBAD=NOTHING"]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(&path, "may be written by others");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Plugin::load(&path).unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    assert!(Plugin::load(&text).unwrap_err().to_string().contains("it is no shared object"));
}

/// A table of a later release has more calls at its end; this one does without them.
#[test]
fn a_longer_table_of_the_same_version_is_taken() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let mut port = bad(&folder, "LONGER").unwrap().port(&[]).unwrap();
    port.open().unwrap();
    assert_eq!(exchange(&mut port), (3, 3));
}

#[test]
fn what_cannot_be_opened_says_why() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    for (fault, reason) in [("NO_PORT", "it does not want to"), ("NO_REASON", "it gives no reason")] {
        let error = bad(&folder, fault).unwrap().port(&[]).unwrap_err().to_string();
        assert_eq!(error, format!("mirror is not available here: {reason}"));
    }
    for (fault, reason) in [
        ("NOT_OPENED", "mirror is not available here: the cable is out"),
        ("NEVER_OPENED", "mirror is not available here: the cable is out"),
        ("ENDLESS_REASON", "mirror is not available here: xxxxxxxx"),
        ("MAX_FRAME", "MAX_FRAME.so breaks its contract: its largest frame has 65536 bytes; 64 to 65535 can be"),
        ("NO_BURST", "its burst is 0; 1 to 64 can be"),
        ("GROUP_ADDRESS", "its address is not a station's"),
        ("BAD_FD", "its descriptor 999999: "),
        ("NEGATIVE_FD", "its descriptor is -7"),
        ("LEND_NO_FD", "it lends 32 of 64 slots of 2048 bytes by the descriptor -1"),
        ("LEND_BAD_FD", "its memory's descriptor 999999: "),
        ("LEND_STRIDE", "it lends 32 of 64 slots of 3000 bytes"),
        ("LEND_ALL", "it lends 64 of 64 slots"),
        ("LEND_NOWHERE", "it lends 32 of 64 slots of 2048 bytes"),
    ] {
        let mut port = bad(&folder, fault).unwrap().port(&[]).unwrap();
        let error = port.open().expect_err(fault);
        assert!(error.to_string().contains(reason), "{fault}: {error}");
        assert_eq!((port.address(), error.is_final()), (None, fault == "NEVER_OPENED"), "{fault}");
    }
}

/// Sends three frames and receives what comes: how many were sent, how many came.
fn exchange(port: &mut PluginDatapath) -> (usize, usize) {
    let mut tx = TxBatch::default();
    (0..3).for_each(|number| tx.frame(OWN, &[number; 100], u64::from(number)));
    let report = port.transmit(&mut tx);
    assert_eq!(report.sent + report.refused + report.pending, 3);
    let mut rx = RxBatch { free: (0..8).map(|id| Slot::owned(id, 2000)).collect(), ..RxBatch::default() };
    port.receive(&mut rx, None);
    assert_eq!(rx.free.len() + rx.taken.len(), 8);
    (report.sent, rx.taken.len())
}

#[test]
fn a_lie_closes_it_before_it_is_used() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    for (fault, reason, counts) in [
        ("RESERVE_MORE", "`reserve` returned 4, of 3 at most", (0, 0)),
        ("RESERVE_FAILED", "`reserve` says that it does not work any more", (0, 0)),
        ("NO_DATA", "`reserve` returned a buffer of 1514 bytes", (0, 0)),
        ("SMALL_BUFFER", "`reserve` returned a buffer of 1513 bytes, less than the 1514 of a frame", (0, 0)),
        ("SEND_MORE", "`send` returned 4, of 3 at most", (0, 0)),
        ("SEND_NEGATIVE", "`send` returned -77, which means nothing", (0, 0)),
        ("SEND_FAILED", "`send` says that it does not work any more", (0, 0)),
        ("RECEIVE_MORE", "`receive` returned 17, of 16 at most", (3, 0)),
        ("RECEIVE_FAILED", "`receive` says that it does not work any more", (3, 0)),
        ("LONG_FRAME", "`receive` returned a frame of 1515 bytes; they have 14 to 1514", (3, 0)),
        ("SHORT_FRAME", "`receive` returned a frame of 13 bytes", (3, 0)),
        ("NO_FRAME", "`receive` returned a frame of 100 bytes", (3, 0)),
        // Those before it are as good as any.
        ("LAST_FRAME", "`receive` returned a frame of 1515 bytes", (3, 2)),
    ] {
        let mut port = bad(&folder, fault).unwrap().port(&[]).unwrap();
        // It may be opened again, as often as one likes.
        for _ in 0..3 {
            port.open().unwrap();
            assert_eq!((port.fault(), port.address()), (None, Some(OWN)));
            assert_eq!(exchange(&mut port), counts, "{fault}");
            assert_eq!(port.lost().as_deref(), port.fault());
            let found = port.fault().unwrap_or_else(|| panic!("{fault} was not found"));
            assert!(found.contains(reason), "{fault}: {found}");
            assert_eq!(port.address(), None, "{fault}");
            let mut tx = TxBatch::default();
            tx.frame(OWN, &[0; 100], 0);
            assert_eq!((port.transmit(&mut tx).refused, tx.frames()[0].outcome), (1, Outcome::Failed));
        }
    }
    for fault in ["ARM", "ARM_FAILED"] {
        let mut port = bad(&folder, fault).unwrap().port(&[]).unwrap();
        port.open().unwrap();
        assert_eq!((port.arm(), port.address()), (Armed::Poll, None), "{fault}");
        assert!(port.fault().unwrap().contains("`arm`") || fault == "ARM_FAILED");
    }
    // The same without a lie works, so each was closed for what it says.
    let mut port = bad(&folder, "NOTHING").unwrap().port(&[]).unwrap();
    port.open().unwrap();
    assert_eq!((exchange(&mut port), port.frame_limit(OWN), port.fault()), ((3, 3), 1000, None));
    let mut port = bad(&folder, "LIMIT").unwrap().port(&[]).unwrap();
    port.open().unwrap();
    assert_eq!(port.frame_limit(OWN), 1514, "a limit beyond the largest frame is not one");
}

/// No link: frames are refused at once. A port that takes nothing: what was built waits, the rest stays with the caller, and no
/// buffer is lost.
#[test]
fn no_link_and_no_room_are_outcomes() {
    if no_compiler() {
        return;
    }
    let folder = folder();
    let mut port = bad(&folder, "DOWN").unwrap().port(&[]).unwrap();
    port.open().unwrap();
    for _ in 0..1000 {
        let mut tx = TxBatch::default();
        (0..3).for_each(|_| tx.frame(OWN, &[0; 100], 0));
        assert_eq!(port.transmit(&mut tx).refused, 3);
        assert!(tx.frames().iter().all(|frame| frame.outcome == Outcome::Unreachable));
    }
    let mut port = bad(&folder, "BUSY").unwrap().port(&[]).unwrap();
    port.open().unwrap();
    let mut tx = TxBatch::default();
    (0..100).for_each(|_| tx.frame(OWN, &[0; 100], 0));
    let first = port.transmit(&mut tx);
    assert_eq!((first.sent, first.pending), (0, 100));
    for _ in 0..1000 {
        let report = port.transmit(&mut tx);
        assert_eq!((report.sent, report.pending), (0, 100));
    }
    assert!(port.stats().busy > 1000 && port.fault().is_none());
}
