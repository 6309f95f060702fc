//! Untrusted files.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{ProgramOutput, TWO_PATHS, TestDir, skip};
use crate::report_page::{browser, console_errors, open};

/// Valid result, one record a line.
const RESULT: &str = include_str!("../../../../towpath-result/tests/fixtures/result-v1.jsonl");
/// Address space of any reader in kB, including the program itself.
const MAX_MEMORY_KB: u32 = 1_500_000;
/// Timeout, longer than any refusal takes on a busy machine, and far shorter than the former hangs.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the command with little memory. The command must refuse with a message and without a panic.
fn run_refused(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    let program = crate::program::binary();
    let script = format!("ulimit -v {MAX_MEMORY_KB}; exec \"$0\" \"$@\"");
    let mut command = folder.program("sh");
    command.args(["-c", &script]).arg(program).args(arguments);
    let output = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.starts_with("error: "), "{output}");
    assert!(!output.err.contains("panicked"), "{output}");
    output
}

/// Returns a zstd file (RFC 8878) of `text` and `blocks` times 128 KiB of one byte. Each block
/// takes four bytes.
fn bomb(text: &[u8], byte: u8, blocks: usize) -> Vec<u8> {
    const MAX_BLOCK: u32 = 128 << 10;
    let header = |kind: u32, size: u32| ((size << 3) | (kind << 1)).to_le_bytes()[..3].to_vec();
    // No checksum, a window of 128 KiB.
    let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for chunk in text.chunks(MAX_BLOCK as usize) {
        file.extend(header(0, u32::try_from(chunk.len()).unwrap()));
        file.extend(chunk);
    }
    for _ in 0..blocks {
        file.extend(header(1, MAX_BLOCK));
        file.push(byte);
    }
    file.extend(header(0, 0).iter().enumerate().map(|(index, b)| b | u8::from(index == 0)));
    file
}

/// Returns the first line of the valid result.
fn meta_line() -> String {
    RESULT.split_inclusive('\n').next().unwrap().to_owned()
}

#[test]
fn a_decompression_bomb_is_refused_with_the_limit() {
    let folder = TestDir::new();
    let (meta, blocks) = (meta_line(), 12_250);
    // Empty lines, a line without an end, and a text without an end.
    let text = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"";
    for (name, first_text, byte, reason) in [
        ("lines", meta.clone(), b'\n', "the limit here; TOWPATH_MAX_INPUT="),
        ("line", meta.clone(), b' ', "the line has more than 8.00 MB"),
        ("text", format!("{meta}{text}"), b'a', "the line has more than 8.00 MB"),
        ("first", String::new(), b'[', "line 1: the line has more than 8.00 MB"),
    ] {
        let file = bomb(first_text.as_bytes(), byte, blocks);
        assert!(file.len() < 60_000, "{}", file.len());
        let name = format!("{name}.jsonl.zst");
        folder.write(&name, file);
        let output = run_refused(&folder, &["report", &name]);
        assert!(output.err.replace("\n       ", " ").contains(reason), "{output}");
    }
}

#[test]
fn many_files_share_the_limit_of_one() {
    let folder = TestDir::new();
    std::fs::create_dir(folder.work().join("results")).unwrap();
    let event = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"\"}\n";
    let content = format!("{}{}", meta_line(), event.repeat(300_000));
    for number in 1..=5 {
        folder.write(&format!("results/tcp-{number}.jsonl"), &content);
    }
    let output = run_refused(&folder, &["report", "results"]);
    assert!(output.err.contains("TOWPATH_MAX_INPUT="), "{output}");
}

