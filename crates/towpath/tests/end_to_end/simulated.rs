//! `towpath run --world sim`: needs nothing of the machine, and is always the same.

use std::fs;

use crate::program::{Folder, SIZED, TWO_PATHS, names};
use crate::wrong_scenarios::refused;

/// Runs and returns every result and capture, with its name.
fn simulate(jobs: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Folder::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let ended = folder.run(&[
        "run",
        "scenario.toml",
        "--world",
        "sim",
        "--repeat",
        "2",
        "--jobs",
        jobs,
        "--out",
        "results",
        "--pcap",
        "captures",
    ]);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.err.contains("over mptcp, simulated run 2: "), "{ended}");
    assert!(ended.out.contains("mptcp × 2") && ended.out.contains("sim"), "{ended}");
    let read = |part: &str| {
        let part = folder.work().join(part);
        let read = |name: String| (name.clone(), fs::read(part.join(name)).unwrap());
        names(&part).into_iter().map(read).collect::<Vec<_>>()
    };
    [read("results"), read("captures")].concat()
}

#[test]
fn results_and_captures_do_not_depend_on_the_number_of_jobs() {
    let (one, two) = (simulate("1"), simulate("2"));
    let found: Vec<_> = one.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        found,
        [
            "report.html",
            "sim-mptcp-1.jsonl.zst",
            "sim-mptcp-2.jsonl.zst",
            "sim-tcp-1.jsonl.zst",
            "sim-tcp-2.jsonl.zst",
            "sim-mptcp-1-phone.pcapng",
            "sim-mptcp-1-server.pcapng",
            "sim-mptcp-2-phone.pcapng",
            "sim-mptcp-2-server.pcapng",
            "sim-tcp-1-phone.pcapng",
            "sim-tcp-1-server.pcapng",
            "sim-tcp-2-phone.pcapng",
            "sim-tcp-2-server.pcapng",
        ]
    );
    for ((name, first), (_, second)) in one.iter().zip(&two) {
        assert!(first == second, "{name} differs");
    }
}

macro_rules! wrong {
    ($($name:ident: $rest:expr;)*) => {
        $(#[test]
        fn $name() {
            let folder = Folder::new();
            folder.write("scenario.toml", format!("{TWO_PATHS}{}", $rest));
            let arguments = ["run", "scenario.toml", "--world", "sim"];
            insta::assert_snapshot!(refused(&folder, &arguments));
        })*
    };
}

wrong! {
    a_scheduler_that_does_not_exist: format!("{SIZED}[run]\nscheduler = \"fastest\"\n");
    a_congestion_control_of_the_kernel_alone:
        format!("{SIZED}[run]\ncongestion-control = \"vegas\"\n");
    a_flow_that_runs_a_command:
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\nrun = \"curl server\"\n";
}
