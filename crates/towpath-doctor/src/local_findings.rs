//! Findings that rely on this host alone, without any report of the other one.
//!
//! A peer can send any snapshot it likes. So every executed action is made from an
//! [`LocalCommand`]. Its only source are the findings of an observation without the peer's part. A
//! peer's report can prevent a fix, and can never cause one.

use super::finding::{Confidence, Diagnosis, Finding};
use super::observation::Observation;
use super::rules;

/// Findings without the other host's report.
#[derive(Debug)]
pub(super) struct LocalFindings(Vec<Finding>);

/// Command of a finding that does not rely on the peer's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalCommand<'a>(&'a str);

impl LocalFindings {
    /// Repeats the diagnosis without the peer's report.
    pub(super) fn of(observation: &Observation) -> Self {
        let without_peer = Observation { peer: None, peer_error: None, ..observation.clone() };
        Self(rules::findings(&without_peer))
    }

    /// Returns the local finding with the same cause and location.
    pub(super) fn find_same(&self, finding: &Finding) -> Option<&Finding> {
        self.0.iter().find(|local| local.is_same_problem(finding))
    }

    /// Returns the commands of findings with enough confidence, if `diagnosis` also has them, in
    /// its order.
    pub(super) fn commands<'a>(
        &'a self,
        diagnosis: &'a Diagnosis,
    ) -> impl Iterator<Item = LocalCommand<'a>> {
        let is_sure = |finding: &&Finding| finding.confidence > Confidence::Possible;
        diagnosis.findings.iter().filter(is_sure).flat_map(move |finding| {
            let local = self.find_same(finding).filter(is_sure);
            let commands = local.into_iter().flat_map(|local| &local.fix);
            commands
                .filter(|command| finding.fix.contains(command))
                .map(|command| LocalCommand(command))
        })
    }
}

impl<'a> LocalCommand<'a> {
    /// Returns the command as people type it.
    pub(super) const fn text(self) -> &'a str {
        self.0
    }
}
