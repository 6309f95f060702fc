//! Reports of public issue trackers: the doctor's first sentence answers each of them, for root and
//! for an ordinary user, and its commands cure it.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use serde_json::Value;
use towpath_emu::failures;
use towpath_emu::failures::FailureCase;

use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, binary, missing, skip};

/// A report, and the answer that its reporter needed.
struct Report {
    name: &'static str,
    /// Decisive words of the printed answer: the place and the problem.
    answer: &'static [&'static str],
    /// Commands, or other actions that the answer suggests.
    action: Action,
}

/// Action of the reporter on the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Runs the printed commands, on this host or on the other one.
    RunCommands,
    /// Connects to another address or port.
    Connect(&'static str),
    /// Asks the other host's operator to run the command.
    AskOperator(&'static str),
}

const REPORTS: [Report; 10] = [
    Report {
        name: "report-dead-first-path",
        answer: &["198.51.100.2:4000 answers from 10.1.2.2 on qmimux0", "first route (eth1)"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-equal-addresses",
        answer: &["eth1 and eth2 have the same address 192.168.8.100"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-ipv6-one-side",
        answer: &[
            "wwan0 (2001:db8:1:2::2): it has only IPv6 addresses, and the connection is IPv4",
            "an AF_INET6 socket to ::ffff:198.51.100.2 uses it, as the server announces \
             2001:db8:2:2::2",
        ],
        action: Action::Connect("[::ffff:198.51.100.2]:4000"),
    },
    Report {
        name: "report-option-stripped-on-one-port",
        answer: &["over eth0 removes", "connections to port 4000, but not to port 8080"],
        action: Action::Connect("198.51.100.2:8080"),
    },
    Report {
        name: "report-client-signal",
        answer: &["endpoint 2 (10.1.2.2) is `signal`", "this host opens the connection"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-limits-zero",
        answer: &["allows no subflow beyond the first", "eth1 (10.1.2.2) -> 198.51.100.2"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-vpn-mtu",
        answer: &["large packets are lost on wg0 (10.1.2.2)", "without an ICMP message"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-server-reverse-path-filter",
        answer: &["the other host drops packets that arrive at s1", "rp_filter = 1"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-announcement-dropped",
        answer: &["does not send the announcement of [2001:db8:2:2::2]:4001", "TCP timestamps"],
        action: Action::RunCommands,
    },
    Report {
        name: "report-nat-both-ends",
        answer: &["announces 172.20.1.2:12345, a private address that this host cannot reach"],
        action: Action::AskOperator("ip mptcp endpoint delete id 1"),
    },
];

/// Diagnoses, runs the printed commands, and diagnoses again. The other host's commands run in the
/// namespace of its `towpath server`.
const SCRIPT: &str = r#"
    report=$("$0" doctor --connect "$TOWPATH_CONNECT")
    printf '%s\n' "$report"
    server=$(pgrep -P $PPID -f '^/proc/self/exe server')
    printf '%s\n' "$report" | sed -n 's/^   fix:  //p' | while read -r command; do
        case "$command" in
        *'# on the other host'*) [ -z "$server" ] || nsenter -t "$server" -n sh -c "$command" ;;
        *) sh -c "$command" ;;
        esac >/dev/null || echo "failed: $command"
    done
    "$0" doctor --connect "${1:-$TOWPATH_CONNECT}" --json
"#;

impl Report {
    fn case(&self) -> &'static FailureCase {
        failures::find(self.name).unwrap()
    }

    /// Runs a script on the client; `$0` is the command.
    fn run(&self, script: &str) -> ProgramOutput {
        let towpath = binary();
        let target = match self.action {
            Action::Connect(target) => target,
            Action::RunCommands | Action::AskOperator(_) => "",
        };
        let command = ["sh", "-c", script, towpath.to_str().unwrap(), target];
        TestDir::new().run(&[&["lab", "failure", self.name, "--"], &command[..]].concat())
    }

    /// Returns the row of the guide's table if the answer is complete and its action cures.
    fn verify(&self) -> Result<String, String> {
        let output = self.run(SCRIPT);
        let problem = |text: &str| format!("{}: {text}: {output}", self.name);
        let answer = Answer::parse(&output.out);
        let cause = self.case().cause;
        if answer.cause.as_deref() != cause {
            return Err(problem("another cause"));
        }
        if let Some(words) = self.answer.iter().find(|words| !answer.sentence.contains(**words)) {
            return Err(problem(&format!("`{words}` is missing")));
        }
        match self.action {
            Action::RunCommands if output.out.contains("\nfailed: ") || answer.fix.is_empty() => {
                return Err(problem("a command fails, or none is printed"));
            }
            Action::AskOperator(command) if !answer.fix.join("; ").contains(command) => {
                return Err(problem("the command is missing"));
            }
            Action::AskOperator(_) => return Ok(answer.row(self)),
            Action::RunCommands | Action::Connect(_) => {}
        }
        let json = output.out.lines().find(|line| line.starts_with('{'));
        let second: Value = serde_json::from_str(json.unwrap_or_default()).unwrap_or_default();
        let findings = second["findings"].as_array();
        let remains = |finding: &Value| Some(finding["cause"].as_str().unwrap()) == cause;
        let is_cured = findings.is_some_and(|findings| !findings.iter().any(remains))
            && second["unused"].as_array().is_none_or(Vec::is_empty);
        if is_cured { Ok(answer.row(self)) } else { Err(problem("the action does not cure")) }
    }

    /// Verifies that an ordinary user gets the same answer.
    fn verify_ordinary_user(&self) -> Result<(), String> {
        let output = self.run("exec unshare --user \"$0\" doctor --connect \"$TOWPATH_CONNECT\"");
        let answer = Answer::parse(&output.out);
        let is_complete = self.answer.iter().all(|words| answer.sentence.contains(words));
        if answer.cause.as_deref() == self.case().cause && is_complete {
            return Ok(());
        }
        Err(format!("{} as an ordinary user: {output}", self.name))
    }
}

/// First finding of a printed report, or the interface that is not used.
#[derive(Default)]
struct Answer {
    cause: Option<String>,
    sentence: String,
    /// Commands of the first finding.
    fix: Vec<String>,
}

impl Answer {
    /// Parses the text of a report, in which long sentences are wrapped.
    fn parse(text: &str) -> Self {
        let (text, _) = text.split_once("\n{").unwrap_or((text, "")); // the second report
        let mut paragraphs = text.split("\n\n");
        let head = paragraphs.next().unwrap_or_default();
        let unwrap = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let unused = head.split_once("unused: ").map(|(_, unused)| unwrap(unused));
        let finding = paragraphs.next().unwrap_or_default();
        let (first, _) = finding.split_once("\n   seen: ").unwrap_or((finding, ""));
        let first = unwrap(first);
        let named = first.strip_suffix(']').and_then(|first| first.rsplit_once(" ["));
        let Some((sentence, cause)) = named else {
            return Self { sentence: unused.unwrap_or_default(), ..Self::default() };
        };
        let fix = finding.lines().filter_map(|line| line.strip_prefix("   fix:  "));
        Self {
            cause: Some(cause.to_owned()),
            sentence: sentence.trim_start_matches("1. ").to_owned(),
            fix: fix.map(str::to_owned).collect(),
        }
    }

    /// Returns the row of the guide's table: report, threads, sentence, and fix.
    fn row(&self, report: &Report) -> String {
        let words = report.case().explanation.split_whitespace();
        let threads: Vec<_> = words
            .map(|word| word.trim_end_matches([',', '.']))
            .filter(|word| word.contains('#'))
            .collect();
        let commands: Vec<_> =
            self.fix.iter().map(|line| line.split("   #").next().unwrap()).collect();
        let is_remote = self.fix.iter().any(|line| line.contains("# on the other host"));
        let fix = match report.action {
            Action::Connect(target) => format!("connect to `{target}`"),
            Action::RunCommands | Action::AskOperator(_) => {
                let place = if is_remote { "on the other host: " } else { "" };
                format!("{place}`{}`", commands.join("`, `"))
            }
        };
        let name = report.name;
        format!("| `{name}` | {} | {} | {fix} |\n", threads.join(", "), self.sentence)
    }
}

/// Verifies all reports, three at a time, as each mostly waits. One that fails must hold alone.
fn verify_all() -> Vec<String> {
    let queue = Mutex::new(REPORTS.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some((index, report)) = queue.lock().unwrap().next() else { return };
                    let row = report.verify_ordinary_user().and_then(|()| report.verify());
                    rows.lock().unwrap().push((index, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|(index, _)| *index);
    let retry = |report: &Report| {
        report.verify_ordinary_user().unwrap();
        report.verify().unwrap_or_else(|problem| panic!("{problem}"))
    };
    rows.into_iter().map(|(index, row)| row.unwrap_or_else(|_| retry(&REPORTS[index]))).collect()
}

/// Returns the recorded table of the guide. With `TOWPATH_UPDATE`, writes `table` there first.
fn recorded_table(table: &str) -> String {
    const MARKS: [&str; 2] = ["<!-- reports: made by a test -->\n", "<!-- end of reports -->"];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/diagnose.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).unwrap();
    let (recorded, after) = rest.split_once(MARKS[1]).unwrap();
    if env::var_os("TOWPATH_UPDATE").is_some() {
        fs::write(&page, [before, MARKS[0], table, MARKS[1], after].concat()).unwrap();
        return table.to_owned();
    }
    recorded.to_owned()
}

#[test]
fn the_doctor_answers_every_report_with_its_first_sentence_and_a_cure() {
    let tools = ["unshare", "nsenter", "ip", "pgrep", "sed", "sysctl"];
    if let Some(reason) = tools.into_iter().find_map(missing) {
        skip("the_doctor_answers_every_report_with_its_first_sentence_and_a_cure", &reason);
        return;
    }
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let mut table = "| report | threads | first sentence | fix |\n|---|---|---|---|\n".to_owned();
    for row in verify_all() {
        write!(table, "{row}").unwrap();
    }
    assert_eq!(recorded_table(&table), table, "run this test with TOWPATH_UPDATE=1");
}

#[test]
fn every_case_of_a_report_is_tested_and_cites_its_thread() {
    let cases = failures::cases().filter(|case| case.name.starts_with("report-"));
    let names: Vec<_> = cases.map(|case| case.name).collect();
    assert_eq!(names, REPORTS.iter().map(|report| report.name).collect::<Vec<_>>());
    for report in &REPORTS {
        let explanation = report.case().explanation;
        let has_thread = explanation.split_whitespace().any(|word| {
            let thread = word.trim_end_matches([',', '.']).split_once('#');
            thread.is_some_and(|(repository, number)| {
                repository.contains('/') && number.parse::<u32>().is_ok()
            })
        });
        assert!(has_thread, "{}: {explanation}", report.name);
    }
}
