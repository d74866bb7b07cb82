//! A look at a shared object before the dynamic linker gets it. The linker trusts what the file says of itself, and a file
//! that was cut short ends the process with a bus error instead of a message.

/// The header of a 64-bit ELF file.
const HEADER: usize = 64;
/// One entry of its program header table.
const SEGMENT: usize = 56;
/// A segment of the file that is mapped.
const PT_LOAD: u32 = 1;
/// The segment with what the linker needs to know.
const PT_DYNAMIC: u32 = 2;
/// A shared object.
const ET_DYN: u16 = 3;

const fn machine() -> u16 {
    if cfg!(target_arch = "aarch64") { 183 } else { 62 }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

const SHORT: &str = "it is cut short: what its header speaks of is not there";

/// Whether the dynamic linker can be given these bytes.
///
/// # Errors
/// Why not.
pub(crate) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.get(..4) != Some(b"\x7fELF") {
        return Err("it is no shared object (ELF file)");
    }
    if bytes.len() < HEADER {
        return Err(SHORT);
    }
    // 64 bits, least significant byte first.
    if bytes[4..6] != [2, 1] || u16_at(bytes, 18) != Some(machine()) {
        return Err("it was built for another kind of machine");
    }
    if u16_at(bytes, 16) != Some(ET_DYN) {
        return Err("it is an ELF file, but no shared object: link it with -shared");
    }
    let table = u64_at(bytes, 32).and_then(|at| usize::try_from(at).ok()).ok_or(SHORT)?;
    let size = usize::from(u16_at(bytes, 54).ok_or(SHORT)?);
    let count = usize::from(u16_at(bytes, 56).ok_or(SHORT)?);
    if size != SEGMENT {
        return Err("its program headers have a size that is not known");
    }
    let mut dynamic = false;
    for n in 0..count {
        let at = n.checked_mul(SEGMENT).and_then(|offset| table.checked_add(offset)).ok_or(SHORT)?;
        let kind = u32_at(bytes, at).ok_or(SHORT)?;
        let (Some(offset), Some(length)) = (u64_at(bytes, at + 8), u64_at(bytes, at + 32)) else { return Err(SHORT) };
        dynamic |= kind == PT_DYNAMIC;
        let ends = offset.checked_add(length).ok_or(SHORT)?;
        if (kind == PT_LOAD || kind == PT_DYNAMIC) && ends > bytes.len() as u64 {
            return Err(SHORT);
        }
    }
    if dynamic { Ok(()) } else { Err("it is no shared object: it has no dynamic section") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest file that passes: a header and one dynamic segment of 16 bytes.
    fn smallest() -> Vec<u8> {
        let mut bytes = vec![0; HEADER + SEGMENT + 16];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16..18].copy_from_slice(&ET_DYN.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine().to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&(SEGMENT as u16).to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&PT_DYNAMIC.to_le_bytes());
        bytes[72..80].copy_from_slice(&((HEADER + SEGMENT) as u64).to_le_bytes());
        bytes[96..104].copy_from_slice(&16_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn every_shortened_file_is_refused() {
        let whole = smallest();
        assert_eq!(check(&whole), Ok(()));
        for length in 0..whole.len() {
            assert!(check(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn no_bytes_panic_and_lies_are_refused() {
        let whole = smallest();
        // The table's place, the segment's place and its length, each as large as can be.
        for at in [32, 72, 96] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(check(&bytes), Err(SHORT), "{at}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _any = check(&bytes);
            }
        }
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(check(&program), Ok(()), "a position-independent program has the same shape");
        assert!(check(b"#!/bin/sh\n").is_err());
    }
}
