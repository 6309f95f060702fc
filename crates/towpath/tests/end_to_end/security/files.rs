//! Untrusted files, beyond the explicit sentences of SECURITY.md.
//!
//! `captures` covers captures of many items, `pages` browsers and terminals, `lines` forged lines on
//! terminals, `outputs` written files, `hosts` the actions of `setup` and `doctor` as root, `labs`
//! leaks from a namespace.

mod captures;
mod hosts;
mod labs;
mod lines;
mod outputs;
mod pages;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::fixture::times;
use crate::program::{ProgramOutput, TWO_PATHS, TestDir, binary, missing, skip};

/// Valid result, one record a line.
const RESULT: &str = include_str!("../../../../towpath-result/tests/fixtures/result-v1.jsonl");
/// Address space of any reader in kB, including the program itself.
const MAX_MEMORY_KB: u32 = 1_500_000;
/// Timeout, far longer than any refusal takes on a busy machine.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the command with little memory. Fails unless the command exits with code 0, 1 or 2 and
/// without a panic.
fn run_to_end(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    run_to_end_after(folder, arguments, "")
}

/// Runs the command as [`run_to_end`] does, after a line of shell.
fn run_to_end_after(folder: &TestDir, arguments: &[&str], shell_line: &str) -> ProgramOutput {
    let script = format!("ulimit -v {MAX_MEMORY_KB}; {shell_line}\nexec \"$0\" \"$@\"");
    let mut command = folder.program("sh");
    command.args(["-c", &script]).arg(binary()).args(arguments);
    let output = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert!(!output.err.contains("panicked"), "{output}");
    assert!(output.code.is_some_and(|code| code <= 2), "{output}");
    output
}

/// Runs the command as [`run_to_end`] does, and expects a refusal with a text.
fn assert_refused(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    let output = run_to_end(folder, arguments);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("error: "), "{output}");
    output
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// Scenario of two hosts, one path and a small transfer.
const SMALL_SCENARIO: &str = "name = \"small\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
    rate = \"10 Mbit/s\"\n[[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"bulk\"\nsize = \"10 KB\"\n";
/// Sweep plan for that scenario.
const PLAN: &str = "name = \"small\"\nscenario = \"scenario.toml\"\nseeds = 1\n[[variants]]\n\
    name = \"v\"\ntransport = \"tcp\"\n";

/// Creates a study in `study`, and runs its sweep into `rows`.
fn create_study(folder: &TestDir) {
    fs::create_dir(folder.work().join("study")).unwrap();
    for (name, text) in
        [("scenario.toml", SMALL_SCENARIO), ("plan.toml", PLAN), ("expected.toml", "")]
    {
        folder.write(&format!("study/{name}"), text);
    }
    let output = folder.run(&["sweep", "study/plan.toml", "--out", "rows"]);
    assert_eq!(output.code, Some(0), "{output}");
}

/// Returns the path of the file with the rows of [`create_study`].
fn part_path(folder: &TestDir) -> String {
    let names = crate::program::names(&folder.work().join("rows"));
    let part = names.into_iter().find(|name| name.ends_with(".parquet")).unwrap();
    format!("rows/{part}")
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(path).status().unwrap().success());
}

