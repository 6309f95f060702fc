//! Servers that lie to their clients during an otherwise honest measurement.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::fixture::{AttackedServer, times};
use super::liar::{Liar, Lies, Messages, messages, repeated_message, send};
use crate::processes::signal;
use crate::program::{ProgramOutput, Running, TestDir, binary, wait_for};

/// Timeout for a client whose waits are limited, here to two seconds; the rest is for a busy
/// machine.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout after an interrupt, which ends everything within a second; the rest is for a busy
/// machine.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(4);
/// Upper bound of a client's memory for any input.
const MAX_BYTES: u64 = 512 << 20;
/// Text that controls a terminal, reorders text, and looks like a command, a tag and a path.
const TERMINAL_ESCAPES: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nhint: FORGED\u{9b}31m\u{202e}$(id);`id`<script>/../..";

/// Starts a measurement with a result folder of its own.
fn start_client(folder: &TestDir, port: u16, options: &[&str]) -> Running {
    let (port, out) = (port.to_string(), format!("results-{port}"));
    let base_arguments = ["measure", "127.0.0.1", "-p", &port, "-o", &out];
    let mut arguments = [&base_arguments[..], options].concat();
    for (name, value) in [("--transport", "tcp"), ("--result-timeout", "2"), ("-t", "0.2")] {
        // The number of pings determines the duration.
        let is_bounded_by_count = name == "-t" && options.contains(&"ping");
        if !options.contains(&name) && !is_bounded_by_count {
            arguments.extend([name, value]);
        }
    }
    folder.start(&mut folder.towpath(&arguments))
}

/// Waits for a client's end and checks its memory meanwhile.
fn wait_for_client(mut client: Running, case: &str) -> ProgramOutput {
    let status = format!("/proc/{}/status", client.id());
    let mut peak = 0;
    wait_for(case, || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let kb = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = kb.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kb.unwrap_or(0) << 10);
        client.child.try_wait().unwrap().map(|_| ())
    });
    assert!(peak <= MAX_BYTES, "{case}: {peak} bytes");
    client.wait_at_most(CLIENT_TIMEOUT)
}

/// Checks that a client ended in a documented way and printed no terminal controls.
fn assert_orderly_exit(output: &ProgramOutput, case: &str) {
    assert!(matches!(output.code, Some(0..=2 | 130)), "{case}: {output}");
    assert!(!output.err.contains("panicked"), "{case}: {output}");
    for text in [&output.out, &output.err] {
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{case}: {text:?}");
        let is_forged = |line: &str| line.trim_start().starts_with("hint: FORGED");
        assert!(!text.lines().any(is_forged), "{case}: {output}");
    }
}

/// Checks that each written result can be read.
fn assert_readable(folder: &TestDir, port: u16, case: &str) -> usize {
    let out = folder.work().join(format!("results-{port}"));
    let Ok(entries) = fs::read_dir(&out) else { return 0 };
    let files = entries.map(|entry| entry.unwrap().path());
    let results: Vec<_> = files.filter(|file| file.to_string_lossy().contains(".jsonl")).collect();
    for result in &results {
        let page = format!("report-{port}.html");
        let output = folder.run(&["report", result.to_str().unwrap(), "-o", &page]);
        assert_eq!(output.code, Some(0), "{case}: {output}");
        assert_orderly_exit(&output, case);
    }
    results.len()
}

/// Runs a few cases at the same time.
fn run_in_parallel<T: Sync>(cases: &[T], case: impl Fn(usize, &T) + Sync) {
    for (round, batch) in cases.chunks(4).enumerate() {
        thread::scope(|scope| {
            for (number, input) in batch.iter().enumerate() {
                let case = &case;
                scope.spawn(move || case(round * 4 + number, input));
            }
        });
    }
}

/// Measures through a lying proxy. Checks that the client ends in good order and its result is
/// readable.
fn run_through_liar(
    site: &AttackedServer,
    lies: Lies,
    options: &[&str],
    case: &str,
) -> ProgramOutput {
    let liar = Liar::start_before(&site.port, lies);
    let output = wait_for_client(start_client(&site.folder, liar.port, options), case);
    assert_orderly_exit(&output, case);
    assert!(liar.lies_told() > 0, "{case}: no lie was told: {output}");
    assert_readable(&site.folder, liar.port, case);
    output
}

fn replacing_message(
    name: &'static str,
    reply: impl Fn(&Value) -> Messages + Send + Sync + 'static,
) -> Lies {
    let replace = move |message: &Value| (message["type"] == name).then(|| reply(message));
    Lies { message: Box::new(replace), ..Lies::default() }
}

fn all_messages() -> Vec<Value> {
    vec![
        json!({"type": "welcome", "towpath": env!("CARGO_PKG_VERSION")}),
        json!({"type": "proved", "proof": "07".repeat(32)}),
        json!({"type": "accepted", "token": "07".repeat(16)}),
        json!({"type": "ready"}),
        json!({"type": "clock", "client_ns": 0, "server_ns": 0}),
        json!({"type": "snapshot", "kernel": "x"}),
        json!({"type": "pending"}),
        json!({"type": "part", "offset": 0, "total": 3, "text": "abc"}),
        json!({"type": "refused", "reason": "no", "hint": null}),
        json!({"type": "run", "command": "touch owned"}),
    ]
}

