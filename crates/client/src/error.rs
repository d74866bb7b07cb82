//! The one error of the client library: a stable number, what happened, and what to do next.

pub use insane_wire::error::Code;
use std::fmt::Write;

/// What went wrong. The same numbers come out of C and Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: Code,
    detail: String,
}

/// The result of every call that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind with what is known about this case; empty when the kind says it all.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// The stable number's name; [`Code::number`] gives the number.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What is known about this case; may be empty.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code.text())?;
        if !self.detail.is_empty() {
            // Details repeat what others said: an error stays one line, and does nothing to a terminal.
            f.write_str(" (")?;
            for c in self.detail.chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
            f.write_str(")")?;
        }
        write!(f, ": {}", self.code.hint())
    }
}

impl std::error::Error for Error {}

impl From<Code> for Error {
    // The paths of data return these: nothing is allocated for an empty text.
    fn from(code: Code) -> Self {
        Self { code, detail: String::new() }
    }
}

impl From<insane_shm::ShmError> for Error {
    fn from(e: insane_shm::ShmError) -> Self {
        use insane_shm::ShmError as E;
        let code = match &e {
            E::NotSealed { .. } | E::WrongSize { .. } | E::Layout { .. } => Code::UntrustedMemory,
            E::Limit { .. } => Code::QuotaExceeded,
            E::Geometry { .. } => Code::InvalidArgument,
            _ => Code::System,
        };
        Self::new(code, e.to_string())
    }
}
