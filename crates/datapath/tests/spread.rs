//! Datapaths on several polling threads: what comes, who is woken, slots, what is counted, what cannot be split, and a thread that ends.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use insane_datapath::batch::{Place, RxBatch, RxReport, TxBatch, TxReport};
use insane_datapath::conformance::{self as suite, Rig};
use insane_datapath::loopback::{Hub, Loopback};
use insane_datapath::memory::Slot;
use insane_datapath::thread::{Bell, OnThread, PollingThread, Settings, Waiting};
use insane_datapath::{Address, Armed, Capabilities, Datapath, DatapathError, Split, Stats};

const PATIENCE: Duration = Duration::from_secs(20);

fn threads<const N: usize>(waiting: Waiting) -> [PollingThread; N] {
    [(); N].map(|()| PollingThread::start(Settings { name: "polls".into(), core: None, waiting }).unwrap())
}

/// What a test does to a [`Ports`] while it is on its thread.
#[derive(Debug, Default)]
struct Plight {
    panics: AtomicBool,
    lost: AtomicBool,
    /// It stands still as long as nothing comes from here; and says so when it begins to.
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// Its thread sleeps on this, which nobody rings.
    mute: Mutex<Option<Bell>>,
}

/// A port of a hub that can be split into further ones, numbered from its own on in hundreds; what goes to one of these comes by it.
struct Ports {
    hub: Hub,
    number: u32,
    port: Loopback,
    most: usize,
    plight: Arc<Plight>,
    mute: Option<Bell>,
}

impl Ports {
    fn new(hub: &Hub, number: u32, most: usize, plight: &Arc<Plight>) -> Box<Self> {
        let mute = plight.mute.lock().unwrap().clone();
        Box::new(Self { hub: hub.clone(), number, port: hub.port(number), most, plight: plight.clone(), mute })
    }
}

impl Datapath for Ports {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn open(&mut self) -> Result<(), DatapathError> {
        self.port.open()
    }

    fn address(&self) -> Option<Address> {
        self.port.address()
    }

    fn transmit(&mut self, batch: &mut TxBatch<'_>) -> TxReport {
        self.port.transmit(batch)
    }

    fn split(&mut self, most: usize) -> Split {
        let part = |at| {
            let number = self.number + 100 * at as u32;
            let mut part = Self::new(&self.hub, number, 0, &self.plight);
            part.open().unwrap();
            part as Box<dyn Datapath>
        };
        let short = (most > self.most).then(|| format!("there are {} more", self.most));
        Split { parts: (1..=most.min(self.most)).map(part).collect(), short }
    }

    fn receive(&mut self, batch: &mut RxBatch, place: Option<&mut dyn Place>) -> RxReport {
        // The part, not the port that it is of.
        if self.number > 100 && self.plight.panics.swap(false, Ordering::SeqCst) {
            panic!("a test ends this thread");
        }
        if let Some((tell, wait)) = self.plight.held.lock().unwrap().take() {
            tell.send(()).unwrap();
            let _ = wait.recv();
        }
        self.port.receive(batch, place)
    }

    fn wake_handle(&self) -> Option<BorrowedFd<'_>> {
        self.mute.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> Armed {
        if self.mute.is_some() { Armed::Sleep } else { self.port.arm() }
    }

    fn lost(&mut self) -> Option<String> {
        self.plight.lost.load(Ordering::SeqCst).then(|| "it went".into())
    }

    fn stats(&self) -> Stats {
        self.port.stats()
    }

    fn close(&mut self) {
        self.port.close();
    }
}

/// Port 2 of the hub on three threads, open.
fn spread(hub: &Hub, waiting: Waiting, most: usize, plight: &Arc<Plight>) -> OnThread {
    let [one, two, three] = threads(waiting);
    let mut on = OnThread::spread(&one, &[two, three], Ports::new(hub, 2, most, plight)).unwrap();
    on.open().unwrap();
    on
}

fn sender(hub: &Hub) -> Loopback {
    let mut port = hub.port(1);
    port.open().unwrap();
    port
}

