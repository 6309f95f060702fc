//! Every command in the documentation works as described.
//!
//! In `README.md` and below `docs/`, each line of a block marked `sh` that starts with `towpath` is
//! run.
//!
//! A comment at its end can be `# exits N` for another exit code, or `# not run: REASON`. A line
//! that ends in `&` is a server: it runs in the background and prints its address.
//!
//! A block marked `text` directly below is the output of the last command of the block, on standard
//! output or standard error; [`crate::transcript`] compares them. A block below
//! `<!-- file: NAME -->` is written to that file first.
//!
//! Lines that start with `cargo` must be listed below. Nothing else is allowed there.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::program::{
    ProgramOutput, Running, TestDir, acquire_emulator, binary, is_long, skip, wait_for,
};
use crate::transcript::{compare, compare_exactly};

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
    /// Output that the document shows.
    sample: Option<Vec<String>>,
}

/// Step of a document, in order.
#[derive(Debug, PartialEq, Eq)]
enum DocumentStep {
    /// File that the reader is told to write.
    File {
        name: String,
        text: String,
    },
    Command(DocumentedCommand),
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

/// Fenced block of a document.
#[derive(Debug)]
struct Block<'a> {
    language: &'a str,
    /// Last line before the block that is not empty; the fence if that is a block's end.
    before: &'a str,
    /// Line number of the first line, from 1.
    number: usize,
    lines: Vec<&'a str>,
}

fn blocks(document: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut before = "";
    for (index, line) in document.lines().enumerate() {
        let line = line.trim_end();
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => {
                let language = language.trim();
                open = Some(Block { language, before, number: index + 2, lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push(line),
            (None, None) => {}
        }
        if !line.is_empty() {
            before = line.trim();
        }
    }
    blocks
}

/// Returns the commands and files of a document.
fn steps(document: &str) -> Vec<DocumentStep> {
    let mut steps = Vec::new();
    let mut is_below_commands = false;
    for block in blocks(document) {
        let file =
            block.before.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(name) = file {
            let text = block.lines.join("\n") + "\n";
            steps.push(DocumentStep::File { name: name.to_owned(), text });
        } else if block.language == "sh" {
            steps.extend(commands(&block).into_iter().map(DocumentStep::Command));
        } else if block.language == "text"
            && is_below_commands
            && block.before == "```"
            && let Some(DocumentStep::Command(command)) = steps.last_mut()
        {
            command.sample = Some(block.lines.iter().map(|&line| line.to_owned()).collect());
        }
        is_below_commands = block.language == "sh";
    }
    steps
}

fn commands(block: &Block<'_>) -> Vec<DocumentedCommand> {
    let mut commands = Vec::new();
    let mut continued: Option<(usize, String)> = None;
    for (index, line) in block.lines.iter().enumerate() {
        let (number, mut text) = continued.take().unwrap_or((block.number + index, String::new()));
        text.push_str(line.trim());
        if let Some(unfinished) = text.strip_suffix('\\') {
            continued = Some((number, unfinished.to_owned()));
        } else if !text.is_empty() && !text.starts_with('#') {
            let plan = classify(&text);
            commands.push(DocumentedCommand { number, text, plan, sample: None });
        }
    }
    commands
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

/// Documents that are read first, and that the quick tests cover.
const FIRST_DOCUMENTS: [&str; 3] = ["README.md", "docs/tutorial.md", "docs/reading-results.md"];

/// Returns all documents with their names, [`FIRST_DOCUMENTS`] first.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names: Vec<String> = FIRST_DOCUMENTS.map(str::to_owned).to_vec();
    let mut folders = vec!["docs".to_owned()];
    let mut others = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap().flatten() {
            let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                folders.push(name);
            } else if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                others.push(name);
            }
        }
    }
    others.retain(|name| !names.contains(name));
    others.sort();
    names.extend(others);
    let read_document = |name: String| {
        let text = fs::read_to_string(root.join(&name)).unwrap();
        (name, text)
    };
    names.into_iter().map(read_document).collect()
}

