//! Between TCP and the engine: packets in memory that is taken once.

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::ip::{MAX_PACKET, V6_BYTES};

/// How many packets TCP may have made that were not sent yet.
const PACKETS: usize = 64;

#[derive(Debug)]
pub(super) struct Pipe {
    mtu: usize,
    incoming: Vec<u8>,
    /// The size of the packet that has come in; 0 for none.
    arrived: usize,
    outgoing: Outgoing,
}

/// Packets in places of one size, in order.
#[derive(Debug)]
struct Outgoing {
    memory: Vec<u8>,
    lens: [usize; PACKETS + 1],
    first: usize,
    count: usize,
    place: usize,
    lost: u64,
}

impl Pipe {
    pub(super) fn new(mtu: usize) -> Self {
        let outgoing = Outgoing {
            memory: vec![0; (PACKETS + 1) * mtu],
            lens: [0; PACKETS + 1],
            first: 0,
            count: 0,
            place: mtu,
            lost: 0,
        };
        Self { mtu, incoming: vec![0; MAX_PACKET + V6_BYTES], arrived: 0, outgoing }
    }

    /// Room for a packet that has come in, to be followed by [`Pipe::arrived`].
    pub(super) fn incoming(&mut self) -> &mut [u8] {
        &mut self.incoming
    }

    /// So many bytes were written there.
    pub(super) fn arrived(&mut self, len: usize) {
        self.arrived = len.min(self.incoming.len());
    }

    /// The oldest packet that is to be sent.
    pub(super) fn next(&self) -> Option<&[u8]> {
        let out = &self.outgoing;
        let at = out.first * out.place;
        (out.count > 0).then(|| &out.memory[at..at + out.lens[out.first]])
    }

    /// It was sent.
    pub(super) fn sent(&mut self) {
        let out = &mut self.outgoing;
        out.first = (out.first + 1) % out.lens.len();
        out.count = out.count.saturating_sub(1);
    }

    /// Whether TCP could answer something that comes in.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.count < PACKETS
    }
}

impl Device for Pipe {
    type RxToken<'a> = Taken<'a>;
    type TxToken<'a> = Place<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Taken<'_>, Place<'_>)> {
        let len = core::mem::take(&mut self.arrived);
        // One place is kept for the answer to what comes in.
        (len > 0).then_some((Taken(&self.incoming[..len]), Place(&mut self.outgoing)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Place<'_>> {
        (self.outgoing.count < PACKETS).then_some(Place(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // The engine makes and checks the header of IPv4 itself.
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities.checksum.ipv4 = Checksum::None;
        capabilities
    }
}

#[derive(Debug)]
pub(super) struct Taken<'a>(&'a [u8]);

impl phy::RxToken for Taken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

#[derive(Debug)]
pub(super) struct Place<'a>(&'a mut Outgoing);

impl phy::TxToken for Place<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let out = self.0;
        let number = (out.first + out.count) % out.lens.len();
        let at = number * out.place;
        if len > out.place || out.count == out.lens.len() {
            // TCP makes no packets above its MTU, and asks for a place first; should it, the packet is lost.
            out.lost += 1;
            return write(&mut vec![0; len]);
        }
        out.lens[number] = len;
        out.count += 1;
        write(&mut out.memory[at..at + len])
    }
}
