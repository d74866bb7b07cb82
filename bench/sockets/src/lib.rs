//! What the three socket programs share: waiting for a socket in each class, finding each other, and streams of
//! fixed-size messages.
#![deny(unsafe_code)]

pub mod gso;
pub mod meet;
pub mod stream;
pub mod wait;
