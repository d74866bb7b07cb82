//! The server name in a TLS ClientHello (RFC 8446 §4.1.2, RFC 6066 §3).

use super::be16;
use super::dns::push_label;

/// What the first bytes of a TCP stream say about the server's name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// This is its name.
    Name(String),
    /// It is a ClientHello, but the name has not come yet.
    Truncated,
    /// It is something else, or has no name.
    Other,
}

/// Reads the server name from the beginning of a TLS stream.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    // A handshake record of any TLS version with a ClientHello in it.
    if bytes.len() < 6 || bytes[0] != 22 || bytes[1] != 3 || bytes[5] != 1 {
        return Hello::Other;
    }
    match find_name(bytes) {
        Some(hello) => hello,
        None => Hello::Truncated,
    }
}

/// `None` where the bytes end too early.
fn find_name(bytes: &[u8]) -> Option<Hello> {
    // Record header 5, handshake header 4, version 2, random 32.
    let mut at = 43;
    at += 1 + usize::from(*bytes.get(at)?);
    at += 2 + usize::from(be16(bytes, at)?);
    at += 1 + usize::from(*bytes.get(at)?);
    let end = at + 2 + usize::from(be16(bytes, at)?);
    at += 2;
    while at + 4 <= end {
        let (kind, len) = (be16(bytes, at)?, usize::from(be16(bytes, at + 2)?));
        at += 4;
        if kind == 0 {
            return Some(server_name(bytes.get(at..at + len)?));
        }
        at += len;
    }
    Some(Hello::Other)
}

/// The first host name in the extension.
fn server_name(list: &[u8]) -> Hello {
    let parse = || {
        // List length 2, name type 1 (0 is a host name), length 2.
        if *list.get(2)? != 0 {
            return None;
        }
        let len = usize::from(be16(list, 3)?);
        let mut name = String::new();
        list.get(5..5 + len)?.split(|&b| b == b'.').try_for_each(|label| push_label(&mut name, label))?;
        (!name.is_empty()).then_some(name)
    };
    parse().map_or(Hello::Other, Hello::Name)
}