/// F1: "only regular files are read; a FIFO … is refused at once", for every option that names a
/// file.
#[test]
fn a_fifo_instead_of_a_secret_or_certificate_is_refused() {
    let folder = TestDir::new();
    make_fifo(&folder.work().join("f"));
    let commands = [
        "server -B 127.0.0.1 -p 0 --secret-file f",
        "server -B 127.0.0.1 -p 0 --cert f --key f",
        "measure 127.0.0.1 -p 1 --secret-file f",
        "doctor --connect 127.0.0.1:1 --secret-file f",
    ];
    let commands = commands.map(|line| (line, folder.start(&mut folder.towpath(&words(line)))));
    let mut not_refused = Vec::new();
    for (line, mut running) in commands {
        let deadline = std::time::Instant::now() + REFUSAL_TIMEOUT / 4;
        let code = loop {
            match running.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if std::time::Instant::now() > deadline => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if code != Some(2) || !running.stderr().contains("FIFO") {
            not_refused.push(format!("{line}: {code:?}: {}", running.stderr()));
        }
    }
    assert!(not_refused.is_empty(), "not refused:\n{}", not_refused.join("\n"));
}

/// F1: sockets, symbolic link loops and folders as parts of a sweep or study.
#[test]
fn non_files_in_sweep_and_study_directories_are_refused() {
    let folder = TestDir::new();
    create_study(&folder);
    let part = part_path(&folder);
    let cases = [
        ("study/expected.toml", "reproduce ./study --redraw -o out"),
        ("study/plan.toml", "reproduce ./study --redraw -o out"),
        ("study/plan.toml", "sweep study/plan.toml"),
        ("study/scenario.toml", "sweep study/plan.toml"),
        ("rows/sweep.json", "sweep status rows"),
        ("rows/sweep.json", "sweep verify rows"),
        (part.as_str(), "sweep status rows"),
        (part.as_str(), "sweep study/plan.toml --out rows"),
    ];
    for kind in ["fifo", "socket", "loop", "device", "folder"] {
        for (name, line) in cases {
            let path = folder.work().join(name);
            let moved_away = folder.work().join("kept");
            fs::rename(&path, &moved_away).unwrap();
            match kind {
                "fifo" => make_fifo(&path),
                "socket" => drop(UnixListener::bind(&path).unwrap()),
                "loop" => symlink(path.file_name().unwrap(), &path).unwrap(),
                "device" => symlink("/dev/zero", &path).unwrap(),
                _ => fs::create_dir(&path).unwrap(),
            }
            assert_refused(&folder, &words(line));
            if kind == "folder" { fs::remove_dir(&path) } else { fs::remove_file(&path) }.unwrap();
            fs::rename(moved_away, path).unwrap();
        }
    }
}

/// F1, F2: files of `/proc` and `/sys` look regular, and are endless or of unknown length.
#[test]
fn links_to_files_of_the_kernel_end() {
    let folder = TestDir::new();
    let targets =
        ["/proc/self/mem", "/proc/self/pagemap", "/proc/kpagecount", "/proc/self/clear_refs"];
    for (number, target) in targets.into_iter().enumerate() {
        let name = format!("{number}.jsonl");
        symlink(target, folder.work().join(&name)).unwrap();
        for verb in
            ["report", "trace", "scenarios check", "sweep", "measure --server auto --servers"]
        {
            let line = format!("{verb} ./{name}");
            assert_refused(&folder, &words(&line));
        }
    }
}
/// Returns a zstd block that holds a text without compression (RFC 8878 §3.1.1.2).
fn raw_zstd_block(text: &[u8]) -> Vec<u8> {
    let size = u32::try_from(text.len()).unwrap();
    let mut block = ((size << 3) | 1).to_le_bytes()[..3].to_vec();
    block.extend(text);
    block
}

/// F2, F3: frame headers with extreme windows or sizes; frames that are skippable, empty or
/// numerous.
#[test]
fn the_size_declared_by_a_zstd_frame_allocates_nothing() {
    let folder = TestDir::new();
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let text = raw_zstd_block(RESULT.as_bytes());
    let frame = |header: &[u8], text: &[u8]| [&magic[..], header, text].concat();
    let skippable_frame = |size: u32| [&[0x50, 0x2a, 0x4d, 0x18][..], &size.to_le_bytes()].concat();
    let empty = frame(&[0, 0x38], &[1, 0, 0]);
    let mut files = vec![
        ("skip", [skippable_frame(u32::MAX), text.clone()].concat()),
        ("skips", [skippable_frame(0).repeat(500_000), frame(&[0, 0x38], &text)].concat()),
        ("empty", empty.repeat(200_000)),
        ("size", frame(&[&[0xe0][..], &u64::MAX.to_le_bytes()].concat(), &text)),
        ("gigabyte", frame(&[&[0xe0][..], &(1_u64 << 30).to_le_bytes()].concat(), &text)),
        ("dictionary", frame(&[0x03, 0x38, 0xff, 0xff, 0xff, 0xff], &text)),
    ];
    for (name, window) in [("w-all", 0xff), ("w-terabytes", 0xf8), ("w-2g", 0xa8), ("w-128m", 0x88)]
    {
        files.push((name, frame(&[0, window], &text)));
    }
    for (name, file) in files {
        let name = format!("{name}.jsonl.zst");
        folder.write(&name, file);
        // The decoder may read a frame if its memory suffices, and refuses it otherwise.
        run_to_end_after(&folder, &["report", &name], "ulimit -v 600000");
    }
}

/// F2, F3: empty blocks of three bytes each, without any text.
#[test]
fn a_sparse_terabyte_of_empty_blocks_ends() {
    let folder = TestDir::new();
    folder.write("r.jsonl.zst", [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38]);
    let file = File::options().write(true).open(folder.work().join("r.jsonl.zst")).unwrap();
    file.set_len(4 << 40).unwrap();
    let mut command = folder.towpath(&["report", "r.jsonl.zst"]);
    command.env("TOWPATH_MAX_INPUT", "16MB");
    let output = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert_eq!(output.code, Some(2), "{output}");
}

/// F3: "nothing hangs": a small sparse capture whose records are empty.
#[test]
fn a_sparse_terabyte_of_empty_packets_ends() {
    let folder = TestDir::new();
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101];
    folder.write("c.pcap", header.map(u32::to_le_bytes).concat());
    let file = File::options().write(true).open(folder.work().join("c.pcap")).unwrap();
    file.set_len(4 << 40).unwrap();
    let mut command = folder.towpath(&["trace", "c.pcap"]);
    // A slow reader would have read gigabytes by now.
    let output = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert!(output.code.is_some_and(|code| code <= 2), "{output}");
}

