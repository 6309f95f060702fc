//! The page: self-contained, well-formed, complete, and safe for any result file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use towpath_report::{Comparison, html};
use towpath_result::store::StoredRun;
use towpath_result::{
    Counter, DatagramRow, EmulatorTiming, FlowMultipathUse, FlowSummary, Interval, Message,
    MessageStats, MetaFlow, Probe, Record, Stall, Warning,
};
use towpath_scenario::{DataDirection, Transport, World};

use common::{Plan, fade, handover, own_stack, pair, path, repeated, run, three_paths};

/// Returns the page without script and style, whose text is not markup.
fn markup(page: &str) -> String {
    let mut out = String::new();
    let mut remaining = page;
    while let Some(start) = ["<script", "<style"].iter().filter_map(|tag| remaining.find(tag)).min()
    {
        let (before, element) = remaining.split_at(start);
        out.push_str(before);
        let end = if element.starts_with("<script") { "</script>" } else { "</style>" };
        remaining = &element[element.find(end).unwrap() + end.len()..];
    }
    out + remaining
}

/// Fails unless every element is closed in order and every attribute quoted.
fn assert_well_formed(page: &str) {
    let markup = markup(page);
    let mut open: Vec<String> = Vec::new();
    for part in markup.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("tag without end: {part}"));
        assert!(!text.contains('>'), "`>` in text: {text}");
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "after {open:?}");
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in <{tag}>");
        if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap().to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

