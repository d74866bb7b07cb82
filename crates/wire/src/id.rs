//! Identities: sessions, sources and sinks choose theirs at random, so that a runtime can be rebuilt from its clients
//! (architecture §3 rules 6 and 7); channel ids are a frozen hash of the channel's name.

use sha2::{Digest, Sha256};

/// The longest name in bytes of a session, stream, channel or domain.
pub const MAX_NAME_BYTES: usize = 255;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u128);

        impl $name {
            /// A new random identity.
            ///
            /// # Panics
            /// If the operating system gives no random bytes, which it does from early boot on.
            #[must_use]
            pub fn random() -> Self {
                let mut bytes = [0u8; 16];
                getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
                Self(u128::from_le_bytes(bytes))
            }

            /// The 16 bytes as they travel.
            #[must_use]
            pub fn to_bytes(self) -> Vec<u8> { self.0.to_le_bytes().to_vec() }

            /// Reads what [`Self::to_bytes`] wrote; `None` if it is not 16 bytes or is all zero.
            #[must_use]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                let value = u128::from_le_bytes(bytes.try_into().ok()?);
                (value != 0).then_some(Self(value))
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, "{:032x}", self.0) }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:08x}…)"), (self.0 >> 96) as u32)
            }
        }
    };
}

identity! {
    /// One session, kept by the client across restarts of the runtime.
    SessionId
}
identity! {
    /// One source: the random 128-bit epoch under which it numbers its messages.
    Epoch
}
identity! {
    /// One sink.
    SinkId
}
identity! {
    /// What two sessions that share a socket pair both know, and nobody else: it matches their ends after a restart.
    PairToken
}

/// The 64-bit id of a channel within its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ChannelId(pub u64);

impl core::fmt::Display for ChannelId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The id of a channel's name: the first eight bytes, little-endian, of SHA-256 over
/// `"insane/channel/1\0" domain "\0" stream "\0" channel`. Frozen: any implementation in any language gets the same.
///
/// Names hold no NUL byte ([`valid_name`]), so the parts cannot run into each other.
#[must_use]
pub fn channel_id(domain: &str, stream: &str, channel: &str) -> ChannelId {
    let mut hash = Sha256::new();
    hash.update(b"insane/channel/1\0");
    hash.update(domain.as_bytes());
    hash.update([0]);
    hash.update(stream.as_bytes());
    hash.update([0]);
    hash.update(channel.as_bytes());
    let digest = hash.finalize();
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest[..8]);
    ChannelId(u64::from_le_bytes(first))
}

/// Whether a name may be used: 1 to [`MAX_NAME_BYTES`] bytes without control characters.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_ids_are_frozen() {
        // Computed with Python's hashlib; if this fails, every deployed name changes its id.
        assert_eq!(channel_id("default", "qos:", "telemetry").0, 0x87fb_b52f_22f9_7361);
        assert_ne!(channel_id("a", "b", "c"), channel_id("a", "c", "b"));
    }

    #[test]
    fn names_and_identities_are_checked() {
        assert!(valid_name("e2/indication"));
        assert!(!valid_name("") && !valid_name("a\0b") && !valid_name(&"x".repeat(256)));
        let id = Epoch::random();
        assert_eq!(Epoch::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(Epoch::from_bytes(&[0; 16]), None);
        assert_eq!(Epoch::from_bytes(&[1; 15]), None);
    }
}
