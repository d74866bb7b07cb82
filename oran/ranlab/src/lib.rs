#![deny(unsafe_code)]
//! The RAN lab: a 5G user plane in user space that real programs talk through.
//!
//! Between the namespaces of a server and of UEs stand the core, SDAP, the pipeline of `insane-traffic` for each bearer,
//! PDCP, the RLC's buffer, and a MAC with the transport blocks of TS 38.214, a TDD pattern, block errors and HARQ. Slots are
//! half a millisecond; if the lab is late it catches up on nominal time, so that rates are exact over more than a moment.
//!
//! It does not: encode radio signals, cipher, compress headers, hand over, or page. What it says of delay holds for what it
//! models and is good to a few milliseconds on a busy machine.
//!
//! Layer: below the O-RAN faces; depends on `insane-traffic` and, for stages from shared objects, `insane-traffic-plugin`. [`core`] is sans-IO with a virtual clock; [`host`] is
//! namespaces, devices and the real clock.
//!
//! Main types: [`config::Config`] (the file), [`core::cell::Cell`] (the state machine).
//!
//! ```
//! use insane_ranlab::config::Config;
//! use insane_ranlab::core::cell::{Cell, Side};
//! use insane_traffic::Time;
//!
//! let mut cell = Cell::new(&Config::default())?;
//! cell.downlink(Time::ZERO, 0, &[0x45; 100]);
//! cell.advance(Time::from_millis(30));
//! let delivery = cell.pop().expect("a packet");
//! assert_eq!(delivery.to, Side::Ue(0));
//! assert!(delivery.at >= Time::from_millis(3), "the radio takes its time");
//! # Ok::<(), insane_ranlab::config::ConfigError>(())
//! ```

pub mod config;
pub mod core;
pub mod experiment;
pub mod host;
