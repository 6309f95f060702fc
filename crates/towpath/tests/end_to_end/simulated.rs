//! `towpath run --world sim`: needs no features of the machine, and is deterministic.

use std::fs;

use crate::program::{SIZED, TWO_PATHS, TestDir, names};
use crate::scenario_errors::refused;

/// Runs a scenario. Returns every result and capture, with its name.
fn simulate(jobs: &str) -> Vec<(String, Vec<u8>)> {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let output = folder.run(&[
        "run",
        "scenario.toml",
        "--world",
        "sim",
        "--repeat",
        "2",
        "--jobs",
        jobs,
        "--out",
        "results",
        "--pcap",
        "captures",
    ]);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains("over mptcp, simulated run 2: "), "{output}");
    assert!(output.out.contains("mptcp × 2") && output.out.contains("sim"), "{output}");
    let read_folder = |folder_name: &str| {
        let path = folder.work().join(folder_name);
        let with_content = |name: String| (name.clone(), fs::read(path.join(name)).unwrap());
        names(&path).into_iter().map(with_content).collect::<Vec<_>>()
    };
    [read_folder("results"), read_folder("captures")].concat()
}

#[test]
fn results_and_captures_do_not_depend_on_the_number_of_jobs() {
    let (one_job, two_jobs) = (simulate("1"), simulate("2"));
    let file_names: Vec<_> = one_job.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        file_names,
        [
            "report.html",
            "sim-mptcp-1.jsonl.zst",
            "sim-mptcp-2.jsonl.zst",
            "sim-tcp-1.jsonl.zst",
            "sim-tcp-2.jsonl.zst",
            "sim-mptcp-1-phone.pcapng",
            "sim-mptcp-1-server.pcapng",
            "sim-mptcp-2-phone.pcapng",
            "sim-mptcp-2-server.pcapng",
            "sim-tcp-1-phone.pcapng",
            "sim-tcp-1-server.pcapng",
            "sim-tcp-2-phone.pcapng",
            "sim-tcp-2-server.pcapng",
        ]
    );
    for ((name, first), (_, second)) in one_job.iter().zip(&two_jobs) {
        assert!(first == second, "{name} differs");
    }
}

/// A window too small for both paths.
const SMALL_WINDOW: &str = r#"
name = "small"
[hosts.phone]
[hosts.server]
receive-buffer = "200 KB"
[paths.wifi]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "10 ms"
[paths.cellular]
between = ["phone", "server"]
rate = "2 Mbit/s"
delay = "100 ms"
queue = "500 ms"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
duration = "3 s"
"#;

#[test]
fn a_run_explains_its_capacity_use_and_suggests_a_change() {
    let folder = TestDir::new();
    folder.write("scenario.toml", SMALL_WINDOW);
    let arguments =
        ["run", "scenario.toml", "--world", "sim", "--transport", "mptcp", "--out", "results"];
    let output = folder.run(&[&arguments[..], &["--explain"]].concat());
    assert_eq!(output.code, Some(0), "{output}");
    let words = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("of 22 Mbit/s, "), "{output}");
    assert!(words.contains("was full of data waiting for cellular"), "{output}");
    let last_line = output.out.lines().last().unwrap_or_default();
    assert!(last_line.starts_with("  best: for every host: "), "{output}");
    assert!(output.out.lines().all(|line| line.chars().count() <= 100), "{output}");

    let table = folder.run(&["report", "results", "--account"]);
    assert_eq!(table.code, Some(0), "{table}");
    let row = |label: &str| {
        let line = table.out.lines().find(|line| line.trim_start().starts_with(label));
        let cells = line.unwrap_or_default().split_whitespace().rev().take(3);
        cells.map(|cell| cell.parse::<f64>().unwrap_or(0.0)).sum::<f64>()
    };
    assert!((row("capacity") - 44.0).abs() < 0.1, "{table}");
    assert!(row("that waits for cellular") > 10.0, "{table}");

    let json = folder.run(&["report", "results", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let account = &summary["summary"]["account"];
    let parts = account["total"]["bytes"].as_object().unwrap();
    let sum: u64 = parts.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(account["total"]["capacity_bytes"].as_u64(), Some(sum), "{account}");
}

#[test]
fn without_a_simulated_run_there_is_nothing_to_explain() {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let output = folder.run(&["run", "scenario.toml", "--explain", "--world", "emu"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("hint: add `--world sim`"), "{output}");
}

macro_rules! wrong {
    ($($name:ident: $rest:expr;)*) => {
        $(#[test]
        fn $name() {
            let folder = TestDir::new();
            folder.write("scenario.toml", format!("{TWO_PATHS}{}", $rest));
            let arguments = ["run", "scenario.toml", "--world", "sim"];
            insta::assert_snapshot!(refused(&folder, &arguments));
        })*
    };
}

wrong! {
    a_scheduler_that_does_not_exist: format!("{SIZED}[run]\nscheduler = \"fastest\"\n");
    a_congestion_control_of_the_kernel_alone:
        format!("{SIZED}[run]\ncongestion-control = \"vegas\"\n");
    a_flow_that_runs_a_command:
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\nrun = \"curl server\"\n";
}
