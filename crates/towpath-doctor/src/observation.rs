//! All readings and test results: pure data, from which a diagnosis follows.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use towpath_host::setup::ConfigChange;
use towpath_host::snapshot::HostSnapshot;

/// Facts about a host, its connections and its paths.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// Snapshot of this host before any test.
    pub here: HostSnapshot,
    /// Snapshot of this host after the tests.
    pub after: Option<HostSnapshot>,
    /// Privileges of this process.
    pub rights: Privileges,
    /// Running programs that configure Multipath TCP by themselves.
    pub managers: Vec<String>,
    /// Route lookups in the kernel.
    #[serde(alias = "ways")]
    pub route_lookups: Vec<RouteLookup>,
    /// Sockets of programs: those over Multipath TCP, or all in the requested scope.
    pub programs: Option<Vec<ProgramSocket>>,
    /// Set when plain TCP sockets are included.
    pub asked_for_programs: bool,
    /// Our own test connection; `None` without a target.
    pub trial: Option<TestConnection>,
    /// Snapshots of the other host, if it sent any.
    pub peer: Option<PeerSnapshots>,
    /// Reason why the other host sent no snapshot on request.
    pub peer_error: Option<String>,
    /// Changes that `--fix` made on this host since it started, and that were not undone.
    pub applied_fixes: Vec<ConfigChange>,
}

/// Privileges of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Privileges {
    /// Set when the process may receive the path manager's events.
    pub events: bool,
    /// Set when the process may use raw sockets.
    pub raw: bool,
}

/// Result of a route lookup in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteLookup {
    /// Destination of the packet.
    pub to: IpAddr,
    /// Source of the packet, if fixed.
    #[serde(default)]
    pub from: Option<IpAddr>,
    /// Index of the interface to which its socket is bound.
    #[serde(default)]
    pub bound_to: Option<u32>,
    /// Index of the outgoing interface; `None` without a route.
    #[serde(default)]
    pub link: Option<u32>,
    /// Next hop; `None` if the destination is on the link.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Error number of a failed lookup.
    #[serde(default)]
    pub errno: Option<i32>,
}

/// A socket of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSocket {
    /// Process ID, if its owner is visible.
    #[serde(default)]
    pub id: Option<u32>,
    /// Name of the process; empty if unknown.
    #[serde(default)]
    pub name: String,
    /// Kind of socket: listener or connection.
    pub role: SocketRole,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Protocol of the socket.
    pub speaks: SocketProtocol,
    /// Subflows of a Multipath TCP connection; else empty.
    #[serde(default)]
    pub subflows: Vec<ObservedSubflow>,
    /// Limits of its sender; `None` if it did not send.
    #[serde(alias = "held_back", default)]
    pub sender: Option<SenderStats>,
}

/// Limits of a connection's sender, over about a second. Times are sums over all its subflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SenderStats {
    /// Duration of the observation in milliseconds.
    pub span_ms: u64,
    /// Time with data to send.
    pub busy_ms: u64,
    /// Part of that time with a full receive window of the peer.
    pub receive_window_ms: u64,
    /// Part of that time with a full send buffer of which all was sent.
    pub send_buffer_ms: u64,
    /// Largest receive window that the peer offered.
    #[serde(alias = "window_bytes")]
    pub max_window_bytes: u64,
    /// Smallest receive window that the peer offered.
    #[serde(alias = "smallest_window_bytes")]
    pub min_window_bytes: u64,
    /// Size of the send buffer, including the kernel's overhead.
    pub buffer_bytes: u64,
    /// Payload acknowledged during the observation.
    pub acked_bytes: u64,
    /// Longest smoothed round-trip time in microseconds.
    #[serde(alias = "srtt_us")]
    pub max_srtt_us: u32,
}

/// Kind of socket: listener or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketRole {
    /// Socket that accepts connections.
    Listens,
    /// Socket of a connection.
    Connected,
}

/// Protocol of a connection or listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketProtocol {
    /// Plain TCP, as the program requested.
    Tcp,
    /// Multipath TCP on the wire, or requested by a listener.
    Multipath,
    /// Plain TCP, although the program requested Multipath TCP.
    FellBack,
}

