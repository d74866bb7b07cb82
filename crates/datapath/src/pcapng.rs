//! Blocks of a pcapng capture (draft-ietf-opsawg-pcapng), little-endian, with times in nanoseconds: what a capture needs and no
//! more. A file is a [`section`], its [`interface`], [`packet`]s, and [`statistics`] at the end.

/// What the packets of an interface begin with: Ethernet.
pub const LINK_ETHERNET: u16 = 1;
/// An IPv4 or IPv6 header.
pub const LINK_RAW_IP: u16 = 101;
/// Nothing that others know (LINKTYPE_USER0).
pub const LINK_USER: u16 = 147;

/// The types of blocks.
pub const SECTION: u32 = 0x0a0d_0d0a;
/// See [`interface`].
pub const INTERFACE: u32 = 1;
/// See [`statistics`].
pub const STATISTICS: u32 = 5;
/// See [`packet`].
pub const PACKET: u32 = 6;

/// The bytes of a packet's block beside the packet, at most.
pub const PACKET_OVERHEAD: usize = 48;

/// Which way a packet went, as the host sees it that captured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In = 1,
    /// Sent.
    Out = 2,
}

/// Begins a block; returns where.
fn begin(out: &mut Vec<u8>, kind: u32) -> usize {
    let at = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    at
}

/// Ends a block: its length stands behind its type and at its end.
fn end(out: &mut Vec<u8>, at: usize) {
    let len = u32::try_from(out.len() - at + 4).unwrap_or(u32::MAX).to_le_bytes();
    out[at + 4..at + 8].copy_from_slice(&len);
    out.extend_from_slice(&len);
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + len.next_multiple_of(4) - len, 0);
}

/// An option; texts are cut at 1000 bytes.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..value.len().min(1000)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// A time in nanoseconds since 1970, as blocks have it: the high half first.
fn time(out: &mut Vec<u8>, ns: u64) {
    out.extend_from_slice(&((ns >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(ns as u32).to_le_bytes());
}

/// The beginning of a file, by the program of this name.
pub fn section(out: &mut Vec<u8>, program: &str) {
    let at = begin(out, SECTION);
    out.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
    out.extend_from_slice(&[1, 0, 0, 0]);
    // Of unknown length.
    out.extend_from_slice(&u64::MAX.to_le_bytes());
    option(out, 4, program.as_bytes());
    option(out, 0, &[]);
    end(out, at);
}

/// An interface; the first has number 0.
pub fn interface(out: &mut Vec<u8>, link: u16, name: &str, description: &str) {
    let at = begin(out, INTERFACE);
    out.extend_from_slice(&link.to_le_bytes());
    // Packets of any length are whole.
    out.extend_from_slice(&[0; 6]);
    option(out, 2, name.as_bytes());
    option(out, 3, description.as_bytes());
    // Times in 10^-9 s.
    option(out, 9, &[9]);
    option(out, 0, &[]);
    end(out, at);
}

/// A packet of interface 0, in pieces one after the other, at a time in nanoseconds since 1970.
pub fn packet(out: &mut Vec<u8>, ns: u64, direction: Direction, pieces: &[&[u8]]) {
    let at = begin(out, PACKET);
    out.extend_from_slice(&[0; 4]);
    time(out, ns);
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    let bytes = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    out.extend_from_slice(&bytes);
    out.extend_from_slice(&bytes);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    pad(out, len);
    option(out, 2, &(direction as u32).to_le_bytes());
    option(out, 0, &[]);
    end(out, at);
}

/// How many packets of interface 0 there were until a time, and how many of them are not in the file for want of room.
pub fn statistics(out: &mut Vec<u8>, ns: u64, seen: u64, dropped: u64) {
    let at = begin(out, STATISTICS);
    out.extend_from_slice(&[0; 4]);
    time(out, ns);
    option(out, 4, &seen.to_le_bytes());
    option(out, 5, &dropped.to_le_bytes());
    option(out, 0, &[]);
    end(out, at);
}

/// The first block of some bytes: its type and all of it. `None` while it is not all there.
///
/// # Errors
/// The bytes are no block.
pub fn block(bytes: &[u8]) -> Result<Option<(u32, &[u8])>, NoBlock> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map(u32::from_le_bytes);
    let (Some(kind), Some(len)) = (word(0), word(4)) else { return Ok(None) };
    let len = len as usize;
    if len < 12 || !len.is_multiple_of(4) || len > MOST_BLOCK {
        return Err(NoBlock);
    }
    Ok(bytes.get(..len).map(|block| (kind, block)))
}

/// The dropped packets that a [`statistics`] block tells of.
#[must_use]
pub fn dropped(block: &[u8]) -> Option<u64> {
    let mut rest = block.get(20..block.len().checked_sub(4)?)?;
    loop {
        let [c0, c1, l0, l1, tail @ ..] = rest else { return None };
        let (code, len) = (u16::from_le_bytes([*c0, *c1]), usize::from(u16::from_le_bytes([*l0, *l1])));
        match code {
            0 => return None,
            5 => return tail.get(..8)?.try_into().ok().map(u64::from_le_bytes),
            _ => rest = tail.get(len.next_multiple_of(4)..)?,
        }
    }
}

/// The longest block that is read: more than the largest frame takes.
const MOST_BLOCK: usize = 1 << 20;

/// What was read is no block of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came is no pcapng block")]
pub struct NoBlock;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_block_by_block() {
        let mut file = Vec::new();
        section(&mut file, "a test");
        interface(&mut file, LINK_RAW_IP, "eth0", "an interface");
        packet(&mut file, 1_700_000_000_000_000_001, Direction::Out, &[b"ab", b"c"]);
        statistics(&mut file, 1_700_000_000_000_000_002, 8, 7);
        let (mut kinds, mut rest) = (Vec::new(), &file[..]);
        while let Ok(Some((kind, found))) = block(rest) {
            kinds.push(kind);
            assert_eq!(found[4..8], found[found.len() - 4..], "the length stands twice");
            assert_eq!(block(&found[..found.len() - 1]), Ok(None));
            if kind == PACKET {
                assert!(found.len() <= 3 + PACKET_OVERHEAD);
                assert_eq!(&found[20..31], [3, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c']);
            }
            assert_eq!(dropped(found), (kind == STATISTICS).then_some(7));
            rest = &rest[found.len()..];
        }
        assert_eq!((kinds, rest.len()), (vec![SECTION, INTERFACE, PACKET, STATISTICS], 0));
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for len in [0u32, 8, 13, 1 << 21] {
            let bytes = [6u32.to_le_bytes(), len.to_le_bytes()].concat();
            assert_eq!(block(&bytes), Err(NoBlock), "{len}");
        }
        assert_eq!((block(&[]), dropped(&[0; 24]), dropped(&[])), (Ok(None), None, None));
    }
}
