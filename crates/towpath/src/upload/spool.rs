//! Results on disk that wait until a collector has them.
//!
//! Each collector has a folder. A queued result has two files: `HASH.json`, written first, and
//! `HASH.jsonl.zst`. The second one commits: a result waits as long as that file exists. It appears
//! by a rename after all its bytes are on disk, and disappears after the collector's reply.
//!
//! A process may therefore end at any point, and several may send at once: a run then arrives
//! twice, which has no effect. A leftover of a process that ended is removed after a day.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_os::files::{Dir, ReadAccess};
use towpath_result::format::text::{clean, cut};
use towpath_result::upload::{MAX_COMPRESSED_BYTES, MAX_HOST_BYTES, content_hash};

use super::content::{inspect, to_unix_us};

/// Extension of a queued result.
const DATA: &str = "jsonl.zst";
/// File in a collector's folder that contains its address.
const URL_FILE: &str = "url";
/// Folder for runs that the collector has refused.
const REFUSED_FOLDER: &str = "refused";
/// Digits of a content hash.
const HASH_DIGITS: usize = 64;
/// Digits of an address's hash in a folder's name.
const FOLDER_DIGITS: usize = 16;
/// Age after which a leftover is removed.
const MAX_LEFTOVER_AGE: Duration = Duration::from_hours(24);
/// Maximum size of a description in bytes.
const MAX_JSON_BYTES: u64 = 16_000;
/// Maximum length of a file name in a description, in characters.
const MAX_FILE_CHARS: usize = 255;

/// Description of a queued result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueuedRun {
    /// Address of the collector.
    pub(super) url: String,
    /// Host that made the run.
    pub(super) host: String,
    /// Start of the run in microseconds since 1970; `None` if the result says it.
    pub(super) time_us: Option<u64>,
    pub(super) expanded_bytes: u64,
    pub(super) compressed_bytes: u64,
    /// Name of the file that was queued.
    pub(super) file: String,
    /// Time of queueing in microseconds since 1970.
    pub(super) queued_us: u64,
}

/// Folder of the results that wait, of all collectors.
#[derive(Debug)]
pub(super) struct Spool {
    root: PathBuf,
}

impl Spool {
    pub(super) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns `$XDG_STATE_HOME/towpath/spool`, else `~/.local/state/towpath/spool`; `None` without
    /// both.
    pub(super) fn default_root() -> Option<PathBuf> {
        let env_path = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        // The specification of XDG folders has relative paths ignored.
        let state = env_path("XDG_STATE_HOME").filter(|path| path.is_absolute());
        let state = state.or_else(|| Some(env_path("HOME")?.join(".local").join("state")));
        Some(state?.join("towpath").join("spool"))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Opens the queue of a collector; makes it if it is missing.
    pub(super) fn queue(&self, url: &str) -> io::Result<Queue> {
        let (digest, _) = content_hash(url.as_bytes())?;
        let path = self.root.join(digest.get(..FOLDER_DIGITS).unwrap_or(&digest));
        let folder = Dir::private(&path, ReadAccess::OwnerOnly)?;
        let queue = Queue::of(folder, url.to_owned());
        // The file is for people and `--list`; the name of the folder decides.
        if !path.join(URL_FILE).exists() {
            queue.write(&queue.folder, URL_FILE, format!("{url}\n").as_bytes())?;
        }
        Ok(queue)
    }

    /// Opens the queues of all collectors, sorted by address.
    pub(super) fn queues(&self) -> io::Result<Vec<Queue>> {
        let mut queues = Vec::new();
        for path in entries(&self.root)? {
            let Ok(folder) = Dir::existing_private(&path) else { continue };
            let Ok(url) = folder.read_private(URL_FILE, MAX_JSON_BYTES) else { continue };
            let url = String::from_utf8_lossy(&url).trim().to_owned();
            queues.push(Queue::of(folder, url));
        }
        queues.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(queues)
    }
}

/// Results that wait for one collector.
#[derive(Debug)]
pub(super) struct Queue {
    folder: Dir,
    url: String,
    /// Called before each change of a file.
    #[cfg(test)]
    pub(super) on_change: tests::ChangeHook,
}

impl Queue {
    #[cfg(not(test))]
    fn of(folder: Dir, url: String) -> Self {
        Self { folder, url }
    }

