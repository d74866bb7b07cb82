//! The names and addresses in a DNS response (RFC 1035).

use super::be16;
use crate::parse::Address;

/// Answers that are looked at in one response.
const MAX_ANSWERS: u16 = 64;
/// Steps that a compressed name may take.
const MAX_LABELS: usize = 128;

/// Calls `found` with the name that was asked for and each address in the answer. Returns whether it was a response.
///
/// The name is the one of the question, also where the answer goes through aliases: that is what the application wanted.
pub(crate) fn read(bytes: &[u8], mut found: impl FnMut(&str, Address)) -> bool {
    parse(bytes, &mut found).is_some()
}

fn parse(bytes: &[u8], found: &mut impl FnMut(&str, Address)) -> Option<()> {
    let flags = be16(bytes, 2)?;
    // A response (QR) to a standard query (opcode 0) without error (RCODE 0).
    if flags & 0xf80f != 0x8000 || be16(bytes, 4)? != 1 {
        return None;
    }
    let answers = be16(bytes, 6)?.min(MAX_ANSWERS);
    let mut name = String::new();
    let mut at = read_name(bytes, 12, Some(&mut name))? + 4;
    for _ in 0..answers {
        at = read_name(bytes, at, None)?;
        let (kind, class) = (be16(bytes, at)?, be16(bytes, at + 2)?);
        let len = usize::from(be16(bytes, at + 8)?);
        let data = bytes.get(at + 10..at + 10 + len)?;
        match (kind, class) {
            (1, 1) => {
                let raw: [u8; 4] = data.try_into().ok()?;
                found(&name, Address { v6: false, bits: u32::from_be_bytes(raw).into() });
            }
            (28, 1) => {
                let raw: [u8; 16] = data.try_into().ok()?;
                found(&name, Address { v6: true, bits: u128::from_be_bytes(raw) });
            }
            _ => {}
        }
        at += 10 + len;
    }
    Some(())
}

/// Steps over the name at `at`, writing it down in lower case if asked. Returns where the next field is.
fn read_name(bytes: &[u8], mut at: usize, mut into: Option<&mut String>) -> Option<usize> {
    let mut after = None;
    for _ in 0..MAX_LABELS {
        let len = usize::from(*bytes.get(at)?);
        match len {
            0 => return Some(after.unwrap_or(at + 1)),
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + len)?;
                if let Some(name) = into.as_deref_mut() {
                    push_label(name, label)?;
                }
                at += 1 + len;
            }
            192..=255 => {
                after = after.or(Some(at + 2));
                // Only backwards, so that there is an end.
                at = Some(usize::from(be16(bytes, at)? & 0x3fff)).filter(|&to| to < at)?;
            }
            _ => return None,
        }
    }
    None
}

/// Appends a label; `None` if it holds what no host name does or the name grows too long.
pub(super) fn push_label(name: &mut String, label: &[u8]) -> Option<()> {
    let usual = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_';
    if name.len() + 1 + label.len() > 253 || !label.iter().all(usual) {
        return None;
    }
    if !name.is_empty() {
        name.push('.');
    }
    name.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
    Some(())
}
