//! The processes of a run: they enter the namespaces, then do the job.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use towpath_emu::Backend;
use towpath_emu::failures::RunningCase;
use towpath_emu::lab::{LabError, LabJob, LabMessage, Program};
use towpath_emu::run::{PcapOptions, RunError, RunJob};
use towpath_host::preflight;
use towpath_host::preflight::Emulation;
use towpath_os::files::UnsafePath;
use towpath_os::sandbox::{EmulatorThread, SandboxError};
use towpath_os::{interrupt, sandbox};
use towpath_result::Warning;
use towpath_result::store::write_record;

use crate::emulated::EmulatedRun;
use crate::error::CliError;
use crate::failure;
use crate::files;
use crate::load::load;
use crate::options::{BackendChoice, CaptureSpec};
use crate::process::{INNER, InnerJob, LabTask, PREFLIGHT_INNER, ProcessStage, passed_on};
use crate::ui::{Ui, wrap};

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
            let job: InnerJob =
                serde_json::from_str(text).map_err(|e| CliError::Internal(e.to_string()))?;
            run_job(&job, thread, ui)
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

fn run_job(job: &InnerJob, thread: EmulatorThread, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match job {
        InnerJob::Run => run(thread),
        InnerJob::Lab(task) => run_lab(task, thread, ui),
        InnerJob::Failure { name, command } => {
            let situation = failure::find(name)?;
            let case = RunningCase::open(situation, thread).map_err(LabError::from)?;
            ui.progress_lines(failure::introduction(situation).lines());
            let command: Vec<_> = command.iter().map(OsString::from).collect();
            Ok(passed_on(case.run(&command)?))
        }
    }
}

/// Makes the run that standard input describes, and prints its records.
fn run(thread: EmulatorThread) -> Result<ExitCode, CliError> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(CliError::Spawn)?;
    let run: EmulatedRun =
        serde_json::from_str(&line).map_err(|error| CliError::Internal(error.to_string()))?;
    interrupt::catch();
    interrupt::catch_end_of_input().map_err(CliError::Spawn)?;
    let job = RunJob {
        scenario: Arc::new(run.scenario.parse()?),
        transport: run.transport,
        repeat: run.repeat,
        backend: backend(run.backend),
        order: run.order,
        pcap: run.pcap.map(pcap_options),
    };
    let mut out = io::BufWriter::new(io::stdout());
    towpath_emu::run::run(&job, thread, &mut |record| {
        write_record(&mut out, record)?;
        out.flush()
    })?;
    Ok(ExitCode::SUCCESS)
}

fn run_lab(task: &LabTask, thread: EmulatorThread, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let programs = task.programs.iter().map(|(host, command)| Program {
        host: *host,
        command: command.iter().map(OsString::from).collect(),
    });
    let lab = LabJob {
        scenario: Arc::new(load(&task.scenario)?),
        programs: programs.collect(),
        backend: backend(task.backend),
        pcap: task.pcap.clone().map(pcap_options),
    };
    let on_message = &mut |message: LabMessage<'_>| match message {
        LabMessage::Map(text) => ui.progress_lines(text.trim_end_matches('\n').lines()),
        LabMessage::Note(text) => ui.progress(text),
        LabMessage::Warning(text) => ui.warn(&Warning { text: text.to_owned(), hint: None }),
        LabMessage::Hint(text) => ui.progress_lines(wrap("hint: ", text)),
    };
    let result = task.result.as_ref();
    let mut out = result.map(|(folder, name)| create_result(folder, name)).transpose()?;
    let mut write = |record: &_| out.as_mut().map_or(Ok(()), |out| write_record(out, record));
    let status = match result {
        Some(_) => towpath_emu::lab::run_lab(&lab, thread, on_message, Some(&mut write))?,
        None => towpath_emu::lab::run_lab(&lab, thread, on_message, None)?,
    };
    Ok(passed_on(status))
}

fn backend(choice: BackendChoice) -> Option<Backend> {
    match choice {
        BackendChoice::Auto => None,
        BackendChoice::Tun => Some(Backend::Tun),
        BackendChoice::Packet => Some(Backend::Packet),
    }
}

fn pcap_options(CaptureSpec { folder, name, snap_bytes }: CaptureSpec) -> PcapOptions {
    PcapOptions { folder, file_prefix: name, snaplen: snap_bytes }
}

impl From<SandboxError> for CliError {
    fn from(error: SandboxError) -> Self {
        let hint = error.hint();
        Self::failed(error, hint)
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        let hint = capture_hint(&error);
        Self::failed(error, hint)
    }
}

impl From<LabError> for CliError {
    fn from(error: LabError) -> Self {
        let capture_hint =
            if let LabError::Run(error) = &error { capture_hint(error) } else { None };
        let hint = capture_hint.or_else(|| error.hint());
        Self::failed(error, hint)
    }
}

/// Returns the hint for captures that cannot be written.
fn capture_hint(error: &RunError) -> Option<String> {
    let RunError::Capture(error) = error else { return None };
    let path_hint = UnsafePath::of(&error.source).map(UnsafePath::hint);
    Some(path_hint.unwrap_or("choose a writable folder").to_owned())
}

/// Creates a result file in an existing folder.
fn create_result(folder: &Path, name: &str) -> Result<File, CliError> {
    let path = folder.join(name);
    let file = files::folder(folder)?.create(name);
    file.map_err(|source| CliError::unwritable(&path, source, None))
}
