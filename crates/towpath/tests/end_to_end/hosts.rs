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

use crate::program::{TestDir, binary, emulator_for_times, missing, skip};

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

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Returns the commands of a section, in order.
fn transcript(section: &str) -> Vec<TranscriptCommand> {
    let document = fs::read_to_string(docs("hosts.md")).unwrap();
    let part = document.split("\n## ").find(|part| part.starts_with(section)).unwrap();
    let mut played: Vec<TranscriptCommand> = Vec::new();
    let mut inside = false;
    for line in part.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
            continue;
        }
        match line.split_once("# ") {
            _ if !inside => {}
            Some((host, command)) if HOSTS.contains(&host) => played.push(TranscriptCommand {
                host: host.to_owned(),
                command: command.to_owned(),
                output: Vec::new(),
            }),
            _ => played.last_mut().unwrap().output.push(line.to_owned()),
        }
    }
    played
}

/// Returns a script that runs them; the output of command N goes to `N.said`.
fn script(network: &str, played: &[TranscriptCommand]) -> String {
    let place = docs("two-hosts.sh");
    let mut script = format!(". {}\nset -e\nbuild {network}\n", place.display());
    for (number, TranscriptCommand { host, command, .. }) in played.iter().enumerate() {
        let (command, beside) = match command.strip_suffix(" &") {
            Some(command) => (command, " &"),
            None => (command.as_str(), ""),
        };
        // `towpath doctor` exits with 1 after a finding.
        let fails = if command.contains("doctor") { " || [ $? = 1 ]" } else { "" };
        let files = format!(">{number}.said 2>&1");
        let _ = writeln!(script, "{host} '{command}' {files}{fails}{beside}");
        if let Some((_, port)) = SERVERS.iter().find(|(name, _)| command.contains(name))
            && !beside.is_empty()
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
fn shape(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let bare = word.trim_matches(|c: char| "(),;".contains(c));
        if let Ok(end) = bare.parse::<SocketAddr>() {
            let port = if end.port() >= MIN_EPHEMERAL_PORT {
                "PORT".into()
            } else {
                end.port().to_string()
            };
            return word.replace(bare, &format!("{}:{port}", end.ip()));
        }
        let (address, _) = bare.split_once('/').unwrap_or((bare, ""));
        if address.parse::<IpAddr>().is_ok() {
            return word.to_owned();
        }
        let token = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        if token.is_some_and(|it| it.len() == 8 && it.bytes().all(|b| b.is_ascii_hexdigit())) {
            return "[TOKEN]".to_owned();
        }
        without_numbers(word).replace("timeouts", "timeout")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Replaces numbers like `12.5` and `7` by `N`; names like `eth0` stay.
fn without_numbers(word: &str) -> String {
    let bare = word.trim_matches(|c: char| "()[],;:".contains(c));
    let is_number = !bare.is_empty()
        && bare.bytes().all(|b| b.is_ascii_digit() || b"-.".contains(&b))
        && bare.bytes().any(|b| b.is_ascii_digit());
    if is_number { word.replace(bare, "N") } else { word.to_owned() }
}

/// Returns the first difference from a document's output as an error.
fn compare(shown: &[String], said: &str) -> Result<(), String> {
    let said: Vec<String> = said.lines().map(shape).collect();
    if !shown.iter().any(|line| line.ends_with('…')) {
        let shown: Vec<String> = shown.iter().map(|line| shape(line)).collect();
        return if shown == said { Ok(()) } else { Err("these lines differ".to_owned()) };
    }
    let fits = |shown: &String, said: &String| match shown.strip_suffix('…') {
        Some(start) => said.starts_with(&shape(start)),
        None => *said == shape(shown),
    };
    let mut rest = &said[..];
    let mut may_skip = false;
    for (place, group) in shown.split(|line| line == "…").enumerate() {
        may_skip |= place > 0;
        if group.is_empty() {
            continue;
        }
        let starts = 0..=rest.len().saturating_sub(group.len());
        let is_there = |start: &usize| {
            let part = rest.get(*start..*start + group.len());
            part.is_some_and(|part| group.iter().zip(part).all(|(shown, said)| fits(shown, said)))
        };
        let found = starts.into_iter().find(is_there).filter(|start| may_skip || *start == 0);
        let start = found.ok_or_else(|| format!("these lines are missing: {group:#?}"))?;
        rest = &rest[start + group.len()..];
        may_skip = false;
    }
    let is_end = rest.is_empty() || shown.last().is_some_and(|line| line == "…");
    if is_end { Ok(()) } else { Err(format!("this line is not in the document: {}", rest[0])) }
}

fn play(test: &str, section: &str, network: &str) {
    let tools = ["ip", "tc", "unshare", "nsenter", "iperf3"];
    // `missing` runs `TOOL --version`. `tc` rejects the option, but shows that it is installed.
    if let Some(reason) = tools.iter().find_map(|tool| missing(tool)) {
        return skip(test, &reason);
    }
    let played = transcript(section);
    let folder = TestDir::new();
    folder.write("play.sh", script(network, &played));
    symlink(fs::canonicalize(binary()).unwrap(), folder.temporary().join("towpath")).unwrap();
    let others = env::var_os("PATH").unwrap_or_default();
    let search: Vec<_> =
        [folder.temporary()].into_iter().chain(env::split_paths(&others)).collect();
    let mut command = folder.program("unshare");
    command.args(["-Urnpf", "--mount-proc", "--kill-child", "sh", "play.sh"]);
    command.env("PATH", env::join_paths(search).unwrap());
    let Some(_serial) = emulator_for_times() else { return };
    let ended = folder.start(&mut command).wait();
    let said = |number: usize| {
        fs::read_to_string(folder.work().join(format!("{number}.said"))).unwrap_or_default()
    };
    let all = || {
        let lines = played
            .iter()
            .enumerate()
            .map(|(number, it)| format!("{}# {}\n{}", it.host, it.command, said(number)));
        lines.collect::<String>()
    };
    assert_eq!(ended.code, Some(0), "{ended}\n{}", all());
    for (number, one) in played.iter().enumerate().filter(|(_, one)| !one.command.ends_with('&')) {
        if let Err(error) = compare(&one.output, &said(number)) {
            panic!("docs/hosts.md: `{}`: {error}; what was said:\n{}", one.command, all());
        }
    }
}

#[test]
fn two_hosts_at_one_switch_as_documented() {
    let test = "two_hosts_at_one_switch_as_documented";
    play(test, "Two hosts with two interfaces each at one switch", "switch");
}

#[test]
fn two_servers_with_two_cables_as_documented() {
    let test = "two_servers_with_two_cables_as_documented";
    play(test, "Two servers with two cables", "cables");
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
        assert_eq!(shape(line), expected);
    }
    let shown = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    let said = "one\ntwo 2\nthree\n";
    assert_eq!(compare(&shown(&["one", "two 3", "three"]), said), Ok(()));
    assert_eq!(compare(&shown(&["…", "two 3", "…"]), said), Ok(()));
    assert_eq!(compare(&shown(&["one", "tw…", "…"]), said), Ok(()));
    // The first lines of a group may also match a place where the rest differs.
    assert_eq!(compare(&shown(&["…", "one", "two 3", "…"]), "one\none\ntwo 2\n"), Ok(()));
    for wrong in [&["one", "two 3"][..], &["…", "two 3"], &["…", "two", "…"], &["two 2", "…"], &[]]
    {
        assert!(compare(&shown(wrong), said).is_err(), "{wrong:?}");
    }
}
