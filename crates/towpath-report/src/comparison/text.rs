//! Text output of a comparison, for the terminal.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut, pad, wrap};
use towpath_result::metrics::statistics::{
    ConfidenceInterval, Estimate, Pairing, Ratio, missing_interval_reason,
};

use super::{ComparedMetric, Comparison, GroupRatio, ratio_text};
use crate::terminal::{TermStyle, worlds};

/// Width of the label column, in characters.
const LABEL_WIDTH: usize = 18;
/// Minimum width of a value column, in characters; narrower ones would cut off units.
const MIN_COLUMN_WIDTH: usize = 20;

pub(super) fn table(comparison: &Comparison<'_>, width: usize, colour: bool) -> String {
    let (width, ink) = (width.max(LABEL_WIDTH + MIN_COLUMN_WIDTH), TermStyle(colour));
    let mut out = String::new();
    if comparison.groups.is_empty() {
        return out;
    }
    write_header(&mut out, comparison, width, ink);
    write_estimates(&mut out, comparison, width, ink);
    write_ratios(&mut out, comparison, width, ink);
    out
}

fn write_header(out: &mut String, comparison: &Comparison<'_>, width: usize, ink: TermStyle) {
    let Some(run) = comparison.groups.first().and_then(|group| group.runs.first()) else { return };
    let _ = writeln!(out, "{}", ink.bold(&cut(&clean(&run.meta.scenario), width)));
    let mut facts =
        vec![worlds(comparison.runs), number::short_moment(run.meta.duration_ns as f64 / 1e9)];
    let group_texts =
        comparison.groups.iter().map(|group| format!("{} × {}", group.label, group.runs.len()));
    facts.extend(group_texts);
    for line in wrap(&facts.join(" · "), width) {
        let _ = writeln!(out, "{}", ink.faint(&line));
    }
    for text in comparison.headlines() {
        out.push('\n');
        for line in wrap(&text, width) {
            let _ = writeln!(out, "{}", ink.bold(&line));
        }
    }
    out.push('\n');
}

/// Formats a cell's lines: median, quartiles, interval. Lines that would repeat the median are
/// empty.
fn cell(row: &ComparedMetric, estimate: Option<&Estimate>) -> [String; 3] {
    let Some(estimate) = estimate else {
        return ["–".to_owned(), String::new(), String::new()];
    };
    let format_value = |value: f64| row.metric.text(value);
    let median = format_value(estimate.median);
    let format_range =
        |[low, high]: [f64; 2]| format_between(&median, &format_value(low), &format_value(high));
    let quartiles = format_range(estimate.quartiles).map(|range| format!("[{range}]"));
    let interval = match estimate.interval {
        Some(ConfidenceInterval { low, high }) => {
            format_range([low, high]).map(|range| format!("95 % {range}"))
        }
        None => missing_interval_reason(estimate.count),
    };
    [median, quartiles.unwrap_or_default(), interval.unwrap_or_default()]
}

/// Formats a range such as `26.6–27.1`, in the unit of the value above it where both share it.
/// `None` if the ends are equal.
fn format_between(median: &str, low: &str, high: &str) -> Option<String> {
    if low == high {
        return None;
    }
    let parts = |text| str::split_once(text, ' ').unwrap_or((text, ""));
    let (_, unit) = parts(median);
    let ends = [parts(low), parts(high)];
    Some(match ends {
        [(low, of_low), (high, of_high)] if of_low == unit && of_high == unit => {
            format!("{low}–{high}")
        }
        _ => format!("{low}–{high}"),
    })
}

fn write_estimates(out: &mut String, comparison: &Comparison<'_>, width: usize, ink: TermStyle) {
    let columns = ((width - LABEL_WIDTH) / MIN_COLUMN_WIDTH).max(1);
    let groups: Vec<&str> = comparison.groups.iter().map(|group| group.label.as_str()).collect();
    for (start, labels) in
        groups.chunks(columns).enumerate().map(|(n, labels)| (n * columns, labels))
    {
        let mut line = pad("", LABEL_WIDTH);
        for name in labels {
            line.push_str(&ink.bold(&pad(&cut(name, MIN_COLUMN_WIDTH - 1), MIN_COLUMN_WIDTH)));
        }
        let _ = writeln!(out, "{}", line.trim_end());
        let _ = writeln!(
            out,
            "{}",
            ink.faint(&"─".repeat(LABEL_WIDTH + MIN_COLUMN_WIDTH * labels.len()))
        );
        for row in &comparison.rows {
            let cells = row.estimates.iter().skip(start).take(labels.len());
            let cells: Vec<_> = cells.map(|estimate| cell(row, estimate.as_ref())).collect();
            write_lines(out, row, &cells, ink);
        }
        out.push('\n');
    }
    let legend = "median, [quartiles], 95 % interval of the median (bootstrap)";
    let _ = writeln!(out, "{}\n", ink.faint(legend));
}

