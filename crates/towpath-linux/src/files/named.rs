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
    place: OutputTarget,
}

#[derive(Debug)]
enum OutputTarget {
    /// Name in a folder, for a regular file.
    File { folder: Dir, name: OsString, old: Option<Permissions> },
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
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let folder = Dir::open(above.unwrap_or(Path::new(".")))?;
            if is_procfs(&folder) {
                // Open descriptors of a process, such as /dev/stdout: no links of other users.
                let stream =
                    OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
                return Ok(Self { place: OutputTarget::Stream(stream) });
            }
            match lstat(&folder, &name)? {
                Some(about) if about.is_symlink() => {
                    check_link(&path, &about)?;
                    let target = at::read_link_at(folder.at.as_fd(), &name)?;
                    path = folder.path.join(target);
                }
                old => return Self::of(folder, name, old),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    fn of(folder: Dir, name: OsString, old: Option<Metadata>) -> io::Result<Self> {
        let Some(about) = old.as_ref().filter(|about| !about.is_file()) else {
            let old = old.map(|about| about.permissions());
            return Ok(Self { place: OutputTarget::File { folder, name, old } });
        };
        let kind = about.file_type();
        let path = folder.path.join(&name);
        if kind.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        if !(kind.is_fifo() || kind.is_char_device()) {
            return Err(UnsafePath::Kind { path }.into());
        }
        if !is_trusted(about.uid()) {
            return Err(UnsafePath::Owner { path, owner: about.uid() }.into());
        }
        let stream = at::open_at(folder.at.as_fd(), &name, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?;
        Ok(Self { place: OutputTarget::Stream(stream.into()) })
    }

    /// Makes an empty file that has its name at once, and opens it for writing.
    pub fn create(self) -> io::Result<File> {
        match &self.place {
            OutputTarget::Stream(file) => file.try_clone(),
            OutputTarget::File { folder, name, old } => {
                match self.begin().and_then(TempFile::persist) {
                    Err(error) if is_replace_refused(&error) => {
                        open_existing(folder, name, old.is_some(), error)
                    }
                    other => other,
                }
            }
        }
    }

    /// Writes `bytes` as a whole file, or leaves the old file unchanged.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        match &self.place {
            OutputTarget::Stream(file) => (&*file).write_all(bytes),
            OutputTarget::File { folder, name, old } => {
                let whole = || {
                    let mut file = self.begin()?;
                    file.file().write_all(bytes)?;
                    file.persist()
                };
                match whole() {
                    Err(error) if is_replace_refused(&error) => {
                        open_existing(folder, name, old.is_some(), error)?.write_all(bytes)
                    }
                    other => other.map(drop),
                }
            }
        }
    }

    /// Makes a new file that gets its name when it is complete.
    pub fn begin(&self) -> io::Result<TempFile<'_>> {
        let OutputTarget::File { folder, name, old } = &self.place else {
            return Err(io::Error::from_raw_os_error(libc::ESPIPE));
        };
        let mut file = folder.create_temp(name, ReadAccess::Umask)?;
        if let Some(old) = old {
            file.file().set_permissions(old.clone())?;
        }
        Ok(file)
    }
}

/// Returns the metadata of a name without following a link; `None` if it does not exist.
fn lstat(folder: &Dir, name: &OsStr) -> io::Result<Option<Metadata>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    match at::open_at(folder.at.as_fd(), name, flags, 0) {
        Ok(file) => File::from(file).metadata().map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if a folder is in `/proc`, whose links are not files.
fn is_procfs(folder: &Dir) -> bool {
    let own = format!("/proc/self/fd/{}", folder.at.as_raw_fd());
    std::fs::read_link(own).is_ok_and(|path: PathBuf| path.starts_with("/proc"))
}

/// Returns true if the file can be neither renamed over nor given a temporary neighbour.
///
/// Either this user must not change the folder, or the file alone is mounted there.
fn is_replace_refused(error: &io::Error) -> bool {
    let known = [libc::EACCES, libc::EPERM, libc::EROFS, libc::EBUSY];
    error.raw_os_error().is_some_and(|number| known.contains(&number))
}

/// Writes into the existing file; returns `refused` if it is another user's or has other names.
fn open_existing(
    folder: &Dir,
    name: &OsStr,
    is_there: bool,
    refused: io::Error,
) -> io::Result<File> {
    if !is_there {
        return Err(refused);
    }
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::from(at::open_at(folder.at.as_fd(), name, flags, 0)?);
    let about = file.metadata()?;
    if !about.is_file() || about.nlink() != 1 || !is_trusted(about.uid()) {
        return Err(refused);
    }
    file.set_len(0)?;
    Ok(file)
}
