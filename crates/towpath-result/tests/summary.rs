//! Summaries of realistic runs.

use std::time::Duration;

use towpath_net::config::{DirectionConfig, Shaper};
use towpath_net::{Instant, Rate};
use towpath_result::metrics::{
    DeliveryLog, Disruption, FlowInput, Histogram, Summarizer, disruptions,
};
use towpath_result::{
    ConnectionUse, Counter, EmulatorTiming, MultipathUse, SubflowSummary, Summary,
};
use towpath_scenario::{
    Bottleneck, DataDirection, DownMode, Expectation, Family, Flow, Host, HostStackConfig,
    LinkSide, MptcpConfig, Operator, Path, Pattern, RunPlan, Scenario, SegmentationMode,
    TimelineChange, TimelineEvent, TimelineTarget, Transport, World,
};

const WIFI: usize = 0;
const CELLULAR: usize = 1;

fn host(name: &str) -> Host {
    Host {
        name: name.into(),
        congestion_control: None,
        receive_buffer: None,
        send_buffer: None,
        sysctls: vec![],
        mptcp: MptcpConfig::default(),
        stack: HostStackConfig::default(),
    }
}

fn link(mbit: u64) -> DirectionConfig {
    let shaper = Rate::from_bps(mbit * 1_000_000).map_or(Shaper::Unlimited, Shaper::Line);
    DirectionConfig { shaper, ..DirectionConfig::default() }
}

fn path(name: &str, mbit: u64) -> Path {
    Path {
        name: name.into(),
        between: [0, 1],
        up: link(mbit),
        down: link(mbit),
        mtu_bytes: 1_500,
        backup: false,
        through: vec![],
        segmentation: SegmentationMode::Auto,
    }
}

fn bulk(size_bytes: Option<u64>) -> Flow {
    let (duration, direction) = (Duration::from_secs(10), DataDirection::Up);
    let pattern = Pattern::Bulk { size_bytes, duration, direction };
    let start = Duration::ZERO;
    Flow { from: 0, to: 1, pattern, via: WIFI, start, family: Family::V4, transport: None }
}

/// Two links of 100 Mbit/s and one timed transfer.
fn two_links(timeline: Vec<TimelineEvent>) -> Scenario {
    Scenario {
        name: "two-links".into(),
        description: String::new(),
        hosts: vec![host("phone"), host("server")],
        bottlenecks: vec![],
        paths: vec![path("wifi", 100), path("cellular", 100)],
        middleboxes: vec![],
        timeline,
        flows: vec![bulk(None)],
        run: RunPlan {
            transports: vec![Transport::Tcp, Transport::Mptcp],
            worlds: vec![World::Emu],
            seed: 1,
            repeat: 1,
            sample: Duration::from_millis(100),
            congestion_control: "cubic".into(),
            names_congestion_control: false,
        },
        expect: vec![],
        source: String::new(),
        remarks: std::collections::BTreeMap::new(),
    }
}

fn event(millis: u64, path: usize, change: TimelineChange) -> TimelineEvent {
    TimelineEvent { at: Duration::from_millis(millis), target: TimelineTarget::Path(path), change }
}

fn wifi_down() -> TimelineEvent {
    event(3_000, WIFI, TimelineChange::Down(DownMode::Silent))
}

fn mbit(mbit: u64) -> Rate {
    Rate::from_bps(mbit * 1_000_000).expect("not zero")
}

/// Input of a flow, from consecutive pieces of (milliseconds, Mbit/s).
fn flow_input(pieces: &[(u64, u64)]) -> FlowInput {
    let (mut log, mut now) = (DeliveryLog::new(Instant::ZERO), 0);
    for &(millis, mbit) in pieces {
        for at in now..now + millis {
            log.record(Instant::from_nanos(at * 1_000_000), mbit * 125);
        }
        now += millis;
    }
    log.watch_until(Instant::from_nanos(now * 1_000_000));
    FlowInput {
        flow: 0,
        direction: DataDirection::Up,
        delivery: log,
        connect: Some(Duration::from_millis(30)),
        failure: None,
        congestion_control: vec!["cubic".into()],
        retransmissions: 7,
        stack: None,
        messages: vec![],
    }
}

