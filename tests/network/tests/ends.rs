//! What a runtime leaves behind when it stops, and what it says then.

use insane::Session;
use insane_runtime::server::Server;
use insane_tests_host::Watchdog;
use insane_tests_network::cables::{alone_on_plugin, plugin_template};
use insane_tests_network::status;
use std::time::Duration;

const TEST: Duration = Duration::from_secs(60);

/// How many threads of this process have this name.
fn threads(name: &str) -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap();
    let names = names.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|is| is.trim_end() == name).count()
}

#[test]
fn a_runtime_that_stops_waits_for_a_datapath_that_is_being_opened_and_leaves_nothing_of_it() {
    let _watchdog = Watchdog::start("stops while it opens", TEST);
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin_template(folder.path()) else { return };
    for polled in [false, true] {
        let mut config = alone_on_plugin(&library, folder.path());
        let datapath = &mut config.network.get_or_insert_default().datapath[0];
        datapath.options.insert("hang_open".into(), "3000".into());
        let (server, poller) = if polled {
            Server::start_polled(config.clone()).unwrap()
        } else {
            (Server::start(config.clone()).unwrap(), None)
        };
        let session = Session::builder("asks").socket(&config.runtime.socket).open().unwrap();
        let report = status(&session)["network"]["datapaths"][1].clone();
        assert_eq!((report["state"].as_str(), threads("insane-open")), (Some("absent"), 1), "{polled}: {report}");
        server.stop();
        assert_eq!(threads("insane-open"), 0, "{polled}");
        // It was opened all the same, and closed again: that takes the plug-in's socket away.
        drop(poller);
        assert!(!folder.path().join("end0").exists(), "{polled}");
    }
}