/// C2: every message replaced by every other one.
#[test]
fn unexpected_messages_end_a_measurement_early() {
    let site = AttackedServer::new(&[]);
    let replaced_messages = ["welcome", "accepted", "ready", "clock"];
    let replacements: Vec<_> = replaced_messages
        .into_iter()
        .flat_map(|replaced| all_messages().into_iter().map(move |message| (replaced, message)))
        .filter(|(replaced, message)| message["type"] != *replaced)
        .collect();
    let step = times(7, 1);
    let cases: Vec<_> = replacements.into_iter().step_by(step).collect();
    run_in_parallel(&cases, |_, (replaced, message)| {
        let (lie, case) = (message.clone(), format!("{message} instead of {replaced}"));
        run_through_liar(
            &site,
            replacing_message(replaced, move |_| messages([lie.clone()])),
            &["-q"],
            &case,
        );
    });
    assert!(!site.folder.names().contains(&"owned".to_owned()));
}

/// C2, C5: a clock that stops, runs backwards, or is at the maximum.
#[test]
fn no_clock_of_a_server_confuses_a_measurement() {
    let site = AttackedServer::new(&[]);
    let max_ns = u64::MAX;
    let cases: Vec<(u64, u64)> = vec![
        (0, 0),
        (0, max_ns),
        (1, max_ns),
        (0, max_ns / 2),
        (0, 1 << 63),
        (0, i64::MAX as u64),
        (max_ns, 0),
        (0, 86_400_000_000_000 * 36_500),
    ];
    let case_count = times(3, cases.len());
    run_in_parallel(&cases[..case_count], |_, &(offset_ns, server_ns)| {
        let case = format!("asked at + {offset_ns}, it is {server_ns}");
        let lies = replacing_message("clock", move |message| {
            let client_ns = message["client_ns"].as_u64().unwrap().wrapping_add(offset_ns);
            messages([json!({"type": "clock", "client_ns": client_ns, "server_ns": server_ns})])
        });
        run_through_liar(&site, lies, &["-q"], &case);
    });
}

/// C2, F3: numbers that no clock returns, and JSON that no program writes.
#[test]
fn values_that_are_not_numbers_are_refused() {
    let site = AttackedServer::new(&[]);
    let deep_nesting = "[".repeat(60_000);
    let numbers =
        ["NaN", "-1", "18446744073709551616", "1e999", "\"0\"", "null", "1.5", &deep_nesting];
    let case_count = times(4, numbers.len());
    run_in_parallel(&numbers[numbers.len() - case_count..], |_, number| {
        let message = format!("{{\"type\":\"clock\",\"client_ns\":0,\"server_ns\":{number}}}");
        let case = &message[..message.len().min(80)];
        let reply = message.clone();
        let lies = replacing_message("clock", move |_| Box::new(std::iter::once(reply.clone())));
        let output = run_through_liar(&site, lies, &["-q"], case);
        assert_eq!(output.code, Some(2), "{case}: {output}");
        assert!(output.err.len() < 4_000, "{case}: {} bytes are said", output.err.len());
    });
}

/// C2, C3: endless messages instead of a reply count as no progress, and an interrupt works.
#[test]
fn a_flood_of_messages_is_not_progress_and_uses_no_memory() {
    let site = AttackedServer::new(&[]);
    let clock = json!({"type": "clock", "client_ns": 0, "server_ns": 0});
    let pending = json!({"type": "pending"});
    let messages = [("ready", clock), ("part", pending), ("clock", json!({"type": "ready"}))];
    let mut cases = Vec::new();
    for (replaced, message) in messages {
        cases.extend([(replaced, message.clone(), false), (replaced, message, true)]);
    }
    cases.swap(1, 3);
    run_in_parallel(&cases[..times(2, 6)], |_, (replaced, message, is_interrupted)| {
        let case = format!("{message} always instead of {replaced}");
        let lie = message.clone();
        let liar = Liar::start_before(
            &site.port,
            replacing_message(replaced, move |_| repeated_message(&lie)),
        );
        let client = start_client(&site.folder, liar.port, &["-q"]);
        let start = wait_for(&case, || (liar.lies_told() > 0).then(Instant::now));
        if *is_interrupted {
            signal("INT", client.id().into());
        }
        let output = wait_for_client(client, &case);
        assert_orderly_exit(&output, &case);
        assert!(!is_interrupted || start.elapsed() < INTERRUPT_TIMEOUT, "{case}: {output}");
        assert_readable(&site.folder, liar.port, &case);
    });
}

/// Random numbers from a fixed seed, so that each case is the same in every run.
struct CaseRng(u64);

impl CaseRng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// Calls `change` for each value that is neither a list nor an object.
fn each_leaf(value: &mut Value, change: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|child| each_leaf(child, change)),
        Value::Object(fields) => fields.values_mut().for_each(|child| each_leaf(child, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => change(value),
    }
}

