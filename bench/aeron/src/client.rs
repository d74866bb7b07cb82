//! One end: an Aeron client whose conductor is run by the thread that carries the messages, one exclusive publication,
//! one subscription. The hot path calls the C functions directly; the Rust binding's wrappers stay out of it.

use std::ffi::{CStr, CString, c_void};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bench_harness::{Args, Stop, Waiting, stamp};
use rusteron_client::bindings::{
    aeron_buffer_claim_commit, aeron_buffer_claim_t, aeron_exclusive_publication_offer,
    aeron_exclusive_publication_try_claim, aeron_header_t, aeron_subscription_poll,
};
use rusteron_client::{
    Aeron, AeronContext, AeronExclusivePublication, AeronSubscription, BackoffIdleStrategy, Handlers, IdleStrategy,
};

use crate::driver::{Embedded, folder};

const CHANNEL: &CStr = c"aeron:ipc";
/// The port of the host that a stream goes to, and the most that goes there in one datagram of the default MTU.
const PORT: u16 = 20_121;
const MOST_CLAIMED: usize = 1376;
/// How long an end waits for the other one, or for the driver.
const MEETING: Duration = Duration::from_secs(20);
/// Fragments taken per poll.
const FRAGMENTS: usize = 64;
/// Conductors run once per so many messages.
const MESSAGES_PER_DUTY: u32 = 256;
/// Between two hosts the driver carries every message: it runs after each round trip's message, and after a few of a flow.
const FLOW_MESSAGES_PER_DUTY: u32 = 16;
/// The client's conductor, which carries none, runs once per so many turns of the driver there.
const TURNS_PER_CONDUCTOR: u32 = 64;

/// Results of `try_claim` that say «again».
const BACK_PRESSURED: i64 = -2;
const ADMIN_ACTION: i64 = -3;

/// An end of a flow.
pub struct End {
    // Dropped in this order: ports, client, driver.
    publication: Option<AeronExclusivePublication>,
    subscription: Option<AeronSubscription>,
    client: Aeron,
    driver: Embedded,
    idle: Option<BackoffIdleStrategy>,
    /// Conductors run after so many polls that found nothing: seldom for round trips, where the message is about to
    /// come, often for a one-way flow, where the source may be waiting for the driver to move its limit.
    idle_polls_per_duty: u32,
    messages_per_duty: u32,
    messages: u32,
    idle_polls: u32,
    two_hosts: bool,
    turns: u32,
    /// What is too long for one datagram is written here first, and read from here.
    whole: Vec<u8>,
    payload: usize,
}

/// Where a stream to `address` goes.
fn channel(args: &Args, address: std::net::Ipv4Addr) -> Result<CString> {
    if !args.two_hosts() {
        return Ok(CHANNEL.into());
    }
    Ok(CString::new(format!("aeron:udp?endpoint={address}:{PORT}"))?)
}

impl End {
    /// Connects to the driver and opens the two ports; a stream number of 0 means no such port.
    pub fn new(args: &Args, driver: Embedded, sends: i32, receives: i32, idle_polls_per_duty: u32) -> Result<Self> {
        let context = AeronContext::new()?;
        context.set_dir(&folder(args)?)?;
        context.set_use_conductor_agent_invoker(true)?;
        context.set_error_handler(Some(|code: i32, text: &str| eprintln!("aeron {code}: {text}")))?;
        let client = Aeron::new(&context)?;
        client.start()?;
        let (mut publication, mut subscription) = (None, None);
        if receives != 0 {
            let request =
                client.async_add_subscription(&channel(args, args.own)?, receives, Handlers::NONE, Handlers::NONE)?;
            subscription = Some(until(&client, "a subscription", || Ok(request.poll()?))?);
        }
        if sends != 0 {
            let request = client.async_add_exclusive_publication(&channel(args, args.peer)?, sends)?;
            publication = Some(until(&client, "a publication", || Ok(request.poll()?))?);
        }
        let idle = (args.waiting == Waiting::Adaptive).then(BackoffIdleStrategy::new);
        // An end that backs off spends up to a millisecond per idle poll.
        let idle_polls_per_duty = if idle.is_some() { 16 } else { idle_polls_per_duty };
        let (two_hosts, flows) = (args.two_hosts(), sends == 0 || receives == 0);
        Ok(Self {
            publication,
            subscription,
            client,
            driver,
            idle,
            idle_polls_per_duty: if two_hosts { 1 } else { idle_polls_per_duty },
            messages_per_duty: match (two_hosts, flows) {
                (false, _) => MESSAGES_PER_DUTY,
                (true, false) => 1,
                (true, true) => FLOW_MESSAGES_PER_DUTY,
            },
            messages: 0,
            idle_polls: 0,
            two_hosts,
            turns: 0,
            whole: Vec::with_capacity(args.payload),
            payload: args.payload,
        })
    }

