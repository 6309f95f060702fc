//! Bands that fill a chart from top to bottom, with names inside where there is room.
//!
//! Each band reaches down to the axis, and the lower ones are drawn over it. Each edge is thus in
//! the page once, and a chart of twelve bands is not larger than others.

use std::fmt::Write as _;

use super::canvas::{HEIGHT, WIDTH};
use super::{Chart, ChartSeries, SeriesStyle, SharedAxis};
use crate::text::esc;

/// Height of the data area of [`super::ChartSize::Account`], in pixels.
const HEIGHT_PX: f64 = 185.0;
/// Width of the data area on the narrowest screen that shows names, in pixels.
const MIN_WIDTH_PX: f64 = 440.0;
/// Minimum height of a band with a name, and the width of a letter.
const MIN_NAME_HEIGHT_PX: f64 = 17.0;
const LETTER_WIDTH_PX: f64 = 6.6;

/// Draws the bands, those in the background first.
pub(super) fn svg(chart: &Chart, axis: &SharedAxis) -> String {
    let mut groups = Vec::new();
    let mut tops = Vec::new();
    for (number, series) in chart.series.iter().enumerate() {
        tops.resize(series.values.len().max(tops.len()), 0.0);
        let mut path = String::new();
        append_band(&mut path, &mut tops, series, (chart.max, axis));
        let class = &series.class;
        groups.push(format!("<g class=\"{class}\" data-s=\"{number}\"><path d=\"{path}\"/></g>"));
    }
    groups.reverse();
    groups.concat()
}

/// Puts a band onto the others; appends its outline.
fn append_band(
    path: &mut String,
    tops: &mut [f64],
    series: &ChartSeries,
    (max, axis): (f64, &SharedAxis),
) {
    let end_s = axis.end_s.max(f64::MIN_POSITIVE);
    let x = |index: usize| (f64::from(WIDTH) * index as f64 * axis.step_s / end_s).round() as i64;
    let y = |value: f64| (f64::from(HEIGHT) * (1.0 - value / max)).round() as i64;
    // Height of the edge, and its horizontal extent at that height.
    let mut edge: Option<(i64, i64)> = None;
    for (index, (top, value)) in tops.iter_mut().zip(&series.values).enumerate() {
        *top += value.unwrap_or(0.0);
        // A band thinner than a line has no edge of its own.
        let visible = value.is_some_and(|value| y(*top) < y(*top - value));
        let (left, step, height) = (x(index), x(index + 1) - x(index), y(*top));
        // Writing to a `String` cannot fail.
        let _ = match edge {
            None if visible => write!(path, "M{left} {HEIGHT}V{height}"),
            Some((edge_height, edge_length)) if visible && edge_height != height => {
                write!(path, "h{edge_length}v{}", height - edge_height)
            }
            Some((_, edge_length)) if !visible => write!(path, "h{edge_length}V{HEIGHT}z"),
            None | Some(_) => Ok(()),
        };
        edge = match edge {
            Some((edge_height, edge_length)) if visible && edge_height == height => {
                Some((edge_height, edge_length + step))
            }
            _ => visible.then_some((height, step)),
        };
    }
    if let Some((_, edge_length)) = edge {
        let _ = write!(path, "h{edge_length}V{HEIGHT}z");
    }
}

/// Returns the name of each band that has room for it, as SVG texts inside the bands.
pub(super) fn band_labels(chart: &Chart) -> String {
    let mut out = String::from("<g class=\"names\">");
    let bands = chart.series.iter().filter(|series| series.shape == SeriesStyle::Stack);
    let points = bands.clone().map(|series| series.values.len()).max().unwrap_or(0);
    let mut base = vec![0.0; points];
    for series in bands {
        let upper: Vec<f64> = base
            .iter()
            .enumerate()
            .map(|(index, floor)| {
                floor + series.values.get(index).copied().flatten().unwrap_or(0.0)
            })
            .collect();
        let name_px = series.name.chars().count() as f64 * LETTER_WIDTH_PX + 8.0;
        let length = (name_px / MIN_WIDTH_PX * points as f64).ceil() as usize;
        if let Some((x, y)) = label_position(&base, &upper, length.max(1), chart.max) {
            let _ = write!(
                out,
                "<text x=\"{x:.1}%\" y=\"{y:.1}%\" dy=\".35em\" text-anchor=\"middle\">{}</text>",
                esc(&series.name)
            );
        }
        base = upper;
    }
    out.push_str("</g>");
    out
}

