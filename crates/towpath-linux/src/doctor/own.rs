//! What this host has seen itself, without a word of the other one.
//!
//! Whoever is asked for its look can answer anything. So what is carried out is made from an
//! [`LocalCommand`], and there is one way to get one: from the findings of an observation from which
//! the peer was taken out. What a peer says can keep something from being mended, and cannot have
//! anything mended.

use super::finding::{Confidence, Diagnosis, Finding};
use super::observation::Observation;
use super::rules;

/// What is found without the other host's help.
#[derive(Debug)]
pub(super) struct LocalFindings(Vec<Finding>);

/// A command of a finding that no peer's word is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalCommand<'a>(&'a str);

impl LocalFindings {
    /// Concludes once more, as if nobody had been asked.
    pub(super) fn of(observation: &Observation) -> Self {
        let alone = Observation { peer: None, peer_error: None, ..observation.clone() };
        Self(rules::findings(&alone))
    }

    /// What is found of the same thing without the other host.
    pub(super) fn same(&self, finding: &Finding) -> Option<&Finding> {
        self.0.iter().find(|own| own.is_about_the_same(finding))
    }

    /// Commands of findings that are sure enough, as far as `shown` shows them, in its order.
    pub(super) fn commands<'a>(
        &'a self,
        shown: &'a Diagnosis,
    ) -> impl Iterator<Item = LocalCommand<'a>> {
        let is_sure = |finding: &&Finding| finding.confidence > Confidence::Possible;
        shown.findings.iter().filter(is_sure).flat_map(move |finding| {
            let own = self.same(finding).filter(is_sure);
            let commands = own.into_iter().flat_map(|own| &own.fix);
            commands.filter(|own| finding.fix.contains(own)).map(|own| LocalCommand(own))
        })
    }
}

impl<'a> LocalCommand<'a> {
    /// As people type it.
    pub(super) const fn text(self) -> &'a str {
        self.0
    }

    #[cfg(test)]
    pub(super) const fn of_a_test(text: &'a str) -> Self {
        Self(text)
    }
}
