//! Makes the runs of a study in any world and returns their records.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use towpath_os::interrupt;
use towpath_result::{Record, Warning};
use towpath_scenario::World;
use towpath_sim::{Components, SimJob};
use towpath_study::runs::StudyRun;

use crate::emulated::{self, EmulatedRun};
use crate::error::{CliError, describe_error};
use crate::load::ScenarioText;
use crate::options::BackendChoice;
use crate::sim;
use crate::ui::Ui;
use crate::upload::Uploader;

/// Runner for a study.
#[derive(Debug)]
pub(crate) struct StudyRunner<'a> {
    /// Contents of files that scenarios name, by path relative to the scenario.
    traces: Vec<(String, String)>,
    /// Set when a run could not start; the next one would fail as well.
    has_failed: AtomicBool,
    /// Uploader with the name of the plan, if results are sent to a collector.
    upload: Option<(&'a Uploader, String)>,
    /// First reason why results are not uploaded.
    upload_error: Mutex<Option<CliError>>,
}

impl<'a> StudyRunner<'a> {
    pub(crate) fn new(traces: Vec<(String, String)>) -> Self {
        let upload_error = Mutex::new(None);
        Self { traces, has_failed: AtomicBool::new(false), upload: None, upload_error }
    }

    /// Also queues the result of each run for upload.
    pub(crate) fn with_uploader(self, uploader: Option<&'a Uploader>, plan: &str) -> Self {
        Self { upload: uploader.map(|uploader| (uploader, plan.to_owned())), ..self }
    }

    /// Sends the queued results. Failures are warnings.
    pub(crate) fn send_queued(&self, ui: &mut Ui) {
        let Some((uploader, _)) = &self.upload else { return };
        let error = self.upload_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(error) = error {
            ui.warn(&Warning {
                text: format!(
                    "not all results are uploaded: {}",
                    describe_error(&error.to_string())
                ),
                hint: error.hint(),
            });
        }
        uploader.send_or_warn(ui);
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
        let records = match run.row.world {
            World::Sim => simulate(run),
            World::Emu | World::Live => self.emulate(run),
        }?;
        if let Some((uploader, plan)) = &self.upload
            && let Err(error) = uploader.queue_study_run(plan, run, &records)
        {
            let mut first_error = self.upload_error.lock().unwrap_or_else(PoisonError::into_inner);
            first_error.get_or_insert(error);
        }
        Ok(records)
    }

    fn emulate(&self, run: &StudyRun) -> Result<Vec<Record>, String> {
        let text = ScenarioText {
            text: run.text.clone(),
            files: self.traces.clone(),
            seed: None,
            stacks: Vec::new(),
            remarks: BTreeMap::new(),
        };
        let emulated_run = EmulatedRun {
            scenario: text,
            transport: run.row.transport,
            repeat: 1,
            order: None,
            backend: BackendChoice::Auto,
            pcap: None,
        };
        let mut records = Vec::new();
        let status = emulated::run(&emulated_run, &mut |line| {
            records.extend(serde_json::from_str::<Record>(&line));
            Ok(())
        });
        let status = status.map_err(|error| {
            self.has_failed.store(true, Ordering::Relaxed);
            error.to_string()
        })?;
        if records.is_empty() {
            // Without any record the environment is to blame; the reason was already printed.
            self.has_failed.store(true, Ordering::Relaxed);
            return Err("the emulated run gave no result".to_owned());
        }
        if status.success() { Ok(records) } else { Err("the emulated run ended early".to_owned()) }
    }
}

/// Rejects runs that the world does not support, as `towpath run` does.
fn check(run: &StudyRun) -> Result<(), CliError> {
    let Ok(scenario) = &run.scenario else { return Ok(()) };
    let transports = [run.row.transport];
    match run.row.world {
        World::Sim => sim::check(scenario, &transports, &[]),
        World::Emu | World::Live => emulated::check(scenario, &transports),
    }
}

fn simulate(run: &StudyRun) -> Result<Vec<Record>, String> {
    let scenario = run.scenario.clone()?;
    let transport = run.row.transport;
    let job = SimJob {
        scenario: Arc::new(*scenario),
        transport,
        repeat: 1,
        trace: true,
        components: Components::default(),
    };
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
