//! Who a server is: its certificate and key, from files or made here and kept.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use towpath_quic::Identity;
use towpath_quic::identity::{IdentityError, Pem};

/// Name in certificates that are made here; nobody looks at it.
const NAME: &str = "towpath";

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum KeepError {
    /// A file cannot be read or written.
    #[error("cannot use `{}`: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is in it is of no use.
    #[error("`{}`: {source}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: IdentityError,
    },
}

/// One for this once.
pub(super) fn make() -> Result<Identity, IdentityError> {
    let pem = Pem::make(&[NAME.to_owned()])?;
    Identity::from_pem(&pem.certificate, &pem.key)
}

/// Reads certificate and key from PEM files.
pub fn read_identity(certificate: &Path, key: &Path) -> Result<Identity, KeepError> {
    let read = |path: &Path| {
        let file = |source| KeepError::File { path: path.to_owned(), source };
        fs::read_to_string(path).map_err(file)
    };
    let (chain, secret) = (read(certificate)?, read(key)?);
    Identity::from_pem(&chain, &secret)
        .map_err(|source| KeepError::Content { path: certificate.to_owned(), source })
}

/// The one in `folder`, made when there is none yet: so clients can know this host again. Nobody but
/// its user can read the key.
pub fn kept_identity(folder: &Path) -> Result<Identity, KeepError> {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    if certificate.exists() && key.exists() {
        return read_identity(&certificate, &key);
    }
    let file = |path: &Path| {
        let path = path.to_owned();
        |source| KeepError::File { path, source }
    };
    let made = Pem::make(&[NAME.to_owned()])
        .map_err(|source| KeepError::Content { path: certificate.clone(), source })?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(file(folder))?;
    write(&key, &made.key).map_err(file(&key))?;
    write(&certificate, &made.certificate).map_err(file(&certificate))?;
    read_identity(&certificate, &key)
}

/// Another server that starts now finds all of it or nothing.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&part).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let moved = written.and_then(|()| fs::rename(&part, path));
    if moved.is_err() {
        let _nothing_there = fs::remove_file(&part);
    }
    moved
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_identity_is_made_once_and_its_key_is_private() {
        let folder = std::env::temp_dir().join(format!("towpath-identity-{}", std::process::id()));
        let first = kept_identity(&folder).unwrap();
        assert_eq!(kept_identity(&folder).unwrap(), first);
        let mode = fs::metadata(folder.join("server.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.join("server.crt"), "nothing").unwrap();
        let error = kept_identity(&folder).unwrap_err().to_string();
        assert!(error.contains("server.crt") && error.contains("no certificate"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
