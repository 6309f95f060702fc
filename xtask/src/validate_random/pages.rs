//! Pages that compare a run of ours with one of the kernel's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::scenario::ComparedScenario;
use super::store::{RunStore, StackUnderTest, StoredRunState};

/// Inputs of the report pages.
#[derive(Debug)]
pub(super) struct ComparisonPages<'a> {
    pub(super) towpath: &'a Path,
    pub(super) store: &'a RunStore,
    pub(super) ours: StackUnderTest,
}

impl ComparisonPages<'_> {
    /// Makes the page of a scenario from the first run of each side, and returns its path.
    ///
    /// Returns the folder of the scenario's runs if that fails.
    pub(super) fn page(&self, scenario: &ComparedScenario) -> PathBuf {
        let folder = self.store.folder(scenario);
        let name = format!("{}-{}.html", self.ours.name(), scenario.transport);
        let page = folder.join(name);
        let results =
            [StackUnderTest::Kernel, self.ours].map(|side| self.first_result(scenario, side));
        let [Some(kernel), Some(ours)] = results else { return folder };
        let status = Command::new(self.towpath)
            .args([Path::new("report"), &kernel, &ours, Path::new("--output"), &page])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) { page } else { folder }
    }

    fn first_result(&self, scenario: &ComparedScenario, side: StackUnderTest) -> Option<PathBuf> {
        // The first run may be left out; ten numbers are enough, as there are only a few runs.
        (0..10).find_map(|run| match self.store.find(scenario, side, run) {
            StoredRunState::Run(_, result_path) => Some(result_path),
            StoredRunState::Missing(_) | StoredRunState::LeftOut => None,
        })
    }
}
