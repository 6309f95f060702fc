//! Execution of the fixes of a diagnosis, and their reversal.

use std::io::Write;
use std::process::ExitCode;

use towpath_doctor::{
    Diagnosis, DoctorOptions, Finding, FixAction, Observation, actions, diagnose, examine,
    observed_settings, plan_fixes,
};
use towpath_host::setup;
use towpath_host::setup::{
    ChangeError, ConfigHandles, HostState, SetupError, SetupPlan, SetupState, StateOwner,
    TrialError,
};

use crate::error::CliError;
use crate::setup::{count, revert};
use crate::ui::Ui;

/// Reason why `--fix` changed nothing.
#[derive(Debug, thiserror::Error)]
enum FixError {
    /// The kernel refused a change in the copy of this host.
    #[error(
        "`{command}` was refused in a network namespace with this host's configuration: {source}; \
         nothing was changed"
    )]
    Trial { command: String, source: ChangeError },
    /// The kernel refused a change of this host.
    #[error("`{command}` was refused: {source}; {after}")]
    Host { command: String, source: Box<ChangeError>, after: String },
}

impl From<FixError> for CliError {
    fn from(error: FixError) -> Self {
        let source = match &error {
            FixError::Trial { source, .. } => source,
            FixError::Host { source, .. } => source,
        };
        let hint = source.hint().map(str::to_owned);
        Self::failed(error, hint)
    }
}

const ROOT_HINT: &str =
    "this needs root (CAP_NET_ADMIN): run it with sudo, or paste the commands as root";

/// Prints the changes, tries them in a network namespace, makes and records them, and examines the
/// host again.
pub(super) fn apply_fixes(
    options: &DoctorOptions,
    observation: &Observation,
    report: &Diagnosis,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let actions = actions(observation);
    if actions.is_empty() {
        ui.progress(nothing_to_fix(report));
        return Ok(());
    }
    let mut handles = ConfigHandles::open().map_err(SetupError::from)?;
    let host = HostState::read(&mut handles).map_err(SetupError::from)?;
    let plan = plan_fixes(&actions, &host, &mut handles);
    if plan.steps.is_empty() {
        ui.progress("nothing to fix: another program has made these changes in the meantime");
        return Ok(());
    }
    for step in &plan.steps {
        ui.progress(&format!("# {}", step.reason));
        ui.progress(&format!("fixing: {}", step.change.command()));
    }
    if !setup::may_apply() {
        return Err(CliError::Unavailable {
            what: "`--fix` changes this host; nothing was changed".to_owned(),
            hint: ROOT_HINT.to_owned(),
        });
    }
    try_first(&host, observation, &plan, ui)?;
    let folder = setup::folder().map_err(SetupError::from)?;
    let mut state = SetupState::open_for(StateOwner::Doctor, &folder).map_err(SetupError::from)?;
    setup::apply(&plan, &mut handles, &mut state).map_err(|error| match error {
        SetupError::Refused { source, command, after, .. } => {
            CliError::from(FixError::Host { command, source, after })
        }
        other @ (SetupError::Netlink(_) | SetupError::Plan(_) | SetupError::State(_)) => {
            CliError::from(other)
        }
    })?;
    let changes = count(plan.steps.len(), "change");
    ui.progress(&format!("{changes} made; `towpath doctor --undo` reverts them"));
    print_result(options, report, &actions, ui);
    Ok(())
}

/// Returns the reason why no command can be run.
fn nothing_to_fix(report: &Diagnosis) -> &'static str {
    if report.findings.is_empty() {
        "nothing to fix: no problem was found"
    } else if report.findings.iter().any(|finding| !finding.tried.is_empty()) {
        "nothing to fix: every command for this host was tried before; the hints say what to do next"
    } else {
        "no setting, limit or endpoint of this host would fix this"
    }
}

/// Applies the changes to a copy of this host. Fails if the kernel refuses one; the host is
/// unchanged then.
fn try_first(
    host: &HostState,
    observation: &Observation,
    plan: &SetupPlan,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let changes: Vec<_> = plan.steps.iter().map(|step| step.change.clone()).collect();
    match setup::try_changes(host, &observed_settings(observation), &changes) {
        Ok(()) => {
            let commands = count(changes.len(), "command");
            ui.progress(&format!("tried in a network namespace: {commands} accepted"));
            Ok(())
        }
        Err(TrialError::Unavailable(reason)) => {
            ui.progress(&format!("not tried first: {reason}"));
            Ok(())
        }
        Err(TrialError::Refused { command, source }) => {
            Err(FixError::Trial { command, source }.into())
        }
    }
}

/// Examines the host again, and prints which of the problems are gone.
fn print_result(options: &DoctorOptions, report: &Diagnosis, actions: &[FixAction], ui: &mut Ui) {
    ui.progress("checking again");
    let after = diagnose(&examine(options));
    let is_in = |report: &Diagnosis, finding: &Finding| {
        let key = (finding.cause, &finding.location);
        report.findings.iter().any(|other| (other.cause, &other.location) == key)
    };
    let is_treated =
        |finding: &&Finding| actions.iter().any(|action| finding.fix.contains(&action.command));
    for finding in report.findings.iter().filter(is_treated) {
        let result = if is_in(&after, finding) { "remains" } else { "gone" };
        ui.progress(&format!("{result}: {} [{}]", finding.sentence, finding.cause));
    }
    for finding in after.findings.iter().filter(|finding| !is_in(report, finding)) {
        ui.progress(&format!("found now: {} [{}]", finding.sentence, finding.cause));
    }
    if !after.findings.is_empty() {
        ui.progress("run the doctor again for the details");
    }
}

/// Reverts the recorded changes of `--fix`.
pub(super) fn undo_fixes(as_json: bool, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let folder = setup::folder().map_err(SetupError::from)?;
    let mut state = SetupState::open_for(StateOwner::Doctor, &folder).map_err(SetupError::from)?;
    let has_record = !state.changes().is_empty() || setup::root_has_recorded(StateOwner::Doctor);
    if has_record && !setup::may_apply() {
        return Err(CliError::Unavailable {
            what: "undoing the fixes changes this host; nothing was changed".to_owned(),
            hint: "this needs root (CAP_NET_ADMIN): run it with sudo".to_owned(),
        });
    }
    if state.changes().is_empty() && !as_json {
        writeln!(ui.out, "# nothing to undo: nothing was fixed here since this machine started")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut handles = ConfigHandles::open().map_err(SetupError::from)?;
    revert(&mut handles, &mut state, as_json, ui)
}
