//! Metrics of a handover from a connection's first path to another one, by name.

use std::collections::BTreeMap;

use towpath_result::metrics::handover::{Handover, SwitchReason};
use towpath_result::{FlowSummary, Record};
use towpath_scenario::DataDirection;

/// Adds the handover metrics of the first flow that has several paths to `metrics`:
///
/// - `handover.used`: 1 when data went to another path than the first one, else 0. If 0, further
///   handover metrics are absent.
/// - `handover.start`: first time of that, in seconds since the start of the traffic.
/// - `handover.duration`: from then until the last packet that came over the first path;
///   `handover.duration.sent`: until the last one that was sent on it. Negative if the first path
///   had stopped before. `handover.abrupt` is 1 if `handover.duration` is negative.
/// - `reason.rto`, `reason.rtt-threshold`, `reason.rto-threshold`, `reason.other`, and of Multipath
///   QUIC `reason.in-flight` and `reason.silent`: 1 for the reason that the scheduler or path
///   policy gives, else 0. `inferred.…`: the same as the paper infers it, from the first path's state
///   at the next poll.
/// - `flow.N.duration`; `flow.N.up.delay.max`, `flow.N.down.delay.p50` and so on of messages, by
///   direction of the requests. With the suffix `.ratio`: the same divided by that of flow 0. This
///   compares two flows under the same conditions, at once or one after the other.
pub(crate) fn handover_metrics(records: &[Record], metrics: &mut BTreeMap<String, f64>) {
    for record in records {
        if let Record::Summary(summary) = record {
            summary.flows.iter().for_each(|flow| add_delays(flow, metrics));
        }
    }
    let meta = records.iter().find_map(|record| {
        let Record::Meta(meta) = record else { return None };
        Some(&**meta)
    });
    let Some(handover) = meta.and_then(|meta| Handover::of(meta, records)) else { return };
    let is_used = matches!(handover, Handover::Used(_));
    metrics.insert("handover.used".to_owned(), f64::from(u8::from(is_used)));
    let Handover::Used(times) = handover else { return };
    metrics.insert("handover.start".to_owned(), seconds(times.start_ns));
    let seconds_until = |end: Option<u64>| seconds(end.unwrap_or(0)) - seconds(times.start_ns);
    let duration = seconds_until(times.last_received_ns);
    metrics.insert("handover.duration".to_owned(), duration);
    metrics.insert("handover.duration.sent".to_owned(), seconds_until(times.last_sent_ns));
    metrics.insert("handover.abrupt".to_owned(), f64::from(u8::from(duration < 0.0)));
    if let Some(reason) = times.stated_reason {
        add_reason("reason", reason, metrics);
    }
    if let Some(guess) = times.inferred_reason {
        add_reason("inferred", guess, metrics);
    }
}

fn add_delays(flow: &FlowSummary, metrics: &mut BTreeMap<String, f64>) {
    add_with_ratio(flow.flow, "duration", seconds(flow.duration_ns), metrics);
    let Some(messages) = flow.messages.as_ref().filter(|messages| messages.count > 0) else {
        return;
    };
    let direction = match flow.direction {
        DataDirection::Down => "down",
        DataDirection::Up | DataDirection::Both => "up",
    };
    let percentiles = [
        ("p50", messages.delay.p50_ns),
        ("p90", messages.delay.p90_ns),
        ("p99", messages.delay.p99_ns),
        ("max", messages.delay.max_ns),
    ];
    for (name, ns) in percentiles {
        add_with_ratio(flow.flow, &format!("{direction}.delay.{name}"), seconds(ns), metrics);
    }
}

/// Adds a flow's metric, and its ratio to that of flow 0, which comes first.
fn add_with_ratio(flow: u32, name: &str, value: f64, metrics: &mut BTreeMap<String, f64>) {
    let flow_0_value = metrics.get(&format!("flow.0.{name}")).copied();
    if let Some(flow_0_value) = flow_0_value.filter(|flow_0_value| flow > 0 && *flow_0_value > 0.0)
    {
        metrics.insert(format!("flow.{flow}.{name}.ratio"), value / flow_0_value);
    }
    metrics.insert(format!("flow.{flow}.{name}"), value);
}

