//! What every datapath must do, as tests that each calls with a pair of its own.
//!
//! A [`Rig`] is two opened datapaths that reach each other over an undisturbed path. Each check is a function, so that a
//! failure names it; [`all`] runs them. Frames have a number in their first eight bytes and a pattern after it; where a
//! datapath carries whole Ethernet frames, this is behind an Ethernet header and a length ([`Form`]).

mod form;
mod trouble;
mod wrapped;

pub use form::{ETHERTYPE, Form};
pub use trouble::{
    End, Reopen, a_link_that_went_down_comes_back, a_peer_that_restarts_is_reached_again,
    a_sleeper_is_woken_every_time, bursts_beyond_all_room_do_no_harm, closing_under_load_ends_it,
};
pub use wrapped::{all_behind_a_fault_injector, all_behind_a_tap};

use std::time::{Duration, Instant};

use crate::batch::{Landing, Outcome, Peeked, Place, RxBatch, Then, TxBatch};
use crate::memory::{Piece, Slot};
use crate::{Address, Armed, Datapath};

/// Two datapaths that reach each other.
pub struct Rig {
    /// The one that sends.
    pub a: Box<dyn Datapath>,
    /// The one that receives.
    pub b: Box<dyn Datapath>,
}

impl core::fmt::Debug for Rig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Rig({:?} -> {:?})", self.a.address(), self.b.address())
    }
}

/// The limit of everything here that waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether everything has come: looks found nothing for 100 ms. A look counts for a millisecond at most, so that time in which nobody
/// looked, as the machine stopped whoever does, is not taken for quiet.
#[derive(Debug)]
struct Quiet {
    looked: Instant,
    lasted: Duration,
}

impl Quiet {
    fn new() -> Self {
        Self { looked: Instant::now(), lasted: Duration::ZERO }
    }

    /// After a look, which `came` says to have brought something.
    fn note(&mut self, came: bool) {
        let now = Instant::now();
        let since = now.duration_since(self.looked).min(Duration::from_millis(1));
        self.lasted = if came { Duration::ZERO } else { self.lasted + since };
        self.looked = now;
    }

    fn is_over(&self) -> bool {
        self.lasted >= Duration::from_millis(100)
    }
}

/// Runs every check, each on a rig of its own.
///
/// # Panics
/// When the datapath breaks its contract; the text says which part.
pub fn all(mut rig: impl FnMut() -> Rig) {
    every_frame_has_an_outcome(&mut rig());
    all_but_outcomes(&mut rig, &mut open_again);
}

/// Runs every check, each on a rig of its own, over a cable that can be taken down: `set_up` does that with one end's link, by its
/// number, and `reopen` opens an end again, in its namespace for example. [`every_frame_has_an_outcome`] is the caller's to run or to
/// replace: where a packet engine waits for neighbours, other outcomes are right.
///
/// # Panics
/// When the datapath breaks its contract; the text says which part.
pub fn all_over_a_cable(mut rig: impl FnMut() -> Rig, reopen: Reopen<'_>, set_up: &mut dyn FnMut(usize, bool)) {
    all_but_outcomes(&mut rig, reopen);
    for end in 0..2 {
        a_link_that_went_down_comes_back(&mut rig(), &mut |up| set_up(end, up));
    }
}

/// Runs every check but [`every_frame_has_an_outcome`], which counts all frames, each on a rig of its own: for ends that exchange
/// frames until they reach each other. `reopen` opens an end again and may wait for that.
///
/// # Panics
/// When the datapath breaks its contract; the text says which part.
pub fn all_but_outcomes(rig: &mut dyn FnMut() -> Rig, reopen: Reopen<'_>) {
    frames_arrive_whole(&mut rig());
    order_is_kept_and_nothing_repeated(&mut rig());
    payload_is_gathered(&mut rig());
    every_slot_comes_back(&mut rig());
    nothing_waits(&mut rig());
    a_sleeper_is_woken(&mut rig());
    payload_lands_where_it_belongs(&mut rig());
    closing_ends_it(rig(), reopen);
    a_sleeper_is_woken_every_time(&mut rig());
    bursts_beyond_all_room_do_no_harm(&mut rig());
    a_peer_that_restarts_is_reached_again(&mut rig(), reopen);
    closing_under_load_ends_it(&mut rig(), reopen);
}

