//! Tables of the results: a line for each scenario, the distributions over all, each class, the
//! worst.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use super::row::{ComparisonRow, SideRuns, median, min_and_max, quantile};
use crate::Result;

/// Number of scenarios in the list of the largest deviations.
const MAX_WORST_ROWS: usize = 10;

/// Prints a line for each scenario.
pub(super) fn rows(rows: &[ComparisonRow<'_>], ours: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\n| scenario | {ours} Mbit/s | kernel Mbit/s | factor | stall ms | kernel | retransmitted | \
         kernel | p99 ms | kernel | share off | agrees | what it has |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows.iter().filter(|row| row.is_whole()) {
        let (ours, kernel) = (&row.ours, &row.kernel);
        let marks: Vec<_> = row.scenario.marks.iter().map(String::as_str).collect();
        let p99 = |runs: &SideRuns| match runs.p99.as_slice() {
            [] => "—".to_owned(),
            delays => number_text(median(delays)),
        };
        writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.0} % | {} | {} |",
            row.scenario.name,
            interval_text(&ours.goodput),
            interval_text(&kernel.goodput),
            factor_text(row.factor()),
            interval_text(&ours.stall),
            interval_text(&kernel.stall),
            interval_text(&ours.retransmissions),
            interval_text(&kernel.retransmissions),
            p99(ours),
            p99(kernel),
            100.0 * row.share_off(),
            verdict(row),
            marks.join(", ")
        )?;
    }
    Ok(())
}

fn verdict(row: &ComparisonRow<'_>) -> String {
    let disagreements = [
        (row.goodput_agrees(), "goodput"),
        (row.stall_agrees(), "stall"),
        (row.retransmissions_agree(), "retransmitted"),
    ];
    let disagreements: Vec<_> =
        disagreements.iter().filter(|(agrees, _)| !agrees).map(|(_, metric)| *metric).collect();
    if disagreements.is_empty() {
        "yes".to_owned()
    } else {
        format!("**no**: {}", disagreements.join(", "))
    }
}

fn factor_text(factor: f64) -> String {
    if factor.is_finite() { format!("{factor:.2}") } else { "∞".to_owned() }
}

