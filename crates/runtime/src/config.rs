//! The configuration. Every key is documented in the shipped default file, `insaned.toml`; unknown keys are refused.

mod datapath;
mod thread;

pub use datapath::{Datapath, Kind, Mode, Policy, Transport, Via};
pub(crate) use thread::names;
pub use thread::{Thread, Waits};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// The shipped file: every key, documented, at its default.
pub const DEFAULT_FILE: &str = include_str!("../insaned.toml");

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[quota]`
    pub quota: Quota,
    /// `[memory]`
    pub memory: Memory,
    /// `[wait]`
    pub wait: Wait,
    /// `[network]`; without it the runtime serves its host alone and opens no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// `[domains.<name>]`
    pub domains: BTreeMap<String, Domain>,
}

/// `[network]`: other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// The address and port of the UDP datapath.
    pub listen: SocketAddr,
    /// The only interface that it uses; empty for what the kernel's routes say.
    pub interface: String,
    /// The addresses of the other runtimes.
    pub peers: Vec<SocketAddr>,
    /// What goes first when not everything can go at once.
    pub scheduler: Scheduler,
    /// How long the network thread looks again and again before it sleeps, at least, in microseconds. Below 1000 it lets others
    /// have its core between two looks.
    pub spin_us: u64,
    /// How long it does so at most, in microseconds: while longer looking saves sleeps.
    pub spin_most_us: u64,
    /// The only core that the network thread is on; -1: any that the runtime may use.
    pub core: i32,
    /// How long a look of kernel UDP that finds nothing may poll the device, in microseconds (`SO_BUSY_POLL`); 0: not at all.
    pub busy_poll_us: u64,
    /// A peer is lost when nothing has come from it for so long, in milliseconds.
    pub silence_ms: u64,
    /// Once nothing has come from a peer for so long, best-effort messages that wait for it are dropped, in milliseconds; 0: never.
    pub stale_ms: u64,
    /// How long the sinks of reliable streams outlive the loss of their host, and sources the loss of this runtime, in milliseconds.
    pub patience_ms: u64,
    /// A datapath that was lost must stand for so long before streams come back to it, in milliseconds, and twice as long with each
    /// further loss; 0: they come back at once.
    pub return_ms: u64,
    /// So long at most, in milliseconds. When it has stood for so long after that its losses are forgotten.
    pub return_most_ms: u64,
    /// Whether nobody else uses the links to the peers: no congestion response and no pacing.
    pub dedicated: bool,
    /// What kernel UDP holds of what comes until the network thread takes it, in KiB. It is all that other hosts have under way to this
    /// one, so links that are long and fast want more; the kernel gives at most `net.core.rmem_max` to who may not ask for more.
    pub receive_buffer_kib: u64,
    /// What arrived and was not consumed yet may take so much memory per domain, in MiB; copies of what waits for a lost message may
    /// take as much again.
    pub memory_mib: u64,
    /// `[network.directory]`; without it the other runtimes are those in `peers` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// `[[network.datapath]]`: datapaths beside UDP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datapath: Vec<Datapath>,
    /// `[[network.thread]]`: threads of their own for datapaths; empty: the network thread runs them all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub thread: Vec<Thread>,
    /// `[[network.policy]]`: which streams go over which datapaths; empty for the default table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy: Vec<Policy>,
    /// `[[network.class]]`: the classes of the weighted scheduler; empty for the default table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<Class>,
}

/// `[network.directory]`: finding other runtimes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Directory {
    /// Where the directories of others connect, over TCP.
    pub listen: Vec<SocketAddr>,
    /// Where this one connects: directories of others, or routers.
    pub connect: Vec<SocketAddr>,
    /// The interfaces on which runtimes look for each other by multicast.
    pub interfaces: Vec<String>,
    /// The multicast group and port for that.
    pub scout: SocketAddrV4,
    /// Whether it passes on between directories that are connected to it, other routers included.
    pub router: bool,
    /// Runtimes of one realm find each other.
    pub realm: String,
}

/// What a core may be: one of as many as the kernel counts in a set (sched_setaffinity(2)), or -1 for any.
const CORES: std::ops::RangeInclusive<i32> = -1..=1023;
const CORE: &str = "the number of a core, from 0 to 1023, or -1 for any";

/// The most bytes of a realm's name.
pub(crate) const MAX_REALM: usize = 64;

impl Default for Directory {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            connect: Vec::new(),
            interfaces: Vec::new(),
            scout: SocketAddrV4::new([239, 255, 74, 0].into(), 7401),
            router: false,
            realm: "default".into(),
        }
    }
}

impl Directory {
    fn check(&self, network: &Network) -> Result<(), ConfigError> {
        let refuse = |key: &str, value: &dyn std::fmt::Display, takes| {
            let key = format!("network.directory.{key}");
            Err(ConfigError::Value { key, value: value.to_string(), takes })
        };
        for at in &self.listen {
            if at.ip().is_unspecified() || at.ip().is_multicast() || at.port() == 0 {
                return refuse("listen", at, "addresses of interfaces with a port, so that nothing is sent on others");
            }
        }
        for at in &self.connect {
            if at.ip().is_unspecified() || at.ip().is_multicast() || at.port() == 0 || self.listen.contains(at) {
                return refuse("connect", at, "addresses of other runtimes' directories or of routers");
            }
        }
        for (key, len) in
            [("listen", self.listen.len()), ("connect", self.connect.len()), ("interfaces", self.interfaces.len())]
        {
            if len > 64 {
                return refuse(key, &len, "at most 64");
            }
        }
        for name in &self.interfaces {
            let odd = |c: char| c.is_whitespace() || c.is_control() || "/:,#;?".contains(c);
            if name.is_empty() || name.len() > 15 || name.contains(odd) {
                return refuse("interfaces", name, "names of interfaces, at most 15 bytes each");
            }
            if !network.interface.is_empty() && *name != network.interface {
                return refuse(
                    "interfaces",
                    name,
                    "no other than network.interface, which says that it is the only one",
                );
            }
        }
        if !self.interfaces.is_empty() && !self.listen.iter().any(SocketAddr::is_ipv4) {
            return refuse("interfaces", &self.interfaces.join(", "), "an IPv4 address in network.directory.listen");
        }
        if !self.scout.ip().is_multicast() || self.scout.port() == 0 {
            return refuse("scout", &self.scout, "an IPv4 multicast group and a port");
        }
        if self.router && self.listen.is_empty() {
            return refuse("router", &self.router, "an address in network.directory.listen");
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.realm.is_empty() || self.realm.len() > MAX_REALM || !self.realm.chars().all(fits) {
            return refuse("realm", &self.realm, "1 to 64 letters, digits, dots, hyphens and underscores");
        }
        if self.listen.is_empty() && self.connect.is_empty() {
            return refuse("connect", &"[]", "an address, or network.directory.listen one");
        }
        Ok(())
    }
}

/// What goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// First in, first out: nothing is queued that can be sent.
    #[default]
    Fifo,
    /// Messages of a higher priority go first.
    Strict,
    /// Classes of streams, by their QoS, share what there is in proportion to their weights.
    Weighted,
}

/// One row of `[[network.class]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    /// The fields that a stream's QoS must have, as `timing=sensitive`; empty for every stream.
    pub when: String,
    /// What it gets of a link that is full, in proportion to the others: 1 to 1000.
    pub weight: u32,
}

