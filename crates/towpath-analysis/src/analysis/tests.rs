use numbers::Numbers;
use proptest::prelude::*;

use super::*;
use crate::figures::Cell;
use crate::output;
use crate::population::AbsentRun;

/// Random numbers for tests (xorshift), from a seed.
mod numbers {
    pub(super) struct Numbers(u64);

    impl Numbers {
        pub(super) fn new(seed: u64) -> Self {
            Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
        }

        /// Returns a number between 0 and 1.
        pub(super) fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }
    }
}

fn run(device: u32, round: u32, transport: &str) -> RunFacts {
    RunFacts {
        run: format!("{device}-{round}-{transport}"),
        device: format!("d{device:03}"),
        campaign: "study".to_owned(),
        round,
        pattern: "bulk".to_owned(),
        transport: transport.to_owned(),
        family: "ipv4".to_owned(),
        port: 443,
        server: "eu".to_owned(),
        version: "0.10.0".to_owned(),
        valid: true,
        completed: true,
        networks: "wifi 192.168.1.0/24".to_owned(),
        comparison_s: Some(1.0),
        ..RunFacts::default()
    }
}

fn mobile(device: u32, round: u32, transport: &str) -> RunFacts {
    RunFacts {
        mobile: true,
        pattern: "interactive".to_owned(),
        max_delay_up_s: Some(2.0),
        max_delay_down_s: Some(0.5),
        cause_up: Some("rto-backoff".to_owned()),
        cause_down: Some("other".to_owned()),
        second_network: Some("handover".to_owned()),
        handover_start_s: Some(5.0),
        handover_received_s: Some(-1.0),
        handover_sent_s: Some(3.0),
        handover_reason: Some("rto".to_owned()),
        ..run(device, round, transport)
    }
}

fn data(runs: Vec<RunFacts>) -> CampaignData {
    CampaignData { campaign: "study".to_owned(), runs, absent: Vec::new() }
}

fn analyse(runs: Vec<RunFacts>) -> Analysis {
    Analysis::of(data(runs), &AnalysisFilter::default(), AnalysisSettings::default())
}

/// Returns the value of a cell, with its interval.
fn estimate(analysis: &Analysis, id: &str, (row, column): (usize, &str)) -> (f64, [f64; 2]) {
    let table = &analysis.figure(id).unwrap().tables[0];
    let column = table.columns.iter().position(|name| name == column).unwrap();
    match &table.rows[row][column] {
        Cell::Estimate(estimate) | Cell::Share(estimate) => {
            let interval = estimate.interval.unwrap();
            (estimate.value, [interval.low, interval.high])
        }
        other @ (Cell::Text(_) | Cell::Count(_) | Cell::Number(_)) => panic!("{other:?}"),
    }
}

#[test]
fn intervals_cover_the_true_ratio_of_paired_runs() {
    // The times of a device differ by a factor that both runs of a pair share. Each device has a
    // ratio of its own around the true median of 0.7.
    let mut covered = 0;
    for seed in 0..60 {
        let mut numbers = Numbers::new(seed + 1);
        let mut runs = Vec::new();
        for device in 0..30 {
            let own = (numbers.uniform() - 0.5).exp();
            for round in 0..4 {
                let time = 1.0 + 9.0 * numbers.uniform();
                let noise = (0.4 * (numbers.uniform() - 0.5)).exp();
                let tcp = RunFacts { comparison_s: Some(time), ..run(device, round, "tcp") };
                let time = time * 0.7 * own * noise;
                let quic = RunFacts { comparison_s: Some(time), ..run(device, round, "quic") };
                runs.extend([quic, tcp]);
            }
        }
        let (_, [low, high]) = estimate(&analyse(runs), "transport-ratio", (0, "median"));
        covered += u32::from(low <= 0.7 && 0.7 <= high);
    }
    // 95 % of 60 are 57; the bound is four standard deviations of a binomial variable below.
    assert!(covered >= 50, "{covered} of 60");
}

#[test]
fn shares_are_those_that_were_made() {
    let runs = (0..40).flat_map(|device| {
        let reason = if device < 30 { "rto" } else { "other" };
        let received = if device < 4 { -1.0 } else { 12.0 };
        [mobile(device, 0, "mptcp"), mobile(device, 0, "mpquic")].map(|run| RunFacts {
            handover_reason: Some(reason.to_owned()),
            handover_received_s: Some(received),
            ..run
        })
    });
    let analysis = analyse(runs.collect());
    let (rto, [low, high]) = estimate(&analysis, "handover-reason", (0, "share"));
    assert!((rto - 0.75).abs() < 1e-9 && low < 0.75 && 0.75 < high, "{rto} {low} {high}");
    let (abrupt, _) = estimate(&analysis, "handover-duration", (0, "abrupt (below 0 s)"));
    assert!((abrupt - 0.1).abs() < 1e-9, "{abrupt}");
    let (median, _) = estimate(&analysis, "delay-ratio", (0, "median"));
    assert!((median - 1.0).abs() < 1e-9, "{median}");
}

#[test]
fn a_curve_with_few_values_is_named_and_not_drawn() {
    let runs = |count| (0..count).flat_map(|d| [run(d, 0, "quic"), run(d, 0, "tcp")]).collect();
    let few = analyse(runs(9));
    assert_eq!(few.figure("transport-ratio"), None, "without any curve there is no figure");
    let mut more: Vec<RunFacts> = runs(10);
    more.extend((0..9).flat_map(|d| [run(d, 0, "mpquic"), run(d, 0, "mptcp")]));
    let more = analyse(more);
    let figure = more.figure("transport-ratio").unwrap();
    assert_eq!(figure.figure.as_ref().unwrap().panels[0].curves.len(), 1);
    assert!(figure.notes[0].contains("with 9 pairs; a curve needs 10"), "{:?}", figure.notes);
}

