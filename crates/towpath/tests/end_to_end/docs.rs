//! Every command in the documentation works as described.
//!
//! In `README.md` and `docs/*.md`, each line of a block marked `sh` that starts with `towpath` is
//! run.
//!
//! A comment at its end can be `# exits N` for another exit code, or `# not run: REASON`. A line
//! that ends in `&` is a server: it runs in the background and prints its address.
//!
//! Lines that start with `cargo` must be listed below. Nothing else is allowed there.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::program::{ProgramOutput, TestDir, acquire_emulator, binary, is_long, skip, wait_for};

const RUN_TIMEOUT: Duration = Duration::from_secs(480);

/// Cargo commands that need no test: CI runs them, or they equal a line that is run.
const KNOWN_CARGO_COMMANDS: [&str; 10] = [
    "cargo run --release -- run wifi-cellular-handover",
    "cargo build --release",
    "cargo install --path crates/towpath",
    "cargo test",
    "cargo xtask test",
    "cargo xtask attack-tests",
    "cargo xtask specs",
    "cargo xtask tidy",
    "cargo xtask validate-random",
    "cargo bench",
];

#[derive(Debug, PartialEq, Eq)]
struct DocumentedCommand {
    /// Line number in the document, from 1.
    number: usize,
    text: String,
    plan: CommandPlan,
}

#[derive(Debug, PartialEq, Eq)]
enum CommandPlan {
    Run {
        exits: i32,
    },
    /// Runs in the background until the end of the document.
    Background,
    /// Not run; the document gives the reason.
    Leave,
    Cargo,
    Unknown(&'static str),
}

/// Returns the commands of a document.
fn commands(document: &str) -> Vec<DocumentedCommand> {
    let mut lines = Vec::new();
    let mut is_sh_block: Option<bool> = None;
    let mut continued: Option<(usize, String)> = None;
    for (index, line) in document.lines().enumerate() {
        let line = line.trim();
        if let Some(mark) = line.strip_prefix("```") {
            is_sh_block = if is_sh_block.is_some() { None } else { Some(mark.trim() == "sh") };
            continue;
        }
        if is_sh_block != Some(true) {
            continue;
        }
        let (number, mut text) = continued.take().unwrap_or((index + 1, String::new()));
        text.push_str(line);
        if let Some(unfinished) = text.strip_suffix('\\') {
            continued = Some((number, unfinished.to_owned()));
        } else if !text.is_empty() && !text.starts_with('#') {
            let plan = classify(&text);
            lines.push(DocumentedCommand { number, text, plan });
        }
    }
    lines
}

fn classify(text: &str) -> CommandPlan {
    let (command, comment) = text.rsplit_once(" #").unwrap_or((text, ""));
    let (command, comment) = (command.trim(), comment.trim());
    if let Some(reason) = comment.strip_prefix("not run:") {
        let has_reason = !reason.trim().is_empty();
        return if has_reason {
            CommandPlan::Leave
        } else {
            CommandPlan::Unknown("`not run:` needs a reason")
        };
    }
    if command == "cargo" || command.starts_with("cargo ") {
        let is_known = KNOWN_CARGO_COMMANDS.iter().any(|prefix| {
            command
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        return if is_known {
            CommandPlan::Cargo
        } else {
            CommandPlan::Unknown("not among the known calls of cargo")
        };
    }
    if !command.starts_with("towpath ") {
        return CommandPlan::Unknown("expected `towpath …`, `cargo …` or `# not run: REASON`");
    }
    if command.contains('…') || command.contains("...") {
        return CommandPlan::Unknown("a placeholder; expected a command that can be copied");
    }
    if command.ends_with(" &") {
        return CommandPlan::Background;
    }
    match comment.strip_prefix("exits ").map(str::parse) {
        Some(Ok(exits)) => CommandPlan::Run { exits },
        Some(Err(_)) => CommandPlan::Unknown("`exits` needs a number"),
        None => CommandPlan::Run { exits: 0 },
    }
}

/// Returns all documents with their names.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = fs::read_dir(root.join("docs")).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths.insert(0, root.join("README.md"));
    let read_document = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(path).ok()?))
    };
    paths.iter().filter_map(read_document).collect()
}

