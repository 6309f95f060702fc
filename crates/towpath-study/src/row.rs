//! Result of one run of a study, as a row of its table.

mod metrics;
mod series;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use towpath_scenario::{Transport, World};

pub use metrics::run_metrics;
pub use series::{SECOND_PREFIX, per_second};

/// Version of the program, which also determines a run's result.
pub(crate) const ENGINE_VERSION: &str = concat!("towpath ", env!("CARGO_PKG_VERSION"));

/// Result of one run; failed runs also have a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// 32 hexadecimal digits that identify the input: equal keys mean equal runs.
    pub key: String,
    /// Name of the variant: the curve to which the run belongs.
    pub variant: String,
    /// World in which it was run.
    pub world: World,
    /// Transport of the flows that do not set their own.
    pub transport: Transport,
    /// Seed of the run.
    pub seed: u64,
    /// Value of each axis and draw, by name.
    pub parameters: BTreeMap<String, Parameter>,
    /// Reason for missing metrics; `None` after a successful run.
    pub error: Option<String>,
    /// Metrics in base units (bit/s, seconds, bytes, counts, shares from 0 to 1) by name, such as
    /// `goodput` or `path.wifi.goodput`. Unmeasured metrics are absent. A time that was never
    /// reached is infinite, and `null` as JSON.
    #[serde(alias = "figures", serialize_with = "finite", deserialize_with = "or_infinite")]
    pub metrics: BTreeMap<String, f64>,
}

/// The value of an axis in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Text as the plan writes it, such as `600 KB`.
    pub text: String,
    /// Value in base units, e.g. 600000; `None` if it is neither a quantity nor a number.
    pub number: Option<f64>,
}

fn finite<S: Serializer>(
    metrics: &BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer
        .collect_map(metrics.iter().map(|(name, value)| (name, value.is_finite().then_some(value))))
}

fn or_infinite<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let metrics = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    let present =
        |(name, value): (String, Option<f64>)| (present_name(name), value.unwrap_or(f64::INFINITY));
    Ok(metrics.into_iter().map(present).collect())
}

/// Returns the present name of a metric that earlier versions stored under another name.
pub(crate) fn present_name(stored: String) -> String {
    match stored.as_str() {
        "degraded" => "unreliable".to_owned(),
        "foreign_cpu" => "other_cpu_share".to_owned(),
        name => match name.strip_prefix("guess.") {
            Some(reason) => format!("inferred.{reason}"),
            None => stored,
        },
    }
}
