//! `insane capture`: what goes through a datapath of the runtime, as a pcapng file.

use crate::beside::{PATIENCE, ask, parse_kind, wait};
use crate::common::{Context, Failure, Outcome, Progress, human, interrupted, is_set};
use insane::Code;
use insane_arguments::{seconds, whole};
use insane_datapath::pcapng;
use insane_runtime::config::Kind;
use insane_wire::control::{self, to_client, to_runtime};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How often it is looked whether the capture is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Capture what goes through a datapath of the runtime, for Wireshark. It shows the messages of all domains, so only root and
/// the runtime's own user may. It ends when interrupted, after --count or after --seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Capture {
    /// The datapath: udp, xdp, dpdk or plugin.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    datapath: Kind,
    /// The file to write, which must not exist yet; `-` for standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: PathBuf,
    /// End after so many frames.
    #[arg(long, value_parser = whole(1, u64::MAX))]
    count: Option<u64>,
    /// End after so long, in seconds.
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
}

/// What has been written.
#[derive(Debug, Default)]
struct Written {
    frames: u64,
    bytes: u64,
    /// From the statistics at the end; `None` until they came.
    dropped: Option<u64>,
}

/// A file that is removed again if nothing came of it.
struct Output<'a> {
    file: Box<dyn Write>,
    made: Option<&'a Path>,
}

impl<'a> Output<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self { file: Box::new(std::io::stdout()), made: None });
        }
        // It holds what others say to each other: for its owner alone.
        let file: Result<File, _> = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let refuse = |e: std::io::Error| {
            let why = match e.kind() {
                std::io::ErrorKind::AlreadyExists => "it exists already, and is not written over".to_owned(),
                _ => format!("it cannot be written: {e}"),
            };
            Failure::usage(format!("--write <FILE> is '{}': {why}", path.display()))
        };
        Ok(Self { file: Box::new(file.map_err(refuse)?), made: Some(path) })
    }

    fn take_back(&self) {
        if let Some(path) = self.made {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Capture {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        let to_standard_output = self.file.as_os_str() == "-";
        if to_standard_output && context.json {
            return Err(Failure::usage(
                "--write <FILE> is '-': with --json standard output has the summary, name a file",
            ));
        }
        let interrupt = interrupted()?;
        // A capture needs none, but with one `insane status` shows who captures.
        let _session = context.session("insane capture")?;
        let (_, connection) = insane::connect_first(context.socket.as_deref())?;
        let mut output = Output::create(&self.file)?;
        let stream = self.begin(&connection).inspect_err(|_| output.take_back())?;
        let (start, mut written) = (Instant::now(), Written::default());
        let ended = self.take(&stream, &mut *output.file, &mut written, &interrupt);
        output.file.flush()?;
        let seconds = start.elapsed().as_secs_f64();
        ended?;
        let dropped = written.dropped.ok_or_else(|| Failure {
            number: Code::RuntimeLost.number(),
            text: format!("the runtime ended; {} frames until then are written", written.frames),
            usage: false,
        })?;
        if context.json {
            say!(
                "{}",
                serde_json::json!({
                    "datapath": self.datapath.name(), "file": self.file.display().to_string(), "frames": written.frames,
                    "bytes": written.bytes, "dropped": dropped, "seconds": seconds,
                })
            );
            return Ok(());
        }
        let missing = match dropped {
            0 => "none missing".to_owned(),
            n => format!("{n} missing that could not be written away fast enough"),
        };
        let (frames, bytes, file) = (written.frames, human(written.bytes as f64), self.file.display());
        let text = format!("{frames} frames in {seconds:.1} s, {bytes}B in {file}; {missing}");
        if to_standard_output {
            eprintln!("{text}");
        } else {
            say!("{text}");
        }
        Ok(())
    }

    /// Asks the runtime: the socket by which the capture comes.
    fn begin(&self, connection: &OwnedFd) -> Result<OwnedFd, Failure> {
        let flags = SocketFlags::CLOEXEC;
        let (mine, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(std::io::Error::from)?;
        let wanted = control::Capture { datapath: self.datapath.name().to_owned() };
        let answer = ask(connection, to_runtime::Body::Capture(wanted), &[theirs.as_fd()], "capture")?;
        // With the runtime's end the stream ends.
        drop(theirs);
        match answer {
            to_client::Body::Done(_) => Ok(mine),
            _ => Err(insane::Error::from(Code::Protocol).into()),
        }
    }

    /// Writes what comes, until it has ended.
    fn take(&self, stream: &OwnedFd, file: &mut dyn Write, written: &mut Written, interrupt: &AtomicBool) -> Outcome {
        let start = Instant::now();
        let (mut progress, mut ending, mut rest) = (Progress::new(), None::<Instant>, Vec::new());
        let mut buffer = vec![0; 256 << 10];
        loop {
            let full = self.count.is_some_and(|count| written.frames >= count);
            let over = full || is_set(interrupt) || self.seconds.is_some_and(|limit| start.elapsed() >= limit);
            if over && ending.is_none() {
                ending = Some(Instant::now());
                let _ = rustix::net::shutdown(stream, Shutdown::Write);
            }
            // A reader that is slow has the rest wait: it is lost only if nothing comes any more.
            if ending.is_some_and(|since| since.elapsed() > PATIENCE) {
                progress.end();
                let text = format!("the capture's end did not come; {} frames until then are written", written.frames);
                return Err(Failure { number: Code::Timeout.number(), text, usage: false });
            }
            wait(stream.as_fd(), LOOK);
            match rustix::net::recv(stream, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => break,
                Ok((count, _)) => {
                    rest.extend_from_slice(&buffer[..count]);
                    let used = self.write(&rest, file, written)?;
                    // Who reads along sees it now.
                    file.flush()?;
                    ending = ending.map(|_| Instant::now());
                    rest.drain(..used);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => break,
            }
            progress.show(|| format!("{} frames, {}B", written.frames, human(written.bytes as f64)));
        }
        progress.end();
        Ok(())
    }

    /// Writes the blocks that are all there; says how many bytes they have.
    fn write(&self, bytes: &[u8], file: &mut dyn Write, written: &mut Written) -> Result<usize, Failure> {
        let mut used = 0;
        let broken = |e: pcapng::NoBlock| insane::Error::new(Code::Protocol, e.to_string());
        while let Some((kind, block)) = pcapng::block(&bytes[used..]).map_err(broken)? {
            used += block.len();
            if kind == pcapng::PACKET {
                if self.count.is_some_and(|count| written.frames >= count) {
                    continue;
                }
                written.frames += 1;
            }
            if kind == pcapng::STATISTICS {
                written.dropped = pcapng::dropped(block);
            }
            written.bytes += block.len() as u64;
            file.write_all(block)?;
        }
        Ok(used)
    }
}
