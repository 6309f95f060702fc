//! `cargo xtask validate-random`: compares our simulator, or our stack over the emulator, with the
//! kernel's stack on random scenarios.
//!
//! [`draw`] draws a scenario from documented distributions; it depends only on its seed and its
//! number. [`runs`] runs it several times simulated and several times over the kernel. [`store`]
//! keeps each run. The kernel's runs are never repeated, so that after a change of our stack only
//! simulated runs are. [`row`] compares both sides, and [`table`] summarises all scenarios. Like
//! all of xtask it uses none of our crates: it writes files, runs the command, and reads its
//! results.

pub(crate) mod draw;
mod pages;
mod picture;
mod random;
mod row;
mod runs;
mod scenario;
mod store;
mod table;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use self::pages::ComparisonPages;
use self::row::{ComparisonRow, SideRuns};
use self::runs::{ComparisonJob, Runner};
use self::scenario::ComparedScenario;
use self::store::{RunStore, StackUnderTest, StoredRunState};
use crate::Result;

/// Folder of named scenarios, in addition to the drawn ones.
const CASES: &str = "xtask/src/validate_random/cases";

/// Simulated runs of each scenario: they cost little.
const SIM_RUNS: u32 = 3;

/// Ratio of a side's highest to its lowest goodput above which more runs are made.
const DISAGREEMENT_RATIO: f64 = 1.05;

/// Output of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputFormat {
    /// List of the scenarios; nothing is run.
    List,
    /// Tables of the results.
    Tables,
    /// JSON: the results, a line for each scenario.
    Json,
}

/// Command-line options of `cargo xtask validate-random`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RandomOptions {
    /// Number of scenarios of each seed.
    random: u32,
    seeds: Vec<u64>,
    /// Runs of each scenario over the kernel.
    runs: u32,
    /// Runs of each on our side; `None` for the usual number.
    own_runs: Option<u32>,
    /// Maximum runs of a side whose runs differ.
    max_runs: u32,
    /// Number of concurrent emulated runs, as far as their rates allow.
    jobs: usize,
    /// Side that is compared with the kernel.
    ours: StackUnderTest,
    /// Side to run alone; `None` runs both.
    only: Option<StackUnderTest>,
    /// Profile of our stack, where a scenario has none.
    profile: Option<String>,
    files: Vec<PathBuf>,
    cases: bool,
    show: bool,
    output: OutputFormat,
    towpath: Option<PathBuf>,
    keep: Option<PathBuf>,
    svg: Option<PathBuf>,
}

impl RandomOptions {
    /// Parses the arguments; `None` if they are not valid.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            random: 0,
            seeds: vec![1],
            runs: 2,
            own_runs: None,
            max_runs: 5,
            jobs: 1,
            ours: StackUnderTest::Simulated,
            only: None,
            profile: None,
            files: Vec::new(),
            cases: false,
            show: false,
            output: OutputFormat::Tables,
            towpath: None,
            keep: None,
            svg: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut number = || rest.next()?.parse().ok().filter(|number: &u32| *number > 0);
            match *argument {
                "--random" => options.random = number()?,
                "--runs" => options.runs = number()?,
                "--max-runs" => options.max_runs = number()?,
                "--ours" => options.own_runs = Some(number()?),
                "--jobs" => options.jobs = number()? as usize,
                "--seed" => {
                    let seeds = rest.next()?.split(',').map(|seed| seed.parse().ok());
                    options.seeds = seeds.collect::<Option<_>>()?;
                }
                "--stack" => {
                    options.ours = StackUnderTest::from_name(rest.next()?)
                        .filter(|side| *side != StackUnderTest::Kernel)?;
                }
                "--only" => options.only = Some(StackUnderTest::from_name(rest.next()?)?),
                "--profile" => options.profile = Some((*rest.next()?).to_owned()),
                "--file" => options.files.push(rest.next()?.into()),
                "--cases" => options.cases = true,
                "--list" => options.output = OutputFormat::List,
                "--show" => options.show = true,
                "--json" => options.output = OutputFormat::Json,
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                "--svg" => options.svg = Some(rest.next()?.into()),
                "--store" => options.keep = Some(rest.next()?.into()),
                _ => return None,
            }
        }
        let has_scenarios = options.random > 0 || options.cases || !options.files.is_empty();
        has_scenarios.then_some(options)
    }
}

