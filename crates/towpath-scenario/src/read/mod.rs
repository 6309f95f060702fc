//! Decodes the parsed TOML tree into a [`Scenario`] and collects all problems.

mod call;
mod expect;
mod fade;
mod flows;
mod hosts;
mod link;
mod paths;
mod pattern;
mod preset;
mod stack;
mod timeline;

pub use timeline::AFTER_LAST_FLOW;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeTable;
use towpath_net::config::LinkTrace;

use super::keys::{SCENARIO, TableSchema};
use super::model::{Flow, RunPlan, Scenario, Transport, World};
use super::nearest::nearest;
use super::problem::{Problems, SpannedProblem, quote};
use super::section::{Section, Value};
use super::stack::StackOverrides;

/// Maximum propagation or queueing delay.
const MAX_DELAY: Duration = Duration::from_secs(3_600);
/// Maximum duration of a run.
const MAX_RUN: Duration = Duration::from_secs(24 * 3_600);

/// Lines of the smallest valid scenario.
const MINIMAL_SCENARIO: [&str; 5] = [
    "name = \"two-hosts\"",
    "[hosts.client]",
    "[hosts.server]",
    "[paths.wire]",
    "between = [\"client\", \"server\"]",
];

/// State shared by all parts of the reader.
struct ReadContext<'a> {
    load: &'a dyn Fn(&str) -> io::Result<String>,
    problems: &'a Problems,
    traces: RefCell<BTreeMap<String, Result<Arc<LinkTrace>, String>>>,
}

impl ReadContext<'_> {
    fn trace(&self, name: &str) -> Result<Arc<LinkTrace>, String> {
        let mut traces = self.traces.borrow_mut();
        let load = || {
            let text = (self.load)(name).map_err(|error| unreadable(&error))?;
            LinkTrace::parse(&text).map(Arc::new).map_err(|error| error.to_string())
        };
        traces.entry(name.to_owned()).or_insert_with(load).clone()
    }
}

/// Describes an I/O error without the error number, which means nothing to most users.
pub fn unreadable(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}

/// Decodes the whole file.
pub(super) fn scenario(
    root: &Spanned<DeTable<'_>>,
    text: &str,
    load: &dyn Fn(&str) -> io::Result<String>,
) -> Result<Scenario, Vec<SpannedProblem>> {
    if root.get_ref().is_empty() {
        let problem = SpannedProblem::new(None, "the scenario is empty", "");
        let problem = problem.hint("a minimal scenario is").example(&MINIMAL_SCENARIO);
        return Err(vec![problem]);
    }
    let problems = Problems::default();
    let context = ReadContext { load, problems: &problems, traces: RefCell::default() };
    let label = "the scenario".to_owned();
    let mut top = Section::new(&SCENARIO, root.get_ref(), 0..0, &problems, label);
    let scenario = decode(&mut top, &context, text);
    top.finish();
    let found_problems = problems.into_problems();
    if found_problems.is_empty() { Ok(scenario) } else { Err(found_problems) }
}

fn decode(top: &mut Section<'_>, context: &ReadContext<'_>, text: &str) -> Scenario {
    let name = top.require("name", "name = \"two-hosts\"").and_then(|v| {
        let text = v.text()?;
        check_name(&v, text, "a scenario", 64);
        Some(text.to_owned())
    });
    let description = top.take("description").and_then(|v| v.text()).unwrap_or("").to_owned();
    let host_entries = required_tables(top, "hosts", "[hosts.client]", "hosts");
    let path_entries = required_tables(top, "paths", "[paths.wire]", "paths");
    let bottleneck_entries =
        top.take("bottlenecks").map_or_else(Vec::new, |v| named_tables(&v, "bottlenecks"));
    let names = NameTable {
        hosts: names_of(&host_entries, "a host", 32, 64),
        paths: names_of(&path_entries, "a path", 12, 64),
        bottlenecks: names_of(&bottleneck_entries, "a bottleneck", 32, 64),
    };
    let (run, stack) = top
        .take("run")
        .and_then(|v| flows::run_plan(&v))
        .unwrap_or_else(|| (default_run(), StackOverrides::default()));
    let bottlenecks = paths::bottlenecks(&bottleneck_entries, &names, context);
    let paths = paths::paths(&path_entries, &names, context);
    let hosts = hosts::hosts(&host_entries, &names, &paths, &stack);
    if !paths.is_empty() && paths.iter().all(|path| path.between != UNKNOWN_ENDS) {
        check_all_used(&host_entries, "no path ends at this host", |i| {
            paths.iter().any(|path| path.between.contains(&i))
        });
    }
    check_all_used(&bottleneck_entries, "no path goes through this bottleneck", |i| {
        paths.iter().any(|path| path.through.contains(&i))
    });
    let middleboxes =
        top.take("middleboxes").map_or_else(Vec::new, |v| stack::middleboxes(&v, &names));
    let flows =
        top.take("flows").map_or_else(Vec::new, |v| flows::flows(&v, &names, &paths, context));
    let end = end_of(&flows);
    let timeline = top.take("timeline").map_or_else(Vec::new, |v| {
        timeline::timeline(
            &v,
            &names,
            &timeline::InitialLinkStates::new(&paths, &bottlenecks),
            end,
            context,
        )
    });
    let expect = top.take("expect").map_or_else(Vec::new, |v| expect::expect(&v, &names, &run));
    let (name, source) = (name.unwrap_or_default(), text.to_owned());
    Scenario {
        name,
        description,
        hosts,
        bottlenecks,
        paths,
        middleboxes,
        timeline,
        flows,
        run,
        expect,
        source,
        remarks: BTreeMap::new(),
    }
}

