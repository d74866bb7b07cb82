//! Whether an interface still has the queues that it was opened with.
//!
//! The kernel answers that under a lock that is held for long while interfaces come and go elsewhere, and whoever sends and receives
//! waits for nobody: a thread of its own asks, which sleeps in between and ends with its [`Watch`].

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::interface::Interface;

/// How often it asks.
const LOOK: Duration = Duration::from_millis(500);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Watch {
    _lives: Sender<()>,
    found: Receiver<String>,
    says: Option<String>,
}

impl Watch {
    /// Begins with the numbers of queues to receive and to send by that it was opened with.
    pub(crate) fn start(interface: &Arc<Interface>, opened: (u32, u32)) -> io::Result<Self> {
        let ((lives, ended), (to, found)) = (channel(), channel());
        let interface = Arc::clone(interface);
        Builder::new().name("insane-queues".into()).spawn(move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                // One that is gone has no queues, which is not what is asked here.
                let Some(now) = interface.channels().ok().filter(|now| *now != opened) else { continue };
                let text = |(receive, send): (u32, u32)| format!("{receive} queues to receive and {send} to send by");
                // If nobody wants to know any more, it has ended.
                let _ = to.send(format!("has {} now, and had {} when it was opened", text(now), text(opened)));
                return;
            }
        })?;
        Ok(Self { _lives: lives, found, says: None })
    }

    /// What is not as it was, in words that follow the interface's name.
    pub(crate) fn changed(&mut self) -> Option<&str> {
        self.says = self.says.take().or_else(|| self.found.try_recv().ok());
        self.says.as_deref()
    }
}
