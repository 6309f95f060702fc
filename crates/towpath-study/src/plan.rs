//! A plan as data: which runs there are. [`Plan::parse`] reads it from `plan.toml`.

mod document;
mod draw;
mod drawing;
mod keys;
mod read;

use std::io;
use std::time::Duration;

use towpath_measure::scenario::{ScenarioErrors, Transport, World};

pub use document::{DocumentError, KeyPath};
pub(crate) use document::{remove, set};
pub use drawing::{AxisUnit, CentralValue, ErrorBars, PanelSpec, PlotKind};
pub(crate) use keys::MAX_SEEDS;
pub use keys::reference_markdown;

/// Gives the text of a file whose name is relative to the plan's folder.
pub type FileLoader<'a> = &'a (dyn Fn(&str) -> io::Result<String> + Sync);

/// A plan to begin with.
pub const EXAMPLE: &str = include_str!("plan/example.toml");

/// Which runs a study has: every variant at every point, with every seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Short name, such as `seed004-c`.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// The file of the scenario, relative to the plan's folder, or `builtin:NAME`.
    pub scenario_name: String,
    /// The scenario from which every run's is made.
    pub scenario: toml::Table,
    /// In which worlds it may be run; the first is the usual one.
    pub worlds: Vec<World>,
    /// Seeds of each point: 1, 2, … up to this number.
    pub seeds: u32,
    /// The same when there is little time.
    pub quick_seeds: u32,
    /// The same in the emulated world, which takes as long as it says.
    pub emulated_seeds: u32,
    /// Only what happens in this part of a run's traffic counts for `goodput` and its kin; all of
    /// it when not given.
    pub window: Option<[Duration; 2]>,
    /// The curves.
    pub variants: Vec<Variant>,
    /// The grid: every combination of their values is a point.
    pub axes: Vec<Axis>,
    /// Points that are drawn at random, at each point of the grid.
    pub random: Option<RandomSampling>,
    /// How it is drawn: a panel each.
    pub figures: Vec<PanelSpec>,
}

/// One curve: what its runs have that the scenario has not.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Name, as in the legend.
    pub name: String,
    /// Transport.
    pub transport: Transport,
    /// Values for keys of the scenario, such as `hosts.phone.scheduler`.
    pub set: Vec<(KeyPath, toml::Value)>,
    /// Keys that the scenario loses, such as `paths.umts`.
    pub remove: Vec<KeyPath>,
    /// The only worlds in which it is run, if not in all of the plan's.
    pub worlds: Option<Vec<World>>,
}

/// One dimension of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name, as on the figure's axis, such as `receive buffer`.
    pub name: String,
    /// Keys of the scenario that all get the value.
    pub keys: Vec<KeyPath>,
    /// The values.
    pub values: Vec<AxisValue>,
    /// Those that are run when there is little time.
    pub quick: Vec<AxisValue>,
    /// Those that are run in the emulated world.
    pub emulated: Vec<AxisValue>,
}

/// A value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisValue {
    /// What the scenario is told.
    pub value: toml::Value,
    /// The same in words: a text without its quotes, else TOML.
    pub text: String,
    /// In base units (seconds, bit/s, bytes, shares), where it is a quantity or a number.
    pub number: Option<f64>,
}

/// Points drawn at random.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomSampling {
    /// How many.
    pub samples: u32,
    /// How many when there is little time.
    pub quick: u32,
    /// What each of them draws.
    pub draws: Vec<RandomDraw>,
}

/// One thing that each sample draws.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomDraw {
    /// Name, a column of the table.
    pub name: String,
    /// Keys of the scenario that get the value.
    pub keys: Vec<KeyPath>,
    /// From what.
    pub from: Distribution,
    /// Draws below or above are drawn again, in base units.
    pub limits: [Option<f64>; 2],
    /// Name of an earlier draw whose value is added.
    pub after: Option<String>,
}

/// A distribution; numbers are in base units.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Every value between two is as likely.
    Uniform([f64; 2], DrawUnit),
    /// The logarithm is normal.
    LogNormal {
        /// Median.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// What is drawn.
        measure: DrawUnit,
    },
    /// Exponential with this mean.
    Exponential(f64, DrawUnit),
    /// One of these, with weights.
    Choice(Vec<(AxisValue, f64)>),
}

impl Distribution {
    /// What is drawn, if it is a number.
    pub fn measure(&self) -> Option<DrawUnit> {
        match self {
            Self::Uniform(_, measure)
            | Self::LogNormal { measure, .. }
            | Self::Exponential(_, measure) => Some(*measure),
            Self::Choice(_) => None,
        }
    }
}

/// How a number that was drawn is told to the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawUnit {
    /// As a time.
    Time,
    /// As a rate.
    Rate,
    /// As a size.
    Size,
    /// As a number of packets.
    Packets,
    /// As a percentage.
    Share,
    /// As a whole number.
    Whole,
    /// As a number.
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
    /// The values of the runs in a world, all or only those for which there is little time. Where the
    /// thin ones and the emulated ones have nothing in common, thin ones are meant.
    pub(crate) fn chosen(&self, world: World, thin: bool) -> Vec<&AxisValue> {
        let emulated = world != World::Sim;
        let kept = |setting: &&AxisValue| {
            (!thin || self.quick.contains(setting))
                && (!emulated || self.emulated.contains(setting))
        };
        let chosen: Vec<_> = self.values.iter().filter(kept).collect();
        if chosen.is_empty() { self.quick.iter().collect() } else { chosen }
    }
}

impl AxisValue {
    /// A value of the plan as a setting.
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
