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
use super::liar::{Liar, Lies, Messages, forever, messages, send};
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
    "\u{1b}]0;owned\u{7}\u{1b}[2J\r\n\u{9b}31m\u{202e}$(id);`id`<script>/../..";

/// Starts a measurement with a result folder of its own.
fn start(folder: &TestDir, port: u16, options: &[&str]) -> Running {
    let (port, out) = (port.to_string(), format!("results-{port}"));
    let fixed = ["measure", "127.0.0.1", "-p", &port, "-o", &out];
    let mut all = [&fixed[..], options].concat();
    for (name, value) in [("--transport", "tcp"), ("--result-timeout", "2"), ("-t", "0.2")] {
        // The number of pings determines the duration.
        let ends = name == "-t" && options.contains(&"ping");
        if !options.contains(&name) && !ends {
            all.extend([name, value]);
        }
    }
    folder.start(&mut folder.towpath(&all))
}

/// Waits for a client's end and checks its memory meanwhile.
fn end(mut client: Running, what: &str) -> ProgramOutput {
    let status = format!("/proc/{}/status", client.id());
    let mut peak = 0;
    wait_for(what, || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let kb = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = kb.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kb.unwrap_or(0) << 10);
        client.child.try_wait().unwrap().map(|_| ())
    });
    assert!(peak <= MAX_BYTES, "{what}: {peak} bytes");
    client.wait_at_most(CLIENT_TIMEOUT)
}

/// Checks that a client ended in a documented way and printed no terminal controls.
fn assert_orderly_exit(ended: &ProgramOutput, what: &str) {
    assert!(matches!(ended.code, Some(0..=2 | 130)), "{what}: {ended}");
    assert!(!ended.err.contains("panicked"), "{what}: {ended}");
    for text in [&ended.out, &ended.err] {
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{what}: {text:?}");
    }
}

/// Checks that each written result can be read.
fn assert_readable(folder: &TestDir, port: u16, what: &str) -> usize {
    let out = folder.work().join(format!("results-{port}"));
    let Ok(entries) = fs::read_dir(&out) else { return 0 };
    let files = entries.map(|entry| entry.unwrap().path());
    let results: Vec<_> = files.filter(|file| file.to_string_lossy().contains(".jsonl")).collect();
    for result in &results {
        let page = format!("report-{port}.html");
        let ended = folder.run(&["report", result.to_str().unwrap(), "-o", &page]);
        assert_eq!(ended.code, Some(0), "{what}: {ended}");
        assert_orderly_exit(&ended, what);
    }
    results.len()
}

