//! Problems of newcomers (docs/lab/first-hour.md), in the simulated world.

use crate::program::TestDir;

#[test]
fn an_expectation_for_a_longer_run_is_reported_as_such() {
    let folder = TestDir::new();
    let base_arguments = ["run", "two-links", "-q", "--world", "sim", "--transport", "mptcp"];
    let output = folder.run(&[&base_arguments[..], &["-t", "1s"]].concat());
    assert_eq!(output.code, Some(1), "{output}");
    let hint = "hint: the expectations of `two-links` were written for 10 s, and this ran for 1 s";
    assert!(output.err.contains(hint), "{output}");
    let output =
        folder.run(&[&base_arguments[..], &["--set", "paths.first.rate=1 Mbit/s"]].concat());
    let hint = "hint: the expectations were written for `two-links` without these changes";
    assert!(output.err.contains(hint), "{output}");
    let met_expectation = ["--set", "expect.mptcp.goodput=>= 1 Mbit/s", "-t", "1s"];
    let output = folder.run(&[&base_arguments[..], &met_expectation].concat());
    assert!(!output.err.contains("were written for"), "{output}");
}

#[test]
fn an_event_can_be_moved_as_hinted() {
    let folder = TestDir::new();
    let base_arguments =
        ["run", "wifi-cellular-handover", "-q", "--world", "sim", "--transport", "tcp"];
    let moved_event = ["--duration", "2s", "--set", "timeline.0.at=1s"];
    let output = folder.run(&[&base_arguments[..], &moved_event].concat());
    assert!(output.out.contains("A 1 s: wifi down"), "{output}");
}

#[test]
fn a_folder_of_results_has_its_columns_in_the_order_in_which_they_were_run() {
    let folder = TestDir::new();
    let output =
        folder.run(&["run", "two-links", "-q", "--world", "sim", "-t", "500ms", "-o", "results"]);
    let columns = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("    ")).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(columns(&output.out), ["tcp", "mptcp"], "{output}");
    let report = folder.run(&["report", "results"]);
    assert_eq!(columns(&report.out), ["tcp", "mptcp"], "{report}");
    // Slow start has no threshold yet.
    let table = folder.run(&["report", "results", "--csv", "subflows"]);
    assert!(table.out.contains("ssthresh_packets"), "{table}");
    assert!(!table.out.contains("4294967295") && !table.out.contains("2147483647"), "{table}");
}

#[test]
fn a_file_instead_of_a_directory_and_the_reverse_have_a_hint() {
    let folder = TestDir::new();
    folder.write("file", "x");
    for (arguments, hint) in [
        (&["sweep", "status", "file"][..], "give a folder"),
        (&["report", "file/x"], "give a folder"),
        (&["run", "file/x.toml"], "give a folder"),
        (&["trace", "file/x"], "give a folder"),
        (&["run", "two-links", "--world", "sim", "--out", "file"], "give a folder"),
        (&["trace", "."], "give a file in it"),
        (&["scenarios", "check", "./"], "give a file in it"),
    ] {
        let output = folder.run(arguments);
        assert_eq!(output.code, Some(2), "{output}");
        assert!(!output.err.contains("os error"), "{output}");
        assert!(output.err.contains(hint), "{arguments:?}: {output}");
    }
}

#[test]
fn counts_of_one_are_printed_in_the_singular() {
    let output = TestDir::new().run(&["scenarios", "check", "two-links"]);
    let counts = output.out.lines().next();
    assert_eq!(counts, Some("two-links: 2 hosts, 2 paths, 1 flow, 0 events, 3 expectations"));
}

#[test]
fn headline_and_legend_name_a_fade_alike() {
    let folder = TestDir::new();
    let output = folder.run(&["run", "fading-wifi", "-q", "--world", "sim"]);
    let name = "wifi fades to 1 Mbit/s";
    let headline = output.out.lines().find(|line| line.starts_with("After ")).unwrap();
    assert!(headline.contains(name), "{output}");
    assert!(output.out.contains("`wifi fades to 1 Mbit/s`"), "the verdict: {output}");
    assert!(output.out.contains("s: wifi fades to 1 Mbit/s, in "), "the legend: {output}");
    assert!(!output.out.contains("wifi rate "), "{output}");
}