fn parse_lines(report: &str) -> Vec<Value> {
    report.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines_to_text(lines: &[Value]) -> String {
    lines.iter().flat_map(|line| [line.to_string(), "\n".to_owned()]).collect()
}

/// C4, C5: impossible numbers in a report, one or all of a kind at once.
#[test]
fn extreme_numbers_in_a_server_report_are_checked_and_harmless() {
    let site = AttackedServer::new(&[]);
    let extremes = [
        json!(u64::MAX),
        json!(u64::MAX - 1),
        json!(i64::MAX),
        json!(1_u64 << 53),
        json!(u32::MAX),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(-1e308),
    ];
    let cases: Vec<_> = (0..times(4, 64)).collect();
    let patterns: [&[&str]; 4] = [&[], &["-R"], &["ping", "--set", "count=3"], &["--bidir"]];
    run_in_parallel(&cases, |number, &case| {
        let extremes = extremes.clone();
        let lie = move |entry: &str| {
            let (mut lines, mut rng) = (parse_lines(entry), CaseRng(case as u64));
            rng.below(1);
            let extreme = extremes[rng.below(extremes.len())].clone();
            let interval = [1, 3, 20][rng.below(3)];
            for line in &mut lines {
                each_leaf(line, &mut |leaf| {
                    if leaf.is_number() && rng.below(interval) == 0 {
                        *leaf = extreme.clone();
                    }
                });
            }
            lines_to_text(&lines)
        };
        let lies = Lies { report: Box::new(lie), ..Lies::default() };
        let options = [&["-b", "8M"], patterns[number % patterns.len()]].concat();
        run_through_liar(&site, lies, &options, &format!("numbers of case {case}"));
    });
}

/// Changes a report to contradict itself in one way.
fn contradict(report: &str, case: usize) -> String {
    let mut lines = parse_lines(report);
    let copies = lines.clone();
    match case {
        // Everything twice, and in reverse.
        0 => lines.extend(copies),
        1 => lines.reverse(),
        // The report's items or its sums are missing.
        2 => lines.retain(|line| line.get("flow").is_none()),
        3 => lines.retain(|line| line.get("flow").is_some()),
        4 => lines.clear(),
        // Flows, streams and subflows that never existed.
        5..=7 => {
            let field = ["flow", "stream", "subflow"][case - 5];
            for (number, line) in lines.iter_mut().enumerate() {
                let Some(kind) = line.as_object_mut().and_then(|line| line.values_mut().next())
                else {
                    continue;
                };
                if let Some(number_field) = kind.get_mut(field) {
                    *number_field = json!(u32::MAX - number as u32);
                }
            }
        }
        // A thousand subflows with the same addresses.
        8 => {
            let subflow = copies.into_iter().find(|line| line.get("subflow").is_some());
            lines.extend(subflow.into_iter().flat_map(|line| vec![line; 1_000]));
        }
        // A time that runs backwards.
        _ => {
            let mut time = u64::MAX / 2;
            for line in &mut lines {
                if let Some(time_field) = line.pointer_mut("/record/t_ns") {
                    *time_field = json!(time);
                    time -= 1_000_000_000;
                }
            }
            let counter = json!({"record": {"type": "counter", "host": "client",
                "name": "MPTcpExt.MPJoinAckRx", "before": u64::MAX, "after": 0}});
            lines.push(counter);
        }
    }
    lines_to_text(&lines)
}

/// C5, F3: reports that contradict themselves or the client's own report.
#[test]
fn an_inconsistent_server_report_still_gives_a_result() {
    let site = AttackedServer::new(&[]);
    let cases: Vec<_> = (0..10).collect();
    let step = times(3, 1);
    let cases: Vec<_> = cases.into_iter().step_by(step).collect();
    run_in_parallel(&cases, |_, case| {
        let case = *case;
        let lies = Lies { report: Box::new(move |half| contradict(half, case)), ..Lies::default() };
        run_through_liar(&site, lies, &["-b", "8M", "-R"], &format!("contradiction {case}"));
    });
}

/// C5, F4: every text of a report, a welcome and a refusal.
#[test]
fn no_text_of_a_server_controls_the_terminal() {
    let site = AttackedServer::new(&[]);
    let forge_texts = |entry: &str| {
        let mut lines = parse_lines(entry);
        let mut host = lines.remove(0);
        let fields = host["host"].as_object_mut().unwrap();
        fields["warnings"] = json!([TERMINAL_ESCAPES, TERMINAL_ESCAPES]);
        fields["conditions"] =
            json!({ TERMINAL_ESCAPES: TERMINAL_ESCAPES, "tls\u{1b}[2J": TERMINAL_ESCAPES });
        lines.insert(0, host);
        for line in &mut lines {
            for (kind, field) in [("flow", "failure"), ("connection", "reason")] {
                if let Some(object) = line.get_mut(kind).and_then(Value::as_object_mut) {
                    object.insert(field.to_owned(), json!(TERMINAL_ESCAPES));
                }
            }
            if let Some(object) = line.get_mut("subflow").and_then(Value::as_object_mut) {
                for field in ["path", "congestion_control", "local", "remote"] {
                    object.insert(field.to_owned(), json!(TERMINAL_ESCAPES));
                }
            }
        }
        lines.push(json!({"record": {"type": "event", "t_ns": 1, "kind": "timeline",
            "text": TERMINAL_ESCAPES}}));
        lines_to_text(&lines)
    };
    let lies = Lies { report: Box::new(forge_texts), ..Lies::default() };
    let output = run_through_liar(&site, lies, &["-b", "8M"], "texts of a half");
    // The texts are printed as quotes of the server.
    assert!(output.err.contains("$(id)") || output.out.contains("$(id)"), "{output}");
    let welcome = || {
        replacing_message("welcome", |_| {
            messages([json!({"type": "welcome", "towpath": TERMINAL_ESCAPES.repeat(9)})])
        })
    };
    run_through_liar(&site, welcome(), &[], "a version");
    let refusal = json!({"type": "refused", "reason": TERMINAL_ESCAPES.repeat(99), "hint": TERMINAL_ESCAPES.repeat(99)});
    run_through_liar(
        &site,
        replacing_message("accepted", move |_| messages([refusal.clone()])),
        &[],
        "a refusal",
    );
    // Unknown messages and kinds are also printed.
    let unknown_message = json!({"type": TERMINAL_ESCAPES, TERMINAL_ESCAPES: TERMINAL_ESCAPES});
    let output = run_through_liar(
        &site,
        replacing_message("clock", move |_| messages([unknown_message.clone()])),
        &[],
        "a word",
    );
    assert_eq!(output.code, Some(2), "{output}");
    for json in ["--json", "-q"] {
        let lies = Lies { report: Box::new(forge_texts), ..Lies::default() };
        run_through_liar(&site, lies, &["-b", "8M", json], "texts of a half");
    }
}

/// C2, C4: parts that overlap, shrink, end before they begin, or split characters.
#[test]
fn mismatched_parts_do_not_form_a_server_report() {
    let site = AttackedServer::new(&[]);
    let part = |offset: u64, total: u64, text: &str| json!({"type": "part", "offset": offset, "total": total, "text": text});
    let cases = [
        vec![part(0, 6, "abc"), part(0, 6, "abc"), part(3, 6, "def")],
        vec![part(0, 100, "abc"), part(3, 3, "def")],
        vec![part(0, 3, "abcdef")],
        vec![part(u64::MAX, 1, "a"), part(u64::MAX, u64::MAX, "a")],
        vec![part(0, 0, ""), part(0, 0, "abc")],
        vec![part(0, 4, "ä"), part(1, 4, "ä"), part(2, 4, "ä")],
        vec![part(0, 1 << 28, "abc")],
        vec![part(0, 3, "\u{0}\n\n"), part(0, 3, "{}\n")],
    ];
    let case_count = times(4, cases.len());
    run_in_parallel(&cases[..case_count], |_, parts| {
        let (reply, case) = (parts.clone(), format!("{parts:?}"));
        let output = run_through_liar(
            &site,
            replacing_message("part", move |_| messages(reply.clone())),
            &["-q"],
            &case,
        );
        assert_eq!(output.code, Some(1), "{case}: {output}");
    });
}

/// C3, C4: a report that grows as fast as it arrives is progress, but an interrupt must still work.
#[test]
fn an_endless_server_report_is_interruptible_and_bounded() {
    let site = AttackedServer::new(&[]);
    let text = "{\"record\":{\"type\":\"counter\",\"host\":\"\",\"name\":\"\",\"before\":0,\"after\":1}}\n";
    let text = text.repeat(100);
    let lies = move |_: &Value| -> Messages {
        let text = text.clone();
        Box::new((0_u64..).map(move |number| {
            let offset = number * text.len() as u64;
            let total = offset + 2 * text.len() as u64;
            json!({"type": "part", "offset": offset, "total": total, "text": text}).to_string()
        }))
    };
    let liar = Liar::start_before(&site.port, replacing_message("part", lies));
    let client = start_client(&site.folder, liar.port, &["-q", "--result-timeout", "60"]);
    wait_for("the parts", || (liar.lies_told() > 0).then_some(()));
    signal("INT", client.id().into());
    let start = Instant::now();
    let output = wait_for_client(client, "the end");
    assert!(start.elapsed() < INTERRUPT_TIMEOUT, "{:?}: {output}", start.elapsed());
    assert_orderly_exit(&output, "an endless half");
    // Earlier measurements are kept.
    assert_eq!(assert_readable(&site.folder, liar.port, "an endless half"), 1, "{output}");
}

/// C2, C4: unrequested data, or data with impossible headers.
#[test]
fn unexpected_data_does_not_crash_the_client() {
    let site = AttackedServer::new(&[]);
    let flood: fn() -> Lies = || Lies { before_data: vec![b'Q'; 32 << 20], ..Lies::default() };
    let lengths: fn() -> Lies =
        || Lies { data: Box::new(|data| vec![0xff; data.len()]), ..Lies::default() };
    let zeros: fn() -> Lies =
        || Lies { data: Box::new(|data| vec![0; data.len()]), ..Lies::default() };
    let closed: fn() -> Lies = || Lies { data: Box::new(|_| Vec::new()), ..Lies::default() };
    let twice: fn() -> Lies = || Lies { data: Box::new(|data| data.repeat(3)), ..Lies::default() };
    let cases = [
        ("lengths", lengths, "ping"),
        ("flood", flood, "reqres"),
        ("twice", twice, "ping"),
        ("zeros", zeros, "interactive"),
        ("closed", closed, "ping"),
        ("lengths", lengths, "web"),
        ("flood", flood, "iperf"),
        ("flood", flood, "ping"),
        ("lengths", lengths, "video"),
        ("zeros", zeros, "reqres"),
    ];
    let case_count = times(3, cases.len());
    run_in_parallel(&cases[..case_count], |_, (name, lies, pattern)| {
        let case = format!("{name}, {pattern}");
        let options: &[&str] = if *pattern == "ping" {
            &["ping", "--set", "count=3"]
        } else {
            &[pattern, "-t", "0.5"]
        };
        run_through_liar(&site, lies(), &[options, &["-q"]].concat(), &case);
    });
}

/// C5: replies to datagrams that were never sent or have a future time.
#[test]
fn unsolicited_datagram_replies_are_not_counted() {
    let site = AttackedServer::new(&[]);
    let forge_replies = |answer: &[u8]| {
        let mut replies = vec![answer.to_vec(); 50];
        for (number, reply) in replies.iter_mut().enumerate() {
            match number % 4 {
                // A duplicate.
                0 => {}
                // Another number, another time, another test.
                1 => reply[20..24].copy_from_slice(&u32::MAX.to_be_bytes()),
                2 => reply[24..32].copy_from_slice(&u64::MAX.to_be_bytes()),
                _ => reply[4] ^= 1,
            }
        }
        replies
    };
    let lies = Lies { datagram: Box::new(forge_replies), ..Lies::default() };
    let liar = Liar::start_before(&site.port, lies);
    let options = ["udping", "--set", "period=20ms", "-t", "0.6", "--json"];
    let output = wait_for_client(start_client(&site.folder, liar.port, &options), "datagrams");
    assert_orderly_exit(&output, "datagrams");
    assert!(liar.lies_told() > 3, "{} lies: {output}", liar.lies_told());
    assert_eq!(assert_readable(&site.folder, liar.port, "datagrams"), 1, "{output}");
    let result = site.folder.stored(&format!("results-{}/live-tcp-1.jsonl.zst", liar.port));
    let summary = serde_json::to_value(result.summary.unwrap()).unwrap();
    let mut numbers = Vec::new();
    collect_numbers(&summary, "", &mut numbers);
    // No reply took longer than the measurement, and replies do not outnumber requests.
    let is_duration = |name: &str| name.contains("/round_trip/") || name.contains("/delay/");
    let durations: Vec<_> = numbers.iter().filter(|(name, _)| is_duration(name)).collect();
    assert!(!durations.is_empty(), "{summary}");
    assert!(durations.iter().all(|(_, number)| (0.0..60e9).contains(number)), "{summary}");
    let find = |name: &str| {
        numbers.iter().find(|(full_name, _)| full_name.ends_with(name)).map(|(_, number)| *number)
    };
    let (sent, answered) = (find("/sent").unwrap(), find("/answered").unwrap());
    assert!(answered <= sent, "{answered} of {sent}: {summary}");
}

fn collect_numbers(value: &Value, name: &str, numbers: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(field, child)| collect_numbers(child, &format!("{name}/{field}"), numbers)),
        Value::Array(list) => list.iter().for_each(|child| collect_numbers(child, name, numbers)),
        Value::Number(number) => numbers.push((name.to_owned(), number.as_f64().unwrap())),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// C2: a client does not repeat its request endlessly to a server that refuses.
#[test]
fn many_refusals_are_reported_as_a_refusal() {
    let site = AttackedServer::new(&[]);
    for (replaced, reason) in
        [("welcome", "busy"), ("accepted", "busy: 16 tests"), ("ready", "busy")]
    {
        let refusal = json!({"type": "refused", "reason": reason, "hint": "come again in 1 s"});
        let reply = refusal.clone();
        let lies = replacing_message(replaced, move |_| messages(vec![reply.clone(); 5_000]));
        let liar = Liar::start_before(&site.port, lies);
        let options = ["-q", "--repeat", "3", "--wait", "0.01"];
        let output = wait_for_client(start_client(&site.folder, liar.port, &options), reason);
        assert_orderly_exit(&output, reason);
        assert_eq!(output.code, Some(2), "{replaced}: {output}");
        assert!(output.err.contains("busy"), "{replaced}: {output}");
        assert!(
            (1..100).contains(&liar.accepted_connections()),
            "{replaced}: {} connections",
            liar.accepted_connections()
        );
    }
}

/// Relays the first connections to one server and all others to another.
fn switching_proxy(
    first_server: u16,
    max_first: usize,
    later_server: u16,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let thread_connections = Arc::clone(&connections);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let number = thread_connections.fetch_add(1, Ordering::Relaxed);
            let target = if number < max_first { first_server } else { later_server };
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
            let relay = |mut source: TcpStream, mut target: TcpStream| {
                thread::spawn(move || {
                    let _ = io::copy(&mut source, &mut target); // the peer may be gone
                    let _ = target.shutdown(std::net::Shutdown::Both);
                });
            };
            relay(client.try_clone().unwrap(), server.try_clone().unwrap());
            relay(server, client);
        }
    });
    (port, connections)
}

