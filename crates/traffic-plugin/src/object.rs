//! A shared object in this process.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::abi::{self, Table};
use crate::error::LoadError;
use crate::stage::Offer;

/// An object that is loaded, or the part of the program that offers stages. The code is there as long as this is.
#[derive(Debug)]
pub(crate) struct Object {
    path: PathBuf,
    /// Dropped, and so closed, before the memory that it was loaded from.
    _library: Option<Library>,
    _memory: Option<OwnedFd>,
}

impl Object {
    /// What is linked into the program.
    pub(crate) fn linked() -> Arc<Self> {
        Arc::new(Self { path: "(linked)".into(), _library: None, _memory: None })
    }

    /// Where it came from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Bytes that nobody can change any more, as a file.
fn sealed(bytes: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag that asks for memory which may be run, and need none.
    let memory = rustix::fs::memfd_create(c"insane-traffic-stage", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(c"insane-traffic-stage", flags))?;
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

/// Loads an object and reads what it offers.
///
/// `bytes` become code of this process: they come from a file that was found trustworthy.
pub(crate) fn load(path: PathBuf, bytes: &[u8]) -> Result<Vec<Offer>, LoadError> {
    crate::elf::check(bytes).map_err(|why| LoadError::Format(format!("{}: {why}", path.display())))?;
    let memory = sealed(bytes).map_err(|e| LoadError::Linker(format!("no memory to load it from: {e}")))?;
    let place = fresh_path(memory.as_raw_fd());
    // All symbols now, so that a missing one is an error here and not a crash later; and none for other objects.
    // SAFETY: runs the object's initialisers. That is trust, which the file was found to deserve.
    let library = unsafe { Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
        let text = e.to_string().replace(&*place.to_string_lossy(), &path.display().to_string());
        LoadError::Linker(text)
    })?;
    // SAFETY: the header says what the symbol is; an object that defines it as something else is not told from here.
    let symbol: Result<Symbol<Option<unsafe extern "C" fn(u32) -> *const Table>>, _> =
        unsafe { library.get(abi::SYMBOL.as_bytes()) };
    // A symbol may be defined and have the address 0.
    let entry = symbol.ok().and_then(|symbol| *symbol).ok_or(LoadError::NoSymbol)?;
    let object = Arc::new(Object { path, _library: Some(library), _memory: Some(memory) });
    // SAFETY: the object stays loaded as long as `object` is there, and each offer has it.
    let tables = (0..abi::MAX_STAGES).map(|n| unsafe { entry(n) }).take_while(|table| !table.is_null());
    // SAFETY: as above; the header says what the pointers point to.
    unsafe { offers(tables, &object) }
}

/// Reads tables.
///
/// # Safety
/// Each points to a table as the header describes it, which stays while `object` is there.
pub(crate) unsafe fn offers(
    tables: impl Iterator<Item = *const Table>,
    object: &Arc<Object>,
) -> Result<Vec<Offer>, LoadError> {
    let mut offers: Vec<Offer> = Vec::new();
    for table in tables {
        // SAFETY: the caller's promise.
        let offer = unsafe { Offer::read(table, object.clone()) }?;
        if offers.iter().any(|o| (o.kind, &o.name) == (offer.kind, &offer.name)) {
            return Err(LoadError::Twice { kind: offer.kind, name: offer.name });
        }
        offers.push(offer);
    }
    if offers.is_empty() { Err(LoadError::NoStages) } else { Ok(offers) }
}
