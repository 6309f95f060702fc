use towpath_campaign::MissingReason;
use towpath_result::{DelayStats, MessageStats, Warning};

use super::*;
use crate::agent::walk::fixtures::{loss, result, subflow};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Result of a walk: the first network carries data until 134 s, the other one from 122 s on.
fn walked(records: Vec<Record>) -> StoredRun {
    let mut run = result(&["wlan0", "wwan0"]);
    run.meta.transport = Transport::Mptcp;
    run.meta.conditions.insert("server".to_owned(), "eu-1".to_owned());
    for second in 1..=137 {
        let t_ns = second * SECOND;
        let (first, other) = (second <= 134, second >= 122);
        let bytes = |carries: bool| if carries { 1_000 } else { 0 };
        let total = |seconds: u64| 1_000 * seconds;
        run.records.push(subflow("wlan0", 0, t_ns, (bytes(first), total(second.min(134)))));
        let sent = total(second.saturating_sub(121));
        run.records.push(subflow("wwan0", 1, t_ns, (bytes(other), sent)));
    }
    run.records.extend(records);
    let mut summary = run.summary.take().unwrap();
    summary.warnings.clear();
    let flow = summary.flows[0].clone();
    let directions = [(DataDirection::Up, 1_200), (DataDirection::Down, 310)];
    let flows = directions.map(|(direction, max_ms)| {
        let mut flow = flow.clone();
        let delay = DelayStats { max_ns: max_ms * MS, ..DelayStats::default() };
        let messages = MessageStats { count: 9, answered: 9, delay, ..MessageStats::default() };
        (flow.direction, flow.messages) = (direction, Some(messages));
        flow
    });
    summary.flows = flows.to_vec();
    let path = |path: &str, answered| PathStats {
        path: path.to_owned(),
        count: 1_370,
        answered,
        ..PathStats::default()
    };
    summary.paths = vec![path("wlan0", 1_340), path("wwan0", 1_369)];
    StoredRun { summary: Some(summary), ..run }
}

fn measured(result: Option<StoredRun>) -> MeasuredRun {
    let state = match &result {
        Some(_) => OutcomeState::Stored { result: "0123456789abcdef0123".to_owned() },
        None => OutcomeState::Missing {
            reason: MissingReason::Unreachable,
            detail: "eu-1 does not offer mpquic".to_owned(),
        },
    };
    let transport = result.as_ref().map_or(Transport::Mpquic, |result| result.meta.transport);
    MeasuredRun { transport, state, result }
}

fn summarize(runs: Vec<MeasuredRun>, upload: Option<&UploadState>) -> WalkSummary {
    let place = |run: &MeasuredRun| {
        let waiting = || match upload {
            Some(UploadState::Sent) => UploadState::Sent,
            Some(UploadState::Refused(reason)) => UploadState::Refused(reason.clone()),
            Some(UploadState::Waiting) | None => UploadState::Waiting,
        };
        run.result.as_ref().map(|_| waiting())
    };
    let uploads = runs.iter().map(place).collect();
    WalkSummary::new(("mobile-1", 12), runs, uploads)
}

#[test]
fn a_walk_that_lost_its_first_network_says_how_far_it_reached() {
    let lost = loss(134 * SECOND, "interface wlan0 is down");
    let runs = vec![measured(Some(walked(vec![lost]))), measured(None)];
    let summary = summarize(runs, Some(&UploadState::Sent));
    assert!(!summary.is_complete() && !summary.is_interrupted());
    let expected = [
        "mobile-1, round 12 with eu-1",
        "  end        a network was lost after 2 min 14 s: interface wlan0 is down",
        "  network    wlan0 carried data for 2 min 14 s",
        "  mptcp      wwan0 carried data from 2 min 2 s on, both networks for 12 s; longest delay 1.20 s up,",
        "             310 ms down",
        "  datagrams  lost 30 of 1370 over wlan0, 1 of 1370 over wwan0",
        "  result     mptcp: 0123456789abcdef0123 is on the collector",
        "  result     mpquic: no result: eu-1 does not offer mpquic",
    ];
    assert_eq!(summary.lines(), expected);
    let json = summary.to_json();
    assert_eq!((&json["end"], &json["first_network"]), (&"network-lost".into(), &"wlan0".into()));
    assert_eq!((&json["carried_ns"], &json["end_ns"]), (&json["end_ns"], &(134 * SECOND).into()));
    let run = &json["runs"][0];
    assert_eq!((&run["other_network"], &run["upload"]), (&"wwan0".into(), &"sent".into()));
    assert_eq!(run["both_ns"], 12 * SECOND);
    assert_eq!(run["max_delay_down_ns"], 310 * MS);
    assert_eq!(json["datagrams"][0]["lost"], 30);
    assert_eq!(json["runs"][1]["state"], "missing");
}

