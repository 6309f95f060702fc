//! Shared parts of the verbs between real hosts: the secret, and errors.

use std::io::Read as _;
use std::path::Path;

use towpath_live::LiveError;
use towpath_live::protocol::Secret;
use towpath_live::protocol::secret::MAX_SECRET_BYTES;
use towpath_result::input;

use crate::error::CliError;

/// Reads the shared secret of servers and clients from a file that others cannot read.
pub(crate) fn read_secret(path: &Path) -> Result<Secret, CliError> {
    let read_file = || {
        let mut text = Vec::new();
        towpath_os::files::check_secret(path)?;
        // An endless file is read only far enough to see that it is too long.
        let max_bytes = 2 * MAX_SECRET_BYTES as u64;
        input::open(path)?.take(max_bytes).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read_file().map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    Secret::from_text(&text).map_err(|error| CliError::Unavailable {
        what: format!("`{}` does not contain a valid secret: {error}", path.display()),
        hint: "create one with `(umask 77; head -c 24 /dev/urandom | base64 > FILE)`, and copy it to both hosts"
            .to_owned(),
    })
}

impl From<LiveError> for CliError {
    fn from(error: LiveError) -> Self {
        let hint = error.hint();
        Self::failed(error, hint)
    }
}
