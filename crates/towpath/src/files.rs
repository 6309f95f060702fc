//! Result files: written line by line during a run, compressed at its end.
//!
//! Safe file access itself is in [`towpath_os::files`].

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use towpath_os::files::{Dir, OutputFile, ReadAccess, user_id};
use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};
use towpath_result::store::{StoreError, StoredRun, result_files};

use crate::error::CliError;

/// Extension of a compressed result.
const COMPRESSED: &str = "jsonl.zst";

/// Hint for a folder that cannot be written.
pub(crate) const OUT_HINT: &str = "choose a writable folder with `--out DIR`";

/// A folder for the results of one call.
#[derive(Debug)]
pub(crate) struct ResultFolder {
    folder: Dir,
    pub(crate) path: PathBuf,
    /// Set when the user did not name the folder: its parents may then be ours as well.
    is_default: bool,
}

impl ResultFolder {
    /// Opens the requested folder, or creates the next free number below `towpath-results/NAME`.
    ///
    /// If that cannot be written, creates a folder among the temporary files that only this user
    /// can read.
    pub(crate) fn create(requested: Option<&Path>, scenario: &str) -> Result<Self, CliError> {
        if let Some(path) = requested {
            let folder = Dir::make(path);
            let folder = folder.map_err(|source| CliError::unwritable(path, source, None))?;
            return Ok(Self { path: path.to_owned(), folder, is_default: false });
        }
        let default_folder = Path::new("towpath-results").join(scenario);
        let folder = Dir::make(&default_folder).and_then(|folder| folder.numbered());
        let folder = folder.or_else(|_| {
            let temp_folder = std::env::temp_dir().join(format!("towpath-results-{}", user_id()));
            Dir::private(&temp_folder, ReadAccess::OwnerOnly)
                .and_then(|_| Dir::make(&temp_folder.join(scenario))?.numbered())
                .map_err(|source| CliError::unwritable(&temp_folder, source, Some(OUT_HINT)))
        })?;
        Ok(Self { path: folder.path().to_owned(), folder, is_default: true })
    }

    /// Removes the folder if it is empty.
    pub(crate) fn remove_if_empty(&self) {
        // Fails if the folder has content, which must stay.
        let _ = fs::remove_dir(&self.path);
        for parent in self.path.ancestors().skip(1).take(if self.is_default { 2 } else { 0 }) {
            let _ = fs::remove_dir(parent); // fails unless empty
        }
    }

    /// Creates a result file in the folder.
    pub(crate) fn begin(&self, name: &str) -> Result<ResultFile<'_>, CliError> {
        let name = format!("{name}.jsonl");
        let path = self.path.join(&name);
        let file = self.folder.create(&name);
        let file = file.map_err(|source| CliError::unwritable(&path, source, None))?;
        Ok(ResultFile { folder: &self.folder, name, path, file })
    }

    /// Writes a whole file into the folder, such as a page.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, CliError> {
        write_in(&self.folder, name, content)
    }
}

/// Writes a whole file into a folder. A symbolic link of that name is replaced, not followed.
pub(crate) fn write_in(folder: &Dir, name: &str, content: &[u8]) -> Result<PathBuf, CliError> {
    let path = folder.path().join(name);
    let outcome = folder.write(name, content);
    outcome.map_err(|source| CliError::unwritable(&path, source, Some(OUT_HINT)))?;
    Ok(path)
}

/// Opens a folder that the user has named, or creates it.
pub(crate) fn folder(path: &Path) -> Result<Dir, CliError> {
    Dir::make(path).map_err(|source| CliError::unwritable(path, source, Some(OUT_HINT)))
}

/// Writes a whole file under the name that the user gave.
pub(crate) fn write_named(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let outcome = OutputFile::find(path).and_then(|output| output.write(content));
    outcome.map_err(|source| CliError::unwritable(path, source, None))
}

/// A result file that is being written.
#[derive(Debug)]
pub(crate) struct ResultFile<'a> {
    folder: &'a Dir,
    name: String,
    path: PathBuf,
    file: File,
}

impl ResultFile<'_> {
    /// Appends a line, which is on disk when this returns.
    pub(crate) fn add(&mut self, line: &str) -> Result<(), CliError> {
        let outcome = self.file.write_all(line.as_bytes());
        outcome.map_err(|source| CliError::unwritable(&self.path, source, None))
    }

    /// Replaces the lines that were written during the run by a complete result.
    pub(crate) fn replace(&mut self, content: &[u8]) -> Result<(), CliError> {
        let write_all = || {
            let mut file = self.folder.create_temp(&self.name, ReadAccess::Umask)?;
            file.file().write_all(content)?;
            file.persist()
        };
        self.file = write_all().map_err(|source| CliError::unwritable(&self.path, source, None))?;
        Ok(())
    }

    /// Compresses the result and returns its name. The plain file is removed only after that.
    pub(crate) fn finish(mut self) -> Result<PathBuf, CliError> {
        let compressed_path = self.path.with_extension(COMPRESSED);
        let name = Path::new(&self.name).with_extension(COMPRESSED);
        let mut compress = || {
            // Reads the open file, since its name may belong to another file by now.
            self.file.rewind()?;
            let bytes = compress_to_vec(&mut self.file, CompressionLevel::Fastest);
            self.folder.write(&name, &bytes)?;
            self.folder.remove(&self.name)
        };
        compress().map_err(|source| CliError::unwritable(&compressed_path, source, None))?;
        Ok(compressed_path)
    }
}

/// Reads result files, compressed or not. Their total size and the memory for them are limited.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<StoredRun>, CliError> {
    let budgets = ReadBudget::new(DEFAULT_RESULT_LIMIT)
        .and_then(|input_budget| Ok((input_budget, ReadBudget::new(DEFAULT_RESULT_LIMIT)?)));
    let unreadable =
        |source| CliError::Read { path: paths.first().cloned().unwrap_or_default(), source };
    let (input_budget, memory_budget) = budgets.map_err(unreadable)?;
    paths.iter().map(|path| read(path, &input_budget, &memory_budget)).collect()
}

/// Reads a result that this process has just written, without a size limit.
pub(crate) fn read_back(path: &Path) -> Result<StoredRun, CliError> {
    read(path, &ReadBudget::of(u64::MAX), &ReadBudget::of(u64::MAX))
}

fn read(
    path: &Path,
    input_budget: &ReadBudget,
    memory_budget: &ReadBudget,
) -> Result<StoredRun, CliError> {
    StoredRun::read(path, input_budget, memory_budget).map_err(|error| {
        let path = path.to_owned();
        if let StoreError::Open(source) = error {
            CliError::Read { path, source }
        } else {
            CliError::Result { path, source: error }
        }
    })
}

/// Returns the result files in `path`: itself, or those in the folder, sorted by name.
pub(crate) fn results_in(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let paths = result_files(path);
    let paths = paths.map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    if paths.is_empty() { Err(CliError::NoResult { path: path.to_owned() }) } else { Ok(paths) }
}
