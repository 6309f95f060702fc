//! Points of each curve, computed from the rows.

use towpath_report::figure::{Curve, CurvePoint};
use towpath_result::metrics::statistics::{Sample, median_interval};
use towpath_scenario::World;

use super::sizes;
use crate::plan::{CentralValue, ErrorBars, PanelSpec, Plan, PlotKind};
use crate::row::{RunRow, SECOND_PREFIX};

/// Seed of the bootstrap resampling, so that equal rows give equal figures.
const RESAMPLING_SEED: u64 = 1;

/// Kind of positions on the horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum XPositions {
    Number,
    Names(Vec<String>),
}

/// Rows of a variant in one of the worlds, which form a curve.
struct CurveRows<'a> {
    variant: &'a str,
    rows: Vec<&'a RunRow>,
    /// True for emulated rows, if there are also simulated curves.
    emulated: bool,
    /// Name in the legend.
    name: String,
}

/// Suffix of a legend name whose variant was also simulated.
const KERNEL_SUFFIX: &str = " (kernel)";

/// Returns the curves of a panel, in the order of the plan's variants; a variant that was run in
/// two worlds yields two.
pub(super) fn curves(plan: &Plan, spec: &PanelSpec, rows: &[RunRow]) -> (XPositions, Vec<Curve>) {
    let has_several_worlds =
        rows.iter().any(|row| rows.first().is_some_and(|first| first.world != row.world));
    let rows: Vec<&RunRow> = rows.iter().filter(|row| is_in_panel(spec, row)).collect();
    let positions = x_positions(plan, spec, &rows);
    let groups = curve_rows(plan, spec, &rows, has_several_worlds);
    let x_metric = [spec.x.clone()];
    let metrics = if spec.kind == PlotKind::Cdf { &x_metric[..] } else { &spec.y };
    if spec.x == "variant" {
        return side_by_side(plan, spec, &groups, metrics);
    }
    let mut curves = Vec::new();
    for (group, CurveRows { variant, rows, emulated, name }) in groups.iter().enumerate() {
        for (metric_index, metric) in metrics.iter().enumerate() {
            let points = points(spec, &positions, rows, metric);
            let is_stacked = spec.kind == PlotKind::StackedBars;
            let (style, label) = match metrics.len() {
                1 => (style(plan, variant), name.clone()),
                // A stack has one colour for each part, and so does a plan with one variant for
                // each curve.
                _ if groups.len() == 1 => (metric_index, legend(spec, metric)),
                _ if is_stacked => (metric_index, format!("{name}: {}", legend(spec, metric))),
                count => (
                    style(plan, variant) * count + metric_index,
                    format!("{name}: {}", legend(spec, metric)),
                ),
            };
            curves.push(Curve {
                name: label,
                style,
                group,
                emulated: *emulated,
                given: false,
                points,
            });
        }
    }
    (positions, curves)
}

fn curve_rows<'a>(
    plan: &'a Plan,
    spec: &PanelSpec,
    rows: &[&'a RunRow],
    has_several_worlds: bool,
) -> Vec<CurveRows<'a>> {
    let is_drawn =
        |name: &&str| spec.variants.is_empty() || spec.variants.iter().any(|v| v == name);
    let variants = plan.variants.iter().map(|variant| variant.name.as_str()).filter(is_drawn);
    let mut curve_rows = Vec::new();
    for variant in variants {
        let rows_of = |emulated: bool| {
            let matching = rows
                .iter()
                .copied()
                .filter(|row| row.variant == variant && (row.world != World::Sim) == emulated);
            matching.collect::<Vec<_>>()
        };
        let (simulated, emulated) = (rows_of(false), rows_of(true));
        let suffix = if simulated.is_empty() { "" } else { KERNEL_SUFFIX };
        for (rows, emulated, suffix) in
            [(simulated, false, ""), (emulated, has_several_worlds, suffix)]
        {
            if !rows.is_empty() {
                curve_rows.push(CurveRows {
                    variant,
                    rows,
                    emulated,
                    name: format!("{variant}{suffix}"),
                });
            }
        }
    }
    curve_rows
}

