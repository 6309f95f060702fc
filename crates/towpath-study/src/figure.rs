//! Conversion of rows to figures that `towpath_report::figure` draws, and to one line of each
//! curve for the terminal.

mod points;
mod reference;

use towpath_report::figure::{
    Axis, Curve, CurveKind, CurvePoint, Figure, HorizontalLine, Panel, ReferencePoint, ScaleKind,
};

pub use reference::{PublishedPoint, QuantityText, published};

use crate::plan::{PanelSpec, Plan, PlotKind};
use crate::row::RunRow;
use points::{XPositions, curves};

/// Returns the figure of a plan: its rows as the plan draws them, and the published points.
pub fn figure(
    plan: &Plan,
    rows: &[RunRow],
    published: &[PublishedPoint],
    source: Option<&str>,
) -> Figure {
    let points_of_panel = |number: usize| {
        let is_in_panel =
            move |point: &&PublishedPoint| point.panel.is_none_or(|panel| panel == number);
        published.iter().filter(is_in_panel).collect::<Vec<_>>()
    };
    let numbered = plan.panels.iter().enumerate();
    let panels = numbered.map(|(number, spec)| panel(plan, spec, rows, &points_of_panel(number)));
    let mut panels: Vec<Panel> = panels.collect();
    style_published_curves(&mut panels);
    Figure { title: plan.title.clone(), panels, source: source.map(str::to_owned) }
}

fn panel(plan: &Plan, spec: &PanelSpec, rows: &[RunRow], published: &[&PublishedPoint]) -> Panel {
    let (positions, mut curves) = curves(plan, spec, rows);
    let kind = match spec.kind {
        PlotKind::Lines | PlotKind::Series => CurveKind::Lines,
        PlotKind::Bars => CurveKind::Bars,
        PlotKind::StackedBars => CurveKind::StackedBars,
        PlotKind::Cdf => CurveKind::Cdf,
        PlotKind::Scatter => CurveKind::Scatter,
    };
    let references = references(spec, &positions, &curves, published);
    let is_only_panel = plan.panels.len() == 1;
    curves.extend(published_curves(spec, &positions, &curves, published, is_only_panel));
    let [_, size] = sizes(spec);
    let y = if spec.kind == PlotKind::Cdf {
        Axis { label: label(spec, 1, "share of the runs", "%"), ..axis(spec, 1, ScaleKind::Linear) }
    } else {
        let scale = if spec.log[1] { ScaleKind::Log } else { ScaleKind::Linear };
        axis(spec, 1, scale)
    };
    let scale = match positions {
        XPositions::Number if spec.log[0] => ScaleKind::Log,
        XPositions::Number => ScaleKind::Linear,
        XPositions::Names(names) => ScaleKind::Names(names),
    };
    Panel {
        title: spec.title.clone(),
        kind,
        x: axis(spec, 0, scale),
        y,
        curves,
        references,
        lines: spec
            .lines
            .iter()
            .map(|(at, text)| HorizontalLine { at: at / size, text: text.clone() })
            .collect(),
        diagonal: None,
    }
}

/// Returns the value of one unit of each axis, in base units.
fn sizes(spec: &PanelSpec) -> [f64; 2] {
    let size = |unit: &Option<crate::plan::AxisUnit>| unit.as_ref().map_or(1.0, |unit| unit.size);
    [size(&spec.units[0]), size(&spec.units[1])]
}

fn axis(spec: &PanelSpec, axis_index: usize, scale: ScaleKind) -> Axis {
    let size = sizes(spec).get(axis_index).copied().unwrap_or(1.0);
    let name = match axis_index {
        0 if spec.x == "variant" => "",
        0 => spec.x.as_str(),
        _ => spec.y.first().map_or("", String::as_str),
    };
    let unit = match (spec.kind, axis_index, &scale) {
        (PlotKind::Series, 0, _) => "s",
        // Names contain their units.
        (_, _, ScaleKind::Names(_)) => "",
        _ => "unit",
    };
    let range =
        spec.ranges.get(axis_index).copied().flatten().map(|ends| ends.map(|end| end / size));
    Axis { label: label(spec, axis_index, name, unit), scale, range }
}

/// Returns an axis label with its unit: `receive buffer (KB)`.
fn label(spec: &PanelSpec, axis_index: usize, name: &str, unit: &str) -> String {
    let explicit = spec.labels.get(axis_index).map_or("", String::as_str);
    let text = if explicit.is_empty() { name } else { explicit };
    let unit_of_axis =
        spec.units.get(axis_index).and_then(Option::as_ref).map(|unit| unit.name.as_str());
    match (unit, unit_of_axis) {
        ("", _) | ("unit", None) => text.to_owned(),
        ("unit", Some(unit)) | (unit, _) => format!("{text} ({unit})"),
    }
}

