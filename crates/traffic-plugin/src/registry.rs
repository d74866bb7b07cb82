//! The objects that are loaded, and the stages that they offer by name.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use insane_traffic::classify::Classifier;
use insane_traffic::pace::Pacer;
use insane_traffic::police::Policer;
use insane_traffic::queue::Queue;
use insane_traffic::schedule::Scheduler;
use insane_traffic::shape::Shaper;
use insane_traffic::spec::QueueLimit;
use insane_traffic::{Packet, PluginError, Plugins};

use crate::abi::Table;
use crate::adapters;
use crate::error::LoadError;
use crate::object::{self, Object};
use crate::stage::{Calls, Instance, Kind, Offer};

/// One object, as [`Registry::list`] describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The file, all links resolved; `(linked)` for stages that are part of the program.
    pub path: PathBuf,
    /// What it offers under which name.
    pub stages: Vec<(Kind, String)>,
    /// How many stages made from it there are.
    pub in_use: usize,
    /// Whether another object took over all its names; it goes when its last stage goes.
    pub replaced: bool,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    offers: Vec<Arc<Offer>>,
}

impl Entry {
    /// Stages made from it. Exact under the registry's lock: only there the count can grow.
    fn in_use(&self) -> usize {
        self.offers.iter().map(|offer| Arc::strong_count(offer) - 1).sum()
    }

    fn is_current(&self) -> bool {
        self.offers.iter().any(|offer| offer.current.load(Ordering::Acquire))
    }
}

/// The shared objects that stages come from. Any thread may use it, while pipelines run; hand it to
/// [`Pipeline::with_plugins`](insane_traffic::Pipeline::with_plugins).
#[derive(Debug)]
pub struct Registry {
    directories: Vec<PathBuf>,
    entries: Mutex<Vec<Entry>>,
}

impl Registry {
    /// No objects yet; they may come from these directories and below. Without a directory none can be loaded.
    #[must_use]
    pub const fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, entries: Mutex::new(Vec::new()) }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // What a panic elsewhere left is a list in which every entry is whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads an object: reads the file, runs its initialisers, and offers its stages. Reads files; not for a thread that
    /// moves packets.
    ///
    /// `path` is absolute, or leads down from one of the directories (the first that has it counts). After links are
    /// resolved it must lie in one of them; the file and all folders above it must belong to root or to this process's
    /// effective user, and nobody else may write to them. The bytes that were checked are the ones that are loaded: what
    /// happens to the file later changes nothing.
    ///
    /// # Errors
    /// Why not. No stage is offered then, and the object is out of the process again.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Loaded, LoadError> {
        self.load_as(path.as_ref(), false)
    }

    /// Loads an object, and takes over the names that other objects have. Stages made before stay what they are until a
    /// change names them; then they are made anew, with their packets. An object without names left is unloaded after its
    /// last stage.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn replace(&self, path: impl AsRef<Path>) -> Result<Loaded, LoadError> {
        self.load_as(path.as_ref(), true)
    }

    fn load_as(&self, path: &Path, replace: bool) -> Result<Loaded, LoadError> {
        let (path, bytes) = insane_object::read(path, &self.directories)?;
        let offers = object::load(path, &bytes)?;
        self.add(offers, replace)
    }

    /// Offers stages that are part of this program.
    ///
    /// # Safety
    /// The tables are as `insane_traffic_stage.h` describes them, and what they point to never changes.
    ///
    /// # Errors
    /// What is wrong with a table, or a name that is taken.
    pub unsafe fn link(&self, tables: &[&'static Table]) -> Result<Loaded, LoadError> {
        let tables = tables.iter().map(|table| std::ptr::from_ref(*table));
        // SAFETY: the caller's promise.
        let offers = unsafe { object::offers(tables, &Object::linked()) }?;
        self.add(offers, false)
    }

    fn add(&self, offers: Vec<Offer>, replace: bool) -> Result<Loaded, LoadError> {
        let mut entries = self.entries();
        let clashes: Vec<Arc<Offer>> = offers.iter().filter_map(|new| find(&entries, new.kind, &new.name)).collect();
        if let Some(old) = clashes.first()
            && !replace
        {
            let (kind, name) = (old.kind, old.name.clone());
            return Err(LoadError::Exists { kind, name, by: old.object.path().to_owned() });
        }
        // From here on nothing fails.
        clashes.iter().for_each(|old| old.current.store(false, Ordering::Release));
        drop(clashes);
        let path = offers.first().map(|offer| offer.object.path().to_owned()).unwrap_or_default();
        let entry = Entry { path, offers: offers.into_iter().map(Arc::new).collect() };
        let loaded = describe(&entry);
        entries.push(entry);
        let gone = reap(&mut entries);
        drop(entries);
        // The objects' finalisers run here, where they cannot hold up other threads.
        drop(gone);
        Ok(loaded)
    }

    /// Unloads the object that was loaded from this file, and those that were replaced and are not used any more.
    ///
    /// # Errors
    /// Nothing is loaded from it, or a stage made from it is still there: in a pipeline, or in a plan that was not committed.
    pub fn unload(&self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        let path = path.as_ref();
        // Through a link, or as it is called if the file is gone by now.
        let linked = self.directories.iter().filter_map(|d| std::fs::canonicalize(d.join(path)).ok());
        let named = self.directories.iter().filter_map(|d| Some(std::fs::canonicalize(d).ok()?.join(path)));
        let places: Vec<PathBuf> = linked.chain(named).collect();
        let mut entries = self.entries();
        let found = entries.iter().position(|e| e.is_current() && (e.path == path || places.contains(&e.path)));
        let Some(found) = found else { return Err(LoadError::NotLoaded) };
        let stages = entries[found].in_use();
        if stages > 0 {
            return Err(LoadError::InUse { stages });
        }
        let mut gone = vec![entries.remove(found)];
        gone.extend(reap(&mut entries));
        drop(entries);
        drop(gone);
        Ok(())
    }

    /// The objects in the order in which they were loaded. Those that were replaced and are not used any more go.
    #[must_use]
    pub fn list(&self) -> Vec<Loaded> {
        let mut entries = self.entries();
        let gone = reap(&mut entries);
        let list = entries.iter().map(describe).collect();
        drop(entries);
        drop(gone);
        list
    }

    /// Makes a stage.
    fn make(&self, kind: Kind, name: &str, options: &str) -> Result<(Instance, Calls), PluginError> {
        let entries = self.entries();
        let Some(offer) = find(&entries, kind, name) else {
            let all = entries.iter().flat_map(|e| &e.offers);
            let all = all.filter(|o| o.kind == kind && o.current.load(Ordering::Acquire));
            let names: Vec<&str> = all.map(|o| o.name.as_str()).collect();
            let there =
                if names.is_empty() { "there is none".into() } else { format!("there are {}", names.join(", ")) };
            return Err(PluginError(format!("no {kind} of this name is loaded; {there}")));
        };
        // The object may take its time to make a stage; the offer keeps it loaded meanwhile.
        drop(entries);
        let calls = offer.calls;
        Ok((Instance::new(offer, options)?, calls))
    }
}

