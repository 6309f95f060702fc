//! Sockets of this host's programs and their protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use towpath_host::monitor;
use towpath_host::monitor::Process;
use towpath_host::snapshot::take::canonical_address;
use towpath_kernel::sample::MptcpInfo;
use towpath_netlink::{DiagSocket, NetlinkError, SocketDiag, StateFilter, TcpState};

use super::connection_watch;
use super::observation::{ProgramSocket, SocketProtocol, SocketRole};

/// Limit on reported sockets.
const MAX_SOCKETS: usize = 256;

/// Processes whose sockets are examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessScope {
    /// Only connections over Multipath TCP, of all programs.
    #[default]
    Multipath,
    /// All sockets of one process, by its ID.
    Process(u32),
    /// All sockets of all programs.
    All,
}

impl ProcessScope {
    /// Checks that the sockets can be attributed to their process; returns the error of `/proc`.
    pub fn can_be_seen(self) -> io::Result<()> {
        match self {
            Self::Multipath | Self::All => Ok(()),
            Self::Process(id) => fs::read_dir(format!("/proc/{id}/fd")).map(drop),
        }
    }
}

/// Returns the sockets of programs, without those of this process.
pub(super) fn program_sockets(scope: ProcessScope) -> Result<Vec<ProgramSocket>, NetlinkError> {
    let mut diag = SocketDiag::open()?;
    let (tcp, mptcp) =
        (diag.tcp(StateFilter::ALL)?, diag.mptcp(StateFilter::ALL).unwrap_or_default());
    let owners = monitor::socket_owners();
    let tokens: BTreeSet<u32> =
        mptcp.iter().map(|socket| MptcpInfo::parse(&socket.info).token).collect();
    let inodes: BTreeSet<u32> =
        mptcp.iter().map(|socket| socket.inode).filter(|inode| *inode != 0).collect();
    let is_mptcp_part = |socket: &DiagSocket| {
        let token = socket.subflow.and_then(|flow| flow.token_local);
        token.is_some_and(|token| tokens.contains(&token)) || inodes.contains(&socket.inode)
    };
    let connections = mptcp.iter().filter_map(|socket| {
        let info = MptcpInfo::parse(&socket.info);
        let protocol =
            if info.fallback { SocketProtocol::FellBack } else { SocketProtocol::Multipath };
        let is_own_subflow = |subflow: &&DiagSocket| {
            subflow.subflow.and_then(|flow| flow.token_local) == Some(info.token) && info.token != 0
        };
        let subflows =
            tcp.iter().filter(is_own_subflow).map(connection_watch::observed_subflow).collect();
        Some(ProgramSocket { speaks: protocol, subflows, ..program_socket(socket, &owners)? })
    });
    let plain = tcp.iter().filter(|socket| socket.subflow.is_none() && !is_mptcp_part(socket));
    let plain = plain.filter_map(|socket| program_socket(socket, &owners));
    let own_pid = std::process::id();
    let is_in_scope = |socket: &ProgramSocket| {
        socket.id != Some(own_pid)
            && match scope {
                ProcessScope::Multipath => {
                    socket.speaks != SocketProtocol::Tcp && socket.role == SocketRole::Connected
                }
                ProcessScope::Process(id) => socket.id == Some(id),
                ProcessScope::All => true,
            }
    };
    let mut sockets: Vec<_> = connections.chain(plain).filter(is_in_scope).collect();
    sockets.truncate(MAX_SOCKETS);
    Ok(sockets)
}

/// Returns a listener or connection; omits loopback and link-local peers.
fn program_socket(
    socket: &DiagSocket,
    owners: &BTreeMap<u32, Vec<Process>>,
) -> Option<ProgramSocket> {
    let role = match socket.state {
        TcpState::Listen => SocketRole::Listens,
        TcpState::Established | TcpState::CloseWait => SocketRole::Connected,
        TcpState::SynSent
        | TcpState::SynReceived
        | TcpState::FinWait1
        | TcpState::FinWait2
        | TcpState::TimeWait
        | TcpState::Closed
        | TcpState::LastAck
        | TcpState::Closing
        | TcpState::Other(_) => return None,
    };
    let (local, remote) = (canonical_address(socket.local), canonical_address(socket.remote));
    let is_loopback = |address: SocketAddr| address.ip().is_loopback();
    if is_loopback(local) || is_loopback(remote) || is_link_local(remote.ip()) {
        return None;
    }
    let owner = owners.get(&socket.inode).and_then(|processes| processes.first());
    Some(ProgramSocket {
        id: owner.map(|owner| owner.id),
        name: owner.map_or_else(String::new, |owner| owner.name.clone()),
        role,
        local,
        remote,
        speaks: SocketProtocol::Tcp,
        subflows: Vec::new(),
        sender: None,
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
