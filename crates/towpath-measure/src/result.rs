//! A result: one record a line (JSON Lines), the same in every world.
//!
//! The order of a file: `meta`, then `interval`, `subflow`, `link` and `event` records in order of
//! time, then `account` (in order of time), `message` and `probe` (in order of when they were due),
//! `datagrams`, `counter`, `interface`, `noise`, `sequence`, and `summary` last. Times are nanoseconds
//! since the start of the traffic; every number says its unit in its name. `up` is the direction from the
//! host that opened the connection (for links: from the path's first host).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{DataDirection, Transport, World};

mod account;
mod capture;
mod connection;
mod datagrams;
mod latency;
mod message;
mod probe;
mod repeated;
mod sequence;

pub use account::{
    Account, AccountSummary, Advice, Basis, CapacityEstimate, LinkAccount, Part, PartGroup, Parts,
    SenderActivity,
};
pub use capture::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, SubflowDirection,
    SubflowHandover,
};
pub use connection::{ConnectionState, ReinjectionCause, StackStats};
pub use datagrams::{CallFigures, DatagramFigures, DatagramRow, DelayBasis};
pub use latency::{Load, LoadPath, LoadPhase};
pub use message::{DelayStats, Message, MessageStats, PageStats, VideoPlan, VideoStats};
pub use probe::{PathStats, Probe};
pub use repeated::{CpuAccounting, CpuTime, OrderKind, RunOrder};
pub use sequence::{Sequence, SequenceKind, SequenceMark, SequenceMarks, SequenceView};

/// Version of the result format; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Condition ([`Meta::conditions`]) of a run that was simulated because this machine cannot emulate;
/// its value is the reason.
pub const SIMULATED_BECAUSE: &str = "simulated instead of emulated";

/// One line of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// Conditions of the run; the first line.
    Meta(Box<Meta>),
    /// Goodput of one stream in one sampling period, seen by the receiver.
    Interval(Interval),
    /// State of one subflow at the end of one sampling period.
    Subflow(Box<Subflow>),
    /// State of one direction of an emulated or simulated link.
    Link(Link),
    /// Where the capacity of a link went in one period.
    Account(Box<Account>),
    /// Something that happened.
    Event(Event),
    /// A request of a flow that exchanges messages, with what became of it.
    Message(Message),
    /// A datagram over a path, with what became of it.
    Probe(Probe),
    /// Datagrams of a constant rate, period by period.
    Datagrams(DatagramRow),
    /// A connection of a capture, with what no stack told.
    Capture(Box<CapturedConnection>),
    /// A time–sequence picture of a subflow or connection.
    Sequence(Box<Sequence>),
    /// A kernel counter that changed during the run.
    Counter(Counter),
    /// Totals of one interface at the end.
    Interface(Interface),
    /// How exactly the emulator kept time.
    #[serde(rename = "noise")]
    Timing(EmulatorTiming),
    /// The figures that a reader wants first; the last line.
    Summary(Box<Summary>),
}

/// Conditions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Meta {
    /// [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Identifier of the run, such as `two-links-emu-mptcp-1`.
    pub run: String,
    /// Scenario name.
    pub scenario: String,
    /// Scenario description.
    pub description: String,
    /// The scenario as it was run.
    pub scenario_toml: String,
    /// World.
    pub world: World,
    /// `kernel` or `towpath`.
    pub stack: String,
    /// Transport.
    pub transport: Transport,
    /// Number of the repetition, from 1.
    pub repeat: u32,
    /// Seed.
    pub seed: u64,
    /// Version of towpath.
    pub towpath: String,
    /// Kernel release.
    pub kernel: String,
    /// Planned length of the traffic.
    pub duration_ns: u64,
    /// Sampling period.
    pub sample_ns: u64,
    /// Congestion control asked for.
    pub congestion_control: String,
    /// Host names.
    pub hosts: Vec<String>,
    /// Paths.
    pub paths: Vec<MetaPath>,
    /// Flows.
    pub flows: Vec<MetaFlow>,
    /// Planned events.
    pub timeline: Vec<MetaEvent>,
    /// Place among the runs that were made with it; absent when it was made alone, or at the same
    /// time as others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<RunOrder>,
    /// Everything else that a reader must know to judge or repeat the run, by name: emulator
    /// back-end, priority, processors, settings per host.
    pub conditions: BTreeMap<String, String>,
}