/// Runs a few cases at the same time.
fn at_once<T: Sync>(cases: &[T], case: impl Fn(usize, &T) + Sync) {
    for (round, some) in cases.chunks(4).enumerate() {
        thread::scope(|scope| {
            for (number, one) in some.iter().enumerate() {
                let case = &case;
                scope.spawn(move || case(round * 4 + number, one));
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
    what: &str,
) -> ProgramOutput {
    let liar = Liar::before(&site.port, lies);
    let ended = end(start(&site.folder, liar.port, options), what);
    assert_orderly_exit(&ended, what);
    assert!(liar.lies_told() > 0, "{what}: no lie was told: {ended}");
    assert_readable(&site.folder, liar.port, what);
    ended
}

fn replacing_message(
    name: &'static str,
    lie: impl Fn(&Value) -> Messages + Send + Sync + 'static,
) -> Lies {
    let word = move |word: &Value| (word["type"] == name).then(|| lie(word));
    Lies { message: Box::new(word), ..Lies::default() }
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
    let places = ["welcome", "accepted", "ready", "clock"];
    let all: Vec<_> = places
        .into_iter()
        .flat_map(|place| all_messages().into_iter().map(move |word| (place, word)))
        .filter(|(place, word)| word["type"] != *place)
        .collect();
    let step = times(7, 1);
    let cases: Vec<_> = all.into_iter().step_by(step).collect();
    at_once(&cases, |_, (place, word)| {
        let (lie, what) = (word.clone(), format!("{word} in place of {place}"));
        run_through_liar(
            &site,
            replacing_message(place, move |_| messages([lie.clone()])),
            &["-q"],
            &what,
        );
    });
    assert!(!site.folder.names().contains(&"owned".to_owned()));
}

/// C2, C5: a clock that stops, runs backwards, or is at the maximum.
#[test]
fn no_clock_of_a_server_confuses_a_measurement() {
    let site = AttackedServer::new(&[]);
    let most = u64::MAX;
    let cases: Vec<(u64, u64)> = vec![
        (0, 0),
        (0, most),
        (1, most),
        (0, most / 2),
        (0, 1 << 63),
        (0, i64::MAX as u64),
        (most, 0),
        (0, 86_400_000_000_000 * 36_500),
    ];
    let some = times(3, cases.len());
    at_once(&cases[..some], |_, &(add, is)| {
        let what = format!("asked at + {add}, it is {is}");
        let lies = replacing_message("clock", move |word| {
            let asked = word["client_ns"].as_u64().unwrap().wrapping_add(add);
            messages([json!({"type": "clock", "client_ns": asked, "server_ns": is})])
        });
        run_through_liar(&site, lies, &["-q"], &what);
    });
}

/// C2, F3: numbers that no clock returns, and JSON that no program writes.
#[test]
fn values_that_are_not_numbers_are_refused() {
    let site = AttackedServer::new(&[]);
    let deep = "[".repeat(60_000);
    let numbers = ["NaN", "-1", "18446744073709551616", "1e999", "\"0\"", "null", "1.5", &deep];
    let some = times(4, numbers.len());
    at_once(&numbers[numbers.len() - some..], |_, number| {
        let raw = format!("{{\"type\":\"clock\",\"client_ns\":0,\"server_ns\":{number}}}");
        let what = &raw[..raw.len().min(80)];
        let told = raw.clone();
        let lies = replacing_message("clock", move |_| Box::new(std::iter::once(told.clone())));
        let ended = run_through_liar(&site, lies, &["-q"], what);
        assert_eq!(ended.code, Some(2), "{what}: {ended}");
        assert!(ended.err.len() < 4_000, "{what}: {} bytes are said", ended.err.len());
    });
}

/// C2, C3: endless messages instead of a reply count as no progress, and an interrupt works.
#[test]
fn a_flood_of_messages_is_not_progress_and_uses_no_memory() {
    let site = AttackedServer::new(&[]);
    let clock = json!({"type": "clock", "client_ns": 0, "server_ns": 0});
    let pending = json!({"type": "pending"});
    let words = [("ready", clock), ("part", pending), ("clock", json!({"type": "ready"}))];
    let mut cases = Vec::new();
    for (place, word) in words {
        cases.extend([(place, word.clone(), false), (place, word, true)]);
    }
    cases.swap(1, 3);
    at_once(&cases[..times(2, 6)], |_, (place, word, interrupted)| {
        let what = format!("{word} for ever in place of {place}");
        let lie = word.clone();
        let liar = Liar::before(&site.port, replacing_message(place, move |_| forever(&lie)));
        let client = start(&site.folder, liar.port, &["-q"]);
        let began = wait_for(&what, || (liar.lies_told() > 0).then(Instant::now));
        if *interrupted {
            signal("INT", client.id().into());
        }
        let ended = end(client, &what);
        assert_orderly_exit(&ended, &what);
        assert!(!interrupted || began.elapsed() < INTERRUPT_TIMEOUT, "{what}: {ended}");
        assert_readable(&site.folder, liar.port, &what);
    });
}

/// Generates numbers without a clock, so that each case is the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// Visits all values that are neither a list nor an object.
fn each_leaf(value: &mut Value, change: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|one| each_leaf(one, change)),
        Value::Object(fields) => fields.values_mut().for_each(|one| each_leaf(one, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => change(value),
    }
}

fn lines_of(report: &str) -> Vec<Value> {
    report.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text_of(lines: &[Value]) -> String {
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
    at_once(&cases, |number, &case| {
        let extremes = extremes.clone();
        let lie = move |entry: &str| {
            let (mut lines, mut draw) = (lines_of(entry), Draw(case as u64));
            draw.below(1);
            let extreme = extremes[draw.below(extremes.len())].clone();
            let one_in = [1, 3, 20][draw.below(3)];
            for line in &mut lines {
                each_leaf(line, &mut |leaf| {
                    if leaf.is_number() && draw.below(one_in) == 0 {
                        *leaf = extreme.clone();
                    }
                });
            }
            text_of(&lines)
        };
        let lies = Lies { report: Box::new(lie), ..Lies::default() };
        let options = [&["-b", "8M"], patterns[number % patterns.len()]].concat();
        run_through_liar(&site, lies, &options, &format!("numbers of case {case}"));
    });
}

/// Changes a report to contradict itself in one way.
fn contradict(report: &str, case: usize) -> String {
    let mut lines = lines_of(report);
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
                if let Some(place) = kind.get_mut(field) {
                    *place = json!(u32::MAX - number as u32);
                }
            }
        }
        // A thousand subflows with the same addresses.
        8 => {
            let subflow = copies.into_iter().find(|line| line.get("subflow").is_some());
            lines.extend(subflow.into_iter().flat_map(|one| vec![one; 1_000]));
        }
        // A time that runs backwards.
        _ => {
            let mut time = u64::MAX / 2;
            for line in &mut lines {
                if let Some(at) = line.pointer_mut("/record/t_ns") {
                    *at = json!(time);
                    time -= 1_000_000_000;
                }
            }
            let counter = json!({"record": {"type": "counter", "host": "client",
                "name": "MPTcpExt.MPJoinAckRx", "before": u64::MAX, "after": 0}});
            lines.push(counter);
        }
    }
    text_of(&lines)
}

/// C5, F3: reports that contradict themselves or the client's own report.
#[test]
fn an_inconsistent_server_report_still_gives_a_result() {
    let site = AttackedServer::new(&[]);
    let cases: Vec<_> = (0..10).collect();
    let step = times(3, 1);
    let cases: Vec<_> = cases.into_iter().step_by(step).collect();
    at_once(&cases, |_, case| {
        let case = *case;
        let lies = Lies { report: Box::new(move |half| contradict(half, case)), ..Lies::default() };
        run_through_liar(&site, lies, &["-b", "8M", "-R"], &format!("contradiction {case}"));
    });
}

/// C5, F4: every text of a report, a welcome and a refusal.
#[test]
fn no_text_of_a_server_controls_the_terminal() {
    let site = AttackedServer::new(&[]);
    let keys = |entry: &str| {
        let mut lines = lines_of(entry);
        let mut host = lines.remove(0);
        let fields = host["host"].as_object_mut().unwrap();
        fields["warnings"] = json!([TERMINAL_ESCAPES, TERMINAL_ESCAPES]);
        fields["conditions"] =
            json!({ TERMINAL_ESCAPES: TERMINAL_ESCAPES, "tls\u{1b}[2J": TERMINAL_ESCAPES });
        lines.insert(0, host);
        for line in &mut lines {
            for (kind, field) in [("flow", "failure"), ("connection", "reason")] {
                if let Some(of) = line.get_mut(kind).and_then(Value::as_object_mut) {
                    of.insert(field.to_owned(), json!(TERMINAL_ESCAPES));
                }
            }
            if let Some(of) = line.get_mut("subflow").and_then(Value::as_object_mut) {
                for field in ["path", "congestion_control", "local", "remote"] {
                    of.insert(field.to_owned(), json!(TERMINAL_ESCAPES));
                }
            }
        }
        lines.push(json!({"record": {"type": "event", "t_ns": 1, "kind": "timeline",
            "text": TERMINAL_ESCAPES}}));
        text_of(&lines)
    };
    let lies = Lies { report: Box::new(keys), ..Lies::default() };
    let ended = run_through_liar(&site, lies, &["-b", "8M"], "texts of a half");
    // The texts are printed as quotes of the server.
    assert!(ended.err.contains("$(id)") || ended.out.contains("$(id)"), "{ended}");
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
    let strange = json!({"type": TERMINAL_ESCAPES, TERMINAL_ESCAPES: TERMINAL_ESCAPES});
    let ended = run_through_liar(
        &site,
        replacing_message("clock", move |_| messages([strange.clone()])),
        &[],
        "a word",
    );
    assert_eq!(ended.code, Some(2), "{ended}");
    for json in ["--json", "-q"] {
        let lies = Lies { report: Box::new(keys), ..Lies::default() };
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
    let some = times(4, cases.len());
    at_once(&cases[..some], |_, parts| {
        let (told, what) = (parts.clone(), format!("{parts:?}"));
        let ended = run_through_liar(
            &site,
            replacing_message("part", move |_| messages(told.clone())),
            &["-q"],
            &what,
        );
        assert_eq!(ended.code, Some(1), "{what}: {ended}");
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
    let liar = Liar::before(&site.port, replacing_message("part", lies));
    let client = start(&site.folder, liar.port, &["-q", "--result-timeout", "60"]);
    wait_for("the parts", || (liar.lies_told() > 0).then_some(()));
    signal("INT", client.id().into());
    let began = Instant::now();
    let ended = end(client, "the end");
    assert!(began.elapsed() < INTERRUPT_TIMEOUT, "{:?}: {ended}", began.elapsed());
    assert_orderly_exit(&ended, "an endless half");
    // Earlier measurements are kept.
    assert_eq!(assert_readable(&site.folder, liar.port, "an endless half"), 1, "{ended}");
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
    let some = times(3, cases.len());
    at_once(&cases[..some], |_, (name, lies, pattern)| {
        let what = format!("{name}, {pattern}");
        let options: &[&str] = if *pattern == "ping" {
            &["ping", "--set", "count=3"]
        } else {
            &[pattern, "-t", "0.5"]
        };
        run_through_liar(&site, lies(), &[options, &["-q"]].concat(), &what);
    });
}

/// C5: replies to datagrams that were never sent or have a future time.
#[test]
fn unsolicited_datagram_replies_are_not_counted() {
    let site = AttackedServer::new(&[]);
    let many = |answer: &[u8]| {
        let mut all = vec![answer.to_vec(); 50];
        for (number, one) in all.iter_mut().enumerate() {
            match number % 4 {
                // A duplicate.
                0 => {}
                // Another number, another time, another test.
                1 => one[20..24].copy_from_slice(&u32::MAX.to_be_bytes()),
                2 => one[24..32].copy_from_slice(&u64::MAX.to_be_bytes()),
                _ => one[4] ^= 1,
            }
        }
        all
    };
    let lies = Lies { datagram: Box::new(many), ..Lies::default() };
    let liar = Liar::before(&site.port, lies);
    let options = ["udping", "--set", "period=20ms", "-t", "0.6", "--json"];
    let ended = end(start(&site.folder, liar.port, &options), "datagrams");
    assert_orderly_exit(&ended, "datagrams");
    assert!(liar.lies_told() > 3, "{} lies: {ended}", liar.lies_told());
    assert_eq!(assert_readable(&site.folder, liar.port, "datagrams"), 1, "{ended}");
    let result = site.folder.stored(&format!("results-{}/live-tcp-1.jsonl.zst", liar.port));
    let summary = serde_json::to_value(result.summary.unwrap()).unwrap();
    let mut seen = Vec::new();
    numbers_named(&summary, "", &mut seen);
    // No reply took longer than the measurement, and replies do not outnumber requests.
    let took = |name: &str| name.contains("/round_trip/") || name.contains("/delay/");
    let times: Vec<_> = seen.iter().filter(|(name, _)| took(name)).collect();
    assert!(!times.is_empty(), "{summary}");
    assert!(times.iter().all(|(_, number)| (0.0..60e9).contains(number)), "{summary}");
    let find = |name: &str| seen.iter().find(|(full, _)| full.ends_with(name)).map(|one| one.1);
    let (sent, back) = (find("/sent").unwrap(), find("/answered").unwrap());
    assert!(back <= sent, "{back} of {sent}: {summary}");
}

fn numbers_named(value: &Value, name: &str, all: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(field, one)| numbers_named(one, &format!("{name}/{field}"), all)),
        Value::Array(list) => list.iter().for_each(|one| numbers_named(one, name, all)),
        Value::Number(number) => all.push((name.to_owned(), number.as_f64().unwrap())),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// C2: a client does not repeat its request endlessly to a server that refuses.
#[test]
fn many_refusals_are_reported_as_a_refusal() {
    let site = AttackedServer::new(&[]);
    for (place, why) in [("welcome", "busy"), ("accepted", "busy: 16 tests"), ("ready", "busy")] {
        let refusal = json!({"type": "refused", "reason": why, "hint": "come again in 1 s"});
        let told = refusal.clone();
        let lies = replacing_message(place, move |_| messages(vec![told.clone(); 5_000]));
        let liar = Liar::before(&site.port, lies);
        let options = ["-q", "--repeat", "3", "--wait", "0.01"];
        let ended = end(start(&site.folder, liar.port, &options), why);
        assert_orderly_exit(&ended, why);
        assert_eq!(ended.code, Some(2), "{place}: {ended}");
        assert!(ended.err.contains("busy"), "{place}: {ended}");
        assert!(
            (1..100).contains(&liar.accepted_connections()),
            "{place}: {} connections",
            liar.accepted_connections()
        );
    }
}

/// Relays the first connections to one server and all others to another.
fn switch(first: u16, most: usize, then: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let met = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&met);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let to = if number < most { first } else { then };
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let copy = |mut from: TcpStream, mut to: TcpStream| {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to); // the peer may be gone
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            };
            copy(client.try_clone().unwrap(), server.try_clone().unwrap());
            copy(server, client);
        }
    });
    (port, met)
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
    let (expected, other) = (AttackedServer::new(&[]), AttackedServer::new(&[]));
    let print = fingerprint(&expected);
    assert_ne!(print, fingerprint(&other));
    for most in 1..=2 {
        let ports = [&expected, &other].map(|site| site.port.parse().unwrap());
        let (port, met) = switch(ports[0], most, ports[1]);
        let options = ["-q", "-P", "2", "--server-cert", &print];
        let what = format!("another after {most}");
        let ended = end(start(&expected.folder, port, &options), &what);
        assert_orderly_exit(&ended, &what);
        assert!(met.load(Ordering::Relaxed) > most, "{what}: {ended}");
        assert!(matches!(ended.code, Some(1 | 2)), "{what}: {ended}");
        assert_readable(&expected.folder, port, &what);
    }
    // The other server never received a test.
    assert!(!other.running.stderr().contains("measures"), "{}", other.running.stderr());
}

