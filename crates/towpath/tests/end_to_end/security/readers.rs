//! Untrusted files.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{ProgramOutput, TWO_PATHS, TestDir, skip};
use crate::report_page::{browser, complaints, open};

/// Valid result, one record a line.
const RESULT: &str = include_str!("../../../../towpath-measure/tests/fixtures/result-v1.jsonl");
/// Address space of any reader in kB, including the program itself.
const MAX_MEMORY_KB: u32 = 1_500_000;
/// Timeout, longer than any refusal takes on a busy machine, and far shorter than the former hangs.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the command with little memory. It must refuse with a message and without a panic.
fn refused(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    let program = crate::program::binary();
    let script = format!("ulimit -v {MAX_MEMORY_KB}; exec \"$0\" \"$@\"");
    let mut command = folder.program("sh");
    command.args(["-c", &script]).arg(program).args(arguments);
    let ended = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.starts_with("error: "), "{ended}");
    assert!(!ended.err.contains("panicked"), "{ended}");
    ended
}

/// Returns a zstd file (RFC 8878) of `text` and `blocks` times 128 KiB of one byte. Each block
/// takes four bytes.
fn bomb(text: &[u8], byte: u8, blocks: usize) -> Vec<u8> {
    const MAX_BLOCK: u32 = 128 << 10;
    let header = |kind: u32, size: u32| ((size << 3) | (kind << 1)).to_le_bytes()[..3].to_vec();
    // No checksum, a window of 128 KiB.
    let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for part in text.chunks(MAX_BLOCK as usize) {
        file.extend(header(0, u32::try_from(part.len()).unwrap()));
        file.extend(part);
    }
    for _ in 0..blocks {
        file.extend(header(1, MAX_BLOCK));
        file.push(byte);
    }
    file.extend(header(0, 0).iter().enumerate().map(|(at, b)| b | u8::from(at == 0)));
    file
}

fn meta() -> String {
    RESULT.split_inclusive('\n').next().unwrap().to_owned()
}

#[test]
fn a_decompression_bomb_is_refused_with_the_limit() {
    let folder = TestDir::new();
    let (meta, blocks) = (meta(), 12_250);
    // Empty lines, a line without an end, and a text without an end.
    let text = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"";
    for (name, begin, byte, why) in [
        ("lines", meta.clone(), b'\n', "the limit here; TOWPATH_MAX_INPUT="),
        ("line", meta.clone(), b' ', "the line has more than 8.00 MB"),
        ("text", format!("{meta}{text}"), b'a', "the line has more than 8.00 MB"),
        ("first", String::new(), b'[', "line 1: the line has more than 8.00 MB"),
    ] {
        let file = bomb(begin.as_bytes(), byte, blocks);
        assert!(file.len() < 60_000, "{}", file.len());
        let name = format!("{name}.jsonl.zst");
        folder.write(&name, file);
        let ended = refused(&folder, &["report", &name]);
        assert!(ended.err.replace("\n       ", " ").contains(why), "{ended}");
    }
}

