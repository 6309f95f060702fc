//! `towpath reproduce`: a custom study, and every published figure with few runs.

use std::fs::{self, DirEntry};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::program::{TestDir, acquire_emulator, binary, is_long, names, wait_for};

/// Timeout for all studies together, on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

const PLAN: &str = r#"
name = "mine"
title = "Two links"
scenario = "scenario.toml"
seeds = 2
[[variants]]
name = "TCP"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "delay"
keys = ["paths.b.delay"]
values = ["10 ms", "40 ms"]
[[figures]]
kind = "lines"
x = "delay"
y = "goodput"
x-unit = "ms"
y-unit = "Mbit/s"
[[figures]]
kind = "series"
y = "goodput"
y-unit = "Mbit/s"
variants = ["TCP"]
"#;

const SCENARIO: &str = r#"
name = "two"
[hosts.client]
[hosts.server]
[paths.a]
between = ["client", "server"]
rate = "4 Mbit/s"
delay = "10 ms"
[paths.b]
between = ["client", "server"]
rate = "4 Mbit/s"
delay = "10 ms"
[[flows]]
from = "client"
to = "server"
pattern = "bulk"
duration = "3 s"
"#;

const CLAIM: &str = r#"
[[claims]]
text = "Two links carry more than one"
source = "me"
outcome = "holds"
[[claims.checks]]
metric = "goodput"
of = { variant = "MPTCP" }
than = { variant = "TCP" }
ratio = ">= 1.3"
"#;

fn write_study(folder: &TestDir, expected: &str) {
    fs::create_dir_all(folder.work().join("mine")).unwrap();
    folder.write("mine/plan.toml", PLAN);
    folder.write("mine/scenario.toml", SCENARIO);
    folder.write("mine/expected.toml", expected);
    folder.write("mine/reference.csv", "variant,x,y,where\nMPTCP,10 ms,7,\"here, there\"\n");
    folder.write("mine/README.md", "# Mine\n\nSource: me\n\n## Ours\n\nTwo links.\n");
}

#[test]
fn a_custom_study_is_drawn_checked_and_deterministic() {
    let folder = TestDir::new();
    write_study(&folder, CLAIM);
    let run = |out: &str, jobs: &str| {
        let output = folder.run(&["reproduce", "./mine", "-o", out, "--jobs", jobs]);
        assert_eq!(output.code, Some(0), "{output}");
        output
    };
    let output = run("one", "1");
    assert!(output.out.contains("✓ Two links carry more than one"), "{output}");
    assert!(output.out.contains("Verdict: the claim holds."), "{output}");
    assert!(output.out.lines().all(|line| line.chars().count() <= 100), "{output}");
    run("two", "2");
    let read = |out: &str, name: &str| fs::read(folder.work().join(out).join(name)).unwrap();
    for name in ["mine.svg", "mine.png", "mine.csv", "mine.parquet", "mine.json", "index.html"] {
        assert!(read("one", name) == read("two", name), "{name} differs");
    }
    let table = String::from_utf8(read("one", "mine.csv")).unwrap();
    let references = table.lines().filter(|line| line.ends_with(",,,")).count();
    assert_eq!(references, 1, "{table}");
    assert!(table.contains(",MPTCP,delay (ms),40,goodput (Mbit/s),"), "{table}");
    assert!(table.contains(",TCP,time (s),2.5,goodput (Mbit/s),"), "{table}");
    let page = String::from_utf8(read("one", "index.html")).unwrap();
    assert!(page.contains("here, there") && page.contains("mine.parquet"));
    // Earlier figures stay on the page.
    let output = folder.run(&["reproduce", "./mine", "-o", "one", "--quick", "--json"]);
    assert_eq!(output.json()[0]["claims"][0]["holds"], true, "{output}");
    let page = String::from_utf8(read("one", "index.html")).unwrap();
    assert_eq!(page.matches("<section class=\"study\"").count(), 2);
}

