//! The server's state machine: requests in, replies and indications out. No channel, clock or thread; see
//! [`crate::Control`] for these.

use std::collections::VecDeque;

use prost::Message;

use crate::bearers::{BearerState, Bearers, Edit, Refusal};
use crate::edit;
use crate::messages::{self, BearerId, Outcome, Request, Subscribe, request::Body};
use crate::replies::{self, BearerMessage, Changed, Indication, Reply, Shown, Subscribed, reply};
use crate::value::Value;
use crate::{MAX_MESSAGE_BYTES, VERSION};

/// Subscriptions at most; each has an indication channel of its own.
pub const MAX_SUBSCRIPTIONS: usize = 16;
/// Queues, and filters, that a message lists of one bearer at most; fewer if there are many bearers.
pub const MAX_LISTED: usize = 64;
/// The shortest and the longest period, in microseconds.
pub const PERIODS_US: std::ops::RangeInclusive<u32> = 1_000..=60_000_000;
/// The shortest and the longest lease, in milliseconds.
pub const LEASES_MS: std::ops::RangeInclusive<u32> = 10..=60_000;
/// Bearers that a subscription may name.
const MAX_BEARERS: usize = 64;
/// Replies to changes that are kept for requests that come again.
const MAX_RECENT: usize = 64;

/// What a desk counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeskCounts {
    /// Requests that were done.
    pub done: u64,
    /// Requests that were refused, with a reason.
    pub refused: u64,
    /// Messages that were no requests: nobody can be told.
    pub unreadable: u64,
    /// Indications sent.
    pub indications: u64,
    /// Periods without one because the server was late.
    pub late: u64,
    /// Indications that their subscriber had no room for.
    pub dropped: u64,
    /// Subscriptions whose lease ended.
    pub expired: u64,
}

#[derive(Debug)]
struct Subscription {
    id: u64,
    bearers: Vec<BearerId>,
    period_ns: u64,
    due_ns: u64,
    lease_ns: u64,
    expires_ns: u64,
    number: u64,
    late: u64,
    dropped: u64,
}

/// The server's state. One thread at a time uses it.
pub struct Desk {
    server: u64,
    clock: Box<dyn Fn() -> u64 + Send>,
    subscriptions: [Option<Subscription>; MAX_SUBSCRIPTIONS],
    /// What changed something, by client and number, with its reply.
    recent: VecDeque<(u64, u64, Vec<u8>)>,
    counts: DeskCounts,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("server", &self.server).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Desk {
    /// A desk under a name that is another one after each start; `clock` gives nanoseconds that only grow.
    pub fn new(server: u64, clock: impl Fn() -> u64 + Send + 'static) -> Self {
        Self {
            server,
            clock: Box::new(clock),
            subscriptions: [const { None }; MAX_SUBSCRIPTIONS],
            recent: VecDeque::new(),
            counts: DeskCounts::default(),
        }
    }

    /// What it has counted.
    #[must_use]
    pub const fn counts(&self) -> DeskCounts {
        self.counts
    }

    /// How many subscriptions there are now.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.subscriptions.iter().flatten().count()
    }

    /// Does what a message asks for and returns the reply; none if the message is no request.
    pub fn request(&mut self, bytes: &[u8], bearers: &mut impl Bearers) -> Option<Vec<u8>> {
        let taken_ns = (self.clock)();
        let request = match Request::decode(bytes) {
            Ok(request) if bytes.len() <= MAX_MESSAGE_BYTES => request,
            _ => {
                self.counts.unreadable += 1;
                return None;
            }
        };
        let (client, number, sent_ns) = (request.client, request.number, request.sent_ns);
        if let Some((_, _, reply)) = self.recent.iter().find(|(c, n, _)| (*c, *n) == (client, number)) {
            return Some(reply.clone());
        }
        let lasting = matches!(
            request.body,
            Some(Body::Change(_) | Body::Load(_) | Body::Subscribe(Subscribe { subscription: 0, .. }))
        );
        let answer = if request.version == VERSION {
            self.answer(request.body, bearers)
        } else {
            let text = format!("the request is of version {}; this server speaks version {VERSION}", request.version);
            Err(Refusal::new(Outcome::Version, text))
        };
        let reply = |outcome: Outcome, reason, body| Reply {
            version: VERSION,
            client,
            number,
            server: self.server,
            outcome: outcome.into(),
            reason,
            taken_ns,
            done_ns: (self.clock)(),
            sent_ns,
            body,
        };
        let mut bytes = match answer {
            Ok(body) => {
                self.counts.done += 1;
                reply(Outcome::Done, String::new(), body).encode_to_vec()
            }
            Err(refusal) => {
                self.counts.refused += 1;
                reply(refusal.outcome, clip(refusal.reason), None).encode_to_vec()
            }
        };
        if bytes.len() > MAX_MESSAGE_BYTES {
            let text = format!("the answer would be {} bytes long, more than {MAX_MESSAGE_BYTES}", bytes.len());
            bytes = reply(Outcome::TooMany, text, None).encode_to_vec();
        }
        if lasting {
            self.recent.truncate(MAX_RECENT - 1);
            self.recent.push_front((client, number, bytes.clone()));
        }
        Some(bytes)
    }

