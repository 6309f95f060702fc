//! Capacity account: the use of each byte of link capacity. `docs/reference/metrics.md` defines the parts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::DataDirection;

/// Use of one link's capacity, in one direction and one period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Account {
    /// End of the sampling period.
    pub t_ns: u64,
    /// Length of the sampling period.
    pub span_ns: u64,
    /// Path, or the bottleneck whose capacity several paths share.
    pub path: String,
    /// Direction of the link: `up` (from the path's first host) or `down`.
    pub direction: DataDirection,
    /// Parts of the link's capacity.
    #[serde(flatten)]
    pub parts: Parts,
}

/// Capacity, in bytes as the link counts them (with its overhead for each packet), and its parts.
/// The parts sum to the capacity exactly.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Parts {
    /// Total capacity in the period.
    pub capacity_bytes: u64,
    /// Bytes of each part; empty parts are omitted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes: BTreeMap<Part, u64>,
    /// Bytes of the part `head-of-line-blocking`, by the path whose data was missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blocked_by: BTreeMap<String, u64>,
}

/// Use of capacity, or reason why it was not used. The first eight parts were carried by the link;
/// the others were not used.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Payload that arrived for the first time, and that the receiving application could read.
    Delivered,
    /// Headers, acknowledgements, handshakes, and datagrams outside any connection.
    Headers,
    /// Payload that arrived for the first time, but still waited for earlier data at the end.
    #[serde(alias = "waiting")]
    OutOfOrder,
    /// Packets that the link carried, still in flight at the end.
    #[serde(alias = "under-way")]
    InFlight,
    /// Packets that the link carried, lost afterwards.
    Lost,
    /// Spurious retransmission on the same subflow: the first copy had arrived.
    #[serde(alias = "repeated")]
    Spurious,
    /// Payload that had already arrived on another subflow (reinjection).
    Reinjected,
    /// Redundant copies that the scheduler made.
    #[serde(alias = "duplicated")]
    Redundant,
    /// Application limited: the sender had nothing to send.
    Application,
    /// Receive window of the peer was closed.
    PeerWindow,
    /// Head-of-line blocking: the connection-level window was full of data that waited for another
    /// path.
    #[serde(alias = "blocked")]
    HeadOfLineBlocking,
    /// Congestion window full, still in slow start.
    SlowStart,
    /// Congestion window full, after random loss or a loss of unknown cause.
    AfterLoss,
    /// Congestion window full, after an overflow of the link's queue.
    AfterOverflow,
    /// Congestion window full, after packets that were too large for the path.
    PacketSize,
    /// Congestion window below the path's bandwidth-delay product, without any loss.
    #[serde(alias = "below-product")]
    CongestionAvoidance,
    /// Send buffer full of data that was not acknowledged yet.
    SendBuffer,
    /// Pacing delayed the next packet.
    Pacing,
    /// Scheduler used another subflow or waited, although this one had data and room.
    Scheduler,
    /// Path, or its bottleneck, was down.
    Down,
    /// Transport uses a single path, and this is another one.
    SinglePath,
    /// Sender had data, but no subflow on the path.
    NoSubflow,
    /// Handshake of the subflow was not complete.
    Handshake,
    /// Subflow was unused because it is a backup.
    Backup,
    /// Subflow was unused because it is considered stale.
    Stale,
    /// Receiver's processor was busy and packets waited for it.
    #[serde(alias = "receiver-processor")]
    ReceiverCpu,
    /// Sender's processor was busy.
    #[serde(alias = "sender-processor")]
    SenderCpu,
    /// Cause is not known.
    Unknown,
}

/// Group of related parts: a colour in a chart, a line in a table.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PartGroup {
    /// Goodput: payload that applications could read.
    Delivered,
    /// Headers and other overhead around payload.
    Headers,
    /// Payload not readable at the end: waiting for earlier data, or in flight.
    #[serde(alias = "not-readable")]
    Undelivered,
    /// Payload lost, or carried more than once.
    #[serde(alias = "sent-again")]
    Wasted,
    /// Application limited: nothing to send.
    Application,
    /// Receive window closed, with or without head-of-line blocking.
    Window,
    /// Congestion window full, for any cause.
    Congestion,
    /// Send buffer full of unacknowledged data.
    SendBuffer,
    /// Pacing delayed the next packet.
    Pacing,
    /// Scheduler used another subflow or waited.
    Scheduler,
    /// Path could not be used: down, without a subflow, backup, or stale.
    Unusable,
    /// Processor of the sender or receiver was busy.
    #[serde(alias = "processor")]
    Cpu,
    /// Cause is not known.
    Unknown,
}