/// C1, C2: over QUIC, datagrams that are spoofed, damaged, or from another server.
#[test]
fn quic_ignores_spoofed_packets_and_times_out() {
    let (expected, other) = (AttackedServer::new(&[]), AttackedServer::new(&[]));
    let print = fingerprint(&expected);
    let cases = ["other", "broken", "silent"];
    at_once(&cases[..times(1, 3)], |_, case| {
        let to = if *case == "other" { &other } else { &expected };
        let broken = *case == "broken";
        let silent = *case == "silent";
        let datagram = move |answer: &[u8]| {
            let mut answer = answer.to_vec();
            if broken && let Some(place) = answer.len().checked_sub(9) {
                answer[place] ^= 1;
            }
            if silent { Vec::new() } else { vec![answer.clone(), answer] }
        };
        let liar = Liar::before(&to.port, Lies { datagram: Box::new(datagram), ..Lies::default() });
        let options = ["-q", "--transport", "quic", "--server-cert", &print];
        let ended = end(start(&expected.folder, liar.port, &options), case);
        assert_orderly_exit(&ended, case);
        assert_eq!(ended.code, Some(2), "{case}: {ended}");
        assert!(liar.lies_told() > 0, "{case}");
    });
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let client = start(&expected.folder, port, &["-q", "--transport", "mpquic"]);
    silent.recv_from(&mut [0; 2_000]).unwrap();
    signal("INT", client.id().into());
    let began = Instant::now();
    let ended = end(client, "an interrupt of a handshake");
    assert!(began.elapsed() < INTERRUPT_TIMEOUT, "{ended}");
    assert!(matches!(ended.code, Some(130 | 2)), "{ended}");
}