#[test]
fn numbers_in_a_result_allocate_nothing_beyond_its_data() {
    let folder = TestDir::new();
    let interval = |t_ns: u64| {
        format!(
            "{{\"type\":\"interval\",\"t_ns\":{t_ns},\"span_ns\":1,\"flow\":4294967295,\
             \"stream\":4294967295,\"direction\":\"down\",\"bytes\":18446744073709551615}}\n"
        )
    };
    folder.write("late.jsonl", format!("{}{}", meta_line(), interval(u64::MAX).repeat(2)));
    let output = run_refused(&folder, &["report", "late.jsonl", "--csv"]);
    assert!(output.err.contains("--csv"), "{output}");
    for arguments in [&["report", "late.jsonl"][..], &["compare", "late.jsonl", "late.jsonl"]] {
        let output = folder.run(arguments);
        assert_eq!(output.code, Some(0), "{output}");
    }
    // A long but valid result is printed.
    folder.write("day.jsonl", format!("{}{}", meta_line(), interval(86_400_000_000_000)));
    let output = folder.run(&["report", "day.jsonl", "--csv"]);
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(output.out.lines().next().unwrap().split(',').count(), 3 + 86_400);
}

#[test]
fn a_result_with_more_paths_than_allowed_is_refused() {
    let folder = TestDir::new();
    let mut text = meta_line();
    for number in 0..100_000 {
        let _ = writeln!(
            text,
            "{{\"type\":\"link\",\"t_ns\":1,\"path\":\"{number}\",\"direction\":\"up\",\
             \"offered_packets\":0,\"delivered_bytes\":0,\"delivered_packets\":0,\
             \"dropped_queue_packets\":0,\"dropped_loss_packets\":0,\"dropped_down_packets\":0,\
             \"backlog_bytes\":0}}"
        );
    }
    folder.write("paths.jsonl", text);
    let output = run_refused(&folder, &["report", "paths.jsonl"]);
    assert!(output.err.contains("more than 2000 paths"), "{output}");
}

/// Returns the arguments of every command that reads a file, with file names that contain `name`.
fn reader_arguments(name: &str) -> Vec<Vec<String>> {
    let arguments =
        |text: &str| text.split(' ').map(|argument| argument.replace("FILE", name)).collect();
    let commands = [
        "report FILE.jsonl",
        "report FILE.jsonl.zst",
        "report FILE.folder",
        "compare FILE.jsonl FILE.jsonl",
        "scenarios check ./FILE.toml",
        "scenarios show ./FILE.toml",
        "run ./FILE.toml",
        "scenarios check FILE-trace.toml",
        "scenarios check FILE-messages.toml",
        "sweep ./FILE.toml",
        "sweep FILE-plan.toml",
        "sweep status FILE.sweep",
        "reproduce ./FILE.study",
        "trace FILE.pcap",
        "measure 127.0.0.1 trace --set messages=FILE.txt",
        "measure --server auto --servers FILE.txt",
    ];
    commands.into_iter().map(arguments).collect()
}

/// Puts a file made by `make` at each place that one of the [`reader_arguments`] names.
fn create_files(folder: &TestDir, name: &str, make: &dyn Fn(&Path)) {
    let work = folder.work();
    for extension in ["folder", "sweep", "study"] {
        std::fs::create_dir(work.join(format!("{name}.{extension}"))).unwrap();
    }
    for suffix in [
        "jsonl",
        "jsonl.zst",
        "toml",
        "pcap",
        "txt",
        "folder/x.jsonl",
        "sweep/sweep.json",
        "study/plan.toml",
    ] {
        make(&work.join(format!("{name}.{suffix}")));
    }
    let trace_scenario = TWO_PATHS.replace(
        "rate = \"40 Mbit/s\"\ndelay = \"5 ms\"",
        &format!("rate = {{ trace = \"{name}.txt\" }}"),
    );
    assert_ne!(trace_scenario, TWO_PATHS);
    folder.write(&format!("{name}-trace.toml"), trace_scenario);
    let trace_flow = format!(
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"trace\"\nmessages = \"{name}.txt\"\n"
    );
    folder.write(&format!("{name}-messages.toml"), format!("{TWO_PATHS}{trace_flow}"));
    folder.write(
        &format!("{name}-plan.toml"),
        format!("name = \"p\"\nscenario = \"{name}.toml\"\n[[variants]]\nname = \"v\"\ntransport = \"tcp\"\n"),
    );
}

