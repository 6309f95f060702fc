//! Cleanup: however a run ends, nothing stays behind and the measurements so far are kept.

use std::fs;
use std::os::unix::process::CommandExt;

use crate::processes::{Members, interfaces, signal};
use crate::program::{Running, TWO_PATHS, TestDir, acquire_emulator, wait_for};

/// Flow longer than any test, and a program that never ends.
const LONG_FLOWS: &str = r#"
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
fn start_long_run(folder: &TestDir) -> (Running, Members) {
    folder.write("long.toml", format!("{TWO_PATHS}{LONG_FLOWS}"));
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
fn assert_readable(folder: &TestDir) {
    let report = folder.run(&["report", "results", "--json"]);
    assert_eq!(report.code, Some(0), "{report}");
    let lines = report.json();
    assert_eq!(lines.len(), 1, "{report}");
    assert!(lines[0]["summary"].is_null(), "{report}");
    assert!(folder.work().join("results/report.html").is_file());
}

#[test]
fn a_killed_command_leaves_nothing_but_a_readable_result() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    let (running, members) = start_long_run(&folder);
    signal("KILL", running.id().into());
    assert_eq!(running.wait().code, None);
    members.wait_until_gone();
    assert_eq!(interfaces(), interfaces_before);
    assert_readable(&folder);
}

#[test]
fn killing_the_outer_process_leaves_a_partial_result() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    let (running, members) = start_long_run(&folder);
    signal("KILL", members.find_process("__outer").unwrap().id.into());
    let output = running.wait();
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("the measured data is in results/mptcp-1.jsonl.zst"), "{output}");
    members.wait_until_gone();
    assert_eq!(interfaces(), interfaces_before);
    assert_readable(&folder);
}

#[test]
fn killing_the_inner_process_leaves_a_partial_result() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let (running, members) = start_long_run(&folder);
    signal("KILL", members.find_process("__inner").unwrap().id.into());
    let output = running.wait();
    assert_eq!(output.code, Some(1), "{output}");
    members.wait_until_gone();
    assert_readable(&folder);
}

/// Interrupts a run by a signal to the whole process group, as a terminal and `timeout` do.
fn assert_interrupt(name: &str) {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    let (running, members) = start_long_run(&folder);
    signal(name, -i64::from(running.id()));
    let output = running.wait();
    assert_eq!(output.code, Some(130), "{output}");
    members.wait_until_gone();
    assert_eq!(interfaces(), interfaces_before);
    assert_eq!(folder.names(), ["long.toml", "results"]);
    let result = folder.stored("results/mptcp-1.jsonl.zst");
    let summary = result.summary.unwrap();
    assert!(
        summary.warnings.iter().any(|warning| warning.text.contains("interrupted")),
        "{output}"
    );
    assert!(summary.flows[0].bytes > 0, "{output}");
    assert!(folder.work().join("results/report.html").is_file());
    assert!(output.out.contains("mptcp"), "{output}");
}

#[test]
fn an_interrupted_run_ends_early_with_a_result_and_a_report() {
    assert_interrupt("INT");
}

#[test]
fn a_terminated_run_ends_early_with_a_result_and_a_report() {
    assert_interrupt("TERM");
}

#[test]
fn an_interrupt_of_the_command_alone_ends_the_run_early() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let (running, members) = start_long_run(&folder);
    signal("INT", running.id().into());
    let output = running.wait();
    assert_eq!(output.code, Some(130), "{output}");
    members.wait_until_gone();
}
