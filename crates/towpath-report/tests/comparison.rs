//! Comparisons: statements about repetitions, pairing, and fairness warnings.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use towpath_report::Comparison;
use towpath_result::store::StoredRun;
use towpath_result::{CpuAccounting, CpuTime, EmulatorTiming, OrderKind, Record, RunOrder};
use towpath_scenario::{Transport, World};

use common::{handover, run};

/// Returns `repeat` repetitions each of TCP and MPTCP, run in turn, with varying goodput.
fn interleaved_runs(repeat: u32) -> Vec<StoredRun> {
    let mut runs = Vec::new();
    for number in 1..=repeat {
        for transport in [Transport::Tcp, Transport::Mptcp] {
            let mut run_of_transport = run(&handover(transport, number));
            let position = runs.len() as u32 + 1;
            let (kind, of) = (OrderKind::Random, repeat * 2);
            run_of_transport.meta.order = Some(RunOrder { kind, seed: 7, position, of });
            let summary = run_of_transport.summary.as_mut().unwrap();
            // Random state of the machine, shared by both runs of a repetition.
            let speed_factor = 1.0 + f64::from(number * 7 % 5) / 10.0;
            summary.flows[0].goodput_bps *= speed_factor;
            let cpu_ns = |factor: u64| Some(summary.flows[0].bytes * factor);
            summary.cpu = Some(CpuTime {
                client_cpu_ns: cpu_ns(2),
                server_cpu_ns: cpu_ns(1),
                accounting: CpuAccounting::SocketThreads,
            });
            runs.push(run_of_transport);
        }
    }
    runs
}

fn warnings(runs: &[StoredRun]) -> Vec<String> {
    Comparison::of(runs, 1).warnings().into_iter().map(|warning| warning.text).collect()
}

fn change(runs: &mut [StoredRun], transport: Transport, change: impl Fn(&mut StoredRun)) {
    runs.iter_mut().filter(|run| run.meta.transport == transport).for_each(change);
}

/// Returns the first metric's ratio, as JSON.
fn ratio(runs: &[StoredRun]) -> serde_json::Value {
    Comparison::of(runs, 1).json()["metrics"][0]["ratios"][0].clone()
}

#[test]
fn repetitions_are_medians_with_quartiles_intervals_and_ratios() {
    insta::assert_snapshot!(Comparison::of(&interleaved_runs(8), 1).table(100, false));
}

#[test]
fn three_repetitions_have_no_interval_and_a_note() {
    let runs = interleaved_runs(3);
    insta::assert_snapshot!(Comparison::of(&runs, 1).table(60, false));
    assert!(
        warnings(&runs)[0].contains("3 repetitions are too few for an interval"),
        "{:?}",
        warnings(&runs)
    );
}

#[test]
fn interleaved_runs_are_paired_and_others_are_not() {
    let mut runs = interleaved_runs(8);
    let paired = ratio(&runs);
    assert_eq!((&paired["of"], &paired["to"]), (&"mptcp".into(), &"tcp".into()));
    assert_eq!((&paired["paired"], &paired["n"]), (&true.into(), &8.into()));
    let interval_width = |ratio: &serde_json::Value| {
        ratio["interval95"][1].as_f64().unwrap() - ratio["interval95"][0].as_f64().unwrap()
    };
    for run in &mut runs {
        run.meta.order = None;
    }
    let unpaired = ratio(&runs);
    assert_eq!(unpaired["paired"], false);
    // Both runs of a pair share the machine's state, so it cancels out in their ratio.
    assert!(interval_width(&paired) * 3.0 < interval_width(&unpaired), "{paired} and {unpaired}");
    // Results of two commands contain each repetition number twice.
    let combined = [interleaved_runs(8), interleaved_runs(8)].concat();
    assert_eq!(ratio(&combined)["paired"], false);
}

#[test]
fn simulated_runs_are_paired_by_their_seeds() {
    let mut runs = interleaved_runs(6);
    for run in &mut runs {
        (run.meta.order, run.meta.world) = (None, World::Sim);
        run.meta.seed = u64::from(run.meta.repeat);
    }
    assert_eq!(ratio(&runs)["paired"], true);
    change(&mut runs, Transport::Tcp, |run| run.meta.seed += 100);
    assert_eq!(ratio(&runs)["paired"], false);
}

#[test]
fn a_headline_omits_chance_for_deterministic_runs() {
    let mut runs: Vec<StoredRun> = interleaved_runs(1);
    for run in &mut runs {
        (run.meta.order, run.meta.world) = (None, World::Sim);
    }
    let repetition = |number: u32| {
        runs.iter().cloned().map(move |mut run| {
            (run.meta.repeat, run.meta.seed) = (number, u64::from(number));
            run
        })
    };
    let repetitions: Vec<StoredRun> = (1..=6).flat_map(repetition).collect();
    let text = Comparison::of(&repetitions, 1).table(200, false);
    assert!(text.contains("in every repetition: nothing is drawn at random."), "{text}");
    assert!(!text.contains("a significant difference"), "{text}");
}