/// Relays TLS until a number of bytes came from the server, then ends or damages the stream.
fn damaging_proxy(server: u16, after: usize, breaks: bool) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let damaged = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&damaged);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let counted = Arc::clone(&counted);
            thread::spawn(move || -> io::Result<()> {
                let mut server = TcpStream::connect(("127.0.0.1", server))?;
                let (mut back, mut front) = (server.try_clone()?, client.try_clone()?);
                thread::spawn(move || io::copy(&mut front, &mut back));
                let mut left = after;
                let mut room = [0; 16_384];
                loop {
                    let length = server.read(&mut room)?;
                    if length == 0 {
                        return client.shutdown(std::net::Shutdown::Both);
                    }
                    let hit = left < length;
                    if hit {
                        counted.fetch_add(1, Ordering::Relaxed);
                        room[left] ^= 0x40;
                    }
                    let most = if hit && !breaks { left } else { length };
                    client.write_all(&room[..most])?;
                    if hit && !breaks {
                        return client.shutdown(std::net::Shutdown::Both);
                    }
                    left = if hit { usize::MAX } else { left - length };
                }
            });
        }
    });
    (port, damaged)
}

/// C1, C2: a truncated certificate, and one with a flipped bit.
#[test]
fn a_partial_or_damaged_handshake_is_refused() {
    let site = AttackedServer::new(&[]);
    let print = fingerprint(&site);
    let server = site.port.parse().unwrap();
    let places = [1, 5, 60, 130, 300, 500, 700];
    let cases: Vec<_> = places.iter().flat_map(|at| [(*at, true), (*at, false)]).collect();
    let cases: Vec<_> = cases.into_iter().step_by(times(4, 1)).collect();
    at_once(&cases, |_, &(after, breaks)| {
        let what = format!("{} after {after} bytes", if breaks { "broken" } else { "cut" });
        let (port, damaged) = damaging_proxy(server, after, breaks);
        let ended = end(start(&site.folder, port, &["-q", "--server-cert", &print]), &what);
        assert_orderly_exit(&ended, &what);
        assert_eq!(ended.code, Some(2), "{what}: {ended}");
        assert!(damaged.load(Ordering::Relaxed) > 0, "{what}");
    });
    assert!(!site.running.stderr().contains("measures"), "{}", site.running.stderr());
}

