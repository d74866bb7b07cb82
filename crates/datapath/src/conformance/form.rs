//! How the frames of the suite look on a datapath.

use super::Rig;
use crate::Address;
use crate::batch::TxBatch;

/// The ethertype of the suite's frames: of the range that everyone may use.
pub const ETHERTYPE: u16 = 0x88b5;

/// Ethernet's two addresses and ethertype, and the length of what follows in two bytes: frames may be filled up on their way.
const HEAD_BYTES: usize = 16;

/// Frames as they are, or, where the datapath carries whole Ethernet frames, behind a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The receiver's and the sender's address.
    ends: Option<([u8; 6], [u8; 6])>,
}

impl Form {
    /// The form for what goes from a rig's `a` to its `b`.
    ///
    /// # Panics
    /// When a datapath with whole Ethernet frames has another kind of address, or is closed.
    #[must_use]
    pub fn of(rig: &Rig) -> Self {
        if !rig.a.capabilities().needs_packet_engine {
            return Self { ends: None };
        }
        let (Some(Address::Ethernet(from)), Some(Address::Ethernet(to))) = (rig.a.address(), rig.b.address()) else {
            panic!("a datapath with Ethernet frames has an Ethernet address: {rig:?}");
        };
        Self { ends: Some((to, from)) }
    }

    /// Whether there is a header.
    #[must_use]
    pub const fn is_raw(&self) -> bool {
        self.ends.is_some()
    }

    /// How many bytes stand before what the suite sends.
    #[must_use]
    pub const fn head_bytes(&self) -> usize {
        if self.is_raw() { HEAD_BYTES } else { 0 }
    }

    /// Begins a frame with `len` bytes to follow.
    ///
    /// # Panics
    /// When they are more than a frame can have.
    pub fn begin(&self, out: &mut Vec<u8>, len: usize) {
        if let Some((to, from)) = self.ends {
            out.extend_from_slice(&to);
            out.extend_from_slice(&from);
            out.extend_from_slice(&ETHERTYPE.to_be_bytes());
            out.extend_from_slice(&u16::try_from(len).expect("a frame's length").to_be_bytes());
        }
    }

    /// Adds a frame with this in it to a batch.
    pub fn add(&self, tx: &mut TxBatch<'_>, to: Address, body: &[u8], cookie: u64) {
        let start = tx.buffer().len();
        self.begin(tx.buffer(), body.len());
        tx.buffer().extend_from_slice(body);
        tx.commit(to, start, None, cookie);
    }

    /// What was in a frame.
    ///
    /// # Panics
    /// When it is not one that [`Form::add`] made, perhaps with zeros after it.
    #[must_use]
    pub fn unwrap(&self, frame: &[u8]) -> Vec<u8> {
        let Some((to, from)) = self.ends else { return frame.to_vec() };
        assert!(frame.len() >= HEAD_BYTES, "a frame of {} bytes is no Ethernet frame of the suite's", frame.len());
        let (head, rest) = frame.split_at(HEAD_BYTES);
        assert_eq!((&head[..6], &head[6..12], &head[12..14]), (&to[..], &from[..], &ETHERTYPE.to_be_bytes()[..]));
        let len = usize::from(u16::from_be_bytes([head[14], head[15]]));
        assert!(rest.len() >= len, "of {len} bytes only {} have come", rest.len());
        let (body, padding) = rest.split_at(len);
        assert!(padding.iter().all(|&byte| byte == 0) && (padding.is_empty() || frame.len() <= 60), "filled up badly");
        body.to_vec()
    }
}
