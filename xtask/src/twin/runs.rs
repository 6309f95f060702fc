//! Does the runs that are missing.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::scenario::Scenario;
use super::store::{Found, Side, Store};
use crate::Result;

/// Emulated runs of which each needs at most this many Mbit/s may be done beside each other.
const SMALL_MBPS: f64 = 100.0;
/// A run that takes so much longer than its traffic, in seconds, is ended: it hangs.
const PATIENCE: f64 = 120.0;

/// One run that is to be there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) side: Side,
    /// From 0.
    pub(super) run: u32,
}

/// How runs are done.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    pub(super) towpath: &'a Path,
    pub(super) store: &'a Store,
    /// Emulated runs at once.
    pub(super) jobs: usize,
}

impl Runner<'_> {
    /// Does those of `jobs` that are missing: emulated ones first, as nothing may disturb them, all of
    /// them once, then again, so that what was stopped has as many runs of each scenario.
    pub(super) fn run(&self, mut jobs: Vec<Job<'_>>) -> Result<()> {
        jobs.retain(|job| {
            matches!(self.store.find(job.scenario, job.side, job.run), Found::Missing(_))
        });
        jobs.sort_by_key(|job| job.run);
        let (simulated, emulated): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.side == Side::Simulated);
        let (small, large): (Vec<_>, Vec<_>) =
            emulated.into_iter().partition(|job| job.scenario.rate_mbps <= SMALL_MBPS);
        self.all(small, self.jobs)?;
        self.all(large, 1)?;
        self.all(simulated, thread::available_parallelism().map_or(1, usize::from))
    }

    /// Does all, so many at once.
    fn all(&self, jobs: Vec<Job<'_>>, at_once: usize) -> Result<()> {
        let count = jobs.len();
        let waiting: Mutex<VecDeque<_>> = Mutex::new(jobs.into_iter().enumerate().collect());
        let failure = Mutex::new(None);
        let lock = |value: Option<String>| {
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if value.is_some() {
                *failure = value;
            }
            failure.is_some()
        };
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        thread::scope(|scope| {
            for worker in 0..at_once.clamp(1, count.max(1)) {
                let (lock, next) = (&lock, &next);
                scope.spawn(move || {
                    while let Some((number, job)) = next() {
                        if lock(None) {
                            return;
                        }
                        if let Err(error) = self.until_good(job, worker, (number + 1, count)) {
                            lock(Some(error.to_string()));
                        }
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Does one run until it is not degraded, or was tried often enough.
    fn until_good(&self, job: Job<'_>, worker: usize, place: (usize, usize)) -> Result<()> {
        let Job { scenario, side, run } = job;
        while let Found::Missing(attempt) = self.store.find(scenario, side, run) {
            let result = self.result(job, worker)?;
            if result.is_none() && side == Side::Kernel {
                // Nothing of ours is to blame: it says why, and is tried again next time.
                say(&format!("{} over the kernel has no result", scenario.name));
                return Ok(());
            }
            self.store.add(scenario, side, (run, attempt), result.as_deref())?;
            if side != Side::Simulated {
                let (number, count) = place;
                let what = match self.store.find(scenario, side, run) {
                    Found::Run(..) => "",
                    Found::Missing(_) => ", degraded: again",
                    Found::LeftOut => ", degraded: left out",
                };
                let name = &scenario.name;
                say(&format!("{number}/{count} {name} {} run {}{what}", side.name(), run + 1));
            }
        }
        Ok(())
    }

    /// The file with the result of one run, if there is any.
    fn result(&self, job: Job<'_>, worker: usize) -> Result<Option<PathBuf>> {
        let Job { scenario, side, run } = job;
        let folder = self.store.workshop(worker)?;
        let file = folder.join(format!("{}.toml", scenario.name));
        let limit = format!("{}", scenario.seconds + PATIENCE);
        let mut command = Command::new("timeout");
        command.arg(limit);
        let text = match side {
            Side::Kernel | Side::Towpath => scenario.text.clone(),
            Side::Simulated => {
                // What is emulated has the processors first.
                command.args(["nice", "-n", "19"]);
                scenario.text_of_run(run)
            }
        };
        fs::write(&file, text)?;
        let out = folder.join("out");
        let (world, stack) = match side {
            Side::Kernel => ("emu", "kernel"),
            Side::Towpath => ("emu", "towpath"),
            Side::Simulated => ("sim", "towpath"),
        };
        let output = command
            .arg(self.towpath)
            .args(["run", "-q", "--json", "--world", world, "--stack", stack, "--transport"])
            .args([&scenario.transport, "--seed", &(run + 1).to_string(), "-o"])
            .args([&out, &file])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        let found = fs::read_dir(&out)
            .ok()
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()));
        let whole = found.filter(|path| path.to_string_lossy().ends_with(".jsonl.zst")).last();
        if whole.is_none() {
            say(String::from_utf8_lossy(&output.stderr).trim());
        }
        let kept = folder.join("result");
        if let Some(whole) = &whole {
            fs::rename(whole, &kept)?;
        }
        let _was_never_made = fs::remove_dir_all(&out);
        Ok(whole.map(|_| kept))
    }
}

/// Says how far it is.
#[expect(clippy::print_stderr, reason = "progress; what is asked for goes to the standard output")]
fn say(text: &str) {
    eprintln!("{text}");
}