/// Sends a number to each of some ports.
fn send(from: &mut Loopback, to: &[u32], number: u64) {
    let mut tx = TxBatch::default();
    to.iter().for_each(|port| tx.frame(Address::Port(*port), &number.to_le_bytes(), 0));
    let start = Instant::now();
    while !tx.is_done() {
        from.transmit(&mut tx);
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(tx.frames().iter().all(|frame| frame.outcome == insane_datapath::batch::Outcome::Sent), "{to:?}");
}

fn rx() -> RxBatch {
    RxBatch { free: (0..16).map(|id| Slot::owned(id, 65_536)).collect(), ..RxBatch::default() }
}

/// Waits until the handle is readable.
fn woken(datapath: &OnThread) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let handle = datapath.wake_handle().unwrap();
    matches!(poll(&mut [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)], Some(&patience)), Ok(1))
}

/// Sleeps until a frame comes, and takes it.
fn next(datapath: &mut OnThread, rx: &mut RxBatch) -> u64 {
    while datapath.receive(rx, None).frames == 0 {
        assert!(datapath.arm() == Armed::Ready || woken(datapath), "nobody was told");
    }
    assert_eq!(rx.taken.len(), 1);
    let taken = rx.taken.pop().unwrap();
    let number = u64::from_le_bytes(taken.bytes().try_into().unwrap());
    rx.free.push(taken.slot);
    number
}

#[test]
fn what_could_be_split_conforms_on_three_threads() {
    suite::all(|| {
        let (hub, plight) = (Hub::default(), Arc::default());
        let [one, two, three] = threads(Waiting::Sleep);
        let [a, b] = [1, 2].map(|number| {
            let further = [two.clone(), three.clone()];
            let mut on = OnThread::spread(&one, &further, Ports::new(&hub, number, 2, &plight)).unwrap();
            on.open().unwrap();
            on
        });
        Rig { a: Box::new(a), b: Box::new(b) }
    });
}

#[test]
fn a_sleeper_is_woken_by_each_thread_that_has_something() {
    for waiting in [Waiting::Sleep, Waiting::Spin] {
        let (hub, plight) = (Hub::default(), Arc::default());
        let mut b = spread(&hub, waiting, 2, &plight);
        let (mut a, mut rx) = (sender(&hub), rx());
        let rounds = if waiting == Waiting::Spin { 100 } else { 1000 };
        for round in 0..rounds {
            send(&mut a, &[[2, 102, 202][round as usize % 3]], round);
            assert_eq!(next(&mut b, &mut rx), round, "{waiting:?}");
        }
    }
}

#[test]
fn slots_go_back_to_the_thread_that_they_are_of_and_counts_are_of_all() {
    let (hub, plight) = (Hub::default(), Arc::default());
    let mut b = spread(&hub, Waiting::Sleep, 2, &plight);
    let (mut a, mut rx) = (sender(&hub), rx());
    // More than each has slots for, of one first, so that this one alone would run out of them.
    let (mut came, mut sent) = ([0u64; 3], [0u64; 3]);
    for round in 0..600u64 {
        let part = if round < 300 { 1 } else { (round % 3) as usize };
        sent[part] += 1;
        send(&mut a, &[[2, 102, 202][part]], part as u64 * 1000 + sent[part]);
        if round % 40 == 39 {
            for _ in 0..40 {
                let number = next_any(&mut b, &mut rx);
                let part = (number / 1000) as usize;
                came[part] += 1;
                assert_eq!(number % 1000, came[part], "part {part} out of order");
            }
        }
    }
    assert_eq!((came, b.threads().received()), (sent, sent.to_vec()));
    let stats = b.stats();
    assert_eq!((stats.received_frames, stats.received_bytes), (600, 4800));
    b.close();
    assert_eq!((b.stats().received_frames, is_free(&mut a)), (600, true), "its parts are closed with it");
}

/// Whether nobody has the ports of a part.
fn is_free(from: &mut Loopback) -> bool {
    let mut tx = TxBatch::default();
    [102, 202].iter().for_each(|port| tx.frame(Address::Port(*port), b"late", 0));
    from.transmit(&mut tx).refused == 2
}

/// As [`next`], of several that may be there at once.
fn next_any(datapath: &mut OnThread, rx: &mut RxBatch) -> u64 {
    rx.limit = 1;
    next(datapath, rx)
}

