//! Which runs a check is about.

use std::collections::BTreeMap;

use towpath_measure::scenario::World;

use super::Bound;
use crate::row::{Parameter, RunRow};

/// Runs with these properties; what is not said is not asked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunFilter {
    /// One of these variants; any if there are none.
    pub variants: Vec<String>,
    /// In this world.
    pub world: Option<World>,
    /// By name of an axis or draw.
    pub parameters: BTreeMap<String, ParameterFilter>,
}

/// What a parameter must be.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterFilter {
    /// All of these.
    Bounds(Vec<Bound>),
    /// One of these.
    OneOf(Vec<Parameter>),
}

impl RunFilter {
    /// Whether a run is meant.
    pub fn admits(&self, row: &RunRow) -> bool {
        (self.variants.is_empty() || self.variants.contains(&row.variant))
            && self.world.is_none_or(|world| world == row.world)
            && self.parameters.iter().all(|(name, wanted)| {
                row.parameters.get(name).is_some_and(|parameter| wanted.admits(parameter))
            })
    }
}

impl ParameterFilter {
    fn admits(&self, parameter: &Parameter) -> bool {
        match self {
            Self::Bounds(bounds) => parameter.number.is_some_and(|number| {
                bounds.iter().all(|bound| bound.operator.holds(number, bound.value))
            }),
            Self::OneOf(values) => values.iter().any(|value| same(value, parameter)),
        }
    }
}

/// Whether two parameters are the same: by value where both have one, however they are written.
pub(crate) fn same(a: &Parameter, b: &Parameter) -> bool {
    match (a.number, b.number) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        _ => a.text == b.text,
    }
}
