//! Measurement report of one host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use towpath_result::Record;
use towpath_result::input::ReadBudget;
use towpath_result::metrics::DeliveryLog;
use towpath_result::store::{CardinalityLimiter, MAX_SUBFLOWS, MIN_LINE_BYTES};
use towpath_run::traffic::session::ExchangeReport;
use towpath_run::traffic::udp::{UdpReceiverReport, UdpSenderReport};
use towpath_scenario::DataDirection;

/// Maximum size of a report: logs of an hour have a slot for every millisecond of each stream.
const MAX_REPORT_BYTES: u64 = 1 << 30;
/// Maximum size of a line, except for flows. A flow's line holds all its logs and messages.
const MAX_LINE_BYTES: usize = 8_000_000;

/// Measurement report of one host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostReport {
    /// Host and the resources it used.
    pub host: HostInfo,
    /// Flows of the run, as this host saw them.
    pub flows: Vec<FlowReport>,
    /// Connections of the flows.
    pub connections: Vec<ConnectionReport>,
    /// Subflows of the connections.
    pub subflows: Vec<SubflowReport>,
    /// Events and samples in order of time, with this host's subflow numbers.
    pub records: Vec<Record>,
}

/// A host and the resources it used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostInfo {
    /// Version of towpath on the host.
    pub towpath: String,
    /// Kernel release, as in `uname -r`.
    pub kernel: String,
    /// Other conditions needed to judge the run, by name.
    pub conditions: BTreeMap<String, String>,
    /// Warnings to check before trusting the result.
    pub warnings: Vec<String>,
    /// CPU time of the whole process, in seconds.
    pub cpu_s: f64,
}

/// Report of one flow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlowReport {
    /// Number of the flow.
    pub flow: u32,
    /// Deliveries at this host: one log for each stream.
    pub delivered: Vec<(DataDirection, DeliveryLog)>,
    /// Time to open the first connection, at the end that opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_ns: Option<u64>,
    /// Reason for a failure; `None` if the flow succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Requests and replies of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeReport>,
    /// Constant-rate datagrams of the flow, one report for each direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datagrams: Vec<DatagramReport>,
    /// Notes to check before trusting the flow; merged into the host's warnings.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// One end's report of a flow's datagrams in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatagramReport {
    /// Direction: `up` or `down`.
    pub direction: DataDirection,
    /// Path name, if this end knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Statistics of the sender, at the sending end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<UdpSenderReport>,
    /// Statistics of the receiver, at the receiving end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<UdpReceiverReport>,
}

/// Report of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Number of the flow.
    pub flow: u32,
    /// Number of the stream within the flow.
    pub stream: u32,
    /// Set if the connection was multipath when last sampled.
    pub multipath: bool,
    /// Bytes reinjected on another subflow.
    pub reinjected_bytes: u64,
    /// Reason for the lack of multipath, if this host knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Report of one subflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubflowReport {
    /// Number of the flow.
    pub flow: u32,
    /// Number of the stream within the flow.
    pub stream: u32,
    /// Number of the subflow on this host.
    pub subflow: u32,
    /// Path name, if this host knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Address and port of this host.
    pub local: String,
    /// Address and port of the peer.
    pub remote: String,
    /// Set if it is a backup subflow.
    pub backup: bool,
    /// Payload bytes of this host that were acknowledged.
    #[serde(default)]
    pub bytes_acked: u64,
    /// Payload bytes that arrived here.
    pub bytes_received: u64,
    /// Packets that this host retransmitted on this subflow.
    pub retransmissions: u64,
    /// Last smoothed round-trip time of this host, in microseconds.
    pub srtt_us: u32,
    /// Protocol's own number for it, equal on both hosts; `None` if the protocol has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// STREAM frames that arrived here. A path with bytes but without frames only received
    /// keep-alives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_frames: Option<u64>,
    /// Congestion control of this host, read back from the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Time at which the subflow was first seen.
    pub first_seen_ns: u64,
    /// Time at which it disappeared, if before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_ns: Option<u64>,
}