/// Opens an end again where opening takes no more than that.
///
/// # Panics
/// When it does not open.
pub fn open_again(_end: End, datapath: &mut dyn Datapath) {
    datapath.open().expect("it opens again");
}

/// The address of the receiving end.
fn target(rig: &Rig) -> Address {
    rig.b.address().expect("an opened datapath has an address")
}

/// A frame of `len` bytes that says its number.
#[must_use]
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    // Every bit of the number is in the pattern, so that a changed number does not pass for another frame.
    let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u64).wrapping_mul(31).wrapping_add(start) as u8).collect();
    let head = len.min(8);
    bytes[..head].copy_from_slice(&number.to_le_bytes()[..head]);
    bytes
}

fn batch(datapath: &dyn Datapath, slots: u64) -> RxBatch {
    let bytes = datapath.capabilities().slot_bytes;
    RxBatch { free: (0..slots).map(|id| Slot::owned(id, bytes)).collect(), ..RxBatch::default() }
}

/// What both ends have counted.
fn counts(rig: &Rig) -> String {
    format!("{:?} {:?}", rig.a.stats(), rig.b.stats())
}

/// Receives until `count` frames have come, and gives the slots back.
fn collect(rig: &mut Rig, count: usize) -> Vec<Vec<u8>> {
    receive_while_sending(rig, None, count)
}

/// Sends the batch, however often it takes, while the other end receives `count` frames.
fn exchange(rig: &mut Rig, tx: &mut TxBatch<'_>, count: usize) -> Vec<Vec<u8>> {
    receive_while_sending(rig, Some(tx), count)
}

fn receive_while_sending(rig: &mut Rig, mut tx: Option<&mut TxBatch<'_>>, count: usize) -> Vec<Vec<u8>> {
    let form = Form::of(rig);
    let mut rx = batch(&*rig.b, 16);
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.len() < count || tx.as_ref().is_some_and(|tx| !tx.is_done()) {
        if let Some(tx) = &mut tx {
            rig.a.transmit(tx);
        }
        rig.b.receive(&mut rx, None);
        for taken in rx.taken.drain(..) {
            got.extend(taken.frames().map(|frame| form.unwrap(frame)));
            rx.free.push(taken.slot);
        }
        assert!(start.elapsed() < PATIENCE, "of {count} frames only {} have come: {}", got.len(), counts(rig));
    }
    got
}

/// Frames of every size from one byte to the limit arrive as they were.
pub fn frames_arrive_whole(rig: &mut Rig) {
    let limit = rig.a.frame_limit(target(rig));
    assert!(limit >= 512 && limit <= rig.a.capabilities().max_frame, "a frame limit of {limit} bytes");
    let form = Form::of(rig);
    let limit = limit - form.head_bytes();
    for len in [0, 1, 7, 8, 9, 43, 44, 45, 46, 63, 64, 500, 512, limit / 2, limit - 1, limit] {
        if len == 0 && !form.is_raw() {
            continue;
        }
        let mut tx = TxBatch::default();
        form.add(&mut tx, target(rig), &pattern(len as u64, len), 0);
        let got = exchange(rig, &mut tx, 1);
        assert_eq!(got, [pattern(len as u64, len)], "a frame of {len} bytes");
    }
}

/// Frames of one and of many sizes in one batch arrive in order, once each, in numbers that need several batches.
pub fn order_is_kept_and_nothing_repeated(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let limit = rig.a.frame_limit(to).min(9000) - form.head_bytes();
    for round in 0..20u64 {
        let sizes: Vec<usize> = (0..100)
            .map(|n| if round % 2 == 0 { limit } else { 9 + (n * 97 + round as usize) % (limit - 9) })
            .collect();
        let mut tx = TxBatch::default();
        for (number, len) in sizes.iter().enumerate() {
            form.add(&mut tx, to, &pattern(number as u64, *len), number as u64);
        }
        let got = exchange(rig, &mut tx, sizes.len());
        for (number, (frame, len)) in got.iter().zip(&sizes).enumerate() {
            assert!(*frame == pattern(number as u64, *len), "frame {number} of round {round} is not what was sent");
        }
        assert_eq!(got.len(), sizes.len(), "frames were repeated");
    }
}

