//! `towpath run` from the scenario to the results.

use std::fs::File;
use std::path::Path;

use towpath_result::{DatagramStats, DelayBasis, Record};
use towpath_scenario::DataDirection;
use towpath_scenario::Load;

use crate::program::{
    TWO_PATHS, TestDir, acquire_emulator, acquire_emulator_for_timing, busy, missing, skip,
};

/// Flow whose size takes at least 0.3 s; a busy machine takes longer.
const SIZED: &str = r#"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
size = "3 MB"
"#;

fn sized_scenario(extra_keys: &str) -> String {
    format!("{TWO_PATHS}{SIZED}{extra_keys}\n")
}

/// Returns a scenario with a flow of these keys instead of [`SIZED`].
fn flow_scenario(keys: &str) -> String {
    format!("{TWO_PATHS}[[flows]]\nfrom = \"phone\"\nto = \"server\"\n{keys}\n")
}

/// A connection is open at the client after one round trip, half of one before the server accepts.
#[test]
fn the_connect_time_ends_when_the_client_is_connected() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", sized_scenario("").replace("size = \"3 MB\"", "size = \"3 KB\""));
    let delays = ["--set", "paths.wifi.delay=300 ms", "--set", "paths.cellular.delay=300 ms"];
    for world in ["sim", "emu"] {
        let arguments = ["run", "scenario.toml", "-W", world, "-T", "tcp,mptcp", "--json"];
        let output = folder.run(&[&arguments[..], &delays].concat());
        assert_eq!(output.code, Some(0), "{output}");
        for line in output.json() {
            let connect_ns = line["summary"]["flows"][0]["connect_ns"].as_u64().unwrap();
            assert!((600_000_000..800_000_000).contains(&connect_ns), "{world}: {connect_ns}");
        }
    }
}

#[test]
fn both_transports_run_and_leave_results_and_a_report() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", sized_scenario(""));
    let output = folder.run(&["run", "scenario.toml", "--json"]);
    assert_eq!(output.code, Some(0), "{output}");
    let [tcp, mptcp] = output.json().try_into().unwrap();
    for (line, transport, used) in [(&tcp, "tcp", false), (&mptcp, "mptcp", true)] {
        assert_eq!(line["transport"], transport);
        assert_eq!(line["file"], format!("{transport}-1.jsonl.zst"));
        let summary = &line["summary"];
        assert_eq!(summary["flows"][0]["completed"], true, "{output}");
        assert_eq!(summary["flows"][0]["bytes"], 3_000_000, "{output}");
        assert_eq!(summary["multipath"]["used"], used, "{output}");
    }
    assert_eq!(tcp["summary"]["multipath"]["paths_used"], serde_json::json!(["wifi"]));
    assert_eq!(
        mptcp["summary"]["multipath"]["paths_used"],
        serde_json::json!(["wifi", "cellular"]),
        "{output}"
    );
    let results = "towpath-results/two-paths/001";
    assert_eq!(
        crate::program::names(&folder.work().join(results)),
        ["mptcp-1.jsonl.zst", "report.html", "tcp-1.jsonl.zst"]
    );
    let stored = folder.stored(&format!("{results}/mptcp-1.jsonl.zst"));
    assert!(stored.summary.unwrap().multipath.used);
    let report = folder.run(&["report", results, "--json", "--output", "again.html"]);
    assert_eq!(report.code, Some(0), "{report}");
    assert_eq!(report.json().len(), 2);
    assert!(folder.work().join("again.html").is_file());
}

