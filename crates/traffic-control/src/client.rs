//! The client: requests and their replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use insane::{Session, Sink, SinkOptions, Source, SourceOptions, Stream, Wait, WhenFull};
use insane_traffic::PipelineSpec;
use insane_traffic::spec::Change;
use prost::Message;

use crate::bearers::{BearerState, Refusal};
use crate::messages::{self, BearerId, Outcome, Request, StageChange, request::Body};
use crate::replies::{BearerMessage, Reply, reply};
use crate::server::{bytes, reliable};
use crate::subscription::Subscription;
use crate::value::Value;
use crate::{MAX_MESSAGE_BYTES, VERSION, now_ns, random};

/// How long a reply is waited for before the request is sent again.
const AGAIN: Duration = Duration::from_millis(250);
/// Replies to requests that nobody waits for which are kept.
const KEPT: usize = 32;

/// Why a call of the client failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves this prefix.
    #[error("nobody serves traffic control on `{0}` in this domain")]
    NoServer(String),
    /// No reply, or no indication, in time. Whether the request was done is not known.
    #[error("no answer within the time allowed")]
    Timeout,
    /// The server refused, and nothing was changed.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] insane::Error),
    /// The server said what cannot be.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
}

/// What a client is to know.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The prefix of the server's channels.
    pub prefix: String,
    /// How long a call waits for the server and for its reply.
    pub timeout: Duration,
    /// How replies and indications are waited for.
    pub wait: Wait,
}

impl ClientOptions {
    /// A client of the server below `prefix` that waits two seconds at most.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), timeout: Duration::from_secs(2), wait: Wait::Adaptive }
    }
}

/// The way of a request, in nanoseconds of the host's CLOCK_MONOTONIC. Only on one host these can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// When it was sent; the last time, if it was sent again.
    pub sent_ns: u64,
    /// When the server took it.
    pub taken_ns: u64,
    /// When what it asks for was done.
    pub done_ns: u64,
    /// When the reply was here.
    pub received_ns: u64,
}

/// A client of one server. Clones share it; calls from several threads wait for each other.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    options: ClientOptions,
    client: u64,
    number: u64,
    best_effort: Stream,
    requests: Source,
    replies: Sink,
    /// Replies that came while others were waited for.
    kept: VecDeque<Reply>,
    timing: Timing,
}

impl Client {
    /// Opens the channels of the server below a prefix. Blocks for the answers of the runtime; the server need not be there
    /// yet.
    ///
    /// # Errors
    /// As the opening of streams, sources and sinks.
    pub fn open(session: &Session, options: &ClientOptions) -> Result<Self, ClientError> {
        let best_effort = session.stream(insane::Qos::default())?;
        let wait = SinkOptions { wait: options.wait, ..SinkOptions::default() };
        let replies = best_effort.sink_with(format!("{}/reply", options.prefix).as_str(), wait)?;
        let source = SourceOptions {
            message_bytes: 4_096,
            deadline: options.timeout,
            when_full: WhenFull::Fail,
            wait: options.wait,
            ..SourceOptions::default()
        };
        let channel = format!("{}/request", options.prefix);
        let requests = session.stream(reliable())?.source_with(channel.as_str(), source)?;
        let (options, kept) = (options.clone(), VecDeque::new());
        let client = random();
        let inner =
            Inner { options, client, number: 0, best_effort, requests, replies, kept, timing: Timing::default() };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panic left is a request that nobody waits for.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way of the last request that was answered.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.lock().timing
    }

