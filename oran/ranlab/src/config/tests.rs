use super::*;

#[test]
fn the_shipped_file_is_the_defaults() {
    assert_eq!(Config::parse(DEFAULT_TOML).unwrap(), Config::default());
}

/// Every key that the defaults have, as `table.key`.
fn keys(value: &toml::Value, prefix: &str, into: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                into.push(format!("{prefix}{key}"));
                keys(value, &format!("{prefix}{key}."), into);
            }
        }
        toml::Value::Array(items) => items.iter().for_each(|item| keys(item, prefix, into)),
        _ => {}
    }
}

#[test]
fn every_key_is_in_the_shipped_file() {
    let written = toml::Value::try_from(Config::default()).unwrap();
    let shipped: toml::Value = toml::from_str(DEFAULT_TOML).unwrap();
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    keys(&written, "", &mut expected);
    keys(&shipped, "", &mut found);
    expected.retain(|key| key != "qos_rule");
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for commented in ["qos_rule", "uplink_mcs", "preset", "ue.bearer.pipeline"] {
        assert!(DEFAULT_TOML.contains(commented), "{commented}");
    }
}

#[test]
fn unknown_keys_are_refused_at_every_depth() {
    for text in [
        "version = 1\nspeed = 3",
        "version = 1\n[carrier]\nprb = 3",
        "version = 1\n[downlink.harq]\nblers = 0.1",
        "version = 1\n[[ue]]\nname = \"a\"\ncolour = 1",
        "version = 1\n[[ue]]\n[[ue.bearer]]\nid = 1\npreset = \"fq-codel\"\nqueue = 3",
    ] {
        assert!(matches!(Config::parse(text), Err(ConfigError::Syntax(_))), "{text}");
    }
}

#[test]
fn impossible_values_are_refused_with_their_key() {
    for (text, key) in [
        ("version = 2", "version"),
        ("version = 1\n[carrier]\nprbs = 0", "carrier.prbs"),
        ("version = 1\n[carrier]\ntdd = \"DDX\"", "carrier.tdd"),
        ("version = 1\n[carrier]\nreserved = [20]", "carrier.reserved"),
        ("version = 1\n[downlink.mcs]\ntype = \"fixed\"\nindex = 28", "downlink.mcs"),
        ("version = 1\n[downlink.harq]\nbler = nan", "downlink.harq.bler"),
        ("version = 1\n[uplink]\nlayers = 9", "uplink.layers"),
        ("version = 1\n[plugins]\ndirectories = [\"plugins\"]", "plugins.directories"),
        ("version = 1\n[plugins]\nobjects = [\"/usr/lib/a.so\"]", "plugins.directories"),
        ("version = 1\n[rlc]\nlimit = 10", "rlc.limit"),
        ("version = 1\n[rlc]\nreordering = \"0ms\"", "rlc.reordering"),
        ("version = 1\n[wan]\ndelay = \"11s\"", "wan.delay"),
        ("version = 1\n[host]\ncongestion_control = \"a b\"", "host.congestion_control"),
        ("version = 1\n[[ue]]\nname = \"../x\"", "ue.name"),
        ("version = 1\n[[ue]]\n[[ue]]", "ue"),
        ("version = 1\n[[ue]]\nqfi = 64", "ue.qfi"),
        ("version = 1\n[[ue]]\n[[ue.bearer]]\nid = 0", "ue.bearer.id"),
        ("version = 1\n[[ue]]\n[[ue.bearer]]\npreset = \"x\"", "ue.bearer.preset"),
        ("version = 1\n[[ue]]\n[[ue.bearer]]\nqfi = [1, 1]", "ue.bearer.qfi"),
        ("version = 1\nue = []", "ue"),
    ] {
        match Config::parse(text) {
            Err(ConfigError::Value { key: found, .. }) => assert_eq!(found, key, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_pipeline_can_stand_in_the_file() {
    let text = r#"
        version = 1
        [[ue]]
        [[ue.bearer]]
        id = 1
        [ue.bearer.pipeline]
        version = 1
        queue = [{ id = 0, kind = { type = "codel" } }]
        pacer = { type = "5g-bdp" }
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!(config.ues[0].bearers[0].spec().unwrap().queues.len(), 1);
}

#[test]
fn keys_left_out_of_the_uplink_keep_the_uplinks_values() {
    let config = Config::parse("version = 1\n[uplink]\nlayers = 2").unwrap();
    assert_eq!(config.uplink, Radio { layers: 2, ..Radio::uplink() });
    let config =
        Config::parse("version = 1\n[uplink]\nmcs = { type = \"fixed\", index = 3 }\nharq = { processes = 2 }");
    let uplink = config.unwrap().uplink;
    assert_eq!((uplink.mcs, uplink.harq.processes, uplink.harq.bler), (McsSpec::Fixed { index: 3 }, 2, 0.01));
}

proptest::proptest! {
    /// The shipped file with a piece of it replaced: read or refused, and what is read makes a cell.
    #[test]
    fn spoiled_files_are_read_or_refused(at in 0..DEFAULT_TOML.len(), cut in 0..40_usize, text in "[0-9a-z\"=\\[\\]{}.,\n -]{0,12}") {
        let end = (at + cut).min(DEFAULT_TOML.len());
        let mut bytes = DEFAULT_TOML.as_bytes().to_vec();
        bytes.splice(at..end, text.into_bytes());
        if let Ok(config) = Config::parse(&String::from_utf8_lossy(&bytes)) {
            let mut cell = crate::core::cell::Cell::new(&config).expect("a configuration that was checked");
            cell.downlink(insane_traffic::Time::ZERO, 0, &[0x45; 60]);
            cell.advance(insane_traffic::Time::from_millis(30));
            proptest::prop_assert_eq!(cell.audit(), Ok(()));
        }
    }
}
