//! Makes the runs of a study in any world and returns their records.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use towpath_os::files::Dir;
use towpath_os::{interrupt, sandbox};
use towpath_result::Record;
use towpath_scenario::World;
use towpath_sim::SimJob;
use towpath_study::runs::StudyRun;

use crate::arguments::BackendChoice;
use crate::changes::ScenarioChanges;
use crate::error::CliError;
use crate::inner::{InnerJob, InnerTask};
use crate::run::{check_commands, check_quic};
use crate::sim;

/// Runner for a study.
#[derive(Debug)]
pub(crate) struct StudyRunner {
    /// Contents of files that scenarios name, by path relative to the scenario.
    traces: Vec<(String, String)>,
    /// Set when a run could not start; the next one would fail as well.
    has_failed: AtomicBool,
}

impl StudyRunner {
    pub(crate) fn new(traces: Vec<(String, String)>) -> Self {
        Self { traces, has_failed: AtomicBool::new(false) }
    }

    /// Returns true after an interrupt, or if the environment allows no run.
    pub(crate) fn is_stopped(&self) -> bool {
        interrupt::is_interrupted() || self.has_failed()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns the number of runs that may execute at once.
    pub(crate) fn threads(world: World, requested: Option<u32>) -> usize {
        match world {
            World::Sim => {
                let processors = || thread::available_parallelism().map_or(1, usize::from);
                requested.map_or_else(processors, |jobs| jobs as usize)
            }
            // Emulated runs share the processors with their emulators. The default is one; users
            // with slow links can raise it.
            World::Emu | World::Live => requested.map_or(1, |jobs| jobs as usize),
        }
    }

    /// Makes a run and returns its records. The error is the reason as text.
    pub(crate) fn execute(&self, run: &StudyRun) -> Result<Vec<Record>, String> {
        check(run).map_err(|error| match error.hint() {
            Some(hint) => format!("{error} ({hint})"),
            None => error.to_string(),
        })?;
        match run.row.world {
            World::Sim => simulate(run),
            World::Emu | World::Live => self.emulate(run),
        }
    }

    fn emulate(&self, run: &StudyRun) -> Result<Vec<Record>, String> {
        let folder = ScratchDir::new(run.index).map_err(|error| error.to_string())?;
        let scenario =
            folder.write_scenario(run, &self.traces).map_err(|error| error.to_string())?;
        let job = InnerJob {
            scenario: scenario.to_string_lossy().into_owned(),
            seed: None,
            stacks: Vec::new(),
            changes: ScenarioChanges::default(),
            backend: BackendChoice::Auto,
            pcap: None,
            task: InnerTask::Run { transport: run.row.transport, repeat: 1, order: None },
        };
        let arguments = job.arguments().map_err(|error| error.to_string())?;
        let spawned = sandbox::spawn(&arguments, Stdio::piped(), Stdio::piped());
        let mut child = spawned.map_err(|error| {
            self.has_failed.store(true, Ordering::Relaxed);
            format!("cannot start the emulator's process: {error}")
        })?;
        // Closing this pipe stops the run.
        let mut stop_pipe = child.stdin.take();
        let mut records = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            for line in BufReader::new(pipe).lines() {
                if interrupt::is_interrupted() {
                    drop(stop_pipe.take());
                }
                let line = line.map_err(|error| error.to_string())?;
                records.extend(serde_json::from_str(&line));
            }
        }
        let status = sandbox::wait(&mut child).map_err(|error| error.to_string())?;
        if records.is_empty() {
            // Without any record the environment is to blame; the reason was already printed.
            self.has_failed.store(true, Ordering::Relaxed);
            return Err("the emulated run gave no result".to_owned());
        }
        if status.success() { Ok(records) } else { Err("the emulated run was cut off".to_owned()) }
    }
}

/// Rejects runs that the world does not support, as `towpath run` does.
fn check(run: &StudyRun) -> Result<(), CliError> {
    let Ok(scenario) = &run.scenario else { return Ok(()) };
    let transports = [run.row.transport];
    match run.row.world {
        World::Sim => sim::check(scenario, &transports, &[]),
        World::Emu | World::Live => {
            check_commands(scenario).and_then(|()| check_quic(scenario, &transports))
        }
    }
}

fn simulate(run: &StudyRun) -> Result<Vec<Record>, String> {
    let scenario = run.scenario.clone()?;
    let transport = run.row.transport;
    let job = SimJob { scenario: Arc::new(*scenario), transport, repeat: 1, trace: true };
    let mut records = Vec::new();
    let report = towpath_sim::run(&job, Vec::new(), &mut |record| {
        if interrupt::is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        records.push(record.clone());
        Ok(())
    });
    report.map(|_| records).map_err(|error| error.to_string())
}

/// Temporary folder, removed on drop. It is new and only this user can write to it, so its files
/// stay unchanged.
struct ScratchDir(PathBuf);

impl ScratchDir {
    fn new(index: usize) -> io::Result<Self> {
        let name = format!("towpath-sweep-{}-{index}", std::process::id());
        let folder = Dir::scratch(&std::env::temp_dir(), &name);
        let folder = folder.map_err(|error| {
            let text = format!("{error} (TMPDIR=DIR names another place for temporary files)");
            io::Error::new(error.kind(), text)
        })?;
        Ok(Self(folder.path().to_owned()))
    }

    /// Writes the scenario as a file, with its traces around it.
    fn write_scenario(&self, run: &StudyRun, traces: &[(String, String)]) -> io::Result<PathBuf> {
        for (name, text) in traces {
            let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !Path::new(name).components().all(is_inside) {
                let reason = format!("the trace `{name}` is outside of the scenario's folder");
                return Err(io::Error::other(reason));
            }
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&self.0))?;
            fs::write(path, text)?;
        }
        let path = self.0.join("scenario.toml");
        fs::write(&path, &run.text)?;
        Ok(path)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // A failure leaves the folder among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
