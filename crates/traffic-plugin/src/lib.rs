//! Stages of the traffic pipeline from shared objects, loaded while the pipeline runs.
//!
//! Purpose: to find a shared object, judge whether it may be loaded, load it, and give the pipeline of `insane-traffic` the
//! stages that it offers through the C interface of `include/insane_traffic_stage.h`. The pipeline's file and its live
//! changes name such a stage with `type = "plugin"`.
//!
//! Non-purpose: protection against what an object does. Loading is trust; what is checked is who could have written the
//! file. What a stage answers is checked on every call, and no answer makes the pipeline lose a packet.
//!
//! Layer: below `insane-traffic`, which has neither unsafe code nor shared objects. Main types: [`Registry`] (what is
//! loaded), [`LoadError`] (why something is not), [`abi`] (the C interface, for plug-ins in Rust).
//!
//! ```
//! use std::sync::Arc;
//!
//! use insane_traffic::{Pipeline, PipelineSpec};
//! use insane_traffic_plugin::Registry;
//!
//! let registry = Arc::new(Registry::new(vec!["/usr/lib/insane/traffic".into()]));
//! let mut pipeline: Pipeline<Vec<u8>> = Pipeline::with_plugins(&PipelineSpec::default(), 42, Some(registry.clone()))?;
//! // Later, from any thread: what is loaded can be named in the next change of the pipeline.
//! assert!(registry.load("dscp.so").is_err(), "there is no such file");
//! # Ok::<(), insane_traffic::SpecError>(())
//! ```

pub mod abi;

mod adapters;
mod error;
mod object;
mod registry;
mod stage;

pub use error::LoadError;
pub use registry::{Loaded, Registry};
pub use stage::Kind;