/// Our own test connection and its results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, independent of each other")]
pub struct TestConnection {
    /// Address and port of the server.
    pub target: SocketAddr,
    /// Attempts over plain TCP and Multipath TCP, in order; more of each if one is slow.
    pub attempts: Vec<ConnectAttempt>,
    /// Set when the server echoes data.
    #[serde(default)]
    pub echoes: bool,
    /// Set when the server is a towpath server and expects a preamble.
    #[serde(default)]
    pub is_towpath: bool,
    /// Kind of server that replied.
    #[serde(default)]
    pub server: ServerKind,
    /// Offset of the first changed byte over plain TCP, from 0.
    #[serde(default)]
    pub plain_changed_at: Option<u64>,
    /// Set when the new connection was Multipath TCP.
    #[serde(default)]
    pub multipath: bool,
    /// Set when the connection was still Multipath TCP at the end.
    #[serde(default)]
    pub multipath_at_end: bool,
    /// Set when the peer closed the connection before we did.
    #[serde(default)]
    pub closed_by_peer: bool,
    /// Growth of this host's kernel counters during the test.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Path manager events of the connection; `None` without the privilege.
    #[serde(default)]
    pub events: Option<Vec<RecordedEvent>>,
    /// All subflows seen during the test.
    #[serde(default)]
    pub subflows: Vec<ObservedSubflow>,
    /// Result of the echo test, if there was one.
    #[serde(default)]
    pub exchange: Option<EchoResult>,
    /// Control experiments: plain TCP over each single path.
    #[serde(default)]
    pub controls: Vec<PlainTcpCheck>,
    /// SYN packets with rising time to live.
    #[serde(default)]
    pub probes: Vec<HopProbe>,
}

/// One attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectAttempt {
    /// Set for Multipath TCP, clear for plain TCP.
    pub multipath: bool,
    /// Result of the attempt.
    pub outcome: ConnectOutcome,
    /// Duration of the attempt in milliseconds.
    pub took_ms: u64,
    /// Router that refused the attempt, if any.
    #[serde(default)]
    pub refused: Option<IcmpRefusal>,
}

/// ICMP error of a router that cannot forward a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpRefusal {
    /// Address of the router.
    pub router: IpAddr,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Code of the ICMP message.
    pub code: u8,
}

/// Result of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectOutcome {
    /// The connection was established.
    Connected,
    /// The peer reset the attempt.
    Refused,
    /// No reply before the timeout.
    Silent,
    /// Another error, by its `errno` number.
    Failed(i32),
}

/// An event of the path manager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedEvent {
    /// Time since the start of the connection, in milliseconds.
    pub at_ms: u64,
    /// Kind of event, as `ip mptcp monitor` prints it.
    pub kind: String,
    /// Identifier of the local address.
    pub local_id: Option<u8>,
    /// Identifier of the remote address.
    pub remote_id: Option<u8>,
    /// Local address of the subflow.
    pub local: Option<IpAddr>,
    /// Remote or announced address.
    pub remote: Option<IpAddr>,
    /// Local port of the subflow.
    pub local_port: Option<u16>,
    /// Remote or announced port.
    pub remote_port: Option<u16>,
    /// Error number that ended a subflow.
    pub error: Option<i32>,
    /// Reason in the peer's reset (RFC 8684 §3.6).
    pub reset_reason: Option<u32>,
    /// Set when the peer accepts no further subflows to its first address.
    pub denies_first_address: bool,
}

