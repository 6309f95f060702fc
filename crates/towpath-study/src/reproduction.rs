//! Reproduction of a published figure: a folder of `reproductions/`.
//!
//! `README.md` explains it to people. `plan.toml` and its scenario define the runs.
//! `expected.toml` contains the source's claims and their expected outcomes, `reference.csv` its
//! published points. The repository's reproductions are compiled into the program; others are read
//! from their folder.

use std::io;

use towpath_report::gallery::{ClaimEntry, GalleryEntry};
use towpath_scenario::{ScenarioErrors, World};

use crate::claims::{Claim, ClaimOutcome, ClaimSet, ClaimVerdict};
use crate::figure::{PublishedPoint, figure, published};
use crate::plan::{FileLoader, Plan};
use crate::row::ENGINE_VERSION;
use crate::row::RunRow;

/// Every file of the repository's reproductions, by name: `iperf3-rpi-2025/plan.toml`.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/reproductions.rs"));

/// A published figure with its plan and claims.
#[derive(Debug, Clone, PartialEq)]
pub struct Reproduction {
    /// Plan of the runs and their figure.
    pub plan: Plan,
    /// Unparsed text of `plan.toml`.
    pub plan_text: String,
    /// Claims of the source with their expected outcomes.
    pub expected: ClaimSet,
    /// Points that the source publishes in its text.
    pub published: Vec<PublishedPoint>,
    /// Text of `README.md`, for people.
    pub readme: String,
}

/// Reason for an invalid reproduction folder.
#[derive(Debug, thiserror::Error)]
pub enum ReproductionError {
    /// A file of the folder cannot be read.
    #[error("`{0}` cannot be read: {1}")]
    File(String, #[source] io::Error),
    /// The plan or the claims have mistakes.
    #[error("{0}")]
    Text(#[from] ScenarioErrors),
    /// The table of points has a mistake: file name, and message.
    #[error("`{0}`: {1}")]
    Points(String, String),
}

/// Returns the names of the reproductions that come with the program, in order.
pub fn names() -> Vec<&'static str> {
    let name = |(name, _): &(&'static str, _)| name.strip_suffix("/plan.toml");
    FILES.iter().filter_map(name).collect()
}

/// Returns a loader for the files of a reproduction that comes with the program.
pub fn load(name: &str) -> impl Fn(&str) -> io::Result<String> + Sync + use<> {
    let folder = name.to_owned();
    move |file| {
        let path = resolve(&format!("{folder}/{file}"));
        let file = FILES.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Resolves a relative path: `a/../b` becomes `b`.
fn resolve(path: &str) -> String {
    let mut components: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "." | "" => {}
            ".." => _ = components.pop(),
            component => components.push(component),
        }
    }
    components.join("/")
}

impl Reproduction {
    /// Reads a folder through `load`; messages contain file names with the prefix `place`.
    pub fn read(place: &str, load: FileLoader<'_>) -> Result<Self, ReproductionError> {
        let located = |name: &str| format!("{place}{name}");
        let read_file =
            |name| load(name).map_err(|error| ReproductionError::File(located(name), error));
        let plan_text = read_file("plan.toml")?;
        let plan = Plan::parse(&located("plan.toml"), &plan_text, load)?;
        // Claims and published points are optional.
        let read_optional = |name: &'static str| match load(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => {
                result.map(Some).map_err(|error| ReproductionError::File(located(name), error))
            }
        };
        let expected = read_optional("expected.toml")?.unwrap_or_default();
        let expected = ClaimSet::parse(&located("expected.toml"), &expected, &plan)?;
        let points = read_optional("reference.csv")?;
        let published = points.map_or(Ok(Vec::new()), |text| published(&text, &plan));
        let points_error = |why| ReproductionError::Points(located("reference.csv"), why);
        let readme = read_optional("README.md")?.unwrap_or_default();
        Ok(Self { plan, plan_text, expected, published: published.map_err(points_error)?, readme })
    }

    /// Returns the publication, from the README's line that begins with `Source:`.
    pub fn source(&self) -> &str {
        let line = self.readme.lines().find_map(|line| line.strip_prefix("Source:"));
        let claims = || self.expected.claims.first().map(|claim| claim.source.as_str());
        line.map(str::trim).or_else(claims).unwrap_or("not said")
    }
}

