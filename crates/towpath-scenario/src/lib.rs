//! Scenario files: hosts, paths, a timeline, flows and expectations.
//!
//! [`Scenario::parse`] reads TOML and reports every error with line, column and a hint. The keys
//! are defined once, in `keys`; the reader, the JSON Schema ([`json_schema`]) and the reference
//! ([`reference_markdown`]) derive from it.

mod builtin;
pub mod change;
pub mod document;
pub mod flow_plan;
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod model;
mod nearest;
pub mod network;
mod pattern;
mod problem;
mod read;
mod section;
mod stack;
pub mod units;

use std::io;

pub use builtin::{Builtin, builtin, no_files};
pub use keys::metric_names;
pub use keys::{json_schema, reference_markdown};
pub use model::{
    Bottleneck, DataDirection, DownMode, Endpoint, Expectation, Family, Flow, Host, LinkSide,
    MptcpConfig, Operator, Path, RunPlan, Scenario, SegmentationMode, TimelineChange,
    TimelineEvent, TimelineTarget, Transport, World,
};
pub use pattern::{
    Call, LatencyPhases, Load, Medium, MessageExchange, Pattern, PlannedRequest, Schedule, Udp,
    Udping, Video, VideoPlan, Web,
};
pub use problem::{Problem, ScenarioErrors};
pub use stack::{
    HostStackConfig, Middlebox, MiddleboxAction, OpportunisticMode, PathPolicy, Profile,
    ProfileSwitches, ReceiveBufferMode, StackKind,
};

pub use read::{AFTER_LAST_FLOW, unreadable};

use problem::{SpannedProblem, quote};

/// Maximum size of a scenario file; the largest useful scenario is far smaller.
const MAX_FILE_BYTES: usize = 1 << 20;

impl Scenario {
    /// Parses a scenario.
    ///
    /// `file_name` is used in messages only. `load` returns the text of a trace file by its name
    /// relative to the scenario's folder ([`no_files`] for scenarios without traces).
    pub fn parse(
        file_name: &str,
        text: &str,
        load: &dyn Fn(&str) -> io::Result<String>,
    ) -> Result<Self, ScenarioErrors> {
        check_size(file_name, text.len())?;
        let into_errors = |problems| ScenarioErrors::new(file_name, text, problems);
        let root = toml::de::DeTable::parse(text)
            .map_err(|error| into_errors(vec![syntax_error(text, &error)]))?;
        read::scenario(&root, text, load).map_err(into_errors)
    }

    /// Parses a scenario like [`Self::parse`], from bytes that may not be UTF-8.
    pub fn parse_bytes(
        file_name: &str,
        bytes: &[u8],
        load: &dyn Fn(&str) -> io::Result<String>,
    ) -> Result<Self, ScenarioErrors> {
        check_size(file_name, bytes.len())?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(file_name, text, load),
            Err(error) => {
                let (valid_prefix, _) = bytes.split_at(error.valid_up_to());
                let line = valid_prefix.split(|&byte| byte == b'\n').count();
                let message = format!("line {line} is not UTF-8 text");
                let problem =
                    SpannedProblem::new(None, message, "").hint("a scenario is a TOML file");
                Err(ScenarioErrors::single(file_name, "", problem))
            }
        }
    }
}

/// Refuses a scenario file of more than 1 MiB. Call it before the file is read.
pub fn check_size(file_name: &str, bytes: usize) -> Result<(), ScenarioErrors> {
    if bytes <= MAX_FILE_BYTES {
        return Ok(());
    }
    let message = format!("the file has {bytes} bytes, more than 1 MiB");
    let problem =
        SpannedProblem::new(None, message, "").hint("a scenario is a TOML file of a few lines");
    Err(ScenarioErrors::single(file_name, "", problem))
}

/// Converts a TOML syntax error, with a hint for its most common cause: an unquoted quantity.
fn syntax_error(text: &str, error: &toml::de::Error) -> SpannedProblem {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    let (message, expected) = match message.split_once(", expected ") {
        Some((message, expected)) => (message, format!("expected {expected}")),
        None => (message, String::new()),
    };
    let line_start =
        text.get(..span.start).map_or(0, |s| s.rfind('\n').map_or(0, |index| index + 1));
    let line = text.get(line_start..).and_then(|s| s.lines().next()).unwrap_or("");
    match line.split_once('=') {
        Some((key, value)) if is_bare_quantity(value) => {
            let key: String = key.trim().chars().take(40).collect();
            let value = value.split('#').next().unwrap_or("").trim();
            SpannedProblem::new(span, "a value with a unit is a text", "expected it in quotes")
                .hint(format!("write `{key} = \"{value}\"`"))
        }
        Some((key, value)) if value.split('#').next().unwrap_or("").trim().is_empty() => {
            SpannedProblem::new(
                span,
                format!("{} has no value", quote(key.trim())),
                "expected a value",
            )
        }
        _ => SpannedProblem::new(span, message.to_owned(), expected),
    }
}

/// Returns true for an unquoted quantity, such as `40 Mbit/s` instead of `"40 Mbit/s"`.
fn is_bare_quantity(value: &str) -> bool {
    let value = value.split('#').next().unwrap_or("").trim();
    value.len() <= 40
        && units::quantity(value).is_ok_and(|q| q.dimension != units::Dimension::Count)
}

#[cfg(test)]
mod tests;