/// A subflow of our own connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, independent of each other")]
pub struct ObservedSubflow {
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Identifier of the local address.
    #[serde(default)]
    pub local_id: Option<u8>,
    /// Identifier of the remote address.
    #[serde(default)]
    pub remote_id: Option<u8>,
    /// Set for the first subflow of the connection.
    #[serde(default)]
    pub first: bool,
    /// Set when this host opened the subflow.
    #[serde(default)]
    pub opened_here: bool,
    /// Set when this host requested it as a backup.
    #[serde(default)]
    pub backup_here: bool,
    /// Set when the peer requested it as a backup.
    #[serde(default)]
    pub backup_there: bool,
    /// Set when the subflow was ever established.
    #[serde(default)]
    pub established: bool,
    /// Last TCP state by name.
    #[serde(default)]
    pub state: String,
    /// Set when the subflow ended before we closed the connection.
    #[serde(default)]
    pub gone: bool,
    /// Last statistics from `tcp_info`.
    #[serde(default)]
    pub tcp: TcpStats,
}

/// Statistics of a subflow from `tcp_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpStats {
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u32,
    /// Smallest round-trip time in microseconds; 0 if unknown.
    pub min_rtt_us: u32,
    /// Consecutive timeouts without a reply.
    pub backoff: u32,
    /// Number of retransmitted packets.
    pub retransmissions: u32,
    /// Packets received out of order.
    #[serde(alias = "behind_gap")]
    pub out_of_order: u32,
    /// Packets in flight, sent and not acknowledged.
    pub unacked: u32,
    /// Maximum segment size in bytes.
    pub mss_bytes: u32,
    /// Bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Payload bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Time since the last arrival, including acknowledgements, in milliseconds.
    pub silent_ms: u32,
    /// Path MTU known to TCP, in bytes.
    pub path_mtu: u32,
}

/// Result of an echo test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EchoResult {
    /// Bytes that the kernel accepted.
    pub sent: u64,
    /// Bytes echoed by the peer.
    pub returned: u64,
    /// Offset of the first changed byte, from 0.
    pub changed_at: Option<u64>,
    /// Duration of the test in milliseconds.
    pub took_ms: u64,
    /// Longest time without an echo, in milliseconds.
    pub longest_pause_ms: u64,
}

/// Control experiment: plain TCP over one path, which separates trouble of the path from trouble
/// with Multipath TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainTcpCheck {
    /// Local address of the connection.
    pub local: IpAddr,
    /// Index of the interface to which it was bound.
    #[serde(default)]
    pub bound_to: Option<u32>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Result of the attempt to connect.
    pub outcome: ConnectOutcome,
    /// Router that refused the attempt, if any.
    #[serde(default)]
    pub refused: Option<IcmpRefusal>,
    /// True if a few bytes were echoed; `None` if the peer does not echo.
    #[serde(default)]
    pub small: Option<bool>,
    /// True if packets of full size were echoed.
    #[serde(default)]
    pub large: Option<bool>,
    /// After large packets failed: true if a few bytes were echoed over another connection.
    #[serde(alias = "small_again", default)]
    pub small_retry: Option<bool>,
    /// After large packets failed: true if others were echoed over another connection, or the first
    /// ones late.
    #[serde(alias = "large_again", default)]
    pub large_retry: Option<bool>,
    /// Small packets sent one after the other, with pauses between them.
    #[serde(default)]
    pub packets: u32,
    /// Number of these small packets that were lost and retransmitted.
    #[serde(default)]
    pub resent: u32,
    /// Packets with echoed data that arrived in reply to the small packets.
    #[serde(default)]
    pub answers: u32,
    /// Number of these replies that arrived out of order, behind a gap in the sequence numbers.
    #[serde(default)]
    pub behind_gap: u32,
    /// Smallest round-trip time in microseconds.
    #[serde(default)]
    pub min_rtt_us: u32,
    /// Connections from as many other ports, over a path with trouble.
    #[serde(default)]
    pub port_attempts: u32,
    /// Number of these connections that were answered.
    #[serde(default)]
    pub ports_answered: u32,
    /// Number of these connections that were answered only after a retransmission.
    #[serde(default)]
    pub ports_answered_late: u32,
    /// Result of an extra attempt over this path: true if it became Multipath TCP. Made only if
    /// our own connection to the server did not.
    #[serde(default)]
    pub multipath: Option<bool>,
}

