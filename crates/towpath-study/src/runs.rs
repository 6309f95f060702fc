//! Runs of a plan: each one's scenario, and the key that identifies its input.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;
use sha2::{Digest, Sha256};
use toml::{Table, Value};
use towpath_result::{Record, SCHEMA_VERSION};
use towpath_scenario::{Scenario, Transport, World};

use crate::plan::{
    Axis, AxisValue, DocumentError, FileLoader, KeyPath, Plan, PlotKind, SAMPLE_PARAMETER, Variant,
    remove, set,
};
use crate::row::{ENGINE_VERSION, Parameter, RunRow, per_second, run_metrics};

/// Selection of a plan's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSelection {
    /// World to run in.
    pub world: World,
    /// True for a quick sweep: only the plan's quick values, seeds and samples.
    pub quick: bool,
    /// Seeds of each point; `None` for the plan's number.
    pub seeds: Option<u32>,
}

/// Runs of a plan in their order: by variant, then by point of the grid (the last axis first),
/// then by sample, then by seed. Each is created on request.
#[derive(Clone)]
pub struct RunGrid<'a> {
    plan: &'a Plan,
    load: FileLoader<'a>,
    selection: RunSelection,
    variants: Vec<&'a Variant>,
    axes: Vec<(&'a Axis, Vec<&'a AxisValue>)>,
    samples: Option<u32>,
    seeds: u32,
}

/// One run of a plan.
#[derive(Debug, Clone)]
pub struct StudyRun {
    /// Index among the runs, from 0.
    pub index: usize,
    /// Row before the run, without metrics.
    pub row: RunRow,
    /// Text of the run's scenario.
    pub text: String,
    /// Parsed scenario, or the reason why it is invalid.
    pub scenario: Result<Box<Scenario>, String>,
    window: Option<[std::time::Duration; 2]>,
    /// True if a panel of the plan shows seconds.
    seconds: bool,
}

/// Runs of one variant at one point: they differ in their seeds only.
#[derive(Debug)]
pub(crate) struct CheckedPoint {
    /// First of the runs.
    pub(crate) first: StudyRun,
    /// Keys of all its runs, by seed.
    pub(crate) keys: Vec<String>,
}

impl Plan {
    /// Returns true if rows need the goodput of each second.
    fn draws_seconds(&self) -> bool {
        self.panels.iter().any(|panel| panel.kind == PlotKind::Series)
    }

    /// Returns the selected runs of this plan.
    pub fn runs<'a>(&'a self, selection: RunSelection, load: FileLoader<'a>) -> RunGrid<'a> {
        let RunSelection { world, quick, seeds } = selection;
        let is_run = |variant: &&Variant| match &variant.worlds {
            Some(worlds) => worlds.contains(&world),
            None => true,
        };
        let seeds_of_world = if world == World::Sim { self.seeds } else { self.emulated_seeds };
        let default_seeds =
            if quick { self.quick_seeds.min(seeds_of_world) } else { seeds_of_world };
        let samples = |random: &crate::plan::RandomSampling| {
            if quick { random.quick } else { random.samples }
        };
        RunGrid {
            plan: self,
            load,
            selection,
            variants: self.variants.iter().filter(is_run).collect(),
            axes: self.axes.iter().map(|axis| (axis, axis.selected_values(world, quick))).collect(),
            samples: self.random.as_ref().map(samples),
            seeds: seeds.unwrap_or(default_seeds).max(1),
        }
    }
}