/// Writes the lines of a row; lines that are empty for all groups are left out.
fn write_lines(out: &mut String, row: &ComparedMetric, cells: &[[String; 3]], ink: TermStyle) {
    for line_number in 0..3 {
        let texts: Vec<&str> =
            cells.iter().map(|cell| cell.get(line_number).map_or("", String::as_str)).collect();
        if texts.iter().all(|text| text.is_empty()) {
            continue;
        }
        let label = if line_number == 0 { row.metric.label } else { "" };
        let mut line = ink.faint(&pad(label, LABEL_WIDTH));
        for text in texts {
            let padded = pad(&cut(text, MIN_COLUMN_WIDTH - 1), MIN_COLUMN_WIDTH);
            line.push_str(&if line_number == 0 { padded } else { ink.faint(&padded) });
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn write_ratios(out: &mut String, comparison: &Comparison<'_>, width: usize, ink: TermStyle) {
    let has_ratio = |row: &&ComparedMetric| row.ratios.iter().any(|pair| pair.ratio.is_some());
    let rows: Vec<&ComparedMetric> = comparison.rows.iter().filter(has_ratio).collect();
    let Some(first) = rows.first() else { return };
    let names: Vec<String> = first.ratios.iter().map(|pair| comparison.pair_name(pair)).collect();
    let label_width =
        names.iter().map(|name| name.chars().count() + 2).max().unwrap_or(0).clamp(LABEL_WIDTH, 34);
    let _ = writeln!(out, "{}", ink.bold("ratios"));
    for part_rows in rows.chunks(((width - label_width) / MIN_COLUMN_WIDTH).max(1)) {
        let mut line = pad("", label_width);
        for row in part_rows {
            line.push_str(
                &ink.bold(&pad(&cut(row.metric.label, MIN_COLUMN_WIDTH - 1), MIN_COLUMN_WIDTH)),
            );
        }
        let _ = writeln!(out, "{}", line.trim_end());
        let _ = writeln!(
            out,
            "{}",
            ink.faint(&"─".repeat(label_width + MIN_COLUMN_WIDTH * part_rows.len()))
        );
        for (index, name) in names.iter().enumerate() {
            let mut line = ink.faint(&pad(&cut(name, label_width - 1), label_width));
            for row in part_rows {
                let text = row.ratios.get(index).map_or_else(String::new, ratio_cell);
                line.push_str(&pad(&text, MIN_COLUMN_WIDTH));
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push('\n');
    }
    let ratios = || rows.iter().flat_map(|row| &row.ratios).filter_map(|pair| pair.ratio);
    let method = match (ratios().any(is_paired), ratios().all(is_paired)) {
        (_, true) => "medians of the ratios within each repetition",
        (false, _) => "ratios of the medians",
        (true, false) => "medians of the ratios within each repetition, or ratios of the medians",
    };
    let text = format!("{method}, with 95 % intervals; * the interval does not contain 1");
    for line in wrap(&text, width) {
        let _ = writeln!(out, "{}", ink.faint(&line));
    }
}

fn is_paired(ratio: Ratio) -> bool {
    ratio.pairing == Pairing::Paired
}

fn ratio_cell(pair: &GroupRatio) -> String {
    let Some(ratio) = pair.ratio else { return "–".to_owned() };
    let value = ratio_text(ratio.value);
    match ratio.interval {
        Some(ConfidenceInterval { low, high }) => {
            let star = if super::is_clear(&ratio) { " *" } else { "" };
            let (low, high) = (ratio_text(low), ratio_text(high));
            if low == high {
                format!("{value}{star}")
            } else {
                format!("{value} [{low}–{high}]{star}")
            }
        }
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_left_out_only_where_all_three_have_it() {
        assert_eq!(format_between("27 ms", "26.6 ms", "27.1 ms").unwrap(), "26.6–27.1");
        assert_eq!(format_between("0 s", "0 s", "151 ms").unwrap(), "0 s–151 ms");
        assert_eq!(format_between("3", "2", "4").unwrap(), "2–4");
        assert_eq!(format_between("1 s", "1 s", "1 s"), None);
    }
}
