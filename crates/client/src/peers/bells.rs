//! Doorbells of links on which this session consumes: a waiter sleeps in an event loop, which may be the service thread's.
//!
//! A bell whose other end was closed is readable for ever, so it is not listened to any more. Whoever is to ring it is mostly gone,
//! and its pair ends in a moment; who stays has broken its word, because nobody would hear of its messages.

use super::{Incoming, Peers};
use crate::service::watch;
use crate::stream::StreamShared;
use insane_shm::doorbell;
use insane_wire::peer::{self, to_peer::Body};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Event data of doorbells begin here.
pub(super) const FIRST_BELL: u64 = 1 << 32;

/// Within so long of the end of a bell its peer is seen to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// A bell that the service thread listens to.
#[derive(Debug)]
pub(super) struct Bell {
    stream: Arc<StreamShared>,
    at: usize,
    /// Open as long as it is in the epoll, out of which it could not be taken otherwise.
    bell: Arc<OwnedFd>,
}

impl Peers {
    /// Gives every link of a stream a doorbell. If they are to be `watched` it is this thread that listens and calls wakers.
    pub(crate) fn ensure_bells(&mut self, stream: &Arc<StreamShared>, watched: bool) {
        for pair in self.pairs.iter_mut().flatten() {
            let links: Vec<(u32, usize)> =
                pair.incoming.iter().filter(|(_, i)| Arc::ptr_eq(&i.stream, stream)).map(|(l, i)| (*l, i.at)).collect();
            for (link, at) in links {
                let mut theirs = None;
                let mut rx = stream.rx.visit();
                let Some(l) = rx.links[at].as_mut().filter(|l| !l.is_silent()) else { continue };
                if l.bell.is_none() {
                    let Ok((mine, other)) = doorbell::pair() else { continue };
                    (l.bell, theirs) = (Some(Arc::new(mine)), Some(other));
                }
                if let (true, Some(bell), false) = (watched, &l.bell, l.watched) {
                    let data = self.next_bell;
                    self.next_bell += 1;
                    if watch(self.epoll.as_fd(), bell.as_fd(), data).is_ok() {
                        self.bells.insert(data, Bell { stream: stream.clone(), at, bell: bell.clone() });
                        l.watched = true;
                    }
                }
                drop(rx);
                if let Some(theirs) = theirs {
                    pair.send(link, Body::Doorbell(peer::Empty {}), &[theirs.as_fd()]);
                }
            }
        }
    }

    pub(super) fn rung(&mut self, data: u64) {
        let Some(bell) = self.bells.get(&data) else { return };
        let is_over = !doorbell::silence(bell.bell.as_fd());
        let mut rx = bell.stream.rx.visit();
        for link in rx.links.iter_mut().flatten() {
            link.silence(is_over.then_some(&bell.bell));
        }
        rx.disarm();
        // Who armed the same links looks again.
        rx.nudge();
        let wakers: Vec<_> = rx.sinks.iter_mut().flatten().flat_map(|s| s.tasks.take()).collect();
        drop(rx);
        wakers.into_iter().for_each(std::task::Waker::wake);
        if is_over {
            self.bells.remove(&data).into_iter().for_each(|bell| self.take_down(&bell));
            self.note_deaf();
        }
    }

    fn take_down(&self, bell: &Bell) {
        let _ = epoll::delete(&*self.epoll, &*bell.bell);
    }

    /// A link has ended: nobody is to be woken by its bells, however long it is kept.
    pub(super) fn take_bells_down(&mut self, incoming: &Incoming) {
        let is_its = |bell: &Bell| bell.at == incoming.at && Arc::ptr_eq(&bell.stream, &incoming.stream);
        let gone: Vec<u64> = self.bells.iter().filter(|(_, b)| is_its(b)).map(|(data, _)| *data).collect();
        for data in gone {
            self.bells.remove(&data).into_iter().for_each(|bell| self.take_down(&bell));
        }
    }

    /// Sees which peers have closed bells.
    pub(super) fn note_deaf(&mut self) {
        for pair in self.pairs.iter_mut().flatten().filter(|p| p.deaf.is_none()) {
            let is_deaf = |i: &Incoming| i.stream.rx.visit().links[i.at].as_ref().is_some_and(|l| l.deaf);
            pair.deaf = pair.incoming.values().any(is_deaf).then(Instant::now);
        }
    }

    /// When a peer with closed bells is to be gone.
    pub(super) fn deaf_at(&self) -> Option<Instant> {
        self.pairs.iter().flatten().filter_map(|p| p.deaf).min().map(|since| since + GONE_WITHIN)
    }

    /// Peers that have closed bells and are still there have broken the protocol.
    pub(super) fn tend_deaf(&mut self) {
        for pair in self.pairs.iter_mut().flatten() {
            if pair.deaf.is_some_and(|since| since.elapsed() >= GONE_WITHIN) {
                pair.failed.get_or_insert_with(|| "it closed a doorbell that it is to ring".into());
            }
        }
    }
}
