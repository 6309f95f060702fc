//! General parts of the command line: overrides of a scenario, the configuration file, completions,
//! manual pages, the version.

use std::fs;

use serde_json::Value;

use crate::program::{TestDir, names};

const SIM_OPTIONS: [&str; 6] = ["--world", "sim", "-T", "mptcp", "--json", "-q"];

fn first_flow_value(result: &Value, name: &str) -> String {
    result["summary"]["flows"][0][name].to_string()
}

#[test]
fn overridden_settings_are_used_and_stored_for_a_rerun() {
    let folder = TestDir::new();
    let settings = ["--set", "path.first.rate=10 Mbit/s", "--set", "paths.*.delay=20ms"];
    let short_options = ["-t", "1500ms", "-C", "reno", "--scheduler", "round-robin", "-o", "first"];
    let output =
        folder.run(&[&["run", "two-links"][..], &SIM_OPTIONS, &settings, &short_options].concat());
    assert!(matches!(output.code, Some(0 | 1)), "{output}");
    let stored = folder.stored("first/sim-mptcp-1.jsonl.zst");
    let meta = &stored.meta;
    for part in [
        "rate = \"10 Mbit/s\"",
        "delay = \"20ms\"",
        "duration = \"1.5 s\"",
        "congestion-control = \"reno\"",
        "scheduler = \"round-robin\"",
        "# Does Multipath TCP use the capacity of both links?",
    ] {
        assert!(meta.scenario_toml.contains(part), "{part} is not in {}", meta.scenario_toml);
    }
    assert_eq!((meta.duration_ns, meta.congestion_control.as_str()), (1_500_000_000, "reno"));
    assert_eq!(meta.paths[0].up_rate_bps, Some(10_000_000));
    assert_eq!(meta.paths[1].up_delay_ns, 20_000_000);
    let conditions = &meta.conditions["changed by the command line"];
    assert!(
        conditions.contains("path.first.rate=10 Mbit/s") && conditions.contains("scheduler="),
        "{conditions}"
    );
    // The command that a report prints for a rerun.
    folder.write("two-links.toml", &meta.scenario_toml);
    let rerun = [&["run", "two-links.toml", "-o", "second"][..], &SIM_OPTIONS].concat();
    let rerun = folder.run(&rerun);
    let goodput = first_flow_value(&output.json()[0], "bytes");
    assert_eq!(first_flow_value(&rerun.json()[0], "bytes"), goodput);
    assert_ne!(goodput, "null", "{output}");
}

#[test]
fn overrides_also_apply_in_the_emulated_world() {
    let Some(_permit) = crate::program::acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("mine.toml", format!("{}{}", crate::program::TWO_PATHS, crate::program::SIZED));
    let output = folder.run(&[
        "run",
        "mine.toml",
        "-T",
        "tcp",
        "-q",
        "--set",
        "flows.0.size=100 KB",
        "--set",
        "hosts.server.receive-buffer=200 KB",
        "-o",
        "results",
    ]);
    assert_eq!(output.code, Some(0), "{output}");
    let stored = folder.stored("results/tcp-1.jsonl.zst");
    assert_eq!(stored.summary.unwrap().flows[0].bytes, 100_000);
    assert!(stored.meta.scenario_toml.contains("[hosts.server]\nreceive-buffer = \"200 KB\""));
    assert!(stored.meta.conditions.contains_key("changed by the command line"));
}

/// Returns a folder whose user has this configuration file.
fn folder_with_config(config: &str) -> TestDir {
    let folder = TestDir::new();
    fs::create_dir_all(folder.config().join("towpath")).unwrap();
    fs::write(folder.config().join("towpath/config.toml"), config).unwrap();
    folder
}

