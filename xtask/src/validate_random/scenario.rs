//! A scenario that is compared: its file, and its description in tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::draw;
use super::random::hash;
use crate::Result;

/// A scenario with one transport.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ComparedScenario {
    /// Name of the scenario and of the folder with its runs.
    pub(super) name: String,
    /// Transport: `tcp` or `mptcp`.
    pub(super) transport: String,
    /// Text of the scenario file.
    pub(super) text: String,
    /// Hash of the file's text, which names stored files.
    pub(super) hash: u64,
    /// Features of the scenario, named as the classes of the table.
    pub(super) marks: BTreeSet<String>,
    /// Number of paths in the file.
    pub(super) paths: usize,
    /// Rates of the paths that its transport can use together, in Mbit/s.
    pub(super) rate_mbps: f64,
    /// Duration of its traffic in seconds.
    pub(super) seconds: f64,
    /// Profile of our stack, where the file has none.
    pub(super) profile: Option<String>,
}

/// Returns the first `count` scenarios of `seed`.
pub(super) fn drawn(seed: u64, count: u32) -> Result<Vec<ComparedScenario>> {
    let scenarios = (0..count).map(|number| read(&draw::scenario(seed, number), Path::new("")));
    Ok(scenarios.collect::<Result<Vec<_>>>()?.concat())
}

/// Reads a file: one scenario for each of its transports.
pub(super) fn file(path: &Path) -> Result<Vec<ComparedScenario>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    read(&text, path)
}

/// Returns the scenario files of a folder, sorted by name.
pub(super) fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let files = entries.into_iter().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    Ok(files.collect::<BTreeSet<_>>().into_iter().collect())
}

fn read(text: &str, path: &Path) -> Result<Vec<ComparedScenario>> {
    let table: Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let name = table.get("name").and_then(Value::as_str).ok_or("a scenario without a name")?;
    let run = table.get("run").and_then(Value::as_table);
    let transports = run.and_then(|run| run.get("transports")).and_then(Value::as_array);
    let transports: Vec<String> = match transports {
        Some(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => vec!["tcp".to_owned(), "mptcp".to_owned()],
    };
    let paths: Vec<&Table> = tables(&table, "paths");
    let rates = paths.iter().filter_map(|path| Some(quantity(path.get("rate")?)? / 1e6));
    let rates: Vec<f64> = rates.collect();
    let flow = table.get("flows").and_then(Value::as_array).and_then(|flows| flows.first());
    let seconds = flow.and_then(|flow| quantity(flow.get("duration")?)).unwrap_or(10.0);
    let scenario = |transport: String| ComparedScenario {
        name: name.to_owned(),
        marks: scenario_marks(&table, &paths, &transport),
        text: text.to_owned(),
        hash: hash([text.as_bytes()]),
        rate_mbps: rates.iter().take(if transport == "tcp" { 1 } else { rates.len() }).sum(),
        transport,
        paths: paths.len(),
        seconds,
        profile: None,
    };
    Ok(transports.into_iter().map(scenario).collect())
}

fn tables<'a>(table: &'a Table, key: &str) -> Vec<&'a Table> {
    let value = table.get(key).and_then(Value::as_table);
    value.into_iter().flat_map(Table::values).filter_map(Value::as_table).collect()
}

