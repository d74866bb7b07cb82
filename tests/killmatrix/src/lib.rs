//! What the kill matrix and its parties share: the board on which a party writes what it has done.
#![forbid(unsafe_code)]

pub mod board;
pub mod cell;
pub mod hosts;
pub mod law;
pub mod process;
pub mod rounds;
pub mod table;