/// A path as the result's reader needs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaPath {
    /// Name.
    pub name: String,
    /// Names of the two hosts.
    pub between: [String; 2],
    /// Rate from the first host, if limited.
    pub up_rate_bps: Option<u64>,
    /// Rate from the second host, if limited.
    pub down_rate_bps: Option<u64>,
    /// One-way delay from the first host.
    pub up_delay_ns: u64,
    /// One-way delay from the second host.
    pub down_delay_ns: u64,
    /// Whether it is a backup path.
    pub backup: bool,
    /// One line for people: `40 Mbit/s, 15 ms, queue 80 ms`.
    pub text: String,
}

/// A flow as the result's reader needs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaFlow {
    /// Number, from 0.
    pub flow: u32,
    /// Host that opens the connection.
    pub from: String,
    /// Host that accepts it.
    pub to: String,
    /// `bulk`, `iperf`, `interactive`, …; `run` for a command.
    pub pattern: String,
    /// Who sends; who asks, where messages are exchanged.
    pub direction: DataDirection,
    /// Parallel connections.
    pub streams: u32,
    /// Path on which the connection starts.
    pub via: String,
    /// Of a video.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoPlan>,
}

/// A planned event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaEvent {
    /// When.
    pub at_ns: u64,
    /// Path or bottleneck.
    pub target: String,
    /// `down`, `up`, `rate 5 Mbit/s`, …
    pub text: String,
}

/// Goodput of one stream in one sampling period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Flow number.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// `up` or `down`, never `both`.
    pub direction: DataDirection,
    /// Application bytes that the receiver read.
    pub bytes: u64,
    /// State of the connection, where the stack tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionState>,
}

/// Which end of a subflow's data a record describes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum SubflowEnd {
    /// The end that sends: srtt, cwnd and retransmissions are meant to be read here.
    Sender,
    /// The end that receives: goodput is meant to be read here.
    Receiver,
}

/// State of a subflow. Plain TCP has one subflow, number 0. Totals count from its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Subflow {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Flow number.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// `up` or `down`: the data that the record is about.
    pub direction: DataDirection,
    /// Which end.
    pub side: SubflowEnd,
    /// Number of the subflow within the connection, in order of appearance; never reused. The same
    /// on both sides.
    pub subflow: u32,
    /// Path that it uses.
    pub path: String,
    /// TCP state, such as `established` or `syn-sent`.
    pub state: String,
    /// Whether it is a backup subflow.
    pub backup: bool,
    /// Payload bytes of this subflow in this period: received (receiver side) or acknowledged
    /// (sender side). Copies that another subflow also carried count here, not in goodput.
    pub bytes: u64,
    /// Payload bytes sent in total, retransmissions included (sender side).
    pub bytes_sent: u64,
    /// Payload bytes acknowledged in total (sender side).
    pub bytes_acked: u64,
    /// Payload bytes received in total (receiver side).
    pub bytes_received: u64,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Consecutive timeouts without an answer.
    pub backoff: u32,
    /// Congestion window.
    pub cwnd_packets: u32,
    /// Slow-start threshold.
    pub ssthresh_packets: u32,
    /// Packets sent and neither acknowledged nor taken for lost.
    pub in_flight_packets: u32,
    /// Retransmitted packets in total.
    pub retransmissions: u32,
    /// Maximum segment size.
    pub mss_bytes: u32,
    /// What held the sender back (sender side, between two real hosts).
    #[serde(rename = "held", default, skip_serializing_if = "Option::is_none")]
    pub sender_activity: Option<Box<SenderActivity>>,
}

/// State of one direction of a link; totals count from the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// When.
    pub t_ns: u64,
    /// Path or bottleneck.
    pub path: String,
    /// `up` or `down`.
    pub direction: DataDirection,
    /// IP packets that entered.
    pub offered_packets: u64,
    /// IP bytes that left.
    pub delivered_bytes: u64,
    /// IP packets that left.
    pub delivered_packets: u64,
    /// Dropped because the queue was full (AQM included).
    pub dropped_queue_packets: u64,
    /// Dropped by random loss.
    pub dropped_loss_packets: u64,
    /// Dropped because the link was down.
    pub dropped_down_packets: u64,
    /// Bytes waiting.
    pub backlog_bytes: u64,
}

