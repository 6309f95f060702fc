//! Sockets of this host's programs and their protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use super::connection_watch;
use super::observation::{ProgramSocket, SocketProtocol, SocketRole};
use super::snapshot::plain_end;
use crate::monitor::{self, Process};
use crate::netlink::{DiagSocket, NetlinkError, SocketDiag, StateFilter, TcpState};
use crate::sample::MptcpInfo;

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
pub(super) fn programs(whose: ProcessScope) -> Result<Vec<ProgramSocket>, NetlinkError> {
    let mut diag = SocketDiag::open()?;
    let (tcp, mptcp) =
        (diag.tcp(StateFilter::ALL)?, diag.mptcp(StateFilter::ALL).unwrap_or_default());
    let owners = monitor::owners();
    let tokens: BTreeSet<u32> = mptcp.iter().map(|one| MptcpInfo::parse(&one.info).token).collect();
    let inodes: BTreeSet<u32> = mptcp.iter().map(|one| one.inode).filter(|one| *one != 0).collect();
    let part = |one: &DiagSocket| {
        let token = one.subflow.and_then(|flow| flow.token_local);
        token.is_some_and(|token| tokens.contains(&token)) || inodes.contains(&one.inode)
    };
    let connections = mptcp.iter().filter_map(|one| {
        let info = MptcpInfo::parse(&one.info);
        let speaks =
            if info.fallback { SocketProtocol::FellBack } else { SocketProtocol::Multipath };
        let its = |part: &&DiagSocket| {
            part.subflow.and_then(|flow| flow.token_local) == Some(info.token) && info.token != 0
        };
        let subflows = tcp.iter().filter(its).map(connection_watch::subflow).collect();
        Some(ProgramSocket { speaks, subflows, ..program(one, &owners)? })
    });
    let plain = tcp.iter().filter(|one| one.subflow.is_none() && !part(one));
    let plain = plain.filter_map(|one| program(one, &owners));
    let us = std::process::id();
    let wanted = |one: &ProgramSocket| {
        one.id != Some(us)
            && match whose {
                ProcessScope::Multipath => {
                    one.speaks != SocketProtocol::Tcp && one.role == SocketRole::Connected
                }
                ProcessScope::Process(id) => one.id == Some(id),
                ProcessScope::All => true,
            }
    };
    let mut found: Vec<_> = connections.chain(plain).filter(wanted).collect();
    found.truncate(MAX_SOCKETS);
    Ok(found)
}

/// Returns a listener or connection; omits loopback and link-local peers.
fn program(socket: &DiagSocket, owners: &BTreeMap<u32, Vec<Process>>) -> Option<ProgramSocket> {
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
    let (local, remote) = (plain_end(socket.local), plain_end(socket.remote));
    let inside = |end: SocketAddr| end.ip().is_loopback();
    if inside(local) || inside(remote) || is_link_local(remote.ip()) {
        return None;
    }
    let owner = owners.get(&socket.inode).and_then(|all| all.first());
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
