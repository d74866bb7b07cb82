//! The sender's payloads, as a path asks for them.

/// The sender's payloads, for what is copied into its frame: small messages, and all of them when frames carry a check.
pub trait Payloads {
    /// Appends `len` bytes of a payload from byte `offset` on to `out`.
    fn copy(&mut self, token: u64, offset: u32, len: u32, out: &mut Vec<u8>);

    /// What goes next of a bundle of which `rest` is left: as many whole messages, `most` at most, as fit into `room` bytes. `None`:
    /// it is no bundle of as many messages.
    fn bundle(&mut self, token: u64, rest: Rest, room: u32, most: u16) -> Option<Fit> {
        let _ = (token, rest, room, most);
        None
    }

    /// Appends what [`Self::bundle`] said would fit, as a bundle has it.
    fn copy_bundle(&mut self, token: u64, rest: Rest, fit: Fit, out: &mut Vec<u8>) {
        self.copy(token, rest.offset, fit.len, out);
    }

    /// How many of the next messages of a bundle are of `size` bytes, a multiple of 8; `most` at most.
    fn count_alike(&mut self, token: u64, rest: Rest, (size, most): (u32, u16)) -> u16 {
        count_alike(self, token, rest, (size, most))
    }

    /// Appends the payloads of the next messages of a bundle as long as those are of `size` bytes, a multiple of 8, each after what
    /// `head` appends for it; how many those were, `most` at most.
    fn copy_alike(
        &mut self,
        token: u64,
        rest: Rest,
        (size, most): (u32, u16),
        out: &mut Vec<u8>,
        head: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u16 {
        copy_alike(self, token, rest, (size, most), out, head)
    }
}

/// [`Payloads::count_alike`] as it is if nothing better is known: by [`Payloads::bundle`].
pub fn count_alike<P: Payloads + ?Sized>(payloads: &mut P, token: u64, rest: Rest, (size, most): (u32, u16)) -> u16 {
    let stride = BUNDLE_WORD + size;
    let is_alike = |n: &u16| {
        let left = Rest { offset: rest.offset + u32::from(*n) * stride, count: rest.count - n };
        payloads.bundle(token, left, stride, 1).is_some_and(|fit| fit.count == 1 && fit.first == size)
    };
    (0..most.min(rest.count)).take_while(is_alike).count() as u16
}

/// [`Payloads::copy_alike`] as it is if nothing better is known: by [`Payloads::count_alike`] and [`Payloads::copy`].
pub fn copy_alike<P: Payloads + ?Sized>(
    payloads: &mut P,
    token: u64,
    rest: Rest,
    (size, most): (u32, u16),
    out: &mut Vec<u8>,
    head: &mut dyn FnMut(&mut Vec<u8>),
) -> u16 {
    let stride = BUNDLE_WORD + size;
    let alike = payloads.count_alike(token, rest, (size, most));
    for n in 0..u32::from(alike) {
        head(out);
        let end = out.len() + size as usize;
        payloads.copy(token, rest.offset + n * stride + BUNDLE_WORD, size, out);
        out.resize(end, 0);
    }
    alike
}

/// What comes before each message of a bundle, in bytes.
pub(crate) const BUNDLE_WORD: u32 = 8;

/// What is left of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Where it begins, in bytes.
    pub offset: u32,
    /// How many messages.
    pub count: u16,
}

/// How much of a bundle fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// How many whole messages; 0 if the first is too long.
    pub count: u16,
    /// The bytes that they take in a bundle; without any, those that the first takes.
    pub len: u32,
    /// The bytes of their payloads.
    pub payload: u32,
    /// The bytes of the first message's payload.
    pub first: u32,
}
