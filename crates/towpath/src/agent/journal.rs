//! Journal of a device: rounds, runs, outcomes, and bytes of each day.
//!
//! The file has JSON Lines next to the state of the device. Each line is on disk before what it
//! announces begins, so that a killed process never repeats a run, and no outcome or byte is
//! lost. A torn last line did not happen. The state of the journal follows from its lines alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use towpath_campaign::{MissingReason, Outcome, OutcomeState};
use towpath_os::files::{Dir, ReadAccess};

use crate::error::CliError;
use crate::upload::DeviceFile;

/// Maximum size of the file in bytes.
const MAX_JOURNAL_BYTES: u64 = 64_000_000;
/// Number of lines after which the file is rewritten.
const MAX_LINES: usize = 2_000;
/// Number of days whose bytes are kept, with the current one.
const KEPT_DAYS: u64 = 2;
const DAY_US: u64 = 24 * 3_600_000_000;

/// Identity of a planned run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct RunKey {
    pub(super) campaign: String,
    pub(super) round: u32,
    pub(super) run: u32,
}

impl RunKey {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let Outcome { campaign, round, run, .. } = outcome;
        Self { campaign: campaign.clone(), round: *round, run: *run }
    }

    /// Returns the outcome of this run at a time in microseconds since 1970.
    pub(super) fn outcome(&self, state: OutcomeState, at_us: u64) -> Outcome {
        let Self { campaign, round, run } = self.clone();
        Outcome { campaign, round, run, state, at_us }
    }
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub(super) enum JournalEntry {
    /// A round is due. Its runs have the indices below `runs`.
    Round { campaign: String, round: u32, at_us: u64, until_us: u64, runs: u32 },
    /// Earlier rounds and this one are not handled any more.
    Handled { campaign: String, round: u32, at_us: u64 },
    /// A run begins, and may need this number of bytes.
    Begin {
        #[serde(flatten)]
        key: RunKey,
        day: u64,
        bytes: u64,
    },
    /// A run has an outcome, which replaces its reserved bytes by those that it needed.
    End { outcome: Outcome, bytes: u64 },
    /// An outcome waits for the collector. Replaces an earlier one of the same run.
    Pending { outcome: Outcome },
    /// The collector has these outcomes.
    Reported { runs: Vec<RunKey> },
    /// Bytes of a campaign on one day, in days since 1970.
    Used { campaign: String, day: u64, bytes: u64 },
}

/// Round that has begun, and has runs without an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenRound {
    pub(super) round: u32,
    pub(super) at_us: u64,
    /// End of the period: no run of the round starts at this time or later.
    pub(super) until_us: u64,
    /// Number of runs.
    pub(super) runs: u32,
    /// Runs that have an outcome.
    pub(super) done: BTreeSet<u32>,
}

/// Bytes that a run in progress may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reservation {
    day: u64,
    bytes: u64,
}

/// State that the lines of a journal describe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JournalState {
    /// Last round of each campaign that has begun, with its time.
    handled: BTreeMap<String, (u32, u64)>,
    open: BTreeMap<String, OpenRound>,
    running: BTreeMap<RunKey, Reservation>,
    used: BTreeMap<(u64, String), u64>,
    pending: BTreeMap<RunKey, Outcome>,
}

