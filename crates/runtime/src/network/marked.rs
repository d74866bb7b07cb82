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

    /// All marked entries, to write to: what is written does not concern the other looker, for whom they are not marked.
    pub(crate) fn marked_mut(&mut self, looker: Looker) -> impl Iterator<Item = &mut T> {
        let marks = self.marks.iter().map(move |marks| marks[looker as usize]);
        // Where nothing is marked no entry is touched.
        self.all.chunks_mut(64).zip(marks).filter(|(_, marks)| *marks != 0).flat_map(|(entries, marks)| {
            let entries = entries.iter_mut().enumerate().filter(move |(at, _)| marks >> at & 1 == 1);
            entries.filter_map(|(_, entry)| entry.as_mut())
        })
    }

    /// The place of the first entry that is it.
    pub(crate) fn position(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        self.all.iter().position(|entry| entry.as_ref().is_some_and(&is_it))
    }

    /// The first entry that is it, marked.
    pub(crate) fn find_mut(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        let at = self.position(is_it)?;
        self[at].as_mut()
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

    /// All but one rest.
    fn rest(list: &mut Marked<u32>, looker: Looker, but: Option<usize>) {
        (0..list.len()).filter(|at| Some(*at) != but).for_each(|at| list.rest(looker, at));
    }

    #[test]
    fn who_gets_an_entry_to_write_to_marks_it_for_all_that_look() {
        let mut list = Marked::default();
        let places: Vec<usize> = (0..200).map(|value| list.place(value)).collect();
        assert_eq!(places, (0..200).collect::<Vec<_>>());
        assert_eq!((marked(&list, Looker::Links).len(), marked(&list, Looker::Chores).len()), (200, 200));
        rest(&mut list, Looker::Links, None);
        rest(&mut list, Looker::Chores, Some(130));
        assert_eq!((marked(&list, Looker::Links), marked(&list, Looker::Chores)), (vec![], vec![130]));
        // Reading marks nothing, nor does writing to what is marked for one of them.
        assert_eq!(list.marked_mut(Looker::Chores).map(|value| *value).collect::<Vec<_>>(), [130]);
        assert_eq!(list.position(|value| *value == 8), Some(8));
        assert_eq!((list[7], list.get(8), list.iter().flatten().count()), (Some(7), Some(&Some(8)), 200));
        assert_eq!(marked(&list, Looker::Links), [0; 0]);
        list[63].iter_mut().for_each(|value| *value = 1063);
        list.get_mut(64).into_iter().flatten().for_each(|value| *value = 1064);
        list[199] = None;
        assert_eq!(marked(&list, Looker::Links), [1063, 1064]);
        assert_eq!(marked(&list, Looker::Chores), [1063, 1064, 130]);
        assert_eq!((list.next(Looker::Links, 64), list.next(Looker::Links, 200)), (Some(64), None));
        // A free place has nothing to look at, and who takes it is marked.
        rest(&mut list, Looker::Links, None);
        assert_eq!(list.marked_mut(Looker::Chores).map(|value| *value).collect::<Vec<_>>(), [1063, 1064, 130]);
        assert_eq!(
            (list.find_mut(|value| *value == 70).copied(), list.find_mut(|value| *value == 700)),
            (Some(70), None)
        );
        assert_eq!(marked(&list, Looker::Links), [70]);
        rest(&mut list, Looker::Links, None);
        assert_eq!((list.place(5), list.place(6)), (199, 200));
        assert_eq!(marked(&list, Looker::Links), [5, 6]);
        assert_eq!(list.iter_mut().flatten().count(), 201);
        assert_eq!(marked(&list, Looker::Links).len(), 201);
    }
}
