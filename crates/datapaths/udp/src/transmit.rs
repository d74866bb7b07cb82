//! Sending: frames become messages of equal segments, messages become one system call.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use insane_datapath::batch::{Outcome, TxBatch, TxFrame, TxReport};
use insane_datapath::{Address, Datapath};
use rustix::io::Errno;

use crate::UdpDatapath;
use crate::sys::{MAX_PIECES, Messages, Role};

/// The most segments of a message: the kernel's limit on all versions that can segment.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// The most bytes of a message of segments: with the headers of IPv6 it must stay under 64 KiB.
pub(crate) const MAX_SEGMENTED: usize = 65_400;

/// A frame is filled up with at most this part of its neighbours' size.
const MOST_PADDING: usize = 4;

/// What frames are filled up with.
static ZEROS: [u8; MAX_SEGMENTED / MOST_PADDING] = [0; MAX_SEGMENTED / MOST_PADDING];

/// What to do after a refusal.
enum Next {
    /// Nothing can be sent now.
    Stop,
    /// The first message's frames have their outcome; go on after it.
    GoOn(Outcome),
    /// Some messages went; go on.
    Sent,
    /// Try the same again: the way of sending was changed.
    Again,
    /// Try the same again without the line, which is given up.
    WithoutLine,
}

impl UdpDatapath {
    pub(crate) fn send_batch(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        let mut report = TxReport::default();
        // Refusals that only change how it is sent can follow each other a few times at most.
        let mut changes = 0;
        while !batch.is_done() {
            if self.socket.is_none() {
                report.refused += self.refuse(batch, usize::MAX, Outcome::Failed);
                break;
            }
            if let Some(outcome) = self.fill(batch) {
                report.refused += self.refuse(batch, 1, outcome);
                continue;
            }
            match self.send_filled(batch, &mut report) {
                Next::Stop => break,
                Next::Sent | Next::WithoutLine => {}
                Next::GoOn(outcome) => {
                    let count = self.concerned(batch, outcome);
                    report.refused += self.refuse(batch, count, outcome);
                }
                Next::Again if changes < 4 => changes += 1,
                Next::Again => report.refused += self.refuse(batch, self.first_run(), Outcome::Failed),
            }
        }
        report.pending = batch.pending().len();
        report
    }

    fn first_run(&self) -> usize {
        self.runs.first().copied().unwrap_or(1)
    }

    /// How many frames of the first message a refusal is about: the last may be short enough for a path that the others are
    /// too large for.
    fn concerned(&mut self, batch: &TxBatch<'_>, outcome: Outcome) -> usize {
        let run = self.first_run();
        let Some(first) = batch.pending().first().filter(|_| outcome == Outcome::TooLarge) else { return run };
        let limit = self.frame_limit(first.to);
        batch.pending().iter().take(run).take_while(|frame| frame.len() > limit).count().max(1)
    }

    fn refuse(&mut self, batch: &mut TxBatch<'_>, count: usize, outcome: Outcome) -> usize {
        let count = count.min(batch.pending().len());
        batch.settle(count, outcome);
        self.stats.refused_frames += count as u64;
        count
    }

    /// Makes messages of the pending frames, as many as one call takes: those to the first one's peer if it has a line. If
    /// the very first frame cannot be sent at all, says so instead.
    fn fill(&mut self, batch: &TxBatch<'_>) -> Option<Outcome> {
        self.out.clear();
        self.runs.clear();
        self.line = None;
        let mut rest = batch.pending();
        let peer = rest.first().map(|first| first.to);
        while let Some(first) = rest.first() {
            let to = match self.check(first) {
                Ok(to) => to,
                Err(outcome) if self.runs.is_empty() => return Some(outcome),
                Err(_) => break,
            };
            if self.runs.is_empty() {
                self.line = self.lines.find(to, &self.config);
            } else if self.line.is_some() && peer != Some(first.to) {
                break;
            }
            let room = self.out.room();
            if room < 3 {
                break;
            }
            let run = self.run_length(rest, room / 3);
            add_message(&mut self.out, batch, &rest[..run], self.line.is_none().then_some(&to));
            self.runs.push(run);
            rest = &rest[run..];
        }
        None
    }

    fn check(&self, frame: &TxFrame<'_>) -> Result<SocketAddr, Outcome> {
        match frame.to {
            Address::Ip(to) if to.is_ipv4() == self.config.bind.is_ipv4() => {
                if frame.len() > self.family_limit().0 {
                    Err(Outcome::TooLarge)
                } else {
                    Ok(to)
                }
            }
            _ => Err(Outcome::Unreachable),
        }
    }