    fn answer(&mut self, body: Option<Body>, bearers: &mut impl Bearers) -> Result<Option<reply::Body>, Refusal> {
        let of = |bearer: Option<BearerId>| {
            bearer.ok_or_else(|| Refusal::new(Outcome::Malformed, "the request names no bearer"))
        };
        Ok(match body {
            None => return Err(Refusal::new(Outcome::Unsupported, "this server does not know what is asked")),
            Some(Body::List(_)) => Some(reply::Body::Bearers(replies::Bearers { bearers: bearers.list()? })),
            Some(Body::Show(show)) => {
                let bearer = of(show.bearer)?;
                let pipeline = Value::of(&bearers.pipeline(bearer)?);
                let state = bearers.states(&[bearer], MAX_LISTED)?.pop().ok_or_else(|| Refusal::no_bearer(bearer))?;
                let state = Some(message(&state)?);
                let pipeline = Some(pipeline.map_err(|e| Refusal::new(Outcome::Invalid, e.to_string()))?);
                Some(reply::Body::Shown(Box::new(Shown { pipeline, state })))
            }
            Some(Body::Change(change)) => {
                let edit = Edit::Change(edit::changes(&change.changes)?);
                let generation = bearers.edit(of(change.bearer)?, &edit, change.generation)?;
                Some(reply::Body::Changed(Changed { generation }))
            }
            Some(Body::Load(load)) => {
                let spec = edit::pipeline(load.pipeline)?;
                let edit = Edit::Load(Box::new(spec), edit::leftover(load.drop_packets));
                let generation = bearers.edit(of(load.bearer)?, &edit, load.generation)?;
                Some(reply::Body::Changed(Changed { generation }))
            }
            Some(Body::Subscribe(subscribe)) => Some(reply::Body::Subscribed(self.subscribe(subscribe, bearers)?)),
            Some(Body::Unsubscribe(messages::Unsubscribe { subscription })) => {
                let slot = self.slot(subscription)?;
                self.subscriptions[slot] = None;
                None
            }
        })
    }

    /// The place of a subscription.
    fn slot(&self, id: u64) -> Result<usize, Refusal> {
        let is = |s: &Option<Subscription>| s.as_ref().is_some_and(|s| s.id == id);
        self.subscriptions.iter().position(is).ok_or_else(|| {
            let text = "there is no such subscription: its lease has ended, or the server has started anew";
            Refusal::new(Outcome::UnknownSubscription, text)
        })
    }

    fn subscribe(&mut self, ask: Subscribe, bearers: &mut impl Bearers) -> Result<Subscribed, Refusal> {
        let Subscribe { bearers: wanted, period_us, lease_ms, subscription } = ask;
        let now = (self.clock)();
        // Leases that have ended make room now, not at the next turn.
        self.expire(now);
        if !PERIODS_US.contains(&period_us) {
            let text = format!("a period of {period_us} us; it is 1000 to 60000000");
            return Err(Refusal::new(Outcome::Invalid, text));
        }
        if !LEASES_MS.contains(&lease_ms) {
            return Err(Refusal::new(Outcome::Invalid, format!("a lease of {lease_ms} ms; it is 10 to 60000")));
        }
        if wanted.len() > MAX_BEARERS {
            let text = format!("{} bearers; at most {MAX_BEARERS} can be named", wanted.len());
            return Err(Refusal::new(Outcome::TooMany, text));
        }
        let there = bearers.list()?;
        if let Some(missing) = wanted.iter().find(|b| !there.contains(b)) {
            return Err(Refusal::no_bearer(*missing));
        }
        let (period_ns, lease_ns) = (u64::from(period_us) * 1_000, u64::from(lease_ms) * 1_000_000);
        let (slot, old) = if subscription == 0 {
            let free = self.subscriptions.iter().position(Option::is_none).ok_or_else(|| {
                let text = format!("there are {MAX_SUBSCRIPTIONS} subscriptions already");
                Refusal::new(Outcome::TooMany, text)
            })?;
            (free, None)
        } else {
            let slot = self.slot(subscription)?;
            (slot, self.subscriptions[slot].take())
        };
        let fresh = || Subscription {
            id: crate::random(),
            bearers: Vec::new(),
            period_ns: 0,
            due_ns: now,
            lease_ns: 0,
            expires_ns: 0,
            number: 0,
            late: 0,
            dropped: 0,
        };
        let mut new = old.unwrap_or_else(fresh);
        if new.period_ns != period_ns {
            new.due_ns = now.saturating_add(period_ns);
        }
        (new.bearers, new.period_ns, new.lease_ns) = (wanted, period_ns, lease_ns);
        new.expires_ns = now.saturating_add(lease_ns);
        let id = new.id;
        self.subscriptions[slot] = Some(new);
        Ok(Subscribed { subscription: id, channel: slot as u32, period_us, lease_ms })
    }