impl Reproduction {
    /// Returns the gallery entry of the figure with its claims, from the rows of these worlds.
    pub fn entry(&self, rows: &[RunRow], worlds: &[World], thin: bool) -> GalleryEntry {
        let checked_in = |world: &World| (*world, self.expected.check(rows, *world, thin));
        let verdicts: Vec<_> = worlds.iter().map(checked_in).collect();
        let claims = self.expected.claims.iter().enumerate();
        let claims = claims.flat_map(|(number, claim)| claim_entries(claim, number, &verdicts));
        let published_row = |published_row: &PublishedPoint| {
            let PublishedPoint { panel, variant, x, y, source_place } = published_row.clone();
            let panel = panel.and_then(|number| self.plan.panels.get(number));
            let panel = panel.map_or_else(String::new, |drawing| drawing.title.clone());
            [panel, variant, x.text, y.text, source_place]
        };
        GalleryEntry {
            name: self.plan.name.clone(),
            title: self.plan.title.clone(),
            source: self.source().to_owned(),
            worlds: worlds.iter().map(World::to_string).collect(),
            quick: thin,
            runs: rows.len(),
            failed: rows.iter().filter(|row| row.error.is_some()).count(),
            unreliable: rows
                .iter()
                .filter(|row| row.metrics.get("unreliable") == Some(&1.0))
                .count(),
            made_by: ENGINE_VERSION.to_owned(),
            figure: figure(&self.plan, rows, &self.published, Some("points of the source's text")),
            claims: claims.collect(),
            verdict: verdict_of_worlds(&verdicts),
            published: self.published.iter().map(published_row).collect(),
            readme: self.readme.clone(),
            files: Vec::new(),
        }
    }
}

/// Returns a claim's result for each world that it concerns; a single entry if it concerns none.
fn claim_entries(
    claim: &Claim,
    number: usize,
    worlds: &[(World, Vec<ClaimVerdict>)],
) -> Vec<ClaimEntry> {
    let concerns = |world: &World| claim.worlds.is_empty() || claim.worlds.contains(world);
    let concerns_none = !worlds.iter().any(|(world, _)| concerns(world));
    let selected = worlds.iter().filter(|(world, _)| concerns(world));
    let selected = selected.chain(worlds.first().filter(|_| concerns_none));
    let world_text =
        |world: &World| (worlds.len() > 1 && !concerns_none).then(|| world.to_string());
    let entry = |(world, verdicts): &(World, Vec<ClaimVerdict>)| {
        let verdict = verdicts.get(number)?;
        Some(ClaimEntry {
            text: claim.text.clone(),
            source: claim.source.clone(),
            world: world_text(world),
            holds: verdict.found.map(|found| found == ClaimOutcome::Holds),
            expected: verdict.as_expected(),
            measured: verdict.text(),
            deviation: claim.deviation.as_deref().map(|text| text.trim().to_owned()),
        })
    };
    selected.filter_map(entry).collect()
}

/// Summarises all claims for each world in one sentence.
fn verdict_of_worlds(worlds: &[(World, Vec<ClaimVerdict>)]) -> String {
    if let [(_, verdicts)] = worlds {
        return verdict(verdicts);
    }
    let texts =
        worlds.iter().map(|(world, verdicts)| format!("in `{world}` {}", verdict(verdicts)));
    texts.collect::<Vec<_>>().join("; ")
}

/// Summarises the outcomes of all claims in one sentence.
pub fn verdict(verdicts: &[ClaimVerdict]) -> String {
    let count = |condition: &dyn Fn(&ClaimVerdict) -> bool| {
        verdicts.iter().filter(|v| condition(v)).count()
    };
    let checked = count(&|verdict| verdict.found.is_some());
    let holds = count(&|verdict| verdict.found == Some(ClaimOutcome::Holds));
    let fails = checked - holds;
    let unexpected = count(&|verdict| !verdict.as_expected());
    let total = verdicts.len();
    let claims_text = |n: usize| if n == 1 { "1 claim".to_owned() } else { format!("{n} claims") };
    let text = match (checked, holds, fails) {
        (0, _, _) => return "no claim was checked".to_owned(),
        (1, 1, _) if total == 1 => "the claim holds".to_owned(),
        (1, 1, _) => format!("the one claim of {total} that was checked holds"),
        (_, _, 0) if checked == total => format!("all {checked} claims hold"),
        (_, _, 0) => format!("all {checked} claims of {total} that were checked hold"),
        (1, 0, _) => "the claim does not hold".to_owned(),
        (_, 0, _) => format!("none of {checked} claims holds"),
        (_, _, 1) => format!("{holds} of {checked} claims hold, 1 does not"),
        _ => format!("{holds} of {checked} claims hold, {fails} do not"),
    };
    match unexpected {
        0 if fails > 0 => format!("{text}, for a known reason"),
        0 => text,
        _ => format!("{text}; {} came out otherwise than expected", claims_text(unexpected)),
    }
}

#[cfg(test)]
mod tests {
    use ClaimOutcome::{Fails, Holds};