fn subflow(number: u32, path: &str, bytes: u64) -> SubflowSummary {
    SubflowSummary {
        flow: 0,
        stream: 0,
        direction: DataDirection::Up,
        subflow: number,
        path: path.into(),
        local: "10.0.0.1:40000".into(),
        remote: "10.0.0.2:5210".into(),
        backup: false,
        bytes,
        share: 0.0,
        retransmissions: 0,
        srtt_us: 10_000,
        first_seen_ns: 0,
        closed_ns: None,
    }
}

fn two_subflows() -> [SubflowSummary; 2] {
    [subflow(0, "wifi", 30_000_000), subflow(1, "cellular", 90_000_000)]
}

fn multipath_used() -> MultipathUse {
    MultipathUse { requested: true, used: true, ..MultipathUse::default() }
}

fn mptcp_summary(scenario: &Scenario, flow: FlowInput) -> Summary {
    Summarizer::new(scenario, Transport::Mptcp)
        .flow(flow)
        .subflows(two_subflows())
        .multipath(multipath_used())
        .finish()
}

fn warnings(summary: &Summary) -> Vec<&str> {
    summary.warnings.iter().map(|warning| warning.text.as_str()).collect()
}

fn disruptions_of(scenario: &Scenario, transport: Transport) -> Vec<Disruption> {
    let flow = scenario.flows.first().expect("a scenario has a flow");
    disruptions(scenario, transport, flow, DataDirection::Up)
}

#[test]
fn a_handover_is_summarised_with_its_recovery() {
    let summary = mptcp_summary(
        &two_links(vec![wifi_down()]),
        flow_input(&[(3_000, 187), (330, 0), (6_670, 94)]),
    );
    assert_eq!(
        summary.verdict,
        "mptcp delivered 148 MB at 119 Mbit/s over wifi and cellular; \
         stall-free again 0.33 s after `wifi down`"
    );
    assert!(summary.ok && summary.warnings.is_empty(), "{summary:?}");
    assert!((summary.subflows[1].share - 0.75).abs() < 1e-9);
}

#[test]
fn the_last_stall_end_is_reported_before_the_earlier_goodput_recovery() {
    // Recovers to 90 % on average after 0.3 s, but pauses for 0.3 s every second.
    let pause = [(400, 0), (1_000, 150)];
    let pieces: Vec<_> = [(3_000, 187), (330, 0)].into_iter().chain(pause.repeat(3)).collect();
    let mut all_pieces = pieces;
    all_pieces.push((2_470, 94));
    let summary = mptcp_summary(&two_links(vec![wifi_down()]), flow_input(&all_pieces));
    let verdict = &summary.verdict;
    assert!(
        verdict.contains("stall-free again ") && verdict.contains(" s after `wifi down`"),
        "{verdict}"
    );
    let recovery = &summary.flows[0].recoveries[0];
    assert!(recovery.t90_ns < recovery.last_stall_end_ns, "{recovery:?}");
    assert!(verdict.contains("(back to 90 % in "), "{verdict}");
}

#[test]
fn a_recovery_is_compared_with_the_remaining_capacity() {
    let summary =
        mptcp_summary(&two_links(vec![wifi_down()]), flow_input(&[(3_000, 187), (7_000, 50)]));
    let recovery = &summary.flows[0].recoveries[0];
    assert_eq!(recovery.capacity_bps, Some(recovery.reference_bps));
    assert!(
        summary
            .verdict
            .ends_with("never back to 90 % of the 94.3 Mbit/s that the remaining paths carry"),
        "{}",
        summary.verdict
    );
}

