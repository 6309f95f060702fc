//! Check of rows against the claims of a source.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_result::format;
use towpath_result::metrics::statistics::Sample;
use towpath_scenario::units::Dimension;
use towpath_scenario::{Operator, World};

use super::filter::{RunFilter, is_same_value};
use super::{
    Bound, CheckBound, Claim, ClaimCheck, ClaimOutcome, ClaimSet, PointQuantifier, Statistic,
};
use crate::row::{Parameter, RunRow};

/// Outcome of one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimVerdict {
    /// Outcome that was found; `None` when no check applied.
    pub found: Option<ClaimOutcome>,
    /// Expected outcome, from `expected.toml`.
    pub expected: ClaimOutcome,
    /// Results of the checks, in order.
    pub checks: Vec<CheckResult>,
}

/// Outcome of one check.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckResult {
    /// Outcome that was found for the check.
    pub found: CheckOutcome,
    /// Measured and required values, in one sentence without its full stop.
    pub text: String,
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutcome {
    /// Every measured value meets the bound.
    Holds,
    /// Some measured value misses the bound.
    Fails,
    /// Not applicable to this world or to so few runs.
    Skipped,
}

impl ClaimVerdict {
    /// Returns true if the outcome is as expected, or the claim was not checked.
    pub fn as_expected(&self) -> bool {
        self.found.is_none_or(|found| found == self.expected)
    }

    /// Returns the sentences of the claim's checks; failed checks come first.
    pub fn text(&self) -> String {
        let with_outcome = |found| self.checks.iter().filter(move |check| check.found == found);
        let order = [CheckOutcome::Fails, CheckOutcome::Holds, CheckOutcome::Skipped];
        let texts: Vec<_> =
            order.into_iter().flat_map(with_outcome).map(|check| check.text.as_str()).collect();
        texts.join("; ")
    }
}

impl ClaimSet {
    /// Checks every claim on the rows of one world.
    pub fn check(&self, rows: &[RunRow], world: World, thin: bool) -> Vec<ClaimVerdict> {
        let world_rows: Vec<&RunRow> = rows.iter().filter(|row| row.world == world).collect();
        self.claims.iter().map(|claim| self.verdict(claim, &world_rows, world, thin)).collect()
    }

    fn verdict(&self, claim: &Claim, rows: &[&RunRow], world: World, thin: bool) -> ClaimVerdict {
        let is_other_world = !claim.worlds.is_empty() && !claim.worlds.contains(&world);
        let result_of = |check: &ClaimCheck| {
            let skipped_result =
                |text: &str| CheckResult { found: CheckOutcome::Skipped, text: text.to_owned() };
            match check {
                _ if is_other_world => skipped_result("not checked in this world"),
                check if thin && !check.quick => skipped_result("not checked with so few runs"),
                check => self.check_result(check, rows),
            }
        };
        let checks: Vec<_> = claim.checks.iter().map(result_of).collect();
        let has_outcome = |found| checks.iter().any(|check| check.found == found);
        let found = match (has_outcome(CheckOutcome::Fails), has_outcome(CheckOutcome::Holds)) {
            (true, _) => Some(ClaimOutcome::Fails),
            (false, true) => Some(ClaimOutcome::Holds),
            (false, false) => None,
        };
        ClaimVerdict { found, expected: claim.outcome, checks }
    }

    fn check_result(&self, check: &ClaimCheck, rows: &[&RunRow]) -> CheckResult {
        match self.values(check, rows) {
            Ok((values, note)) => check_values(check, &values, &note),
            Err(text) => CheckResult { found: CheckOutcome::Fails, text },
        }
    }

    /// Returns the value of each point, and a note about failed runs.
    fn values(
        &self,
        check: &ClaimCheck,
        rows: &[&RunRow],
    ) -> Result<(Vec<(GridPoint, f64)>, String), String> {
        let points = self.points(&check.filter, check, rows);
        let failed: usize = points.iter().map(|point| point.failed).sum();
        let runs = failed + points.iter().map(|point| point.measured.len()).sum::<usize>();
        let failure_note =
            if failed > 0 { format!(" ({failed} of {runs} runs failed)") } else { String::new() };
        let mut values = Vec::new();
        for point in &points {
            let Some(value) = check.statistic.of(&point.measured) else {
                return Err(format!(
                    "`{}` was not measured{}{failure_note}",
                    check.metric,
                    point.point.location_text()
                ));
            };
            match &check.bound {
                CheckBound::Is(_) => values.push((point.point.clone(), value)),
                CheckBound::Ratio { than, .. } => {
                    let baseline = self.baseline_value(check, than, &point.point, rows)?;
                    values.push((point.point.clone(), value / baseline));
                }
            }
        }
        if values.is_empty() {
            return Err(format!("no run has `{}`, of those that are meant", check.metric));
        }
        Ok((values, failure_note))
    }

