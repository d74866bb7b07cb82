//! How long it takes to open what an application opens, and where a message lies.

use crate::Asking;
use anyhow::{Context, Result, bail};
use bench_harness::{Args, Pinger};
use insane::{Qos, Session};
use std::path::PathBuf;

/// Opens a session and closes it.
pub(crate) const SESSION: &str = "session";
/// Opens a stream with a source on each of a thousand channels, and closes them.
pub(crate) const CHANNELS: &str = "1000-channels";

/// Either kind of asking end.
#[allow(clippy::large_enum_variant)] // There is one of it.
pub(crate) enum Asker {
    Asking(Asking),
    Opening(Opening),
}

impl Pinger for Asker {
    #[inline]
    fn exchange(&mut self, n: u64) -> Result<()> {
        match self {
            Self::Asking(asking) => asking.exchange(n),
            Self::Opening(opening) => opening.exchange(n),
        }
    }

    fn in_place(&self) -> Option<bool> {
        match self {
            Self::Asking(asking) => asking.in_place(),
            Self::Opening(_) => None,
        }
    }
}

/// Opens and closes.
pub(crate) struct Opening {
    socket: PathBuf,
    session: Option<Session>,
}

impl Opening {
    pub(crate) fn new(args: &Args, socket: PathBuf) -> Result<Self> {
        let session = match args.variant.as_str() {
            SESSION => None,
            CHANNELS => Some(Session::builder("bench").socket(&socket).open()?),
            other => bail!("no variant '{other}'"),
        };
        Ok(Self { socket, session })
    }
}

impl Pinger for Opening {
    fn exchange(&mut self, n: u64) -> Result<()> {
        let Some(session) = &self.session else {
            Session::builder("bench").socket(&self.socket).open()?.close();
            return Ok(());
        };
        let stream = session.stream_named(&format!("stream-{n}"), Qos::default())?;
        let sources: Result<Vec<_>, _> = (0..1000).map(|i| stream.source(format!("channel-{i}").as_str())).collect();
        drop(sources?);
        Ok(())
    }
}

/// Where in which file the memory at an address lies: device and inode, and the offset, as 24 bytes. Two processes that find
/// the same have the same bytes before them.
pub(crate) fn place_of(at: *const u8) -> Result<[u8; 24]> {
    let address = at as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, _, offset, device, inode, ..] = words[..] else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let hex = |text: &str| u64::from_str_radix(text, 16).context("/proc/self/maps");
        let (from, to) = (hex(from)?, hex(to)?);
        if (from..to).contains(&address) {
            let (major, minor) = device.split_once(':').unwrap_or((device, "0"));
            let mut place = [0; 24];
            place[..8].copy_from_slice(&(hex(major)? << 32 | hex(minor)?).to_le_bytes());
            place[8..16].copy_from_slice(&inode.parse::<u64>()?.to_le_bytes());
            place[16..].copy_from_slice(&(hex(offset)? + address - from).to_le_bytes());
            return Ok(place);
        }
    }
    bail!("nothing is mapped at {at:p}")
}
