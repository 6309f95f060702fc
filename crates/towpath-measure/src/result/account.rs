//! The account of capacity: where each byte of link time went. Defined in `docs/metrics.md`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::DataDirection;

/// Where the capacity of one link went, in one direction and one period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Account {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Path, or the bottleneck whose capacity several paths share.
    pub path: String,
    /// `up` or `down`, as of links: from the path's first host, or to it.
    pub direction: DataDirection,
    /// What became of it.
    #[serde(flatten)]
    pub parts: Parts,
}

/// A capacity, in bytes as the link counts them (with its overhead for each packet), and its parts,
/// which sum to it exactly.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Parts {
    /// All of it.
    pub capacity_bytes: u64,
    /// What became of it; parts of nothing are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes: BTreeMap<Part, u64>,
    /// Of [`Part::HeadOfLineBlocking`]: the paths that were waited for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blocked_by: BTreeMap<String, u64>,
}

/// What became of capacity. The first eight are what the link carried, the others what it could have.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Payload that the receiver got for the first time, and its application could read.
    Delivered,
    /// Headers, acknowledgements, handshakes, datagrams of no connection.
    Headers,
    /// Payload that the receiver got for the first time, and that waited for earlier data to the end.
    #[serde(rename = "waiting")]
    OutOfOrder,
    /// Carried, and still on its way at the end.
    #[serde(rename = "under-way")]
    InFlight,
    /// Carried, and then lost.
    Lost,
    /// Sent again on the same subflow, and needless: the first copy had arrived.
    #[serde(rename = "repeated")]
    Spurious,
    /// Sent again on another subflow, and needless there or here.
    Reinjected,
    /// Copies that the scheduler made.
    #[serde(rename = "duplicated")]
    Redundant,
    /// Nothing to send.
    Application,
    /// The peer's receive window.
    PeerWindow,
    /// The connection's window was full of data that waited for another path.
    #[serde(rename = "blocked")]
    HeadOfLineBlocking,
    /// Congestion window: still in slow start.
    SlowStart,
    /// Congestion window: after random loss, or a loss of unknown cause.
    AfterLoss,
    /// Congestion window: after the link's queue overflowed.
    AfterOverflow,
    /// Congestion window: after packets that were too large for the path.
    PacketSize,
    /// Congestion window: below the path's product, and no loss to blame.
    #[serde(rename = "below-product")]
    CongestionAvoidance,
    /// The send buffer was full of data that was not acknowledged yet.
    SendBuffer,
    /// Pacing.
    Pacing,
    /// There was data and room; the scheduler sent it elsewhere, or waited.
    Scheduler,
    /// The path was down.
    Down,
    /// The transport uses one path only.
    SinglePath,
    /// There was data, and no subflow on the path.
    NoSubflow,
    /// The handshake of the subflow was not complete.
    Handshake,
    /// The path is a backup.
    Backup,
    /// The subflow was taken for dead.
    Stale,
    /// The receiver's processor was behind.
    #[serde(rename = "receiver-processor")]
    ReceiverCpu,
    /// The sender's processor was busy.
    #[serde(rename = "sender-processor")]
    SenderCpu,
    /// Nobody knows.
    Unknown,
}

/// Parts that belong together: a colour in a chart, a line in a table.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PartGroup {
    /// Goodput.
    Delivered,
    /// Headers.
    Headers,
    /// Not there at the end: arrived and waiting, or on its way.
    #[serde(rename = "not-readable")]
    Undelivered,
    /// Lost, repeated, reinjected, duplicated.
    #[serde(rename = "sent-again")]
    Wasted,
    /// Nothing to send.
    Application,
    /// The peer's window, blocked by another path or not.
    Window,
    /// The congestion window.
    Congestion,
    /// The send buffer.
    SendBuffer,
    /// Pacing.
    Pacing,
    /// The scheduler.
    Scheduler,
    /// The path could not be used.
    Unusable,
    /// A processor.
    #[serde(rename = "processor")]
    Cpu,
    /// Nobody knows.
    Unknown,
}

/// The account of a whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountSummary {
    /// How the capacity is known.
    pub basis: Basis,
    /// The time that is accounted for.
    pub span_ns: u64,
    /// One sentence for people.
    pub sentence: String,
    /// All links together.
    pub total: Parts,
    /// Each link and direction in which data was sent.
    pub links: Vec<LinkAccount>,
    /// A window or send buffer that would keep all links busy.
    #[serde(rename = "enough_bytes", default, skip_serializing_if = "Option::is_none")]
    pub sufficient_bytes: Option<u64>,
    /// The key of the scenario that lifts the limit which the sentence advises to lift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Paths without a rate limit, which have no capacity to account for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlimited: Vec<String>,
    /// What the capacity was taken from, where it is an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<CapacityEstimate>,
}

/// What an estimated capacity was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityEstimate {
    /// In words, such as `the most that arrived within 20 ms`.
    #[serde(rename = "from")]
    pub source: String,
    /// Round trips never showed that a path was full, so it may well carry more.
    pub at_least: bool,
}