#[test]
fn a_headline_of_four_transports_includes_the_usual_pair() {
    let mut runs = interleaved_runs(8);
    for (transport, factor) in [(Transport::Quic, 3.0), (Transport::Mpquic, 4.0)] {
        let tcp = runs.iter().filter(|run| run.meta.transport == Transport::Tcp).cloned();
        let faster_runs: Vec<StoredRun> = tcp
            .map(|mut run| {
                run.meta.transport = transport;
                run.summary.as_mut().unwrap().flows[0].goodput_bps *= factor;
                run
            })
            .collect();
        runs.extend(faster_runs);
    }
    let text = Comparison::of(&runs, 1).table(300, false);
    let best = text.lines().find(|line| line.starts_with("Goodput: ")).unwrap();
    assert!(best.starts_with("Goodput: mpquic "), "{best}");
    assert!(best.contains(" mptcp ") && best.contains(" tcp "), "{best}");
}

#[test]
fn equal_results_and_seed_give_an_equal_comparison() {
    let runs = interleaved_runs(7);
    let [first, second] = [1, 1].map(|seed| Comparison::of(&runs, seed));
    assert_eq!(first.json(), second.json());
    assert_eq!(first.html(), second.html());
}

#[test]
fn a_fair_comparison_has_no_warning() {
    assert_eq!(warnings(&interleaved_runs(20)), [""; 0]);
}

#[test]
fn unfair_comparisons_are_reported() {
    type Change = fn(&mut StoredRun);
    let cases: [(Change, &str); 11] = [
        (
            |run| run.summary.as_mut().unwrap().flows[0].congestion_control = vec!["reno".into()],
            "congestion control differs: tcp cubic, mptcp reno",
        ),
        (|run| run.meta.world = World::Sim, "the world differs: emu and sim"),
        (|run| run.meta.kernel = "6.1.0".into(), "`Kernel` differs: 6.1.0 and 6.18.5"),
        (|run| run.meta.towpath = "0.0.9".into(), "`towpath` differs"),
        (|run| run.meta.duration_ns = 1_000_000_000, "`Duration` differs"),
        (|run| run.meta.scenario_toml.push('#'), "2 different scenarios are compared"),
        (|run| run.meta.stack = "towpath".into(), "the TCP stack differs: "),
        (
            |run| {
                run.records.retain(|record| !matches!(record, Record::Timing(_)));
                run.records.push(Record::Timing(EmulatorTiming {
                    unreliable: true,
                    ..EmulatorTiming::default()
                }));
            },
            "mptcp: 20 of 20 runs were too late or too noisy",
        ),
        (|run| run.summary = None, "mptcp: 20 of 20 results have no summary"),
        (|run| run.meta.order = None, "the order of some of the runs is unknown"),
        (
            |run| run.meta.order.as_mut().unwrap().kind = OrderKind::Fixed,
            "the transports alternated in a fixed order",
        ),
    ];
    for (make_unfair, expected) in cases {
        let mut runs = interleaved_runs(20);
        change(&mut runs, Transport::Mptcp, make_unfair);
        let texts = warnings(&runs);
        assert!(texts.iter().any(|text| text.starts_with(expected)), "{texts:?}");
    }
}

#[test]
fn buffers_and_byte_counting_must_be_the_same() {
    let mut runs = interleaved_runs(20);
    for run in &mut runs {
        let name = "net.ipv4.tcp_rmem on phone".to_owned();
        run.meta.conditions.insert(name, run.meta.transport.to_string());
    }
    assert_eq!(warnings(&runs), ["buffers differ: `net.ipv4.tcp_rmem on phone`"]);
    let mut runs = interleaved_runs(20);
    change(&mut runs, Transport::Tcp, |run| {
        let cpu = run.summary.as_mut().unwrap().cpu.as_mut().unwrap();
        cpu.accounting = CpuAccounting::StackThreads;
    });
    assert!(warnings(&runs)[0].starts_with("`CPU accounting` differs: threads with sockets and"));
}

#[test]
fn one_sided_encryption_and_differences_are_marked_on_the_page() {
    let mut runs = interleaved_runs(20);
    change(&mut runs, Transport::Mptcp, |run| {
        run.meta.conditions.insert("tls".to_owned(), "1.3".to_owned());
    });
    assert_eq!(warnings(&runs), ["TLS on one side only: with it mptcp, without it tcp"]);
    let page = Comparison::of(&runs, 1).html();
    assert!(page.contains("<tr class=\"differs\"><th scope=\"row\">≠\u{a0}TLS</th>"));
}

#[test]
fn values_of_never_are_printed_as_never_without_a_ratio() {
    let mut runs = interleaved_runs(6);
    change(&mut runs, Transport::Tcp, |run| {
        run.summary.as_mut().unwrap().flows[0].recoveries[0].t90_ns = None;
    });
    let comparison = Comparison::of(&runs, 1);
    let json = comparison.json();
    let metrics = json["metrics"].as_array().unwrap();
    let recovery = metrics.iter().find(|figure| figure["name"] == "recovery").unwrap();
    assert!(recovery["groups"][0]["median"].is_null());
    assert!(recovery["ratios"][0]["ratio"].is_null());
    assert!(comparison.table(100, false).contains("never"));
    assert!(comparison.html().contains("never in 6 of 6"));
}

#[test]
fn nothing_to_compare_is_not_an_error() {
    let empty = Comparison::of(&[], 1);
    assert_eq!(empty.table(100, false).trim(), "");
    assert!(empty.html().contains("There is nothing to compare."));
}
