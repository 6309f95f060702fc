//! The terminal summary and the live lines, as a user sees them.

mod common;

use towpath_report::{
    LiveInterval, LiveSender, LiveSubflow, live_header, live_lines, table, warnings,
};
use towpath_result::store::StoredRun;
use towpath_result::{
    AccountSummary, Basis, DelayStats, MessageStats, Part, Parts, StackStats, Stall, Summary,
    VideoStats,
};
use towpath_scenario::{DataDirection, Transport, World};

use common::{Plan, fade, handover, own_stack, pair, repeated, run, three_paths};

#[test]
fn two_transports_are_shown_side_by_side() {
    insta::assert_snapshot!(table(&pair(), 100, false));
}

#[test]
fn repetitions_are_a_median_and_a_range() {
    insta::assert_snapshot!(table(&repeated(), 100, false));
}

#[test]
fn one_run_over_three_paths_fits_a_narrow_terminal() {
    insta::assert_snapshot!(table(&[run(&three_paths())], 60, false));
}

#[test]
fn message_flows_have_rows_of_delays_instead_of_stalls() {
    let mut runs = pair();
    for (run, slowest_ns) in runs.iter_mut().zip([3_700_000_000, 410_000_000]) {
        let delay = DelayStats {
            mean_ns: 60_000_000,
            stddev_ns: 90_000_000,
            min_ns: 30_000_000,
            p50_ns: 30_500_000,
            p90_ns: slowest_ns / 4,
            p95_ns: slowest_ns / 2,
            p99_ns: slowest_ns - 60_000_000,
            p999_ns: slowest_ns,
            max_ns: slowest_ns,
        };
        let delivery = Some(DelayStats { p50_ns: 15_400_000, ..delay });
        let video = VideoStats {
            segments: 12,
            startup_ns: Some(525_000_000),
            stalls: u32::from(slowest_ns > 1_000_000_000),
            rebuffer_ns: slowest_ns / 20,
        };
        let answered = if slowest_ns > 1_000_000_000 { 98 } else { 100 };
        let stats = MessageStats {
            count: 100,
            answered,
            delay,
            delivery,
            video: Some(video),
            ..MessageStats::default()
        };
        let summary = run.summary.iter_mut().flat_map(|summary| &mut summary.flows);
        for flow in summary {
            flow.messages = Some(stats.clone());
        }
    }
    insta::assert_snapshot!(table(&runs, 100, false));
}

#[test]
fn metrics_of_our_own_stack_have_separate_rows() {
    let mut runs = pair();
    runs.push(own_stack());
    insta::assert_snapshot!(table(&runs, 100, false));
}

#[test]
fn events_that_never_happened_have_no_row() {
    let mut own_run = own_stack();
    let flows = own_run.summary.iter_mut().flat_map(|summary| &mut summary.flows);
    let no_events = StackStats { reinjected_bytes: Some(0), ..StackStats::default() };
    flows.for_each(|flow| flow.stack = Some(no_events));
    let text = table(&[own_run], 100, false);
    for label in
        ["Reinjected", "discarded", "Reorder buffer", "Receive window full", "Penalisations"]
    {
        assert!(!text.contains(label), "{label}: {text}");
    }
}

#[test]
fn the_steps_of_a_fade_are_one_event() {
    let text = table(&[fade()], 100, false);
    assert!(!text.contains("cellular rate"), "{text}");
    assert!(text.contains("cellular fades to 4400 kbit/s, in 40 steps until 5.95 s"), "{text}");
}

#[test]
fn colour_changes_nothing_but_colour() {
    let coloured = table(&pair(), 100, true);
    let mut plain = String::new();
    let mut escape = false;
    for c in coloured.chars() {
        match c {
            '\u{1b}' => escape = true,
            'm' if escape => escape = false,
            _ if escape => {}
            c => plain.push(c),
        }
    }
    let trim = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_ne!(coloured, plain);
    assert_eq!(trim(&plain), trim(&table(&pair(), 100, false)));
}

