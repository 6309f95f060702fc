//! Scenarios by file or by name.

use std::cmp::Reverse;
use std::path::Path;

use towpath_measure::input::{self, DEFAULT_TEXT_LIMIT, ReadBudget};
use towpath_measure::scenario::{AFTER_LAST_FLOW, Scenario, ScenarioErrors, builtin, no_files};

use crate::changes::ScenarioChanges;
use crate::error::CliError;

/// Reads a scenario: a file if there is one of that name, else a built-in one.
pub(crate) fn load(name: &str) -> Result<Scenario, CliError> {
    load_changed(name, &ScenarioChanges::default())
}

/// The same with what the command line changes of it.
pub(crate) fn load_changed(name: &str, changes: &ScenarioChanges) -> Result<Scenario, CliError> {
    let mut scenario = read(name, changes)?;
    scenario.remarks = changes.conditions();
    Ok(scenario)
}

fn read(name: &str, changes: &ScenarioChanges) -> Result<Scenario, CliError> {
    let change = |text: &str| {
        changes
            .apply(text)
            .map_err(|error| CliError::Unavailable { what: error.to_string(), hint: error.hint })
    };
    // Whoever looks for a line will not find it in the file.
    let shown = if changes.is_empty() { name.to_owned() } else { format!("{name}, as changed") };
    let path = Path::new(name);
    if path.is_file() || looks_like_a_path(name) || (path.is_dir() && !is_scenario(name)) {
        let bytes = ReadBudget::new(DEFAULT_TEXT_LIMIT).and_then(|budget| budget.read(path));
        let bytes = bytes.map_err(|source| CliError::Read { path: path.to_owned(), source })?;
        let traces = input::sibling_files(path.parent().unwrap_or(Path::new("")));
        return match std::str::from_utf8(&bytes) {
            Ok(text) if !changes.is_empty() => {
                // What is wrong without the changes is told with the file's own lines.
                Scenario::parse_bytes(name, &bytes, &traces)?;
                let text = change(text)?;
                Scenario::parse(&shown, &text, &traces)
                    .map_err(|errors| changed_scenario_error(name, &text, errors))
            }
            Ok(_) | Err(_) => Ok(Scenario::parse_bytes(name, &bytes, &traces)?),
        };
    }
    match builtin().iter().find(|builtin| builtin.name == name) {
        Some(found) => {
            let text = change(found.text)?;
            Scenario::parse(&shown, &text, &no_files)
                .map_err(|errors| changed_scenario_error(name, &text, errors))
        }
        None => Err(unknown(name)),
    }
}

/// What is wrong in a scenario that the command line has changed. Nobody sees the line of an event
/// that comes too late now.
fn changed_scenario_error(name: &str, text: &str, errors: ScenarioErrors) -> CliError {
    let late = errors.problems().iter().find(|problem| problem.message.contains(AFTER_LAST_FLOW));
    let number = late.and_then(|problem| {
        let (line, _) = problem.position?;
        let before = text.lines().take(line).filter(|line| line.trim() == "[[timeline]]").count();
        before.checked_sub(1)
    });
    let Some(number) = number else { return CliError::Scenario(errors) };
    let is_file = Path::new(name).is_file() || looks_like_a_path(name);
    let seen = if is_file {
        format!("the event is in `{name}`")
    } else {
        format!("`towpath scenarios show {name}` prints the event")
    };
    let hint = format!("run longer, or move it: `--set timeline.{number}.at=1s`; {seen}");
    CliError::ChangedScenario { errors, hint }
}

/// Whether `name` is meant as a scenario, where it could be a result as well. A folder that is named
/// like a built-in scenario is meant by `./NAME`.
pub(crate) fn is_scenario(name: &str) -> bool {
    let toml = Path::new(name).extension().is_some_and(|ending| ending == "toml");
    toml || builtin().iter().any(|builtin| builtin.name == name)
}

fn looks_like_a_path(name: &str) -> bool {
    name.contains('/') || Path::new(name).extension().is_some_and(|ending| ending == "toml")
}

fn unknown(name: &str) -> CliError {
    // The nearest is the one that shares most of its beginning or whole words with what was typed.
    let likeness = |other: &str| {
        let same = other.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
        let words = other.split('-').filter(|word| name.contains(word)).count();
        same + 3 * words
    };
    // Of names that are equally like it, the shortest has the least that was not typed.
    let rank = |other: &str| (likeness(other), Reverse(other.len()));
    let best = builtin().iter().max_by_key(|builtin| rank(builtin.name));
    let hint = match best.filter(|best| likeness(best.name) >= 3) {
        Some(best) => format!("did you mean `{}`? `towpath scenarios` lists them", best.name),
        None => "`towpath scenarios` lists the built-in ones".to_owned(),
    };
    CliError::UnknownScenario { name: name.to_owned(), hint }
}