impl RunGrid<'_> {
    /// Returns the number of runs, saturating.
    pub fn len(&self) -> usize {
        let axis_lengths = self.axes.iter().map(|(_, values)| values.len());
        let other_lengths =
            [self.variants.len(), self.samples.unwrap_or(1) as usize, self.seeds as usize];
        axis_lengths.chain(other_lengths).fold(1, usize::saturating_mul)
    }

    /// Returns true if the selection has no run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the plan of the runs.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Returns the selection that made this grid.
    pub fn selection(&self) -> RunSelection {
        self.selection
    }

    /// Returns run number `index`, from 0; `None` when there are fewer.
    pub fn get(&self, index: usize) -> Option<StudyRun> {
        self.run_with_files(index).map(|(run, _)| run)
    }

    /// Returns the number of points, over all variants. The runs of a point follow each other.
    pub(crate) fn point_count(&self) -> usize {
        self.len() / self.seeds.max(1) as usize
    }

    /// Returns the first run of a point and the keys of all its runs.
    ///
    /// Only two runs are read. The text of the others is that of the first with another seed, which
    /// the last run confirms.
    pub(crate) fn check_point(&self, point: usize) -> Option<CheckedPoint> {
        let start = point * self.seeds as usize;
        let indices = start..start + self.seeds as usize;
        let (first, files) = self.run_with_files(start)?;
        let last = self.get(indices.end - 1)?;
        let seeded = |seed: u64| with_seed(&first.text, first.row.seed, seed);
        let is_confirmed = seeded(last.row.seed).as_ref() == Some(&last.text)
            && first.scenario.is_ok() == last.scenario.is_ok();
        let key = |index: usize| {
            let seed = first.row.seed + (index - start) as u64;
            match seeded(seed).filter(|_| is_confirmed) {
                Some(text) => Some(self.key(&text, &files, first.row.transport, seed)),
                None => self.get(index).map(|run| run.row.key),
            }
        };
        let keys = indices.filter_map(key).collect();
        Some(CheckedPoint { first, keys })
    }

    /// Returns a run, and the hashes of the files that its scenario names.
    fn run_with_files(&self, index: usize) -> Option<(StudyRun, BTreeMap<String, String>)> {
        let mut remaining = index;
        let mut take_digit = |base: usize| {
            let digit = remaining % base.max(1);
            remaining /= base.max(1);
            digit
        };
        let seed = take_digit(self.seeds as usize) as u64;
        let sample = self.samples.map(|samples| take_digit(samples as usize) as u64);
        let digits = self.axes.iter().rev().map(|(_, values)| take_digit(values.len()));
        let mut digits: Vec<_> = digits.collect();
        digits.reverse();
        let variant = *self.variants.get(remaining)?;
        let axes = self.axes.iter().zip(digits);
        let axes = axes.filter_map(|((axis, values), digit)| {
            Some((axis.name.clone(), axis.keys.as_slice(), (*values.get(digit)?).clone()))
        });
        let settings: Vec<_> = axes.chain(self.draws(sample.unwrap_or(0) + 1)).collect();
        let seed = sample.unwrap_or(0) * crate::plan::MAX_SEEDS + seed + 1;
        Some(self.run(index, variant, settings, (sample, seed)))
    }

    /// Returns the random settings of sample `number`.
    fn draws(&self, number: u64) -> Vec<(String, &[KeyPath], AxisValue)> {
        let mut drawn: Vec<(String, &[KeyPath], AxisValue)> = Vec::new();
        let Some(random) = &self.plan.random else { return drawn };
        let seed_name = random.seed_name.as_ref().unwrap_or(&self.plan.name);
        for draw in &random.draws {
            let earlier = drawn.iter().find(|(name, _, _)| Some(name) == draw.added_draw.as_ref());
            let added = earlier.and_then(|(_, _, setting)| setting.number).unwrap_or(0.0);
            let setting = draw.sample(seed_name, number, added);
            drawn.push((draw.name.clone(), draw.keys.as_slice(), setting));
        }
        drawn
    }

    fn run(
        &self,
        index: usize,
        variant: &Variant,
        settings: Vec<(String, &[KeyPath], AxisValue)>,
        (sample, seed): (Option<u64>, u64),
    ) -> (StudyRun, BTreeMap<String, String>) {
        let document = self.scenario_document(variant, &settings, seed);
        let mut parameters: BTreeMap<String, Parameter> = settings
            .into_iter()
            .map(|(name, _, AxisValue { text, number, .. })| (name, Parameter { text, number }))
            .collect();
        if let Some(sample) = sample {
            let number = Some((sample + 1) as f64);
            let text = (sample + 1).to_string();
            parameters.insert(SAMPLE_PARAMETER.to_owned(), Parameter { text, number });
        }
        let header = header_line(&self.plan.name, &variant.name, &parameters);
        let text = match &document {
            Ok(document) => format!("{header}{document}"),
            Err(_) => header,
        };
        let files = RefCell::new(BTreeMap::new());
        let scenario = match document {
            Ok(_) => self.read(&text, &files),
            Err(error) => Err(error.to_string()),
        };
        let files = files.into_inner();
        let row = RunRow {
            key: self.key(&text, &files, variant.transport, seed),
            variant: variant.name.clone(),
            world: self.selection.world,
            transport: variant.transport,
            seed,
            parameters,
            error: None,
            metrics: BTreeMap::new(),
        };
        let scenario = scenario.map(Box::new);
        let seconds = self.plan.draws_seconds();
        (StudyRun { index, row, text, scenario, window: self.plan.window, seconds }, files)
    }

    /// Returns the scenario's document with this run's changes.
    fn scenario_document(
        &self,
        variant: &Variant,
        settings: &[(String, &[KeyPath], AxisValue)],
        seed: u64,
    ) -> Result<Table, DocumentError> {
        let mut document = self.plan.scenario.clone();
        // The expectations are for the original settings, so they do not apply here.
        document.remove("expect");
        remove(&mut document, &variant.remove)?;
        for (key, value) in &variant.set {
            set(&mut document, key, value.clone())?;
        }
        for (_, keys, AxisValue { value, .. }) in settings {
            for key in *keys {
                // A variant that removes the path has the same scenario at every value.
                if !variant.remove.iter().any(|removed| key.is_in(removed)) {
                    set(&mut document, key, value.clone())?;
                }
            }
        }
        let set_own = |key: &str, value: Value, document: &mut Table| match KeyPath::parse(key) {
            Some(path) => set(document, &path, value),
            None => Ok(()),
        };
        let transport = vec![Value::String(variant.transport.to_string())];
        let world = vec![Value::String(self.selection.world.to_string())];
        set_own("run.transports", Value::Array(transport), &mut document)?;
        set_own("run.worlds", Value::Array(world), &mut document)?;
        set_own("run.repeat", Value::Integer(1), &mut document)?;
        set_own(
            "run.seed",
            Value::Integer(i64::try_from(seed).unwrap_or(i64::MAX)),
            &mut document,
        )?;
        Ok(document)
    }

    fn read(
        &self,
        text: &str,
        files: &RefCell<BTreeMap<String, String>>,
    ) -> Result<Scenario, String> {
        // Traces are named relative to the scenario, which may be in another folder.
        let folder = self.plan.scenario_name.rsplit_once('/').map(|(folder, _)| folder);
        let load = |name: &str| {
            let text = match folder {
                Some(folder) if !name.starts_with('/') => (self.load)(&format!("{folder}/{name}")),
                _ => (self.load)(name),
            }?;
            files.borrow_mut().insert(name.to_owned(), short_hash(text.as_bytes()));
            Ok(text)
        };
        Scenario::parse("", text, &load).map_err(|errors| match errors.problems() {
            [first, ..] => {
                let line = first.position.and_then(|(line, _)| text.lines().nth(line - 1));
                let line = line.map_or_else(String::new, |line| format!(" at `{}`", line.trim()));
                let expected = Some(&first.expected).filter(|expected| !expected.is_empty());
                let expected = expected.map_or_else(String::new, |text| format!(", {text}"));
                format!("{}{expected}{line}", first.message)
            }
            [] => errors.to_string(),
        })
    }

    /// Returns the run's key, a hash of everything that determines the row: equal keys mean equal
    /// runs.
    fn key(
        &self,
        text: &str,
        files: &BTreeMap<String, String>,
        transport: Transport,
        seed: u64,
    ) -> String {
        let window = self.plan.window.map(|window| window.map(|time| time.as_nanos() as u64));
        let identity = json!({
            "engine": ENGINE_VERSION,
            "files": files,
            "result": SCHEMA_VERSION,
            "scenario": text,
            "seconds": self.plan.draws_seconds(),
            "seed": seed,
            "transport": transport,
            "window": window,
            "world": self.selection.world,
        });
        short_hash(identity.to_string().as_bytes())
    }
}