/// Kind of an event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// From the scenario's timeline.
    Timeline,
    /// A connection was opened, closed, refused.
    Flow,
    /// A subflow appeared, changed or vanished.
    Subflow,
    /// The kernel's path manager.
    PathManager,
    /// An interface.
    Link,
    /// An address.
    Address,
    /// Nothing arrived for a while.
    Stall,
    /// What the scheduler did in a period: switches between subflows, bytes in a row.
    Scheduler,
    /// Data was sent again on another subflow.
    Reinjection,
    /// A path was slowed down because it blocked the window (M2).
    Penalisation,
    /// The connection-level window was full for a while; the time is when it opened again.
    Window,
    /// The connection goes on as plain TCP.
    Fallback,
}

impl EventKind {
    /// Whether a stack of our own decides so all the time, sample after sample.
    pub fn is_decision(self) -> bool {
        match self {
            Self::Scheduler | Self::Reinjection | Self::Penalisation | Self::Window => true,
            Self::Timeline
            | Self::Flow
            | Self::Subflow
            | Self::PathManager
            | Self::Link
            | Self::Address
            | Self::Stall
            | Self::Fallback => false,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When.
    pub t_ns: u64,
    /// Kind.
    pub kind: EventKind,
    /// Host that saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Path concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// One line for people: `wifi goes down`, `subflow established on cellular`.
    pub text: String,
    /// The source's own fields: token, addresses, reset reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, String>,
}

/// A kernel counter that changed during the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counter {
    /// Host.
    pub host: String,
    /// Name as in `/proc/net/netstat`, with its group: `MPTcpExt.MPJoinSynAckRx`.
    pub name: String,
    /// Value before the traffic.
    pub before: u64,
    /// Value after it.
    pub after: u64,
}

/// Totals of one interface at the end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Interface {
    /// Host.
    pub host: String,
    /// Interface, named after its path.
    pub interface: String,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received (super-segments count once).
    pub rx_packets: u64,
    /// Packets sent (super-segments count once).
    pub tx_packets: u64,
    /// Dropped on receipt.
    pub rx_dropped: u64,
    /// Dropped on sending.
    pub tx_dropped: u64,
}

/// How exactly the emulator kept time: lateness is when a packet was delivered minus when the link
/// model said it leaves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct EmulatorTiming {
    /// Packets delivered.
    pub packets: u64,
    /// Median lateness.
    pub lateness_p50_ns: u64,
    /// 90th percentile.
    pub lateness_p90_ns: u64,
    /// 99th percentile.
    pub lateness_p99_ns: u64,
    /// 99.9th percentile.
    pub lateness_p999_ns: u64,
    /// Largest.
    pub lateness_max_ns: u64,
    /// Packets that the emulator itself lost (not the link model).
    pub lost_packets: u64,
    /// Load average over one minute at the end.
    pub load: f64,
    /// Processor seconds that the emulator used.
    pub emulator_cpu_s: f64,
    /// How the emulator waited for what was due; older results do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WakeupTiming>,
    /// Share of the processors' time that other processes used, 0 to 1.
    #[serde(rename = "foreign_cpu")]
    pub other_cpu_share: f64,
    /// Whether the run was too late or too noisy to be trusted.
    #[serde(rename = "degraded")]
    pub unreliable: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How the emulator's thread waited until packets were due: asleep at first, then awake.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WakeupTiming {
    /// Seconds that the emulator ran.
    pub ran_s: f64,
    /// Seconds that it waited awake, so that it could not be woken late; they are part of
    /// `emulator_cpu_s`.
    pub awake_s: f64,
    /// Median of how long before something was due it wanted to be awake.
    pub early_p50_ns: u64,
    /// 99th percentile.
    pub early_p99_ns: u64,
    /// Median of how much later than asked for it was woken.
    pub wake_up_p50_ns: u64,
    /// 99th percentile.
    pub wake_up_p99_ns: u64,
}

/// The figures that a reader wants first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Whether every flow completed and every expectation held.
    pub ok: bool,
    /// One sentence.
    pub verdict: String,
    /// One entry for each flow and data direction.
    pub flows: Vec<FlowSummary>,
    /// One entry for each subflow and data direction.
    pub subflows: Vec<SubflowSummary>,
    /// One entry for each path over which datagrams were sent beside the transport.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStats>,
    /// Whether Multipath TCP was really used.
    pub multipath: MultipathUse,
    /// Processor time of both ends, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuTime>,
    /// Of what the paths could have carried, where it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Box<AccountSummary>>,
    /// What to check before trusting the result.
    pub warnings: Vec<Warning>,
    /// Expectations with what was measured.
    pub expectations: Vec<ExpectationResult>,
}

