//! The catalogue of failures: each situation behaves as described.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;
use towpath_emu::failures;
use towpath_emu::failures::FailureCase;

use crate::program::{
    ProgramOutput, TestDir, acquire_emulator, acquire_emulator_for_timing, binary, is_long,
    missing, skip,
};

fn repository_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs a shell script on the client of a situation.
fn run_on_client(situation: &str, script: &str) -> ProgramOutput {
    let output = TestDir::new().run(&["lab", "failure", situation, "--", "bash", "-c", script]);
    assert!(output.err.contains(situation), "{output}");
    output
}

fn situations() -> Vec<Value> {
    let output = TestDir::new().run(&["lab", "failure", "--json"]);
    assert_eq!(output.code, Some(0), "{output}");
    let list: Value = serde_json::from_str(&output.out).unwrap();
    list.as_array().unwrap().clone()
}

#[test]
fn the_list_has_enough_cases_of_both_kinds_without_duplicates() {
    let cases = situations();
    let healthy = cases.iter().filter(|case| case["cause"].is_null()).count();
    assert!(healthy >= 10 && cases.len() - healthy >= 50, "{healthy} of {}", cases.len());
    let names: BTreeSet<_> = cases.iter().map(|case| case["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), cases.len());
    for case in &cases {
        for field in ["title", "seen", "why"] {
            let text = case[field].as_str().unwrap();
            assert!(!text.is_empty() && !text.contains("  "), "{}: {text:?}", case["name"]);
        }
    }
}

#[test]
fn the_page_of_the_fault_catalogue_is_the_printed_one() {
    let output = TestDir::new().run(&["lab", "failure", "--markdown"]);
    let page = fs::read_to_string(repository_path("docs/reference/failures.md")).unwrap();
    assert!(
        output.out == page,
        "run `towpath lab failure --markdown > docs/reference/failures.md`"
    );
}

#[test]
fn an_unknown_failure_case_is_refused_with_a_hint() {
    let output = TestDir::new().run(&["lab", "failure", "no-such-thing", "--", "true"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert_eq!(
        output.err,
        "error: unknown failure case `no-such-thing`\nhint: `towpath lab failure` lists them\n"
    );
}

#[test]
fn without_a_terminal_a_failure_case_is_only_explained() {
    let output = TestDir::new().run(&["lab", "failure", "syn-stripped-v6"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output}");
    for part in ["cause  syn-option-stripped\n", "doctor --connect [2001:db8:2:1::2]:4000\n"] {
        assert!(output.out.contains(part), "{part}: {output}");
    }
}

#[test]
fn the_exit_code_is_passed_on_from_a_failure_case() {
    let Some(_permit) = acquire_emulator() else { return };
    let output = run_on_client("healthy-v4", "exit 7");
    assert_eq!((output.code, output.out.as_str()), (Some(7), ""), "{output}");
}

/// Script that opens a Multipath TCP connection, sends data, and waits until a counter changes.
const SIGNATURE: &str = r#"
moved() {
    awk -v wanted=" COUNTERS " '/^(TcpExt|MPTcpExt):/ {
        if ($1 != group) { group = $1; split($0, names); next }
        for (i = 2; i <= NF; i++) if (index(wanted, " " names[i] " ") && $i > 0) found = 1
    } END { exit !found }' /proc/net/netstat
}
host=${TOWPATH_CONNECT%:*} port=${TOWPATH_CONNECT##*:}
host=${host#[}; host=${host%]}
exec 3<>/dev/tcp/$host/$port; echo hello >&3
until moved; do
    [ $SECONDS -lt 60 ] || { cat /proc/net/netstat; exit 1; }
    sleep 0.02
done
"#;

/// Kernel counters of each situation, as recorded.
///
/// A host with a user-space path manager drops an announced address if no program listens for
/// events. With a listener, the kernel echoes the ADD_ADDR and leaves the address to the program.
///
/// Linux has one list of such listeners for all network namespaces. Any listener on this machine,
/// such as `towpath monitor` or `towpath run`, therefore changes the counter.
const SIGNATURES: [(&str, &str); 20] = [
    ("server-mptcp-disabled", "MPCapableFallbackSYNACK"),
    ("blackhole-fallback", "MPCapableSYNTXDisabled"),
    ("listener-plain-tcp", "MPCapableFallbackSYNACK"),
    ("load-balancer", "MPJoinSynTx"),
    ("add-addr-limit", "AddAddr"),
    ("peer-limit", "MPRstTx"),
    ("userspace-path-manager", "AddAddrDrop EchoAddTx"),
    ("endpoint-address-missing", "MPJoinSynTxBindErr"),
    ("endpoint-address-stale", "MPJoinSynTxBindErr"),
    ("endpoint-interface-down", "MPJoinSynTxConnectErr"),
    ("client-signal", "AddAddrTx"),
    ("no-source-route", "TCPSynRetrans"),
    ("reverse-path-filter", "IPReversePathFilter"),
    ("syn-dropped", "MPCapableSYNTXDrop"),
    ("syn-stripped-v6", "MPCapableFallbackSYNACK"),
    ("synack-stripped", "MPCapableFallbackSYNACK"),
    ("join-dropped", "TCPSynRetrans"),
    ("join-stripped", "MPRstTx"),
    ("healthy-nat", "MPJoinSynAckRx"),
    ("healthy-laminar", "MPJoinSynAckRx"),
];

#[test]
fn failure_cases_leave_the_recorded_traces() {
    let Some(_permit) = acquire_emulator() else { return };
    let towpath = binary();
    let (towpath, folder) = (towpath.to_str().unwrap(), TestDir::new());
    for pair in SIGNATURES.chunks(2) {
        let start = |(name, counters): &(&str, &str)| {
            let script = SIGNATURE.replace("COUNTERS", counters);
            let client_command = [towpath, "exec", "--quiet", "--", "bash", "-c", &script];
            let arguments = [&["lab", "failure", name, "--"], &client_command[..]].concat();
            folder.start(&mut folder.towpath(&arguments))
        };
        let running: Vec<_> = pair.iter().map(start).collect();
        for (running, (name, counters)) in running.into_iter().zip(pair) {
            let output = running.wait();
            assert_eq!(output.code, Some(0), "{name}: {counters} does not move: {output}");
        }
    }
}

/// User that runs the doctor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    /// Root of the client's namespaces.
    Root,
    /// User without privileges in them.
    Ordinary,
}

/// Cause in the tables if none was found.
const NO_FAILURE_CAUSE: &str = "healthy";

/// Output of the doctor for one situation.
struct Diagnosis {
    situation: &'static FailureCase,
    user: User,
    /// First cause that the doctor named.
    first_cause: Option<String>,
    /// Set when the claims agree with the truth.
    has_consistent_claims: bool,
    /// Complete output, or the reason why it is missing.
    output: String,
}

impl Diagnosis {
    fn diagnose(situation: &'static FailureCase, user: User) -> Self {
        let (towpath, folder) = (binary(), TestDir::new());
        let become_user = if user == User::Ordinary { "unshare --user" } else { "" };
        let script =
            format!("exec {become_user} \"$0\" doctor --connect \"$TOWPATH_CONNECT\" --all --json");
        let client_command = ["sh", "-c", &script, towpath.to_str().unwrap()];
        let output =
            folder.run(&[&["lab", "failure", situation.name, "--"], &client_command[..]].concat());
        let report: Option<Value> = serde_json::from_str(&output.out).ok();
        let first_cause = report.as_ref().and_then(|report| {
            let first_finding = report["findings"].get(0).map(|finding| finding["cause"].clone());
            // On a busy machine a path may carry too little data to be called healthy.
            first_finding.map_or(Some(NO_FAILURE_CAUSE.to_owned()), |cause| {
                cause.as_str().map(str::to_owned)
            })
        });
        let has_consistent_claims =
            report.is_some_and(|report| has_consistent_claims(&report, situation.cause));
        let output = output.to_string();
        Self { situation, user, first_cause, has_consistent_claims, output }
    }

    fn expected(&self) -> &'static str {
        self.situation.cause.unwrap_or(NO_FAILURE_CAUSE)
    }

    fn is_correct(&self) -> bool {
        self.first_cause.as_deref() == Some(self.expected()) && self.has_consistent_claims
    }
}

/// Returns true if the claims agree with the truth: a healthy network shows no cause, another one
/// shows its cause, and no observed fact is against a finding.
fn has_consistent_claims(report: &Value, cause: Option<&str>) -> bool {
    let claims = report["claims"].as_array().unwrap();
    let is_shown = |claim: &&Value| claim["state"] == "shown";
    let agrees = match cause {
        Some(cause) => claims.iter().filter(is_shown).any(|claim| claim["cause"] == cause),
        None => claims.iter().filter(is_shown).count() == 0,
    };
    let findings = report["findings"].as_array().unwrap();
    let mut evidence = findings.iter().flat_map(|finding| finding["evidence"].as_array().unwrap());
    agrees && !evidence.any(|text| text.as_str().unwrap().starts_with("against this: "))
}

/// Diagnoses all situations, four at a time, as each mostly waits.
fn diagnoses(situations: impl Iterator<Item = &'static FailureCase>, user: User) -> Vec<Diagnosis> {
    let queue = Mutex::new(situations.collect::<Vec<_>>().into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next_case = queue.lock().unwrap().next();
                    let Some((index, situation)) = next_case else { return };
                    let diagnosis = Diagnosis::diagnose(situation, user);
                    results.lock().unwrap().push((index, diagnosis));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    let diagnoses = results.into_iter().map(|(_, diagnosis)| diagnosis);
    // Four networks and other load can starve one of them. A wrong diagnosis must be right when
    // repeated alone.
    diagnoses
        .map(|diagnosis| {
            if diagnosis.is_correct() {
                diagnosis
            } else {
                Diagnosis::diagnose(diagnosis.situation, diagnosis.user)
            }
        })
        .collect()
}

/// Returns the expected cause, the number of situations, and the named causes with counts, by user.
fn confusion(diagnoses: &[Diagnosis]) -> String {
    let mut rows: BTreeMap<&str, [BTreeMap<&str, u32>; 2]> = BTreeMap::new();
    for diagnosis in diagnoses {
        let named_cause = diagnosis.first_cause.as_deref().unwrap_or("nothing");
        let row = rows.entry(diagnosis.expected()).or_default();
        let cell = &mut row[usize::from(diagnosis.user == User::Ordinary)];
        *cell.entry(named_cause).or_default() += 1;
    }
    let mut table =
        "| cause | situations | named first | as an ordinary user |\n|---|---|---|---|\n"
            .to_owned();
    for (expected, [root, ordinary]) in rows {
        let total: u32 = root.values().sum();
        let [root, ordinary] = [root, ordinary].map(|cell| {
            let cell: Vec<_> =
                cell.iter().map(|(name, count)| format!("`{name}` {count}")).collect();
            cell.join(", ")
        });
        writeln!(table, "| `{expected}` | {total} | {root} | {ordinary} |").unwrap();
    }
    table
}

/// Returns the recorded table between two marks of a page. With `TOWPATH_UPDATE`, writes `table`
/// there first.
fn recorded_section(page: &Path, table: &str) -> String {
    const MARKS: [&str; 2] = ["<!-- failures: made by a test -->\n", "<!-- end -->"];
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).unwrap();
    let (recorded, after) = rest.split_once(MARKS[1]).unwrap();
    if env::var_os("TOWPATH_UPDATE").is_some() {
        let text = [before, MARKS[0], table, MARKS[1], after].concat();
        fs::write(page, text).unwrap();
        return table.to_owned();
    }
    recorded.to_owned()
}

/// Fails if a diagnosis is wrong.
fn assert_correct(diagnoses: &[Diagnosis]) {
    let wrong_diagnoses: Vec<_> =
        diagnoses.iter().filter(|diagnosis| !diagnosis.is_correct()).collect();
    let text: Vec<_> = wrong_diagnoses
        .iter()
        .map(|diagnosis| {
            format!(
                "{}: expected {}: {}",
                diagnosis.situation.name,
                diagnosis.expected(),
                diagnosis.output
            )
        })
        .collect();
    let table = confusion(diagnoses);
    let (wrong_diagnoses, total) = (wrong_diagnoses.len(), diagnoses.len());
    assert!(wrong_diagnoses == 0, "{wrong_diagnoses} of {total} wrong\n{table}{}", text.join("\n"));
}

/// Situations in which an ordinary user sees less, or other evidence, than root.
const ORDINARY_USER_CASES: [&str; 25] = [
    "add-addr-limit",
    "announced-address-private",
    "announced-address-silent",
    "announced-address-unreachable",
    "application-plain-tcp",
    "blackhole-fallback",
    "dead-announced-addresses",
    "healthy-three-paths",
    "healthy-v4",
    "join-answer-stripped",
    "join-dropped",
    "join-id0-denied",
    "join-prohibited",
    "join-reset",
    "join-stripped",
    "join-unreachable",
    "join-unreachable-host",
    "later-stripped",
    "listener-closed-after-accept",
    "load-balancer",
    "no-source-route",
    "path-lossy",
    "peer-limit",
    "syn-dropped",
    "syn-stripped",
];

/// Returns the first situation of each cause, and one healthy network.
fn one_of_each_cause() -> impl Iterator<Item = &'static FailureCase> {
    let mut known_causes = BTreeSet::new();
    failures::cases().filter(move |case| known_causes.insert(case.cause))
}

/// All situations with `cargo xtask test --all`, which also checks the table in the document.
#[test]
fn the_doctor_names_the_cause_of_every_failure_case() {
    if let Some(reason) = missing("unshare") {
        skip("the_doctor_names_the_cause_of_every_failure_case", &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let is_for_ordinary_users = |case: &&FailureCase| ORDINARY_USER_CASES.contains(&case.name);
    if !is_long() {
        assert_correct(&diagnoses(one_of_each_cause(), User::Root));
        assert_correct(&diagnoses(
            one_of_each_cause().filter(is_for_ordinary_users).step_by(4),
            User::Ordinary,
        ));
        return;
    }
    let mut all_diagnoses = diagnoses(failures::cases(), User::Root);
    assert_correct(&all_diagnoses);
    all_diagnoses
        .extend(diagnoses(failures::cases().filter(is_for_ordinary_users), User::Ordinary));
    let table = confusion(&all_diagnoses);
    let documented = recorded_section(&repository_path("docs/guides/diagnose.md"), &table);
    assert_eq!(documented, table, "run this test with TOWPATH_UPDATE=1 and TOWPATH_REPEAT=long");
}

/// All variations with `cargo xtask test --all`.
#[test]
fn the_doctor_names_the_cause_of_unseen_cases() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let step = if is_long() { 1 } else { 6 };
    assert_correct(&diagnoses(failures::variations().step_by(step), User::Root));
}
