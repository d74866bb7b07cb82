//! What a session says of its own accord on a pair: the links on which it produces, their segments, and the flows on them.

use super::{Asked, Outgoing, PairEnd};
use crate::error::Result;
use crate::stream::StreamShared;
use crate::tx::Tx;
use insane_shm::link::DeliveryBlock;
use insane_shm::memory::SharedMemory;
use insane_shm::ring::LAYOUT;
use insane_shm::steps::{Step, reach};
use insane_wire::id::SinkId;
use insane_wire::peer::{self, to_peer::Body};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offers a link for a stream; its number.
pub(super) fn offer(pair: &mut PairEnd, stream: &Arc<StreamShared>, entries: u32) -> Result<u32> {
    let memory = Arc::new(SharedMemory::create("insane-delivery", DeliveryBlock::bytes(entries)?, false, true)?);
    DeliveryBlock::create(memory.clone(), entries)?;
    let link = pair.next_link;
    pair.next_link += 1;
    reach(Step::Attach);
    let body = peer::LinkOffer { stream: stream.name.clone(), entries, reliable: stream.reliable, layout: LAYOUT };
    pair.send(link, Body::LinkOffer(body), &[memory.fd()]);
    let outgoing = Outgoing {
        stream: stream.clone(),
        offered: Some((memory, entries)),
        at: usize::MAX,
        waiting: Vec::new(),
        asked: HashMap::new(),
        again: HashMap::new(),
        reopened: HashMap::new(),
        late: Vec::new(),
    };
    pair.outgoing.insert(link, outgoing);
    Ok(link)
}

/// Tells a link of the segments that it does not know.
pub(super) fn send_segments(pair: &mut PairEnd, link: u32) {
    let Some(outgoing) = pair.outgoing.get(&link) else { return };
    let news = {
        let mut tx = outgoing.stream.tx.visit();
        let Tx { slab, links, .. } = &mut *tx;
        let Some(link) = links.get_mut(outgoing.at).and_then(Option::as_mut) else { return };
        link.told.news(slab, &link.producer, false)
    };
    for number in news.gone {
        pair.send(link, Body::SegmentRemove(peer::SegmentRef { segment: number.into() }), &[]);
    }
    for (number, segment) in &news.new {
        let geometry = segment.geometry();
        let body = peer::SegmentAdd {
            segment: u32::from(*number),
            stride: geometry.stride,
            slots: geometry.slots,
            headroom: 0,
            bytes: segment.bytes(),
        };
        pair.send(link, Body::SegmentAdd(body), &[segment.fd()]);
    }
}

/// Opens the flows that wait for a link. While it takes over from one that is `parked`, only that one's: others would get what was
/// emitted before.
pub(super) fn open_waiting(pair: &mut PairEnd, link: u32, parked: Option<&[(u32, SinkId)]>) {
    let Some(outgoing) = pair.outgoing.get_mut(&link).filter(|o| o.offered.is_none()) else { return };
    let strict = outgoing.stream.strict.load(Ordering::Relaxed);
    for wanted in std::mem::take(&mut outgoing.waiting) {
        let (source, epoch, sink, channel, observer) = wanted;
        let Some(outgoing) = pair.outgoing.get_mut(&link) else { return };
        if parked.is_some_and(|p| !p.contains(&(source, sink))) {
            outgoing.waiting.push(wanted);
            continue;
        }
        let key = (source, sink);
        if let Some(asked) = outgoing.asked.get_mut(&key) {
            *asked = Asked { observer, again: Some(wanted) };
            continue;
        }
        outgoing.asked.insert(key, Asked { observer, again: None });
        let (epoch, sink) = (epoch.to_bytes(), sink.to_bytes());
        pair.send(link, Body::FlowOpen(peer::FlowOpen { source, epoch, sink, channel, strict }), &[]);
    }
}
