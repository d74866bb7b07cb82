//! What every Rust program of the comparison suite shares.
//!
//! A system program implements [`System`] and calls [`main`]; this crate gives it the command line ([`Args`]), the
//! line protocol with the orchestrator ([`Control`]), the payload rules ([`payload`]) and the measuring loops
//! ([`roles`]), so that all systems are measured by the same code. The contract is described in `bench/README.md`.
//!
//! It is not a benchmark by itself and knows no messaging system. Layer: below every `bench-*` program.

pub mod args;
pub mod cable;
pub mod control;
pub mod describe;
pub mod frames;
pub mod hiccup;
pub mod payload;
pub mod roles;
pub mod summary;
pub mod sys;
pub mod window;

pub use args::{Args, Placement, Role, Waiting};
pub use control::{Control, Stop};
pub use describe::{Absent, Description, Mode};
pub use payload::{Tally, check, read_all, stamp};
pub use roles::{Consumer, Echoer, Pinger, Producer, System, main};
pub use window::{Window, Words};

/// How long an adaptive end polls before it goes to sleep. One figure for all systems that leave the choice to us.
pub const ADAPTIVE_SPIN: std::time::Duration = std::time::Duration::from_micros(50);
