//! Devices of volunteers, from the invitation to the deletion, with a real collector.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;

use crate::program::{ProgramOutput, Running, TestDir, names, wait_for};

/// A collector, and a device with a configuration folder of its own.
pub(crate) struct Study {
    pub(crate) folder: TestDir,
    url: String,
    server: Running,
}

impl Study {
    fn start() -> Self {
        let folder = TestDir::new();
        let serve = ["collect", "serve", "--dir", "data", "--listen", "127.0.0.1:0", "--public"];
        let serve = [&serve[..], &["--poll", "1s"]].concat();
        let server = folder.start(&mut folder.towpath(&serve));
        let url = wait_for("the collector", || {
            let stderr = server.stderr();
            let (_, rest) = stderr.split_once("listening on ")?;
            Some(rest.split_once(',')?.0.to_owned())
        });
        Self { folder, url, server }
    }

    /// Runs a command of the operator, which must succeed.
    pub(crate) fn administer(&self, arguments: &[&str]) -> ProgramOutput {
        let arguments = [&["collect"], arguments, &["--dir", "data"]].concat();
        let output = self.folder.run(&arguments);
        assert_eq!(output.code, Some(0), "{output}");
        output
    }

    /// Returns a new code for a device.
    fn invite(&self, name: &str) -> String {
        self.administer(&["device", "invite", name]).out.trim().to_owned()
    }

