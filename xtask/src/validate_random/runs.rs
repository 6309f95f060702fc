//! Runner of the missing runs.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use super::scenario::ComparedScenario;
use super::store::{RunStore, StackUnderTest, StoredRunState};
use crate::Result;

/// Total rate of concurrent emulated runs for each processor; a single run may exceed it.
const MAX_MBPS_PER_PROCESSOR: f64 = 200.0;
/// Seconds beyond its traffic after which a run counts as hung and is killed.
const HANG_TIMEOUT_S: f64 = 120.0;

/// One run that must exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparisonJob<'a> {
    pub(super) scenario: &'a ComparedScenario,
    pub(super) side: StackUnderTest,
    /// Number of the run, from 0.
    pub(super) run: u32,
}

/// Runner of jobs with the towpath binary.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    pub(super) towpath: &'a Path,
    pub(super) store: &'a RunStore,
    /// Number of concurrent emulated runs.
    pub(super) jobs: usize,
}

/// Queue of jobs, with the capacity in use.
#[derive(Debug)]
struct JobQueue<'a> {
    queued: VecDeque<ComparisonJob<'a>>,
    /// Capacity for concurrent runs in Mbit/s.
    /// Rate of the running jobs in Mbit/s.
    capacity_mbps: f64,
    used_mbps: f64,
    started_jobs: usize,
    failure: Option<String>,
}

impl<'a> JobQueue<'a> {
    /// Returns the first job that fits the capacity, and its number; any job when none is running.
    fn next(&mut self) -> Option<(ComparisonJob<'a>, usize)> {
        let is_idle = self.used_mbps < 0.001;
        let fits_capacity = |job: &ComparisonJob<'_>| {
            is_idle || self.used_mbps + job.scenario.rate_mbps <= self.capacity_mbps
        };
        let index = self.queued.iter().position(fits_capacity)?;
        let job = self.queued.remove(index)?;
        self.used_mbps += job.scenario.rate_mbps;
        self.started_jobs += 1;
        Some((job, self.started_jobs))
    }
}

impl Runner<'_> {
    /// Runs those of `jobs` that are missing.
    ///
    /// Emulated jobs run first, as nothing may disturb them. Each scenario runs once before any
    /// runs again, so that after an interruption all have equally many runs.
    pub(super) fn run(&self, mut jobs: Vec<ComparisonJob<'_>>) -> Result<()> {
        jobs.retain(|job| {
            matches!(self.store.find(job.scenario, job.side, job.run), StoredRunState::Missing(_))
        });
        jobs.sort_by_key(|job| job.run);
        let (simulated, emulated): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.side == StackUnderTest::Simulated);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        self.run_parallel(emulated, self.jobs, MAX_MBPS_PER_PROCESSOR * processors as f64)?;
        self.run_parallel(simulated, processors, f64::INFINITY)
    }

    /// Runs all jobs, at most `max_parallel` concurrently and with at most `capacity_mbps` in
    /// total.
    fn run_parallel(
        &self,
        jobs: Vec<ComparisonJob<'_>>,
        max_parallel: usize,
        capacity_mbps: f64,
    ) -> Result<()> {
        let count = jobs.len();
        let queue = JobQueue {
            queued: jobs.into(),
            capacity_mbps,
            used_mbps: 0.0,
            started_jobs: 0,
            failure: None,
        };
        let (queue, changed) = (Mutex::new(queue), Condvar::new());
        let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        thread::scope(|scope| {
            for worker in 0..max_parallel.clamp(1, count.max(1)) {
                let (lock, changed) = (&lock, &changed);
                scope.spawn(move || {
                    let mut queue = lock();
                    while !queue.queued.is_empty() && queue.failure.is_none() {
                        let Some((job, number)) = queue.next() else {
                            queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                            continue;
                        };
                        drop(queue);
                        let result = self.run_until_not_degraded(job, worker, (number, count));
                        queue = lock();
                        queue.used_mbps -= job.scenario.rate_mbps;
                        if let Err(error) = result {
                            queue.failure = Some(error.to_string());
                        }
                        changed.notify_all();
                    }
                });
            }
        });
        let failure = lock().failure.take();
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Repeats one run until it is reliable or the attempts are exhausted.
    fn run_until_not_degraded(
        &self,
        job: ComparisonJob<'_>,
        worker: usize,
        progress: (usize, usize),
    ) -> Result<()> {
        let ComparisonJob { scenario, side, run } = job;
        while let StoredRunState::Missing(attempt) = self.store.find(scenario, side, run) {
            let result = self.run_job(job, worker)?;
            if result.is_none() && side == StackUnderTest::Kernel {
                // Not an error of our stack: the kernel run prints its reason, and is tried again
                // next time.
                print_progress(&format!("{} over the kernel has no result", scenario.name));
                return Ok(());
            }
            self.store.add(scenario, side, (run, attempt), result.as_deref())?;
            if side != StackUnderTest::Simulated {
                let (number, count) = progress;
                let note = match self.store.find(scenario, side, run) {
                    StoredRunState::Run(..) => "",
                    StoredRunState::Missing(_) => ", unreliable: again",
                    StoredRunState::LeftOut => ", unreliable: left out",
                };
                let name = &scenario.name;
                print_progress(&format!(
                    "{number}/{count} {name} {} run {}{note}",
                    side.name(),
                    run + 1
                ));
            }
        }
        Ok(())
    }

    /// Returns the file with the result of one run; `None` without a result.
    fn run_job(&self, job: ComparisonJob<'_>, worker: usize) -> Result<Option<PathBuf>> {
        let ComparisonJob { scenario, side, run } = job;
        let folder = self.store.temp_folder(worker)?;
        let file = folder.join(format!("{}.toml", scenario.name));
        let timeout_s = format!("{}", scenario.seconds + HANG_TIMEOUT_S);
        let mut command = Command::new("timeout");
        // Stay in the caller's process group, so that an interrupt reaches the child.
        command.arg("--foreground");
        command.arg(timeout_s);
        let text = match side {
            StackUnderTest::Kernel => scenario.text.clone(),
            StackUnderTest::Towpath => scenario.text_for_towpath(),
            StackUnderTest::Simulated => {
                // Emulated runs have priority on the processors.
                command.args(["nice", "-n", "19"]);
                scenario.text_of_run(run)
            }
        };
        fs::write(&file, text)?;
        let out_folder = folder.join("out");
        let (world, stack) = match side {
            StackUnderTest::Kernel => ("emu", "kernel"),
            StackUnderTest::Towpath => ("emu", "towpath"),
            StackUnderTest::Simulated => ("sim", "towpath"),
        };
        let output = command
            .arg(self.towpath)
            .args(["run", "-q", "--json", "--world", world, "--stack", stack, "--transport"])
            .args([&scenario.transport, "--seed", &(run + 1).to_string(), "-o"])
            .args([&out_folder, &file])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        let paths = fs::read_dir(&out_folder)
            .ok()
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()));
        let stored_result =
            paths.filter(|path| path.to_string_lossy().ends_with(".jsonl.zst")).last();
        if stored_result.is_none() {
            print_progress(String::from_utf8_lossy(&output.stderr).trim());
        }
        let result_file = folder.join("result");
        if let Some(stored_result) = &stored_result {
            fs::rename(stored_result, &result_file)?;
        }
        let _ = fs::remove_dir_all(&out_folder); // it may never have been created
        Ok(stored_result.map(|_| result_file))
    }
}

/// Prints a line of progress to standard error.
#[expect(clippy::print_stderr, reason = "progress; what is asked for goes to the standard output")]
fn print_progress(text: &str) {
    eprintln!("{text}");
}
