//! Everything that was read or tried: pure data, from which a diagnosis follows.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use towpath_measure::live::HostSnapshot;

use super::server::ServerKind;

/// What is known of a host, its connections and its paths.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// This host, before anything was tried.
    pub here: HostSnapshot,
    /// This host afterwards.
    pub after: Option<HostSnapshot>,
    /// What this process may do.
    pub rights: Privileges,
    /// Programs that set up Multipath TCP by themselves and run here.
    pub managers: Vec<String>,
    /// Which way packets go.
    #[serde(rename = "ways")]
    pub route_lookups: Vec<RouteLookup>,
    /// Sockets of programs: those over Multipath TCP, or all that were asked for.
    pub programs: Option<Vec<ProgramSocket>>,
    /// Whether plain TCP is among them.
    pub asked_for_programs: bool,
    /// A connection of our own, if there is somebody to connect to.
    pub trial: Option<TestConnection>,
    /// The other host, if it tells.
    pub peer: Option<PeerSnapshots>,
    /// Why the other host tells nothing, though it was asked.
    pub peer_error: Option<String>,
}

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Privileges {
    /// It hears the path manager's events.
    pub events: bool,
    /// It may send packets of its own making.
    pub raw: bool,
}

/// The kernel's answer to which way a packet would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteLookup {
    /// Its destination.
    pub to: IpAddr,
    /// Its source, if it has one.
    #[serde(default)]
    pub from: Option<IpAddr>,
    /// The interface that its socket is bound to.
    #[serde(default)]
    pub bound_to: Option<u32>,
    /// The interface that it leaves by; none if there is no way.
    #[serde(default)]
    pub link: Option<u32>,
    /// The next hop; none on the link itself.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Error number, if there is no way.
    #[serde(default)]
    pub errno: Option<i32>,
}

/// A socket of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSocket {
    /// Its process, if we may know it.
    #[serde(default)]
    pub id: Option<u32>,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// What the socket is.
    pub role: SocketRole,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// What it speaks.
    pub speaks: SocketProtocol,
    /// Subflows, if it is Multipath TCP.
    #[serde(default)]
    pub subflows: Vec<ObservedSubflow>,
    /// What held it back while it was looked at, if it sent.
    #[serde(rename = "held_back", default)]
    pub sender: Option<SenderStats>,
}

/// What held a connection's sender back, over about a second. Times are those of all its subflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SenderStats {
    /// How long it was looked at.
    pub span_ms: u64,
    /// With anything to send.
    pub busy_ms: u64,
    /// Of that, with a full window of the peer.
    pub receive_window_ms: u64,
    /// Of that, with a full send buffer of which all was sent.
    pub send_buffer_ms: u64,
    /// The largest and the smallest window that the peer offered.
    #[serde(rename = "window_bytes")]
    pub max_window_bytes: u64,
    /// The smallest.
    #[serde(rename = "smallest_window_bytes")]
    pub min_window_bytes: u64,
    /// Size of the send buffer, with the kernel's own overhead.
    pub buffer_bytes: u64,
    /// Payload that was acknowledged meanwhile.
    pub acked_bytes: u64,
    /// The longest smoothed round trip.
    #[serde(rename = "srtt_us")]
    pub max_srtt_us: u32,
}

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketRole {
    /// It waits for connections.
    Listens,
    /// It is a connection.
    Connected,
}

/// What a connection or listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketProtocol {
    /// Plain TCP, as the program asked for.
    Tcp,
    /// Multipath TCP.
    Multipath,
    /// The program asked for Multipath TCP and has plain TCP.
    FellBack,
}

/// A connection of our own and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, independent of each other")]
pub struct TestConnection {
    /// Address and port.
    pub target: SocketAddr,
    /// Attempts to connect, in order: plain TCP and Multipath TCP, more of each when in doubt.
    pub attempts: Vec<ConnectAttempt>,
    /// The server gives back what it gets.
    #[serde(default)]
    pub echoes: bool,
    /// It takes a preamble first: it is a towpath server.
    #[serde(default)]
    pub is_towpath: bool,
    /// Who it is.
    #[serde(default)]
    pub server: ServerKind,
    /// Where plain TCP came back changed.
    #[serde(default)]
    pub plain_changed_at: Option<u64>,
    /// The connection was Multipath TCP when it was new.
    #[serde(default)]
    pub multipath: bool,
    /// It was still at the end.
    #[serde(default)]
    pub multipath_at_end: bool,
    /// The other end closed it before we did.
    #[serde(default)]
    pub closed_by_peer: bool,
    /// What the counters of this host's kernel grew by.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Events of the connection; none if they cannot be heard.
    #[serde(default)]
    pub events: Option<Vec<RecordedEvent>>,
    /// Subflows that were seen.
    #[serde(default)]
    pub subflows: Vec<ObservedSubflow>,
    /// What was sent and came back.
    #[serde(default)]
    pub exchange: Option<EchoResult>,
    /// Plain TCP over single paths, where something was wrong.
    #[serde(default)]
    pub controls: Vec<PlainTcpCheck>,
    /// Packets of our own making, with rising time to live.
    #[serde(default)]
    pub probes: Vec<HopProbe>,
}

