//! Stage 1 from an object.

use insane_traffic::classify::{self, Decision, PacketView};
use insane_traffic::spec::TargetSpec;
use insane_traffic::stats::StatMap;
use insane_traffic::{QueueId, Time};

use super::{QueueSet, packet, queue_id};
use crate::abi;
use crate::stage::Instance;

/// A classifier.
#[derive(Debug)]
pub(crate) struct Classifier {
    stage: Instance,
    classify: abi::Decide,
    calls: abi::ClassifierCalls,
    queues: QueueSet,
    faults: u64,
}

impl Classifier {
    pub(crate) fn new(stage: Instance, classify: abi::Decide, calls: abi::ClassifierCalls) -> Self {
        Self { stage, classify, calls, queues: QueueSet::default(), faults: 0 }
    }
}

impl classify::Classifier for Classifier {
    fn classify(&mut self, now: Time, view: &PacketView<'_>) -> Decision {
        let packet = packet(view);
        // SAFETY: the stage lives, and packet and bytes live through the call.
        let answer = unsafe { (self.classify)(self.stage.raw(), now.nanos(), &raw const packet) };
        match answer {
            abi::PASS => Decision::Pass,
            abi::DROP => Decision::Drop,
            _ => match queue_id(answer) {
                Some(queue) if self.queues.contains(queue) => Decision::Queue(queue),
                _ => {
                    self.faults += 1;
                    Decision::Queue(QueueId::DEFAULT)
                }
            },
        }
    }

    fn queue_added(&mut self, queue: QueueId) {
        if self.queues.insert(queue)
            && let Some(added) = self.calls.queue_added
        {
            // SAFETY: the stage lives.
            unsafe { added(self.stage.raw(), queue.0) };
        }
    }

    fn queue_removed(&mut self, queue: QueueId, _moved_to: QueueId) {
        if self.queues.remove(queue)
            && let Some(removed) = self.calls.queue_removed
        {
            // SAFETY: the stage lives.
            unsafe { removed(self.stage.raw(), queue.0) };
        }
    }

    fn modify(&mut self, to: &TargetSpec, _queues: &[QueueId]) -> bool {
        let TargetSpec::Plugin { name, options } = to else { return false };
        self.stage.modify(name, options)
    }

    fn stats(&self, out: &mut StatMap) {
        self.stage.stats(&[("faults", self.faults)], out);
    }
}
