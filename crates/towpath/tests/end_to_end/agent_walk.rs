//! Walks of a volunteer: mobile rounds that the owner of a device starts.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::agent::{CampaignStudy, count_outcomes, send_signal};
use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, binary, wait_for};

/// Timeout for the emulated network with all its programs.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a mobile campaign.
fn campaign(port: u16, keys: &str, duration: &str) -> String {
    format!(
        "name = \"walk\"\nmode = \"mobile\"\nend = 2199-01-01T00:00:00Z\njitter = \"0 s\"\n\
         ports = [{port}]\nbytes-per-day = \"100 MB\"\n{keys}\n[[patterns]]\n\
         pattern = \"interactive\"\nduration = \"{duration}\"\n"
    )
}

/// Starts a study with a mobile campaign over two transports.
fn start(keys: &str, duration: &str) -> CampaignStudy {
    let study = CampaignStudy::start();
    let keys = format!("transports = [\"tcp\", \"mpquic\"]\n{keys}");
    study.study.folder.write("campaign.toml", campaign(study.port, &keys, duration));
    study.study.administer(&["campaign", "create", "campaign.toml"]);
    study
}

fn walk(study: &CampaignStudy) -> ProgramOutput {
    study.study.agent(&["walk", "--yes", "--json"])
}

#[test]
fn each_walk_makes_one_round_which_the_agent_does_not_repeat() {
    let study = start("every = \"10 s\"\nrounds = 2", "2 s");
    for round in 0..2 {
        let walked = walk(&study);
        assert_eq!(walked.code, Some(0), "{walked}");
        let summary = walked.json().remove(0);
        assert_eq!(
            (&summary["round"], &summary["end"]),
            (&round.into(), &"duration-reached".into())
        );
        for run in summary["runs"].as_array().unwrap() {
            assert_eq!((&run["state"], &run["upload"]), (&"stored".into(), &"sent".into()));
            assert!(run["max_delay_up_ns"].as_u64().is_some_and(|ns| ns > 0), "{walked}");
        }
        assert!(walked.err.contains("; carried: "), "a line for each second: {walked}");
        assert!(walked.err.lines().all(|line| line.chars().count() <= 100), "{walked}");
    }
    assert_eq!((study.tests(), study.study.status(0)["runs"].as_u64()), (4, Some(4)));
    let again = study.run_once();
    assert!(again.code == Some(0) && again.out.is_empty(), "{again}");
    let third = walk(&study);
    assert!(third.code == Some(2) && third.err.contains("no further round"), "{third}");
    // The result of an early round counts when its time has come.
    let counts = wait_for("both rounds", || {
        let counts = study.counts("walk");
        (counts["stored"] == 4).then_some(counts)
    });
    assert_eq!((&counts["planned"], &counts["missing"]), (&4.into(), &0.into()), "{counts}");
    assert_eq!(study.tests(), 4);
}

