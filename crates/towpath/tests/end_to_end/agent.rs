//! Devices of volunteers, from the invitation to the deletion, with a real collector.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::program::{ProgramOutput, Running, TestDir, names, wait_for};

/// A collector, and a device with a configuration folder of its own.
struct Study {
    folder: TestDir,
    url: String,
    server: Running,
}

impl Study {
    fn start() -> Self {
        let folder = TestDir::new();
        let serve = ["collect", "serve", "--dir", "data", "--listen", "127.0.0.1:0", "--public"];
        let server = folder.start(&mut folder.towpath(&serve));
        let url = wait_for("the collector", || {
            let stderr = server.stderr();
            let (_, rest) = stderr.split_once("listening on ")?;
            Some(rest.split_once(',')?.0.to_owned())
        });
        Self { folder, url, server }
    }

    /// Runs a command of the operator, which must succeed.
    fn administer(&self, arguments: &[&str]) -> ProgramOutput {
        let arguments = [&["collect"], arguments, &["--dir", "data"]].concat();
        let output = self.folder.run(&arguments);
        assert_eq!(output.code, Some(0), "{output}");
        output
    }

    /// Returns a new code for a device.
    fn invite(&self, name: &str) -> String {
        self.administer(&["device", "invite", name]).out.trim().to_owned()
    }

    fn agent(&self, arguments: &[&str]) -> ProgramOutput {
        self.folder.run(&[&["agent"], arguments].concat())
    }

    /// Joins as `phone` with version 1 of the consent text.
    fn join(&self) {
        let code = self.invite("phone");
        let joined = self.agent(&["join", &self.url, &code, "--accept", "1"]);
        assert_eq!(joined.code, Some(0), "{joined}");
        assert_eq!(joined.out, format!("joined {} as `phone`\n", self.url), "{joined}");
    }

    /// Simulates a run and uploads it with the token of the device.
    fn run(&self, seed: &str) -> ProgramOutput {
        let run = ["run", "two-links", "--world", "sim", "-T", "mptcp", "--quiet", "-o", "out"];
        self.folder.run(&[&run[..], &["--seed", seed, "--to", &self.url]].concat())
    }

    /// Returns the device's state as the device prints it, with this exit code.
    fn status(&self, code: i32) -> Value {
        let status = self.agent(&["status", "--json"]);
        assert_eq!(status.code, Some(code), "{status}");
        status.json().remove(0)
    }

    fn is_joined(&self) -> bool {
        self.folder.config().join("towpath/agent.toml").exists()
    }
}

/// Returns the status of a page.
fn status_of(url: &str) -> u16 {
    let config = ureq::Agent::config_builder().proxy(None).http_status_as_error(false);
    ureq::Agent::from(config.build()).get(url).call().unwrap().status().as_u16()
}

#[test]
fn a_device_joins_uploads_lists_its_runs_and_deletes_them() {
    let study = Study::start();
    study.join();
    let config = study.folder.config().join("towpath");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(config.clone()), mode(config.join("agent.toml"))), (0o700, 0o600));
    assert_eq!(names(&config), ["agent.toml"]);
    let joined = study.status(0);
    assert_eq!((joined["status"].as_str(), joined["runs"].as_u64()), (Some("active"), Some(0)));
    for seed in ["1", "2"] {
        let run = study.run(seed);
        assert!(run.code == Some(0) && run.err.contains("uploaded: "), "{run}");
    }
    assert_eq!(study.status(0)["runs"], 2);
    let results = study.agent(&["results", "--json"]);
    let pages: Vec<_> = results.json().iter().map(|run| run["url"].clone()).collect();
    assert_eq!(pages.len(), 2, "{results}");
    let table = study.agent(&["results"]);
    for page in &pages {
        let page = page.as_str().unwrap();
        assert_eq!(status_of(page), 200);
        assert!(table.out.lines().any(|line| line.contains("mptcp") && line.ends_with(page)));
    }
    let refused = study.agent(&["forget"]);
    assert!(refused.code == Some(2) && refused.err.contains("hint: confirm with `--yes`"));
    let forgotten = study.agent(&["forget", "--yes"]);
    assert_eq!(forgotten.code, Some(0), "{forgotten}");
    assert!(forgotten.out.starts_with("deleted 2 runs ("), "{forgotten}");
    assert!(forgotten.out.ends_with("; 0 remain on the collector\n"), "{forgotten}");
    assert!(pages.iter().all(|page| status_of(page.as_str().unwrap()) == 404));
    assert!(!study.is_joined());
    assert!(study.agent(&["status"]).err.contains("has not joined"));
    let run = study.run("3");
    assert!(run.code == Some(2) && run.err.contains("needs a token"), "{run}");
}

