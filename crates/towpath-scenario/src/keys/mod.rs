//! Schema of scenario files: one table of keys for the unknown-key check, the JSON Schema
//! ([`json_schema`]) and the reference ([`reference_markdown`]).

mod expectation;
mod flow;
mod link;
mod reference;
mod schema;
mod stack;
mod tables;

pub(super) use expectation::{METRICS, MetricKind};
pub(super) use flow::FLOW;
pub(super) use link::{
    BOTTLENECK, BURST, CODEL, GILBERT_ELLIOTT, HTB, JITTER, LOSS, PATH, PIE, QUEUE, RATE, SIDES,
    TBF,
};
pub use reference::reference_markdown;
pub(super) use reference::section;
pub use schema::json_schema;
pub(super) use stack::{MIDDLEBOX, PROFILE_SWITCHES};
pub(super) use tables::{ALL, ENDPOINT, EVENT, HOST, MPTCP, RUN, SCENARIO};

/// Returns the metrics that an expectation may use; `PATH` is a placeholder for a path name.
pub fn metric_names() -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|(name, _)| *name)
}

/// Schema of one kind of TOML table.
#[derive(Debug)]
pub struct TableSchema {
    /// Noun with its article, for messages: “a path”.
    pub noun: &'static str,
    /// Table header for the reference: `[paths.NAME]`.
    pub heading: &'static str,
    /// Purpose of the table, for the reference.
    pub doc: &'static str,
    /// Keys of the table, in groups that several tables may share.
    pub key_groups: &'static [&'static [KeySchema]],
}

impl TableSchema {
    /// Returns all keys of the table.
    pub fn keys(&self) -> impl Iterator<Item = &'static KeySchema> {
        self.key_groups.iter().flat_map(|group| group.iter())
    }

    /// Returns true if the table has the key `name`.
    pub fn has(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

/// Schema of one key in a table.
#[derive(Debug)]
pub struct KeySchema {
    /// Name of the key in TOML.
    pub name: &'static str,
    /// Allowed values of the key.
    pub kind: ValueKind,
    /// Presence: required or optional.
    pub presence: KeyPresence,
    /// Meaning of the key, for the reference.
    pub doc: &'static str,
    /// Name of the key in files written by earlier versions; still read, but not documented.
    pub former_name: Option<&'static str>,
}

impl KeySchema {
    /// Returns the key with a name that earlier versions used.
    #[must_use]
    pub const fn formerly(mut self, name: &'static str) -> Self {
        self.former_name = Some(name);
        self
    }
}

/// Returns the present name of a key that earlier versions wrote under `name`; else `name` itself.
pub fn present_key(name: &str) -> &str {
    let mut keys = ALL.iter().flat_map(|schema| schema.keys());
    keys.find(|key| key.former_name == Some(name)).map_or(name, |key| key.name)
}

/// Presence of a key: required or optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPresence {
    /// The key is required; a table without it is rejected.
    Required,
    /// The key is optional; the text describes the default.
    Optional(&'static str),
}

/// Allowed values of a key.
#[derive(Debug)]
pub enum ValueKind {
    /// Any string of characters.
    Text,
    /// Lower-case letters, digits and hyphens, up to this length.
    Name(usize),
    /// Boolean: `true` or `false`.
    Bool,
    /// A whole number between these two, both included.
    Integer(u64, u64),
    /// A rate in bits per second.
    Rate,
    /// A time with its unit.
    Duration,
    /// A size in bytes, with its unit.
    Size,
    /// A number of packets, with its unit.
    Packets,
    /// A percentage of a whole.
    Percent,
    /// One of these keywords.
    Words(&'static [&'static str]),
    /// A comparison operator and a quantity.
    Bound,
    /// A list of such values.
    List(&'static Self),
    /// A value of any of these kinds.
    OneOf(&'static [Self]),
    /// The kind itself, or `{ up = …, down = … }`.
    Sides(&'static Self),
    /// A table with this schema.
    Table(&'static TableSchema),
    /// Tables by name; names up to this length.
    Named(&'static TableSchema, usize),
    /// Any TOML value; the text describes it.
    Any(&'static str),
    /// An array of tables, `[[…]]`.
    Tables(&'static TableSchema),
}

/// Creates a key; table schemas are `static` arrays of keys.
pub const fn key(
    name: &'static str,
    kind: ValueKind,
    presence: KeyPresence,
    doc: &'static str,
) -> KeySchema {
    KeySchema { name, kind, presence, doc, former_name: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_table_has_a_key_twice() {
        for schema in ALL {
            let mut names = BTreeSet::new();
            for key in schema.keys() {
                assert!(names.insert(key.name), "{} twice in {}", key.name, schema.noun);
                assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}", key.name);
            }
        }
    }
}