#[test]
fn the_configuration_file_gives_defaults_that_the_command_line_overrides() {
    let config = "[run]\nworld = \"sim\"\ntransport = [\"tcp\"]\nquiet = true\nrepeat = 2\n\
                  duration = \"1 s\"\n[measure]\nudping = true\n";
    let folder = folder_with_config(config);
    let output = folder.run(&["run", "two-links", "--json", "-r", "1", "-o", "a"]);
    assert_eq!(output.json().len(), 1, "{output}");
    let stored = folder.stored("a/sim-tcp-1.jsonl.zst");
    let condition = &stored.meta.conditions["from the configuration file"];
    assert_eq!(condition, "world = sim, transport = tcp, quiet, duration = 1 s");
    assert_eq!(stored.meta.duration_ns, 1_000_000_000);
    let output = folder.run(&["run", "two-links", "--no-config", "--world", "sim", "-t", "200ms"]);
    assert!(output.err.contains("mptcp") && output.err.contains("2 runs"), "{output}");
    // Other commands ignore the setting.
    assert_eq!(folder.run(&["scenarios"]).code, Some(0));
}

#[test]
fn invalid_configuration_is_shown_with_its_position() {
    let error_message = |config: &str| {
        let folder = folder_with_config(config);
        let output = folder.run(&["scenarios"]);
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
        let config_folder = folder.config().display().to_string();
        // Line breaks depend on the length of the folder's name.
        let mut unwrapped = String::new();
        for line in output.err.replace(&config_folder, "CONFIG").lines() {
            let continuation = line
                .strip_prefix("  ")
                .filter(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || c == '`'));
            match continuation {
                Some(rest) => unwrapped = format!("{} {rest}\n", unwrapped.trim_end()),
                None => unwrapped = unwrapped + line + "\n",
            }
        }
        unwrapped
    };
    insta::assert_snapshot!(error_message(
        "[run]\nwordl = \"sim\"\nquiet = 3\n[rum]\n[measure]\nset = [[]]\n"
    ));
    let folder = folder_with_config("[report]\ncsv = \"subflows\"\n");
    let output = folder.run(&["report", "results", "--json"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("does not match this command"), "{output}");
    assert!(output.err.contains("--no-config"), "{output}");
}

#[test]
fn completions_cover_every_subcommand_in_shell_syntax() {
    let folder = TestDir::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = folder.run(&["completions", shell]);
        assert_eq!(output.code, Some(0), "{output}");
        for word in ["reproduce", "congestion-control", "mpquic", "no-config"] {
            let is_unlisted = word == "mpquic"; // clap does not know the values of an option that a function parses
            assert!(is_unlisted || output.out.contains(word), "{shell}: no {word}");
        }
    }
    let script = folder.run(&["completions", "bash"]).out;
    folder.write("completions.bash", script);
    let mut bash = folder.program("bash");
    let output = folder.start(bash.args(["-n", "completions.bash"])).wait();
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output}");
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = TestDir::new();
    let output = folder.run(&["man", "--out", "man"]);
    assert_eq!(output.code, Some(0), "{output}");
    let pages = names(&folder.work().join("man"));
    for page in ["towpath.1", "towpath-run.1", "towpath-lab-failure.1", "towpath-scenarios-show.1"]
    {
        assert!(pages.iter().any(|name| name == page), "no {page}: {pages:?}");
    }
    let run = fs::read_to_string(folder.work().join("man/towpath-run.1")).unwrap();
    assert!(run.starts_with('.') && run.contains("\\-\\-scheduler"), "{run}");
}

#[test]
fn the_version_names_the_commit_where_there_is_a_checkout() {
    let out = TestDir::new().run(&["--version"]).out;
    let version = env!("CARGO_PKG_VERSION");
    assert!(out.starts_with(&format!("towpath {version}")), "{out}");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.git");
    let commit = out.split_once("(commit ").map(|(_, rest)| rest.trim_end().trim_end_matches(')'));
    match commit {
        Some(commit) => assert!(
            commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{out}"
        ),
        None => assert!(fs::metadata(root).is_err(), "a checkout without its commit: {out}"),
    }
}
