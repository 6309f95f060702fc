//! Coupled congestion control meets its goals (RFC 6356 §2). Over a shared bottleneck it takes no
//! more than TCP, it fills links of its own, and with one subflow it is Reno.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use towpath_os::batch;
use towpath_result::{Record, Summary};
use towpath_scenario::{Scenario, Transport, no_files};
use towpath_sim::{Components, SimJob, run};

const COUPLED: [&str; 3] = ["lia", "olia", "balia"];

/// Run with its summary, and every other record as text.
struct CompletedRun {
    summary: Summary,
    records: Vec<String>,
    captures: Vec<Vec<u8>>,
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse("test.toml", text, &no_files).unwrap_or_else(|errors| panic!("{errors}"))
}

fn simulate(scenario: &Arc<Scenario>, repeat: u32, capture: bool) -> CompletedRun {
    let scenario = Arc::clone(scenario);
    let job = SimJob {
        scenario,
        transport: Transport::Mptcp,
        repeat,
        trace: false,
        components: Components::default(),
    };
    let (mut records, mut summary, mut captures) = (Vec::new(), None, Vec::<Vec<u8>>::new());
    if capture {
        captures = vec![Vec::new(); job.scenario.hosts.len()];
    }
    let writers = captures.iter_mut().map(|out| out as &mut (dyn std::io::Write + Send)).collect();
    run(&job, writers, &mut |record| {
        match record {
            Record::Meta(_) => {}
            Record::Summary(run_summary) => summary = Some(*run_summary.clone()),
            Record::Interval(_)
            | Record::Subflow(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Probe(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Timing(_) => records.push(format!("{record:?}")),
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    CompletedRun { summary: summary.unwrap(), records, captures }
}

/// Runs several repetitions, each with its own seed, in two threads.
fn simulate_repetitions(scenario: Scenario, repeats: u32) -> Vec<Summary> {
    let (scenario, mut summaries) = (Arc::new(scenario), Vec::new());
    let simulate_index = |index: usize| simulate(&scenario, index as u32 + 1, false).summary;
    batch::in_order(repeats as usize, 2, simulate_index, |_, summary| {
        summaries.push(summary);
        true
    });
    summaries
}

/// Returns one connection with `subflows` paths and one of plain TCP Reno through one queue.
/// Jitter avoids synchronization, which would decide the losses.
fn shared_bottleneck(control: &str, subflows: usize, seconds: u32) -> Scenario {
    let path = |host: &str, name: &str| {
        format!(
            "[paths.{name}]\nbetween = [\"{host}\", \"server\"]\ndelay = \"10 ms\"
            jitter = {{ sd = \"500 us\" }}\nthrough = [\"shared\"]\n"
        )
    };
    let paths: String = (0..subflows).map(|n| path("many", &format!("path-{n}"))).collect();
    let flow = |host: &str, transport: &str| {
        format!(
            "[[flows]]\nfrom = \"{host}\"\nto = \"server\"\npattern = \"bulk\"
            duration = \"{seconds} s\"\ntransport = \"{transport}\"\n"
        )
    };
    scenario(&format!(
        "name = \"shared\"
        [hosts.many]\ncongestion-control = \"{control}\"
        [hosts.one]\ncongestion-control = \"reno\"
        [hosts.server]
        [bottlenecks.shared]\nrate = \"10 Mbit/s\"\nqueue = \"60 ms\"
        {paths}{}{}{}",
        path("one", "tcp"),
        flow("many", "mptcp"),
        flow("one", "tcp"),
    ))
}

/// Returns the multi-subflow connection's goodput in fair shares of the bottleneck; 1 is TCP's.
fn fair_shares(control: &str, subflows: usize, seconds: u32, repeats: u32) -> Vec<f64> {
    let shares = simulate_repetitions(shared_bottleneck(control, subflows, seconds), repeats)
        .into_iter()
        .map(|summary| {
            let [multi_subflow, single_tcp] = summary.flows.as_slice() else {
                panic!("{:?}", summary.flows)
            };
            let total_bps = multi_subflow.goodput_bps + single_tcp.goodput_bps;
            assert!(total_bps > 8.5e6, "the bottleneck is not filled: {total_bps} bit/s");
            multi_subflow.goodput_bps / (total_bps / 2.0)
        });
    shares.collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the goodput on each of two links that only this connection uses.
fn goodput_on_own_links(control: &str, seconds: u32, repeats: u32) -> Vec<[f64; 2]> {
    let text = format!(
        "name = \"own\"
        [hosts.client]\ncongestion-control = \"{control}\"
        [hosts.server]
        [paths.first]\nbetween = [\"client\", \"server\"]\nrate = \"10 Mbit/s\"\ndelay = \"10 ms\"
        jitter = {{ sd = \"500 us\" }}\nqueue = \"60 ms\"
        [paths.second]\nbetween = [\"client\", \"server\"]\nrate = \"5 Mbit/s\"\ndelay = \"30 ms\"
        jitter = {{ sd = \"500 us\" }}\nqueue = \"120 ms\"
        [[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"bulk\"
        duration = \"{seconds} s\""
    );
    let rates = simulate_repetitions(scenario(&text), repeats).into_iter().map(|summary| {
        ["first", "second"].map(|path| {
            let path_subflows = summary.subflows.iter().filter(|subflow| subflow.path == path);
            path_subflows.map(|subflow| subflow.bytes).sum::<u64>() as f64 * 8.0
                / f64::from(seconds)
        })
    });
    rates.collect()
}

/// Payload share of a link's rate: 1448 of 1514 bytes, less 20 of DSS.
const PAYLOAD_SHARE: f64 = 1_428.0 / 1_514.0;

#[test]
fn a_coupled_connection_takes_no_more_than_tcp_from_a_shared_bottleneck() {
    for control in COUPLED {
        for subflows in [2, 3] {
            let shares = fair_shares(control, subflows, 60, 3);
            assert!(mean(&shares) <= 1.15, "{control} over {subflows} subflows: {shares:?}");
            // The connection does not starve either.
            assert!(mean(&shares) >= 0.6, "{control} over {subflows} subflows: {shares:?}");
        }
    }
}

#[test]
fn an_uncoupled_connection_takes_more_with_each_subflow() {
    let [two, three] = [2, 3].map(|subflows| mean(&fair_shares("reno", subflows, 60, 3)));
    assert!(two > 1.22, "two subflows: {two} shares");
    assert!(three > two, "three subflows: {three} shares, two: {two}");
}

#[test]
fn a_single_subflow_gets_what_tcp_gets() {
    let shares = fair_shares("reno", 1, 60, 3);
    assert!((0.85..1.15).contains(&mean(&shares)), "{shares:?}");
}

#[test]
fn a_coupled_connection_fills_links_of_its_own() {
    for control in COUPLED {
        for [first, second] in goodput_on_own_links(control, 60, 1) {
            assert!(first >= 0.9 * 10e6 * PAYLOAD_SHARE, "{control}: {first} bit/s");
            assert!(second >= 0.9 * 5e6 * PAYLOAD_SHARE, "{control}: {second} bit/s");
        }
    }
}

#[test]
fn with_one_subflow_lia_is_reno_to_the_last_packet() {
    let [lia, reno] = ["lia", "reno"].map(|control| {
        let text = format!(
            "name = \"lone\"
            [hosts.client]\n[hosts.server]
            [paths.only]\nbetween = [\"client\", \"server\"]\nrate = \"10 Mbit/s\"
            delay = \"10 ms\"\nloss = \"0.1 %\"\nqueue = \"60 ms\"
            [[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"bulk\"
            duration = \"20 s\"
            [run]\ncongestion-control = \"{control}\""
        );
        simulate(&Arc::new(scenario(&text)), 1, true)
    });
    assert!(lia.captures == reno.captures, "the packets differ");
    assert_eq!(lia.records, reno.records);
    let [lia, reno] = [&lia, &reno].map(|run| run.summary.flows.first().unwrap());
    assert!(reno.retransmissions > 10, "{}: no losses, no test", reno.retransmissions);
    assert_eq!((lia.bytes, &lia.stall), (reno.bytes, &reno.stall));
}

/// Prints the table of `docs/lab/validation.md` with `TOWPATH_SECONDS=300 TOWPATH_SEEDS=5`; by default
/// a short series.
#[test]
#[expect(clippy::print_stdout, reason = "it makes a table")]
fn every_control_is_in_the_table() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seconds, seeds) = (number("TOWPATH_SECONDS", 60), number("TOWPATH_SEEDS", 1));
    let mean_and_range = |values: &[f64]| {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(0.0, f64::max);
        format!("{:.2} [{min:.2}–{max:.2}]", mean(values))
    };
    for control in ["reno", "lia", "olia", "balia", "wvegas", "cubic"] {
        let shares =
            [2, 3].map(|subflows| mean_and_range(&fair_shares(control, subflows, seconds, seeds)));
        let links = goodput_on_own_links(control, seconds, seeds);
        let link_share = |index: usize, rate: f64| {
            let share_of_run = |run: &[f64; 2]| run.get(index).unwrap() / (rate * PAYLOAD_SHARE);
            mean_and_range(&links.iter().map(share_of_run).collect::<Vec<_>>())
        };
        let [two, three] = shares;
        let all_filled =
            links.iter().all(|run| run.iter().sum::<f64>() > 0.8 * 15e6 * PAYLOAD_SHARE);
        assert!(all_filled, "{control} leaves links of its own empty: {links:?}");
        println!(
            "| `{control}` | {two} | {three} | {} | {} |",
            link_share(0, 10e6),
            link_share(1, 5e6)
        );
    }
}
