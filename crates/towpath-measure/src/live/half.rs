//! What one host saw of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::input::ReadBudget;
use crate::metrics::DeliveryLog;
use crate::result::Record;
use crate::scenario::DataDirection;
use crate::store::{CardinalityLimiter, MAX_SUBFLOWS, MIN_LINE_BYTES};
use crate::traffic::talk::ExchangeReport;
use crate::traffic::udp::{UdpReceiverReport, UdpSenderReport};

/// Most bytes of a half: logs of an hour have a slot for every millisecond of each stream.
const MAX_REPORT_BYTES: u64 = 1 << 30;
/// Most bytes of a line that is not a flow's. A flow's holds its logs and messages, all in one.
const MAX_LINE_BYTES: usize = 8_000_000;

/// What one host saw.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostReport {
    /// The host.
    pub host: HostInfo,
    /// Its flows.
    pub flows: Vec<FlowReport>,
    /// Their connections.
    pub connections: Vec<ConnectionReport>,
    /// Their subflows.
    pub subflows: Vec<SubflowReport>,
    /// What happened when, in order of time; subflows have this host's numbers.
    pub records: Vec<Record>,
}

/// A host and what it used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostInfo {
    /// Version of towpath.
    pub towpath: String,
    /// Kernel release.
    pub kernel: String,
    /// Everything else that a reader must know to judge the run, by name.
    pub conditions: BTreeMap<String, String>,
    /// What to check before the result is trusted.
    pub warnings: Vec<String>,
    /// Processor time of the whole process.
    pub cpu_s: f64,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlowReport {
    /// Its number.
    pub flow: u32,
    /// What arrived here: one log for each stream.
    pub delivered: Vec<(DataDirection, DeliveryLog)>,
    /// How long it took to open its first connection, at the end that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_ns: Option<u64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Its messages.
    #[serde(rename = "talk", default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeReport>,
    /// Its datagrams at a constant rate, in each direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datagrams: Vec<DatagramReport>,
    /// What to check before it is trusted; becomes the host's.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// What one end knows of a flow's datagrams in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatagramReport {
    /// `up` or `down`.
    pub direction: DataDirection,
    /// Path, where this end knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Of the end that sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<UdpSenderReport>,
    /// Of the end that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<UdpReceiverReport>,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Flow number.
    pub flow: u32,
    /// Stream number.
    pub stream: u32,
    /// Whether it was a multipath one when last seen.
    pub multipath: bool,
    /// Bytes sent again on another subflow.
    pub reinjected_bytes: u64,
    /// Why it is not a multipath one, if this host can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A subflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubflowReport {
    /// Flow number.
    pub flow: u32,
    /// Stream number.
    pub stream: u32,
    /// This host's number for it.
    pub subflow: u32,
    /// Path, where this host knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// This host's address and port.
    pub local: String,
    /// The other's.
    pub remote: String,
    /// Whether it is a backup subflow.
    pub backup: bool,
    /// Payload bytes of this host that were acknowledged.
    #[serde(default)]
    pub bytes_acked: u64,
    /// Payload bytes that arrived here.
    pub bytes_received: u64,
    /// Packets that this host sent again.
    pub retransmissions: u64,
    /// This host's last smoothed round-trip time.
    pub srtt_us: u32,
    /// The protocol's number for it, the same on both hosts, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// STREAM frames that arrived here: what has none has only been kept, though bytes arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_frames: Option<u64>,
    /// This host's congestion control, read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// When it was first seen.
    pub first_seen_ns: u64,
    /// When it vanished, if before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_ns: Option<u64>,
}

/// One line of a half as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReportLine {
    Host(Box<HostInfo>),
    Flow(FlowReport),
    Connection(ConnectionReport),
    Subflow(Box<SubflowReport>),
    Record(Box<Record>),
}

impl HostReport {
    /// As text, one JSON value a line. What is written is dropped: both would take much memory.
    pub fn into_text(self) -> String {
        let Self { host, flows, connections, subflows, records } = self;
        let mut text = String::new();
        let mut add = |line: ReportLine| {
            // All of it are numbers, texts and lists of them: it cannot fail.
            text.push_str(&serde_json::to_string(&line).unwrap_or_default());
            text.push('\n');
        };
        add(ReportLine::Host(Box::new(host)));
        flows.into_iter().map(ReportLine::Flow).for_each(&mut add);
        connections.into_iter().map(ReportLine::Connection).for_each(&mut add);
        subflows.into_iter().map(|one| ReportLine::Subflow(Box::new(one))).for_each(&mut add);
        records.into_iter().map(|one| ReportLine::Record(Box::new(one))).for_each(&mut add);
        text
    }

    /// Reads what another host sent; a line that is not understood says which.
    ///
    /// None is longer than one of ours can be, or speaks of more things than a result may.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut half = Self::default();
        let budget = ReadBudget::of(MAX_REPORT_BYTES);
        let mut variety = CardinalityLimiter::default();
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |why: &dyn std::fmt::Display| format!("line {number}: {why}");
            if line.len() > MAX_LINE_BYTES && !line.starts_with("{\"flow\":") {
                return Err(wrong(&format!("it has more than {MAX_LINE_BYTES} bytes")));
            }
            budget.take(MIN_LINE_BYTES.max(line.len() as u64)).map_err(|error| wrong(&error))?;
            let line: ReportLine = serde_json::from_str(line).map_err(|error| wrong(&error))?;
            match line {
                ReportLine::Host(host) => half.host = *host,
                ReportLine::Flow(flow) => half.flows.push(flow),
                ReportLine::Connection(connection) => half.connections.push(connection),
                ReportLine::Subflow(subflow) => half.subflows.push(*subflow),
                ReportLine::Record(record) => {
                    variety.take(&record).map_err(|error| wrong(&error))?;
                    half.records.push(*record);
                }
            }
            let most = half.flows.len().max(half.connections.len()).max(half.subflows.len());
            if most > MAX_SUBFLOWS {
                return Err(wrong(&format!("more than {MAX_SUBFLOWS} flows or subflows")));
            }
        }
        Ok(half)
    }

    /// What is known of a flow.
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
        let half = HostReport {
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
            records: vec![Record::Counter(crate::result::Counter {
                host: "server".into(),
                name: "MPTcpExt.MPJoinAckRx".into(),
                before: 0,
                after: 1,
            })],
        };
        assert_eq!(HostReport::from_text(&half.clone().into_text()).unwrap(), half);
        assert!(HostReport::from_text("{}\n").unwrap_err().starts_with("line 1:"));
    }

    #[test]
    fn a_host_report_beyond_the_run_limits_is_refused() {
        let connection =
            r#"{"connection":{"flow":0,"stream":0,"multipath":true,"reinjected_bytes":0}}"#;
        let refused = HostReport::from_text(&format!("{connection}\n").repeat(20_001)).unwrap_err();
        assert!(refused.starts_with("line 20001:"), "{refused}");
        let long = format!("{connection}\n{{\"record\":{}", " ".repeat(8_000_000));
        assert!(HostReport::from_text(&long).unwrap_err().starts_with("line 2: it has more"));
    }
}
