//! iceoryx2: zero-copy publish-subscribe between processes.
//!
//! Spinning ends poll their subscriber. Sleeping ends wait on an iceoryx2 event, which the other end raises after each
//! message (the library cannot know whether anybody sleeps). Nothing is lost: a full queue makes the publisher wait.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use bench_harness::{
    Absent, Args, Consumer, Description, Echoer, Mode, Pinger, Producer, Role, Stop, System, Tally, Waiting, check,
    stamp,
};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, publish_subscribe};

/// How long an event wait may last before the process looks whether it should end.
const LOOK: Duration = Duration::from_millis(50);
/// How long a source waits for all its sinks.
const MEETING: Duration = Duration::from_secs(20);
/// Messages that a subscriber's queue holds. Of 16, 64, 256 and 1024 this gave the best one-way rates here.
const QUEUE: usize = 256;

/// The service type whose ports stay in one thread, the faster of the two.
type Ipc = ipc::Service;

struct Iceoryx2;

fn wrong(what: &str) -> impl Fn(&dyn std::fmt::Debug) -> anyhow::Error + '_ {
    move |e| anyhow!("{what}: {e:?}")
}

/// One node whose files carry a prefix of this repetition's own.
struct Host {
    node: Node<Ipc>,
    sleeps: bool,
    payload: usize,
    sinks: usize,
    queue: usize,
}

/// A one-way flow: messages, and an event for those who sleep.
struct Flow {
    messages: publish_subscribe::PortFactory<Ipc, [u8], ()>,
    event: event::PortFactory<Ipc>,
}

struct Tx {
    publisher: Publisher<Ipc, [u8], ()>,
    notifier: Option<Notifier<Ipc>>,
    payload: usize,
}

struct Rx {
    subscriber: Subscriber<Ipc, [u8], ()>,
    listener: Option<Listener<Ipc>>,
}

impl Host {
    fn new(args: &Args) -> Result<Self> {
        if args.waiting == Waiting::Adaptive {
            bail!("iceoryx2 either polls or sleeps on an event");
        }
        set_log_level(LogLevel::Error);
        let text = args.dir.display().to_string();
        let name = args.dir.file_name().map_or_else(|| "bench".into(), |n| n.to_string_lossy().into_owned());
        let mut config = Config::default();
        config.global.set_root_path(&Path::new(text.as_bytes()).map_err(|e| wrong("root path")(&e))?);
        config.global.prefix = FileName::new(format!("{name}_").as_bytes()).map_err(|e| wrong("prefix")(&e))?;
        let node = NodeBuilder::new().config(&config).create::<Ipc>().map_err(|e| wrong("node")(&e))?;
        let large = matches!(args.role, Role::LargeSource | Role::LargeSink);
        Ok(Self {
            node,
            sleeps: args.waiting == Waiting::Sleep,
            payload: args.payload,
            sinks: args.sinks as usize,
            queue: if large { 1 } else { QUEUE },
        })
    }

    fn flow(&self, name: &str) -> Result<Flow> {
        let service = ServiceName::new(name).map_err(|e| wrong("service name")(&e))?;
        let messages = self.node.service_builder(&service).publish_subscribe::<[u8]>();
        let messages = messages
            .payload_alignment(Alignment::new(64).expect("a power of two"))
            .enable_safe_overflow(false)
            .history_size(0)
            .subscriber_max_buffer_size(self.queue)
            .subscriber_max_borrowed_samples(2)
            .max_publishers(1)
            .max_subscribers(self.sinks)
            .max_nodes(self.sinks + 2);
        let messages = messages.open_or_create().map_err(|e| wrong("publish-subscribe service")(&e))?;
        let event = self.node.service_builder(&service).event();
        let event = event.max_notifiers(1).max_listeners(self.sinks).max_nodes(self.sinks + 2);
        let event = event.open_or_create().map_err(|e| wrong("event service")(&e))?;
        Ok(Flow { messages, event })
    }

    fn tx(&self, flow: &Flow, payload: usize) -> Result<Tx> {
        let publisher = flow.messages.publisher_builder().initial_max_slice_len(payload);
        let publisher =
            publisher.backpressure_strategy(BackpressureStrategy::RetryUntilDelivered).max_loaned_samples(1);
        let publisher = publisher.create().map_err(|e| wrong("publisher")(&e))?;
        let notifier = flow.event.notifier_builder();
        let notifier = self.sleeps.then(|| notifier.create().map_err(|e| wrong("notifier")(&e))).transpose()?;
        Ok(Tx { publisher, notifier, payload })
    }

    fn rx(&self, flow: &Flow) -> Result<Rx> {
        let listener = flow.event.listener_builder();
        let listener = self.sleeps.then(|| listener.create().map_err(|e| wrong("listener")(&e))).transpose()?;
        let subscriber = flow.messages.subscriber_builder().create().map_err(|e| wrong("subscriber")(&e))?;
        Ok(Rx { subscriber, listener })
    }
}

