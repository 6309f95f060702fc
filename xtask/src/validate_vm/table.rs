//! Results as the table of `docs/lab/validation.md`, and their agreement.

use std::collections::BTreeSet;
use std::io::Write;

use super::Goodput;
use super::cases::{Setup, VmCase};
use super::results::VmRun;
use crate::Result;

/// Two-sided 95 % quantiles of Student's distribution for 1, 2, … degrees of freedom.
const T_QUANTILES: [f64; 11] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20];

/// The mean of runs and half of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MeanInterval {
    runs: usize,
    pub(super) middle: f64,
    pub(super) half_width: f64,
}

impl MeanInterval {
    pub(super) fn of(runs: &[f64]) -> Option<Self> {
        let count = runs.len();
        let mean = runs.iter().sum::<f64>() / count as f64;
        let degrees = count.checked_sub(1)?;
        let square_sum = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>();
        let quantile = |index: usize| T_QUANTILES.get(index).copied().unwrap_or(2.0);
        let half_width = degrees.checked_sub(1).map_or(0.0, |index| {
            quantile(index) * (square_sum / degrees as f64 / count as f64).sqrt()
        });
        Some(Self { runs: count, middle: mean, half_width })
    }

    fn text(self) -> String {
        format!("{:.2} ± {:.2} ({})", self.middle, self.half_width, self.runs)
    }

    /// Returns true if the means are within `share` of each other, or their intervals overlap.
    fn agrees(self, other: Self, share: f64, intervals: bool) -> bool {
        let difference = (self.middle - other.middle).abs();
        difference <= share * other.middle
            || intervals && difference <= self.half_width + other.half_width
    }
}

/// Prints the table in Markdown.
pub(super) fn write(cases: &[&VmCase], goodput: &Goodput, out: &mut dyn Write) -> Result<()> {
    let headings = Setup::COMPARED_SETUPS.map(|setup| format!(" {} |", setup.text())).concat();
    writeln!(out, "\n| case | transport |{headings} agree |\n|---|---|{}---|", "---|".repeat(4))?;
    for case in cases {
        for transport in ["tcp", "mptcp"] {
            let means = means(case, transport, goodput);
            let cells =
                means.map(|mean| mean.map_or("none".to_owned(), MeanInterval::text)).join(" | ");
            let agrees = match agree(transport, means) {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "so far",
            };
            writeln!(out, "| `{}` | {transport} | {cells} | {agrees} |", case.name)?;
        }
    }
    let setup = Setup::KernelUnmerged;
    for case in cases {
        let runs = goodput.get(&(case.name, "mptcp", setup)).map_or(&[][..], Vec::as_slice);
        if let Some(mean) = MeanInterval::of(runs) {
            writeln!(out, "\n`{}` over mptcp, {}: {}", case.name, setup.text(), mean.text())?;
        }
    }
    Ok(())
}

