//! The tasks that wait for a sink's messages.

use std::task::Waker;

/// The tasks that wait for one sink. Wakers are never dropped in here, nor cloned: that may run code of the application, which may
/// come back for the stream's lock.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    waiting: Vec<(Option<u64>, Waker)>,
    last: u64,
}

impl Tasks {
    /// A task waits, under the number that it has from an earlier call. Returns its number, and a waker to be dropped without the lock.
    pub(crate) fn wait(&mut self, number: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let number = number.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        (number, self.put(Some(number), waker, |(n, _), _| *n == Some(number)))
    }

    /// A task waits that has no number and is told from others by its waker. Returns a waker to be dropped without the lock.
    pub(crate) fn wait_unnumbered(&mut self, waker: Waker) -> Option<Waker> {
        self.put(None, waker, |(n, w), waker| n.is_none() && w.will_wake(waker))
    }

    fn put(
        &mut self,
        number: Option<u64>,
        waker: Waker,
        is: impl Fn(&(Option<u64>, Waker), &Waker) -> bool,
    ) -> Option<Waker> {
        match self.waiting.iter_mut().find(|task| is(task, &waker)) {
            Some((_, old)) => Some(std::mem::replace(old, waker)),
            None => {
                self.waiting.push((number, waker));
                None
            }
        }
    }

    /// A task waits no more. Returns its waker, to be dropped without the lock.
    pub(crate) fn leave(&mut self, number: u64) -> Option<Waker> {
        let at = self.waiting.iter().position(|(n, _)| *n == Some(number))?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Takes all wakers, to be called without the lock. Every task looks: which of them takes the message cannot be known.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> {
        self.waiting.drain(..).map(|(_, waker)| waker)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