/// What a sender was seen to do and to wait for in a period, where nobody knows its links.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SenderActivity {
    /// For how long each limit held it back, in nanoseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits_ns: BTreeMap<Part, u64>,
    /// Of `blocked`: the subflows (by number) whose data were waited for, and for how long.
    #[serde(rename = "waits_for_ns", default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by_ns: Vec<(u32, u64)>,
    /// For how long its round trips showed a queue: a path with one carries what it can.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_ns: u64,
    /// Payload bytes that were newly acknowledged, selectively or not.
    pub delivered_bytes: u64,
    /// Everything around them, as far as it is known.
    pub header_bytes: u64,
    /// Payload of which the receiver says that it had it already.
    #[serde(rename = "repeated_bytes", default, skip_serializing_if = "is_zero")]
    pub spurious_bytes: u64,
    /// The most payload that was acknowledged within 20 ms, as a rate: of all connections between the
    /// same two addresses.
    pub peak_bps: u64,
    /// The largest window that the peer offered.
    #[serde(rename = "window_bytes", default, skip_serializing_if = "is_zero")]
    pub peer_window_max_bytes: u64,
    /// The largest send buffer.
    #[serde(rename = "buffer_bytes", default, skip_serializing_if = "is_zero")]
    pub send_buffer_max_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A key of the scenario, and the value that lifts a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// The limit.
    pub part: Part,
    /// As `--set` takes it: `hosts.server.receive-buffer`.
    pub key: String,
    /// As `--set` takes it: `5.60 MB`.
    pub value: String,
}

/// The account of one direction of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkAccount {
    /// Path, or the bottleneck whose capacity several paths share.
    pub path: String,
    /// `up` or `down`.
    pub direction: DataDirection,
    /// The paths whose packets it carries: itself, or those through the bottleneck.
    pub paths: Vec<String>,
    /// What became of its capacity.
    #[serde(flatten)]
    pub parts: Parts,
    /// For how long each limit held its senders back, in nanoseconds, where the capacity is an estimate.
    #[serde(rename = "held_ns", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limit_ns: BTreeMap<Part, u64>,
}

/// How the capacity is known, and what was carried.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// From the link model, and our own stack's states: exact.
    Model,
    /// From the link model, and what the kernel or a library tells of its states.
    Sampled,
    /// An estimate: the largest rate that was seen.
    Estimate,
}

impl Part {
    /// All, in the order in which they are told.
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

    /// Whether the link carried it.
    pub fn is_carried(self) -> bool {
        matches!(
            self.group(),
            PartGroup::Delivered | PartGroup::Headers | PartGroup::Undelivered | PartGroup::Wasted
        )
    }

    /// What it belongs to.
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

    /// A line of a table.
    pub fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Headers => "headers",
            Self::OutOfOrder => "arrived, not readable yet at the end",
            Self::InFlight => "on its way at the end",
            Self::Lost => "carried, then lost",
            Self::Spurious => "sent again in vain",
            Self::Reinjected => "sent again on another path in vain",
            Self::Redundant => "copies by the scheduler",
            Self::Application => "nothing to send",
            Self::PeerWindow => "receive window",
            Self::HeadOfLineBlocking => "window full of data that waits for another path",
            Self::SlowStart => "congestion window: slow start",
            Self::AfterLoss => "congestion window: after loss",
            Self::AfterOverflow => "congestion window: after a queue overflow",
            Self::PacketSize => "packets too large for the path",
            Self::CongestionAvoidance => "congestion window: below the path's product",
            Self::SendBuffer => "send buffer",
            Self::Pacing => "pacing",
            Self::Scheduler => "scheduler sent elsewhere or waited",
            Self::Down => "path down",
            Self::SinglePath => "transport uses one path",
            Self::NoSubflow => "no subflow on the path",
            Self::Handshake => "handshake",
            Self::Backup => "backup path",
            Self::Stale => "path taken for dead",
            Self::ReceiverCpu => "receiver's processor",
            Self::SenderCpu => "sender's processor",
            Self::Unknown => "not known",
        }
    }
}

impl Parts {
    /// Bytes of one part.
    pub fn of(&self, part: Part) -> u64 {
        self.bytes.get(&part).copied().unwrap_or(0)
    }

    /// Bytes of the parts that belong together.
    pub fn of_group(&self, group: PartGroup) -> u64 {
        let own = self.bytes.iter().filter(|(part, _)| part.group() == group);
        own.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// The sum of all parts: the capacity.
    pub fn sum(&self) -> u64 {
        self.bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes that the link carried.
    pub fn carried_bytes(&self) -> u64 {
        let carried = self.bytes.iter().filter(|(part, _)| part.is_carried());
        carried.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Bytes that it could have carried and did not.
    pub fn unused_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.carried_bytes())
    }

    /// What was carried beside goodput and headers, and what was not carried, largest first.
    pub fn missing_parts(&self) -> Vec<(Part, u64)> {
        let told = |part: Part| !matches!(part, Part::Delivered | Part::Headers);
        let mut all: Vec<_> = { self.bytes.iter() }
            .filter(|(part, bytes)| told(**part) && **bytes > 0)
            .map(|(part, bytes)| (*part, *bytes))
            .collect();
        all.sort_by_key(|(part, bytes)| (std::cmp::Reverse(*bytes), *part));
        all
    }

    /// Adds to a part, and to the capacity.
    pub fn add(&mut self, part: Part, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry(part).or_default() += bytes;
            self.capacity_bytes += bytes;
        }
    }

    /// Adds all of another capacity.
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
