//! Runs in progress: their newest records, in memory only.
//!
//! Nothing of them is stored. The result arrives at the end of the run like any other upload.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;
use towpath_report::unfinished_run;
use towpath_result::Meta;
use towpath_result::input::ReadBudget;
use towpath_result::store::{StoreError, StoredRun, read_run_within};
use utoipa::ToSchema;

use crate::entry::short;

/// Maximum number of runs in progress.
const MAX_RUNS: usize = 64;
/// Maximum size of a run's records. Beyond it, the older half is dropped.
const MAX_BYTES: usize = 2_000_000;
/// Maximum size of a run's conditions, which each request repeats.
const MAX_META_BYTES: usize = 200_000;
/// Memory for reading the records of one run.
const READ_BUDGET: u64 = 64_000_000;
/// Time without records after which a run counts as abandoned.
const SILENCE_US: i64 = 60_000_000;
/// Time for which the address of a finished run leads to its result.
const FORWARD_US: i64 = 600_000_000;

/// All runs in progress.
#[derive(Debug, Default)]
pub(crate) struct LiveRuns {
    runs: Mutex<BTreeMap<String, LiveRun>>,
}

#[derive(Debug)]
struct LiveRun {
    /// Identifier of the token that sends the records.
    uploader: String,
    facts: LiveFacts,
    /// The conditions as a line of JSON.
    meta_line: String,
    /// The records as lines of JSON.
    lines: String,
    /// Number of records received, which includes those that were dropped.
    received: u64,
    updated_us: i64,
    state: watch::Sender<LiveState>,
    /// Charts of a state, drawn for the first reader.
    drawn: Arc<Mutex<Option<(u64, String)>>>,
}

/// State of a run that readers wait for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LiveState {
    /// Number of records received.
    pub(crate) received: u64,
    /// Identifier of the stored run, after its upload.
    pub(crate) stored: Option<String>,
}

/// Facts of a run in progress.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LiveFacts {
    /// Identifier until the result is uploaded: 20 hexadecimal digits.
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) scenario: String,
    pub(crate) world: String,
    pub(crate) transport: String,
    /// Start of the run, in microseconds since 1970.
    pub(crate) started_us: i64,
    /// Planned duration of the traffic, in microseconds.
    pub(crate) duration_us: i64,
}

/// Reason why records of a run are not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error("the records are not valid: {0}")]
    Records(#[from] StoreError),
    #[error("the conditions have more than {MAX_META_BYTES} bytes")]
    LongMeta,
    #[error("another token sends the records of this run")]
    OtherToken,
    #[error("{MAX_RUNS} runs are in progress already")]
    Full,
    #[error("the result of this run is stored already")]
    Stored,
}

impl LiveFacts {
    /// Takes the facts from a run's conditions.
    pub(crate) fn of(id: &str, host: &str, meta: &Meta) -> Self {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Self {
            id: id.to_owned(),
            host: short(host),
            scenario: short(&meta.scenario),
            world: meta.world.to_string(),
            transport: meta.transport.to_string(),
            started_us: signed(meta.started_us.unwrap_or(0)),
            duration_us: signed(meta.duration_ns / 1_000),
        }
    }
}

impl LiveRuns {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LiveRun>> {
        // A panic elsewhere leaves complete values behind.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records to a run, which begins with the first ones.
    ///
    /// `text` has the conditions in its first line, and the records from number `first` on.
    pub(crate) fn add(
        &self,
        facts: LiveFacts,
        (uploader, first): (&str, u64),
        text: &str,
        now_us: i64,
    ) -> Result<(), LiveError> {
        let (meta_line, lines) = text.split_once('\n').unwrap_or((text, ""));
        if meta_line.len() > MAX_META_BYTES {
            return Err(LiveError::LongMeta);
        }
        let mut runs = self.lock();
        runs.retain(|_, run| !run.is_over(now_us));
        if runs.len() >= MAX_RUNS && !runs.contains_key(&facts.id) {
            return Err(LiveError::Full);
        }
        let run = runs.entry(facts.id.clone()).or_insert_with(|| LiveRun {
            uploader: uploader.to_owned(),
            facts,
            meta_line: meta_line.to_owned(),
            lines: String::new(),
            // The collector may have been restarted during the run.
            received: first,
            updated_us: now_us,
            state: watch::Sender::default(),
            drawn: Arc::default(),
        });
        if run.uploader != uploader {
            return Err(LiveError::OtherToken);
        }
        if run.state.borrow().stored.is_some() {
            return Err(LiveError::Stored);
        }
        run.push(lines, first);
        run.updated_us = now_us;
        Ok(())
    }