impl JournalState {
    /// Reads the lines of a journal. A last line without its end is ignored. Fails with the number
    /// of a line that is none.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, usize> {
        let mut state = Self::default();
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes.get(..complete).unwrap_or_default();
        for (number, line) in (1_usize..).zip(lines.split_inclusive(|byte| *byte == b'\n')) {
            let entry = serde_json::from_slice(line).map_err(|_| number)?;
            state.apply(entry);
        }
        Ok(state)
    }

    /// Applies one line.
    pub(super) fn apply(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Round { campaign, round, at_us, until_us, runs } => {
                self.handled.insert(campaign.clone(), (round, at_us));
                let done = BTreeSet::new();
                if runs > 0 {
                    self.open.insert(campaign, OpenRound { round, at_us, until_us, runs, done });
                }
            }
            JournalEntry::Handled { campaign, round, at_us } => {
                self.handled.insert(campaign, (round, at_us));
            }
            JournalEntry::Begin { key, day, bytes } => {
                self.running.insert(key, Reservation { day, bytes });
            }
            JournalEntry::End { outcome, bytes } => {
                let key = RunKey::of(&outcome);
                if let Some(reservation) = self.running.remove(&key) {
                    self.add_used(reservation.day, &key.campaign, bytes);
                }
                self.close(&key);
                self.pending.insert(key, outcome);
            }
            JournalEntry::Pending { outcome } => {
                let key = RunKey::of(&outcome);
                self.close(&key);
                self.pending.insert(key, outcome);
            }
            JournalEntry::Reported { runs } => {
                for key in runs {
                    self.close(&key);
                    self.pending.remove(&key);
                }
            }
            JournalEntry::Used { campaign, day, bytes } => self.add_used(day, &campaign, bytes),
        }
    }

    fn add_used(&mut self, day: u64, campaign: &str, bytes: u64) {
        let used = self.used.entry((day, campaign.to_owned())).or_default();
        *used = used.saturating_add(bytes);
    }

    /// Notes that a run has its outcome. The round is closed after the last one.
    fn close(&mut self, key: &RunKey) {
        if let Some(open) = self.open.get_mut(&key.campaign).filter(|open| open.round == key.round)
        {
            open.done.insert(key.run);
            if (0..open.runs).all(|run| open.done.contains(&run)) {
                self.open.remove(&key.campaign);
            }
        }
    }

    /// Returns the last round of a campaign that has begun, and its time.
    pub(super) fn handled(&self, campaign: &str) -> Option<(u32, u64)> {
        self.handled.get(campaign).copied()
    }

    /// Returns the rounds that have begun and have runs without an outcome.
    pub(super) fn open_rounds(&self) -> impl Iterator<Item = (&str, &OpenRound)> {
        self.open.iter().map(|(campaign, open)| (campaign.as_str(), open))
    }

    /// Returns a run that has begun and has no outcome, and its reserved bytes.
    pub(super) fn running(&self) -> Option<(&RunKey, u64)> {
        self.running.first_key_value().map(|(key, reservation)| (key, reservation.bytes))
    }

    /// Returns outcomes that the collector does not have.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Outcome> {
        self.pending.values()
    }

    /// Returns the bytes of all campaigns, or of one, on a day, with those of runs in progress.
    ///
    /// Bytes of the next day count as well: the clock may have been set back.
    pub(super) fn used(&self, day: u64, campaign: Option<&str>) -> u64 {
        let is_counted = |of_day: u64, name: &str| {
            (day..=day.saturating_add(1)).contains(&of_day)
                && campaign.is_none_or(|campaign| campaign == name)
        };
        let used = self.used.iter().filter(|((of_day, name), _)| is_counted(*of_day, name));
        let reserved = self
            .running
            .iter()
            .filter(|(key, reservation)| is_counted(reservation.day, &key.campaign));
        let bytes = used.map(|(_, bytes)| *bytes).chain(reserved.map(|(_, of_run)| of_run.bytes));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the fewest lines that describe this state. Bytes of days before `day` are left out,
    /// except for the last ones.
    fn entries(&self, day: u64) -> Vec<JournalEntry> {
        let mut entries = Vec::new();
        for (campaign, (round, at_us)) in &self.handled {
            let (campaign, round, at_us) = (campaign.clone(), *round, *at_us);
            entries.push(JournalEntry::Handled { campaign, round, at_us });
        }
        for (campaign, open) in &self.open {
            let OpenRound { round, at_us, until_us, runs, done } = open;
            let (round, at_us, until_us, runs) = (*round, *at_us, *until_us, *runs);
            let name = campaign.clone();
            entries.push(JournalEntry::Round { campaign: name, round, at_us, until_us, runs });
            let key = |run: &u32| RunKey { campaign: campaign.clone(), round, run: *run };
            entries.push(JournalEntry::Reported { runs: done.iter().map(key).collect() });
        }
        let pending = self.pending.values().cloned();
        entries.extend(pending.map(|outcome| JournalEntry::Pending { outcome }));
        for (key, Reservation { day, bytes }) in &self.running {
            entries.push(JournalEntry::Begin { key: key.clone(), day: *day, bytes: *bytes });
        }
        for ((of_day, campaign), bytes) in &self.used {
            if of_day + KEPT_DAYS > day {
                let (campaign, day, bytes) = (campaign.clone(), *of_day, *bytes);
                entries.push(JournalEntry::Used { campaign, day, bytes });
            }
        }
        entries
    }
}

/// Returns the day (UTC) of a time in microseconds since 1970, in days since 1970.
pub(super) const fn day_of(time_us: u64) -> u64 {
    time_us / DAY_US
}

