//! `towpath compare`: interleaved runs, stored results, and its output.

use towpath_result::OrderKind;

use crate::program::{SIZED, TWO_PATHS, TestDir, acquire_emulator};
use crate::scenario_errors::refused;

/// Scenario with loss, so that repetitions differ.
const LOSSY: &str = r#"name = "lossy"
[hosts.phone]
[hosts.server]
[paths.wifi]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "5 ms"
loss = "1 %"
[paths.cellular]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "10 ms"
loss = "0.5 %"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
size = "500 KB"
"#;

fn compare_lossy(options: &[&str]) -> (TestDir, crate::program::ProgramOutput) {
    let folder = TestDir::new();
    folder.write("lossy.toml", LOSSY);
    let arguments = [&["compare", "lossy.toml", "--world", "sim", "-q", "-o", "results"], options];
    let output = folder.run(&arguments.concat());
    assert_eq!(output.code, Some(0), "{output}");
    (folder, output)
}

#[test]
fn a_simulated_comparison_is_the_same_every_time() {
    let (first, output) = compare_lossy(&["-T", "tcp,mptcp"]);
    let (second, rerun) = compare_lossy(&["-T", "tcp,mptcp", "--jobs", "1"]);
    assert_eq!(output.out, rerun.out);
    let read_page = |folder: &TestDir| {
        std::fs::read_to_string(folder.work().join("results/comparison.html")).unwrap()
    };
    assert!(read_page(&first) == read_page(&second), "the pages differ");
    for part in ["tcp × 10 · mptcp × 10", "Goodput", "Connect time", "mptcp ÷ tcp", "95 % "] {
        assert!(output.out.contains(part), "{part}: {output}");
    }
    assert!(output.out.lines().all(|line| line.chars().count() <= 100), "{output}");
}

#[test]
fn all_transports_are_compared_by_default_and_shown_as_json() {
    let (folder, output) = compare_lossy(&["--repeat", "2", "--json"]);
    let [comparison] = output.json().try_into().unwrap();
    let names: Vec<_> =
        comparison["groups"].as_array().unwrap().iter().map(|g| &g["label"]).collect();
    assert_eq!(names, ["tcp", "mptcp", "quic", "mpquic"]);
    assert_eq!(comparison["metrics"][0]["name"], "goodput");
    assert_eq!(comparison["metrics"][0]["groups"][0]["n"], 2);
    assert!(
        comparison["metrics"][0]["groups"][0]["interval95"].is_null(),
        "two runs have no interval"
    );
    assert_eq!(comparison["metrics"][0]["ratios"].as_array().unwrap().len(), 6);
    assert!(output.err.contains("2 repetitions are too few for an interval"), "{output}");
    assert!(output.err.contains("TLS on one side only: with it quic and mpquic"), "{output}");
    assert_eq!(folder.names(), ["lossy.toml", "results"]);
}

#[test]
fn stored_results_are_compared_by_their_measurements() {
    let (folder, comparison) = compare_lossy(&["-T", "tcp,mptcp", "-r", "6"]);
    let stored = folder.run(&["compare", "results", "-o", "other"]);
    assert_eq!((stored.code, &stored.out), (Some(0), &comparison.out), "{stored}");
    assert!(folder.work().join("other/comparison.html").is_file());
    // Only two files: no interval, and no run order that would pair them.
    let names = ["results/sim-tcp-1.jsonl.zst", "results/sim-mptcp-2.jsonl.zst"];
    let pair = folder.run(&["compare", names[0], names[1]]);
    assert_eq!(pair.code, Some(0), "{pair}");
    assert!(pair.out.contains("n = 1: no interval"), "{pair}");
    assert!(folder.work().join("results/comparison.html").is_file());
}

#[test]
fn emulated_runs_alternate_randomly_and_report_their_cost() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let output = folder.run(&[
        "compare",
        "scenario.toml",
        "-W",
        "emu",
        "-T",
        "tcp,mptcp",
        "-r",
        "3",
        "--seed",
        "5",
        "--wait",
        "10ms",
        "-q",
        "-o",
        "results",
    ]);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.out.contains("CPU per GB"), "{output}");
    let mut positions = Vec::new();
    for transport in ["tcp", "mptcp"] {
        for repeat in 1..=3 {
            let result = folder.stored(&format!("results/{transport}-{repeat}.jsonl.zst"));
            let order = result.meta.order.unwrap();
            assert_eq!((order.kind, order.seed, order.of), (OrderKind::Random, 5, 6));
            // Runs next to each other in time belong to one repetition.
            assert_eq!(order.position.div_ceil(2), repeat);
            positions.push(order.position);
            let cpu = result.summary.unwrap().cpu.unwrap();
            assert!(cpu.client_cpu_ns > Some(0) && cpu.server_cpu_ns > Some(0), "{cpu:?}");
        }
    }
    positions.sort_unstable();
    assert_eq!(positions, [1, 2, 3, 4, 5, 6]);
    let page = std::fs::read_to_string(folder.work().join("results/comparison.html")).unwrap();
    assert!(page.contains("random, seed 5") && page.contains("1 of 6"));
}

#[test]
fn run_options_are_refused_for_stored_results() {
    let (folder, _) = compare_lossy(&["-T", "tcp", "-r", "1"]);
    insta::assert_snapshot!(refused(&folder, &["compare", "results", "--repeat", "3"]));
}

macro_rules! error_snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(refused(&TestDir::new(), &$arguments));
        })*
    };
}

error_snapshots! {
    nothing_to_compare: ["compare"];
    neither_scenario_nor_result: ["compare", "two-link"];
    an_order_that_does_not_exist: ["compare", "two-links", "--order", "alphabetic"];
    an_invalid_pause: ["compare", "two-links", "--wait", "soon"];
}