#[test]
fn every_back_end_carries_multipath_tcp() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", sized_scenario(""));
    for backend in ["packet", "tun"] {
        let tun = File::options().read(true).write(true).open("/dev/net/tun");
        if let (Err(error), "tun") = (tun, backend) {
            skip("every_back_end_carries_multipath_tcp", &format!("/dev/net/tun: {error}"));
            continue;
        }
        let arguments =
            ["run", "scenario.toml", "-T", "mptcp", "--backend", backend, "-o", backend];
        let output = folder.run(&arguments);
        assert_eq!(output.code, Some(0), "{output}");
        let result = folder.stored(&format!("{backend}/mptcp-1.jsonl.zst"));
        let back_end = &result.meta.conditions["emulator back-end"];
        assert!(back_end.contains(backend), "{back_end}");
        let multipath = result.summary.unwrap().multipath;
        assert_eq!(multipath.paths_used, ["wifi", "cellular"], "{backend}: {multipath:?}");
    }
}

/// Returns a scenario with `count` paths and one sized transfer for each family.
fn many_paths(count: usize, families: &[&str]) -> String {
    let path = |number| {
        format!(
            "[paths.p{number}]\nbetween = [\"phone\", \"server\"]\nrate = \"5 Mbit/s\"\n\
             delay = \"5 ms\"\n"
        )
    };
    let flow = |family: &&str| {
        format!(
            "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\n\
             size = \"2 MB\"\nfamily = \"{family}\"\n"
        )
    };
    let paths: String = (0..count).map(path).collect();
    let flows: String = families.iter().map(flow).collect();
    format!("name = \"many\"\n[hosts.phone]\n[hosts.server]\n{paths}{flows}")
}

#[test]
fn more_paths_than_linux_takes_are_named_and_stay_idle() {
    let Some(_permit) = acquire_emulator() else { return };
    for (count, families, usable) in [(10, &["v4"][..], 8), (9, &["v6"], 8), (5, &["v4", "v6"], 4)]
    {
        let folder = TestDir::new();
        folder.write("many.toml", many_paths(count, families));
        let warning =
            format!("Multipath TCP can use {usable} of the {count} paths of host `phone`");
        let check = folder.run(&["scenarios", "check", "many.toml"]);
        assert!(check.code == Some(0) && check.err.contains(&warning), "{check}");
        let arguments = ["-T", "tcp", "-T", "mptcp", "--world", "emu,sim", "-o", "results"];
        let output = folder.run(&[&["run", "many.toml"][..], &arguments[..]].concat());
        assert_eq!(output.code, Some(0), "{output}");
        let one_line = output.err.replace('\n', " ");
        assert_eq!(one_line.matches("Multipath TCP can use").count(), 1, "{output}");
        for name in ["mptcp-1", "sim-mptcp-1"] {
            let result = folder.stored(&format!("results/{name}.jsonl.zst"));
            let used = result.summary.unwrap().multipath.paths_used;
            let expected: Vec<_> = (0..usable).map(|number| format!("p{number}")).collect();
            assert_eq!(used, expected, "{name}");
        }
    }
}

#[test]
fn full_mesh_endpoints_join_every_pair_of_addresses() {
    let Some(_permit) = acquire_emulator() else { return };
    let endpoints = |flags: &str| {
        let one = |number| format!("{{ path = \"p{number}\", flags = [{flags}] }}");
        (0..3).map(one).collect::<Vec<_>>().join(", ")
    };
    let (client, server) = (endpoints("\"subflow\", \"fullmesh\""), endpoints("\"signal\""));
    let path = |number| {
        format!(
            "[paths.p{number}]\nbetween = [\"phone\", \"server\"]\nrate = \"5 Mbit/s\"\n\
             delay = \"10 ms\"\n"
        )
    };
    let paths: String = (0..3).map(path).collect();
    for (family, stack) in [("v4", "kernel"), ("v6", "kernel"), ("v4", "towpath")] {
        let text = format!(
            "name = \"mesh\"\n[hosts.phone]\nstack = \"{stack}\"\nmptcp.endpoints = [{client}]\n\
             [hosts.server]\nstack = \"{stack}\"\nmptcp.endpoints = [{server}]\n{paths}\
             [[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\n\
             duration = \"2 s\"\nfamily = \"{family}\"\n"
        );
        let summary = TestDir::new().result(&text, "mptcp").summary.unwrap();
        let host = |text: &str| text.rsplit_once(':').map(|(host, _)| host.to_owned());
        let pairs: std::collections::BTreeSet<_> = { summary.subflows.iter() }
            .filter(|subflow| subflow.bytes > 0)
            .map(|subflow| (host(&subflow.local), host(&subflow.remote)))
            .collect();
        // Three addresses on both sides: nine pairs, of which eight are joined to the first.
        assert_eq!(pairs.len(), 9, "{family} {stack}: {pairs:#?}");
    }
}