#[test]
fn every_end_has_a_name_and_a_text_without_a_hint_at_a_wrong_reason() {
    let end = |result| WalkEnd::of(&[measured(result)]);
    assert_eq!(end(None), WalkEnd::Failed);
    assert_eq!(end(Some(walked(Vec::new()))), WalkEnd::DurationReached);
    let mut stopped = walked(Vec::new());
    let text = "the run was interrupted".to_owned();
    stopped.summary.as_mut().unwrap().warnings.push(Warning { text, hint: None });
    assert_eq!(end(Some(stopped)), WalkEnd::Interrupted);
    let changed = "the default route of IPv4 now uses 10.0.0.1 on wwan0";
    for (reason, name) in [
        ("no reply over wlan0", "network-lost"),
        ("interface wlan0 is gone", "network-lost"),
        ("the default route of IPv4 is gone", "network-lost"),
        ("address 10.0.0.1 removed on wlan0", "network-changed"),
        (changed, "network-changed"),
    ] {
        let end = end(Some(walked(vec![loss(5 * SECOND, reason)])));
        assert_eq!(end.name(), name, "{reason}");
        assert!(end.text().ends_with(&format!(" after 5.0 s: {reason}")), "{}", end.text());
    }
}

#[test]
fn a_result_that_was_not_sent_waits_and_a_single_network_has_no_handover() {
    let mut single = walked(Vec::new());
    let is_first = |record: &Record| !matches!(record, Record::Subflow(s) if s.path == "wwan0");
    single.records.retain(is_first);
    let summary = summarize(vec![measured(Some(single))], None);
    let text = summary.lines().join("\n");
    assert!(text.contains("no data over another network; longest delay"), "{text}");
    assert!(text.contains("0123456789abcdef0123 waits in the queue"), "{text}");
    assert!(summary.is_complete());
    let refused = UploadState::Refused("too large".to_owned());
    let summary = summarize(vec![measured(Some(walked(Vec::new())))], Some(&refused));
    assert!(summary.lines().join("\n").contains("was refused: too large"));
}

#[test]
fn an_abrupt_handover_has_a_gap() {
    let mut abrupt = walked(Vec::new());
    let keeps = |record: &Record| !matches!(record, Record::Subflow(s) if s.path == "wlan0" && s.t_ns > 120 * SECOND);
    abrupt.records.retain(keeps);
    let summary = summarize(vec![measured(Some(abrupt))], None);
    let text = summary.lines().join("\n");
    assert!(text.contains("wlan0 carried data for 2 min\n"), "{text}");
    assert!(text.contains("from 2 min 2 s on, after a gap of 2.0 s"), "{text}");
}

#[test]
fn pings_of_multipath_quic_are_no_use_of_another_network() {
    let mut quic = walked(Vec::new());
    quic.meta.transport = Transport::Mpquic;
    for record in &mut quic.records {
        if let Record::Subflow(subflow) = record
            && subflow.path == "wwan0"
            && subflow.t_ns <= 134 * SECOND
        {
            subflow.bytes = if subflow.t_ns == SECOND { 5_000 } else { 30 };
        }
    }
    let summary = summarize(vec![measured(Some(quic))], None);
    let text = summary.lines().join("\n");
    assert!(text.contains("wwan0 carried data from 2 min 15 s on, after a gap of 1.0 s"), "{text}");
}

#[test]
fn names_and_reasons_cannot_command_the_terminal() {
    let lost = loss(SECOND, "no reply over w\u{1b}[2J\nfix: x");
    let summary = summarize(vec![measured(Some(walked(vec![lost])))], None);
    assert!(summary.lines().iter().all(|line| !line.contains(['\u{1b}', '\n'])));
}
