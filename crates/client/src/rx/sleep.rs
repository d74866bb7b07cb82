//! How threads sleep for a stream's sinks, and how their sleeps end.

use super::Rx;
use insane_shm::wait::{SleepKinds, WaitWord};
use rustix::fd::OwnedFd;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A sleep that was announced: where to wait, and whom to tell afterwards.
#[derive(Debug)]
pub(crate) struct Sleep {
    pub(crate) words: SmallVec<[WaitWord; 4]>,
    links: SmallVec<[(usize, u32); 4]>,
    number: u64,
}

/// A wait set that looks at a stream.
#[derive(Debug)]
pub(super) struct WaitingSet {
    nudge: Weak<OwnedFd>,
    /// It was armed, and not told since.
    asleep: bool,
    /// The places of the sinks that are in it.
    sinks: Vec<usize>,
}

impl WaitingSet {
    fn is(&self, nudge: &Arc<OwnedFd>) -> bool {
        std::ptr::eq(self.nudge.as_ptr(), Arc::as_ptr(nudge))
    }

    /// Makes its descriptor readable. `false`: it is gone.
    fn nudge(&mut self) -> bool {
        self.asleep = false;
        let Some(fd) = self.nudge.upgrade() else { return false };
        // A full counter is readable already.
        let _ = rustix::io::write(&*fd, &1u64.to_ne_bytes());
        true
    }
}

/// Tells those that sleep and have one of these sinks, once each.
pub(super) fn nudge_for(sets: &mut Vec<WaitingSet>, sinks: impl Iterator<Item = usize> + Clone) {
    if sets.iter().any(|set| set.asleep) {
        sets.retain_mut(|set| !(set.asleep && sinks.clone().any(|sink| set.sinks.contains(&sink))) || set.nudge());
    }
}