#[test]
fn a_flow_that_never_connects_leaves_the_proof_of_the_others() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"bulk\"\nduration = \"2 s\"\n\
                [[timeline]]\nat = \"0.9 s\"\npath = \"cellular\"\nset = \"down\"\n\
                [[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\n\
                duration = \"1 s\"\nstart = \"1 s\"\nvia = \"cellular\"";
    let folder = TestDir::new();
    folder.write("scenario.toml", flow_scenario(keys));
    for transport in ["mptcp", "mpquic"] {
        folder.run(&["run", "scenario.toml", "-T", transport, "--world", "emu", "-o", transport]);
        let result = folder.stored(&format!("{transport}/{transport}-1.jsonl.zst"));
        let summary = result.summary.unwrap();
        let flows = &summary.multipath.flows;
        let uses: Vec<_> = flows.iter().map(|flow| (flow.used, flow.connections)).collect();
        assert_eq!(uses, [(true, 1), (false, 0)], "{:?}", summary.multipath);
        assert_eq!(flows[0].paths_used.len(), 2, "{flows:?}");
        let texts: Vec<_> = summary.warnings.iter().map(|w| w.text.as_str()).collect();
        let expected = format!("flow 1 did not use {transport}: no connection was opened");
        assert!(texts.contains(&expected.as_str()), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("but not used")), "{texts:?}");
    }
}

#[test]
fn repetitions_are_numbered_and_counted() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", sized_scenario("[run]\ntransports = [\"tcp\"]"));
    let output = folder.run(&["run", "scenario.toml", "-r", "2", "--json", "-q", "-o", "results"]);
    assert_eq!(output.code, Some(0), "{output}");
    let repeats: Vec<_> = output.json().iter().map(|line| line["repeat"].as_u64()).collect();
    assert_eq!(repeats, [Some(1), Some(2)]);
}

#[test]
fn iperf_sends_in_both_directions_over_parallel_streams() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"iperf\"\nduration = \"1 s\"\ndirection = \"both\"\nstreams = 2";
    let result = TestDir::new().result(&flow_scenario(keys), "mptcp");
    let summary = result.summary.unwrap();
    let directions: Vec<_> = summary.flows.iter().map(|flow| flow.direction).collect();
    assert_eq!(directions, [DataDirection::Up, DataDirection::Down]);
    assert!(summary.flows.iter().all(|flow| flow.bytes > 0), "{:#?}", summary.flows);
    for stream in 0..2 {
        assert!(summary.subflows.iter().any(|s| s.stream == stream), "{:#?}", summary.subflows);
    }
    assert!(summary.multipath.used, "{:?}", summary.multipath);
}

#[test]
fn a_sized_download_is_complete() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"bulk\"\nsize = \"2 MB\"\ndirection = \"down\"";
    for transport in ["tcp", "mptcp"] {
        let summary = TestDir::new().result(&flow_scenario(keys), transport).summary.unwrap();
        let [flow] = summary.flows.as_slice() else { panic!("{:#?}", summary.flows) };
        assert_eq!((flow.direction, flow.bytes), (DataDirection::Down, 2_000_000));
        assert!(flow.completed, "{flow:#?}");
    }
}

