//! A scalable congestion control for kernels without one: `bpf/scalable.bpf.c`, compiled by clang and registered by bpftool
//! for as long as an experiment needs it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::HostError;
use crate::host::process::{call, find};

/// Its name among the kernel's.
pub(super) const NAME: &str = "insane_dctcp";
const SOURCE: &str = include_str!("../../bpf/scalable.bpf.c");
/// What the kernel says of its own types; without it the program's offsets cannot be found.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Whether this process has registered it.
static LOADED: AtomicBool = AtomicBool::new(false);

/// The congestion control, registered until this goes. Flows that use it then go on with it to their ends.
#[derive(Debug)]
pub(super) struct Loaded(());

fn absent(why: impl std::fmt::Display) -> HostError {
    HostError::new("no scalable congestion control", why)
}

/// The compiler: `clang`, or the newest of those with a version in their names.
fn clang(there: impl Fn(&str) -> bool) -> Option<String> {
    std::iter::once("clang".to_owned()).chain((11..=30).rev().map(|n| format!("clang-{n}"))).find(|name| there(name))
}

impl Loaded {
    /// Compiles and registers it. Needs root, a kernel with BPF struct_ops and its types, clang and bpftool.
    ///
    /// # Errors
    /// What of that there is not, or what the compiler or the kernel objects to.
    pub(super) fn load() -> Result<Self, HostError> {
        if !Path::new(TYPES).exists() {
            return Err(absent(format!("this kernel does not describe its types ({TYPES}, CONFIG_DEBUG_INFO_BTF)")));
        }
        if find("bpftool").is_none() {
            return Err(absent("bpftool is not installed"));
        }
        let clang = clang(|name| find(name).is_some()).ok_or_else(|| absent("clang is not installed"))?;
        // One that a killed run left is replaced.
        if std::fs::read_to_string(AVAILABLE).is_ok_and(|names| names.split_whitespace().any(|name| name == NAME)) {
            unregister()?;
        }
        let folder = std::env::temp_dir().join(format!("ranlab-bpf-{}", std::process::id()));
        let done = build(&clang, &folder);
        // What is left of it is nobody's.
        let _ = std::fs::remove_dir_all(&folder);
        done.map_err(absent)?;
        LOADED.store(true, Ordering::Relaxed);
        Ok(Self(()))
    }
}

fn build(clang: &str, folder: &Path) -> Result<(), HostError> {
    std::fs::create_dir_all(folder).map_err(|e| HostError::new(folder.display(), e))?;
    let (source, object) = (folder.join("scalable.bpf.c"), folder.join("scalable.bpf.o"));
    std::fs::write(&source, SOURCE).map_err(|e| HostError::new(source.display(), e))?;
    let (source, object) = (source.to_string_lossy(), object.to_string_lossy());
    call(clang, &["-O2", "-g", "-target", "bpf", "-c", &source, "-o", &object])?;
    call("bpftool", &["struct_ops", "register", &object]).map(|_| ())
}

fn unregister() -> Result<(), HostError> {
    call("bpftool", &["struct_ops", "unregister", "name", NAME]).map(|_| ())
}

/// Takes it out of the kernel if this process has put it there, for one that is about to end without unwinding.
pub(super) fn abandon() {
    if LOADED.swap(false, Ordering::Relaxed)
        && let Err(error) = unregister()
    {
        eprintln!("ranlab: {error}");
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_compiler_is_taken_and_a_plain_one_before_it() {
        let of = |names: &[&str]| clang(|name| names.contains(&name));
        assert_eq!(of(&["clang-14", "clang-19"]).as_deref(), Some("clang-19"));
        assert_eq!(of(&["clang-14", "clang"]).as_deref(), Some("clang"));
        assert_eq!(of(&["gcc"]), None);
    }

    #[test]
    fn the_source_registers_it_by_this_name() {
        assert!(SOURCE.contains(&format!(".name = \"{NAME}\"")));
        assert!(SOURCE.contains(&format!("struct tcp_congestion_ops {NAME} =")));
        assert!(NAME.len() < 16, "the kernel's names are no longer");
    }
}