fn number_text(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Formats the median, with minimum and maximum where they differ from it.
fn interval_text(values: &[f64]) -> String {
    let ([min, max], median_text) = (min_and_max(values), number_text(median(values)));
    let (min, max) = (number_text(min), number_text(max));
    if min == max { median_text } else { format!("{median_text} [{min}–{max}]") }
}

/// Prints the distributions over all scenarios and in each class.
pub(super) fn classes(rows: &[ComparisonRow<'_>], out: &mut dyn Write) -> Result<()> {
    let mut classes = BTreeMap::<&str, Vec<&ComparisonRow<'_>>>::new();
    let complete_rows: Vec<_> = rows.iter().filter(|row| row.is_whole()).collect();
    for row in &complete_rows {
        for mark in &row.scenario.marks {
            classes.entry(mark).or_default().push(row);
        }
    }
    writeln!(
        out,
        "\n| class | scenarios | goodput: factor median | p90 | worst | within 1.12 | or overlapping | \
         stall agrees | retransmitted agrees | p99: factor median | p90 | share off: median | p90 |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    write_class("**all**", &complete_rows, out)?;
    let self_comparisons: Vec<_> =
        complete_rows.iter().filter_map(|row| row.kernel_self_comparison()).collect();
    write_class("two runs of the kernel", &self_comparisons.iter().collect::<Vec<_>>(), out)?;
    let (repeatable, unrepeatable): (Vec<_>, Vec<_>) =
        complete_rows.iter().copied().partition(|row| row.kernel_is_repeatable());
    write_class("the kernel's runs within 1.12", &repeatable, out)?;
    write_class("the kernel's runs further apart", &unrepeatable, out)?;
    for (name, rows) in classes {
        write_class(name, &rows, out)?;
    }
    let separate_rows = complete_rows.iter().filter(|row| !row.overlaps());
    let worst_factor = separate_rows.map(|row| row.factor()).fold(1.0, f64::max);
    writeln!(
        out,
        "\nWorst factor where intervals have nothing in common: {}",
        factor_text(worst_factor)
    )?;
    Ok(())
}

fn write_class(name: &str, rows: &[&ComparisonRow<'_>], out: &mut dyn Write) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let factors: Vec<_> = rows.iter().map(|row| row.factor()).collect();
    let percent = |predicate: &dyn Fn(&ComparisonRow<'_>) -> bool| {
        let count = rows.iter().filter(|row| predicate(row)).count();
        format!("{:.0} %", 100.0 * count as f64 / rows.len() as f64)
    };
    let delays: Vec<_> = rows.iter().filter_map(|row| row.p99_factor()).collect();
    let delay = |share: f64| match delays.as_slice() {
        [] => "—".to_owned(),
        delays => factor_text(quantile(delays, share)),
    };
    let shares: Vec<_> = rows.iter().map(|row| 100.0 * row.share_off()).collect();
    writeln!(
        out,
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} % | {:.1} % |",
        rows.len(),
        factor_text(median(&factors)),
        factor_text(quantile(&factors, 0.9)),
        factor_text(quantile(&factors, 1.0)),
        percent(&|row| row.factor() <= super::row::MAX_GOODPUT_FACTOR),
        percent(&|row| row.goodput_agrees()),
        percent(&|row| row.stall_agrees()),
        percent(&|row| row.retransmissions_agree()),
        delay(0.5),
        delay(0.9),
        median(&shares),
        quantile(&shares, 0.9),
    )?;
    Ok(())
}

/// Prints the scenarios with the largest deviation in goodput, with the page that compares both
/// runs.
pub(super) fn worst(
    rows: &[ComparisonRow<'_>],
    page: &dyn Fn(&ComparisonRow<'_>) -> PathBuf,
    out: &mut dyn Write,
) -> Result<()> {
    let mut complete_rows: Vec<_> = rows.iter().filter(|row| row.is_whole()).collect();
    complete_rows.sort_by(|a, b| b.factor().total_cmp(&a.factor()));
    writeln!(out, "\nThe worst:\n")?;
    for row in complete_rows.iter().take(MAX_WORST_ROWS) {
        let marks: Vec<_> = row.scenario.marks.iter().map(String::as_str).collect();
        writeln!(
            out,
            "- `{}`, factor {}, {}: {}",
            row.scenario.name,
            factor_text(row.factor()),
            marks.join(", "),
            page(row).display()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scenario;
    use super::*;

    #[test]
    fn the_worst_is_first_and_missing_metrics_have_no_row() {
        let scenarios = scenario::drawn(1, 3).unwrap();
        let runs = |goodput: &[f64]| SideRuns { goodput: goodput.to_vec(), ..SideRuns::default() };
        let goodputs =
            [([10.0, 12.0], vec![10.0]), ([10.0, 10.0], vec![20.0, 22.0]), ([1.0, 2.0], vec![])];
        let row = |scenario, (ours, kernel): &([f64; 2], Vec<f64>)| {
            let (ours, kernel) = (runs(ours), runs(kernel));
            ComparisonRow { scenario, ours, kernel, left_out: 0 }
        };
        let rows = scenarios
            .iter()
            .zip(&goodputs)
            .map(|(scenario, goodput_pair)| row(scenario, goodput_pair));
        let rows: Vec<_> = rows.collect();
        let mut out = Vec::new();
        super::rows(&rows, "sim", &mut out).unwrap();
        classes(&rows, &mut out).unwrap();
        worst(&rows, &|_| PathBuf::from("page"), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("| `twin-1-0` | 11 [10–12] | 10 | 1.10 |"), "{text}");
        assert!(text.contains("| `twin-1-1` | 10 | 21 [20–22] | 2.10 |"), "{text}");
        assert!(!text.contains("twin-1-2"), "{text}");
        assert!(text.contains("| **all** | 2 | 1.60 | 2.10 | 2.10 | 50 % | 50 % |"), "{text}");
        assert!(text.contains("| two runs of the kernel | 1 | 1.10 | 1.10 | 1.10 |"), "{text}");
        assert!(text.contains("in common: 2.10"), "{text}");
        let [first, second] =
            ["- `twin-1-1`, factor 2.10", "- `twin-1-0`"].map(|name| text.find(name));
        assert!(first.unwrap() < second.unwrap(), "{text}");
    }
}
