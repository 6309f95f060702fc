//! Metrics in the text format of Prometheus (version 0.0.4).

use std::fmt::Write as _;

use towpath_host::monitor::{DerivedConnection, DerivedSubflow, MonitoredSubflow, SubflowActivity};

/// Upper bound of exported subflows. Each is a line in every metric family.
const MAX_SUBFLOWS: usize = 2_000;

const STATUSES: [SubflowActivity; 6] = [
    SubflowActivity::Trying,
    SubflowActivity::Established,
    SubflowActivity::Active,
    SubflowActivity::Backup,
    SubflowActivity::Stale,
    SubflowActivity::Closing,
];

type SubflowRow<'a> = (String, &'a MonitoredSubflow, &'a DerivedSubflow);

/// Returns the metrics page of these connections.
pub(super) fn page(connections: &[DerivedConnection]) -> String {
    let mut page = String::new();
    let fallbacks = connections.iter().filter(|derived| derived.connection.fallback).count();
    write_gauge(&mut page, "connections", "Multipath TCP connections.", connections.len());
    write_gauge(&mut page, "fallbacks", "Connections that fell back to TCP.", fallbacks);
    let help = "Subflows by status; one with status trying carries no data.";
    write_head(&mut page, "subflows", "gauge", help);
    for status in STATUSES {
        let subflows = connections.iter().flat_map(|derived| &derived.subflows);
        let count = subflows.filter(|subflow| subflow.status == status).count();
        let _ = writeln!(page, "towpath_mptcp_subflows{{status=\"{}\"}} {count}", status.name());
    }
    let rows: Vec<SubflowRow<'_>> = connections
        .iter()
        .flat_map(|derived| {
            let token = derived.connection.token;
            let pairs = derived.connection.subflows.iter().zip(&derived.subflows);
            pairs.map(move |(subflow, inferred)| {
                (labels(token, subflow, inferred), subflow, inferred)
            })
        })
        .take(MAX_SUBFLOWS)
        .collect();
    let mut family =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&SubflowRow<'_>) -> f64| {
            write_head(&mut page, name, kind, help);
            for row in &rows {
                let _ = writeln!(page, "towpath_mptcp_{name}{{{}}} {}", row.0, value(row));
            }
        };
    family("subflow_received_bytes_total", "counter", "Payload received.", &|(_, subflow, _)| {
        subflow.bytes_received as f64
    });
    family("subflow_acked_bytes_total", "counter", "Payload acknowledged.", &|(_, subflow, _)| {
        subflow.bytes_acked as f64
    });
    let help = "Retransmitted packets of the subflow.";
    family("subflow_retransmissions_total", "counter", help, &|(_, subflow, _)| {
        f64::from(subflow.retransmissions)
    });
    family("subflow_srtt_seconds", "gauge", "Smoothed round-trip time.", &|(_, subflow, _)| {
        f64::from(subflow.srtt_us) / 1e6
    });
    family("subflow_cwnd_packets", "gauge", "Congestion window.", &|(_, subflow, _)| {
        f64::from(subflow.cwnd_packets)
    });
    let help = "1 if sent data is not acknowledged, or the interface is down (inferred).";
    family("subflow_stale", "gauge", help, &|(_, _, inferred)| {
        f64::from(u8::from(inferred.status == SubflowActivity::Stale))
    });
    let help = "Share of the last second in which this limited the sender.";
    write_head(&mut page, "subflow_limited_ratio", "gauge", help);
    for (labels, _, inferred) in &rows {
        for limit in &inferred.limits {
            let sample = format!("{{{labels},limit=\"{}\"}} {}", limit.id(), limit.share);
            let _ = writeln!(page, "towpath_mptcp_subflow_limited_ratio{sample}");
        }
    }
    page
}

fn write_head(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP towpath_mptcp_{name} {help}");
    let _ = writeln!(page, "# TYPE towpath_mptcp_{name} {kind}");
}

fn write_gauge(page: &mut String, name: &str, help: &str, value: usize) {
    write_head(page, name, "gauge", help);
    let _ = writeln!(page, "towpath_mptcp_{name} {value}");
}

fn labels(token: u32, subflow: &MonitoredSubflow, derived: &DerivedSubflow) -> String {
    let interface = escaped(derived.interface.as_deref().unwrap_or(""));
    format!(
        "connection=\"{token:08x}\",local=\"{}\",remote=\"{}\",interface=\"{interface}\"",
        subflow.local, subflow.remote
    )
}

/// Escapes a label value. Interface names may hold anything but spaces and slashes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::screen::tests::two_connections;

    #[test]
    fn metrics_are_written_in_the_prometheus_format() {
        let page = page(&two_connections().connections);
        assert!(page.contains("\ntowpath_mptcp_connections 2\n"), "{page}");
        assert!(page.contains("\ntowpath_mptcp_subflows{status=\"stale\"} 1\n"), "{page}");
        let row = "towpath_mptcp_subflow_srtt_seconds{connection=\"26d472c7\",\
                   local=\"172.31.0.133:56420\",remote=\"172.31.0.218:5201\",interface=\"eth0\"} \
                   0.0123\n";
        assert!(page.contains(row), "{page}");
        let row = "interface=\"eth0\",limit=\"peer-window\"} 0.8\n";
        assert!(page.contains(row), "{page}");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn a_label_value_is_escaped() {
        assert_eq!(escaped("a\"b\\c\n"), "a\\\"b\\\\c\\n");
    }
}
