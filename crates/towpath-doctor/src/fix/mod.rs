//! Execution of the safe commands of a diagnosis.
//!
//! A command of a finding is text to be pasted. The executed action is parsed from that same text
//! (`fix_step`), so that nothing is done that was not shown. Only a few settings, limits and endpoints
//! of this host are changed: nothing that could disconnect it. The source is a `LocalCommand`, which
//! never depends on another host's report.
//!
//! [`plan_fixes`] returns the changes with their values before, which `towpath_host::setup` tries,
//! applies, records and reverts.

mod plan;

use towpath_os::sysctl::Sysctl;

use super::fix_step::FixStep;
use super::local_findings::LocalFindings;
use super::observation::Observation;
use super::rules::diagnose;

pub use plan::plan_fixes;

/// One command of a finding, ready to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixAction {
    /// Shell command with the same effect.
    pub command: String,
    step: FixStep,
}

/// Returns the actions for problems that this host observed itself. They keep the order of the
/// diagnosis, and only actions that it shows are included.
pub fn actions(observation: &Observation) -> Vec<FixAction> {
    let (diagnosis, local_findings) = (diagnose(observation), LocalFindings::of(observation));
    let mut actions: Vec<FixAction> = Vec::new();
    for command in local_findings.commands(&diagnosis) {
        let step = FixStep::parse(command.text());
        let new_step = step.filter(|step| !actions.iter().any(|action| action.step == *step));
        actions.extend(new_step.map(|step| FixAction { command: command.text().to_owned(), step }));
    }
    actions
}

/// Returns the observed settings of this host with their values, for a trial.
pub fn observed_settings(observation: &Observation) -> Vec<(Sysctl, String)> {
    let settings = observation.here.settings.iter();
    settings.map(|(name, value)| (Sysctl::new(&format!("net.{name}")), value.clone())).collect()
}
