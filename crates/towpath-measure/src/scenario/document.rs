//! Reader for other TOML files of towpath, as strict as for scenarios. Unknown keys, wrong types
//! and wrong units are reported with line, column and a hint.

use std::fmt::Write as _;

pub use super::keys::{KeyPresence, KeySchema, TableSchema, ValueKind, key};
pub use super::nearest::nearest;
pub use super::problem::{Problems, SpannedProblem, alternatives, quote};
pub use super::section::{Section, Value};

use super::problem::ScenarioErrors;

/// Parses `text`, whose top-level table has the schema `shape`, with `decode`. Reports keys that
/// `decode` does not take. `noun` names the file in messages: “the plan”.
pub fn read<T>(
    file_name: &str,
    text: &str,
    (shape, noun): (&'static TableSchema, &str),
    decode: impl FnOnce(&mut Section<'_>, &Problems) -> T,
) -> Result<T, ScenarioErrors> {
    super::check_size(file_name, text.len())?;
    let refuse = |findings| ScenarioErrors::new(file_name, text, findings);
    let root = toml::de::DeTable::parse(text)
        .map_err(|error| refuse(vec![super::syntax_error(text, &error)]))?;
    let problems = Problems::default();
    let mut top = Section::new(shape, root.get_ref(), 0..0, &problems, noun.to_owned());
    let decoded = decode(&mut top, &problems);
    top.finish();
    let findings = problems.into_problems();
    if findings.is_empty() { Ok(decoded) } else { Err(refuse(findings)) }
}

/// Returns the reference of some tables as Markdown.
pub fn reference<'a>(title: &str, shapes: impl IntoIterator<Item = &'a TableSchema>) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{title}\n\n");
    for shape in shapes {
        super::keys::section(&mut out, shape);
    }
    out
}