/// An attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectAttempt {
    /// Over Multipath TCP.
    pub multipath: bool,
    /// What came of it.
    pub outcome: ConnectOutcome,
    /// How long it took.
    pub took_ms: u64,
    /// The router that refused it.
    #[serde(default)]
    pub refused: Option<IcmpRefusal>,
}

/// A router's message that a packet cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpRefusal {
    /// Who says so.
    pub router: IpAddr,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectOutcome {
    /// A connection.
    Connected,
    /// Somebody says no.
    Refused,
    /// No answer.
    Silent,
    /// An error of the system, by its number.
    Failed(i32),
}

/// An event of the path manager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedEvent {
    /// When, since the connection was begun.
    pub at_ms: u64,
    /// What, as `ip mptcp monitor` writes it.
    pub kind: String,
    /// Number of our address.
    pub local_id: Option<u8>,
    /// Number of the peer's.
    pub remote_id: Option<u8>,
    /// Our address.
    pub local: Option<IpAddr>,
    /// The peer's.
    pub remote: Option<IpAddr>,
    /// Our port.
    pub local_port: Option<u16>,
    /// The peer's port.
    pub remote_port: Option<u16>,
    /// Error that ended a subflow.
    pub error: Option<i32>,
    /// Reason in the peer's reset (RFC 8684 §3.6).
    pub reset_reason: Option<u32>,
    /// The peer does not want subflows to the address of the first one.
    pub denies_first_address: bool,
}

/// A subflow of our own connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, independent of each other")]
pub struct ObservedSubflow {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Number of our address.
    #[serde(default)]
    pub local_id: Option<u8>,
    /// Number of the peer's.
    #[serde(default)]
    pub remote_id: Option<u8>,
    /// The first subflow of the connection.
    #[serde(default)]
    pub first: bool,
    /// We opened it.
    #[serde(default)]
    pub opened_here: bool,
    /// We asked to use it as a backup.
    #[serde(default)]
    pub backup_here: bool,
    /// The peer did.
    #[serde(default)]
    pub backup_there: bool,
    /// It was established at some time.
    #[serde(default)]
    pub established: bool,
    /// Its last state, as TCP names it.
    #[serde(default)]
    pub state: String,
    /// It was gone before we ended the connection.
    #[serde(default)]
    pub gone: bool,
    /// What TCP knows of it.
    #[serde(default)]
    pub tcp: TcpStats,
}

/// What TCP knows of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpStats {
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Timeouts in a row without an answer.
    pub backoff: u32,
    /// Packets sent again.
    pub retransmissions: u32,
    /// Packets that arrived behind a gap.
    #[serde(rename = "behind_gap")]
    pub out_of_order: u32,
    /// Packets that are not acknowledged.
    pub unacked: u32,
    /// Largest segment.
    pub mss_bytes: u32,
    /// Bytes sent, each as often as it was.
    pub bytes_sent: u64,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Since when nothing has arrived, not even an acknowledgement.
    pub silent_ms: u32,
    /// The largest packet that the path takes, as far as TCP knows.
    pub path_mtu: u32,
}

/// What was sent and came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EchoResult {
    /// Bytes that the kernel took.
    pub sent: u64,
    /// Bytes that came back.
    pub returned: u64,
    /// The first byte that came back as another one, counted from 0.
    pub changed_at: Option<u64>,
    /// How long it took.
    pub took_ms: u64,
    /// Longest time in which nothing came back.
    pub longest_pause_ms: u64,
}

