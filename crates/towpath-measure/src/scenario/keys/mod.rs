//! Which keys a scenario may have: one table that drives the reader's check for unknown keys, the
//! JSON Schema ([`json_schema`]) and the reference ([`reference_markdown`]).

mod flow;
mod reference;
mod schema;
mod stack;
mod tables;

pub(super) use flow::FLOW;
pub use reference::reference_markdown;
pub use schema::json_schema;
pub(super) use stack::{MIDDLEBOX, SWITCHES};
#[cfg(test)]
pub(super) use tables::ALL;
pub(super) use tables::{
    BOTTLENECK, BURST, CODEL, ENDPOINT, EVENT, GILBERT_ELLIOTT, HOST, HTB, JITTER, LOSS, METRICS,
    MPTCP, Metric, PATH, PIE, QUEUE, RATE, RUN, SCENARIO, SIDES, TBF,
};

/// A kind of TOML table.
#[derive(Debug)]
pub(super) struct Shape {
    /// With its article, as messages call it: “a path”.
    pub(super) noun: &'static str,
    /// How it is written, for the reference: `[paths.NAME]`.
    pub(super) heading: &'static str,
    /// What it is for.
    pub(super) doc: &'static str,
    /// Its keys, in groups that several shapes may share.
    pub(super) groups: &'static [&'static [Key]],
}

impl Shape {
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

/// One key of a table.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) need: Need,
    pub(super) doc: &'static str,
}

/// Whether a key must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    /// May be missing; the text says what holds then.
    Else(&'static str),
}

/// What a key's value may be.
#[derive(Debug)]
pub(super) enum Kind {
    Text,
    /// Lower-case letters, digits and hyphens, at most so many.
    Name(usize),
    Bool,
    Integer(u64, u64),
    Rate,
    Duration,
    Size,
    Packets,
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// An operator and a quantity.
    Bound,
    List(&'static Self),
    OneOf(&'static [Self]),
    /// The kind itself, or `{ up = …, down = … }`.
    Sides(&'static Self),
    Table(&'static Shape),
    /// Tables by name, the name at most so long.
    Named(&'static Shape, usize),
    /// `[[…]]`.
    Tables(&'static Shape),
}

const fn key(name: &'static str, kind: Kind, need: Need, doc: &'static str) -> Key {
    Key { name, kind, need, doc }
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
