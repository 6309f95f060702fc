//! Resolution of a folder's path, part by part.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use super::UnsafePath;
use super::dir::user_id;
use crate::sys;
use crate::sys::at;

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

/// Opens the folder at `path`. With `require_own_folder`, it must be this user's and not a link.
pub(super) fn walk(
    path: &Path,
    options: WalkOptions,
    require_own_folder: bool,
) -> io::Result<OwnedFd> {
    let start_folder = |absolute: bool| if absolute { Path::new("/") } else { Path::new(".") };
    let mut resolved = start_folder(path.is_absolute()).to_owned();
    let mut parent: OwnedFd = open_start(&resolved)?;
    let mut remaining = reversed_names(path);
    let mut links = 0;
    while let Some(name) = remaining.pop() {
        let entry_path = resolved.join(&name);
        let entry = open_entry(&parent, &name, options.make)?;
        let metadata = File::from(entry.try_clone()?).metadata()?;
        let is_last = remaining.is_empty();
        if metadata.is_symlink() {
            if is_last && require_own_folder {
                return Err(UnsafePath::AnyLink { path: entry_path }.into());
            }
            check_link(&entry_path, &metadata)?;
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let target = at::read_link_at(parent.as_fd(), &name)?;
            if target.is_absolute() {
                start_folder(true).clone_into(&mut resolved);
                parent = open_start(&resolved)?;
            }
            remaining.extend(reversed_names(&target));
            continue;
        }
        if !metadata.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        if is_last && require_own_folder {
            check_owned_by_user(&entry_path, &metadata)?;
        } else if options.private {
            check_parent(&entry_path, &metadata)?;
        }
        (parent, resolved) = (entry, entry_path);
    }
    Ok(parent)
}

/// Opens `/`, or the working directory of this process.
fn open_start(path: &Path) -> io::Result<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    Ok(options.open(path)?.into())
}

/// Returns the parts of a path in reverse order.
fn reversed_names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<_> = names.collect();
    names.reverse();
    names
}

/// Opens the entry `name`, link or not; with `make`, makes a missing folder.
fn open_entry(parent: &OwnedFd, name: &OsStr, make: Option<u32>) -> io::Result<OwnedFd> {
    let open = || at::open_at(parent.as_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0);
    match (open(), make) {
        (Err(error), Some(mode)) if error.kind() == io::ErrorKind::NotFound => {
            match at::make_folder_at(parent.as_fd(), name, mode) {
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
    owner == user_id() || owner == 0 || root()
}

/// Checks that a link may be followed.
pub(super) fn check_link(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let owner = metadata.uid();
    if is_trusted(owner) {
        Ok(())
    } else {
        Err(UnsafePath::Link { path: path.to_owned(), owner }.into())
    }
}

/// Checks that a file or folder belongs to this user and that other users cannot write to it.
pub(super) fn check_owned_by_user(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let (owner, path) = (metadata.uid(), path.to_owned());
    if owner != user_id() {
        return Err(UnsafePath::Owner { path, owner }.into());
    }
    if is_writable_by_others(metadata) { Err(mode_error(path, metadata)) } else { Ok(()) }
}

/// Checks a parent of a private folder: other users must not be able to replace its entries.
///
/// In a folder with the sticky bit, only an entry's owner can do that.
fn check_parent(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let (owner, path) = (metadata.uid(), path.to_owned());
    if !is_trusted(owner) {
        return Err(UnsafePath::Owner { path, owner }.into());
    }
    let is_sticky = metadata.permissions().mode() & STICKY != 0;
    if is_writable_by_others(metadata) && !is_sticky {
        Err(mode_error(path, metadata))
    } else {
        Ok(())
    }
}

fn mode_error(path: PathBuf, metadata: &Metadata) -> io::Error {
    UnsafePath::Mode { path, mode: metadata.permissions().mode() & 0o7777 }.into()
}

/// Returns true if other users may write: all users, or a group other than root's and this user's.
fn is_writable_by_others(metadata: &Metadata) -> bool {
    let mode = metadata.permissions().mode();
    let (_, group) = sys::user_and_group();
    let is_group_open = mode & 0o020 != 0 && ![0, group].contains(&metadata.gid());
    mode & 0o002 != 0 || is_group_open
}