    use super::*;

    #[test]
    fn every_reproduction_parses_and_names_its_source() {
        for name in names() {
            let reproduction = Reproduction::read(&format!("{name}/"), &load(name));
            let reproduction = reproduction.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(reproduction.plan.name, name);
            assert!(!reproduction.plan.title.is_empty(), "{name} has no title");
            assert!(reproduction.readme.contains("\nSource:"), "{name} does not say its source");
            assert!(!reproduction.expected.claims.is_empty(), "{name} claims nothing");
            assert!(!reproduction.plan.panels.is_empty(), "{name} draws nothing");
        }
    }

    #[test]
    fn a_name_may_lead_through_another_folder() {
        assert_eq!(
            resolve("deconinck2019-fig4/../deconinck2019-fig6/scenario.toml"),
            "deconinck2019-fig6/scenario.toml"
        );
        assert!(load("iperf3-rpi-2025")("../../Cargo.toml").is_err());
    }

    #[test]
    fn a_claim_is_checked_in_each_world_that_it_is_about() {
        let plan = "name = \"p\"\nscenario = \"builtin:two-links\"\nworlds = [\"sim\", \"emu\"]\n\
                    [[variants]]\nname = \"TCP\"\ntransport = \"tcp\"\n";
        let claim = |text: &str, worlds: &str| {
            format!(
                "[[claims]]\ntext = \"{text}\"\nsource = \"s\"\noutcome = \"holds\"\n{worlds}\n\
                 [[claims.checks]]\nmetric = \"goodput\"\nis = \">= 2 Mbit/s\"\n"
            )
        };
        let expected = claim("a", "") + &claim("b", "worlds = [\"emu\"]");
        let load = |name: &str| match name {
            "plan.toml" => Ok(plan.to_owned()),
            "expected.toml" => Ok(expected.clone()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let reproduction = Reproduction::read("", &load).unwrap_or_else(|error| panic!("{error}"));
        let row = |world, goodput| RunRow {
            key: String::new(),
            variant: "TCP".into(),
            world,
            transport: towpath_scenario::Transport::Tcp,
            seed: 1,
            parameters: std::collections::BTreeMap::new(),
            error: None,
            metrics: [("goodput".to_owned(), goodput)].into(),
        };
        let rows = [row(World::Sim, 3e6), row(World::Emu, 1e6)];
        let entry = reproduction.entry(&rows, &[World::Sim, World::Emu], false);
        let entries: Vec<_> =
            entry.claims.iter().map(|c| (c.text.as_str(), c.world.as_deref(), c.holds)).collect();
        assert_eq!(
            entries,
            [
                ("a", Some("sim"), Some(true)),
                ("a", Some("emu"), Some(false)),
                ("b", Some("emu"), Some(false))
            ]
        );
        assert_eq!(
            entry.verdict,
            "in `sim` the one claim of 2 that was checked holds; in `emu` none of 2 claims holds; 2 claims came out otherwise \
             than expected"
        );
        let entry = reproduction.entry(&rows[..1], &[World::Sim], false);
        let entries: Vec<_> = entry.claims.iter().map(|c| (c.world.as_deref(), c.holds)).collect();
        assert_eq!(entries, [(None, Some(true)), (None, None)]);
    }

    #[test]
    fn the_verdict_is_one_sentence() {
        let verdict_of = |found: &[(ClaimOutcome, ClaimOutcome)]| {
            let verdicts = found.iter().map(|(found, expected)| ClaimVerdict {
                found: Some(*found),
                expected: *expected,
                checks: vec![],
            });
            verdict(&verdicts.collect::<Vec<_>>())
        };
        assert_eq!(verdict_of(&[]), "no claim was checked");
        assert_eq!(verdict_of(&[(Holds, Holds)]), "the claim holds");
        let unchecked = || ClaimVerdict { found: None, expected: Holds, checks: vec![] };
        let held = || ClaimVerdict { found: Some(Holds), ..unchecked() };
        assert_eq!(verdict(&[held(), held()]), "all 2 claims hold");
        let two_of_three = [held(), held(), unchecked()];
        assert_eq!(verdict(&two_of_three), "all 2 claims of 3 that were checked hold");
        assert_eq!(verdict(&two_of_three[1..]), "the one claim of 2 that was checked holds");
        let known_deviation = "1 of 2 claims hold, 1 does not, for a known reason";
        assert_eq!(verdict_of(&[(Holds, Holds), (Fails, Fails)]), known_deviation);
        let surprise = "none of 2 claims holds; 1 claim came out otherwise than expected";
        assert_eq!(verdict_of(&[(Fails, Holds), (Fails, Fails)]), surprise);
    }
}
