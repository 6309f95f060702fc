//! Converts arguments to a scenario.
//!
//! The live world runs the same patterns as the others, so they share one form, one check and one
//! storage.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use towpath_live::system_congestion_control;
use towpath_result::input;
use towpath_scenario::units::duration_text;
use towpath_scenario::{Flow, Pattern, Scenario, ScenarioErrors, Transport, no_files};

use super::MeasureArguments;
use crate::changes::config_condition;
use crate::error::CliError;

/// Upper bound for patterns that run until a network is left.
const MAX_SESSION: &str = "10 min";

/// Returns the scenario for `arguments`, between the host's `paths` and the server. `udping` adds
/// datagrams next to the flow.
pub(super) fn scenario(
    arguments: &MeasureArguments,
    (host, paths): (&str, &[String]),
    udping: bool,
) -> Result<Scenario, CliError> {
    let parse = |generated: GeneratedScenario| -> Result<Scenario, CliError> {
        let parsed = Scenario::parse("the scenario of these arguments", &generated.text, &no_files);
        let mut scenario = parsed.map_err(|errors| generated.attribute_errors(&errors))?;
        scenario.remarks.extend(config_condition(&arguments.defaults));
        scenario.remarks.extend(arguments.conditions.iter().cloned());
        Ok(scenario)
    };
    let scenario = parse(scenario_toml(arguments, (host, paths), None)?)?;
    let is_udping = |flow: &Flow| matches!(flow.pattern, Pattern::Udping(_));
    if !udping || scenario.flows.iter().any(is_udping) {
        return Ok(scenario);
    }
    let durations = scenario.flows.iter().map(|flow| flow.pattern.duration());
    parse(scenario_toml(arguments, (host, paths), durations.max())?)
}

/// A generated scenario, with the option that each line comes from.
#[derive(Debug, Default)]
struct GeneratedScenario {
    text: String,
    /// Option of each line, as the user typed it.
    origins: Vec<String>,
}

impl GeneratedScenario {
    /// Adds lines that come from the option `origin`.
    fn add(&mut self, origin: &str, lines: &str) {
        for line in lines.lines() {
            let _ = writeln!(self.text, "{line}");
            self.origins.push(origin.to_owned());
        }
    }

    /// Returns the scenario's error as an error of the option that caused it.
    fn attribute_errors(&self, errors: &ScenarioErrors) -> CliError {
        let Some(problem) = errors.problems().first() else {
            return CliError::Internal(errors.to_string());
        };
        let line = problem.position.and_then(|(line, _)| line.checked_sub(1));
        let origin = line.and_then(|line| self.origins.get(line)).map_or("", String::as_str);
        let what = match origin {
            origin if problem.message.contains(origin) => problem.message.clone(),
            origin => format!("`{origin}`: {}", problem.message),
        };
        let hint = problem.hint.clone().unwrap_or_else(|| problem.expected.clone());
        let instead = (hint == "remove it").then(|| alternative_hint(origin, &self.text));
        CliError::Unavailable { what, hint: instead.map_or(hint, str::to_owned) }
    }
}

/// Returns a hint for an option that has no meaning with the pattern.
fn alternative_hint(origin: &str, text: &str) -> &'static str {
    let is_pattern = |pattern: &str| text.contains(&format!("pattern = \"{pattern}\""));
    let is_option = |option: &str| origin.split_whitespace().next() == Some(option);
    if is_option("-t") && is_pattern("ping") {
        return "`ping` ends after its requests: `--set count=50`";
    }
    if is_option("-t") && is_pattern("trace") {
        return "`trace` ends with its last message";
    }
    if is_option("-n") {
        return "only `bulk` sends a number of bytes; other patterns have a duration: `-t 10`";
    }
    if is_option("-P") {
        return "only `iperf` and `web` have parallel connections: omit it";
    }
    "leave it out"
}

