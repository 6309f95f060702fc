//! Processes of a run: this program again, with a job in JSON as its only argument.
//!
//! `outer` enters the namespaces and starts `inner`, which does the job (see
//! [`towpath_os::sandbox`]). The inner process prints the result on standard output.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use towpath_emu::failures::RunningCase;
use towpath_emu::lab::{LabError, LabJob, LabMessage, Program};
use towpath_emu::run::{PcapOptions, RunJob};
use towpath_host::preflight;
use towpath_host::preflight::Emulation;
use towpath_os::sandbox::EmulatorThread;
use towpath_os::{interrupt, sandbox};
use towpath_result::store::write_record;
use towpath_result::{RunOrder, Warning};
use towpath_scenario::{Scenario, Transport};

use crate::arguments::{BackendChoice, CaptureArguments};
use crate::changes::ScenarioChanges;
use crate::error::CliError;
use crate::files;
use crate::lab;
use crate::load::load_changed;
use crate::stacks::{self, StackChoice};
use crate::ui::{Ui, wrap};

const OUTER: &str = "__outer";
const INNER: &str = "__inner";
const PREFLIGHT_OUTER: &str = "__preflight_outer";
const PREFLIGHT_INNER: &str = "__preflight_inner";

/// Role of this process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessStage {
    Outer,
    Inner,
    PreflightOuter,
    PreflightInner,
}

/// Tests what emulated runs need; takes about 20 ms.
pub(crate) fn preflight() -> Emulation {
    Emulation::check(OsStr::new(PREFLIGHT_OUTER))
}

impl ProcessStage {
    pub(crate) fn parse(argument: &OsStr) -> Option<Self> {
        match argument.to_str() {
            Some(OUTER) => Some(Self::Outer),
            Some(INNER) => Some(Self::Inner),
            Some(PREFLIGHT_OUTER) => Some(Self::PreflightOuter),
            Some(PREFLIGHT_INNER) => Some(Self::PreflightInner),
            Some(_) | None => None,
        }
    }
}

/// A job as passed to the inner process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct InnerJob {
    /// Scenario as the user gave it: a file or a name.
    pub(crate) scenario: String,
    pub(crate) seed: Option<u64>,
    pub(crate) stacks: Vec<StackChoice>,
    pub(crate) changes: ScenarioChanges,
    pub(crate) backend: BackendChoice,
    #[serde(default)]
    pub(crate) pcap: Option<CaptureSpec>,
    pub(crate) task: InnerTask,
}

/// Folder and name prefix of captures, and the bytes kept of each packet (`None`: all).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CaptureSpec {
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) snap_bytes: Option<u32>,
}

