//! Result format: JSON Lines, one record per line, the same for simulated, emulated and real
//! networks.
//!
//! Records appear in this order: `meta`, then `interval`, `subflow`, `link` and `event` by time.
//! `account` follows by time, then `message` and `probe` by due time. `datagrams`, `counter`,
//! `interface`, `timing` and `sequence` follow, and `summary` is last. Times are nanoseconds since
//! the start of the traffic; the suffix of a numeric field is its unit. `up` is the direction from
//! the host that opened the connection (for links: from the path's first host).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::{DataDirection, Transport, VideoPlan, World};

mod account;
pub mod accounting;
mod capture;
mod connection;
mod datagrams;
pub mod device;
pub mod expect;
pub mod format;
pub mod frames;
pub mod input;
mod latency;
pub mod limits;
mod link;
mod message;
mod meta;
pub mod metrics;
mod multipath;
pub mod order;
pub mod prefix;
mod probe;
mod repeated;
mod rng;
mod run_state;
mod sequence;
pub mod store;
pub mod upload;

pub use account::{
    Account, AccountSummary, Advice, Basis, CapacityEstimate, LinkAccount, Part, PartGroup, Parts,
    SenderActivity,
};
pub use capture::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, CutEvidence,
    SubflowDirection, SubflowHandover, max_listed_subflows,
};
pub use connection::{ConnectionState, ReinjectionCause, StackStats};
pub use datagrams::{CallStats, DatagramRow, DatagramStats, DelayBasis};
pub use latency::{LoadPath, LoadPhase};
pub use link::Link;
pub use message::{DelayStats, Message, MessageStats, PageStats, VideoStats};
pub use meta::path_text;
pub use multipath::{ConnectionUse, FlowMultipathUse, MultipathUse, UnusedFlows};
pub use probe::{PathStats, Probe};
pub use repeated::{CpuAccounting, CpuTime, OrderKind, RunOrder};
pub use run_state::{INTERRUPTED_WARNING, INVALID_PREFIX, NETWORK_LOSS_PREFIX};
pub use sequence::{Sequence, SequenceKind, SequenceMark, SequenceMarks, SequenceView};

/// Version of the result format, raised when the meaning of a field changes.
pub const SCHEMA_VERSION: u32 = 1;

/// Condition ([`Meta::conditions`]) of a run that was simulated because this machine cannot
/// emulate. The condition's value is the reason.
pub const SIMULATED_BECAUSE: &str = "simulated instead of emulated";

/// One line of a result file; the field `type` names the kind of record.
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
    /// Use of one link's capacity in one sampling period.
    Account(Box<Account>),
    /// Event during the run, planned or observed.
    Event(Event),
    /// Request of a request-reply flow, with its times of delivery and reply.
    Message(Message),
    /// Datagram sent over a single path and echoed by the other host (`udping`).
    Probe(Probe),
    /// Datagrams of a constant-rate flow, counted for each period.
    Datagrams(DatagramRow),
    /// Connection of a packet capture, with metrics that only packets show.
    Capture(Box<CapturedConnection>),
    /// Time–sequence plot of a subflow or connection.
    Sequence(Box<Sequence>),
    /// Kernel counter that changed during the run.
    Counter(Counter),
    /// Byte and packet totals of one interface at the end of the run.
    Interface(Interface),
    /// Timing accuracy of the emulator.
    #[serde(alias = "noise")]
    Timing(EmulatorTiming),
    /// Main metrics and verdict of the run; the last line.
    Summary(Box<Summary>),
}

/// Conditions of a run: scenario, machine, software and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Meta {
    /// Version of the result format, currently 1.
    pub schema: u32,
    /// Identifier of the run, such as `two-links-emu-mptcp-1`.
    pub run: String,
    /// Name of the scenario that was run.
    pub scenario: String,
    /// Description from the scenario file.
    pub description: String,
    /// Complete scenario that was run, as TOML.
    pub scenario_toml: String,
    /// Environment of the run: simulated, emulated or real hosts.
    pub world: World,
    /// Protocol implementation: `kernel` or `towpath`.
    pub stack: String,
    /// Transport protocol of the flows.
    pub transport: Transport,
    /// Number of the repetition, from 1.
    pub repeat: u32,
    /// Seed of the run's random numbers.
    pub seed: u64,
    /// Version of towpath that made the run.
    pub towpath: String,
    /// Kernel release of the machine.
    pub kernel: String,
    /// Start of the run in microseconds of Unix time. Absent in simulated runs, whose bytes do not
    /// depend on the time, and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_us: Option<u64>,
    /// Planned duration of the traffic.
    pub duration_ns: u64,
    /// Sampling period of the time series.
    pub sample_ns: u64,
    /// Congestion control algorithm that was requested.
    pub congestion_control: String,
    /// Names of the hosts in the scenario.
    pub hosts: Vec<String>,
    /// Paths between the hosts, as configured.
    pub paths: Vec<MetaPath>,
    /// Flows of the run, by number.
    pub flows: Vec<MetaFlow>,
    /// Planned events of the scenario's timeline.
    pub timeline: Vec<MetaEvent>,
    /// Position among the runs of the same session. Absent for a single run and for runs made in
    /// parallel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<RunOrder>,
    /// Other conditions needed to judge or repeat the run, by name: emulator back-end, priority,
    /// processors, settings per host.
    pub conditions: BTreeMap<String, String>,
}

