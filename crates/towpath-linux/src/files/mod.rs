//! Everything that is kept on disk is written here: never through a link of somebody else.
//!
//! Whoever runs towpath as root, or in a folder where others may write too, must not be led to
//! another place. So a [`Dir`] is walked to link by link and held open: whoever renames or
//! replaces a part of its name later changes nothing. Files are written beside their place and take
//! it with one rename, which replaces a link and does not follow it.
//!
//! Two kinds of names: those that towpath chooses in a folder ([`Dir::create`],
//! [`Dir::write`]), where a link is always replaced; and those that the user spells
//! ([`Named`]), where a link of the user's own is followed, and devices and pipes are written to as
//! they are.
//!
//! Always: a link that belongs to neither root nor this user is refused; a file that is not whole
//! has another name. What is private ([`Dir::private`]) is nobody else's, up to `/`.

mod named;
#[cfg(test)]
mod tests;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use named::OutputFile;

use crate::sys::{self, at};
use walk::{WalkOptions, walk};

/// Files with the same name that are begun at once.
const MAX_TEMP_FILES: u32 = 1_000;
/// Mode of files that everybody may read, less the process's mask.
const DEFAULT_MODE: u32 = 0o666;

/// Why a file or folder is not touched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnsafePath {
    /// Somebody else's link.
    #[error("`{}` is a link that another user has made ({owner})", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
    },
    /// A link where there must be none, whoever has made it.
    #[error("`{}` is a link, expected a folder or file itself", path.display())]
    AnyLink {
        /// The link.
        path: PathBuf,
    },
    /// Somebody else's.
    #[error("`{}` belongs to another user ({owner})", path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
    },
    /// Somebody else could change it.
    #[error("others may write to `{}` (mode {mode:o})", path.display())]
    Mode {
        /// The file or folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Everybody could read a secret.
    #[error("everybody may read `{}` (mode {mode:o}), expected a secret", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// No file that can be written or read like one.
    #[error("`{}` is no regular file", path.display())]
    Kind {
        /// What has the name.
        path: PathBuf,
    },
    /// Longer than anything that towpath writes there.
    #[error("`{}` is longer than {most} bytes", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Most bytes.
        most: u64,
    },
}

impl From<UnsafePath> for io::Error {
    fn from(refusal: UnsafePath) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

impl UnsafePath {
    /// The refusal behind an error, if it is one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The way out.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Link { .. } | Self::AnyLink { .. } => {
                "name the place itself, or remove the link if nobody needs it"
            }
            Self::Owner { .. } => "name another place, or remove it if nobody needs it",
            Self::Mode { .. } => {
                "take the right to write from others (chmod go-w), or name another \
                                  place"
            }
            Self::Readable { .. } => "take the right to read from others (chmod o-r)",
            Self::Kind { .. } => "name a file, or remove what has its name",
            Self::Length { .. } => "remove it, if nobody needs it",
        }
    }
}

/// Who may read what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAccess {
    /// Everybody whom the process's mask allows.
    Umask,
    /// This user alone.
    OwnerOnly,
}

impl ReadAccess {
    const fn file_mode(self) -> u32 {
        match self {
            Self::Umask => DEFAULT_MODE,
            Self::OwnerOnly => 0o600,
        }
    }
}

/// A folder that is held open, so that its name is looked up once.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    at: OwnedFd,
}

impl Dir {
    /// The folder at `path`, which is made if it is missing, with all above it.
    pub fn make(path: &Path) -> io::Result<Self> {
        Self::at(path, WalkOptions { make: Some(0o777), private: false })
    }