fn default_run() -> RunPlan {
    RunPlan {
        transports: vec![Transport::Tcp, Transport::Mptcp],
        worlds: vec![World::Emu],
        seed: 1,
        repeat: 1,
        sample: Duration::from_millis(100),
        congestion_control: "cubic".to_owned(),
        names_congestion_control: false,
    }
}

/// Ends of a path with unknown hosts; such a scenario is never returned.
const UNKNOWN_ENDS: [usize; 2] = [usize::MAX, usize::MAX];

/// Names of all items, even invalid ones, so that one mistake is reported once.
struct NameTable {
    hosts: Vec<String>,
    paths: Vec<String>,
    bottlenecks: Vec<String>,
}

impl NameTable {
    fn host(&self, value: &Value<'_>) -> Option<usize> {
        find_name(value, &self.hosts, "host")
    }

    fn path(&self, value: &Value<'_>) -> Option<usize> {
        find_name(value, &self.paths, "path")
    }

    fn bottleneck(&self, value: &Value<'_>) -> Option<usize> {
        find_name(value, &self.bottlenecks, "bottleneck")
    }
}

fn find_name(value: &Value<'_>, names: &[String], noun: &str) -> Option<usize> {
    let name = value.text()?;
    let index = names.iter().position(|n| n == name);
    if index.is_none() {
        let known_names = || names.iter().map(String::as_str);
        let expected = format!("expected the name of a {noun}");
        let hint = match nearest(name, known_names()) {
            Some(suggested) => format!("did you mean `{suggested}`?"),
            None if names.is_empty() => format!("this scenario has no {noun}s"),
            None => {
                let quoted_names: Vec<_> =
                    known_names().take(10).map(|n| format!("`{n}`")).collect();
                format!("the {noun}s of this scenario are {}", quoted_names.join(", "))
            }
        };
        value.fail_with_hint(format!("no {noun} is called {}", quote(name)), expected, hint);
    }
    index
}

/// A named table of the file: its name, the name's range, and its value.
type NamedTable<'a> = (String, std::ops::Range<usize>, Value<'a>);

fn required_tables<'a>(
    top: &mut Section<'a>,
    key: &'static str,
    example: &str,
    plural: &'static str,
) -> Vec<NamedTable<'a>> {
    let Some(value) = top.require(key, example) else { return Vec::new() };
    if value.as_table().is_some_and(DeTable::is_empty) {
        value.fail_at(
            &value.highlight_span(),
            format!("`{key}` is empty"),
            format!("add `{example}`"),
        );
    }
    named_tables(&value, plural)
}

/// Returns the named tables below `value`.
fn named_tables<'a>(value: &Value<'a>, plural: &str) -> Vec<NamedTable<'a>> {
    let Some(table) = value.as_table() else {
        value.wrong_type(&format!("expected a table for each of them: `[{plural}.NAME]`"));
        return Vec::new();
    };
    table
        .iter()
        .map(|(name, inner)| {
            let text = name.get_ref().to_string();
            let entry = value.nested(&text, name.span(), inner);
            (text, name.span(), entry)
        })
        .collect()
}

/// Checks the names and their number.
fn names_of(
    entries: &[NamedTable<'_>],
    noun: &str,
    max_chars: usize,
    max_count: usize,
) -> Vec<String> {
    for (i, (name, span, value)) in entries.iter().enumerate() {
        check_name_at(value, span, name, noun, max_chars);
        if i == max_count {
            value.fail_at(span, format!("more than {max_count} of {noun}"), "remove some");
        }
    }
    entries.iter().take(max_count).map(|(name, ..)| name.clone()).collect()
}

fn check_all_used(entries: &[NamedTable<'_>], message: &str, is_used: impl Fn(usize) -> bool) {
    for (i, (_, span, value)) in entries.iter().enumerate() {
        if !is_used(i) {
            value.fail_at(span, message, "use it or remove it");
        }
    }
}

fn check_name(value: &Value<'_>, name: &str, noun: &str, max_chars: usize) {
    check_name_at(value, &value.span(), name, noun, max_chars);
}

fn check_name_at(
    value: &Value<'_>,
    span: &std::ops::Range<usize>,
    name: &str,
    noun: &str,
    max_chars: usize,
) {
    let has_valid_start = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !has_valid_start || !name.chars().all(is_name_char) {
        let expected = "expected lower-case letters, digits and hyphens";
        value.fail_at(span, format!("{} cannot be the name of {noun}", quote(name)), expected);
    } else if name.len() > max_chars {
        let expected = format!("expected at most {max_chars} characters");
        value.fail_at(
            span,
            format!("{} is too long for the name of {noun}", quote(name)),
            expected,
        );
    }
}

/// Returns the end of the last flow.
fn end_of(flows: &[Flow]) -> Option<Duration> {
    flows.iter().map(|flow| flow.start + flow.pattern.duration()).max()
}

/// Returns the elements of an array of tables, each as a section.
fn sections<'a>(
    value: &Value<'a>,
    schema: &'static TableSchema,
    label: &str,
    expected: &str,
) -> Vec<Section<'a>> {
    let elements = value.list(expected).unwrap_or_default();
    elements.into_iter().filter_map(|v| v.section(schema, label, expected)).collect()
}
