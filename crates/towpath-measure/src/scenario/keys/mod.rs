//! Which keys a scenario may have: one table that drives the reader's check for unknown keys, the
//! JSON Schema ([`json_schema`]) and the reference ([`reference_markdown`]).

mod flow;
mod reference;
mod schema;
mod stack;
mod tables;

pub(super) use flow::FLOW;
pub use reference::reference_markdown;
pub(super) use reference::section;
pub use schema::json_schema;
pub(super) use stack::{MIDDLEBOX, PROFILE_SWITCHES};
#[cfg(test)]
pub(super) use tables::ALL;
pub(super) use tables::{
    BOTTLENECK, BURST, CODEL, ENDPOINT, EVENT, GILBERT_ELLIOTT, HOST, HTB, JITTER, LOSS, METRICS,
    MPTCP, MetricKind, PATH, PIE, QUEUE, RATE, RUN, SCENARIO, SIDES, TBF,
};

/// The metrics that an expectation may be about; `PATH` stands for the name of a path.
pub(crate) fn metric_names() -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|(name, _)| *name)
}

/// A kind of TOML table.
#[derive(Debug)]
pub struct TableSchema {
    /// With its article, as messages call it: “a path”.
    pub noun: &'static str,
    /// How it is written, for the reference: `[paths.NAME]`.
    pub heading: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys, in groups that several shapes may share.
    pub groups: &'static [&'static [KeySchema]],
}

impl TableSchema {
    /// All its keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static KeySchema> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// Whether it has this one.
    pub fn has(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

/// One key of a table.
#[derive(Debug)]
pub struct KeySchema {
    /// As it is written.
    pub name: &'static str,
    /// What its value may be.
    pub kind: ValueKind,
    /// Whether it must be there.
    pub need: KeyPresence,
    /// What it means, for the reference.
    pub doc: &'static str,
}

/// Whether a key must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPresence {
    /// Without it the table is refused.
    Required,
    /// May be missing; the text says what holds then.
    Optional(&'static str),
}

/// What a key's value may be.
#[derive(Debug)]
pub enum ValueKind {
    /// Any text.
    Text,
    /// Lower-case letters, digits and hyphens, at most so many.
    Name(usize),
    /// `true` or `false`.
    Bool,
    /// A whole number between two.
    Integer(u64, u64),
    /// Bits per second.
    Rate,
    /// A time.
    Duration,
    /// Bytes.
    Size,
    /// A number of packets.
    Packets,
    /// A part of a whole.
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// An operator and a quantity.
    Bound,
    /// Several values.
    List(&'static Self),
    /// Any of these kinds.
    OneOf(&'static [Self]),
    /// The kind itself, or `{ up = …, down = … }`.
    Sides(&'static Self),
    /// A table.
    Table(&'static TableSchema),
    /// Tables by name, the name at most so long.
    Named(&'static TableSchema, usize),
    /// Whatever TOML can say; the text says what is meant.
    Any(&'static str),
    /// `[[…]]`.
    Tables(&'static TableSchema),
}

/// A key; a table of keys is a `static` of these.
pub const fn key(
    name: &'static str,
    kind: ValueKind,
    need: KeyPresence,
    doc: &'static str,
) -> KeySchema {
    KeySchema { name, kind, need, doc }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_shape_has_a_key_twice() {
        for shape in ALL {
            let mut seen = BTreeSet::new();
            for key in shape.keys() {
                assert!(seen.insert(key.name), "{} twice in {}", key.name, shape.noun);
                assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}", key.name);
            }
        }
    }
}
