//! `towpath doctor` beyond a diagnosis: fixes, and checks of programs.

use std::thread;

use serde_json::Value;

use crate::program::{ProgramOutput, TestDir, binary, emulator_for_times, missing, skip};

/// Runs a shell script on the client of a situation; `$0` is the command.
fn inside(situation: &str, script: &str) -> ProgramOutput {
    let own = binary();
    let command = ["sh", "-c", script, own.to_str().unwrap()];
    TestDir::new().run(&[&["lab", "failure", situation, "--"], &command[..]].concat())
}

/// Returns the causes in each line of a program's output.
fn causes(ended: &ProgramOutput) -> Vec<Vec<String>> {
    let report = |line: &str| {
        let report: Value = serde_json::from_str(line).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        findings.iter().map(|one| one["cause"].as_str().unwrap().to_owned()).collect()
    };
    ended.out.lines().map(report).collect()
}

/// Script that diagnoses, fixes, and diagnoses again.
const FIX_SCRIPT: &str = r#"
    "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
    "$0" doctor --connect "$TOWPATH_CONNECT" --json
"#;

/// Situation, the first command of its fix, and the remaining cause.
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
    let Some(_serial) = emulator_for_times() else { return };
    for some in FIX_CASES.chunks(4) {
        thread::scope(|scope| {
            for (situation, command, left) in some {
                scope.spawn(move || {
                    let ended = inside(situation, FIX_SCRIPT);
                    assert!(ended.err.contains(&format!("mending: {command}")), "{ended}");
                    let causes = causes(&ended);
                    let [before, after] = causes.as_slice() else { panic!("{ended}") };
                    assert!(!before.is_empty(), "{situation}: {ended}");
                    let left = left.iter().collect::<Vec<_>>();
                    assert_eq!(after.first().into_iter().collect::<Vec<_>>(), left, "{ended}");
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
    let Some(_serial) = emulator_for_times() else { return };
    let script = format!(
        "ip rule >&2; ip route show table all >&2; echo -- >&2; {FIX_SCRIPT}
        echo -- >&2; ip rule >&2; ip route show table all >&2"
    );
    let ended = inside("no-source-route", &script);
    let parts: Vec<_> = ended.err.split("--\n").collect();
    let [before, between, after] = parts.as_slice() else { panic!("{ended}") };
    assert!(before.ends_with(after) && after.contains("default"), "{ended}");
    assert!(between.contains("nothing here can be mended by a setting"), "{ended}");
    let named: Vec<_> = causes(&ended).into_iter().map(|all| all[0].clone()).collect();
    assert_eq!(named, ["no-source-route", "no-source-route"], "{ended}");
}

#[test]
fn without_privileges_nothing_is_fixed_and_a_note_explains() {
    let test = "without_privileges_nothing_is_fixed_and_a_note_explains";
    if let Some(reason) = missing("unshare") {
        skip(test, &reason);
        return;
    }
    let Some(_serial) = emulator_for_times() else { return };
    let script = r#"
        unshare --user "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
        code=$?
        "$0" doctor --connect "$TOWPATH_CONNECT" --json
        exit $code"#;
    let ended = inside("subflow-limit", script);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("mending: ip mptcp limits set"), "{ended}");
    assert!(ended.err.contains("was refused"), "{ended}");
    assert!(ended.err.contains("hint: it takes root (CAP_NET_ADMIN)"), "{ended}");
    let named: Vec<_> = causes(&ended).into_iter().map(|all| all[0].clone()).collect();
    assert_eq!(named, ["subflow-limit", "subflow-limit"], "{ended}");
}

/// Opens a connection of the shell, with or without Multipath TCP, and diagnoses the shell.
const OWN: &str = r#"
    exec 3<>/dev/tcp/${TOWPATH_CONNECT%:*}/${TOWPATH_CONNECT##*:}
    echo hello >&3
    "$TOWPATH" doctor --connect "$TOWPATH_CONNECT" --pid $$ --json
    exit $? # a shell becomes its last program
"#;

#[test]
fn a_single_process_can_be_diagnosed() {
    let Some(_serial) = emulator_for_times() else { return };
    let (own, folder) = (binary(), TestDir::new());
    let own = own.to_str().unwrap();
    let ask = |prefix: &[&str]| {
        let command = [prefix, &["bash", "-c", OWN]].concat();
        let arguments = [&["lab", "failure", "healthy-v4", "--"], &command[..]].concat();
        let ended = folder.start(folder.towpath(&arguments).env("TOWPATH", own)).wait();
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        (report["findings"].clone(), ended)
    };
    let (findings, ended) = ask(&[]);
    assert_eq!(findings[0]["cause"], "application-plain-tcp", "{ended}");
    let place = findings[0]["where"].as_str().unwrap();
    assert!(place.starts_with("bash ("), "{ended}");
    assert_eq!(ended.code, Some(1), "{ended}");
    let (findings, ended) = ask(&[own, "exec", "--quiet", "--"]);
    assert_eq!((findings.as_array().unwrap().len(), ended.code), (0, Some(0)), "{ended}");
}

#[test]
fn a_process_that_is_not_there_is_not_called_healthy() {
    let ended = TestDir::new().run(&["doctor", "--pid", "4194305"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
    let what = "error: the sockets of process 4194305 cannot be seen: no such file or directory\n";
    assert!(ended.err.starts_with(what), "{ended}");
}

#[test]
fn all_or_only_selected_programs_are_diagnosed() {
    let Some(_serial) = emulator_for_times() else { return };
    let script = r#"
        for whose in "--all" "--pid 1" "--pid $$" ""; do
            "$0" doctor --connect "$TOWPATH_CONNECT" $whose --json
        done"#;
    let ended = inside("application-plain-tcp", script);
    let named: Vec<_> = causes(&ended).into_iter().map(|all| all.len()).collect();
    assert_eq!(named, [1, 1, 0, 0], "{ended}");
    let what = "which programs use Multipath TCP";
    let values: Vec<_> = ended.out.lines().map(|line| line.contains(what)).collect();
    assert_eq!(values, [false, false, false, true], "what was not looked at is said: {ended}");
}
