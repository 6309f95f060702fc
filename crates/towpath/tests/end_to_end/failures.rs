//! The catalogue of failures: each situation behaves as described.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;
use towpath_linux::failures::{self, FailureCase};

use crate::program::{
    ProgramOutput, TestDir, binary, emulator, emulator_for_times, is_long, missing, skip,
};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs a shell script on the client of a situation.
fn inside(situation: &str, script: &str) -> ProgramOutput {
    let ended = TestDir::new().run(&["lab", "failure", situation, "--", "bash", "-c", script]);
    assert!(ended.err.contains(situation), "{ended}");
    ended
}

fn situations() -> Vec<Value> {
    let ended = TestDir::new().run(&["lab", "failure", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    let list: Value = serde_json::from_str(&ended.out).unwrap();
    list.as_array().unwrap().clone()
}

#[test]
fn the_list_has_enough_cases_of_both_kinds_without_duplicates() {
    let all = situations();
    let healthy = all.iter().filter(|one| one["cause"].is_null()).count();
    assert!(healthy >= 10 && all.len() - healthy >= 50, "{healthy} of {}", all.len());
    let names: BTreeSet<_> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), all.len());
    for one in &all {
        for field in ["title", "seen", "why"] {
            let text = one[field].as_str().unwrap();
            assert!(!text.is_empty() && !text.contains("  "), "{}: {text:?}", one["name"]);
        }
    }
}

#[test]
fn the_page_of_the_fault_catalogue_is_the_printed_one() {
    let ended = TestDir::new().run(&["lab", "failure", "--markdown"]);
    let page = fs::read_to_string(root("docs/failures.md")).unwrap();
    assert!(ended.out == page, "run `towpath lab failure --markdown > docs/failures.md`");
}

#[test]
fn an_unknown_failure_case_is_refused_with_a_hint() {
    let ended = TestDir::new().run(&["lab", "failure", "no-such-thing", "--", "true"]);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert_eq!(
        ended.err,
        "error: no situation `no-such-thing`\nhint: `towpath lab failure` lists them\n"
    );
}

