//! Some of an interface's queues are received from by other threads.
//!
//! A queue has its socket, its rings and its frames for itself, so a part is the same datapath with other queues, of one memory and
//! one program. Its queues send nothing any more: what is sent goes by those that stay.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use insane_datapath::DatapathError;
use insane_datapath::raw::RawSplit;

use crate::open::{Opened, gathered};
use crate::queue::Queue;
use crate::{XdpDatapath, open};

/// Gives queues out in turns, with the number in the order in which they were.
fn dealt(queues: Vec<Queue>, hands: usize) -> Vec<Vec<Queue>> {
    let mut all: Vec<Vec<Queue>> = (0..hands).map(|_| Vec::new()).collect();
    for (at, queue) in queues.into_iter().enumerate() {
        all[at % hands].push(queue);
    }
    all
}

/// What takes descriptors of a part with these queues.
fn descriptors(opened: &Opened, queues: &[Queue]) -> Result<(OwnedFd, Option<OwnedFd>), DatapathError> {
    let system = |source| DatapathError::System { call: "fcntl", source };
    let map = opened.map.as_fd().try_clone_to_owned().map_err(system)?;
    Ok((map, (queues.len() > 1).then(|| gathered(queues)).transpose()?))
}

impl XdpDatapath {
    /// Gives queues out in turns to up to `most` parts, and keeps the first.
    pub(crate) fn split_queues(&mut self, most: usize) -> RawSplit {
        let mut split = RawSplit::default();
        let Some(opened) = &mut self.opened else { return split };
        let (count, hands) = (opened.queues.len(), opened.queues.len().min(most + 1));
        if hands <= most {
            split.short = Some(format!("each takes a queue, of which {} has {count}", self.config.interface));
        }
        // The first of them send.
        let senders = opened.senders.div_ceil(hands.max(1));
        let mut all = dealt(core::mem::take(&mut opened.queues), hands.max(1)).into_iter();
        opened.queues = all.next().unwrap_or_default();
        opened.senders = senders;
        for mut queues in all {
            match descriptors(opened, &queues) {
                Ok((map, epoll)) => {
                    if let Some(all) = &opened.epoll {
                        queues.iter().for_each(|queue| open::leave(all, queue));
                    }
                    let part = Opened {
                        link: None,
                        map,
                        epoll,
                        queues,
                        senders: 0,
                        umem: Arc::clone(&opened.umem),
                        _members: None,
                        interface: Arc::clone(&opened.interface),
                        watch: None,
                        mac: opened.mac,
                        headers: opened.headers,
                        slot_bytes: opened.slot_bytes,
                        chosen: opened.chosen.clone(),
                    };
                    let mut one = Self::new(self.config.clone());
                    (one.opened, one.chosen, one.is_part) = (Some(part), self.chosen.clone(), true);
                    split.parts.push(Box::new(one));
                }
                Err(e) => {
                    opened.queues.append(&mut queues);
                    split.short = Some(e.to_string());
                }
            }
        }
        split
    }
}