impl Default for Class {
    fn default() -> Self {
        Self { when: String::new(), weight: 1 }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7400)),
            interface: String::new(),
            peers: Vec::new(),
            scheduler: Scheduler::Fifo,
            spin_us: 20,
            spin_most_us: 200,
            core: -1,
            busy_poll_us: 0,
            silence_ms: 1750,
            stale_ms: 500,
            patience_ms: 10_000,
            return_ms: 1000,
            return_most_ms: 60_000,
            dedicated: false,
            receive_buffer_kib: 4096,
            memory_mib: 256,
            directory: None,
            datapath: Vec::new(),
            thread: Vec::new(),
            policy: Vec::new(),
            class: Vec::new(),
        }
    }
}

impl Network {
    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, value: &dyn std::fmt::Display, takes| {
            Err(ConfigError::Value { key: format!("network.{key}"), value: value.to_string(), takes })
        };
        if self.listen.ip().is_unspecified() || self.listen.ip().is_multicast() {
            return refuse("listen", &self.listen, "the address of one interface, so that nothing is sent on another");
        }
        for peer in &self.peers {
            if peer.is_ipv4() != self.listen.is_ipv4() || peer.port() == 0 || *peer == self.listen {
                return refuse("peers", peer, "addresses of other runtimes, of the same family as network.listen");
            }
        }
        if self.peers.len() > 256 {
            return refuse("peers", &self.peers.len(), "at most 256 addresses");
        }
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/:,#;?".contains(c);
        if self.interface.len() > 15 || self.interface.contains(odd) {
            return refuse("interface", &self.interface, "an interface's name, at most 15 bytes");
        }
        for (key, value, range, takes) in [
            ("spin_us", self.spin_us, 0..=1_000_000, "0 to 1000000 microseconds"),
            ("spin_most_us", self.spin_most_us, 0..=1_000_000, "0 to 1000000 microseconds"),
            ("busy_poll_us", self.busy_poll_us, 0..=1_000_000, "0 to 1000000 microseconds"),
            ("silence_ms", self.silence_ms, 100..=60_000, "100 to 60000 milliseconds"),
            ("stale_ms", self.stale_ms, 0..=60_000, "0 to 60000 milliseconds"),
            ("patience_ms", self.patience_ms, 0..=600_000, "0 to 600000 milliseconds"),
            ("return_ms", self.return_ms, 0..=60_000, "0 to 60000 milliseconds"),
            ("return_most_ms", self.return_most_ms, 0..=3_600_000, "0 to 3600000 milliseconds"),
            ("receive_buffer_kib", self.receive_buffer_kib, 64..=1_048_576, "64 to 1048576 KiB"),
            ("memory_mib", self.memory_mib, 1..=65_536, "1 to 65536 MiB"),
        ] {
            if !range.contains(&value) {
                return refuse(key, &value, takes);
            }
        }
        if !CORES.contains(&self.core) {
            return refuse("core", &self.core, CORE);
        }
        for Class { weight, .. } in &self.class {
            if !(1..=1000).contains(weight) {
                return refuse("class.weight", weight, "1 to 1000");
            }
        }
        crate::policy::Classes::new(&self.class)?;
        datapath::check(self)?;
        thread::check(self)?;
        self.directory.as_ref().map_or(Ok(()), |directory| directory.check(self))
    }
}

