//! `towpath reproduce`: a study of one's own, and every published figure with few runs.

use std::fs;
use std::time::Duration;

use crate::program::Folder;

/// All of them together, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

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
figure = "goodput"
of = { variant = "MPTCP" }
than = { variant = "TCP" }
ratio = ">= 1.3"
"#;

fn study(folder: &Folder, expected: &str) {
    fs::create_dir_all(folder.work().join("mine")).unwrap();
    folder.write("mine/plan.toml", PLAN);
    folder.write("mine/scenario.toml", SCENARIO);
    folder.write("mine/expected.toml", expected);
    folder.write("mine/reference.csv", "variant,x,y,where\nMPTCP,10 ms,7,\"here, there\"\n");
    folder.write("mine/README.md", "# Mine\n\nSource: me\n\n## Ours\n\nTwo links.\n");
}

#[test]
fn a_study_of_ones_own_is_drawn_and_checked_and_always_the_same() {
    let folder = Folder::new();
    study(&folder, CLAIM);
    let run = |out: &str, jobs: &str| {
        let ended = folder.run(&["reproduce", "./mine", "-o", out, "--jobs", jobs]);
        assert_eq!(ended.code, Some(0), "{ended}");
        ended
    };
    let ended = run("one", "1");
    assert!(ended.out.contains("✓ Two links carry more than one"), "{ended}");
    assert!(ended.out.contains("Verdict: the claim holds."), "{ended}");
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{ended}");
    run("two", "2");
    let read = |out: &str, name: &str| fs::read(folder.work().join(out).join(name)).unwrap();
    for name in ["mine.svg", "mine.csv", "mine.parquet", "mine.json", "index.html"] {
        assert!(read("one", name) == read("two", name), "{name} differs");
    }
    let table = String::from_utf8(read("one", "mine.csv")).unwrap();
    let references = table.lines().filter(|line| line.ends_with(",,,")).count();
    assert_eq!(references, 1, "{table}");
    assert!(table.contains(",MPTCP,delay (ms),40,goodput (Mbit/s),"), "{table}");
    assert!(table.contains(",TCP,time (s),2.5,goodput (Mbit/s),"), "{table}");
    let page = String::from_utf8(read("one", "index.html")).unwrap();
    assert!(page.contains("here, there") && page.contains("mine.parquet"));
    // What is there already stays on the page.
    let ended = folder.run(&["reproduce", "./mine", "-o", "one", "--thin", "--json"]);
    assert_eq!(ended.json()[0]["claims"][0]["holds"], true, "{ended}");
    let page = String::from_utf8(read("one", "index.html")).unwrap();
    assert_eq!(page.matches("<section class=\"study\"").count(), 2);
}

#[test]
fn a_claim_that_comes_out_otherwise_is_exit_code_1() {
    let folder = Folder::new();
    study(&folder, &CLAIM.replace("1.3", "13"));
    let ended = folder.run(&["reproduce", "./mine", "--seeds", "1", "-o", "out"]);
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.out.contains("✗ Two links carry more than one"), "{ended}");
    assert!(ended.out.contains("1 claim came out otherwise than expected"), "{ended}");
}

#[test]
fn what_is_no_reproduction_is_refused() {
    let folder = Folder::new();
    study(&folder, "[[claims]]\ntext = \"t\"\n");
    for (arguments, said) in [
        (&["reproduce", "seed999"][..], "no reproduction is called `seed999`"),
        (&["reproduce", "./mine"], "mine/expected.toml:1:1: a claim has no `source`"),
        (&["reproduce", "./nothing"], "`./nothing/plan.toml` cannot be read"),
        (&["reproduce", "seed000", "--docs", "docs"], "`--docs` writes a page of all figures"),
    ] {
        let ended = folder.run(arguments);
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.err.contains(said), "{ended}");
    }
}

#[test]
fn every_published_figure_comes_out_as_expected_with_few_runs() {
    let folder = Folder::new();
    let mut command = folder.towpath(&["reproduce", "all", "--thin", "--json", "-o", "all"]);
    let ended = folder.start(&mut command).wait_at_most(LIMIT);
    assert_eq!(ended.code, Some(0), "{ended}");
    let listed = folder.run(&["reproduce", "--json"]);
    let entries = ended.json();
    assert_eq!(entries.len(), listed.json().len());
    for entry in entries {
        assert_eq!(entry["failed"], 0, "{entry}");
    }
}
