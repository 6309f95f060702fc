//! Connections reconstructed from a packet capture; see `docs/guides/analyse-captures.md` for the definitions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::DataDirection;

use super::account::is_zero;
use super::{DelayStats, Stall};

/// Position of the capture relative to the data's direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CapturePoint {
    /// At the data's sender.
    Sender,
    /// At the data's receiver.
    Receiver,
    /// Between the two hosts.
    Between,
    /// Position cannot be determined.
    Unknown,
}

/// Meaning of the captured part of a connection's options, if the snap length cut off the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CutEvidence {
    /// Plain TCP, or a subflow of Multipath TCP.
    Unknown,
    /// A subflow of Multipath TCP: packets after the SYNs have an option of it.
    Multipath,
    /// TCP from the first data on: packets with payload have no option of Multipath TCP.
    Tcp,
}

/// One connection of a packet capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedConnection {
    /// Flow number, as in the other records.
    pub flow: u32,
    /// Multipath TCP version. Absent for TCP, and when the capture began too late to see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u8>,
    /// True if the connection used or tried Multipath TCP.
    pub multipath: bool,
    /// Present if options were not captured. The connection is then a single TCP connection or
    /// subflow, and values that need data sequence numbers, such as `reinjected_bytes`, are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_options: Option<CutEvidence>,
    /// Reason for the fallback to plain TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// True if DSS checksums were requested.
    pub checksum: bool,
    /// True if the capture lacks the connection's beginning.
    #[serde(alias = "late")]
    pub truncated_start: bool,
    /// Time of the first packet.
    pub first_ns: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// Number of Multipath TCP options by name, except DSS.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, u64>,
    /// Packets that are in the capture a second time. Each packet counts once.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copied_packets: u64,
    /// Names of values that such packets leave undecided: they are absent, or may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<String>,
    /// Metrics for both data directions.
    #[serde(alias = "ways")]
    pub directions: Vec<CapturedDirection>,
    /// Subflows of the connection; a TCP connection has one.
    pub subflows: Vec<CapturedSubflow>,
}

impl CapturedConnection {
    /// Returns true if the packets do not decide the value of this name.
    pub fn leaves_undecided(&self, name: &str) -> bool {
        self.undecided.iter().any(|undecided| undecided == name)
    }

    /// Returns the `limit` subflows with most payload, in order of their numbers.
    pub fn busiest_subflows(&self, limit: usize) -> Vec<&CapturedSubflow> {
        let mut subflows: Vec<(usize, &CapturedSubflow)> =
            self.subflows.iter().enumerate().collect();
        if subflows.len() > limit {
            subflows.sort_by_cached_key(|(_, subflow)| std::cmp::Reverse(subflow.payload_bytes()));
            subflows.truncate(limit);
            subflows.sort_unstable_by_key(|(position, _)| *position);
        }
        subflows.into_iter().map(|(_, subflow)| subflow).collect()
    }
}

/// Maximum number of subflows that a page or terminal lists, for one connection and for all.
const MAX_LISTED_SUBFLOWS: usize = 100;
const MAX_LISTED_SUBFLOWS_IN_TOTAL: usize = 1_000;
/// Minimum number of subflows that are listed for each connection.
const MIN_LISTED_SUBFLOWS: usize = 2;

/// Returns the maximum number of subflows that a page or terminal lists for each of its
/// `connections`: 100 for up to ten connections, and 2 for many.
pub fn max_listed_subflows(connections: usize) -> usize {
    let equal_share = MAX_LISTED_SUBFLOWS_IN_TOTAL / connections.max(1);
    equal_share.clamp(MIN_LISTED_SUBFLOWS, MAX_LISTED_SUBFLOWS)
}

/// One direction of a captured connection's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedDirection {
    /// Data direction: `up` or `down`.
    pub direction: DataDirection,
    /// Position of the capture for this direction.
    #[serde(alias = "vantage")]
    pub capture_point: CapturePoint,
    /// Bytes delivered in order: seen to arrive at the receiver, otherwise acknowledged.
    pub bytes: u64,
    /// Time from the connection's first packet until the last of these bytes.
    pub duration_ns: u64,
    /// Goodput: `bytes` × 8 over `duration_ns`.
    pub goodput_bps: f64,
    /// Throughput: IP bits of all subflows over the time in which data flowed in either direction.
    pub throughput_bps: f64,
    /// Time from the first transmission of data until DATA_ACK (or ACK) covered it, measured at the
    /// capture point. Absent at the receiver, where the network is not part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<DelayStats>,
    /// Delay of the receiver's acknowledgements; only for a capture at the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_after: Option<DelayStats>,
    /// Head-of-line blocking: time from a packet's arrival until all earlier data had arrived. Only
    /// for a capture at the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_of_line: Option<DelayStats>,
    /// Most bytes that waited for earlier data, at subflow and connection level. Only for a capture
    /// at the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// Bytes first sent on one subflow and later also on another.
    pub reinjected_bytes: u64,
    /// Bytes sent on the same subflow twice, under different subflow sequence numbers.
    #[serde(alias = "repeated_bytes")]
    pub remapped_bytes: u64,
    /// Bytes retransmitted on the same subflow.
    pub retransmitted_bytes: u64,
    /// Retransmitted bytes that the receiver had already reported as received.
    #[serde(alias = "wasted_bytes")]
    pub spurious_bytes: u64,
    /// Payload that arrived at the receiver a second time. Only for a capture at the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// Bytes first seen after later data of the same subflow: retransmitted after a loss before the
    /// capture point, or reordered.
    #[serde(alias = "late_bytes")]
    pub out_of_order_bytes: u64,
    /// Bytes acknowledged, but missing in the capture.
    pub unseen_bytes: u64,
    /// Payload bytes without the data sequence mapping that they need.
    pub unmapped_bytes: u64,
    /// Number of times that new data moved to another subflow.
    pub switches: u64,
    /// Gaps in delivery to the receiver.
    pub stall: Stall,
    /// Lasting changes from one subflow to another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handovers: Vec<SubflowHandover>,
}

