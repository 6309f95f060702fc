//! Scenarios by file or by name.

use std::cmp::Reverse;
use std::path::Path;

use towpath_measure::input::{self, Budget, TEXT_BYTES};
use towpath_measure::scenario::{Scenario, builtin, no_files};

use crate::error::CliError;

/// Reads a scenario: a file if there is one of that name, else a built-in one.
pub(crate) fn load(name: &str) -> Result<Scenario, CliError> {
    let path = Path::new(name);
    if path.is_file() || looks_like_a_path(name) {
        let bytes = Budget::new(TEXT_BYTES).and_then(|budget| budget.read(path));
        let bytes = bytes.map_err(|source| CliError::Read { path: path.to_owned(), source })?;
        let traces = input::beside(path.parent().unwrap_or(Path::new("")));
        return Ok(Scenario::parse_bytes(name, &bytes, &traces)?);
    }
    match builtin().iter().find(|builtin| builtin.name == name) {
        Some(found) => Ok(Scenario::parse(name, found.text, &no_files)?),
        None => Err(unknown(name)),
    }
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
