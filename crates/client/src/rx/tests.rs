use super::*;
use insane_shm::counters::{CellState, Counters, bytes};
use insane_shm::link::{Producer, pair_on_heap};
use insane_shm::memory::Heap;
use insane_shm::scatter::{Place, bytes_for, write};
use insane_shm::segment::{Geometry, Segment};

const STRIDE: u32 = 4096;
const SLOTS: u32 = 4;

/// A sink, its link, and what is at the other end of that: a producer with a segment, who may say anything.
struct Rig {
    rx: Rx,
    producer: Producer,
    segment: Segment,
}

impl Rig {
    /// The other end is the `network`'s or a session's, and the sink has asked for lists or not.
    fn new(network: bool, scattered: bool) -> Self {
        let (mut producer, mut consumer) = pair_on_heap(8);
        let geometry = Geometry::checked(STRIDE.into(), SLOTS).unwrap();
        let segment = Segment::create(geometry, false).unwrap();
        producer.add_segment(0, SLOTS);
        consumer.add_segment(0, SLOTS, STRIDE.into());
        let mut rx = Rx::default();
        let at = rx.add_link(consumer, (false, network), true, Shared::for_tests());
        let cells = Counters::create(Arc::new(Heap::new(bytes(4))), 4).unwrap();
        let (id, epoch) = (SinkId(2), Epoch(1));
        let mut flow = RxFlow::new(epoch);
        flow.sinks.push(FlowSink {
            index: 0,
            id,
            cell: cells.start(0, CellState::Consuming, epoch.0, id.0).unwrap(),
            end: None,
            cursor: 0,
            join: 1,
            joined: false,
            late: Late::default(),
            has: Tally::default(),
        });
        rx.sinks.push(Some(RxSink {
            id,
            queue: Queue::default(),
            open: true,
            flows: 1,
            interrupt: Arc::new(AtomicU32::new(0)),
            tasks: crate::rx::tasks::Tasks::default(),
            copies: scattered.then(|| Arc::new(Copies::default())),
        }));
        let link = rx.links[at].as_mut().unwrap();
        link.segments.push(Some(SegmentView::map(segment.fd(), geometry, u64::MAX).unwrap()));
        link.flows.insert(0, flow);
        Self { rx, producer, segment }
    }

    /// Puts bytes into a slot and says that they are the list of a message's pieces.
    fn say(&mut self, list: &[u8]) {
        // SAFETY: the slot has 4096 bytes, and this process alone writes to it.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), self.segment.slot(0).as_ptr(), list.len()) };
        let (length, flags) = (list.len() as u32, FLAG_SCATTERED);
        self.producer
            .push(&Descriptor { sequence: 1, length, flags, count: 1, joined: 1, ..Descriptor::default() }, &[]);
    }

    /// The length and the pieces of the message that the sink gets.
    fn takes(&mut self) -> Option<(u32, usize)> {
        let message = self.rx.take(0).unwrap()?;
        let scattered = message.get().extra.as_ref().and_then(|e| e.scattered.clone());
        let found = (message.get().length, scattered.map_or(0, |s| s.pieces.len()));
        self.rx.release(message);
        Some(found)
    }

    fn is_broken(&self) -> bool {
        self.rx.links[0].as_ref().unwrap().broken.is_some()
    }
}

fn place(segment: u16, slot: u32, offset: u32, length: u32) -> Place {
    Place { segment, slot, offset, length }
}

fn list(places: &[Place]) -> Vec<u8> {
    let mut bytes = vec![0; bytes_for(places.len())];
    assert_eq!(write(places, &mut bytes), Some(bytes.len()));
    bytes
}

#[test]
fn lists_come_from_the_network_alone_and_for_those_who_asked() {
    let good = list(&[place(0, 1, 5, 7), place(0, 2, 0, STRIDE)]);
    for (network, scattered) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut rig = Rig::new(network, scattered);
        rig.say(&good);
        let right = network && scattered;
        assert_eq!(rig.takes(), right.then_some((7 + STRIDE, 2)), "network {network}, scattered {scattered}");
        assert_eq!(rig.is_broken(), !right, "network {network}, scattered {scattered}");
    }
}

#[test]
fn a_list_of_one_place_is_read_there_and_not_copied_together() {
    let mut rig = Rig::new(true, true);
    rig.say(&list(&[place(0, 1, 5, 7)]));
    // SAFETY: the slot has 4096 bytes, and this process alone writes to it.
    unsafe { std::ptr::write_bytes(rig.segment.slot(1).as_ptr(), 9, STRIDE as usize) };
    let message = rig.rx.take(0).unwrap().unwrap();
    let (whole, pieces) = (message.contiguous(), message.pieces());
    assert_eq!((whole.len(), pieces.len(), message.copies()), (7, 1, 0));
    assert_eq!((message.to_vec(), message.as_slice()), (vec![9; 7], Some(&[9; 7][..])));
    let counts = rig.rx.sinks[0].as_ref().unwrap().copies.as_ref().unwrap().get();
    assert_eq!((counts.scattered, counts.pieces, counts.all()), (1, 1, 0));
    assert!(pieces.map(|piece| piece.as_ptr()).eq([message.as_ptr()]) && whole.as_ptr() == message.as_ptr());
    rig.rx.release(message);
}

#[test]
fn a_list_of_places_that_are_not_there_breaks_its_link() {
    let good = list(&[place(0, 1, 5, 7), place(0, 2, 0, STRIDE)]);
    let (mut counted, mut longer) = (good.clone(), good.clone());
    counted[0] = 3;
    longer[4] = longer[4].wrapping_add(1);
    let lies = [
        ("a slot", list(&[place(0, 1, 5, 7), place(0, 4, 0, 1)])),
        ("an end", list(&[place(0, 3, 4090, 7)])),
        ("a segment", list(&[place(1, 0, 0, 1)])),
        ("no segment at all", list(&[place(u16::MAX, 0, 0, 1)])),
        ("a count", counted),
        ("a length", longer),
        ("half a list", good[..24].to_vec()),
        ("nothing", Vec::new()),
    ];
    for (what, lie) in lies {
        let mut rig = Rig::new(true, true);
        rig.say(&lie);
        assert_eq!((rig.takes(), rig.is_broken()), (None, true), "{what}");
    }
}
