//! Cleanup: however a run ends, nothing stays behind and the measurements so far are kept.

use std::fs;
use std::os::unix::process::CommandExt;

use crate::processes::{Members, interfaces, signal};
use crate::program::{Running, TWO_PATHS, TestDir, emulator, wait_for};

/// Flow longer than any test, and a program that never ends.
const LONG: &str = r#"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
duration = "10 min"
[[flows]]
from = "phone"
to = "server"
run = "setsid sleep 86399"
duration = "10 min"
"#;

/// Starts a run as the leader of a process group, and waits for its traffic.
fn under_way(folder: &TestDir) -> (Running, Members) {
    folder.write("long.toml", format!("{TWO_PATHS}{LONG}"));
    let mut command = folder.towpath(&["run", "long.toml", "-T", "mptcp", "-o", "results"]);
    let running = folder.start(command.process_group(0));
    let members = Members::wait_for(running.id(), "sleep 86399");
    assert!(members.processes.len() >= 3, "{members:?}");
    wait_for("intervals in the result", || {
        let text = fs::read_to_string(folder.work().join("results/mptcp-1.jsonl")).ok()?;
        text.contains("\"type\":\"interval\"").then_some(())
    });
    (running, members)
}

/// Checks that the partial result of a killed run is readable.
fn is_readable(folder: &TestDir) {
    let report = folder.run(&["report", "results", "--json"]);
    assert_eq!(report.code, Some(0), "{report}");
    let lines = report.json();
    assert_eq!(lines.len(), 1, "{report}");
    assert!(lines[0]["summary"].is_null(), "{report}");
    assert!(folder.work().join("results/report.html").is_file());
}

#[test]
fn a_killed_command_leaves_nothing_but_a_readable_result() {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    let (running, members) = under_way(&folder);
    signal("KILL", running.id().into());
    assert_eq!(running.wait().code, None);
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
    is_readable(&folder);
}

#[test]
fn killing_the_outer_process_leaves_a_partial_result() {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    let (running, members) = under_way(&folder);
    signal("KILL", members.with("__outer").unwrap().id.into());
    let ended = running.wait();
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.err.contains("what was measured is in results/mptcp-1.jsonl.zst"), "{ended}");
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
    is_readable(&folder);
}

#[test]
fn killing_the_inner_process_leaves_a_partial_result() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let (running, members) = under_way(&folder);
    signal("KILL", members.with("__inner").unwrap().id.into());
    let ended = running.wait();
    assert_eq!(ended.code, Some(1), "{ended}");
    members.wait_until_gone();
    is_readable(&folder);
}

/// Signals the whole group, as a terminal and `timeout` do.
fn interrupted_by(name: &str) {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    let (running, members) = under_way(&folder);
    signal(name, -i64::from(running.id()));
    let ended = running.wait();
    assert_eq!(ended.code, Some(130), "{ended}");
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
    assert_eq!(folder.names(), ["long.toml", "results"]);
    let result = folder.stored("results/mptcp-1.jsonl.zst");
    let summary = result.summary.unwrap();
    assert!(summary.warnings.iter().any(|warning| warning.text.contains("interrupted")), "{ended}");
    assert!(summary.flows[0].bytes > 0, "{ended}");
    assert!(folder.work().join("results/report.html").is_file());
    assert!(ended.out.contains("mptcp"), "{ended}");
}

#[test]
fn an_interrupted_run_ends_early_with_a_result_and_a_report() {
    interrupted_by("INT");
}

#[test]
fn a_terminated_run_ends_early_with_a_result_and_a_report() {
    interrupted_by("TERM");
}

#[test]
fn an_interrupt_of_the_command_alone_ends_the_run_early() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let (running, members) = under_way(&folder);
    signal("INT", running.id().into());
    let ended = running.wait();
    assert_eq!(ended.code, Some(130), "{ended}");
    members.wait_until_gone();
}
