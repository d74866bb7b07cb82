//! Where the engine's own frames go.

/// Takes frames that the engine sends by itself. Implemented by whoever owns the device's memory.
pub trait Emit {
    /// Sends a frame, given in pieces that follow each other, over a device. `false` if it was not taken: it is lost then,
    /// and counted. The frame may be shorter than the 60 bytes that Ethernet asks for: padding is the device's affair.
    fn emit(&mut self, device: u8, pieces: &[&[u8]]) -> bool;

    /// How many frames would be taken now. TCP sends no more than that, and the rest later; everything else is sent in any
    /// case.
    fn room(&self) -> usize {
        usize::MAX
    }
}

/// Keeps frames with their devices, for tests and simple programs. Allocates for every frame.
impl Emit for Vec<(u8, Vec<u8>)> {
    fn emit(&mut self, device: u8, pieces: &[&[u8]]) -> bool {
        self.push((device, pieces.concat()));
        true
    }
}
