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
        let what: Vec<_> = buffers.iter().map(|case| (*case, transport)).collect();
        curves(goodput, &what, &sizes)
    };
    let pairs = others.iter().flat_map(|case| ["tcp", "mptcp"].map(|transport| (*case, transport)));
    let pairs: Vec<_> = pairs.collect();
    let places: Vec<_> = (0..pairs.len()).map(|place| place as f64).collect();
    let names: Vec<_> = pairs
        .iter()
        .map(|(case, transport)| format!("{} over {}", case.name, transport.to_uppercase()))
        .collect();
    let buffer = json!({"label": "receive buffer (KB)", "scale": "Log", "range": null});
    let names = json!({"label": "", "scale": {"Names": names}, "range": null});
    let panels = [
        panel("Wi-Fi and 3G, MPTCP", "Lines", &buffer, &json!([4.0, 9.0]), &lines("mptcp")),
        panel("Wi-Fi and 3G, TCP", "Lines", &buffer, &json!([0.0, 10.0]), &lines("tcp")),
        panel("two links", "Bars", &names, &Value::Null, &curves(goodput, &pairs, &places)),
    ];
    let drawn = panels.into_iter().filter(|panel| panel["curves"] != json!([]));
    json!({"title": "Goodput in four ways", "panels": drawn.collect::<Vec<_>>(), "source": null})
}

fn panel(title: &str, kind: &str, x: &Value, range: &Value, curves: &[Value]) -> Value {
    let y = json!({"label": "goodput (Mbit/s)", "scale": "Linear", "range": range});
    json!({
        "title": title, "kind": kind, "x": x, "y": y, "curves": curves, "references": [], "lines": []
    })
}

/// Returns one curve for each combination that has points: means with their intervals.
fn curves(goodput: &Goodput, what: &[(&VmCase, &'static str)], places: &[f64]) -> Vec<Value> {
    let mut curves = Vec::new();
    for (style, how) in Setup::COMPARED_SETUPS.into_iter().enumerate() {
        let mut points = Vec::new();
        for ((case, transport), x) in what.iter().zip(places) {
            let Some(runs) = goodput.get(&(case.name, *transport, how)) else { continue };
            let Some(MeanInterval { middle, half_width: half, .. }) = MeanInterval::of(runs) else {
                continue;
            };
            let spread = [middle - half, middle + half];
            points.push(json!({"x": x, "middle": middle, "spread": spread, "runs": runs.len()}));
        }
        if !points.is_empty() {
            curves.push(json!({
                "name": how.text(), "style": style, "group": style, "points": points
            }));
        }
    }
    curves
}

/// Renders the figure in a separate program, as nothing else here needs the renderer.
pub(crate) fn svg(root: &Path, figure: &Value) -> Result<Vec<u8>> {
    let mut draw = cargo(root)
        .args(["run", "--quiet", "--package", "towpath-report", "--example", "figure"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = draw.stdin.take().ok_or("no input")?;
    write!(input, "{figure}")?;
    drop(input);
    let output = draw.wait_with_output()?;
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
