//! Keeps the workspace in its layers: a crate may depend only on crates above it in [`LAYERS`].
//!
//! Purpose: to fail, by name, on every dependency that points the wrong way, on a crate that has no place in the list,
//! and on a sans-IO crate that could do input or output. Non-purpose: judging dependencies from outside the workspace,
//! which `deny.toml` does. Layer: tests, the lowest.
//!
//! Main types: [`Crate`] and [`Edge`], read from `cargo metadata` by [`crates`].
//!
//! ```
//! use insane_tests_arrows::{Edge, forbidden};
//!
//! let edge = Edge { from: "crates/shm".into(), to: "crates/runtime".into() };
//! assert!(forbidden(&edge).is_some());
//! ```
#![forbid(unsafe_code)]

use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Every place in the repository where a crate may live, uppermost first. A crate belongs to the entry that is its folder
/// or holds it; crates of one entry may not depend on each other.
pub const LAYERS: &[&str] = &[
    // Hosts for the tests of all others.
    "tests/namespaces",
    "crates/arguments",
    "crates/shm",
    "crates/wire",
    "crates/transport",
    "crates/traffic",
    // What loads shared objects, for the pipeline and for datapaths.
    "crates/object",
    "crates/traffic-plugin",
    "crates/traffic-capi",
    "crates/netstack",
    "crates/datapath",
    "crates/datagrams",
    "crates/datapath-plugin",
    "crates/datapaths",
    "crates/runtime",
    "crates/insaned",
    "crates/client",
    "crates/traffic-control",
    "crates/capi",
    "crates/cli",
    "apps/lunar",
    "apps/socket",
    "apps/twin",
    "oran/rmr",
    "oran/e2",
    "oran/e3",
    "oran/ric",
    "oran/ranlab",
    "python",
    "demo",
    "bench",
    "tests/support",
    "tests",
];

/// Crates that are state machines over values and time: no sockets, files, clocks or threads, and no `unsafe`.
pub const SANS_IO: &[&str] = &["crates/wire", "crates/transport", "crates/traffic", "crates/netstack"];

/// Dependencies by which a crate could do input or output, or run code that is not part of it.
pub const IO_CRATES: &[&str] = &[
    "libc",
    "rustix",
    "nix",
    "mio",
    "socket2",
    "tokio",
    "async-std",
    "smol",
    "io-uring",
    "polling",
    "libloading",
    "dlopen2",
];

/// A member of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crate {
    /// Its package name.
    pub name: String,
    /// Its folder, relative to the repository's root, with `/`.
    pub folder: String,
    /// The folders of the members that it depends on, of all kinds: normal, build and development.
    pub members: Vec<String>,
    /// The names of its dependencies from outside, without those for development.
    pub external: Vec<String>,
}

/// A dependency between two members, by their folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The crate that depends.
    pub from: String,
    /// The crate that it depends on.
    pub to: String,
}

/// The members of the workspace around `manifest_dir`, sorted by folder. Calls `cargo`, which touches no network for this.
///
/// # Errors
/// What cargo said if it could not read the workspace.
pub fn crates(manifest_dir: &Path) -> Result<Vec<Crate>, cargo_metadata::Error> {
    let metadata = MetadataCommand::new().current_dir(manifest_dir).no_deps().exec()?;
    let root = &metadata.workspace_root;
    let relative = |folder: &cargo_metadata::camino::Utf8Path| folder.strip_prefix(root).unwrap_or(folder).to_string();
    let mut found: Vec<Crate> = metadata
        .packages
        .iter()
        .map(|package| Crate {
            name: package.name.to_string(),
            folder: package.manifest_path.parent().map(relative).unwrap_or_default(),
            members: package.dependencies.iter().filter_map(|d| d.path.as_deref()).map(relative).collect(),
            external: package
                .dependencies
                .iter()
                .filter(|d| d.path.is_none() && d.kind != DependencyKind::Development)
                .map(|d| d.name.clone())
                .collect(),
        })
        .collect();
    found.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(found)
}