#[test]
fn a_walk_that_cannot_begin_uses_up_no_round() {
    let study = start("every = \"10 min\"", "2 s");
    let asked = study.study.agent(&["walk"]);
    assert!(asked.code == Some(2) && asked.out.is_empty(), "{asked}");
    assert!(asked.err.contains("not a terminal") && asked.err.contains("`--yes`"), "{asked}");
    for part in ["five pings", "tcp and mpquic at the same time", "at most ", "network prefixes"] {
        assert!(asked.err.contains(part), "{part}: {asked}");
    }
    for limits in [["--bytes-per-day", "1 MB"], ["--interfaces", "wlan7"]] {
        assert_eq!(study.study.agent(&[&["limits"][..], &limits].concat()).code, Some(0));
        let refused = walk(&study);
        assert!(refused.code == Some(2) && refused.out.is_empty(), "{refused}");
        assert!(refused.err.contains("the walk cannot begin: the run c"), "{refused}");
        let limits = ["limits", "--bytes-per-day", "none"];
        assert_eq!(study.study.agent(&limits).code, Some(0));
    }
    let other = study.study.agent(&["walk", "other", "--yes"]);
    assert!(other.code == Some(2) && other.err.contains("no campaign `other`"), "{other}");
    assert_eq!(study.study.agent(&["limits", "--interfaces", "all"]).code, Some(0));
    study.study.administer(&["campaign", "pause", "walk"]);
    let paused = study.study.agent(&["walk", "walk", "--yes"]);
    assert!(paused.code == Some(2) && paused.err.contains("`walk` is paused"), "{paused}");
    study.study.administer(&["campaign", "resume", "walk"]);
    study.study.folder.write("text", "We also store the weather.\n");
    study.study.administer(&["consent", "set", "text"]);
    let outdated = walk(&study);
    assert!(outdated.code == Some(1) && outdated.err.contains("newer consent text"), "{outdated}");
    assert_eq!(study.study.agent(&["consent", "--accept", "2"]).code, Some(0));
    assert_eq!(study.tests(), 0);
    let walked = walk(&study);
    assert_eq!((walked.code, &walked.json()[0]["round"]), (Some(0), &0.into()), "{walked}");
}

#[test]
fn a_walk_that_the_user_stops_has_a_result_and_a_killed_one_is_not_repeated() {
    let study = start("every = \"10 min\"\nrounds = 2", "60 s");
    let folder = &study.study.folder;
    let begin = |tests: usize| {
        let walk = folder.start(&mut folder.towpath(&["agent", "walk", "--yes", "--json"]));
        wait_for("the traffic", || {
            (study.tests() == tests && walk.stderr().contains("; carried: ")).then_some(())
        });
        walk
    };
    let stopped = begin(2);
    let second = study.run_once();
    assert!(second.code == Some(2) && second.err.contains("another `towpath agent run`"));
    send_signal("-INT", &stopped);
    let stopped = stopped.wait();
    assert_eq!(stopped.code, Some(130), "{stopped}");
    let summary = stopped.json().remove(0);
    assert_eq!(summary["end"], "interrupted", "{stopped}");
    let counts = study.counts("walk");
    assert_eq!((&counts["planned"], &counts["stored"]), (&2.into(), &2.into()), "{counts}");
    let killed = begin(4);
    send_signal("-KILL", &killed);
    drop(killed);
    let run = study.run_once();
    assert_eq!(count_outcomes(&run.out, "reason", "interrupted"), 2, "{run}");
    assert_eq!(study.tests(), 4);
    let none = walk(&study);
    assert!(none.code == Some(2) && none.err.contains("no further round"), "{none}");
}

const NETWORK: &str = r#"
[hosts.client.mptcp]
endpoints = [{ path = "eth", flags = ["subflow"] }, { path = "wlan", flags = ["subflow"] }]
[hosts.server.mptcp]
endpoints = [{ path = "wlan", flags = ["signal"] }]
[paths.eth]
between = ["client", "server"]
rate = "50 Mbit/s"
delay = "1 ms"
[paths.wlan]
between = ["client", "server"]
rate = "50 Mbit/s"
delay = "2 ms"
[[timeline]]
at = "15 s"
path = "eth"
set = "down"
mode = "interface"
host = "client"
"#;

/// Collector, test server and operator. The collector is reached over the path that stays.
const SERVER: &str = "\
$T collect serve --dir data --listen 0.0.0.0:7080 --url http://10.64.1.2:7080 > collector.txt 2>&1 &
until grep -q 'listening on' collector.txt; do sleep 0.05; done
$T server -p 5290 --announce 10.64.0.2 --register http://10.64.1.2:7080 --token-file token \
> server.txt 2>&1 &
until [ -e joined ]; do sleep 0.05; done
$T collect campaign create --dir data campaign.toml > create.txt 2>&1
touch created
until [ -e done ]; do sleep 0.05; done
$T collect campaign show --dir data walk --json > show.json
";

