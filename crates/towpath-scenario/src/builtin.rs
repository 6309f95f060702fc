//! Scenarios built into the program.

use std::io;

use super::model::Scenario;
use super::problem::ScenarioErrors;

/// A scenario built into the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    /// Name of the scenario on the command line.
    pub name: &'static str,
    /// Text of the scenario file.
    pub text: &'static str,
}

impl Builtin {
    /// Parses the scenario; never fails for an unchanged text (tested).
    pub fn scenario(&self) -> Result<Scenario, ScenarioErrors> {
        Scenario::parse(&format!("{}.toml", self.name), self.text, &no_files)
    }

    /// Returns the scenario's description; empty if it cannot be parsed.
    pub fn description(&self) -> String {
        self.scenario().map(|scenario| scenario.description).unwrap_or_default()
    }
}

/// Returns a not-found error for every file; a trace loader for scenarios without traces.
pub fn no_files(_name: &str) -> io::Result<String> {
    Err(io::Error::new(io::ErrorKind::NotFound, "no such file"))
}

macro_rules! builtins {
    ($($name:literal),* $(,)?) => {
        &[$(Builtin {
            name: $name,
            text: include_str!(concat!("../../../scenarios/", $name, ".toml")),
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

/// Returns all built-in scenarios, the best introduction first.
pub fn builtin() -> &'static [Builtin] {
    BUILTINS
}
