//! A delay line: first in, first out, each item a fixed time later.

use std::collections::VecDeque;

use insane_traffic::{Span, Time};

/// Items under way. The delay is the same for all, so they come out in their order.
#[derive(Clone, Debug)]
pub struct DelayLine<T> {
    delay: Span,
    limit: usize,
    items: VecDeque<(Time, T)>,
}

impl<T> DelayLine<T> {
    /// A line that holds at most `limit` items.
    #[must_use]
    pub const fn new(delay: Span, limit: usize) -> Self {
        Self { delay, limit, items: VecDeque::new() }
    }

    /// Puts an item in; gives it back if the line is full.
    ///
    /// # Errors
    /// The item.
    pub fn push(&mut self, now: Time, item: T) -> Result<(), T> {
        if self.items.len() >= self.limit {
            return Err(item);
        }
        // A clock that stood still or went back must not reorder anything.
        let due = (now + self.delay).max(self.items.back().map_or(Time::ZERO, |(due, _)| *due));
        self.items.push_back((due, item));
        Ok(())
    }

    /// When the next item comes out.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.items.front().map(|(due, _)| *due)
    }

    /// The next item and when it came out, if that is not after `now`.
    pub fn pop(&mut self, now: Time) -> Option<(Time, T)> {
        pop_if(&mut self.items, |(due, _)| *due <= now)
    }

    /// How many items are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What is under way, first to come out first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|(_, item)| item)
    }
}

/// Takes the first item if it is such a one.
pub(super) fn pop_if<T>(items: &mut VecDeque<T>, is: impl FnOnce(&T) -> bool) -> Option<T> {
    if items.front().is_some_and(is) { items.pop_front() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_after_the_delay_in_their_order() {
        let mut line = DelayLine::new(Span::from_millis(10), 3);
        for ms in [0, 1, 1] {
            line.push(Time::from_millis(ms), ms).unwrap();
        }
        assert_eq!(line.push(Time::from_millis(2), 9), Err(9));
        assert_eq!(line.pop(Time::from_micros(9_999)), None);
        assert_eq!(line.pop(Time::from_millis(10)), Some((Time::from_millis(10), 0)));
        assert_eq!(line.next_at(), Some(Time::from_millis(11)));
        assert_eq!(line.len(), 2);
    }

    #[test]
    fn a_clock_that_goes_back_does_not_reorder() {
        let mut line = DelayLine::new(Span::from_millis(1), 9);
        line.push(Time::from_millis(5), 'a').unwrap();
        line.push(Time::from_millis(2), 'b').unwrap();
        assert_eq!(line.pop(Time::from_millis(6)).unwrap().1, 'a');
        assert_eq!(line.pop(Time::from_millis(6)).unwrap(), (Time::from_millis(6), 'b'));
    }
}
