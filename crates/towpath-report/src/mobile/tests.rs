//! Tests of the page of a mobile round.

use towpath_result::{
    Event, EventKind, Message, Meta, MultipathUse, Probe, Record, Subflow, SubflowEnd, Summary,
};
use towpath_scenario::{DataDirection, Scenario, Transport, World, no_files};

use super::*;

const MS: u64 = 1_000_000;
/// Start of the earlier run, in microseconds of Unix time.
const START_US: u64 = 1_795_925_113_000_000;

/// Returns the conditions of a run of 10 s over `wlan0` and `wwan0`.
fn meta(transport: Transport, started_us: u64) -> Meta {
    let text = r#"
        name = "walk"
        [hosts.client]
        [hosts.server]
        [paths.wlan0]
        between = ["client", "server"]
        [paths.wwan0]
        between = ["client", "server"]
        [[flows]]
        from = "client"
        to = "server"
        pattern = "interactive"
        duration = "10 s"
    "#;
    let scenario = Scenario::parse("walk.toml", text, &no_files).unwrap();
    let conditions = [
        ("network of wlan0", "wifi"),
        ("network of wwan0", "cellular"),
        ("campaign", "trains"),
        ("campaign run", "17/0"),
        ("server", "eu-1.example"),
    ];
    Meta {
        started_us: Some(started_us),
        conditions: conditions.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
        ..Meta::of(&scenario, World::Live, (transport, 1), 1)
    }
}

fn summary() -> Summary {
    Summary {
        ok: true,
        verdict: String::new(),
        flows: Vec::new(),
        subflows: Vec::new(),
        paths: Vec::new(),
        multipath: MultipathUse::default(),
        cpu: None,
        account: None,
        warnings: Vec::new(),
        expectations: Vec::new(),
    }
}

fn event(t_ms: u64, kind: EventKind, text: &str, detail: &[(&str, &str)]) -> Record {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Record::Event(Event {
        t_ns: t_ms * MS,
        kind,
        host: Some("client".to_owned()),
        path: None,
        text: text.to_owned(),
        detail: detail.iter().map(own).collect(),
    })
}

/// Returns the client's sample of a path at the end of a period of 100 ms.
fn sample(step: u64, path: &str, (sent, received): (u64, u64), backoff: u32) -> Record {
    Record::Subflow(Box::new(Subflow {
        t_ns: step * 100 * MS,
        span_ns: 100 * MS,
        flow: 0,
        stream: 0,
        direction: DataDirection::Up,
        side: SubflowEnd::Sender,
        subflow: u32::from(path != "wlan0"),
        path: path.to_owned(),
        state: "established".to_owned(),
        backup: path != "wlan0",
        bytes: 2_000,
        bytes_sent: sent,
        bytes_acked: received,
        bytes_received: received,
        srtt_us: 30_000,
        rttvar_us: 1_000,
        rto_us: 230_000,
        backoff,
        cwnd_packets: 10,
        ssthresh_packets: 10,
        in_flight_packets: 0,
        retransmissions: 0,
        mss_bytes: 1_420,
        sender_activity: None,
    }))
}

fn message(step: u64, direction: DataDirection, delay_ms: Option<u64>) -> Record {
    let due_ns = step * 100 * MS;
    Record::Message(Message {
        flow: 0,
        stream: u32::from(direction == DataDirection::Down),
        direction,
        number: step as u32,
        warm_up: false,
        request_bytes: 2_000,
        reply_bytes: 750,
        due_ns,
        sent_ns: Some(due_ns),
        delivered_ns: None,
        answered_ns: delay_ms.map(|ms| due_ns + ms * MS),
        replied_ns: None,
    })
}

fn probe(step: u64, path: &str, round_trip_ms: Option<u64>) -> Record {
    let due_ns = step * 100 * MS;
    Record::Probe(Probe {
        flow: 1,
        path: path.to_owned(),
        number: step as u32,
        due_ns,
        sent_ns: Some(due_ns + MS),
        answered_ns: round_trip_ms.map(|ms| due_ns + (1 + ms) * MS),
    })
}

/// Returns a run of `steps` samples. The other path is used from `used_at`; the first one receives
/// until `heard_until`, and fails a second later.
fn run(transport: Transport, started_us: u64, steps: u64, used_at: u64) -> StoredRun {
    let heard_until = used_at + 10;
    let mut records = Vec::new();
    for step in 1..=steps {
        let received = step.min(heard_until) * 1_000;
        let backoff = u32::from(step + 1 == used_at) * 2;
        records.push(sample(step, "wlan0", (step * 1_000, received), backoff));
        let used = step.saturating_sub(used_at - 1) * 1_000;
        records.push(sample(step, "wwan0", (used, used), 0));
        let is_lost = step == used_at + 5;
        records.push(message(step, DataDirection::Up, (!is_lost).then_some(40)));
        let delay_ms = if step == used_at { 2_500 } else { 60 };
        records.push(message(step, DataDirection::Down, Some(delay_ms)));
    }
    let down_ms = (heard_until + 10) * 100;
    records.push(event(100, EventKind::Subflow, "subflow 0 first seen on wlan0", &[]));
    records.push(event(down_ms, EventKind::Link, "interface wlan0 is down", &[]));
    records.sort_by_key(|record| if let Record::Event(event) = record { event.t_ns } else { 0 });
    StoredRun {
        file: None,
        meta: Meta { duration_ns: steps * 100 * MS, ..meta(transport, started_us) },
        records,
        summary: Some(summary()),
        truncated: false,
        skipped: 0,
    }
}

