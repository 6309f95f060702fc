//! A plan as data: which runs there are.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_measure::scenario::{Transport, World};

/// Which runs a study has: every variant at every point, with every seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Short name, such as `seed004-c`.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// The scenario's TOML text, from which every run's is made.
    pub scenario: String,
    /// In which worlds it may be run; the first is the usual one.
    pub worlds: Vec<World>,
    /// Seeds of each point: 1, 2, … up to this number.
    pub seeds: u32,
    /// Only what happens in this part of a run's traffic counts for `goodput` and its kin; all of
    /// it when not given.
    pub window: Option<[Duration; 2]>,
    /// The curves.
    pub variants: Vec<Variant>,
    /// The grid: every combination of their values is a point.
    pub axes: Vec<Axis>,
    /// Points that are drawn at random, beside the grid's.
    pub random: Option<Random>,
}

/// One curve: what its runs have that the scenario has not.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Name, as in the legend.
    pub name: String,
    /// Transport.
    pub transport: Transport,
    /// Values for keys of the scenario, such as `hosts.phone.scheduler`, as TOML.
    pub set: BTreeMap<String, String>,
    /// Keys that the scenario loses, such as `paths.umts`.
    pub remove: Vec<String>,
}

/// One dimension of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name, as on the figure's axis, such as `receive buffer`.
    pub name: String,
    /// Keys of the scenario that all get the value.
    pub keys: Vec<String>,
    /// The values, as TOML.
    pub values: Vec<String>,
    /// Those that are run when there is little time.
    pub thin: Vec<String>,
}

/// Points drawn at random.
#[derive(Debug, Clone, PartialEq)]
pub struct Random {
    /// How many.
    pub samples: u32,
    /// How many when there is little time.
    pub thin: u32,
    /// What each of them draws.
    pub draws: Vec<Draw>,
}

/// One thing that each sample draws.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// Name, a column of the table.
    pub name: String,
    /// Keys of the scenario that get the value.
    pub keys: Vec<String>,
    /// From what.
    pub from: Distribution,
}

/// A distribution of a quantity: values are in base units, `unit` is what the scenario is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Every value between two is as likely.
    Uniform([f64; 2]),
    /// The logarithm is normal: median, and the standard deviation of the natural logarithm.
    LogNormal {
        /// Median.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Exponential with this mean.
    Exponential(f64),
    /// One of these, as TOML, with weights.
    Choice(Vec<(String, f64)>),
}