#[test]
fn no_line_is_wider_than_the_terminal_or_than_100_columns() {
    let transports = [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic];
    let mut runs: Vec<_> = transports.iter().map(|t| run(&handover(*t, 1))).collect();
    runs[0].meta.scenario = "very long name ".repeat(40);
    runs[1].meta.paths[0].text = "x".repeat(500);
    for width in [40, 60, 80, 100, 250] {
        for line in table(&runs, width, false).lines() {
            assert!(line.chars().count() <= width.min(100), "{width}: {line}");
        }
    }
}

#[test]
fn edge_cases_give_a_table() {
    let plan = |duration_ms, sample_ms, streams| {
        run(&Plan { duration_ms, sample_ms, streams, ..handover(Transport::Mptcp, 1) })
    };
    let mut empty = plan(0, 100, 1);
    empty.records.clear();
    empty.summary = None;
    assert!(table(&[], 100, false).contains("no results"));
    assert!(table(std::slice::from_ref(&empty), 100, false).contains("mptcp: no summary"));
    assert!(warnings(&[empty])[0].text.contains("no summary"));
    for run in [plan(0, 100, 1), plan(100, 100, 1), plan(10_000, 1, 1), plan(2_000, 100, 20)] {
        assert!(table(&[run], 80, false).contains("Goodput"));
    }
}

#[test]
fn a_warning_is_printed_once_with_the_affected_runs() {
    let warnings = warnings(&repeated());
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].text.starts_with("5 of 10 runs: "), "{}", warnings[0].text);
    // With two worlds, the warning names the one that it concerns.
    let mut two_worlds = pair();
    let warning = repeated().into_iter().find_map(|run| run.summary?.warnings.pop());
    two_worlds[0].meta.world = World::Sim;
    two_worlds[1].summary.as_mut().unwrap().warnings.extend(warning);
    two_worlds[0].summary.as_mut().unwrap().warnings.clear();
    let warning_lines: Vec<String> =
        towpath_report::warnings(&two_worlds).into_iter().map(|warning| warning.text).collect();
    assert!(warning_lines.iter().any(|text| text.contains(" emu: ")), "{warning_lines:?}");
}

#[test]
fn a_file_cannot_send_commands_to_the_terminal() {
    let mut runs = pair();
    runs[0].meta.scenario = "\u{1b}]0;owned\u{7}".to_owned();
    let summary = runs[0].summary.as_mut().unwrap();
    summary.verdict = "\u{1b}[2Jgone".to_owned();
    summary.warnings[0].text = "\u{9b}31m".to_owned();
    assert!(!table(&runs, 100, false).contains(['\u{1b}', '\u{7}', '\u{9b}']));
    assert!(!warnings(&runs)[0].text.contains('\u{9b}'));
}

fn subflow(path: &str, mbps: f64, srtt_us: u32) -> LiveSubflow {
    LiveSubflow {
        path: path.to_owned(),
        goodput_bps: mbps * 1e6,
        sender: Some(LiveSender { srtt_us, cwnd_packets: 312, retransmissions_delta: 0 }),
        state: "established".to_owned(),
        backup: false,
    }
}

fn interval(subflows: Vec<LiveSubflow>) -> LiveInterval {
    LiveInterval {
        from_ns: 2_000_000_000,
        to_ns: 3_000_000_000,
        transport: Transport::Mptcp,
        direction: DataDirection::Up,
        goodput_bps: subflows.iter().map(|s| s.goodput_bps).sum(),
        subflows,
        events: Vec::new(),
    }
}

