//! Time–sequence pictures of a connection: what was sent, sent again and acknowledged, and when; see
//! `docs/trace.md` for the definitions. Their size is bounded: a longer transfer makes coarser ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CapturePoint;
use crate::scenario::DataDirection;

/// What a mark of a time–sequence picture is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SequenceKind {
    /// Payload that was not seen before.
    Sent,
    /// Seen for the first time behind later data: sent again in front of the capture, or overtaken.
    #[serde(rename = "late")]
    OutOfOrder,
    /// Sent again on the same subflow.
    #[serde(rename = "again")]
    Retransmitted,
    /// Sent again although it had arrived: acknowledged before, or reported twice (DSACK).
    #[serde(rename = "needless")]
    Spurious,
    /// Data that another subflow had carried before.
    Reinjected,
    /// Acknowledgement (`start`) and the end of the receive window (`end`; the same if it is not known).
    Ack,
    /// Acknowledgement that was there before, although data was outstanding (RFC 5681 §2).
    DuplicateAck,
    /// Newly reported as arrived behind a gap (RFC 2018).
    Sack,
    /// The receiver's window was 0.
    ZeroWindow,
    /// SYN.
    Syn,
    /// FIN, or DATA_FIN.
    Fin,
    /// RST.
    Rst,
}

impl SequenceKind {
    /// All of them.
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

    /// As a result has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::OutOfOrder => "late",
            Self::Retransmitted => "again",
            Self::Spurious => "needless",
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
    /// Flow number.
    pub flow: u32,
    /// Stream of the flow.
    #[serde(default)]
    pub stream: u32,
    /// Direction of the data.
    pub direction: DataDirection,
    /// The subflow; absent for the connection's data numbers (DSN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u32>,
    /// Its path; for the connection, the paths of its subflows by number.
    pub paths: Vec<String>,
    /// Where the packets were seen.
    #[serde(rename = "vantage")]
    pub capture_point: CapturePoint,
    /// Packets with payload that was sent before on the same subflow: `again` and `needless`.
    #[serde(rename = "again_packets")]
    pub retransmitted_packets: u64,
    /// The whole time, then the part of it that is worth a closer look, if there is one.
    pub views: Vec<SequenceView>,
}

/// A stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequenceView {
    /// Why it is shown, in a few words.
    #[serde(rename = "about")]
    pub label: String,
    /// Beginning.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// Marks of one kind within such a period are joined; 0 if every packet has a mark of its own.
    pub column_ns: u64,
    /// What happened, by kind.
    pub marks: Vec<SequenceMarks>,
}

/// All marks of one kind in a view, in order of time; the lists have equal lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequenceMarks {
    /// Kind.
    pub kind: SequenceKind,
    /// Which subflow, in a picture of the connection's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u32>,
    /// When.
    pub t_ns: Vec<u64>,
    /// First number, in bytes since the first byte of payload.
    pub start_bytes: Vec<i64>,
    /// Behind the last.
    pub end_bytes: Vec<i64>,
    /// Packets that were joined.
    pub packets: Vec<u32>,
}

/// One mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceMark {
    /// When.
    pub t_ns: u64,
    /// First number.
    pub start_bytes: i64,
    /// Behind the last.
    pub end_bytes: i64,
    /// Packets that were joined.
    pub packets: u32,
}

impl SequenceMarks {
    /// The marks one by one. Lists that differ in length end with the shortest.
    pub fn each(&self) -> impl Iterator<Item = SequenceMark> + '_ {
        let numbers = self.start_bytes.iter().zip(&self.end_bytes).zip(&self.packets);
        self.t_ns.iter().zip(numbers).map(|(t_ns, ((start, end), packets))| SequenceMark {
            t_ns: *t_ns,
            start_bytes: *start,
            end_bytes: *end,
            packets: *packets,
        })
    }

    /// Adds one.
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
    fn a_kind_is_written_as_it_is_named() {
        for kind in SequenceKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