/// Returns a pcapng block.
fn pcapng_block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let size = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
    [&kind.to_le_bytes()[..], &size, &body, &size].concat()
}

fn pcapng_option(code: u16, value: &[u8]) -> Vec<u8> {
    let size = u16::try_from(value.len()).unwrap();
    let mut option = [&code.to_le_bytes()[..], &size.to_le_bytes(), value].concat();
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

/// Returns a section header block with options.
fn section_block(options: &[u8]) -> Vec<u8> {
    let fixed = [0x1a2b_3c4d_u32.to_le_bytes(), [1, 0, 0, 0], [0xff; 4], [0xff; 4]].concat();
    pcapng_block(0x0a0d_0d0a, &[&fixed[..], options].concat())
}

/// Returns an interface block for raw IP, with options.
fn interface_block(options: &[u8]) -> Vec<u8> {
    pcapng_block(1, &[&[101, 0, 0, 0, 0, 0, 0, 0][..], options].concat())
}

fn packet_block(time: [u32; 2], captured: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let fields = [0, time[0], time[1], captured, length].map(u32::to_le_bytes).concat();
    pcapng_block(6, &[&fields[..], data].concat())
}

/// Returns a SYN between two addresses derived from a number.
fn syn_packet(number: u32) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    ip.extend((0x0a00_0000 + number).to_be_bytes());
    ip.extend([10, 255, 255, 255]);
    ip.extend((number as u16).to_be_bytes());
    ip.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
    ip
}

/// F3: lengths, times and resolutions of captures, at their bounds and beyond.
#[test]
fn no_number_of_a_capture_panics_or_hangs() {
    let folder = TestDir::new();
    let mut files = Vec::new();
    let header_blocks = [section_block(&[]), interface_block(&[])].concat();
    for (name, size) in [("zero", 0_u32), ("one", 1), ("twelve", 12), ("huge", !3)] {
        let odd_block = [6_u32.to_le_bytes(), size.to_le_bytes()].concat();
        files.push((name.to_owned(), [header_blocks.clone(), odd_block.repeat(1_000)].concat()));
    }
    for captured in [0, 41, u32::MAX] {
        let packet = packet_block([0, 1], captured, &syn_packet(1));
        files.push((format!("captured-{captured}"), [header_blocks.clone(), packet].concat()));
    }
    for resolution in [0_u8, 9, 18, 19, 20, 63, 127, 128, 191, 192, 255] {
        for offset in [i64::MIN, -1, i64::MAX] {
            let options =
                [pcapng_option(9, &[resolution]), pcapng_option(14, &offset.to_le_bytes())]
                    .concat();
            let packets = [[u32::MAX; 2], [0, 0], [0x7fff_ffff, 0], [u32::MAX; 2]];
            let packets = packets.map(|time| packet_block(time, 40, &syn_packet(1))).concat();
            let file = [section_block(&[]), interface_block(&options), packets].concat();
            files.push((format!("time-{resolution}-{offset}"), file));
        }
    }
    files.push(("sections".to_owned(), section_block(&[]).repeat(200_000)));
    files.push((
        "interfaces".to_owned(),
        [section_block(&[]), interface_block(&[]).repeat(200_000)].concat(),
    ));
    let step = files.len().div_ceil(times(20, 60));
    for (name, file) in files.into_iter().step_by(step) {
        folder.write("c.pcapng", &file);
        let output = run_to_end(&folder, &["trace", "c.pcapng", "-o", "c.html"]);
        assert!(!output.out.contains("NaN") && !output.out.contains(" inf"), "{name}: {output}");
    }
}

