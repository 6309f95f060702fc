//! Untrusted input files: only regular files are read, within a memory budget.
//!
//! All file input goes through here. FIFOs and devices are rejected, since they could block a
//! command. Every byte is charged to a [`ReadBudget`], so that no file exhausts memory. The
//! environment variable [`LIMIT_VARIABLE`] replaces the default limits, also in child processes.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
#[cfg(unix)]
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use towpath_scenario::units;

use crate::format;

/// Name of the environment variable that sets another limit, such as `2 GB`.
pub const LIMIT_VARIABLE: &str = "TOWPATH_MAX_INPUT";
/// Default limit in bytes of hand-written text: a scenario, a plan, a list.
pub const DEFAULT_TEXT_LIMIT: u64 = 16_000_000;
/// Default limit in bytes of all files that a scenario or plan references: link traces, message
/// lists.
pub const DEFAULT_REFERENCED_LIMIT: u64 = 64_000_000;
/// Default limit in bytes of the results that one command reads, and of a sweep's tables.
pub const DEFAULT_RESULT_LIMIT: u64 = 256_000_000;

/// Reason why a file is not read (any further).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Not a regular file: reading could block or never end.
    #[error("it is a {0}, and only regular files are read")]
    Kind(&'static str),
    /// More data than the limit allows.
    #[error(
        "more than {}, which is the limit here; {LIMIT_VARIABLE}={}MB raises it",
        format::bytes(*.0),
        (.0 / 1_000_000).saturating_add(1).saturating_mul(4)
    )]
    TooMuch(u64),
    /// Invalid limit in the environment variable.
    #[error("{LIMIT_VARIABLE} is `{0}`, expected a size such as `2 GB`")]
    Limit(String),
}

impl From<InputError> for io::Error {
    fn from(error: InputError) -> Self {
        let kind = match error {
            InputError::Kind(_) | InputError::Limit(_) => io::ErrorKind::InvalidInput,
            InputError::TooMuch(_) => io::ErrorKind::FileTooLarge,
        };
        Self::new(kind, error)
    }
}

/// Opens a regular file for reading.
///
/// Symbolic links are followed. Devices are never opened, since opening alone can have an effect.
/// If the file becomes a FIFO after the check, `O_NONBLOCK` prevents the open from blocking (on Unix).
pub fn open(path: &Path) -> io::Result<File> {
    check_regular(fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

fn check_regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    #[cfg(unix)]
    if kind.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    Err(InputError::Kind(kind_name(kind)).into())
}

#[cfg(unix)]
fn kind_name(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        _ => "device",
    }
}

#[cfg(not(unix))]
fn kind_name(kind: FileType) -> &'static str {
    if kind.is_dir() { "directory" } else { "device" }
}

/// Remaining number of bytes that may be read.
#[derive(Debug)]
pub struct ReadBudget {
    limit: u64,
    remaining: AtomicU64,
}

impl ReadBudget {
    /// Creates a budget with the limit of the environment, else with `default_limit`.
    pub fn new(default_limit: u64) -> io::Result<Self> {
        let Some(text) = std::env::var_os(LIMIT_VARIABLE) else {
            return Ok(Self::of(default_limit));
        };
        let text = text.to_string_lossy();
        let limit = units::size(&text).map_err(|_| InputError::Limit(text.into_owned()))?;
        Ok(Self::of(limit))
    }

    /// Creates a budget of exactly `limit` bytes.
    pub fn of(limit: u64) -> Self {
        Self { limit, remaining: AtomicU64::new(limit) }
    }

    /// Returns the maximum length of a result line: 8 MB with the default limit.
    pub fn line_bytes(&self) -> u64 {
        (self.limit / 32).max(64_000)
    }

    /// Charges bytes to the budget; fails when it is exhausted.
    pub fn take(&self, bytes: u64) -> Result<(), InputError> {
        let subtract = |remaining: u64| remaining.checked_sub(bytes);
        let result = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        result.map(drop).map_err(|_| InputError::TooMuch(self.limit))
    }

    /// Returns a reader that charges its bytes to this budget.
    pub fn reader<R: Read>(&self, input: R) -> BudgetedReader<'_, R> {
        BudgetedReader { input, budget: self }
    }

    /// Reads a whole regular file.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader(open(path)?).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a whole regular file of UTF-8 text.
    pub fn read_text(&self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        self.reader(open(path)?).read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Reads a hand-written text: a scenario, a plan, a list.
pub fn read_text(path: &Path) -> io::Result<String> {
    ReadBudget::new(DEFAULT_TEXT_LIMIT)?.read_text(path)
}

/// Returns a function that reads files of a folder by name, such as a scenario's traces. All of
/// them together share one limit.
pub fn sibling_files(folder: &Path) -> impl Fn(&str) -> io::Result<String> + Sync + use<> {
    let folder = folder.to_owned();
    let budget = ReadBudget::new(DEFAULT_REFERENCED_LIMIT);
    move |name| match &budget {
        Ok(budget) => budget.read_text(&folder.join(name)),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// A reader that charges its bytes to a budget, and fails when the budget is exhausted.
#[derive(Debug)]
pub struct BudgetedReader<'a, R> {
    input: R,
    budget: &'a ReadBudget,
}

impl<R: Read> Read for BudgetedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(buffer)?;
        self.budget.take(length as u64)?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_share_one_budget() {
        let budget = ReadBudget::of(10);
        let mut text = Vec::new();
        budget.reader(&b"123456"[..]).read_to_end(&mut text).unwrap();
        let error = budget.reader(&b"123456"[..]).read_to_end(&mut text).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(text, b"123456");
        assert!(error.to_string().contains(LIMIT_VARIABLE), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn only_regular_files_are_opened() {
        let open_error = |path: &str| open(Path::new(path)).unwrap_err().to_string();
        assert!(open_error("/dev/zero").contains("device"));
        assert!(open_error("/").contains("Is a directory"));
        assert!(open(&std::env::current_exe().unwrap()).is_ok());
    }

    #[test]
    #[cfg(unix)]
    fn a_symlink_counts_as_its_target() {
        let link = std::env::temp_dir().join(format!("towpath-input-{}", std::process::id()));
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let error = open(&link).unwrap_err().to_string();
        fs::remove_file(&link).unwrap();
        assert_eq!(error, "it is a device, and only regular files are read");
    }
}
