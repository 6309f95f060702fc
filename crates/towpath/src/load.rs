//! Loads scenarios by file or by name.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use towpath_result::input;
use towpath_result::input::{DEFAULT_TEXT_LIMIT, ReadBudget};
use towpath_scenario::{AFTER_LAST_FLOW, Scenario, ScenarioErrors, builtin, no_files};

use crate::changes::ScenarioChanges;
use crate::error::CliError;
use crate::stacks;
use crate::stacks::StackChoice;

/// A scenario as text, with everything that the process of a run needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ScenarioText {
    /// Text after changes.
    pub(crate) text: String,
    /// Files that the text names, each with its content.
    pub(crate) files: Vec<(String, String)>,
    /// Seed that replaces the text's.
    pub(crate) seed: Option<u64>,
    /// Stacks that replace the text's.
    pub(crate) stacks: Vec<StackChoice>,
    /// Additional conditions of the result.
    pub(crate) remarks: BTreeMap<String, String>,
}

impl ScenarioText {
    /// Parses the text, which was valid when it was read.
    pub(crate) fn parse(&self) -> Result<Scenario, CliError> {
        let load = |name: &str| {
            let file = self.files.iter().find(|(file, _)| file == name);
            file.map(|(_, text)| text.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let mut scenario = Scenario::parse("the scenario", &self.text, &load)?;
        scenario.remarks.clone_from(&self.remarks);
        scenario.run.seed = self.seed.unwrap_or(scenario.run.seed);
        stacks::choose(&mut scenario, &self.stacks)?;
        Ok(scenario)
    }
}

/// Reads a scenario: a file if one of that name exists, else a built-in one.
pub(crate) fn load(name: &str) -> Result<Scenario, CliError> {
    load_changed(name, &ScenarioChanges::default())
}

/// Reads a scenario and applies the command line's changes.
pub(crate) fn load_changed(name: &str, changes: &ScenarioChanges) -> Result<Scenario, CliError> {
    load_with_files(name, changes).map(|(scenario, _)| scenario)
}

/// Reads a scenario like [`load_changed`]; also returns the files that it names, by name.
pub(crate) fn load_with_files(
    name: &str,
    changes: &ScenarioChanges,
) -> Result<(Scenario, Vec<(String, String)>), CliError> {
    let files = RefCell::new(BTreeMap::new());
    let mut scenario = read(name, changes, &files)?;
    scenario.remarks = changes.conditions();
    Ok((scenario, files.into_inner().into_iter().collect()))
}

/// Reads a scenario, and adds the files that it names to `files`.
fn read(
    name: &str,
    changes: &ScenarioChanges,
    files: &RefCell<BTreeMap<String, String>>,
) -> Result<Scenario, CliError> {
    let change = |text: &str| {
        changes
            .apply(text)
            .map_err(|error| CliError::Unavailable { what: error.to_string(), hint: error.hint })
    };
    // Line numbers refer to the changed text, so the name in messages ends with "as changed".
    let display_name =
        if changes.is_empty() { name.to_owned() } else { format!("{name}, as changed") };
    let path = Path::new(name);
    if path.is_file() || looks_like_a_path(name) || (path.is_dir() && !is_scenario(name)) {
        let file_bytes = path.metadata().map_or(0, |metadata| metadata.len());
        towpath_scenario::check_size(name, usize::try_from(file_bytes).unwrap_or(usize::MAX))?;
        let bytes = ReadBudget::new(DEFAULT_TEXT_LIMIT).and_then(|budget| budget.read(path));
        let bytes = bytes.map_err(|source| CliError::Read { path: path.to_owned(), source })?;
        let siblings = input::sibling_files(path.parent().unwrap_or(Path::new("")));
        let traces = |name: &str| {
            let text = siblings(name)?;
            files.borrow_mut().insert(name.to_owned(), text.clone());
            Ok(text)
        };
        return match std::str::from_utf8(&bytes) {
            Ok(text) if !changes.is_empty() => {
                // Reports the file's own errors first, with its own line numbers.
                Scenario::parse_bytes(name, &bytes, &traces)?;
                let text = change(text)?;
                Scenario::parse(&display_name, &text, &traces)
                    .map_err(|errors| changed_scenario_error(name, &text, errors))
            }
            Ok(_) | Err(_) => Ok(Scenario::parse_bytes(name, &bytes, &traces)?),
        };
    }
    match builtin().iter().find(|builtin| builtin.name == name) {
        Some(scenario) => {
            let text = change(scenario.text)?;
            Scenario::parse(&display_name, &text, &no_files)
                .map_err(|errors| changed_scenario_error(name, &text, errors))
        }
        None => Err(unknown_scenario(name)),
    }
}

/// Returns the error of a scenario that the command line has changed.
///
/// For an event that is now too late, it names the event by number, since its line is not in the
/// file.
fn changed_scenario_error(name: &str, text: &str, errors: ScenarioErrors) -> CliError {
    let late_event =
        errors.problems().iter().find(|problem| problem.message.contains(AFTER_LAST_FLOW));
    let event_number = late_event.and_then(|problem| {
        let (line, _) = problem.position?;
        let event_count =
            text.lines().take(line).filter(|line| line.trim() == "[[timeline]]").count();
        event_count.checked_sub(1)
    });
    let Some(event_number) = event_number else { return CliError::Scenario(errors) };
    let is_file = Path::new(name).is_file() || looks_like_a_path(name);
    let event_location = if is_file {
        format!("the event is in `{name}`")
    } else {
        format!("`towpath scenarios show {name}` prints the event")
    };
    let hint =
        format!("run longer, or move it: `--set timeline.{event_number}.at=1s`; {event_location}");
    CliError::ChangedScenario { errors, hint }
}

/// Returns true if `name` means a scenario rather than a result.
///
/// A folder with the name of a built-in scenario is written `./NAME`.
pub(crate) fn is_scenario(name: &str) -> bool {
    let toml = Path::new(name).extension().is_some_and(|ending| ending == "toml");
    toml || builtin().iter().any(|builtin| builtin.name == name)
}

fn looks_like_a_path(name: &str) -> bool {
    name.contains('/') || Path::new(name).extension().is_some_and(|ending| ending == "toml")
}

fn unknown_scenario(name: &str) -> CliError {
    // The best match shares the longest prefix or whole words with the given name.
    let similarity = |other: &str| {
        let prefix_chars = other.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
        let shared_words = other.split('-').filter(|word| name.contains(word)).count();
        prefix_chars + 3 * shared_words
    };
    // Of equally similar names, the shortest has the fewest extra characters.
    let rank = |other: &str| (similarity(other), Reverse(other.len()));
    let best = builtin().iter().max_by_key(|builtin| rank(builtin.name));
    let hint = match best.filter(|best| similarity(best.name) >= 3) {
        Some(best) => format!("did you mean `{}`? `towpath scenarios` lists them", best.name),
        None => "`towpath scenarios` lists the built-in ones".to_owned(),
    };
    CliError::UnknownScenario { name: name.to_owned(), hint }
}
