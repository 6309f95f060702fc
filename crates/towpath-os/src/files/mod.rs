//! Writes everything that is kept on disk, and never through another user's symbolic link.
//!
//! Root, or a user in a shared folder, must not be led to another place. So a [`Dir`] is
//! resolved link by link and held open: renaming a part of its path later has no effect. Files are
//! written under a temporary name and then renamed. The rename replaces a link and does not follow
//! it.
//!
//! There are two kinds of names. In names that towpath chooses ([`Dir::create`], [`Dir::write`]), a
//! link is always replaced. In names that the user spells ([`OutputFile`]), a link of the user's
//! own is followed, and devices and pipes are written directly.
//!
//! A link that belongs to neither root nor this user is always refused. An unfinished file has
//! another name. Private folders ([`Dir::private`]) are safe from other users in every parent up
//! to `/`.
//!
//! All this holds on Linux. On other systems, files are written under a temporary name and renamed
//! as well, but links are followed wherever the system follows them.

#[cfg(target_os = "linux")]
mod dir;
#[cfg(target_os = "linux")]
mod named;
#[cfg(not(target_os = "linux"))]
mod portable;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(target_os = "linux")]
mod walk;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

#[cfg(target_os = "linux")]
pub use dir::{Dir, TempFile, check_secret, is_creatable, user_id};
#[cfg(target_os = "linux")]
pub use named::OutputFile;
#[cfg(not(target_os = "linux"))]
pub use portable::{Dir, OutputFile, TempFile, check_secret, user_id};

/// Maximum number of concurrent unfinished files with the same final name.
const MAX_TEMP_FILES: u32 = 1_000;

/// Reason why a file or folder is not touched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnsafePath {
    /// Symbolic link of another user.
    #[error("`{}` is a symlink of another user ({owner})", path.display())]
    Link {
        /// Path of the link.
        path: PathBuf,
        /// User ID of the owner.
        owner: u32,
    },
    /// Symbolic link of any user, where none is allowed.
    #[error("`{}` is a symlink, expected a folder or a file", path.display())]
    AnyLink {
        /// Path of the link.
        path: PathBuf,
    },
    /// File or folder of another user.
    #[error("`{}` belongs to another user ({owner})", path.display())]
    Owner {
        /// Path of the file or folder.
        path: PathBuf,
        /// User ID of the owner.
        owner: u32,
    },
    /// File or folder that other users can change.
    #[error("other users can write to `{}` (mode {mode:o})", path.display())]
    Mode {
        /// Path of the file or folder.
        path: PathBuf,
        /// Permission bits of the file or folder.
        mode: u32,
    },
    /// Secret file that every user can read.
    #[error("other users can read `{}` (mode {mode:o}), expected a secret", path.display())]
    Readable {
        /// Path of the secret file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Not a regular file.
    #[error("`{}` is not a regular file", path.display())]
    Kind {
        /// Path of a folder, device, pipe or socket.
        path: PathBuf,
    },
    /// Longer than any file that towpath writes there.
    #[error("`{}` is longer than {max_bytes} bytes", path.display())]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Maximum size in bytes.
        max_bytes: u64,
    },
}

impl From<UnsafePath> for io::Error {
    fn from(refusal: UnsafePath) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

impl UnsafePath {
    /// Returns the refusal behind an error; `None` for other errors.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns advice on how to resolve the refusal.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Link { .. } | Self::AnyLink { .. } => "use the real path instead of the symlink",
            Self::Owner { .. } => "use another path",
            Self::Mode { .. } => {
                "remove write permission for other users (chmod go-w), or use another path"
            }
            Self::Readable { .. } => "remove read permission for other users (chmod o-r)",
            Self::Kind { .. } => "use another name, or rename the existing entry",
            Self::Length { .. } => "use another name, or rename the existing file",
        }
    }
}

/// Users who may read a written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAccess {
    /// All users that the process's umask allows.
    Umask,
    /// Only this process's user.
    OwnerOnly,
}
