//! Sleeping and waking between two real processes: no wake-up is lost. Judged by state, not by time: in a ping-pong one side
//! is awake or a message is on its way to a side that is being woken, so two sides that both sleep while nothing moves
//! between two looks have lost one.
#![cfg(not(any(loom, miri)))]

use insane_shm::link::{Consumer, DeliveryBlock, Descriptor, Fate, Producer, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer};
use insane_shm::socket::{Received, pair, receive, send};
use insane_shm::wait::{SleepKinds, WakeNeed, wait_any};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ENTRIES: u32 = 16;
const CHILD: &str = "INSANE_ROUNDS_CHILD";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By futex on the producer's wake word.
    Futex,
    /// By a byte on a socket, in a poll.
    Doorbell,
}

/// What a side tells of itself, in memory of its own: rounds done, and 1 while it is about to sleep or sleeps.
struct Log(Arc<dyn Backing>);

impl Log {
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the backing is a page, and the word lies in it.
        let word = unsafe { self.0.base().cast::<AtomicU64>().add(at * 16) };
        // SAFETY: as above; nothing but atomics reach it.
        unsafe { word.as_ref() }
    }
}

/// A pseudo-random sequence (xorshift64*), so that each round sleeps at another moment.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    /// Mostly nothing, sometimes a little, seldom as long as a wake-up takes.
    fn dawdle(&mut self) {
        let turns = match self.up_to(16) {
            0 => self.up_to(20_000),
            1..=4 => self.up_to(500),
            _ => 0,
        };
        for _ in 0..turns {
            std::hint::spin_loop();
        }
    }
}

/// One side: a link in each direction, its log, and the peer's socket.
struct Side {
    out: Producer,
    back: Consumer,
    log: Log,
    theirs: Log,
    bell: OwnedFd,
    way: Way,
    dice: Dice,
}

fn memory(bytes: usize) -> Arc<SharedMemory> {
    Arc::new(SharedMemory::create("rounds", bytes, false, true).expect("memory"))
}

impl Side {
    fn meet(socket: OwnedFd, way: Way, seed: u64) -> Self {
        let (d, r) = (DeliveryBlock::bytes(ENTRIES).expect("size"), ReturnBlock::bytes(ENTRIES).expect("size"));
        let (delivery, returns, log) = (memory(d), memory(r), memory(4096));
        let own_delivery = DeliveryBlock::create(delivery.clone(), ENTRIES).expect("fits");
        let own_returns = ReturnBlock::create(returns.clone(), ENTRIES).expect("fits");
        assert!(send(socket.as_fd(), b"memory", &[delivery.fd(), returns.fd(), log.fd()]).expect("the peer is there"));
        wait_readable(socket.as_fd());
        let Received::Message(_, fds) = receive(socket.as_fd(), 64).expect("the peer's memory") else {
            panic!("the peer is gone")
        };
        let [a, b, c] = &fds[..] else { panic!("{} descriptors", fds.len()) };
        let map = |fd: &OwnedFd, needs: usize| Arc::new(map_peer(fd.as_fd(), needs as u64, 1 << 20).expect("sealed"));
        Self {
            out: Producer::new(own_delivery, ReturnBlock::open(map(b, r), ENTRIES).expect("its layout")),
            back: Consumer::new(own_returns, DeliveryBlock::open(map(a, d), ENTRIES).expect("its layout")),
            log: Log(log),
            theirs: Log(map(c, 4096)),
            bell: socket,
            way,
            dice: Dice(seed),
        }
    }

    fn give(&mut self, n: u64) {
        self.dice.dawdle();
        if self.out.credit() == 0 {
            self.out.reclaim(|_| ()).expect("an honest peer");
        }
        self.out.push(&Descriptor { sequence: n, ..Descriptor::default() }, &n.to_le_bytes());
        if self.out.wake() == WakeNeed::Ring {
            send(self.bell.as_fd(), b"!", &[]).expect("the peer is there");
        }
    }

