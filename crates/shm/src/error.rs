//! What can go wrong with shared memory.

/// An error of this crate. No variant is built on the path of data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// Which call.
        call: &'static str,
        /// Its error.
        #[source]
        source: std::io::Error,
    },
    /// Memory from a peer lacks seals: its owner could still change its size, punch holes or let others write.
    #[error("the peer's memory lacks seals: has {has:#x}, needs {needs:#x}")]
    NotSealed {
        /// Seals that are set.
        has: u32,
        /// Seals that must be.
        needs: u32,
    },
    /// Memory from a peer is not of the size that was said, or its geometry does not fit.
    #[error("the peer's memory has {has} bytes where {needs} are needed")]
    WrongSize {
        /// Bytes there.
        has: u64,
        /// Bytes needed.
        needs: u64,
    },
    /// A geometry that no segment or ring can have.
    #[error("impossible geometry: {text}")]
    Geometry {
        /// Which value and what it may be.
        text: String,
    },
    /// Memory of another layout, or none of ours.
    #[error("the peer's control memory has magic {magic:#x} and layout {layout}, expected layout {expected}")]
    Layout {
        /// What stands where the magic is.
        magic: u64,
        /// What stands where the layout's version is.
        layout: u32,
        /// The layout that this build speaks.
        expected: u32,
    },
    /// Shared memory would pass a limit.
    #[error("{what} would need {needs}, the limit is {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// How much would be needed.
        needs: u64,
        /// How much is allowed.
        limit: u64,
    },
}

impl ShmError {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |e| Self::System { call, source: e.into() }
    }
}

impl ShmError {
    /// As words for the session that gave a segment which could not be mapped. `mapped`: bytes of its segments that are; `quota`: how many may
    /// be.
    #[must_use]
    pub fn about_segment(&self, mapped: u64, most: u64) -> String {
        match self {
            Self::Limit { needs, .. } => format!(
                "a segment of {needs} bytes more than the {mapped} that are mapped of its session, of which {most} may be: twice \
                 quota.memory_mib_per_session"
            ),
            other => other.to_string(),
        }
    }
}