    fn expire(&mut self, now: u64) {
        for slot in &mut self.subscriptions {
            if slot.as_ref().is_some_and(|s| s.expires_ns <= now) {
                *slot = None;
                self.counts.expired += 1;
            }
        }
    }

    /// When [`Self::turn`] has something to do, on the desk's clock; `None`: not before the next request.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.subscriptions.iter().flatten().map(|s| s.due_ns.min(s.expires_ns)).min()
    }

    /// Sends what is due by `send`, which gets the number of the channel and the message and says whether there was room.
    /// Periods that went by are counted, not made up for.
    pub fn turn(&mut self, bearers: &mut impl Bearers, mut send: impl FnMut(usize, &[u8]) -> bool) {
        let now = (self.clock)();
        self.expire(now);
        for (channel, slot) in self.subscriptions.iter_mut().enumerate() {
            let Some(subscription) = slot.as_mut().filter(|s| s.due_ns <= now) else { continue };
            let behind = (now - subscription.due_ns) / subscription.period_ns;
            subscription.late += behind;
            self.counts.late += behind;
            subscription.due_ns += (behind + 1) * subscription.period_ns;
            subscription.number += 1;
            let Some(mut bytes) = indication(subscription, bearers, &self.clock) else {
                subscription.late += 1;
                self.counts.late += 1;
                continue;
            };
            // Said last, so that making the message is no part of its way. A field may come at the end.
            Indication { sent_ns: (self.clock)(), ..Indication::default() }.encode(&mut bytes).unwrap_or(());
            if bytes.len() <= MAX_MESSAGE_BYTES && send(channel, &bytes) {
                self.counts.indications += 1;
            } else {
                subscription.dropped += 1;
                self.counts.dropped += 1;
            }
        }
    }
}

/// A reason of at most some hundred characters: names in it come from outside.
fn clip(mut reason: String) -> String {
    if let Some((at, _)) = reason.char_indices().nth(500) {
        reason.truncate(at);
        reason.push('…');
    }
    reason
}

fn indication(subscription: &Subscription, bearers: &mut impl Bearers, clock: &impl Fn() -> u64) -> Option<Vec<u8>> {
    let count = if subscription.bearers.is_empty() { bearers.list().ok()?.len() } else { subscription.bearers.len() };
    let most = (4 * MAX_LISTED / count.max(1)).clamp(2, MAX_LISTED);
    let states = bearers.states(&subscription.bearers, most).ok()?;
    let taken_ns = clock();
    let bearers = states.iter().map(message).collect::<Result<Vec<_>, _>>().ok()?;
    let missing = subscription.bearers.len().saturating_sub(bearers.len());
    let indication = Indication {
        version: VERSION,
        subscription: subscription.id,
        number: subscription.number,
        late: subscription.late,
        dropped: subscription.dropped,
        taken_ns,
        sent_ns: 0,
        bearers,
        missing: missing as u32,
    };
    Some(indication.encode_to_vec())
}

fn message(state: &BearerState) -> Result<BearerMessage, Refusal> {
    let pipeline = Value::of(&state.pipeline).map_err(|e| Refusal::new(Outcome::Invalid, e.to_string()))?;
    Ok(BearerMessage {
        bearer: Some(state.bearer),
        time_ns: state.time_ns,
        pipeline: Some(pipeline),
        left_out: state.left_out,
        rlc: Some(state.rlc),
        uplink_rlc: Some(state.uplink_rlc),
    })
}
