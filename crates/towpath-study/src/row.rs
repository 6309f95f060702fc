//! One run of a study, as a row of its table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use towpath_measure::scenario::{Transport, World};

/// What became of one run. A run that failed is a row, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
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
    /// The value of each axis, by the axis' name, as the plan writes it.
    pub parameters: BTreeMap<String, Parameter>,
    /// Why there are no figures, if there are none.
    pub error: Option<String>,
    /// Figures in base units (bit/s, seconds, bytes, counts, shares from 0 to 1) by name, such as
    /// `goodput` or `path.wifi.goodput`. What was not measured is not there.
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
