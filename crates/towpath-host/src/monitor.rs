//! Multipath TCP connections of a network namespace: each with its subflows and its processes.
//!
//! Reads the kernel's socket listings and `/proc`. Needs no privilege, but only root sees other
//! users' processes. The path manager's events need `CAP_NET_ADMIN`. Final counters of closed
//! sockets come with the kernel's destroy messages, where it sends them.
//!
//! A subflow belongs to the connection with its token, or with its inode where an older kernel does
//! not report tokens.

mod event_timeline;
mod history;
mod limits;
mod metrics_server;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

pub use event_timeline::{EventSource, EventTimeline, MonitorEvent};
pub use history::{
    ConnectionHistory, DerivedConnection, DerivedSubflow, EndedSubflow, MonitorRound,
    SubflowActivity,
};
pub use limits::{LimitHistory, record_limits};
pub use limits::{ObservedLimit, SocketInternals};
pub use metrics_server::MetricsServer;

use towpath_kernel::sample::{MptcpInfo, TcpInfo};
use towpath_kernel::send_limit::ConnectionSendState;
use towpath_netlink::{
    DestroyedSockets, DiagSocket, MptcpEvent, MptcpEvents, NetlinkError, SocketDiag, StateFilter,
    SubflowFlags, TcpState,
};

/// A Multipath TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoredConnection {
    /// Local token, by which the kernel's events name the connection; 0 for one without a token
    /// yet.
    pub token: u32,
    /// State of the MPTCP socket.
    pub state: TcpState,
    /// Set when the connection has fallen back to TCP.
    pub fallback: bool,
    /// Local address and port of the first subflow.
    pub local: SocketAddr,
    /// Address and port of the peer on the first subflow.
    pub remote: SocketAddr,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
    /// User ID of the socket's owner.
    pub uid: u32,
    /// Processes that have the socket open, as far as our privileges show them.
    pub processes: Vec<Process>,
    /// Payload bytes received, each once (since Linux 6.5).
    pub bytes_received: u64,
    /// Payload bytes acknowledged, each once (since Linux 6.5).
    pub bytes_acked: u64,
    /// Payload bytes reinjected on another subflow.
    pub bytes_reinjected: u64,
    /// Kernel's cookie of the socket, which is never reused.
    pub cookie: u64,
    /// TCP subflows of the connection, one per four-tuple.
    pub subflows: Vec<MonitoredSubflow>,
    /// Kernel counters from which the send limits are derived.
    pub internals: SocketInternals,
}

/// Process that has a socket open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process ID in our PID namespace.
    pub id: u32,
    /// Command name, at most 15 bytes.
    pub name: String,
}

/// A subflow. The kernel also counts one whose handshake is not over; see `state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoredSubflow {
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// TCP state of the subflow's socket.
    pub state: TcpState,
    /// Usability of the subflow for data.
    pub condition: SubflowCondition,
    /// Set when either end wants the subflow as a backup.
    pub backup: bool,
    /// Address ID of our address.
    pub local_id: Option<u8>,
    /// Address ID of the peer's address.
    pub remote_id: Option<u8>,
    /// Name of the congestion control; `None` where the kernel does not report it.
    pub congestion: Option<String>,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u32,
    /// Congestion window in packets.
    pub cwnd_packets: u32,
    /// Consecutive retransmission timeouts without a reply.
    pub backoff: u32,
    /// Packets sent and not acknowledged.
    pub unacked_packets: u32,
    /// Retransmitted packets in total.
    pub retransmissions: u32,
    /// Payload bytes received in total.
    pub bytes_received: u64,
    /// Payload bytes acknowledged in total.
    pub bytes_acked: u64,
    /// Kernel's cookie of the socket, which is never reused.
    pub cookie: u64,
    /// Time since the last acknowledgement arrived.
    pub since_ack: Duration,
    /// Time since payload was last sent.
    pub since_sent: Duration,
    /// Kernel counters from which the send limits are derived.
    pub internals: SocketInternals,
}

