//! The Multipath TCP connections of a network namespace: each with its subflows and its processes.
//!
//! Reads the kernel's listings of sockets and `/proc`; needs no privilege, but processes of others
//! show only to root. The path manager's events need `CAP_NET_ADMIN`. The final figures of what is
//! closed come with the kernel's last words of a socket, where it gives them.
//!
//! A subflow belongs to the connection that has its token, and where an older kernel does not tell
//! tokens, to the one with its inode.

mod limits;
mod responder;
mod timeline;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use limits::{LimitHistory, record_limits};
pub use limits::{ObservedLimit, SocketInternals};
pub use responder::MetricsServer;
pub use timeline::{EventSource, EventTimeline, MonitorEvent};
pub use watch::{
    ConnectionHistory, DerivedConnection, DerivedSubflow, EndedSubflow, MonitorRound,
    SubflowActivity,
};

use crate::limit::ConnectionSendState;
use crate::netlink::{
    DestroyedSockets, DiagSocket, MptcpEvent, MptcpEvents, NetlinkError, SocketDiag, StateFilter,
    SubflowFlags, TcpState,
};
use crate::sample::{MptcpInfo, TcpInfo};

/// A Multipath TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoredConnection {
    /// Local token, by which the kernel's events name it; 0 for one that has none (yet).
    pub token: u32,
    /// State of the MPTCP socket.
    pub state: TcpState,
    /// Whether it has fallen back to TCP.
    pub fallback: bool,
    /// Our address and port of the first subflow.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Inode of the socket; 0 when no process has it open any more.
    pub inode: u32,
    /// User that owns the socket.
    pub uid: u32,
    /// Processes that have the socket open, as far as we may see them.
    pub processes: Vec<Process>,
    /// Payload bytes received, each once (since Linux 6.5).
    pub bytes_received: u64,
    /// Payload bytes acknowledged, each once (since Linux 6.5).
    pub bytes_acked: u64,
    /// Bytes sent again on another subflow.
    pub bytes_reinjected: u64,
    /// Number of the socket that is never used twice.
    pub cookie: u64,
    /// Its subflows.
    pub subflows: Vec<MonitoredSubflow>,
    /// What its limits are concluded from.
    pub internals: SocketInternals,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
}

/// A subflow. The kernel counts one that is still trying as a subflow; its state tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoredSubflow {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// TCP state.
    pub state: TcpState,
    /// What it is good for.
    pub condition: SubflowCondition,
    /// Whether either end wants it as a backup.
    pub backup: bool,
    /// Number of our address.
    pub local_id: Option<u8>,
    /// Number of the peer's address.
    pub remote_id: Option<u8>,
    /// Congestion control.
    pub congestion: Option<String>,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Congestion window.
    pub cwnd_packets: u32,
    /// Consecutive timeouts without an answer.
    pub backoff: u32,
    /// Packets sent and not acknowledged.
    pub unacked_packets: u32,
    /// Retransmitted packets in total.
    pub retransmissions: u32,
    /// Payload bytes received in total.
    pub bytes_received: u64,
    /// Payload bytes acknowledged in total.
    pub bytes_acked: u64,
    /// Number of the socket that is never used twice.
    pub cookie: u64,
    /// Since an acknowledgement last came.
    pub since_ack: Duration,
    /// Since payload was last sent.
    pub since_sent: Duration,
    /// What its limits are concluded from.
    pub internals: SocketInternals,
}

/// Final figures of a TCP socket that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalSocketStats {
    /// The socket's number, as in [`MonitoredSubflow::cookie`].
    pub cookie: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes acknowledged.
    pub bytes_acked: u64,
    /// Retransmitted packets.
    pub retransmissions: u32,
}

/// What a subflow is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubflowCondition {
    /// The handshake is not over: nothing can be sent.
    Trying,
    /// Data can be sent.
    Established,
    /// Sent packets have not been answered for several timeouts. The kernel does not say so; this
    /// is inferred.
    Silent,
    /// It is being closed.
    Closing,
}

/// Timeouts in a row after which a subflow counts as silent.
const SILENT_AFTER_TIMEOUTS: u8 = 2;

/// A conversation with the kernel.
#[derive(Debug)]
pub struct Monitor {
    diag: SocketDiag,
    events: Option<MptcpEvents>,
    destroyed: Option<DestroyedSockets>,
}