fn assert_self_contained(page: &str) {
    let page = page.replace("http://www.w3.org/2000/svg", ""); // a name, not an address
    for reference in
        ["http:", "https:", "src=", "href=", "url(", "@import", "//cdn", "fetch(", "import("]
    {
        assert!(!page.contains(reference), "{reference}");
    }
    // The page's policy names its style and its script; inline attributes are not permitted.
    assert_eq!(page.matches("http-equiv=\"Content-Security-Policy\"").count(), 1);
    for forbidden in [" style=", " onload=", " onclick=", "unsafe-"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

/// Returns each chart's SVG, from its opening tag to the end of its figure.
fn charts(page: &str) -> Vec<&str> {
    let starts = page.match_indices("<svg class=\"plot").map(|(at, _)| &page[at..]);
    starts.map(|chart| &chart[..chart.find("</figure>").unwrap()]).collect()
}

#[test]
fn the_page_is_well_formed_and_loads_nothing_external() {
    for runs in [pair(), repeated(), vec![run(&three_paths())], Vec::new()] {
        let page = html(&runs);
        assert_well_formed(&page);
        assert_self_contained(&page);
    }
}

#[test]
fn the_comparison_is_well_formed_and_loads_nothing_external() {
    let mut hostile = repeated();
    for run in &mut hostile {
        run.meta.kernel = "<b a='\"'>&".to_owned();
        run.meta.conditions.insert("<i>".to_owned(), "</table>".to_owned());
        run.file = Some("<script>".to_owned());
    }
    for runs in [pair(), repeated(), hostile, vec![run(&three_paths())], Vec::new()] {
        let page = Comparison::of(&runs, 1).html();
        assert_well_formed(&page);
        assert_self_contained(&page);
    }
    let page = Comparison::of(&repeated(), 1).html();
    // Boxes and ratios of each metric; a dot for each run.
    let boxes = page.matches("class=\"box\"").count();
    assert!(boxes >= 2 * 4, "{boxes} boxes");
    assert!(page.matches("<circle cx").count() >= repeated().len());
}

#[test]
fn every_chart_has_units_and_a_description() {
    let page = html(&pair());
    let charts = charts(&page);
    assert_eq!(charts.len(), 3 + 2 * 6, "overview and small multiples, then six charts a run");
    for chart in charts {
        assert!(chart.contains("time, s</text>"), "{chart}");
        let unit = chart.split("<text class=\"unit\"").nth(1).unwrap();
        let units = [">Mbit/s<", ">ms<", ">packets<", ">kB<"];
        assert!(units.iter().any(|name| unit.contains(name)), "{unit}");
        assert!(chart.contains("role=\"img\" aria-label=\""));
        assert!(chart.matches("text-anchor=\"middle\"").count() > 3, "time ticks");
    }
    assert_eq!(page.matches("<figcaption>").count(), 15);
}

#[test]
fn transports_are_drawn_on_the_same_scale() {
    let page = html(&pair());
    let top = |chart: &str| {
        chart
            .split("text-anchor=\"end\">")
            .filter_map(|t| t.split('<').next())
            .last()
            .map(str::to_owned)
    };
    let goodput: Vec<_> =
        charts(&page).into_iter().filter(|c| c.contains(">Mbit/s<")).map(top).collect();
    assert_eq!(goodput.len(), 5);
    assert!(page.contains("Goodput of every transport"));
}

#[test]
fn a_report_of_two_transports_is_small_enough_to_mail() {
    let page = html(&pair());
    assert!(page.len() < 200_000, "{} bytes", page.len());
    let many_samples = Plan { sample_ms: 1, ..handover(Transport::Mptcp, 1) };
    let page = html(&[run(&many_samples)]);
    assert!(page.len() < 500_000, "{} bytes for 10,000 samples", page.len());
}

#[test]
fn the_numbers_behind_the_charts_are_in_the_page_once() {
    let page = html(&pair());
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let panels: serde_json::Value = serde_json::from_str(data).unwrap();
    let panels = panels.as_array().unwrap();
    assert_eq!(panels.len(), 3, "the comparison and two runs");
    assert_eq!(page.matches("data-panel=").count(), 3);
    for panel in panels {
        for series in
            panel["charts"].as_array().unwrap().iter().flat_map(|c| c["series"].as_array().unwrap())
        {
            assert_eq!(series["v"].as_array().unwrap().len(), 100);
        }
    }
}

/// Replaces every text field of a result.
fn poison(run: &mut StoredRun, text: &str) {
    let poisoned = || text.to_owned();
    run.file = Some(poisoned());
    let meta = &mut run.meta;
    for field in [
        &mut meta.run,
        &mut meta.scenario,
        &mut meta.description,
        &mut meta.scenario_toml,
        &mut meta.stack,
        &mut meta.towpath,
        &mut meta.kernel,
        &mut meta.congestion_control,
    ] {
        *field = poisoned();
    }
    meta.hosts = vec![poisoned()];
    meta.conditions = BTreeMap::from([(poisoned(), poisoned())]);
    for path in &mut meta.paths {
        (path.name, path.text) = (poisoned(), poisoned());
    }
    for flow in &mut meta.flows {
        (flow.from, flow.to, flow.pattern, flow.via) =
            (poisoned(), poisoned(), poisoned(), poisoned());
    }
    for event in &mut meta.timeline {
        (event.target, event.text) = (poisoned(), poisoned());
    }
    run.records.iter_mut().for_each(|record| poison_record(record, text));
    let summary = run.summary.as_mut().unwrap();
    summary.verdict = poisoned();
    summary.warnings = vec![Warning { text: poisoned(), hint: Some(poisoned()) }];
    summary.multipath.evidence = vec![poisoned()];
    summary.multipath.paths_used = vec![poisoned()];
    summary.multipath.fallback = Some(poisoned());
    summary.multipath.flows = [0, 1]
        .map(|flow| FlowMultipathUse {
            flow,
            connections: 1,
            used: false,
            fallback: Some(poisoned()),
            paths_used: vec![poisoned()],
        })
        .into();
    for flow in &mut summary.flows {
        flow.failure = Some(poisoned());
        flow.congestion_control = vec![poisoned()];
        flow.recoveries.iter_mut().for_each(|recovery| recovery.event = poisoned());
    }
    for subflow in &mut summary.subflows {
        (subflow.path, subflow.local, subflow.remote) = (poisoned(), poisoned(), poisoned());
    }
    for check in &mut summary.expectations {
        (check.text, check.measured) = (poisoned(), poisoned());
    }
}

/// Datagrams at a constant rate: ten each 100 ms, of which one is lost in every second row.
fn constant_rate_rows() -> impl Iterator<Item = DatagramRow> {
    (1..=20_u64).map(|row| DatagramRow {
        t_ns: row * 100_000_000,
        span_ns: 100_000_000,
        flow: 0,
        direction: DataDirection::Up,
        path: "wifi".to_owned(),
        sent: Some(10),
        unsent: 0,
        received: 10 - row % 2,
        lost: Some(row % 2),
        duplicated: 0,
        out_of_order: 0,
        jitter_ns: Some(1_000_000),
        variation_mean_ns: Some(2_000_000),
        variation_max_ns: Some(5_000_000),
    })
}

#[test]
fn datagrams_at_a_constant_rate_have_a_chart_with_their_losses() {
    let mut runs = pair();
    runs[0].records.extend(constant_rate_rows().map(Record::Datagrams));
    let page = html(&runs);
    assert_well_formed(&page);
    assert!(page.contains("interarrival jitter (RFC 3550)"), "no such chart");
    assert!(page.contains("delay over the smallest, largest"), "no such line");
    assert!(!html(&pair()).contains("interarrival jitter"), "a chart of nothing");
}

fn poison_record(record: &mut Record, text: &str) {
    let poisoned = || text.to_owned();
    match record {
        Record::Subflow(subflow) => (subflow.path, subflow.state) = (poisoned(), poisoned()),
        Record::Link(link) => link.path = poisoned(),
        Record::Account(account) => account.path = poisoned(),
        Record::Probe(probe) => probe.path = poisoned(),
        Record::Datagrams(row) => row.path = poisoned(),
        Record::Event(event) => {
            (event.host, event.path, event.text) = (Some(poisoned()), Some(poisoned()), poisoned());
            event.detail = BTreeMap::from([(poisoned(), poisoned())]);
        }
        Record::Counter(counter) => (counter.host, counter.name) = (poisoned(), poisoned()),
        Record::Interface(i) => (i.host, i.interface) = (poisoned(), poisoned()),
        Record::Capture(connection) => {
            connection.fallback = Some(poisoned());
            for subflow in &mut connection.subflows {
                (subflow.path, subflow.state) = (poisoned(), poisoned());
            }
        }
        Record::Sequence(sequence) => sequence.paths = vec![poisoned(); 3],
        Record::Meta(_)
        | Record::Interval(_)
        | Record::Message(_)
        | Record::Timing(_)
        | Record::Summary(_) => {}
    }
}

#[test]
fn text_of_a_result_never_becomes_markup() {
    for text in [
        "</script><script>alert(1)</script>",
        "\"><img onerror=alert(1)>",
        "'\"--><svg/onload=alert(1)>",
        "</style></title></code></pre>",
    ] {
        let mut runs = pair();
        for run in &mut runs {
            run.records.extend(probes().take(4).map(Record::Probe));
            poison(run, text);
        }
        let page = html(&runs);
        assert_well_formed(&page);
        assert_eq!(page.matches("<script").count(), 2, "{text}");
        for injected in ["<img", "<svg/", "alert(1)>", "<script>alert"] {
            assert!(!page.contains(injected), "{injected} of {text}");
        }
    }
}

/// Returns a request each 100 ms. Those between 3 s and 6 s wait for the end of an outage, and one
/// in ten of the others is never answered.
fn requests(direction: DataDirection) -> impl Iterator<Item = Message> {
    (0..100_u64).map(move |number| {
        let due_ns = number * 100_000_000;
        let outage_ns = 3_000_000_000..6_000_000_000;
        let arrived_ns = if outage_ns.contains(&due_ns) { outage_ns.end } else { due_ns };
        Message {
            flow: 0,
            stream: 0,
            direction,
            number: number as u32,
            warm_up: false,
            request_bytes: 2_000,
            reply_bytes: 750,
            due_ns,
            sent_ns: Some(due_ns),
            delivered_ns: Some(arrived_ns + 15_000_000),
            answered_ns: (number % 10 > 0).then_some(arrived_ns + 31_000_000),
            replied_ns: None,
        }
    })
}

/// Returns a datagram each 100 ms over two paths; those of Wi-Fi between 3 s and 6 s are lost.
fn probes() -> impl Iterator<Item = Probe> {
    (0..200_u64).map(|index| {
        let (path, number) = (if index % 2 == 0 { "wifi" } else { "cellular" }, index / 2);
        let due_ns = number * 100_000_000;
        let lost = path == "wifi" && (3_000_000_000..6_000_000_000).contains(&due_ns);
        Probe {
            flow: 1,
            path: path.to_owned(),
            number: number as u32,
            due_ns,
            sent_ns: Some(due_ns),
            answered_ns: (!lost).then_some(due_ns + 30_000_000),
        }
    })
}

#[test]
fn datagrams_over_paths_have_a_chart_of_their_round_trips_with_those_that_were_lost() {
    let mut runs = pair();
    assert!(!html(&runs).contains("RTT of each path"));
    runs[1].records.extend(probes().map(Record::Probe));
    let page = html(&runs);
    assert_well_formed(&page);
    assert_self_contained(&page);
    for text in ["<strong>RTT of each path</strong>", "wifi: lost", "RTT distribution of each path"]
    {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("cellular: lost"));
}

#[test]
fn messages_have_charts_of_delays_and_their_distribution() {
    let plain = html(&pair());
    assert!(!plain.contains("Reply delay") && !plain.contains("Replies within"));
    let mut runs = pair();
    runs[0].records.extend(requests(DataDirection::Up).map(Record::Message));
    let both_directions = requests(DataDirection::Up).chain(requests(DataDirection::Down));
    runs[1].records.extend(both_directions.map(Record::Message));
    let page = html(&runs);
    assert_well_formed(&page);
    assert_self_contained(&page);
    for title in [
        "Reply delay, every transport, requests up",
        "Reply delay, every transport, requests down",
        "<strong>Reply delay</strong>",
        "Replies within, every transport, requests up",
        "<strong>Replies within</strong>",
    ] {
        assert!(page.contains(title), "{title}");
    }
    assert!(charts(&page).iter().any(|chart| chart.contains("delay, ms")));
    // Silence between messages does not count as a stall.
    assert!(page.contains("class=\"quiet\""));
    for flow in runs.iter_mut().filter_map(|run| run.summary.as_mut()).flat_map(|s| &mut s.flows) {
        flow.messages = Some(MessageStats::default());
    }
    assert!(!html(&runs).contains("class=\"quiet\""));
}

#[test]
fn hostile_numbers_and_huge_names_do_not_panic() {
    let mut runs = pair();
    runs[1].records.extend(probes().map(Record::Probe));
    runs[1].records.extend(constant_rate_rows().map(Record::Datagrams));
    poison(&mut runs[0], &"name ".repeat(2_000));
    for record in &mut runs[1].records {
        match record {
            Record::Interval(i) => (i.t_ns, i.span_ns, i.bytes) = (u64::MAX, 0, u64::MAX),
            Record::Subflow(s) => (s.t_ns, s.bytes, s.srtt_us) = (u64::MAX, u64::MAX, u32::MAX),
            Record::Link(l) => {
                (l.t_ns, l.backlog_bytes, l.dropped_down_packets) = (u64::MAX, u64::MAX, u64::MAX);
            }
            Record::Account(a) => (a.t_ns, a.parts.capacity_bytes) = (u64::MAX, u64::MAX),
            Record::Event(e) => e.t_ns = u64::MAX,
            Record::Counter(Counter { before, .. }) => *before = u64::MAX,
            Record::Probe(p) => (p.due_ns, p.answered_ns) = (u64::MAX, Some(0)),
            Record::Datagrams(row) => {
                (row.t_ns, row.span_ns, row.lost) = (u64::MAX, 0, Some(u64::MAX));
                (row.jitter_ns, row.variation_max_ns) = (Some(u64::MAX), Some(u64::MAX));
            }
            Record::Meta(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Message(_)
            | Record::Interface(_)
            | Record::Timing(_)
            | Record::Summary(_) => {}
        }
    }
    let huge_delays = requests(DataDirection::Up).map(|message| {
        Record::Message(Message { due_ns: 0, answered_ns: Some(u64::MAX), ..message })
    });
    runs[1].records.extend(huge_delays);
    let summary = runs[1].summary.as_mut().unwrap();
    summary.flows[0].goodput_bps = f64::INFINITY;
    summary.subflows.iter_mut().for_each(|subflow| subflow.bytes = u64::MAX);
    assert_well_formed(&html(&runs));
    towpath_report::table(&runs, 100, true);
    runs[1].meta.sample_ns = u64::MAX;
    assert_well_formed(&html(&runs));
}

#[test]
fn a_stored_result_becomes_a_page() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../towpath-result/tests/fixtures");
    let file = std::fs::File::open(format!("{fixtures}/result-v1.jsonl")).unwrap();
    let result = towpath_result::store::read_run(std::io::BufReader::new(file)).unwrap();
    let page = html(&[StoredRun::new(result, Some("result-v1.jsonl".to_owned()))]);
    assert_well_formed(&page);
    assert!(page.contains("<code>result-v1.jsonl</code>"));
    assert!(page.contains("Delivered 34.1 MB at 27.3 Mbit/s over wifi and cellular"));
}

#[test]
fn both_directions_have_their_own_charts() {
    let mut run_of_both = run(&handover(Transport::Mptcp, 1));
    let mut down = run_of_both.records.clone();
    for record in &mut down {
        if let Record::Interval(interval) = record {
            interval.direction = DataDirection::Down;
        } else if let Record::Subflow(subflow) = record {
            subflow.direction = DataDirection::Down;
        }
    }
    run_of_both.records.extend(down);
    let page = html(&[run_of_both]);
    assert_eq!(charts(&page).len(), 2 * 6);
    assert!(page.contains("Goodput by subflow, up") && page.contains("Goodput by subflow, down"));
}

#[test]
fn edge_cases_give_a_page() {
    let plan = |duration_ms, sample_ms, streams| {
        run(&Plan { duration_ms, sample_ms, streams, ..handover(Transport::Mptcp, 1) })
    };
    let mut empty = plan(0, 100, 1);
    empty.records.clear();
    empty.summary = None;
    let page = html(&[empty]);
    assert_well_formed(&page);
    assert!(page.contains("The result contains no time series"));
    assert!(page.contains("Check before you trust this"));
    let many_streams = Plan { streams: 20, duration_ms: 2_000, ..handover(Transport::Mptcp, 1) };
    for run in [plan(0, 100, 1), plan(100, 100, 1), run(&many_streams)] {
        assert_well_formed(&html(&[run]));
    }
    assert!(
        html(&[run(&many_streams)]).contains("wifi × 20"),
        "40 subflows are drawn path by path"
    );
}

#[test]
fn a_timeline_with_many_events_keeps_every_event_in_the_page() {
    let page = html(&[fade()]);
    assert_well_formed(&page);
    assert!(
        charts(&page).iter().all(|chart| chart.matches("<g data-at=").count() == 3),
        "A, B, its end"
    );
    for step in 0..40 {
        assert!(page.contains(&format!("cellular rate {} kbit/s", 20_000 - step * 400)));
    }
}

#[test]
fn a_path_keeps_its_colour_in_every_run() {
    let mut reversed = handover(Transport::Mptcp, 1);
    reversed.paths.reverse();
    let mut satellite_only = handover(Transport::Quic, 1);
    satellite_only.paths = vec![path("satellite", 10.0, 500.0, 100.0)];
    let page = html(&[run(&handover(Transport::Tcp, 1)), run(&reversed), run(&satellite_only)]);
    for (name, class) in [("wifi", "p0"), ("cellular", "p1"), ("satellite", "p2")] {
        for (at, _) in page.match_indices(&format!("data-name=\"{name}\"")) {
            let start = page[..at].rfind("<li").unwrap();
            assert!(page[start..at].contains(&format!("class=\"{class} ")), "{}", &page[start..at]);
        }
    }
}

#[test]
fn our_own_stack_has_decision_charts_and_the_kernel_has_none() {
    let page = html(&[own_stack()]);
    assert_well_formed(&page);
    assert_self_contained(&page);
    let titles =
        ["Reorder buffer", "Receive window full", "Reinjected on another subflow", "Share of each"];
    for title in titles {
        assert!(page.contains(&format!("<strong>{title}")), "{title}");
    }
    assert!(page.contains("<h3>Stack internals</h3>"));
    assert!(page.contains("M2 slowed wifi down"), "the path is named");
    assert!(page.contains("<li class=\"again0 band s\""), "the cause has a colour");
    assert!(page.contains("4000 switches of the scheduler"));
    let kernel = html(&[run(&handover(Transport::Mptcp, 1))]);
    for title in titles.iter().chain(&["Stack internals"]) {
        assert!(!kernel.contains(title), "{title}");
    }
}

#[test]
fn a_stack_at_one_end_shows_the_data_of_that_end() {
    let mut run = own_stack();
    for record in &mut run.records {
        if let Record::Interval(interval) = record
            && let Some(state) = &mut interval.connection
        {
            (state.reorder_bytes, state.receive_buffer_bytes) = (None, None);
        }
    }
    let page = html(&[run]);
    assert!(!page.contains("<strong>Reorder buffer"));
    assert!(page.contains("Receive window full"));
}

#[test]
fn decisions_of_every_sample_are_one_line_between_two_events_of_the_timeline() {
    let page = html(&[own_stack()]);
    let rows: Vec<&str> = page.split("<tr class=\"k-scheduler\">").skip(1).collect();
    assert_eq!(rows.len(), 2, "before and after Wi-Fi went down");
    let row = rows.first().unwrap();
    assert!(row.contains("0.100–2.900 s"), "{row:.300}");
    assert!(row.contains("1160 switches between subflows, after 2.00 kB on average"), "{row:.300}");
    assert!(page.contains("Events (104 events)"), "all of them are counted");
}

#[test]
fn an_older_result_without_causes_is_drawn_without_them() {
    let mut run = own_stack();
    for record in &mut run.records {
        let Record::Interval(interval) = record else { continue };
        let state = r#"{"reorder_bytes":5000,"receive_buffer_bytes":1000000,"reinjected_bytes":70000,
            "discarded_bytes":0,"window_blocked_ns":0,"penalisations":0}"#;
        interval.connection = Some(serde_json::from_str(state).unwrap());
    }
    let page = html(&[run]);
    assert!(page.contains("<span>retransmitted or reinjected</span>"));
    assert!(page.contains("the receive buffer has 1.00 MB"), "too far above to be drawn");
}

/// Adds a second transfer, from another host, with `1 / times` of the first one's bytes.
fn add_competing_flow(run: &mut StoredRun, divisor: u64) {
    let mut competing: Vec<Record> = Vec::new();
    for record in &run.records {
        if let Record::Interval(interval) = record {
            let bytes = interval.bytes / divisor;
            competing.push(Record::Interval(Interval { flow: 1, bytes, ..interval.clone() }));
        }
    }
    run.records.extend(competing);
    let first = run.meta.flows.first().unwrap().clone();
    let flow = MetaFlow { flow: 1, from: "rival".to_owned(), ..first };
    run.meta.flows.push(flow);
    if let Some(summary) = &mut run.summary {
        let first = summary.flows.first().unwrap().clone();
        let goodput_bps = first.goodput_bps / divisor as f64;
        summary.flows.push(FlowSummary { flow: 1, goodput_bps, ..first });
    }
}

/// Returns the page up to its numbers.
fn before_data(page: &str) -> &str {
    page.split("id=\"data\"").next().unwrap()
}

#[test]
fn a_spike_is_clipped_with_a_mark_and_its_value() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    let spiked = one.records.iter_mut().find_map(|record| {
        let Record::Interval(interval) = record else { return None };
        Some(interval).filter(|interval| interval.t_ns > 1_500_000_000)
    });
    let interval = spiked.unwrap();
    interval.bytes *= 9;
    let rate = interval.bytes as f64 * 8.0 / (interval.span_ns as f64 / 1e9) / 1e6;
    let page = html(&[one]);
    let chart = charts(&page).into_iter().find(|chart| chart.contains(">Mbit/s<")).unwrap();
    assert_eq!(chart.matches("class=\"peak\"").count(), 1, "{chart}");
    assert!(chart.contains(&format!("▲ {rate:.0}</text>")), "{rate}: {chart}");
    assert!(
        before_data(&page)
            .contains(&format!("▲ goes beyond the axis, to {rate:.0}\u{a0}Mbit/s at"))
    );
    let calm = html(&[run(&handover(Transport::Mptcp, 1))]);
    assert!(!calm.contains("class=\"peak\"") && !calm.contains("goes beyond the axis"));
}