#[test]
fn a_flow_without_its_only_path_reports_when_and_why_it_stopped() {
    let scenario = two_links(vec![wifi_down()]);
    let run =
        Summarizer::new(&scenario, Transport::Tcp).flow(flow_input(&[(3_001, 96), (6_999, 0)]));
    let summary = run.finish();
    assert_eq!(
        summary.verdict,
        "tcp stopped at 3.00 s when wifi went down: 36.0 MB delivered, nothing for the last 7.00 s"
    );
    let flow = &summary.flows[0];
    assert_eq!(flow.failure.as_deref(), Some("nothing arrived after 3.00 s"));
    assert!(!summary.ok && !flow.completed);
    assert_eq!((flow.recoveries[0].t90_ns, flow.duration_ns), (None, 10_000_000_000));
}

#[test]
fn a_sized_transfer_ends_with_its_last_byte() {
    let mut scenario = two_links(vec![]);
    scenario.flows = vec![bulk(Some(10_000_000))];
    let summary = mptcp_summary(&scenario, flow_input(&[(500, 160)]));
    assert_eq!(summary.flows[0].duration_ns, 499_000_000);
    assert_eq!(
        summary.verdict,
        "mptcp delivered 10.0 MB in 0.50 s (160 Mbit/s) over wifi and cellular"
    );
    let cut_off = mptcp_summary(&scenario, flow_input(&[(10_000, 6)]));
    assert_eq!(cut_off.flows[0].failure.as_deref(), Some("7.50 MB of 10.0 MB arrived in 10.0 s"));
    assert!(!cut_off.ok, "{}", cut_off.verdict);
}

#[test]
fn a_flow_that_never_delivered_reports_the_reason() {
    let scenario = two_links(vec![]);
    let mut silent = flow_input(&[]);
    silent.failure = Some("connection refused".into());
    let summary = Summarizer::new(&scenario, Transport::Tcp).flow(silent).finish();
    assert_eq!(summary.verdict, "tcp delivered nothing: connection refused");
    assert!(!summary.ok);
}

#[test]
fn a_run_without_flows_is_not_ok() {
    let summary = Summarizer::new(&two_links(vec![]), Transport::Tcp).finish();
    assert_eq!((summary.ok, summary.verdict.as_str()), (false, "tcp ran no flow"));
}

#[test]
fn an_interrupted_run_is_not_complete() {
    let summary = mptcp_summary(&two_links(vec![]), flow_input(&[(5_000, 187)]));
    assert_eq!(summary.flows[0].failure.as_deref(), Some("ended after 5.00 s of 10.0 s"));
}

#[test]
fn a_connection_reset_early_counts_as_silence_until_the_planned_end() {
    let mut reset = flow_input(&[(4_000, 96)]);
    reset.delivery.record_eof(Instant::from_nanos(4_000_000_000));
    let summary = Summarizer::new(&two_links(vec![]), Transport::Tcp).flow(reset).finish();
    assert_eq!(summary.flows[0].stall.longest_ns, 6_001_000_000);
    assert!(summary.verdict.starts_with("tcp stopped at 4.00 s: 48.0 MB"), "{}", summary.verdict);
}

#[test]
fn several_flows_are_summarised_and_the_failed_one_is_named() {
    let mut scenario = two_links(vec![wifi_down()]);
    scenario.flows.push(bulk(None));
    let second_flow = |pieces: &[(u64, u64)]| FlowInput { flow: 1, ..flow_input(pieces) };
    let completed = flow_input(&[(10_000, 40)]);
    let summarize = |second_input| {
        Summarizer::new(&scenario, Transport::Tcp)
            .flow(completed.clone())
            .flow(second_input)
            .finish()
    };
    assert_eq!(
        summarize(second_flow(&[(10_000, 20)])).verdict,
        "tcp delivered 75.0 MB at 60.0 Mbit/s in 2 transfers; `wifi down` did not interrupt it"
    );
    assert_eq!(
        summarize(second_flow(&[(3_001, 20), (6_999, 0)])).verdict,
        "tcp: 1 of 2 transfers did not complete: flow 1 (up) stopped at 3.00 s \
         when wifi went down: 7.50 MB delivered, nothing for the last 7.00 s"
    );
}

