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

use crate::program::{ProgramOutput, TestDir, binary, emulator, is_long, skip, wait_for};

const RUN_TIMEOUT: Duration = Duration::from_secs(480);

/// Cargo commands that need no test: CI runs them, or they equal a line that is run.
const CARGO: [&str; 10] = [
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
struct Line {
    /// Line number in the document, from 1.
    number: usize,
    text: String,
    plan: Plan,
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Run {
        exits: i32,
    },
    /// Runs in the background until the end of the document.
    Background,
    /// The document gives the reason.
    Leave,
    Cargo,
    Unknown(&'static str),
}

/// Returns the commands of a document.
fn commands(document: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut inside: Option<bool> = None;
    let mut held: Option<(usize, String)> = None;
    for (index, line) in document.lines().enumerate() {
        let line = line.trim();
        if let Some(mark) = line.strip_prefix("```") {
            inside = if inside.is_some() { None } else { Some(mark.trim() == "sh") };
            continue;
        }
        if inside != Some(true) {
            continue;
        }
        let (number, mut text) = held.take().unwrap_or((index + 1, String::new()));
        text.push_str(line);
        if let Some(more) = text.strip_suffix('\\') {
            held = Some((number, more.to_owned()));
        } else if !text.is_empty() && !text.starts_with('#') {
            let plan = plan(&text);
            lines.push(Line { number, text, plan });
        }
    }
    lines
}

fn plan(text: &str) -> Plan {
    let (command, comment) = text.rsplit_once(" #").unwrap_or((text, ""));
    let (command, comment) = (command.trim(), comment.trim());
    if let Some(reason) = comment.strip_prefix("not run:") {
        let given = !reason.trim().is_empty();
        return if given { Plan::Leave } else { Plan::Unknown("`not run:` needs a reason") };
    }
    if command == "cargo" || command.starts_with("cargo ") {
        let known = CARGO.iter().any(|known| {
            command.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        return if known {
            Plan::Cargo
        } else {
            Plan::Unknown("not among the known calls of cargo")
        };
    }
    if !command.starts_with("towpath ") {
        return Plan::Unknown("expected `towpath …`, `cargo …` or `# not run: REASON`");
    }
    if command.contains('…') || command.contains("...") {
        return Plan::Unknown("a placeholder; expected a command that can be copied");
    }
    if command.ends_with(" &") {
        return Plan::Background;
    }
    match comment.strip_prefix("exits ").map(str::parse) {
        Some(Ok(exits)) => Plan::Run { exits },
        Some(Err(_)) => Plan::Unknown("`exits` needs a number"),
        None => Plan::Run { exits: 0 },
    }
}

/// Returns all documents with their names.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let in_docs = fs::read_dir(root.join("docs")).into_iter().flatten().flatten();
    let mut paths: Vec<_> = in_docs.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    paths.sort();
    paths.insert(0, root.join("README.md"));
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(path).ok()?))
    };
    paths.iter().filter_map(read).collect()
}