    /// Returns the value of the runs that `than` selects, at the same point.
    fn baseline_value(
        &self,
        check: &ClaimCheck,
        than: &RunFilter,
        point: &GridPoint,
        rows: &[&RunRow],
    ) -> Result<f64, String> {
        let is_same_point = |other: &GridPoint| {
            (!than.variants.is_empty() || other.variant == point.variant)
                && point.axes.iter().all(|(name, value)| {
                    than.parameters.contains_key(name)
                        || other.axes.get(name).is_some_and(|other| is_same_value(other, value))
                })
        };
        let points = self.points(than, check, rows);
        let mut baselines = points.iter().filter(|point| is_same_point(&point.point));
        let description =
            || format!("what `{}`{} is compared with", check.metric, point.location_text());
        match (baselines.next(), baselines.next()) {
            (Some(point), None) => check
                .statistic
                .of(&point.measured)
                .ok_or(format!("{} was not measured", description())),
            (None, _) => Err(format!("{} was not run", description())),
            (Some(_), Some(_)) => Err(format!("{} is several points, expected one", description())),
        }
    }

    /// Groups the runs that a filter selects by variant and axes.
    fn points(&self, filter: &RunFilter, check: &ClaimCheck, rows: &[&RunRow]) -> Vec<PointValues> {
        let mut points: BTreeMap<(String, Vec<String>), PointValues> = BTreeMap::new();
        let mut order = Vec::new();
        for row in rows.iter().filter(|row| filter.admits(row)) {
            let axes: BTreeMap<_, _> = self
                .axes
                .iter()
                .filter_map(|axis| Some((axis.clone(), row.parameters.get(axis)?.clone())))
                .collect();
            let axis_texts = axes.values().map(|parameter| parameter.text.clone()).collect();
            let key = (row.variant.clone(), axis_texts);
            let point = points.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                let grid_point = GridPoint { variant: row.variant.clone(), axes };
                PointValues { point: grid_point, measured: Vec::new(), failed: 0 }
            });
            point.measured.extend(row.metrics.get(&check.metric));
            point.failed += usize::from(row.error.is_some());
        }
        order.iter().filter_map(|key| points.remove(key)).collect()
    }
}

/// Point of the grid: a variant with its axis values.
#[derive(Debug, Clone, PartialEq)]
struct GridPoint {
    variant: String,
    axes: BTreeMap<String, Parameter>,
}

impl GridPoint {
    /// Returns the point as text: ` at TCP, receive buffer 600 KB`.
    fn location_text(&self) -> String {
        let axes = self.axes.iter().map(|(name, value)| format!(", {name} {}", value.text));
        format!(" at {}{}", self.variant, axes.collect::<String>())
    }
}

/// Measured values of a point.
#[derive(Debug)]
struct PointValues {
    point: GridPoint,
    measured: Vec<f64>,
    failed: usize,
}

impl Statistic {
    /// Computes the statistic of some values; `None` for an empty list.
    pub fn of(&self, values: &[f64]) -> Option<f64> {
        let sample = Sample::of(values.iter().copied());
        match self {
            Self::Median => sample.median(),
            Self::Mean => sample.mean(),
            Self::Min => sample.values().first().copied(),
            Self::Max => sample.values().last().copied(),
            Self::Percentile(percent) => sample.quantile(percent / 100.0),
            Self::Share(bound) => {
                let met = sample.values().iter().filter(|value| bound.admits(**value)).count();
                (sample.count() > 0).then(|| met as f64 / sample.count() as f64)
            }
        }
    }
}

impl Bound {
    /// Returns true if a value meets the bound.
    pub fn admits(&self, value: f64) -> bool {
        self.operator.holds(value, self.value)
    }

    /// Returns the distance of a value from the bound; negative if the value misses it.
    fn slack(&self, value: f64) -> f64 {
        match self.operator {
            Operator::AtLeast | Operator::More => value - self.value,
            Operator::AtMost | Operator::Less => self.value - value,
            Operator::Equal => -(value - self.value).abs(),
        }
    }

    /// Returns the bound as text: `≥ 9 Mbit/s`.
    fn expected_text(&self) -> String {
        let sign = match self.operator {
            Operator::AtLeast => "≥",
            Operator::More => ">",
            Operator::AtMost => "≤",
            Operator::Less => "<",
            Operator::Equal => "=",
        };
        format!("{sign} {}", without_trailing_zeros(&self.text(self.value)))
    }