    /// Notes that the result of a run is stored, and tells its readers.
    pub(crate) fn finish(&self, id: &str, uploader: &str, stored: &str, now_us: i64) {
        let mut runs = self.lock();
        if let Some(run) = runs.get_mut(id).filter(|run| run.uploader == uploader) {
            run.lines = String::new();
            run.updated_us = now_us;
            run.state.send_modify(|state| state.stored = Some(stored.to_owned()));
        }
    }

    /// Drops all runs of a token.
    pub(crate) fn forget(&self, uploader: &str) {
        self.lock().retain(|_, run| run.uploader != uploader);
    }

    /// Returns the facts of all runs in progress, the oldest first.
    pub(crate) fn list(&self, now_us: i64) -> Vec<LiveFacts> {
        let runs = self.lock();
        let is_in_progress =
            |run: &&LiveRun| !run.is_over(now_us) && run.state.borrow().stored.is_none();
        let mut facts: Vec<_> =
            runs.values().filter(is_in_progress).map(|run| run.facts.clone()).collect();
        facts.sort_by(|a, b| (a.started_us, &a.id).cmp(&(b.started_us, &b.id)));
        facts
    }

    /// Returns a run in progress, or has ended a short time ago.
    pub(crate) fn run(&self, id: &str, now_us: i64) -> Option<LiveView> {
        let runs = self.lock();
        let run = runs.get(id).filter(|run| !run.is_over(now_us))?;
        Some(LiveView {
            facts: run.facts.clone(),
            text: format!("{}\n{}", run.meta_line, run.lines),
            state: run.state.subscribe(),
            drawn: Arc::clone(&run.drawn),
        })
    }
}

impl LiveRun {
    fn is_over(&self, now_us: i64) -> bool {
        let is_stored = self.state.borrow().stored.is_some();
        let limit_us = if is_stored { FORWARD_US } else { SILENCE_US };
        now_us.saturating_sub(self.updated_us) > limit_us
    }

    /// Adds lines, the first of which is the record `first`. Skips records that were received
    /// already, since a client repeats a request without a reply.
    fn push(&mut self, lines: &str, first: u64) {
        let skipped = usize::try_from(self.received.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut added = 0;
        for line in lines.lines().skip(skipped).filter(|line| !line.is_empty()) {
            self.lines.push_str(line);
            self.lines.push('\n');
            added += 1;
        }
        if self.lines.len() > MAX_BYTES {
            let middle = self.lines.as_bytes().iter().skip(MAX_BYTES / 2);
            let end = middle.take_while(|byte| **byte != b'\n').count();
            self.lines.drain(..=MAX_BYTES / 2 + end);
        }
        self.received = self.received.max(first).saturating_add(added);
        let received = self.received;
        self.state.send_modify(|state| state.received = received);
    }
}

/// A run in progress, as a reader sees it.
#[derive(Debug)]
pub(crate) struct LiveView {
    pub(crate) facts: LiveFacts,
    /// Conditions and records as lines of JSON.
    pub(crate) text: String,
    pub(crate) state: watch::Receiver<LiveState>,
    drawn: Arc<Mutex<Option<(u64, String)>>>,
}

impl LiveView {
    /// Draws the run so far. Takes a processor for some milliseconds, unless the state is drawn
    /// already.
    pub(crate) fn draw(&self) -> Result<String, LiveError> {
        let received = self.state.borrow().received;
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, markup)) = drawn.as_ref().filter(|(state, _)| *state == received) {
            return Ok(markup.clone());
        }
        let markup = unfinished_run(&read(&self.text)?);
        *drawn = Some((received, markup.clone()));
        Ok(markup)
    }
}