/// Configuration of a path at the start of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaPath {
    /// Name of the path in the scenario.
    pub name: String,
    /// Names of the path's first and second host.
    pub between: [String; 2],
    /// Rate from the first host; absent if unlimited.
    pub up_rate_bps: Option<u64>,
    /// Rate from the second host; absent if unlimited.
    pub down_rate_bps: Option<u64>,
    /// One-way delay from the first host.
    pub up_delay_ns: u64,
    /// One-way delay from the second host.
    pub down_delay_ns: u64,
    /// True if the path is a backup path.
    pub backup: bool,
    /// One-line description: `40 Mbit/s, 15 ms, queue 80 ms`.
    pub text: String,
}

/// Configuration of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaFlow {
    /// Flow number, counted from 0.
    pub flow: u32,
    /// Host that opens the connection.
    pub from: String,
    /// Host that accepts the connection.
    pub to: String,
    /// `bulk`, `iperf`, `interactive`, …; `run` for a command.
    pub pattern: String,
    /// Direction of the data; for request-reply flows, the direction of the requests.
    pub direction: DataDirection,
    /// Number of parallel connections.
    pub streams: u32,
    /// Path on which the connection starts.
    pub via: String,
    /// Plan of the video; absent for other patterns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoPlan>,
}

/// Planned event of the scenario's timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetaEvent {
    /// Planned time of the event.
    pub at_ns: u64,
    /// Name of the path or bottleneck.
    pub target: String,
    /// Change that is made: `down`, `up`, `rate 5 Mbit/s`, …
    pub text: String,
}

/// Goodput of one stream in one sampling period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// End of the sampling period.
    pub t_ns: u64,
    /// Length of the sampling period.
    pub span_ns: u64,
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// `up` or `down`, never `both`.
    pub direction: DataDirection,
    /// Application bytes that the receiver read.
    pub bytes: u64,
    /// Connection-level state, where the stack reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionState>,
}

/// End of a subflow at which a record was sampled.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum SubflowEnd {
    /// Sending end, authoritative for srtt, cwnd and retransmissions.
    Sender,
    /// Receiving end, authoritative for goodput.
    Receiver,
}

/// State of a subflow. Plain TCP has one subflow, number 0. Totals count from the subflow's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Subflow {
    /// End of the sampling period.
    pub t_ns: u64,
    /// Length of the sampling period.
    pub span_ns: u64,
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// Direction of the data that the record describes: `up` or `down`.
    pub direction: DataDirection,
    /// End at which the subflow was sampled.
    pub side: SubflowEnd,
    /// Number of the subflow within the connection, in order of appearance. Never reused, and the
    /// same at both ends.
    pub subflow: u32,
    /// Name of the path that the subflow uses.
    pub path: String,
    /// TCP state, such as `established` or `syn-sent`.
    pub state: String,
    /// True if the subflow is a backup.
    pub backup: bool,
    /// Payload bytes of this subflow in this period: received (receiver side) or acknowledged
    /// (sender side). Data that another subflow also carried counts here, but only once in goodput.
    pub bytes: u64,
    /// Payload bytes sent in total, retransmissions included (sender side).
    pub bytes_sent: u64,
    /// Payload bytes acknowledged in total (sender side).
    pub bytes_acked: u64,
    /// Payload bytes received in total (receiver side).
    pub bytes_received: u64,
    /// Smoothed round-trip time (srtt).
    pub srtt_us: u32,
    /// Variation of the round-trip time (RTTVAR).
    pub rttvar_us: u32,
    /// Current retransmission timeout (RTO).
    pub rto_us: u32,
    /// Consecutive retransmission timeouts without an acknowledgement.
    pub backoff: u32,
    /// Congestion window in packets (cwnd).
    pub cwnd_packets: u32,
    /// Slow-start threshold in packets (ssthresh).
    pub ssthresh_packets: u32,
    /// Packets in flight: sent, and neither acknowledged nor considered lost.
    pub in_flight_packets: u32,
    /// Retransmitted packets in total.
    pub retransmissions: u32,
    /// Maximum segment size (MSS) of the subflow.
    pub mss_bytes: u32,
    /// Limits of the sender in this period (sender side, between two real hosts).
    #[serde(alias = "held", default, skip_serializing_if = "Option::is_none")]
    pub sender_activity: Option<Box<SenderActivity>>,
}

