//! What a capture of packets tells of a connection; see `docs/trace.md` for the definitions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DelayStats, Stall};
use crate::scenario::DataDirection;

/// Where a capture was taken, seen from the data's direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CapturePoint {
    /// At the host that sends the data.
    Sender,
    /// At the host that receives it.
    Receiver,
    /// On the way.
    Between,
    /// It cannot be told.
    Unknown,
}

/// One connection of a capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedConnection {
    /// Flow number, as in the other records.
    pub flow: u32,
    /// Multipath TCP's version; absent for TCP, and where the capture began too late to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u8>,
    /// Whether it spoke Multipath TCP, or tried to.
    pub multipath: bool,
    /// Why it went on without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Whether checksums were asked for.
    pub checksum: bool,
    /// Whether the capture does not have its beginning.
    #[serde(rename = "late")]
    pub truncated_start: bool,
    /// First packet.
    pub first_ns: u64,
    /// Last packet.
    pub last_ns: u64,
    /// Multipath TCP options seen, without DSS.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, u64>,
    /// Both directions of the data.
    #[serde(rename = "ways")]
    pub directions: Vec<CapturedDirection>,
    /// Its subflows; a TCP connection has one.
    pub subflows: Vec<CapturedSubflow>,
}

/// One direction of a connection's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedDirection {
    /// `up` or `down`.
    pub direction: DataDirection,
    /// Where the capture was taken.
    #[serde(rename = "vantage")]
    pub capture_point: CapturePoint,
    /// Data bytes that the receiver got in order: seen to arrive at the receiver, else acknowledged.
    pub bytes: u64,
    /// From the connection's first packet until the last of them.
    pub duration_ns: u64,
    /// `bytes` over `duration_ns`.
    pub goodput_bps: f64,
    /// IP bytes of all subflows over the time in which data went either way.
    pub throughput_bps: f64,
    /// From the first time that data was sent until DATA_ACK (or ACK) covered it; from the point of
    /// the capture on. Not at the receiver, who does not see the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<DelayStats>,
    /// The same at the receiver: how long it waited with the acknowledgement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_after: Option<DelayStats>,
    /// From a packet's arrival until everything before it was there; at the receiver only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_of_line: Option<DelayStats>,
    /// Most bytes that waited for earlier data, at both levels; at the receiver only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// First sent on one subflow, later also on another.
    pub reinjected_bytes: u64,
    /// First sent on one subflow, later on the same under other subflow numbers.
    #[serde(rename = "repeated_bytes")]
    pub remapped_bytes: u64,
    /// Sent again on the same subflow.
    pub retransmitted_bytes: u64,
    /// Of those, what the receiver had said to have already.
    #[serde(rename = "wasted_bytes")]
    pub spurious_bytes: u64,
    /// Payload that arrived and was there already; at the receiver only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// First seen behind later data of the same subflow: sent again after a loss in front of the
    /// capture, or overtaken.
    #[serde(rename = "late_bytes")]
    pub out_of_order_bytes: u64,
    /// Acknowledged, but not in the capture.
    pub unseen_bytes: u64,
    /// Without a mapping, where there should be one.
    pub unmapped_bytes: u64,
    /// Times that new data went to another subflow than the new data before.
    pub switches: u64,
    /// Gaps in delivery.
    pub stall: Stall,
    /// Changes from one subflow to another that lasted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handovers: Vec<SubflowHandover>,
}

/// Data goes over another subflow from here on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowHandover {
    /// The subflow that carries no more data.
    pub from: u32,
    /// The one that goes on.
    pub to: u32,
    /// First data on the new one.
    pub first_new_ns: u64,
    /// Last data on the old one.
    pub last_old_ns: u64,
    /// From the first data on the new subflow to the last on the old one. Negative: between them,
    /// neither carried data.
    pub overlap_ns: i64,
}

/// A subflow of a capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedSubflow {
    /// Number in its connection.
    pub subflow: u32,
    /// Path: the interface's name in the capture, or the two addresses.
    pub path: String,
    /// Address and port of the connection's opener.
    pub local: String,
    /// Address and port of its other end.
    pub remote: String,
    /// `up` when the connection's opener opened it.
    pub opened: DataDirection,
    /// `syn-sent`, `syn-answered`, `established`, `closed`, `reset`, or `seen` without a handshake.
    pub state: String,
    /// Whether it joined with MP_JOIN.
    pub join: bool,
    /// Whether it is a backup.
    pub backup: bool,
    /// Identifiers of the two addresses, where MP_JOIN told them.
    pub address_ids: [Option<u8>; 2],
    /// SYNs sent.
    pub syns: u32,
    /// From the first SYN until it was answered, and until the handshake was over: its round trip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake_ns: Option<u64>,
    /// First packet.
    pub first_ns: u64,
    /// Last packet.
    pub last_ns: u64,
    /// Why it was reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
    /// Both directions.
    #[serde(rename = "ways")]
    pub directions: Vec<SubflowDirection>,
}

/// One direction of a subflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowDirection {
    /// `up` or `down`.
    pub direction: DataDirection,
    /// Packets; a super-segment counts once.
    pub packets: u64,
    /// Bytes of IP packets.
    pub ip_bytes: u64,
    /// Payload bytes, everything.
    pub payload_bytes: u64,
    /// Payload bytes that were new on this subflow.
    pub new_bytes: u64,
    /// Payload bytes that were acknowledged.
    pub acked_bytes: u64,
    /// Part of all subflows' `new_bytes`, 0 to 1.
    pub share: f64,
    /// From a segment to its acknowledgement, as the point of the capture sees it; not at the
    /// receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<DelayStats>,
    /// The same at the receiver: how long it waited with the acknowledgement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_after: Option<DelayStats>,
    /// Sent again on this subflow.
    pub retransmitted_bytes: u64,
    /// Packets with such bytes.
    pub retransmitted_packets: u64,
    /// Of those bytes, what the receiver had said to have already.
    #[serde(rename = "wasted_bytes")]
    pub spurious_bytes: u64,
    /// First seen behind later data.
    #[serde(rename = "late_bytes")]
    pub out_of_order_bytes: u64,
    /// Packets with such bytes.
    #[serde(rename = "late_packets")]
    pub out_of_order_packets: u64,
    /// Carried by another subflow before.
    pub reinjected_bytes: u64,
    /// Acknowledged, but not in the capture.
    pub unseen_bytes: u64,
    /// From one host to the other, where there are captures of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way: Option<DelayStats>,
}