/// SYN packets with rising time to live over one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopProbe {
    /// Local address of the probes.
    pub local: IpAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Multipath TCP option of the probes.
    pub option: ProbeOption,
    /// Replies of the routers by time to live, from 1.
    pub hops: Vec<HopReply>,
    /// Reply of the peer itself, if any.
    #[serde(default)]
    pub answer: Option<TargetReply>,
}

/// Multipath TCP option of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOption {
    /// No option of Multipath TCP.
    Plain,
    /// MP_CAPABLE, as in a first subflow.
    Capable,
    /// MP_JOIN, as in a further subflow.
    Join,
}

/// ICMP error of a router for a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HopReply {
    /// Address of the router; `None` without a reply.
    pub address: Option<IpAddr>,
    /// True if the packet still had its option there; `None` if the reply quotes too little.
    pub has_option: Option<bool>,
    /// Type and code of its message if the router refuses the packet.
    pub refused: Option<(u8, u8)>,
}

/// Reply of the peer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetReply {
    /// The peer accepts with a SYN-ACK.
    SynAck {
        /// Set when it carries a Multipath TCP option.
        option: bool,
    },
    /// The peer refuses with a reset.
    Reset {
        /// Set when it carries a Multipath TCP option.
        option: bool,
    },
}

/// Snapshots of the other host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSnapshots {
    /// Address of the queried server.
    pub address: SocketAddr,
    /// Snapshot before our connection.
    pub before: HostSnapshot,
    /// Snapshot at the end of our connection.
    #[serde(default)]
    pub after: Option<HostSnapshot>,
}

impl TestConnection {
    /// Creates a test without results.
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            attempts: Vec::new(),
            echoes: false,
            is_towpath: false,
            server: ServerKind::Unknown,
            plain_changed_at: None,
            multipath: false,
            multipath_at_end: false,
            closed_by_peer: false,
            counters: BTreeMap::new(),
            events: None,
            subflows: Vec::new(),
            exchange: None,
            controls: Vec::new(),
            probes: Vec::new(),
        }
    }

    /// Returns the growth of a Multipath TCP counter during the test.
    pub fn counter_delta(&self, name: &str) -> u64 {
        self.counters.get(&format!("MPTcpExt.{name}")).copied().unwrap_or(0)
    }

    /// Returns the attempts over one transport.
    pub fn attempts(&self, multipath: bool) -> impl Iterator<Item = &ConnectAttempt> {
        self.attempts.iter().filter(move |attempt| attempt.multipath == multipath)
    }

    /// Returns true if some attempt over one transport connected.
    pub fn connected(&self, multipath: bool) -> bool {
        self.attempts(multipath).any(|attempt| attempt.outcome == ConnectOutcome::Connected)
    }

    /// Returns the first subflow, if it was seen.
    pub fn first(&self) -> Option<&ObservedSubflow> {
        self.subflows.iter().find(|subflow| subflow.first)
    }

    /// Returns the events of one kind.
    pub fn events_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a RecordedEvent> {
        self.events.iter().flatten().filter(move |event| event.kind == kind)
    }
}

impl PeerSnapshots {
    /// Returns the growth of a Multipath TCP counter on the other host.
    pub fn counter_delta(&self, name: &str) -> u64 {
        let name = format!("MPTcpExt.{name}");
        let after = self.after.as_ref().map_or(0, |after| after.counter(&name));
        after.saturating_sub(self.before.counter(&name))
    }

    /// Returns the latest snapshot.
    pub fn latest(&self) -> &HostSnapshot {
        self.after.as_ref().unwrap_or(&self.before)
    }
}

/// Kind of server at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// A server that accepts connections and was not identified.
    #[default]
    Unknown,
    /// A towpath server with its preamble.
    Towpath,
    /// A server that echoes all data.
    Echo,
    /// A web server (HTTP/1).
    Web,
    /// A server that expects TLS.
    Tls,
    /// A Secure Shell (SSH) server.
    Ssh,
    /// An SMTP or FTP server: it greets with a number.
    Mail,
    /// A server that closes the connection after any message.
    #[serde(alias = "hangs-up")]
    ClosesOnData,
}