/// Category of an event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// Planned change from the scenario's timeline.
    Timeline,
    /// Opening, closing or refusal of a connection.
    Flow,
    /// Appearance, change or end of a subflow.
    Subflow,
    /// Message of the kernel's path manager.
    PathManager,
    /// State change of an interface.
    Link,
    /// Addition, removal or change of an address.
    Address,
    /// Gap in delivery: the receiver got no data for a while.
    Stall,
    /// Scheduler activity in a period: switches between subflows, bytes in a row.
    Scheduler,
    /// Data was reinjected on another subflow.
    Reinjection,
    /// The congestion window of a path was cut because the path blocked the connection's window
    /// (M2).
    Penalisation,
    /// The connection-level window was full for a while; the time is when the window opened again.
    Window,
    /// The connection fell back to plain TCP.
    Fallback,
}

impl EventKind {
    /// Returns true for decisions that towpath's own stack makes continuously, sample after sample.
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

/// Event during a run, planned or observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Time of the event.
    pub t_ns: u64,
    /// Category of the event.
    pub kind: EventKind,
    /// Host that reported the event; absent for events of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Path that the event concerns, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// One-line description: `wifi goes down`, `subflow established on cellular`.
    pub text: String,
    /// Source-specific fields: token, addresses, reset reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, String>,
}

/// Kernel counter that changed during the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counter {
    /// Host whose kernel counted.
    pub host: String,
    /// Name as in `/proc/net/netstat`, with its group: `MPTcpExt.MPJoinSynAckRx`.
    pub name: String,
    /// Value before the traffic started.
    pub before: u64,
    /// Value after the traffic ended.
    pub after: u64,
}

/// Byte and packet totals of one interface at the end of the run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Interface {
    /// Host that has the interface.
    pub host: String,
    /// Interface name, taken from its path.
    pub interface: String,
    /// Bytes received on the interface.
    pub rx_bytes: u64,
    /// Bytes sent on the interface.
    pub tx_bytes: u64,
    /// Packets received; a super-segment (GRO) counts once.
    pub rx_packets: u64,
    /// Packets sent; a super-segment (GSO) counts once.
    pub tx_packets: u64,
    /// Packets dropped on receipt.
    pub rx_dropped: u64,
    /// Packets dropped on sending.
    pub tx_dropped: u64,
}

/// Timing accuracy of the emulator. Lateness is the delay between a packet's departure in the link
/// model and its actual delivery.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct EmulatorTiming {
    /// Packets that the emulator delivered.
    pub packets: u64,
    /// Median lateness of the delivered packets.
    pub lateness_p50_ns: u64,
    /// 90th percentile of the lateness.
    pub lateness_p90_ns: u64,
    /// 99th percentile of the lateness.
    pub lateness_p99_ns: u64,
    /// 99.9th percentile of the lateness.
    pub lateness_p999_ns: u64,
    /// Largest lateness of any packet.
    pub lateness_max_ns: u64,
    /// Packets lost by the emulator itself, not by the link model.
    pub lost_packets: u64,
    /// One-minute load average of the machine at the end of the run.
    pub load: f64,
    /// Processor seconds that the emulator used.
    pub emulator_cpu_s: f64,
    /// Wake-up timing of the emulator's thread; absent in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WakeupTiming>,
    /// Share of the processors' time that other processes used, 0 to 1.
    #[serde(alias = "foreign_cpu")]
    pub other_cpu_share: f64,
    /// True if packets were too late or the machine too busy for a reliable result.
    #[serde(alias = "degraded")]
    pub unreliable: bool,
    /// Reason why the run is unreliable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Wake-up timing of the emulator's thread. The thread sleeps at first, then waits awake until a
/// packet is due.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WakeupTiming {
    /// Running time of the emulator, in seconds.
    pub ran_s: f64,
    /// Seconds spent waiting awake to avoid a late wake-up. Included in `emulator_cpu_s`.
    pub awake_s: f64,
    /// Median margin before a due time at which the thread planned to be awake.
    pub early_p50_ns: u64,
    /// 99th percentile of that margin.
    pub early_p99_ns: u64,
    /// Median delay between the requested and the actual wake-up.
    pub wake_up_p50_ns: u64,
    /// 99th percentile of the wake-up delay.
    pub wake_up_p99_ns: u64,
}

