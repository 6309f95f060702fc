//! One run of a study, as a row of its table.

mod figures;
mod series;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use towpath_measure::scenario::{Transport, World};

pub use figures::figures;
pub use series::{SECOND_PREFIX, per_second};

/// What became of one run. A run that failed is a row, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// 32 hexadecimal digits that say what was run: equal keys, equal runs.
    pub key: String,
    /// Name of the variant: the curve to which the run belongs.
    pub variant: String,
    /// Where it was run.
    pub world: World,
    /// Transport of the flows that have none of their own.
    pub transport: Transport,
    /// Seed of the run.
    pub seed: u64,
    /// The value of each axis and draw, by its name, as the plan writes it.
    pub parameters: BTreeMap<String, Parameter>,
    /// Why there are no figures, if there are none.
    pub error: Option<String>,
    /// Figures in base units (bit/s, seconds, bytes, counts, shares from 0 to 1) by name, such as
    /// `goodput` or `path.wifi.goodput`. What was not measured is not there; what never came is
    /// infinite, and `null` as JSON.
    #[serde(serialize_with = "finite", deserialize_with = "or_infinite")]
    pub figures: BTreeMap<String, f64>,
}

/// The value of an axis in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// As the plan writes it, such as `600 KB`.
    pub text: String,
    /// In base units, where it is a quantity or a number: 600000.
    pub number: Option<f64>,
}

fn finite<S: Serializer>(figures: &BTreeMap<String, f64>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.iter().map(|(name, value)| (name, value.is_finite().then_some(value))))
}

fn or_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let read = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(read.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::INFINITY))).collect())
}