/// C5: no reply redirects a client to another host.
#[test]
fn a_client_follows_no_redirect() {
    let folder = TestDir::new();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let to = format!("127.0.0.1:{port}");
    let http = format!(
        "HTTP/1.1 301 Moved Permanently\r\nLocation: http://{to}/\r\nAlt-Svc: h3=\":{port}\"\r\n\r\n"
    );
    let words = [
        json!({"type": "refused", "reason": format!("moved to {to}"), "hint": format!("--server {to}")}),
        json!({"type": "welcome", "towpath": "9.9.9", "server": to, "redirect": to, "location": to}),
        json!({"type": "redirect", "to": to}),
    ];
    let answers = words.iter().map(|word| {
        let text = word.to_string();
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    });
    let answers: Vec<_> = answers.chain([http.into_bytes()]).collect();
    let cases: Vec<_> =
        answers.iter().flat_map(|answer| (0..3).map(move |command| (answer, command))).collect();
    let cases: Vec<_> = cases.into_iter().rev().step_by(times(4, 1)).collect();
    at_once(&cases, |_, (answer, command)| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let said = (*answer).clone();
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let _ = client.read(&mut [0; 1_024]); // the peer may be gone
                let _ = client.write_all(&said);
            }
        });
        let (address, port) = (address.to_string(), address.port().to_string());
        let commands: [&[&str]; 3] = [
            &["measure", "127.0.0.1", "-p", &port, "--transport", "tcp", "-t", "0.2", "-q"],
            &["check", "127.0.0.1", "-p", &port],
            &["doctor", "--peer", &address],
        ];
        let what = String::from_utf8_lossy(answer).into_owned();
        let ended = end(folder.start(&mut folder.towpath(commands[*command])), &what);
        assert_orderly_exit(&ended, &what);
        assert!(matches!(ended.code, Some(0..=2)), "{ended}");
    });
    let came = elsewhere.accept();
    assert!(came.is_err(), "{came:?}");
}