/// Returns the text of a scenario with another seed; `None` if the seed is not on a line of its own
/// in the table `[run]`.
fn with_seed(text: &str, seed: u64, other_seed: u64) -> Option<String> {
    let table = "\n[run]\n";
    // Keeps the line end before the first key.
    let start = text.find(table)? + table.len() - 1;
    let section = text.get(start..)?;
    let section = section.split_once("\n[").map_or(section, |(section, _)| section);
    let line = format!("\nseed = {seed}");
    let position = start + section.find(&line)?;
    let rest = text.get(position + line.len()..)?;
    let is_line = rest.is_empty() || rest.starts_with('\n');
    is_line.then(|| format!("{}\nseed = {other_seed}{rest}", text.get(..position).unwrap_or("")))
}

/// Returns the run's identity as the first line of its scenario. Curves whose scenarios are
/// otherwise equal thus remain different runs.
fn header_line(plan: &str, variant: &str, parameters: &BTreeMap<String, Parameter>) -> String {
    let mut line = format!("# {plan}: {variant}");
    for (name, Parameter { text, .. }) in parameters {
        // Writing to a `String` cannot fail.
        let _ = write!(line, "; {name} = {text}");
    }
    line.replace(|c: char| c.is_control(), " ") + "\n"
}

/// Returns the first 32 digits of the SHA-256 hash.
pub(crate) fn short_hash(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

impl StudyRun {
    /// Executes the run with `perform`, which returns its records. Every failure, even a panic, is
    /// recorded in the row.
    pub fn execute(&self, perform: impl Fn(&Self) -> Result<Vec<Record>, String>) -> RunRow {
        let outcome = match &self.scenario {
            Ok(scenario) => catch_unwind(AssertUnwindSafe(|| {
                perform(self).map(|records| {
                    let mut metrics = run_metrics(&records, scenario, self.window);
                    if self.seconds {
                        metrics.extend(per_second(&records));
                    }
                    metrics
                })
            }))
            .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic)))),
            Err(error) => Err(error.clone()),
        };
        match outcome {
            Ok(metrics) => RunRow { metrics, ..self.row.clone() },
            Err(error) => RunRow { error: Some(error), ..self.row.clone() },
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