    fn take(&mut self, n: u64) {
        loop {
            if let Some(got) = self.back.poll().expect("an honest peer") {
                assert_eq!(got.inline_bytes(), n.to_le_bytes(), "round {n}");
                self.back.release(&got.descriptor, Fate::AsCounted);
                return;
            }
            self.back.settle();
            self.dice.dawdle();
            let kinds = if self.way == Way::Futex { SleepKinds::FUTEX } else { SleepKinds::DOORBELL };
            let announced = self.back.prepare_sleep(kinds);
            self.dice.dawdle();
            if !self.back.ready() {
                self.log.word(1).store(1, Ordering::Relaxed);
                match self.way {
                    Way::Futex => drop(wait_any(&[self.back.wait_word(announced)], None)),
                    Way::Doorbell => {
                        wait_readable(self.bell.as_fd());
                        receive(self.bell.as_fd(), 64).expect("the peer is there");
                    }
                }
                self.log.word(1).store(0, Ordering::Relaxed);
                self.log.word(2).fetch_add(1, Ordering::Relaxed);
            }
            self.back.awake();
        }
    }
}

fn wait_readable(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    while poll(&mut fds, None).is_err() {}
}

fn kind(way: Way) -> &'static str {
    if way == Way::Futex { "futex" } else { "doorbell" }
}

/// The other process of the tests below. By itself it starts itself with a socket that nobody holds the other end of, and must
/// end: a test that is ended leaves nobody behind.
#[test]
fn the_other_process_ends_with_its_socket() {
    let Ok(way) = std::env::var(CHILD) else {
        let (ours, theirs) = pair().expect("a socket pair");
        let mut alone = start(Way::Futex, theirs);
        drop(ours);
        assert!(!alone.0.wait().expect("its end").success());
        return;
    };
    let way = if way == "futex" { Way::Futex } else { Way::Doorbell };
    let socket = rustix::io::dup(std::io::stdin()).expect("the socket");
    let mut side = Side::meet(socket, way, 0x9e37_79b9);
    let parent = rustix::process::getppid();
    std::thread::spawn(move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::process::exit(0);
    });
    for n in 1.. {
        side.take(n);
        side.log.word(0).store(n, Ordering::Relaxed);
        side.give(n);
    }
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(way: Way, socket: OwnedFd) -> Reaped {
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["the_other_process_ends_with_its_socket", "--exact", "--nocapture"])
        .env(CHILD, kind(way))
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Reaped(child.expect("the other process"))
}

/// Runs the rounds; panics with the state when a wake-up was lost. Returns how often both sides slept.
fn rounds(way: Way, count: u64) -> u64 {
    let (ours, theirs) = pair().expect("a socket pair");
    let _child = start(way, theirs);
    let seed = u64::from(std::process::id()) << 16 | 1;
    println!("seed {seed}");
    let mut side = Side::meet(ours, way, seed);
    let (mine, its) = (Log(side.log.0.clone()), Log(side.theirs.0.clone()));
    let over = Arc::new(AtomicU64::new(0));
    let seen = over.clone();
    let watcher = std::thread::spawn(move || {
        let look = || [mine.word(0), mine.word(1), mine.word(2), its.word(0), its.word(1), its.word(2)].map(read);
        let mut before = look();
        while seen.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(200));
            let now = look();
            // Both are about to sleep or sleep, and nothing has moved for as long: what would move it?
            if now == before && now[1] == 1 && now[4] == 1 && seen.load(Ordering::Relaxed) == 0 {
                eprintln!("a wake-up was lost: {now:?}");
                std::process::abort();
            }
            before = now;
        }
        its.word(2).load(Ordering::Relaxed)
    });
    for n in 1..=count {
        side.give(n);
        side.take(n);
        side.log.word(0).store(n, Ordering::Relaxed);
    }
    over.store(1, Ordering::Relaxed);
    let slept = side.log.word(2).load(Ordering::Relaxed) + watcher.join().expect("the watcher");
    println!("{count} rounds by {}, {slept} sleeps", kind(way));
    slept
}

fn read(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

#[test]
fn no_wake_up_is_lost_by_futex() {
    // A test in which nobody sleeps shows nothing.
    assert!(rounds(Way::Futex, 100_000) > 10_000);
}

#[test]
fn no_wake_up_is_lost_by_doorbell() {
    assert!(rounds(Way::Doorbell, 100_000) > 10_000);
}

#[test]
#[ignore = "ten million rounds take several minutes"]
fn soak_no_wake_up_is_lost() {
    let rounds_each = std::env::var("INSANE_SOAK_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(10_000_000);
    let slept = rounds(Way::Futex, rounds_each);
    assert!(slept > rounds_each / 10);
    if let Ok(path) = std::env::var("INSANE_SOAK_REPORT") {
        let text = format!("{{\"rounds\": {rounds_each}, \"sleeps\": {slept}, \"lost_wake_ups\": 0}}\n");
        std::fs::write(path, text).expect("the report");
    }
}
