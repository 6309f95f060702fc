//! A sweep's files in S3-compatible storage.
//!
//! A file is created with a conditional write (`If-None-Match: *`), so that exactly one of several
//! processes creates it. Callers block; the runtime of the client is private to this module.

mod address;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{
    Error, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};
use tokio::runtime::{Builder, Runtime};
use towpath_result::input::ReadBudget;

use super::store::{ChunkStore, FileContent, ListedFile, MIN_TABLE_BYTES, StorageError, probe};

/// Number of times that an object is created if the answer is lost or contradicts itself. The
/// client repeats other failures on its own.
const MAX_CREATIONS: u32 = 3;

/// Part of a bucket with the files of a sweep.
#[derive(Debug)]
pub(super) struct BucketStore {
    client: Arc<dyn ObjectStore>,
    prefix: Path,
    address: String,
    runtime: Runtime,
}

impl BucketStore {
    /// Opens `s3://BUCKET/PREFIX` with the endpoint, region and keys of `environment`. Nothing is
    /// sent yet.
    pub(super) fn open(
        url: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, StorageError> {
        let (bucket, prefix) = address::parse_url(url).ok_or(StorageError::Address)?;
        let client = address::client(bucket, environment)?;
        let address = format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned();
        Self::over(Arc::new(client), prefix, address)
    }

    /// Uses any store.
    fn over(
        client: Arc<dyn ObjectStore>,
        prefix: &str,
        address: String,
    ) -> Result<Self, StorageError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| StorageError::Client(error.to_string()))?;
        Ok(Self { client, prefix: Path::from(prefix), address, runtime })
    }

    /// Returns the address without a slash at its end.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    fn put(&self, name: &str, mode: PutMode, bytes: &[u8]) -> Result<(), Error> {
        let (path, payload) = (self.path(name), PutPayload::from(bytes.to_vec()));
        let put = self.client.put_opts(&path, payload, PutOptions::from(mode));
        self.runtime.block_on(put).map(drop)
    }
}

impl ChunkStore for BucketStore {
    fn prepare(&self) -> io::Result<()> {
        // A random number of the hash map, so that probes of several processes do not meet.
        probe(self, RandomState::new().hash_one(std::process::id()))
    }

    fn read(&self, name: &str, budget: &ReadBudget) -> io::Result<Option<FileContent>> {
        let path = self.path(name);
        let read = async {
            let result: GetResult = match self.client.get(&path).await {
                Ok(result) => result,
                Err(error) => return absent(&error),
            };
            budget.take(result.meta.size)?;
            let version = result.meta.e_tag.clone();
            let bytes = result.bytes().await.map_err(|error| failure(&error))?;
            Ok(Some(FileContent { bytes: bytes.to_vec(), version }))
        };
        self.runtime.block_on(read)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        for is_last in (1..=MAX_CREATIONS).map(|number| number == MAX_CREATIONS) {
            match self.put(name, PutMode::Create, bytes) {
                Ok(()) => return Ok(true),
                // After a lost answer, the object may be our own. It makes no difference: equal
                // runs have equal bytes. S3 also answers 409 while another write is in progress,
                // which may fail.
                Err(Error::AlreadyExists { .. }) => {
                    if self.contains(name)? {
                        return Ok(false);
                    }
                }
                Err(Error::NotFound { .. }) => return Err(StorageError::Missing.into()),
                // The client does not repeat a conditional write whose answer is lost. A repeated
                // one either creates the object or finds it.
                Err(error) => {
                    let reason = reason(&error);
                    if is_last || !matches!(reason, StorageError::Unreachable(_)) {
                        return Err(reason.into());
                    }
                }
            }
        }
        Err(StorageError::Conflict.into())
    }

    fn replace(&self, name: &str, version: Option<&str>, bytes: &[u8]) -> io::Result<bool> {
        let overwrite = || {
            let outcome = self.put(name, PutMode::Overwrite, bytes);
            outcome.map(|()| true).map_err(|error| failure(&error))
        };
        let Some(version) = version else { return overwrite() };
        let version = UpdateVersion { e_tag: Some(version.to_owned()), version: None };
        match self.put(name, PutMode::Update(version), bytes) {
            Ok(()) => Ok(true),
            Err(Error::Precondition { .. }) => Ok(false),
            // Some servers have conditional creation only. Equal runs have equal bytes, so that
            // another process's object does not change.
            Err(Error::NotImplemented { .. }) => overwrite(),
            Err(error) => {
                let reason = reason(&error);
                let is_unknown =
                    matches!(&reason, StorageError::Status(status) if status.starts_with("501"));
                if is_unknown { overwrite() } else { Err(reason.into()) }
            }
        }
    }

    fn contains(&self, name: &str) -> io::Result<bool> {
        match self.runtime.block_on(self.client.head(&self.path(name))) {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.runtime.block_on(self.client.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failure(&error)),
        }
    }

    fn list(&self) -> io::Result<BTreeMap<String, ListedFile>> {
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let listed = self.runtime.block_on(self.client.list_with_delimiter(prefix));
        let objects = listed.map_err(|error| failure(&error))?.objects;
        let named = objects.into_iter().filter_map(|object| {
            let file =
                ListedFile { bytes: object.size, modified: Some(object.last_modified.into()) };
            Some((object.location.filename()?.to_owned(), file))
        });
        Ok(named.collect())
    }

    fn seems_complete(&self, _name: &str, file: ListedFile, _rows: usize) -> bool {
        // A server stores complete objects only. A request for each would take long.
        file.bytes >= MIN_TABLE_BYTES
    }
}

/// Returns `None` if the error says that the object does not exist, but its bucket does.
fn absent<T>(error: &Error) -> io::Result<Option<T>> {
    match (error, reason(error)) {
        (_, StorageError::Missing) => Err(StorageError::Missing.into()),
        (Error::NotFound { .. }, _) => Ok(None),
        (_, reason) => Err(reason.into()),
    }
}

fn failure(error: &Error) -> io::Error {
    reason(error).into()
}

/// Finds the reason in an error of the client.
///
/// It leaves out the reply of the server, which may repeat parts of the request.
fn reason(error: &Error) -> StorageError {
    /// Maximum length of an error code in a message, in characters.
    const MAX_CODE_CHARS: usize = 40;
    let text = error.to_string();
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map(|(code, _)| {
        let letters = code.chars().filter(char::is_ascii_alphanumeric);
        letters.take(MAX_CODE_CHARS).collect::<String>()
    });
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3));
    let answer = [status, code.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    match (status, code.as_deref()) {
        (_, Some("NoSuchBucket")) => StorageError::Missing,
        (Some("401" | "403"), _) => StorageError::Denied(answer),
        (Some(_), _) | (None, Some(_)) => StorageError::Status(answer),
        (None, None) if matches!(error, Error::NotFound { .. }) => {
            StorageError::Status("404".to_owned())
        }
        (None, None) => StorageError::Unreachable(root_cause(error)),
    }
}

/// Returns the text of the innermost error, such as `Connection refused`.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Returns an empty store in memory.
#[cfg(test)]
pub(super) fn in_memory() -> Box<dyn ChunkStore> {
    let memory = Arc::new(object_store::memory::InMemory::new());
    Box::new(BucketStore::over(memory, "a", "s3://lab/a".to_owned()).unwrap())
}

#[cfg(test)]
mod tests;
