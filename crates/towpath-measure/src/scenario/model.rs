//! The scenario as data. Indices (`usize`) point into the scenario's own lists.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Rate;
use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Queue};

use super::pattern::Pattern;
use super::stack::{HostStackConfig, Middlebox};

/// A whole scenario, checked: every index is valid, every event names something that exists.
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
    /// Paths in file order; the first is where a connection starts unless a flow says `via`.
    pub paths: Vec<Path>,
    /// Boxes that change packets, in file order.
    pub middleboxes: Vec<Middlebox>,
    /// Events in order of time.
    pub timeline: Vec<TimelineEvent>,
    /// What is sent.
    pub flows: Vec<Flow>,
    /// How it is run.
    pub run: RunPlan,
    /// Checked after the run.
    pub expect: Vec<Expectation>,
    /// The TOML text it was read from.
    pub source: String,
    /// What else is to be said of a run in its conditions, by name; a text has none.
    pub remarks: BTreeMap<String, String>,
}

impl Scenario {
    /// Whether its links draw anything at random, so that two simulated runs may differ.
    pub fn is_random(&self) -> bool {
        let random = |config: &DirectionConfig| {
            config.loss != Loss::None
                || config.delay.jitter.is_some()
                || config.duplicate != Probability::NEVER
                || config.corrupt != Probability::NEVER
                || matches!(config.queue, Queue::Pie { .. })
        };
        let changes = |event: &TimelineEvent| match &event.change {
            TimelineChange::Loss(_, loss) => *loss != Loss::None,
            TimelineChange::Delay(_, delay) => delay.jitter.is_some(),
            TimelineChange::Down(_)
            | TimelineChange::Up
            | TimelineChange::Rate(..)
            | TimelineChange::Address { .. } => false,
        };
        let paths = self.paths.iter().flat_map(|path| [&path.up, &path.down]);
        let shared = self.bottlenecks.iter().flat_map(|shared| [&shared.up, &shared.down]);
        paths.chain(shared).any(random) || self.timeline.iter().any(changes)
    }

    /// The congestion control asked for on `host`: its own, or the run's.
    pub fn congestion_control_of<'a>(&'a self, host: &'a Host) -> &'a str {
        host.congestion_control.as_deref().unwrap_or(&self.run.congestion_control)
    }

    /// Whether the scenario names a congestion control for `host`: a program is not asked for one
    /// else.
    pub fn names_congestion_control_of(&self, host: &Host) -> bool {
        host.congestion_control.is_some() || self.run.names_congestion_control
    }
}

/// A host: one network namespace (emulated) or one stack (simulated).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name, also used in results.
    pub name: String,
    /// Congestion control of this host's sockets, if not the run's.
    pub congestion_control: Option<String>,
    /// `tcp_rmem`: minimum, default, maximum bytes.
    pub receive_buffer: Option<[u64; 3]>,
    /// `tcp_wmem`: minimum, default, maximum bytes.
    pub send_buffer: Option<[u64; 3]>,
    /// Further per-namespace settings, such as `net.mptcp.checksum_enabled` = `1`.
    pub sysctls: Vec<(String, String)>,
    /// Multipath TCP settings.
    pub mptcp: MptcpConfig,
    /// Whose stack it has, and how ours behaves.
    pub stack: HostStackConfig,
}

/// Multipath TCP settings of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MptcpConfig {
    /// Limit of additional subflows; 8, the kernel's maximum, when not given.
    pub subflows: Option<u8>,
    /// Limit of accepted announced addresses; 8 when not given.
    pub add_addr_accepted: Option<u8>,
    /// Endpoints. When not given, every path of which this host is the first end gets a `subflow`
    /// endpoint (`backup` if the path is).
    pub endpoints: Option<Vec<Endpoint>>,
}

/// An MPTCP endpoint: this host's address on a path, and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's five independent flags")]
pub struct Endpoint {
    /// Index of the path.
    pub path: usize,
    /// Open subflows from it.
    pub subflow: bool,
    /// Announce it.
    pub signal: bool,
    /// Use it only when nothing else works.
    pub backup: bool,
    /// Open subflows to every announced address.
    pub fullmesh: bool,
    /// Answer an announced address from it (Linux 6.18).
    pub laminar: bool,
}

/// A queue and server that several paths pass through.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottleneck {
    /// Name.
    pub name: String,
    /// From each path's first host to its second.
    pub up: DirectionConfig,
    /// From each path's second host to its first.
    pub down: DirectionConfig,
}

