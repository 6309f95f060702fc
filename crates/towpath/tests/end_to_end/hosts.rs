//! The output in `docs/guides/set-up-a-host.md` equals that of the commands.
//!
//! In its `console` blocks, `HOST# COMMAND` is run at a host and the lines below are compared with
//! its output.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::program::{TestDir, acquire_emulator_for_timing, binary, missing, skip};
use crate::transcript::compare;

const HOSTS: [&str; 4] = ["client", "server", "server1", "server2"];
/// Background programs, each with the port that it listens on.
const SERVERS: [(&str, u16); 2] = [("iperf3 -s", 5201), ("towpath server", 5210)];

/// Command of the document, with its output there.
#[derive(Debug)]
struct TranscriptCommand {
    host: String,
    command: String,
    output: Vec<String>,
}

fn docs_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(name)
}

/// Returns the commands of a section, in order.
fn transcript(section: &str) -> Vec<TranscriptCommand> {
    let document = fs::read_to_string(docs_path("set-up-a-host.md")).unwrap();
    let section_text =
        document.split("\n## ").find(|section_text| section_text.starts_with(section)).unwrap();
    let mut commands: Vec<TranscriptCommand> = Vec::new();
    let mut in_console_block = false;
    for line in section_text.lines() {
        if line.starts_with("```") {
            in_console_block = line == "```console";
            continue;
        }
        match line.split_once("# ") {
            _ if !in_console_block => {}
            Some((host, command)) if HOSTS.contains(&host) => commands.push(TranscriptCommand {
                host: host.to_owned(),
                command: command.to_owned(),
                output: Vec::new(),
            }),
            _ => commands.last_mut().unwrap().output.push(line.to_owned()),
        }
    }
    commands
}

/// Returns a script that runs the commands; the output of command N goes to the file `N.said`.
fn script(network: &str, commands: &[TranscriptCommand]) -> String {
    let prelude_path = docs_path("two-hosts.sh");
    let mut script = format!(". {}\nset -e\nbuild {network}\n", prelude_path.display());
    for (number, TranscriptCommand { host, command, .. }) in commands.iter().enumerate() {
        let (command, background_suffix) = match command.strip_suffix(" &") {
            Some(command) => (command, " &"),
            None => (command.as_str(), ""),
        };
        // `towpath doctor` exits with 1 after a finding.
        let accepted_failure = if command.contains("doctor") { " || [ $? = 1 ]" } else { "" };
        let redirection = format!(">{number}.said 2>&1");
        let _ = writeln!(
            script,
            "{host} '{command}' {redirection}{accepted_failure}{background_suffix}"
        );
        if let Some((_, port)) = SERVERS.iter().find(|(name, _)| command.contains(name))
            && !background_suffix.is_empty()
        {
            let _ = writeln!(
                script,
                "until {host} cat /proc/net/tcp /proc/net/tcp6 | grep -q ':{port:04X} 0*:0000 0A'; \
                 do sleep 0.02; done"
            );
        }
    }
    script
}

fn assert_documented(test: &str, section: &str, network: &str) {
    let tools = ["ip", "tc", "unshare", "nsenter", "iperf3"];
    // `missing` runs `TOOL --version`. `tc` rejects the option, but shows that it is installed.
    if let Some(reason) = tools.iter().find_map(|tool| missing(tool)) {
        return skip(test, &reason);
    }
    let commands = transcript(section);
    let folder = TestDir::new();
    folder.write("play.sh", script(network, &commands));
    // The commands call `towpath` by name; the link must not be among the files that they write.
    symlink(fs::canonicalize(binary()).unwrap(), folder.temporary().join("towpath")).unwrap();
    let path_variable = env::var_os("PATH").unwrap_or_default();
    let search_path: Vec<_> =
        [folder.temporary()].into_iter().chain(env::split_paths(&path_variable)).collect();
    let mut command = folder.program("unshare");
    command.args(["-Urnpf", "--mount-proc", "--kill-child", "sh", "play.sh"]);
    command.env("PATH", env::join_paths(search_path).unwrap());
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let output = folder.start(&mut command).wait();
    let read_output = |number: usize| {
        fs::read_to_string(folder.work().join(format!("{number}.said"))).unwrap_or_default()
    };
    let complete_transcript = || {
        let lines = commands.iter().enumerate().map(|(number, entry)| {
            format!("{}# {}\n{}", entry.host, entry.command, read_output(number))
        });
        lines.collect::<String>()
    };
    assert_eq!(output.code, Some(0), "{output}\n{}", complete_transcript());
    for (number, entry) in
        commands.iter().enumerate().filter(|(_, entry)| !entry.command.ends_with('&'))
    {
        if let Err(error) = compare(&entry.output, &read_output(number)) {
            panic!(
                "docs/guides/set-up-a-host.md: `{}`: {error}; what was said:\n{}",
                entry.command,
                complete_transcript()
            );
        }
    }
}

#[test]
fn two_hosts_at_one_switch_as_documented() {
    let test = "two_hosts_at_one_switch_as_documented";
    assert_documented(test, "Two hosts with two interfaces each at one switch", "switch");
}

#[test]
fn two_servers_with_two_cables_as_documented() {
    let test = "two_servers_with_two_cables_as_documented";
    assert_documented(test, "Two servers with two cables", "cables");
}