fn add_reason(prefix: &str, reason: SwitchReason, metrics: &mut BTreeMap<String, f64>) {
    for candidate in SwitchReason::ALL {
        let value = f64::from(u8::from(candidate == reason));
        metrics.insert(format!("{prefix}.{}", candidate.name()), value);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use towpath_result::{Event, EventKind, Meta, ReinjectionCause, Subflow, SubflowEnd};
    use towpath_scenario::Transport;

    use super::*;

    fn meta(transport: Transport) -> Record {
        let text = r#"
            name = "leaving"
            [hosts.phone]
            [hosts.server]
            [paths.wifi]
            between = ["phone", "server"]
            [paths.cellular]
            between = ["phone", "server"]
            [[flows]]
            from = "phone"
            to = "server"
            pattern = "interactive"
        "#;
        let scenario = towpath_scenario::Scenario::parse("leaving.toml", text, &|_| {
            Err(std::io::ErrorKind::NotFound.into())
        })
        .expect("a scenario");
        let world = towpath_scenario::World::Sim;
        Record::Meta(Box::new(Meta::of(&scenario, world, (transport, 1), 1)))
    }

    /// Returns a sample of the phone's subflow after `ms`, with bytes sent, acknowledged and
    /// received.
    fn sample(ms: u64, path: &str, [sent, acked, received]: [u64; 3]) -> Subflow {
        Subflow {
            t_ns: ms * 1_000_000,
            span_ns: 100_000_000,
            flow: 0,
            stream: 0,
            direction: DataDirection::Up,
            side: SubflowEnd::Sender,
            subflow: u32::from(path != "wifi"),
            path: path.to_owned(),
            state: "established".to_owned(),
            backup: path != "wifi",
            bytes: 0,
            bytes_sent: sent,
            bytes_acked: acked,
            bytes_received: received,
            srtt_us: 30_000,
            rttvar_us: 1_000,
            rto_us: 230_000,
            backoff: 0,
            cwnd_packets: 10,
            ssthresh_packets: 10,
            in_flight_packets: 0,
            retransmissions: 0,
            mss_bytes: 1_420,
            sender_activity: None,
        }
    }

    fn event(ms: u64, kind: EventKind, path: Option<&str>, detail: &[(&str, &str)]) -> Record {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Record::Event(Event {
            t_ns: ms * 1_000_000,
            kind,
            host: Some("phone".to_owned()),
            path: path.map(ToOwned::to_owned),
            text: String::new(),
            detail: detail.iter().map(text).collect(),
        })
    }

    /// Returns the metrics as text, with three decimals.
    fn metrics(records: impl IntoIterator<Item = Record>) -> BTreeMap<String, String> {
        let mut metrics = BTreeMap::new();
        handover_metrics(&records.into_iter().collect::<Vec<_>>(), &mut metrics);
        metrics.into_iter().map(|(name, value)| (name, format!("{value:.3}"))).collect()
    }

    fn subflow(sample: Subflow) -> Record {
        Record::Subflow(Box::new(sample))
    }

    #[test]
    fn a_handover_ends_with_the_last_packet_on_the_first_path() {
        let metrics = metrics([
            meta(Transport::Mptcp),
            subflow(sample(100, "wifi", [2_000, 2_000, 750])),
            subflow(sample(100, "cellular", [0, 0, 0])),
            subflow(Subflow { backoff: 1, ..sample(200, "wifi", [4_000, 2_000, 750]) }),
            subflow(sample(200, "cellular", [2_000, 0, 0])),
            event(200, EventKind::Scheduler, None, &[("because rto", "1"), ("to cellular", "1")]),
            subflow(sample(2_200, "wifi", [4_000, 4_000, 750])),
            subflow(sample(3_200, "wifi", [6_000, 4_000, 750])),
            subflow(sample(9_900, "wifi", [6_000, 4_000, 750])),
        ]);
        assert_eq!(metrics["handover.used"], "1.000");
        assert_eq!(metrics["handover.start"], "0.200");
        assert_eq!(metrics["handover.duration"], "2.000");
        assert_eq!(metrics["handover.duration.sent"], "3.000");
        assert_eq!(metrics["handover.abrupt"], "0.000");
        assert_eq!(metrics["reason.rto"], "1.000");
        assert_eq!(metrics["reason.other"], "0.000");
        assert_eq!(metrics["inferred.rto"], "1.000");
        assert_eq!(metrics["inferred.other"], "0.000");
    }

    #[test]
    fn packets_that_never_leave_the_host_are_not_activity() {
        let link = |ms: u64, offered_packets| {
            Record::Link(towpath_result::Link {
                t_ns: ms * 1_000_000,
                path: "wifi".to_owned(),
                direction: DataDirection::Up,
                offered_packets,
                delivered_bytes: 0,
                delivered_packets: 0,
                dropped_queue_packets: 0,
                dropped_loss_packets: 0,
                dropped_down_packets: 0,
                backlog_bytes: 0,
            })
        };
        let metrics = metrics([
            meta(Transport::Mptcp),
            subflow(sample(200, "wifi", [2_000, 2_000, 750])),
            subflow(sample(200, "cellular", [2_000, 0, 0])),
            link(200, 3),
            link(1_200, 4),
            subflow(sample(9_200, "wifi", [4_000, 2_000, 750])),
            link(9_200, 4),
        ]);
        assert_eq!(metrics["handover.duration.sent"], "1.000");
    }

    #[test]
    fn a_handover_is_abrupt_if_the_first_path_goes_silent() {
        let metrics = metrics([
            meta(Transport::Mptcp),
            subflow(sample(100, "wifi", [2_000, 2_000, 750])),
            subflow(sample(100, "cellular", [0, 0, 0])),
            subflow(sample(500, "wifi", [4_000, 2_000, 750])),
            subflow(sample(500, "cellular", [2_000, 0, 0])),
            event(500, EventKind::Scheduler, None, &[("to cellular", "1")]),
        ]);
        assert_eq!(metrics["handover.duration"], "-0.400");
        assert_eq!(metrics["handover.abrupt"], "1.000");
        assert_eq!(metrics["reason.other"], "1.000", "the scheduler said nothing");
        assert_eq!(metrics["inferred.other"], "1.000", "nothing is to be seen");
    }

    #[test]
    fn reinjection_after_a_timeout_is_a_use_caused_by_it() {
        let detail = [("cause", ReinjectionCause::Timeout.text())];
        let reinjected = event(200, EventKind::Reinjection, Some("cellular"), &detail);
        let metrics = metrics([
            meta(Transport::Mptcp),
            subflow(Subflow { srtt_us: 700_000, ..sample(200, "wifi", [2_000, 0, 0]) }),
            subflow(sample(200, "cellular", [2_000, 0, 0])),
            reinjected,
        ]);
        assert_eq!(metrics["reason.rto"], "1.000");
        assert_eq!(metrics["inferred.rtt-threshold"], "1.000");
    }

    #[test]
    fn the_multipath_quic_policy_reports_its_switch_time_and_reason() {
        let detail = [("backup", "false"), ("why", "in-flight")];
        let metrics = metrics([
            meta(Transport::Mpquic),
            subflow(sample(100, "wifi", [2_000, 2_000, 750])),
            subflow(sample(100, "cellular", [60, 60, 60])),
            event(
                150,
                EventKind::Subflow,
                Some("cellular"),
                &[("backup", "true"), ("why", "peer")],
            ),
            event(700, EventKind::Subflow, Some("cellular"), &detail),
            subflow(sample(1_700, "wifi", [4_000, 4_000, 750])),
        ]);
        assert_eq!(metrics["handover.start"], "0.700");
        assert_eq!(metrics["handover.duration"], "1.000");
        assert_eq!(metrics["reason.in-flight"], "1.000");
        assert_eq!(metrics.get("inferred.other"), None);
    }

    #[test]
    fn a_flow_is_compared_with_the_first_one() {
        let mut metrics = BTreeMap::new();
        for (flow, value) in [(0, 2.0), (1, 3.0), (2, 1.0)] {
            add_with_ratio(flow, "up.delay.max", value, &mut metrics);
        }
        let ratios = metrics.iter().filter(|(name, _)| name.contains(".ratio"));
        let ratios: Vec<_> = ratios.map(|(name, ratio)| format!("{name} {ratio:.1}")).collect();
        assert_eq!(ratios, ["flow.1.up.delay.max.ratio 1.5", "flow.2.up.delay.max.ratio 0.5"]);
    }

    #[test]
    fn without_a_second_path_there_is_no_handover() {
        let wifi_only = [meta(Transport::Tcp), subflow(sample(100, "wifi", [2_000, 2_000, 750]))];
        assert_eq!(metrics(wifi_only), BTreeMap::new());
        let unused = metrics([
            meta(Transport::Mptcp),
            subflow(sample(100, "wifi", [2_000, 2_000, 750])),
            subflow(sample(100, "cellular", [0, 0, 0])),
        ]);
        assert_eq!(unused, BTreeMap::from([("handover.used".to_owned(), "0.000".to_owned())]));
    }
}
