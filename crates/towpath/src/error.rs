//! Errors as users see them: what failed, where, what was expected, and a hint.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use towpath_os::files::UnsafePath;
use towpath_result::store::StoreError;
use towpath_scenario::ScenarioErrors;
use towpath_study::reproduction::ReproductionError;
use towpath_study::sweep::SweepError;
use towpath_trace::CaptureError;

/// Error that ends a command. All of them give exit code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Scenario(#[from] ScenarioErrors),
    /// Errors in a scenario that the command line has changed.
    #[error("{errors}")]
    ChangedScenario { errors: ScenarioErrors, hint: String },
    #[error("no scenario `{name}`: there is neither a file nor a built-in one of that name")]
    UnknownScenario { name: String, hint: String },
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error, hint: Option<String> },
    #[error("`{}` is not a result file: {source}", path.display())]
    Result { path: PathBuf, source: StoreError },
    #[error("`{}` is not a capture file: {source}", path.display())]
    Capture { path: PathBuf, source: CaptureError },
    #[error("no result in `{}`", path.display())]
    NoResult { path: PathBuf },
    #[error("{what}")]
    Unavailable { what: String, hint: String },
    /// Error of a crate that does the work of a verb, with its hint.
    #[error("{source}")]
    Failed { source: Box<dyn Error + Send + Sync>, hint: Option<String> },
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
    /// Returns the error for a file or folder that cannot be written, with a hint if one is known.
    pub(crate) fn unwritable(path: &Path, source: io::Error, hint: Option<&str>) -> Self {
        let hint = UnsafePath::of(&source).map(UnsafePath::hint).or(hint).map(str::to_owned);
        Self::Write { path: path.to_owned(), source, hint }
    }

    /// Returns the error for the failed work of a verb.
    pub(crate) fn failed(source: impl Error + Send + Sync + 'static, hint: Option<String>) -> Self {
        Self::Failed { source: Box::new(source), hint }
    }

    /// Returns a hint at the solution, if one is known.
    pub(crate) fn hint(&self) -> Option<String> {
        file_folder_hint(self).map(str::to_owned).or_else(|| self.variant_hint())
    }

    fn variant_hint(&self) -> Option<String> {
        match self {
            Self::UnknownScenario { hint, .. }
            | Self::Unavailable { hint, .. }
            | Self::ChangedScenario { hint, .. } => Some(hint.clone()),
            Self::Write { hint, .. } | Self::Failed { hint, .. } => hint.clone(),
            Self::Sweep(error) => error.hint(),
            Self::NoResult { .. } => {
                Some("results are files named *.jsonl.zst, written by `towpath run`".to_owned())
            }
            Self::Capture { .. } => Some(
                "captures are pcap or pcapng files, as written by tcpdump, Wireshark or `towpath run --pcap`"
                    .to_owned(),
            ),
            Self::Scenario(_)
            | Self::Read { .. }
            | Self::Result { .. }
            | Self::Sim(_)
            | Self::Reproduction(_)
            | Self::Spawn(_)
            | Self::Print(_)
            | Self::Internal(_) => None,
        }
    }

    /// Returns the exit code: success for a closed pipe (`towpath schema | head`), else 2.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.is_broken_pipe() { ExitCode::SUCCESS } else { ExitCode::from(2) }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Returns the hint for a file that was taken for a folder, or a folder for a file.
fn file_folder_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut source = Some(error);
    while let Some(error) = source {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::NotADirectory) => {
                return Some("this is a file: give a folder");
            }
            Some(io::ErrorKind::IsADirectory) => {
                return Some("this is a folder: give a file in it");
            }
            _ => source = error.source(),
        }
    }
    None
}

/// Describes an I/O error without the system's "(os error 20)".
pub(crate) fn describe_error(text: &str) -> String {
    let Some((before, after)) = text.split_once(" (os error ") else { return text.to_owned() };
    let Some((_, after)) = after.split_once(')') else { return text.to_owned() };
    let (prefix, reason) = before
        .rsplit_once(": ")
        .map_or(("", before), |(_, reason)| before.split_at(before.len() - reason.len()));
    let mut letters = reason.chars();
    let reason: String =
        letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
    format!("{prefix}{reason}{}", describe_error(after))
}

impl From<SweepError> for CliError {
    fn from(error: SweepError) -> Self {
        // Mistakes in a plan have the same layout as those in a scenario.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_errors_are_translated_to_our_messages() {
        let describe = describe_error;
        assert_eq!(
            describe("cannot read `a: b`: Not a directory (os error 20)"),
            "cannot read `a: b`: not a directory"
        );
        assert_eq!(describe("No such file or directory (os error 2)"), "no such file or directory");
        assert_eq!(describe("`x`: Is a directory (os error 21), or"), "`x`: is a directory, or");
        assert_eq!(describe("no scenario `X`: there is none"), "no scenario `X`: there is none");
    }

    #[test]
    fn a_file_instead_of_a_directory_always_gets_a_hint() {
        let not_a_directory = || io::Error::from(io::ErrorKind::NotADirectory);
        let read = CliError::Read { path: "x".into(), source: not_a_directory() };
        let sweep = CliError::Sweep(SweepError::File("x".into(), not_a_directory()));
        for error in [read, sweep] {
            assert!(error.hint().unwrap().contains("give a folder"), "{error}");
        }
        let source = io::Error::from(io::ErrorKind::IsADirectory);
        let capture = CliError::Capture { path: "x".into(), source: CaptureError::Io(source) };
        assert!(capture.hint().unwrap().contains("give a file in it"), "{capture}");
    }
}
