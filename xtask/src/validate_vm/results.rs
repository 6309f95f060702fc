//! Results file of the virtual machine.
//!
//! Each run appends a line, so an interrupted call loses nothing and the next one continues.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Goodput;
use super::cases::{Setup, VmCase, VmJob};
use crate::Result;

/// Results of one kernel, and the file that keeps them.
#[derive(Debug)]
pub(super) struct Results {
    file: File,
    kernel: String,
    runs: Vec<VmRun>,
}

/// One line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VmRun {
    /// Release of the virtual machine's kernel.
    pub(super) kernel: String,
    pub(super) case: String,
    pub(super) transport: String,
    pub(super) how: String,
    /// Number of the run, from 0, for each case, transport and combination.
    number: u32,
    pub(super) goodput_mbps: f64,
    /// Longest stall in ms; `None` in lines of older versions of this program.
    #[serde(default)]
    pub(super) longest_stall_ms: Option<f64>,
}

impl Results {
    /// Reads the runs of all kernels from `path`; a missing file has none.
    pub(super) fn of_all(path: &Path) -> Result<Vec<VmRun>> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Reads the runs of `kernel` from `path`, and opens it for appending.
    ///
    /// A truncated line is not a result.
    pub(super) fn open(path: &Path, kernel: &str) -> Result<Self> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<VmRun>(line).ok());
        let runs = lines.filter(|run| run.kernel == kernel).collect();
        let mut file = File::options().create(true).append(true).open(path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file)?;
        }
        Ok(Self { file, kernel: kernel.to_owned(), runs })
    }

    /// Returns the jobs without a result.
    pub(super) fn missing(&self, jobs: Vec<VmJob>) -> Vec<VmJob> {
        let key =
            |run: &VmRun| (run.case.clone(), run.transport.clone(), run.how.clone(), run.number);
        let done: BTreeSet<_> = self.runs.iter().map(key).collect();
        let is_done = |job: &VmJob| done.contains(&key(&self.line(job, 0.0, None)));
        jobs.into_iter().filter(|job| !is_done(job)).collect()
    }

    /// Keeps the result of a job.
    pub(super) fn add(
        &mut self,
        job: &VmJob,
        goodput_mbps: f64,
        stall_ms: Option<f64>,
    ) -> Result<()> {
        let run = self.line(job, goodput_mbps, stall_ms);
        writeln!(self.file, "{}", serde_json::to_string(&run)?)?;
        self.runs.push(run);
        Ok(())
    }

    fn line(&self, job: &VmJob, goodput_mbps: f64, longest_stall_ms: Option<f64>) -> VmRun {
        VmRun {
            kernel: self.kernel.clone(),
            case: job.case.to_owned(),
            transport: job.transport.to_owned(),
            how: job.setup.name().to_owned(),
            number: job.run,
            goodput_mbps,
            longest_stall_ms,
        }
    }

    /// Returns the goodput of all runs of these cases.
    pub(super) fn goodput(&self, cases: &[&VmCase]) -> Goodput {
        let mut goodput = Goodput::new();
        for case in cases {
            for transport in ["tcp", "mptcp"] {
                for setup in Setup::VM_CASES {
                    let is_same_case = |run: &&VmRun| {
                        (&*run.case, &*run.transport, &*run.how)
                            == (case.name, transport, setup.name())
                    };
                    let runs: Vec<_> =
                        self.runs.iter().filter(is_same_case).map(|run| run.goodput_mbps).collect();
                    if !runs.is_empty() {
                        goodput.insert((case.name, transport, setup), runs);
                    }
                }
            }
        }
        goodput
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{self, CASES};
    use super::*;

    #[test]
    fn a_second_call_resumes_where_the_first_stopped() {
        let path = std::env::temp_dir().join(format!("towpath-results-{}", std::process::id()));
        let jobs = || cases::jobs(&CASES.iter().collect::<Vec<_>>(), 2);
        let all_jobs = jobs();
        let (first_job, second_job) = (&all_jobs[0], &all_jobs[1]);
        let mut results = Results::open(&path, "6.12").unwrap();
        results.add(first_job, 7.65, Some(41.0)).unwrap();
        // The second line was incomplete when the machine lost power.
        write!(results.file, "{{\"kernel\":\"6.1").unwrap();
        let mut results = Results::open(&path, "6.12").unwrap();
        let missing = results.missing(jobs());
        assert_eq!(missing.len() + 1, all_jobs.len());
        assert_eq!(missing[0].to_string(), second_job.to_string());
        results.add(second_job, 5.5, None).unwrap();
        let results = Results::open(&path, "6.12").unwrap();
        assert_eq!(
            results.goodput(&CASES.iter().collect::<Vec<_>>())
                [&(first_job.case, first_job.transport, first_job.setup)],
            [7.65]
        );
        assert_eq!(results.missing(jobs()).len() + 2, all_jobs.len());
        assert_eq!(Results::open(&path, "6.1").unwrap().missing(jobs()).len(), all_jobs.len());
        fs::remove_file(path).unwrap();
    }
}