#[test]
fn many_files_share_the_limit_of_one() {
    let folder = TestDir::new();
    std::fs::create_dir(folder.work().join("results")).unwrap();
    let event = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"\"}\n";
    let each = format!("{}{}", meta(), event.repeat(300_000));
    for number in 1..=5 {
        folder.write(&format!("results/tcp-{number}.jsonl"), &each);
    }
    let ended = refused(&folder, &["report", "results"]);
    assert!(ended.err.contains("TOWPATH_MAX_INPUT="), "{ended}");
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
    folder.write("late.jsonl", format!("{}{}", meta(), interval(u64::MAX).repeat(2)));
    let ended = refused(&folder, &["report", "late.jsonl", "--csv"]);
    assert!(ended.err.contains("--csv"), "{ended}");
    for arguments in [&["report", "late.jsonl"][..], &["compare", "late.jsonl", "late.jsonl"]] {
        let ended = folder.run(arguments);
        assert_eq!(ended.code, Some(0), "{ended}");
    }
    // A long but valid result is printed.
    folder.write("day.jsonl", format!("{}{}", meta(), interval(86_400_000_000_000)));
    let ended = folder.run(&["report", "day.jsonl", "--csv"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(ended.out.lines().next().unwrap().split(',').count(), 3 + 86_400);
}

#[test]
fn a_result_with_more_paths_than_allowed_is_refused() {
    let folder = TestDir::new();
    let mut text = meta();
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
    let ended = refused(&folder, &["report", "paths.jsonl"]);
    assert!(ended.err.contains("more than 2000 paths"), "{ended}");
}

/// Returns every argument that names a file, and the kind of the file.
fn readers(name: &str) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(|word| word.replace("FILE", name)).collect();
    let all = [
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
    all.into_iter().map(words).collect()
}

/// Puts a file made by `make` at each place that one of the [`readers`] opens.
fn lay(folder: &TestDir, name: &str, make: &dyn Fn(&Path)) {
    let work = folder.work();
    for part in ["folder", "sweep", "study"] {
        std::fs::create_dir(work.join(format!("{name}.{part}"))).unwrap();
    }
    for ending in [
        "jsonl",
        "jsonl.zst",
        "toml",
        "pcap",
        "txt",
        "folder/x.jsonl",
        "sweep/sweep.json",
        "study/plan.toml",
    ] {
        make(&work.join(format!("{name}.{ending}")));
    }
    let traced = TWO_PATHS.replace(
        "rate = \"40 Mbit/s\"\ndelay = \"5 ms\"",
        &format!("rate = {{ trace = \"{name}.txt\" }}"),
    );
    assert_ne!(traced, TWO_PATHS);
    folder.write(&format!("{name}-trace.toml"), traced);
    let flow = format!(
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"trace\"\nmessages = \"{name}.txt\"\n"
    );
    folder.write(&format!("{name}-messages.toml"), format!("{TWO_PATHS}{flow}"));
    folder.write(
        &format!("{name}-plan.toml"),
        format!("name = \"p\"\nscenario = \"{name}.toml\"\n[[variants]]\nname = \"v\"\ntransport = \"tcp\"\n"),
    );
}

#[test]
fn no_reader_waits_for_a_fifo_or_reads_a_device() {
    let folder = TestDir::new();
    lay(&folder, "fifo", &|path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    });
    lay(&folder, "device", &|path| symlink("/dev/zero", path).unwrap());
    for (name, why) in [("fifo", "it is a FIFO"), ("device", "it is a device")] {
        for arguments in readers(name) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let ended = refused(&folder, &arguments);
            assert!(ended.err.contains(why), "{ended}");
        }
    }
}

#[test]
fn no_reader_accepts_an_oversized_file() {
    let folder = TestDir::new();
    // A sparse file without a byte on the disk.
    lay(&folder, "large", &|path| File::create(path).unwrap().set_len(4 << 30).unwrap());
    for arguments in readers("large") {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = refused(&folder, &arguments);
        let said = ["more than", "no capture", "not compressed with zstd"];
        assert!(said.iter().any(|said| ended.err.contains(said)), "{ended}");
    }
}

#[test]
fn the_limit_is_named_and_can_be_raised_and_lowered() {
    let folder = TestDir::new();
    folder.write("r.jsonl", RESULT);
    let with = |limit: &str| {
        let mut command = folder.towpath(&["report", "r.jsonl"]);
        folder.start(command.env("TOWPATH_MAX_INPUT", limit)).wait()
    };
    let ended = with("1 kB");
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("more than 1.00 kB"), "{ended}");
    assert_eq!(with("1GB").code, Some(0));
    let ended = with("much");
    assert!(ended.code == Some(2) && ended.err.contains("TOWPATH_MAX_INPUT is `much`"), "{ended}");
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
    let ended = refused(&folder, &["sweep", "plan.toml"]);
    assert!(ended.err.contains("expected at most 10000000"), "{ended}");
}

/// Terminal controls: title, C1, reordered text, and deletion.
const TERMINAL_ESCAPES: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}live\u{2069}\u{8}\u{7f}";

