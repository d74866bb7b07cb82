//! Whether a file may become code of this process: where it lies, whose it is, and who could change it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// The largest object that is loaded, in bytes.
const MAX_OBJECT: u64 = 64 << 20;

/// Why a file is not trusted, as a sentence that follows its path.
pub(crate) type Distrust = String;

/// What a file or a folder lets others do.
fn judge(path: &Path, found: &Metadata, user: u32) -> Result<(), Distrust> {
    if found.uid() != 0 && found.uid() != user {
        return Err(format!(
            "{} belongs to user {}; it must be root's or this process's user's ({user}), because loading it is running it",
            path.display(),
            found.uid()
        ));
    }
    // In a folder like /tmp others may add files, but not replace those of someone else.
    let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
    if found.mode() & 0o022 != 0 && !sticky {
        return Err(format!(
            "{} may be written by others (mode {:o}); take that away with `chmod go-w`",
            path.display(),
            found.mode() & 0o7777
        ));
    }
    Ok(())
}

/// Where the file is that `asked` names, all links resolved: in or below one of the directories.
pub(crate) fn resolve(asked: &Path, directories: &[PathBuf]) -> Result<PathBuf, Distrust> {
    let candidates: Vec<PathBuf> = if asked.is_absolute() {
        vec![asked.to_owned()]
    } else {
        if asked.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err("a path that is not absolute may only lead down from a plug-in directory".into());
        }
        directories.iter().map(|directory| directory.join(asked)).collect()
    };
    let mut found = Err("there is no such file in any plug-in directory".to_owned());
    for candidate in candidates {
        match std::fs::canonicalize(&candidate) {
            Ok(path) => {
                found = Ok(path);
                break;
            }
            Err(error) if asked.is_absolute() => found = Err(error.to_string()),
            Err(_) => {}
        }
    }
    let path = found?;
    let inside = directories.iter().filter_map(|d| std::fs::canonicalize(d).ok()).any(|d| path.starts_with(d));
    if !inside {
        let list: Vec<String> = directories.iter().map(|d| d.display().to_string()).collect();
        let list = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
        return Err(format!("it lies outside of the plug-in directories ({list})"));
    }
    Ok(path)
}

/// Where the file is that an absolute path names, all links resolved.
pub(crate) fn resolve_absolute(asked: &Path) -> Result<PathBuf, Distrust> {
    if !asked.is_absolute() {
        return Err(format!("{} is not an absolute path: objects are named by one", asked.display()));
    }
    std::fs::canonicalize(asked).map_err(|error| format!("{}: {error}", asked.display()))
}

/// Reads a file if it may be loaded. Returns where it is, and its bytes: what is loaded is what was checked, whatever happens to
/// the file afterwards.
pub(crate) fn read(path: PathBuf) -> Result<(PathBuf, Vec<u8>), Distrust> {
    let user = rustix::process::geteuid().as_raw();
    for folder in path.ancestors().skip(1) {
        let found = std::fs::metadata(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        judge(folder, &found, user)?;
    }
    // Not blocking: it might be a pipe, which is told only after it was opened.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let mut file: File =
        OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(&path).map_err(|e| e.to_string())?;
    let found = file.metadata().map_err(|e| e.to_string())?;
    if !found.is_file() {
        return Err("it is no regular file".into());
    }
    judge(&path, &found, user)?;
    if found.len() > MAX_OBJECT {
        return Err(format!("it has {} bytes; at most {MAX_OBJECT} are loaded", found.len()));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_OBJECT).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    Ok((path, bytes))
}
