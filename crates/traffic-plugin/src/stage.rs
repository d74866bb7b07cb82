//! What an object offers, checked, and the stages made from it.

use std::ffi::{CString, c_char, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use insane_traffic::PluginError;
use insane_traffic::stats::StatMap;

use crate::abi::{self, Table};
use crate::error::LoadError;
use crate::object::Object;

/// Room for the reason of a stage that cannot be made, in bytes.
const ERROR_ROOM: usize = 512;
/// Characters of a name, of a stage or of a statistic.
const MAX_NAME: usize = 64;
/// Statistics of a stage.
const MAX_STATS: usize = 64;

/// What a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Stage 1: chooses a queue.
    Classifier = 1,
    /// Stage 2: passes, redirects or drops.
    Policer = 2,
    /// Stage 3: keeps, discards or marks.
    Queue = 3,
    /// Stage 4: whose turn it is.
    Scheduler = 4,
    /// Stage 5: when a queue may send.
    Shaper = 5,
    /// Stage 6: when the pipeline may send.
    Pacer = 6,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Classifier, Self::Policer, Self::Queue, Self::Scheduler, Self::Shaper, Self::Pacer];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classifier => "classifier",
            Self::Policer => "policer",
            Self::Queue => "queue",
            Self::Scheduler => "scheduler",
            Self::Shaper => "shaper",
            Self::Pacer => "pacer",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The calls of a stage; those that may not be absent are there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Calls {
    Classifier(abi::Decide, abi::ClassifierCalls),
    Policer(abi::Decide),
    Queue(abi::Judge, abi::QueueCalls),
    Scheduler(SchedulerCalls),
    Shaper(abi::When, abi::HasLeft),
    Pacer(abi::When, abi::HasLeft, abi::PacerCalls),
}

/// A scheduler's calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerCalls {
    pub(crate) add: abi::AboutQueue,
    pub(crate) remove: abi::AboutQueue,
    pub(crate) activate: abi::AboutQueue,
    pub(crate) deactivate: unsafe extern "C" fn(*mut c_void, u32, u32),
    pub(crate) next: unsafe extern "C" fn(*mut c_void, u64, *const abi::View) -> i64,
    pub(crate) offer: Option<unsafe extern "C" fn(*mut c_void, u32, u32) -> i32>,
    pub(crate) sent: unsafe extern "C" fn(*mut c_void, u32, u32),
}

/// One stage that can be made. As long as this is there, so is the code that it points to.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    create: unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_void,
    modify: Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> i32>,
    destroy: unsafe extern "C" fn(*mut c_void),
    stats: Option<unsafe extern "C" fn(*const c_void, abi::Emit, *mut c_void)>,
    pub(crate) calls: Calls,
    /// Whether new stages of this name are still made here, and not from an object that took the name over.
    pub(crate) current: AtomicBool,
    pub(crate) object: Arc<Object>,
}

