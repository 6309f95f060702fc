//! What was changed, kept so that it can be taken back: one file for each network namespace.
//!
//! The kernel forgets all of it when the machine starts anew, so a file of an earlier start is void.
//!
//! Whoever takes back what it says does so as root. So it is read only where nobody else can have
//! written it, and every change of it must be one that a plan can have made (`check`).

use std::env;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::change::ConfigChange;
use super::check::{ForeignChange, check};
use crate::files::{self, Dir, ReadAccess, UnsafePath};
use crate::sys;

/// `SO_NETNS_COOKIE`: a number that no other network namespace of this start has or had.
const SO_NETNS_COOKIE: i32 = 71;
const STATE_VERSION: u32 = 1;
/// Where root keeps it.
const STATE_DIR: &str = "/var/lib/towpath";
/// A state is shorter; a plan has some ten changes.
const MAX_STATE_BYTES: u64 = 1 << 20;

/// The file.
#[derive(Debug)]
pub struct SetupState {
    path: PathBuf,
    content: StateFile,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StateFile {
    version: u32,
    boot: String,
    /// In the order in which they were made.
    changes: Vec<ConfigChange>,
}

/// Why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be written, so nothing is changed.
    #[error("cannot keep what is changed in `{}`: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It cannot be read.
    #[error("cannot read what was changed from `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It says, or is to say, what no plan does.
    #[error("`{}`: {source}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ForeignChange,
    },
    /// There is no place for it.
    #[error("no folder to keep what is changed in: neither HOME nor XDG_STATE_HOME is set")]
    Nowhere,
}

impl StateError {
    /// The way out, if there is one to tell.
    pub fn hint(&self) -> Option<String> {
        let refused = |source: &io::Error| UnsafePath::of(source).map(|it| it.hint().to_owned());
        let elsewhere = || "XDG_STATE_HOME=FOLDER names another place".to_owned();
        match self {
            Self::Write { source, .. } => Some(refused(source).unwrap_or_else(elsewhere)),
            Self::Read { source, .. } => refused(source),
            Self::Foreign { .. } => {
                Some("look at it, and remove it if nobody needs it; nothing was changed".to_owned())
            }
            Self::Nowhere => Some(elsewhere()),
        }
    }
}

/// The folder: `/var/lib/towpath` for root, else that of the user's programs. Nothing is made.
pub fn folder() -> Result<PathBuf, StateError> {
    let shared = Path::new(STATE_DIR);
    // It may be root of a user namespace only.
    if sys::user_and_group().0 == 0 && files::could_write(shared) {
        return Ok(shared.to_owned());
    }
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    own.map(|folder| folder.join("towpath")).ok_or(StateError::Nowhere)
}

/// Whether root has applied something here that was not taken back, as far as that can be read.
/// Nothing is done with it but to say so.
pub fn root_has_applied() -> bool {
    let text = fs::read_to_string(Path::new(STATE_DIR).join(name()));
    let found = text.ok().and_then(|text| serde_json::from_str::<StateFile>(&text).ok());
    found.is_some_and(|found| found.is_of_now() && !found.changes.is_empty())
}

impl StateFile {
    fn fresh() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { version: STATE_VERSION, boot: boot.trim().to_owned(), changes: Vec::new() }
    }

    fn is_of_now(&self) -> bool {
        let fresh = Self::fresh();
        (self.version, &self.boot) == (fresh.version, &fresh.boot)
    }
}

impl SetupState {
    /// Opens the file of the calling thread's network namespace in `folder`; it need not exist yet.
    /// It must belong to this user, and nobody else may write to it, to the folder or above it.
    pub fn open(folder: &Path) -> Result<Self, StateError> {
        let path = folder.join(name());
        let read =
            Dir::existing_private(folder).and_then(|it| it.read_private(name(), MAX_STATE_BYTES));
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, content: StateFile::fresh() });
            }
            Err(source) => return Err(StateError::Read { path, source }),
        };
        let content = serde_json::from_slice::<StateFile>(&text)
            .map_err(|error| StateError::Read { path: path.clone(), source: error.into() })?;
        if !content.is_of_now() {
            return Ok(Self { path, content: StateFile::fresh() });
        }
        check_all(&path, &content.changes)?;
        Ok(Self { path, content })
    }

    /// What was changed and not taken back, the first change first.
    pub fn changes(&self) -> &[ConfigChange] {
        &self.content.changes
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps `changes` in place of what was kept; the file goes when there is none.
    pub fn store(&mut self, changes: Vec<ConfigChange>) -> Result<(), StateError> {
        check_all(&self.path, &changes)?;
        self.content.changes = changes;
        let written = if self.content.changes.is_empty() { self.remove() } else { self.write() };
        written.map_err(|source| StateError::Write { path: self.path.clone(), source })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn remove(&self) -> io::Result<()> {
        match Dir::existing_private(self.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.remove(name_in(&self.path)),
        }
    }

    /// The old file stays until the new one is whole, also when the machine dies in between.
    fn write(&self) -> io::Result<()> {
        let folder = Dir::private(self.folder(), ReadAccess::Umask)?;
        let text = serde_json::to_string_pretty(&self.content)?;
        folder.write_durably(name_in(&self.path), text.as_bytes(), ReadAccess::Umask)
    }
}

fn check_all(path: &Path, changes: &[ConfigChange]) -> Result<(), StateError> {
    let foreign = |source| StateError::Foreign { path: path.to_owned(), source };
    changes.iter().try_for_each(check).map_err(foreign)
}

/// The file's name in its folder.
fn name() -> String {
    format!("setup-{:x}.json", cookie())
}

fn name_in(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// The number of the calling thread's network namespace; kernels before 5.14 have none.
fn cookie() -> u64 {
    let mut bytes = [0; 8];
    let asked = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::]:0"));
    let Ok(socket) = asked else { return 0 };
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
        state.store(Vec::new()).unwrap();
        assert!(!state.path().exists());
        state.store(Vec::new()).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
