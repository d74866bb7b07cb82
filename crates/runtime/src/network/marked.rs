//! A list with free places that remembers which of its entries may have changed. The network thread looks at its sources, flows and
//! accounts every few microseconds or milliseconds; a thousand of which nothing is going on must not make that longer.
//!
//! Whoever gets an entry to write to marks it. Who looks at marked entries again and again takes the mark of one away once nothing more will
//! come of it without somebody writing to it. So an entry without a mark need not be looked at, whoever writes to it and wherever.

use std::ops::{Deref, Index, IndexMut};

/// Who looks at what is marked, each with marks of its own: who tends links every few microseconds, and who does chores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looker {
    Links,
    Chores,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Marked<T> {
    all: Vec<Option<T>>,
    /// A bit for each place and looker.
    marks: Vec<[u64; 2]>,
}

impl<T> Default for Marked<T> {
    fn default() -> Self {
        Self { all: Vec::new(), marks: Vec::new() }
    }
}

impl<T> Marked<T> {
    /// Puts an entry in the first free place; which that is.
    pub(crate) fn place(&mut self, value: T) -> usize {
        let at = super::domain::place(&mut self.all, value);
        self.marks.resize(self.all.len().div_ceil(64), [0; 2]);
        self.mark(at);
        at
    }

    /// Something has changed that an entry's looker must know, and that is not in the entry.
    pub(crate) fn mark(&mut self, at: usize) {
        if let Some(marks) = self.marks.get_mut(at / 64) {
            marks.iter_mut().for_each(|marks| *marks |= 1 << (at % 64));
        }
    }

    /// The first marked entry at this place or behind.
    pub(crate) fn next(&self, looker: Looker, from: usize) -> Option<usize> {
        let mut skipped = u64::MAX << (from % 64);
        for (word, marks) in self.marks.iter().enumerate().skip(from / 64) {
            let left = marks[looker as usize] & skipped;
            if left != 0 {
                return Some(word * 64 + left.trailing_zeros() as usize);
            }
            skipped = u64::MAX;
        }
        None
    }

    /// All marked entries.
    pub(crate) fn marked(&self, looker: Looker) -> impl Iterator<Item = &T> {
        let places = std::iter::successors(self.next(looker, 0), move |at| self.next(looker, at + 1));
        places.filter_map(|at| self.all[at].as_ref())
    }

    /// Does something with each marked entry, and takes away the marks of those of which that says that they rest. It may write to an entry
    /// without marking it for the other looker.
    pub(crate) fn look(&mut self, looker: Looker, mut rests: impl FnMut(usize, &mut T) -> bool) {
        let mut from = 0;
        while let Some(at) = self.next(looker, from) {
            if self.all[at].as_mut().is_none_or(|entry| rests(at, entry)) {
                self.rest(looker, at);
            }
            from = at + 1;
        }
    }

    /// Nothing more will come of an entry until somebody writes to it.
    pub(crate) fn rest(&mut self, looker: Looker, at: usize) {
        if let Some(marks) = self.marks.get_mut(at / 64) {
            marks[looker as usize] &= !(1 << (at % 64));
        }
    }

    /// Every entry, marked.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Option<T>> {
        (0..self.all.len()).for_each(|at| self.mark(at));
        self.all.iter_mut()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Option<T>> {
        self.mark(at);
        self.all.get_mut(at)
    }
}

impl<T> Deref for Marked<T> {
    type Target = [Option<T>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<T> Index<usize> for Marked<T> {
    type Output = Option<T>;

    fn index(&self, at: usize) -> &Option<T> {
        &self.all[at]
    }
}

impl<T> IndexMut<usize> for Marked<T> {
    fn index_mut(&mut self, at: usize) -> &mut Option<T> {
        self.mark(at);
        &mut self.all[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(list: &Marked<u32>, looker: Looker) -> Vec<u32> {
        list.marked(looker).copied().collect()
    }

    #[test]
    fn who_gets_an_entry_to_write_to_marks_it_for_all_that_look() {
        let mut list = Marked::default();
        let places: Vec<usize> = (0..200).map(|value| list.place(value)).collect();
        assert_eq!(places, (0..200).collect::<Vec<_>>());
        assert_eq!((marked(&list, Looker::Links).len(), marked(&list, Looker::Chores).len()), (200, 200));
        list.look(Looker::Links, |_, _| true);
        list.look(Looker::Chores, |at, _| at != 130);
        assert_eq!((marked(&list, Looker::Links), marked(&list, Looker::Chores)), (vec![], vec![130]));
        // Reading marks nothing.
        assert_eq!((list[7], list.get(8), list.iter().flatten().count()), (Some(7), Some(&Some(8)), 200));
        assert_eq!(marked(&list, Looker::Links), [0; 0]);
        list[63].iter_mut().for_each(|value| *value = 1063);
        list.get_mut(64).into_iter().flatten().for_each(|value| *value = 1064);
        list[199] = None;
        assert_eq!(marked(&list, Looker::Links), [1063, 1064]);
        assert_eq!(marked(&list, Looker::Chores), [1063, 1064, 130]);
        assert_eq!((list.next(Looker::Links, 64), list.next(Looker::Links, 200)), (Some(64), None));
        // A free place has nothing to look at, and who takes it is marked.
        list.look(Looker::Links, |_, _| true);
        assert_eq!((list.place(5), list.place(6)), (199, 200));
        assert_eq!(marked(&list, Looker::Links), [5, 6]);
        assert_eq!(list.iter_mut().flatten().count(), 201);
        assert_eq!(marked(&list, Looker::Links).len(), 201);
    }
}
