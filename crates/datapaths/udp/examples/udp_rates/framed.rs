//! The UDP datapath with frames: built, gathered, received, parsed and checked for order.

use std::net::SocketAddr;
use std::time::Instant;

use insane_datapath::batch::{RxBatch, TxBatch};
use insane_datapath::memory::{Piece, Slot};
use insane_datapath::{Address, Datapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_wire::fragment::{Fragments, whole_limit};
use insane_wire::frame::record::{Message, Record};
use insane_wire::frame::{FrameBuilder, Header, parse};

use crate::{Seen, Watch};

pub(crate) fn run(here: SocketAddr, there: SocketAddr, size: usize, receive: bool, seconds: f64) -> Seen {
    let mut udp = UdpDatapath::new(UdpConfig::new(here));
    udp.open().expect("it opens");
    if receive { receive_all(&mut udp, size) } else { send_all(&mut udp, Address::Ip(there), size, seconds) }
}

fn send_all(udp: &mut UdpDatapath, to: Address, size: usize, seconds: f64) -> Seen {
    let limit = udp.frame_limit(to);
    // As much memory as the bare sender goes over, so that both copy from the same cache.
    let memory = vec![7u8; size.max(61_440)];
    let (mut batch, mut index, mut counter, start) = (TxBatch::default(), 0u32, 1u64, Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        batch.clear();
        while batch.frames().len() < 240 {
            let at = index as usize * size % (memory.len() - size + 1);
            let payload = &memory[at..at + size];
            let message = Message { flow: 1, index, sequence: u64::from(index) + 1, ..Message::default() };
            let header = Header { connection: 9, domain: 7, counter, ..Header::default() };
            if size <= whole_limit(limit, &message) {
                let first = batch.buffer().len();
                let mut frame = FrameBuilder::new(batch.buffer(), header, limit);
                if size <= 2048 {
                    let mut next = message;
                    while frame.message(&next, payload) {
                        next.index = next.index.wrapping_add(1);
                        next.sequence += 1;
                    }
                    index = next.index;
                    frame.finish();
                    batch.commit(to, first, None, counter);
                } else {
                    frame.message_apart(&message, size);
                    frame.finish();
                    batch.commit(to, first, Some(Piece::of(payload)), counter);
                    index = index.wrapping_add(1);
                }
                counter += 1;
                continue;
            }
            for (part, len) in Fragments::new(size as u32, limit, &message).expect("a limit with room") {
                let first = batch.buffer().len();
                let mut frame = FrameBuilder::new(batch.buffer(), Header { counter, ..header }, limit);
                frame.fragment_apart(&message, part, len as usize);
                frame.finish();
                let from = part.offset as usize;
                batch.commit(to, first, Some(Piece::of(&payload[from..from + len as usize])), counter);
                batch.allow_padding();
                counter += 1;
            }
            index = index.wrapping_add(1);
        }
        while !batch.is_done() {
            udp.transmit(&mut batch);
        }
    }
    Seen { messages: 0, bytes: 0, time: start.elapsed(), lost: 0 }
}

fn receive_all(udp: &mut UdpDatapath, size: usize) -> Seen {
    let slots = (0..64).map(|id| Slot::owned(id, 65_536)).collect();
    let mut rx = RxBatch { free: slots, limit: 4, ..RxBatch::default() };
    let (mut watch, mut bytes, mut lost, mut next) = (Watch::new(), 0u64, 0u64, 1u64);
    while !watch.over() {
        if udp.receive(&mut rx, None).frames > 0 {
            watch.tick();
        }
        for taken in rx.taken.drain(..) {
            for frame in taken.frames() {
                let Ok((_, records)) = parse(frame) else { continue };
                for record in records {
                    let (message, place, end) = match record {
                        Ok(Record::Message(message, place)) => (message, place, true),
                        Ok(Record::Fragment(message, part, place)) => {
                            (message, place, part.offset as usize + place.len == size)
                        }
                        _ => continue,
                    };
                    bytes += place.len as u64;
                    if end {
                        lost += message.sequence.saturating_sub(next);
                        next = message.sequence + 1;
                    }
                }
            }
            rx.free.push(taken.slot);
        }
    }
    Seen { messages: bytes / size as u64, bytes, time: watch.time(), lost }
}