impl Monitor {
    /// Opens it in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let (events, destroyed) = (MptcpEvents::open().ok(), DestroyedSockets::open().ok());
        Ok(Self { diag: SocketDiag::open()?, events, destroyed })
    }

    /// Whether the path manager's events can be heard.
    pub fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Events since the last call; `true` when some were lost.
    pub fn events(&mut self) -> Result<(Vec<MptcpEvent>, bool), NetlinkError> {
        match &mut self.events {
            Some(events) => events.drain().map(|received| (received.events, received.lost)),
            None => Ok((Vec::new(), false)),
        }
    }

    /// Last words of TCP sockets since the last call; `None` where the kernel gives none.
    pub fn final_stats(&mut self) -> Result<Option<Vec<FinalSocketStats>>, NetlinkError> {
        let Some(destroyed) = &mut self.destroyed else { return Ok(None) };
        let received = destroyed.drain()?;
        Ok(Some(received.events.iter().map(FinalSocketStats::of).collect()))
    }

    /// All connections as they are now, without listeners, and in an order that does not change.
    pub fn connections(&mut self) -> Result<Vec<MonitoredConnection>, NetlinkError> {
        let tcp = self.diag.tcp(StateFilter::CONNECTED)?;
        let mptcp = self.diag.mptcp(StateFilter::CONNECTED)?;
        let mut connections = assemble_connections(&mptcp, &tcp);
        let mut owners = owners();
        for connection in &mut connections {
            connection.processes = owners.remove(&connection.inode).unwrap_or_default();
            // The first subflow first; further ones have numbered addresses.
            connection.subflows.sort_by_key(|it| (it.local_id, it.remote_id, it.cookie));
        }
        connections.sort_by_key(|connection| connection.cookie);
        Ok(connections)
    }
}

impl FinalSocketStats {
    fn of(socket: &DiagSocket) -> Self {
        let info = TcpInfo::parse(&socket.info);
        Self {
            cookie: socket.cookie,
            bytes_received: info.bytes_received,
            bytes_acked: info.bytes_acked,
            retransmissions: info.total_retrans,
        }
    }
}

/// Joins connections and subflows.
pub(crate) fn assemble_connections(
    mptcp: &[DiagSocket],
    tcp: &[DiagSocket],
) -> Vec<MonitoredConnection> {
    let connection = |whole: &DiagSocket| {
        let info = MptcpInfo::parse(&whole.info);
        let belongs = |part: &&DiagSocket| match part.subflow.and_then(|flow| flow.token_local) {
            Some(token) => token == info.token,
            None => part.inode == whole.inode && part.inode != 0,
        };
        MonitoredConnection {
            token: info.token,
            state: whole.state,
            fallback: info.fallback,
            local: whole.local,
            remote: whole.remote,
            inode: whole.inode,
            uid: whole.uid,
            processes: Vec::new(),
            bytes_received: info.bytes_received,
            bytes_acked: info.bytes_acked,
            bytes_reinjected: info.bytes_retrans,
            cookie: whole.cookie,
            subflows: tcp.iter().filter(belongs).map(subflow).collect(),
            internals: SocketInternals {
                send_state: ConnectionSendState::of(&info, whole.send_buffer),
                ..SocketInternals::default()
            },
        }
    };
    mptcp.iter().map(connection).collect()
}

pub(crate) fn subflow(part: &DiagSocket) -> MonitoredSubflow {
    let info = TcpInfo::parse(&part.info);
    let flow = part.subflow.unwrap_or_default();
    let has = |flag: SubflowFlags| flow.flags.contains(flag);
    MonitoredSubflow {
        local: part.local,
        remote: part.remote,
        state: part.state,
        condition: condition(part.state, info.backoff),
        backup: has(SubflowFlags::BACKUP_LOCAL) || has(SubflowFlags::BACKUP_REMOTE),
        local_id: flow.local_id,
        remote_id: flow.remote_id,
        congestion: part.congestion.clone(),
        srtt_us: info.srtt_us,
        cwnd_packets: info.cwnd,
        backoff: u32::from(info.backoff),
        unacked_packets: info.unacked,
        retransmissions: info.total_retrans,
        bytes_received: info.bytes_received,
        bytes_acked: info.bytes_acked,
        cookie: part.cookie,
        since_ack: Duration::from_millis(info.last_ack_received_ms.into()),
        since_sent: Duration::from_millis(info.last_data_sent_ms.into()),
        internals: SocketInternals { tcp: info, ..SocketInternals::default() },
    }
}

fn condition(state: TcpState, backoff: u8) -> SubflowCondition {
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

/// The processes that we may look into, by the inodes of the sockets that they have open.
pub(crate) fn owners() -> BTreeMap<u32, Vec<Process>> {
    let mut owners: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in open {
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

/// The number in `socket:[1234]`.
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
        assert_eq!(condition(TcpState::SynSent, 0), SubflowCondition::Trying);
        assert_eq!(condition(TcpState::Established, 1), SubflowCondition::Established);
        assert_eq!(condition(TcpState::Established, 2), SubflowCondition::Silent);
        assert_eq!(condition(TcpState::LastAck, 0), SubflowCondition::Closing);
    }

    #[test]
    fn the_owner_of_a_socket_is_found() {
        use std::os::fd::AsFd as _;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = crate::sys::inode(socket.as_fd()).unwrap();
        let owners = owners();
        let ids: Vec<_> = owners[&inode].iter().map(|process| process.id).collect();
        assert_eq!(ids, [std::process::id()]);
    }
}
