//! How many frames for one host are built before they are sent.

use insane_datapath::Capabilities;

/// Frames that one transmit is given.
const TRANSMIT_FRAMES: usize = 256;

/// How far a batch of frames for one host has come.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    frames: usize,
    /// The frames of the last piece, the length of the first, and how many it can have.
    alike: usize,
    len: usize,
    most: usize,
}

impl Burst {
    pub(crate) fn add(&mut self, len: usize, can: &Capabilities) {
        if self.alike == self.most || len > self.len || len < self.len / 2 {
            (self.alike, self.len, self.most) = (0, len, can.joined(len));
        }
        self.frames += 1;
        self.alike += 1;
    }

    /// How many more it has room for. It ends with a whole piece if another would make it too long: a short one costs as much.
    pub(crate) fn room(&self) -> usize {
        let (all, piece) = (TRANSMIT_FRAMES.saturating_sub(self.frames), self.most - self.alike);
        let more = all.checked_sub(piece).map(|rest| rest / self.most.max(1) * self.most);
        more.map_or(all, |more| piece + more)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.frames > 0 && self.room() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many frames of these lengths, in turn, a batch takes: each by itself, or the rest of a room at once.
    fn taken(lengths: &[usize], joins: (usize, usize), at_once: bool) -> usize {
        let mut can = Capabilities::plain("some", 65_507);
        can.joins = joins;
        let (mut batch, mut lengths) = (Burst::default(), lengths.iter().cycle());
        while !batch.is_full() {
            let room = if at_once { batch.room().max(1) } else { 1 };
            let len = *lengths.next().unwrap_or(&0);
            (0..room).for_each(|_| batch.add(len, &can));
        }
        batch.frames
    }

    #[test]
    fn a_batch_ends_with_a_whole_piece() {
        for at_once in [false, true] {
            // 60 of 1080 bytes are a piece: four of them.
            assert_eq!(taken(&[1080], (64, 65_400), at_once), 240);
            assert_eq!(taken(&[100], (64, 65_400), at_once), 256);
            assert_eq!(taken(&[1080], (1, 0), at_once), 256);
        }
        // Frames that are longer each time join none before them.
        assert_eq!(taken(&(1..300).collect::<Vec<_>>(), (64, 65_400), false), 256);
    }
}