/// Returns the line of an entry.
fn line(entry: &JournalEntry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

/// Journal in its file. Another process cannot use it at the same time.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    state: JournalState,
    /// Lock until the end of the process.
    _lock: File,
}

impl Journal {
    /// Opens the journal of a device, and makes it if it is missing. `now_us` is the time in
    /// microseconds since 1970.
    pub(super) fn open(device: &DeviceFile, now_us: u64) -> Result<Self, CliError> {
        let path = journal_path(device);
        let folder = device.existing_folder()?;
        let unwritable = |source| CliError::unwritable(&path, source, None);
        let lock = lock(device, &folder).map_err(unwritable)?.ok_or_else(already_running)?;
        let bytes = match folder.read_private(file_name(&path), MAX_JOURNAL_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            outcome => outcome,
        };
        let bytes = bytes.map_err(|source| CliError::Read { path: path.clone(), source })?;
        let state = JournalState::parse(&bytes).map_err(|line| CliError::Unavailable {
            what: format!("`{}` is damaged in line {line}", path.display()),
            hint: "remove it; the bytes of today are then not known any more".to_owned(),
        })?;
        let (file, lines) = rewrite(&folder, &path, &state, now_us).map_err(unwritable)?;
        Ok(Self { path, file, lines, state, _lock: lock })
    }

    /// Reads the state without a lock, to show it; the default without a file.
    pub(super) fn peek(device: &DeviceFile) -> JournalState {
        let path = journal_path(device);
        let bytes = device
            .existing_folder()
            .ok()
            .and_then(|folder| folder.read_private(file_name(&path), MAX_JOURNAL_BYTES).ok());
        bytes.and_then(|bytes| JournalState::parse(&bytes).ok()).unwrap_or_default()
    }

    pub(super) const fn state(&self) -> &JournalState {
        &self.state
    }

    /// Adds entries, which are on disk when this returns.
    pub(super) fn add(
        &mut self,
        entries: impl IntoIterator<Item = JournalEntry>,
    ) -> Result<(), CliError> {
        let entries: Vec<_> = entries.into_iter().collect();
        let write = |file: &mut File| {
            let lines = entries.iter().map(line).collect::<io::Result<Vec<_>>>()?.concat();
            file.write_all(&lines)?;
            file.sync_data()
        };
        let written = write(&mut self.file);
        written.map_err(|source| CliError::unwritable(&self.path, source, None))?;
        self.lines += entries.len();
        for entry in entries {
            self.state.apply(entry);
        }
        Ok(())
    }

    /// Rewrites a long file with the lines that still matter.
    pub(super) fn compact(&mut self, device: &DeviceFile, now_us: u64) -> Result<(), CliError> {
        if self.lines <= MAX_LINES {
            return Ok(());
        }
        let folder = device.existing_folder()?;
        let written = rewrite(&folder, &self.path, &self.state, now_us);
        let written = written.map_err(|source| CliError::unwritable(&self.path, source, None));
        (self.file, self.lines) = written?;
        Ok(())
    }
}

/// Removes the journal of a device that has left, and the folder of results if it is empty.
pub(super) fn remove(device: &DeviceFile) -> Result<(), CliError> {
    let folder = device.existing_folder()?;
    let lock = device.path().with_extension("lock");
    for path in [journal_path(device), lock] {
        let removed = folder.remove(file_name(&path));
        removed.map_err(|source| CliError::unwritable(&path, source, None))?;
    }
    let _ = fs::remove_dir(results_folder(device)); // results that were kept stay
    Ok(())
}

/// Fails if a running agent uses the state of the device.
pub(super) fn verify_unused(device: &DeviceFile) -> Result<(), CliError> {
    if !device.path().with_extension("lock").exists() {
        return Ok(());
    }
    let is_used = device
        .existing_folder()
        .is_ok_and(|folder| lock(device, &folder).is_ok_and(|lock| lock.is_none()));
    if is_used { Err(already_running()) } else { Ok(()) }
}

fn already_running() -> CliError {
    CliError::Unavailable {
        what: "another `towpath agent run` or `walk` uses the state of this device".to_owned(),
        hint: "stop it first, or join with another file: `towpath agent --config FILE`".to_owned(),
    }
}

/// Returns the folder of results next to the state, such as `agent-results`.
pub(super) fn results_folder(device: &DeviceFile) -> PathBuf {
    let mut name = device.path().file_stem().unwrap_or_default().to_owned();
    name.push("-results");
    device.path().with_file_name(name)
}

fn journal_path(device: &DeviceFile) -> PathBuf {
    device.path().with_extension("journal")
}

