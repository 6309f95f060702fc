//! Figure of the results: our goodput relative to the kernel's, and the distribution of the
//! deviation.

use serde_json::{Value, json};

use super::row::{ComparisonRow, MAX_GOODPUT_FACTOR, median};
use super::store::StackUnderTest;

/// Maximum factor in the figure; larger ones are drawn here.
const MAX_PLOTTED_RATIO: f64 = 5.0;

/// Returns the figure in the form that `towpath-report` draws.
pub(super) fn figure(rows: &[ComparisonRow<'_>], ours: StackUnderTest) -> Value {
    let rows: Vec<_> = rows.iter().filter(|row| row.is_whole()).collect();
    let groups: Vec<(usize, String, Vec<&ComparisonRow<'_>>)> = (0..5)
        .map(|paths| {
            let name = match paths {
                0 => "TCP".to_owned(),
                1 => "MPTCP, 1 path".to_owned(),
                paths => format!("MPTCP, {paths} paths"),
            };
            let is_in_group = |row: &&&ComparisonRow<'_>| match row.scenario.transport.as_str() {
                "tcp" => paths == 0,
                _ => row.scenario.paths == paths,
            };
            (paths, name, rows.iter().filter(is_in_group).copied().collect())
        })
        .filter(|(_, _, rows): &(_, _, Vec<&ComparisonRow<'_>>)| !rows.is_empty())
        .collect();
    let side_text =
        if ours == StackUnderTest::Simulated { "simulated" } else { "our stack over the emulator" };
    let goodputs = rows.iter().flat_map(|row| [&row.ours.goodput, &row.kernel.goodput]);
    let goodputs: Vec<f64> =
        goodputs.map(|runs| median(runs)).filter(|value| *value > 0.0).collect();
    let range = [
        goodputs.iter().copied().fold(1.0, f64::min) / 1.2,
        goodputs.iter().copied().fold(1.0, f64::max) * 1.2,
    ];
    let axis = |label: &str, range: Value| json!({"label": label, "scale": "Log", "range": range});
    let scatter = json!({
        "title": format!("goodput; grey: within {MAX_GOODPUT_FACTOR} ×"), "kind": "Scatter",
        "x": axis("kernel (Mbit/s)", json!(range)),
        "y": axis(&format!("{side_text} (Mbit/s)"), json!(range)),
        "curves": groups.iter().map(|(style, name, rows)| curve(*style, name, &points(rows)))
            .collect::<Vec<_>>(),
        "references": [], "lines": [], "diagonal": MAX_GOODPUT_FACTOR,
    });
    let deviation = json!({
        "title": "how far goodput is off", "kind": "Cdf",
        "x": axis("factor between both", json!([1.0, MAX_PLOTTED_RATIO])),
        "y": {"label": "scenarios (%)", "scale": "Linear", "range": [0.0, 100.0]},
        "curves": groups.iter().map(|(style, name, rows)| curve(*style, name, &shares(rows)))
            .collect::<Vec<_>>(),
        "references": [], "lines": [],
    });
    json!({
        "title": format!("{} random scenarios: {side_text}, and over the kernel", rows.len()),
        "panels": [scatter, deviation], "source": null,
    })
}

fn curve(style: usize, name: &str, points: &[Value]) -> Value {
    json!({"name": name, "style": style, "group": 0, "points": points})
}

fn points(rows: &[&ComparisonRow<'_>]) -> Vec<Value> {
    let goodputs =
        rows.iter().map(|row| (median(&row.kernel.goodput), median(&row.ours.goodput), row));
    goodputs
        .filter(|(kernel, ours, _)| *kernel > 0.0 && *ours > 0.0)
        .map(|(kernel, ours, row)| point(kernel, ours, row.ours.goodput.len()))
        .collect()
}

/// Returns points of the cumulative share of rows by factor.
fn shares(rows: &[&ComparisonRow<'_>]) -> Vec<Value> {
    let mut factors: Vec<_> =
        rows.iter().map(|row| row.factor().min(2.0 * MAX_PLOTTED_RATIO)).collect();
    factors.sort_by(f64::total_cmp);
    let count = factors.len() as f64;
    let steps = factors.iter().enumerate();
    steps
        .map(|(index, factor)| point(*factor, 100.0 * (index + 1) as f64 / count, rows.len()))
        .collect()
}

fn point(x: f64, y: f64, runs: usize) -> Value {
    json!({"x": x, "middle": y, "spread": [y, y], "runs": runs})
}
