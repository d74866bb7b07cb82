//! A small file of words that a party and the test share. A word is written by `pwrite` before the next message is touched,
//! so it is in the page cache, and there it survives a SIGKILL of its writer.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The words of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Word {
    /// Messages whose call returned to the application: emitted by a source, consumed by a sink.
    Count = 0,
    /// What the test asks for: a [`Command`] number, counted up by 16 for each new one.
    Command,
    /// The last command that was done.
    Done,
    /// Set once everything is open.
    Open,
    /// Slots there are.
    Total,
    /// Slots that something holds.
    Held,
    /// Slots found nowhere.
    Lost,
    /// Slots found twice.
    Doubly,
    /// Sinks in the source's view.
    Sinks,
    /// Set once the source has made its second segment.
    Grown,
    /// Messages whose payload was not what its source writes.
    Wrong,
    /// The longest pause between two messages, in nanoseconds, since the last [`Command::Measure`].
    Gap,
    /// The longest stall of the hiccup thread, in nanoseconds, since then.
    Stall,
    /// Messages of a source that came again, or after a later one, or, on a reliable stream, of which one before is missing.
    Disorder,
}

/// What the test asks of a party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Command {
    /// Go on.
    Run = 0,
    /// A source: emit no more, and count every slot. A sink: nothing.
    Pause = 1,
    /// A sink: close and open again.
    Reopen = 2,
    /// Begin measuring pauses anew.
    Measure = 3,
    /// A source: emit one message for which segments of small slots have to be given back.
    Reshape = 4,
}

impl Command {
    /// The command of a word.
    #[must_use]
    pub fn of(word: u64) -> Self {
        match word % 16 {
            1 => Self::Pause,
            2 => Self::Reopen,
            3 => Self::Measure,
            4 => Self::Reshape,
            _ => Self::Run,
        }
    }
}

/// A board.
#[derive(Debug)]
pub struct Board {
    file: File,
}

impl Board {
    /// Opens a board, making it if there is none.
    ///
    /// # Panics
    /// When the file cannot be opened.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Self { file: options.expect("the board's file opens") }
    }

    /// A word; 0 when it was never written.
    #[must_use]
    pub fn get(&self, word: Word) -> u64 {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, word as u64 * 8) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }

    /// Writes a word.
    ///
    /// # Panics
    /// When the file system is full.
    pub fn set(&self, word: Word, value: u64) {
        self.file.write_all_at(&value.to_le_bytes(), word as u64 * 8).expect("the board takes a word");
    }
}