    /// The bearers that there are.
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn list(&self) -> Result<Vec<BearerId>, ClientError> {
        match self.lock().ask(Body::List(messages::List {}))? {
            Some(reply::Body::Bearers(bearers)) => Ok(bearers.bearers),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// A pipeline and its state.
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn show(&self, bearer: BearerId) -> Result<(PipelineSpec, BearerState), ClientError> {
        match self.lock().ask(Body::Show(messages::Show { bearer: Some(bearer) }))? {
            Some(reply::Body::Shown(shown)) => {
                let (Some(pipeline), Some(state)) = (shown.pipeline, shown.state) else {
                    return Err(ClientError::Protocol("a part of the pipeline is missing".into()));
                };
                Ok((pipeline.read().map_err(protocol)?, read_state(state)?))
            }
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Changes stages, all or none; if a generation is given, only that pipeline's. Returns the new generation.
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn change(&self, bearer: BearerId, changes: &[Change], generation: Option<u64>) -> Result<u64, ClientError> {
        let changes = changes.iter().map(StageChange::from_change).collect::<Result<_, _>>().map_err(protocol)?;
        self.change_stages(bearer, changes, generation)
    }

    /// As [`Self::change`], with what a person or another program wrote: the server says what is wrong with it.
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn change_stages(
        &self,
        bearer: BearerId,
        changes: Vec<StageChange>,
        generation: Option<u64>,
    ) -> Result<u64, ClientError> {
        self.changed(Body::Change(messages::Change { bearer: Some(bearer), changes, generation }))
    }

    /// Puts a whole pipeline in the place of the one that is there. Packets of queues that it does not have go to queue 0, or
    /// are dropped. Returns the new generation.
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn load(
        &self,
        bearer: BearerId,
        pipeline: &PipelineSpec,
        drop_packets: bool,
        generation: Option<u64>,
    ) -> Result<u64, ClientError> {
        let pipeline = Some(Value::of(pipeline).map_err(protocol)?);
        self.changed(Body::Load(messages::Load { bearer: Some(bearer), pipeline, drop_packets, generation }))
    }

    fn changed(&self, body: Body) -> Result<u64, ClientError> {
        match self.lock().ask(body)? {
            Some(reply::Body::Changed(changed)) => Ok(changed.generation),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Asks for indications of these bearers, of all without any, one each `period`. The subscription ends `lease` after this
    /// process stopped to call [`Subscription::next`].
    ///
    /// # Errors
    /// As every call: [`ClientError`].
    pub fn subscribe(
        &self,
        bearers: &[BearerId],
        period: Duration,
        lease: Duration,
    ) -> Result<Subscription, ClientError> {
        Subscription::open(self.clone(), bearers.to_vec(), period, lease)
    }
}

impl Inner {
    /// Asks, and waits for the reply. A request whose reply is long in coming is sent again.
    pub(crate) fn ask(&mut self, body: Body) -> Result<Option<reply::Body>, ClientError> {
        let began = Instant::now();
        let timeout = self.options.timeout;
        if self.requests.wait_for_sinks(1, timeout) == 0 {
            return Err(ClientError::NoServer(self.options.prefix.clone()));
        }
        self.number += 1;
        let mut request =
            Request { version: VERSION, client: self.client, number: self.number, sent_ns: 0, body: Some(body) };
        // What was posted and came late is of no use any more.
        let reply = loop {
            self.send(&mut request)?;
            let left = timeout.saturating_sub(began.elapsed());
            match self.reply(self.number, left.min(AGAIN)) {
                Err(ClientError::Timeout) if left > AGAIN => {}
                other => break other?,
            }
        };
        self.timing =
            Timing { sent_ns: reply.sent_ns, taken_ns: reply.taken_ns, done_ns: reply.done_ns, received_ns: now_ns() };
        body_of(reply)
    }

    /// Sends a request for whose reply nobody waits now; its number. `None` if nobody serves now.
    pub(crate) fn post(&mut self, body: Body) -> Result<Option<u64>, ClientError> {
        if self.requests.sinks() == 0 {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        let mut request = Request { version: VERSION, client: self.client, number, sent_ns: 0, body: Some(body) };
        self.send(&mut request)?;
        Ok(Some(number))
    }

    fn send(&mut self, request: &mut Request) -> Result<(), ClientError> {
        // Said last, so that making the message is no part of its way.
        request.sent_ns = 0;
        let mut bytes = request.encode_to_vec();
        if bytes.len() + 16 > MAX_MESSAGE_BYTES {
            let text = format!("the request is {} bytes long, more than {MAX_MESSAGE_BYTES}", bytes.len());
            return Err(Refusal::new(Outcome::TooMany, text).into());
        }
        Request { sent_ns: now_ns(), ..Request::default() }.encode(&mut bytes).map_err(protocol)?;
        self.requests.send(&bytes)?;
        Ok(())
    }

    /// The reply to a request, if it is there within the time.
    pub(crate) fn reply(&mut self, number: u64, timeout: Duration) -> Result<Reply, ClientError> {
        if let Some(at) = self.kept.iter().position(|r| r.number == number) {
            return self.kept.remove(at).ok_or(ClientError::Timeout);
        }
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let message = match self.replies.consume_timeout(left) {
                Ok(message) => message,
                Err(e) if e.code() == insane::Code::Timeout => return Err(ClientError::Timeout),
                Err(e) => return Err(e.into()),
            };
            let bytes = bytes(&message);
            drop(message);
            // What cannot be read may be of a newer server to a newer client.
            let Ok(reply) = Reply::decode(&bytes[..]) else { continue };
            if reply.client != self.client {
                continue;
            }
            if reply.number == number {
                return Ok(reply);
            }
            self.kept.truncate(KEPT - 1);
            self.kept.push_front(reply);
        }
    }

    /// A sink of the indications of a place.
    pub(crate) fn indications(&self, channel: u32) -> Result<Sink, ClientError> {
        let wait = SinkOptions { wait: self.options.wait, ..SinkOptions::default() };
        let channel = format!("{}/indication/{channel}", self.options.prefix);
        Ok(self.best_effort.sink_with(channel.as_str(), wait)?)
    }
}

/// What a reply brings.
pub(crate) fn body_of(reply: Reply) -> Result<Option<reply::Body>, ClientError> {
    match Outcome::try_from(reply.outcome) {
        Ok(Outcome::Done) if reply.version == VERSION => Ok(reply.body),
        Ok(Outcome::Done) => Err(ClientError::Protocol(format!("version {}", reply.version))),
        Ok(outcome) => Err(Refusal::new(outcome, reply.reason).into()),
        Err(_) => Err(Refusal::new(Outcome::Unsupported, reply.reason).into()),
    }
}

pub(crate) fn protocol(error: impl std::fmt::Display) -> ClientError {
    ClientError::Protocol(error.to_string())
}

pub(crate) fn unexpected(body: Option<&reply::Body>) -> ClientError {
    let what = if body.is_some() { "an answer to something else" } else { "an answer without its content" };
    ClientError::Protocol(what.into())
}

/// Reads what a message says of a bearer.
pub(crate) fn read_state(message: BearerMessage) -> Result<BearerState, ClientError> {
    let (Some(bearer), Some(pipeline)) = (message.bearer, message.pipeline) else {
        return Err(protocol("a bearer's state is incomplete"));
    };
    Ok(BearerState {
        bearer,
        time_ns: message.time_ns,
        pipeline: pipeline.read().map_err(protocol)?,
        left_out: message.left_out,
        rlc: message.rlc.unwrap_or_default(),
        uplink_rlc: message.uplink_rlc.unwrap_or_default(),
    })
}