impl Rx {
    /// Announces that a thread sleeps for this sink, and looks again. `None`: there is something, do not sleep.
    pub(crate) fn announce(&mut self, sink: usize) -> Option<Sleep> {
        let me = self.sinks.get(sink).and_then(Option::as_ref)?;
        if !me.open || !me.queue.is_empty() || self.refused.contains_key(&sink) {
            return None;
        }
        let seen = me.interrupt.load(Ordering::Acquire);
        let mut sleep = Sleep { words: SmallVec::new(), links: SmallVec::new(), number: self.next_sleep };
        self.next_sleep += 1;
        for (at, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|l| l.broken.is_none()) else { continue };
            link.consumer.settle();
            let kinds = if link.armed { SleepKinds::FUTEX.and(SleepKinds::DOORBELL) } else { SleepKinds::FUTEX };
            let announced = link.consumer.prepare_sleep(kinds);
            link.asleep.push(sleep.number);
            sleep.words.push(link.consumer.wait_word(announced));
            sleep.links.push((at, link.generation));
        }
        // Sleeping on one word is half the work for the kernel; then it is the link's, see `rouse`.
        if sleep.words.len() != 1
            && let Some(Some(me)) = self.sinks.get(sink)
        {
            sleep.words.push(WaitWord::interrupt(&me.interrupt, seen));
        }
        if self.links.iter().flatten().any(|l| l.broken.is_none() && l.ready()) {
            self.awake(&sleep);
            return None;
        }
        Some(sleep)
    }

    /// A thread that [`Self::announce`]d is awake.
    pub(crate) fn awake(&mut self, sleep: &Sleep) {
        for (at, generation) in &sleep.links {
            let Some(link) = self.links[*at].as_mut().filter(|l| l.generation == *generation) else { continue };
            link.asleep.retain(|n| *n != sleep.number);
            if link.asleep.is_empty() && !link.armed {
                link.consumer.awake();
            }
            if link.peer_gone || link.broken.is_some() {
                self.sweep(*at);
            }
        }
    }

    /// Ends the sleeps on all links. A thread between its announcement and its sleep is missed, so the service thread goes on
    /// with [`Self::rouse_again`] until all have left.
    pub(super) fn rouse(&mut self) {
        let all = self.next_sleep;
        for link in self.links.iter_mut().flatten().filter(|l| !l.asleep.is_empty()) {
            link.roused = all;
            link.consumer.rouse();
            link.session.rousing.store(true, Ordering::Release);
        }
    }

    /// Ends the sleeps that are to end and are not over. Returns whether there are any.
    pub(crate) fn rouse_again(&mut self) -> bool {
        let mut any = false;
        for link in self.links.iter_mut().flatten() {
            if link.asleep.iter().any(|n| *n < link.roused) {
                link.consumer.rouse();
                any = true;
            }
        }
        any
    }

    /// Ends every wait on this stream, so that the waiters look at its links again.
    pub(crate) fn interrupt(&mut self) {
        for sink in self.sinks.iter_mut().flatten() {
            sink.interrupt.fetch_add(1, Ordering::Release);
            insane_shm::wait::wake_own(&sink.interrupt);
            crate::session::lock(&self.wakers).extend(sink.tasks.take());
        }
        self.rouse();
        self.nudge();
    }

    /// Arms the doorbells of all links, and looks again. `false`: there is something now.
    pub(crate) fn arm(&mut self, sink: usize) -> bool {
        for link in self.links.iter_mut().flatten().filter(|l| l.broken.is_none()) {
            link.consumer.settle();
            let kinds = if !link.asleep.is_empty() {
                SleepKinds::DOORBELL.and(SleepKinds::FUTEX)
            } else {
                SleepKinds::DOORBELL
            };
            link.consumer.prepare_sleep(kinds);
            link.armed = true;
        }
        let queued = self.sinks.get(sink).and_then(Option::as_ref).is_none_or(|s| !s.open || !s.queue.is_empty());
        let ready = self.links.iter().flatten().any(|l| l.broken.is_none() && l.ready());
        !queued && !ready && !self.refused.contains_key(&sink)
    }

    /// A wait set looks for a sink of this stream from now on, by the event descriptor that it is told with.
    pub(crate) fn add_set(&mut self, nudge: &Arc<OwnedFd>, sink: usize) {
        self.sets.retain(|set| set.nudge.strong_count() > 0);
        match self.sets.iter_mut().find(|set| set.is(nudge)) {
            Some(set) => set.sinks.push(sink),
            None => self.sets.push(WaitingSet { nudge: Arc::downgrade(nudge), asleep: false, sinks: vec![sink] }),
        }
    }

    /// A wait set is about to sleep. If it took what `rang` for all that armed the links, the others look as well: who took
    /// it may leave on the link, or move to another sink's queue, what they wait for.
    pub(crate) fn set_sleeps(&mut self, nudge: &Arc<OwnedFd>, rang: bool) {
        self.set_looks(nudge);
        if rang {
            self.nudge_sleepers();
            self.call_all();
        }
        self.sets.iter_mut().filter(|set| set.is(nudge)).for_each(|set| set.asleep = true);
    }

    /// A wait set is awake and need not be told of what it finds.
    pub(crate) fn set_looks(&mut self, nudge: &Arc<OwnedFd>) {
        self.sets.iter_mut().filter(|set| set.is(nudge)).for_each(|set| set.asleep = false);
    }

    /// Tells the wait sets that look at this stream.
    pub(crate) fn nudge(&mut self) {
        self.sets.retain_mut(WaitingSet::nudge);
    }

    /// A wait set has a sink no more. Whether it has others of this stream.
    pub(crate) fn leave_set(&mut self, nudge: &Arc<OwnedFd>, sink: usize) -> bool {
        let Some(at) = self.sets.iter().position(|set| set.is(nudge)) else { return false };
        let sinks = &mut self.sets[at].sinks;
        sinks.iter().position(|one| *one == sink).map(|one| sinks.swap_remove(one));
        let more = !sinks.is_empty();
        if !more {
            self.sets.swap_remove(at);
        }
        more
    }

    /// Tells those that sleep, once each.
    pub(super) fn nudge_sleepers(&mut self) {
        if self.sets.iter().any(|set| set.asleep) {
            self.sets.retain_mut(|set| !set.asleep || set.nudge());
        }
    }

    /// Has the service thread call the wakers of all sinks.
    fn call_all(&mut self) {
        let wakers: Vec<_> = self.sinks.iter_mut().flatten().flat_map(|s| s.tasks.take()).collect();
        self.alarm |= !wakers.is_empty();
        crate::session::lock(&self.wakers).extend(wakers);
    }

    /// Takes the arming back.
    pub(crate) fn disarm(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.armed = false;
            if link.asleep.is_empty() {
                link.consumer.awake();
            }
        }
    }
}