/// A payload apart from its head arrives behind it.
pub fn payload_is_gathered(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let payload = pattern(5, 400);
    let mut tx = TxBatch::default();
    for number in 0..50u64 {
        let start = tx.buffer().len();
        let piece = (number % 3 != 0).then(|| Piece::of(&payload[number as usize..]));
        form.begin(tx.buffer(), 8 + piece.map_or(0, |piece| piece.len()));
        tx.buffer().extend_from_slice(&number.to_le_bytes());
        tx.commit(to, start, piece, number);
    }
    for (number, frame) in exchange(rig, &mut tx, 50).iter().enumerate() {
        let rest = if number % 3 == 0 { &[][..] } else { &payload[number..] };
        assert_eq!((&frame[..8], &frame[8..]), (&(number as u64).to_le_bytes()[..], rest), "frame {number}");
    }
}

/// What cannot be sent is refused by its outcome and holds nothing up.
pub fn every_frame_has_an_outcome(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let too_large = rig.a.capabilities().max_frame + 8;
    let mut tx = TxBatch::default();
    form.add(&mut tx, to, &pattern(1, 100), 11);
    tx.frame(to, &vec![0; too_large], 12);
    form.add(&mut tx, to, &pattern(2, 100), 13);
    let got = exchange(rig, &mut tx, 2);
    assert_eq!(got, [pattern(1, 100), pattern(2, 100)]);
    let outcomes: Vec<_> = tx.frames().iter().map(|frame| (frame.cookie, frame.outcome)).collect();
    assert_eq!(outcomes, [(11, Outcome::Sent), (12, Outcome::TooLarge), (13, Outcome::Sent)]);
    let stats = rig.a.stats();
    assert_eq!((stats.sent_frames, stats.refused_frames), (2, 1));
    assert_eq!(rig.b.stats().received_frames, 2);
}

/// Slots are in the batch afterwards, free or taken, each once; without slots nothing is lost that was not read.
pub fn every_slot_comes_back(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let mut tx = TxBatch::default();
    for number in 0..4 {
        form.add(&mut tx, to, &pattern(number, 100 + number as usize), number);
    }
    while !tx.is_done() {
        rig.a.transmit(&mut tx);
    }
    let mut rx = batch(&*rig.b, 0);
    rig.b.receive(&mut rx, None);
    assert!(rx.taken.is_empty() && rx.free.is_empty());
    let mut rx = batch(&*rig.b, 3);
    let start = Instant::now();
    while rx.taken.iter().map(|taken| taken.frames().count()).sum::<usize>() < 3 {
        rig.b.receive(&mut rx, None);
        let mut ids: Vec<u64> = rx.free.iter().chain(rx.taken.iter().map(|taken| &taken.slot)).map(Slot::id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2], "a slot is missing or twice there");
        assert!(start.elapsed() < PATIENCE, "frames that had no slot at first never came");
    }
    let seen = rx.taken.iter().map(|taken| taken.frames().count()).sum::<usize>();
    drop(rx);
    assert_eq!(collect(rig, 4 - seen).len(), 4 - seen);
}

/// Receiving with nothing there comes back at once with nothing, and sending nothing does nothing.
pub fn nothing_waits(rig: &mut Rig) {
    let mut rx = batch(&*rig.b, 2);
    for _ in 0..100 {
        assert_eq!(rig.b.receive(&mut rx, None).frames, 0);
    }
    assert_eq!((rx.free.len(), rig.a.transmit(&mut TxBatch::default()).sent), (2, 0));
}

/// Who armed and waits is woken by a frame; who arms with a frame there is told or woken.
pub fn a_sleeper_is_woken(rig: &mut Rig) {
    let (to, form) = (target(rig), Form::of(rig));
    let armed = rig.b.arm();
    let Some(handle) = rig.b.wake_handle() else {
        assert_eq!(armed, Armed::Poll, "a datapath without a handle asks to be polled");
        return;
    };
    let handle = handle.try_clone_to_owned().expect("a handle can be duplicated");
    assert_eq!(armed, Armed::Sleep, "there was nothing to receive");
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let _ = tell.send(wait_readable(&handle));
    });
    let mut tx = TxBatch::default();
    form.add(&mut tx, to, &pattern(1, 64), 0);
    while !tx.is_done() {
        rig.a.transmit(&mut tx);
    }
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "the sleeper was not woken");
    sleeper.join().expect("the sleeper ends");
    assert_eq!(collect(rig, 1), [pattern(1, 64)]);
}

fn wait_readable(handle: &std::os::fd::OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&patience)), Ok(1))
}

struct Into200 {
    memory: Vec<u8>,
    asked: usize,
    /// What of a frame is before its number.
    skip: usize,
}