    pub(crate) fn agent(&self, arguments: &[&str]) -> ProgramOutput {
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
    pub(crate) fn status(&self, code: i32) -> Value {
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
    let listed = study.administer(&["device", "list", "--json"]).out;
    assert!(listed.lines().all(|line| line.contains(r#""state":"invited""#)), "{listed}");
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

/// A study with a test server on this host.
pub(crate) struct CampaignStudy {
    pub(crate) study: Study,
    server: Running,
    pub(crate) port: u16,
}

impl CampaignStudy {
    /// Starts everything, and joins.
    pub(crate) fn start() -> Self {
        let study = Study::start();
        let token = study.administer(&["token", "create", "--name", "eu-1", "--role", "server"]);
        study.folder.write_secret("server-token", token.out);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = port.to_string();
        let serve = ["server", "-p", &text, "-B", "127.0.0.1", "--announce", "127.0.0.1"];
        let register = ["--register", &study.url, "--token-file", "server-token"];
        let command = [&serve[..], &register].concat();
        let server = study.folder.start(&mut study.folder.towpath(&command));
        wait_for("the registration", || server.stderr().contains("registered with").then_some(()));
        study.join();
        Self { study, server, port }
    }

    /// Creates a campaign with these patterns.
    fn create(&self, name: &str, keys: &str, patterns: &str) {
        let text = format!(
            "name = \"{name}\"\nmode = \"stable\"\nend = 2199-01-01T00:00:00Z\njitter = \"0 s\"\n\
             families = [\"ipv4\"]\nports = [{}]\nbytes-per-day = \"100 MB\"\n{keys}\n{patterns}",
            self.port
        );
        self.study.folder.write("campaign.toml", text);
        self.study.administer(&["campaign", "create", "campaign.toml"]);
    }

    /// Returns the collector's counts of planned runs.
    pub(crate) fn counts(&self, name: &str) -> Value {
        self.study.administer(&["campaign", "show", name, "--json"]).json().remove(0)["counts"]
            .clone()
    }

    /// Returns the number of tests that the server has begun.
    pub(crate) fn tests(&self) -> usize {
        self.server.stderr().matches(" measures ").count()
    }

    pub(crate) fn run_once(&self) -> ProgramOutput {
        self.study.agent(&["run", "--once", "--json"])
    }
}

const TWO_PATTERNS: &str = "[[patterns]]\npattern = \"ping\"\ncount = 3\nperiod = \"20 ms\"\n\
    [[patterns]]\npattern = \"bulk\"\nsize = \"1 MB\"\ndirection = \"down\"\n";

pub(crate) fn send_signal(name: &str, program: &Running) {
    let sent = Command::new("kill").args([name, &program.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Returns the outcomes in each state, or missing for each reason.
pub(crate) fn count_outcomes(output: &str, key: &str, value: &str) -> usize {
    let outcomes = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    outcomes.filter(|outcome| outcome[key] == value).count()
}

#[test]
fn each_planned_run_of_a_campaign_is_stored_once() {
    let study = CampaignStudy::start();
    let keys = "every = \"10 s\"\nrounds = 2\ntransports = [\"tcp\", \"quic\"]";
    study.create("loop", keys, TWO_PATTERNS);
    let plan = study.study.agent(&["plan", "--json"]);
    let planned = plan.json().remove(0);
    assert_eq!((plan.code, planned["runs"].as_array().unwrap().len()), (Some(0), 4), "{plan}");
    assert!(planned["runs"].as_array().unwrap().iter().all(|run| run["refused"].is_null()));
    let folder = &study.study.folder;
    let agent = folder.start(&mut folder.towpath(&["agent", "run", "--json"]));
    wait_for("both rounds", || (agent.printed().lines().count() == 8).then_some(()));
    let second = study.run_once();
    assert!(second.code == Some(2) && second.err.contains("another `towpath agent run`"));
    wait_for("the reports", || (study.counts("loop")["stored"] == 8).then_some(()));
    send_signal("-TERM", &agent);
    let agent = agent.wait();
    assert_eq!(agent.code, Some(130), "{agent}");
    assert_eq!(count_outcomes(&agent.out, "state", "stored"), 8, "{agent}");
    let counts = study.counts("loop");
    assert_eq!((&counts["planned"], &counts["stored"]), (&8.into(), &8.into()), "{counts}");
    assert_eq!((study.tests(), study.study.status(0)["runs"].as_u64()), (8, Some(8)));
    assert!(names(&folder.config().join("towpath/agent-results")).is_empty());
    let again = study.run_once();
    assert!(again.code == Some(0) && again.out.is_empty(), "{again}");
    let forgotten = study.study.agent(&["forget", "--yes"]);
    assert!(forgotten.out.starts_with("deleted 8 runs"), "{forgotten}");
    assert!(names(&folder.config().join("towpath")).is_empty());
}

#[test]
fn no_campaign_exceeds_the_limits_of_the_owner() {
    let study = CampaignStudy::start();
    let limits = study.study.agent(&["limits", "--bytes-per-day", "3 MB", "--json"]);
    assert_eq!(limits.json()[0]["bytes_per_day"], 3_000_000, "{limits}");
    study.create("loop", "every = \"10 min\"\ntransports = [\"tcp\", \"quic\"]", TWO_PATTERNS);
    let plan = study.study.agent(&["plan"]);
    assert!(plan.code == Some(0) && plan.out.contains("refused: the run can need"), "{plan}");
    let run = study.run_once();
    assert_eq!(run.code, Some(0), "{run}");
    assert_eq!(count_outcomes(&run.out, "state", "stored"), 3, "{run}");
    assert_eq!(count_outcomes(&run.out, "reason", "owner-limit"), 1, "{run}");
    let used = study.study.agent(&["limits", "--json"]).json()[0]["used_today"].as_u64();
    assert!(used.is_some_and(|used| (2_500_000..=3_000_000).contains(&used)), "{used:?}");
    let counts = study.counts("loop");
    assert_eq!((&counts["stored"], &counts["missing"]), (&3.into(), &1.into()), "{counts}");
    let limits = ["limits", "--bytes-per-day", "none", "--interfaces", "wlan7"];
    assert_eq!(study.study.agent(&limits).code, Some(0));
    study.create("other", "every = \"10 min\"\ntransports = [\"tcp\"]", TWO_PATTERNS);
    let tests = study.tests();
    let run = study.run_once();
    assert_eq!(count_outcomes(&run.out, "reason", "owner-limit"), 2, "{run}");
    assert!(run.out.contains("which the owner does not allow"), "{run}");
    assert_eq!(study.tests(), tests);
}

#[test]
fn a_campaign_without_the_signature_of_the_collector_is_refused() {
    let study = CampaignStudy::start();
    study.create("loop", "every = \"10 min\"\ntransports = [\"tcp\"]", TWO_PATTERNS);
    let path = study.study.folder.config().join("towpath/agent.toml");
    let state = fs::read_to_string(&path).unwrap();
    let line = state.lines().find(|line| line.starts_with("campaign-key")).unwrap();
    let other = format!("campaign-key = \"{}\"", "5a".repeat(32));
    fs::write(&path, state.replace(line, &other)).unwrap();
    let plan = study.study.agent(&["plan"]);
    assert!(plan.code == Some(1) && plan.out.is_empty(), "{plan}");
    assert!(plan.err.contains("the signature is not that of this collector"), "{plan}");
    let run = study.run_once();
    assert!(run.code == Some(0) && run.out.is_empty(), "{run}");
    assert!(run.err.contains("campaign 1 is refused"), "{run}");
    fs::write(&path, state.replace(line, "")).unwrap();
    for command in [&["plan"][..], &["run", "--once"]] {
        let refused = study.study.agent(command);
        assert!(refused.code == Some(2) && refused.err.contains("join again"), "{refused}");
    }
    assert_eq!(study.tests(), 0);
}

#[test]
fn a_paused_campaign_and_a_revoked_device_make_no_run() {
    let study = CampaignStudy::start();
    let keys = "every = \"10 s\"\ntransports = [\"tcp\"]";
    study.create("loop", keys, TWO_PATTERNS);
    study.study.administer(&["campaign", "pause", "loop"]);
    let run = study.run_once();
    assert_eq!(count_outcomes(&run.out, "reason", "stopped"), 2, "{run}");
    study.study.administer(&["campaign", "resume", "loop"]);
    study.study.folder.write("text", "We also store the weather.\n");
    study.study.administer(&["consent", "set", "text"]);
    let outdated = study.run_once();
    assert!(outdated.code == Some(1) && outdated.out.is_empty(), "{outdated}");
    assert!(outdated.err.contains("`towpath agent consent`"), "{outdated}");
    assert_eq!(study.study.agent(&["consent", "--accept", "2"]).code, Some(0));
    study.study.administer(&["device", "revoke", "phone"]);
    let revoked = study.run_once();
    assert!(revoked.code == Some(1) && revoked.out.is_empty(), "{revoked}");
    assert!(revoked.err.contains("was revoked") && revoked.err.contains("--local"), "{revoked}");
    assert_eq!(study.tests(), 0);
}

#[test]
fn a_killed_agent_continues_with_the_rest_of_the_round() {
    let study = CampaignStudy::start();
    let long = "[[patterns]]\npattern = \"iperf\"\nduration = \"60 s\"\nmax-bytes = \"20 MB\"\n\
                transports = [\"tcp\"]\n";
    let keys = "every = \"30 min\"\ntransports = [\"tcp\", \"quic\"]";
    study.create("loop", keys, &format!("{long}{TWO_PATTERNS}"));
    let folder = &study.study.folder;
    let agent = folder.start(&mut folder.towpath(&["agent", "run", "--json"]));
    wait_for("the first run", || (study.tests() == 1).then_some(()));
    send_signal("-KILL", &agent);
    drop(agent);
    let run = study.run_once();
    assert_eq!(run.code, Some(0), "{run}");
    assert_eq!(count_outcomes(&run.out, "reason", "interrupted"), 1, "{run}");
    assert_eq!(count_outcomes(&run.out, "state", "stored"), 4, "{run}");
    assert_eq!(study.tests(), 5);
    let used = study.study.agent(&["limits", "--json"]).json()[0]["used_today"].as_u64();
    assert!(used.is_some_and(|used| used >= 20_000_000), "{used:?}");
    let counts = study.counts("loop");
    assert_eq!((&counts["stored"], &counts["missing"]), (&4.into(), &1.into()), "{counts}");
}

#[test]
fn a_mobile_campaign_measures_over_all_transports_at_the_same_time() {
    let study = CampaignStudy::start();
    let folder = &study.study.folder;
    let text = format!(
        "name = \"walk\"\nmode = \"mobile\"\nend = 2199-01-01T00:00:00Z\nevery = \"10 min\"\n\
         jitter = \"0 s\"\ntransports = [\"tcp\", \"mpquic\"]\nports = [{}]\n\
         bytes-per-day = \"100 MB\"\n[[patterns]]\npattern = \"interactive\"\nduration = \"2 s\"\n",
        study.port
    );
    folder.write("campaign.toml", text);
    study.study.administer(&["campaign", "create", "campaign.toml"]);
    let run = study.study.agent(&["run", "--once", "--json", "--keep"]);
    assert_eq!((run.code, count_outcomes(&run.out, "state", "stored")), (Some(0), 2), "{run}");
    let results = folder.config().join("towpath/agent-results");
    assert_eq!(names(&results), ["walk-0-0", "walk-0-1"]);
    let stored = |path: &str| {
        let path = results.join(path);
        folder.stored(path.to_str().unwrap())
    };
    let first = stored("walk-0-0/live-tcp-1.jsonl.zst");
    let second = stored("walk-0-1/live-mpquic-1.jsonl.zst");
    let log = study.server.stderr();
    let (began, ended) = (log.rfind(" measures ").unwrap(), log.find(" is done").unwrap());
    assert!(began < ended, "both run at the same time: {log}");
    for (result, run) in [(&first, "0/0"), (&second, "0/1")] {
        let condition = |name: &str| result.meta.conditions.get(name).map(String::as_str);
        assert_eq!(condition("campaign"), Some("walk"));
        assert_eq!(condition("campaign run"), Some(run));
        assert!(condition("server certificate").unwrap().ends_with("(as expected)"));
    }
    let probed = |result: &towpath_result::store::RunResult| {
        !result.summary.as_ref().unwrap().paths.is_empty()
    };
    assert_eq!((probed(&first), probed(&second)), (true, false));
}

#[test]
fn a_stopped_agent_reports_the_run_in_progress() {
    let study = CampaignStudy::start();
    let long = "[[patterns]]\npattern = \"iperf\"\nduration = \"60 s\"\nmax-bytes = \"20 MB\"\n";
    study.create("loop", "every = \"30 min\"\ntransports = [\"tcp\"]", long);
    let folder = &study.study.folder;
    let agent = folder.start(&mut folder.towpath(&["agent", "run"]));
    wait_for("the run", || (study.tests() == 1).then_some(()));
    send_signal("-INT", &agent);
    let agent = agent.wait();
    assert_eq!(agent.code, Some(130), "{agent}");
    assert!(agent.err.contains("no result: the agent was stopped"), "{agent}");
    let counts = study.counts("loop");
    assert_eq!(counts["missing_by_reason"]["interrupted"], 1, "{counts}");
    let again = study.run_once();
    assert!(again.code == Some(0) && again.out.is_empty() && study.tests() == 1, "{again}");
}
