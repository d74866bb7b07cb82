//! How a reliable source waits for room, and finds out at its deadline whom to give up for it.
//!
//! One link leads to all sinks of a session, and one to all those of other hosts, so a full link does not say who is slow. At the
//! source's deadline its consumer is asked, and the sinks that it names are given up; the others stay. Who took something in the second
//! half of the wait is slow and no reason to be given up: the source waits once more. A consumer that says nothing in time is
//! stopped, and all of the source's sinks on its link are given up.

use super::Source;
use crate::error::{Code, Result};
use crate::options::{Wait, WhenFull};
use crate::spin::Spin;
use crate::tx::{Holder, Place, Taken, Tx};
use insane_shm::biased::BiasedGuard;
use insane_shm::wait::wait_any;
use insane_wire::id::SinkId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the answer is waited for, at least and at most: the deadline again, if that is between.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How often it is looked at what nobody wakes the source for.
const UNSEEN: Duration = Duration::from_millis(1);

/// After so many deadlines in a row without anybody to be given up for it a source gives up its own sinks on a link.
const VAIN: u32 = 2;

/// A wait for room.
#[derive(Debug)]
struct Waiting {
    start: Instant,
    /// What sinks had taken at half of the deadline.
    half: Option<Taken>,
    asked: Option<Asked>,
    /// Links on which sinks that may have held it up have taken something since then.
    slow: Vec<usize>,
    /// How many deadlines in a row have brought nothing on a link.
    vain: HashMap<usize, u32>,
    /// Links whose sinks were given up: as good as gone.
    given_up: Vec<usize>,
}

/// What was asked at a deadline.
#[derive(Debug)]
struct Asked {
    number: u32,
    since: Instant,
    /// Of which link and source, and how many sinks that had there.
    about: Vec<(usize, u32, usize)>,
}

/// What is to be done at a deadline.
#[derive(Debug, Default)]
struct Step {
    /// Links on which all sinks of these sources are given up.
    all: Vec<(u32, usize)>,
    /// What is to be asked: link, source, sinks.
    about: Vec<(usize, u32, Vec<SinkId>)>,
}

impl Waiting {
    fn new() -> Self {
        let (slow, vain, given_up) = (Vec::new(), HashMap::new(), Vec::new());
        Self { start: Instant::now(), half: None, asked: None, slow, vain, given_up }
    }

    /// Another deadline begins.
    fn begin_again(&mut self) {
        (self.start, self.half, self.asked) = (Instant::now(), None, None);
        self.slow.clear();
    }

    /// No answer is waited for any more.
    fn ask_no_more(&self, tx: &mut Tx) {
        self.asked.iter().for_each(|asked| tx.ask_no_more(asked.number));
    }

    /// A deadline has brought nothing on a link; whether that was once too often.
    fn is_in_vain(&mut self, at: usize) -> bool {
        let vain = self.vain.entry(at).or_default();
        *vain += 1;
        *vain >= VAIN
    }

    /// What is to be done about these full links, for which a source has waited long enough.
    fn step(&mut self, tx: &mut Tx, (index, source): (usize, u32), full: &[usize], place: Place) -> Step {
        let mut step = Step::default();
        let half = self.half.take().unwrap_or_default();
        for at in full.iter().copied() {
            // Who does not map what is to be read does not read it; and a plan of faults means all sinks there.
            let holder = if !tx.reaches(at, place) || tx.is_made_full_on(index, at) {
                Holder::All(source)
            } else {
                tx.who_holds(at, source, self.start.elapsed(), &half)
            };
            match holder {
                Holder::Nobody => {
                    self.vain.remove(&at);
                }
                Holder::Others if self.is_in_vain(at) => step.all.push((source, at)),
                Holder::Others => {}
                Holder::All(by) => step.all.push((by, at)),
                Holder::Among(by, sinks) => {
                    self.slow.extend(tx.have_taken(at, [source, by], &half).then_some(at));
                    step.about.push((at, by, sinks));
                }
            }
        }
        step
    }
}

