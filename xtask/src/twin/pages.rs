//! Pages that lay a run of ours over one of the kernel's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::scenario::Scenario;
use super::store::{Found, Side, Store};

/// Who makes them, and of what.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    pub(super) towpath: &'a Path,
    pub(super) store: &'a Store,
    pub(super) ours: Side,
}

impl Pages<'_> {
    /// Makes the page of a scenario from the first run of each side, and says where it is; else where
    /// the scenario's runs are.
    pub(super) fn page(&self, scenario: &Scenario) -> PathBuf {
        let folder = self.store.folder(scenario);
        let name = format!("{}-{}.html", self.ours.name(), scenario.transport);
        let page = folder.join(name);
        let results = [Side::Kernel, self.ours].map(|side| self.first(scenario, side));
        let [Some(kernel), Some(ours)] = results else { return folder };
        let made = Command::new(self.towpath)
            .args([Path::new("report"), &kernel, &ours, Path::new("--output"), &page])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if made.is_ok_and(|status| status.success()) { page } else { folder }
    }

    fn first(&self, scenario: &Scenario, side: Side) -> Option<PathBuf> {
        // A first run may be left out; no more than a few are made.
        (0..10).find_map(|run| match self.store.find(scenario, side, run) {
            Found::Run(_, whole) => Some(whole),
            Found::Missing(_) | Found::LeftOut => None,
        })
    }
}