/// Returns the number of stored parts of unfinished runs.
fn count_parts(out: &Path) -> usize {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_unfinished = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(".mine");
    let folders = entries(out).filter(is_unfinished);
    let files = folders.flat_map(|folder| entries(&folder.path()).collect::<Vec<_>>());
    files.filter(|file| file.file_name().to_string_lossy().starts_with("part-")).count()
}

/// Returns every file of a finished figure with its name.
fn read_files(out: &Path) -> Vec<(String, Vec<u8>)> {
    let files = names(out).into_iter();
    files.map(|name| (name.clone(), fs::read(out.join(&name)).unwrap())).collect()
}

/// 200 runs in 20 parts.
fn many_runs(out: &str) -> [&str; 8] {
    ["reproduce", "./mine", "--seeds", "50", "--jobs", "2", "-o", out]
}

/// Starts a reproduction twice and kills it each time after some parts. Returns the number of
/// parts.
fn kill_twice(folder: &TestDir) -> usize {
    let out = folder.work().join("out");
    for min_parts in [1, 4] {
        let mut program = folder.program(binary());
        program.args(many_runs("out")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = program.spawn().unwrap();
        // The parts are removed when the figure is drawn.
        let has_parts = || count_parts(&out) >= min_parts || out.join("mine.svg").exists();
        wait_for("some runs", || has_parts().then_some(()));
        // SIGKILL, so that the process cannot clean up.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    count_parts(&out)
}

#[test]
fn a_killed_reproduction_resumes_and_has_every_run_once() {
    // If this test had to wait for a processor, the reproduction may have finished.
    let folder = wait_for("a reproduction that was killed in its middle", || {
        let folder = TestDir::new();
        write_study(&folder, CLAIM);
        (4..20).contains(&kill_twice(&folder)).then_some(folder)
    });
    let (out, uninterrupted) = (folder.work().join("out"), folder.work().join("whole"));
    // All runs are done, but the figure cannot be written: no run may be lost.
    fs::create_dir(out.join("mine.svg")).unwrap();
    let output = folder.run(&many_runs("out"));
    assert_eq!((output.code, count_parts(&out)), (Some(2), 20), "{output}");
    fs::remove_dir(out.join("mine.svg")).unwrap();
    let output = folder.run(&many_runs("out"));
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(count_parts(&out), 0, "the next time it is measured anew");
    let output = folder.run(&many_runs("whole"));
    assert_eq!(output.code, Some(0), "{output}");
    assert!(read_files(&out) == read_files(&uninterrupted), "it matters that it was killed");
}

#[test]
fn both_worlds_share_one_plot_that_can_be_redrawn() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    write_study(&folder, CLAIM);
    let plan = PLAN
        .replace("seeds = 2", "seeds = 2\nemulated-seeds = 1\nworlds = [\"sim\", \"emu\"]")
        .replace("\"40 ms\"]", "\"40 ms\"]\nemulated = [\"10 ms\"]");
    folder.write("mine/plan.toml", &plan);
    folder.write("mine/scenario.toml", SCENARIO.replace("3 s", "2 s"));
    let both_worlds =
        ["reproduce", "./mine", "--world", "sim,emu", "--jobs", "2", "-o", "out", "--json"];
    let output = folder.run(&both_worlds);
    assert_eq!(output.code, Some(0), "{output}");
    let entry = &output.json()[0];
    assert_eq!(entry["worlds"], serde_json::json!(["sim", "emu"]), "{entry}");
    // Two curves at two points with two seeds, and at one point with one.
    assert_eq!((&entry["runs"], &entry["failed"]), (&10.into(), &0.into()), "{entry}");
    let worlds = [&entry["claims"][0]["world"], &entry["claims"][1]["world"]];
    assert_eq!(worlds, ["sim", "emu"], "{entry}");
    assert_eq!(entry["verdict"], "in `sim` the claim holds; in `emu` the claim holds");
    let read = |name: &str| fs::read(folder.work().join("out").join(name)).unwrap();
    let table = String::from_utf8(read("mine-sim-emu.csv")).unwrap();
    let count_points = |name: &str| {
        let line = format!("1,{name},delay (ms),");
        table.lines().filter(|text| text.starts_with(&line)).count()
    };
    assert_eq!(
        (count_points("TCP"), count_points("TCP (kernel)"), count_points("MPTCP (kernel)")),
        (2, 1, 1),
        "{table}"
    );
    assert!(table.contains("2,TCP (kernel),time (s),0.5,"), "{table}");
    let picture = read("mine-sim-emu.svg");
    // Claims and drawings may change without a new run.
    let redraw = folder.run(&[&both_worlds[..], &["--redraw"]].concat());
    assert_eq!(redraw.json(), output.json(), "{redraw}");
    assert!(read("mine-sim-emu.svg") == picture);
    let emulated_only =
        folder.run(&["reproduce", "./mine", "--world", "emu", "-o", "out", "--redraw"]);
    assert_eq!(emulated_only.code, Some(0), "{emulated_only}");
    assert!(!String::from_utf8(read("mine-emu.csv")).unwrap().contains("(kernel)"));
    let more_seeds = folder.run(&["reproduce", "./mine", "--seeds", "3", "-o", "out", "--redraw"]);
    assert_eq!(more_seeds.code, Some(2), "{more_seeds}");
    assert!(
        more_seeds.err.contains("4 of 12 runs of `mine` in `sim` are not in `out`"),
        "{more_seeds}"
    );
}

#[test]
fn a_claim_that_is_not_reproduced_exits_with_code_1() {
    let folder = TestDir::new();
    write_study(&folder, &CLAIM.replace("1.3", "13"));
    let output = folder.run(&["reproduce", "./mine", "--seeds", "1", "-o", "out"]);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.out.contains("✗ Two links carry more than one"), "{output}");
    assert!(output.out.contains("1 claim came out otherwise than expected"), "{output}");
}