    /// The folder at `path`, which must be there.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::at(path, WalkOptions { make: None, private: false })
    }

    /// A folder that is ours alone: this user's, no link, and nobody else may write to it or put
    /// something else in its place. Made if it is missing.
    pub fn private(path: &Path, readers: ReadAccess) -> io::Result<Self> {
        let mode = if readers == ReadAccess::OwnerOnly { 0o700 } else { 0o755 };
        let folder =
            Self::at(&std::path::absolute(path)?, WalkOptions { make: Some(mode), private: true })?;
        let own = format!("/proc/self/fd/{}", folder.at.as_raw_fd());
        let is_read = || fs::metadata(&own).is_ok_and(|it| it.permissions().mode() & 0o077 != 0);
        if readers == ReadAccess::OwnerOnly && is_read() {
            // One that was made before may have been open to readers.
            fs::set_permissions(&own, Permissions::from_mode(0o700))?;
        }
        Ok(folder)
    }

    /// The same, where it is there already.
    pub fn existing_private(path: &Path) -> io::Result<Self> {
        Self::at(&std::path::absolute(path)?, WalkOptions { make: None, private: true })
    }

    /// A new folder of ours alone below `parent`, whose name begins with `stem`.
    pub fn scratch(parent: &Path, stem: &str) -> io::Result<Self> {
        let parent = std::path::absolute(parent)?;
        let above = walk(&parent, WalkOptions { make: None, private: true }, false)?;
        for number in 0..MAX_TEMP_FILES {
            let name = OsString::from(format!("{stem}-{number}"));
            match at::make_folder_at(above.as_fd(), &name, 0o700) {
                Ok(()) => return Self::inside((&parent, &above), &name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn at(path: &Path, manner: WalkOptions) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), at: walk(path, manner, manner.private)? })
    }

    fn inside((path, at): (&Path, &OwnedFd), name: &OsStr) -> io::Result<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let at = at::open_at(at.as_fd(), name, flags, 0)?;
        Ok(Self { path: path.join(name), at })
    }

    /// Its name, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next free number as a new folder in this one.
    pub fn numbered(&self) -> io::Result<Self> {
        for number in 1..100_000 {
            let name = OsString::from(format!("{number:03}"));
            match at::make_folder_at(self.at.as_fd(), &name, 0o777) {
                Ok(()) => return Self::inside((&self.path, &self.at), &name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A new file under a name of ours, which is there at once and can be read back. What had the
    /// name is gone.
    pub fn create(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.create_temp(name, ReadAccess::Umask)?.persist()
    }

    /// A new file that gets its name when it is whole.
    pub fn create_temp(
        &self,
        name: impl AsRef<OsStr>,
        readers: ReadAccess,
    ) -> io::Result<TempFile<'_>> {
        let name = name.as_ref().to_owned();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        for number in 0..MAX_TEMP_FILES {
            let mut beside = OsString::from(".");
            beside.push(&name);
            beside.push(format!(".{}-{number}.part", std::process::id()));
            match at::open_at(self.at.as_fd(), &beside, flags, readers.file_mode()) {
                Ok(file) => {
                    let file = File::from(file);
                    return Ok(TempFile { folder: self, name, beside: Some(beside), file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Puts `bytes` there as a whole file, or leaves everything as it is.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create_temp(name, ReadAccess::Umask)?;
        file.file().write_all(bytes)?;
        file.persist().map(drop)
    }

    /// The same, also when the machine dies meanwhile, and for some readers only.
    pub fn write_durably(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        readers: ReadAccess,
    ) -> io::Result<()> {
        let mut file = self.create_temp(name, readers)?;
        // What others may write is not believed when it is read again, whatever the mask allowed.
        let mode = file.file().metadata()?.permissions().mode() & 0o755;
        file.file().set_permissions(Permissions::from_mode(mode))?;
        file.file().write_all(bytes)?;
        file.file().sync_all()?;
        file.persist().map(drop)
    }

    /// The same with exactly these permissions, whatever the process's mask is.
    pub fn write_with_mode(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> io::Result<()> {
        let mut file = self.create_temp(name, ReadAccess::OwnerOnly)?;
        file.file().write_all(bytes)?;
        file.file().set_permissions(Permissions::from_mode(mode))?;
        file.persist().map(drop)
    }

    /// The content of a file of this user's to which nobody else may write: no link, not longer than
    /// `most` bytes.
    pub fn read_private(&self, name: impl AsRef<OsStr>, most: u64) -> io::Result<Vec<u8>> {
        let name = name.as_ref();
        // A pipe would keep whoever opens it until somebody writes.
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let path = self.path.join(name);
        let file = at::open_at(self.at.as_fd(), name, flags, 0).map_err(|error| {
            let is_link = error.raw_os_error() == Some(libc::ELOOP);
            if is_link { UnsafePath::AnyLink { path: path.clone() }.into() } else { error }
        })?;
        let file = File::from(file);
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(UnsafePath::Kind { path }.into());
        }
        walk::check_ours(&path, &about)?;
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(UnsafePath::Length { path, most }.into());
        }
        Ok(bytes)
    }

    /// Removes a file or link; that there is none is no error.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match at::remove_at(self.at.as_fd(), name.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A file beside its place. It is gone if it is not kept.
#[derive(Debug)]
pub struct TempFile<'a> {
    folder: &'a Dir,
    name: OsString,
    /// Its name until then.
    beside: Option<OsString>,
    file: File,
}

impl TempFile<'_> {
    /// To be written to.
    pub const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it its name, in place of what had it.
    pub fn persist(mut self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if let Some(beside) = &self.beside {
            at::rename_at(self.folder.at.as_fd(), beside, &self.name)?;
            self.beside = None;
        }
        Ok(file)
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = at::remove_at(self.folder.at.as_fd(), beside); // best effort
        }
    }
}

/// Checks a file with a secret that the user has named, wherever it is: it belongs to this user or to
/// root, as every link does that leads to it; nobody else may write to it, and not everybody read it.
pub fn check_secret(path: &Path) -> io::Result<()> {
    let mut place = path.to_owned();
    for _ in 0..walk::MAX_SYMLINKS {
        let about = place.symlink_metadata()?;
        let (owner, mode) = (about.uid(), about.permissions().mode() & 0o7777);
        if about.is_symlink() {
            if !walk::is_trusted(owner) {
                return Err(UnsafePath::Link { path: place, owner }.into());
            }
            let target = fs::read_link(&place)?;
            place = place.parent().unwrap_or(Path::new("")).join(target);
            continue;
        }
        return if !walk::is_trusted(owner) {
            Err(UnsafePath::Owner { path: place, owner }.into())
        } else if mode & 0o022 != 0 {
            Err(UnsafePath::Mode { path: place, mode }.into())
        } else if mode & 0o004 != 0 {
            Err(UnsafePath::Readable { path: place, mode }.into())
        } else {
            Ok(())
        };
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Whether this process could make files at `path`, or make it first; nothing is written to find out.
pub fn could_write(path: &Path) -> bool {
    let there = path.ancestors().find(|above| above.symlink_metadata().is_ok());
    there.is_some_and(at::may_write)
}

/// This process's user.
fn user() -> u32 {
    sys::user_and_group().0
}
