//! `towpath doctor` beyond a diagnosis: fixes, and checks of programs.

use std::thread;

use serde_json::Value;

use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, binary, missing, skip};

/// Runs a shell script on the client of a situation; `$0` is the command.
fn run_on_client(situation: &str, script: &str) -> ProgramOutput {
    let towpath = binary();
    let command = ["sh", "-c", script, towpath.to_str().unwrap()];
    TestDir::new().run(&[&["lab", "failure", situation, "--"], &command[..]].concat())
}

/// Returns the causes in each line of a program's output.
fn causes(output: &ProgramOutput) -> Vec<Vec<String>> {
    let causes_of_report = |line: &str| {
        let causes_of_report: Value = serde_json::from_str(line).unwrap();
        let findings = causes_of_report["findings"].as_array().unwrap().clone();
        findings.iter().map(|finding| finding["cause"].as_str().unwrap().to_owned()).collect()
    };
    output.out.lines().map(causes_of_report).collect()
}

/// Script that diagnoses, fixes, and diagnoses again.
const FIX_SCRIPT: &str = r#"
    "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
    "$0" doctor --connect "$TOWPATH_CONNECT" --json
"#;

/// Situations, the first command of their fix, and the cause that remains after it.
const FIX_CASES: [(&str, &str, Option<&str>); 8] = [
    ("mptcp-disabled", "sysctl -w net.mptcp.enabled=1", None),
    ("blackhole-fallback", "sysctl -w net.mptcp.blackhole_timeout=3600", None),
    ("subflow-limit", "ip mptcp limits set subflows", None),
    ("client-signal", "ip mptcp endpoint delete id", None),
    ("endpoint-backup-only", "ip mptcp endpoint change id", None),
    ("no-endpoints", "ip mptcp endpoint add 10.1.2.2 dev c2 subflow", None),
    ("endpoint-address-missing", "ip mptcp endpoint delete id", Some("no-endpoints")),
    ("userspace-path-manager", "sysctl -w net.mptcp.pm_type=0", None),
];

#[test]
fn safe_fixes_are_shown_and_applied() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    for cases in FIX_CASES.chunks(4) {
        thread::scope(|scope| {
            for (situation, command, remaining) in cases {
                scope.spawn(move || {
                    let output = run_on_client(situation, FIX_SCRIPT);
                    assert!(output.err.contains(&format!("fixing: {command}")), "{output}");
                    let causes = causes(&output);
                    let [before, after] = causes.as_slice() else { panic!("{output}") };
                    assert!(!before.is_empty(), "{situation}: {output}");
                    let remaining = remaining.iter().collect::<Vec<_>>();
                    assert_eq!(
                        after.first().into_iter().collect::<Vec<_>>(),
                        remaining,
                        "{output}"
                    );
                });
            }
        });
    }
}

#[test]
fn routes_and_rules_are_left_to_people() {
    let test = "routes_and_rules_are_left_to_people";
    if let Some(reason) = missing("ip") {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let script = format!(
        "ip rule >&2; ip route show table all >&2; echo -- >&2; {FIX_SCRIPT}
        echo -- >&2; ip rule >&2; ip route show table all >&2"
    );
    let output = run_on_client("no-source-route", &script);
    let parts: Vec<_> = output.err.split("--\n").collect();
    let [before, doctor_output, after] = parts.as_slice() else { panic!("{output}") };
    assert!(before.ends_with(after) && after.contains("default"), "{output}");
    assert!(doctor_output.contains("no setting, limit or endpoint of this host"), "{output}");
    let first_causes: Vec<_> =
        causes(&output).into_iter().map(|causes| causes[0].clone()).collect();
    assert_eq!(first_causes, ["no-source-route", "no-source-route"], "{output}");
}

#[test]
fn without_privileges_nothing_is_fixed_and_a_note_explains() {
    let test = "without_privileges_nothing_is_fixed_and_a_note_explains";
    if let Some(reason) = missing("unshare") {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let script = r#"
        unshare --user "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
        code=$?
        "$0" doctor --connect "$TOWPATH_CONNECT" --json
        exit $code"#;
    let output = run_on_client("subflow-limit", script);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("fixing: ip mptcp limits set"), "{output}");
    assert!(output.err.contains("was refused"), "{output}");
    assert!(output.err.contains("hint: this needs root (CAP_NET_ADMIN)"), "{output}");
    let first_causes: Vec<_> =
        causes(&output).into_iter().map(|causes| causes[0].clone()).collect();
    assert_eq!(first_causes, ["subflow-limit", "subflow-limit"], "{output}");
}

/// Opens a connection of the shell, with or without Multipath TCP, and diagnoses the shell.
const DIAGNOSE_SHELL: &str = r#"
    exec 3<>/dev/tcp/${TOWPATH_CONNECT%:*}/${TOWPATH_CONNECT##*:}
    echo hello >&3
    "$TOWPATH" doctor --connect "$TOWPATH_CONNECT" --pid $$ --json
    exit $? # a shell becomes its last program
"#;

#[test]
fn a_single_process_can_be_diagnosed() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let (towpath, folder) = (binary(), TestDir::new());
    let towpath = towpath.to_str().unwrap();
    let diagnose = |prefix: &[&str]| {
        let command = [prefix, &["bash", "-c", DIAGNOSE_SHELL]].concat();
        let arguments = [&["lab", "failure", "healthy-v4", "--"], &command[..]].concat();
        let output = folder.start(folder.towpath(&arguments).env("TOWPATH", towpath)).wait();
        let report: Value = serde_json::from_str(&output.out).unwrap();
        (report["findings"].clone(), output)
    };
    let (findings, output) = diagnose(&[]);
    assert_eq!(findings[0]["cause"], "application-plain-tcp", "{output}");
    let process = findings[0]["location"].as_str().unwrap();
    assert!(process.starts_with("bash ("), "{output}");
    assert_eq!(output.code, Some(1), "{output}");
    let (findings, output) = diagnose(&[towpath, "exec", "--quiet", "--"]);
    assert_eq!((findings.as_array().unwrap().len(), output.code), (0, Some(0)), "{output}");
}

#[test]
fn a_process_that_is_not_there_is_not_called_healthy() {
    let output = TestDir::new().run(&["doctor", "--pid", "4194305"]);
    assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
    let message = "error: cannot read the sockets of process 4194305: no such file or directory\n";
    assert!(output.err.starts_with(message), "{output}");
}

#[test]
fn all_or_only_selected_programs_are_diagnosed() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let script = r#"
        for whose in "--all" "--pid 1" "--pid $$" ""; do
            "$0" doctor --connect "$TOWPATH_CONNECT" $whose --json
        done"#;
    let output = run_on_client("application-plain-tcp", script);
    let finding_counts: Vec<_> = causes(&output).into_iter().map(|causes| causes.len()).collect();
    assert_eq!(finding_counts, [1, 1, 0, 0], "{output}");
    let unchecked = "programs that use Multipath TCP";
    let values: Vec<_> = output.out.lines().map(|line| line.contains(unchecked)).collect();
    assert_eq!(values, [false, false, false, true], "skipped checks are listed: {output}");
}