/// Returns snapshots in which a hostile server describes its host.
fn hostile_snapshots() -> Vec<Value> {
    let link = |index: i64, name: &str| {
        json!({"index": index, "name": name, "up": true, "running": true, "loopback": false,
        "mtu_bytes": u32::MAX, "rx_bytes": u64::MAX, "tx_bytes": u64::MAX, "rp_filter": 255,
        "arp_ignore": 255, "arp_announce": 255})
    };
    let whole = json!({"type": "snapshot", "kernel": TERMINAL_ESCAPES, "socket_errno": i32::MIN,
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
    let mut crowd = whole.clone();
    crowd["links"] = (0..300).map(|index| link(index, "\u{1b}[2J")).collect();
    let mut none = whole.clone();
    none["limits"] = json!({"subflows": 0, "add_addr_accepted": 0});
    none["links"] = json!([]);
    let mut negative = whole.clone();
    negative["socket_errno"] = json!(-1e300);
    vec![whole, crowd, none, negative]
}

/// C5, F4, R6: a host's own description, with names that a shell, a terminal or a path would
/// interpret.
#[test]
fn a_diagnosis_survives_hostile_host_reports() {
    let site = AttackedServer::new(&["--public-diagnostics"]);
    let looks = hostile_snapshots();
    let mut cases = Vec::new();
    for snapshot in looks.iter().take(times(1, 9)) {
        for options in [&["--json"][..], &[]] {
            for way in ["--peer", "--connect"] {
                cases.push((snapshot.clone(), options, way));
            }
        }
    }
    at_once(&cases, |_, (look, options, way)| {
        let told = look.clone();
        let liar = Liar::before(
            &site.port,
            replacing_message("snapshot", move |_| messages([told.clone()])),
        );
        let address = format!("127.0.0.1:{}", liar.port);
        let arguments = [&["doctor", *way, &address], *options].concat();
        let ended = end(site.folder.start(&mut site.folder.towpath(&arguments)), way);
        assert_orderly_exit(&ended, way);
        assert!(matches!(ended.code, Some(0 | 1)), "{ended}");
        assert!(liar.lies_told() > 0, "{ended}");
        if !options.is_empty() {
            assert_eq!(ended.json().len(), 1, "{ended}");
        }
        // Lines to paste contain no name that a shell would interpret.
        let pasted = ended.out.lines().filter(|line| line.trim_start().starts_with("fix:"));
        for line in pasted {
            assert!(!line.contains("touch owned") && !line.contains("$(id)"), "{line}: {ended}");
        }
    });
    let names = site.folder.names();
    assert!(!names.iter().any(|name| name.contains("owned")), "{names:?}");
}

/// Sends a welcome byte by byte. Returns the number of connections.
fn slow_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let met = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&met);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || -> io::Result<()> {
                client.write_all(&60_000_u32.to_be_bytes())?;
                loop {
                    client.write_all(b" ")?;
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    (port, met)
}

/// C3: all waits of `check`, `doctor` and the choice of a server.
#[test]
fn an_interrupt_ends_every_request_to_a_server() {
    let folder = TestDir::new();
    let (port, met) = slow_server();
    let (address, port) = (format!("127.0.0.1:{port}"), port.to_string());
    folder.write("servers.txt", format!("{address}\n"));
    let auto = ["measure", "--server", "auto", "--servers", "servers.txt", "--transport", "tcp"];
    let commands: [&[&str]; 4] = [
        &["check", "127.0.0.1", "-p", &port],
        &["doctor", "--connect", &address],
        &["doctor", "--peer", &address],
        &auto,
    ];
    for command in commands {
        let before = met.load(Ordering::Relaxed);
        // A shell starts background processes with SIGINT ignored.
        let mut asks = folder.program("env");
        asks.arg("--default-signal=INT").arg(binary()).args(command);
        let client = folder.start(&mut asks);
        wait_for("a question", || (met.load(Ordering::Relaxed) > before).then_some(()));
        signal("INT", client.id().into());
        let began = Instant::now();
        let ended = end(client, "an interrupt");
        let took = began.elapsed();
        assert!(took < INTERRUPT_TIMEOUT, "{command:?}: {took:?}: {ended}");
        // The signal itself may end a command that has nothing to store.
        assert!(matches!(ended.code, Some(130) | None), "{command:?}: {ended}");
        assert!(!ended.err.contains("panicked"), "{command:?}: {ended}");
    }
}

/// C3: stalled data, in either direction.
#[test]
fn an_interrupt_ends_stalled_traffic() {
    let site = AttackedServer::new(&[]);
    let long = ["-t", "30"];
    let cases: [&[&str]; 4] = [&["-R"], &["ping", "--set", "count=999"], &["reqres"], &[]];
    let some = times(2, cases.len());
    at_once(&cases[..some], |_, options| {
        // The server's data stays in flight.
        let still = |_: &[u8]| {
            thread::sleep(Duration::from_secs(20));
            Vec::new()
        };
        let clocks = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&clocks);
        let word = move |word: &Value| {
            noted.fetch_add(usize::from(word["type"] == "clock"), Ordering::Relaxed);
            None
        };
        let lies = Lies { data: Box::new(still), message: Box::new(word), ..Lies::default() };
        let liar = Liar::before(&site.port, lies);
        let time: &[&str] = if options.contains(&"ping") { &[] } else { &long };
        let options = [*options, time, &["--result-timeout", "30"]].concat();
        let client = start(&site.folder, liar.port, &options);
        wait_for("the traffic", || (clocks.load(Ordering::Relaxed) >= 12).then_some(()));
        signal("INT", client.id().into());
        let began = Instant::now();
        let ended = end(client, "an interrupt");
        assert!(began.elapsed() < INTERRUPT_TIMEOUT, "{options:?}: {:?}: {ended}", began.elapsed());
        assert_orderly_exit(&ended, "an interrupt");
        assert_eq!(ended.code, Some(130), "{options:?}: {ended}");
        assert_readable(&site.folder, liar.port, "an interrupt");
    });
}

/// C2: frames longer than the limit, and empty ones, in sequence.
#[test]
fn reading_a_frame_of_any_length_terminates() {
    let folder = TestDir::new();
    let lengths: [u32; 4] = [0, 65_537, u32::MAX, 65_536];
    at_once(&lengths, |_, length| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (length, sent) = (*length, Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&sent);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                thread::spawn(move || -> io::Result<()> {
                    // Whitespace is valid in JSON.
                    let content = vec![b' '; (length as usize).min(65_536)];
                    loop {
                        client.write_all(&length.to_be_bytes())?;
                        client.write_all(&content)?;
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let what = format!("frames of {length} bytes");
        let ended = end(start(&folder, port, &["-q"]), &what);
        assert_orderly_exit(&ended, &what);
        assert_eq!(ended.code, Some(2), "{what}: {ended}");
        assert!(sent.load(Ordering::Relaxed) > 0, "{what}");
    });
}

/// C3, C5: a host that cannot store a result reports it and still prints the measurements.
#[test]
fn a_client_reports_that_it_cannot_write() {
    let site = AttackedServer::new(&[]);
    let port: u16 = site.port.parse().unwrap();
    site.folder.write("file", "");
    let fixed = port.to_string();
    for out in ["file/results", "/proc/results", "/dev/full"] {
        let ours = ["measure", "127.0.0.1", "-p", &fixed, "-o", out, "-t", "0.2", "-q"];
        let options = ["--transport", "tcp", "--json"];
        let ended = site.folder.run(&[&ours[..], &options].concat());
        assert_orderly_exit(&ended, out);
        assert!(matches!(ended.code, Some(1 | 2)), "{out}: {ended}");
        assert!(ended.err.contains("error: "), "{out}: {ended}");
    }
    let script = "exec \"$0\" \"$@\" >/dev/full";
    let mut command = site.folder.program("sh");
    command.args(["-c", script]).arg(binary());
    command.args(["measure", "127.0.0.1", "-p", &fixed, "-o", "results", "-t", "0.2", "-q"]);
    command.args(["--transport", "tcp"]);
    let ended = site.folder.start(&mut command).wait();
    assert_orderly_exit(&ended, "a full standard output");
    assert_ne!(ended.code, Some(0), "{ended}");
    let kept = site.folder.stored("results/live-tcp-1.jsonl.zst");
    assert!(kept.summary.is_some());
    site.wait_until_idle();
}

/// C5: extra messages between the replies do not change the client's next step.
#[test]
fn messages_of_another_connection_are_not_accepted_as_replies() {
    let site = AttackedServer::new(&[]);
    // A ready, a part and a pending before each reply.
    let early = |word: &Value| -> Option<Messages> {
        let name = word["type"].as_str().unwrap_or_default();
        if !matches!(name, "accepted" | "clock" | "welcome") {
            return None;
        }
        let part = json!({"type": "part", "offset": 0, "total": 3, "text": "{}\n"});
        Some(messages([json!({"type": "ready"}), part, json!({"type": "pending"}), word.clone()]))
    };
    let lies = Lies { message: Box::new(early), ..Lies::default() };
    run_through_liar(&site, lies, &["-q"], "words before each answer");
    let mut answers = TcpStream::connect(("127.0.0.1", site.port.parse::<u16>().unwrap())).unwrap();
    // The server closes a connection that sends a server's message.
    answers.set_read_timeout(Some(CLIENT_TIMEOUT)).unwrap();
    send(&mut answers, &json!({"type": "ready"}).to_string()).unwrap();
    assert_eq!(answers.read(&mut [0; 16]).unwrap_or(0), 0);
    site.wait_until_idle();
}
