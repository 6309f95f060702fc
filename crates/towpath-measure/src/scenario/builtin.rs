//! The scenarios that come with the program.

use std::io;

use super::model::Scenario;
use super::problem::ScenarioErrors;

/// A scenario that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    /// Its name, as on the command line.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

impl Builtin {
    /// Reads it; it never fails for an unchanged text (tested).
    pub fn scenario(&self) -> Result<Scenario, ScenarioErrors> {
        Scenario::parse(&format!("{}.toml", self.name), self.text, &no_files)
    }

    /// What the scenario says about itself; empty if it cannot be read.
    pub fn description(&self) -> String {
        self.scenario().map(|scenario| scenario.description).unwrap_or_default()
    }
}

/// A source of traces for scenarios that have none: no file is ever found.
pub fn no_files(_name: &str) -> io::Result<String> {
    Err(io::Error::new(io::ErrorKind::NotFound, "no such file"))
}

macro_rules! builtins {
    ($($name:literal),* $(,)?) => {
        &[$(Builtin {
            name: $name,
            text: include_str!(concat!("../../../../scenarios/", $name, ".toml")),
        }),*]
    };
}

static BUILTINS: &[Builtin] = builtins![
    "wifi-cellular-handover",
    "interactive-handover",
    "interactive-path-loss",
    "video-handover",
    "latency-under-load",
    "iperf3-failover",
    "iperf3-failover-first",
    "iperf3-failover-return",
    "two-links",
    "two-links-gigabit",
    "three-paths",
    "shared-bottleneck",
    "fading-wifi",
    "wifi-3g",
];

/// All scenarios that come with the program, the best first one first.
pub fn builtin() -> &'static [Builtin] {
    BUILTINS
}