#[test]
fn no_reader_waits_for_a_fifo_or_reads_a_device() {
    let folder = TestDir::new();
    create_files(&folder, "fifo", &|path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    });
    create_files(&folder, "device", &|path| symlink("/dev/zero", path).unwrap());
    for (name, reason) in [("fifo", "it is a FIFO"), ("device", "it is a device")] {
        for arguments in reader_arguments(name) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let output = run_refused(&folder, &arguments);
            assert!(output.err.contains(reason), "{output}");
        }
    }
}

#[test]
fn no_reader_accepts_an_oversized_file() {
    let folder = TestDir::new();
    // A sparse file without a byte on the disk.
    create_files(&folder, "large", &|path| File::create(path).unwrap().set_len(4 << 30).unwrap());
    for arguments in reader_arguments("large") {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run_refused(&folder, &arguments);
        let messages = ["more than", "not a capture", "not compressed with zstd"];
        assert!(messages.iter().any(|message| output.err.contains(message)), "{output}");
    }
}

#[test]
fn the_limit_is_named_and_can_be_raised_and_lowered() {
    let folder = TestDir::new();
    folder.write("r.jsonl", RESULT);
    let run_with_limit = |limit: &str| {
        let mut command = folder.towpath(&["report", "r.jsonl"]);
        folder.start(command.env("TOWPATH_MAX_INPUT", limit)).wait()
    };
    let output = run_with_limit("1 kB");
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("more than 1.00 kB"), "{output}");
    assert_eq!(run_with_limit("1GB").code, Some(0));
    let output = run_with_limit("much");
    assert!(
        output.code == Some(2) && output.err.contains("TOWPATH_MAX_INPUT is `much`"),
        "{output}"
    );
}

#[test]
fn a_plan_with_more_runs_than_can_be_counted_is_refused() {
    let folder = TestDir::new();
    let mut plan = "name = \"p\"\nscenario = \"builtin:two-links\"\nseeds = 1000\n\
        [[variants]]\nname = \"v\"\ntransport = \"tcp\"\n"
        .to_owned();
    let values: Vec<_> = (1..=20).map(|value| format!("\"{value} ms\"")).collect();
    for axis in 0..12 {
        let _ = writeln!(
            plan,
            "[[axes]]\nname = \"a{axis}\"\nkeys = [\"paths.left.delay\"]\nvalues = [{}]",
            values.join(", ")
        );
    }
    folder.write("plan.toml", plan);
    let output = run_refused(&folder, &["sweep", "plan.toml"]);
    assert!(output.err.contains("expected at most 10000000"), "{output}");
}

/// Terminal controls: title, C1, text direction and deletion.
const TERMINAL_ESCAPES: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}live\u{2069}\u{8}\u{7f}";

