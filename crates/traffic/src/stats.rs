//! Statistics as name and value, in Linux tc's names wherever tc has one.

use std::borrow::Cow;
use std::fmt;

/// A value in the statistics.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, a size in bytes, or a time in the unit that the name ends in.
    Count(u64),
    /// A negative number.
    Signed(i64),
    /// A probability, an average or a rate.
    Real(f64),
    /// A kind or a state.
    Text(String),
}

/// An ordered list of named values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatMap(Vec<(Cow<'static, str>, Value)>);

impl StatMap {
    /// Adds a count.
    pub fn count(&mut self, name: impl Into<Cow<'static, str>>, value: u64) {
        self.0.push((name.into(), Value::Count(value)));
    }

    /// Adds to a count, which begins here if there is none of this name.
    pub fn add(&mut self, name: &'static str, value: u64) {
        match self.0.iter_mut().find(|(n, v)| n == name && matches!(v, Value::Count(_))) {
            Some((_, Value::Count(count))) => *count = count.saturating_add(value),
            _ => self.count(name, value),
        }
    }

    /// Adds a number that may be negative.
    pub fn signed(&mut self, name: impl Into<Cow<'static, str>>, value: i64) {
        // Texts do not tell a positive number of either kind; neither does this.
        let value = u64::try_from(value).map_or(Value::Signed(value), Value::Count);
        self.0.push((name.into(), value));
    }

    /// Adds a real number.
    pub fn real(&mut self, name: impl Into<Cow<'static, str>>, value: f64) {
        self.0.push((name.into(), Value::Real(value)));
    }

    /// Adds a text.
    pub fn text(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        self.0.push((name.into(), Value::Text(value.into())));
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// The count of a name, if it is one.
    #[must_use]
    pub fn get_count(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Count(n)) => Some(*n),
            _ => None,
        }
    }

    /// All names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(n, v)| (n.as_ref(), v))
    }
}

impl serde::Serialize for StatMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> serde::Deserialize<'de> for StatMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = StatMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of statistics")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<StatMap, A::Error> {
                let mut all = StatMap::default();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    all.0.push((name.into(), value));
                }
                Ok(all)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// What every queue counts, in tc's names (`tc -s qdisc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Basic {
    /// Bytes forwarded.
    pub bytes: u64,
    /// Packets forwarded.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// How often a rate or a limit held a packet back or refused it.
    pub overlimits: u64,
    /// Packets that came from another queue by a change or a policer.
    pub requeues: u64,
    /// Bytes queued now.
    pub backlog: u64,
    /// Packets queued now.
    pub qlen: u64,
    /// Largest packet seen, in bytes.
    pub maxpacket: u64,
}

/// One filter's statistics.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FilterStats {
    /// The filter's id.
    pub id: u32,
    /// Packets that it matched.
    pub packets: u64,
    /// Bytes that it matched.
    pub bytes: u64,
    /// What its action adds.
    pub xstats: StatMap,
}

/// One queue's statistics with those of the policer before and the shaper after it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct QueueStats {
    /// The queue's id.
    pub id: u32,
    /// Its kind: `fifo`, `codel` and so on.
    pub kind: String,
    /// What every queue counts.
    #[serde(flatten)]
    pub basic: Basic,
    /// Mean sojourn time of the packets that left, weighted 1/8 for the newest, in nanoseconds.
    pub avg_sojourn_ns: u64,
    /// Sojourn time of the packet that left last, in nanoseconds.
    pub last_sojourn_ns: u64,
    /// What its kind adds.
    pub xstats: StatMap,
    /// The policer, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub police: Option<StatMap>,
    /// The shaper, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<StatMap>,
}

/// The statistics of a pipeline, stage by stage.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PipelineStats {
    /// How many changes were made to the pipeline since it began.
    pub generation: u64,
    /// Packets handed in.
    pub packets_in: u64,
    /// Bytes handed in.
    pub bytes_in: u64,
    /// The sums over all queues.
    #[serde(flatten)]
    pub basic: Basic,
    /// Packets dropped, by reason.
    pub dropped: StatMap,
    /// The classifier's filters in the order in which they are tried, and its own counts.
    pub filters: Vec<FilterStats>,
    /// Packets that no filter wanted.
    pub unmatched: u64,
    /// What the classifier counts besides: fragments, hints.
    pub classifier: StatMap,
    /// The queues in the order of their ids.
    pub queues: Vec<QueueStats>,
    /// The scheduler.
    pub scheduler: StatMap,
    /// The pacer.
    pub pacer: StatMap,
}
