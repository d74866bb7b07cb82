//! How the network thread sleeps: for how long nothing is due, and until what wakes it.

use super::{AWAITING, BELL, GLANCE, Hub, LATER, MOVING, POLLING, TENDING};
use crate::network::domain::Domain;
use crate::network::host::Host;
use insane_datapath::Armed;
use insane_shm::wait::SleepKinds;
use insane_transport::Path;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

impl Hub {
    /// How long nothing is due.
    pub(crate) fn idle_for(&mut self, now: Duration) -> Duration {
        let mut timeout = Duration::from_millis(500);
        let mut until = |at: Duration| timeout = timeout.min(at.saturating_sub(now));
        let lanes = self.hosts.iter_mut().filter(|h| !h.is_dormant()).flat_map(|h| h.lanes.paths());
        lanes.filter_map(Path::timeout).for_each(&mut until);
        if self.later.len() > 0 || self.domains.iter().any(|domain| !domain.held.is_empty()) {
            until(now + LATER);
        }
        self.directory_at.into_iter().for_each(&mut until);
        self.flush_pairs(now).into_iter().for_each(&mut until);
        if self.chores_due {
            until(self.chores_at);
        }
        let holds_end = self.hosts.iter().filter_map(|host| host.lanes.holds_end());
        self.reports_at().into_iter().chain(holds_end).for_each(|at| until(at.max(self.chores_at)));
        let awaited = self.domains.iter().any(Domain::is_awaited);
        if awaited {
            let first = || if self.domains.iter().any(Domain::holds_up_a_move) { MOVING } else { AWAITING.0 };
            let awaiting = self.awaiting.unwrap_or_else(first);
            until(now + awaiting);
            self.awaiting = Some((awaiting * 2).min(AWAITING.1));
        }
        if self.hosts.iter().any(Host::is_awaited) {
            until(now + AWAITING.1);
        }
        if self.ports.iter().any(|port| !port.tx.is_done()) {
            until(now + Duration::from_micros(100));
        }
        timeout
    }

    /// Sleeps until something happens or is due. Returns whether something happened.
    pub(super) fn sleep(&mut self, now: Duration, also: &[BorrowedFd<'_>], at_most: Duration) -> bool {
        // What this turn has left out.
        if self.tend_at != now + TENDING && self.tend() {
            return false;
        }
        let mut timeout = self.idle_for(now).min(at_most);
        if timeout.is_zero() || self.hosts.iter().any(|host| host.goes_on) {
            return false;
        }
        let (mut ready, mut polled) = (false, false);
        for port in &mut self.ports {
            let armed = port.datapath.arm();
            ready |= armed == Armed::Ready;
            port.polled = armed == Armed::Poll;
            polled |= port.polled;
        }
        // What wakes nobody is looked at again and again, less and less often while nothing happens.
        if polled {
            timeout = timeout.min(self.polling);
            self.polling = (self.polling * 2).min(POLLING.1);
        }
        for intake in self.domains.iter_mut().flat_map(|d| d.intakes.iter_mut().flatten()) {
            if intake.broken.is_none() && !intake.gone && !intake.held {
                intake.consumer.settle();
                intake.consumer.prepare_sleep(SleepKinds::DOORBELL);
                intake.armed = true;
                ready |= intake.consumer.ready();
            }
        }
        let woken = ready || self.wait(timeout, also);
        self.drained = None;
        for intake in self.domains.iter_mut().flat_map(|d| d.intakes.iter_mut().flatten()) {
            if std::mem::take(&mut intake.armed) {
                intake.consumer.awake();
            }
        }
        woken
    }

    /// Sleeps so long at most, until a datapath or anything else wakes it; what else did is done. Returns whether anything did.
    ///
    /// The datapaths' handles are no part of the epoll set: most sleeps end with a frame, and then there is nothing to ask it. It is
    /// poll that waits, because epoll_wait rounds up to milliseconds.
    fn wait(&mut self, timeout: Duration, also: &[BorrowedFd<'_>]) -> bool {
        let ports = self.ports.iter().filter_map(|port| port.datapath.wake_handle());
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let all = std::iter::once(self.epoll.as_fd()).chain(ports).chain(also.iter().copied());
        let mut waited: Vec<PollFd<'_>> = all.map(of).collect();
        // A signal ends it early, no more.
        let woken = poll(&mut waited, Timespec::try_from(timeout).ok().as_ref()).is_ok_and(|ready| ready > 0);
        if waited.first().is_some_and(|set| !set.revents().is_empty()) {
            self.look();
        }
        self.glance_at = self.now() + GLANCE;
        woken
    }

    /// Looks for events of all but the datapaths, and does what they say. Returns whether there were any.
    pub(super) fn look(&mut self) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let now = Timespec::default();
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_err() {
            return false;
        }
        for data in events.iter().map(|e| e.data.u64()) {
            if data == BELL {
                self.ends.bell.clear();
                self.take_orders();
            } else {
                self.woken(data);
            }
        }
        self.look_at_early();
        !events.is_empty()
    }
}
