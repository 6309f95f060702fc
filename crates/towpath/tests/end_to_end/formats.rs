//! Lists and formats: complete, readable, and the same bytes every time.

use serde_json::Value;

use crate::program::{HANG_TIMEOUT, TestDir};

const PRINTERS: [&[&str]; 7] = [
    &["scenarios"],
    &["scenarios", "--json"],
    &["schema", "scenario"],
    &["schema", "result"],
    &["schema", "scenario-keys"],
    &["schema", "plan-keys"],
    &["schema", "campaign-keys"],
];

/// Returns the names of the built-in scenarios.
fn built_in_names(folder: &TestDir) -> Vec<String> {
    let list = folder.run(&["scenarios", "--json"]).json();
    let list = list[0].as_array().unwrap();
    list.iter().map(|scenario| scenario["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn repeated_output_is_identical() {
    let folder = TestDir::new();
    for printer in PRINTERS {
        let [first, second] = [folder.run(printer), folder.run(printer)];
        assert_eq!((first.code, first.err.as_str()), (Some(0), ""), "{first}");
        assert!(first.out.ends_with('\n'), "{first}");
        assert_eq!(first.out, second.out);
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn schemas_are_json_and_the_scenario_schema_is_first() {
    let folder = TestDir::new();
    for kind in ["scenario", "result"] {
        let schema: Value = serde_json::from_str(&folder.run(&["schema", kind]).out).unwrap();
        assert!(schema["$schema"].is_string(), "{schema:#}");
    }
    assert_eq!(folder.run(&["schema"]).out, folder.run(&["schema", "scenario"]).out);
}

#[test]
fn every_built_in_scenario_is_listed_shown_and_passes_the_check() {
    let folder = TestDir::new();
    let list = folder.run(&["scenarios"]).out;
    let names = built_in_names(&folder);
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {list}");
        let check_output = folder.run(&["scenarios", "check", &name]);
        assert_eq!(check_output.code, Some(0), "{check_output}");
        assert!(check_output.out.starts_with(&format!("{name}: ")), "{check_output}");
        let show_output = folder.run(&["scenarios", "show", &name]);
        folder.write("copy.toml", &show_output.out);
        let copy_output = folder.run(&["scenarios", "check", "copy.toml"]);
        assert_eq!((copy_output.code, copy_output.out), (Some(0), check_output.out));
    }
}

#[test]
fn help_lists_every_subcommand_and_version_is_a_number() {
    let folder = TestDir::new();
    let help = folder.run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (Some(0), ""), "{help}");
    for verb in ["run", "compare", "lab", "report", "scenarios", "schema"] {
        assert!(help.out.contains(&format!("\n  {verb}")), "{help}");
        let subcommand_help = folder.run(&[verb, "--help"]);
        assert_eq!(
            (subcommand_help.code, subcommand_help.err.as_str()),
            (Some(0), ""),
            "{subcommand_help}"
        );
    }
    assert!(!help.out.contains("__"), "processes of a run are not for people: {help}");
    let version = folder.run(&["--version"]);
    let after_version = version.out.strip_prefix(concat!("towpath ", env!("CARGO_PKG_VERSION")));
    let after_version =
        after_version.and_then(|after_version| after_version.strip_suffix('\n')).unwrap();
    let commit = after_version
        .strip_prefix(" (commit ")
        .and_then(|after_version| after_version.strip_suffix(')'));
    let is_hex = |commit: &str| commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(after_version.is_empty() || commit.is_some_and(is_hex), "{version}");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let folder = TestDir::new();
    let mut command = folder.program("sh");
    command.args(["-c", "\"$0\" schema | head -n 1"]).arg(crate::program::binary());
    let output = folder.start(&mut command).wait_at_most(HANG_TIMEOUT);
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(0), "{\n", ""));
}