/// F2: "captures are read as a stream": the state kept for them is also bounded.
#[test]
fn a_capture_of_many_connections_takes_little_memory() {
    let folder = TestDir::new();
    let mut file = [section_block(&[]), interface_block(&[])].concat();
    for number in 0..u32::try_from(times(40_000, 1_000_000)).unwrap() {
        file.extend(packet_block([0, number], 40, &syn_packet(number)));
    }
    folder.write("c.pcapng", file);
    let output = run_to_end_after(&folder, &["trace", "c.pcapng"], "ulimit -v 1000000");
    assert_eq!(output.code, Some(0), "{output}");
}

/// Collects the JSON pointers of all numbers in a record.
fn collect_number_pointers(value: &Value, pointer: &str, pointers: &mut Vec<String>) {
    match value {
        Value::Number(_) => pointers.push(pointer.to_owned()),
        Value::Array(children) => {
            for (index, value) in children.iter().enumerate() {
                collect_number_pointers(value, &format!("{pointer}/{index}"), pointers);
            }
        }
        Value::Object(children) => {
            for (name, value) in children {
                collect_number_pointers(
                    value,
                    &format!("{pointer}/{}", name.replace('/', "~1")),
                    pointers,
                );
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// F3: each number of a valid result in turn, at the bounds of its type and others.
#[test]
fn no_number_of_a_result_panics_or_hangs() {
    const VALUES: [&str; 8] = [
        "18446744073709551615",
        "9223372036854775808",
        "4294967296",
        "-1",
        "-0.0",
        "1e308",
        "5e-324",
        "1e999",
    ];
    let folder = TestDir::new();
    let lines: Vec<Value> =
        RESULT.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut cases = Vec::new();
    for (line, value) in lines.iter().enumerate() {
        // One record of each kind is enough; the last has the most content.
        let kind = &value["type"];
        if lines[line + 1..].iter().any(|later_line| &later_line["type"] == kind) {
            continue;
        }
        let mut pointers = Vec::new();
        collect_number_pointers(value, "", &mut pointers);
        cases.extend(
            pointers.into_iter().flat_map(|pointer| VALUES.map(|n| (line, pointer.clone(), n))),
        );
    }
    assert!(cases.len() > 500, "{}", cases.len());
    let step = cases.len().div_ceil(times(50, 2_000));
    // An odd step reaches every value.
    for (line, pointer, number) in cases.into_iter().step_by(step | 1) {
        let mut changed = lines.clone();
        *changed[line].pointer_mut(&pointer).unwrap() = Value::from("@");
        let changed: Vec<_> = changed.iter().map(Value::to_string).collect();
        folder.write("r.jsonl", changed.join("\n").replace("\"@\"", number) + "\n");
        run_to_end(&folder, &["report", "r.jsonl", "--csv"]);
        run_to_end(&folder, &["compare", "r.jsonl", "r.jsonl", "--json"]);
    }
}

/// F3: "a wrong value is an error that names its place": unclosed brackets in each language.
#[test]
fn deep_nesting_is_an_error_everywhere() {
    let folder = TestDir::new();
    create_study(&folder);
    let depth = 100_000;
    let meta = RESULT.lines().next().unwrap();
    let detail = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"\",\"detail\":";
    for (name, text) in [
        ("array.jsonl", "[".repeat(depth)),
        ("detail.jsonl", format!("{meta}\n{detail}{}\n{meta}\n", "{\"a\":".repeat(depth))),
        (
            "unknown.jsonl",
            format!("{meta}\n{{\"type\":\"event\",\"x\":{}\n{meta}\n", "[".repeat(depth)),
        ),
    ] {
        folder.write(name, text);
        assert_refused(&folder, &["report", name]);
    }
    folder.write("rows/sweep.json", "{\"plan\":".repeat(depth));
    assert_refused(&folder, &["sweep", "status", "rows"]);
    for text in [
        format!("a = {}", "[".repeat(depth)),
        format!("a = {}", "{b = ".repeat(depth)),
        format!("{}a = 1", "a.".repeat(depth)),
        format!("[{}a]", "a.".repeat(depth)),
    ] {
        for name in ["s.toml", "study/scenario.toml", "study/expected.toml", "study/plan.toml"] {
            let original = fs::read(folder.work().join(name)).unwrap_or_default();
            folder.write(name, &text);
            let line = match name {
                "s.toml" => "scenarios check ./s.toml",
                "study/expected.toml" => "reproduce ./study -o out",
                _ => "sweep study/plan.toml --out rows-2",
            };
            assert_refused(&folder, &words(line));
            folder.write(name, original);
        }
    }
}

/// F3: invalid UTF-8, duplicate names, and empty lines.
#[test]
fn invalid_utf8_and_duplicate_keys_are_errors() {
    let folder = TestDir::new();
    let empty_lines = "\n".repeat(times(2_000_000, 14_000_000));
    let (meta_line, other_lines) = RESULT.split_at(RESULT.find('\n').unwrap() + 1);
    let duplicate_key = meta_line.replacen("\"schema\":1", "\"schema\":1,\"schema\":1", 1);
    assert_ne!(duplicate_key, meta_line);
    let marked_bytes = |text: &str| text.replace("wifi", "\u{1}").into_bytes();
    let invalid_utf8 = |text: &str| {
        marked_bytes(text).iter().map(|b| if *b == 1 { 0xff } else { *b }).collect::<Vec<u8>>()
    };
    for (name, content, codes) in [
        ("bytes.jsonl", invalid_utf8(RESULT), &[2][..]),
        ("twice.jsonl", format!("{duplicate_key}{other_lines}").into_bytes(), &[2]),
        ("again.jsonl", format!("{meta_line}{RESULT}").into_bytes(), &[2]),
        ("empty.jsonl", empty_lines.clone().into_bytes(), &[2]),
        ("bytes.toml", invalid_utf8(TWO_PATHS), &[2]),
        ("twice.toml", format!("{TWO_PATHS}[hosts.phone]\n").into_bytes(), &[2]),
        ("empty.toml", empty_lines.into_bytes(), &[2]),
        ("mark.toml", format!("\u{feff}{TWO_PATHS}").into_bytes(), &[0, 2]),
    ] {
        folder.write(name, content);
        let verb = if name.ends_with("jsonl") { "report" } else { "scenarios check" };
        let line = format!("{verb} ./{name}");
        let output = run_to_end(&folder, &words(&line));
        assert!(codes.contains(&output.code.unwrap()), "{output}");
    }
}

/// F2: an invalid limit is an error and never means "unlimited".
#[test]
fn an_invalid_limit_never_means_unlimited() {
    let folder = TestDir::new();
    folder.write("r.jsonl", RESULT);
    folder.write("s.toml", TWO_PATHS);
    for limit in [
        "",
        " ",
        "0",
        "-1",
        "-1 GB",
        "NaN",
        "inf",
        "1e308 GB",
        "18446744073709551615",
        "0x10",
        "1 EB",
        "99999999999999999999 GB",
        "1GB;2GB",
        "1GB 2GB",
        "\u{1b}[2J",
        "\u{ff11}GB",
        "1.5.5 MB",
    ] {
        for (line, code) in [("report r.jsonl --json", 2), ("scenarios check ./s.toml", 2)] {
            let mut command = folder.towpath(&words(line));
            let output = folder.start(command.env("TOWPATH_MAX_INPUT", limit)).wait();
            assert!(!output.err.contains("panicked") && !output.err.contains('\u{1b}'), "{output}");
            assert_eq!(output.code, Some(code), "`{limit}`: {output}");
        }
    }
}

/// F3: a list of servers is untrusted; each line costs this host only a little.
#[test]
fn a_list_of_many_servers_needs_no_more_than_there_is() {
    let folder = TestDir::new();
    let mut list = String::new();
    for number in 0..3_000 {
        let _ = writeln!(list, "127.1.{}.{}:1", number / 250, number % 250 + 1);
    }
    folder.write("list.txt", list);
    let line = "measure --server auto --servers list.txt -t 1";
    let output = run_to_end_after(&folder, &words(line), "ulimit -n 256");
    assert_eq!(output.code, Some(2), "{output}");
}

/// Runs a script as root of new user, network and mount namespaces, with `$TOWPATH`. Returns `None`
/// without namespaces.
fn run_as_root(test: &str, folder: &TestDir, script: &str) -> Option<ProgramOutput> {
    if let Some(reason) = missing("ip").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    let script = format!("mount -t tmpfs none /var/lib; ip link set lo up\n{script}");
    let mut command = folder.program("unshare");
    command.args(["-Urnm", "sh", "-ec", &script]).env("TOWPATH", binary());
    Some(folder.start(&mut command).wait())
}