/// Plain TCP over one path: tells trouble of the path from trouble with Multipath TCP on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainTcpCheck {
    /// Our address.
    pub local: IpAddr,
    /// The interface that it was bound to.
    #[serde(default)]
    pub bound_to: Option<u32>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Whether it connected.
    pub outcome: ConnectOutcome,
    /// The router that refused it.
    #[serde(default)]
    pub refused: Option<IcmpRefusal>,
    /// A few bytes went and came back, if the peer does that.
    #[serde(default)]
    pub small: Option<bool>,
    /// So did packets of full size.
    #[serde(default)]
    pub large: Option<bool>,
    /// When those of full size had not: a few bytes did, once more, over another connection.
    #[serde(rename = "small_again", default)]
    pub small_retry: Option<bool>,
    /// After that, packets of full size did: those sent anew over another connection, or the first
    /// ones at last.
    #[serde(rename = "large_again", default)]
    pub large_retry: Option<bool>,
    /// Small packets sent one after the other, with room between them.
    #[serde(default)]
    pub packets: u32,
    /// How many of them had to be sent again.
    #[serde(default)]
    pub resent: u32,
    /// Packets with answers.
    #[serde(default)]
    pub answers: u32,
    /// How many of them arrived behind a gap.
    #[serde(default)]
    pub behind_gap: u32,
    /// Smallest round-trip time.
    #[serde(default)]
    pub min_rtt_us: u32,
    /// Whether a first subflow over it is Multipath TCP; asked where our own connection is not.
    #[serde(default)]
    pub multipath: Option<bool>,
}

/// SYN packets with rising time to live over one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopProbe {
    /// Our address.
    pub local: IpAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Which option they had.
    pub option: ProbeOption,
    /// Who answered, in order of time to live; the first is at 1.
    pub hops: Vec<HopReply>,
    /// The answer of the peer itself.
    #[serde(default)]
    pub answer: Option<TargetReply>,
}

/// The option of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeOption {
    /// None of Multipath TCP.
    Plain,
    /// That of a first subflow.
    Capable,
    /// That of a further subflow.
    Join,
}

/// A router's answer to a packet that it had to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HopReply {
    /// Who answered; none if nobody did.
    pub address: Option<IpAddr>,
    /// Whether the packet had its option when it arrived there, if the answer quotes enough.
    pub has_option: Option<bool>,
    /// It forbids the way or knows none: type and code of its message.
    pub refused: Option<(u8, u8)>,
}

/// The answer of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetReply {
    /// It accepts, with the option of Multipath TCP or without.
    SynAck {
        /// With the option.
        option: bool,
    },
    /// It refuses, with a reason of Multipath TCP or without.
    Reset {
        /// With the option.
        option: bool,
    },
}

/// The other host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSnapshots {
    /// Where it was asked.
    pub address: SocketAddr,
    /// How it looked before our connection.
    pub before: HostSnapshot,
    /// And at its end.
    #[serde(default)]
    pub after: Option<HostSnapshot>,
}

impl TestConnection {
    /// A trial of which nothing is known yet.
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

    /// The growth of a counter of Multipath TCP.
    pub fn counter_delta(&self, name: &str) -> u64 {
        self.counters.get(&format!("MPTcpExt.{name}")).copied().unwrap_or(0)
    }

    /// Attempts over one transport.
    pub fn attempts(&self, multipath: bool) -> impl Iterator<Item = &ConnectAttempt> {
        self.attempts.iter().filter(move |one| one.multipath == multipath)
    }

    /// Whether some attempt over one transport connected.
    pub fn connected(&self, multipath: bool) -> bool {
        self.attempts(multipath).any(|one| one.outcome == ConnectOutcome::Connected)
    }

    /// The first subflow.
    pub fn first(&self) -> Option<&ObservedSubflow> {
        self.subflows.iter().find(|one| one.first)
    }

    /// Events of a kind.
    pub fn events_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a RecordedEvent> {
        self.events.iter().flatten().filter(move |event| event.kind == kind)
    }
}

impl PeerSnapshots {
    /// The growth of a counter of the other host's Multipath TCP.
    pub fn counter_delta(&self, name: &str) -> u64 {
        let name = format!("MPTcpExt.{name}");
        let after = self.after.as_ref().map_or(0, |after| after.counter(&name));
        after.saturating_sub(self.before.counter(&name))
    }

    /// The latest that is known.
    pub fn latest(&self) -> &HostSnapshot {
        self.after.as_ref().unwrap_or(&self.before)
    }
}
