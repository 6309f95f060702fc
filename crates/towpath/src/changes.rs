//! Changes to a scenario from the command line: `--set` and its short forms.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use towpath_scenario::change;
use towpath_scenario::change::ChangeError;
use towpath_scenario::units::duration_text;

use crate::amounts;

/// Changes of a scenario; they become part of its text, so that results hold what was run.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
pub(crate) struct ScenarioChanges {
    /// Set a key of the scenario, such as `paths.first.rate="50 Mbit/s"` or `flows.0.size=1MB`;
    /// repeatable; `*` selects all: `paths.*.delay=30ms`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Duration of all flows, such as `5s`; same as `--set flows.duration=5s`
    #[arg(short = 't', long, alias = "time", value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Scheduler of towpath's stack; same as `--set run.scheduler=NAME`
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Congestion control; same as `--set run.congestion-control=NAME`
    #[arg(short = 'C', long, alias = "congestion", value_name = "NAME")]
    congestion_control: Option<String>,
    /// Options from the configuration file, for the result's conditions.
    #[arg(skip)]
    pub(crate) defaults: Vec<String>,
}

/// Parses a duration. Suggests `-T` for a list of transports, which `-t` once took.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let first_item = text.split(',').next().unwrap_or_default();
    if matches!(first_item, "tcp" | "mptcp" | "quic" | "mpquic") {
        return Err(format!("transports are `-T {text}`"));
    }
    amounts::time(text)
}

/// Returns the condition that lists options from the configuration file; `None` for an empty list.
pub(crate) fn config_condition(defaults: &[String]) -> Option<(String, String)> {
    (!defaults.is_empty()).then(|| ("from the configuration file".to_owned(), defaults.join(", ")))
}

impl ScenarioChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.first_option().is_none()
    }

    /// Returns the first option that changes something, for error messages.
    pub(crate) fn first_option(&self) -> Option<&'static str> {
        let given = [
            (!self.set.is_empty(), "--set"),
            (self.duration.is_some(), "--duration"),
            (self.scheduler.is_some(), "--scheduler"),
            (self.congestion_control.is_some(), "--congestion-control"),
        ];
        given.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }

    /// Returns the changes as conditions of a result.
    pub(crate) fn conditions(&self) -> BTreeMap<String, String> {
        let mut conditions = BTreeMap::new();
        let short_forms = [
            ("flows.duration", self.duration.map(duration_text)),
            ("scheduler", self.scheduler.clone()),
            ("congestion-control", self.congestion_control.clone()),
        ];
        let assignment = |(key, value): (&str, Option<String>)| Some(format!("{key}={}", value?));
        let mut assignments: Vec<_> = short_forms.into_iter().filter_map(assignment).collect();
        assignments.extend(self.set.iter().cloned());
        if !assignments.is_empty() {
            conditions.insert("changed by the command line".to_owned(), assignments.join("; "));
        }
        conditions.extend(config_condition(&self.defaults));
        conditions
    }

    /// Applies all changes to the scenario's text. `--set` overrides the short forms.
    pub(crate) fn apply(&self, text: &str) -> Result<String, ChangeError> {
        let mut text = text.to_owned();
        if let Some(duration) = self.duration {
            text = change::set_duration(&text, &duration_text(duration))?;
        }
        for (key, value) in
            [("scheduler", &self.scheduler), ("congestion-control", &self.congestion_control)]
        {
            if let Some(value) = value {
                text = change::set_for_all_hosts(&text, key, value)?;
            }
        }
        for setting in &self.set {
            let (key, value) = change::split_assignment(setting)?;
            text = change::set(&text, key, value)?;
        }
        Ok(text)
    }
}