#[test]
fn a_fallback_is_never_reported_as_multipath() {
    let scenario = two_links(vec![]);
    let fallback = Some("the server answered without MP_CAPABLE".into());
    let summary = Summarizer::new(&scenario, Transport::Mptcp)
        .flow(flow_input(&[(10_000, 96)]))
        .multipath(MultipathUse { requested: true, fallback, ..MultipathUse::default() })
        .finish();
    let expected = "mptcp (not used: the server answered without MP_CAPABLE) delivered 120 MB";
    assert!(summary.verdict.starts_with(expected), "{}", summary.verdict);
    assert!(warnings(&summary)[0].contains("was asked for but not used"));
}

#[test]
fn everything_that_makes_a_result_doubtful_is_a_warning() {
    let scenario = two_links(vec![event(20_000, WIFI, TimelineChange::Up)]);
    let mut lateness = Histogram::default();
    lateness.record(5_000_000);
    let noise = EmulatorTiming { unreliable: true, lost_packets: 3, ..lateness.lateness() };
    let name = "MPTcpExt.SubflowStale".into();
    let mut flow = flow_input(&[(10_000, 96)]);
    flow.congestion_control = vec!["cubic".into(), "bbr".into()];
    let summary = Summarizer::new(&scenario, Transport::Mptcp)
        .flow(flow)
        .subflows([subflow(0, "wifi", 120_000_000), subflow(1, "cellular", 0)])
        .multipath(multipath_used())
        .emulator_timing(&noise)
        .counters(&[Counter { host: "phone".into(), name, before: 0, after: 1 }])
        .finish();
    assert_eq!(
        warnings(&summary),
        [
            "unreliable timing: 1 % of the packets were 5 ms late or more",
            "the emulator itself lost 3 packets",
            "only wifi carried data, of wifi and cellular",
            "flow 0 ran bbr where cubic was asked for",
            "phone gave up a subflow without an event (MPTcpExt.SubflowStale +1)",
            "the traffic was over before `wifi up` at 20.0 s",
        ]
    );
}

#[test]
fn no_congestion_control_mismatch_is_reported_for_programs() {
    let mut scenario = two_links(vec![]);
    let command = "x".to_owned();
    scenario.flows[0].pattern = Pattern::Run { command, duration: Duration::from_secs(10) };
    let warning_count = |scenario: &Scenario| {
        let mut flow = flow_input(&[(10_000, 96)]);
        flow.congestion_control = vec!["bbr".into()];
        warnings(&Summarizer::new(scenario, Transport::Tcp).flow(flow).finish()).len()
    };
    assert_eq!(warning_count(&scenario), 0);
    scenario.run.names_congestion_control = true;
    assert_eq!(warning_count(&scenario), 1);
}

#[test]
fn a_single_expectation_is_not_counted() {
    let mut scenario = two_links(vec![]);
    scenario.expect = vec![Expectation {
        transport: None,
        metric: "goodput".into(),
        operator: Operator::AtLeast,
        bound: 190e6,
        text: "goodput >= 190e6".into(),
    }];
    let verdict = mptcp_summary(&scenario, flow_input(&[(10_000, 187)])).verdict;
    assert!(verdict.ends_with("; the expectation was missed"), "{verdict}");
}

#[test]
fn a_missed_expectation_and_an_unmeasured_one_make_the_run_fail() {
    let mut scenario = two_links(vec![]);
    let expect = |metric: &str, bound| Expectation {
        transport: None,
        metric: metric.into(),
        operator: Operator::AtLeast,
        bound,
        text: format!("{metric} >= {bound}"),
    };
    let flow = || flow_input(&[(10_000, 187)]);
    scenario.expect = vec![expect("goodput", 180e6)];
    assert!(mptcp_summary(&scenario, flow()).ok);
    scenario.expect = vec![expect("goodput", 190e6), expect("recovery", 0.0)];
    let summary = mptcp_summary(&scenario, flow());
    assert!(!summary.ok);
    let end = "; 1 of 2 expectations missed; 1 of 2 expectations could not be checked";
    assert!(summary.verdict.ends_with(end), "{}", summary.verdict);
}

