//! Tables of the results: a line for each scenario, the distributions over all, each class, the
//! worst.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use super::row::{ComparisonRow, SideRuns, median, quantile, span};
use crate::Result;

/// Number of the worst scenarios that are named.
const WORST_SHOWN: usize = 10;

/// Prints a line for each scenario.
pub(super) fn rows(rows: &[ComparisonRow<'_>], ours: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "\n| scenario | {ours} Mbit/s | kernel Mbit/s | factor | stall ms | kernel | sent again | \
         kernel | p99 ms | kernel | share off | agrees | what it has |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows.iter().filter(|row| row.is_whole()) {
        let (ours, kernel) = (&row.ours, &row.kernel);
        let marks: Vec<_> = row.scenario.marks.iter().map(String::as_str).collect();
        let p99 = |runs: &SideRuns| match runs.p99.as_slice() {
            [] => "—".to_owned(),
            delays => figure(median(delays)),
        };
        writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.0} % | {} | {} |",
            row.scenario.name,
            interval(&ours.goodput),
            interval(&kernel.goodput),
            times(row.factor()),
            interval(&ours.stall),
            interval(&kernel.stall),
            interval(&ours.retransmissions),
            interval(&kernel.retransmissions),
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
    let misses = [
        (row.goodput_agrees(), "goodput"),
        (row.stall_agrees(), "stall"),
        (row.retransmissions_agree(), "sent again"),
    ];
    let misses: Vec<_> =
        misses.iter().filter(|(agrees, _)| !agrees).map(|(_, what)| *what).collect();
    if misses.is_empty() { "yes".to_owned() } else { format!("**no**: {}", misses.join(", ")) }
}

fn times(factor: f64) -> String {
    if factor.is_finite() { format!("{factor:.2}") } else { "∞".to_owned() }
}

fn figure(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Formats the median, with minimum and maximum where they differ from it.
fn interval(values: &[f64]) -> String {
    let ([least, most], middle) = (span(values), figure(median(values)));
    let (least, most) = (figure(least), figure(most));
    if least == most { middle } else { format!("{middle} [{least}–{most}]") }
}

/// Prints the distributions over all scenarios and in each class.
pub(super) fn classes(rows: &[ComparisonRow<'_>], out: &mut dyn Write) -> Result<()> {
    let mut classes = BTreeMap::<&str, Vec<&ComparisonRow<'_>>>::new();
    let whole: Vec<_> = rows.iter().filter(|row| row.is_whole()).collect();
    for row in &whole {
        for mark in &row.scenario.marks {
            classes.entry(mark).or_default().push(row);
        }
    }
    writeln!(
        out,
        "\n| class | scenarios | goodput: factor median | p90 | worst | within 1.12 | or overlapping | \
         stall agrees | sent again agrees | p99: factor median | p90 | share off: median | p90 |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    class("**all**", &whole, out)?;
    let halves: Vec<_> = whole.iter().filter_map(|row| row.kernel_self_comparison()).collect();
    class("the kernel beside itself", &halves.iter().collect::<Vec<_>>(), out)?;
    let (certain, uncertain): (Vec<_>, Vec<_>) =
        whole.iter().copied().partition(|row| row.kernel_is_repeatable());
    class("the kernel's runs within 1.12", &certain, out)?;
    class("the kernel's runs further apart", &uncertain, out)?;
    for (name, rows) in classes {
        class(name, &rows, out)?;
    }
    let apart = whole.iter().filter(|row| !row.overlaps());
    let worst = apart.map(|row| row.factor()).fold(1.0, f64::max);
    writeln!(out, "\nWorst factor where intervals have nothing in common: {}", times(worst))?;
    Ok(())
}

fn class(name: &str, rows: &[&ComparisonRow<'_>], out: &mut dyn Write) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let factors: Vec<_> = rows.iter().map(|row| row.factor()).collect();
    let percent = |is: &dyn Fn(&ComparisonRow<'_>) -> bool| {
        let count = rows.iter().filter(|row| is(row)).count();
        format!("{:.0} %", 100.0 * count as f64 / rows.len() as f64)
    };
    let delays: Vec<_> = rows.iter().filter_map(|row| row.p99_factor()).collect();
    let delay = |share: f64| match delays.as_slice() {
        [] => "—".to_owned(),
        delays => times(quantile(delays, share)),
    };
    let shares: Vec<_> = rows.iter().map(|row| 100.0 * row.share_off()).collect();
    writeln!(
        out,
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} % | {:.1} % |",
        rows.len(),
        times(median(&factors)),
        times(quantile(&factors, 0.9)),
        times(quantile(&factors, 1.0)),
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
    let mut whole: Vec<_> = rows.iter().filter(|row| row.is_whole()).collect();
    whole.sort_by(|one, other| other.factor().total_cmp(&one.factor()));
    writeln!(out, "\nThe worst:\n")?;
    for row in whole.iter().take(WORST_SHOWN) {
        let marks: Vec<_> = row.scenario.marks.iter().map(String::as_str).collect();
        writeln!(
            out,
            "- `{}`, factor {}, {}: {}",
            row.scenario.name,
            times(row.factor()),
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
        let figures =
            [([10.0, 12.0], vec![10.0]), ([10.0, 10.0], vec![20.0, 22.0]), ([1.0, 2.0], vec![])];
        let row = |scenario, (ours, kernel): &([f64; 2], Vec<f64>)| {
            let (ours, kernel) = (runs(ours), runs(kernel));
            ComparisonRow { scenario, ours, kernel, left_out: 0 }
        };
        let rows = scenarios.iter().zip(&figures).map(|(scenario, both)| row(scenario, both));
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
        assert!(text.contains("| the kernel beside itself | 1 | 1.10 | 1.10 | 1.10 |"), "{text}");
        assert!(text.contains("in common: 2.10"), "{text}");
        let [first, second] =
            ["- `twin-1-1`, factor 2.10", "- `twin-1-0`"].map(|name| text.find(name));
        assert!(first.unwrap() < second.unwrap(), "{text}");
    }
}
