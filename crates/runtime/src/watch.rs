//! Whether a server still serves: a thread of its own that ends unasked is noticed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, Default)]
enum Life {
    #[default]
    Serves,
    Stopped,
    Failed(String),
}

/// Says when a server cannot serve any more: the thread of its sessions or of its network side, or one that polls datapaths, has ended, and
/// nobody has told it to. Any thread may ask, and keep it beyond the server.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<(Mutex<Life>, Condvar)>);

impl Watch {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the server cannot serve any more; `None` as long as it does, and when it was told to stop. Does not block.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        if let Life::Failed(why) = &*self.life() { Some(why.clone()) } else { None }
    }

    /// Blocks until the server was told to stop, `None`, or cannot serve any more: why.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        let mut life = self.life();
        while matches!(*life, Life::Serves) {
            life = self.0.1.wait(life).unwrap_or_else(PoisonError::into_inner);
        }
        drop(life);
        self.failed()
    }

    /// The server was told to stop.
    pub(crate) fn stop(&self) {
        self.become_unless_over(Life::Stopped);
    }

    /// Does the work of a thread that ends only when it is told to.
    pub(crate) fn run(&self, thread: &str, work: impl FnOnce() -> Result<(), String>) {
        let why = match attempt(work) {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(text) => panicked(&text),
        };
        tracing::error!(thread, why, "a thread has ended that must not");
        self.become_unless_over(Life::Failed(ended(thread, &why)));
    }

    fn become_unless_over(&self, what: Life) {
        let mut life = self.life();
        if matches!(*life, Life::Serves) {
            *life = what;
            self.0.1.notify_all();
        }
    }
}

/// What is said of a thread that has ended.
pub(crate) fn ended(thread: &str, why: &str) -> String {
    format!("the {thread} thread has ended: {why}")
}

/// What is said of one that has panicked.
pub(crate) fn panicked(text: &str) -> String {
    format!("it panicked: {text}")
}

/// Does something that may panic. Who uses what it has worked on afterwards takes it for half done.
///
/// # Errors
/// What the panic said.
pub(crate) fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|said| {
        let text = said.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| said.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_who_was_told_to_stop_has_not_failed() {
        let watch = Watch::default();
        watch.run("one", || Ok(()));
        assert_eq!(watch.failed(), None);
        watch.run("one", || Err("no more".into()));
        watch.run("other", || panic!("later"));
        watch.stop();
        assert_eq!(watch.wait().as_deref(), Some("the one thread has ended: no more"));
        let watch = Watch::default();
        watch.stop();
        watch.run("one", || Err("too late".into()));
        assert_eq!((watch.wait(), watch.failed()), (None, None));
        let watch = Watch::default();
        watch.run("one", || panic!("{}", "said"));
        assert_eq!(watch.failed().as_deref(), Some("the one thread has ended: it panicked: said"));
    }
}