/// Main metrics and verdict of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// True if every flow completed and every expectation was met.
    pub ok: bool,
    /// Verdict on the run, in one sentence.
    pub verdict: String,
    /// One entry for each flow and data direction.
    pub flows: Vec<FlowSummary>,
    /// One entry for each subflow and data direction.
    pub subflows: Vec<SubflowSummary>,
    /// One entry for each path probed with datagrams outside the transport (`udping`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStats>,
    /// Evidence for the use of a multipath transport.
    pub multipath: MultipathUse,
    /// Processor time of both ends, where measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuTime>,
    /// Use of the paths' capacity over the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Box<AccountSummary>>,
    /// Points to check before trusting the result.
    pub warnings: Vec<Warning>,
    /// Expectations of the scenario, with the measured values.
    pub expectations: Vec<ExpectationResult>,
}

/// Metrics of one flow in one direction (parallel streams combined).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowSummary {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Data direction: `up` or `down`.
    pub direction: DataDirection,
    /// Application bytes that the receiver read.
    pub bytes: u64,
    /// Time from the start of the flow to its end (or to the last byte of a sized transfer).
    pub duration_ns: u64,
    /// Goodput: `bytes` × 8 over `duration_ns`.
    pub goodput_bps: f64,
    /// True if the pattern ended as planned. A sized transfer must be whole; a timed one must
    /// deliver data in its last second.
    pub completed: bool,
    /// Reason why the flow did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Time from the start of the flow until its connections were open; absent if one never opened.
    pub connect_ns: Option<u64>,
    /// Gaps in delivery to the receiver.
    pub stall: Stall,
    /// One entry for each disruptive timeline event.
    pub recoveries: Vec<Recovery>,
    /// Congestion control read back from the sender's subflows.
    pub congestion_control: Vec<String>,
    /// Retransmitted packets of all subflows.
    pub retransmissions: u64,
    /// Connection-level metrics, where the stack reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackStats>,
    /// Delays of the requests of a request-reply flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<MessageStats>,
    /// Loss, jitter and delay of a constant-rate datagram flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramStats>,
}

/// Gaps in delivery, seen by the receiver; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Longest time without a byte, between the first byte and the end of the flow.
    pub longest_ns: u64,
    /// Time at which the longest gap began.
    pub longest_at_ns: u64,
    /// Total duration of all gaps of 100 ms or more.
    pub total_ns: u64,
    /// Number of gaps of 100 ms or more.
    pub count: u32,
}

/// Effect of a disruptive event on a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    /// Time of the disruptive event.
    pub event_ns: u64,
    /// Description of the event.
    pub event: String,
    /// Goodput that the flow should reach again. The smaller of the goodput before the event and
    /// the payload capacity of the paths that are up after it.
    pub reference_bps: f64,
    /// Payload capacity of the paths that are up after the event. Absent when unlimited, unknown,
    /// or when no path is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<f64>,
    /// Time from the event until goodput is back at 90 % of the reference; absent when it never
    /// was.
    pub t90_ns: Option<u64>,
    /// Shortfall in bytes against the reference until that time (or until the end).
    pub deficit_bytes: u64,
    /// Longest gap that ended after the event.
    pub longest_gap_ns: u64,
    /// Time from the event to the end of the last gap of 100 ms or more that it caused. Gaps within
    /// 1.5 s of each other belong together. 0 without such a gap; absent when the last gap never
    /// ended.
    #[serde(alias = "smooth_ns", default)]
    pub last_stall_end_ns: Option<u64>,
}

/// Totals of one subflow in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubflowSummary {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// Data direction: `up` or `down`.
    pub direction: DataDirection,
    /// Number of the subflow within its connection.
    pub subflow: u32,
    /// Name of the path that the subflow uses.
    pub path: String,
    /// Address and port of the host that opened the connection.
    pub local: String,
    /// Address and port of the host that accepted the connection.
    pub remote: String,
    /// True if the subflow is a backup.
    pub backup: bool,
    /// Payload bytes that arrived on the subflow.
    pub bytes: u64,
    /// Share of the bytes of all subflows in this direction, 0 to 1.
    pub share: f64,
    /// Retransmitted packets on this subflow.
    pub retransmissions: u64,
    /// Last smoothed round-trip time.
    pub srtt_us: u32,
    /// Time at which the subflow was first seen.
    pub first_seen_ns: u64,
    /// Time at which the subflow closed; absent if it was open at the end.
    pub closed_ns: Option<u64>,
}

/// Point to check before trusting the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// Description of the problem, for people.
    pub text: String,
    /// Suggested action, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Expectation of the scenario, with the measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectationResult {
    /// Text of the expectation as written in the scenario.
    pub text: String,
    /// Measured value in the expectation's unit, for people.
    pub measured: String,
    /// True if the expectation was met; absent when there was nothing to measure.
    #[serde(alias = "held")]
    pub passed: Option<bool>,
}