/// Reads the text that ends with a NUL within `MAX_NAME` bytes.
///
/// # Safety
/// `text` is null or points to bytes that end with a NUL.
unsafe fn short_text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut bytes = Vec::new();
    for n in 0..=MAX_NAME {
        // SAFETY: no byte before this one was the NUL, so this one belongs to the text.
        let byte = unsafe { text.cast::<u8>().add(n).read() };
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    let sensible = (1..=MAX_NAME).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    sensible.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The calls that a table points to, if they are there and of the right size.
///
/// # Safety
/// `table.calls` is null or points to `table.calls_size` bytes.
unsafe fn calls<T: Copy>(table: &Table, what: &str) -> Result<T, LoadError> {
    if table.calls.is_null() || !table.calls.cast::<T>().is_aligned() {
        return Err(LoadError::Missing { stage: what.to_owned(), call: "calls" });
    }
    let expected = size_of::<T>();
    if table.calls_size as usize != expected {
        return Err(LoadError::Size { what: format!("the calls of {what}"), found: table.calls_size, expected });
    }
    // SAFETY: not null, aligned, and of the size that was checked; whatever bytes there are, are a value of `T`: it has only
    // calls that may be absent.
    Ok(unsafe { table.calls.cast::<T>().read() })
}

impl Offer {
    /// Checks a table and keeps what it says.
    ///
    /// # Safety
    /// `table` is null or points to a table as the header describes it, or at least to the two numbers at its beginning if
    /// they say that the rest is something else. What it points to stays while `object` is there.
    pub(crate) unsafe fn read(table: *const Table, object: Arc<Object>) -> Result<Self, LoadError> {
        if table.is_null() || !table.is_aligned() {
            return Err(LoadError::Missing { stage: "a stage".into(), call: "table" });
        }
        // SAFETY: the two numbers at the beginning are there in every version.
        let [abi, size] = unsafe { table.cast::<[u32; 2]>().read() };
        if abi != abi::ABI {
            return Err(LoadError::Version { found: abi });
        }
        if size as usize != size_of::<Table>() {
            return Err(LoadError::Size { what: "the table".into(), found: size, expected: size_of::<Table>() });
        }
        // SAFETY: it is a table of this version and size, and all its fields may hold anything.
        let table = unsafe { table.read() };
        // SAFETY: the header's contract: a name ends with a NUL.
        let name = unsafe { short_text(table.name) }.ok_or(LoadError::Name)?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| *kind as u32 == table.kind)
            .ok_or(LoadError::Kind { found: table.kind })?;
        let what = format!("{kind} `{name}`");
        let missing = |call| LoadError::Missing { stage: what.clone(), call };
        // SAFETY: the header's contract: `calls` points to the calls of the kind.
        let calls = unsafe { kind_calls(kind, &table, &what) }?;
        Ok(Self {
            kind,
            create: table.create.ok_or_else(|| missing("create"))?,
            modify: table.modify,
            destroy: table.destroy.ok_or_else(|| missing("destroy"))?,
            stats: table.stats,
            calls,
            name,
            current: AtomicBool::new(true),
            object,
        })
    }
}

/// # Safety
/// As for [`calls`].
unsafe fn kind_calls(kind: Kind, table: &Table, what: &str) -> Result<Calls, LoadError> {
    let missing = |call| LoadError::Missing { stage: what.to_owned(), call };
    // SAFETY: the caller's promise, for each line below; `calls` checks null and size.
    Ok(unsafe {
        match kind {
            Kind::Classifier => {
                let calls: abi::ClassifierCalls = calls(table, what)?;
                Calls::Classifier(calls.classify.ok_or_else(|| missing("classify"))?, calls)
            }
            Kind::Policer => {
                let calls: abi::PolicerCalls = calls(table, what)?;
                Calls::Policer(calls.police.ok_or_else(|| missing("police"))?)
            }
            Kind::Queue => {
                let calls: abi::QueueCalls = calls(table, what)?;
                Calls::Queue(calls.arrives.ok_or_else(|| missing("arrives"))?, calls)
            }
            Kind::Scheduler => {
                let calls: abi::SchedulerCalls = calls(table, what)?;
                Calls::Scheduler(SchedulerCalls {
                    add: calls.add.ok_or_else(|| missing("add"))?,
                    remove: calls.remove.ok_or_else(|| missing("remove"))?,
                    activate: calls.activate.ok_or_else(|| missing("activate"))?,
                    deactivate: calls.deactivate.ok_or_else(|| missing("deactivate"))?,
                    next: calls.next.ok_or_else(|| missing("next"))?,
                    offer: calls.offer,
                    sent: calls.sent.ok_or_else(|| missing("sent"))?,
                })
            }
            Kind::Shaper => {
                let calls: abi::ShaperCalls = calls(table, what)?;
                Calls::Shaper(calls.ready.ok_or_else(|| missing("ready"))?, calls.sent.ok_or_else(|| missing("sent"))?)
            }
            Kind::Pacer => {
                let calls: abi::PacerCalls = calls(table, what)?;
                let admit = calls.admit.ok_or_else(|| missing("admit"))?;
                Calls::Pacer(admit, calls.sent.ok_or_else(|| missing("sent"))?, calls)
            }
        }
    })
}