#[test]
fn no_device_joins_without_the_acceptance_of_the_current_text() {
    let study = Study::start();
    let code = study.invite("phone");
    let asked = study.agent(&["join", &study.url, &code]);
    assert_eq!(asked.code, Some(2), "{asked}");
    assert!(asked.err.contains(&format!("consent text of {}, version 1:", study.url)), "{asked}");
    assert!(asked.err.contains("not a terminal") && asked.err.contains("`--accept 1`"), "{asked}");
    assert!(asked.out.is_empty() && asked.err.lines().all(|line| line.chars().count() <= 100));
    let other = study.agent(&["join", &study.url, &code, "--accept", "7"]);
    assert_eq!(other.code, Some(2), "{other}");
    assert!(other.err.contains("names version 7, and the text has version 1"), "{other}");
    assert!(!study.is_joined());
    assert_eq!(study.administer(&["device", "list", "--json"]).out, "");
    let wrong = study.agent(&["join", &study.url, "AAAA-AAAA-AAAA", "--accept", "1"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("code is not valid"), "{wrong}");
    let joined = study.agent(&["join", &study.url, &code, "--accept", "1"]);
    assert_eq!(joined.code, Some(0), "the refusals have not used up the code: {joined}");
    let again = study.agent(&["join", &study.url, &study.invite("tablet"), "--accept", "1"]);
    assert!(again.code == Some(2) && again.err.contains("already joined"), "{again}");
    let tablet = ["--config", "tablet/agent.toml"];
    let code = study.administer(&["device", "invite", "other"]).out;
    let join = ["join", &study.url, code.trim(), "--accept", "1"];
    let second = study.agent(&[&join[..], &tablet].concat());
    assert!(second.code == Some(0) && second.out.contains("as `other`"), "{second}");
    let status = study.agent(&[&["status", "--json"][..], &tablet].concat());
    assert_eq!(status.json()[0]["name"], "other", "{status}");
}

#[test]
fn a_newer_consent_text_stops_uploads_until_it_is_accepted() {
    let study = Study::start();
    study.join();
    study.folder.write("text", "We also store the weather.\n");
    study.administer(&["consent", "set", "text"]);
    let run = study.run("1");
    assert!(run.err.contains("has not accepted the current consent text"), "{run}");
    assert!(run.err.contains("`towpath agent consent`"), "{run}");
    let status = study.status(0);
    assert_eq!(status["status"], "consent-needed", "{status}");
    assert_eq!((&status["consent"], &status["current_consent"]), (&1.into(), &2.into()));
    let asked = study.agent(&["consent"]);
    assert!(asked.code == Some(2) && asked.err.contains("We also store the weather."), "{asked}");
    let old = study.agent(&["consent", "--accept", "1"]);
    assert_eq!(old.code, Some(2), "{old}");
    let accepted = study.agent(&["consent", "--accept", "2"]);
    assert_eq!((accepted.code, accepted.out.as_str()), (Some(0), "accepted version 2\n"));
    let again = study.agent(&["consent"]);
    assert!(again.code == Some(0) && again.err.contains("version 2 was accepted"), "{again}");
    let sent = study.folder.run(&["upload", "--to", &study.url]);
    assert!(sent.code == Some(0) && sent.out.contains("/runs/"), "the run has waited: {sent}");
    let status = study.status(0);
    assert_eq!((&status["status"], &status["runs"]), (&"active".into(), &1.into()));
}

#[test]
fn a_revoked_device_and_a_missing_collector_are_named() {
    let study = Study::start();
    study.join();
    study.administer(&["device", "revoke", "phone"]);
    let status = study.agent(&["status"]);
    assert_eq!(status.code, Some(1), "{status}");
    assert!(status.out.contains("phone") && status.err.contains("was revoked"), "{status}");
    let run = study.run("1");
    assert!(run.err.contains("does not accept the token"), "{run}");
    assert!(run.err.contains("`towpath agent status`"), "{run}");
    let forget = study.agent(&["forget", "--yes"]);
    assert_eq!(forget.code, Some(2), "{forget}");
    assert!(forget.err.contains("was revoked") && forget.err.contains("--local"), "{forget}");
    assert!(study.is_joined());
    let Study { folder, url, server } = study;
    drop(server);
    let status = folder.run(&["agent", "status"]);
    assert_eq!(status.code, Some(1), "{status}");
    assert!(status.out.contains(&url) && status.err.contains("cannot reach"), "{status}");
    let local = folder.run(&["agent", "forget", "--local", "--yes"]);
    assert_eq!(local.code, Some(0), "{local}");
    assert!(local.err.contains("removed 1 run that waited"), "{local}");
    assert!(names(&folder.config().join("towpath")).is_empty());
}