/// Returns the fingerprint of a server's certificate.
fn fingerprint(site: &AttackedServer) -> String {
    wait_for("the certificate", || {
        let said = site.running.stderr();
        Some(said.split_once("certificate sha256:")?.1.split_once('\n')?.0.to_owned())
    })
}

/// C1: another certificate on the second or third connection.
#[test]
fn a_certificate_change_between_connections_is_detected() {
    let (expected, other_server) = (AttackedServer::new(&[]), AttackedServer::new(&[]));
    let fingerprint_of_server = fingerprint(&expected);
    assert_ne!(fingerprint_of_server, fingerprint(&other_server));
    for max_first in 1..=2 {
        let ports = [&expected, &other_server].map(|site| site.port.parse().unwrap());
        let (port, connections) = switching_proxy(ports[0], max_first, ports[1]);
        let options = ["-q", "-P", "2", "--server-cert", &fingerprint_of_server];
        let case = format!("another after {max_first}");
        let output = wait_for_client(start_client(&expected.folder, port, &options), &case);
        assert_orderly_exit(&output, &case);
        assert!(connections.load(Ordering::Relaxed) > max_first, "{case}: {output}");
        assert!(matches!(output.code, Some(1 | 2)), "{case}: {output}");
        assert_readable(&expected.folder, port, &case);
    }
    // The other server never received a test.
    assert!(
        !other_server.running.stderr().contains("measures"),
        "{}",
        other_server.running.stderr()
    );
}