/// `[runtime]`: the process itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Path of the socket; empty for the user's runtime directory, or the system's path for root.
    pub socket: PathBuf,
    /// Mode of the socket file, in octal.
    pub socket_mode: String,
    /// Name of this host in reports; empty for the host name.
    pub host: String,
    /// Log level: `error`, `warn`, `info`, `debug`, `trace`.
    pub log_level: String,
    /// Log format: `text` or `json`.
    pub log_format: String,
    /// How long a new connection may take to say hello, in milliseconds.
    pub hello_timeout_ms: u64,
}

/// `[quota]`: what sessions and users may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Sessions in all.
    pub sessions: u32,
    /// Sessions of one user.
    pub sessions_per_user: u32,
    /// Streams of one session.
    pub streams_per_session: u32,
    /// Sources and sinks of one session.
    pub endpoints_per_session: u32,
    /// Segments of one session, in MiB.
    pub memory_mib_per_session: u64,
    /// The largest message, in MiB.
    pub message_mib: u64,
    /// Entries of a link's rings: a power of two. Also the most messages that one link holds.
    pub link_entries: u32,
    /// Control messages that wait for a session to read them; a session with more is closed.
    pub unread_messages: u32,
}

/// `[memory]`: where segments lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Whether segments lie on 2 MB huge pages, which the operator reserves.
    pub huge_pages: bool,
}

