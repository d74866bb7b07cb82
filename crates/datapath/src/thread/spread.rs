//! What the threads of one datapath do, for reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::station::Shared;

#[derive(Debug)]
struct Now {
    parts: Vec<Arc<Shared>>,
    short: Option<String>,
}

/// Over how many threads a datapath is spread, and what each has received. Clones are the same; may be asked by any thread, and does not
/// wait.
#[derive(Debug, Clone)]
pub struct Spread {
    wanted: usize,
    now: Arc<Mutex<Now>>,
}

impl Spread {
    pub(super) fn new(wanted: usize, first: &Arc<Shared>) -> Self {
        Self { wanted, now: Arc::new(Mutex::new(Now { parts: vec![first.clone()], short: None })) }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was opened, and has these parts now.
    pub(super) fn now(&self, parts: Vec<Arc<Shared>>, short: Option<String>) {
        *self.lock() = Now { parts, short };
    }

    /// How many threads it was to be spread over.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Frames that each of its threads has received since it was opened last: as many numbers as it has threads.
    #[must_use]
    pub fn received(&self) -> Vec<u64> {
        self.lock().parts.iter().map(|part| part.mirror().stats.received_frames).collect()
    }

    /// Why it has fewer threads than it was to have; `None` if it has all.
    #[must_use]
    pub fn short(&self) -> Option<String> {
        self.lock().short.clone()
    }
}
