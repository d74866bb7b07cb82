//! What is asked of the runtime beside a session: by an operator, of the runtime itself.

use crate::common::Failure;
use insane::Code;
use insane_runtime::config::Kind;
use insane_shm::socket::{Received, receive, send};
use insane_wire::control::{ToClient, ToRuntime, to_client, to_runtime};
use insane_wire::{MAX_CONTROL_BYTES, decode, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How long the runtime may take to answer, and to end what it was asked for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Reads the name of a kind of datapath.
pub(crate) fn parse_kind(text: &str) -> Result<Kind, String> {
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    Kind::of(text).ok_or_else(|| format!("it takes {}", names.join(" or ")))
}

/// Asks the runtime, and waits for its answer. `what` it is to do, for people.
pub(crate) fn ask(
    connection: &OwnedFd,
    body: to_runtime::Body,
    fds: &[BorrowedFd<'_>],
    what: &str,
) -> Result<to_client::Body, Failure> {
    let lost = || Failure {
        number: Code::RuntimeLost.number(),
        text: insane::Error::from(Code::RuntimeLost).to_string(),
        usage: false,
    };
    let message = ToRuntime { request: 1, body: Some(body) };
    send(connection.as_fd(), &encode(&message), fds).map_err(|_| lost())?;
    wait(connection.as_fd(), PATIENCE);
    let answer = match receive(connection.as_fd(), MAX_CONTROL_BYTES) {
        Ok(Received::Message(bytes, _)) => decode::<ToClient>(&bytes).ok().and_then(|answer| answer.body),
        _ => return Err(lost()),
    };
    match answer {
        Some(to_client::Body::Refused(refused)) => {
            // A runtime of an earlier release does not know the request, and takes it for a missing hello.
            let code = Code::from_number(refused.code).unwrap_or(Code::Protocol);
            let older = || format!("this runtime cannot {what}: it is older");
            let text = if code == Code::Protocol { older() } else { refused.text };
            Err(insane::Error::new(code, text).into())
        }
        Some(body) => Ok(body),
        None => Err(insane::Error::from(Code::Protocol).into()),
    }
}

/// Waits until there is something to read, or for so long.
pub(crate) fn wait(fd: BorrowedFd<'_>, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], limit.as_ref());
}