/// Returns two runs of 10 s, of which the second began 20 ms later; the first has datagrams.
fn pair() -> Vec<StoredRun> {
    let mut first = run(Transport::Mptcp, START_US, 100, 40);
    for step in 0..100 {
        first.records.push(probe(step, "wlan0", (step < 60).then_some(25)));
        first.records.push(probe(step, "wwan0", Some(70)));
    }
    let mut second = run(Transport::Mpquic, START_US + 20_000, 100, 30);
    // The other run saw the same change at the same moment, by its own clock.
    for record in &mut second.records {
        let Record::Event(event) = record else { continue };
        if event.kind == EventKind::Link {
            event.t_ns = 5_980 * MS;
        }
        // The policy of Multipath QUIC makes the other path a regular one.
        event.path = None;
    }
    for record in &mut second.records {
        let Record::Subflow(sample) = record else { continue };
        sample.backup = sample.path == "wwan0" && sample.t_ns < 3_000 * MS;
    }
    vec![first, second]
}

fn page(runs: &[StoredRun]) -> String {
    mobile_round(runs, None)
}

/// Returns the rows of the table of events, without markup.
fn rows(page: &str) -> Vec<String> {
    let body = page.split("<tbody>").nth(1).unwrap().split("</tbody>").next().unwrap();
    let text = |row: &str| {
        let cells = row.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text);
        cells.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("|")
    };
    body.split("</tr>").map(text).filter(|row| !row.is_empty()).collect()
}