/// Lasting change of the data from one subflow to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowHandover {
    /// Number of the subflow that stops carrying data.
    pub from: u32,
    /// Number of the subflow that takes over.
    pub to: u32,
    /// Time of the first data on the new subflow.
    pub first_new_ns: u64,
    /// Time of the last data on the old subflow.
    pub last_old_ns: u64,
    /// Time from the first data on the new subflow to the last on the old one. A negative value is
    /// a time in which neither carried data.
    pub overlap_ns: i64,
}

/// One subflow of a captured connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedSubflow {
    /// Number of the subflow within its connection.
    pub subflow: u32,
    /// Path: the interface's name in the capture, or the two addresses.
    pub path: String,
    /// Address and port of the host that opened the connection.
    pub local: String,
    /// Address and port of the host that accepted the connection.
    pub remote: String,
    /// Side that opened the subflow: `up` for the host that opened the connection.
    pub opened: DataDirection,
    /// `syn-sent`, `syn-answered`, `established`, `closed`, `reset`, or `seen` without a handshake.
    pub state: String,
    /// True if the subflow joined with MP_JOIN.
    pub join: bool,
    /// True if the subflow is a backup.
    pub backup: bool,
    /// Address identifiers of both ends, where MP_JOIN carries them.
    pub address_ids: [Option<u8>; 2],
    /// Number of SYN packets sent.
    pub syns: u32,
    /// Round-trip time of the handshake: from the first SYN through the SYN/ACK to the final ACK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake_ns: Option<u64>,
    /// Time of the first packet.
    pub first_ns: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// Reason of the reset, if the subflow was reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// Metrics for both data directions.
    #[serde(alias = "ways")]
    pub directions: Vec<SubflowDirection>,
}

impl CapturedSubflow {
    /// Returns the number of SYNs of the opener that got no reply.
    pub fn unanswered_syns(&self) -> u32 {
        let is_answered = self.state != "syn-sent";
        self.syns.saturating_sub(u32::from(is_answered))
    }

    /// Returns the payload bytes of both directions, retransmissions included.
    pub fn payload_bytes(&self) -> u64 {
        let bytes = self.directions.iter().map(|direction| direction.payload_bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// One direction of a captured subflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowDirection {
    /// Data direction: `up` or `down`.
    pub direction: DataDirection,
    /// Number of packets; a super-segment counts once.
    pub packets: u64,
    /// Size of all IP packets.
    pub ip_bytes: u64,
    /// Payload bytes, retransmissions included.
    pub payload_bytes: u64,
    /// Payload bytes that were new on this subflow.
    pub new_bytes: u64,
    /// Payload bytes that were acknowledged.
    pub acked_bytes: u64,
    /// Share of the `new_bytes` of all subflows, 0 to 1.
    pub share: f64,
    /// Time from a segment to its acknowledgement, measured at the capture point. Absent at the
    /// receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<DelayStats>,
    /// Delay of the receiver's acknowledgements; only for a capture at the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_after: Option<DelayStats>,
    /// Bytes retransmitted on this subflow.
    pub retransmitted_bytes: u64,
    /// Packets with retransmitted bytes.
    pub retransmitted_packets: u64,
    /// Retransmitted bytes that the receiver had already reported as received.
    #[serde(alias = "wasted_bytes")]
    pub spurious_bytes: u64,
    /// Bytes first seen after later data of the same subflow.
    #[serde(alias = "late_bytes")]
    pub out_of_order_bytes: u64,
    /// Packets with out-of-order bytes.
    #[serde(alias = "late_packets")]
    pub out_of_order_packets: u64,
    /// Bytes that another subflow had carried before.
    pub reinjected_bytes: u64,
    /// Bytes acknowledged, but missing in the capture.
    pub unseen_bytes: u64,
    /// One-way delay between the hosts, if both have a capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way: Option<DelayStats>,
}
