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
    let of_panel = |number: usize| {
        let here = move |point: &&PublishedPoint| point.panel.is_none_or(|panel| panel == number);
        published.iter().filter(here).collect::<Vec<_>>()
    };
    let each = plan.panels.iter().enumerate();
    let panels = each.map(|(number, drawing)| panel(plan, drawing, rows, &of_panel(number)));
    let mut panels: Vec<Panel> = panels.collect();
    style_given(&mut panels);
    Figure { title: plan.title.clone(), panels, source: source.map(str::to_owned) }
}

fn panel(
    plan: &Plan,
    drawing: &PanelSpec,
    rows: &[RunRow],
    published: &[&PublishedPoint],
) -> Panel {
    let (place, mut curves) = curves(plan, drawing, rows);
    let kind = match drawing.kind {
        PlotKind::Lines | PlotKind::Series => CurveKind::Lines,
        PlotKind::Bars => CurveKind::Bars,
        PlotKind::StackedBars => CurveKind::StackedBars,
        PlotKind::Cdf => CurveKind::Cdf,
        PlotKind::Scatter => CurveKind::Scatter,
    };
    let references = references(drawing, &place, &curves, published);
    let only = plan.panels.len() == 1;
    curves.extend(published_curves(drawing, &place, &curves, published, only));
    let [_, size] = sizes(drawing);
    let y = if drawing.kind == PlotKind::Cdf {
        Axis {
            label: label(drawing, 1, "share of the runs", "%"),
            ..axis(drawing, 1, ScaleKind::Linear)
        }
    } else {
        let scale = if drawing.log[1] { ScaleKind::Log } else { ScaleKind::Linear };
        axis(drawing, 1, scale)
    };
    let scale = match place {
        XPositions::Number if drawing.log[0] => ScaleKind::Log,
        XPositions::Number => ScaleKind::Linear,
        XPositions::Names(names) => ScaleKind::Names(names),
    };
    Panel {
        title: drawing.title.clone(),
        kind,
        x: axis(drawing, 0, scale),
        y,
        curves,
        references,
        lines: drawing
            .lines
            .iter()
            .map(|(at, text)| HorizontalLine { at: at / size, text: text.clone() })
            .collect(),
        diagonal: None,
    }
}

/// Returns the value of one unit of each axis, in base units.
fn sizes(drawing: &PanelSpec) -> [f64; 2] {
    let size = |unit: &Option<crate::plan::AxisUnit>| unit.as_ref().map_or(1.0, |unit| unit.size);
    [size(&drawing.units[0]), size(&drawing.units[1])]
}

fn axis(drawing: &PanelSpec, which: usize, scale: ScaleKind) -> Axis {
    let size = sizes(drawing).get(which).copied().unwrap_or(1.0);
    let name = match which {
        0 if drawing.x == "variant" => "",
        0 => drawing.x.as_str(),
        _ => drawing.y.first().map_or("", String::as_str),
    };
    let unit = match (drawing.kind, which, &scale) {
        (PlotKind::Series, 0, _) => "s",
        // Names contain their units.
        (_, _, ScaleKind::Names(_)) => "",
        _ => "unit",
    };
    let range = drawing.ranges.get(which).copied().flatten().map(|ends| ends.map(|end| end / size));
    Axis { label: label(drawing, which, name, unit), scale, range }
}

/// Returns an axis label with its unit: `receive buffer (KB)`.
fn label(drawing: &PanelSpec, which: usize, name: &str, unit: &str) -> String {
    let given = drawing.labels.get(which).map_or("", String::as_str);
    let text = if given.is_empty() { name } else { given };
    let own = drawing.units.get(which).and_then(Option::as_ref).map(|unit| unit.name.as_str());
    match (unit, own) {
        ("", _) | ("unit", None) => text.to_owned(),
        ("unit", Some(unit)) | (unit, _) => format!("{text} ({unit})"),
    }
}

/// Returns the published points whose curve the panel has.
fn references(
    drawing: &PanelSpec,
    place: &XPositions,
    curves: &[Curve],
    published: &[&PublishedPoint],
) -> Vec<ReferencePoint> {
    let each = published.iter().filter_map(|point| {
        let curve = curves.iter().find(|curve| curve.name == point.variant)?;
        let [x, y] = at(drawing, place, point)?;
        Some(ReferencePoint { style: Some(curve.style), name: curve.name.clone(), x, y })
    });
    each.collect()
}

