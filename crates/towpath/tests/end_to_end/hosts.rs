//! The output in `docs/hosts.md` equals that of the commands.
//!
//! In its `console` blocks, `HOST# COMMAND` is run at a host and the lines below are compared with
//! its output.
//!
//! A line `…` omits lines; one that ends in `…` omits the rest of the line. Numbers and volatile
//! values (ports, tokens, process IDs) are not compared; addresses are.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::program::{TestDir, acquire_emulator_for_timing, binary, missing, skip};

const HOSTS: [&str; 4] = ["client", "server", "server1", "server2"];
/// Background programs, each with the port that it listens on.
const SERVERS: [(&str, u16); 2] = [("iperf3 -s", 5201), ("towpath server", 5210)];
/// First port of the kernel's ephemeral range.
const MIN_EPHEMERAL_PORT: u16 = 32_768;

/// Command of the document, with its output there.
#[derive(Debug)]
struct TranscriptCommand {
    host: String,
    command: String,
    output: Vec<String>,
}

fn docs_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Returns the commands of a section, in order.
fn transcript(section: &str) -> Vec<TranscriptCommand> {
    let document = fs::read_to_string(docs_path("hosts.md")).unwrap();
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

/// Returns a line without its volatile values.
fn normalize(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let trimmed = word.trim_matches(|c: char| "(),;".contains(c));
        if let Ok(socket_address) = trimmed.parse::<SocketAddr>() {
            let port = if socket_address.port() >= MIN_EPHEMERAL_PORT {
                "PORT".into()
            } else {
                socket_address.port().to_string()
            };
            return word.replace(trimmed, &format!("{}:{port}", socket_address.ip()));
        }
        let (address, _) = trimmed.split_once('/').unwrap_or((trimmed, ""));
        if address.parse::<IpAddr>().is_ok() {
            return word.to_owned();
        }
        let token = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        if token.is_some_and(|hex| hex.len() == 8 && hex.bytes().all(|b| b.is_ascii_hexdigit())) {
            return "[TOKEN]".to_owned();
        }
        // The number before it is not compared, so `1 timeout` equals `2 timeouts`.
        without_numbers(word).replace("timeouts", "timeout")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Replaces numbers like `12.5` and `7` by `N`; names like `eth0` stay.
fn without_numbers(word: &str) -> String {
    let trimmed = word.trim_matches(|c: char| "()[],;:".contains(c));
    let is_number = !trimmed.is_empty()
        && trimmed.bytes().all(|b| b.is_ascii_digit() || b"-.".contains(&b))
        && trimmed.bytes().any(|b| b.is_ascii_digit());
    if is_number { word.replace(trimmed, "N") } else { word.to_owned() }
}

/// Compares a command's output with the document; the first difference is the error.
fn compare(documented: &[String], printed: &str) -> Result<(), String> {
    let printed: Vec<String> = printed.lines().map(normalize).collect();
    if !documented.iter().any(|line| line.ends_with('…')) {
        let documented: Vec<String> = documented.iter().map(|line| normalize(line)).collect();
        return if documented == printed { Ok(()) } else { Err("these lines differ".to_owned()) };
    }
    let line_matches = |documented: &String, printed: &String| match documented.strip_suffix('…')
    {
        Some(start) => printed.starts_with(&normalize(start)),
        None => *printed == normalize(documented),
    };
    let mut rest = &printed[..];
    let mut is_gap_allowed = false;
    for (index, group) in documented.split(|line| line == "…").enumerate() {
        is_gap_allowed |= index > 0;
        if group.is_empty() {
            continue;
        }
        let starts = 0..=rest.len().saturating_sub(group.len());
        let matches_at = |start: &usize| {
            let lines = rest.get(*start..*start + group.len());
            lines.is_some_and(|lines| {
                group
                    .iter()
                    .zip(lines)
                    .all(|(documented, printed)| line_matches(documented, printed))
            })
        };
        let matching_start =
            starts.into_iter().find(matches_at).filter(|start| is_gap_allowed || *start == 0);
        let start = matching_start.ok_or_else(|| format!("these lines are missing: {group:#?}"))?;
        rest = &rest[start + group.len()..];
        is_gap_allowed = false;
    }
    let is_end = rest.is_empty() || documented.last().is_some_and(|line| line == "…");
    if is_end { Ok(()) } else { Err(format!("this line is not in the document: {}", rest[0])) }
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
                "docs/hosts.md: `{}`: {error}; what was said:\n{}",
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

#[test]
fn volatile_output_is_not_compared_and_all_else_is() {
    let shapes = [
        (
            "12.5 iperf3 (122) 10.0.0.1:44486 → 10.0.0.2:5201,",
            "N iperf3 (N) 10.0.0.1:PORT → 10.0.0.2:5201,",
        ),
        ("[  5]   0.00-3.00   sec [dcd8a1ab]", "[ N] N sec [TOKEN]"),
        ("sysctl -w net.ipv4.conf.eth0.arp_ignore=1", "sysctl -w net.ipv4.conf.eth0.arp_ignore=1"),
    ];
    for (line, expected) in shapes {
        assert_eq!(normalize(line), expected);
    }
    let owned_lines =
        |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    let printed = "one\ntwo 2\nthree\n";
    assert_eq!(compare(&owned_lines(&["one", "two 3", "three"]), printed), Ok(()));
    assert_eq!(compare(&owned_lines(&["…", "two 3", "…"]), printed), Ok(()));
    assert_eq!(compare(&owned_lines(&["one", "tw…", "…"]), printed), Ok(()));
    // The first lines of a group may also match a place where the rest differs.
    assert_eq!(compare(&owned_lines(&["…", "one", "two 3", "…"]), "one\none\ntwo 2\n"), Ok(()));
    for mismatch in
        [&["one", "two 3"][..], &["…", "two 3"], &["…", "two", "…"], &["two 2", "…"], &[]]
    {
        assert!(compare(&owned_lines(mismatch), printed).is_err(), "{mismatch:?}");
    }
}