/// C1, C2: over QUIC, datagrams that are spoofed, damaged, or from another server.
#[test]
fn quic_ignores_spoofed_packets_and_times_out() {
    let (expected, other_server) = (AttackedServer::new(&[]), AttackedServer::new(&[]));
    let expected_fingerprint = fingerprint(&expected);
    let cases = ["other", "broken", "silent"];
    run_in_parallel(&cases[..times(1, 3)], |_, case| {
        let target = if *case == "other" { &other_server } else { &expected };
        let is_broken = *case == "broken";
        let is_silent = *case == "silent";
        let datagram = move |reply: &[u8]| {
            let mut reply = reply.to_vec();
            if is_broken && let Some(place) = reply.len().checked_sub(9) {
                reply[place] ^= 1;
            }
            if is_silent { Vec::new() } else { vec![reply.clone(), reply] }
        };
        let liar = Liar::start_before(
            &target.port,
            Lies { datagram: Box::new(datagram), ..Lies::default() },
        );
        let options = ["-q", "--transport", "quic", "--server-cert", &expected_fingerprint];
        let output = wait_for_client(start_client(&expected.folder, liar.port, &options), case);
        assert_orderly_exit(&output, case);
        assert_eq!(output.code, Some(2), "{case}: {output}");
        assert!(liar.lies_told() > 0, "{case}");
    });
    let silent_server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent_server.local_addr().unwrap().port();
    let client = start_client(&expected.folder, port, &["-q", "--transport", "mpquic"]);
    silent_server.recv_from(&mut [0; 2_000]).unwrap();
    signal("INT", client.id().into());
    let start = Instant::now();
    let output = wait_for_client(client, "an interrupt of a handshake");
    assert!(start.elapsed() < INTERRUPT_TIMEOUT, "{output}");
    assert!(matches!(output.code, Some(130 | 2)), "{output}");
}

