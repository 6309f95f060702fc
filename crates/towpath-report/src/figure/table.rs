//! Table of the numbers in a figure.

use std::fmt::Write as _;

use super::{Figure, Panel, ScaleKind};

/// Returns every drawn point as comma-separated values, in the units of the axes. Points of other
/// sources are included, without spread and runs.
pub fn csv(figure: &Figure) -> String {
    let mut out = "panel,variant,x_label,x,y_label,middle,low,high,runs\n".to_owned();
    for (number, panel) in figure.panels.iter().enumerate() {
        let title =
            if panel.title.is_empty() { (number + 1).to_string() } else { panel.title.clone() };
        let mut write_line = |name: &str, x: f64, remaining_cells: &str| {
            let first_cells =
                [&title, name, &panel.x.label, &x_text(panel, x), &panel.y.label].map(cell);
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "{},{remaining_cells}", first_cells.join(","));
        };
        for curve in &panel.curves {
            for point in &curve.points {
                let [low, high] = point.spread;
                let remaining_cells = if curve.given {
                    format!("{},,,", number_text(point.middle))
                } else {
                    let numbers = [point.middle, low, high].map(number_text).join(",");
                    format!("{numbers},{}", point.runs)
                };
                write_line(&curve.name, point.x, &remaining_cells);
            }
        }
        for reference in &panel.references {
            let source = figure.source.as_deref().unwrap_or("the source");
            let name = format!("{} ({source})", reference.name);
            write_line(&name, reference.x, &format!("{},,,", number_text(reference.y)));
        }
    }
    out
}

fn x_text(panel: &Panel, x: f64) -> String {
    match &panel.x.scale {
        ScaleKind::Names(names) => names.get(x.max(0.0) as usize).cloned().unwrap_or_default(),
        ScaleKind::Linear | ScaleKind::Log => number_text(x),
    }
}

/// Formats six significant digits: more than any run justifies, and the same on every machine.
fn number_text(value: f64) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let decimals = 5 - value.abs().max(1e-9).log10().floor() as i32;
    let text = format!("{value:.*}", usize::try_from(decimals).unwrap_or(0));
    let short =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    short.to_owned()
}

/// Quotes a cell that contains commas.
fn cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}