/// Returns a bar for each variant; bars of one metric and world form a curve.
fn side_by_side(
    plan: &Plan,
    spec: &PanelSpec,
    groups: &[CurveRows<'_>],
    metrics: &[String],
) -> (XPositions, Vec<Curve>) {
    let mut names: Vec<&str> = groups.iter().map(|group| group.variant).collect();
    names.dedup();
    let mut curves = Vec::new();
    for metric in metrics {
        let style = bar_style(plan, &legend(spec, metric));
        for emulated in [false, true] {
            let in_world = groups.iter().filter(|group| group.emulated == emulated);
            let points = in_world.filter_map(|group| {
                let index = names.iter().position(|name| *name == group.variant)?;
                point(spec, index as f64, values(&group.rows, metric))
            });
            let points: Vec<_> = points.collect();
            if points.is_empty() && (emulated || groups.iter().any(|group| group.emulated)) {
                continue;
            }
            let name = legend(spec, metric) + if emulated { KERNEL_SUFFIX } else { "" };
            curves.push(Curve { name, style, group: 0, emulated, given: false, points });
        }
    }
    (XPositions::Names(names.into_iter().map(str::to_owned).collect()), curves)
}

/// Returns the index among all names of such bars: panels share a legend, so it is the same in
/// all.
fn bar_style(plan: &Plan, name: &str) -> usize {
    let mut names: Vec<String> = Vec::new();
    for spec in plan.panels.iter().filter(|spec| spec.x == "variant") {
        for label in spec.y.iter().map(|metric| legend(spec, metric)) {
            if !names.contains(&label) {
                names.push(label);
            }
        }
    }
    names.iter().position(|n| n == name).unwrap_or(0)
}

/// Returns the variant's index among all drawn ones, the same in all panels.
fn style(plan: &Plan, name: &str) -> usize {
    let is_drawn = |variant: &&crate::plan::Variant| {
        plan.panels
            .iter()
            .any(|spec| spec.variants.is_empty() || spec.variants.contains(&variant.name))
    };
    plan.variants.iter().filter(is_drawn).position(|variant| variant.name == name).unwrap_or(0)
}

/// Returns true if a panel may have a curve of this name, for any rows.
pub(super) fn may_have_curve(plan: &Plan, spec: &PanelSpec, name: &str) -> bool {
    let is_drawn = |variant: &&str| {
        spec.variants.is_empty() || spec.variants.iter().any(|other| other == variant)
    };
    let is_legend =
        |legend_name: &str| spec.y.iter().any(|metric| legend(spec, metric) == legend_name);
    let variants = || plan.variants.iter().map(|variant| variant.name.as_str()).filter(is_drawn);
    let metric_part = |variant: &str| name.strip_prefix(variant)?.strip_prefix(": ");
    is_legend(name)
        || spec.x != "variant" && variants().any(|variant| variant == name)
        || variants().any(|variant| metric_part(variant).is_some_and(is_legend))
}

fn legend(spec: &PanelSpec, metric: &str) -> String {
    spec.names.get(metric).map_or(metric, String::as_str).to_owned()
}

/// Returns true if a row belongs to the panel.
fn is_in_panel(spec: &PanelSpec, row: &RunRow) -> bool {
    spec.only.iter().all(|(name, texts)| {
        row.parameters.get(name).is_some_and(|parameter| texts.contains(&parameter.text))
    })
}

/// Returns numbers if every value has one, else names in the order of the plan.
fn x_positions(plan: &Plan, spec: &PanelSpec, rows: &[&RunRow]) -> XPositions {
    let is_bars = matches!(spec.kind, PlotKind::Bars | PlotKind::StackedBars);
    if !is_bars
        && (spec.kind != PlotKind::Lines || rows.iter().all(|row| x_of_row(spec, row).is_some()))
    {
        return XPositions::Number;
    }
    let axis = plan.axes.iter().find(|axis| axis.name == spec.x);
    let texts = axis.into_iter().flat_map(|axis| &axis.values).map(|setting| setting.text.clone());
    let occurs = |text: &String| {
        rows.iter().any(|row| row.parameters.get(&spec.x).is_some_and(|p| p.text == *text))
    };
    XPositions::Names(texts.filter(occurs).collect())
}

/// Returns a row's position on an axis of numbers, in the axis' unit.
fn x_of_row(spec: &PanelSpec, row: &RunRow) -> Option<f64> {
    let number = row.parameters.get(&spec.x)?.number?;
    Some(number / sizes(spec)[0])
}

fn points(
    spec: &PanelSpec,
    positions: &XPositions,
    rows: &[&RunRow],
    metric: &str,
) -> Vec<CurvePoint> {
    let [x_unit_size, y_unit_size] = sizes(spec);
    match spec.kind {
        PlotKind::Cdf => {
            let sample = Sample::of(values(rows, metric));
            let runs = sample.count();
            let corner = |(value, share): (f64, f64)| {
                let middle = share * 100.0;
                CurvePoint { x: value / x_unit_size, middle, spread: [middle; 2], runs }
            };
            sample.steps().into_iter().map(corner).collect()
        }
        PlotKind::Scatter => {
            let point = |row: &&RunRow| {
                let x = row
                    .metrics
                    .get(&spec.x)
                    .map(|x| x / x_unit_size)
                    .or_else(|| x_of_row(spec, row))?;
                let middle = row.metrics.get(metric)? / y_unit_size;
                Some(CurvePoint { x, middle, spread: [middle; 2], runs: 1 })
            };
            rows.iter().filter_map(point).collect()
        }
        PlotKind::Series => series(spec, rows, metric),
        PlotKind::Lines | PlotKind::Bars | PlotKind::StackedBars => {
            over_axis(spec, positions, rows, metric)
        }
    }
}

/// Returns a point for each second, in its middle.
fn series(spec: &PanelSpec, rows: &[&RunRow], metric: &str) -> Vec<CurvePoint> {
    let second = |number: u32| {
        let values = values(rows, &format!("{SECOND_PREFIX}{number}.{metric}"));
        point(spec, f64::from(number) + 0.5, values)
    };
    (0..).map_while(second).collect()
}

fn over_axis(
    spec: &PanelSpec,
    positions: &XPositions,
    rows: &[&RunRow],
    metric: &str,
) -> Vec<CurvePoint> {
    let mut rows_by_x: Vec<(f64, Vec<&RunRow>)> = Vec::new();
    for row in rows {
        let x = match positions {
            XPositions::Number => x_of_row(spec, row),
            XPositions::Names(names) => {
                let text = row.parameters.get(&spec.x).map(|parameter| &parameter.text);
                text.and_then(|text| names.iter().position(|name| name == text))
                    .map(|index| index as f64)
            }
        };
        let Some(x) = x else { continue };
        match rows_by_x.iter_mut().find(|(other, _)| other.total_cmp(&x).is_eq()) {
            Some((_, rows)) => rows.push(row),
            None => rows_by_x.push((x, vec![row])),
        }
    }
    rows_by_x.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let points = rows_by_x.into_iter();
    points.filter_map(|(x, rows)| point(spec, x, values(&rows, metric))).collect()
}

fn values(rows: &[&RunRow], metric: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| row.metrics.get(metric).copied()).collect()
}