#[test]
fn silence_after_the_last_flow_is_not_shaded() {
    let mut one = run(&handover(Transport::Tcp, 1));
    assert!(html(std::slice::from_ref(&one)).contains("nothing delivered"));
    // The connection had ended before the silence, so the summary contains no stall.
    one.summary.as_mut().unwrap().flows.iter_mut().for_each(|flow| flow.stall = Stall::default());
    assert!(!html(&[one]).contains("nothing delivered"));
}

#[test]
fn quic_is_not_labelled_as_kernel_and_undelivered_data_is_grey() {
    let mut runs: Vec<StoredRun> =
        [Transport::Mptcp, Transport::Quic].map(|transport| run(&handover(transport, 1))).into();
    let mut own_stack_run = runs[0].clone();
    own_stack_run.meta.stack = "towpath".to_owned();
    runs.push(own_stack_run);
    let page = html(&runs);
    assert!(page.contains("<h2>mptcp kernel</h2>") && page.contains("<h2>quic</h2>"), "{page}");
    assert!(!page.contains("quic kernel"));
    assert!(page.contains("<dt>stack</dt><dd>a QUIC library over the kernel\u{2019}s UDP</dd>"));
    assert!(page.contains("nothing delivered") && !page.contains("<span>nothing arrived"));
}