/// Reads conditions and records.
pub(crate) fn read(text: &str) -> Result<StoredRun, LiveError> {
    let run = read_run_within(text.as_bytes(), &ReadBudget::of(READ_BUDGET))?;
    Ok(StoredRun::new(run, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "{\"type\":\"meta\"}";

    fn facts(id: &str) -> LiveFacts {
        LiveFacts {
            id: id.to_owned(),
            host: "lab3".to_owned(),
            scenario: "two-links".to_owned(),
            world: "emu".to_owned(),
            transport: "mptcp".to_owned(),
            started_us: 1,
            duration_us: 1,
        }
    }

    fn lines(runs: &LiveRuns, id: &str, now_us: i64) -> Vec<String> {
        let text = runs.run(id, now_us).unwrap().text;
        text.lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_repeated_request_adds_nothing_and_a_gap_is_accepted() {
        let runs = LiveRuns::default();
        let add = |first, text: &str| {
            runs.add(facts("a"), ("token", first), &format!("{META}\n{text}"), 0)
        };
        add(0, "1\n2\n").unwrap();
        add(0, "1\n2\n3\n").unwrap();
        add(3, "").unwrap();
        add(7, "8\n").unwrap();
        assert_eq!(lines(&runs, "a", 0), ["1", "2", "3", "8"]);
        assert_eq!(runs.run("a", 0).unwrap().state.borrow().received, 8);
    }

    #[test]
    fn the_older_half_of_a_long_run_is_dropped() {
        let runs = LiveRuns::default();
        let line = "x".repeat(999);
        for first in 0..5_000 {
            let text = format!("{META}\n{line}");
            runs.add(facts("a"), ("token", first), &text, 0).unwrap();
        }
        let view = runs.run("a", 0).unwrap();
        assert!(view.text.len() <= MAX_BYTES + META.len() + 1, "{}", view.text.len());
        assert!(view.text.len() > MAX_BYTES / 3);
        assert!(lines(&runs, "a", 0).iter().all(|kept| *kept == line));
    }

    #[test]
    fn a_silent_run_ends_and_a_finished_one_leads_to_its_result() {
        let runs = LiveRuns::default();
        runs.add(facts("a"), ("token", 0), META, 0).unwrap();
        runs.add(facts("b"), ("token", 0), META, 0).unwrap();
        assert_eq!(runs.list(SILENCE_US).len(), 2);
        runs.finish("b", "other token", "stored", SILENCE_US);
        assert_eq!(runs.list(SILENCE_US).len(), 2);
        runs.finish("b", "token", "stored", SILENCE_US);
        assert_eq!(runs.list(SILENCE_US).len(), 1);
        assert!(runs.run("a", SILENCE_US + 1).is_none());
        let view = runs.run("b", SILENCE_US + FORWARD_US).unwrap();
        assert_eq!(view.state.borrow().stored.as_deref(), Some("stored"));
        assert!(runs.run("b", SILENCE_US + FORWARD_US + 1).is_none());
        let late = runs.add(facts("b"), ("token", 0), META, SILENCE_US);
        assert!(matches!(late, Err(LiveError::Stored)));
    }

    #[test]
    fn runs_belong_to_their_token_and_are_limited() {
        let runs = LiveRuns::default();
        for number in 0..MAX_RUNS {
            runs.add(facts(&number.to_string()), ("token", 0), META, 0).unwrap();
        }
        let other = runs.add(facts("0"), ("other", 0), META, 0);
        assert!(matches!(other, Err(LiveError::OtherToken)));
        let one_more = |now_us| runs.add(facts("more"), ("token", 0), META, now_us);
        assert!(matches!(one_more(SILENCE_US), Err(LiveError::Full)));
        one_more(SILENCE_US + 1).unwrap();
        let long = format!("{}\n", "m".repeat(MAX_META_BYTES + 1));
        let refused = runs.add(facts("more"), ("token", 0), &long, 0);
        assert!(matches!(refused, Err(LiveError::LongMeta)));
    }
}