/// Relays TLS until a number of bytes came from the server, then ends or damages the stream.
fn damaging_proxy(server: u16, intact_bytes: usize, corrupts: bool) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let damage_count = Arc::new(AtomicUsize::new(0));
    let thread_damage_count = Arc::clone(&damage_count);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let thread_damage_count = Arc::clone(&thread_damage_count);
            thread::spawn(move || -> io::Result<()> {
                let mut server = TcpStream::connect(("127.0.0.1", server))?;
                let (mut server_writer, mut client_reader) =
                    (server.try_clone()?, client.try_clone()?);
                thread::spawn(move || io::copy(&mut client_reader, &mut server_writer));
                let mut bytes_left = intact_bytes;
                let mut buffer = [0; 16_384];
                loop {
                    let length = server.read(&mut buffer)?;
                    if length == 0 {
                        return client.shutdown(std::net::Shutdown::Both);
                    }
                    let is_damaged = bytes_left < length;
                    if is_damaged {
                        thread_damage_count.fetch_add(1, Ordering::Relaxed);
                        buffer[bytes_left] ^= 0x40;
                    }
                    let length_to_send = if is_damaged && !corrupts { bytes_left } else { length };
                    client.write_all(&buffer[..length_to_send])?;
                    if is_damaged && !corrupts {
                        return client.shutdown(std::net::Shutdown::Both);
                    }
                    bytes_left = if is_damaged { usize::MAX } else { bytes_left - length };
                }
            });
        }
    });
    (port, damage_count)
}

/// C1, C2: a truncated certificate, and one with a flipped bit.
#[test]
fn a_partial_or_damaged_handshake_is_refused() {
    let site = AttackedServer::new(&[]);
    let expected_fingerprint = fingerprint(&site);
    let server = site.port.parse().unwrap();
    let byte_counts = [1, 5, 60, 130, 300, 500, 700];
    let cases: Vec<_> = byte_counts
        .iter()
        .flat_map(|byte_count| [(*byte_count, true), (*byte_count, false)])
        .collect();
    let cases: Vec<_> = cases.into_iter().step_by(times(4, 1)).collect();
    run_in_parallel(&cases, |_, &(intact_bytes, corrupts)| {
        let case =
            format!("{} after {intact_bytes} bytes", if corrupts { "broken" } else { "cut" });
        let (port, damage_count) = damaging_proxy(server, intact_bytes, corrupts);
        let output = wait_for_client(
            start_client(&site.folder, port, &["-q", "--server-cert", &expected_fingerprint]),
            &case,
        );
        assert_orderly_exit(&output, &case);
        assert_eq!(output.code, Some(2), "{case}: {output}");
        assert!(damage_count.load(Ordering::Relaxed) > 0, "{case}");
    });
    assert!(!site.running.stderr().contains("measures"), "{}", site.running.stderr());
}

/// C5: no reply redirects a client to another host.
#[test]
fn a_client_follows_no_redirect() {
    let folder = TestDir::new();
    let redirect_target = TcpListener::bind("127.0.0.1:0").unwrap();
    redirect_target.set_nonblocking(true).unwrap();
    let port = redirect_target.local_addr().unwrap().port();
    let target_address = format!("127.0.0.1:{port}");
    let http = format!(
        "HTTP/1.1 301 Moved Permanently\r\nLocation: http://{target_address}/\r\nAlt-Svc: h3=\":{port}\"\r\n\r\n"
    );
    let redirects = [
        json!({"type": "refused", "reason": format!("moved to {target_address}"), "hint": format!("--server {target_address}")}),
        json!({"type": "welcome", "towpath": "9.9.9", "server": target_address, "redirect": target_address, "location": target_address}),
        json!({"type": "redirect", "to": target_address}),
    ];
    let redirect_bytes = redirects.iter().map(|message| {
        let text = message.to_string();
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    });
    let redirect_bytes: Vec<_> = redirect_bytes.chain([http.into_bytes()]).collect();
    let cases: Vec<_> = redirect_bytes
        .iter()
        .flat_map(|answer| (0..3).map(move |command| (answer, command)))
        .collect();
    let cases: Vec<_> = cases.into_iter().rev().step_by(times(4, 1)).collect();
    run_in_parallel(&cases, |_, (answer, command)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reply = (*answer).clone();
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let _ = client.read(&mut [0; 1_024]); // the peer may be gone
                let _ = client.write_all(&reply);
            }
        });
        let (address, port) = (address.to_string(), address.port().to_string());
        let commands: [&[&str]; 3] = [
            &["measure", "127.0.0.1", "-p", &port, "--transport", "tcp", "-t", "0.2", "-q"],
            &["check", "127.0.0.1", "-p", &port],
            &["doctor", "--peer", &address],
        ];
        let case = String::from_utf8_lossy(answer).into_owned();
        let output = wait_for_client(folder.start(&mut folder.towpath(commands[*command])), &case);
        assert_orderly_exit(&output, &case);
        assert!(matches!(output.code, Some(0..=2)), "{output}");
    });
    let accepted = redirect_target.accept();
    assert!(accepted.is_err(), "{accepted:?}");
}