/// One line of a report as sent. The lines may have any order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the types say it")]
pub enum ReportLineRef<'a> {
    Host(&'a HostInfo),
    Flow(&'a FlowReport),
    Connection(&'a ConnectionReport),
    Subflow(&'a SubflowReport),
    Record(&'a Record),
}

/// One line of a report as received.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReportLine {
    Host(Box<HostInfo>),
    Flow(FlowReport),
    Connection(ConnectionReport),
    Subflow(Box<SubflowReport>),
    Record(Box<Record>),
}

impl HostReport {
    /// Passes every line of the report to `on_line`. Each part is freed after its line.
    pub fn into_lines(self, on_line: &mut dyn FnMut(ReportLineRef<'_>)) {
        let Self { host, flows, connections, subflows, records } = self;
        on_line(ReportLineRef::Host(&host));
        for flow in flows {
            on_line(ReportLineRef::Flow(&flow));
        }
        for connection in connections {
            on_line(ReportLineRef::Connection(&connection));
        }
        for subflow in subflows {
            on_line(ReportLineRef::Subflow(&subflow));
        }
        for record in records {
            on_line(ReportLineRef::Record(&record));
        }
    }

    /// Converts the report to text, one JSON value per line.
    pub fn into_text(self) -> String {
        let mut text = String::new();
        self.into_lines(&mut |line| {
            // Cannot fail: the lines hold only numbers, strings and lists of them.
            text.push_str(&serde_json::to_string(&line).unwrap_or_default());
            text.push('\n');
        });
        text
    }

    /// Parses another host's report; errors name the line number.
    ///
    /// Rejects lines longer than our own can be, and more items than a result may have.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut report = Self::default();
        let budget = ReadBudget::of(MAX_REPORT_BYTES);
        let mut cardinality = CardinalityLimiter::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line_error = |reason: &dyn std::fmt::Display| format!("line {number}: {reason}");
            if line.len() > MAX_LINE_BYTES && !line.starts_with("{\"flow\":") {
                return Err(line_error(&format!("it is longer than {MAX_LINE_BYTES} bytes")));
            }
            budget
                .take(MIN_LINE_BYTES.max(line.len() as u64))
                .map_err(|error| line_error(&error))?;
            let line: ReportLine =
                serde_json::from_str(line).map_err(|error| line_error(&error))?;
            match line {
                ReportLine::Host(host) => report.host = *host,
                ReportLine::Flow(flow) => report.flows.push(flow),
                ReportLine::Connection(connection) => report.connections.push(connection),
                ReportLine::Subflow(subflow) => report.subflows.push(*subflow),
                ReportLine::Record(record) => {
                    cardinality.add_record(&record).map_err(|error| line_error(&error))?;
                    report.records.push(*record);
                }
            }
            let max_items =
                report.flows.len().max(report.connections.len()).max(report.subflows.len());
            if max_items > MAX_SUBFLOWS {
                return Err(line_error(&format!("more than {MAX_SUBFLOWS} flows or subflows")));
            }
        }
        Ok(report)
    }

    /// Returns the report of a flow, or `None` without one.
    pub fn flow(&self, number: u32) -> Option<&FlowReport> {
        self.flows.iter().find(|flow| flow.flow == number)
    }
}

#[cfg(test)]
mod tests {
    use towpath_net::Instant;

    use super::*;

    #[test]
    fn a_host_report_survives_a_round_trip() {
        let mut log = DeliveryLog::new(Instant::ZERO);
        log.record(Instant::from_nanos(5), 1_000);
        let report = HostReport {
            host: HostInfo { kernel: "6.18".into(), cpu_s: 0.25, ..HostInfo::default() },
            flows: vec![FlowReport {
                flow: 1,
                delivered: vec![(DataDirection::Up, log)],
                ..FlowReport::default()
            }],
            connections: vec![ConnectionReport {
                flow: 1,
                stream: 0,
                multipath: true,
                reinjected_bytes: 3,
                reason: None,
            }],
            subflows: Vec::new(),
            records: vec![Record::Counter(towpath_result::Counter {
                host: "server".into(),
                name: "MPTcpExt.MPJoinAckRx".into(),
                before: 0,
                after: 1,
            })],
        };
        assert_eq!(HostReport::from_text(&report.clone().into_text()).unwrap(), report);
        assert!(HostReport::from_text("{}\n").unwrap_err().starts_with("line 1:"));
    }

    #[test]
    fn a_host_report_beyond_the_run_limits_is_refused() {
        let connection =
            r#"{"connection":{"flow":0,"stream":0,"multipath":true,"reinjected_bytes":0}}"#;
        let error = HostReport::from_text(&format!("{connection}\n").repeat(20_001)).unwrap_err();
        assert!(error.starts_with("line 20001:"), "{error}");
        let long = format!("{connection}\n{{\"record\":{}", " ".repeat(8_000_000));
        assert!(HostReport::from_text(&long).unwrap_err().starts_with("line 2: it is longer"));
    }
}
