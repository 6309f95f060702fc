//! Processes of this program: a child gets its job from the command that starts it.
//!
//! `outer` enters the namespaces and starts `inner`, which does the job (see
//! [`towpath_os::sandbox`]).

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};
use towpath_host::preflight::Emulation;
use towpath_os::{interrupt, sandbox};

use crate::error::CliError;
use crate::options::{BackendChoice, CaptureSpec};

const OUTER: &str = "__outer";
pub(crate) const INNER: &str = "__inner";
const PREFLIGHT_OUTER: &str = "__preflight_outer";
pub(crate) const PREFLIGHT_INNER: &str = "__preflight_inner";

/// Role of this process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessStage {
    Outer,
    Inner,
    PreflightOuter,
    PreflightInner,
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

/// Job of an inner process, in JSON as the only argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum InnerJob {
    /// A run; the first line of standard input has its `EmulatedRun`, which may be long.
    Run,
    Lab(LabTask),
    /// Program in a network in which something is broken.
    Failure {
        name: String,
        command: Vec<String>,
    },
}

/// Programs in a scenario's network. Arguments that are not UTF-8 are refused earlier.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LabTask {
    /// Scenario as the user gave it: a file or a name.
    pub(crate) scenario: String,
    /// Hosts and the command of each.
    pub(crate) programs: Vec<(usize, Vec<String>)>,
    /// Folder and file name of the result; `None` if the result is not stored.
    pub(crate) result: Option<(PathBuf, String)>,
    pub(crate) backend: BackendChoice,
    pub(crate) pcap: Option<CaptureSpec>,
}

/// Starts the outer process of a job.
pub(crate) fn spawn(job: &InnerJob, stdin: Stdio, stdout: Stdio) -> Result<Child, CliError> {
    let text = serde_json::to_string(job).map_err(|error| CliError::Internal(error.to_string()))?;
    let arguments = [OsString::from(OUTER), text.into()];
    sandbox::spawn(&arguments, stdin, stdout).map_err(CliError::Spawn)
}

/// Does a job on this terminal and returns its exit code.
pub(crate) fn run_attached(job: &InnerJob) -> Result<ExitCode, CliError> {
    interrupt::ignore();
    let mut child = spawn(job, Stdio::inherit(), Stdio::inherit())?;
    Ok(passed_on(sandbox::wait(&mut child).map_err(CliError::Spawn)?))
}

/// Tests what emulated runs need; takes about 20 ms.
pub(crate) fn preflight() -> Emulation {
    Emulation::check(OsStr::new(PREFLIGHT_OUTER))
}

/// Returns a program's own exit code, or 128 plus the signal number, as shells do.
pub(crate) fn passed_on(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(2);
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}

/// Returns the words of a command as UTF-8, which a job needs.
pub(crate) fn texts(command: &[OsString]) -> Result<Vec<String>, CliError> {
    let words = command.iter().map(|word| word.to_str().map(str::to_owned));
    words.collect::<Option<_>>().ok_or_else(|| CliError::Unavailable {
        what: "the command is not UTF-8 text".to_owned(),
        hint: "write it to a script and run that".to_owned(),
    })
}