#[test]
fn who_has_fewer_parts_than_threads_says_why_and_works() {
    let (hub, plight) = (Hub::default(), Arc::default());
    let mut rx = rx();
    let mut b = spread(&hub, Waiting::Sleep, 1, &plight);
    let said = b.threads();
    assert_eq!((said.wanted(), said.received().len(), said.short().as_deref()), (3, 2, Some("there are 1 more")));
    send(&mut sender(&hub), &[102], 5);
    assert_eq!(next(&mut b, &mut rx), 5);
    drop(b);
    // One that cannot be split at all.
    let [one, two] = threads(Waiting::Sleep);
    let mut b = OnThread::spread(&one, &[two], Box::new(hub.port(2))).unwrap();
    b.open().unwrap();
    assert_eq!(b.threads().received(), [0]);
    assert_eq!(b.threads().short().as_deref(), Some("loopback is received by one thread"));
    send(&mut sender(&hub), &[2], 6);
    assert_eq!((next(&mut b, &mut rx), b.threads().received()), (6, vec![1]));
}

#[test]
fn when_a_thread_has_ended_the_datapath_is_lost_and_opens_again_on_the_others() {
    let (hub, plight) = (Hub::default(), Arc::<Plight>::default());
    let mut b = spread(&hub, Waiting::Sleep, 2, &plight);
    let mut a = sender(&hub);
    assert_eq!(b.lost(), None);
    plight.panics.store(true, Ordering::SeqCst);
    send(&mut a, &[102], 1);
    let start = Instant::now();
    let lost = loop {
        if let Some(lost) = b.lost() {
            break lost;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(lost.contains("polling thread has ended"), "{lost}");
    b.close();
    b.open().unwrap();
    assert_eq!((b.lost(), b.threads().received()), (None, vec![0, 0]));
    assert!(b.threads().short().unwrap().contains("has ended"), "{:?}", b.threads());
    let mut rx = rx();
    for (number, port) in [(7, 2), (8, 102)] {
        send(&mut a, &[port], number);
        assert_eq!(next(&mut b, &mut rx), number);
    }
    assert_eq!(b.threads().received(), [1, 1]);
}

#[test]
fn whether_it_was_lost_is_asked_without_waiting_for_its_thread() {
    let (hub, plight) = (Hub::default(), Arc::<Plight>::default());
    let [one] = threads(Waiting::Spin);
    let mut b = OnThread::new(&one, Ports::new(&hub, 2, 0, &plight)).unwrap();
    b.open().unwrap();
    let ((tell, told), (go_on, wait)) = (channel(), channel());
    *plight.held.lock().unwrap() = Some((tell, wait));
    told.recv_timeout(PATIENCE).expect("the thread looks at it");
    plight.lost.store(true, Ordering::SeqCst);
    // Its thread stands still, with the datapath in its hands.
    let (say, said) = channel();
    let asks = std::thread::spawn(move || {
        let first = b.lost();
        say.send(first).unwrap();
        b
    });
    let first = said.recv_timeout(PATIENCE);
    drop(go_on);
    assert_eq!(first, Ok(None), "the answer to the question before");
    let (mut b, start) = (asks.join().unwrap(), Instant::now());
    while b.lost().as_deref() != Some("it went") {
        assert!(start.elapsed() < PATIENCE, "the question has no answer");
    }
    // Who is asleep is woken for the question; and nothing is left of the answer when it is opened again.
    b.close();
    plight.lost.store(false, Ordering::SeqCst);
    b.open().unwrap();
    assert_eq!(b.lost(), None);
    *plight.mute.lock().unwrap() = Some(Bell::new().unwrap());
    let [sleeps] = threads(Waiting::Sleep);
    let mut c = OnThread::new(&sleeps, Ports::new(&hub, 3, 0, &plight)).unwrap();
    c.open().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    plight.lost.store(true, Ordering::SeqCst);
    while c.lost().is_none() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < PATIENCE, "nobody woke it");
    }
}

#[test]
fn what_is_dropped_is_gone_at_once_whoever_still_asks_for_its_counts() {
    let (hub, plight) = (Hub::default(), Arc::<Plight>::default());
    for waiting in [Waiting::Spin, Waiting::Sleep] {
        let [one, two, three] = threads(waiting);
        let mut b = OnThread::spread(&one, &[two.clone(), three.clone()], Ports::new(&hub, 2, 2, &plight)).unwrap();
        b.open().unwrap();
        let counts = b.threads();
        send(&mut sender(&hub), &[2, 102, 202], 7);
        let mut rx = rx();
        for _ in 0..3 {
            assert_eq!(next_any(&mut b, &mut rx), 7);
        }
        assert_eq!(Arc::strong_count(&plight), 4, "all three parts have it");
        drop(b);
        assert_eq!(Arc::strong_count(&plight), 1, "{waiting:?}");
        assert_eq!(counts.received(), [1, 1, 1], "what was counted stays");
    }
}