/// Figures of one flow in one direction (its parallel streams taken together).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowSummary {
    /// Flow number.
    pub flow: u32,
    /// `up` or `down`.
    pub direction: DataDirection,
    /// Application bytes that the receiver read.
    pub bytes: u64,
    /// From the start of the flow to its end (or to the last byte of a sized transfer).
    pub duration_ns: u64,
    /// `bytes` over `duration_ns`.
    pub goodput_bps: f64,
    /// Whether the pattern ended as planned: a sized transfer whole, a timed one still delivering in
    /// its last second.
    pub completed: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// From the start of the flow until the connection was open.
    pub connect_ns: Option<u64>,
    /// Gaps in delivery.
    pub stall: Stall,
    /// One entry for each disruptive timeline event.
    pub recoveries: Vec<Recovery>,
    /// Congestion control read back from the sender's subflows.
    pub congestion_control: Vec<String>,
    /// Retransmitted packets, all subflows.
    pub retransmissions: u64,
    /// What the connection level did, where the stack tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackStats>,
    /// How late answers were, where messages are exchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<MessageStats>,
    /// What became of datagrams, where a constant rate of them is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramFigures>,
}

/// Gaps in delivery, seen by the receiver; see `docs/metrics.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Longest time without a byte, between the first byte and the end of the flow.
    pub longest_ns: u64,
    /// When it began.
    pub longest_at_ns: u64,
    /// Sum of all gaps of 100 ms and more.
    pub total_ns: u64,
    /// Their number.
    pub count: u32,
}

/// What a disruptive event did to a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    /// When the event happened.
    pub event_ns: u64,
    /// The event.
    pub event: String,
    /// What the flow is expected to reach again: the smaller of its earlier goodput and what the
    /// remaining paths carry.
    pub reference_bps: f64,
    /// Payload that the paths which are up after the event carry; absent when that has no limit,
    /// is not known, or no path is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<f64>,
    /// From the event until goodput is back to 90 % of the reference; `None` when it never was.
    pub t90_ns: Option<u64>,
    /// Bytes that the reference would have delivered more until then (or until the end).
    pub deficit_bytes: u64,
    /// Longest gap that began or lasted after the event.
    pub longest_gap_ns: u64,
    /// From the event until the end of the last gap of 100 ms and more that it caused: gaps that
    /// follow each other within 1.5 s. 0 without such a gap; `None` when the last one never ended.
    #[serde(rename = "smooth_ns", default)]
    pub last_stall_end_ns: Option<u64>,
}

/// Totals of one subflow in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowSummary {
    /// Flow number.
    pub flow: u32,
    /// Stream number.
    pub stream: u32,
    /// `up` or `down`.
    pub direction: DataDirection,
    /// Number of the subflow.
    pub subflow: u32,
    /// Path.
    pub path: String,
    /// Address and port of the host that opened the connection.
    pub local: String,
    /// Address and port of the other.
    pub remote: String,
    /// Whether it is a backup subflow.
    pub backup: bool,
    /// Payload bytes that arrived on it.
    pub bytes: u64,
    /// Its part of all subflows' bytes, 0 to 1.
    pub share: f64,
    /// Retransmitted packets.
    pub retransmissions: u64,
    /// Last smoothed round-trip time.
    pub srtt_us: u32,
    /// When it was first seen.
    pub first_seen_ns: u64,
    /// When it vanished, if before the end.
    pub closed_ns: Option<u64>,
}

/// Proof that several paths were used, or why not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MultipathUse {
    /// Whether the transport is a multipath one.
    pub requested: bool,
    /// Whether every connection spoke it to the end (no fallback).
    pub used: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Paths on which payload arrived at the receiver.
    pub paths_used: Vec<String>,
    /// What says so, line by line.
    pub evidence: Vec<String>,
}

/// Something to check before the result is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// What.
    pub text: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// An expectation with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectationResult {
    /// The expectation as written.
    pub text: String,
    /// What was measured, in the expectation's unit, for people.
    pub measured: String,
    /// Whether it held; `None` when there was nothing to measure.
    #[serde(rename = "held")]
    pub passed: Option<bool>,
}