/// Summarises some runs as a point; `None` without values.
fn point(spec: &PanelSpec, x: f64, values: Vec<f64>) -> Option<CurvePoint> {
    let size = sizes(spec)[1];
    let sample = Sample::of(values.into_iter().map(|value| value / size));
    let middle = match spec.statistic {
        CentralValue::Median => sample.median()?,
        CentralValue::Mean => sample.mean()?,
    };
    let range = || Some([*sample.values().first()?, *sample.values().last()?]);
    let spread = match (spec.spread, spec.statistic) {
        (ErrorBars::None, _) => None,
        (ErrorBars::Range, _) => range(),
        (ErrorBars::Quartiles, _) => sample.quartiles(),
        (ErrorBars::Interval, CentralValue::Mean) => interval_of_mean(&sample, middle),
        (ErrorBars::Interval, CentralValue::Median) => median_interval(&sample, RESAMPLING_SEED)
            .map(|interval| [interval.low, interval.high])
            .or_else(range),
    };
    Some(CurvePoint { x, middle, spread: spread.unwrap_or([middle; 2]), runs: sample.count() })
}

/// Returns Student's confidence interval of the mean; `None` for a single value.
fn interval_of_mean(sample: &Sample, mean: f64) -> Option<[f64; 2]> {
    /// Student's t: the 97.5 % quantiles with 1, 2, … degrees of freedom.
    const T_QUANTILES: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let degrees_of_freedom = sample.count().checked_sub(1)?;
    let quantile = T_QUANTILES.get(degrees_of_freedom.checked_sub(1)?).copied().unwrap_or(1.96);
    let squares: f64 = sample.values().iter().map(|value| (value - mean) * (value - mean)).sum();
    let half_width =
        quantile * (squares / degrees_of_freedom as f64 / sample.count() as f64).sqrt();
    Some([mean - half_width, mean + half_width])
}
