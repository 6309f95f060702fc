//! Edits of a scenario's text by dotted keys, as in `towpath run --set paths.wifi.delay=30ms`.
//!
//! The text is edited in place, so that order and comments are kept: the edited text is the
//! scenario as run. Values are validated later, when the text is parsed.

mod resolve;

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::keys::ValueKind;

pub use resolve::known_keys;

/// Reason why a scenario cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChangeError {
    message: String,
    /// Suggested fix, shown after the error.
    pub hint: String,
}

impl ChangeError {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// One value of the document to set.
#[derive(Debug, Clone)]
struct SetTarget {
    /// Table names and array indices.
    path: Vec<String>,
    kind: &'static ValueKind,
}

/// Returns `text` with the value of `key` set, replacing any previous value.
///
/// Keys are written as in TOML, with indices from 0 in arrays: `paths.wifi.delay`,
/// `flows.0.duration`, `run.seed`. `path.wifi` and `flow.0` are accepted as synonyms. `*` matches
/// all items, and `flows.duration` sets the duration of all flows. Text that is not valid TOML is
/// returned unchanged, since parsing it later reports the error.
pub fn set(text: &str, key: &str, value: &str) -> Result<String, ChangeError> {
    let Ok(root) = DeTable::parse(text) else { return Ok(text.to_owned()) };
    let mut changed = text.to_owned();
    for target in resolve::targets(root.get_ref(), key)? {
        let value = as_toml(target.kind, value.trim());
        changed = apply_edit(&changed, &target.path, &value, key)?;
    }
    Ok(changed)
}

/// Returns `text` with the duration of all time-limited flows set to `duration`.
pub fn set_duration(text: &str, duration: &str) -> Result<String, ChangeError> {
    let Ok(root) = DeTable::parse(text) else { return Ok(text.to_owned()) };
    let flows = resolve::flow_patterns(root.get_ref());
    let timed_flows: Vec<_> = flows.iter().filter(|(_, pattern)| has_duration(pattern)).collect();
    if timed_flows.is_empty() {
        let message = "no flow of this scenario lasts for a time that can be set";
        let hint = match flows.first() {
            None => "add `[[flows]]` to the file".to_owned(),
            Some((number, pattern)) if pattern == "ping" => {
                format!("`ping` ends after its requests: `--set flows.{number}.count=50`")
            }
            Some((_, pattern)) => format!("`{pattern}` ends with its messages"),
        };
        return Err(ChangeError::new(message, hint));
    }
    let mut changed = text.to_owned();
    for (number, _) in timed_flows {
        changed = set(&changed, &format!("flows.{number}.duration"), duration)?;
    }
    Ok(changed)
}

/// Returns true if flows of this pattern have a `duration`.
fn has_duration(pattern: &str) -> bool {
    !matches!(pattern, "ping" | "trace")
}

/// Returns `text` with `key` set in `[run]`, and for all hosts that set their own.
pub fn set_for_all_hosts(text: &str, key: &str, value: &str) -> Result<String, ChangeError> {
    let Ok(root) = DeTable::parse(text) else { return Ok(text.to_owned()) };
    let mut changed = set(text, &format!("run.{key}"), value)?;
    for host in resolve::hosts_with(root.get_ref(), key) {
        changed = set(&changed, &format!("hosts.{host}.{key}"), value)?;
    }
    Ok(changed)
}

/// Splits `KEY=VALUE`, the argument of `--set`.
pub fn split_assignment(text: &str) -> Result<(&str, &str), ChangeError> {
    let example = "write a key and its value: `--set paths.wifi.delay=30ms`";
    let empty_error = || ChangeError::new(format!("`{text}` sets nothing"), example);
    let (key, value) = text.split_once('=').ok_or_else(empty_error)?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || value.is_empty() { Err(empty_error()) } else { Ok((key, value)) }
}

/// Converts a command-line value to TOML.
fn as_toml(kind: &ValueKind, value: &str) -> String {
    if value.starts_with(['"', '\'', '[', '{']) {
        return value.to_owned();
    }
    let is_literal = value.parse::<i64>().is_ok() || matches!(value, "true" | "false");
    match kind {
        ValueKind::Bool | ValueKind::Integer(..) | ValueKind::Any(_) if is_literal => {
            value.to_owned()
        }
        ValueKind::List(_) => toml_list(value),
        ValueKind::OneOf(kinds) if value.contains(',') && kinds.iter().any(is_list) => {
            toml_list(value)
        }
        ValueKind::Sides(inner) => as_toml(inner, value),
        ValueKind::Text
        | ValueKind::Name(_)
        | ValueKind::Bool
        | ValueKind::Integer(..)
        | ValueKind::Rate
        | ValueKind::Duration
        | ValueKind::Size
        | ValueKind::Packets
        | ValueKind::Percent
        | ValueKind::Words(_)
        | ValueKind::Bound
        | ValueKind::OneOf(_)
        | ValueKind::Table(_)
        | ValueKind::Named(..)
        | ValueKind::Any(_)
        | ValueKind::Tables(_) => toml_string(value),
    }
}

fn is_list(kind: &ValueKind) -> bool {
    matches!(kind, ValueKind::List(_))
}

fn toml_list(value: &str) -> String {
    let parts: Vec<_> = value.split(',').map(|part| toml_string(part.trim())).collect();
    format!("[{}]", parts.join(", "))
}

fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Position at which a value is written.
enum EditPosition {
    /// Replaces the existing value.
    Replace(Range<usize>),
    /// Replaces a plain value for both directions by a table, in which this sets one direction.
    SplitDirections(Range<usize>, &'static str),
    /// After the header of its table, with the rest of the key.
    AfterHeader(Range<usize>, Vec<String>),
    /// In the inline table at this range, with the rest of the key.
    InlineTable(Range<usize>, Vec<String>),
    /// New key at the end of the text.
    Append(Vec<String>),
    /// The value is a table with its own header.
    Occupied,
}

fn apply_edit(text: &str, path: &[String], value: &str, key: &str) -> Result<String, ChangeError> {
    // A previous change may have made the text invalid; parsing it later reports that.
    let Ok(root) = DeTable::parse(text) else { return Ok(text.to_owned()) };
    let replace = |range: &Range<usize>, replacement: &str| {
        let before = text.get(..range.start).unwrap_or(text);
        format!("{before}{replacement}{}", text.get(range.end..).unwrap_or(""))
    };
    let key_line = |rest: &[String]| format!("{} = {value}", dotted(rest));
    let attempts = match edit_position(text, root.get_ref(), path) {
        EditPosition::Replace(range) => vec![replace(&range, value)],
        EditPosition::SplitDirections(range, other) => {
            let current = text.get(range.clone()).unwrap_or("");
            let side = path.last().map_or("up", String::as_str);
            vec![replace(&range, &format!("{{ {side} = {value}, {other} = {current} }}"))]
        }
        EditPosition::AfterHeader(header, rest) => {
            let after = text.get(header.end..).unwrap_or("");
            let end = header.end + after.find('\n').unwrap_or(after.len());
            vec![replace(&(end..end), &format!("\n{}", key_line(&rest)))]
        }
        EditPosition::InlineTable(braces, rest) => {
            let content = text.get(braces.start + 1..braces.end.saturating_sub(1)).unwrap_or("");
            let separator = if content.trim().is_empty() { " " } else { "," };
            let position = braces.start + 1;
            vec![replace(&(position..position), &format!(" {}{separator}", key_line(&rest)))]
        }
        EditPosition::Append(rest) => append_key(text, &rest, value),
        EditPosition::Occupied => Vec::new(),
    };
    let is_valid = |attempt: &String| DeTable::parse(attempt).is_ok();
    // An invalid TOML value fails at any position; the first attempt gives the error message.
    let first_attempt = attempts.first().cloned();
    attempts.into_iter().find(is_valid).or(first_attempt).ok_or_else(|| {
        let message =
            format!("`{key}` is a table in this scenario, so it cannot be set as a whole");
        ChangeError::new(message, "set the keys in it, or change the file")
    })
}

/// Appends the key in a new table at the end, or at the start of the document if that is invalid.
fn append_key(text: &str, rest: &[String], value: &str) -> Vec<String> {
    let at_start = format!("{} = {value}\n{text}", dotted(rest));
    match rest.split_last() {
        Some((key, tables)) if !tables.is_empty() => {
            let line_break = if text.ends_with('\n') { "" } else { "\n" };
            let key = dotted(std::slice::from_ref(key));
            let table = format!("{text}{line_break}\n[{}]\n{key} = {value}\n", dotted(tables));
            vec![table, at_start]
        }
        _ => vec![at_start],
    }
}

fn edit_position(text: &str, root: &DeTable<'_>, path: &[String]) -> EditPosition {
    let starts_with = |span: &Range<usize>, mark: char| {
        text.get(span.clone()).is_some_and(|t| t.starts_with(mark))
    };
    let mut table = root;
    let mut enclosing = EditPosition::Append(path.to_vec());
    let mut steps = path.iter().enumerate();
    while let Some((depth, name)) = steps.next() {
        let Some((_, mut value)) = table.iter().find(|(key, _)| key.get_ref() == name.as_str())
        else {
            return enclosing;
        };
        let mut consumed = depth + 1;
        if let DeValue::Array(array) = value.get_ref()
            && let Some((depth, index)) = steps.next()
        {
            let Some(element) = index.parse().ok().and_then(|n: usize| array.get(n)) else {
                return enclosing;
            };
            (value, consumed) = (element, depth + 1);
        }
        let span = value.span();
        let rest = path.get(consumed..).unwrap_or_default();
        let Some(inner) = value.get_ref().as_table() else {
            return match rest {
                [side] if side == "up" => EditPosition::SplitDirections(span, "down"),
                [side] if side == "down" => EditPosition::SplitDirections(span, "up"),
                _ => EditPosition::Replace(span),
            };
        };
        let (is_inline, has_header) = (starts_with(&span, '{'), starts_with(&span, '['));
        if rest.is_empty() {
            return if is_inline { EditPosition::Replace(span) } else { EditPosition::Occupied };
        }
        enclosing = match (is_inline, has_header) {
            (true, _) => EditPosition::InlineTable(span, rest.to_vec()),
            (_, true) => EditPosition::AfterHeader(span, rest.to_vec()),
            (false, false) => EditPosition::Append(path.to_vec()),
        };
        table = inner;
    }
    enclosing
}

/// Formats a dotted TOML key, with quotes where needed.
fn dotted(names: &[String]) -> String {
    let is_bare_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_bare_key = |name: &String| name.chars().all(is_bare_char) && !name.is_empty();
    let parts =
        names.iter().map(|name| if is_bare_key(name) { name.clone() } else { toml_string(name) });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