/// Device of the volunteer.
const CLIENT: &str = "\
until grep -q 'registered with' server.txt; do sleep 0.05; done
$T agent join http://10.64.1.2:7080 \"$(cat code)\" --accept 1 > join.txt 2>&1
touch joined
until [ -e created ]; do sleep 0.05; done
$T agent walk --yes --json > walk.json 2> walk.txt
echo $? > exit.txt
$T agent run --once --json > again.json 2> again.txt
touch done
";

#[test]
fn a_walk_ends_when_the_first_interface_goes_down_and_its_result_is_on_the_collector() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let folder = TestDir::new();
    let administer = |arguments: &[&str]| {
        let output = folder.run(&[&["collect"], arguments, &["--dir", "data"]].concat());
        assert_eq!(output.code, Some(0), "{output}");
        output.out
    };
    let token = ["token", "create", "--name", "eu-1", "--role", "server"];
    folder.write_secret("token", administer(&token));
    folder.write("code", administer(&["device", "invite", "phone"]));
    folder.write("campaign.toml", campaign(5_290, "every = \"10 min\"", "60 s"));
    let towpath = fs::canonicalize(binary()).unwrap();
    let script = |text: &str| {
        let work = folder.work();
        let (work, towpath) = (work.display(), towpath.display());
        format!(
            "export T={towpath} XDG_STATE_HOME={work}/state XDG_CONFIG_HOME={work}/config\n{text}"
        )
    };
    folder.write("server.sh", script(SERVER));
    folder.write("client.sh", script(CLIENT));
    let flow = |from: &str, to: &str| {
        format!(
            "[[flows]]\nfrom = \"{from}\"\nto = \"{to}\"\nrun = \"sh {from}.sh\"\n\
             duration = \"90 s\"\n"
        )
    };
    let flows = [flow("server", "client"), flow("client", "server")].concat();
    folder.write("scenario.toml", format!("name = \"walk\"\n{NETWORK}\n{flows}"));
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "around"];
    let around = folder.start(&mut folder.towpath(&arguments)).wait_at_most(TEST_TIMEOUT);
    let read = |name: &str| fs::read_to_string(folder.work().join(name)).unwrap_or_default();
    let log =
        format!("{}\n{}\n{}\n{around}", read("walk.txt"), read("server.txt"), read("join.txt"));
    assert_eq!(read("exit.txt").trim(), "0", "{log}");
    let summary: Value = serde_json::from_str(&read("walk.json")).unwrap();
    assert_eq!((&summary["end"], &summary["server"]), (&"network-lost".into(), &"eu-1".into()));
    assert_eq!(summary["reason"], "interface eth is down", "{log}");
    assert_eq!((&summary["first_network"], &summary["round"]), (&"eth".into(), &0.into()));
    let times = [&summary["carried_ns"], &summary["end_ns"]].map(|time| time.as_u64().unwrap());
    assert!(times[0] > 0 && times[0] <= times[1] + 1_000_000_000, "{times:?}");
    let runs = summary["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{summary}");
    for run in runs {
        assert_eq!((&run["state"], &run["upload"]), (&"stored".into(), &"sent".into()), "{log}");
        assert_eq!(run["other_network"], "wlan", "{summary}");
    }
    let lost = |interface: &str| {
        let all = summary["datagrams"].as_array().unwrap();
        let of = all.iter().find(|datagrams| datagrams["interface"] == interface);
        of.unwrap()["lost"].as_u64().unwrap()
    };
    assert!(lost("eth") > lost("wlan"), "{summary}");
    assert!(read("walk.txt").contains("  eth: "), "{log}");
    assert_eq!(read("again.json"), "", "{}", read("again.txt"));
    let shown: Value = serde_json::from_str(read("show.json").lines().next().unwrap()).unwrap();
    let counts = &shown["counts"];
    assert_eq!((&counts["planned"], &counts["stored"]), (&2.into(), &2.into()), "{counts}");
}
