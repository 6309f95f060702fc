//! Commands around a collector: uploads of every kind of run, `diff`, `purge`, and their errors.

use crate::program::{Running, TestDir, acquire_emulator, wait_for};

/// Starts a collector on a port that the kernel chooses; returns its address.
fn serve(folder: &TestDir) -> (Running, String) {
    let arguments = ["collect", "serve", "--dir", "data", "--listen", "127.0.0.1:0", "--public"];
    let server = folder.start(&mut folder.towpath(&arguments));
    let url = wait_for("the collector", || {
        let stderr = server.stderr();
        let (_, rest) = stderr.split_once("listening on ")?;
        Some(rest.split_once(',')?.0.to_owned())
    });
    (server, url)
}

#[test]
fn two_runs_differ_and_a_limit_for_the_change_fails() {
    let folder = TestDir::new();
    let (_server, url) = serve(&folder);
    let token = ["collect", "token", "create", "--dir", "data", "--role", "uploader"];
    let created = folder.run(&[&token[..], &["--name", "lab3", "--out", "token"]].concat());
    assert_eq!(created.code, Some(0), "{created}");
    let run = ["run", "two-links", "--world", "sim", "-T", "tcp,mptcp", "--quiet", "-o", "out"];
    let run = folder.run(&[&run[..], &["--to", &url, "--token-file", "token"]].concat());
    assert_eq!(run.code, Some(0), "{run}");
    let upload = ["upload", "out", "--to", &url, "--token-file", "token", "--json"];
    let again = folder.run(&upload);
    assert_eq!(again.code, Some(0), "{again}");
    let mut pages: Vec<String> = Vec::new();
    for line in again.json() {
        assert_eq!(line["created"], false, "the run was sent before: {line}");
        pages.push(line["url"].as_str().unwrap().to_owned());
    }
    // Result files are sorted by name, and `mptcp` comes before `tcp`.
    let [mptcp, tcp] = &pages[..] else { panic!("{pages:?}") };
    let diff = |arguments: &[&str]| folder.run(&[&["collect", "diff"], arguments].concat());
    let worse = diff(&[mptcp, tcp, "--fail-if", "goodput < -5 %"]);
    assert_eq!(worse.code, Some(1), "{worse}");
    assert!(worse.out.contains("goodput") && worse.err.contains("failed: `goodput"), "{worse}");
    let better = diff(&[tcp, mptcp, "--fail-if", "goodput < -5 %", "--json"]);
    assert_eq!(better.code, Some(0), "{better}");
    assert!(better.json()[0]["change"].as_f64().unwrap() > 0.5, "{better}");
    let missing = diff(&[tcp, mptcp, "--fail-if", "delay.p99 > 5 %"]);
    assert_eq!(missing.code, Some(2), "{missing}");
    let unknown = diff(&[tcp, "0123", "--to", &url]);
    assert!(unknown.code == Some(2) && unknown.err.contains("no run `0123`"), "{unknown}");
    let purge = folder.run(&["collect", "purge", "--dir", "data", "--older-than", "0h"]);
    assert!(purge.out.starts_with("removed 2 runs"), "{purge}");
}

/// Returns the status, the target of a redirect and the body of a page.
fn get(url: &str) -> (u16, String, String) {
    let config = ureq::Agent::config_builder().proxy(None).max_redirects(0);
    let agent = ureq::Agent::from(config.http_status_as_error(false).build());
    let mut reply = agent.get(url).call().unwrap();
    let target = reply.headers().get("location").map(|target| target.to_str().unwrap().to_owned());
    let body = reply.body_mut().read_to_string().unwrap();
    (reply.status().as_u16(), target.unwrap_or_default(), body)
}

#[test]
fn the_collector_shows_an_emulated_run_while_it_goes_on() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let (_server, url) = serve(&folder);
    let token = ["collect", "token", "create", "--dir", "data", "--role", "uploader"];
    let created = folder.run(&[&token[..], &["--name", "lab3", "--out", "token"]].concat());
    assert_eq!(created.code, Some(0), "{created}");
    let run = ["run", "two-links", "--world", "emu", "-T", "mptcp", "-o", "out"];
    let change = ["--set", "flows.0.duration=6s", "--to", &url, "--token-file", "token"];
    let run = folder.start(&mut folder.towpath(&[&run[..], &change[..]].concat()));
    let id = wait_for("a run in progress", || {
        let list: serde_json::Value =
            serde_json::from_str(&get(&format!("{url}/api/v1/live")).2).unwrap();
        Some(list["runs"].as_array()?.first()?["id"].as_str()?.to_owned())
    });
    let page = format!("{url}/live/{id}");
    wait_for("a chart of two subflows", || {
        let (_, _, body) = get(&page);
        (body.matches("<li class=\"p").count() >= 2).then_some(())
    });
    let run = run.wait();
    assert!(run.err.contains(&format!("live: {page}")), "{run}");
    let (status, target, _) = get(&page);
    assert_eq!(status, 303, "the page leads to the result: {run}");
    assert!(run.err.contains(&format!("uploaded: {url}{target}")), "{run}");
}

