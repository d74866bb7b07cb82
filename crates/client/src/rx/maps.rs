//! How many segments of peers are mapped.

use crate::session::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The segments that a link has mapped, as a part of all of its session. They are as long as the link is, which outlives its peer
/// while its messages are read. The network's, who has each of its segments on every link, are no part of them.
#[derive(Debug)]
pub(crate) struct Maps {
    session: Option<Arc<Shared>>,
    count: usize,
}

impl Maps {
    pub(super) fn new(session: Arc<Shared>, network: bool) -> Self {
        Self { session: (!network).then_some(session), count: 0 }
    }

    // Relaxed: it is a count, and says nothing of other memory.

    pub(crate) fn add(&mut self) {
        self.count += 1;
        if let Some(session) = &self.session {
            session.maps.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn remove(&mut self) {
        self.count -= 1;
        if let Some(session) = &self.session {
            session.maps.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.maps.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}
