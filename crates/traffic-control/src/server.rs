//! The server on its channels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use insane::{Qos, Reliability, Session, Sink, SinkOptions, Source, SourceOptions, Wait};

use crate::bearers::Bearers;
use crate::desk::{Desk, DeskCounts, MAX_SUBSCRIPTIONS};
use crate::{MAX_MESSAGE_BYTES, now_ns, random};

/// Requests done in one turn at most; then indications that are due have theirs.
const BURST: usize = 16;
/// How long [`Control::serve`] waits before it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// What buffers are ready for from the beginning. Larger messages are possible.
const MESSAGE_BYTES: usize = 8 * 1024;

/// Where a server listens, and how it waits.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// The channels are below this name.
    pub prefix: String,
    /// How [`Control::serve`] waits for requests.
    pub wait: Wait,
}

impl ControlOptions {
    /// A server below `prefix` that spins for a short while and then sleeps.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), wait: Wait::Adaptive }
    }
}

/// The stream of requests: each arrives, or its client is told.
pub(crate) fn reliable() -> Qos {
    Qos { reliability: Reliability::Reliable.into(), ..Qos::default() }
}

/// A server. One thread at a time uses it, and that is not the thread that moves packets: see [`Bearers`].
#[derive(Debug)]
pub struct Control {
    desk: Desk,
    requests: Sink,
    replies: Source,
    indications: Vec<Source>,
    /// Replies for which there was no memory.
    lost: u64,
}

impl Control {
    /// Opens the channels. Blocks for the answers of the runtime.
    ///
    /// # Errors
    /// As the opening of streams, sources and sinks.
    pub fn open(session: &Session, options: &ControlOptions) -> insane::Result<Self> {
        let best_effort = session.stream(Qos::default())?;
        let source = |channel: &str| {
            let options = SourceOptions { message_bytes: MESSAGE_BYTES, ..SourceOptions::default() };
            best_effort.source_with(channel, options)
        };
        let prefix = &options.prefix;
        let replies = source(&format!("{prefix}/reply"))?;
        let indications = (0..MAX_SUBSCRIPTIONS).map(|n| source(&format!("{prefix}/indication/{n}")));
        let indications = indications.collect::<insane::Result<_>>()?;
        // Last: whoever finds it finds everything.
        let wait = SinkOptions { wait: options.wait, ..SinkOptions::default() };
        let requests = session.stream(reliable())?.sink_with(format!("{prefix}/request").as_str(), wait)?;
        Ok(Self { desk: Desk::new(random(), now_ns), requests, replies, indications, lost: 0 })
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> DeskCounts {
        self.desk.counts()
    }

    /// Replies that could not be sent because no memory was free.
    #[must_use]
    pub const fn lost_replies(&self) -> u64 {
        self.lost
    }

    /// How many subscriptions there are.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.desk.subscriptions()
    }

    /// Does what is there to be done: at most 16 requests, and the indications that are due. Waits for nobody but `bearers`.
    /// Returns how many requests there were.
    ///
    /// # Errors
    /// The session is closed, or forked.
    pub fn turn(&mut self, bearers: &mut impl Bearers) -> insane::Result<usize> {
        let mut count = 0;
        while count < BURST {
            let Some(message) = self.requests.try_consume()? else { break };
            let bytes = bytes(&message);
            drop(message);
            self.lost += u64::from(!answer(&mut self.desk, &self.replies, &bytes, bearers));
            count += 1;
        }
        self.indicate(bearers);
        Ok(count)
    }

    fn indicate(&mut self, bearers: &mut impl Bearers) {
        let channels = &self.indications;
        self.desk.turn(bearers, |channel, bytes| {
            channels.get(channel).is_some_and(|source| matches!(source.try_send(bytes), Ok(Some(_))))
        });
    }

    /// Serves until `stop` is set, which is seen within a tenth of a second. Blocks, and waits as the options say.
    ///
    /// # Errors
    /// The session is closed, or forked.
    pub fn serve(&mut self, bearers: &mut impl Bearers, stop: &AtomicBool) -> insane::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if self.turn(bearers)? == BURST {
                continue;
            }
            let due = self.desk.due_ns().map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
            match self.requests.consume_timeout(due.unwrap_or(LOOK).min(LOOK)) {
                Ok(message) => {
                    let bytes = bytes(&message);
                    drop(message);
                    self.lost += u64::from(!answer(&mut self.desk, &self.replies, &bytes, bearers));
                }
                Err(e) if e.code() == insane::Code::Timeout => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// A copy of the message, each byte read once; one that is too long is as good as none.
pub(crate) fn bytes(message: &insane::RawMessage) -> Vec<u8> {
    if message.len() > MAX_MESSAGE_BYTES { vec![0] } else { message.to_vec() }
}

/// Answers a request; false if there was no memory for the reply.
fn answer(desk: &mut Desk, replies: &Source, request: &[u8], bearers: &mut impl Bearers) -> bool {
    // Best effort: a client that does not read its replies loses them alone.
    desk.request(request, bearers).is_none_or(|reply| replies.send(&reply).is_ok())
}