    #[cfg(test)]
    fn of(folder: Dir, url: String) -> Self {
        Self { folder, url, on_change: tests::ChangeHook::default() }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn refused_path(&self) -> PathBuf {
        self.path().join(REFUSED_FOLDER)
    }

    /// Adds a compressed result. It waits once this has returned.
    pub(super) fn add(&self, hash: &str, run: &QueuedRun, bytes: &[u8]) -> io::Result<()> {
        let json = serde_json::to_vec(run).map_err(io::Error::other)?;
        self.write(&self.folder, &format!("{hash}.json"), &json)?;
        self.write(&self.folder, &format!("{hash}.{DATA}"), bytes)
    }

    /// Returns the content hashes of all results that wait, in the order of queueing.
    pub(super) fn waiting(&self) -> io::Result<Vec<String>> {
        let mut hashes = Vec::new();
        for path in entries(self.path())? {
            if let Some(hash) = hash_of(&path, DATA) {
                let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
                hashes.push((self.description(&hash).map(|run| run.queued_us), modified, hash));
            }
        }
        hashes.sort();
        Ok(hashes.into_iter().map(|(.., hash)| hash).collect())
    }

    /// Reads a result; `None` if another process has sent it meanwhile.
    pub(super) fn read(&self, hash: &str) -> io::Result<Option<(QueuedRun, Vec<u8>)>> {
        let name = format!("{hash}.{DATA}");
        let bytes = match self.folder.read_private(&name, MAX_COMPRESSED_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let run = self.description(hash).unwrap_or_else(|| self.reconstruct(&name, &bytes));
        Ok(Some((run, bytes)))
    }

    /// Describes a result that waits, without reading it if its description exists.
    pub(super) fn describe(&self, hash: &str) -> io::Result<Option<QueuedRun>> {
        match self.description(hash) {
            Some(run) => Ok(Some(run)),
            None => Ok(self.read(hash)?.map(|(run, _)| run)),
        }
    }

    fn description(&self, hash: &str) -> Option<QueuedRun> {
        let bytes = self.folder.read_private(format!("{hash}.json"), MAX_JSON_BYTES).ok()?;
        let run: QueuedRun = serde_json::from_slice(&bytes).ok()?;
        Some(QueuedRun { host: clean_host(&run.host), ..run })
    }

    /// Returns the description of a result that has lost its own.
    fn reconstruct(&self, name: &str, bytes: &[u8]) -> QueuedRun {
        let facts = inspect(bytes).ok();
        let modified = fs::metadata(self.path().join(name)).and_then(|file| file.modified());
        let modified_us = modified.ok().and_then(to_unix_us);
        let has_start = facts.as_ref().is_some_and(|facts| facts.started_us.is_some());
        QueuedRun {
            url: self.url.clone(),
            host: super::host_name(),
            time_us: modified_us.filter(|_| !has_start),
            // The collector refuses a damaged result in any case.
            expanded_bytes: facts.map_or(0, |facts| facts.expanded_bytes),
            compressed_bytes: bytes.len() as u64,
            file: name.to_owned(),
            queued_us: modified_us.unwrap_or_default(),
        }
    }

    /// Removes a result that the collector has.
    pub(super) fn remove(&self, hash: &str) -> io::Result<()> {
        // The reverse order would leave a result without a description.
        for extension in [DATA, "json"] {
            self.change();
            self.folder.remove(format!("{hash}.{extension}"))?;
        }
        Ok(())
    }

    /// Moves a result that the collector refuses to the folder of those, next to the reason.
    pub(super) fn refuse(&self, hash: &str, reason: &str) -> io::Result<()> {
        self.change();
        let refused = Dir::private(&self.refused_path(), ReadAccess::OwnerOnly)?;
        self.write(&refused, &format!("{hash}.txt"), format!("{reason}\n").as_bytes())?;
        for extension in [DATA, "json"] {
            let name = format!("{hash}.{extension}");
            self.change();
            match fs::rename(self.path().join(&name), refused.path().join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the reason for which the collector has refused a result; `None` if it has not.
    pub(super) fn refusal(&self, id: &str) -> io::Result<Option<String>> {
        for path in entries(&self.refused_path())? {
            if hash_of(&path, "txt").is_some_and(|hash| hash.starts_with(id)) {
                let reason = fs::read_to_string(&path)?;
                return Ok(Some(reason.trim_end().to_owned()));
            }
        }
        Ok(None)
    }

    /// Removes what processes have left that ended while they wrote.
    pub(super) fn remove_leftovers(&self, now_us: u64) -> io::Result<()> {
        for path in entries(self.path())? {
            let is_description_only = hash_of(&path, "json")
                .is_some_and(|hash| !self.path().join(format!("{hash}.{DATA}")).exists());
            let is_unfinished = path.extension().is_some_and(|extension| extension == "part");
            let modified = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
            let age_us =
                modified.ok().and_then(to_unix_us).map(|time_us| now_us.saturating_sub(time_us));
            let is_old = age_us.is_some_and(|age_us| age_us > MAX_LEFTOVER_AGE.as_micros() as u64);
            if let Some(name) = path.file_name()
                && is_old
                && (is_description_only || is_unfinished)
            {
                self.change();
                self.folder.remove(name)?;
            }
        }
        Ok(())
    }

    /// Writes a file that exists with all its bytes or not at all.
    fn write(&self, folder: &Dir, name: &str, bytes: &[u8]) -> io::Result<()> {
        use io::Write as _;
        self.change();
        let mut file = folder.create_temp(name, ReadAccess::OwnerOnly)?;
        self.change();
        file.file().write_all(bytes)?;
        self.change();
        file.file().sync_all()?;
        file.persist().map(drop)
    }

    /// Marks a point at which tests end the process.
    #[cfg(test)]
    fn change(&self) {
        self.on_change.call();
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    const fn change(&self) {}
}

/// Returns a host's name as a header may contain it.
pub(super) fn clean_host(name: &str) -> String {
    let mut name = clean(name.trim());
    while name.len() > MAX_HOST_BYTES {
        name.pop();
    }
    name
}

/// Returns a file's name as a description contains it.
pub(super) fn file_text(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    cut(&clean(&name), MAX_FILE_CHARS)
}

/// Returns the paths in a folder; none if it is missing.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the content hash in a file's name with this extension.
fn hash_of(path: &Path, extension: &str) -> Option<String> {
    let hash = path.file_name()?.to_str()?.strip_suffix(extension)?.strip_suffix('.')?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (hash.len() == HASH_DIGITS && hash.bytes().all(is_digit)).then(|| hash.to_owned())
}

#[cfg(test)]
mod tests;