    /// Waits until a subscriber is there, and as many as there should be.
    pub fn await_peers(&self, subscribers: u32) -> Result<()> {
        until(&self.client, "the other end", || {
            let sent = self.publication.as_ref().is_none_or(AeronExclusivePublication::is_connected);
            let received = self.subscription.as_ref().is_none_or(AeronSubscription::is_connected);
            Ok((sent && received).then_some(()))
        })?;
        // The driver links one subscriber after the other; they are all registered before we come.
        let settled = Instant::now() + Duration::from_millis(if subscribers > 1 { 50 } else { 0 });
        while Instant::now() < settled {
            self.client.main_do_work()?;
        }
        Ok(())
    }

    /// One turn of the conductors.
    fn duty(&mut self) -> Result<()> {
        (self.messages, self.idle_polls) = (0, 0);
        self.turns += 1;
        if !self.two_hosts || self.turns.is_multiple_of(TURNS_PER_CONDUCTOR) {
            self.client.main_do_work()?;
        }
        self.driver.work()
    }

    fn found(&mut self, count: u32) -> Result<()> {
        if count > 0 {
            self.messages += count;
            if let Some(idle) = &mut self.idle {
                idle.reset();
            }
        } else {
            self.idle_polls += 1;
            if let Some(idle) = &mut self.idle {
                idle.idle(0);
            }
        }
        if self.messages >= self.messages_per_duty || self.idle_polls >= self.idle_polls_per_duty {
            self.duty()?;
        }
        Ok(())
    }

    /// Writes message `n` in place and publishes it; `false` if told to stop while waiting for room.
    #[inline]
    pub fn send(&mut self, n: u64, payload: usize, stop: Option<&Stop>) -> Result<bool> {
        if self.two_hosts && payload > MOST_CLAIMED {
            return self.offer(n, payload, stop);
        }
        let publication = self.publication.as_ref().expect("a sending end").get_inner();
        let mut claim =
            aeron_buffer_claim_t { frame_header: std::ptr::null_mut(), data: std::ptr::null_mut(), length: 0 };
        let done = self.until_taken(stop, "claiming", payload, || {
            // SAFETY: the publication lives as long as self; `claim` is valid for writes.
            unsafe { aeron_exclusive_publication_try_claim(publication, payload, &raw mut claim) }
        })?;
        if !done {
            return Ok(false);
        }
        // SAFETY: a claim that succeeded is `payload` bytes of the log that are ours until committed.
        stamp(unsafe { std::slice::from_raw_parts_mut(claim.data, payload) }, n);
        // SAFETY: the claim came from try_claim just above.
        if unsafe { aeron_buffer_claim_commit(&raw mut claim) } != 0 {
            bail!("committing message {n} failed");
        }
        self.found(1)?;
        Ok(true)
    }