#[test]
fn messages_are_answered_over_the_kernels_stack_and_ours() {
    let Some(_permit) = acquire_emulator() else { return };
    let flows = [
        ("pattern = \"interactive\"\nduration = \"1 s\"", 20),
        ("pattern = \"web\"\nobjects = 8\nobject = \"20 kB\"\nstreams = 3", 9),
    ];
    for (keys, count) in flows {
        for stacks in ["", "[hosts.phone]\nstack = \"towpath\"", "[run]\nstack = \"towpath\""] {
            // The host already exists; its table gets one more key.
            let text = match stacks.strip_prefix("[hosts.phone]") {
                Some(key) => {
                    flow_scenario(keys).replace("[hosts.phone]", &format!("[hosts.phone]{key}"))
                }
                None => flow_scenario(&format!("{keys}\n{stacks}")),
            };
            let run = TestDir::new().result(&text, "mptcp");
            let summary = run.summary.unwrap();
            assert!(summary.flows.iter().all(|flow| flow.completed), "{:#?}", summary.flows);
            let times = run.records.iter().filter_map(|record| {
                let Record::Message(m) = record else { return None };
                Some([Some(m.due_ns), m.sent_ns, m.delivered_ns, m.answered_ns])
            });
            let times: Vec<_> = times.collect();
            assert_eq!(times.len(), count, "{keys} {stacks}");
            for times in times {
                assert!(times.is_sorted() && !times.contains(&None), "{keys} {stacks}: {times:?}");
            }
            // A page that loads before the first sample leaves no socket to query.
            if count == 20 {
                let controls = summary.flows.iter().map(|flow| flow.congestion_control.join(" "));
                assert_eq!(controls.collect::<Vec<_>>(), ["cubic", "cubic"], "{stacks}");
            }
        }
    }
}

#[test]
fn a_flow_may_use_ipv6() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"bulk\"\nsize = \"3 MB\"\nfamily = \"v6\"";
    let summary = TestDir::new().result(&flow_scenario(keys), "mptcp").summary.unwrap();
    assert!(summary.flows[0].completed, "{:#?}", summary.flows);
    assert!(summary.subflows.iter().all(|s| s.local.contains("fd74:")), "{:#?}", summary.subflows);
    assert_eq!(summary.multipath.paths_used, ["wifi", "cellular"]);
}

#[test]
fn two_clients_share_a_bottleneck() {
    let Some(_permit) = acquire_emulator() else { return };
    let scenario = r#"name = "shared"
[hosts.greedy]
[hosts.modest]
[hosts.server]
[bottlenecks.uplink]
rate = "40 Mbit/s"
[paths.wifi]
between = ["greedy", "server"]
through = ["uplink"]
[paths.neighbour]
between = ["modest", "server"]
through = ["uplink"]
[[flows]]
from = "greedy"
to = "server"
pattern = "bulk"
size = "2 MB"
[[flows]]
from = "modest"
to = "server"
pattern = "bulk"
size = "2 MB"
"#;
    for transport in ["tcp", "mptcp"] {
        let summary = TestDir::new().result(scenario, transport).summary.unwrap();
        assert_eq!(summary.flows.len(), 2);
        for flow in &summary.flows {
            assert!(flow.completed, "{flow:#?}");
        }
        // No faster than the bottleneck: 4 MB take at least 0.8 s; a tenth is for bursts.
        let longest_ns = summary.flows.iter().map(|flow| flow.duration_ns).max().unwrap();
        assert!(longest_ns > 700_000_000, "4 MB in {longest_ns} ns");
    }
}