/// Returns the position with most room for a box of `length` points between the edges, in per cent
/// from the left and from the top.
fn label_position(floor: &[f64], upper: &[f64], length: usize, max: f64) -> Option<(f64, f64)> {
    let points = floor.len().min(upper.len());
    let inside = |start: usize| {
        let low = floor.get(start..start + length)?.iter().copied().fold(0.0, f64::max);
        let high = upper.get(start..start + length)?.iter().copied().fold(f64::INFINITY, f64::min);
        Some((start, low, high))
    };
    // `max_by` takes the last of equal boxes, so the order is reversed to prefer the first.
    let boxes = (0..points).rev().filter_map(inside);
    let (start, low, high) = boxes.max_by(|a, b| (a.2 - a.1).total_cmp(&(b.2 - b.1)))?;
    if (high - low) / max * HEIGHT_PX < MIN_NAME_HEIGHT_PX {
        return None;
    }
    let x = 100.0 * (start as f64 + length as f64 / 2.0) / points as f64;
    Some((x, 100.0 - 50.0 * (low + high) / max))
}

#[cfg(test)]
mod tests {
    use super::super::{ChartSeries, ChartSize};
    use super::*;

    fn chart(bands: &[(&str, &[f64])]) -> Chart {
        let series = bands.iter().map(|(name, values)| ChartSeries {
            name: (*name).to_owned(),
            class: String::new(),
            shape: SeriesStyle::Stack,
            values: values.iter().copied().map(Some).collect(),
            base: Vec::new(),
        });
        Chart {
            title: String::new(),
            about: String::new(),
            unit: String::new(),
            series: series.collect(),
            max: 10.0,
            size: ChartSize::Account,
        }
    }

    #[test]
    fn a_label_is_placed_at_the_thickest_part_of_its_band() {
        let low = [8.0; 20];
        let mut high = [0.1; 20];
        high[15..].fill(2.0);
        let labels_svg = band_labels(&chart(&[("low", &low), ("high", &high)]));
        assert!(labels_svg.contains("x=\"5.0%\" y=\"60.0%\""), "{labels_svg}");
        assert!(
            labels_svg.contains(">high<") && labels_svg.contains("y=\"10.0%\""),
            "{labels_svg}"
        );
    }

    #[test]
    fn an_edge_is_drawn_once_and_only_where_its_band_is() {
        let axis = SharedAxis {
            scale: super::super::AxisScale::Time,
            step_s: 1.0,
            end_s: 4.0,
            marks: Vec::new(),
            stalls: Vec::new(),
        };
        let bands_svg = svg(&chart(&[("a", &[5.0; 4]), ("b", &[0.0, 5.0, 2.0, 0.0])]), &axis);
        let [upper, lower] = bands_svg.split("</g>").collect::<Vec<_>>()[..2] else { panic!() };
        assert!(
            upper.contains("data-s=\"1\"")
                && upper.contains("d=\"M2500 1000V0h2500v300h2500V1000z"),
            "{upper}"
        );
        assert!(
            lower.contains("data-s=\"0\"") && lower.contains("d=\"M0 1000V500h10000V1000z"),
            "{lower}"
        );
    }

    #[test]
    fn a_narrow_or_short_band_has_no_label() {
        let mut short = [0.0; 20];
        short[3] = 9.0;
        let labels_svg = band_labels(&chart(&[("thin", &[0.2; 20]), ("much too short", &short)]));
        assert_eq!(labels_svg, "<g class=\"names\"></g>");
    }
}
