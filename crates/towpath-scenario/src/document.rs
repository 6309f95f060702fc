//! Reader for other TOML files of towpath, as strict as for scenarios. Unknown keys, wrong types
//! and wrong units are reported with line, column and a hint.

use std::fmt::Write as _;

pub use super::keys::{KeyPresence, KeySchema, TableSchema, ValueKind, key, present_key};
pub use super::nearest::nearest;
pub use super::problem::{Problems, SpannedProblem, alternatives, quote};
pub use super::section::{Section, Value};

use super::problem::ScenarioErrors;

/// Parses `text`, whose top-level table is described by `schema`, with `decode`. Reports keys that
/// `decode` does not take. `noun` names the file in messages: “the plan”.
pub fn read<T>(
    file_name: &str,
    text: &str,
    (schema, noun): (&'static TableSchema, &str),
    decode: impl FnOnce(&mut Section<'_>, &Problems) -> T,
) -> Result<T, ScenarioErrors> {
    super::check_size(file_name, text.len())?;
    let into_errors = |found_problems| ScenarioErrors::new(file_name, text, found_problems);
    let root = toml::de::DeTable::parse(text)
        .map_err(|error| into_errors(vec![super::syntax_error(text, &error)]))?;
    let problems = Problems::default();
    let mut top = Section::new(schema, root.get_ref(), 0..0, &problems, noun.to_owned());
    let decoded = decode(&mut top, &problems);
    top.finish();
    let found_problems = problems.into_problems();
    if found_problems.is_empty() { Ok(decoded) } else { Err(into_errors(found_problems)) }
}

/// Returns the reference of some tables as Markdown.
pub fn reference<'a>(title: &str, schemas: impl IntoIterator<Item = &'a TableSchema>) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{title}\n\n");
    for schema in schemas {
        super::keys::section(&mut out, schema);
    }
    out
}