impl Source {
    /// Waits until every link has room; at the deadline gives up the sinks that hold up those that have none, or fails. Returns the lock
    /// under which it was so: whoever else emits meanwhile takes room. Links that fill up while others are given up have the time
    /// that those had.
    #[cold]
    pub(super) fn await_room(&self, place: Place) -> Result<BiasedGuard<'_, Tx>> {
        let mut waiting = Waiting::new();
        let mut spin = Spin::new();
        self.stream.tx.lock().flush(self.index);
        let (deadline, drops) = (self.options.deadline, self.options.when_full == WhenFull::DropSink);
        loop {
            let mut tx = self.stream.tx.lock();
            let mut full = tx.full_links(self.index, place);
            // They are as good as gone.
            full.retain(|at| !waiting.given_up.contains(at));
            let Some(first) = full.first().copied() else {
                waiting.ask_no_more(&mut tx);
                return Ok(tx);
            };
            let parked = full.iter().any(|at| tx.is_link_parked(*at));
            if parked && drops {
                // What was asked of the one was forgotten, and of another it is asked again.
                waiting.ask_no_more(&mut tx);
                waiting.begin_again();
            }
            let waited = waiting.start.elapsed();
            if drops && waited >= deadline / 2 && waiting.half.is_none() && waiting.asked.is_none() {
                waiting.half = Some(tx.taken_on(&full));
            }
            if waited >= deadline {
                if !drops {
                    return Err(Code::SinkFull.into());
                }
                drop(tx);
                if self.act(&mut waiting, &full, place) {
                    continue;
                }
                tx = self.stream.tx.lock();
            }
            if self.options.wait != Wait::Sleep {
                drop(tx);
                if self.options.wait == Wait::Adaptive && spin.rests() {
                    continue;
                }
                if self.options.wait == Wait::Spin {
                    std::hint::spin_loop();
                    continue;
                }
                tx = self.stream.tx.lock();
            }
            self.sleep_for_room(tx, &waiting, (first, place), parked);
        }
    }

    /// Sleeps until a link may have room, or there is something else to look at.
    fn sleep_for_room(
        &self,
        mut tx: BiasedGuard<'_, Tx>,
        waiting: &Waiting,
        (first, place): (usize, Place),
        parked: bool,
    ) {
        let Some(link) = tx.links[first].as_mut() else { return };
        let announced = link.producer.prepare_sleep();
        link.room_sleepers += 1;
        let word = link.producer.wait_word(announced);
        let room = !tx.full_links(self.index, place).contains(&first);
        // Nobody is woken by these.
        let unseen =
            parked || waiting.asked.is_some() || !tx.reaches(first, place) || tx.is_made_full_on(self.index, first);
        drop(tx);
        if !room {
            // In slices, so that the end of the link is seen too.
            let deadline = self.options.deadline;
            let looks_at_half = self.options.when_full == WhenFull::DropSink && waiting.half.is_none();
            let until = if looks_at_half { deadline / 2 } else { deadline };
            let left = until.saturating_sub(waiting.start.elapsed());
            let slice = if unseen { UNSEEN } else { Duration::from_millis(100) };
            wait_any(&[word], Some(if waiting.asked.is_some() { slice } else { left.min(slice) }));
        }
        let mut tx = self.stream.tx.lock();
        if let Some(link) = tx.links[first].as_mut() {
            link.room_sleepers = link.room_sleepers.saturating_sub(1);
            if link.room_sleepers == 0 {
                link.producer.awake();
            }
        }
    }

    /// Does at a deadline what can be done for room on these links. `false`: an answer is still waited for.
    fn act(&self, waiting: &mut Waiting, full: &[usize], place: Place) -> bool {
        let own = self.number;
        let mut tx = self.stream.tx.lock();
        let all = if let Some(asked) = waiting.asked.take() {
            let late = tx.unanswered(asked.number);
            if !late.is_empty() && asked.since.elapsed() < self.options.deadline.clamp(PATIENCE.0, PATIENCE.1) {
                waiting.asked = Some(asked);
                return false;
            }
            tx.ask_no_more(asked.number);
            let mut all = Vec::new();
            for (at, source, sinks) in asked.about {
                if late.contains(&at) {
                    all.extend([(source, at), (own, at)]);
                } else if tx.sinks_on(at, source) < sinks || waiting.slow.contains(&at) {
                    waiting.vain.remove(&at);
                } else if waiting.is_in_vain(at) {
                    all.push((own, at));
                }
            }
            waiting.begin_again();
            all
        } else {
            let Step { all, about } = waiting.step(&mut tx, (self.index, own), full, place);
            if about.is_empty() {
                waiting.begin_again();
            } else {
                let counts = about.iter().map(|(at, source, _)| (*at, *source, tx.sinks_on(*at, *source))).collect();
                let (number, asks) = tx.ask(about);
                waiting.asked = Some(Asked { number, since: Instant::now(), about: counts });
                self.stream.session.ask_who_lags(&self.stream, asks);
            }
            all
        };
        drop(tx);
        for (source, at) in all {
            self.stream.session.give_up(&self.stream, source, &[at]);
            if source == own {
                waiting.given_up.push(at);
            }
        }
        true
    }
}