/// Parses a rate in bit/s, a time in s or a size in bytes; returns the larger of two directions.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::String(text) => text,
        Value::Table(directions) => {
            return directions.values().filter_map(quantity).reduce(f64::max);
        }
        Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_) => return None,
    };
    let (number, unit) = text.split_once(' ')?;
    let factor = match unit {
        "Gbit/s" => 1e9,
        "Mbit/s" | "MB" => 1e6,
        "kbit/s" | "KB" => 1e3,
        "s" | "bit/s" | "B" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn scenario_marks(table: &Table, paths: &[&Table], transport: &str) -> BTreeSet<String> {
    let mut marks = BTreeSet::new();
    let mut mark = |has_feature: bool, text: &str| {
        if has_feature {
            marks.insert(text.to_owned());
        }
    };
    let multipath = transport == "mptcp";
    mark(!multipath, "TCP");
    match paths.len() {
        1 => mark(multipath, "MPTCP, 1 path"),
        count => mark(multipath, &format!("MPTCP, {count} paths")),
    }
    let has_inner_key = |path: &Table, key: &str, inner_key: &str| {
        path.get(key).and_then(Value::as_table).is_some_and(|table| table.contains_key(inner_key))
    };
    for path in paths {
        mark(path.get("loss").is_some_and(Value::is_str), "loss");
        mark(has_inner_key(path, "loss", "burst"), "burst loss");
        let jitter = path.get("jitter").and_then(Value::as_table);
        let reorders = jitter.and_then(|jitter| jitter.get("reorder")).and_then(Value::as_bool);
        mark(reorders == Some(true), "jitter, reorders");
        mark(jitter.is_some() && reorders != Some(true), "jitter in order");
        mark(has_inner_key(path, "queue", "tbf"), "tbf");
        mark(has_inner_key(path, "queue", "codel"), "CoDel");
        let mtu = path.get("mtu").and_then(Value::as_integer).unwrap_or(1_500);
        mark(mtu > 1_500, "MTU > 1500");
        mark(mtu < 1_500, "MTU < 1500");
    }
    for host in tables(table, "hosts") {
        let buffer = host.get("receive-buffer").and_then(quantity);
        mark(buffer.is_some_and(|size| size <= 1.1e6), "receive buffer small");
        mark(buffer.is_some_and(|size| size > 1.1e6), "receive buffer large");
        mark(host.contains_key("send-buffer"), "send buffer");
    }
    let delays: Vec<f64> = paths.iter().filter_map(|path| quantity(path.get("delay")?)).collect();
    let (min_delay, max_delay) =
        (delays.iter().copied().reduce(f64::min), delays.iter().copied().reduce(f64::max));
    let are_far_apart =
        min_delay.zip(max_delay).is_some_and(|(min_delay, max_delay)| max_delay > 4.0 * min_delay);
    mark(multipath && are_far_apart, "delays 4 × apart");
    let run = table.get("run").and_then(Value::as_table);
    let control = run.and_then(|run| run.get("congestion-control")).and_then(Value::as_str);
    mark(control == Some("reno"), "Reno");
    add_event_marks(table, &mut mark);
    marks
}

/// Adds the marks of timeline and flow.
fn add_event_marks(table: &Table, mark: &mut impl FnMut(bool, &str)) {
    let list = |key: &str| table.get(key).and_then(Value::as_array);
    let events = list("timeline").into_iter().flatten().filter_map(Value::as_table);
    let mut rates = 0;
    let mut has_no_events = true;
    for event in events {
        has_no_events = false;
        match event.get("set").and_then(Value::as_str) {
            Some("down") => mark(true, "outage"),
            Some("rate") => rates += 1,
            Some("delay") => mark(true, "delay change"),
            Some("address") => mark(true, "new address"),
            _ => {}
        }
    }
    mark((1..4).contains(&rates), "rate change");
    mark(rates >= 4, "flapping");
    mark(has_no_events, "no event");
    for flow in list("flows").into_iter().flatten().filter_map(Value::as_table) {
        let text_of = |key: &str| flow.get(key).and_then(Value::as_str).unwrap_or_default();
        mark(text_of("pattern") == "reqres", "requests");
        mark(text_of("pattern") == "video", "video");
        mark(["bulk", "iperf"].contains(&text_of("pattern")), "bulk");
        mark(text_of("direction") == "down", "down");
        mark(text_of("family") == "v6", "IPv6");
    }
}

impl ComparedScenario {
    /// Returns the scenario for a simulated run.
    ///
    /// From the second run on, delays are up to half a millisecond and 2 % longer. The simulator is
    /// deterministic, but a connection's long-term pattern depends on details as small as a
    /// kernel's own noise.
    pub(super) fn text_of_run(&self, run: u32) -> String {
        let text = self.text_for_towpath();
        let Ok(mut table) = text.parse::<Table>() else { return text };
        let Some(paths) = table.get_mut("paths").and_then(Value::as_table_mut) else {
            return text;
        };
        // Steps that spread evenly over half a millisecond, and differ between the paths.
        let steps = [309, 191, 419, 73].into_iter().cycle();
        for ((_, path), step) in paths.iter_mut().zip(steps) {
            let Some(Value::String(delay)) = path.get_mut("delay") else { continue };
            let Some(seconds) = quantity(&Value::String(delay.clone())) else { continue };
            let micros = (seconds * 1e6).round() as u64;
            let extra_us = u64::from(run) * step % 500;
            *delay = format!("{} us", micros + extra_us.min(micros * extra_us / 25_000));
        }
        if run == 0 { text } else { table.to_string() }
    }

    /// Returns the scenario for our stack, with the requested profile.
    pub(super) fn text_for_towpath(&self) -> String {
        let (Some(profile), Ok(mut table)) = (&self.profile, self.text.parse::<Table>()) else {
            return self.text.clone();
        };
        if let Some(run) = table.get_mut("run").and_then(Value::as_table_mut) {
            run.entry("profile").or_insert_with(|| Value::String(profile.clone()));
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\n[run]\ntransports = [\"mptcp\"]\n[hosts.a]\n[hosts.b]\n\
        receive-buffer = \"200 KB\"\n[paths.p]\nrate = \"20 Mbit/s\"\ndelay = \"10 ms\"\nmtu = 9000\n\
        [paths.q]\nrate = { up = \"5 Mbit/s\", down = \"30 Mbit/s\" }\ndelay = \"100 ms\"\n\
        loss = \"1 %\"\n[[flows]]\npattern = \"bulk\"\nduration = \"8 s\"\n";

    #[test]
    fn the_marks_of_a_scenario_name_its_features() {
        let [scenario] = &read(TEXT, Path::new("x")).unwrap()[..] else { panic!("not one") };
        assert_eq!((scenario.paths, scenario.rate_mbps, scenario.seconds), (2, 50.0, 8.0));
        let marks: Vec<_> = scenario.marks.iter().map(String::as_str).collect();
        assert_eq!(
            marks,
            [
                "MPTCP, 2 paths",
                "MTU > 1500",
                "bulk",
                "delays 4 × apart",
                "loss",
                "no event",
                "receive buffer small"
            ]
        );
    }

    #[test]
    fn simulated_runs_differ_by_less_than_a_fiftieth_of_a_delay() {
        let scenario = read(TEXT, Path::new("x")).unwrap().remove(0);
        assert_eq!(scenario.text_of_run(0), scenario.text);
        assert_ne!(scenario.text_of_run(1), scenario.text_of_run(2));
        for run in 0..100 {
            let table: Table = scenario.text_of_run(run).parse().unwrap();
            let delay = quantity(&table["paths"]["p"]["delay"]).unwrap();
            assert!((0.01..0.0102).contains(&delay), "{delay}");
        }
    }

    #[test]
    fn our_stack_has_the_requested_profile() {
        let mut scenario = read(TEXT, Path::new("x")).unwrap().remove(0);
        scenario.profile = Some("linux-6.18".to_owned());
        for text in [scenario.text_for_towpath(), scenario.text_of_run(0), scenario.text_of_run(1)]
        {
            let table: Table = text.parse().unwrap();
            assert_eq!(table["run"]["profile"].as_str(), Some("linux-6.18"));
        }
        assert!(!scenario.text.contains("linux-6.18"), "the kernel's scenario stays what it is");
    }
}