/// Returns snapshots in which a hostile server describes its host.
fn hostile_snapshots() -> Vec<Value> {
    let link = |index: i64, name: &str| {
        json!({"index": index, "name": name, "up": true, "running": true, "loopback": false,
        "mtu_bytes": u32::MAX, "rx_bytes": u64::MAX, "tx_bytes": u64::MAX, "rp_filter": 255,
        "arp_ignore": 255, "arp_announce": 255})
    };
    let full_snapshot = json!({"type": "snapshot", "kernel": TERMINAL_ESCAPES, "socket_errno": i32::MIN,
        "settings": {"mptcp.enabled": "0", "mptcp.pm_type": TERMINAL_ESCAPES, TERMINAL_ESCAPES: TERMINAL_ESCAPES,
            "mptcp.stale_loss_cnt": "99999999999999999999", "ipv4.conf.all.rp_filter": "1"},
        "counters": {"MPTcpExt.MPJoinSynTx": u64::MAX, "MPTcpExt.MPJoinAckRx": 0, TERMINAL_ESCAPES: 1},
        "links": [link(1, TERMINAL_ESCAPES), link(1, "eth0; touch owned"), link(2, "../../owned")],
        "addresses": [{"link": 1, "address": "127.0.0.9", "prefix_length": 255},
            {"link": 7, "address": "::ffff:127.0.0.1", "prefix_length": 0}],
        "endpoints": [{"id": 255, "address": "127.0.0.9", "port": 1, "link": 1, "flags": u32::MAX},
            {"id": 255, "address": "0.0.0.0", "flags": 0}],
        "limits": {"subflows": u32::MAX, "add_addr_accepted": u32::MAX},
        "listener": {"plain": true, "multipath": false},
        "connections": [{"local": "127.0.0.1:1", "remote": "127.0.0.1:1", "multipath": true,
            "subflows": [{"local": "[::1]:0", "remote": "127.0.0.1:0", "established": false,
                "backup": true, "bytes_acked": u64::MAX, "bytes_received": 0}]}]});
    let mut many_links = full_snapshot.clone();
    many_links["links"] = (0..300).map(|index| link(index, "\u{1b}[2J")).collect();
    let mut no_limits = full_snapshot.clone();
    no_limits["limits"] = json!({"subflows": 0, "add_addr_accepted": 0});
    no_limits["links"] = json!([]);
    let mut negative_errno = full_snapshot.clone();
    negative_errno["socket_errno"] = json!(-1e300);
    vec![full_snapshot, many_links, no_limits, negative_errno]
}

/// C5, F4, R6: a host's own description, with names that a shell, a terminal or a path would
/// interpret.
#[test]
fn a_diagnosis_survives_hostile_host_reports() {
    let site = AttackedServer::new(&["--public-diagnostics"]);
    let snapshots = hostile_snapshots();
    let mut cases = Vec::new();
    for snapshot in snapshots.iter().take(times(1, 9)) {
        for options in [&["--json"][..], &[]] {
            for option in ["--peer", "--connect"] {
                cases.push((snapshot.clone(), options, option));
            }
        }
    }
    run_in_parallel(&cases, |_, (snapshot, options, option)| {
        let reply = snapshot.clone();
        let liar = Liar::start_before(
            &site.port,
            replacing_message("snapshot", move |_| messages([reply.clone()])),
        );
        let address = format!("127.0.0.1:{}", liar.port);
        let arguments = [&["doctor", *option, &address], *options].concat();
        let output =
            wait_for_client(site.folder.start(&mut site.folder.towpath(&arguments)), option);
        assert_orderly_exit(&output, option);
        assert!(matches!(output.code, Some(0 | 1)), "{output}");
        assert!(liar.lies_told() > 0, "{output}");
        if !options.is_empty() {
            assert_eq!(output.json().len(), 1, "{output}");
        }
        // Lines to paste contain no name that a shell would interpret.
        let fix_lines = output.out.lines().filter(|line| line.trim_start().starts_with("fix:"));
        for line in fix_lines {
            assert!(!line.contains("touch owned") && !line.contains("$(id)"), "{line}: {output}");
        }
    });
    let names = site.folder.names();
    assert!(!names.iter().any(|name| name.contains("owned")), "{names:?}");
}

