//! Bare technologies that move Ethernet frames over the second cable, or something like it: the same loops for all of them, so that
//! they differ in how frames are moved and in nothing else. No messaging system: a message is a frame, or a run of frames if it is
//! longer than the cable's MTU, and what is lost is lost.
//!
//! A source hands over up to [`RUN`] frames at a time, and stays within a window of what its sink tells of its progress: a sender is
//! faster than a receiver, and a rate with loss says little.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cable::{self, HEADER, Patience};
use crate::{Args, Consumer, Echoer, Pinger, Producer, Stop, Tally, Window, Words, check, stamp};

/// Frames that are handed over together.
const RUN: usize = 32;
/// What may be on its way, in frames: less than any receiver's ring has.
const WINDOW: usize = 512;
/// How long a sender waits for its receiver's word.
const WORD: Duration = Duration::from_millis(20);
/// The most payload of a frame.
const MTU: usize = 1500;

/// What moves frames.
pub trait Frames {
    /// Takes memory for a frame of `len` bytes, at least the shortest that Ethernet has, and has it written; `false` if there is none
    /// now. It goes with [`Self::flush`].
    fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool;

    /// Sends all that was put.
    ///
    /// # Errors
    /// It cannot be sent.
    fn flush(&mut self) -> Result<()>;

    /// Shows the frames that have come, if any; how many there were. Waits for the first as the class says, but not for ever.
    ///
    /// # Errors
    /// Whatever `see` finds, or it cannot be waited.
    fn receive(&mut self, see: impl FnMut(&[u8]) -> Result<()>) -> Result<u32>;
}

/// One end, of all four roles.
#[derive(Debug)]
pub struct End<F> {
    frames: F,
    message: [u8; HEADER],
    word: [u8; HEADER],
    payload: usize,
    /// A message of several frames, as far as it has come, and the low byte of its number.
    begun: Vec<u8>,
    begun_of: u8,
    /// Where a message of several frames is written.
    whole: Vec<u8>,
    window: Window,
    words: Words,
    put: usize,
}

impl<F: Frames> End<F> {
    /// An end over something that is open.
    pub fn new(args: &Args, frames: F) -> Self {
        let bytes = WINDOW / args.payload.div_ceil(MTU) * args.payload;
        Self {
            frames,
            message: cable::header(args.host(), cable::MESSAGE),
            word: cable::header(args.host(), cable::WORD),
            payload: args.payload,
            begun: Vec::with_capacity(args.payload),
            begun_of: 0,
            whole: vec![0; args.payload],
            window: Window::new(bytes, args.payload),
            words: Words::new(bytes, args.payload),
            put: 0,
        }
    }

    /// Puts message `n`.
    #[inline]
    fn put(&mut self, n: u64) -> Result<()> {
        if self.payload <= MTU {
            let (header, payload) = (self.message, self.payload);
            return self.put_frame(payload, |frame| {
                frame[..HEADER].copy_from_slice(&header);
                stamp(&mut frame[HEADER..HEADER + payload], n);
            });
        }
        let (header, mut whole) = (self.message, std::mem::take(&mut self.whole));
        stamp(&mut whole, n);
        for (number, part) in whole.chunks(MTU).enumerate() {
            self.put_frame(part.len(), |frame| {
                frame[..HEADER].copy_from_slice(&header);
                frame[cable::PART].copy_from_slice(&[n as u8, number as u8]);
                frame[HEADER..HEADER + part.len()].copy_from_slice(part);
            })?;
        }
        self.whole = whole;
        Ok(())
    }

    #[inline]
    fn put_frame(&mut self, payload: usize, write: impl Fn(&mut [u8])) -> Result<()> {
        while !self.frames.put((HEADER + payload).max(cable::LEAST), &write) {
            self.flush()?;
        }
        self.put += 1;
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.put = 0;
        self.frames.flush()
    }

    /// Shows the messages that have come, and takes the receiver's words.
    #[inline]
    fn receive(&mut self, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
        let Self { frames, payload, begun, begun_of, window, .. } = self;
        let payload = *payload;
        frames.receive(|frame| match cable::open(frame) {
            Some((cable::WORD, word)) => {
                window.progress(word[..8].try_into()?);
                Ok(())
            }
            Some((_, message)) if payload <= MTU => see(&message[..payload.min(message.len())]),
            Some((_, part)) => {
                let [of, number] = frame[cable::PART].try_into()?;
                let at = usize::from(number) * MTU;
                if at == 0 {
                    begun.clear();
                    *begun_of = of;
                }
                // What lacks a part is no message, and the next one's number tells.
                if at != begun.len() || of != *begun_of || at >= payload {
                    return Ok(());
                }
                begun.extend_from_slice(&part[..part.len().min(MTU).min(payload - at)]);
                if begun.len() == payload { see(begun) } else { Ok(()) }
            }
            None => Ok(()),
        })
    }

    /// Waits for a message and reads all of it; within a while, if the other end owes one.
    #[inline]
    fn next(&mut self, owed: bool) -> Result<u64> {
        let (mut got, mut patience, payload) = (None, Patience::default(), self.payload);
        loop {
            let came = self.receive(|message| {
                got = Some(check(message, payload)?);
                Ok(())
            })?;
            match got {
                Some(n) => return Ok(n),
                None if owed && came == 0 => patience.look()?,
                None => {}
            }
        }
    }

    /// Takes the receiver's words until there is room in the window.
    fn await_room(&mut self, stop: &Stop) -> Result<bool> {
        self.flush()?;
        let mut since = Instant::now();
        while self.window.is_full() {
            self.receive(|_| Ok(()))?;
            if stop.requested() {
                return Ok(false);
            }
            if since.elapsed() >= WORD {
                self.window.forget();
                since = Instant::now();
            }
        }
        Ok(true)
    }
}

