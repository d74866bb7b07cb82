//! Captures of datapaths: who may have one, and the thread that sends it to who has asked for it. That thread may wait for its
//! reader; the datapath's never does (`insane_datapath::tap`).

use crate::core::{Credentials, NO_NETWORK};
use crate::network::Network;
use insane_datapath::tap::Capture;
use insane_wire::control;
use insane_wire::error::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::time::{Duration, Instant};

/// What may wait for the reader, in bytes: a tenth of a second at 2 Gbit/s.
const MOST_WAITING: usize = 32 << 20;

/// How often the thread looks whether its reader wants more.
const LOOK: Duration = Duration::from_millis(50);

/// Who takes nothing for so long is given nothing more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no capture.
type Refusal = (Code, String);

/// Begins a capture as a client has asked, on a thread of its own that ends with it.
///
/// # Errors
/// Why not, for the client.
pub(crate) fn begin(
    wanted: &control::Capture,
    fds: Vec<OwnedFd>,
    who: Credentials,
    network: Option<&Network>,
) -> Result<(), Refusal> {
    // It sees the messages of all domains.
    if !who.is_operator() {
        let text = "a capture shows the messages of all domains: only root and the runtime's own user may have it";
        return Err((Code::NotPermitted, text.into()));
    }
    let network = network.ok_or_else(|| (Code::NotFound, NO_NETWORK.to_owned()))?;
    // What goes over TCP is captured with what goes besides: by the device that both leave by.
    let of = wanted.datapath.strip_suffix("+tcp").unwrap_or(&wanted.datapath);
    let Some((tap, state)) = network.tap(of) else {
        let there: Vec<String> = network.datapaths().iter().map(ToString::to_string).collect();
        return Err((Code::NotFound, format!("no datapath `{}` is open here: {}", wanted.datapath, there.join("; "))));
    };
    let Ok([reader]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err((Code::InvalidArgument, "a capture takes one descriptor, a stream socket".into()));
    };
    let process =
        who.pid.map_or_else(|| "a process of another PID namespace".to_owned(), |pid| format!("process {pid}"));
    let by = format!("{process} of user {}", who.uid);
    let capture =
        tap.start(MOST_WAITING, by).map_err(|e| (Code::QuotaExceeded, format!("{}: {e}", wanted.datapath)))?;
    let name = if state.interface.is_empty() { state.via.name() } else { state.interface.as_str() };
    let description = format!("{} at {}", state.via.name(), state.address);
    let header = capture.header(concat!("insaned ", env!("CARGO_PKG_VERSION")), name, &description);
    let thread = std::thread::Builder::new().name("insane-capture".into());
    let started = thread.spawn(move || serve(&capture, &reader, &header));
    started.map(drop).map_err(|e| (Code::System, format!("a thread for the capture: {e}")))
}

/// Sends a capture to its reader, until that has enough or the datapath is gone.
fn serve(capture: &Capture, reader: &OwnedFd, header: &[u8]) {
    let reader = reader.as_fd();
    if !give(reader, header) {
        return;
    }
    // What was captured before the end is still sent.
    while let Ok(blocks) = capture.next(LOOK) {
        if blocks.is_some_and(|blocks| !give(reader, &blocks)) {
            return;
        }
        if has_enough(reader) {
            capture.stop();
        }
    }
    give(reader, &capture.trailer());
    tracing::info!(counts = ?capture.counts(), "capture ended");
}

/// Whether the reader has shut its end for writing, or is gone.
fn has_enough(reader: BorrowedFd<'_>) -> bool {
    let mut byte = [0; 1];
    !matches!(recv(reader, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK), Err(Errno::AGAIN | Errno::INTR))
}

/// Sends all of some bytes; whether the reader took them.
fn give(reader: BorrowedFd<'_>, mut bytes: &[u8]) -> bool {
    let mut since = Instant::now();
    while !bytes.is_empty() {
        match send(reader, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => {
                bytes = bytes.get(sent..).unwrap_or(&[]);
                since = Instant::now();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if since.elapsed() < PATIENCE => {
                let look = Timespec::try_from(LOOK).ok();
                let _ = poll(&mut [PollFd::from_borrowed_fd(reader, PollFlags::OUT)], look.as_ref());
            }
            Err(e) => {
                tracing::info!(error = %e, "a capture's reader takes no more");
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_runtimes_own_user_may_capture() {
        let own = rustix::process::getuid().as_raw();
        let code = |uid| {
            let wanted = control::Capture { datapath: "udp".into() };
            begin(&wanted, Vec::new(), Credentials { pid: Some(1), uid, gid: 0 }, None).map_err(|(code, _)| code)
        };
        // The others get further: there is no network.
        assert_eq!([0, own].map(code), [Err(Code::NotFound); 2]);
        assert_eq!([own + 1, 65_534].map(code), [Err(Code::NotPermitted); 2]);
    }
}