#[test]
fn a_missed_expectation_exits_with_1_and_a_met_one_with_0() {
    let Some(_permit) = acquire_emulator() else { return };
    for (bound, code) in [("<= 900 Mbit/s", 0), (">= 900 Mbit/s", 1)] {
        let folder = TestDir::new();
        let expect = format!("[expect]\n\"completed\" = true\n\"tcp.goodput\" = \"{bound}\"");
        folder.write("scenario.toml", sized_scenario(&expect));
        let output = folder.run(&["run", "scenario.toml", "-T", "tcp", "--json", "-o", "results"]);
        assert_eq!(output.code, Some(code), "{output}");
        let line = &output.json()[0];
        let expectations: Vec<_> =
            line["summary"]["expectations"].as_array().unwrap().iter().collect();
        assert_eq!(expectations.len(), 2, "{output}");
        assert!(
            expectations.iter().any(|expectation| expectation["passed"] == (code == 0)),
            "{output}"
        );
    }
}

#[test]
fn a_flow_can_be_any_command() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let keys = "run = \"test -n \\\"$TOWPATH_TO\\\" && echo $TOWPATH_TO > to\"";
    folder.write("scenario.toml", flow_scenario(keys));
    let output = folder.run(&["run", "scenario.toml", "-T", "tcp", "-o", "results"]);
    assert_eq!(output.code, Some(0), "{output}");
    let address = std::fs::read_to_string(folder.work().join("to")).unwrap();
    assert_eq!(address, "10.64.0.2\n");
}

#[test]
fn a_command_does_not_see_the_token_of_a_collector() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", flow_scenario("run = \"env > environment\""));
    let mut run = folder.towpath(&["run", "scenario.toml", "-T", "tcp", "-o", "results"]);
    let output = folder.start(run.env("TOWPATH_TOKEN", "secret")).wait();
    assert_eq!(output.code, Some(0), "{output}");
    let environment = std::fs::read_to_string(folder.work().join("environment")).unwrap();
    assert!(environment.contains("TOWPATH_TRANSPORT=tcp"), "{environment}");
    assert!(!environment.contains("secret"), "{environment}");
}

#[test]
fn all_runs_of_a_command_have_the_scenario_of_its_beginning() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    // The first run breaks the file.
    folder.write("scenario.toml", flow_scenario("run = \"echo broken >scenario.toml\""));
    let output = folder.run(&["run", "scenario.toml", "-T", "tcp", "-r", "2", "-o", "results"]);
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(std::fs::read_to_string(folder.work().join("scenario.toml")).unwrap(), "broken\n");
}

#[test]
fn a_flow_whose_command_fails_is_a_failure() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", flow_scenario("run = \"exit 3\""));
    let output = folder.run(&["run", "scenario.toml", "-T", "tcp", "-o", "results"]);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.out.contains("`exit 3` ended with exit status: 3"), "{output}");
}

#[test]
fn a_queue_may_be_at_the_host() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "preset = \"tbf\"\nqueue-position = \"host\"\ndelay = \"5 ms\"";
    let scenario = sized_scenario("").replacen("delay = \"5 ms\"", keys, 1);
    assert!(scenario.contains("queue-position"), "{scenario}");
    let summary = TestDir::new().result(&scenario, "tcp").summary.unwrap();
    assert!(summary.flows[0].completed, "{:#?}", summary.flows);
}

/// Scenario whose server does not speak Multipath TCP.
fn folder_without_mptcp() -> TestDir {
    let folder = TestDir::new();
    let host_without_mptcp = "[hosts.server]\nsysctl = { \"net.mptcp.enabled\" = 0 }";
    folder.write(
        "scenario.toml",
        sized_scenario("").replacen("[hosts.server]", host_without_mptcp, 1),
    );
    folder
}

#[test]
fn without_multipath_tcp_on_a_host_plain_tcp_still_runs() {
    let Some(_permit) = acquire_emulator() else { return };
    let output =
        folder_without_mptcp().run(&["run", "scenario.toml", "--json", "-q", "-o", "results"]);
    let [tcp, mptcp] = output.json().try_into().unwrap();
    assert_eq!(tcp["summary"]["flows"][0]["completed"], true, "{output}");
    assert_eq!(mptcp["summary"]["multipath"]["used"], false, "{output}");
    assert!(output.err.contains("mptcp was asked for but not used"), "{output}");
}