#[test]
fn the_reference_after_an_outage_is_the_remaining_capacity() {
    let events = disruptions_of(&two_links(vec![wifi_down()]), Transport::Mptcp);
    assert_eq!((events[0].text.as_str(), events.len()), ("wifi down", 1));
    // 1428 of 1514 bytes are payload.
    assert!((events[0].capacity_bps.unwrap() - 94.32e6).abs() < 0.01e6);
}

#[test]
fn a_single_path_transport_is_disrupted_on_its_own_path_only() {
    let cellular = event(3_000, CELLULAR, TimelineChange::Down(DownMode::Carrier));
    assert_eq!(disruptions_of(&two_links(vec![cellular]), Transport::Tcp), []);
    let slower = event(3_000, WIFI, TimelineChange::Rate(LinkSide::Both, mbit(10)));
    let events = disruptions_of(&two_links(vec![slower]), Transport::Tcp);
    // The flow's own path counts while it is up, although the other one is faster.
    assert!((events[0].capacity_bps.unwrap() - 9.56e6).abs() < 0.01e6);
    let events = disruptions_of(&two_links(vec![wifi_down()]), Transport::Tcp);
    assert!((events[0].capacity_bps.unwrap() - 95.64e6).abs() < 0.01e6);
}

#[test]
fn only_changes_that_reduce_a_path_are_disruptions() {
    let rate = |millis, side, rate| event(millis, WIFI, TimelineChange::Rate(side, mbit(rate)));
    let timeline = vec![
        rate(1_000, LinkSide::Both, 200),
        rate(3_000, LinkSide::Down, 5),
        rate(5_000, LinkSide::Up, 5),
        event(7_000, WIFI, TimelineChange::Address { host: 0 }),
        event(9_000, WIFI, TimelineChange::Up),
    ];
    let events = disruptions_of(&two_links(timeline), Transport::Mptcp);
    let texts: Vec<_> = events.iter().map(|d| (d.text.as_str(), d.happened.as_str())).collect();
    assert_eq!(
        texts,
        [
            ("wifi rate 5 Mbit/s (up)", "wifi slowed to 5 Mbit/s"),
            ("wifi new address of phone", "the address of phone on wifi changed"),
        ]
    );
}

#[test]
fn the_steps_of_a_fade_are_one_disruption() {
    let step = |i: u64| {
        event(3_000 + 100 * i, WIFI, TimelineChange::Rate(LinkSide::Both, mbit(100 - 9 * i)))
    };
    let events = disruptions_of(&two_links((1..=10).map(step).collect()), Transport::Mptcp);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].at.as_nanos(), events[0].text.as_str()),
        (3_100_000_000, "wifi fades to 10 Mbit/s")
    );
    assert_eq!(events[0].happened, "wifi faded to 10 Mbit/s");
    assert!((events[0].capacity_bps.unwrap() - 1.1 * 94.32e6).abs() < 0.1e6);
}

#[test]
fn path_loss_after_a_fade_is_a_separate_event() {
    let rate = |i: u64, mbits| {
        event(3_000 + 100 * i, WIFI, TimelineChange::Rate(LinkSide::Both, mbit(mbits)))
    };
    let mut timeline: Vec<_> = (1..=8).map(|i| rate(i, 100 - 9 * i)).collect();
    timeline.extend([rate(9, 10), event(3_900, WIFI, TimelineChange::Down(DownMode::Silent))]);
    let disruptions = disruptions_of(&two_links(timeline), Transport::Mptcp);
    let events: Vec<_> = disruptions.iter().map(|d| (d.at.as_nanos(), d.text.as_str())).collect();
    assert_eq!(events, [(3_100_000_000, "wifi fades to 10 Mbit/s"), (3_900_000_000, "wifi down")]);
}

