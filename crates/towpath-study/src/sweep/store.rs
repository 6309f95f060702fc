//! Storage of a sweep's files: a folder, or a part of an object store.
//!
//! A sweep needs one operation that is atomic between computers: to create a file unless it exists.
//! A folder has hard links for it, and an object store has conditional writes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use towpath_result::input::ReadBudget;

use super::SweepError;
use super::files::FolderStore;

/// Length of the shortest Parquet file in bytes: the magic number twice, and a length.
pub(super) const MIN_TABLE_BYTES: u64 = 12;

/// Place of a sweep's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepLocation {
    /// Folder of a file system with hard links.
    Folder(PathBuf),
    /// Address of a part of an object store, such as `s3://BUCKET/PREFIX`.
    Objects(String),
}

impl SweepLocation {
    /// Parses a user's input: a text with `://` is an address, and any other is a folder.
    pub fn parse(input: &Path) -> Self {
        match input.to_str() {
            Some(text) if text.contains("://") => Self::Objects(text.to_owned()),
            Some(_) | None => Self::Folder(input.to_owned()),
        }
    }

    /// Opens the storage, and returns the path of its files in messages. Nothing is sent yet.
    pub(super) fn open(self) -> Result<(Box<dyn ChunkStore>, PathBuf), SweepError> {
        match self {
            Self::Folder(folder) => Ok((Box::new(FolderStore::new(&folder)), folder)),
            #[cfg(feature = "objects")]
            Self::Objects(address) => {
                let bucket = super::objects::BucketStore::open(&address, std::env::vars_os())?;
                let path = bucket.address().into();
                Ok((Box::new(bucket), path))
            }
            #[cfg(not(feature = "objects"))]
            Self::Objects(_) => Err(StorageError::NotBuilt.into()),
        }
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for SweepLocation {
    fn from(folder: &P) -> Self {
        Self::Folder(folder.as_ref().to_owned())
    }
}

/// File in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedFile {
    /// Size in bytes.
    pub(super) bytes: u64,
    /// Time of the last change, if the storage knows it.
    pub(super) modified: Option<SystemTime>,
}

/// Content of a file, and its version in an object store (its `ETag`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileContent {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Option<String>,
}

/// Storage of a sweep. Names have no folders. Every write is atomic: a reader finds the complete
/// file or none.
pub(super) trait ChunkStore: fmt::Debug + Send + Sync {
    /// Prepares the place of a new sweep, and verifies that it can be shared.
    fn prepare(&self) -> io::Result<()>;

    /// Returns a file, charged to `budget`, or `None` if it does not exist.
    fn read(&self, name: &str, budget: &ReadBudget) -> io::Result<Option<FileContent>>;

    /// Creates a file. Returns false if it exists, which leaves it as it is.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool>;

    /// Replaces a file that still has this version. Returns false if another process replaced it.
    fn replace(&self, name: &str, version: Option<&str>, bytes: &[u8]) -> io::Result<bool>;

    /// Returns true if the file exists.
    fn contains(&self, name: &str) -> io::Result<bool>;

    /// Removes a file if it exists.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns all files by their names.
    fn list(&self) -> io::Result<BTreeMap<String, ListedFile>>;

    /// Returns true if a table of `rows` rows seems complete, without reading all of it.
    fn seems_complete(&self, name: &str, file: ListedFile, rows: usize) -> bool;

    /// Removes unfinished files of crashed processes.
    fn remove_leftovers(&self) {}
}