#[test]
fn without_multipath_tcp_on_a_host_the_reason_is_printed() {
    let Some(_permit) = acquire_emulator() else { return };
    let output = folder_without_mptcp().run(&["run", "scenario.toml", "-q", "-o", "results"]);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(format!("{}{}", output.out, output.err).contains("net.mptcp.enabled"), "{output}");
}

#[test]
fn results_are_written_to_the_requested_folder() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", flow_scenario("pattern = \"bulk\"\nsize = \"10 KB\""));
    let output = folder.run(&["run", "scenario.toml", "-T", "tcp", "-q", "-o", "a/b"]);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(folder.work().join("a/b/report.html").is_file());
    assert!(!Path::new(&folder.work()).join("towpath-results").exists());
    let progress: Vec<_> = output.err.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(progress, [""; 0], "quiet means no interval lines");
}

#[test]
fn datagrams_use_every_path_in_any_state_and_transport() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let folder = TestDir::new();
    let events = "[[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"down\"\nmode = \"interface\"\n\
        host = \"phone\"\n[[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"up\"\n\
        [[timeline]]\nat = \"1500 ms\"\npath = \"cellular\"\nset = \"address\"\nhost = \"phone\"\n";
    let udping = "pattern = \"udping\"\nduration = \"3 s\"\nreply-timeout = \"1 s\"\n";
    let result = folder.result(&format!("{}{events}", flow_scenario(udping)), "tcp");
    let summary = result.summary.as_ref().unwrap();
    assert!(summary.ok && summary.flows.is_empty(), "{summary:#?}");
    let [wifi, cellular] = &summary.paths[..] else { panic!("{summary:#?}") };
    assert_eq!((wifi.path.as_str(), wifi.count, cellular.count), ("wifi", 30, 30));
    assert!((1..30).contains(&wifi.answered) && wifi.answered <= wifi.sent, "{wifi:?}");
    if busy(&result).is_none() {
        // Ten are due while the interface is down; one or two may be in flight at the change.
        assert!((17..=21).contains(&wifi.answered), "{wifi:?}");
        assert!((wifi.answered..=21).contains(&wifi.sent), "{wifi:?}");
        assert!((900..1_400).contains(&(wifi.silence_ns / 1_000_000)), "{wifi:?}");
        assert!((900..1_200).contains(&(wifi.silence_at_ns / 1_000_000)), "{wifi:?}");
        // With the new address, traffic continues at once.
        assert!(cellular.answered >= 28, "{cellular:?}");
    }
    assert!(cellular.round_trip.unwrap().min_ns >= 20_000_000, "{cellular:?}");
    let probes = result.records.iter().filter(|record| matches!(record, Record::Probe(_)));
    assert_eq!(probes.count(), 60);
}

/// The emulated and the simulated link lose the same packets, as both use the same seed.
#[test]
fn datagrams_at_a_constant_rate_are_lost_as_in_the_simulated_world() {
    let udp = "pattern = \"udp\"\ndirection = \"both\"\nlength = \"1000 B\"\nduration = \"2 s\"\n";
    let text = flow_scenario(udp).replace("[paths.wifi]\n", "[paths.wifi]\nloss = \"5 %\"\n");
    assert!(text.contains("loss = "), "{text}");
    let Some(_permit) = acquire_emulator() else { return };
    let result = datagram_stats_of(&text, ("emu", "tcp-1"));
    let all_simulated_stats = datagram_stats_of(&text, ("sim", "sim-tcp-1"));
    for (stats, simulated_stats) in result.iter().zip(&all_simulated_stats) {
        assert_eq!((stats.sent + stats.unsent, simulated_stats.sent), (250, 250), "{stats:?}");
        // Valid while no datagram is later than the next one.
        assert!(
            stats.lost.abs_diff(simulated_stats.lost) <= 3 && simulated_stats.lost > 0,
            "{stats:?} {simulated_stats:?}"
        );
        assert!(stats.delay.unwrap().min_ns >= 5_000_000, "{stats:?}");
    }
}

