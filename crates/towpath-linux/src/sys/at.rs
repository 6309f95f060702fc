//! Files by their names in an open folder, so that renaming folders meanwhile has no effect.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::{c_string, check};

/// Maximum length of a link's target (`PATH_MAX`).
const MAX_LINK_BYTES: usize = 4_096;

fn name_of(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Opens `name` in the folder `at`; `mode` applies to new files.
pub(crate) fn open_at(
    at: BorrowedFd<'_>,
    name: &OsStr,
    flags: libc::c_int,
    mode: u32,
) -> io::Result<OwnedFd> {
    let name = name_of(name)?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the name lives through the call; the mode is passed as variadic functions take it.
    let fd = check(unsafe {
        libc::openat(at.as_raw_fd(), name.as_ptr(), flags, libc::c_uint::from(mode))
    })?;
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the folder `name` in the folder `at`.
pub(crate) fn make_folder_at(at: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<()> {
    let name = name_of(name)?;
    // SAFETY: the name lives through the call.
    check(unsafe { libc::mkdirat(at.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// Renames the file `from` in the folder `at` to `to`, replacing any file of that name.
pub(crate) fn rename_at(at: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to, at) = (name_of(from)?, name_of(to)?, at.as_raw_fd());
    // SAFETY: both names live through the call.
    check(unsafe { libc::renameat(at, from.as_ptr(), at, to.as_ptr()) }).map(drop)
}

/// Removes the file or link `name` from the folder `at`.
pub(crate) fn remove_at(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = name_of(name)?;
    // SAFETY: the name lives through the call.
    check(unsafe { libc::unlinkat(at.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Returns the target of the link `name` in the folder `at`.
pub(crate) fn read_link_at(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<PathBuf> {
    let name = name_of(name)?;
    let mut bytes = vec![0_u8; MAX_LINK_BYTES];
    // SAFETY: the name lives through the call, and the kernel writes at most the buffer's length.
    let length = unsafe {
        libc::readlinkat(at.as_raw_fd(), name.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len())
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(length);
    Ok(OsString::from_vec(bytes).into())
}

/// Returns true if this process may write to `path`, as its effective user.
pub(crate) fn is_writable(path: &Path) -> bool {
    let Ok(path) = c_string(path) else { return false };
    let flags = libc::AT_EACCESS;
    // SAFETY: the path lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, flags) == 0 }
}