#[test]
fn live_lines_show_every_path() {
    let mut satellite = subflow("satellite", 0.0, 0);
    (satellite.state, satellite.backup) = ("syn-sent".to_owned(), true);
    let mut wifi = subflow("wifi", 38.2, 96_000);
    wifi.sender.as_mut().unwrap().retransmissions_delta = 12;
    let mut three_subflows = interval(vec![wifi, subflow("cellular", 19.7, 281_000), satellite]);
    three_subflows.events = vec!["wifi goes down".to_owned()];
    let single = interval(vec![subflow("wifi", 38.2, 96_000)]);
    let parallel = (0..8).map(|n| subflow(["wifi", "cellular"][n % 2], 4.0, 90_000)).collect();
    let text = [
        live_header(),
        live_lines(&three_subflows),
        live_lines(&single),
        live_lines(&interval(parallel)),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn live_lines_stay_within_100_columns() {
    let mut long = interval(vec![subflow(&"name".repeat(30), 1e6, 4_000_000_000)]);
    long.subflows[0].state = "a\u{1b}very long state".repeat(9);
    long.events = vec!["event ".repeat(80)];
    long.to_ns = u64::MAX;
    for line in live_lines(&long).lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert!(!line.contains('\u{1b}'));
    }
}

/// Returns the lines of the summary about the verdicts and accounts, as one text.
fn verdict_text(runs: &[StoredRun]) -> String {
    let text = table(runs, 100, false);
    let lines = text.lines().take_while(|line| !line.contains(" × "));
    lines.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns repetitions of a run whose goodput and account vary.
fn varied(count: u64, change: impl Fn(u64, &mut Summary)) -> Vec<StoredRun> {
    let repetition = |number: u64| {
        let mut run = run(&handover(Transport::Mptcp, number as u32 + 1));
        let summary = run.summary.as_mut().expect("a summary");
        summary.verdict = format!("mptcp went on, in its own words {number}");
        for flow in &mut summary.flows {
            flow.goodput_bps = 1e6 * (20 + number) as f64;
            flow.stall =
                Stall { longest_ns: 100_000_000 * (number + 1), count: 1, ..Stall::default() };
        }
        let bytes = [(Part::Delivered, 60 + number), (Part::AfterLoss, 40 - number)].into();
        let total = Parts { capacity_bytes: 100, bytes, ..Parts::default() };
        summary.account = Some(Box::new(AccountSummary {
            sentence: format!("a sentence about run {number}"),
            total,
            span_ns: 1_000_000_000,
            ..account_summary()
        }));
        change(number, summary);
        run
    };
    (0..count).map(repetition).collect()
}

fn account_summary() -> AccountSummary {
    AccountSummary {
        sentence: String::new(),
        basis: Basis::Model,
        total: Parts::default(),
        links: Vec::new(),
        span_ns: 1,
        sufficient_bytes: None,
        advice: None,
        unlimited: Vec::new(),
        estimate: None,
    }
}

#[test]
fn the_sentences_of_repetitions_describe_all_runs() {
    for count in [2, 3, 5] {
        let text = verdict_text(&varied(count, |_, _| {}));
        let last = count - 1;
        assert!(!text.contains("in its own words") && !text.contains("a sentence about"), "{text}");
        assert!(text.contains(&format!("(20.0 Mbit/s to {}.0 Mbit/s)", 20 + last)), "{text}");
        assert!(text.contains("over wifi and cellular"), "{text}");
        let stalls = format!("(0.10 s to {:.2} s)", 0.1 * count as f64);
        assert!(text.contains("the longest stall in every run lasted"), "{text}");
        assert!(text.contains(&stalls), "{text}");
        assert!(text.contains(&format!("(60 % to {} %) carried payload", 60 + last)), "{text}");
        assert!(!text.contains("not as planned"), "{text}");
    }
}

#[test]
fn a_repetition_that_differs_is_counted_and_its_number_is_given() {
    for odd in 0..4 {
        let text = verdict_text(&varied(4, |number, summary| {
            if number == odd {
                summary.ok = false;
                summary.multipath.paths_used = vec!["wifi".to_owned()];
                summary.multipath.used = false;
                summary.multipath.fallback = Some("the peer has no key".to_owned());
                summary.flows.iter_mut().for_each(|flow| flow.stall = Stall::default());
            }
        }));
        let expected = [
            "(3 of 4 runs as planned)".to_owned(),
            "over wifi and cellular in 3 runs, over wifi in 1 run".to_owned(),
            "the longest stall in 3 of 4 runs lasted".to_owned(),
            "not used to the end in 1 of 4 runs: the peer has no key".to_owned(),
            format!("not as planned, run {}: went on, in its own words {odd}", odd + 1),
        ];
        for part in expected {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
}

#[test]
fn equal_verdicts_of_repetitions_are_said_of_every_run() {
    let text = verdict_text(&varied(3, |_, summary| {
        summary.verdict = "mptcp delivered 3.00 MB".to_owned();
        summary.account.as_mut().unwrap().sentence = "the same account".to_owned();
    }));
    assert!(text.contains("in every run: delivered 3.00 MB"), "{text}");
    assert!(text.contains("the same account"), "{text}");
}