/// A call over a link of known delay and loss gets the rating of ITU-T G.107.
#[test]
fn a_call_is_rated_by_the_loss_and_the_delay_of_its_link() {
    let call = "pattern = \"call\"\nvideo = \"500 kbit/s\"\nduration = \"4 s\"\n";
    let link = "[paths.wifi]\ndelay = \"40 ms\"\nloss = \"5 %\"\n";
    let text = flow_scenario(call).replace("[paths.wifi]\n", link);
    let text = text.replacen("delay = \"5 ms\"\n", "", 1);
    let Some(_permit) = acquire_emulator() else { return };
    for world in [("sim", "sim-tcp-1"), ("emu", "tcp-1")] {
        let all_stats = datagram_stats_of(&text, world);
        assert_eq!(all_stats.len(), 4, "{all_stats:#?}");
        for stats in &all_stats[..2] {
            let call = stats.call.as_ref().unwrap();
            assert_eq!((call.planned, call.basis), (200, DelayBasis::OneClock), "{stats:?}");
            // A packet of 20 ms, 40 ms of one-way delay, 60 ms in the buffer.
            let delay_ms = call.mouth_to_ear_ns.unwrap() / 1_000_000;
            assert!((120..135).contains(&delay_ms), "{stats:?}");
            // 93.2, less 3 for the delay and 95 × 5 ÷ (5 + 25.1) = 15.8 for 5 % of losses.
            // Of 200 packets, 1 % to 10 % may be lost within four standard deviations: 3.7 to 27.
            let (rating, score) = (call.rating.unwrap(), call.score.unwrap());
            assert!((60.0..90.0).contains(&rating), "{stats:?}");
            assert!((3.0..4.4).contains(&score), "{stats:?}");
            assert_eq!(call.lost, stats.lost + stats.unsent, "{stats:?}");
            assert!(call.played <= 200 - call.lost && call.lost > 0, "{stats:?}");
        }
        for stats in &all_stats[2..] {
            let call = stats.call.as_ref().unwrap();
            assert_eq!((call.medium.as_str(), call.planned), ("video", 120), "{stats:?}");
            // Two datagrams a frame: nine of ten arrive whole.
            assert!((85..120).contains(&call.played) && call.score.is_none(), "{stats:?}");
        }
    }
}

/// Returns the datagrams of both directions of a run over TCP.
fn datagram_stats_of(text: &str, (world, name): (&str, &str)) -> Vec<DatagramStats> {
    let folder = TestDir::new();
    folder.write("udp.toml", text);
    let output = folder.run(&["run", "udp.toml", "--world", world, "-T", "tcp", "-q", "-o", "r"]);
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored(&format!("r/{name}.jsonl.zst"));
    let flows = result.summary.unwrap().flows;
    flows.into_iter().filter_map(|flow| flow.datagrams).collect()
}

/// Link of known loss and jitter, with 2 Mbit/s of 1,000-byte datagrams for 6 s: 1,500 datagrams,
/// 4 ms apart.
const CONSTANT_RATE: &str = r#"
name = "steady"
[hosts.client]
[hosts.server]
[paths.link]
between = ["client", "server"]
rate = "20 Mbit/s"
delay = "20 ms"
loss = "5 %"
jitter = { distribution = "uniform", sd = "2 ms" }
[[flows]]
from = "client"
to = "server"
pattern = "udp"
bitrate = "2 Mbit/s"
length = "1000 B"
duration = "6 s"
"#;
/// Bounds for both programs, set before either was run.
///
/// Loss: 5 % ± four standard deviations of 1,500 trials. Jitter: around two thirds of 2 ms, the
/// mean distance of two draws from ± 2 ms, within the range of a mean over sixteen.
const LOSS_BOUNDS: std::ops::Range<f64> = 0.027..0.073;
const JITTER_BOUNDS_MS: std::ops::Range<f64> = 0.7..2.1;