/// Final counters of a closed TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalSocketStats {
    /// Cookie of the socket, as in [`MonitoredSubflow::cookie`].
    pub cookie: u64,
    /// Payload bytes received until the socket closed.
    pub bytes_received: u64,
    /// Payload bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Packets retransmitted on this socket.
    pub retransmissions: u32,
}

/// Usability of a subflow for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubflowCondition {
    /// Handshake in progress: nothing can be sent.
    Trying,
    /// Data can be sent.
    Established,
    /// No reply to sent packets for several timeouts. Inferred, because the kernel has no such
    /// state.
    Silent,
    /// Closing handshake in progress, or closed.
    Closing,
}

/// Timeouts in a row after which a subflow counts as silent.
const SILENT_AFTER_TIMEOUTS: u8 = 2;

/// Netlink sockets of a monitor.
#[derive(Debug)]
pub struct Monitor {
    diag: SocketDiag,
    events: Option<MptcpEvents>,
    destroyed: Option<DestroyedSockets>,
}

impl Monitor {
    /// Opens the netlink sockets in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let (events, destroyed) = (MptcpEvents::open().ok(), DestroyedSockets::open().ok());
        Ok(Self { diag: SocketDiag::open()?, events, destroyed })
    }

    /// Returns true if the kernel sends the path manager's events to this monitor.
    pub fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Returns the events since the last call; true when some were lost.
    pub fn events(&mut self) -> Result<(Vec<MptcpEvent>, bool), NetlinkError> {
        match &mut self.events {
            Some(events) => events.drain().map(|received| (received.events, received.lost)),
            None => Ok((Vec::new(), false)),
        }
    }

    /// Returns the final counters of TCP sockets closed since the last call.
    ///
    /// `None` where the kernel sends none.
    pub fn final_stats(&mut self) -> Result<Option<Vec<FinalSocketStats>>, NetlinkError> {
        let Some(destroyed) = &mut self.destroyed else { return Ok(None) };
        let received = destroyed.drain()?;
        Ok(Some(received.events.iter().map(FinalSocketStats::from_socket).collect()))
    }

    /// Returns all current connections without listeners, in a stable order.
    pub fn connections(&mut self) -> Result<Vec<MonitoredConnection>, NetlinkError> {
        let tcp = self.diag.tcp(StateFilter::CONNECTED)?;
        let mptcp = self.diag.mptcp(StateFilter::CONNECTED)?;
        let mut connections = assemble_connections(&mptcp, &tcp);
        let mut owners = socket_owners();
        for connection in &mut connections {
            connection.processes = owners.remove(&connection.inode).unwrap_or_default();
            // The first subflow comes first: further ones have address IDs.
            connection.subflows.sort_by_key(|s| (s.local_id, s.remote_id, s.cookie));
        }
        connections.sort_by_key(|connection| connection.cookie);
        Ok(connections)
    }
}

impl FinalSocketStats {
    fn from_socket(socket: &DiagSocket) -> Self {
        let info = TcpInfo::parse(&socket.info);
        Self {
            cookie: socket.cookie,
            bytes_received: info.bytes_received,
            bytes_acked: info.bytes_acked,
            retransmissions: info.total_retrans,
        }
    }
}

/// Assigns subflows to their connections.
pub fn assemble_connections(mptcp: &[DiagSocket], tcp: &[DiagSocket]) -> Vec<MonitoredConnection> {
    let assemble = |mptcp_socket: &DiagSocket| {
        let info = MptcpInfo::parse(&mptcp_socket.info);
        let is_own_subflow = |tcp_socket: &&DiagSocket| match tcp_socket
            .subflow
            .and_then(|subflow_info| subflow_info.token_local)
        {
            Some(token) => token == info.token,
            None => tcp_socket.inode == mptcp_socket.inode && tcp_socket.inode != 0,
        };
        MonitoredConnection {
            token: info.token,
            state: mptcp_socket.state,
            fallback: info.fallback,
            local: mptcp_socket.local,
            remote: mptcp_socket.remote,
            inode: mptcp_socket.inode,
            uid: mptcp_socket.uid,
            processes: Vec::new(),
            bytes_received: info.bytes_received,
            bytes_acked: info.bytes_acked,
            bytes_reinjected: info.bytes_retrans,
            cookie: mptcp_socket.cookie,
            subflows: tcp.iter().filter(is_own_subflow).map(monitored_subflow).collect(),
            internals: SocketInternals {
                send_state: ConnectionSendState::from_kernel(&info, mptcp_socket.send_buffer),
                ..SocketInternals::default()
            },
        }
    };
    mptcp.iter().map(assemble).collect()
}

