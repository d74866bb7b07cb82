//! The control messages of INSANE, the identities they carry, the errors they report, and the frames between hosts.
//!
//! Purpose: everything that two INSANE processes say to each other outside shared memory. Control messages are plain values
//! in Protocol Buffers, so that a newer peer may add fields that an older one passes over; frames are views over the bytes
//! that arrived. Non-purpose: this crate opens no socket and reads no clock (the reassembler is told the time); it is
//! sans-IO and has no `unsafe`. What is sent again, when and how fast is `insane-transport`.
//!
//! Layer: above nothing. Used by the runtime and by the client library.
//!
//! Main types: [`control::ToRuntime`] and [`control::ToClient`] (a session and its runtime), [`peer::ToPeer`] (two
//! sessions that share links), [`host::ToHost`] (two runtimes), [`qos::Qos`], [`id::Epoch`], [`error::Code`]; [`frame::parse`] and [`frame::FrameBuilder`] (what
//! runtimes send each other), [`fragment::Fragments`], [`reassembly::Reassembler`].
//!
//! ```
//! use insane_wire::{control::{ToRuntime, to_runtime, Hello}, encode, decode};
//!
//! let hello = ToRuntime { request: 1, body: Some(to_runtime::Body::Hello(Hello { app: "probe".into(), ..Hello::default() })) };
//! let bytes = encode(&hello);
//! assert_eq!(decode::<ToRuntime>(&bytes).unwrap(), hello);
//! ```
#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod fragment;
pub mod frame;
pub mod host;
pub mod id;
pub mod keyed;
pub mod peer;
pub mod qos;
pub mod reassembly;

/// The version of the session protocol and of the peer protocol that this crate speaks. Both sides announce the range
/// they speak in their first message; the highest common version is used.
pub const PROTOCOL: u32 = 1;

/// The largest control message in bytes, on the socket to the runtime and between peers. A longer one is refused.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;

/// The most file descriptors that travel with one control message.
pub const MAX_CONTROL_FDS: usize = 4;

/// Encodes a control message. Never fails: the caller keeps messages under [`MAX_CONTROL_BYTES`] by bounding its lists.
#[must_use]
pub fn encode<M: prost::Message>(message: &M) -> Vec<u8> {
    message.encode_to_vec()
}

/// Decodes a control message that came from outside.
///
/// # Errors
/// [`error::DecodeError`] when the bytes are too many or are no message of this kind. Nothing is partly taken.
pub fn decode<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, error::DecodeError> {
    if bytes.len() > MAX_CONTROL_BYTES {
        return Err(error::DecodeError::TooLong { bytes: bytes.len() });
    }
    M::decode(bytes).map_err(|e| error::DecodeError::Malformed { text: e.to_string() })
}
