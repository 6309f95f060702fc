//! Record of the applied changes, so that they can be reverted: one file for each network
//! namespace.
//!
//! The kernel loses all of them on a restart, so a file of an earlier boot is void.
//!
//! Root reverts what the file lists. So the file is read only where no other user can have written
//! it, and every change in it must be one that its owner makes (`check`). `towpath setup` and
//! `towpath doctor --fix` have a file each.

use std::env;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use towpath_os::files;
use towpath_os::files::{Dir, ReadAccess, UnsafePath};
use towpath_os::sys;

use super::change::ConfigChange;
use super::check::{ForeignChange, StateOwner, check};

/// `SO_NETNS_COOKIE` (Linux 5.14): identifies a network namespace uniquely until the next boot.
const SO_NETNS_COOKIE: i32 = 71;
const STATE_VERSION: u32 = 1;
/// Folder in which root keeps the file.
const STATE_DIR: &str = "/var/lib/towpath";
/// Limit on the file's size in bytes; a plan has about ten changes.
const MAX_STATE_BYTES: u64 = 1 << 20;

/// State file of one network namespace.
#[derive(Debug)]
pub struct SetupState {
    owner: StateOwner,
    path: PathBuf,
    content: StateFile,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StateFile {
    version: u32,
    boot: String,
    /// Changes in the order in which they were applied.
    changes: Vec<ConfigChange>,
}

/// Reason why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file could not be written, so nothing is changed.
    #[error("cannot save the changes in `{}`: {source}", path.display())]
    Write {
        /// Path of the state file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file could not be read or parsed.
    #[error("cannot read what was changed from `{}`: {source}", path.display())]
    Read {
        /// Path of the state file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file contains, or would contain, a change that its owner never makes.
    #[error("`{}`: {source}", path.display())]
    Foreign {
        /// Path of the state file.
        path: PathBuf,
        /// Description of the refused change.
        source: ForeignChange,
    },
    /// No folder is known for the file.
    #[error("no folder to keep what is changed in: neither HOME nor XDG_STATE_HOME is set")]
    NoFolder,
}

impl StateError {
    /// Returns a remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        let unsafe_path_hint =
            |source: &io::Error| UnsafePath::of(source).map(|path| path.hint().to_owned());
        let folder_hint = || "XDG_STATE_HOME=DIR names another place".to_owned();
        match self {
            Self::Write { source, .. } => {
                Some(unsafe_path_hint(source).unwrap_or_else(folder_hint))
            }
            Self::Read { source, .. } => unsafe_path_hint(source),
            Self::Foreign { .. } => Some(
                "nothing was changed; inspect the file, and rename it if it is obsolete".to_owned(),
            ),
            Self::NoFolder => Some(folder_hint()),
        }
    }
}

/// Returns the folder: `/var/lib/towpath` for root, else the user's state folder. Creates nothing.
pub fn folder() -> Result<PathBuf, StateError> {
    let root_folder = Path::new(STATE_DIR);
    // The process may be root of a user namespace only.
    if sys::user_and_group().0 == 0 && files::is_creatable(root_folder) {
        return Ok(root_folder.to_owned());
    }
    let path_variable =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user_folder = path_variable("XDG_STATE_HOME")
        .or_else(|| path_variable("HOME").map(|home| home.join(".local/state")));
    user_folder.map(|folder| folder.join("towpath")).ok_or(StateError::NoFolder)
}

/// Returns true if root has applied a plan here that was not reverted, as far as the file is
/// readable. Used for a remark only.
pub fn root_has_applied() -> bool {
    root_has_recorded(StateOwner::Setup)
}

/// Returns true if root's record of `owner` has changes that were not reverted, as far as the file
/// is readable. Used for a remark only.
pub fn root_has_recorded(owner: StateOwner) -> bool {
    let text = fs::read_to_string(Path::new(STATE_DIR).join(file_name(owner)));
    let file = text.ok().and_then(|text| serde_json::from_str::<StateFile>(&text).ok());
    file.is_some_and(|file| file.is_current_boot() && !file.changes.is_empty())
}

/// Returns the changes that this user or root recorded for `owner` here and that were not reverted.
///
/// Empty if no record can be read or trusted. Reads only.
pub fn recorded_changes(owner: StateOwner) -> Vec<ConfigChange> {
    let folders = folder().ok().into_iter().chain([PathBuf::from(STATE_DIR)]);
    let states = folders.filter_map(|folder| SetupState::open_for(owner, &folder).ok());
    let mut recorded = states.map(|state| state.content.changes);
    recorded.find(|changes| !changes.is_empty()).unwrap_or_default()
}

impl StateFile {
    fn empty() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { version: STATE_VERSION, boot: boot.trim().to_owned(), changes: Vec::new() }
    }