/// Converts a socket of a listing to a subflow of the monitor.
pub fn monitored_subflow(socket: &DiagSocket) -> MonitoredSubflow {
    let info = TcpInfo::parse(&socket.info);
    let subflow_info = socket.subflow.unwrap_or_default();
    let has_flag = |flag: SubflowFlags| subflow_info.flags.contains(flag);
    MonitoredSubflow {
        local: socket.local,
        remote: socket.remote,
        state: socket.state,
        condition: subflow_condition(socket.state, info.backoff),
        backup: has_flag(SubflowFlags::BACKUP_LOCAL) || has_flag(SubflowFlags::BACKUP_REMOTE),
        local_id: subflow_info.local_id,
        remote_id: subflow_info.remote_id,
        congestion: socket.congestion.clone(),
        srtt_us: info.srtt_us,
        cwnd_packets: info.cwnd,
        backoff: u32::from(info.backoff),
        unacked_packets: info.unacked,
        retransmissions: info.total_retrans,
        bytes_received: info.bytes_received,
        bytes_acked: info.bytes_acked,
        cookie: socket.cookie,
        since_ack: Duration::from_millis(info.last_ack_received_ms.into()),
        since_sent: Duration::from_millis(info.last_data_sent_ms.into()),
        internals: SocketInternals { tcp: info, ..SocketInternals::default() },
    }
}

fn subflow_condition(state: TcpState, backoff: u8) -> SubflowCondition {
    match state {
        TcpState::SynSent | TcpState::SynReceived => SubflowCondition::Trying,
        TcpState::Established | TcpState::CloseWait if backoff >= SILENT_AFTER_TIMEOUTS => {
            SubflowCondition::Silent
        }
        TcpState::Established | TcpState::CloseWait => SubflowCondition::Established,
        TcpState::FinWait1
        | TcpState::FinWait2
        | TcpState::TimeWait
        | TcpState::Closed
        | TcpState::LastAck
        | TcpState::Listen
        | TcpState::Closing
        | TcpState::Other(_) => SubflowCondition::Closing,
    }
}

/// Returns visible processes by the inodes of their open sockets.
pub fn socket_owners() -> BTreeMap<u32, Vec<Process>> {
    let mut owners: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let descriptors = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let Some(inode) = target.to_str().and_then(socket_inode) else { continue };
            let processes = owners.entry(inode).or_default();
            if processes.last().is_none_or(|last| last.id != id) {
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                processes.push(Process { id, name: name.trim_end().to_owned() });
            }
        }
    }
    owners
}

/// Parses the inode in `socket:[1234]`.
fn socket_inode(target: &str) -> Option<u32> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_of_sockets_are_read_from_links() {
        assert_eq!(socket_inode("socket:[1234]"), Some(1234));
        assert_eq!(socket_inode("pipe:[1234]"), None);
        assert_eq!(socket_inode("/dev/null"), None);
    }

    #[test]
    fn an_unanswered_subflow_is_connecting_or_silent() {
        assert_eq!(subflow_condition(TcpState::SynSent, 0), SubflowCondition::Trying);
        assert_eq!(subflow_condition(TcpState::Established, 1), SubflowCondition::Established);
        assert_eq!(subflow_condition(TcpState::Established, 2), SubflowCondition::Silent);
        assert_eq!(subflow_condition(TcpState::LastAck, 0), SubflowCondition::Closing);
    }

    #[test]
    fn the_owner_of_a_socket_is_found() {
        use std::os::fd::AsFd as _;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = towpath_os::sys::inode(socket.as_fd()).unwrap();
        let owners = socket_owners();
        let ids: Vec<_> = owners[&inode].iter().map(|process| process.id).collect();
        assert_eq!(ids, [std::process::id()]);
    }
}
