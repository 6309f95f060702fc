//! A sweep's files in a folder: complete or absent, even if a process crashes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use towpath_result::input::{self, ReadBudget};

use super::store::{ChunkStore, FileContent, ListedFile, MIN_TABLE_BYTES};

/// Prefix of unfinished files.
const TEMP_PREFIX: &str = ".tmp-";

/// Folder on a file system with hard links, which processes and computers may share.
#[derive(Debug)]
pub(super) struct FolderStore {
    folder: PathBuf,
}

impl FolderStore {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Writes a temporary file, and then moves it to its place with `publish`.
    fn write(
        &self,
        name: &str,
        bytes: &[u8],
        publish: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let (temporary_path, mut file) = create_temporary(&self.folder, name)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        drop(file);
        let published = written.and_then(|()| publish(&temporary_path, &self.folder.join(name)));
        // It is gone after a move, or another process removed it as a leftover.
        let _ = fs::remove_file(&temporary_path);
        published?;
        File::open(&self.folder)?.sync_all()
    }
}

impl ChunkStore for FolderStore {
    fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)
    }

    fn read(&self, name: &str, budget: &ReadBudget) -> io::Result<Option<FileContent>> {
        match budget.read(&self.folder.join(name)) {
            Ok(bytes) => Ok(Some(FileContent { bytes, version: None })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let target = self.folder.join(name);
        if target.exists() {
            return Ok(false);
        }
        match self.write(name, bytes, |temporary, target| fs::hard_link(temporary, target)) {
            Ok(()) => Ok(true),
            // Another process was faster: equal runs have equal rows.
            Err(_) if target.exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, name: &str, _version: Option<&str>, bytes: &[u8]) -> io::Result<bool> {
        // A file system has no conditional rename. Equal runs have equal rows, so that a rename
        // over another process's file changes nothing.
        self.write(name, bytes, |temporary, target| fs::rename(temporary, target))?;
        Ok(true)
    }

    fn contains(&self, name: &str) -> io::Result<bool> {
        self.folder.join(name).try_exists()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn list(&self) -> io::Result<BTreeMap<String, ListedFile>> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // Another process may have removed a temporary file. A link is followed, as in `read`.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            let file = ListedFile { bytes: metadata.len(), modified: metadata.modified().ok() };
            files.insert(name, file);
        }
        Ok(files)
    }

    fn seems_complete(&self, name: &str, file: ListedFile, rows: usize) -> bool {
        if file.bytes < MIN_TABLE_BYTES {
            return false;
        }
        let Ok(file) = input::open(&self.folder.join(name)) else { return false };
        // The library checks the magic number and reads the metadata, both at the end of the file.
        // It panics on some files.
        let footer = || {
            SerializedFileReader::new(file)
                .map(|reader| reader.metadata().file_metadata().num_rows())
        };
        let stored_rows = catch_unwind(AssertUnwindSafe(footer));
        stored_rows
            .is_ok_and(|stored| stored.is_ok_and(|stored| usize::try_from(stored) == Ok(rows)))
    }

    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(TEMP_PREFIX) {
                // A file that cannot be removed does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
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
