//! A map with a fixed number of places: what is not used gives way, so that no traffic makes it grow.

use crate::random::keyed_hash;
use crate::time::{Span, Time};

const WAYS: usize = 4;

/// A key that can be hashed as whole words.
pub(crate) trait Words: Eq {
    /// The key as words.
    fn words(&self) -> [u64; 5];
}

#[derive(Clone, Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    used: Time,
}

/// A set-associative table: four places per set, the longest unused one is overwritten.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    entries: Vec<Option<Entry<K, V>>>,
    sets: usize,
    hash_key: [u64; 2],
    max_age: Span,
    pub(crate) evicted: u64,
}

impl<K: Words, V> Table<K, V> {
    /// A table of `4 * sets` places whose entries are forgotten `max_age` after their last use. It takes no memory before
    /// something is put into it.
    pub(crate) const fn new(sets: usize, max_age: Span, hash_key: [u64; 2]) -> Self {
        Self { entries: Vec::new(), sets, hash_key, max_age, evicted: 0 }
    }

    fn set(&self, key: &K) -> usize {
        (keyed_hash(self.hash_key, &key.words()) % self.sets as u64) as usize * WAYS
    }

    /// Finds an entry and notes that it was used.
    pub(crate) fn get(&mut self, now: Time, key: &K) -> Option<&mut V> {
        if self.entries.is_empty() {
            return None;
        }
        let from = self.set(key);
        let max_age = self.max_age;
        let entry = self.entries[from..from + WAYS].iter_mut().flatten().find(|e| e.key == *key)?;
        if now.since(entry.used) > max_age {
            return None;
        }
        entry.used = entry.used.max(now);
        Some(&mut entry.value)
    }

    /// Puts an entry in, over the one of the same key or the one that was not used for longest.
    pub(crate) fn insert(&mut self, now: Time, key: K, value: V) {
        if self.entries.is_empty() {
            self.entries.resize_with(self.sets * WAYS, || None);
        }
        let from = self.set(&key);
        let set = &mut self.entries[from..from + WAYS];
        let place = set
            .iter()
            .position(|e| e.as_ref().is_some_and(|e| e.key == key))
            .or_else(|| set.iter().position(Option::is_none));
        let place = place.unwrap_or_else(|| {
            self.evicted += 1;
            (0..WAYS).min_by_key(|&n| set[n].as_ref().map_or(Time::ZERO, |e| e.used)).unwrap_or(0)
        });
        set[place] = Some(Entry { key, value, used: now });
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Words for u64 {
        fn words(&self) -> [u64; 5] {
            [*self, 0, 0, 0, 0]
        }
    }

    #[test]
    fn never_holds_more_than_its_places_and_keeps_the_recent() {
        let mut table = Table::new(8, Span::from_secs(1), [1, 2]);
        for n in 0..10_000_u64 {
            table.insert(Time::from_nanos(n), n, n);
            assert_eq!(table.get(Time::from_nanos(n), &n), Some(&mut n.clone()));
        }
        assert_eq!(table.len(), 32);
        assert!(table.evicted > 0);
    }

    #[test]
    fn entries_age() {
        let mut table = Table::new(1, Span::from_secs(1), [1, 2]);
        table.insert(Time::ZERO, 1_u64, ());
        assert!(table.get(Time::from_millis(900), &1).is_some());
        assert!(table.get(Time::from_millis(1800), &1).is_some());
        assert!(table.get(Time::from_millis(2900), &1).is_none());
    }
}
