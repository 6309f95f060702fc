//! An output file whose name the user has spelled.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::walk::{check_link, is_trusted};
use super::{Dir, ReadAccess, TempFile, UnsafePath};
use crate::sys::at;

/// Maximum number of links followed, as in the kernel.
const MAX_SYMLINKS: u32 = 40;

/// Output file that the user named, resolved once.
#[derive(Debug)]
pub struct OutputFile {
    target: OutputTarget,
}

#[derive(Debug)]
enum OutputTarget {
    /// Name in a folder, for a regular file.
    File { folder: Dir, name: OsString, old_permissions: Option<Permissions> },
    /// Pipe, terminal or the like, which is written directly.
    Stream(File),
}

impl OutputFile {
    /// Resolves `path`; makes no file.
    pub fn find(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MAX_SYMLINKS {
            let Some(name) = path.file_name().map(OsStr::to_owned) else {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            };
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let folder = Dir::open(parent.unwrap_or(Path::new(".")))?;
            if is_procfs(&folder) {
                // Open descriptors of a process, such as /dev/stdout: no links of other users.
                let stream =
                    OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
                return Ok(Self { target: OutputTarget::Stream(stream) });
            }
            match lstat(&folder, &name)? {
                Some(metadata) if metadata.is_symlink() => {
                    check_link(&path, &metadata)?;
                    let target = at::read_link_at(folder.fd.as_fd(), &name)?;
                    path = folder.path.join(target);
                }
                metadata => return Self::from_metadata(folder, name, metadata),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    fn from_metadata(folder: Dir, name: OsString, old: Option<Metadata>) -> io::Result<Self> {
        let Some(metadata) = old.as_ref().filter(|metadata| !metadata.is_file()) else {
            let old_permissions = old.map(|metadata| metadata.permissions());
            return Ok(Self { target: OutputTarget::File { folder, name, old_permissions } });
        };
        let kind = metadata.file_type();
        let path = folder.path.join(&name);
        if kind.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        if !(kind.is_fifo() || kind.is_char_device()) {
            return Err(UnsafePath::Kind { path }.into());
        }
        if !is_trusted(metadata.uid()) {
            return Err(UnsafePath::Owner { path, owner: metadata.uid() }.into());
        }
        let stream = at::open_at(folder.fd.as_fd(), &name, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?;
        Ok(Self { target: OutputTarget::Stream(stream.into()) })
    }

    /// Makes an empty file that has its name at once, and opens it for writing.
    pub fn create(self) -> io::Result<File> {
        match &self.target {
            OutputTarget::Stream(file) => file.try_clone(),
            OutputTarget::File { folder, name, old_permissions } => {
                match self.begin().and_then(TempFile::persist) {
                    Err(error) if is_replace_refused(&error) => {
                        open_existing(folder, name, old_permissions.is_some(), error)
                    }
                    other => other,
                }
            }
        }
    }

    /// Writes `bytes` as a whole file, or leaves the old file unchanged.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        match &self.target {
            OutputTarget::Stream(file) => (&*file).write_all(bytes),
            OutputTarget::File { folder, name, old_permissions } => {
                let replace = || {
                    let mut file = self.begin()?;
                    file.file().write_all(bytes)?;
                    file.persist()
                };
                match replace() {
                    Err(error) if is_replace_refused(&error) => {
                        open_existing(folder, name, old_permissions.is_some(), error)?
                            .write_all(bytes)
                    }
                    other => other.map(drop),
                }
            }
        }
    }

    /// Makes a new file that gets its name when it is complete.
    pub fn begin(&self) -> io::Result<TempFile<'_>> {
        let OutputTarget::File { folder, name, old_permissions } = &self.target else {
            return Err(io::Error::from_raw_os_error(libc::ESPIPE));
        };
        let mut file = folder.create_temp(name, ReadAccess::Umask)?;
        if let Some(old_permissions) = old_permissions {
            file.file().set_permissions(old_permissions.clone())?;
        }
        Ok(file)
    }
}

/// Returns the metadata of a name without following a link; `None` if it does not exist.
fn lstat(folder: &Dir, name: &OsStr) -> io::Result<Option<Metadata>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    match at::open_at(folder.fd.as_fd(), name, flags, 0) {
        Ok(file) => File::from(file).metadata().map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if a folder is in `/proc`, whose links are not files.
fn is_procfs(folder: &Dir) -> bool {
    let proc_path = format!("/proc/self/fd/{}", folder.fd.as_raw_fd());
    std::fs::read_link(proc_path).is_ok_and(|path: PathBuf| path.starts_with("/proc"))
}

/// Returns true if the file can be neither renamed over nor given a temporary neighbour.
///
/// Either this user must not change the folder, or the file alone is mounted there.
fn is_replace_refused(error: &io::Error) -> bool {
    let errnos = [libc::EACCES, libc::EPERM, libc::EROFS, libc::EBUSY];
    error.raw_os_error().is_some_and(|number| errnos.contains(&number))
}

/// Writes into the existing file; returns `replace_error` if it is another user's or has other
/// names.
fn open_existing(
    folder: &Dir,
    name: &OsStr,
    exists: bool,
    replace_error: io::Error,
) -> io::Result<File> {
    if !exists {
        return Err(replace_error);
    }
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::from(at::open_at(folder.fd.as_fd(), name, flags, 0)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 || !is_trusted(metadata.uid()) {
        return Err(replace_error);
    }
    file.set_len(0)?;
    Ok(file)
}