/// `[wait]`: waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Wait {
    /// Whether the runtime holds `/dev/cpu_dma_latency`, which is machine-wide, while a session has a sink.
    pub cpu_latency_knob: bool,
}

/// `[domains.<name>]`: a tenant, and who may join it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Domain {
    /// Users by name or number.
    pub users: Vec<String>,
    /// Groups by name or number.
    pub groups: Vec<String>,
    /// Whether every user of the host may join.
    pub all_users: bool,
    /// Whose payloads sinks may read as plain slices: `none`, `same-user` or `all`.
    pub trust: Trust,
}

/// Whose payloads sinks may read as plain slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Nobody's: payloads are copied out, each byte read once.
    None,
    /// Those of peers of the same user, who could trace this process anyway.
    #[default]
    SameUser,
    /// Everybody's in the domain.
    All,
}

/// The domain that a session joins when it names none.
pub const DEFAULT_DOMAIN: &str = "default";

impl Default for Runtime {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            socket_mode: "0660".into(),
            host: String::new(),
            log_level: "info".into(),
            log_format: "text".into(),
            hello_timeout_ms: 2000,
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sessions: 256,
            sessions_per_user: 128,
            streams_per_session: 64,
            endpoints_per_session: 4096,
            memory_mib_per_session: 512,
            message_mib: 128,
            link_entries: 2048,
            unread_messages: 16_384,
        }
    }
}

/// Something is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is no TOML of ours: an unknown key, a value of the wrong kind.
    #[error("{text}{}", suggestion.as_ref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default())]
    Parse {
        /// What is wrong and where.
        text: String,
        /// A key that is spelt alike.
        suggestion: Option<String>,
    },
    /// A value is out of range.
    #[error("{key} = {value}: it takes {takes}")]
    Value {
        /// The key's path.
        key: String,
        /// Its value.
        value: String,
        /// What it takes.
        takes: &'static str,
    },
    /// A table with a row for every QoS has a gap.
    #[error("{table}: no row is for {qos}: end with a row whose `when` is empty")]
    Uncovered {
        /// The table's key.
        table: &'static str,
        /// A QoS without a row, as canonical text; empty for that of a stream that asks for nothing.
        qos: String,
    },
}

/// The most bytes of a configuration file.
const MOST_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads a configuration file and checks it.
    ///
    /// # Errors
    /// What is wrong, in one line that does not name the file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
        if read.map_err(|e| e.to_string())? as u64 > MOST_BYTES {
            return Err("it takes a file of at most 1 MiB".into());
        }
        Self::parse(&text).map_err(|e| e.to_string())
    }

    /// Reads a configuration and checks it.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key and what it takes.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let text = on_one_line(text, &e);
            let suggestion = meant(&text);
            ConfigError::Parse { text, suggestion }
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the first that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, value: &dyn std::fmt::Display, takes| {
            Err(ConfigError::Value { key: key.into(), value: value.to_string(), takes })
        };
        let (r, q) = (&self.runtime, &self.quota);
        if r.mode().is_none() {
            return refuse("runtime.socket_mode", &format!("\"{}\"", r.socket_mode), "an octal mode such as \"0660\"");
        }
        if !["error", "warn", "info", "debug", "trace"].contains(&r.log_level.as_str()) {
            return refuse("runtime.log_level", &r.log_level, "error, warn, info, debug or trace");
        }
        if !["text", "json"].contains(&r.log_format.as_str()) {
            return refuse("runtime.log_format", &r.log_format, "text or json");
        }
        if r.socket.as_os_str().len() > 107 {
            return refuse("runtime.socket", &r.socket.display(), "a path of at most 107 bytes");
        }
        if !(10..=600_000).contains(&r.hello_timeout_ms) {
            return refuse("runtime.hello_timeout_ms", &r.hello_timeout_ms, "10 to 600000 milliseconds");
        }
        for (key, value) in [
            ("quota.sessions", q.sessions),
            ("quota.sessions_per_user", q.sessions_per_user),
            ("quota.streams_per_session", q.streams_per_session),
            ("quota.endpoints_per_session", q.endpoints_per_session),
            ("quota.unread_messages", q.unread_messages),
        ] {
            if !(1..=1_000_000).contains(&value) {
                return refuse(key, &value, "1 to 1000000");
            }
        }
        if !q.link_entries.is_power_of_two() || !(4..=65_536).contains(&q.link_entries) {
            return refuse("quota.link_entries", &q.link_entries, "a power of two from 4 to 65536");
        }
        if !(1..=1 << 20).contains(&q.memory_mib_per_session) {
            return refuse("quota.memory_mib_per_session", &q.memory_mib_per_session, "1 to 1048576 MiB");
        }
        if !(1..=128).contains(&q.message_mib) {
            return refuse("quota.message_mib", &q.message_mib, "1 to 128 MiB");
        }
        if let Some(network) = &self.network {
            network.check()?;
        }
        for name in self.domains.keys() {
            if !insane_wire::id::valid_name(name) {
                return refuse("domains", name, "names of 1 to 255 bytes without control characters");
            }
        }
        Ok(())
    }

    /// The domains, with the default one if none is named: open to the runtime's own user.
    #[must_use]
    pub fn domains(&self) -> BTreeMap<String, Domain> {
        let mut domains = self.domains.clone();
        if domains.is_empty() {
            domains.insert(DEFAULT_DOMAIN.into(), Domain::default());
        }
        domains
    }

    /// The configuration as TOML, every key with its value.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