/// Writes the scenario's text. `udping_duration` is the length of additional datagrams; `None` adds
/// none.
fn scenario_toml(
    arguments: &MeasureArguments,
    (host, paths): (&str, &[String]),
    udping_duration: Option<Duration>,
) -> Result<GeneratedScenario, CliError> {
    let pattern = pattern(arguments);
    let mut scenario = GeneratedScenario::default();
    scenario.add(pattern, &format!("name = \"live-{pattern}\""));
    let description = quoted(&format!("{pattern} towards {host}"));
    scenario.add(host, &format!("description = {description}\n[hosts.client]\n[hosts.server]"));
    for path in paths {
        scenario.add(path, &format!("[paths.{path}]\nbetween = [\"client\", \"server\"]"));
    }
    let flow = "[[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = ";
    scenario.add(pattern, &format!("{flow}{}", quoted(pattern)));
    for (key, value) in flow_keys(arguments)? {
        scenario.add(&option_text(arguments, &key, &value), &format!("{key} = {value}"));
    }
    if let Some(udping) = udping_duration {
        let duration = duration_text(udping);
        scenario.add("--udping", &format!("{flow}\"udping\"\nduration = \"{duration}\""));
    }
    let transports: Vec<_> =
        unique(arguments.transports()).iter().map(|transport| format!("\"{transport}\"")).collect();
    let run = format!("[run]\ntransports = [{}]\nworlds = [\"live\"]", transports.join(", "));
    scenario.add("--transport", &run);
    scenario.add("--seed", &format!("seed = {}", arguments.seed & (u64::MAX >> 1)));
    scenario.add("--repeat", &format!("repeat = {}", arguments.repeat));
    let sample = duration_text(arguments.sample);
    scenario.add(&format!("--sample {sample}"), &format!("sample = \"{sample}\""));
    let control = arguments.congestion.clone().unwrap_or_else(system_congestion_control);
    let key = format!("congestion-control = {}", quoted(&control));
    scenario.add(&format!("-C {control}"), &key);
    if arguments.path_policy != "aggregate" {
        let policy = format!("path-policy = {}", quoted(&arguments.path_policy));
        scenario.add("--path-policy", &policy);
    }
    if !arguments.expect.is_empty() {
        scenario.add("--expect", "[expect]");
    }
    for expectation in &arguments.expect {
        let (key, bound) = parse_expectation(expectation)?;
        let line = format!("{} = {}", quoted(key), quoted(&bound));
        scenario.add(&format!("--expect \"{expectation}\""), &line);
    }
    Ok(scenario)
}

/// Returns the option that a key of the flow comes from, as the user would type it.
fn option_text(arguments: &MeasureArguments, key: &str, value: &str) -> String {
    let value_text = value.trim_matches('"');
    let is_for_key =
        |setting: &&String| setting.split('=').next().is_some_and(|name| name.trim() == key);
    if let Some(setting) = arguments.set.iter().rev().find(is_for_key) {
        return format!("--set {setting}");
    }
    match key {
        "duration" => "-t".to_owned(),
        "size" => "-n".to_owned(),
        "streams" => format!("-P {value_text}"),
        "bitrate" => format!("-b {value_text}"),
        "length" => format!("-l {value_text}"),
        "direction" if arguments.reverse => "-R".to_owned(),
        "direction" => "--bidir".to_owned(),
        key => format!("--{key} {value_text}"),
    }
}

/// Returns the pattern. A number of bytes instead of a time is a transfer of that size, as in
/// iperf3.
fn pattern(arguments: &MeasureArguments) -> &str {
    let pattern = arguments.pattern();
    if pattern == "iperf" && arguments.bytes.is_some() { "bulk" } else { pattern }
}

/// Returns the keys of the flow with TOML values.
fn flow_keys(arguments: &MeasureArguments) -> Result<Vec<(String, String)>, CliError> {
    let mut keys: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: Option<String>| {
        keys.extend(value.map(|value| (key.to_owned(), value)));
    };
    add("duration", arguments.time.map(|time| quoted(&duration_text(time))));
    let is_campaign = arguments.flow_keys.is_some();
    let needs_max_session = arguments.is_session() && arguments.time.is_none() && !is_campaign;
    add("duration", needs_max_session.then(|| quoted(MAX_SESSION)));
    let needs_default_duration = pattern(arguments) == "bulk"
        && arguments.time.is_none()
        && arguments.bytes.is_none()
        && arguments.preset.is_none()
        && !arguments.set.iter().any(|set| set.starts_with("size") || set.starts_with("duration"))
        && !is_campaign;
    add("duration", needs_default_duration.then(|| "\"10 s\"".to_owned()));
    add("size", arguments.bytes.map(|bytes| format!("\"{bytes} B\"")));
    add("streams", arguments.parallel.map(|streams| streams.to_string()));
    let direction = match (arguments.reverse, arguments.bidir) {
        (true, _) => Some("\"down\""),
        (_, true) => Some("\"both\""),
        (false, false) => None,
    };
    add("direction", direction.map(str::to_owned));
    add("preset", arguments.preset.as_deref().map(quoted));
    add("load", arguments.load.as_deref().map(quoted));
    if arguments.sends_datagrams() {
        let rate = arguments.bitrate.map(|rate| format!("\"{} bit/s\"", rate.as_bps()));
        add("bitrate", rate);
        add("length", arguments.length.map(|bytes| format!("\"{bytes} B\"")));
    }
    keys.extend(arguments.flow_keys.iter().flatten().cloned());
    for set in &arguments.set {
        let (key, value) = set.split_once('=').ok_or_else(|| CliError::Unavailable {
            what: format!("`--set {set}` has no value"),
            hint: "write a key and its value: `--set request=2KB`".to_owned(),
        })?;
        let (key, value) = (key.trim(), value.trim());
        let is_key_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if key.is_empty() || !key.chars().all(is_key_char) {
            return Err(CliError::Unavailable {
                what: format!("`{key}` is not a key of a flow"),
                hint: "`towpath schema scenario-keys` lists them".to_owned(),
            });
        }
        // The last setting of a key overrides earlier ones.
        keys.retain(|(existing_key, _)| existing_key != key);
        keys.push((key.to_owned(), toml_value(key, value)?));
    }
    Ok(keys)
}

