//! Lists and formats: complete, readable, and the same bytes every time.

use serde_json::Value;

use crate::program::{HANG_TIMEOUT, TestDir};

const PRINTERS: [&[&str]; 5] = [
    &["scenarios"],
    &["scenarios", "--json"],
    &["schema", "scenario"],
    &["schema", "result"],
    &["schema", "reference"],
];

/// Returns the names of the built-in scenarios.
fn built_in(folder: &TestDir) -> Vec<String> {
    let list = folder.run(&["scenarios", "--json"]).json();
    let list = list[0].as_array().unwrap();
    list.iter().map(|found| found["name"].as_str().unwrap().to_owned()).collect()
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
    let names = built_in(&folder);
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {list}");
        let checked = folder.run(&["scenarios", "check", &name]);
        assert_eq!(checked.code, Some(0), "{checked}");
        assert!(checked.out.starts_with(&format!("{name}: ")), "{checked}");
        let shown = folder.run(&["scenarios", "show", &name]);
        folder.write("copy.toml", &shown.out);
        let copied = folder.run(&["scenarios", "check", "copy.toml"]);
        assert_eq!((copied.code, copied.out), (Some(0), checked.out));
    }
}

#[test]
fn help_lists_every_subcommand_and_version_is_a_number() {
    let folder = TestDir::new();
    let help = folder.run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (Some(0), ""), "{help}");
    for verb in ["run", "compare", "lab", "report", "scenarios", "schema"] {
        assert!(help.out.contains(&format!("\n  {verb}")), "{help}");
        let own = folder.run(&[verb, "--help"]);
        assert_eq!((own.code, own.err.as_str()), (Some(0), ""), "{own}");
    }
    assert!(!help.out.contains("__"), "processes of a run are not for people: {help}");
    let version = folder.run(&["--version"]);
    let rest = version.out.strip_prefix(concat!("towpath ", env!("CARGO_PKG_VERSION")));
    let rest = rest.and_then(|rest| rest.strip_suffix('\n')).unwrap();
    let commit = rest.strip_prefix(" (commit ").and_then(|rest| rest.strip_suffix(')'));
    let is_hex = |commit: &str| commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(rest.is_empty() || commit.is_some_and(is_hex), "{version}");
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let folder = TestDir::new();
    let mut command = folder.program("sh");
    command.args(["-c", "\"$0\" schema | head -n 1"]).arg(crate::program::binary());
    let ended = folder.start(&mut command).wait_at_most(HANG_TIMEOUT);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "{\n", ""));
}