#[test]
fn mistakes_are_found_before_anything_runs() {
    let folder = TestDir::new();
    for (arguments, words) in [
        (&["run", "two-links", "--world", "sim", "--to", "ftp://x"][..], "ftp://x"),
        (&["run", "two-links", "--world", "sim", "--to", "http://127.0.0.1:1"], "needs a token"),
        (&["collect", "login", "--dir", "nothing"], "never started"),
        (&["collect", "token", "revoke", "x", "--dir", "nothing"], "no valid token"),
        (&["collect", "purge", "--older-than", "soon"], "such as `90d`"),
        (&["collect", "serve", "--url", "example.org"], "begins with"),
        (&["collect", "serve", "--database", "mysql://x"], "not the address of a database"),
        (&["collect", "diff", "a", "b"], "not the address of a run"),
    ] {
        let output = folder.run(arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {output}");
        assert!(output.err.contains(words), "{arguments:?}: {output}");
    }
    assert!(!folder.names().iter().any(|name| name == "towpath-results"), "{:?}", folder.names());
}

const CAMPAIGN: &str = "name = \"lan-1\"\nmode = \"stable\"\nend = 2100-01-01T00:00:00Z\n\
    every = \"1 h\"\ntransports = [\"tcp\"]\nfamilies = [\"ipv4\"]\nbytes-per-day = \"1 GB\"\n\
    [[patterns]]\npattern = \"ping\"\n";

#[test]
fn an_analysis_reads_a_folder_and_finds_mistakes() {
    let folder = TestDir::new();
    let run = ["run", "two-links", "--world", "sim", "-T", "tcp,quic", "-r", "2", "--quiet"];
    let run = folder.run(&[&run[..], &["-o", "results/laptop"]].concat());
    assert_eq!(run.code, Some(0), "{run}");
    let analyse = |arguments: &[&str]| folder.run(&[&["collect", "analyse"], arguments].concat());
    let summary = analyse(&["--folder", "results", "--min-runs", "2", "--out", "figures"]);
    assert_eq!(summary.code, Some(0), "{summary}");
    assert!(summary.out.contains("4 runs, 1 device") && summary.out.contains("QUIC / TCP"));
    assert!(summary.out.lines().all(|line| line.chars().count() <= 100), "{summary}");
    assert!(summary.err.contains("figures/index.html"), "{summary}");
    let json = analyse(&["--folder", "results", "--min-runs", "2", "--json"]);
    let written = std::fs::read_to_string(folder.work().join("figures/analysis.json")).unwrap();
    assert_eq!(json.out, written);
    folder.write("lan.toml", CAMPAIGN);
    std::fs::create_dir(folder.work().join("empty")).unwrap();
    let created = folder.run(&["collect", "campaign", "create", "lan.toml"]);
    assert_eq!(created.code, Some(0), "{created}");
    for (arguments, words) in [
        (&["analyse"][..], "<CAMPAIGN>"),
        (&["analyse", "other"], "`towpath collect campaign list`"),
        (&["analyse", "lan-1"], "the campaign `lan-1` has no runs with a result"),
        (&["analyse", "--folder", "nothing"], "cannot read `nothing`"),
        (&["analyse", "--folder", "empty"], "towpath collect export"),
        (&["analyse", "lan-1", "--folder", "results"], "no results of the campaign `lan-1`"),
        (&["analyse", "--folder", "results", "--dir", "x"], "cannot be used with"),
        (&["analyse", "--folder", "results", "--family", "ipv6"], "leave out conditions"),
        (&["analyse", "--folder", "results", "--min-version", "new"], "such as `0.3`"),
        (&["analyse", "--folder", "results", "--min-runs", "0"], "--min-runs"),
        (&["export", "--results", "x"], "--campaign"),
        (&["export", "--results", "x", "--campaign", "other"], "no campaign is named `other`"),
        (&["export", "--results", "x", "--campaign", "lan-1", "--parquet", "y"], "cannot be used"),
        (&["export", "--results", "results", "--campaign", "lan-1"], "is not empty"),
        (&["export"], "--parquet"),
    ] {
        let output = folder.run(&[&["collect"], arguments].concat());
        assert_eq!(output.code, Some(2), "{arguments:?}: {output}");
        assert!(output.err.contains(words), "{arguments:?}: {output}");
    }
    let export = folder.run(&["collect", "export", "--results", "new", "--campaign", "lan-1"]);
    assert!(export.code == Some(0) && export.out.contains("exported 0 runs"), "{export}");
}