    /// Formats a value of the bound's dimension for people.
    fn text(&self, value: f64) -> String {
        match self.dimension {
            _ if value.is_infinite() => "never".to_owned(),
            Dimension::Rate => format::rate(value),
            Dimension::Duration => {
                format::time(Duration::try_from_secs_f64(value).unwrap_or_default())
            }
            Dimension::Size => format::bytes(value.max(0.0) as u64),
            Dimension::Share => format::share(value),
            Dimension::Packets => format!("{value:.0} packets"),
            Dimension::Count if value.fract().abs() < 1e-9 => format!("{value:.0}"),
            Dimension::Count if value.abs() >= 100.0 => format!("{value:.0}"),
            Dimension::Count => format!("{value:.3}"),
        }
    }
}

/// Removes trailing zeros: `9.00 Mbit/s` becomes `9 Mbit/s`.
fn without_trailing_zeros(text: &str) -> String {
    let (number, unit) = text.split_once(' ').map_or((text, ""), |(number, unit)| (number, unit));
    let is_integer = !number.contains('.');
    let number =
        if is_integer { number } else { number.trim_end_matches('0').trim_end_matches('.') };
    if unit.is_empty() { number.to_owned() } else { format!("{number} {unit}") }
}

fn check_values(check: &ClaimCheck, values: &[(GridPoint, f64)], note: &str) -> CheckResult {
    let (bounds, prefix) = match &check.bound {
        CheckBound::Is(bounds) => (bounds, ""),
        CheckBound::Ratio { bounds, .. } => (bounds, "ratio "),
    };
    let bounds_text: Vec<_> = bounds.iter().map(Bound::expected_text).collect();
    let bounds_text = bounds_text.join(" and ");
    let meets_bounds = |value: f64| bounds.iter().all(|bound| bound.admits(value));
    let slack = |value: f64| bounds.iter().map(|b| b.slack(value)).fold(f64::INFINITY, f64::min);
    let format_value =
        |value: f64| bounds.first().map_or_else(String::new, |bound| bound.text(value));
    let count = values.len();
    let met = values.iter().filter(|(_, value)| meets_bounds(*value)).count();
    let by_slack = |a: &&(GridPoint, f64), b: &&(GridPoint, f64)| slack(a.1).total_cmp(&slack(b.1));
    let (worst, best) = (values.iter().min_by(by_slack), values.iter().max_by(by_slack));
    let (holds, text) = match (check.quantifier, worst.zip(best)) {
        (_, None) => (false, "nothing was measured".to_owned()),
        (PointQuantifier::Mean, Some(_)) => {
            let mean = values.iter().map(|(_, value)| value).sum::<f64>() / count as f64;
            (meets_bounds(mean), format!("{prefix}mean of {count} points {}", format_value(mean)))
        }
        (_, Some(((_, only), _))) if count == 1 => {
            (met == 1, format!("{prefix}{}", format_value(*only)))
        }
        (PointQuantifier::All, Some(((point, value), _))) if met < count => {
            let location = point.location_text();
            (
                false,
                format!(
                    "{} of {count} points miss it: {prefix}{}{location}",
                    count - met,
                    format_value(*value)
                ),
            )
        }
        (PointQuantifier::All, Some(((_, value), _))) => {
            let end = nearest_end(bounds, values, *value);
            (true, format!("all {count} points: {end}{prefix}{}", format_value(*value)))
        }
        (PointQuantifier::Any, Some((_, (point, value)))) => {
            let best = format!("best {prefix}{}{}", format_value(*value), point.location_text());
            (met > 0, format!("{met} of {count} points: {best}"))
        }
    };
    let found = if holds { CheckOutcome::Holds } else { CheckOutcome::Fails };
    let quantity = match &check.statistic {
        Statistic::Share(bound) => {
            format!("share of runs with {} {}", check.metric, bound.expected_text())
        }
        Statistic::Percentile(percent) => format!("percentile {percent} of {}", check.metric),
        Statistic::Median => check.metric.clone(),
        Statistic::Mean => format!("mean {}", check.metric),
        Statistic::Min => format!("smallest {}", check.metric),
        Statistic::Max => format!("largest {}", check.metric),
    };
    CheckResult { found, text: format!("{quantity}: {text}, asked {bounds_text}{note}") }
}

/// Returns the position of the value nearest to the bound: smallest, largest or neither.
fn nearest_end(bounds: &[Bound], values: &[(GridPoint, f64)], value: f64) -> &'static str {
    let is_extreme = |fold_step: fn(f64, f64) -> f64, start: f64| {
        values.iter().map(|(_, value)| *value).fold(start, fold_step).total_cmp(&value).is_eq()
    };
    match bounds {
        [_] if is_extreme(f64::min, f64::INFINITY) => "smallest ",
        [_] if is_extreme(f64::max, f64::NEG_INFINITY) => "largest ",
        _ => "nearest to the bound ",
    }
}
