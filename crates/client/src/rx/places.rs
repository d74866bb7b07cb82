//! Places of a stream's sinks: where a handle finds its sink, and used again once it is gone.

use super::{Rx, RxSink};

impl Rx {
    /// Adds a sink; returns its place.
    pub(crate) fn add_sink(&mut self, sink: RxSink) -> usize {
        let free = self.left.iter().position(|at| self.sinks[*at].is_none());
        let at = free.map_or(self.sinks.len(), |free| self.left.swap_remove(free));
        if at == self.sinks.len() {
            self.sinks.push(None);
        }
        // The sink that had the place may have been refused when its handle was gone.
        self.refused.remove(&at);
        self.sinks[at] = Some(sink);
        at
    }

    /// How many records there are of sinks and their flows, open and closed.
    pub(crate) fn records(&self) -> usize {
        let flows = self.links.iter().flatten().flat_map(|l| l.flows.values());
        let flows: usize = flows.map(|f| 1 + f.sinks.len()).sum();
        self.sinks.len() + self.left.len() + self.refused.len() + self.ended.len() + flows
    }

    /// The handle of the sink in this place is gone.
    pub(crate) fn leave_place(&mut self, index: usize) {
        self.refused.remove(&index);
        self.left.push(index);
    }
}