#[test]
fn without_a_terminal_a_failure_case_is_only_explained() {
    let ended = TestDir::new().run(&["lab", "failure", "syn-stripped-v6"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended}");
    for part in ["cause  syn-option-stripped\n", "doctor --connect [2001:db8:2:1::2]:4000\n"] {
        assert!(ended.out.contains(part), "{part}: {ended}");
    }
}

#[test]
fn the_exit_code_is_passed_on_from_a_failure_case() {
    let Some(_serial) = emulator() else { return };
    let ended = inside("healthy-v4", "exit 7");
    assert_eq!((ended.code, ended.out.as_str()), (Some(7), ""), "{ended}");
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
    let Some(_serial) = emulator() else { return };
    let own = binary();
    let (own, folder) = (own.to_str().unwrap(), TestDir::new());
    for pair in SIGNATURES.chunks(2) {
        let start = |(name, counters): &(&str, &str)| {
            let script = SIGNATURE.replace("COUNTERS", counters);
            let inside = [own, "exec", "--quiet", "--", "bash", "-c", &script];
            let arguments = [&["lab", "failure", name, "--"], &inside[..]].concat();
            folder.start(&mut folder.towpath(&arguments))
        };
        let running: Vec<_> = pair.iter().map(start).collect();
        for (running, (name, counters)) in running.into_iter().zip(pair) {
            let ended = running.wait();
            assert_eq!(ended.code, Some(0), "{name}: {counters} does not move: {ended}");
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
    /// Complete output, or the reason why it is missing.
    output: String,
}

impl Diagnosis {
    fn make(situation: &'static FailureCase, user: User) -> Self {
        let (own, folder) = (binary(), TestDir::new());
        let become_user = if user == User::Ordinary { "unshare --user" } else { "" };
        let script =
            format!("exec {become_user} \"$0\" doctor --connect \"$TOWPATH_CONNECT\" --all --json");
        let inside = ["sh", "-c", &script, own.to_str().unwrap()];
        let ended = folder.run(&[&["lab", "failure", situation.name, "--"], &inside[..]].concat());
        let report: Option<Value> = serde_json::from_str(&ended.out).ok();
        let first_cause = report.as_ref().and_then(|report| {
            let first = report["findings"].get(0).map(|finding| finding["cause"].clone());
            // On a busy machine a path may carry too little data to be called healthy.
            first.map_or(Some(NO_FAILURE_CAUSE.to_owned()), |cause| {
                cause.as_str().map(str::to_owned)
            })
        });
        Self { situation, user, first_cause, output: ended.to_string() }
    }

    fn expected(&self) -> &'static str {
        self.situation.cause.unwrap_or(NO_FAILURE_CAUSE)
    }

    fn is_right(&self) -> bool {
        self.first_cause.as_deref() == Some(self.expected())
    }
}

/// Diagnoses all situations, four at a time, as each mostly waits.
fn diagnoses(situations: impl Iterator<Item = &'static FailureCase>, user: User) -> Vec<Diagnosis> {
    let waiting = Mutex::new(situations.collect::<Vec<_>>().into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().next();
                    let Some((place, situation)) = next else { return };
                    let diagnosis = Diagnosis::make(situation, user);
                    done.lock().unwrap().push((place, diagnosis));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(place, _)| *place);
    let all = done.into_iter().map(|(_, diagnosis)| diagnosis);
    // Four networks and other load can starve one of them. A wrong diagnosis must be right when
    // repeated alone.
    all.map(|one| if one.is_right() { one } else { Diagnosis::make(one.situation, one.user) })
        .collect()
}

/// Returns the expected cause, the number of situations, and the named causes with counts, by user.
fn confusion(diagnoses: &[Diagnosis]) -> String {
    let mut rows: BTreeMap<&str, [BTreeMap<&str, u32>; 2]> = BTreeMap::new();
    for diagnosis in diagnoses {
        let named = diagnosis.first_cause.as_deref().unwrap_or("nothing");
        let row = rows.entry(diagnosis.expected()).or_default();
        let cell = &mut row[usize::from(diagnosis.user == User::Ordinary)];
        *cell.entry(named).or_default() += 1;
    }
    let mut table =
        "| cause | situations | named first | as an ordinary user |\n|---|---|---|---|\n"
            .to_owned();
    for (expected, [root, ordinary]) in rows {
        let all: u32 = root.values().sum();
        let [root, ordinary] = [root, ordinary].map(|cell| {
            let cell: Vec<_> =
                cell.iter().map(|(name, count)| format!("`{name}` {count}")).collect();
            cell.join(", ")
        });
        writeln!(table, "| `{expected}` | {all} | {root} | {ordinary} |").unwrap();
    }
    table
}

/// Returns the part of a page between two marks; updates it first if requested.
fn section(page: &Path, fresh: &str) -> String {
    const MARKS: [&str; 2] = ["<!-- zoo: made by a test -->\n", "<!-- end -->"];
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).unwrap();
    let (old, after) = rest.split_once(MARKS[1]).unwrap();
    if env::var_os("TOWPATH_UPDATE").is_some() {
        let text = [before, MARKS[0], fresh, MARKS[1], after].concat();
        fs::write(page, text).unwrap();
        return fresh.to_owned();
    }
    old.to_owned()
}

/// Fails if a diagnosis is wrong.
fn complain(diagnoses: &[Diagnosis]) {
    let wrong: Vec<_> = diagnoses.iter().filter(|one| !one.is_right()).collect();
    let text: Vec<_> = wrong
        .iter()
        .map(|one| format!("{}: expected {}: {}", one.situation.name, one.expected(), one.output))
        .collect();
    let table = confusion(diagnoses);
    let (wrong, all) = (wrong.len(), diagnoses.len());
    assert!(wrong == 0, "{wrong} of {all} wrong\n{table}{}", text.join("\n"));
}

/// Situations in which an ordinary user gets less, or other evidence.
const ORDINARY: [&str; 25] = [
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
    let mut known = BTreeSet::new();
    failures::cases().filter(move |one| known.insert(one.cause))
}

/// All situations with `cargo xtask test --all`, which also checks the table in the document.
#[test]
fn the_doctor_names_the_cause_of_every_failure_case() {
    if let Some(reason) = missing("unshare") {
        skip("the_doctor_names_the_cause_of_every_failure_case", &reason);
        return;
    }
    let Some(_serial) = emulator_for_times() else { return };
    let ordinary = |one: &&FailureCase| ORDINARY.contains(&one.name);
    if !is_long() {
        complain(&diagnoses(one_of_each_cause(), User::Root));
        complain(&diagnoses(one_of_each_cause().filter(ordinary).step_by(4), User::Ordinary));
        return;
    }
    let mut all = diagnoses(failures::cases(), User::Root);
    complain(&all);
    all.extend(diagnoses(failures::cases().filter(ordinary), User::Ordinary));
    let table = confusion(&all);
    let documented = section(&root("docs/doctor.md"), &table);
    assert_eq!(documented, table, "run this test with TOWPATH_UPDATE=1 and TOWPATH_REPEAT=long");
}

/// All variations with `cargo xtask test --all`.
#[test]
fn the_doctor_names_the_cause_of_unseen_cases() {
    let Some(_serial) = emulator_for_times() else { return };
    let part = if is_long() { 1 } else { 6 };
    complain(&diagnoses(failures::variations().step_by(part), User::Root));
}