#[test]
fn a_page_has_the_figures_of_both_transports() {
    let page = page(&pair()).replace('\u{a0}', " ");
    for text in [
        "<h1>Mobile round 17/0 of trains</h1>",
        "server eu-1.example · wlan0 (Wi-Fi), wwan0 (cellular)",
        "Multipath TCP first used wwan0 at 4.0 s, during an RTO back-off of 2 on wlan0, last \
         received a packet on wlan0 at 5.0 s, had a longest delay of 40 ms up and 2.50 s down \
         and left 1 message without a reply.",
        "Multipath QUIC first used wwan0 at 3.0 s, during an RTO back-off of 2 on wlan0, last \
         received a packet on wlan0 at 4.0 s,",
        "wlan0 (Wi-Fi): 40 of 100 lost, median 25 ms",
        "wwan0 (cellular): 0 of 100 lost, median 70 ms",
        "Multipath TCP: 100 messages, median 40 ms, longest 40 ms, 1 without a reply",
        "Multipath QUIC on wwan0: 200 kB up, 0 B down",
        "Multipath TCP, client: RTO back-off, up to 2",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // The plots: delays up and down, datagrams, bytes, state.
    assert_eq!(page.matches("<svg class=\"timeline\"").count(), 5);
    assert_eq!(page.matches("role=\"img\" aria-label=\"").count(), 5);
}

#[test]
fn equal_changes_of_concurrent_runs_are_one_event() {
    let mut runs = pair();
    assert_eq!(
        rows(&page(&runs)),
        [
            "1|0.100 s|client|Multipath TCP|subflow 0 first seen on wlan0",
            "1|0.120 s|client|Multipath QUIC|subflow 0 first seen on wlan0",
            "2|6.000 s|client|all|interface wlan0 is down",
            "3|10.000 s|all|end of the test",
        ]
    );
    // Runs one after another each count from their own start.
    runs[1].meta.started_us = Some(START_US + 60_000_000);
    let page = page(&runs);
    assert!(page.contains("did not start together") && rows(&page)[1].contains("0.100 s"));
}

#[test]
fn switches_of_a_scheduler_for_one_reason_are_one_event() {
    let mut runs = vec![run(Transport::Mptcp, START_US, 100, 40)];
    for t_ms in [4_000, 4_100, 5_900, 9_500] {
        let detail = [("because rto", "2"), ("switches", "3"), ("to wwan0", "3")];
        runs[0].records.push(event(t_ms, EventKind::Scheduler, "3 switches", &detail));
    }
    let other = [("switches", "5"), ("to wwan0", "5")];
    runs[0].records.push(event(4_050, EventKind::Scheduler, "5 switches", &other));
    let rows = rows(&page(&runs));
    let found: Vec<_> = rows.iter().filter(|row| row.contains("scheduler")).collect();
    let text = "client|Multipath TCP|the scheduler left its preferred path: rto ";
    let expected = [
        format!("2|4.000 s|{text}|6 times until 5.900 s"),
        format!("4|9.500 s|{text}|2 times until 9.500 s"),
    ];
    assert_eq!(found, expected.iter().collect::<Vec<_>>());
}

#[test]
fn one_transport_and_no_datagrams_are_enough() {
    let runs = [run(Transport::Tcp, START_US, 100, 40)];
    let page = page(&runs);
    assert_eq!(page.matches("<svg class=\"timeline\"").count(), 4);
    assert!(!page.contains("datagrams") && page.contains("TCP first used"));
    assert!(rows(&page).last().unwrap().ends_with("|TCP|end of the test"));
}

#[test]
fn a_run_without_records_or_summary_has_a_page() {
    let empty = StoredRun {
        records: Vec::new(),
        summary: None,
        ..run(Transport::Mptcp, START_US, 100, 40)
    };
    let page = page(&[empty]);
    assert!(page.contains("Multipath TCP has no samples and no messages."));
    assert!(page.contains("no time series") && page.contains("the result has no summary"));
    let none = mobile_round(&[], None);
    assert!(none.contains("<h1>Mobile round</h1>") && none.contains("has no results"));
}

#[test]
fn texts_from_a_file_cannot_become_markup() {
    let mut runs = pair();
    let bad = "<img src=x onerror='alert(1)'>\"&\u{202e}";
    for run in &mut runs {
        for record in &mut run.records {
            if let Record::Subflow(sample) = record {
                sample.path = format!("{}{bad}", sample.path);
            } else if let Record::Event(event) = record {
                event.text = bad.to_owned();
                event.host = Some(bad.to_owned());
            }
        }
        run.meta.towpath = bad.to_owned();
        run.meta.flows[0].from = bad.to_owned();
        for value in run.meta.conditions.values_mut() {
            *value = bad.to_owned();
        }
    }
    let page = page(&runs);
    assert!(!page.contains("<img") && !page.contains("\u{202e}") && page.contains("&lt;img"));
}

#[test]
fn a_page_needs_no_script_and_no_inline_style_and_is_equal_twice() {
    let runs = pair();
    let first = page(&runs);
    assert!(!first.contains("<script") && !first.contains(" style="));
    assert!(first.contains("default-src 'none'") && !first.contains("script-src"));
    assert_eq!(first, page(&runs));
    let site = SiteFrame { navigation: "<nav>campaigns</nav>", style: "nav{}", live: None };
    let framed = mobile_round(&runs, Some(site));
    assert!(framed.contains("<nav>campaigns</nav>") && framed.contains("form-action 'self'"));
}

#[test]
fn a_long_round_has_a_small_page() {
    let mut runs = vec![
        run(Transport::Mptcp, START_US, 3_000, 1_500),
        run(Transport::Mpquic, START_US + 7_000, 3_000, 1_400),
    ];
    for (number, record) in runs.iter_mut().flat_map(|run| &mut run.records).enumerate() {
        let noise = (number as u64).wrapping_mul(6_364_136_223_846_793_005) >> 33;
        if let Record::Message(message) = record {
            message.answered_ns = Some(message.due_ns + noise);
        } else if let Record::Subflow(sample) = record {
            sample.bytes = noise % 50_000;
            sample.srtt_us = noise as u32 % 700_000 + 1;
            sample.backoff = noise as u32 % 3;
        }
    }
    for step in 0..3_000 {
        for path in ["wlan0", "wwan0"] {
            let is_lost = step % 3 == 0;
            runs[0].records.push(probe(step, path, (!is_lost).then_some(20 + step % 80)));
        }
    }
    for t_ms in 0..4_000 {
        let text = format!("path {t_ms} on wlan0 is a backup now");
        runs[1].records.push(event(t_ms * 60, EventKind::Subflow, &text, &[]));
    }
    let page = page(&runs);
    assert!(page.len() < 700_000, "{} bytes", page.len());
    assert!(page.contains("more events are not shown"));
    assert!(rows(&page).last().unwrap().contains("end of the test"));
}

#[test]
fn times_and_counts_of_a_damaged_file_cannot_panic() {
    let mut runs = pair();
    for (number, record) in runs.iter_mut().flat_map(|run| &mut run.records).enumerate() {
        let extreme = [0, u64::MAX, 1, u64::MAX / 2][number % 4];
        if let Record::Subflow(sample) = record {
            (sample.t_ns, sample.span_ns, sample.bytes) = (extreme, extreme, u64::MAX);
        } else if let Record::Message(message) = record {
            (message.due_ns, message.answered_ns) = (extreme, Some(extreme / 3));
        } else if let Record::Probe(probe) = record {
            (probe.due_ns, probe.sent_ns, probe.answered_ns) = (extreme, Some(extreme), Some(1));
        } else if let Record::Event(event) = record {
            event.t_ns = extreme;
        }
    }
    for duration_ns in [0, 1, u64::MAX] {
        for run in &mut runs {
            run.meta.duration_ns = duration_ns;
            run.meta.sample_ns = duration_ns;
            run.meta.started_us = Some(duration_ns);
        }
        assert!(page(&runs).contains("</html>"));
        runs[0].summary = None;
    }
}