/// Returns the published points whose curve the panel has.
fn references(
    spec: &PanelSpec,
    positions: &XPositions,
    curves: &[Curve],
    published: &[&PublishedPoint],
) -> Vec<ReferencePoint> {
    let references = published.iter().filter_map(|point| {
        let curve = curves.iter().find(|curve| curve.name == point.variant)?;
        let [x, y] = position_of(spec, positions, point)?;
        Some(ReferencePoint { style: Some(curve.style), name: curve.name.clone(), x, y })
    });
    references.collect()
}

/// Returns curves of published points alone: those assigned to this panel. Unassigned points belong
/// to the panel of a figure that has only one.
fn published_curves(
    spec: &PanelSpec,
    positions: &XPositions,
    run_curves: &[Curve],
    published: &[&PublishedPoint],
    is_only_panel: bool,
) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for point in published.iter().filter(|point| is_only_panel || point.panel.is_some()) {
        if run_curves.iter().any(|curve| curve.name == point.variant) {
            continue;
        }
        let Some([x, middle]) = position_of(spec, positions, point) else { continue };
        let point_of = CurvePoint { x, middle, spread: [middle; 2], runs: 0 };
        match curves.iter_mut().find(|curve| curve.name == point.variant) {
            Some(curve) => curve.points.push(point_of),
            None => curves.push(Curve {
                name: point.variant.clone(),
                style: 0,
                group: 0,
                emulated: false,
                given: true,
                points: vec![point_of],
            }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    curves
}

/// Gives curves of published points a style of their own, the same in all panels.
fn style_published_curves(panels: &mut [Panel]) {
    let all_curves = || panels.iter().flat_map(|panel| &panel.curves);
    let first_free_style =
        all_curves().filter(|curve| !curve.given).map(|curve| curve.style + 1).max().unwrap_or(0);
    let mut names: Vec<String> = Vec::new();
    for curve in all_curves().filter(|curve| curve.given) {
        if !names.contains(&curve.name) {
            names.push(curve.name.clone());
        }
    }
    for curve in panels.iter_mut().flat_map(|panel| &mut panel.curves).filter(|curve| curve.given) {
        let index = names.iter().position(|name| *name == curve.name).unwrap_or(0);
        curve.style = first_free_style + index;
    }
}

/// Returns the position of a published point in the units of the axes.
fn position_of(
    spec: &PanelSpec,
    positions: &XPositions,
    point: &PublishedPoint,
) -> Option<[f64; 2]> {
    let sizes = sizes(spec);
    let x = match positions {
        XPositions::Number => point.x.value(sizes[0])?,
        XPositions::Names(names) => names.iter().position(|name| *name == point.x.text)? as f64,
    };
    Some([x, point.y.value(sizes[1])?])
}

/// Returns a line of text for each curve: its name, a spark character for each point, and the first
/// and last value.
pub fn sparks(figure: &Figure) -> Vec<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut lines = Vec::new();
    for panel in &figure.panels {
        let values = |curve: &Curve| -> Vec<f64> {
            let finite = curve.points.iter().map(|point| point.middle);
            finite.filter(|value| value.is_finite()).collect()
        };
        let all_values = || panel.curves.iter().flat_map(values);
        let max = all_values().fold(f64::MIN_POSITIVE, f64::max); // positive even if all values are zero
        let names = panel.curves.iter().map(|curve| curve.name.chars().count());
        let width = names.max().unwrap_or(0).min(40);
        if !panel.curves.is_empty() {
            let label = &panel.y.label;
            let x_text = if panel.x.label.is_empty() {
                String::new()
            } else {
                format!(" over {}", panel.x.label)
            };
            lines.push(format!("{}{label}{x_text}", prefix(&panel.title)));
        }
        for curve in &panel.curves {
            let values = values(curve);
            let spark = |value: &f64| {
                let level = (value / max * 8.0).ceil().clamp(1.0, 8.0) as usize;
                LEVELS.get(level - 1).copied().unwrap_or(' ')
            };
            // A distribution has more points than fit on a line.
            let step = values.len().div_ceil(40).max(1);
            let sparks: String = values.iter().step_by(step).map(spark).collect();
            let name: String = curve.name.chars().take(width).collect();
            let end_texts = match (values.first(), values.last()) {
                (Some(first), Some(last)) if values.len() > 1 => {
                    format!("{} … {}", three_digits(*first), three_digits(*last))
                }
                (Some(only), _) => three_digits(*only),
                _ => "nothing".to_owned(),
            };
            lines.push(format!("  {name:<width$}  {sparks}  {end_texts}"));
        }
    }
    lines
}

fn prefix(title: &str) -> String {
    if title.is_empty() { String::new() } else { format!("{title}: ") }
}

/// Formats three significant digits.
fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests;
