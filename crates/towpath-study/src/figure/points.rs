//! Points of each curve, computed from the rows.

use towpath_measure::metrics::statistics::{Sample, median_interval};
use towpath_measure::scenario::World;
use towpath_report::figure::{Curve, CurvePoint};

use super::sizes;
use crate::plan::{CentralValue, ErrorBars, PanelSpec, Plan, PlotKind};
use crate::row::{RunRow, SECOND_PREFIX};

/// Seed of the bootstrap resampling, so that equal rows give equal figures.
const SEED: u64 = 1;

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
const KERNEL: &str = " (kernel)";

/// Returns the curves of a panel, in the order of the plan's variants; a variant that was run in
/// two worlds yields two.
pub(super) fn curves(
    plan: &Plan,
    drawing: &PanelSpec,
    rows: &[RunRow],
) -> (XPositions, Vec<Curve>) {
    let several = rows.iter().any(|row| rows.first().is_some_and(|first| first.world != row.world));
    let rows: Vec<&RunRow> = rows.iter().filter(|row| is_in_panel(drawing, row)).collect();
    let place = x_positions(plan, drawing, &rows);
    let own = curve_rows(plan, drawing, &rows, several);
    let whole = [drawing.x.clone()];
    let figures = if drawing.kind == PlotKind::Cdf { &whole[..] } else { &drawing.y };
    if drawing.x == "variant" {
        return side_by_side(plan, drawing, &own, figures);
    }
    let mut curves = Vec::new();
    for (group, CurveRows { variant, rows, emulated, name }) in own.iter().enumerate() {
        for (part, figure) in figures.iter().enumerate() {
            let points = points(drawing, &place, rows, figure);
            let stacked = drawing.kind == PlotKind::StackedBars;
            let (style, label) = match figures.len() {
                1 => (style(plan, variant), name.clone()),
                // A stack has one colour for each part, and so does a plan with one variant for
                // each curve.
                _ if own.len() == 1 => (part, legend(drawing, figure)),
                _ if stacked => (part, format!("{name}: {}", legend(drawing, figure))),
                count => (
                    style(plan, variant) * count + part,
                    format!("{name}: {}", legend(drawing, figure)),
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
    (place, curves)
}

fn curve_rows<'a>(
    plan: &'a Plan,
    drawing: &PanelSpec,
    rows: &[&'a RunRow],
    several: bool,
) -> Vec<CurveRows<'a>> {
    let wanted =
        |name: &&str| drawing.variants.is_empty() || drawing.variants.iter().any(|v| v == name);
    let all = plan.variants.iter().map(|variant| variant.name.as_str()).filter(wanted);
    let mut found = Vec::new();
    for variant in all {
        let of = |emulated: bool| {
            let of = rows
                .iter()
                .copied()
                .filter(|row| row.variant == variant && (row.world != World::Sim) == emulated);
            of.collect::<Vec<_>>()
        };
        let (simulated, emulated) = (of(false), of(true));
        let ending = if simulated.is_empty() { "" } else { KERNEL };
        for (rows, emulated, ending) in [(simulated, false, ""), (emulated, several, ending)] {
            if !rows.is_empty() {
                found.push(CurveRows {
                    variant,
                    rows,
                    emulated,
                    name: format!("{variant}{ending}"),
                });
            }
        }
    }
    found
}

/// Returns a bar for each variant; bars of one metric and world form a curve.
fn side_by_side(
    plan: &Plan,
    drawing: &PanelSpec,
    own: &[CurveRows<'_>],
    figures: &[String],
) -> (XPositions, Vec<Curve>) {
    let mut names: Vec<&str> = own.iter().map(|own| own.variant).collect();
    names.dedup();
    let mut curves = Vec::new();
    for figure in figures {
        let style = bar_style(plan, &legend(drawing, figure));
        for emulated in [false, true] {
            let each = own.iter().filter(|own| own.emulated == emulated);
            let points = each.filter_map(|own| {
                let at = names.iter().position(|name| *name == own.variant)?;
                point(drawing, at as f64, values(&own.rows, figure))
            });
            let points: Vec<_> = points.collect();
            if points.is_empty() && (emulated || own.iter().any(|own| own.emulated)) {
                continue;
            }
            let name = legend(drawing, figure) + if emulated { KERNEL } else { "" };
            curves.push(Curve { name, style, group: 0, emulated, given: false, points });
        }
    }
    (XPositions::Names(names.into_iter().map(str::to_owned).collect()), curves)
}

/// Returns the index among all names of such bars: panels share a legend, so it is the same in
/// all.
fn bar_style(plan: &Plan, name: &str) -> usize {
    let mut names: Vec<String> = Vec::new();
    for drawing in plan.panels.iter().filter(|drawing| drawing.x == "variant") {
        for label in drawing.y.iter().map(|figure| legend(drawing, figure)) {
            if !names.contains(&label) {
                names.push(label);
            }
        }
    }
    names.iter().position(|known| known == name).unwrap_or(0)
}

/// Returns the variant's index among all drawn ones, the same in all panels.
fn style(plan: &Plan, name: &str) -> usize {
    let drawn = |variant: &&crate::plan::Variant| {
        plan.panels
            .iter()
            .any(|drawing| drawing.variants.is_empty() || drawing.variants.contains(&variant.name))
    };
    plan.variants.iter().filter(drawn).position(|variant| variant.name == name).unwrap_or(0)
}

/// Returns true if a panel may have a curve of this name, for any rows.
pub(super) fn may_have(plan: &Plan, drawing: &PanelSpec, name: &str) -> bool {
    let shown = |variant: &&str| {
        drawing.variants.is_empty() || drawing.variants.iter().any(|other| other == variant)
    };
    let of_figure = |rest: &str| drawing.y.iter().any(|figure| legend(drawing, figure) == rest);
    let variants = || plan.variants.iter().map(|variant| variant.name.as_str()).filter(shown);
    let both = |variant: &str| name.strip_prefix(variant)?.strip_prefix(": ");
    of_figure(name)
        || drawing.x != "variant" && variants().any(|variant| variant == name)
        || variants().any(|variant| both(variant).is_some_and(of_figure))
}

fn legend(drawing: &PanelSpec, figure: &str) -> String {
    drawing.names.get(figure).map_or(figure, String::as_str).to_owned()
}

/// Returns true if a row belongs to the panel.
fn is_in_panel(drawing: &PanelSpec, row: &RunRow) -> bool {
    drawing.only.iter().all(|(name, texts)| {
        row.parameters.get(name).is_some_and(|parameter| texts.contains(&parameter.text))
    })
}

/// Returns numbers if every value has one, else names in the order of the plan.
fn x_positions(plan: &Plan, drawing: &PanelSpec, rows: &[&RunRow]) -> XPositions {
    let bars = matches!(drawing.kind, PlotKind::Bars | PlotKind::StackedBars);
    if !bars
        && (drawing.kind != PlotKind::Lines || rows.iter().all(|row| at(drawing, row).is_some()))
    {
        return XPositions::Number;
    }
    let axis = plan.axes.iter().find(|axis| axis.name == drawing.x);
    let texts = axis.into_iter().flat_map(|axis| &axis.values).map(|setting| setting.text.clone());
    let seen = |text: &String| {
        rows.iter().any(|row| row.parameters.get(&drawing.x).is_some_and(|p| p.text == *text))
    };
    XPositions::Names(texts.filter(seen).collect())
}

/// Returns a row's position on an axis of numbers, in the axis' unit.
fn at(drawing: &PanelSpec, row: &RunRow) -> Option<f64> {
    let number = row.parameters.get(&drawing.x)?.number?;
    Some(number / sizes(drawing)[0])
}

fn points(
    drawing: &PanelSpec,
    place: &XPositions,
    rows: &[&RunRow],
    figure: &str,
) -> Vec<CurvePoint> {
    let [across, up] = sizes(drawing);
    match drawing.kind {
        PlotKind::Cdf => {
            let sample = Sample::of(values(rows, figure));
            let runs = sample.count();
            let corner = |(value, share): (f64, f64)| {
                let middle = share * 100.0;
                CurvePoint { x: value / across, middle, spread: [middle; 2], runs }
            };
            sample.steps().into_iter().map(corner).collect()
        }
        PlotKind::Scatter => {
            let one = |row: &&RunRow| {
                let x =
                    row.metrics.get(&drawing.x).map(|x| x / across).or_else(|| at(drawing, row))?;
                let middle = row.metrics.get(figure)? / up;
                Some(CurvePoint { x, middle, spread: [middle; 2], runs: 1 })
            };
            rows.iter().filter_map(one).collect()
        }
        PlotKind::Series => series(drawing, rows, figure),
        PlotKind::Lines | PlotKind::Bars | PlotKind::StackedBars => {
            over_axis(drawing, place, rows, figure)
        }
    }
}

/// Returns a point for each second, in its middle.
fn series(drawing: &PanelSpec, rows: &[&RunRow], figure: &str) -> Vec<CurvePoint> {
    let second = |number: u32| {
        let found = values(rows, &format!("{SECOND_PREFIX}{number}.{figure}"));
        point(drawing, f64::from(number) + 0.5, found)
    };
    (0..).map_while(second).collect()
}

fn over_axis(
    drawing: &PanelSpec,
    place: &XPositions,
    rows: &[&RunRow],
    figure: &str,
) -> Vec<CurvePoint> {
    let mut places: Vec<(f64, Vec<&RunRow>)> = Vec::new();
    for row in rows {
        let x = match place {
            XPositions::Number => at(drawing, row),
            XPositions::Names(names) => {
                let text = row.parameters.get(&drawing.x).map(|parameter| &parameter.text);
                text.and_then(|text| names.iter().position(|name| name == text)).map(|at| at as f64)
            }
        };
        let Some(x) = x else { continue };
        match places.iter_mut().find(|(other, _)| other.total_cmp(&x).is_eq()) {
            Some((_, rows)) => rows.push(row),
            None => places.push((x, vec![row])),
        }
    }
    places.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let each = places.into_iter();
    each.filter_map(|(x, rows)| point(drawing, x, values(&rows, figure))).collect()
}

fn values(rows: &[&RunRow], figure: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| row.metrics.get(figure).copied()).collect()
}

/// Summarises some runs as a point; `None` without values.
fn point(drawing: &PanelSpec, x: f64, values: Vec<f64>) -> Option<CurvePoint> {
    let size = sizes(drawing)[1];
    let sample = Sample::of(values.into_iter().map(|value| value / size));
    let middle = match drawing.statistic {
        CentralValue::Median => sample.median()?,
        CentralValue::Mean => sample.mean()?,
    };
    let range = || Some([*sample.values().first()?, *sample.values().last()?]);
    let spread = match (drawing.spread, drawing.statistic) {
        (ErrorBars::None, _) => None,
        (ErrorBars::Range, _) => range(),
        (ErrorBars::Quartiles, _) => sample.quartiles(),
        (ErrorBars::Interval, CentralValue::Mean) => interval_of_mean(&sample, middle),
        (ErrorBars::Interval, CentralValue::Median) => median_interval(&sample, SEED)
            .map(|interval| [interval.low, interval.high])
            .or_else(range),
    };
    Some(CurvePoint { x, middle, spread: spread.unwrap_or([middle; 2]), runs: sample.count() })
}

/// Returns Student's confidence interval of the mean; `None` for a single value.
fn interval_of_mean(sample: &Sample, mean: f64) -> Option<[f64; 2]> {
    /// The 97.5 % quantiles with 1, 2, … degrees of freedom.
    const T_QUANTILES: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let freedom = sample.count().checked_sub(1)?;
    let quantile = T_QUANTILES.get(freedom.checked_sub(1)?).copied().unwrap_or(1.96);
    let squares: f64 = sample.values().iter().map(|value| (value - mean) * (value - mean)).sum();
    let half = quantile * (squares / freedom as f64 / sample.count() as f64).sqrt();
    Some([mean - half, mean + half])
}