#[test]
fn the_documents_contain_only_known_kinds_of_commands() {
    let mut findings = Vec::new();
    for (name, document) in documents() {
        for line in commands(&document) {
            if let Plan::Unknown(why) = line.plan {
                findings.push(format!("{name}:{}: `{}`: {why}", line.number, line.text));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Returns true if a run only missed its goodput, or if it is marked as degraded.
///
/// No test depends on the machine's speed.
fn missed_only_goodput(ended: &ProgramOutput) -> bool {
    let degraded = [&ended.out, &ended.err].iter().any(|text| text.contains("degraded run: "));
    let mut missed = ended.out.lines().filter(|line| line.starts_with("  ✗ ")).peekable();
    ended.code == Some(1)
        && missed.peek().is_some()
        && missed.all(|line| degraded || line.contains(".goodput "))
}

/// Runs all commands in one folder and in order, so that a line can use earlier files.
///
/// By default the README's; all documents' with `cargo xtask test --all`.
#[test]
#[expect(clippy::print_stderr, reason = "what a slow machine missed is said")]
fn every_documented_command_works_as_described() {
    let folder = TestDir::new();
    let place = folder.temporary().join("towpath");
    symlink(fs::canonicalize(binary()).unwrap(), place).unwrap();
    let others = env::var_os("PATH").unwrap_or_default();
    let search: Vec<_> =
        [folder.temporary()].into_iter().chain(env::split_paths(&others)).collect();
    let mut done = BTreeSet::new();
    let count = if is_long() { usize::MAX } else { 1 };
    for (name, document) in documents().into_iter().take(count) {
        let mut beside = Vec::new();
        for line in commands(&document) {
            if line.plan == Plan::Background {
                let program = line.text.rsplit_once(" #").map_or(line.text.as_str(), |(it, _)| it);
                let program = program.trim_end().trim_end_matches('&').trim();
                let mut command = folder.program("sh");
                // Replaces the shell, so that the server ends with the shell's process.
                command.args(["-c", &format!("exec {program}")]);
                command.env("PATH", env::join_paths(&search).unwrap());
                let running = folder.start(&mut command);
                let what = format!("the server of {name}:{}", line.number);
                wait_for(&what, || running.stderr().contains("listening").then_some(()));
                beside.push(running);
                continue;
            }
            let Plan::Run { exits } = line.plan else { continue };
            if !done.insert(line.text.clone()) {
                continue;
            }
            let Some(_serial) = emulator() else { return };
            let mut command = folder.program("sh");
            command.args(["-c", &line.text]).env("PATH", env::join_paths(&search).unwrap());
            let ended = folder.start(&mut command).wait_at_most(RUN_TIMEOUT);
            if exits == 0 && missed_only_goodput(&ended) {
                eprintln!("{name}:{}: this machine was too slow or too busy: {ended}", line.number);
                continue;
            }
            assert_eq!(ended.code, Some(exits), "{name}:{}: {ended}", line.number);
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
    assert_eq!(found[1].plan, Plan::Run { exits: 3 });
}

#[test]
fn unknown_commands_are_not_skipped() {
    assert_eq!(plan("towpath scenarios"), Plan::Run { exits: 0 });
    assert_eq!(plan("towpath scenarios # a list"), Plan::Run { exits: 0 });
    assert_eq!(plan("towpath lab two-links # not run: opens a shell"), Plan::Leave);
    assert_eq!(plan("towpath server -p 5210 & # elsewhere"), Plan::Background);
    assert_eq!(plan("cargo xtask test    # takes minutes"), Plan::Cargo);
    assert_eq!(plan("cargo bench -p towpath-net"), Plan::Cargo);
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
        assert!(matches!(plan(text), Plan::Unknown(_)), "{text}: {:?}", plan(text));
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
        let said = server.stderr();
        let (_, rest) = said.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    let how = ["-p", &port, "-t", "1", "--transport", "tcp,mpquic", "-q"];
    let ended = folder.run(&[&["measure", "127.0.0.1"][..], &how].concat());
    assert_eq!(ended.code, Some(0), "{ended}");
}

#[test]
fn the_service_file_confines_its_server() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/towpath-server.service");
    let folder = TestDir::new();
    let here = folder.work().join("towpath-server.service");
    // An existing program is all that systemd checks.
    let text = fs::read_to_string(unit).unwrap().replace("/usr/local/bin/towpath", "/bin/true");
    fs::write(&here, text).unwrap();
    let ask = |verb: &[&str]| {
        let mut analyze = std::process::Command::new("systemd-analyze");
        analyze.args(verb).arg(&here).output()
    };
    let Ok(verified) = ask(&["verify", "--no-pager"]) else {
        skip("the_service_file_confines_its_server", "systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("towpath-server.service:"), "{said}");
    // In tenths; docs/live.md states 1.3.
    let rated = ask(&["security", "--no-pager", "--offline=true", "--threshold=15"]).unwrap();
    assert!(rated.status.success(), "{}", String::from_utf8_lossy(&rated.stdout));
}
