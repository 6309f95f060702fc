//! Scenario data model. Indices (`usize`) point into the scenario's own lists.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Rate;
use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Queue};

use super::pattern::Pattern;
use super::stack::{HostStackConfig, Middlebox};

/// A complete, validated scenario: every index and every reference of an event is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Short name, as in `name = "wifi-cellular-handover"`.
    pub name: String,
    /// One or two sentences for `towpath scenarios` and the report.
    pub description: String,
    /// Hosts in file order.
    pub hosts: Vec<Host>,
    /// Shared bottlenecks in file order.
    pub bottlenecks: Vec<Bottleneck>,
    /// Paths in file order; the first is where a connection starts unless a flow sets `via`.
    pub paths: Vec<Path>,
    /// Middleboxes, in file order.
    pub middleboxes: Vec<Middlebox>,
    /// Events in order of time.
    pub timeline: Vec<TimelineEvent>,
    /// Application traffic, in file order.
    pub flows: Vec<Flow>,
    /// Transports, worlds, seed and repetitions of the run.
    pub run: RunPlan,
    /// Bounds on metrics, checked after the run.
    pub expect: Vec<Expectation>,
    /// TOML text that the scenario was parsed from.
    pub source: String,
    /// Extra run conditions by name; always empty after parsing.
    pub remarks: BTreeMap<String, String>,
}

impl Scenario {
    /// Returns true if a link or timeline event uses randomness, so that simulated runs may differ.
    pub fn is_random(&self) -> bool {
        let is_random_link = |config: &DirectionConfig| {
            config.loss != Loss::None
                || config.delay.jitter.is_some()
                || config.duplicate != Probability::NEVER
                || config.corrupt != Probability::NEVER
                || matches!(config.queue, Queue::Pie { .. })
        };
        let is_random_event = |event: &TimelineEvent| match &event.change {
            TimelineChange::Loss(_, loss) => *loss != Loss::None,
            TimelineChange::Delay(_, delay) => delay.jitter.is_some(),
            TimelineChange::Down(_)
            | TimelineChange::Up
            | TimelineChange::Rate(..)
            | TimelineChange::Address { .. } => false,
        };
        let paths = self.paths.iter().flat_map(|path| [&path.up, &path.down]);
        let bottlenecks = self.bottlenecks.iter().flat_map(|b| [&b.up, &b.down]);
        paths.chain(bottlenecks).any(is_random_link) || self.timeline.iter().any(is_random_event)
    }

    /// Returns the congestion control configured for `host`, else that of the run.
    pub fn congestion_control_of<'a>(&'a self, host: &'a Host) -> &'a str {
        host.congestion_control.as_deref().unwrap_or(&self.run.congestion_control)
    }

    /// Returns true if the scenario names a congestion control for `host`. If not, programs are
    /// started without that option.
    pub fn names_congestion_control_of(&self, host: &Host) -> bool {
        host.congestion_control.is_some() || self.run.names_congestion_control
    }
}

/// A host: one network namespace (emulated) or one stack (simulated).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name of the host, also used in results.
    pub name: String,
    /// Congestion control of this host's sockets, if not the run's.
    pub congestion_control: Option<String>,
    /// `tcp_rmem`: minimum, default, maximum bytes.
    pub receive_buffer: Option<[u64; 3]>,
    /// `tcp_wmem`: minimum, default, maximum bytes.
    pub send_buffer: Option<[u64; 3]>,
    /// Further per-namespace settings, such as `net.mptcp.checksum_enabled` = `1`.
    pub sysctls: Vec<(String, String)>,
    /// Multipath TCP settings of the host.
    pub mptcp: MptcpConfig,
    /// Stack implementation of the host, and the behaviour of towpath's own stack.
    pub stack: HostStackConfig,
}

/// Multipath TCP settings of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MptcpConfig {
    /// Limit of additional subflows; 8, the kernel's maximum, when not given.
    pub subflows: Option<u8>,
    /// Limit of accepted announced addresses; 8 when not given.
    pub add_addr_accepted: Option<u8>,
    /// MPTCP endpoints. By default, every path of which this host is the first end gets a `subflow`
    /// endpoint (`backup` if the path is).
    pub endpoints: Option<Vec<Endpoint>>,
}

/// An MPTCP endpoint: this host's address on a path, with its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's five independent flags")]
pub struct Endpoint {
    /// Index of the path.
    pub path: usize,
    /// Set if the host opens subflows from this address.
    pub subflow: bool,
    /// Set if the host announces the address in ADD_ADDR.
    pub signal: bool,
    /// Set if the address is used only when all others fail.
    pub backup: bool,
    /// Set if the host opens subflows from it to every announced address.
    pub fullmesh: bool,
    /// Set if the host connects from it to announced addresses only (Linux 6.18).
    pub laminar: bool,
}

/// A queue and its shaper, shared by several paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottleneck {
    /// Name of the bottleneck.
    pub name: String,
    /// From each path's first host to its second.
    pub up: DirectionConfig,
    /// From each path's second host to its first.
    pub down: DirectionConfig,
}

/// A duplex link with one interface on each of two hosts.
///
/// The first host's address decides which path a packet takes; the second host replies to that
/// address. So a connection from the first host's address on path *i* uses path *i* in both
/// directions. The second host's address does not matter, as with a phone and a single-homed
/// server.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Name of the path, also of its interfaces.
    pub name: String,
    /// Indices of the two hosts.
    pub between: [usize; 2],
    /// From the first host to the second.
    pub up: DirectionConfig,
    /// From the second host to the first.
    pub down: DirectionConfig,
    /// MTU of both interfaces, in bytes.
    pub mtu_bytes: u32,
    /// Set if default endpoints on it carry the `backup` flag.
    pub backup: bool,
    /// Indices of the bottlenecks that it passes through, in order from the first host.
    pub through: Vec<usize>,
    /// Emulator handling of super-segments on this path.
    pub segmentation: SegmentationMode,
}