#[test]
fn a_folder_that_is_not_a_reproduction_is_refused() {
    let folder = TestDir::new();
    write_study(&folder, "[[claims]]\ntext = \"t\"\n");
    for (arguments, message) in [
        (&["reproduce", "seed999"][..], "no reproduction is called `seed999`"),
        (&["reproduce", "./mine"], "mine/expected.toml:1:1: a claim has no `source`"),
        (&["reproduce", "./nothing"], "`./nothing/plan.toml` cannot be read"),
        (&["reproduce", "iperf3-rpi-2025", "--docs", "docs"], "`--docs` needs all figures"),
    ] {
        let output = folder.run(arguments);
        assert_eq!(output.code, Some(2), "{output}");
        assert!(output.err.contains(message), "{output}");
    }
}

/// Quick studies, one of each kind: a series, a table, a share, buffers.
const QUICK_STUDIES: [&str; 6] = [
    "iperf3-rpi-2025",
    "gartner2022",
    "deconinck2019-fig6",
    "barre2011-fig8",
    "miguel-singh-b",
    "miguel-singh-rmem-max",
];

/// All studies with `cargo xtask test --all`.
#[test]
fn every_published_figure_is_reproduced_with_few_runs() {
    let folder = TestDir::new();
    let studies = folder.run(&["reproduce", "--json"]).json();
    let names = if is_long() { &["all"][..] } else { &QUICK_STUDIES };
    let count = if is_long() { studies.len() } else { QUICK_STUDIES.len() };
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut entries = Vec::new();
    for name in names {
        let mut command = folder.towpath(&["reproduce", name, "--quick", "--json", "-o", "all"]);
        let time_left = deadline.saturating_duration_since(Instant::now());
        let output = folder.start(&mut command).wait_at_most(time_left);
        assert_eq!(output.code, Some(0), "{output}");
        entries.extend(output.json());
    }
    assert_eq!(entries.len(), count);
    for entry in entries {
        assert_eq!(entry["failed"], 0, "{entry}");
    }
}