/// Asserts that a text contains no terminal control.
fn assert_harmless(text: &str, output: &ProgramOutput) {
    let is_control = |c: &char| {
        (c.is_control() && *c != '\n' && *c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(text.chars().find(is_control), None, "{output}");
}

#[test]
fn no_text_of_a_file_controls_the_terminal() {
    let folder = TestDir::new();
    let quoted_escapes = serde_json::to_string(TERMINAL_ESCAPES).unwrap();
    let quoted_escapes = &quoted_escapes[1..quoted_escapes.len() - 1];
    let mut result = String::new();
    for line in RESULT.lines() {
        // Every text of every record, except keywords of the format.
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        poison(&mut value);
        let _ = writeln!(result, "{value}");
    }
    folder.write("r.jsonl", &result);
    let strange_name = format!("{TERMINAL_ESCAPES}.jsonl");
    folder.write(&strange_name, &result);
    folder.write(
        "no.jsonl",
        format!("{}{{\"type\":\"event\",\"kind\":\"{quoted_escapes}\"}}\n", meta_line()),
    );
    let toml = format!(
        "name = \"t\"\n\"{}\" = 1\n[hosts.\"{}\"]\n",
        toml_escaped(TERMINAL_ESCAPES),
        toml_escaped(TERMINAL_ESCAPES)
    );
    folder.write("t.toml", toml + "# \u{202e}\n");
    folder.write("control.toml", format!("name = {TERMINAL_ESCAPES}\n"));
    for arguments in [
        &["report", "r.jsonl"][..],
        &["report", "r.jsonl", "--json"],
        &["report", "r.jsonl", "--csv"],
        &["report", &strange_name],
        &["report", "no.jsonl"],
        &["compare", "r.jsonl", &strange_name],
        &["compare", "r.jsonl", &strange_name, "--json"],
        &["scenarios", "check", "t.toml"],
        &["scenarios", "show", "t.toml"],
        &["scenarios", "check", "control.toml"],
        &["run", "t.toml"],
        &["run", TERMINAL_ESCAPES],
        &["sweep", "t.toml"],
        &["trace", "t.toml"],
    ] {
        let output = folder.run(arguments);
        assert!(!output.err.contains("panicked"), "{output}");
        assert_harmless(&output.out, &output);
        assert_harmless(&output.err, &output);
    }
    // Programs that read JSON get the names unchanged.
    let output = folder.run(&["report", &strange_name, "--json"]);
    assert_eq!(output.json()[0]["file"].as_str().unwrap(), strange_name);
}

/// Returns a text with every character as a TOML escape.
pub(super) fn toml_escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
        out
    })
}

/// Adds terminal controls to every text that is not a keyword.
fn poison(value: &mut serde_json::Value) {
    const KEYWORDS: [&str; 12] = [
        "type",
        "world",
        "transport",
        "direction",
        "side",
        "kind",
        "capture_point",
        "asked",
        "order",
        "state",
        "as",
        "cause",
    ];
    match value {
        serde_json::Value::String(text) => text.push_str(TERMINAL_ESCAPES),
        serde_json::Value::Array(values) => values.iter_mut().for_each(poison),
        serde_json::Value::Object(fields) => {
            let free_fields =
                fields.iter_mut().filter(|(name, _)| !KEYWORDS.contains(&name.as_str()));
            free_fields.for_each(|(_, value)| poison(value));
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {}
    }
}

#[test]
fn a_page_runs_and_loads_no_injected_content() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return skip("a_page_runs_and_loads_no_injected_content", &reason),
    };
    let folder = TestDir::new();
    folder.write("r.jsonl", RESULT);
    let output = folder.run(&["report", "r.jsonl"]);
    assert_eq!(output.code, Some(0), "{output}");
    let page = std::fs::read_to_string(folder.work().join("report.html")).unwrap();
    let injected = "<script>document.title = 'owned'</script>\
        <img src=\"data:,\" onerror=\"document.title = 'owned'\"/>\
        <svg onload=\"document.title = 'owned'\"></svg>\
        <iframe srcdoc=\"<script>parent.document.title = 'owned'</script>\"></iframe></body>";
    let poisoned = page.replace("</body>", injected);
    // Without the policy the script would run and the test would detect it.
    let page_without_policy =
        poisoned.replace("http-equiv=\"Content-Security-Policy\"", "name=\"was\"");
    assert_ne!(page_without_policy, poisoned);
    for (name, text, is_script_run) in
        [("kept", &poisoned, false), ("open", &page_without_policy, true)]
    {
        let name = format!("{name}.html");
        folder.write(&name, text);
        let opened = open(&folder, &browser, &folder.work().join(&name), 1_280);
        assert_eq!(opened.code, Some(0), "{}", opened.err);
        assert!(opened.out.contains("class=\"tools\""), "the page's own script did not run");
        assert_eq!(opened.out.contains("<title>owned"), is_script_run, "{}", opened.out);
        assert_eq!(
            console_errors(&opened).is_empty(),
            is_script_run,
            "{:?}",
            console_errors(&opened)
        );
    }
}
