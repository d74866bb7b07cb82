//! What another host says over the control flow in more than one frame: put together here, for it is no domain's.

use insane_wire::MAX_CONTROL_BYTES;
use std::collections::HashMap;

/// The first of the names that slots of long words have; no domain has so high a number.
const FIRST: u64 = 0xffff << 48;

/// So many of one host may be in the making; of more, only the one that the flow waits for.
const MOST: usize = 16;

/// The long words of one host that are not heard yet.
#[derive(Debug, Default)]
pub(crate) struct LongWords {
    next: u64,
    words: HashMap<u64, Vec<u8>>,
}

impl LongWords {
    /// Memory for a word, by its name. With `urgent` the flow stands still until it is there.
    pub(crate) fn reserve(&mut self, bytes: u32, urgent: bool) -> Option<u64> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_CONTROL_BYTES)?;
        if self.words.len() >= MOST + usize::from(urgent) {
            return None;
        }
        let name = FIRST | self.next;
        self.next = (self.next + 1) & !FIRST;
        self.words.insert(name, vec![0; bytes]);
        Some(name)
    }

    /// Writes a piece of a word; whether the name is one's.
    pub(crate) fn fill(&mut self, name: u64, at: u32, bytes: &[u8]) -> bool {
        let Some(word) = self.words.get_mut(&name) else { return false };
        let at = at as usize;
        word.get_mut(at..at + bytes.len()).into_iter().for_each(|to| to.copy_from_slice(bytes));
        true
    }

    /// A piece of a word.
    pub(crate) fn get(&self, name: u64, at: u32, len: u32) -> Option<&[u8]> {
        self.words.get(&name)?.get(at as usize..at as usize + len as usize)
    }

    /// A whole word, or one that will not come; its memory is free again.
    pub(crate) fn take(&mut self, name: u64) -> Option<Vec<u8>> {
        self.words.remove(&name)
    }

    /// How many there are.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_put_together_by_their_names_and_are_bounded() {
        let mut words = LongWords::default();
        assert_eq!(words.reserve(u32::try_from(MAX_CONTROL_BYTES).unwrap() + 1, true), None);
        let names: Vec<u64> = (0..MOST).map(|_| words.reserve(4, false).unwrap()).collect();
        assert_eq!(words.reserve(4, false), None);
        let urgent = words.reserve(4, true).unwrap();
        assert_eq!(words.reserve(4, true), None);
        assert!(words.fill(urgent, 2, b"cd") && words.fill(urgent, 0, b"ab") && !words.fill(7, 0, b"x"));
        // What does not fit is nowhere.
        assert!(words.fill(names[0], 2, b"long"));
        assert_eq!((words.get(urgent, 1, 2), words.get(urgent, 3, 2)), (Some(&b"bc"[..]), None));
        assert_eq!((words.take(urgent), words.take(urgent)), (Some(b"abcd".to_vec()), None));
        assert_eq!((words.take(names[0]), words.len()), (Some(vec![0; 4]), MOST - 1));
        assert!(words.reserve(4, false).is_some_and(|name| !names.contains(&name)));
    }
}
