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

/// Returns the findings in each line of a program's output.
fn findings(output: &ProgramOutput) -> Vec<Vec<Value>> {
    let findings_of_report = |line: &str| {
        let report: Value = serde_json::from_str(line).unwrap();
        report["findings"].as_array().unwrap().clone()
    };
    output.out.lines().map(findings_of_report).collect()
}

/// Returns the causes in each line of a program's output.
fn causes(output: &ProgramOutput) -> Vec<Vec<String>> {
    let cause = |finding: &Value| finding["cause"].as_str().unwrap().to_owned();
    findings(output).iter().map(|findings| findings.iter().map(cause).collect()).collect()
}

/// Script that diagnoses, fixes, and diagnoses again.
const FIX_SCRIPT: &str = r#"
    "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
    "$0" doctor --connect "$TOWPATH_CONNECT" --json
"#;

/// Function of a shell that prints everything that fixes change. The kernel makes and deletes
/// implicit endpoints.
const STATE: &str = "
    state() {
        ip mptcp limits; ip mptcp endpoint | grep -v implicit
        cat /proc/sys/net/mptcp/* /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/conf/*/arp_*
        cat /proc/sys/net/ipv4/conf/*/rp_filter
    }
    same() { [ \"$1\" = \"$(state)\" ] || { echo \"$2\"; echo \"$1\"; echo NOW; state; } >&2; }
";

/// Script that also reverts the fixes, and compares the state with the one before.
const FIX_AND_UNDO: &str = r#"
    before=$(state)
    "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
    "$0" doctor --connect "$TOWPATH_CONNECT" --json
    "$0" doctor --undo >&2 || echo "undo failed: $?" >&2
    same "$before" "not undone"
    "$0" doctor --undo >&2
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
fn safe_fixes_are_shown_applied_and_undone() {
    let test = "safe_fixes_are_shown_applied_and_undone";
    if let Some(reason) = missing("ip") {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let script = format!("{STATE}{FIX_AND_UNDO}");
    let script = script.as_str();
    for cases in FIX_CASES.chunks(4) {
        thread::scope(|scope| {
            for (situation, command, remaining) in cases {
                scope.spawn(move || {
                    let output = run_on_client(situation, script);
                    let is_in_order = |texts: &[&str]| {
                        let positions: Vec<_> =
                            texts.iter().map(|text| output.err.find(text)).collect();
                        positions.is_sorted() && positions.iter().all(Option::is_some)
                    };
                    let fixing = format!("fixing: {command}");
                    let steps = [
                        " -> ",
                        fixing.as_str(),
                        "tried in a network namespace: ",
                        " made; `towpath doctor --undo` reverts",
                        "gone: ",
                        " undone\n",
                    ];
                    assert!(is_in_order(&steps), "{output}");
                    assert!(!output.err.contains("not undone"), "{output}");
                    assert!(output.err.contains("# nothing to undo"), "{output}");
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
    if let Some(reason) = missing("unshare").or_else(|| missing("ip")) {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    for (option, message) in [
        ("", "error: `--fix` changes this host; nothing was changed"),
        // Root of another user namespace has the capability, and the kernel still refuses.
        ("--map-root-user", "was refused: "),
    ] {
        let script = format!(
            r#"{STATE} before=$(state)
            unshare --user {option} "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
            code=$?
            same "$before" "changed"
            "$0" doctor --connect "$TOWPATH_CONNECT" --json
            "$0" doctor --undo >&2
            exit $code"#
        );
        let output = run_on_client("subflow-limit", &script);
        assert_eq!(output.code, Some(2), "{output}");
        assert!(output.err.contains("fixing: ip mptcp limits set"), "{output}");
        assert!(output.err.contains(message), "{output}");
        assert!(output.err.contains("nothing was changed"), "{output}");
        assert!(output.err.contains("hint: this needs root (CAP_NET_ADMIN)"), "{output}");
        assert!(output.err.contains("# nothing to undo"), "{output}");
        assert!(!output.err.contains("NOW"), "{output}");
        let first_causes: Vec<_> =
            causes(&output).into_iter().map(|causes| causes[0].clone()).collect();
        assert_eq!(first_causes, ["subflow-limit", "subflow-limit"], "{output}");
    }
}

#[test]
fn a_command_that_the_kernel_refuses_in_the_trial_changes_nothing() {
    let test = "a_command_that_the_kernel_refuses_in_the_trial_changes_nothing";
    if let Some(reason) = missing("ip") {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    // Eight endpoints are the maximum, so the ninth, which the second command adds, is refused.
    let script = format!(
        r#"{STATE}
        for host in 101 102 103 104 105 106 107; do
            ip address add 10.1.1.$host/24 dev c1
            ip mptcp endpoint add 10.1.1.$host dev c1 subflow
        done
        ip mptcp limits set subflows 0
        before=$(state)
        "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json; code=$?
        same "$before" "changed"
        "$0" doctor --undo >&2
        exit $code"#
    );
    let output = run_on_client("all-endpoints-one-interface", &script);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("fixing: ip mptcp limits set"), "{output}");
    let message = "error: `ip mptcp endpoint add 10.1.2.2 dev c2 subflow` was refused in a network";
    assert!(output.err.contains(message), "{output}");
    assert!(output.err.contains("hint: the kernel allows 8 endpoints"), "{output}");
    assert!(output.err.contains("# nothing to undo"), "{output}");
    assert!(!output.err.contains("NOW"), "{output}");
}

#[test]
fn advice_is_not_repeated_after_a_fix_that_did_not_help() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    // The interfaces lack routes of their own, which `--fix` does not add.
    let script = r#"
        "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
        "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
        "$0" doctor --connect "$TOWPATH_CONNECT" >&2
        "$0" doctor --undo >&2
        "$0" doctor --connect "$TOWPATH_CONNECT" --json"#;
    let output = run_on_client("same-subnet", script);
    let reports = findings(&output);
    let [first, second, third] = reports.as_slice() else { panic!("{output}") };
    let commands =
        ["sysctl -w net.ipv4.conf.all.arp_ignore=1", "sysctl -w net.ipv4.conf.all.arp_announce=2"];
    assert_eq!(first[0]["fix"], serde_json::json!(commands), "{output}");
    assert!(first[0].get("tried").is_none(), "{output}");
    let tried = commands.map(|command| format!("{command} (by --fix): the problem remains"));
    assert_eq!(second[0]["tried"], serde_json::json!(tried), "{output}");
    assert_eq!(second[0]["fix"], serde_json::json!([]), "{output}");
    assert!(second[0]["hint"].as_str().unwrap().contains("Next: "), "{output}");
    assert!(output.err.contains("remains: "), "{output}");
    assert!(output.err.contains("every command for this host was tried before"), "{output}");
    assert!(output.err.contains(&format!("   tried: {}", tried[0])), "{output}");
    assert_eq!(third[0]["fix"], first[0]["fix"], "after the reversal, it can be tried: {output}");
}

#[test]
fn settings_that_another_program_changed_since_are_not_undone() {
    let test = "settings_that_another_program_changed_since_are_not_undone";
    if let Some(reason) = missing("ip") {
        skip(test, &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let script = r#"
        "$0" doctor --connect "$TOWPATH_CONNECT" --fix --json
        ip mptcp limits set subflows 7
        "$0" doctor --undo --json
        ip mptcp limits >&2"#;
    let output = run_on_client("subflow-limit", script);
    let report: Value = serde_json::from_str(output.out.lines().last().unwrap()).unwrap();
    assert_eq!(report["steps"], serde_json::json!([]), "{output}");
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.contains("is now subflows 7") && note.ends_with(": not changed"), "{output}");
    assert!(output.err.contains("subflows 7"), "{output}");
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
