//! `[[network.thread]]`: polling threads beside the network's own, and which datapaths each runs. One datapath may be run by several.

use super::{CORE, CORES, ConfigError, Kind, Network};
use serde::{Deserialize, Serialize};

/// One `[[network.thread]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thread {
    /// The datapaths that it runs: `udp`, or the interface, device or library of one beside that. The first thread that names one sends
    /// by it; what it receives is spread over all that do, by who has sent it.
    pub datapaths: Vec<String>,
    /// The only core that it is on; -1: any that the runtime may use.
    pub core: i32,
    /// How it waits.
    pub wait: Waits,
}

/// How a polling thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Waits {
    /// It never sleeps: for a core of its own.
    Spin,
    /// It looks for as long as `network.spin_us` and `network.spin_most_us` say, and sleeps then.
    #[default]
    Adaptive,
    /// It sleeps at once.
    Sleep,
}

impl Default for Thread {
    fn default() -> Self {
        Self { datapaths: Vec::new(), core: -1, wait: Waits::default() }
    }
}

/// The names of all datapaths, kernel UDP first. Ports of one plug-in have one name.
pub(crate) fn names(network: &Network) -> impl Iterator<Item = &str> {
    std::iter::once(Kind::Udp.name()).chain(network.datapath.iter().map(super::Datapath::place))
}

/// The most threads that run one datapath: each holds 64 slots to receive into, and the kernel a buffer.
const MOST: usize = 16;

/// Checks all threads: what they run is there, once in each, and none has too many.
pub(super) fn check(network: &Network) -> Result<(), ConfigError> {
    for (at, thread) in network.thread.iter().enumerate() {
        let refuse = |key: &str, value: &dyn std::fmt::Display, takes| {
            Err(ConfigError::Value { key: format!("network.thread[{at}].{key}"), value: value.to_string(), takes })
        };
        if !CORES.contains(&thread.core) {
            return refuse("core", &thread.core, CORE);
        }
        if thread.datapaths.is_empty() {
            return refuse("datapaths", &"[]", "at least one datapath: \"udp\", or one of network.datapath");
        }
        for (number, name) in thread.datapaths.iter().enumerate() {
            if !names(network).any(|known| known == name) {
                let takes = "\"udp\", and of network.datapath what is its interface, device or, for a plug-in, library";
                return refuse("datapaths", &format!("\"{name}\""), takes);
            }
            if thread.datapaths[..number].contains(name) {
                return refuse(
                    "datapaths",
                    &format!("\"{name}\""),
                    "each datapath once: another thread may name it, too",
                );
            }
            let mut others = network.thread[..at].iter().filter(|before| before.datapaths.contains(name));
            if others.clone().count() >= MOST {
                return refuse("datapaths", &format!("\"{name}\""), "a datapath that at most 15 threads before it run");
            }
            if thread.core >= 0 && others.any(|before| before.core == thread.core) {
                return refuse(
                    "core",
                    &thread.core,
                    "a core that no other thread of one of its datapaths is on, or -1 for any",
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const ALL: &str = "[network]\nlisten = \"10.0.0.2:7400\"\n\
        [[network.datapath]]\ninterface = \"eth0\"\naddress = \"10.0.0.102/24\"\n\
        [[network.datapath]]\nkind = \"dpdk\"\ndevice = \"net_null0\"\naddress = \"10.0.0.103/24\"\n";

    fn parse(rest: &str) -> Result<Config, String> {
        Config::parse(&format!("{ALL}{rest}")).map_err(|e| e.to_string())
    }

    #[test]
    fn threads_are_read_and_written_and_name_datapaths_as_the_configuration_does() {
        let config = parse(
            "[[network.thread]]\ndatapaths = [\"udp\", \"net_null0\"]\ncore = 3\nwait = \"spin\"\n\
             [[network.thread]]\ndatapaths = [\"eth0\"]\n",
        )
        .unwrap();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        let network = config.network.unwrap();
        let two = Thread { datapaths: vec!["eth0".into()], ..Thread::default() };
        assert_eq!((network.thread[0].core, network.thread[0].wait, &network.thread[1]), (3, Waits::Spin, &two));
        assert_eq!(names(&network).collect::<Vec<_>>(), ["udp", "eth0", "net_null0"]);
    }

    #[test]
    fn one_datapath_may_have_several_threads_up_to_a_number() {
        let thread = "[[network.thread]]\ndatapaths = [\"eth0\", \"udp\"]\n";
        let config = parse(&thread.repeat(MOST)).unwrap();
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        assert_eq!(config.network.unwrap().thread.len(), MOST);
        let other = thread.repeat(MOST) + "[[network.thread]]\ndatapaths = [\"net_null0\"]\n";
        assert!(parse(&other).is_ok(), "of another one there are fewer");
        let error = parse(&thread.repeat(MOST + 1)).unwrap_err();
        let expected =
            "network.thread[16].datapaths = \"eth0\": it takes a datapath that at most 15 threads before it run";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_not_there_or_runs_twice_is_refused_by_key() {
        for (bad, key) in [
            ("", "network.thread[0].datapaths = []: it takes at least one"),
            ("datapaths = [\"eth1\"]", "network.thread[0].datapaths = \"eth1\": it takes \"udp\""),
            ("datapaths = [\"xdp\"]", "network.thread[0].datapaths = \"xdp\""),
            ("datapaths = [\"udp\", \"udp\"]", "network.thread[0].datapaths = \"udp\": it takes each datapath once"),
            (
                "datapaths = [\"udp\"]\n[[network.thread]]\ndatapaths = [\"eth0\", \"udp\", \"eth0\"]",
                "network.thread[1].datapaths = \"eth0\": it takes each datapath once",
            ),
            (
                "datapaths = [\"udp\"]\n[[network.thread]]\ndatapaths = [\"udp\"]\ncore = -2",
                "network.thread[1].core = -2: it takes the number of a core",
            ),
            (
                "datapaths = [\"udp\"]\ncore = 1\n[[network.thread]]\ndatapaths = [\"eth0\", \"udp\"]\ncore = 1",
                "network.thread[1].core = 1: it takes a core that no other thread of one of its datapaths is on",
            ),
            ("datapaths = [\"udp\"]\ncore = 1024", "network.thread[0].core = 1024: it takes the number of a core"),
            ("datapaths = [\"udp\"]\nwait = \"never\"", "never"),
            ("datapath = [\"udp\"]", "did you mean `datapaths`"),
        ] {
            let error = parse(&format!("[[network.thread]]\n{bad}\n")).unwrap_err();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }
}