/// A duplex link with one interface on each of two hosts.
///
/// The first host's address decides which path a packet takes; the second host answers towards
/// that address. So a connection from the first host's address on path *i* to any address of
/// the second host uses path *i* in both directions, as with a phone and a single-homed server.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Name, also of the interfaces.
    pub name: String,
    /// Indices of the two hosts.
    pub between: [usize; 2],
    /// From the first host to the second.
    pub up: DirectionConfig,
    /// From the second host to the first.
    pub down: DirectionConfig,
    /// MTU of both interfaces.
    pub mtu_bytes: u32,
    /// Whether default endpoints on it carry the `backup` flag.
    pub backup: bool,
    /// Indices of the bottlenecks that it passes through, in order from the first host.
    pub through: Vec<usize>,
    /// How the emulator treats super-segments.
    pub segments: SegmentationMode,
}

/// How the emulator treats the kernel's super-segments (up to 64 KiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentationMode {
    /// Split where the link (or a bottleneck behind it) is slower than 1 Gbit/s or drops, else keep.
    Auto,
    /// Every MTU packet is modelled.
    Split,
    /// Super-segments pass whole.
    Coalesced,
}

/// Something that happens during the run.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineEvent {
    /// When, counted from the start of the traffic.
    pub at: Duration,
    /// To what.
    pub target: TimelineTarget,
    /// What.
    pub change: TimelineChange,
}

/// What a timeline event changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimelineTarget {
    /// Index of a path.
    Path(usize),
    /// Index of a bottleneck.
    Bottleneck(usize),
}

/// Which of a link's directions an event changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkSide {
    /// Both.
    Both,
    /// From the first host to the second.
    Up,
    /// From the second host to the first.
    Down,
}

/// A change on the timeline. A fade is expanded into steps by the reader.
#[derive(Debug, Clone, PartialEq)]
pub enum TimelineChange {
    /// The link stops.
    Down(DownMode),
    /// The link (and carrier, and interface) works again.
    Up,
    /// A new rate (the kind of shaper is kept; a trace becomes a line).
    Rate(LinkSide, Rate),
    /// A new delay.
    Delay(LinkSide, Delay),
    /// A new loss.
    Loss(LinkSide, Loss),
    /// This host's address on the path is replaced by another one of the same subnet.
    Address {
        /// Index of the host.
        host: usize,
    },
}

/// How a path goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownMode {
    /// Packets vanish and nobody is told: a faded radio, a black hole.
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
    /// What is sent.
    pub pattern: Pattern,
    /// Index of the path on which the connection starts; the first path between the two if not
    /// given.
    pub via: usize,
    /// When it starts, counted from the start of the traffic.
    pub start: Duration,
    /// Address family.
    pub family: Family,
    /// Its own transport, whatever the run compares: background traffic.
    pub transport: Option<Transport>,
}

impl Flow {
    /// What it uses in a run over `compared`.
    pub fn transport_in(&self, compared: Transport) -> Transport {
        self.transport.unwrap_or(compared)
    }
}

/// Who sends.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum DataDirection {
    /// The host that opened the connection.
    Up,
    /// The host that accepted it.
    Down,
    /// Both at once.
    Both,
}

/// Address family of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// How the scenario is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// Transports to compare, in order.
    pub transports: Vec<Transport>,
    /// Worlds to run in, in order.
    pub worlds: Vec<World>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Repetitions of each.
    pub repeat: u32,
    /// Period of the series, 10 ms to 1 s.
    pub sample: Duration,
    /// Congestion control asked for; `cubic` when not given.
    pub congestion_control: String,
    /// Whether the scenario names it.
    pub names_congestion_control: bool,
}

/// A transport protocol.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// Multipath TCP.
    Mptcp,
    /// QUIC.
    Quic,
    /// Multipath QUIC.
    Mpquic,
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

/// Where a scenario is run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// Simulated: virtual time, our own stack.
    Sim,
    /// Emulated: real kernels and programs in namespaces, real time.
    Emu,
    /// Two real hosts.
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
    /// Comparison.
    pub operator: Operator,
    /// Bound in base units: bit/s, seconds, bytes, a count, or a share between 0 and 1.
    pub bound: f64,
    /// The expectation as written, for messages.
    pub text: String,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `==`
    Equal,
    /// `>=`
    AtLeast,
    /// `>`
    More,
}

impl Operator {
    /// Whether `value` keeps the bound.
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
