//! From a file to a table that was checked.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use insane_object::Code;

use crate::abi::{self, Table};

/// The longest name of a technology, in bytes.
const MAX_NAME: usize = 32;

/// Why no datapath comes out of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file does not become code of this process.
    #[error(transparent)]
    Object(#[from] insane_object::LoadError),
    /// It has no such symbol.
    #[error("{} does not define {}: it is no datapath", .0.display(), abi::SYMBOL)]
    NoSymbol(PathBuf),
    /// It has no table.
    #[error("{} offers nothing: {}() is NULL", .0.display(), abi::SYMBOL)]
    NoTable(PathBuf),
    /// Its table is of another version.
    #[error("it was built for version {found} of insane_datapath.h; this release takes version {}", abi::ABI)]
    Version {
        /// The version that it was built for.
        found: u32,
    },
    /// Its table is shorter than any of this version.
    #[error(
        "its table has {found} bytes, less than the {} of version {}: it was built with another insane_datapath.h",
        Table::LEAST,
        abi::ABI
    )]
    Size {
        /// The size that it says.
        found: u32,
    },
    /// Its name cannot be one.
    #[error("a datapath's name must be 1 to {MAX_NAME} of a-z, 0-9 and '-'")]
    Name,
    /// A call that may not be absent is.
    #[error("datapath {name} has NULL for `{call}`")]
    Missing {
        /// Which datapath.
        name: String,
        /// Which call.
        call: &'static str,
    },
}

/// The calls of a datapath; those that may not be absent are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) create: abi::Create,
    pub(crate) destroy: abi::End,
    pub(crate) open: abi::Open,
    pub(crate) close: abi::End,
    pub(crate) reserve: abi::Reserve,
    pub(crate) send: abi::Send,
    pub(crate) receive: abi::Receive,
    pub(crate) release: abi::Release,
    pub(crate) arm: Option<abi::Arm>,
    pub(crate) limit: Option<abi::Limit>,
    pub(crate) stats: Option<abi::Count>,
    pub(crate) describe: Option<abi::Describe>,
}

/// An object that is loaded, for good.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) calls: Calls,
    /// Never dropped: what it started (threads, mappings, signal handlers) may go on.
    _code: Code,
}

/// A datapath's shared object. Copies are the same object; it stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Plugin(pub(crate) &'static Loaded);

/// Everything that is loaded. An object is loaded once however often it is asked for: what it keeps for the whole process, as DPDK
/// does, must not be there twice.
static LOADED: Mutex<Vec<&'static Loaded>> = Mutex::new(Vec::new());

impl Plugin {
    /// Loads a datapath's object from an absolute path, once: a later call with the same path, links resolved, gives what was
    /// loaded then, whatever is in the file now. The file and all folders above it must belong to root or to this process's
    /// effective user, and nobody else may write to them; the bytes that were checked are the ones that are loaded. Runs its
    /// initialisers. Any thread may call it; reads files.
    ///
    /// # Errors
    /// Why not; then nothing of it stays.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let (path, bytes) = insane_object::read_absolute(path.as_ref())?;
        // A panic elsewhere leaves a list in which every entry is whole.
        let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.iter().find(|one| one.path == path) {
            return Ok(Self(found));
        }
        let code = Code::load(c"insane-datapath", &path, &bytes)?;
        let (name, calls) = table(&code, &path)?;
        let loaded: &'static Loaded = Box::leak(Box::new(Loaded { path, name, calls, _code: code }));
        all.push(loaded);
        Ok(Self(loaded))
    }

    /// The technology's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// The file, all links resolved.
    #[must_use]
    pub fn path(&self) -> &'static Path {
        &self.0.path
    }
}

/// Reads the table of an object.
fn table(code: &Code, path: &Path) -> Result<(String, Calls), LoadError> {
    // SAFETY: the header says what the symbol is, and `code` is there during the call.
    let entry: Option<unsafe extern "C" fn() -> *const Table> = unsafe { code.function(abi::SYMBOL) };
    let entry = entry.ok_or_else(|| LoadError::NoSymbol(path.into()))?;
    // SAFETY: as above; it takes nothing.
    let table = unsafe { entry() };
    if table.is_null() {
        return Err(LoadError::NoTable(path.into()));
    }
    // SAFETY: every table of every version begins with these two, and stays while the object is loaded (the header).
    let [found, size] = unsafe { table.cast::<[u32; 2]>().read() };
    if found != abi::ABI {
        return Err(LoadError::Version { found });
    }
    // A longer one is of a later release, with calls at its end that this one knows nothing of.
    if (size as usize) < Table::LEAST {
        return Err(LoadError::Size { found: size });
    }
    // SAFETY: it has that many bytes, by its own word, which the header makes its maker's to keep.
    let table = unsafe { table.read() };
    // SAFETY: the header says that it is NULL or ends with a NUL.
    let name = unsafe { name(table.name) }.ok_or(LoadError::Name)?;
    let missing = |call| LoadError::Missing { name: name.clone(), call };
    let calls = Calls {
        create: table.create.ok_or_else(|| missing("create"))?,
        destroy: table.destroy.ok_or_else(|| missing("destroy"))?,
        open: table.open.ok_or_else(|| missing("open"))?,
        close: table.close.ok_or_else(|| missing("close"))?,
        reserve: table.reserve.ok_or_else(|| missing("reserve"))?,
        send: table.send.ok_or_else(|| missing("send"))?,
        receive: table.receive.ok_or_else(|| missing("receive"))?,
        release: table.release.ok_or_else(|| missing("release"))?,
        arm: table.arm,
        limit: table.limit,
        stats: table.stats,
        describe: table.describe,
    };
    Ok((name, calls))
}

/// # Safety
/// `text` is null or points to bytes that end with a NUL.
unsafe fn name(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut name = String::new();
    for at in 0..=MAX_NAME {
        // SAFETY: no byte before this one was the NUL, so this one belongs to the text.
        match unsafe { text.cast::<u8>().add(at).read() } {
            0 => return (!name.is_empty()).then_some(name),
            byte @ (b'a'..=b'z' | b'0'..=b'9' | b'-') => name.push(byte.into()),
            _ => return None,
        }
    }
    None
}

/// Room for a text of the plug-in's, in bytes.
const TEXT_ROOM: usize = 512;

/// A text that the plug-in writes to a buffer that it is given.
pub(crate) fn text(write: impl FnOnce(*mut c_char, usize)) -> String {
    let mut room = [0_u8; TEXT_ROOM];
    // The last byte stays 0 if the plug-in keeps to the capacity that it is told.
    write(room.as_mut_ptr().cast(), TEXT_ROOM - 1);
    room[TEXT_ROOM - 1] = 0;
    let text = CStr::from_bytes_until_nul(&room).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

/// Options as the plug-in reads them.
#[derive(Debug)]
pub(crate) struct Options(Vec<(CString, CString)>);

impl Options {
    /// `None` if there is a NUL in one.
    pub(crate) fn new(options: &[(&str, &str)]) -> Option<Self> {
        let one = |(key, value): &(&str, &str)| Some((CString::new(*key).ok()?, CString::new(*value).ok()?));
        options.iter().map(one).collect::<Option<Vec<_>>>().map(Self)
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(*const abi::Choice, usize) -> R) -> R {
        let list: Vec<abi::Choice> =
            self.0.iter().map(|(key, value)| abi::Choice { key: key.as_ptr(), value: value.as_ptr() }).collect();
        act(list.as_ptr(), list.len())
    }
}

/// The maker's name for a port.
pub(crate) type Handle = *mut c_void;
