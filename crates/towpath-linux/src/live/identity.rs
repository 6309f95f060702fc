//! Who a server is: its certificate and key, from files or made here and kept.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use towpath_measure::input::ReadBudget;
use towpath_quic::Identity;
use towpath_quic::identity::{IdentityError, PemIdentity};

use crate::files::{self, Folder, Readers};

/// Name in certificates that are made here; nobody looks at it.
const NAME: &str = "towpath";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
/// A chain of certificates is shorter.
const LONGEST: u64 = 1 << 20;

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
    let pem = PemIdentity::make(&[NAME.to_owned()])?;
    Identity::from_pem(&pem.certificate, &pem.key)
}

/// Reads certificate and key from PEM files. A key that somebody else has made, or could change, is no
/// secret.
pub fn read_identity(certificate: &Path, key: &Path) -> Result<Identity, KeepError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        |source| KeepError::File { path, source }
    };
    files::check_secret(key).map_err(file(key))?;
    let text = |path: &Path| {
        let bytes = ReadBudget::of(LONGEST).read(path).map_err(file(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (chain, secret) = (text(certificate)?, text(key)?);
    Identity::from_pem(&chain, &secret)
        .map_err(|source| KeepError::Content { path: certificate.to_owned(), source })
}

/// The one in `folder`, made when there is none yet: so clients can know this host again. Nobody but
/// its user can read the key, or write to the folder.
pub fn kept_identity(folder: &Path) -> Result<Identity, KeepError> {
    let certificate = folder.join(CERTIFICATE);
    let file = |path: &Path| {
        let path = path.to_owned();
        |source| KeepError::File { path, source }
    };
    let kept = Folder::private(folder, Readers::Nobody).map_err(file(folder))?;
    let is_there = |name: &str| folder.join(name).symlink_metadata().is_ok();
    if !(is_there(CERTIFICATE) && is_there(KEY)) {
        let made = PemIdentity::make(&[NAME.to_owned()])
            .map_err(|source| KeepError::Content { path: certificate.clone(), source })?;
        // Another server that starts now finds each of them whole.
        for (name, text) in [(KEY, &made.key), (CERTIFICATE, &made.certificate)] {
            let written = kept.write_durably(name, text.as_bytes(), Readers::Nobody);
            written.map_err(file(&folder.join(name)))?;
        }
    }
    let read = |name: &str| {
        let bytes = kept.read_private(name, LONGEST).map_err(file(&folder.join(name)))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Identity::from_pem(&read(CERTIFICATE)?, &read(KEY)?)
        .map_err(|source| KeepError::Content { path: certificate, source })
}

#[cfg(test)]
mod tests {
    use std::fs;
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

    #[test]
    fn a_key_writable_by_others_is_refused() {
        let folder = std::env::temp_dir().join(format!("towpath-key-{}", std::process::id()));
        let first = kept_identity(&folder).unwrap();
        let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
        assert_eq!(read_identity(&certificate, &key).unwrap(), first);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o606)).unwrap();
        for refused in [read_identity(&certificate, &key), kept_identity(&folder)] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("others may write to") && error.contains("server.key"),
                "{error}"
            );
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = kept_identity(&folder).unwrap_err().to_string();
        assert!(error.contains("others may write to"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
