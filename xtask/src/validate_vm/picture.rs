//! Figure of the oracle's results.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::Goodput;
use super::cases::{Setup, VmCase};
use super::table::MeanInterval;
use crate::{Result, cargo};

/// Returns the figure in the form that `towpath-report` draws.
pub(super) fn figure(cases: &[&VmCase], goodput: &Goodput) -> Value {
    let (buffers, others): (Vec<&VmCase>, Vec<&VmCase>) =
        cases.iter().partition(|case| case.receive_buffer_kb().is_some());
    let sizes = buffers.iter().map(|case| case.receive_buffer_kb().unwrap_or_default());
    let sizes: Vec<_> = sizes.map(f64::from).collect();
    let lines = |transport| {
        let case_transports: Vec<_> = buffers.iter().map(|case| (*case, transport)).collect();
        curves(goodput, &case_transports, &sizes)
    };
    let other_pairs =
        others.iter().flat_map(|case| ["tcp", "mptcp"].map(|transport| (*case, transport)));
    let other_pairs: Vec<_> = other_pairs.collect();
    let x_positions: Vec<_> = (0..other_pairs.len()).map(|index| index as f64).collect();
    let names: Vec<_> = other_pairs
        .iter()
        .map(|(case, transport)| format!("{} over {}", case.name, transport.to_uppercase()))
        .collect();
    let buffer = json!({"label": "receive buffer (KB)", "scale": "Log", "range": null});
    let names = json!({"label": "", "scale": {"Names": names}, "range": null});
    let panels = [
        panel("Wi-Fi and 3G, MPTCP", "Lines", &buffer, &json!([4.0, 9.0]), &lines("mptcp")),
        panel("Wi-Fi and 3G, TCP", "Lines", &buffer, &json!([0.0, 10.0]), &lines("tcp")),
        panel(
            "two links",
            "Bars",
            &names,
            &Value::Null,
            &curves(goodput, &other_pairs, &x_positions),
        ),
    ];
    let non_empty = panels.into_iter().filter(|panel| panel["curves"] != json!([]));
    json!({"title": "Goodput in four ways", "panels": non_empty.collect::<Vec<_>>(), "source": null})
}

fn panel(title: &str, kind: &str, x: &Value, range: &Value, curves: &[Value]) -> Value {
    let y = json!({"label": "goodput (Mbit/s)", "scale": "Linear", "range": range});
    json!({
        "title": title, "kind": kind, "x": x, "y": y, "curves": curves, "references": [], "lines": []
    })
}

/// Returns one curve for each combination that has points: means with their intervals.
fn curves(
    goodput: &Goodput,
    case_transports: &[(&VmCase, &'static str)],
    x_positions: &[f64],
) -> Vec<Value> {
    let mut curves = Vec::new();
    for (style, setup) in Setup::COMPARED_SETUPS.into_iter().enumerate() {
        let mut points = Vec::new();
        for ((case, transport), x) in case_transports.iter().zip(x_positions) {
            let Some(runs) = goodput.get(&(case.name, *transport, setup)) else { continue };
            let Some(MeanInterval { middle, half_width, .. }) = MeanInterval::of(runs) else {
                continue;
            };
            let spread = [middle - half_width, middle + half_width];
            points.push(json!({"x": x, "middle": middle, "spread": spread, "runs": runs.len()}));
        }
        if !points.is_empty() {
            curves.push(json!({
                "name": setup.text(), "style": style, "group": style, "points": points
            }));
        }
    }
    curves
}

/// Renders the figure in a separate program, as nothing else here needs the renderer.
pub(crate) fn svg(root: &Path, figure: &Value) -> Result<Vec<u8>> {
    let mut renderer = cargo(root)
        .args(["run", "--quiet", "--package", "towpath-report", "--example", "figure"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = renderer.stdin.take().ok_or("no input")?;
    write!(input, "{figure}")?;
    drop(input);
    let output = renderer.wait_with_output()?;
    if output.status.success() { Ok(output.stdout) } else { Err("cannot draw".into()) }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::*;

    #[test]
    fn points_without_runs_are_not_drawn() {
        let cases: Vec<_> = CASES.iter().collect();
        let mut goodput = Goodput::new();
        goodput.insert(("wifi-3g-200", "mptcp", Setup::Kernel), vec![5.0, 6.0]);
        let figure = figure(&cases, &goodput);
        assert_eq!(figure["panels"].as_array().unwrap().len(), 1);
        let curves = figure["panels"][0]["curves"].as_array().unwrap();
        assert_eq!(curves.len(), 1);
        assert_eq!(curves[0]["points"][0]["x"], 200.0);
        assert_eq!(curves[0]["points"][0]["middle"], 5.5);
    }
}
