//! What takes the kernel long about memory, on a thread of its own: faulting 4 MiB in takes 2.5 ms, and 128 MiB 80 ms, for which the
//! network's thread, and with it everything that it carries, would stand still. What that writes to before it has been faulted in takes its
//! page by itself, in microseconds.

use insane_shm::segment::Segment;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// How much is faulted in at a time, in bytes. Nobody can map or unmap anything meanwhile.
const PART: usize = 128 << 10;

/// What is to be done about a segment.
#[derive(Debug)]
enum Task {
    FaultIn(Weak<Segment>),
    LetGo(Arc<Segment>),
}

/// Whom to tell what is to be done. Nothing here waits.
#[derive(Debug, Clone)]
pub(crate) struct Pages(Sender<Task>);

impl Pages {
    /// Starts the thread, which ends when nobody can tell it anything any more.
    pub(crate) fn start() -> io::Result<Self> {
        let (to, tasks) = channel();
        std::thread::Builder::new().name("insane-memory".into()).spawn(move || run(&tasks))?;
        Ok(Self(to))
    }

    /// Without a thread: pages come one by one, and go at once.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn without_thread() -> Self {
        Self(channel().0)
    }

    /// The segment is faulted in soon, unless it is given back before.
    pub(crate) fn fault_in(&self, segment: &Arc<Segment>) {
        let _ = self.0.send(Task::FaultIn(Arc::downgrade(segment)));
    }

    /// The segment's memory is given back soon.
    pub(crate) fn let_go(&self, segment: Arc<Segment>) {
        let _ = self.0.send(Task::LetGo(segment));
    }
}

fn run(tasks: &Receiver<Task>) {
    // This thread's alone. Where there is no core to spare others go first: they do without it.
    let _ = rustix::process::nice(10);
    while let Ok(task) = tasks.recv() {
        match task {
            Task::FaultIn(segment) => {
                let parts = (0..).step_by(PART);
                // It is held for one part at a time: who gives it back wants its memory.
                let _ = parts.map_while(|at| segment.upgrade()?.fault_in(at, PART).then_some(())).count();
            }
            Task::LetGo(segment) => drop(segment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insane_shm::segment::Geometry;
    use std::time::{Duration, Instant};

    #[test]
    fn the_thread_keeps_no_segment() {
        let pages = Pages::start().unwrap();
        let bare = || Arc::new(Segment::create_bare(Geometry::checked(1 << 20, 8).unwrap(), false).unwrap());
        let (kept, dropped, let_go) = (bare(), bare(), bare());
        let gone = [&dropped, &let_go].map(Arc::downgrade);
        [&kept, &dropped, &let_go].into_iter().for_each(|segment| pages.fault_in(segment));
        drop(dropped);
        pages.let_go(let_go);
        let start = Instant::now();
        while gone.iter().any(|one| one.upgrade().is_some()) || Arc::strong_count(&kept) > 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "the thread keeps segments");
            std::thread::yield_now();
        }
    }
}
