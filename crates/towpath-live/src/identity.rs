//! Certificate and key of a server, from files or generated and stored.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use towpath_os::files;
use towpath_os::files::{Dir, ReadAccess};
use towpath_quic::Identity;
use towpath_quic::identity::{IdentityError, PemIdentity};
use towpath_result::input::ReadBudget;

/// Subject name of generated certificates, which clients ignore.
const CERTIFICATE_NAME: &str = "towpath";
const CERTIFICATE_FILE: &str = "server.crt";
const KEY_FILE: &str = "server.key";
/// Maximum size of a PEM file in bytes.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// Failure to obtain a certificate and its key.
#[derive(Debug, Error)]
pub enum IdentityFileError {
    /// Reading or writing a file failed.
    #[error("cannot use `{}`: {source}", path.display())]
    File {
        /// File or folder that was accessed.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("`{}`: {source}", path.display())]
    Content {
        /// File with the invalid content.
        path: PathBuf,
        /// Reason why the content is invalid.
        source: IdentityError,
    },
}

/// Generates an identity that is not stored.
pub(super) fn ephemeral_identity() -> Result<Identity, IdentityError> {
    let pem = PemIdentity::make(&[CERTIFICATE_NAME.to_owned()])?;
    Identity::from_pem(&pem.certificate, &pem.key)
}

/// Reads certificate and key from PEM files. Fails if another user owns the key or could change it,
/// as it is not secret then.
pub fn read_identity(certificate: &Path, key: &Path) -> Result<Identity, IdentityFileError> {
    let file_error = |path: &Path| {
        let path = path.to_owned();
        |source| IdentityFileError::File { path, source }
    };
    files::check_secret(key).map_err(file_error(key))?;
    let read_text = |path: &Path| {
        let bytes = ReadBudget::of(MAX_PEM_BYTES).read(path).map_err(file_error(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (certificate_pem, key_pem) = (read_text(certificate)?, read_text(key)?);
    Identity::from_pem(&certificate_pem, &key_pem)
        .map_err(|source| IdentityFileError::Content { path: certificate.to_owned(), source })
}

/// Loads the identity in `folder`, or generates and stores it. A stored identity lets clients
/// recognize this host. Only its user can read the key or write to the folder.
pub fn load_or_create_identity(folder: &Path) -> Result<Identity, IdentityFileError> {
    let certificate = folder.join(CERTIFICATE_FILE);
    let file_error = |path: &Path| {
        let path = path.to_owned();
        |source| IdentityFileError::File { path, source }
    };
    let private_dir = Dir::private(folder, ReadAccess::OwnerOnly).map_err(file_error(folder))?;
    let exists = |name: &str| folder.join(name).symlink_metadata().is_ok();
    if !(exists(CERTIFICATE_FILE) && exists(KEY_FILE)) {
        let pem = PemIdentity::make(&[CERTIFICATE_NAME.to_owned()])
            .map_err(|source| IdentityFileError::Content { path: certificate.clone(), source })?;
        // Atomic writes, so that a server that starts concurrently reads complete files.
        for (name, text) in [(KEY_FILE, &pem.key), (CERTIFICATE_FILE, &pem.certificate)] {
            let written = private_dir.write_durably(name, text.as_bytes(), ReadAccess::OwnerOnly);
            written.map_err(file_error(&folder.join(name)))?;
        }
    }
    let read = |name: &str| {
        let bytes = private_dir
            .read_private(name, MAX_PEM_BYTES)
            .map_err(file_error(&folder.join(name)))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Identity::from_pem(&read(CERTIFICATE_FILE)?, &read(KEY_FILE)?)
        .map_err(|source| IdentityFileError::Content { path: certificate, source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_identity_is_created_once_and_its_key_is_private() {
        let folder = std::env::temp_dir().join(format!("towpath-identity-{}", std::process::id()));
        let identity = load_or_create_identity(&folder).unwrap();
        assert_eq!(load_or_create_identity(&folder).unwrap(), identity);
        let mode = fs::metadata(folder.join("server.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.join("server.crt"), "nothing").unwrap();
        let error = load_or_create_identity(&folder).unwrap_err().to_string();
        assert!(error.contains("server.crt") && error.contains("no certificate"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_key_writable_by_others_is_refused() {
        let folder = std::env::temp_dir().join(format!("towpath-key-{}", std::process::id()));
        let identity = load_or_create_identity(&folder).unwrap();
        let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
        assert_eq!(read_identity(&certificate, &key).unwrap(), identity);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o606)).unwrap();
        for refused in [read_identity(&certificate, &key), load_or_create_identity(&folder)] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("other users can write to") && error.contains("server.key"),
                "{error}"
            );
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = load_or_create_identity(&folder).unwrap_err().to_string();
        assert!(error.contains("other users can write to"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