/// The place of a folder in [`LAYERS`], if it has one.
#[must_use]
pub fn layer(folder: &str) -> Option<usize> {
    LAYERS
        .iter()
        .position(|entry| folder == *entry || folder.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/')))
}

/// Why an edge may not be, or `None` if it may.
#[must_use]
pub fn forbidden(edge: &Edge) -> Option<String> {
    let Edge { from, to } = edge;
    match (layer(from), layer(to)) {
        (Some(lower), Some(upper)) if upper < lower => None,
        (Some(_), Some(_)) => Some(format!("{from} depends on {to}, which is not above it: turn the dependency round")),
        (None, _) => Some(format!("{from} has no place in the layers: add it to LAYERS where it belongs")),
        (_, None) => Some(format!("{from} depends on {to}, which has no place in the layers")),
    }
}

/// Everything that is wrong with these crates; empty when all is well.
#[must_use]
pub fn faults(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for one in crates {
        if layer(&one.folder).is_none() {
            found.push(format!("{} has no place in the layers: add it to LAYERS where it belongs", one.folder));
            continue;
        }
        let edges = one.members.iter().map(|to| Edge { from: one.folder.clone(), to: to.clone() });
        found.extend(edges.filter_map(|edge| forbidden(&edge)));
        if SANS_IO.contains(&one.folder.as_str()) {
            let io = one.external.iter().filter(|name| IO_CRATES.contains(&name.as_str()));
            found.extend(io.map(|name| format!("{} is sans-IO and depends on {name}", one.folder)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str) -> Edge {
        Edge { from: from.into(), to: to.into() }
    }

    fn one(folder: &str, members: &[&str], external: &[&str]) -> Crate {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_string()).collect();
        Crate {
            name: folder.replace('/', "-"),
            folder: folder.into(),
            members: texts(members),
            external: texts(external),
        }
    }

    #[test]
    fn arrows_point_up_and_only_up() {
        assert_eq!(forbidden(&edge("crates/runtime", "crates/shm")), None);
        assert_eq!(forbidden(&edge("tests/kill", "tests/support")), None);
        assert!(forbidden(&edge("crates/shm", "crates/wire")).unwrap().contains("not above"));
        assert!(forbidden(&edge("crates/runtime", "crates/client")).is_some());
        assert!(forbidden(&edge("crates/shm", "crates/shm")).is_some());
    }

    #[test]
    fn crates_of_one_layer_stay_apart() {
        assert!(forbidden(&edge("crates/datapaths/udp", "crates/datapaths/tcp")).is_some());
        assert_eq!(forbidden(&edge("crates/datapaths/udp", "crates/datapath")), None);
        assert!(forbidden(&edge("crates/datapath", "crates/datapaths/udp")).is_some());
    }

    #[test]
    fn a_crate_without_a_place_is_a_fault() {
        assert_eq!(layer("crates/shmem"), None);
        assert_eq!(faults(&[one("crates/shmem", &[], &[])]).len(), 1);
        assert!(forbidden(&edge("crates/cli", "crates/elsewhere")).unwrap().contains("no place"));
    }

    #[test]
    fn a_sans_io_crate_with_sockets_is_a_fault() {
        assert_eq!(
            faults(&[one("crates/wire", &[], &["prost", "rustix"])]),
            ["crates/wire is sans-IO and depends on rustix"]
        );
        assert!(faults(&[one("crates/shm", &[], &["rustix"])]).is_empty());
    }

    #[test]
    fn only_the_crate_made_for_it_loads_shared_objects_for_the_pipeline() {
        assert_eq!(faults(&[one("crates/traffic", &[], &["libloading"])]).len(), 1);
        assert_eq!(faults(&[one("crates/traffic", &["crates/traffic-plugin"], &[])]).len(), 1);
        assert!(faults(&[one("crates/traffic-plugin", &["crates/traffic", "crates/object"], &[])]).is_empty());
        assert_eq!(forbidden(&edge("oran/ranlab", "crates/traffic-plugin")), None);
    }
}