/// Capacity account of a whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountSummary {
    /// Source of the capacity and of the sender's states.
    pub basis: Basis,
    /// Time that the account covers.
    pub span_ns: u64,
    /// One-sentence explanation for people.
    pub sentence: String,
    /// Sum of all links.
    pub total: Parts,
    /// Accounts of each link and direction in which data was sent.
    pub links: Vec<LinkAccount>,
    /// Size of a window or send buffer that would keep all links busy.
    #[serde(alias = "enough_bytes", default, skip_serializing_if = "Option::is_none")]
    pub sufficient_bytes: Option<u64>,
    /// Scenario setting that lifts the limit named in the sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Paths without a rate limit, and so without a known capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlimited: Vec<String>,
    /// Source of the capacity, where it is an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<CapacityEstimate>,
}

/// Source of an estimated capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityEstimate {
    /// Description of the source, such as `the most that arrived within 20 ms`.
    #[serde(alias = "from")]
    pub source: String,
    /// True if round-trip times never showed a full path, so that the capacity may be larger.
    pub at_least: bool,
}

/// Observed activity and limits of a sender in a period, where the links are not known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SenderActivity {
    /// Time for which each limit restricted the sender.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_ns: BTreeMap<Part, u64>,
    /// Subflows (by number) whose missing data caused the limit `head-of-line-blocking`, with the time.
    #[serde(alias = "waits_for_ns", default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by_ns: Vec<(u32, u64)>,
    /// Time for which round-trip times showed a queue; a path with a queue is at its capacity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_ns: u64,
    /// Payload bytes newly acknowledged, cumulatively or selectively (SACK).
    pub delivered_bytes: u64,
    /// Overhead bytes around the payload, as far as known.
    pub header_bytes: u64,
    /// Payload bytes that the receiver reported as duplicates.
    #[serde(alias = "repeated_bytes", default, skip_serializing_if = "is_zero")]
    pub spurious_bytes: u64,
    /// Highest rate of acknowledged payload within 20 ms, over all connections between the same two
    /// addresses.
    pub peak_bps: u64,
    /// Largest receive window that the peer advertised.
    #[serde(alias = "window_bytes", default, skip_serializing_if = "is_zero")]
    pub peer_window_max_bytes: u64,
    /// Largest size of the send buffer.
    #[serde(alias = "buffer_bytes", default, skip_serializing_if = "is_zero")]
    pub send_buffer_max_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Scenario setting, and the value that lifts a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// Limit that the setting lifts.
    pub part: Part,
    /// Key for `--set`: `hosts.server.receive-buffer`.
    pub key: String,
    /// Value for `--set`: `5.60 MB`.
    pub value: String,
}

/// Capacity account of one direction of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkAccount {
    /// Path, or the bottleneck whose capacity several paths share.
    pub path: String,
    /// Direction of the link: `up` or `down`.
    pub direction: DataDirection,
    /// Paths whose packets the link carries: itself, or those through the bottleneck.
    pub paths: Vec<String>,
    /// Parts of the link's capacity.
    #[serde(flatten)]
    pub parts: Parts,
    /// Time for which each limit restricted the link's senders, where the capacity is an estimate.
    #[serde(alias = "held_ns", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_ns: BTreeMap<Part, u64>,
}

/// Source of the capacity, the carried bytes and the sender's states.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Link model and the exact states of towpath's own stack.
    Model,
    /// Link model and the states that the kernel or a library reports.
    Sampled,
    /// Estimate: the largest rate that was observed.
    Estimate,
}

impl Part {
    /// All parts, in display order.
    pub const ALL: [Self; 28] = [
        Self::Delivered,
        Self::Headers,
        Self::OutOfOrder,
        Self::InFlight,
        Self::Lost,
        Self::Spurious,
        Self::Reinjected,
        Self::Redundant,
        Self::Application,
        Self::PeerWindow,
        Self::HeadOfLineBlocking,
        Self::SlowStart,
        Self::AfterLoss,
        Self::AfterOverflow,
        Self::PacketSize,
        Self::CongestionAvoidance,
        Self::SendBuffer,
        Self::Pacing,
        Self::Scheduler,
        Self::Down,
        Self::SinglePath,
        Self::NoSubflow,
        Self::Handshake,
        Self::Backup,
        Self::Stale,
        Self::ReceiverCpu,
        Self::SenderCpu,
        Self::Unknown,
    ];

    /// Returns true if the link carried these bytes.
    pub fn is_carried(self) -> bool {
        matches!(
            self.group(),
            PartGroup::Delivered | PartGroup::Headers | PartGroup::Undelivered | PartGroup::Wasted
        )
    }