#[test]
fn a_headline_never_compares_worlds_and_reports_machine_limits() {
    let mut runs = pair();
    let simulated = pair().into_iter().map(|mut run| {
        run.meta.world = World::Sim;
        run
    });
    runs.extend(simulated);
    let reason = "other work used 85 % of the processors".to_owned();
    let timing =
        EmulatorTiming { unreliable: true, reason: Some(reason), ..EmulatorTiming::default() };
    runs[0].records.push(Record::Timing(timing));
    let page = html(&runs);
    let lines: Vec<&str> = page.split("<p class=\"headline\">").skip(1).collect();
    let lines: Vec<&str> = lines.iter().map(|line| line.split('<').next().unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("In emu: ") && !lines[0].contains("sim"), "{lines:?}");
    assert!(lines[1].starts_with("In sim: ") && !lines[1].contains("emu"), "{lines:?}");
    let warning =
        "The timing of 1 of 2 runs is unreliable: other work used 85 % of the processors.";
    assert!(lines[0].ends_with(warning) && !lines[1].contains("unreliable"), "{lines:?}");
    assert!(page.contains("emu and sim · "));
}

#[test]
fn a_live_run_prints_a_valid_rerun_command() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    one.meta.world = World::Live;
    one.meta.conditions.insert("server".to_owned(), "lab.example".to_owned());
    let page = html(&[one.clone()]);
    let pattern = &one.meta.flows[0].pattern;
    let command = format!("towpath measure lab.example {pattern} --transport mptcp --time 10s");
    assert!(page.contains(&command) && !page.contains("towpath run "), "{page}");
    one.meta.conditions.clear();
    one.meta.scenario_toml = "# no scenario: towpath exec -- curl\n".to_owned();
    let page = html(&[one]);
    assert!(page.contains("<code>towpath exec -- curl</code>") && !page.contains("towpath run "));
}