/// Runs what is missing, and prints the results of all runs.
pub(crate) fn run(root: &Path, options: &RandomOptions, out: &mut dyn Write) -> Result<bool> {
    let scenarios = scenarios(root, options)?;
    if options.output == OutputFormat::List {
        return list(&scenarios, out);
    }
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => crate::validate_vm::build(root)?,
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let folder = options.keep.clone().unwrap_or_else(|| root.join("target/twin"));
    let store = RunStore::open(&folder, kernel.trim(), &towpath)?;
    if !options.show {
        let runner = Runner { towpath: &towpath, store: &store, jobs: options.jobs };
        // The second pass adds runs where the first ones differed.
        for _ in 0..2 {
            runner.run(jobs(&scenarios, options, &store))?;
        }
    }
    if options.only == Some(StackUnderTest::Kernel) {
        // A developer who fits a stack must not see the results that it will be judged by.
        return print_kernel_progress(&scenarios, options, &store, out);
    }
    let rows: Vec<_> = scenarios.iter().map(|scenario| row(scenario, options, &store)).collect();
    if options.output == OutputFormat::Json {
        for row in rows.iter().filter(|row| row.is_whole()) {
            writeln!(out, "{}", row.json())?;
        }
    } else {
        table::rows(&rows, options.ours.name(), out)?;
        table::classes(&rows, out)?;
        let pages = ComparisonPages { towpath: &towpath, store: &store, ours: options.ours };
        table::worst(&rows, &|row| pages.page(row.scenario), out)?;
        let excluded: Vec<_> = rows.iter().filter(|row| row.left_out > 0).collect();
        for row in &excluded {
            writeln!(out, "\n`{}`: {} runs left out, unreliable", row.scenario.name, row.left_out)?;
        }
        let missing = rows.iter().filter(|row| !row.is_whole()).count();
        writeln!(out, "\n{} scenarios, {missing} without runs of both sides", rows.len())?;
    }
    if let Some(file) = &options.svg {
        fs::write(file, crate::validate_vm::svg(root, &picture::figure(&rows, options.ours))?)?;
    }
    Ok(rows.iter().all(|row| !row.is_whole() || row.agrees()))
}

fn scenarios(root: &Path, options: &RandomOptions) -> Result<Vec<ComparedScenario>> {
    let mut files = options.files.clone();
    if options.cases {
        files.extend(scenario::folder(&root.join(CASES))?);
    }
    let mut scenarios = Vec::new();
    for path in files {
        scenarios.extend(scenario::file(&path)?);
    }
    for seed in &options.seeds {
        scenarios.extend(scenario::drawn(*seed, options.random)?);
    }
    for scenario in &mut scenarios {
        scenario.profile.clone_from(&options.profile);
    }
    Ok(scenarios)
}

fn list(scenarios: &[ComparedScenario], out: &mut dyn Write) -> Result<bool> {
    writeln!(out, "{}", draw::describe())?;
    for scenario in scenarios {
        let marks: Vec<_> = scenario.marks.iter().map(String::as_str).collect();
        let ComparedScenario { name, rate_mbps, .. } = scenario;
        writeln!(out, "{name}: {rate_mbps:.1} Mbit/s, {}", marks.join(", "))?;
    }
    Ok(true)
}

