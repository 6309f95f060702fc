//! Errors as people see them: what, where, what was expected, and a hint.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;
use towpath_linux::exec::ExecError;
use towpath_linux::files::Refusal;
use towpath_linux::lab::LabError;
use towpath_linux::live::LiveError;
use towpath_linux::run::RunError;
use towpath_linux::sandbox::SandboxError;
use towpath_linux::setup::SetupError;
use towpath_measure::scenario::ScenarioErrors;
use towpath_measure::store::StoreError;
use towpath_report::trace::CaptureError;
use towpath_study::reproduction::ReproductionError;
use towpath_study::sweep::SweepError;

/// Why a verb could not do its work. All of them are exit code 2.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Scenario(#[from] ScenarioErrors),
    #[error("no scenario `{name}`: there is neither a file nor a built-in one of that name")]
    UnknownScenario { name: String, hint: String },
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error, hint: Option<String> },
    #[error("`{}` is no result: {source}", path.display())]
    Result { path: PathBuf, source: StoreError },
    #[error("`{}` is no capture: {source}", path.display())]
    Capture { path: PathBuf, source: CaptureError },
    #[error("no result in `{}`", path.display())]
    NoResult { path: PathBuf },
    #[error("{what}")]
    Unavailable { what: String, hint: String },
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Sweep(SweepError),
    #[error(transparent)]
    Reproduction(ReproductionError),
    #[error("the simulated run failed: {0}")]
    Sim(String),
    #[error("cannot start the emulator's process: {0}")]
    Spawn(io::Error),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
    #[error("{0}")]
    Internal(String),
}

impl CliError {
    /// That a file or folder cannot be written; with the way out, where there is one to tell.
    pub(crate) fn unwritable(path: &Path, source: io::Error, hint: Option<&str>) -> Self {
        let hint = Refusal::of(&source).map(Refusal::hint).or(hint).map(str::to_owned);
        Self::Write { path: path.to_owned(), source, hint }
    }

    /// The way out, if there is one to tell.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownScenario { hint, .. } | Self::Unavailable { hint, .. } => {
                Some(hint.clone())
            }
            Self::Write { hint, .. } => hint.clone(),
            Self::Sandbox(error) => error.hint(),
            Self::Live(error) => error.hint(),
            Self::Sweep(error) => error.hint(),
            Self::NoResult { .. } => {
                Some("results are files named *.jsonl.zst, made by `towpath run`".to_owned())
            }
            Self::Exec(error) => error.hint(),
            Self::Setup(error) => error.hint(),
            Self::Capture { .. } => Some(
                "captures are files as tcpdump, Wireshark or `towpath run --pcap` write them"
                    .to_owned(),
            ),
            Self::Scenario(_)
            | Self::Read { .. }
            | Self::Result { .. }
            | Self::Run(_)
            | Self::Sim(_)
            | Self::Reproduction(_)
            | Self::Lab(_)
            | Self::Spawn(_)
            | Self::Print(_)
            | Self::Internal(_) => None,
        }
    }

    /// A closed pipe is no error (`towpath schema | head`), all else is usage or environment.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.is_broken_pipe() { ExitCode::SUCCESS } else { ExitCode::from(2) }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<SweepError> for CliError {
    fn from(error: SweepError) -> Self {
        // A plan's mistakes are laid out like a scenario's.
        if let SweepError::Plan(errors) = error {
            return Self::Scenario(errors);
        }
        Self::Sweep(error)
    }
}

impl From<ReproductionError> for CliError {
    fn from(error: ReproductionError) -> Self {
        match error {
            ReproductionError::Text(errors) => Self::Scenario(errors),
            error @ (ReproductionError::File(..) | ReproductionError::Points(..)) => {
                Self::Reproduction(error)
            }
        }
    }
}