impl CaptureSpec {
    pub(crate) fn of(arguments: &CaptureArguments, name: String) -> Option<Self> {
        let folder = arguments.pcap.clone()?;
        Some(Self { folder, name, snap_bytes: arguments.snap })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum InnerTask {
    Run {
        transport: Transport,
        repeat: u32,
        order: Option<RunOrder>,
    },
    /// Programs of a lab. Arguments that are not UTF-8 cannot be passed on and are refused earlier.
    Lab {
        /// Hosts and the command of each.
        programs: Vec<(usize, Vec<String>)>,
        /// Folder and file name of the result; `None` if the result is not stored.
        result: Option<(PathBuf, String)>,
    },
    /// Job for a broken network, whose scenario is the name of a situation.
    Failure {
        command: Vec<String>,
    },
}

impl InnerJob {
    /// Returns the arguments of the outer process.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>, CliError> {
        let text = serde_json::to_string(self).map_err(|e| CliError::Internal(e.to_string()))?;
        Ok(vec![OUTER.into(), text.into()])
    }

    fn load(&self) -> Result<Arc<Scenario>, CliError> {
        let mut scenario = load_changed(&self.scenario, &self.changes)?;
        scenario.run.seed = self.seed.unwrap_or(scenario.run.seed);
        stacks::choose(&mut scenario, &self.stacks)?;
        Ok(Arc::new(scenario))
    }
}

/// Runs the job of this process.
pub(crate) fn run_stage(
    stage: ProcessStage,
    job_json: Option<OsString>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let job_json = job_json.unwrap_or_default();
    match stage {
        ProcessStage::Outer => {
            interrupt::ignore();
            let status = sandbox::outer(&[INNER.into(), job_json])?;
            Ok(passed_on(status))
        }
        ProcessStage::Inner => {
            let thread = sandbox::inner()?;
            let text = job_json.to_str().unwrap_or_default();
            let inner_job: InnerJob =
                serde_json::from_str(text).map_err(|e| CliError::Internal(e.to_string()))?;
            run_job(&inner_job, thread, ui)
        }
        ProcessStage::PreflightOuter => {
            interrupt::ignore();
            preflight::outer(OsStr::new(PREFLIGHT_INNER))
                .map_or(Ok(()), |emulation| print_emulation(&emulation, ui))?;
            Ok(ExitCode::SUCCESS)
        }
        ProcessStage::PreflightInner => {
            print_emulation(&preflight::inner()?, ui)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_emulation(emulation: &Emulation, ui: &mut Ui) -> Result<(), CliError> {
    let text = serde_json::to_string(emulation).map_err(|e| CliError::Internal(e.to_string()))?;
    Ok(writeln!(ui.out, "{text}")?)
}

fn run_job(
    inner_job: &InnerJob,
    thread: EmulatorThread,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let backend = inner_job.backend.backend();
    let pcap = inner_job.pcap.clone().map(|CaptureSpec { folder, name, snap_bytes }| PcapOptions {
        folder,
        file_prefix: name,
        snaplen: snap_bytes,
    });
    match &inner_job.task {
        InnerTask::Run { transport, repeat, order: run_order } => {
            let scenario = inner_job.load()?;
            interrupt::catch();
            interrupt::catch_end_of_input().map_err(CliError::Spawn)?;
            let job = RunJob {
                scenario,
                transport: *transport,
                repeat: *repeat,
                backend,
                order: *run_order,
                pcap,
            };
            let mut out = io::BufWriter::new(io::stdout());
            towpath_emu::run::run(&job, thread, &mut |record| {
                write_record(&mut out, record)?;
                out.flush()
            })?;
            Ok(ExitCode::SUCCESS)
        }
        InnerTask::Lab { programs, result } => {
            let scenario = inner_job.load()?;
            let programs = programs.iter().map(|(host, command)| Program {
                host: *host,
                command: command.iter().map(OsString::from).collect(),
            });
            let lab = LabJob { scenario, programs: programs.collect(), backend, pcap };
            let on_message = &mut |message: LabMessage<'_>| match message {
                LabMessage::Map(text) | LabMessage::Note(text) => ui.progress(text),
                LabMessage::Warning(text) => {
                    ui.warn(&Warning { text: text.to_owned(), hint: None });
                }
                LabMessage::Hint(text) => ui.progress(&wrap("hint: ", text)),
            };
            let mut out =
                result.as_ref().map(|(folder, name)| create_result(folder, name)).transpose()?;
            let mut write =
                |record: &_| out.as_mut().map_or(Ok(()), |out| write_record(out, record));
            let status = match result {
                Some(_) => towpath_emu::lab::run_lab(&lab, thread, on_message, Some(&mut write))?,
                None => towpath_emu::lab::run_lab(&lab, thread, on_message, None)?,
            };
            Ok(passed_on(status))
        }
        InnerTask::Failure { command } => {
            let situation = lab::find(&inner_job.scenario)?;
            let case = RunningCase::open(situation, thread).map_err(LabError::from)?;
            ui.progress(&lab::introduction(situation));
            let command: Vec<_> = command.iter().map(OsString::from).collect();
            Ok(passed_on(case.run(&command)?))
        }
    }
}

/// Creates a result file in an existing folder.
fn create_result(folder: &Path, name: &str) -> Result<File, CliError> {
    let path = folder.join(name);
    let file = files::folder(folder)?.create(name);
    file.map_err(|source| CliError::unwritable(&path, source, None))
}

/// Returns a program's own exit code, or 128 plus the signal number, as shells do.
pub(crate) fn passed_on(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}