impl Place for Into200 {
    fn expects(&self) -> bool {
        true
    }

    fn place(&mut self, peeked: Peeked<'_>) -> Option<Landing<'_>> {
        self.asked += 1;
        let (head_bytes, mark) = (self.skip + 16, self.skip + 8);
        assert!(peeked.head.len() >= head_bytes && peeked.stride > 0);
        assert!(peeked.len >= peeked.head.len().min(peeked.stride));
        (peeked.head[mark] == 1).then(|| Landing {
            memory: &mut self.memory,
            then: Then::default(),
            head_bytes,
            token: 9,
        })
    }
}

/// Payload goes where it is said to before it is read; what is not wanted there goes into a slot.
pub fn payload_lands_where_it_belongs(rig: &mut Rig) {
    if !rig.b.capabilities().places {
        return;
    }
    let (to, form) = (target(rig), Form::of(rig));
    let (skip, mut tx) = (form.head_bytes(), TxBatch::default());
    let frames = 10;
    for number in 0..frames as u64 {
        let mut frame = pattern(number, 216);
        frame[8] = u8::from(number != 0);
        form.add(&mut tx, to, &frame, 0);
        if number == 0 {
            while !tx.is_done() {
                rig.a.transmit(&mut tx);
            }
        }
    }
    while !tx.is_done() {
        rig.a.transmit(&mut tx);
    }
    let mut rx = batch(&*rig.b, 16);
    let (mut got, mut landed, start) = (0, 0, Instant::now());
    while got < frames {
        let mut place = Into200 { memory: vec![0; 200 * frames], asked: 0, skip };
        rx.limit = 1;
        got += rig.b.receive(&mut rx, Some(&mut place)).frames;
        for taken in rx.taken.drain(..) {
            assert!(taken.frames().all(|frame| frame[skip + 8] == 0), "what was placed is in a slot");
            rx.free.push(taken.slot);
        }
        for one in rx.landed.drain(..) {
            assert_eq!((one.token, one.head_bytes), (9, skip + 16));
            for n in 0..one.count() {
                let head = &rx.heads[one.heads.clone()][n * (skip + 16)..(n + 1) * (skip + 16)];
                let number = u64::from_le_bytes(head[skip..skip + 8].try_into().expect("eight bytes"));
                assert_eq!(place.memory[one.payload(n)], pattern(number, 216)[16..], "the payload of frame {number}");
                landed += 1;
            }
        }
        assert!(start.elapsed() < PATIENCE, "of {frames} frames only {got} have come");
    }
    assert_eq!(landed, frames - 1);
}

/// A closed datapath has no address, refuses frames, receives nothing, and can be opened again.
pub fn closing_ends_it(mut rig: Rig, reopen: Reopen<'_>) {
    let (to, form) = (target(&rig), Form::of(&rig));
    rig.a.close();
    rig.a.close();
    assert_eq!(rig.a.address(), None);
    let mut tx = TxBatch::default();
    form.add(&mut tx, to, b"late", 0);
    assert_eq!(rig.a.transmit(&mut tx).refused, 1);
    assert_eq!(tx.frames()[0].outcome, Outcome::Failed);
    assert_eq!(rig.a.receive(&mut RxBatch::default(), None).frames, 0);
    reopen(End::A, &mut *rig.a);
    let mut tx = TxBatch::default();
    form.add(&mut tx, to, b"once more", 0);
    assert_eq!(exchange(&mut rig, &mut tx, 1), [b"once more"]);
}

#[cfg(test)]
mod tests {
    use super::Quiet;
    use std::time::Duration;

    /// What is there comes when somebody looks again: it is no leftover, and no fault of the datapath.
    #[test]
    fn time_in_which_the_machine_lets_nobody_look_is_no_quiet() {
        let mut quiet = Quiet::new();
        let pause = |for_ms| std::thread::sleep(Duration::from_millis(for_ms));
        quiet.note(true);
        pause(150);
        assert!(!quiet.is_over(), "nobody has looked");
        quiet.note(false);
        assert!(!quiet.is_over(), "once is not enough");
        for look in 1..100 {
            assert!(!quiet.is_over(), "after {look} looks");
            pause(2);
            quiet.note(false);
        }
        assert!(quiet.is_over());
        quiet.note(true);
        assert!(!quiet.is_over(), "something came");
    }
}
