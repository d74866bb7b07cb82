//! Threads that poll: on which core.

mod core;

pub use self::core::{PinError, pin};
