//! `towpath sweep`: interrupted, shared, and deterministic.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::program::{HANG_TIMEOUT, SIZED, TWO_PATHS, TestDir, binary, names, wait_for};

/// Plan of 2 curves × 3 delays × 4 seeds.
const PLAN: &str = r#"name = "delays"
scenario = "scenario.toml"
seeds = 4
[[variants]]
name = "TCP"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "delay"
keys = ["paths.cellular.delay"]
values = ["10 ms", "50 ms", "100 ms"]
quick = ["50 ms"]
"#;

/// Returns a folder with a plan and its scenario.
fn sweep_folder(plan: &str) -> TestDir {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    folder.write("plan.toml", plan);
    folder
}

fn sweep_arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["sweep", "plan.toml", "--out", "rows", "--chunk", "2"], more].concat()
}

/// Returns the stored rows, which the table also shows.
fn rows(folder: &TestDir) -> Vec<Value> {
    let output = folder.run(&["sweep", "status", "rows", "--json"]);
    output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that all rows exist exactly once.
fn assert_complete(folder: &TestDir) {
    let rows = rows(folder);
    let keys: BTreeSet<_> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!((rows.len(), keys.len()), (24, 24));
    assert!(rows.iter().all(|row| row["metrics"]["goodput"].as_f64().unwrap() > 0.0), "{rows:?}");
    let files = names(&folder.work().join("rows"));
    // The chunks, the plan and the page.
    assert_eq!(files.len(), 12 + 2, "{files:?}");
}

/// Returns every file of a sweep, with its name.
fn content(folder: &TestDir) -> Vec<(String, Vec<u8>)> {
    let rows = folder.work().join("rows");
    let with_content = |name: String| (name.clone(), fs::read(rows.join(name)).unwrap());
    names(&rows).into_iter().map(with_content).collect()
}

/// Starts a sweep twice and kills it each time after some files. Returns the number of files.
fn kill_twice(folder: &TestDir) -> usize {
    let count_files = || {
        let entries = fs::read_dir(folder.work().join("rows")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("part-")).count()
    };
    for min_files in [2, 5] {
        let mut command = folder.program(binary());
        command.args(sweep_arguments(&["--jobs", "2"])).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_for("some rows", || (count_files() >= min_files).then_some(()));
        // SIGKILL, so that the process cannot clean up.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    count_files()
}

#[test]
fn a_killed_sweep_loses_and_duplicates_nothing() {
    // If this test had to wait for a processor, the sweep may have finished.
    let folder = wait_for("a sweep that was killed in its middle", || {
        let folder = sweep_folder(PLAN);
        (kill_twice(&folder) < 12).then_some(folder)
    });
    let output = folder.run(&sweep_arguments(&[]));
    assert_eq!(output.code, Some(0), "{output}");
    assert_complete(&folder);
}

#[test]
fn two_processes_share_a_sweep_without_duplicate_rows() {
    let folder = sweep_folder(PLAN);
    let start = |shard: &str| {
        let mut command = folder.program(binary());
        command
            .args(sweep_arguments(&["--shard", shard]))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    };
    // The same shard, so that both processes need the same chunks at the same time.
    let mut processes = [start("1/2"), start("1/2")];
    for child in &mut processes {
        let status = wait_for("the end of a process", || child.try_wait().unwrap());
        assert!(status.success(), "{status} within {HANG_TIMEOUT:?}");
    }
    assert_complete(&folder);
}

#[test]
fn rows_that_need_too_much_memory_are_not_shown_but_counted_verified_and_compacted() {
    let folder = sweep_folder(PLAN);
    assert_eq!(folder.run(&sweep_arguments(&[])).code, Some(0));
    let with_little_memory = |arguments: &[&str]| {
        let mut command = folder.program(binary());
        command.args(arguments).env("TOWPATH_MAX_INPUT", "30kB");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, progress) = with_little_memory(&["sweep", "status", "rows"]);
    assert_eq!(code, Some(0), "{progress}");
    assert!(progress.contains("warning: the rows of `rows` are too many to read"), "{progress}");
    assert!(progress.contains("24 of 24 runs are done, in 12 of 12 files"), "{progress}");
    let (code, progress) = with_little_memory(&sweep_arguments(&[]));
    assert_eq!(code, Some(0), "{progress}");
    let (code, progress) = with_little_memory(&["sweep", "verify", "rows", "--runs", "1"]);
    assert_eq!(code, Some(0), "{progress}");
    let compact = ["sweep", "compact", "rows", "--rows-per-file", "4"];
    let (code, progress) = with_little_memory(&compact);
    assert_eq!(code, Some(0), "{progress}");
}

#[test]
fn a_sweep_is_the_same_bytes_with_any_number_of_threads() {
    let (single, double) = (sweep_folder(PLAN), sweep_folder(PLAN));
    for (folder, jobs) in [(&single, "1"), (&double, "2")] {
        let output = folder.run(&sweep_arguments(&["--jobs", jobs]));
        assert_eq!(output.code, Some(0), "{output}");
        assert!(output.out.contains("delay") && output.out.contains("Mbit/s"), "{output}");
    }
    assert!(content(&single) == content(&double));
    let output = single.run(&["sweep", "verify", "rows", "--runs", "3"]);
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "3 of 3 runs gave the same row again\n")
    );
}

#[test]
fn a_sweep_ends_with_a_page_that_shows_the_spread_over_the_seeds() {
    let folder = sweep_folder(PLAN);
    let output = folder.run(&sweep_arguments(&["--seeds", "6"]));
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains("page: rows/sweep.html"), "{output}");
    let page = fs::read_to_string(folder.work().join("rows/sweep.html")).unwrap();
    assert!(page.contains("default-src 'none'") && page.contains("<h2>goodput</h2>"), "{page}");
    assert_eq!(page.matches("<circle cx").count() % 6, 0);
    assert!(page.contains("95 % interval of the median") && page.contains("class=\"interval\""));
}

#[test]
fn a_failed_run_is_a_row_and_sets_the_exit_code() {
    let plan = format!(
        "{PLAN}[[axes]]\nname = \"scheduler\"\nkeys = [\"hosts.phone.scheduler\"]\n\
         values = [\"min-rtt\", \"fastest\"]\n"
    );
    let folder = sweep_folder(&plan);
    let output = folder.run(&sweep_arguments(&["--quick", "--seeds", "1", "--csv", "rows.csv"]));
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("warning: 2 of 4 runs failed"), "{output}");
    let rows = rows(&folder);
    let failed_rows: Vec<_> = rows.iter().filter(|row| row["error"].is_string()).collect();
    assert_eq!((rows.len(), failed_rows.len()), (4, 2));
    for row in failed_rows {
        assert_eq!(row["parameters"]["scheduler"]["text"], "fastest");
        assert!(row["error"].as_str().unwrap().contains("`fastest`"), "{row}");
    }
    let csv = fs::read_to_string(folder.work().join("rows.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5, "{csv}");
}

#[test]
fn a_plan_that_is_wrong_is_refused_before_anything_is_written() {
    let folder = sweep_folder(&PLAN.replace("100 ms", "100 mz"));
    let output = folder.run(&sweep_arguments(&[]));
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("variant `TCP`, delay `100 mz`"), "{output}");
    assert_eq!(folder.names(), ["plan.toml", "scenario.toml"]);
    let output = folder.run(&["sweep", "plan.toml", "--world", "emu"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("its `worlds` are `sim`"), "{output}");
}
