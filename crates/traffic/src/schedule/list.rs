//! Lists of queues that a queue enters, leaves and rotates in at constant cost.

use crate::packet::QueueId;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    prev: u32,
    /// The list that the queue is in, [`NONE`] if in none.
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// Several doubly linked lists over the same queues; each queue is in at most one of them.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    nodes: Vec<Node>,
    ends: Vec<Ends>,
}

impl Lists {
    pub(crate) fn new(lists: usize) -> Self {
        Self { nodes: Vec::new(), ends: vec![Ends { head: NONE, tail: NONE, len: 0 }; lists] }
    }

    /// Makes room for a queue's node.
    pub(crate) fn reserve(&mut self, queue: QueueId) {
        if queue.index() >= self.nodes.len() {
            self.nodes.resize(queue.index() + 1, Node { next: NONE, prev: NONE, list: NONE });
        }
    }

    /// Which list a queue is in.
    pub(crate) fn list_of(&self, queue: QueueId) -> Option<usize> {
        self.nodes.get(queue.index()).filter(|n| n.list != NONE).map(|n| n.list as usize)
    }

    #[inline]
    pub(crate) fn front(&self, list: usize) -> Option<QueueId> {
        let head = self.ends[list].head;
        (head != NONE).then_some(QueueId(head))
    }

    pub(crate) fn len(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    /// The queue after `queue` in its list.
    pub(crate) fn after(&self, queue: QueueId) -> Option<QueueId> {
        let next = self.nodes.get(queue.index())?.next;
        (next != NONE).then_some(QueueId(next))
    }

    /// Appends a queue that is in no list; does nothing for one that is in any.
    pub(crate) fn push_back(&mut self, list: usize, queue: QueueId) {
        self.reserve(queue);
        if self.nodes[queue.index()].list != NONE {
            return;
        }
        let tail = self.ends[list].tail;
        self.nodes[queue.index()] = Node { next: NONE, prev: tail, list: list as u32 };
        match tail {
            NONE => self.ends[list].head = queue.0,
            tail => self.nodes[tail as usize].next = queue.0,
        }
        self.ends[list].tail = queue.0;
        self.ends[list].len += 1;
    }

    /// Takes a queue out of its list, if it is in one.
    pub(crate) fn remove(&mut self, queue: QueueId) {
        let Some(list) = self.list_of(queue) else { return };
        let Node { next, prev, .. } = self.nodes[queue.index()];
        match prev {
            NONE => self.ends[list].head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.ends[list].tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        self.ends[list].len -= 1;
        self.nodes[queue.index()] = Node { next: NONE, prev: NONE, list: NONE };
    }

    /// Moves a queue to the end of `list`, from wherever it is.
    #[inline]
    pub(crate) fn move_back(&mut self, list: usize, queue: QueueId) {
        if self.ends[list].tail == queue.0 {
            return;
        }
        self.remove(queue);
        self.push_back(list, queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn lists_behave_like_vecdeques() {
        let mut lists = Lists::new(2);
        let mut model = [VecDeque::new(), VecDeque::new()];
        let mut rng = crate::random::Rng::new(3);
        for _ in 0..20_000 {
            let queue = QueueId((rng.bits() % 9) as u32);
            let list = (rng.bits() % 2) as usize;
            match rng.bits() % 3 {
                0 => {
                    lists.push_back(list, queue);
                    if !model.iter().any(|m| m.contains(&queue)) {
                        model[list].push_back(queue);
                    }
                }
                1 => {
                    lists.remove(queue);
                    model.iter_mut().for_each(|m| m.retain(|&q| q != queue));
                }
                _ => {
                    lists.move_back(list, queue);
                    model.iter_mut().for_each(|m| m.retain(|&q| q != queue));
                    model[list].push_back(queue);
                }
            }
            for (n, model) in model.iter().enumerate() {
                let mut walk = Vec::new();
                let mut at = lists.front(n);
                while let Some(queue) = at {
                    walk.push(queue);
                    at = lists.after(queue);
                }
                assert_eq!(walk, model.iter().copied().collect::<Vec<_>>());
                assert_eq!(lists.len(n), model.len());
            }
        }
    }
}