fn assert_harmless(text: &str, ended: &ProgramOutput) {
    let commands = |c: &char| {
        (c.is_control() && *c != '\n' && *c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(text.chars().find(commands), None, "{ended}");
}

#[test]
fn no_text_of_a_file_controls_the_terminal() {
    let folder = TestDir::new();
    let quoted = serde_json::to_string(TERMINAL_ESCAPES).unwrap();
    let quoted = &quoted[1..quoted.len() - 1];
    let mut result = String::new();
    for line in RESULT.lines() {
        // Every text of every record, except keywords of the format.
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        poison(&mut value);
        let _ = writeln!(result, "{value}");
    }
    folder.write("r.jsonl", &result);
    let strange = format!("{TERMINAL_ESCAPES}.jsonl");
    folder.write(&strange, &result);
    folder.write("no.jsonl", format!("{}{{\"type\":\"event\",\"kind\":\"{quoted}\"}}\n", meta()));
    let toml = format!(
        "name = \"t\"\n\"{}\" = 1\n[hosts.\"{}\"]\n",
        toml(TERMINAL_ESCAPES),
        toml(TERMINAL_ESCAPES)
    );
    folder.write("t.toml", toml + "# \u{202e}\n");
    folder.write("control.toml", format!("name = {TERMINAL_ESCAPES}\n"));
    for arguments in [
        &["report", "r.jsonl"][..],
        &["report", "r.jsonl", "--json"],
        &["report", "r.jsonl", "--csv"],
        &["report", &strange],
        &["report", "no.jsonl"],
        &["compare", "r.jsonl", &strange],
        &["compare", "r.jsonl", &strange, "--json"],
        &["scenarios", "check", "t.toml"],
        &["scenarios", "show", "t.toml"],
        &["scenarios", "check", "control.toml"],
        &["run", "t.toml"],
        &["run", TERMINAL_ESCAPES],
        &["sweep", "t.toml"],
        &["trace", "t.toml"],
    ] {
        let ended = folder.run(arguments);
        assert!(!ended.err.contains("panicked"), "{ended}");
        assert_harmless(&ended.out, &ended);
        assert_harmless(&ended.err, &ended);
    }
    // Programs that read JSON get the names unchanged.
    let ended = folder.run(&["report", &strange, "--json"]);
    assert_eq!(ended.json()[0]["file"].as_str().unwrap(), strange);
}

fn toml(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        let _ = write!(out, "\\u{:04x}", u32::from(c));
        out
    })
}

/// Adds terminal controls to every free text.
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
        serde_json::Value::Array(all) => all.iter_mut().for_each(poison),
        serde_json::Value::Object(all) => {
            let others = all.iter_mut().filter(|(name, _)| !KEYWORDS.contains(&name.as_str()));
            others.for_each(|(_, value)| poison(value));
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
    let ended = folder.run(&["report", "r.jsonl"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    let page = std::fs::read_to_string(folder.work().join("report.html")).unwrap();
    let injected = "<script>document.title = 'owned'</script>\
        <img src=\"data:,\" onerror=\"document.title = 'owned'\"/>\
        <svg onload=\"document.title = 'owned'\"></svg>\
        <iframe srcdoc=\"<script>parent.document.title = 'owned'</script>\"></iframe></body>";
    let poisoned = page.replace("</body>", injected);
    // Without the policy the script would run and the test would detect it.
    let open_to_all = poisoned.replace("http-equiv=\"Content-Security-Policy\"", "name=\"was\"");
    assert_ne!(open_to_all, poisoned);
    for (name, text, owned) in [("kept", &poisoned, false), ("open", &open_to_all, true)] {
        let name = format!("{name}.html");
        folder.write(&name, text);
        let opened = open(&folder, &browser, &folder.work().join(&name), 1_280);
        assert_eq!(opened.code, Some(0), "{}", opened.err);
        assert!(opened.out.contains("class=\"tools\""), "the page's own script did not run");
        assert_eq!(opened.out.contains("<title>owned"), owned, "{}", opened.out);
        assert_eq!(complaints(&opened).is_empty(), owned, "{:?}", complaints(&opened));
    }
}
