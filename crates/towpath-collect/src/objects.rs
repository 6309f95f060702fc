//! Records of the runs: one compressed object for each, which never changes.
//!
//! They are files of a folder, or objects of an S3-compatible bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};

use crate::bucket::{Bucket, BucketConfig};
use crate::error::CollectError;

/// Name of the folder, or part of the key, of all runs.
const RUNS: &str = "runs";
/// End of the name of a run's records.
const EXTENSION: &str = ".jsonl.zst";
/// Age from which an unfinished file is not being written any more, in microseconds.
const MIN_LEFTOVER_AGE_US: i64 = 3_600_000_000;

/// Store of compressed results.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    place: ObjectPlace,
}

/// Place of the objects.
#[derive(Debug, Clone)]
enum ObjectPlace {
    Folder(PathBuf),
    Bucket(Box<Bucket>),
}

impl Objects {
    /// Opens a folder. A stored object is on the disk when its upload is confirmed.
    pub(crate) fn in_folder(path: &Path) -> Result<Self, CollectError> {
        let store = LocalFileSystem::new_with_prefix(path)?.with_fsync(true);
        Ok(Self { store: Arc::new(store), place: ObjectPlace::Folder(path.to_owned()) })
    }

    /// Opens a bucket, without a request to its server.
    pub(crate) fn open(config: &BucketConfig) -> Result<Self, CollectError> {
        let bucket = Bucket::open(config)?;
        let store = PrefixStore::new(bucket.client.clone(), bucket.prefix.clone());
        Ok(Self { store: Arc::new(store), place: ObjectPlace::Bucket(Box::new(bucket)) })
    }

    /// Fails if a bucket cannot be used; removes what an interrupted collector left in a folder.
    pub(crate) async fn prepare(&self, now_us: i64) -> Result<(), CollectError> {
        match &self.place {
            ObjectPlace::Folder(folder) => {
                let runs = folder.join(RUNS);
                // A large folder takes seconds, and uploads need not wait for it.
                drop(tokio::task::spawn_blocking(move || remove_leftovers(&runs, now_us)));
                Ok(())
            }
            ObjectPlace::Bucket(bucket) => Ok(bucket.verify().await?),
        }
    }

    pub(crate) async fn put(&self, id: &str, bytes: Vec<u8>) -> Result<(), CollectError> {
        let location = location(id);
        self.run(self.store.put(&location, PutPayload::from(bytes))).await?;
        Ok(())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Vec<u8>, CollectError> {
        let location = location(id);
        let bytes = self.run(async { self.store.get(&location).await?.bytes().await }).await?;
        Ok(bytes.into())
    }

    /// Returns true if the records of a run are stored.
    pub(crate) async fn exists(&self, id: &str) -> Result<bool, CollectError> {
        let location = location(id);
        self.run(async {
            match self.store.head(&location).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::NotFound { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Removes the records of a run, if they exist.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), CollectError> {
        let location = location(id);
        self.run(async {
            match self.store.delete(&location).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                outcome => outcome,
            }
        })
        .await
    }

    /// Waits for an operation. One on a bucket has a deadline, and its errors contain no keys.
    async fn run<T>(
        &self,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, CollectError> {
        match &self.place {
            ObjectPlace::Folder(_) => Ok(operation.await?),
            ObjectPlace::Bucket(bucket) => {
                let outcome = bucket.within_timeout(operation).await;
                Ok(outcome.map_err(|reason| bucket.failed(reason))?)
            }
        }
    }
}

/// Returns the place of a run: 256 folders keep each of them small.
fn location(id: &str) -> object_store::path::Path {
    let folder: String = id.chars().take(2).collect();
    object_store::path::Path::from_iter([RUNS, &folder, &format!("{id}{EXTENSION}")])
}

/// Removes files that a killed collector did not finish. A failure is only logged.
fn remove_leftovers(runs: &Path, now_us: i64) {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries(runs).flat_map(|folder| entries(&folder.path()));
    for file in files.filter(|file| is_leftover_name(&file.file_name().to_string_lossy())) {
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        let modified_us = modified.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_us =
            modified_us.map_or(i64::MAX, |age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
        if now_us.saturating_sub(modified_us) < MIN_LEFTOVER_AGE_US {
            continue;
        }
        if let Err(error) = std::fs::remove_file(file.path()) {
            tracing::warn!("cannot remove `{}`: {error}", file.path().display());
        }
    }
}

/// Returns true for the name under which `object_store` writes a file: `ID.jsonl.zst#1`.
fn is_leftover_name(name: &str) -> bool {
    name.split_once('#').is_some_and(|(object, number)| {
        object.ends_with(EXTENSION) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unfinished_files_are_leftovers() {
        assert!(is_leftover_name("0011aabb.jsonl.zst#1"));
        assert!(is_leftover_name("0011aabb.jsonl.zst#12"));
        for name in ["0011aabb.jsonl.zst", "notes#1", "0011aabb.jsonl.zst#x", "#1", ""] {
            assert!(!is_leftover_name(name), "{name}");
        }
    }
}
