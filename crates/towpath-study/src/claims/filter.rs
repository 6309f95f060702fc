//! Selection of the runs that a check concerns.

use std::collections::BTreeMap;

use towpath_scenario::World;

use super::Bound;
use crate::row::{Parameter, RunRow};

/// Required properties of runs; properties that are not set match every run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunFilter {
    /// Accepted variants; any if empty.
    pub variants: Vec<String>,
    /// Required world; `None` accepts every world.
    pub world: Option<World>,
    /// Required parameter values, by name of an axis or draw.
    pub parameters: BTreeMap<String, ParameterFilter>,
}

/// Condition on a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterFilter {
    /// Every bound must be met.
    Bounds(Vec<Bound>),
    /// One of the values must match.
    OneOf(Vec<Parameter>),
}

impl RunFilter {
    /// Returns true if the filter selects a run.
    pub fn admits(&self, row: &RunRow) -> bool {
        (self.variants.is_empty() || self.variants.contains(&row.variant))
            && self.world.is_none_or(|world| world == row.world)
            && self.parameters.iter().all(|(name, condition)| {
                row.parameters.get(name).is_some_and(|parameter| condition.admits(parameter))
            })
    }
}

impl ParameterFilter {
    fn admits(&self, parameter: &Parameter) -> bool {
        match self {
            Self::Bounds(bounds) => parameter.number.is_some_and(|number| {
                bounds.iter().all(|bound| bound.operator.holds(number, bound.value))
            }),
            Self::OneOf(values) => values.iter().any(|value| is_same_value(value, parameter)),
        }
    }
}

/// Returns true if two parameters are equal: by value where both have one, in any notation.
pub(crate) fn is_same_value(a: &Parameter, b: &Parameter) -> bool {
    match (a.number, b.number) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        _ => a.text == b.text,
    }
}