#[test]
fn shares_of_competing_transfers_are_printed_and_drawn() {
    let mut runs = pair();
    for run in &mut runs {
        add_competing_flow(run, 3);
    }
    let page = html(&runs);
    let headline = page.split("<p class=\"headline\">").nth(1).unwrap().split('<').next().unwrap();
    assert!(headline.starts_with("Shares: "), "{headline}");
    assert!(headline.contains("(75 %)") && headline.contains("(25 %)"), "{headline}");
    // (3 + 1)² / (2 · (9 + 1))
    assert_eq!(headline.matches("Jain\u{2019}s index 0.800").count(), 2, "{headline}");
    assert_eq!(page.matches(": share of each flow</strong>").count(), 2);
    assert_eq!(page.matches("<strong>Goodput of each flow</strong>").count(), 2);
}

#[test]
fn a_small_flow_is_drawn_on_a_scale_of_its_own() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    add_competing_flow(&mut one, 1_000);
    let page = html(&[one]);
    let title = "<strong>Goodput of small flows</strong>";
    let small = page.split(title).nth(1).unwrap();
    assert!(small.split("</figure>").next().unwrap().contains(">kbit/s<"), "{small}");
}

#[test]
fn the_proof_of_several_flows_names_those_without_multipath() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    add_competing_flow(&mut one, 3);
    let multipath = &mut one.summary.as_mut().unwrap().multipath;
    let paths_used = multipath.paths_used.clone();
    let used =
        FlowMultipathUse { connections: 1, used: true, paths_used, ..FlowMultipathUse::default() };
    let fallback = Some("the peer has no key".to_owned());
    let unused = FlowMultipathUse { flow: 1, connections: 1, fallback, ..Default::default() };
    (multipath.used, multipath.fallback) = (false, unused.fallback.clone());
    multipath.flows = vec![used, unused];
    let page = html(&[one, run(&handover(Transport::Tcp, 1))]);
    let proof = page.split("Was multipath used?</h3>").nth(1).unwrap();
    assert!(proof.starts_with("<p>Partly: some flows used it, others did not.</p>"), "{proof}");
    let table = proof.split("</table>").next().unwrap();
    assert!(table.contains("<td>no</td><td></td><td>the peer has no key</td>"), "{table}");
    assert!(table.contains("<td>yes</td><td>wifi, cellular</td>"), "{table}");
    assert!(page.contains("partly"), "the overview says no");
}

