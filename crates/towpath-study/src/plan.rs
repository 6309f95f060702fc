//! Plan of a study as data: the runs to make. [`Plan::parse`] reads it from `plan.toml`.

mod document;
mod draw;
mod drawing;
mod keys;
mod read;

use std::io;
use std::time::Duration;

use towpath_scenario::{ScenarioErrors, Transport, World};

pub use document::{DocumentError, KeyPath};
pub(crate) use document::{remove, set};
pub use drawing::{AxisUnit, CentralValue, ErrorBars, PanelSpec, PlotKind};
pub(crate) use keys::MAX_SEEDS;
pub use keys::reference_markdown;

/// Function that returns the text of a file, named relative to the plan's folder.
pub type FileLoader<'a> = &'a (dyn Fn(&str) -> io::Result<String> + Sync);

/// Example plan to begin with.
pub const EXAMPLE: &str = include_str!("plan/example.toml");
/// Name of the parameter that distinguishes samples.
pub const SAMPLE_PARAMETER: &str = "sample";

/// Plan of a study: every variant at every point, with every seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Short name, such as `barre2011-fig6`.
    pub name: String,
    /// One-line title for lists.
    pub title: String,
    /// File name of the scenario, relative to the plan's folder, or `builtin:NAME`.
    pub scenario_name: String,
    /// Scenario from which every run's scenario is made.
    pub scenario: toml::Table,
    /// Worlds in which it may be run; the first is the default.
    pub worlds: Vec<World>,
    /// Number of seeds of each point: 1, 2, … up to this number.
    pub seeds: u32,
    /// Number of seeds in a quick sweep.
    pub quick_seeds: u32,
    /// Number of seeds in the emulated world, which runs in real time.
    pub emulated_seeds: u32,
    /// Part of a run's traffic that counts for `goodput` and related metrics; `None` for all of
    /// it.
    pub window: Option<[Duration; 2]>,
    /// Variants of the scenario, a curve each.
    pub variants: Vec<Variant>,
    /// Axes of the grid: every combination of their values is a point.
    pub axes: Vec<Axis>,
    /// Random samples at each point of the grid, if any.
    pub random: Option<RandomSampling>,
    /// Panels of the figure.
    pub panels: Vec<PanelSpec>,
}

/// One curve: the changes of its runs to the scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Name, as in the legend.
    pub name: String,
    /// Transport of its runs.
    pub transport: Transport,
    /// Values for keys of the scenario, such as `hosts.phone.scheduler`.
    pub set: Vec<(KeyPath, toml::Value)>,
    /// Keys removed from the scenario, such as `paths.umts`.
    pub remove: Vec<KeyPath>,
    /// Worlds in which it is run; `None` for all of the plan's.
    pub worlds: Option<Vec<World>>,
}

/// One dimension of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name, as on the figure's axis, such as `receive buffer`.
    pub name: String,
    /// Keys of the scenario that all get the value.
    pub keys: Vec<KeyPath>,
    /// Values of the axis, in order.
    pub values: Vec<AxisValue>,
    /// Values that are run in a quick sweep.
    pub quick: Vec<AxisValue>,
    /// Values that are run in the emulated world.
    pub emulated: Vec<AxisValue>,
}

/// A value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisValue {
    /// Value as the scenario receives it.
    pub value: toml::Value,
    /// Value in words: a text without its quotes, else TOML.
    pub text: String,
    /// Value in base units (seconds, bit/s, bytes, shares); `None` if it is neither a quantity nor
    /// a number.
    pub number: Option<f64>,
}

/// Points drawn at random.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomSampling {
    /// Number of samples at each grid point.
    pub samples: u32,
    /// Number of samples in a quick sweep.
    pub quick: u32,
    /// Name from which draws are seeded instead of the plan's name.
    pub seed_name: Option<String>,
    /// Parameters that each sample draws.
    pub draws: Vec<RandomDraw>,
}

/// One parameter that each sample draws.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomDraw {
    /// Name, a column of the table.
    pub name: String,
    /// Keys of the scenario that get the value.
    pub keys: Vec<KeyPath>,
    /// Distribution of the value.
    pub from: Distribution,
    /// Lower and upper limit in base units; draws outside are repeated.
    pub limits: [Option<f64>; 2],
    /// Name of an earlier draw whose value is added.
    pub added_draw: Option<String>,
}

/// A distribution; numbers are in base units.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Uniform between two values.
    Uniform([f64; 2], DrawUnit),
    /// Normal distribution of the logarithm.
    LogNormal {
        /// Median in base units.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Unit kind of the drawn value.
        measure: DrawUnit,
    },
    /// Exponential with this mean.
    Exponential(f64, DrawUnit),
    /// One of these values, with weights.
    Choice(Vec<(AxisValue, f64)>),
}

impl Distribution {
    /// Returns the unit kind of the drawn value; `None` for a choice.
    pub fn measure(&self) -> Option<DrawUnit> {
        match self {
            Self::Uniform(_, measure)
            | Self::LogNormal { measure, .. }
            | Self::Exponential(_, measure) => Some(*measure),
            Self::Choice(_) => None,
        }
    }
}

/// Unit kind in which a drawn number is written to the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawUnit {
    /// Time, written in seconds or nanoseconds.
    Time,
    /// Rate, written in whole bit/s.
    Rate,
    /// Size, written in whole bytes.
    Size,
    /// Number of packets, written with its unit.
    Packets,
    /// Percentage, from a share of 0 to 1.
    Share,
    /// Whole number without a unit.
    Whole,
    /// Plain number without a unit.
    Number,
}

impl Plan {
    /// Reads a plan. `file_name` is only for messages; `load` gives the text of the scenario and of
    /// its traces.
    pub fn parse(
        file_name: &str,
        text: &str,
        load: FileLoader<'_>,
    ) -> Result<Self, ScenarioErrors> {
        read::plan(file_name, text, load)
    }
}

impl Axis {
    /// Returns the values of the runs in a world, all or only those of a quick sweep. If no value
    /// is both quick and emulated, the quick ones are used.
    pub(crate) fn selected_values(&self, world: World, thin: bool) -> Vec<&AxisValue> {
        let emulated = world != World::Sim;
        let is_selected = |setting: &&AxisValue| {
            (!thin || self.quick.contains(setting))
                && (!emulated || self.emulated.contains(setting))
        };
        let selected: Vec<_> = self.values.iter().filter(is_selected).collect();
        if selected.is_empty() { self.quick.iter().collect() } else { selected }
    }
}

impl AxisValue {
    /// Creates an axis value from a value of the plan.
    pub fn new(value: toml::Value) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let number = match &value {
            toml::Value::Integer(number) => Some(*number as f64),
            toml::Value::Float(number) => Some(*number),
            toml::Value::String(text) => read::quantity(text),
            toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Array(_)
            | toml::Value::Table(_) => None,
        };
        Self { value, text, number }
    }
}

#[cfg(test)]
mod tests;