#[test]
fn paths_through_a_bottleneck_share_its_capacity() {
    let mut scenario = two_links(vec![TimelineEvent {
        at: Duration::from_secs(3),
        target: TimelineTarget::Bottleneck(0),
        change: TimelineChange::Rate(LinkSide::Up, mbit(60)),
    }]);
    let name = "backbone".into();
    scenario.bottlenecks = vec![Bottleneck { name, up: link(150), down: link(150) }];
    for path in &mut scenario.paths {
        path.through = vec![0];
    }
    let events = disruptions_of(&scenario, Transport::Mptcp);
    assert_eq!(events[0].happened, "backbone slowed to 60 Mbit/s");
    assert!((events[0].capacity_bps.unwrap() - 0.6 * 94.32e6).abs() < 0.01e6);
}

#[test]
fn a_backup_path_counts_only_when_no_other_is_up() {
    let mut scenario = two_links(vec![
        event(2_000, WIFI, TimelineChange::Rate(LinkSide::Both, mbit(50))),
        event(4_000, WIFI, TimelineChange::Down(DownMode::Silent)),
        event(6_000, CELLULAR, TimelineChange::Down(DownMode::Silent)),
    ]);
    scenario.paths[CELLULAR].backup = true;
    let events = disruptions_of(&scenario, Transport::Mptcp);
    let mbits: Vec<_> = events.iter().map(|d| d.capacity_bps.map(|c| (c / 1e6).round())).collect();
    assert_eq!(mbits, [Some(47.0), Some(94.0), None]);
}

/// Returns a scenario with bulk flows over two links.
fn several_flows(count: usize) -> Scenario {
    let mut scenario = two_links(Vec::new());
    let flow = scenario.flows.first().cloned().expect("a scenario has a flow");
    scenario.flows = vec![flow; count];
    scenario
}

fn connection(flow: u32, reason: Option<&str>) -> ConnectionUse {
    ConnectionUse { flow, multipath: reason.is_none(), reason: reason.map(str::to_owned) }
}

/// Returns the summary of a run with these connections. All flows but those without a connection
/// deliver data over both paths, or over Wi-Fi if their connection fell back.
fn multi_flow_summary(flows: usize, connections: &[ConnectionUse]) -> Summary {
    let scenario = several_flows(flows);
    let mut summarizer = Summarizer::new(&scenario, Transport::Mptcp);
    for number in 0..flows as u32 {
        let own: Vec<_> = connections.iter().filter(|c| c.flow == number).collect();
        let pieces: &[(u64, u64)] = if own.is_empty() { &[] } else { &[(10_000, 24)] };
        summarizer = summarizer.flow(FlowInput { flow: number, ..flow_input(pieces) });
        let paths = match own.as_slice() {
            [] => 0,
            own if own.iter().all(|c| c.multipath) => 2,
            _ => 1,
        };
        let subflows = two_subflows().into_iter().take(paths);
        let subflows = subflows.map(|s| SubflowSummary { flow: number, ..s });
        summarizer = summarizer.subflows(subflows);
    }
    let multipath = connections.iter().filter(|c| c.multipath).count();
    let used = multipath == connections.len() && multipath > 0;
    let fallback = (!used).then(|| {
        let reason = connections.iter().find_map(|c| c.reason.clone());
        reason.unwrap_or_else(|| "no connection was opened".to_owned())
    });
    let proof = MultipathUse { requested: true, used, fallback, ..MultipathUse::default() };
    summarizer.multipath(proof.set_flows(&scenario, Transport::Mptcp, connections)).finish()
}

#[test]
fn a_flow_that_never_connects_does_not_discredit_the_others() {
    for flows in 2..=4_u32 {
        for failed in 0..flows {
            let others = (0..flows).filter(|number| *number != failed);
            let connections: Vec<_> = others.map(|number| connection(number, None)).collect();
            let summary = multi_flow_summary(flows as usize, &connections);
            let texts = warnings(&summary);
            assert!(summary.multipath.used, "{summary:?}");
            assert!(!texts.iter().any(|text| text.contains("asked for but not used")), "{texts:?}");
            let expected = format!("flow {failed} did not use mptcp: no connection was opened");
            assert!(texts.contains(&expected.as_str()), "{texts:?}");
            let hints = summary.warnings.iter().filter_map(|warning| warning.hint.as_deref());
            assert!(!hints.clone().any(|hint| hint.contains("single-path")), "{texts:?}");
            assert!(!summary.verdict.contains("not used"), "{}", summary.verdict);
            for flow in &summary.multipath.flows {
                let expected: &[&str] =
                    if flow.flow == failed { &[] } else { &["wifi", "cellular"] };
                assert_eq!(flow.paths_used, expected);
                assert_eq!(flow.used, flow.flow != failed);
            }
        }
    }
}