#[test]
fn invalid_runs_are_counted_and_not_shown() {
    let mut runs: Vec<RunFacts> =
        (0..12).flat_map(|d| [run(d, 0, "quic"), run(d, 0, "tcp")]).collect();
    for run in runs.iter_mut().take(4) {
        run.valid = false;
        run.invalid_reason = Some("network-change".to_owned());
    }
    let analysis = analyse(runs);
    let figure = analysis.figure("transport-ratio").unwrap();
    let expected = "20 stable runs, 10 devices. Invalid runs are left out: network-change 4.";
    assert_eq!(figure.sentence, expected);
    assert_eq!(figure.tables[0].rows[0][2], Cell::Count(10));
}

#[test]
fn a_filter_selects_runs_and_its_sentence_says_so() {
    let mut runs: Vec<RunFacts> =
        (0..12).flat_map(|d| [run(d, 0, "quic"), run(d, 0, "tcp")]).collect();
    runs[0].version = "0.9.2".to_owned();
    runs[1].server = "us".to_owned();
    let filter = AnalysisFilter {
        server: Some("eu".to_owned()),
        min_version: Some("0.10".to_owned()),
        ..AnalysisFilter::default()
    };
    let analysis = Analysis::of(data(runs), &filter, AnalysisSettings::default());
    assert_eq!(analysis.runs().len(), 22);
    let sentence = &analysis.figure("usage").unwrap().sentence;
    assert_eq!(sentence, "22 runs, 11 devices, server eu, version ≥ 0.10.");
}

#[test]
fn private_networks_belong_to_one_device() {
    let with = |device, networks: &str| RunFacts {
        networks: networks.to_owned(),
        ..run(device, 0, "mptcp")
    };
    let analysis = analyse(vec![
        with(0, "cellular 100.64.3.0/24, wifi 192.168.1.0/24"),
        with(1, "cellular 9.9.9.0/24, wifi 192.168.1.0/24"),
        with(2, "cellular 9.9.9.0/24, wifi 2001:db8:1::/48"),
    ]);
    let rows = &analysis.figure("usage").unwrap().tables[1].rows;
    let counts: Vec<String> =
        rows.iter().map(|row| row.iter().map(Cell::text).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(counts, ["cellular 2 0 3 3", "wifi 2 1 3 3"]);
}

#[test]
fn unreachable_servers_lower_the_connectivity() {
    let runs: Vec<RunFacts> = (0..10).map(|device| run(device, 0, "quic")).collect();
    let absent = |device: u32, reason: &str| AbsentRun {
        device: format!("d{device:03}"),
        transport: "quic".to_owned(),
        family: "ipv4".to_owned(),
        port: 443,
        reason: reason.to_owned(),
        ..AbsentRun::default()
    };
    let missing =
        (10..20).map(|d| absent(d, if d < 15 { "unreachable" } else { "missed" })).collect();
    let data = CampaignData { absent: missing, ..data(runs) };
    let analysis = Analysis::of(data, &AnalysisFilter::default(), AnalysisSettings::default());
    let (share, _) = estimate(&analysis, "connectivity", (0, "success"));
    assert!((share - 10.0 / 15.0).abs() < 1e-9, "{share}");
}

#[test]
fn every_file_has_equal_bytes_whatever_the_order_of_the_runs() {
    let mut runs: Vec<RunFacts> = (0..12)
        .flat_map(|d| {
            [run(d, 0, "quic"), run(d, 0, "tcp"), mobile(d, 1, "mptcp"), mobile(d, 1, "mpquic")]
        })
        .collect();
    let one = analyse(runs.clone());
    runs.reverse();
    let other = analyse(runs);
    let names = output::file_names(&one);
    assert_eq!(names, output::file_names(&other));
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let bytes = |analysis| output::file(analysis, &name).unwrap().unwrap().bytes;
        assert_eq!(bytes(&one), bytes(&other), "{name}");
    }
    assert!(output::file(&one, "../x").is_none() && output::file(&one, "usage.svg").is_none());
}

proptest! {
    #[test]
    fn no_facts_make_an_analysis_fail(
        runs in prop::collection::vec(
            (0_u32..9, 0_u32..3, 0_usize..4, -1.0_f64..1e300, any::<bool>(), ".{0,6}"), 0..80,
        ),
    ) {
        let transports = ["tcp", "mptcp", "quic", "mpquic"];
        let runs = runs.into_iter().enumerate().map(|(n, (device, round, transport, value, flag, text))| {
            let base = if flag { mobile } else { run };
            RunFacts {
                run: n.to_string(),
                comparison_s: Some(value),
                max_delay_up_s: Some(value),
                handover_received_s: Some(value),
                cause_up: Some(text.clone()),
                handover_reason: Some(text.clone()),
                networks: text.clone(),
                pattern_keys: text,
                ..base(device, round, transports[transport])
            }
        });
        let settings = AnalysisSettings { min_runs: 1, seed: 7 };
        let analysis = Analysis::of(data(runs.collect()), &AnalysisFilter::default(), settings);
        for name in output::file_names(&analysis) {
            if !name.contains(".png") {
                prop_assert!(output::file(&analysis, &name).unwrap().is_ok(), "{}", name);
            }
        }
    }
}