    fn is_current_boot(&self) -> bool {
        let empty = Self::empty();
        (self.version, &self.boot) == (empty.version, &empty.boot)
    }
}

impl SetupState {
    /// Opens the state of `towpath setup`, as [`SetupState::open_for`] does.
    pub fn open(folder: &Path) -> Result<Self, StateError> {
        Self::open_for(StateOwner::Setup, folder)
    }

    /// Opens the owner's file of the calling thread's network namespace in `folder`; a missing file
    /// is an empty state. The file must belong to this user. No other user may write to it, to the
    /// folder or to those above.
    pub fn open_for(owner: StateOwner, folder: &Path) -> Result<Self, StateError> {
        let name = file_name(owner);
        let path = folder.join(&name);
        let read =
            Dir::existing_private(folder).and_then(|dir| dir.read_private(name, MAX_STATE_BYTES));
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { owner, path, content: StateFile::empty() });
            }
            Err(source) => return Err(StateError::Read { path, source }),
        };
        let content = serde_json::from_slice::<StateFile>(&text)
            .map_err(|error| StateError::Read { path: path.clone(), source: error.into() })?;
        if !content.is_current_boot() {
            return Ok(Self { owner, path, content: StateFile::empty() });
        }
        check_all(owner, &path, &content.changes)?;
        Ok(Self { owner, path, content })
    }

    /// Returns the changes that were not reverted, in the order applied.
    pub fn changes(&self) -> &[ConfigChange] {
        &self.content.changes
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the stored changes with `changes`; removes the file with the last one.
    pub fn store(&mut self, changes: Vec<ConfigChange>) -> Result<(), StateError> {
        check_all(self.owner, &self.path, &changes)?;
        self.content.changes = changes;
        let result = if self.content.changes.is_empty() { self.remove() } else { self.write() };
        result.map_err(|source| StateError::Write { path: self.path.clone(), source })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn remove(&self) -> io::Result<()> {
        match Dir::existing_private(self.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.remove(file_name_in(&self.path)),
        }
    }

    /// Replaces the file atomically: the old one remains if the machine crashes in between.
    fn write(&self) -> io::Result<()> {
        let folder = Dir::private(self.folder(), ReadAccess::Umask)?;
        let text = serde_json::to_string_pretty(&self.content)?;
        folder.write_durably(file_name_in(&self.path), text.as_bytes(), ReadAccess::Umask)
    }
}

fn check_all(owner: StateOwner, path: &Path, changes: &[ConfigChange]) -> Result<(), StateError> {
    let foreign_error = |source| StateError::Foreign { path: path.to_owned(), source };
    changes.iter().try_for_each(|change| check(owner, change)).map_err(foreign_error)
}

/// Returns the file's name in its folder.
fn file_name(owner: StateOwner) -> String {
    let prefix = match owner {
        StateOwner::Setup => "setup",
        StateOwner::Doctor => "fix",
    };
    format!("{prefix}-{:x}.json", netns_cookie())
}

fn file_name_in(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// Returns the cookie of the calling thread's network namespace; 0 on kernels before 5.14.
fn netns_cookie() -> u64 {
    let mut bytes = [0; 8];
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::]:0"));
    let Ok(socket) = socket else { return 0 };
    match sys::get_option(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut bytes) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::change::StoredLimits;

    #[test]
    fn stored_state_is_read_back_and_removed_with_the_last_change() {
        let folder = env::temp_dir().join(format!("towpath-state-{}", std::process::id()));
        let mut state = SetupState::open(&folder).unwrap();
        assert_eq!(state.changes(), []);
        assert!(!folder.exists(), "reading makes nothing");
        let from = StoredLimits { subflows: 2, add_addr_accepted: 0 };
        let change = ConfigChange::Limits { from, to: StoredLimits { subflows: 8, ..from } };
        state.store(vec![change.clone()]).unwrap();
        assert_eq!(SetupState::open(&folder).unwrap().changes(), [change]);
        let text = fs::read_to_string(state.path()).unwrap();
        fs::write(state.path(), text.replace(&state.content.boot, "another start")).unwrap();
        assert_eq!(
            SetupState::open(&folder).unwrap().changes(),
            [],
            "the machine was started anew"
        );
        fs::write(state.path(), "{").unwrap();
        assert!(SetupState::open(&folder).is_err());
        let mut fixes = SetupState::open_for(StateOwner::Doctor, &folder).unwrap();
        fixes.store(vec![ConfigChange::Limits { from, to: from }]).unwrap();
        state.store(Vec::new()).unwrap();
        assert!(!state.path().exists() && fixes.path().exists(), "each owner has a file");
        fixes.store(Vec::new()).unwrap();
        state.store(Vec::new()).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