/// A stage that was made. Its code stays loaded while it lives.
pub(crate) struct Instance {
    stage: NonNull<c_void>,
    offer: Arc<Offer>,
}

// SAFETY: the header's contract: a stage may be used by another thread than the one that made it, by one at a time; only
// `&mut` methods of the adapters call into it, but for `stats`, which is called with the same exclusion as the pipeline's.
unsafe impl Send for Instance {}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` of {}", self.offer.kind, self.offer.name, self.offer.object.path().display())
    }
}

fn options_text(options: &str) -> Option<CString> {
    CString::new(options).ok()
}

impl Instance {
    /// Makes a stage.
    ///
    /// # Errors
    /// What the object says of the options.
    pub(crate) fn new(offer: Arc<Offer>, options: &str) -> Result<Self, PluginError> {
        let Some(text) = options_text(options) else {
            return Err(PluginError("its options have a NUL in them".into()));
        };
        let mut error = [0_u8; ERROR_ROOM];
        // SAFETY: both texts live through the call, and the capacity is that of the memory behind the pointer.
        let stage = unsafe { (offer.create)(text.as_ptr(), error.as_mut_ptr().cast(), ERROR_ROOM) };
        let Some(stage) = NonNull::new(stage) else { return Err(PluginError(reason(&error))) };
        Ok(Self { stage, offer })
    }

    /// The first argument of every call.
    pub(crate) const fn raw(&mut self) -> *mut c_void {
        self.stage.as_ptr()
    }

    /// Gives it other options. False if it needs to be made anew: it is of another name, or its name belongs to another
    /// object by now, or it says no.
    pub(crate) fn modify(&mut self, name: &str, options: &str) -> bool {
        if name != self.offer.name || !self.offer.current.load(Ordering::Acquire) {
            return false;
        }
        let (Some(modify), Some(text)) = (self.offer.modify, options_text(options)) else { return false };
        // SAFETY: the stage lives, and the text lives through the call.
        unsafe { modify(self.stage.as_ptr(), text.as_ptr()) == 0 }
    }

    /// Adds what the host counts of it, and what it tells itself under other names.
    pub(crate) fn stats(&self, counts: &[(&'static str, u64)], out: &mut StatMap) {
        out.text("plugin", self.offer.name.as_str());
        counts.iter().for_each(|&(name, value)| out.count(name, value));
        let Some(stats) = self.offer.stats else { return };
        let mut sink = Sink { out, room: MAX_STATS };
        // SAFETY: the stage lives, and `sink` lives through the call, in which `emit` is the only one to use it.
        unsafe { stats(self.stage.as_ptr(), emit, (&raw mut sink).cast()) };
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: it was made by this object, which is still loaded, and this is the last use.
        unsafe { (self.offer.destroy)(self.stage.as_ptr()) };
    }
}

/// Where a stage's statistics go.
struct Sink<'a> {
    out: &'a mut StatMap,
    room: usize,
}

unsafe extern "C" fn emit(context: *mut c_void, name: *const c_char, value: u64) {
    // SAFETY: `context` is the sink that was handed out with this function, and the call that it is for still runs.
    let Some(sink) = (unsafe { context.cast::<Sink<'_>>().as_mut() }) else { return };
    // SAFETY: the header's contract: a name ends with a NUL.
    let Some(name) = (unsafe { short_text(name) }) else { return };
    if sink.room > 0 && sink.out.get(&name).is_none() {
        sink.room -= 1;
        sink.out.count(name, value);
    }
}

/// The text that a stage left in the memory for it, on one line.
fn reason(error: &[u8]) -> String {
    let end = error.iter().position(|&b| b == 0).unwrap_or(error.len());
    let text = String::from_utf8_lossy(&error[..end]);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().is_empty() {
        return "it does not take its options, and does not say why".into();
    }
    text.trim().to_owned()
}
