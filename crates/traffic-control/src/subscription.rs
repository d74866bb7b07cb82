//! Indications at the client.

use std::time::{Duration, Instant};

use insane::Sink;
use prost::Message;

use crate::bearers::{BearerState, Refusal};
use crate::client::{Client, ClientError, body_of, protocol, read_state, unexpected};
use crate::messages::{BearerId, Outcome, Subscribe, Unsubscribe, request::Body};
use crate::replies::{Indication, Subscribed, reply};
use crate::server::bytes;
use crate::{VERSION, now_ns};

/// What an indication says.
#[derive(Clone, Debug, PartialEq)]
pub struct Indicated {
    /// Its number, from 1, and anew after the server's restart.
    pub number: u64,
    /// Periods so far without an indication because the server was late.
    pub late: u64,
    /// Indications so far that this end had no room for.
    pub dropped: u64,
    /// When the statistics were taken, in nanoseconds of the server host's CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// When they were sent.
    pub sent_ns: u64,
    /// When they were here, on this host's clock.
    pub received_ns: u64,
    /// Bearers of the subscription that are not there any more.
    pub missing: u32,
    /// The bearers.
    pub bearers: Vec<BearerState>,
}

/// A subscription: indications come as long as [`Self::next`] is called. Dropping it ends it.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    ask: Subscribe,
    lease: Duration,
    granted: Subscribed,
    sink: Sink,
    renew_at: Instant,
    /// The renewal whose reply is out.
    renewal: Option<u64>,
    /// How often it was made anew.
    restarts: u64,
}

fn units(duration: Duration, unit: Duration) -> Result<u32, ClientError> {
    let count = duration.as_nanos() / unit.as_nanos();
    u32::try_from(count).map_err(|_| Refusal::new(Outcome::Invalid, "the period or lease is too long").into())
}

impl Subscription {
    pub(crate) fn open(
        client: Client,
        bearers: Vec<BearerId>,
        period: Duration,
        lease: Duration,
    ) -> Result<Self, ClientError> {
        let (period_us, lease_ms) = (units(period, Duration::from_micros(1))?, units(lease, Duration::from_millis(1))?);
        let ask = Subscribe { bearers, period_us, lease_ms, subscription: 0 };
        let granted = subscribe(&client, &ask)?;
        let sink = client.lock().indications(granted.channel)?;
        let renew_at = Instant::now() + lease / 3;
        Ok(Self { client, ask, lease, granted, sink, renew_at, renewal: None, restarts: 0 })
    }

    /// How often it was made anew, because the server was: pipelines are then as that server began.
    #[must_use]
    pub const fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The next indication. Waits at most `timeout`, and renews the subscription on the way; a server that starts anew is
    /// found again.
    ///
    /// # Errors
    /// [`ClientError::Timeout`]; and as every call of the client.
    pub fn next(&mut self, timeout: Duration) -> Result<Indicated, ClientError> {
        let until = Instant::now() + timeout;
        loop {
            self.renew()?;
            let now = Instant::now();
            // While a renewal is out its reply is looked for now and then.
            let look = if self.renewal.is_some() { now + Duration::from_millis(20) } else { self.renew_at };
            match self.sink.consume_timeout(until.min(look).saturating_duration_since(now)) {
                Ok(message) => {
                    let received_ns = now_ns();
                    let bytes = bytes(&message);
                    drop(message);
                    let Ok(indication) = Indication::decode(&bytes[..]) else { continue };
                    // Another's, who had this place before.
                    if indication.subscription == self.granted.subscription {
                        return read(indication, received_ns);
                    }
                }
                Err(e) if e.code() == insane::Code::Timeout => {
                    if Instant::now() >= until {
                        return Err(ClientError::Timeout);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Renews the subscription when it is time, without waiting for the reply; looks for the reply of the last renewal.
    fn renew(&mut self) -> Result<(), ClientError> {
        if let Some(number) = self.renewal {
            let found = self.client.lock().reply(number, Duration::ZERO);
            match found {
                Err(ClientError::Timeout) => {}
                Err(e) => return Err(e),
                Ok(reply) => {
                    self.renewal = None;
                    match body_of(reply) {
                        Err(ClientError::Refused(r)) if r.outcome == Outcome::UnknownSubscription => {
                            self.again()?;
                        }
                        other => drop(other?),
                    }
                }
            }
        }
        if Instant::now() >= self.renew_at {
            self.renew_at = Instant::now() + self.lease / 3;
            let body = Subscribe { subscription: self.granted.subscription, ..self.ask.clone() };
            self.renewal = self.client.lock().post(Body::Subscribe(body))?;
        }
        Ok(())
    }

    /// Makes it anew, at a server that does not know it.
    fn again(&mut self) -> Result<(), ClientError> {
        match subscribe(&self.client, &self.ask) {
            Ok(granted) => {
                if granted.channel != self.granted.channel {
                    self.sink = self.client.lock().indications(granted.channel)?;
                }
                self.granted = granted;
                self.restarts += 1;
                Ok(())
            }
            // It has gone again: the next renewal finds the next one.
            Err(ClientError::NoServer(_) | ClientError::Timeout) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A server that does not hear of it finds the lease ended.
        let body = Unsubscribe { subscription: self.granted.subscription };
        let _ = self.client.lock().post(Body::Unsubscribe(body));
    }
}

fn subscribe(client: &Client, ask: &Subscribe) -> Result<Subscribed, ClientError> {
    match client.lock().ask(Body::Subscribe(ask.clone()))? {
        Some(reply::Body::Subscribed(granted)) => Ok(granted),
        other => Err(unexpected(other.as_ref())),
    }
}

fn read(indication: Indication, received_ns: u64) -> Result<Indicated, ClientError> {
    if indication.version != VERSION {
        return Err(protocol(format!("indications of version {}", indication.version)));
    }
    Ok(Indicated {
        number: indication.number,
        late: indication.late,
        dropped: indication.dropped,
        taken_ns: indication.taken_ns,
        sent_ns: indication.sent_ns,
        received_ns,
        missing: indication.missing,
        bearers: indication.bearers.into_iter().map(read_state).collect::<Result<_, _>>()?,
    })
}