    /// How many frames from the first on can be segments of one message: all to one address and of one length, the last
    /// perhaps shorter.
    fn run_length(&self, frames: &[TxFrame<'_>], most: usize) -> usize {
        let Some(first) = frames.first() else { return 0 };
        let size = first.len();
        if !self.segmentation || size == 0 {
            return 1;
        }
        let follows = |at: usize| frames.get(at).is_some_and(|next| next.to == first.to && next.len() <= size);
        let most = most.min(self.capabilities().joined(size));
        let mut run = 1;
        for (at, frame) in frames.iter().enumerate().take(most).skip(1) {
            if frame.to != first.to || frame.len() > size || frame.is_empty() {
                break;
            }
            run += 1;
            let short = size - frame.len();
            if short > 0 && !(frame.may_pad && short <= size / MOST_PADDING && follows(at + 1)) {
                break;
            }
        }
        run
    }

    fn send_filled(&mut self, batch: &mut TxBatch<'_>, report: &mut TxReport) -> Next {
        let line = self.line.and_then(|line| self.lines.socket(line));
        let Some(socket) = line.or(self.socket.as_ref().map(AsFd::as_fd)) else { return Next::Stop };
        self.stats.calls += 1;
        match self.out.send(socket, 0) {
            Ok(messages) => {
                let frames: usize = self.runs.iter().take(messages).sum();
                let bytes: usize = batch.pending().iter().take(frames).map(TxFrame::len).sum();
                batch.settle(frames, Outcome::Sent);
                self.stats.sent_frames += frames as u64;
                self.stats.sent_bytes += bytes as u64;
                report.sent += frames;
                // If some did not go, the next call says why.
                if messages > 0 { Next::Sent } else { Next::Again }
            }
            Err(e) => self.judge(&e, batch),
        }
    }

    /// What the refusal of the first message means.
    fn judge(&mut self, error: &io::Error, batch: &TxBatch<'_>) -> Next {
        let Some(first) = batch.pending().first() else { return Next::Stop };
        let (to, len, joined) = (first.to, first.len(), self.first_run() > 1);
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                self.stats.busy += 1;
                Next::Stop
            }
            Some(Errno::INTR) => Next::Again,
            // Of the frame's own size both sockets say the same; of all else the line may know less than the routes do.
            error if error != Some(Errno::MSGSIZE) && self.line.is_some() => {
                self.line.take().into_iter().for_each(|line| self.lines.give_up(line));
                Next::WithoutLine
            }
            Some(Errno::MSGSIZE | Errno::INVAL) if len > self.frame_limit(to) => Next::GoOn(Outcome::TooLarge),
            Some(Errno::MSGSIZE) if !joined => Next::GoOn(Outcome::TooLarge),
            // The kernel or the device cannot cut segments on this path.
            Some(e @ (Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP)) if joined => {
                self.segmentation = false;
                self.notes.push(format!("frames are sent one by one: UDP_SEGMENT: {e}"));
                Next::Again
            }
            // An answer of the network to something that was sent earlier; this frame was not tried.
            Some(Errno::CONNREFUSED) => Next::Again,
            Some(
                Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::NETDOWN
                | Errno::ADDRNOTAVAIL
                | Errno::PERM
                | Errno::ACCESS
                | Errno::NODEV,
            ) => Next::GoOn(Outcome::Unreachable),
            _ => Next::GoOn(Outcome::Failed),
        }
    }
}

fn add_message(out: &mut Messages, batch: &TxBatch<'_>, run: &[TxFrame<'_>], to: Option<&SocketAddr>) {
    let first = out.pieces();
    debug_assert!(run.len() * 3 <= MAX_PIECES - first);
    let size = run.first().map_or(0, TxFrame::len);
    for (n, frame) in run.iter().enumerate() {
        let head = batch.head(frame);
        out.piece(head.as_ptr(), head.len(), out.pieces() == first);
        if let Some(piece) = frame.piece.filter(|piece| !piece.is_empty()) {
            out.piece(piece.base().as_ptr(), piece.len(), false);
        }
        let short = size.saturating_sub(frame.len()).min(ZEROS.len());
        if short > 0 && n + 1 < run.len() {
            out.piece(ZEROS.as_ptr(), short, false);
        }
    }
    let segment = if run.len() > 1 { run.first().and_then(|frame| u16::try_from(frame.len()).ok()) } else { None };
    out.push(first, Role::Send { to, segment });
}
