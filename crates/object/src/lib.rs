//! Shared objects as parts of this process.
//!
//! Purpose: to find a file, judge whether it may become code of this process ([`read`], [`read_absolute`]), and load exactly the
//! bytes that were judged ([`Code::load`]). Non-purpose: what an object offers, which is its loader's: stages of the traffic
//! pipeline (`insane-traffic-plugin`), datapaths (`insane-datapath-plugin`).
//!
//! Layer: above everything that loads objects. Everything here reads files and may take its time; nothing is for a thread that
//! moves packets.
//!
//! ```
//! let error = insane_object::read_absolute("a/relative/path.so".as_ref()).unwrap_err();
//! assert!(matches!(&error, insane_object::LoadError::Distrust(why) if why.contains("absolute")), "{error}");
//! ```

mod elf;
mod trust;

use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use rustix::fs::{MemfdFlags, SealFlags};

/// Why a file does not become code of this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It may not: it is not there, is somebody else's, or others could have written it.
    #[error("not loaded: {0}")]
    Distrust(String),
    /// It is no shared object of this machine.
    #[error("not loaded: {0}")]
    Format(String),
    /// The dynamic linker refused it: a library or a symbol that it needs is missing.
    #[error("the dynamic linker does not take it: {0}")]
    Linker(String),
}

/// Reads the file that `asked` names if it may be loaded: an absolute path, or one that leads down from one of the directories.
/// With all links resolved it must lie in one of them; the file and all folders above it must belong to root or to this
/// process's effective user, and nobody else may write to them. Returns where it really is, and its bytes: what is loaded is
/// what was checked, whatever happens to the file afterwards.
///
/// # Errors
/// [`LoadError::Distrust`].
pub fn read(asked: &Path, directories: &[PathBuf]) -> Result<(PathBuf, Vec<u8>), LoadError> {
    trust::resolve(asked, directories).and_then(trust::read).map_err(LoadError::Distrust)
}

/// As [`read`], for an absolute path to anywhere.
///
/// # Errors
/// [`LoadError::Distrust`].
pub fn read_absolute(asked: &Path) -> Result<(PathBuf, Vec<u8>), LoadError> {
    trust::resolve_absolute(asked).and_then(trust::read).map_err(LoadError::Distrust)
}

/// A shared object in this process. Its code is there as long as this is.
#[derive(Debug)]
pub struct Code {
    /// Dropped, and so closed, before the memory that it was loaded from.
    library: Library,
    _memory: OwnedFd,
}

impl Code {
    /// Loads an object from a sealed copy of `bytes`, which [`read`] or [`read_absolute`] has returned for `path`. `name` is what
    /// debuggers show. Runs the object's initialisers, so it is running whatever is in the file: that is trust.
    ///
    /// # Errors
    /// [`LoadError::Format`], [`LoadError::Linker`].
    pub fn load(name: &CStr, path: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        elf::check(bytes).map_err(|why| LoadError::Format(format!("{}: {why}", path.display())))?;
        let memory = sealed(name, bytes).map_err(|e| LoadError::Linker(format!("no memory to load it from: {e}")))?;
        let place = fresh_path(memory.as_raw_fd());
        // All symbols now, so that a missing one is an error here and not a crash later; and none for other objects.
        // SAFETY: runs the object's initialisers. That is trust, which the file was found to deserve.
        let library = unsafe { Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
            LoadError::Linker(e.to_string().replace(&*place.to_string_lossy(), &path.display().to_string()))
        })?;
        Ok(Self { library, _memory: memory })
    }

    /// The function that the object defines under this name; `None` if there is none, or its address is 0.
    ///
    /// # Safety
    /// `T` is a function pointer of the type that the object's header gives the symbol: an object that defines it as something
    /// else is not told from here. It must not be called after this value is gone.
    #[must_use]
    pub unsafe fn function<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller's promise; an `Option` of a function pointer has 0 for `None`.
        let symbol: Result<Symbol<Option<T>>, _> = unsafe { self.library.get(name.as_bytes()) };
        symbol.ok().and_then(|symbol| *symbol)
    }
}

/// Bytes that nobody can change any more, as a file.
fn sealed(name: &CStr, bytes: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag that asks for memory which may be run, and need none.
    let memory =
        rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| rustix::fs::memfd_create(name, flags))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&memory, rest)?..];
    }
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memory, all)?;
    Ok(memory)
}

/// A path to an open file that no earlier call returned: the dynamic linker takes a path that it has seen for the object that
/// it has loaded, although the number of the file may be in use for another one by now.
fn fresh_path(number: i32) -> OsString {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only that no two are equal matters.
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut path = String::from("/proc/self/fd");
    for bit in 0..u32::BITS {
        path.push_str(if serial >> bit & 1 == 1 { "/." } else { "/" });
    }
    format!("{path}/{number}").into()
}