#[test]
fn key_results_precede_the_charts_and_the_rest_is_collapsed() {
    let page = html(&pair());
    let before_fold = page.split("more metrics</summary>").next().unwrap();
    let rows = before_fold.matches("<th scope=\"row\"").count();
    assert!((6..=24).contains(&rows), "{rows} rows before the fold");
    assert!(before_fold.contains(">Goodput</th>") && !before_fold.contains(">Connect time</th>"));
    assert!(page.contains(">Connect time</th>"));
    assert!(page.contains("arrow keys move the cursor"));
}

#[test]
fn an_unmeasured_round_trip_is_a_gap_and_not_0() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    for record in &mut one.records {
        if let Record::Subflow(subflow) = record {
            subflow.srtt_us = if subflow.t_ns > 6_000_000_000 { 0 } else { 600_000 };
        }
    }
    for subflow in &mut one.summary.as_mut().unwrap().subflows {
        subflow.srtt_us = 0;
    }
    let page = html(&[one]);
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let panels: serde_json::Value = serde_json::from_str(data).unwrap();
    let values: Vec<Option<f64>> = panels[0]["charts"][1]["series"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|series| series["v"].as_array().unwrap().iter().map(serde_json::Value::as_f64))
        .collect();
    assert!(
        values.contains(&Some(600.0)) && values.contains(&None) && !values.contains(&Some(0.0))
    );
    assert!(!before_data(&page).contains("<td class=\"n\">0 s</td>"), "a last srtt of nothing");
}

#[test]
fn a_second_subflow_on_a_path_has_a_different_style() {
    let mut one = run(&handover(Transport::Mptcp, 1));
    for record in &mut one.records {
        if let Record::Subflow(subflow) = record {
            "wifi".clone_into(&mut subflow.path);
        }
    }
    let page = html(&[one]);
    assert!(page.contains("p0 band o0") && page.contains("p0 band o1"), "{page}");
    assert!(page.contains("p0 line o0") && page.contains("p0 line o1"));
}

#[test]
fn untrusted_stored_results_do_no_harm() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/result");
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        towpath_report::fuzzing::result(&std::fs::read(entry.unwrap().path()).unwrap()[..]);
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}