fn toml_value(key: &str, value: &str) -> Result<String, CliError> {
    if key == "messages" {
        let path = Path::new(value);
        let text = input::read_text(path)
            .map_err(|source| CliError::Read { path: path.to_owned(), source })?;
        let lines: Vec<_> = text.lines().map(quoted).collect();
        return Ok(format!("[{}]", lines.join(", ")));
    }
    let is_number = value.parse::<i64>().is_ok();
    Ok(if is_number || matches!(value, "true" | "false") {
        value.to_owned()
    } else {
        quoted(value)
    })
}

/// Parses an expectation into key and bound: `goodput >= 20 Mbit/s` or `goodput=>=20 Mbit/s`.
fn parse_expectation(text: &str) -> Result<(&str, String), CliError> {
    let no_bound = || CliError::Unavailable {
        what: format!("`--expect {text}` is not a bound"),
        hint: "write a metric, an operator and a value: `--expect \"goodput >= 20 Mbit/s\"`"
            .to_owned(),
    };
    let operator_index = text.find(['<', '>', '=']).ok_or_else(no_bound)?;
    let (key, bound) = text.split_at(operator_index);
    let after_separator = bound.strip_prefix('=').map(str::trim_start);
    let is_operator = |rest: &&str| rest.starts_with(['<', '>']) || rest.starts_with("==");
    let bound = after_separator.filter(is_operator).unwrap_or(bound);
    let end = bound.find(|c: char| !matches!(c, '<' | '>' | '=')).ok_or_else(no_bound)?;
    let (operator, value) = bound.split_at(end);
    let operator = if operator == "=" { "==" } else { operator };
    if key.trim().is_empty() || value.trim().is_empty() {
        return Err(no_bound());
    }
    // Boolean values have no operator.
    let value = value.trim();
    let bound = match (operator, value) {
        ("==", "true" | "false") => value.to_owned(),
        _ => format!("{operator} {value}"),
    };
    Ok((key.trim(), bound))
}

/// Returns the text as a TOML string, with quotes and escapes.
fn quoted(text: &str) -> String {
    let mut toml = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => toml.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(toml, "\\u{:04X}", u32::from(c));
            }
            c => toml.push(c),
        }
    }
    toml.push('"');
    toml
}

/// Returns the transports in order, without duplicates.
pub(super) fn unique(transports: &[Transport]) -> Vec<Transport> {
    let mut unique_transports = Vec::new();
    for transport in transports {
        if !unique_transports.contains(transport) {
            unique_transports.push(*transport);
        }
    }
    unique_transports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_accept_several_spellings() {
        for (text, expected) in [
            ("goodput >= 20 Mbit/s", ("goodput", ">= 20 Mbit/s")),
            ("goodput=>= 20 Mbit/s", ("goodput", ">= 20 Mbit/s")),
            ("stall.longest<1s", ("stall.longest", "< 1s")),
            ("paths.used==2", ("paths.used", "== 2")),
            ("completed=true", ("completed", "true")),
        ] {
            let (key, bound) = parse_expectation(text).unwrap();
            assert_eq!((key, bound.as_str()), expected, "{text}");
        }
        for invalid in ["goodput", ">= 3", "goodput >="] {
            assert!(parse_expectation(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn any_text_is_a_toml_string() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000A\"");
    }
}
