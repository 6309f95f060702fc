//! Atomic files: complete or absent, even if a process crashes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Prefix of unfinished files.
const TEMP_PREFIX: &str = ".tmp-";

/// Puts `bytes` into the folder as `name`, unless a file of that name exists.
pub(super) fn publish(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let target = folder.join(name);
    if target.exists() {
        return Ok(());
    }
    let (temporary_path, mut file) = create_temporary(folder, name)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    let linked = written.and_then(|()| fs::hard_link(&temporary_path, &target));
    // Another process may have removed it as a leftover.
    let _ = fs::remove_file(&temporary_path);
    match linked {
        Ok(()) => File::open(folder)?.sync_all(),
        // Another process was faster: equal runs have equal rows.
        Err(_) if target.exists() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a file that only this process writes, even if another computer has equal process
/// numbers.
fn create_temporary(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    let mut number = 0_u32;
    loop {
        let path = folder.join(format!("{TEMP_PREFIX}{name}-{process}-{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 10_000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes unfinished files of crashed processes.
pub(super) fn remove_leftovers(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(TEMP_PREFIX) {
            // A file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}
