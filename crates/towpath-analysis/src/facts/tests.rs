use proptest::prelude::*;
use towpath_result::{Event, EventKind, Subflow, SubflowEnd, SubflowSummary, Warning};
use towpath_scenario::{Scenario, World, no_files};

use super::*;

fn meta(transport: Transport, pattern: &str) -> Meta {
    let text = format!(
        "name = \"x\"\n[hosts.client]\n[hosts.server]\n\
         [paths.wlan0]\nbetween = [\"client\", \"server\"]\n\
         [paths.wwan0]\nbetween = [\"client\", \"server\"]\n\
         [[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"{pattern}\"\nstart = \"1 s\"\n"
    );
    let scenario = Scenario::parse("x", &text, &no_files).unwrap();
    let mut meta = Meta::of(&scenario, World::Live, (transport, 1), 1);
    let conditions = [
        ("campaign", "study"),
        ("campaign run", "3/7"),
        ("address family", "ipv6"),
        ("port", "6121"),
        ("server", "eu\u{1b}[2J"),
        ("network of wlan0", "wifi"),
        ("network of wwan0", "cellular"),
    ];
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    meta.sample_ns = 100_000_000;
    meta.conditions = conditions.into_iter().map(text).collect();
    meta
}

fn summary(text: &str) -> Summary {
    let fixture = include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");
    let last = fixture.lines().last().unwrap();
    let Record::Summary(mut summary) = serde_json::from_str(last).unwrap() else {
        panic!("{last}")
    };
    summary.warnings = vec![Warning { text: text.to_owned(), hint: None }];
    *summary
}

fn run(transport: Transport, records: Vec<Record>, warning: &str) -> StoredRun {
    let (meta, summary) = (meta(transport, "interactive"), Some(summary(warning)));
    StoredRun { file: None, meta, records, summary, truncated: false, skipped: 0 }
}

fn loss(ms: u64) -> Record {
    Record::Event(Event {
        t_ns: ms * 1_000_000,
        kind: EventKind::Link,
        host: Some("client".to_owned()),
        path: None,
        text: "the first network was lost: interface wlan0 is down".to_owned(),
        detail: std::collections::BTreeMap::new(),
    })
}

fn sample(ms: u64, path: &str, sent: u64) -> Record {
    Record::Subflow(Box::new(Subflow {
        t_ns: ms * 1_000_000,
        span_ns: 100_000_000,
        flow: 0,
        stream: 0,
        direction: DataDirection::Up,
        side: SubflowEnd::Sender,
        subflow: u32::from(path != "wlan0"),
        path: path.to_owned(),
        state: "established".to_owned(),
        backup: false,
        bytes: 0,
        bytes_sent: sent,
        bytes_acked: sent,
        bytes_received: 0,
        srtt_us: 20_000,
        rttvar_us: 1_000,
        rto_us: 220_000,
        backoff: 0,
        cwnd_packets: 10,
        ssthresh_packets: 10,
        in_flight_packets: 0,
        retransmissions: 0,
        mss_bytes: 1_420,
        sender_activity: None,
    }))
}

#[test]
fn conditions_give_the_planned_run_and_its_place() {
    let facts = RunFacts::of(&run(Transport::Quic, Vec::new(), ""), "ab", "d1");
    assert_eq!((facts.round, facts.planned_run, facts.port), (3, 7, 6_121));
    assert_eq!((facts.campaign.as_str(), facts.family.as_str()), ("study", "ipv6"));
    assert_eq!((facts.device.as_str(), facts.pattern_keys.as_str()), ("d1", "start = \"1 s\""));
    assert!(!facts.server.contains('\u{1b}') && facts.valid && !facts.mobile, "{facts:?}");
}

#[test]
fn warnings_make_a_run_invalid() {
    let reason = |warning: &str, records: Vec<Record>| {
        RunFacts::of(&run(Transport::Tcp, records, warning), "", "").invalid_reason
    };
    let invalid = "invalid: at 3 s, the default route changed";
    assert_eq!(reason(invalid, Vec::new()).as_deref(), Some("network-change"));
    let interrupted = "the run was interrupted";
    assert_eq!(reason(interrupted, Vec::new()).as_deref(), Some("interrupted"));
    assert_eq!(reason(interrupted, vec![loss(2_000)]), None, "a moving device may end a run");
    assert_eq!(reason("", vec![loss(900)]).as_deref(), Some("lost-at-start"));
    assert_eq!(reason("an invalid: warning", Vec::new()), None);
    let without_end = StoredRun { truncated: true, ..run(Transport::Tcp, Vec::new(), "") };
    let facts = RunFacts::of(&without_end, "", "");
    assert_eq!(facts.invalid_reason.as_deref(), Some("incomplete"));
}

