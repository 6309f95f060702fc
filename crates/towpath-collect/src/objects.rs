//! Records of the runs: one compressed object for each, which never changes.

use std::path::Path;
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};

use crate::error::CollectError;

/// Store of compressed results.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
}

impl Objects {
    /// Opens a folder. A stored object is on the disk when its upload is confirmed.
    pub(crate) fn in_folder(path: &Path) -> Result<Self, CollectError> {
        let store = LocalFileSystem::new_with_prefix(path)?.with_fsync(true);
        Ok(Self { store: Arc::new(store) })
    }

    pub(crate) async fn put(&self, id: &str, bytes: Vec<u8>) -> Result<(), CollectError> {
        self.store.put(&location(id), PutPayload::from(bytes)).await?;
        Ok(())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Vec<u8>, CollectError> {
        Ok(self.store.get(&location(id)).await?.bytes().await?.into())
    }

    /// Removes the records of a run, if they exist.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), CollectError> {
        match self.store.delete(&location(id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the place of a run: 256 folders keep each of them small.
fn location(id: &str) -> object_store::path::Path {
    let folder: String = id.chars().take(2).collect();
    object_store::path::Path::from_iter(["runs", &folder, &format!("{id}.jsonl.zst")])
}