impl Quota {
    /// The connections of one user, with and without a session: twice its sessions, but never all that there may be.
    #[must_use]
    pub fn connections_per_user(&self) -> usize {
        let all = 2 * self.sessions as usize;
        (2 * self.sessions_per_user as usize).min(all - (all / 4).max(1))
    }
}

impl Runtime {
    /// The socket's mode.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        u32::from_str_radix(self.socket_mode.trim_start_matches("0o"), 8).ok().filter(|m| *m <= 0o777)
    }
}

/// What is wrong, with its line and column.
fn on_one_line(text: &str, e: &toml::de::Error) -> String {
    let what = e.message().split('\n').map(str::trim).collect::<Vec<_>>().join(", ");
    let Some(before) = e.span().and_then(|span| text.get(..span.start)) else { return what };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
    format!("line {line}, column {column}: {what}")
}

fn unknown_key(text: &str) -> Option<&str> {
    text.split("unknown field `").nth(1)?.split('`').next()
}

/// The sections of a configuration file, as paths, each with its keys.
fn sections() -> Vec<(String, Vec<String>)> {
    fn keys<T: Serialize>(section: T) -> Vec<String> {
        toml::Table::try_from(section).unwrap_or_default().keys().cloned().collect()
    }
    let all = toml::Table::try_from(Config::default()).unwrap_or_default();
    let plain = all.into_iter().map(|(section, value)| {
        let keys = value.as_table().into_iter().flat_map(|t| t.keys().cloned()).collect();
        (section, keys)
    });
    let more = [
        ("domains", keys(Domain::default())),
        ("network", keys(Network::default())),
        ("network.directory", keys(Directory::default())),
        ("network.datapath", keys(Datapath::default())),
        ("network.thread", keys(Thread::default())),
        ("network.policy", keys(Policy::default())),
        ("network.class", keys(Class::default())),
    ];
    plain.chain(more.map(|(section, keys)| (section.to_owned(), keys))).collect()
}

/// Every key of the default file and of a domain's table.
#[must_use]
pub fn known_keys() -> Vec<String> {
    let named = |section: &str| section.rsplit('.').next().unwrap_or_default().to_owned();
    sections().into_iter().flat_map(|(section, keys)| std::iter::once(named(&section)).chain(keys)).collect()
}

