//! A shared object in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use insane_object::Code;

use crate::abi::{self, Table};
use crate::error::LoadError;
use crate::stage::Offer;

/// An object that is loaded, or the part of the program that offers stages. The code is there as long as this is.
#[derive(Debug)]
pub(crate) struct Object {
    path: PathBuf,
    _code: Option<Code>,
}

impl Object {
    /// What is linked into the program.
    pub(crate) fn linked() -> Arc<Self> {
        Arc::new(Self { path: "(linked)".into(), _code: None })
    }

    /// Where it came from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Loads an object and reads what it offers.
///
/// `bytes` become code of this process: they come from a file that was found trustworthy.
pub(crate) fn load(path: PathBuf, bytes: &[u8]) -> Result<Vec<Offer>, LoadError> {
    let code = Code::load(c"insane-traffic-stage", &path, bytes)?;
    // SAFETY: the header says what the symbol is; it is called while `code` is there.
    let entry: Option<unsafe extern "C" fn(u32) -> *const Table> = unsafe { code.function(abi::SYMBOL) };
    let entry = entry.ok_or(LoadError::NoSymbol)?;
    let object = Arc::new(Object { path, _code: Some(code) });
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
