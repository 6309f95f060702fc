//! `towpath collect diff`: the difference between two runs of a collector, with limits for CI.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use towpath_result::format::number;

use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{UploadArguments, fetch_run};

/// Compare two stored runs, and fail if a metric has changed too much
#[derive(Debug, Args)]
pub(super) struct DiffArguments {
    /// Address of the first run's page, or its identifier with `--to`
    #[arg(value_name = "A")]
    first: String,
    /// Address of the second run's page, or its identifier with `--to`
    #[arg(value_name = "B")]
    second: String,
    /// Limit for the change from A to B, such as `"goodput < -5 %"`: exit code 1 if it holds
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    fail_if: Vec<Condition>,
    /// Print JSON instead of the table
    #[arg(short = 'J', long)]
    json: bool,
    #[command(flatten)]
    collector: UploadArguments,
}

/// Metric of the collector's catalogue.
#[derive(Debug, Clone, Copy)]
struct DiffMetric {
    name: &'static str,
    /// Key in the catalogue's row.
    key: &'static str,
    /// Formats a value.
    text: fn(f64) -> String,
}

fn micros(value: f64) -> String {
    number::time(value * 1e3)
}

const METRICS: [DiffMetric; 7] = [
    DiffMetric { name: "goodput", key: "goodput_bps", text: number::rate },
    DiffMetric { name: "delay.p50", key: "delay_p50_us", text: micros },
    DiffMetric { name: "delay.p99", key: "delay_p99_us", text: micros },
    DiffMetric { name: "stall.longest", key: "stall_us", text: micros },
    DiffMetric { name: "recovery", key: "recovery_us", text: micros },
    DiffMetric { name: "connect", key: "connect_us", text: micros },
    DiffMetric { name: "retransmissions", key: "retransmissions", text: number::count },
];

/// Limit for a relative change.
#[derive(Debug, Clone)]
struct Condition {
    /// The condition as typed.
    text: String,
    metric: DiffMetric,
    is_below: bool,
    /// Bound of the change: −0.05 for −5 %.
    bound: f64,
}

impl Condition {
    fn holds(&self, change: f64) -> bool {
        if self.is_below { change < self.bound } else { change > self.bound }
    }
}

/// Reads a condition: `goodput < -5 %`.
fn condition(text: &str) -> Result<Condition, String> {
    let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    let expected = || format!("expected such as `goodput < -5 %`; metrics: {}", names.join(", "));
    let (position, operator) =
        text.char_indices().find(|(_, c)| matches!(c, '<' | '>')).ok_or_else(expected)?;
    let (name, bound) = text.split_at(position);
    let metric = METRICS.into_iter().find(|metric| metric.name == name.trim());
    let bound = bound.get(1..).unwrap_or_default().trim().strip_suffix('%').ok_or_else(expected)?;
    let bound: f64 = bound.trim().parse().map_err(|_| expected())?;
    if !bound.is_finite() {
        return Err(expected());
    }
    Ok(Condition {
        text: text.to_owned(),
        metric: metric.ok_or_else(expected)?,
        is_below: operator == '<',
        bound: bound / 100.0,
    })
}

/// Difference of one metric.
struct MetricDiff {
    metric: DiffMetric,
    first: Option<f64>,
    second: Option<f64>,
}

impl MetricDiff {
    /// Returns the relative change; `None` if it is undefined.
    fn change(&self) -> Option<f64> {
        let (first, second) = (self.first?, self.second?);
        let change = if first.total_cmp(&second).is_eq() { 0.0 } else { second / first - 1.0 };
        change.is_finite().then_some(change)
    }
}

pub(super) fn diff(arguments: &DiffArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let first = fetch_run(&arguments.collector, &arguments.first)?;
    let second = fetch_run(&arguments.collector, &arguments.second)?;
    let diffs: Vec<MetricDiff> = METRICS
        .into_iter()
        .map(|metric| {
            let value = |run: &Value| run.get(metric.key).and_then(Value::as_f64);
            MetricDiff { metric, first: value(&first), second: value(&second) }
        })
        .collect();
    if arguments.json {
        print_json(&diffs, ui)?;
    } else {
        print_table(&diffs, ui)?;
    }
    let mut failed = false;
    for condition in &arguments.fail_if {
        let diff = diffs.iter().find(|diff| diff.metric.name == condition.metric.name);
        let Some(change) = diff.and_then(MetricDiff::change) else {
            return Err(CliError::Unavailable {
                what: format!("the runs have no change of `{}` to check", condition.metric.name),
                hint: "choose a metric that both runs have, and that is not 0 in the first"
                    .to_owned(),
            });
        };
        if condition.holds(change) {
            failed = true;
            let change = change_text(change);
            ui.progress(&format!("failed: `{}`, measured {change}", condition.text));
        }
    }
    ui.out.flush()?;
    Ok(ExitCode::from(u8::from(failed)))
}

fn change_text(change: f64) -> String {
    let sign = if change < 0.0 { "-" } else { "+" };
    format!("{sign}{}", number::percent(change.abs()))
}

fn print_table(diffs: &[MetricDiff], ui: &mut Ui) -> Result<(), CliError> {
    writeln!(ui.out, "{:16} {:>14} {:>14} {:>10}", "metric", "A", "B", "change")?;
    for diff in diffs.iter().filter(|diff| diff.first.is_some() || diff.second.is_some()) {
        let text = |value: Option<f64>| value.map_or("-".to_owned(), diff.metric.text);
        let change = diff.change().map_or("-".to_owned(), change_text);
        let (first, second) = (text(diff.first), text(diff.second));
        writeln!(ui.out, "{:16} {first:>14} {second:>14} {change:>10}", diff.metric.name)?;
    }
    Ok(())
}

fn print_json(diffs: &[MetricDiff], ui: &mut Ui) -> Result<(), CliError> {
    for diff in diffs {
        let line = json!({
            "metric": diff.metric.name,
            "a": diff.first,
            "b": diff.second,
            "change": diff.change(),
        });
        writeln!(ui.out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_and_applied_to_the_change() {
        let less = condition("goodput < -5 %").unwrap();
        assert!(less.holds(-0.06) && !less.holds(-0.05) && !less.holds(0.5));
        let more = condition("delay.p99>10%").unwrap();
        assert!(more.holds(0.11) && !more.holds(0.1));
        for text in
            ["goodput", "goodput < 5", "speed < 1 %", "goodput < x %", "goodput < inf %", "<"]
        {
            assert!(condition(text).unwrap_err().contains("goodput < -5 %"), "{text}");
        }
    }

    #[test]
    fn a_change_from_nothing_is_undefined_and_that_between_equals_is_none() {
        let diff = |first, second| MetricDiff { metric: METRICS[0], first, second }.change();
        assert_eq!(diff(Some(0.0), Some(0.0)), Some(0.0));
        assert_eq!(diff(Some(0.0), Some(1.0)), None);
        assert_eq!(diff(None, Some(1.0)), None);
        assert_eq!(diff(Some(2.0), Some(1.0)), Some(-0.5));
    }
}