    /// The same for a message of several datagrams, which Aeron copies and cuts.
    fn offer(&mut self, n: u64, payload: usize, stop: Option<&Stop>) -> Result<bool> {
        self.whole.resize(payload, 0);
        stamp(&mut self.whole, n);
        let publication = self.publication.as_ref().expect("a sending end").get_inner();
        let (from, none) = (self.whole.as_ptr(), std::ptr::null_mut());
        let done = self.until_taken(stop, "offering", payload, || {
            // SAFETY: the publication lives as long as self; `payload` bytes are there to be read; no callback is given.
            unsafe { aeron_exclusive_publication_offer(publication, from, payload, None, none) }
        })?;
        if !done {
            return Ok(false);
        }
        self.whole.clear();
        self.found(1)?;
        Ok(true)
    }

    /// Tries until Aeron has room, or until the end is asked for: then `false`.
    #[inline]
    fn until_taken(
        &mut self,
        stop: Option<&Stop>,
        what: &str,
        payload: usize,
        mut attempt: impl FnMut() -> i64,
    ) -> Result<bool> {
        loop {
            match attempt() {
                0.. => return Ok(true),
                BACK_PRESSURED | ADMIN_ACTION => {
                    if stop.is_some_and(Stop::requested) {
                        return Ok(false);
                    }
                    self.found(0)?;
                }
                other => bail!("{what} {payload} bytes: Aeron says {other}"),
            }
        }
    }

    /// Hands what is there to `take`, message by message; how many there were.
    #[inline]
    pub fn poll<F: FnMut(&[u8]) -> Result<()>>(&mut self, take: F) -> Result<u32> {
        let mut sink = Sink { take, result: Ok(()), whole: &mut self.whole, payload: self.payload };
        let subscription = self.subscription.as_ref().expect("a receiving end").get_inner();
        // SAFETY: the subscription lives as long as self; the handler gets the very `sink` that lives on this stack.
        let count =
            unsafe { aeron_subscription_poll(subscription, Some(on_fragment::<F>), (&raw mut sink).cast(), FRAGMENTS) };
        sink.result?;
        let count = u32::try_from(count).map_err(|_| anyhow::anyhow!("polling failed: {count}"))?;
        self.found(count)?;
        Ok(count)
    }
}

struct Sink<'a, F> {
    take: F,
    result: Result<()>,
    whole: &'a mut Vec<u8>,
    payload: usize,
}

impl<F: FnMut(&[u8]) -> Result<()>> Sink<'_, F> {
    /// One fragment. A stream is in order and lacks nothing, so that the pieces of a message simply follow each other.
    #[inline]
    fn add(&mut self, fragment: &[u8]) -> Result<()> {
        if self.whole.is_empty() && fragment.len() == self.payload {
            return (self.take)(fragment);
        }
        self.whole.extend_from_slice(fragment);
        if self.whole.len() < self.payload {
            return Ok(());
        }
        let taken = (self.take)(self.whole);
        self.whole.clear();
        taken
    }
}

/// Called by Aeron for each message while it polls.
///
/// # Safety
/// `sink` is a `Sink<F>`, and `data` is valid for `length` bytes, as `aeron_subscription_poll` promises.
unsafe extern "C-unwind" fn on_fragment<F: FnMut(&[u8]) -> Result<()>>(
    sink: *mut c_void,
    data: *const u8,
    length: usize,
    _header: *mut aeron_header_t,
) {
    // SAFETY: by this function's own contract.
    let (sink, message) = unsafe { (&mut *sink.cast::<Sink<'_, F>>(), std::slice::from_raw_parts(data, length)) };
    if sink.result.is_ok() {
        sink.result = sink.add(message);
    }
}

/// Runs the client's conductor until `poll` has something.
fn until<T>(client: &Aeron, what: &str, poll: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if start.elapsed() > MEETING {
            bail!("no sign of {what} in {} s", MEETING.as_secs());
        }
        client.main_do_work()?;
        std::thread::yield_now();
    }
}