#[test]
fn loss_and_jitter_agree_with_iperf3_on_the_same_link() {
    let test = "loss_and_jitter_agree_with_iperf3_on_the_same_link";
    if let Some(reason) = missing("iperf3") {
        return skip(test, &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("steady.toml", CONSTANT_RATE);
    let run = folder.run(&["run", "steady.toml", "--world", "emu", "-T", "tcp", "-q", "-o", "r"]);
    assert_eq!(run.code, Some(0), "{run}");
    let result = folder.stored("r/tcp-1.jsonl.zst");
    let stats = result.summary.as_ref().unwrap().flows[0].datagrams.clone().unwrap();
    let client = "iperf3 -u -b 2M -l 1000 -t 6 -J -c $TOWPATH_SERVER > iperf3.json";
    let options = ["--on", "server", "iperf3 -s -1", "--on", "client", client];
    let lab = folder.run(&[&["lab", "steady.toml", "-o", "lab"], &options[..]].concat());
    assert_eq!(lab.code, Some(0), "{lab}");
    let iperf3_json = std::fs::read_to_string(folder.work().join("iperf3.json")).unwrap();
    let iperf3_result: serde_json::Value = serde_json::from_str(&iperf3_json).unwrap();
    let iperf3_sum = &iperf3_result["end"]["sum"];
    let iperf3_lost_share = iperf3_sum["lost_percent"].as_f64().unwrap() / 100.0;
    let jitter_ms = iperf3_sum["jitter_ms"].as_f64().unwrap();
    let jitter_of_towpath_ms = stats.jitter_ns as f64 / 1e6;
    assert!(
        LOSS_BOUNDS.contains(&stats.lost_share()) && LOSS_BOUNDS.contains(&iperf3_lost_share),
        "{stats:?} {iperf3_sum}"
    );
    if busy(&result).is_none() {
        assert!(
            JITTER_BOUNDS_MS.contains(&jitter_of_towpath_ms)
                && JITTER_BOUNDS_MS.contains(&jitter_ms),
            "{stats:?} {iperf3_sum}"
        );
    }
}

/// The load fills the emulated link's queue. The bounds were set before, as in the simulated world.
#[test]
fn latency_under_load_distinguishes_a_long_queue_from_aqm() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let measure_rise = |name: &str, queue: &str| {
        let file = format!("{name}.toml");
        folder.write(
            &file,
            format!(
                "name = \"latency\"\n[hosts.client]\n[hosts.server]\n[paths.link]\n\
                 between = [\"client\", \"server\"]\nrate = \"20 Mbit/s\"\ndelay = \"20 ms\"\n\
                 queue = {queue}\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
                 pattern = \"latency\"\nduration = \"3 s\"\n"
            ),
        );
        let output = folder.run(&["run", &file, "--world", "emu", "-T", "tcp", "-q", "-o", name]);
        assert_eq!(output.code, Some(0), "{output}");
        let result = folder.stored(&format!("{name}/tcp-1.jsonl.zst"));
        let phases = &result.summary.as_ref().unwrap().flows[0].messages.as_ref().unwrap().phases;
        let down_phase = phases.iter().find(|phase| phase.load == Load::Down).unwrap();
        (down_phase.delay_increase_ns.unwrap() / 1_000_000, busy(&result).is_some())
    };
    let (long_queue_ms, _) = measure_rise("long", "\"500 ms\"");
    let (codel_ms, is_busy) = measure_rise("managed", "{ codel = {} }");
    assert!(long_queue_ms >= 100, "{long_queue_ms}");
    assert!(codel_ms < 60 || is_busy, "{codel_ms}");
    assert!(codel_ms < long_queue_ms, "{codel_ms} {long_queue_ms}");
}
