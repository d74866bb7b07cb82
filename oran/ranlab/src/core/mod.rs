//! The lab without input and output: packets in, packets out, and a clock that the caller turns.
//!
//! ```text
//! server ─▶ wide area ─▶ core (QFI) ─▶ SDAP ─▶ pipeline ─▶ PDCP ─▶ RLC ─▶ MAC, HARQ ─▶ UE
//! server ◀─ wide area ◀────────────────────── receiver ◀── MAC, HARQ ◀─ RLC ◀─ grant ◀─ UE
//! ```

pub mod air;
pub mod cell;
pub mod channel;
pub mod delay;
pub mod f1u;
pub mod pdcp;
pub mod pdu;
pub mod phy;
pub mod rlc;
pub mod slots;
pub mod stats;
