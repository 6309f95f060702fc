//! Folders that are held open, and the files in them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::sys;
use crate::sys::at;

use super::walk::{self, WalkOptions, walk};
use super::{MAX_TEMP_FILES, ReadAccess, UnsafePath};

/// Mode of ordinary files, before the process's umask.
const DEFAULT_MODE: u32 = 0o666;

impl ReadAccess {
    const fn file_mode(self) -> u32 {
        match self {
            Self::Umask => DEFAULT_MODE,
            Self::OwnerOnly => 0o600,
        }
    }
}

/// Folder that is held open, so that its path is resolved once.
#[derive(Debug)]
pub struct Dir {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
}

impl Dir {
    /// Opens the folder at `path`; makes it and its parents if they are missing.
    pub fn make(path: &Path) -> io::Result<Self> {
        Self::open_with(path, WalkOptions { make: Some(0o777), private: false })
    }

    /// Opens the folder at `path`, which must exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, WalkOptions { make: None, private: false })
    }

    /// Opens or makes a private folder.
    ///
    /// The folder itself belongs to this user and is not a symbolic link. Other users can neither
    /// write to it nor replace it.
    pub fn private(path: &Path, readers: ReadAccess) -> io::Result<Self> {
        let mode = if readers == ReadAccess::OwnerOnly { 0o700 } else { 0o755 };
        let folder = Self::open_with(
            &std::path::absolute(path)?,
            WalkOptions { make: Some(mode), private: true },
        )?;
        let proc_path = format!("/proc/self/fd/{}", folder.fd.as_raw_fd());
        let is_open_to_others = || {
            fs::metadata(&proc_path)
                .is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
        };
        if readers == ReadAccess::OwnerOnly && is_open_to_others() {
            // An older folder may have been open to readers.
            fs::set_permissions(&proc_path, Permissions::from_mode(0o700))?;
        }
        Ok(folder)
    }

    /// Opens a private folder, which must exist.
    pub fn existing_private(path: &Path) -> io::Result<Self> {
        Self::open_with(&std::path::absolute(path)?, WalkOptions { make: None, private: true })
    }

    fn open_with(path: &Path, options: WalkOptions) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), fd: walk(path, options, options.private)? })
    }

    fn open_child((path, parent): (&Path, &OwnedFd), name: &OsStr) -> io::Result<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let fd = at::open_at(parent.as_fd(), name, flags, 0)?;
        Ok(Self { path: path.join(name), fd })
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder in this one, named with the next free number.
    pub fn numbered(&self) -> io::Result<Self> {
        for number in 1..100_000 {
            let name = OsString::from(format!("{number:03}"));
            match at::make_folder_at(self.fd.as_fd(), &name, 0o777) {
                Ok(()) => return Self::open_child((&self.path, &self.fd), &name),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes a new, readable file that has its name at once. Replaces any file of this name.
    pub fn create(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.create_temp(name, ReadAccess::Umask)?.persist()
    }

    /// Makes a new file that gets its name when it is complete.
    pub fn create_temp(
        &self,
        name: impl AsRef<OsStr>,
        readers: ReadAccess,
    ) -> io::Result<TempFile<'_>> {
        let name = name.as_ref().to_owned();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        for number in 0..MAX_TEMP_FILES {
            let mut temp_name = OsString::from(".");
            temp_name.push(&name);
            temp_name.push(format!(".{}-{number}.part", std::process::id()));
            match at::open_at(self.fd.as_fd(), &temp_name, flags, readers.file_mode()) {
                Ok(file) => {
                    let file = File::from(file);
                    return Ok(TempFile { folder: self, name, temp_name: Some(temp_name), file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Writes `bytes` as a whole file, or leaves the old file unchanged.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create_temp(name, ReadAccess::Umask)?;
        file.file().write_all(bytes)?;
        file.persist().map(drop)
    }

    /// Writes durably, also if the machine fails meanwhile, and for limited readers.
    pub fn write_durably(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        readers: ReadAccess,
    ) -> io::Result<()> {
        let mut file = self.create_temp(name, readers)?;
        // A file that others can write would be refused on reading, so their write bits are
        // removed.
        let mode = file.file().metadata()?.permissions().mode() & 0o755;
        file.file().set_permissions(Permissions::from_mode(mode))?;
        file.file().write_all(bytes)?;
        file.file().sync_all()?;
        file.persist().map(drop)
    }

    /// Writes as [`write`](Self::write), with exactly these permissions instead of the umask's.
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

    /// Reads a file of this user that other users cannot write.
    ///
    /// Refuses symbolic links and files longer than `max_bytes` bytes.
    pub fn read_private(&self, name: impl AsRef<OsStr>, max_bytes: u64) -> io::Result<Vec<u8>> {
        let name = name.as_ref();
        // Opening a pipe would otherwise block until it has a writer.
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let path = self.path.join(name);
        let file = at::open_at(self.fd.as_fd(), name, flags, 0).map_err(|error| {
            let is_link = error.raw_os_error() == Some(libc::ELOOP);
            if is_link { UnsafePath::AnyLink { path: path.clone() }.into() } else { error }
        })?;
        let file = File::from(file);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(UnsafePath::Kind { path }.into());
        }
        walk::check_owned_by_user(&path, &metadata)?;
        let mut bytes = Vec::new();
        file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(UnsafePath::Length { path, max_bytes }.into());
        }
        Ok(bytes)
    }

    /// Removes a file or link; a missing one is not an error.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match at::remove_at(self.fd.as_fd(), name.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// File under a temporary name, removed on drop unless it is persisted.
#[derive(Debug)]
pub struct TempFile<'a> {
    folder: &'a Dir,
    name: OsString,
    /// Temporary name; `None` once the file has its final name.
    temp_name: Option<OsString>,
    file: File,
}

impl TempFile<'_> {
    /// Returns the open file, for writing.
    pub const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Renames the file to its final name, replacing any file of that name.
    pub fn persist(mut self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if let Some(temp_name) = &self.temp_name {
            at::rename_at(self.folder.fd.as_fd(), temp_name, &self.name)?;
            self.temp_name = None;
        }
        Ok(file)
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(temp_name) = &self.temp_name {
            let _ = at::remove_at(self.folder.fd.as_fd(), temp_name); // best effort
        }
    }
}

/// Checks a secret file that the user has named.
///
/// The file and every link to it must belong to this user or to root. No other user may write to
/// it, and it must not be readable by all.
pub fn check_secret(path: &Path) -> io::Result<()> {
    let mut current = path.to_owned();
    for _ in 0..walk::MAX_SYMLINKS {
        let metadata = current.symlink_metadata()?;
        let (owner, mode) = (metadata.uid(), metadata.permissions().mode() & 0o7777);
        if metadata.is_symlink() {
            if !walk::is_trusted(owner) {
                return Err(UnsafePath::Link { path: current, owner }.into());
            }
            let target = fs::read_link(&current)?;
            current = current.parent().unwrap_or(Path::new("")).join(target);
            continue;
        }
        return if !walk::is_trusted(owner) {
            Err(UnsafePath::Owner { path: current, owner }.into())
        } else if mode & 0o022 != 0 {
            Err(UnsafePath::Mode { path: current, mode }.into())
        } else if mode & 0o004 != 0 {
            Err(UnsafePath::Readable { path: current, mode }.into())
        } else {
            Ok(())
        };
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns true if this process could make files at `path`, or make `path` first. Writes nothing.
pub fn is_creatable(path: &Path) -> bool {
    let existing = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    existing.is_some_and(at::is_writable)
}

/// Returns the effective user ID of this process.
pub fn user_id() -> u32 {
    sys::user_and_group().0
}