#[test]
fn the_documents_contain_only_known_kinds_of_commands() {
    let mut findings = Vec::new();
    for (name, document) in documents() {
        for line in commands(&document) {
            if let CommandPlan::Unknown(reason) = line.plan {
                findings.push(format!("{name}:{}: `{}`: {reason}", line.number, line.text));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Returns true if a run only missed its goodput, which depends on the machine's speed, or if the
/// result is marked as unreliable.
fn missed_only_goodput(output: &ProgramOutput) -> bool {
    let is_unreliable =
        [&output.out, &output.err].iter().any(|text| text.contains("unreliable timing: "));
    let mut missed = output.out.lines().filter(|line| line.starts_with("  ✗ ")).peekable();
    output.code == Some(1)
        && missed.peek().is_some()
        && missed.all(|line| is_unreliable || line.contains(".goodput "))
}

/// Runs all commands in one folder and in order, so that a line can use earlier files.
///
/// By default the README's; all documents' with `cargo xtask test --all`.
#[test]
#[expect(clippy::print_stderr, reason = "what a slow machine missed is said")]
fn every_documented_command_works_as_described() {
    let folder = TestDir::new();
    let link = folder.temporary().join("towpath");
    symlink(fs::canonicalize(binary()).unwrap(), link).unwrap();
    let path_variable = env::var_os("PATH").unwrap_or_default();
    let search_path: Vec<_> =
        [folder.temporary()].into_iter().chain(env::split_paths(&path_variable)).collect();
    let mut commands_run = BTreeSet::new();
    let document_count = if is_long() { usize::MAX } else { 1 };
    for (name, document) in documents().into_iter().take(document_count) {
        let mut servers = Vec::new();
        for line in commands(&document) {
            if line.plan == CommandPlan::Background {
                let program = line
                    .text
                    .rsplit_once(" #")
                    .map_or(line.text.as_str(), |(program_line, _)| program_line);
                let program = program.trim_end().trim_end_matches('&').trim();
                let mut command = folder.program("sh");
                // Replaces the shell, so that the server ends with the shell's process.
                command.args(["-c", &format!("exec {program}")]);
                command.env("PATH", env::join_paths(&search_path).unwrap());
                let server = folder.start(&mut command);
                let server_name = format!("the server of {name}:{}", line.number);
                wait_for(&server_name, || server.stderr().contains("listening").then_some(()));
                servers.push(server);
                continue;
            }
            let CommandPlan::Run { exits } = line.plan else { continue };
            if !commands_run.insert(line.text.clone()) {
                continue;
            }
            let Some(_permit) = acquire_emulator() else { return };
            let mut command = folder.program("sh");
            command.args(["-c", &line.text]).env("PATH", env::join_paths(&search_path).unwrap());
            let output = folder.start(&mut command).wait_at_most(RUN_TIMEOUT);
            if exits == 0 && missed_only_goodput(&output) {
                eprintln!(
                    "{name}:{}: this machine was too slow or too busy: {output}",
                    line.number
                );
                continue;
            }
            assert_eq!(output.code, Some(exits), "{name}:{}: {output}", line.number);
        }
    }
}

#[test]
fn commands_are_found_in_blocks_marked_sh_only() {
    let document = "towpath run a\n```toml\ntowpath run b\n```\n```sh\ntowpath run c\n\n# why\n\
        towpath lab d \\\n  -- ip a # exits 3\n```\n1. Then:\n   ```sh\n   towpath run e\n   ```\n";
    let found = commands(document);
    let texts: Vec<_> = found.iter().map(|line| (line.number, line.text.as_str())).collect();
    let expected =
        [(6, "towpath run c"), (9, "towpath lab d -- ip a # exits 3"), (14, "towpath run e")];
    assert_eq!(texts, expected);
    assert_eq!(found[1].plan, CommandPlan::Run { exits: 3 });
}

#[test]
fn unknown_commands_are_not_skipped() {
    assert_eq!(classify("towpath scenarios"), CommandPlan::Run { exits: 0 });
    assert_eq!(classify("towpath scenarios # a list"), CommandPlan::Run { exits: 0 });
    assert_eq!(classify("towpath lab two-links # not run: opens a shell"), CommandPlan::Leave);
    assert_eq!(classify("towpath server -p 5210 & # elsewhere"), CommandPlan::Background);
    assert_eq!(classify("cargo xtask test    # takes minutes"), CommandPlan::Cargo);
    assert_eq!(classify("cargo bench -p towpath-net"), CommandPlan::Cargo);
    for text in [
        "cargo publish",
        "cargo xtask testing",
        "towpath",
        "towpathology run a",
        "$ towpath run a",
        "towpath run … --json",
        "towpath run a # not run:",
        "towpath run a # exits badly",
        "sudo towpath run a",
    ] {
        assert!(matches!(classify(text), CommandPlan::Unknown(_)), "{text}: {:?}", classify(text));
    }
}

/// Runs the service file of docs/live.md, without its user and path, which a test does not have.
#[test]
fn the_service_file_starts_a_server_that_can_be_measured_towards() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/towpath-server.service");
    let unit = fs::read_to_string(unit).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let (program, options) = command.split_once(' ').unwrap();
    assert_eq!(program, "/usr/local/bin/towpath");
    assert!(options.starts_with("server --port 5210 "), "{options}");
    let mut options: Vec<&str> = options.split(' ').collect();
    options[2] = "0";
    options.extend(["-B", "127.0.0.1"]);
    let folder = TestDir::new();
    let server = folder.start(&mut folder.towpath(&options));
    let port = wait_for("the server", || {
        let stderr = server.stderr();
        let (_, rest) = stderr.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    let measure_options = ["-p", &port, "-t", "1", "--transport", "tcp,mpquic", "-q"];
    let output = folder.run(&[&["measure", "127.0.0.1"][..], &measure_options].concat());
    assert_eq!(output.code, Some(0), "{output}");
}

#[test]
fn the_service_file_confines_its_server() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/towpath-server.service");
    let folder = TestDir::new();
    let unit_path = folder.work().join("towpath-server.service");
    // An existing program is all that systemd checks.
    let text = fs::read_to_string(unit).unwrap().replace("/usr/local/bin/towpath", "/bin/true");
    fs::write(&unit_path, text).unwrap();
    let analyze = |verb: &[&str]| {
        let mut command = std::process::Command::new("systemd-analyze");
        command.args(verb).arg(&unit_path).output()
    };
    let Ok(verified) = analyze(&["verify", "--no-pager"]) else {
        skip("the_service_file_confines_its_server", "systemd-analyze is not installed");
        return;
    };
    let messages = String::from_utf8_lossy(&verified.stderr);
    assert!(
        verified.status.success() && !messages.contains("towpath-server.service:"),
        "{messages}"
    );
    // In tenths; docs/live.md states 1.3.
    let security =
        analyze(&["security", "--no-pager", "--offline=true", "--threshold=15"]).unwrap();
    assert!(security.status.success(), "{}", String::from_utf8_lossy(&security.stdout));
}