/// Reason why an object store cannot hold a sweep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// Build without object stores.
    #[error("this build of towpath has no support for object stores")]
    NotBuilt,
    /// The address has another form, and may contain a password.
    #[error("this is not the address of a bucket")]
    Address,
    /// A variable of the environment is absent.
    #[error("the environment variable `{0}` is not set")]
    NotSet(&'static str),
    /// The endpoint is not an address.
    #[error("`AWS_ENDPOINT_URL` is not an address such as `https://s3.example.org`")]
    Endpoint,
    /// The endpoint is that of another host, without TLS.
    #[error("`AWS_ENDPOINT_URL` is plain HTTP to another host")]
    PlainHttp,
    /// The HTTP client cannot be made, such as without certificates.
    #[error("cannot prepare connections: {0}")]
    Client(String),
    /// The server has no such bucket.
    #[error("the bucket does not exist")]
    Missing,
    /// The server knows no such key, or the key lacks a permission.
    #[error("the server refused the key ({0})")]
    Denied(String),
    /// There is no connection to the server, or it broke.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server answered with another error.
    #[error("the server answered {0}")]
    Status(String),
    /// The server overwrites an object although the request forbids it.
    #[error(
        "the server ignores conditional writes, so processes would overwrite each other's rows"
    )]
    Unconditional,
    /// The server lets two writers create the same object at the same time.
    #[error("the server created one object twice, for two requests at the same time")]
    Race,
    /// The server reports that an object exists, and then that it does not.
    #[error("the server refused to create the object, and has none of that name")]
    Conflict,
}

impl StorageError {
    /// Returns a suggested action, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NotBuilt => "build it with the feature `objects`, or give a folder",
            Self::Address => "give an address such as `s3://BUCKET/PREFIX`, or a folder",
            Self::NotSet(_) => {
                "set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` to a key of the bucket"
            }
            Self::Endpoint => "give the address of the server, or leave it out for AWS",
            Self::PlainHttp => "use `https://`, or set `AWS_ALLOW_HTTP=true` in a trusted network",
            Self::Client(_) => {
                "install the certificates of the system, such as the package `ca-certificates`"
            }
            Self::Missing => "create the bucket, or correct its name",
            Self::Denied(_) => {
                "check `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`; the key must be allowed to \
                 list, read, write and delete"
            }
            Self::Unreachable(_) => {
                "check that the server runs, and its address in `AWS_ENDPOINT_URL`"
            }
            Self::Unconditional | Self::Race => {
                "use a server that supports `If-None-Match: *` for PUT, or a folder"
            }
            Self::Status(_) | Self::Conflict => return None,
        })
    }

    /// Finds the reason in an error of a store.
    pub(super) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        Self::other(error)
    }
}

/// Number of processes that a probe imitates.
#[cfg(any(feature = "objects", test))]
const PROBE_WRITERS: u8 = 2;

/// Fails unless the store creates each object exactly once. `id` distinguishes probes at the same
/// time.
#[cfg(any(feature = "objects", test))]
pub(super) fn probe(store: &dyn ChunkStore, id: u64) -> io::Result<()> {
    let name = format!(".probe-{id:016x}");
    let outcome = probe_object(store, &name);
    // An object that cannot be removed does no harm.
    let _ = store.remove(&name);
    outcome
}

#[cfg(any(feature = "objects", test))]
fn probe_object(store: &dyn ChunkStore, name: &str) -> io::Result<()> {
    let outcomes: Vec<io::Result<bool>> = std::thread::scope(|scope| {
        let writers = (0..PROBE_WRITERS).map(|number| {
            let create = move || store.create(name, &[number]);
            scope.spawn(create)
        });
        // All start before the first is joined.
        let writers: Vec<_> = writers.collect();
        let panicked = |_| Err(io::Error::other("the probe ended early"));
        writers.into_iter().map(|writer| writer.join().unwrap_or_else(panicked)).collect()
    });
    let mut winners = Vec::new();
    for (number, outcome) in (0..PROBE_WRITERS).zip(outcomes) {
        if outcome? {
            winners.push(number);
        }
    }
    let is_overwritten = store.create(name, &[PROBE_WRITERS])?;
    let content = store.read(name, &ReadBudget::of(1_000))?.map(|content| content.bytes);
    if is_overwritten {
        return Err(StorageError::Unconditional.into());
    }
    // If the answer to the first writer was lost, its second request found its own object. Then no
    // request reported success.
    let is_expected = match (winners.as_slice(), content.as_deref()) {
        ([winner], Some([number])) => winner == number,
        ([], Some([number])) => *number < PROBE_WRITERS,
        _ => false,
    };
    if !is_expected {
        return Err(StorageError::Race.into());
    }
    Ok(())
}
