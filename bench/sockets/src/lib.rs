//! What the three socket programs share: waiting for a socket in each class, finding each other, and streams of
//! fixed-size messages.
#![forbid(unsafe_code)]

pub mod meet;
pub mod stream;
pub mod wait;
