//! What a source claims, as checks of rows: `expected.toml`.
//!
//! [`ClaimSet::parse`] reads it, and knows the plan's variants and axes, so that a claim about
//! something that is not run is an error. [`ClaimSet::check`] holds the rows against it: each check
//! ends with one sentence that says the measured value.

mod check;
mod filter;
mod read;

use towpath_measure::scenario::units::Dimension;
use towpath_measure::scenario::{Operator, ScenarioErrors, World};

pub use check::{CheckOutcome, CheckResult, ClaimVerdict};
pub use filter::{ParameterFilter, RunFilter};
pub use read::reference_markdown;

use crate::plan::Plan;

/// Everything that a source claims about one figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClaimSet {
    /// In the order of the file.
    pub claims: Vec<Claim>,
    /// Names of the plan's axes: runs that are equal in them are one point.
    pub axes: Vec<String>,
}

/// One sentence of a source, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The claim in words.
    pub text: String,
    /// Who claims it, and where.
    pub source: String,
    /// What we found.
    pub outcome: ClaimOutcome,
    /// Why it fails, and the experiment that shows it.
    pub deviation: Option<String>,
    /// Only checked in these worlds; in all if there are none.
    pub worlds: Vec<World>,
    /// All must hold.
    pub checks: Vec<ClaimCheck>,
}

/// Whether a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// Every check of it does.
    Holds,
    /// One at least does not.
    Fails,
}

impl ClaimOutcome {
    /// `holds`, `fails`
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimCheck {
    /// Name of the row's figure.
    pub figure: String,
    /// Of which runs.
    pub of: RunFilter,
    /// What is made of the runs of a point.
    pub statistic: Statistic,
    /// Held against bounds, or against other runs.
    pub asked: CheckBound,
    /// At which of the points.
    pub over: PointQuantifier,
    /// Whether it is checked when only the thin part was run.
    pub quick: bool,
}

/// What a value must keep.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckBound {
    /// These bounds.
    Is(Vec<Bound>),
    /// The value, divided by the same value of other runs at the same point, must keep these.
    Ratio {
        /// The other runs; what it does not say is as at the point.
        than: RunFilter,
        /// Plain numbers.
        bounds: Vec<Bound>,
    },
}

/// An operator and a quantity.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// How they compare.
    pub operator: Operator,
    /// In base units.
    pub value: f64,
    /// What it is a quantity of.
    pub dimension: Dimension,
}

/// What is made of a point's values, one for each seed (and sample).
#[derive(Debug, Clone, PartialEq)]
pub enum Statistic {
    /// The middle value.
    Median,
    /// Their mean.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The value below which so many per cent lie.
    Percentile(f64),
    /// The part of the runs whose value keeps a bound.
    Share(Bound),
}

/// Which points must keep the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointQuantifier {
    /// Every one.
    All,
    /// One is enough.
    Any,
    /// Their mean.
    Mean,
}

impl ClaimSet {
    /// Reads the claims about the runs of `plan`. `file_name` is only for messages.
    pub fn parse(file_name: &str, text: &str, plan: &Plan) -> Result<Self, ScenarioErrors> {
        read::expected(file_name, text, plan)
    }
}

#[cfg(test)]
mod tests;