/// Sends a welcome byte by byte. Returns the number of connections.
fn slow_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let thread_connections = Arc::clone(&connections);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            thread_connections.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || -> io::Result<()> {
                client.write_all(&60_000_u32.to_be_bytes())?;
                loop {
                    client.write_all(b" ")?;
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    (port, connections)
}

/// C3: all waits of `check`, `doctor` and the choice of a server.
#[test]
fn an_interrupt_ends_every_request_to_a_server() {
    let folder = TestDir::new();
    let (port, connections) = slow_server();
    let (address, port) = (format!("127.0.0.1:{port}"), port.to_string());
    folder.write("servers.txt", format!("{address}\n"));
    let measure_auto =
        ["measure", "--server", "auto", "--servers", "servers.txt", "--transport", "tcp"];
    let commands: [&[&str]; 4] = [
        &["check", "127.0.0.1", "-p", &port],
        &["doctor", "--connect", &address],
        &["doctor", "--peer", &address],
        &measure_auto,
    ];
    for command in commands {
        let connections_before = connections.load(Ordering::Relaxed);
        // A shell starts background processes with SIGINT ignored.
        let mut program = folder.program("env");
        program.arg("--default-signal=INT").arg(binary()).args(command);
        let client = folder.start(&mut program);
        wait_for("a question", || {
            (connections.load(Ordering::Relaxed) > connections_before).then_some(())
        });
        signal("INT", client.id().into());
        let start = Instant::now();
        let output = wait_for_client(client, "an interrupt");
        let elapsed = start.elapsed();
        assert!(elapsed < INTERRUPT_TIMEOUT, "{command:?}: {elapsed:?}: {output}");
        // The signal itself may end a command that has nothing to store.
        assert!(matches!(output.code, Some(130) | None), "{command:?}: {output}");
        assert!(!output.err.contains("panicked"), "{command:?}: {output}");
    }
}

/// C3: stalled data, in either direction.
#[test]
fn an_interrupt_ends_stalled_traffic() {
    let site = AttackedServer::new(&[]);
    let duration_options = ["-t", "30"];
    let cases: [&[&str]; 4] = [&["-R"], &["ping", "--set", "count=999"], &["reqres"], &[]];
    let case_count = times(2, cases.len());
    run_in_parallel(&cases[..case_count], |_, options| {
        // The server's data stays in flight.
        let stall = |_: &[u8]| {
            thread::sleep(Duration::from_secs(20));
            Vec::new()
        };
        let clock_count = Arc::new(AtomicUsize::new(0));
        let thread_clock_count = Arc::clone(&clock_count);
        let count_clocks = move |message: &Value| {
            thread_clock_count
                .fetch_add(usize::from(message["type"] == "clock"), Ordering::Relaxed);
            None
        };
        let lies =
            Lies { data: Box::new(stall), message: Box::new(count_clocks), ..Lies::default() };
        let liar = Liar::start_before(&site.port, lies);
        let time: &[&str] = if options.contains(&"ping") { &[] } else { &duration_options };
        let options = [*options, time, &["--result-timeout", "30"]].concat();
        let client = start_client(&site.folder, liar.port, &options);
        wait_for("the traffic", || (clock_count.load(Ordering::Relaxed) >= 12).then_some(()));
        signal("INT", client.id().into());
        let start = Instant::now();
        let output = wait_for_client(client, "an interrupt");
        assert!(
            start.elapsed() < INTERRUPT_TIMEOUT,
            "{options:?}: {:?}: {output}",
            start.elapsed()
        );
        assert_orderly_exit(&output, "an interrupt");
        assert_eq!(output.code, Some(130), "{options:?}: {output}");
        assert_readable(&site.folder, liar.port, "an interrupt");
    });
}

/// C2: frames longer than the limit, and empty ones, in sequence.
#[test]
fn reading_a_frame_of_any_length_terminates() {
    let folder = TestDir::new();
    let lengths: [u32; 4] = [0, 65_537, u32::MAX, 65_536];
    run_in_parallel(&lengths, |_, length| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (length, frame_count) = (*length, Arc::new(AtomicUsize::new(0)));
        let thread_frame_count = Arc::clone(&frame_count);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let thread_frame_count = Arc::clone(&thread_frame_count);
                thread::spawn(move || -> io::Result<()> {
                    // Whitespace is valid in JSON.
                    let content = vec![b' '; (length as usize).min(65_536)];
                    loop {
                        client.write_all(&length.to_be_bytes())?;
                        client.write_all(&content)?;
                        thread_frame_count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let case = format!("frames of {length} bytes");
        let output = wait_for_client(start_client(&folder, port, &["-q"]), &case);
        assert_orderly_exit(&output, &case);
        assert_eq!(output.code, Some(2), "{case}: {output}");
        assert!(frame_count.load(Ordering::Relaxed) > 0, "{case}");
    });
}

/// C3, C5: a host that cannot store a result reports it and still prints the measurements.
#[test]
fn a_client_reports_that_it_cannot_write() {
    let site = AttackedServer::new(&[]);
    let port: u16 = site.port.parse().unwrap();
    site.folder.write("file", "");
    let port_text = port.to_string();
    for out in ["file/results", "/proc/results", "/dev/full"] {
        let base_arguments =
            ["measure", "127.0.0.1", "-p", &port_text, "-o", out, "-t", "0.2", "-q"];
        let options = ["--transport", "tcp", "--json"];
        let output = site.folder.run(&[&base_arguments[..], &options].concat());
        assert_orderly_exit(&output, out);
        assert!(matches!(output.code, Some(1 | 2)), "{out}: {output}");
        assert!(output.err.contains("error: "), "{out}: {output}");
    }
    let script = "exec \"$0\" \"$@\" >/dev/full";
    let mut command = site.folder.program("sh");
    command.args(["-c", script]).arg(binary());
    command.args(["measure", "127.0.0.1", "-p", &port_text, "-o", "results", "-t", "0.2", "-q"]);
    command.args(["--transport", "tcp"]);
    let output = site.folder.start(&mut command).wait();
    assert_orderly_exit(&output, "a full standard output");
    assert_ne!(output.code, Some(0), "{output}");
    let stored = site.folder.stored("results/live-tcp-1.jsonl.zst");
    assert!(stored.summary.is_some());
    site.wait_until_idle();
}

/// C5: extra messages between the replies do not change the client's next step.
#[test]
fn messages_of_another_connection_are_not_accepted_as_replies() {
    let site = AttackedServer::new(&[]);
    // A ready, a part and a pending before each reply.
    let prepend_messages = |message: &Value| -> Option<Messages> {
        let name = message["type"].as_str().unwrap_or_default();
        if !matches!(name, "accepted" | "clock" | "welcome") {
            return None;
        }
        let part = json!({"type": "part", "offset": 0, "total": 3, "text": "{}\n"});
        Some(messages([
            json!({"type": "ready"}),
            part,
            json!({"type": "pending"}),
            message.clone(),
        ]))
    };
    let lies = Lies { message: Box::new(prepend_messages), ..Lies::default() };
    run_through_liar(&site, lies, &["-q"], "words before each answer");
    let mut stream = TcpStream::connect(("127.0.0.1", site.port.parse::<u16>().unwrap())).unwrap();
    // The server closes a connection that sends a server's message.
    stream.set_read_timeout(Some(CLIENT_TIMEOUT)).unwrap();
    send(&mut stream, &json!({"type": "ready"}).to_string()).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    site.wait_until_idle();
}