#[test]
fn a_second_network_is_used_from_the_start_or_after_a_handover() {
    let result = |first_use_ms| {
        let records = (1..80).flat_map(|step| {
            let ms = step * 100;
            // The handshake used both networks.
            let sent = if ms >= first_use_ms { 600 + ms } else { 600 };
            // The first network carries data until 5 s.
            [sample(ms, "wlan0", ms.min(5_000)), sample(ms, "wwan0", sent)]
        });
        run(Transport::Mptcp, records.chain([loss(5_200)]).collect(), "")
    };
    let facts = |first_use_ms| RunFacts::of(&result(first_use_ms), "", "");
    let handover = facts(4_000);
    assert_eq!(handover.second_network.as_deref(), Some("handover"));
    assert_eq!(handover.handover_start_s, Some(4.0));
    assert_eq!(handover.handover_received_s, Some(1.0));
    assert_eq!((handover.network_lost_s, handover.mobile), (Some(5.2), true));
    assert_eq!(facts(300).second_network.as_deref(), Some("from-start"));
    assert_eq!(facts(9_000).second_network.as_deref(), Some("unused"));
    let mut kept = result(4_000);
    kept.records.pop();
    let kept = RunFacts::of(&kept, "", "");
    assert_eq!((kept.second_network.as_deref(), kept.handover_start_s), (Some("occasional"), None));
}

#[test]
fn networks_have_a_kind_and_a_shortened_prefix() {
    let mut run = run(Transport::Mptcp, Vec::new(), "");
    let subflow = run.summary.as_ref().unwrap().subflows[0].clone();
    let with = |path: &str, local: &str, bytes| SubflowSummary {
        path: path.to_owned(),
        local: local.to_owned(),
        bytes,
        ..subflow.clone()
    };
    run.summary.as_mut().unwrap().subflows = vec![
        with("wlan0", "192.0.2.77:4000", 5),
        with("wwan0", "[2001:db8:7:9::1]:4001", 5),
        with("eth0", "198.51.100.4:1", 5),
        with("wlan0", "203.0.113.9:4002", 0),
    ];
    let networks = RunFacts::of(&run, "", "").networks;
    let expected = "cellular 2001:db8:7::/48, unknown 198.51.100.0/24, wifi 192.0.2.0/24";
    assert_eq!(networks, expected);
}

proptest! {
    #[test]
    fn no_records_make_the_facts_fail(
        samples in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>(), any::<u64>()), 0..40),
        condition in ".{0,12}", lost in any::<u64>(),
    ) {
        let mut records = vec![loss(lost / 1_000_000)];
        for (t_ns, bytes, is_first, span_ns) in samples {
            let path = if is_first { "wlan0" } else { "wwan0" };
            let Record::Subflow(mut subflow) = sample(1, path, bytes) else { continue };
            subflow.t_ns = t_ns;
            subflow.span_ns = span_ns;
            subflow.in_flight_packets = bytes as u32;
            records.push(Record::Subflow(subflow));
            let message = serde_json::json!({
                "type": "message", "flow": 0, "stream": 0, "direction": "up", "number": 1,
                "request_bytes": 1, "reply_bytes": 1, "due_ns": t_ns, "sent_ns": span_ns,
                "delivered_ns": null, "answered_ns": if is_first { Some(span_ns) } else { None },
            });
            records.push(serde_json::from_value(message).unwrap());
        }
        let mut run = run(Transport::Mptcp, records, &condition);
        run.meta.conditions.insert("campaign run".to_owned(), condition);
        run.meta.sample_ns = lost;
        let facts = RunFacts::of(&run, "ab", "d");
        let text = serde_json::to_string(&facts).unwrap();
        prop_assert!(!text.contains("null,\"max") && serde_json::from_str::<RunFacts>(&text).is_ok());
    }
}