impl<F: Frames> Pinger for End<F> {
    fn exchange(&mut self, n: u64) -> Result<()> {
        self.put(n)?;
        self.flush()?;
        match self.next(true)? {
            got if got == n => Ok(()),
            got => bail!("the answer to {n} is {got}"),
        }
    }
}

impl<F: Frames> Echoer for End<F> {
    fn serve(&mut self) -> Result<()> {
        let n = self.next(false)?;
        self.put(n)?;
        self.flush()
    }
}

impl<F: Frames> Producer for End<F> {
    #[inline]
    fn send(&mut self, n: u64, stop: &Stop) -> Result<bool> {
        if self.window.is_full() && !self.await_room(stop)? {
            return Ok(false);
        }
        self.put(n)?;
        self.window.add(1);
        if self.put >= RUN {
            self.flush()?;
        }
        Ok(true)
    }
}

impl<F: Frames> Consumer for End<F> {
    #[inline]
    fn receive(&mut self, tally: &mut Tally) -> Result<()> {
        Self::receive(self, |message| tally.take(message))?;
        if let Some(word) = self.words.due(tally.received + tally.lost) {
            let header = self.word;
            self.put_frame(word.len(), |frame| {
                frame.fill(0);
                frame[..HEADER].copy_from_slice(&header);
                frame[HEADER..HEADER + word.len()].copy_from_slice(&word);
            })?;
            self.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;
    use clap::Parser;

    type Way = Rc<RefCell<VecDeque<Vec<u8>>>>;

    /// A cable in memory that loses the frames with these numbers.
    struct Memory {
        out: Way,
        into: Way,
        put: VecDeque<Vec<u8>>,
        sent: usize,
        lose: Vec<usize>,
    }

    impl Frames for Memory {
        fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
            let mut frame = vec![0xee; len];
            write(&mut frame);
            self.put.push_back(frame);
            true
        }

        fn flush(&mut self) -> Result<()> {
            for frame in self.put.drain(..) {
                if !self.lose.contains(&self.sent) {
                    self.out.borrow_mut().push_back(frame);
                }
                self.sent += 1;
            }
            Ok(())
        }

        fn receive(&mut self, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
            let frames: Vec<_> = self.into.borrow_mut().drain(..).collect();
            frames.iter().try_for_each(|frame| see(frame))?;
            Ok(frames.len() as u32)
        }
    }

    fn ends(payload: usize, lose: &[usize]) -> [End<Memory>; 2] {
        let ways = [Way::default(), Way::default()];
        [("oneway-source", 0), ("oneway-sink", 1)].map(|(role, host)| {
            let line = format!("prog {role} --placement veth --payload {payload}");
            let args = Args::try_parse_from(line.split_whitespace()).expect("a valid line");
            let (out, into) = (ways[host].clone(), ways[1 - host].clone());
            let lose = if host == 0 { lose.to_vec() } else { vec![] };
            End::new(&args, Memory { out, into, put: VecDeque::new(), sent: 0, lose })
        })
    }

    #[test]
    fn messages_of_all_sizes_arrive_whole_and_within_the_window() {
        for payload in [8, 64, 1024, 1496, 1504, 3000, 8192] {
            let [mut source, mut sink] = ends(payload, &[]);
            let (mut tally, stop) = (Tally::new(payload), Stop::default());
            let mut n = 0;
            while n < 4000 {
                while n < 4000 && !source.window.is_full() {
                    assert!(source.send(n, &stop).expect("it goes"));
                    n += 1;
                }
                source.flush().expect("it goes");
                assert!(sink.frames.into.borrow().len() <= WINDOW, "{payload} B");
                Consumer::receive(&mut sink, &mut tally).expect("intact");
                // What the sink told is taken.
                source.receive(|_| Ok(())).expect("words");
                assert!(!source.window.is_full(), "{payload} B: nothing was told");
            }
            assert_eq!((tally.received, tally.lost), (4000, 0), "{payload} B");
        }
    }

    #[test]
    fn a_message_that_lacks_a_frame_is_one_lost_message() {
        for (payload, lose) in [(64, 5), (3000, 2 * 5 + 1), (8192, 6 * 5), (8192, 6 * 5 + 3), (8192, 6 * 5 + 5)] {
            let [mut source, mut sink] = ends(payload, &[lose]);
            let mut tally = Tally::new(payload);
            for n in 0..20 {
                source.put(n).expect("it goes");
            }
            source.flush().expect("it goes");
            Consumer::receive(&mut sink, &mut tally).expect("intact");
            assert_eq!((tally.received, tally.lost), (19, 1), "{payload} B, {lose}");
        }
    }

    #[test]
    fn the_beginning_of_one_message_and_the_end_of_the_next_are_none() {
        // The second half of message 5 and the first of message 6.
        let lose: Vec<usize> = (6 * 5 + 3..6 * 6 + 3).collect();
        let [mut source, mut sink] = ends(8192, &lose);
        let mut tally = Tally::new(8192);
        for n in 0..20 {
            source.put(n).expect("it goes");
        }
        source.flush().expect("it goes");
        Consumer::receive(&mut sink, &mut tally).expect("intact");
        assert_eq!((tally.received, tally.lost), (18, 2));
    }

    #[test]
    fn a_question_has_its_answer() {
        for payload in [64, 8192] {
            let [mut source, mut sink] = ends(payload, &[]);
            for n in [1, 2, 300] {
                source.put(n).expect("it goes");
                source.flush().expect("it goes");
                sink.serve().expect("answered");
                assert_eq!(source.next(true).expect("an answer"), n);
            }
        }
    }
}