fn find(entries: &[Entry], kind: Kind, name: &str) -> Option<Arc<Offer>> {
    let mut all = entries.iter().flat_map(|e| &e.offers);
    all.find(|o| o.kind == kind && o.name == name && o.current.load(Ordering::Acquire)).cloned()
}

fn describe(entry: &Entry) -> Loaded {
    Loaded {
        path: entry.path.clone(),
        stages: entry.offers.iter().map(|offer| (offer.kind, offer.name.clone())).collect(),
        in_use: entry.in_use(),
        replaced: !entry.is_current(),
    }
}

/// Takes out what was replaced and is not used any more.
fn reap(entries: &mut Vec<Entry>) -> Vec<Entry> {
    entries.extract_if(.., |entry| !entry.is_current() && entry.in_use() == 0).collect()
}

/// A kind that [`Registry::make`] would not have found under this name.
fn mixed_up<T>() -> Result<T, PluginError> {
    Err(PluginError("its calls are those of another kind".into()))
}

impl<P: Packet> Plugins<P> for Registry {
    fn classifier(&self, name: &str, options: &str) -> Result<Box<dyn Classifier>, PluginError> {
        let (stage, Calls::Classifier(classify, calls)) = self.make(Kind::Classifier, name, options)? else {
            return mixed_up();
        };
        Ok(Box::new(adapters::Classifier::new(stage, classify, calls)))
    }
    fn policer(&self, name: &str, options: &str) -> Result<Box<dyn Policer>, PluginError> {
        let (stage, Calls::Policer(police)) = self.make(Kind::Policer, name, options)? else { return mixed_up() };
        Ok(Box::new(adapters::Policer::new(stage, police)))
    }
    fn queue(&self, name: &str, options: &str, limit: QueueLimit) -> Result<Box<dyn Queue<P>>, PluginError> {
        let (stage, Calls::Queue(arrives, calls)) = self.make(Kind::Queue, name, options)? else { return mixed_up() };
        Ok(Box::new(adapters::Queue::new(stage, arrives, calls, limit)))
    }
    fn scheduler(&self, name: &str, options: &str) -> Result<Box<dyn Scheduler>, PluginError> {
        let (stage, Calls::Scheduler(calls)) = self.make(Kind::Scheduler, name, options)? else { return mixed_up() };
        Ok(Box::new(adapters::Scheduler::new(stage, calls)))
    }
    fn shaper(&self, name: &str, options: &str) -> Result<Box<dyn Shaper>, PluginError> {
        let (stage, Calls::Shaper(ready, sent)) = self.make(Kind::Shaper, name, options)? else { return mixed_up() };
        Ok(Box::new(adapters::Shaper::new(stage, ready, sent)))
    }
    fn pacer(&self, name: &str, options: &str) -> Result<Box<dyn Pacer>, PluginError> {
        let (stage, Calls::Pacer(admit, sent, calls)) = self.make(Kind::Pacer, name, options)? else {
            return mixed_up();
        };
        Ok(Box::new(adapters::Pacer::new(stage, admit, sent, calls)))
    }
}
