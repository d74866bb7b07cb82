//! Why an object is not loaded or not unloaded.

use std::path::PathBuf;

use crate::Kind;
use crate::abi;

/// Why an object could not be loaded or unloaded. Everything is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file may not become code of this process.
    #[error("not loaded: {0}")]
    Distrust(String),
    /// The file is no shared object of this machine.
    #[error("not loaded: {0}")]
    Format(String),
    /// The dynamic linker refused it: a library or a symbol that it needs is missing.
    #[error("the dynamic linker does not take it: {0}")]
    Linker(String),
    /// It has no such symbol.
    #[error("it does not define {}: it is no object with stages", abi::SYMBOL)]
    NoSymbol,
    /// It offers nothing.
    #[error("it offers no stage: {}(0) is NULL", abi::SYMBOL)]
    NoStages,
    /// Its table is of another version.
    #[error("it was built for version {found} of insane_traffic_stage.h; this release takes version {}", abi::ABI)]
    Version {
        /// The version that it was built for.
        found: u32,
    },
    /// A struct has another size than in this version.
    #[error("{what} has {found} bytes instead of {expected}: it was built with another insane_traffic_stage.h")]
    Size {
        /// Which struct.
        what: String,
        /// Its size.
        found: u32,
        /// The size in this version.
        expected: usize,
    },
    /// A stage has no name, or one that cannot be.
    #[error("a stage's name must be 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'")]
    Name,
    /// A stage is of no kind that is known.
    #[error("a stage is of kind {found}; there are 1 (classifier) to 6 (pacer)")]
    Kind {
        /// The number of the kind.
        found: u32,
    },
    /// A call that may not be absent is.
    #[error("{stage} has NULL for `{call}`")]
    Missing {
        /// Which stage.
        stage: String,
        /// Which call.
        call: &'static str,
    },
    /// One object offers two stages of one name and kind.
    #[error("it offers {kind} `{name}` twice; {}(n) is NULL after the last", abi::SYMBOL)]
    Twice {
        /// The kind.
        kind: Kind,
        /// The name.
        name: String,
    },
    /// The name is taken by another object.
    #[error("{kind} `{name}` is offered by {} already; replace it, or unload that first", by.display())]
    Exists {
        /// The kind.
        kind: Kind,
        /// The name.
        name: String,
        /// The object that has the name.
        by: PathBuf,
    },
    /// Nothing was loaded from this file.
    #[error("nothing is loaded from it")]
    NotLoaded,
    /// Stages that were made from it are still there.
    #[error("{stages} of its stages are in use; delete or replace them first")]
    InUse {
        /// How many.
        stages: usize,
    },
}

impl From<insane_object::LoadError> for LoadError {
    fn from(error: insane_object::LoadError) -> Self {
        match error {
            insane_object::LoadError::Distrust(why) => Self::Distrust(why),
            insane_object::LoadError::Linker(why) => Self::Linker(why),
            insane_object::LoadError::Format(why) => Self::Format(why),
            // What may be added there is a fault of the file's as well.
            other => Self::Format(other.to_string()),
        }
    }
}