/// Returns the number of runs that a scenario needs. Runs that differ much raise it to the maximum.
fn required_runs(
    scenario: &ComparedScenario,
    side: StackUnderTest,
    options: &RandomOptions,
    store: &RunStore,
) -> u32 {
    let min_runs = match side {
        StackUnderTest::Kernel => options.runs,
        StackUnderTest::Towpath => options.own_runs.unwrap_or(options.runs),
        StackUnderTest::Simulated => options.own_runs.unwrap_or(SIM_RUNS),
    };
    let mut goodput = stored_runs(scenario, side, min_runs, store).0.goodput;
    goodput.sort_by(f64::total_cmp);
    let extremes = goodput.first().zip(goodput.last());
    let disagrees = extremes.is_some_and(|(low, high)| *high > DISAGREEMENT_RATIO * low);
    if disagrees { min_runs.max(options.max_runs) } else { min_runs }
}

/// Reads the first `count` runs of a side. Also returns the number of runs that were left out as
/// unreliable.
fn stored_runs(
    scenario: &ComparedScenario,
    side: StackUnderTest,
    count: u32,
    store: &RunStore,
) -> (SideRuns, u32) {
    let (mut runs, mut left_out) = (SideRuns::default(), 0);
    for run in 0..count {
        match store.find(scenario, side, run) {
            StoredRunState::Run(records, _) => runs.add(&records),
            StoredRunState::LeftOut => left_out += 1,
            StoredRunState::Missing(_) => {}
        }
    }
    (runs, left_out)
}

fn jobs<'a>(
    scenarios: &'a [ComparedScenario],
    options: &RandomOptions,
    store: &RunStore,
) -> Vec<ComparisonJob<'a>> {
    let sides = [StackUnderTest::Kernel, options.ours];
    let sides = sides.into_iter().filter(|side| options.only.is_none_or(|only| only == *side));
    let jobs_of_side = |side| {
        scenarios.iter().flat_map(move |scenario| {
            let count = required_runs(scenario, side, options, store);
            (0..count).map(move |run| ComparisonJob { scenario, side, run })
        })
    };
    sides.flat_map(jobs_of_side).collect()
}

fn row<'a>(
    scenario: &'a ComparedScenario,
    options: &RandomOptions,
    store: &RunStore,
) -> ComparisonRow<'a> {
    let [(ours, ours_out), (kernel, kernel_out)] =
        [options.ours, StackUnderTest::Kernel].map(|side| {
            stored_runs(scenario, side, required_runs(scenario, side, options, store), store)
        });
    ComparisonRow { scenario, ours, kernel, left_out: ours_out + kernel_out }
}

/// Reports how many of the kernel's runs are done.
fn print_kernel_progress(
    scenarios: &[ComparedScenario],
    options: &RandomOptions,
    store: &RunStore,
    out: &mut dyn Write,
) -> Result<bool> {
    let rows: Vec<_> = scenarios.iter().map(|scenario| row(scenario, options, store)).collect();
    let required = scenarios
        .iter()
        .map(|scenario| required_runs(scenario, StackUnderTest::Kernel, options, store));
    let required: u32 = required.sum();
    let stored: usize = rows.iter().map(|row| row.kernel.goodput.len()).sum();
    let left_out: u32 = rows.iter().map(|row| row.left_out).sum();
    writeln!(
        out,
        "{stored} of {required} runs over the kernel are there, {left_out} left out, unreliable"
    )?;
    Ok(stored + left_out as usize == required as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let options =
            RandomOptions::parse(&["--random", "40", "--seed", "0,7", "--only", "kernel"]).unwrap();
        assert_eq!((options.random, &options.seeds[..]), (40, &[0, 7][..]));
        assert_eq!(options.only, Some(StackUnderTest::Kernel));
        assert_eq!(RandomOptions::parse(&["--random", "0"]), None);
        assert_eq!(RandomOptions::parse(&["--stack", "kernel", "--cases"]), None);
        assert_eq!(RandomOptions::parse(&["--seed", "7"]), None);
    }
}