#[test]
fn a_flow_that_fell_back_is_named_with_its_reason() {
    for flows in 2..=4_u32 {
        for fallen in 0..flows {
            let reason = |number| (number == fallen).then_some("the peer has no key");
            let connections: Vec<_> =
                (0..flows).map(|number| connection(number, reason(number))).collect();
            let summary = multi_flow_summary(flows as usize, &connections);
            let found = &summary.warnings;
            let text = format!("flow {fallen} did not use mptcp: the peer has no key");
            let hint = format!("the figures of flow {fallen} are those of a single-path transport");
            let named = |w: &towpath_result::Warning| {
                w.text == text && w.hint.as_deref() == Some(hint.as_str())
            };
            assert!(found.iter().any(named), "{found:?}");
            assert!(!found.iter().any(|w| w.text.contains("asked for but")), "{found:?}");
            let note = format!("not used by flow {fallen}: the peer has no key");
            assert!(summary.verdict.contains(&note), "{}", summary.verdict);
            assert!(summary.multipath.is_partly_used() && !summary.multipath.used);
        }
    }
}

#[test]
fn flows_with_the_same_reason_are_named_together() {
    let connections =
        [connection(0, None), connection(1, Some("no key")), connection(2, Some("no key"))];
    let summary = multi_flow_summary(4, &connections);
    let texts = warnings(&summary);
    assert!(texts.contains(&"flows 1 and 2 did not use mptcp: no key"), "{texts:?}");
    assert!(texts.contains(&"flow 3 did not use mptcp: no connection was opened"), "{texts:?}");
}

#[test]
fn a_run_in_which_every_flow_fell_back_for_one_reason_has_one_warning() {
    let connections = [0, 1, 2].map(|number| connection(number, Some("no key")));
    let summary = multi_flow_summary(3, &connections);
    let texts = warnings(&summary);
    assert_eq!(texts, ["mptcp was asked for but not used: no key"]);
    assert!(summary.verdict.contains("mptcp (not used: no key)"), "{}", summary.verdict);
}

#[test]
fn one_of_several_connections_of_a_flow_is_counted() {
    let connections = [connection(0, None), connection(0, Some("no key")), connection(1, None)];
    let summary = multi_flow_summary(2, &connections);
    let texts = warnings(&summary);
    assert!(texts.contains(&"flow 0 did not use mptcp: 1 of 2 connections: no key"), "{texts:?}");
}

#[test]
fn a_flow_whose_data_took_one_path_is_named() {
    let scenario = several_flows(2);
    let connections = [connection(0, None), connection(1, None)];
    let [wifi, cellular] = two_subflows();
    let proof = multipath_used().set_flows(&scenario, Transport::Mptcp, &connections);
    let summary = Summarizer::new(&scenario, Transport::Mptcp)
        .flow(flow_input(&[(10_000, 24)]))
        .flow(FlowInput { flow: 1, ..flow_input(&[(10_000, 24)]) })
        .subflows([wifi.clone(), cellular, SubflowSummary { flow: 1, ..wifi }])
        .multipath(proof)
        .finish();
    let expected = "only wifi carried data of flow 1, of wifi and cellular";
    assert_eq!(warnings(&summary), [expected]);
}

#[test]
fn a_proof_of_an_earlier_build_names_no_flows() {
    let text = r#"{"requested":true,"used":false,"paths_used":["wifi"],"evidence":[]}"#;
    let proof: MultipathUse = serde_json::from_str(text).expect("a stored proof");
    assert!(proof.flows.is_empty() && proof.unused_flows().is_empty());
    assert_eq!(serde_json::to_string(&proof).expect("text"), text);
}
