//! Resolution of a folder's path, part by part.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use super::{UnsafePath, effective_uid};
use crate::sys::{self, at};

/// Maximum number of links followed, as in the kernel.
pub(super) const MAX_SYMLINKS: u32 = 40;
const STICKY: u32 = 0o1000;

/// Options for resolving a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalkOptions {
    /// Mode for missing folders; `None` makes no folders.
    pub(super) make: Option<u32>,
    /// Set when other users must not be able to change or replace the folder.
    pub(super) private: bool,
}

/// Opens the folder at `path`. With `is_last_ours`, it must be this user's and not a link.
pub(super) fn walk(path: &Path, manner: WalkOptions, is_last_ours: bool) -> io::Result<OwnedFd> {
    let start = |absolute: bool| if absolute { Path::new("/") } else { Path::new(".") };
    let mut so_far = start(path.is_absolute()).to_owned();
    let mut at: OwnedFd = open_start(&so_far)?;
    let mut todo = parts(path);
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let here = so_far.join(&name);
        let part = open_part(&at, &name, manner.make)?;
        let about = File::from(part.try_clone()?).metadata()?;
        let is_last = todo.is_empty();
        if about.is_symlink() {
            if is_last && is_last_ours {
                return Err(UnsafePath::AnyLink { path: here }.into());
            }
            check_link(&here, &about)?;
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let target = at::read_link_at(at.as_fd(), &name)?;
            if target.is_absolute() {
                start(true).clone_into(&mut so_far);
                at = open_start(&so_far)?;
            }
            todo.extend(parts(&target));
            continue;
        }
        if !about.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        if is_last && is_last_ours {
            check_owned_by_user(&here, &about)?;
        } else if manner.private {
            check_parent(&here, &about)?;
        }
        (at, so_far) = (part, here);
    }
    Ok(at)
}

/// Opens `/`, or the working directory of this process.
fn open_start(path: &Path) -> io::Result<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    Ok(options.open(path)?.into())
}

/// Returns the parts of a path in reverse order.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut parts: Vec<_> = parts.collect();
    parts.reverse();
    parts
}

/// Opens the entry `name`, link or not; with `make`, makes a missing folder.
fn open_part(at: &OwnedFd, name: &OsStr, make: Option<u32>) -> io::Result<OwnedFd> {
    let open = || at::open_at(at.as_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0);
    match (open(), make) {
        (Err(error), Some(mode)) if error.kind() == io::ErrorKind::NotFound => {
            match at::make_folder_at(at.as_fd(), name, mode) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => open(),
            }
        }
        (other, _) => other,
    }
}

/// Returns true for an owner with full control here anyway: this user, or the owner of `/`.
///
/// The owner of `/` is root, also where a user namespace shows root under another number.
pub(super) fn is_trusted(owner: u32) -> bool {
    let root = || fs::metadata("/").is_ok_and(|root| root.uid() == owner);
    owner == effective_uid() || owner == 0 || root()
}

/// Checks that a link may be followed.
pub(super) fn check_link(path: &Path, about: &Metadata) -> io::Result<()> {
    let owner = about.uid();
    if is_trusted(owner) {
        Ok(())
    } else {
        Err(UnsafePath::Link { path: path.to_owned(), owner }.into())
    }
}

/// Checks that a file or folder belongs to this user and that other users cannot write to it.
pub(super) fn check_owned_by_user(path: &Path, about: &Metadata) -> io::Result<()> {
    let (owner, path) = (about.uid(), path.to_owned());
    if owner != effective_uid() {
        return Err(UnsafePath::Owner { path, owner }.into());
    }
    if is_writable_by_others(about) { Err(mode(path, about)) } else { Ok(()) }
}

/// Checks a parent of a private folder: other users must not be able to replace its entries.
///
/// In a folder with the sticky bit, only an entry's owner can do that.
fn check_parent(path: &Path, about: &Metadata) -> io::Result<()> {
    let (owner, path) = (about.uid(), path.to_owned());
    if !is_trusted(owner) {
        return Err(UnsafePath::Owner { path, owner }.into());
    }
    let is_sticky = about.permissions().mode() & STICKY != 0;
    if is_writable_by_others(about) && !is_sticky { Err(mode(path, about)) } else { Ok(()) }
}

fn mode(path: PathBuf, about: &Metadata) -> io::Error {
    UnsafePath::Mode { path, mode: about.permissions().mode() & 0o7777 }.into()
}

/// Returns true if other users may write: all users, or a group other than root's and this user's.
fn is_writable_by_others(about: &Metadata) -> bool {
    let mode = about.permissions().mode();
    let (_, group) = sys::user_and_group();
    let is_group_open = mode & 0o020 != 0 && ![0, group].contains(&about.gid());
    mode & 0o002 != 0 || is_group_open
}
