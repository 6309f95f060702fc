//! Time–sequence plots of a connection: data sent, retransmitted and acknowledged over time. See
//! `docs/guides/analyse-captures.md` for the definitions. Their size is bounded, so longer transfers have a coarser
//! resolution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::DataDirection;

use super::CapturePoint;

/// Kind of a mark in a time–sequence plot.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SequenceKind {
    /// Payload that was seen for the first time, in order.
    Sent,
    /// Payload first seen after later data: retransmitted after a loss before the capture point, or
    /// reordered.
    #[serde(alias = "late")]
    OutOfOrder,
    /// Payload retransmitted on the same subflow.
    #[serde(alias = "again")]
    Retransmitted,
    /// Spurious retransmission: acknowledged before, or reported as a duplicate (DSACK).
    #[serde(alias = "needless")]
    Spurious,
    /// Payload that another subflow had carried before.
    Reinjected,
    /// Acknowledgement (`start`) and the end of the receive window (`end`; equal to `start` if
    /// unknown).
    Ack,
    /// Duplicate acknowledgement while data was outstanding (RFC 5681 §2).
    DuplicateAck,
    /// Range newly reported as received after a gap (RFC 2018).
    Sack,
    /// Receive window of 0.
    ZeroWindow,
    /// SYN packet of the subflow.
    Syn,
    /// FIN packet, or DATA_FIN signal.
    Fin,
    /// RST packet of the subflow.
    Rst,
}

impl SequenceKind {
    /// All kinds of marks.
    pub const ALL: [Self; 12] = [
        Self::Sent,
        Self::OutOfOrder,
        Self::Retransmitted,
        Self::Spurious,
        Self::Reinjected,
        Self::Ack,
        Self::DuplicateAck,
        Self::Sack,
        Self::ZeroWindow,
        Self::Syn,
        Self::Fin,
        Self::Rst,
    ];

    /// Returns the name used in result files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::OutOfOrder => "out-of-order",
            Self::Retransmitted => "retransmitted",
            Self::Spurious => "spurious",
            Self::Reinjected => "reinjected",
            Self::Ack => "ack",
            Self::DuplicateAck => "duplicate-ack",
            Self::Sack => "sack",
            Self::ZeroWindow => "zero-window",
            Self::Syn => "syn",
            Self::Fin => "fin",
            Self::Rst => "rst",
        }
    }
}

/// One direction of a subflow, or of a connection's data, over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sequence {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Stream number within the flow.
    #[serde(default)]
    pub stream: u32,
    /// Direction of the data: `up` or `down`.
    pub direction: DataDirection,
    /// Number of the subflow; absent for the connection's data sequence numbers (DSN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u32>,
    /// Path of the subflow; for a connection, the paths of its subflows by number.
    pub paths: Vec<String>,
    /// Position of the capture relative to the data's direction.
    #[serde(alias = "vantage")]
    pub capture_point: CapturePoint,
    /// Packets that repeat payload sent before on the same subflow: `retransmitted` and `spurious`.
    #[serde(alias = "again_packets")]
    pub retransmitted_packets: u64,
    /// Whole time range, then a close-up of an interesting part, if there is one.
    pub views: Vec<SequenceView>,
}

/// Time range of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequenceView {
    /// Reason for showing the range, in a few words.
    #[serde(alias = "about")]
    pub label: String,
    /// Start of the range.
    pub from_ns: u64,
    /// End of the range.
    pub to_ns: u64,
    /// Time resolution: marks of one kind within this time are joined. 0 if every packet has its
    /// own mark.
    pub column_ns: u64,
    /// Marks in the range, by kind.
    pub marks: Vec<SequenceMarks>,
}

/// All marks of one kind in a view, in order of time; the lists have equal lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequenceMarks {
    /// Kind of all these marks.
    pub kind: SequenceKind,
    /// Number of the subflow, in a plot of the connection's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u32>,
    /// Time of each mark.
    pub t_ns: Vec<u64>,
    /// First sequence number of each mark, in bytes since the first payload byte.
    pub start_bytes: Vec<i64>,
    /// Sequence number after the last byte of each mark.
    pub end_bytes: Vec<i64>,
    /// Number of packets joined in each mark.
    pub packets: Vec<u32>,
}

/// One mark of a time–sequence plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceMark {
    /// Time of the mark.
    pub t_ns: u64,
    /// First sequence number, in bytes since the first payload byte.
    pub start_bytes: i64,
    /// Sequence number after the last byte.
    pub end_bytes: i64,
    /// Number of packets joined in the mark.
    pub packets: u32,
}

impl SequenceMarks {
    /// Returns the marks one by one. Lists of different length end with the shortest.
    pub fn each(&self) -> impl Iterator<Item = SequenceMark> + '_ {
        let ranges = self.start_bytes.iter().zip(&self.end_bytes).zip(&self.packets);
        self.t_ns.iter().zip(ranges).map(|(t_ns, ((start, end), packets))| SequenceMark {
            t_ns: *t_ns,
            start_bytes: *start,
            end_bytes: *end,
            packets: *packets,
        })
    }

    /// Adds one mark to all lists.
    pub fn push(&mut self, mark: SequenceMark) {
        self.t_ns.push(mark.t_ns);
        self.start_bytes.push(mark.start_bytes);
        self.end_bytes.push(mark.end_bytes);
        self.packets.push(mark.packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_serializes_to_its_name() {
        for kind in SequenceKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