/// Prints all kernels side by side: a row for each case, transport and combination.
pub(super) fn kernels(runs: &[VmRun], only: &str, out: &mut dyn Write) -> Result<()> {
    let numbers = |version: &str| -> Vec<u32> {
        version.split(['.', '-', '+']).filter_map(|part| part.parse().ok()).collect()
    };
    let mut versions: Vec<&str> = runs.iter().map(|run| run.kernel.as_str()).collect();
    versions.sort_by_key(|version| numbers(version));
    versions.dedup();
    writeln!(out, "| case | transport | way | {} |", versions.join(" | "))?;
    writeln!(out, "|---|---|---|{}", "---|".repeat(versions.len()))?;
    let rows: BTreeSet<_> = runs.iter().map(|run| (&run.case, &run.transport, &run.how)).collect();
    for (case, transport, how) in rows.into_iter().filter(|(case, ..)| case.starts_with(only)) {
        let cells = versions.iter().map(|version| {
            let is_same = |run: &&VmRun| {
                (&run.case, &run.transport, &run.how, &*run.kernel)
                    == (case, transport, how, *version)
            };
            let mean_of = |metric: fn(&VmRun) -> Option<f64>| {
                let values: Vec<_> = runs.iter().filter(is_same).filter_map(metric).collect();
                MeanInterval::of(&values)
            };
            let Some(goodput) = mean_of(|run| Some(run.goodput_mbps)) else {
                return " – |".to_owned();
            };
            let stall = mean_of(|run| run.longest_stall_ms);
            let stall = stall.map(|mean| format!(", {:.0} ms", mean.middle)).unwrap_or_default();
            format!("{}{stall}", goodput.text())
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        writeln!(out, "| `{case}` | {transport} | {how} | {cells} |")?;
    }
    Ok(())
}

fn means(case: &VmCase, transport: &'static str, goodput: &Goodput) -> [Option<MeanInterval>; 4] {
    Setup::COMPARED_SETUPS
        .map(|setup| MeanInterval::of(goodput.get(&(case.name, transport, setup))?))
}

/// Compares goodput with the kernel's: TCP within 1 %, Multipath TCP within 10 % or with a common
/// interval.
///
/// `None` when nothing disagrees, but something is missing.
fn agree(transport: &str, [kernel, others @ ..]: [Option<MeanInterval>; 4]) -> Option<bool> {
    let (share, intervals) = if transport == "tcp" { (0.01, false) } else { (0.1, true) };
    let agrees = |other: Option<MeanInterval>| Some(other?.agrees(kernel?, share, intervals));
    let agreements = others.map(agrees);
    if agreements.contains(&Some(false)) {
        return Some(false);
    }
    agreements.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
}

/// Returns true if all cases agree.
pub(super) fn agrees(cases: &[&VmCase], goodput: &Goodput) -> bool {
    let case_agrees = |case: &&&VmCase| {
        ["tcp", "mptcp"]
            .iter()
            .all(|transport| agree(transport, means(case, transport, goodput)) == Some(true))
    };
    cases.iter().filter(case_agrees).count() == cases.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        let mean = MeanInterval::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((mean.middle - 2.0).abs() < 1e-9);
        assert!((mean.half_width - 4.30 / 3f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn kernels_are_listed_side_by_side_in_version_order() {
        let run = |kernel: &str, goodput_mbps: f64| {
            format!(
                "{{\"kernel\":\"{kernel}\",\"case\":\"a\",\"transport\":\"mptcp\",\"how\":\"kernel\",\
                 \"number\":0,\"goodput_mbps\":{goodput_mbps},\"longest_stall_ms\":41}}"
            )
        };
        let runs: Vec<VmRun> = [run("6.12.1", 5.5), run("6.1.9", 8.25)]
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let mut out = Vec::new();
        kernels(&runs, "", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("| case | transport | way | 6.1.9 | 6.12.1 |"), "{text}");
        let row = "| `a` | mptcp | kernel | 8.25 ± 0.00 (1), 41 ms | 5.50 ± 0.00 (1), 41 ms |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn one_run_has_no_interval_and_no_runs_have_no_mean() {
        assert_eq!(
            MeanInterval::of(&[5.0]),
            Some(MeanInterval { runs: 1, middle: 5.0, half_width: 0.0 })
        );
        assert_eq!(MeanInterval::of(&[]), None);
    }

    #[test]
    fn tcp_must_agree_more_closely_than_multipath_tcp() {
        let mean = |middle| Some(MeanInterval { runs: 2, middle, half_width: 0.0 });
        let means = [mean(10.0), mean(10.0), mean(10.0), mean(10.5)];
        assert_eq!(agree("mptcp", means), Some(true));
        assert_eq!(agree("tcp", means), Some(false));
        assert_eq!(agree("mptcp", [mean(10.0), None, mean(10.0), mean(10.0)]), None);
        assert_eq!(agree("mptcp", [mean(10.0), None, mean(10.0), mean(12.0)]), Some(false));
    }
}