/// Returns curves of published points alone: those assigned to this panel, or to the only one.
fn published_curves(
    drawing: &PanelSpec,
    place: &XPositions,
    ours: &[Curve],
    published: &[&PublishedPoint],
    only: bool,
) -> Vec<Curve> {
    let mut found: Vec<Curve> = Vec::new();
    for point in published.iter().filter(|point| only || point.panel.is_some()) {
        if ours.iter().any(|curve| curve.name == point.variant) {
            continue;
        }
        let Some([x, middle]) = at(drawing, place, point) else { continue };
        let point_of = CurvePoint { x, middle, spread: [middle; 2], runs: 0 };
        match found.iter_mut().find(|curve| curve.name == point.variant) {
            Some(curve) => curve.points.push(point_of),
            None => found.push(Curve {
                name: point.variant.clone(),
                style: 0,
                group: 0,
                emulated: false,
                given: true,
                points: vec![point_of],
            }),
        }
    }
    for curve in &mut found {
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    found
}

/// Gives curves of published points a style of their own, the same in all panels.
fn style_given(panels: &mut [Panel]) {
    let all = || panels.iter().flat_map(|panel| &panel.curves);
    let free = all().filter(|curve| !curve.given).map(|curve| curve.style + 1).max().unwrap_or(0);
    let mut names: Vec<String> = Vec::new();
    for curve in all().filter(|curve| curve.given) {
        if !names.contains(&curve.name) {
            names.push(curve.name.clone());
        }
    }
    for curve in panels.iter_mut().flat_map(|panel| &mut panel.curves).filter(|curve| curve.given) {
        let number = names.iter().position(|name| *name == curve.name).unwrap_or(0);
        curve.style = free + number;
    }
}

/// Returns the position of a published point in the units of the axes.
fn at(drawing: &PanelSpec, place: &XPositions, point: &PublishedPoint) -> Option<[f64; 2]> {
    let sizes = sizes(drawing);
    let x = match place {
        XPositions::Number => point.x.value(sizes[0])?,
        XPositions::Names(names) => names.iter().position(|name| *name == point.x.text)? as f64,
    };
    Some([x, point.y.value(sizes[1])?])
}

/// Returns one line for each curve: its name, a spark for each point, and the smallest and largest
/// value.
pub fn sparks(figure: &Figure) -> Vec<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut lines = Vec::new();
    for panel in &figure.panels {
        let values = |curve: &Curve| -> Vec<f64> {
            let known = curve.points.iter().map(|point| point.middle);
            known.filter(|value| value.is_finite()).collect()
        };
        let all = || panel.curves.iter().flat_map(values);
        let top = all().fold(f64::MIN_POSITIVE, f64::max); // all may be zero
        let names = panel.curves.iter().map(|curve| curve.name.chars().count());
        let width = names.max().unwrap_or(0).min(40);
        if !panel.curves.is_empty() {
            let label = &panel.y.label;
            let over = if panel.x.label.is_empty() {
                String::new()
            } else {
                format!(" over {}", panel.x.label)
            };
            lines.push(format!("{}{label}{over}", prefix(&panel.title)));
        }
        for curve in &panel.curves {
            let values = values(curve);
            let spark = |value: &f64| {
                let level = (value / top * 8.0).ceil().clamp(1.0, 8.0) as usize;
                LEVELS.get(level - 1).copied().unwrap_or(' ')
            };
            // A distribution has too many points for a line.
            let every = values.len().div_ceil(40).max(1);
            let sparks: String = values.iter().step_by(every).map(spark).collect();
            let name: String = curve.name.chars().take(width).collect();
            let ends = match (values.first(), values.last()) {
                (Some(first), Some(last)) if values.len() > 1 => {
                    format!("{} … {}", short(*first), short(*last))
                }
                (Some(only), _) => short(*only),
                _ => "nothing".to_owned(),
            };
            lines.push(format!("  {name:<width$}  {sparks}  {ends}"));
        }
    }
    lines
}

fn prefix(title: &str) -> String {
    if title.is_empty() { String::new() } else { format!("{title}: ") }
}

/// Formats three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests;