fn file_name(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// Locks the journal; `None` if another process has the lock.
fn lock(device: &DeviceFile, folder: &Dir) -> io::Result<Option<File>> {
    let path = device.path().with_extension("lock");
    let name = file_name(&path);
    let file = match File::options().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            folder.create_temp(name, ReadAccess::OwnerOnly)?.persist()?;
            // Of two processes that make the file at once, both must lock the later one.
            File::options().write(true).open(&path)?
        }
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Replaces the file by the lines of a state. Returns the open file and the number of its lines.
fn rewrite(
    folder: &Dir,
    path: &Path,
    state: &JournalState,
    now_us: u64,
) -> io::Result<(File, usize)> {
    let entries = state.entries(day_of(now_us));
    let mut file = folder.create_temp(file_name(path), ReadAccess::OwnerOnly)?;
    let lines = entries.iter().map(line).collect::<io::Result<Vec<_>>>()?.concat();
    file.file().write_all(&lines)?;
    file.file().sync_all()?;
    Ok((file.persist()?, entries.len()))
}

/// Returns the outcome state of a run without a result. The detail is one line of limited length.
pub(super) fn missing(reason: MissingReason, detail: &str) -> OutcomeState {
    OutcomeState::Missing { reason, detail: short(detail) }
}

/// Returns text for people as an outcome may contain it.
pub(super) fn short(text: &str) -> String {
    let mut text = towpath_result::format::text::clean(text.trim());
    while text.len() > towpath_campaign::MAX_REASON_BYTES {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(run: u32) -> RunKey {
        RunKey { campaign: "study".to_owned(), round: 4, run }
    }

    fn state_of(entries: &[JournalEntry]) -> JournalState {
        let lines: Vec<_> = entries.iter().map(|entry| line(entry).unwrap()).collect();
        JournalState::parse(&lines.concat()).unwrap()
    }

    fn end(run: u32, bytes: u64) -> JournalEntry {
        let state = OutcomeState::Stored { result: "ab".to_owned() };
        JournalEntry::End { outcome: key(run).outcome(state, 7), bytes }
    }

    fn entries() -> Vec<JournalEntry> {
        let campaign = "study".to_owned();
        vec![
            JournalEntry::Round { campaign, round: 4, at_us: 1, until_us: 9, runs: 3 },
            JournalEntry::Begin { key: key(1), day: 100, bytes: 1_000 },
            end(1, 600),
            JournalEntry::Begin { key: key(0), day: 101, bytes: 1_000 },
        ]
    }

    #[test]
    fn reserved_bytes_become_used_ones() {
        let state = state_of(&entries());
        assert_eq!((state.used(101, None), state.used(100, None)), (1_000, 1_600));
        assert_eq!((state.used(100, Some("study")), state.used(100, Some("other"))), (1_600, 0));
        assert_eq!(state.used(102, None), 0);
        assert_eq!(state.used(99, None), 600, "the clock was set back by a day");
        assert_eq!(state.running(), Some((&key(0), 1_000)));
        assert_eq!(state.pending().count(), 1);
    }

    #[test]
    fn a_torn_last_line_did_not_happen() {
        let mut bytes = line(&entries()[0]).unwrap();
        let whole = JournalState::parse(&bytes).unwrap();
        let second = line(&entries()[1]).unwrap();
        for length in 0..second.len() {
            let mut torn = bytes.clone();
            torn.extend(&second[..length]);
            assert_eq!(JournalState::parse(&torn), Ok(whole.clone()), "{length}");
        }
        bytes.extend(b"damaged\n");
        assert_eq!(JournalState::parse(&bytes), Err(2));
    }

    #[test]
    fn a_rewritten_journal_has_the_same_state() {
        let mut all = entries();
        for count in 0..=all.len() {
            let state = state_of(&all[..count]);
            assert_eq!(state_of(&state.entries(101)), state, "{count}");
        }
        all.extend([end(0, 0), end(2, 0)]);
        let state = state_of(&all);
        assert_eq!((state.open_rounds().count(), state.handled("study")), (0, Some((4, 1))));
        assert_eq!(state_of(&state.entries(101)), state);
        all.push(JournalEntry::Reported { runs: (0..3).map(key).collect() });
        let reported = state_of(&all);
        assert_eq!(reported.pending().count(), 0);
        let old = state_of(&reported.entries(500));
        assert_eq!((old.used(100, None), old.handled("study")), (0, Some((4, 1))));
    }
}
