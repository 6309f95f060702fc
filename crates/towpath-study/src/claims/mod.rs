//! Checks of rows against a source's claims in `expected.toml`.
//!
//! [`ClaimSet::parse`] reads the file. The plan's variants and axes are known to it, so a claim
//! about something that is not run is an error. [`ClaimSet::check`] compares the rows with the
//! claims. Each check ends with one sentence that contains the measured value.

mod check;
mod filter;
mod read;

use towpath_scenario::units::Dimension;
use towpath_scenario::{Operator, ScenarioErrors, World};

pub use check::{CheckOutcome, CheckResult, ClaimVerdict};
pub use filter::{ParameterFilter, RunFilter};
pub use read::reference_markdown;

use crate::plan::Plan;

/// Claims of a source about one figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClaimSet {
    /// Claims in the order of the file.
    pub claims: Vec<Claim>,
    /// Names of the plan's axes: runs with equal values of them are one point.
    pub axes: Vec<String>,
}

/// One claim of a source, with its expected outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The claim in words.
    pub text: String,
    /// Publication and place of the claim.
    pub source: String,
    /// Outcome that the reproduction is expected to find.
    pub outcome: ClaimOutcome,
    /// Reason for a failing claim, and the experiment that shows it.
    pub deviation: Option<String>,
    /// Worlds in which it is checked; all if empty.
    pub worlds: Vec<World>,
    /// Checks that all must hold.
    pub checks: Vec<ClaimCheck>,
}

/// Outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// Every check of it holds.
    Holds,
    /// At least one check fails.
    Fails,
}

impl ClaimOutcome {
    /// Returns the outcome as a word: `holds` or `fails`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
        }
    }
}

/// One comparison of measured values with a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimCheck {
    /// Name of the metric in the rows.
    pub metric: String,
    /// Runs that the check concerns.
    pub filter: RunFilter,
    /// Statistic over the runs of a point.
    pub statistic: Statistic,
    /// Bounds for the value, or for its ratio to other runs.
    pub bound: CheckBound,
    /// Points that must meet the bound.
    pub quantifier: PointQuantifier,
    /// True if it is also checked when only the quick part was run.
    pub quick: bool,
}

/// Requirement on a value.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckBound {
    /// The value must meet these bounds.
    Is(Vec<Bound>),
    /// Ratio of the value to that of other runs at the same point, which must meet the bounds.
    Ratio {
        /// Filter of the other runs; properties that are not set are those of the point.
        than: RunFilter,
        /// Bounds of the ratio, without unit.
        bounds: Vec<Bound>,
    },
}

/// An operator and a quantity.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Comparison operator of the bound.
    pub operator: Operator,
    /// Limit in base units.
    pub value: f64,
    /// Dimension of the quantity, such as a time or a rate.
    pub dimension: Dimension,
}

/// Statistic over a point's values, one for each seed (and sample).
#[derive(Debug, Clone, PartialEq)]
pub enum Statistic {
    /// Median of the values.
    Median,
    /// Arithmetic mean of the values.
    Mean,
    /// Smallest of the values.
    Min,
    /// Largest of the values.
    Max,
    /// Value at this percentile, 0 to 100.
    Percentile(f64),
    /// Share of the runs whose value meets a bound, 0 to 1.
    Share(Bound),
}

/// Points that must meet the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointQuantifier {
    /// Every point must meet it.
    All,
    /// At least one point must meet it.
    Any,
    /// The mean over all points must meet it.
    Mean,
}

impl ClaimSet {
    /// Reads the claims about the runs of `plan`. `file_name` is only for messages.
    pub fn parse(file_name: &str, text: &str, plan: &Plan) -> Result<Self, ScenarioErrors> {
        read::read_claims(file_name, text, plan)
    }
}

#[cfg(test)]
mod tests;