/// What was meant by the key that a message says is not known: one of its section that is spelt alike, the same in another section, or
/// one of any section that is spelt alike.
fn meant(text: &str) -> Option<String> {
    let key = unknown_key(text)?;
    let expected = text.split_once(" expected ").map_or("", |(_, expected)| expected);
    let here: Vec<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let elsewhere = || sections().into_iter().find(|(_, keys)| keys.iter().any(|known| known == key));
    nearest(key, &here)
        .or_else(|| elsewhere().map(|(section, _)| format!("{section}.{key}")))
        .or_else(|| nearest(key, &known_keys()))
}

/// The name among `known` that is spelt most alike, if any is close.
#[must_use]
pub fn nearest(name: &str, known: &[String]) -> Option<String> {
    let best = known.iter().min_by_key(|k| distance(name, k))?;
    (distance(name, best) <= name.len() / 3 + 1).then(|| best.clone())
}

/// Levenshtein's distance between two names.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_is_the_default_and_names_every_key() {
        let shipped = Config::parse(DEFAULT_FILE).unwrap();
        assert_eq!(shipped.domains.get(DEFAULT_DOMAIN), Some(&Domain::default()));
        assert_eq!(Config { domains: BTreeMap::new(), ..shipped }, Config::default());
        for key in known_keys() {
            assert!(DEFAULT_FILE.contains(&key), "{key} is not in the shipped file");
        }
    }

    #[test]
    fn unknown_keys_get_a_suggestion_and_values_a_range() {
        let error = Config::parse("[quota]\nlink_entires = 64\n").unwrap_err().to_string();
        assert!(error.contains("link_entires") && error.contains("did you mean `link_entries`"), "{error}");
        assert!(error.contains("line 2"), "{error}");
        // In another section.
        for (misplaced, meant) in [("socket = \"/x\"", "runtime.socket"), ("[wait]\nlisten = \"x\"", "network.listen")]
        {
            let error = Config::parse(misplaced).unwrap_err().to_string();
            assert!(error.ends_with(&format!("did you mean `{meant}`?")), "{error}");
        }
        for (bad, key) in [
            ("[quota]\nlink_entries = 1000", "quota.link_entries"),
            ("[quota]\nsessions = 0", "quota.sessions"),
            ("[runtime]\nlog_level = \"loud\"", "runtime.log_level"),
            ("[runtime]\nsocket_mode = \"9\"", "runtime.socket_mode"),
            ("[quota]\nmessage_mib = 129", "quota.message_mib"),
        ] {
            assert!(Config::parse(bad).unwrap_err().to_string().contains(key), "{bad}");
        }
        assert_eq!(Config::parse(&Config::default().to_toml()).unwrap(), Config::default());
    }

    /// A section of the shipped file that is commented out.
    fn uncommented(head: &str) -> String {
        DEFAULT_FILE
            .lines()
            .skip_while(|l| *l != head)
            .take_while(|l| !l.is_empty())
            .filter_map(|l| l.strip_prefix("# "))
            .filter(|l| l.starts_with('[') || l.contains(" = "))
            .fold(String::new(), |text, line| text + line + "\n")
    }

    #[test]
    fn the_directory_is_off_by_default_and_its_keys_are_checked() {
        assert_eq!(Network::default().directory, None);
        let shipped = uncommented("# [network.directory]").replace("connect = []", "connect = [\"10.0.0.2:7402\"]");
        let config = Config::parse(&(uncommented("# [network]") + &shipped)).unwrap();
        let connect = vec!["10.0.0.2:7402".parse().unwrap()];
        let directory = config.network.as_ref().and_then(|n| n.directory.clone());
        assert_eq!(
            directory,
            Some(Directory { connect, ..Directory::default() }),
            "the shipped file shows the defaults"
        );
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        for (bad, key) in [
            ("", "network.directory.connect"),
            ("listen = [\"0.0.0.0:7402\"]", "network.directory.listen"),
            ("listen = [\"10.0.0.1:0\"]", "network.directory.listen"),
            ("connect = [\"224.0.0.1:7402\"]", "network.directory.connect"),
            ("listen = [\"10.0.0.1:1\"]\nconnect = [\"10.0.0.1:1\"]", "network.directory.connect"),
            ("connect = [\"10.0.0.1:1\"]\ninterfaces = [\"eth0\"]", "in network.directory.listen"),
            ("listen = [\"10.0.0.1:1\"]\ninterfaces = [\"eth0#x\"]", "network.directory.interfaces"),
            ("listen = [\"10.0.0.1:1\"]\ninterfaces = [\"eth1\"]", "network.interface"),
            ("listen = [\"10.0.0.1:1\"]\nscout = \"10.0.0.255:1\"", "network.directory.scout"),
            ("listen = [\"10.0.0.1:1\"]\nrealm = \"a/b\"", "network.directory.realm"),
            ("connect = [\"10.0.0.1:1\"]\nrouter = true", "network.directory.router"),
            ("interface = [\"eth0\"]", "did you mean `interfaces`"),
            ("conect = []", "did you mean `connect`"),
        ] {
            let text = format!("[network]\ninterface = \"eth0\"\n[network.directory]\n{bad}");
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }

    #[test]
    fn the_shipped_file_shows_a_datapath_a_thread_and_the_default_policy() {
        let datapath = uncommented("# [[network.datapath]]");
        let named = datapath.replace("interface = \"\"", "interface = \"eth1\"");
        let named = named.replace("address = \"\"", "address = \"10.0.0.102/24\"");
        let thread = uncommented("# [[network.thread]]").replace("[]", "[\"udp\"]");
        let threads = Config::parse(&format!("[network]\n{thread}")).unwrap().network.unwrap().thread;
        assert_eq!(threads, [Thread { datapaths: vec!["udp".into()], ..Thread::default() }]);
        let policy = uncommented("# [[network.policy]]");
        let network = Config::parse(&format!("[network]\n{named}{policy}")).unwrap().network.unwrap();
        let (interface, address) = ("eth1".into(), "10.0.0.102/24".into());
        assert_eq!(network.datapath, [Datapath { interface, address, ..Datapath::default() }]);
        assert_eq!(crate::policy::Table::new(&network.policy), Ok(crate::policy::Table::default()));
        assert_eq!(network.policy.len(), 3);
        let classes =
            Config::parse(&format!("[network]\n{}", uncommented("# [[network.class]]"))).unwrap().network.unwrap();
        assert_eq!(crate::policy::Classes::new(&classes.class), Ok(crate::policy::Classes::default()));
        assert_eq!(classes.class.len(), 3);
        // Without a name and an address there is none.
        assert!(Config::parse(&format!("[network]\n{datapath}")).is_err());
    }

    #[test]
    fn the_network_is_off_by_default_and_its_keys_are_checked() {
        assert_eq!(Config::default().network, None);
        let config = Config::parse(&uncommented("# [network]")).unwrap();
        assert_eq!(config.network, Some(Network::default()), "the shipped file shows the defaults");
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
        for (bad, key) in [
            ("listen = \"0.0.0.0:7400\"", "network.listen"),
            ("listen = \"127.0.0.1:1\"\npeers = [\"[::1]:1\"]", "network.peers"),
            ("listen = \"127.0.0.1:1\"\npeers = [\"127.0.0.1:1\"]", "network.peers"),
            ("silence_ms = 5", "network.silence_ms"),
            ("return_ms = 60001", "network.return_ms"),
            ("return_most_ms = 3600001", "network.return_most_ms"),
            ("core = -2", "network.core = -2: it takes the number of a core, from 0"),
            ("core = 1024", "network.core"),
            ("busy_poll_us = 1000001", "network.busy_poll_us"),
            ("scheduler = \"fair\"", "fair"),
            ("[[network.class]]\nweight = 0", "network.class.weight"),
            ("[[network.class]]\nwhen = \"timing=sensitive\"", "network.class: no row is for"),
            ("lisen = \"127.0.0.1:1\"", "did you mean `listen`"),
        ] {
            let error = Config::parse(&format!("[network]\n{bad}")).unwrap_err().to_string();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }
}
