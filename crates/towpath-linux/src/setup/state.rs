//! What was changed, kept so that it can be taken back: one file for each network namespace.
//!
//! The kernel forgets all of it when the machine starts anew, so a file of an earlier start is void.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::change::Change;
use crate::sys;

/// `SO_NETNS_COOKIE`: a number that no other network namespace of this start has or had.
const SO_NETNS_COOKIE: i32 = 71;
const VERSION: u32 = 1;
/// Where root keeps it.
const SHARED: &str = "/var/lib/towpath";

/// The file.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    version: u32,
    boot: String,
    /// In the order in which they were made.
    changes: Vec<Change>,
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
    /// There is no place for it.
    #[error("no folder to keep what is changed in: neither HOME nor XDG_STATE_HOME is set")]
    Nowhere,
}

/// The folder: `/var/lib/towpath` for root, else that of the user's programs.
pub fn folder() -> Result<PathBuf, StateError> {
    let shared = Path::new(SHARED);
    if sys::user_and_group().0 == 0 && may_write(shared) {
        return Ok(shared.to_owned());
    }
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    own.map(|folder| folder.join("towpath")).ok_or(StateError::Nowhere)
}

/// Whether root may really write there: it may be root of a user namespace only.
fn may_write(folder: &Path) -> bool {
    fs::create_dir_all(folder).is_ok() && tempfile(folder).is_ok()
}

fn tempfile(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    File::create(&probe)?;
    fs::remove_file(probe)
}

/// Whether root has applied something here that was not taken back, as far as that can be read.
pub fn root_has_applied() -> bool {
    State::open(Path::new(SHARED)).is_ok_and(|state| !state.changes().is_empty())
}

impl State {
    /// Opens the file of the calling thread's network namespace in `folder`; it need not exist yet.
    pub fn open(folder: &Path) -> Result<Self, StateError> {
        let path = folder.join(format!("setup-{:x}.json", cookie()));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let fresh = Content { version: VERSION, boot: boot.trim().to_owned(), changes: Vec::new() };
        let content = match fs::read_to_string(&path) {
            Ok(text) => {
                let content: Content = serde_json::from_str(&text).map_err(|error| {
                    StateError::Read { path: path.clone(), source: error.into() }
                })?;
                let of_now = (content.version, &content.boot) == (fresh.version, &fresh.boot);
                if of_now { content } else { fresh }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => fresh,
            Err(source) => return Err(StateError::Read { path, source }),
        };
        Ok(Self { path, content })
    }

    /// What was changed and not taken back, the first change first.
    pub fn changes(&self) -> &[Change] {
        &self.content.changes
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps `changes` in place of what was kept; the file goes when there is none.
    pub fn keep(&mut self, changes: Vec<Change>) -> Result<(), StateError> {
        self.content.changes = changes;
        let written = if self.content.changes.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            self.write()
        };
        written.map_err(|source| StateError::Write { path: self.path.clone(), source })
    }

    /// The old file stays until the new one is whole, also when the machine dies in between.
    fn write(&self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(&self.content)?;
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }
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
    use crate::setup::change::Limits;

    #[test]
    fn what_is_kept_is_read_back_and_goes_with_the_last_change() {
        let folder = env::temp_dir().join(format!("towpath-state-{}", std::process::id()));
        let mut state = State::open(&folder).unwrap();
        assert_eq!(state.changes(), []);
        let from = Limits { subflows: 2, add_addr_accepted: 0 };
        let change = Change::Limits { from, to: Limits { subflows: 8, ..from } };
        state.keep(vec![change.clone()]).unwrap();
        assert_eq!(State::open(&folder).unwrap().changes(), [change]);
        let text = fs::read_to_string(state.path()).unwrap();
        fs::write(state.path(), text.replace(&state.content.boot, "another start")).unwrap();
        assert_eq!(State::open(&folder).unwrap().changes(), [], "the machine was started anew");
        fs::write(state.path(), "{").unwrap();
        assert!(State::open(&folder).is_err());
        state.keep(Vec::new()).unwrap();
        assert!(!state.path().exists());
        state.keep(Vec::new()).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
