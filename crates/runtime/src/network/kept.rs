//! Messages that are kept out of the frames that brought them: those of reliable flows that wait for others before them, each in a
//! copy of its own, and stray frames until all that was received with them was looked at.
//!
//! Bounded: the copies that wait for one domain's sources take no more memory than the domain may have in slots, and of one host
//! no more than is left for others, so that nobody can have all of it. A message that finds no room is not acknowledged; it comes
//! again, and needs none once those before it are there.

use std::collections::HashMap;

/// What a copy takes besides its payload, in bytes: with all that is noted of it, here and in its path.
const NOTED: u64 = 256;

/// What is kept of one host.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    last: u64,
    all: HashMap<u64, One>,
    /// The bytes that wait, by domain.
    bytes: HashMap<usize, u64>,
}

#[derive(Debug)]
struct One {
    bytes: Vec<u8>,
    /// How many events refer to it.
    left: u32,
    /// The domain that it counts for.
    domain: Option<usize>,
}

/// What all hosts together have waiting for one domain, in bytes, and the most they may have.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) bytes: u64,
    pub(crate) most: u64,
}

impl Kept {
    /// A name for a frame that was received, or for a copy; never used twice.
    pub(crate) fn name(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps a frame under its name for so many events.
    pub(crate) fn keep(&mut self, name: u64, frame: Vec<u8>, events: u32) {
        if events > 0 {
            self.all.insert(name, One { bytes: frame, left: events, domain: None });
        }
    }

    /// Keeps a copy of a message that waits, if there is room; its name. Without a domain it is a word of the host, of which the credit of
    /// its one control flow is the bound.
    pub(crate) fn hold(&mut self, domain: Option<(usize, &mut Waiting)>, message: &[u8]) -> Option<u64> {
        if let Some((number, waiting)) = domain {
            let (own, more) = (self.bytes.entry(number).or_default(), message.len() as u64 + NOTED);
            if *own + more > waiting.most.saturating_sub(waiting.bytes + more) {
                return None;
            }
            (*own, waiting.bytes) = (*own + more, waiting.bytes + more);
            return Some(self.add(Some(number), message));
        }
        Some(self.add(None, message))
    }

    fn add(&mut self, domain: Option<usize>, message: &[u8]) -> u64 {
        let name = self.name();
        self.all.insert(name, One { bytes: message.to_vec(), left: 1, domain });
        name
    }

    /// Takes what one event refers to; `None` if it is not there. `waiting` has what waits for a domain.
    pub(crate) fn take<'a>(
        &mut self,
        name: u64,
        (at, len): (usize, usize),
        waiting: impl FnOnce(usize) -> Option<&'a mut Waiting>,
    ) -> Option<Vec<u8>> {
        let one = self.all.get_mut(&name)?;
        if one.left > 1 {
            one.left -= 1;
            return one.bytes.get(at..at + len).map(<[u8]>::to_vec);
        }
        let One { mut bytes, domain, .. } = self.all.remove(&name)?;
        if let Some(number) = domain {
            let less = bytes.len() as u64 + NOTED;
            self.bytes.entry(number).and_modify(|own| *own -= less);
            waiting(number).into_iter().for_each(|waiting| waiting.bytes -= less);
        }
        bytes.truncate(at + len);
        (bytes.len() == at + len).then(|| bytes.split_off(at))
    }

    /// How much is kept.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_takes_all_the_room_for_what_waits() {
        let (mut hosts, mut waiting) = ([(); 3].map(|()| Kept::default()), Waiting { bytes: 0, most: 1 << 20 });
        let mut names = [(); 3].map(|()| Vec::new());
        for (host, names) in hosts.iter_mut().zip(&mut names) {
            names.extend(std::iter::from_fn(|| host.hold(Some((0, &mut waiting)), &[7; 8])));
            assert!(names.len() > 100, "{}", names.len());
        }
        assert!(names[0].len() as u64 * (8 + NOTED) <= 1 << 19);
        assert!(waiting.bytes <= waiting.most);
        // A word counts for no domain.
        let word = hosts[0].hold(None, b"word").unwrap();
        assert_eq!(hosts[0].take(word, (0, 4), |_| None), Some(b"word".to_vec()));
        for (host, names) in hosts.iter_mut().zip(&names) {
            for name in names {
                assert_eq!(host.take(*name, (0, 8), |_| Some(&mut waiting)), Some(vec![7; 8]));
                assert_eq!(host.take(*name, (0, 8), |_| Some(&mut waiting)), None);
            }
            assert_eq!(host.len(), 0);
        }
        assert_eq!(waiting.bytes, 0);
        assert!(hosts[0].hold(Some((0, &mut waiting)), &[7; 8]).is_some());
    }

    #[test]
    fn a_frame_is_kept_for_all_who_refer_to_it() {
        let mut kept = Kept::default();
        let name = kept.name();
        kept.keep(name, (0..9).collect(), 3);
        assert_eq!(kept.take(name, (1, 2), |_| None), Some(vec![1, 2]));
        assert_eq!(kept.take(name, (8, 2), |_| None), None);
        assert_eq!((kept.take(name, (3, 4), |_| None), kept.len()), (Some(vec![3, 4, 5, 6]), 0));
        let nothing = kept.name();
        kept.keep(nothing, vec![0; 9], 0);
        assert_eq!(kept.len(), 0);
    }
}