fn all_commands(document: &str) -> impl Iterator<Item = DocumentedCommand> {
    steps(document).into_iter().filter_map(|step| match step {
        DocumentStep::Command(command) => Some(command),
        DocumentStep::File { .. } => None,
    })
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

/// Folder in which the commands of the documents run.
struct Documented {
    folder: TestDir,
    search_path: OsString,
    commands_run: BTreeSet<String>,
}

impl Documented {
    fn new() -> Self {
        let folder = TestDir::new();
        let link = folder.temporary().join("towpath");
        symlink(fs::canonicalize(binary()).unwrap(), link).unwrap();
        let path_variable = env::var_os("PATH").unwrap_or_default();
        let search_path: Vec<_> =
            [folder.temporary()].into_iter().chain(env::split_paths(&path_variable)).collect();
        let search_path = env::join_paths(search_path).unwrap();
        Self { folder, search_path, commands_run: BTreeSet::new() }
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = self.folder.program("sh");
        command.args(["-c", text]).env("PATH", &self.search_path);
        command
    }

    /// Starts a server of a document and waits until it listens.
    fn start_server(&self, name: &str, line: &DocumentedCommand) -> Running {
        let text = line.text.rsplit_once(" #").map_or(line.text.as_str(), |(program, _)| program);
        let program = text.trim_end().trim_end_matches('&').trim();
        // Replaces the shell, so that the server ends with the shell's process.
        let mut command = self.shell(&format!("exec {program}"));
        let server = self.folder.start(&mut command);
        let server_name = format!("the server of {name}:{}", line.number);
        wait_for(&server_name, || server.stderr().contains("listening").then_some(()));
        server
    }

    /// Runs all commands of a document; returns false if the machine cannot emulate.
    fn run_document(&mut self, name: &str, document: &str) -> bool {
        let mut servers = Vec::new();
        for step in steps(document) {
            match step {
                DocumentStep::File { name, text } => self.folder.write(&name, text),
                DocumentStep::Command(line) => match line.plan {
                    CommandPlan::Background => servers.push(self.start_server(name, &line)),
                    CommandPlan::Run { exits } if !self.run(name, &line, exits) => return false,
                    CommandPlan::Run { .. }
                    | CommandPlan::Leave
                    | CommandPlan::Cargo
                    | CommandPlan::Unknown(_) => {}
                },
            }
        }
        true
    }

    /// Runs a command and compares its exit code and its output; returns false if the machine cannot
    /// emulate.
    #[expect(clippy::print_stderr, reason = "reports what a slow machine missed")]
    fn run(&mut self, name: &str, line: &DocumentedCommand, exits: i32) -> bool {
        if !self.commands_run.insert(line.text.clone()) && line.sample.is_none() {
            return true;
        }
        let Some(_permit) = acquire_emulator() else { return false };
        let output = self.folder.start(&mut self.shell(&line.text)).wait_at_most(RUN_TIMEOUT);
        if exits == 0 && missed_only_goodput(&output) {
            eprintln!("{name}:{}: this machine was too slow or too busy: {output}", line.number);
            return true;
        }
        assert_eq!(output.code, Some(exits), "{name}:{}: {output}", line.number);
        if let Some(sample) = &line.sample {
            let is_simulated = line.text.contains("--world sim");
            let compare = if is_simulated { compare_exactly } else { compare };
            if let Err(error) = compare(sample, &output.out)
                && compare(sample, &output.err).is_err()
            {
                panic!("{name}:{}: `{}`: {error}\n{output}", line.number, line.text);
            }
        }
        true
    }
}

/// Runs all commands in one folder and in order, so that a line can use earlier files.
///
/// By default those of [`FIRST_DOCUMENTS`]; all documents' with `cargo xtask test --all`.
#[test]
fn every_documented_command_works_as_described() {
    let mut documented = Documented::new();
    let document_count = if is_long() { usize::MAX } else { FIRST_DOCUMENTS.len() };
    for (name, document) in documents().into_iter().take(document_count) {
        let needs_feature = name == COLLECTOR_GUIDE && !cfg!(feature = "collect");
        if !needs_feature && !documented.run_document(&name, &document) {
            return;
        }
    }
}

/// Guide whose commands only builds with the feature `collect` have.
const COLLECTOR_GUIDE: &str = "docs/guides/collector.md";

#[cfg(feature = "collect")]
#[test]
fn the_guide_of_the_collector_works_in_an_empty_folder() {
    let document = documents().into_iter().find(|(name, _)| name == COLLECTOR_GUIDE);
    let (name, document) = document.expect("the guide exists");
    Documented::new().run_document(&name, &document);
}

#[test]
fn commands_are_found_in_blocks_marked_sh_only() {
    let document = "towpath run a\n```toml\ntowpath run b\n```\n```sh\ntowpath run c\n\n# why\n\
        towpath lab d \\\n  -- ip a # exits 3\n```\n1. Then:\n   ```sh\n   towpath run e\n   ```\n";
    let found: Vec<_> = all_commands(document).collect();
    let texts: Vec<_> = found.iter().map(|line| (line.number, line.text.as_str())).collect();
    let expected =
        [(6, "towpath run c"), (9, "towpath lab d -- ip a # exits 3"), (14, "towpath run e")];
    assert_eq!(texts, expected);
    assert_eq!(found[1].plan, CommandPlan::Run { exits: 3 });
}

#[test]
fn samples_belong_to_the_command_above_and_files_are_named() {
    let document = "<!-- file: a.toml -->\n\n```toml\nx = 1\n```\n```sh\ntowpath run a\n\
        towpath run b\n```\n\n```text\none\n  two\n```\n\nNot output:\n```text\nc\n```\n";
    let found = steps(document);
    let file = DocumentStep::File { name: "a.toml".to_owned(), text: "x = 1\n".to_owned() };
    assert_eq!(found[0], file);
    let samples: Vec<_> = all_commands(document).map(|line| line.sample).collect();
    assert_eq!(samples, [None, Some(vec!["one".to_owned(), "  two".to_owned()])]);
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

/// Runs the service file of docs/guides/run-a-server.md, without its user and path, which a test does not have.
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
        let mut command = Command::new("systemd-analyze");
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
    // In tenths; docs/guides/run-a-server.md states 1.3.
    let security =
        analyze(&["security", "--no-pager", "--offline=true", "--threshold=15"]).unwrap();
    assert!(security.status.success(), "{}", String::from_utf8_lossy(&security.stdout));
}