impl Flow {
    /// Waits until all sinks are there.
    fn await_sinks(&self, sinks: usize, sleeps: bool) -> Result<()> {
        let start = Instant::now();
        while self.messages.dynamic_config().number_of_subscribers() < sinks
            || (sleeps && self.event.dynamic_config().number_of_listeners() < sinks)
        {
            if start.elapsed() > MEETING {
                bail!("not all of {sinks} sinks came in {} s", MEETING.as_secs());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Tx {
    #[inline]
    fn send(&self, n: u64) -> Result<()> {
        let mut sample = self.publisher.loan_slice_uninit(self.payload).map_err(|e| wrong("loan")(&e))?;
        let memory: &mut [MaybeUninit<u8>] = sample.payload_mut();
        // SAFETY: MaybeUninit<u8> has the layout of u8; the bytes are written, not read, before they count as bytes.
        stamp(unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len()) }, n);
        // SAFETY: `stamp` wrote every byte.
        let sample = unsafe { sample.assume_init() };
        sample.send().map_err(|e| wrong("send")(&e))?;
        if let Some(notifier) = &self.notifier {
            notifier.notify().map_err(|e| wrong("notify")(&e))?;
        }
        Ok(())
    }
}

impl Rx {
    /// Waits where waiting means sleeping; a bounded time.
    fn wait(&self) -> Result<()> {
        if let Some(listener) = &self.listener {
            listener.timed_wait(|_| {}, LOOK).map_err(|e| wrong("event wait")(&e))?;
        }
        Ok(())
    }

    /// The next message if there is one.
    #[inline]
    fn take<T>(&self, use_it: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
        match self.subscriber.receive().map_err(|e| wrong("receive")(&e))? {
            Some(sample) => use_it(sample.payload()).map(Some),
            None => Ok(None),
        }
    }
}

/// The parts in the order in which they have to go: ports, services, node.
struct Ends {
    tx: Tx,
    rx: Rx,
    _flows: [Flow; 2],
    _host: Host,
    /// Bytes of the message that this end receives.
    expects: usize,
}

/// A large message is answered by a short one.
fn answer_bytes(args: &Args) -> usize {
    if matches!(args.role, Role::LargeSource | Role::LargeSink) { 8 } else { args.payload }
}

impl Pinger for Ends {
    fn exchange(&mut self, n: u64) -> Result<()> {
        self.tx.send(n)?;
        loop {
            match self.rx.take(|m| check(m, self.expects))? {
                Some(back) if back == n => return Ok(()),
                Some(back) => bail!("an answer to message {back} instead of {n}"),
                None => self.rx.wait()?,
            }
        }
    }
}

impl Echoer for Ends {
    fn serve(&mut self) -> Result<()> {
        match self.rx.take(|m| check(m, self.expects))? {
            Some(n) => self.tx.send(n),
            None => self.rx.wait(),
        }
    }
}

struct Sending {
    tx: Tx,
    _flow: Flow,
    _host: Host,
}

impl Producer for Sending {
    fn send(&mut self, n: u64, _stop: &Stop) -> Result<bool> {
        self.tx.send(n)?;
        Ok(true)
    }
}

struct Reading {
    rx: Rx,
    _flow: Flow,
    _host: Host,
}

impl Consumer for Reading {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        match self.rx.take(|m| tally.take(m))? {
            Some(()) => Ok(()),
            None => self.rx.wait(),
        }
    }
}

impl System for Iceoryx2 {
    // Its files in shared memory go when its ports are dropped.
    const GRACE: Duration = Duration::from_secs(2);

    fn describe() -> Description {
        let waits = [Waiting::Spin, Waiting::Sleep];
        let experiments = ["rtt", "oneway", "fanout", "large"];
        Description {
            system: "iceoryx2".into(),
            language: "rust",
            version: "0.10".into(),
            modes: experiments.iter().flat_map(|e| waits.map(|w| Mode::new(e, w, "shm"))).collect(),
            absent: vec![
                Absent { experiment: "*", waiting: "adaptive", reason: "it either polls or sleeps on an event" },
                Absent { experiment: "open", waiting: "*", reason: "its services are not channels of a stream" },
            ],
        }
    }

    fn pinger(args: &Args) -> Result<impl Pinger> {
        let host = Host::new(args)?;
        let flows = [host.flow("ask")?, host.flow("answer")?];
        let rx = host.rx(&flows[1])?;
        let tx = host.tx(&flows[0], args.payload)?;
        flows[0].await_sinks(1, host.sleeps)?;
        Ok(Ends { tx, rx, _flows: flows, expects: answer_bytes(args), _host: host })
    }

    fn echoer(args: &Args) -> Result<impl Echoer> {
        let host = Host::new(args)?;
        let flows = [host.flow("ask")?, host.flow("answer")?];
        let rx = host.rx(&flows[0])?;
        let tx = host.tx(&flows[1], answer_bytes(args))?;
        Ok(Ends { tx, rx, _flows: flows, expects: host.payload, _host: host })
    }

    fn producer(args: &Args) -> Result<impl Producer> {
        let host = Host::new(args)?;
        let flow = host.flow("flow")?;
        let tx = host.tx(&flow, args.payload)?;
        flow.await_sinks(host.sinks, host.sleeps)?;
        Ok(Sending { tx, _flow: flow, _host: host })
    }

    fn consumer(args: &Args) -> Result<impl Consumer> {
        let host = Host::new(args)?;
        let flow = host.flow("flow")?;
        let rx = host.rx(&flow)?;
        Ok(Reading { rx, _flow: flow, _host: host })
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Iceoryx2>()
}