    /// Returns the group that the part belongs to.
    pub fn group(self) -> PartGroup {
        match self {
            Self::Delivered => PartGroup::Delivered,
            Self::Headers => PartGroup::Headers,
            Self::OutOfOrder | Self::InFlight => PartGroup::Undelivered,
            Self::Lost | Self::Spurious | Self::Reinjected | Self::Redundant => PartGroup::Wasted,
            Self::Application => PartGroup::Application,
            Self::PeerWindow | Self::HeadOfLineBlocking => PartGroup::Window,
            Self::SlowStart
            | Self::AfterLoss
            | Self::AfterOverflow
            | Self::PacketSize
            | Self::CongestionAvoidance => PartGroup::Congestion,
            Self::SendBuffer => PartGroup::SendBuffer,
            Self::Pacing => PartGroup::Pacing,
            Self::Scheduler => PartGroup::Scheduler,
            Self::Down
            | Self::SinglePath
            | Self::NoSubflow
            | Self::Handshake
            | Self::Backup
            | Self::Stale => PartGroup::Unusable,
            Self::ReceiverCpu | Self::SenderCpu => PartGroup::Cpu,
            Self::Unknown => PartGroup::Unknown,
        }
    }

    /// Returns the label of the part's table row.
    pub fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Headers => "headers",
            Self::OutOfOrder => "arrived, not readable yet at the end",
            Self::InFlight => "in flight at the end",
            Self::Lost => "carried, then lost",
            Self::Spurious => "spurious retransmission",
            Self::Reinjected => "reinjected although it had arrived",
            Self::Redundant => "copies by the scheduler",
            Self::Application => "nothing to send",
            Self::PeerWindow => "receive window",
            Self::HeadOfLineBlocking => "window full of data waiting for another path",
            Self::SlowStart => "congestion window: slow start",
            Self::AfterLoss => "congestion window: after loss",
            Self::AfterOverflow => "congestion window: after a queue overflow",
            Self::PacketSize => "packets too large for the path",
            Self::CongestionAvoidance => "congestion window: below the bandwidth-delay product",
            Self::SendBuffer => "send buffer",
            Self::Pacing => "pacing",
            Self::Scheduler => "scheduler sent elsewhere or waited",
            Self::Down => "path down",
            Self::SinglePath => "transport uses one path",
            Self::NoSubflow => "no subflow on the path",
            Self::Handshake => "handshake",
            Self::Backup => "backup path",
            Self::Stale => "path considered failed",
            Self::ReceiverCpu => "receiver's processor",
            Self::SenderCpu => "sender's processor",
            Self::Unknown => "unknown",
        }
    }
}

impl Parts {
    /// Returns the bytes of one part.
    pub fn of(&self, part: Part) -> u64 {
        self.bytes.get(&part).copied().unwrap_or(0)
    }

    /// Returns the bytes of all parts in a group.
    pub fn of_group(&self, group: PartGroup) -> u64 {
        let group_parts = self.bytes.iter().filter(|(part, _)| part.group() == group);
        group_parts.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the sum of all parts, which equals the capacity.
    pub fn sum(&self) -> u64 {
        self.bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the bytes that the link carried.
    pub fn carried_bytes(&self) -> u64 {
        let carried = self.bytes.iter().filter(|(part, _)| part.is_carried());
        carried.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the bytes that the link could have carried and did not.
    pub fn unused_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.carried_bytes())
    }

    /// Returns the non-empty parts other than goodput and headers, largest first.
    pub fn missing_parts(&self) -> Vec<(Part, u64)> {
        let is_missing = |part: Part| !matches!(part, Part::Delivered | Part::Headers);
        let mut missing: Vec<_> = { self.bytes.iter() }
            .filter(|(part, bytes)| is_missing(**part) && **bytes > 0)
            .map(|(part, bytes)| (*part, *bytes))
            .collect();
        missing.sort_by_key(|(part, bytes)| (std::cmp::Reverse(*bytes), *part));
        missing
    }

    /// Adds bytes to a part and to the capacity.
    pub fn add(&mut self, part: Part, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry(part).or_default() += bytes;
            self.capacity_bytes += bytes;
        }
    }

    /// Adds another capacity with all its parts.
    pub fn add_all(&mut self, other: &Self) {
        self.capacity_bytes += other.capacity_bytes;
        for (part, bytes) in &other.bytes {
            *self.bytes.entry(*part).or_default() += bytes;
        }
        for (path, bytes) in &other.blocked_by {
            *self.blocked_by.entry(path.clone()).or_default() += bytes;
        }
    }
}