/// Emulator handling of the kernel's super-segments (up to 64 KiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentationMode {
    /// Split if the link (or a bottleneck behind it) is below 1 Gbit/s or drops packets; else keep.
    Auto,
    /// Every packet of MTU size is modelled separately.
    Split,
    /// Super-segments pass as one packet each.
    Coalesced,
}

/// A change of a link or address during the run.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineEvent {
    /// Time since the start of the traffic.
    pub at: Duration,
    /// Path or bottleneck that the event changes.
    pub target: TimelineTarget,
    /// Change that the event makes.
    pub change: TimelineChange,
}

/// Object of a timeline event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimelineTarget {
    /// A path, by its index.
    Path(usize),
    /// A bottleneck, by its index.
    Bottleneck(usize),
}

/// Direction or directions of a link that an event changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkSide {
    /// Both directions of the link.
    Both,
    /// From the first host to the second.
    Up,
    /// From the second host to the first.
    Down,
}

/// A change on the timeline. The reader expands fades into steps.
#[derive(Debug, Clone, PartialEq)]
pub enum TimelineChange {
    /// The link stops forwarding packets.
    Down(DownMode),
    /// The link works again, with its carrier and interfaces.
    Up,
    /// A new rate (the kind of shaper is kept; a trace becomes a line).
    Rate(LinkSide, Rate),
    /// A new delay, with its jitter.
    Delay(LinkSide, Delay),
    /// A new loss model.
    Loss(LinkSide, Loss),
    /// One host's address on the path changes to another one of the same subnet.
    Address {
        /// Index of the host.
        host: usize,
    },
}

/// Failure mode of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownMode {
    /// Packets are dropped without any signal to the hosts: a faded radio, a black hole.
    Silent,
    /// Both interfaces lose their carrier: an unplugged cable.
    Carrier,
    /// The interface of one host is switched off (`ip link set … down`).
    Interface {
        /// Index of the host.
        host: usize,
    },
}

/// Application traffic between two hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// Index of the host that opens the connection.
    pub from: usize,
    /// Index of the host that accepts it.
    pub to: usize,
    /// Traffic pattern of the flow.
    pub pattern: Pattern,
    /// Index of the path on which the connection starts; by default the first path between both.
    pub via: usize,
    /// Start time, relative to the start of the traffic.
    pub start: Duration,
    /// IP version of the flow's connections.
    pub family: Family,
    /// Fixed transport of background traffic; `None` means the transport under comparison.
    pub transport: Option<Transport>,
}

impl Flow {
    /// Returns the transport of the flow in a run over `run_transport`.
    pub fn transport_in(&self, run_transport: Transport) -> Transport {
        self.transport.unwrap_or(run_transport)
    }
}

/// Sending host or hosts of a flow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum DataDirection {
    /// The host that opened the connection sends.
    Up,
    /// The host that accepted the connection sends.
    Down,
    /// Both hosts send at once.
    Both,
}

/// Address family of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

/// Run parameters of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// Transports to compare, in order.
    pub transports: Vec<Transport>,
    /// Worlds to run in, in order.
    pub worlds: Vec<World>,
    /// Seed of all random number generators.
    pub seed: u64,
    /// Repetitions of each combination of transport and world.
    pub repeat: u32,
    /// Interval of the time series, 10 ms to 1 s.
    pub sample: Duration,
    /// Requested congestion control; `cubic` when not given.
    pub congestion_control: String,
    /// Set if the scenario names a congestion control for the run.
    pub names_congestion_control: bool,
}

/// Transport protocol under test.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Single-path TCP over one path.
    Tcp,
    /// Multipath TCP (RFC 8684).
    Mptcp,
    /// QUIC over one path.
    Quic,
    /// QUIC over several paths.
    Mpquic,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Mptcp, Self::Quic, Self::Mpquic];

    /// Returns true for QUIC, with one path or several.
    pub fn is_quic(self) -> bool {
        match self {
            Self::Quic | Self::Mpquic => true,
            Self::Tcp | Self::Mptcp => false,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
            Self::Quic => "quic",
            Self::Mpquic => "mpquic",
        })
    }
}

/// Environment of a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// Simulated: virtual time, our own stack.
    Sim,
    /// Emulated: real kernels and programs in namespaces, real time.
    Emu,
    /// Live: two real hosts.
    Live,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sim => "sim",
            Self::Emu => "emu",
            Self::Live => "live",
        })
    }
}

/// A bound that a result must keep, such as `"mptcp.goodput" = ">= 15 Mbit/s"`.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// Only for this transport; for every transport of the run when `None`.
    pub transport: Option<Transport>,
    /// Metric name without the transport, such as `goodput` or `stall.longest`.
    pub metric: String,
    /// Comparison between the metric and the bound.
    pub operator: Operator,
    /// Bound in base units: bit/s, seconds, bytes, a count, or a share between 0 and 1.
    pub bound: f64,
    /// The expectation as written, for messages.
    pub text: String,
}

/// Comparison operator of an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Strictly less than, `<`.
    Less,
    /// Less than or equal, `<=`.
    AtMost,
    /// Equal within floating-point precision, `==`.
    Equal,
    /// Greater than or equal, `>=`.
    AtLeast,
    /// Strictly greater than, `>`.
    More,
}

impl Operator {
    /// Returns true if `value` satisfies the bound.
    pub fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::Less => value < bound,
            Self::AtMost => value <= bound,
            Self::Equal => (value - bound).abs() <= f64::EPSILON * bound.abs(),
            Self::AtLeast => value >= bound,
            Self::More => value > bound,
        }
    }
}
