//! Key with which a collector signs its campaigns: a private file in the collector's folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use towpath_campaign::SigningKey;

use crate::campaign::CampaignError;
use crate::error::CollectError;
use crate::secret;
use crate::store::unusable;

/// Name of the key's file, in PKCS #8.
const KEY_FILE: &str = "campaign.key";
/// Maximum length of a usable file in bytes: a key has 83.
const MAX_KEY_BYTES: u64 = 1_000;

/// A key with the bytes of its file.
#[derive(Debug)]
pub(crate) struct KeyFile {
    pub(crate) key: SigningKey,
    bytes: Vec<u8>,
}

impl KeyFile {
    /// Reads the key in a folder; `None` if there is none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, CollectError> {
        let path = folder.join(KEY_FILE);
        let bytes = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > MAX_KEY_BYTES => Vec::new(), // not a key
            Ok(_) => fs::read(&path).map_err(|source| unusable(&path, source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(unusable(&path, source)),
        };
        match SigningKey::from_pkcs8(&bytes) {
            Ok(key) => Ok(Some(Self { key, bytes })),
            Err(reason) => Err(CampaignError::Key { path, reason }.into()),
        }
    }

    /// Creates a key in a folder. If another process has created one meanwhile, returns that one.
    pub(crate) fn create(folder: &Path) -> Result<Self, CollectError> {
        let path = folder.join(KEY_FILE);
        let failed = |reason| CampaignError::Key { path: path.clone(), reason };
        let bytes = SigningKey::generate().map_err(failed)?;
        let key = SigningKey::from_pkcs8(&bytes).map_err(failed)?;
        let temporary = write_temporary(folder, &bytes)?;
        // A link fails if its name exists. Unlike a new file, it is never seen half written.
        let linked = fs::hard_link(&temporary, &path);
        let removed = fs::remove_file(&temporary);
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Self::read(folder)?.ok_or_else(|| unusable(&path, error));
            }
            Err(source) => return Err(unusable(&path, source)),
        }
        removed.and_then(|()| File::open(folder)?.sync_all()).map_err(|e| unusable(&path, e))?;
        Ok(Self { key, bytes })
    }

    /// Writes the key to a folder, and replaces any other one.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), CollectError> {
        let (path, temporary) = (folder.join(KEY_FILE), write_temporary(folder, &self.bytes)?);
        let renamed = fs::rename(&temporary, &path).and_then(|()| File::open(folder)?.sync_all());
        renamed.map_err(|source| unusable(&path, source))
    }

    /// Removes the key from a folder, if there is one.
    pub(crate) fn remove(folder: &Path) -> Result<(), CollectError> {
        let path = folder.join(KEY_FILE);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(unusable(&path, source)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Writes a new file that only this user can read, and returns its path.
fn write_temporary(folder: &Path, bytes: &[u8]) -> Result<PathBuf, CollectError> {
    let path = folder.join(format!("{KEY_FILE}.{}", secret::random_id()?));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&path); // best effort
        unusable(&path, source)
    })?;
    Ok(path)
}
