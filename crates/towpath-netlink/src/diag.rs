//! Sockets of the namespace: a listing, and the final state of destroyed sockets.
//!
//! `NETLINK_SOCK_DIAG` (`linux/sock_diag.h`, `linux/inet_diag.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::error::NetlinkError;
use super::socket::{EventBatch, EventSocket, RequestSocket};
use super::wire::{
    Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader, u32_at,
};

/// `SOCK_DIAG_BY_FAMILY`: type of requests, replies and destroy messages.
const BY_FAMILY: u16 = 20;
/// `INET_DIAG_REQ_PROTOCOL`: protocol numbers over 255, such as MPTCP's.
const REQ_PROTOCOL: u16 = 3;
/// Multicast groups `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY`.
const DESTROY_GROUPS: [u32; 2] = [1, 3];

/// `INET_DIAG_*` attributes of a reply.
const INFO: u16 = 2;
const CONG: u16 = 4;
const SKMEMINFO: u16 = 7;
const ULP_INFO: u16 = 19;
/// Bit mask that requests [`INFO`], [`CONG`] and [`SKMEMINFO`].
const EXTENSIONS: u8 = 1 << (INFO - 1) | 1 << (CONG - 1) | 1 << (SKMEMINFO - 1);
/// `SK_MEMINFO_SNDBUF` and `SK_MEMINFO_WMEM_QUEUED` in [`SKMEMINFO`] (`linux/sock_diag.h`).
const SK_MEMINFO_SNDBUF: usize = 3;
const SK_MEMINFO_WMEM_QUEUED: usize = 5;
/// `INET_ULP_INFO_MPTCP`, nested in [`ULP_INFO`].
const ULP_MPTCP: u16 = 3;

/// `MPTCP_SUBFLOW_ATTR_*`, nested in [`ULP_MPTCP`].
const SUBFLOW_TOKEN_REM: u16 = 1;
const SUBFLOW_TOKEN_LOC: u16 = 2;
const SUBFLOW_RELWRITE_SEQ: u16 = 3;
const SUBFLOW_MAP_SEQ: u16 = 4;
const SUBFLOW_MAP_SFSEQ: u16 = 5;
const SUBFLOW_SSN_OFFSET: u16 = 6;
const SUBFLOW_MAP_DATALEN: u16 = 7;
const SUBFLOW_FLAGS: u16 = 8;
const SUBFLOW_ID_REM: u16 = 9;
const SUBFLOW_ID_LOC: u16 = 10;

/// TCP or MPTCP socket as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiagSocket {
    /// State of the connection.
    pub state: TcpState,
    /// Our address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Index of the interface that the socket is bound to.
    pub link_index: Option<u32>,
    /// Kernel's number of the socket, never reused; the same in a listing and when destroyed.
    pub cookie: u64,
    /// Inode number, as in `/proc/<pid>/fd`; a subflow has that of its MPTCP socket.
    pub inode: u32,
    /// User ID of the socket's owner.
    pub uid: u32,
    /// Bytes received but not yet read by the program.
    pub receive_queue: u32,
    /// Bytes sent but not acknowledged.
    pub send_queue: u32,
    /// `struct tcp_info` (TCP) or `struct mptcp_info` (MPTCP), in this kernel's length; empty if
    /// the socket has none.
    pub info: Vec<u8>,
    /// Name of the congestion control, such as `cubic`.
    pub congestion: Option<String>,
    /// Bytes in the send buffer including overhead, and their limit.
    pub send_buffer: (u64, u64),
    /// Subflow details of a TCP socket; `None` for plain TCP and for a destroyed socket.
    pub subflow: Option<SubflowInfo>,
}

/// State of a TCP connection (RFC 9293 §3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the states of RFC 9293")]
pub enum TcpState {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    /// State that this version does not know, by its number.
    Other(u8),
}

/// Set of socket states that a listing includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFilter(u32);

/// Details of a subflow of an MPTCP connection (`MPTCP_SUBFLOW_ATTR_*`).
///
/// Some kernels report more details to the owner of the namespace than others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubflowInfo {
    /// Token by which the peer knows the connection; Linux reports it for joined subflows only.
    pub token_remote: Option<u32>,
    /// Token by which we know the connection.
    pub token_local: Option<u32>,
    /// Address ID of our address (RFC 8684 §3.2).
    pub local_id: Option<u8>,
    /// Address ID of the peer's address (RFC 8684 §3.2).
    pub remote_id: Option<u8>,
    /// Origin and progress of the subflow.
    pub flags: SubflowFlags,
    /// Subflow sequence number of the next byte to send, relative to the subflow's start.
    pub relative_write_sequence: Option<u32>,
    /// Data sequence number of the last received mapping.
    pub map_sequence: Option<u64>,
    /// Subflow sequence number of the last received mapping, relative to the subflow's start.
    pub map_subflow_sequence: Option<u32>,
    /// Initial subflow sequence number that mappings are relative to.
    pub subflow_sequence_offset: Option<u32>,
    /// Length of the last received mapping, in bytes.
    pub map_length: Option<u16>,
}

/// `MPTCP_SUBFLOW_FLAG_*` (`linux/mptcp.h`); join them by `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubflowFlags(u32);

/// Requests about the sockets of one network namespace; needs no privilege.
#[derive(Debug)]
pub struct SocketDiag {
    requests: RequestSocket,
}

/// Stream of the TCP sockets that are destroyed, each with its final `tcp_info`.
///
/// Linux 6.18 needs no privilege; older kernels may need `CAP_NET_ADMIN`. The descriptor polls
/// readable when events are pending.
///
/// No other source has the counters of a closed subflow.
#[derive(Debug)]
pub struct DestroyedSockets {
    events: EventSocket,
}

impl StateFilter {
    /// Sockets in every TCP state.
    pub const ALL: Self = Self(0xfff);
    /// States in which the peer keeps state for the connection, or is about to.
    pub const CONNECTED: Self = Self(0xfff & !(1 << 6 | 1 << 7 | 1 << 10));
    /// Sockets that listen for connections.
    pub const LISTEN: Self = Self(1 << 10);
}

impl SubflowFlags {
    /// First subflow (MP_CAPABLE), which we accepted.
    pub const CAPABLE_REMOTE: Self = Self(1);
    /// First subflow (MP_CAPABLE), which we opened.
    pub const CAPABLE_LOCAL: Self = Self(1 << 1);
    /// Joined subflow (MP_JOIN), which we accepted.
    pub const JOIN_REMOTE: Self = Self(1 << 2);
    /// Joined subflow (MP_JOIN), which we opened.
    pub const JOIN_LOCAL: Self = Self(1 << 3);
    /// The peer asked to use the subflow as a backup.
    pub const BACKUP_REMOTE: Self = Self(1 << 4);
    /// We asked to use the subflow as a backup.
    pub const BACKUP_LOCAL: Self = Self(1 << 5);
    /// Both sides have confirmed that MPTCP works on the subflow.
    pub const FULLY_ESTABLISHED: Self = Self(1 << 6);
    /// The handshake has succeeded.
    pub const CONNECTED: Self = Self(1 << 7);
    /// The subflow has a mapping for the data that it receives.
    pub const MAP_VALID: Self = Self(1 << 8);

    /// Returns true if all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the kernel's number, an OR of `MPTCP_SUBFLOW_FLAG_*`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for SubflowFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl SocketDiag {
    /// Opens a socket in the calling thread's network namespace, which it keeps.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { requests: RequestSocket::open(NETLINK_SOCK_DIAG, "open a socket listing")? })
    }

    /// Lists the TCP sockets, among them the subflows of MPTCP connections.
    pub fn tcp(&mut self, states: StateFilter) -> Result<Vec<DiagSocket>, NetlinkError> {
        self.list(libc::IPPROTO_TCP, states, "list TCP sockets")
    }

    /// Lists the MPTCP sockets, without their subflows.
    pub fn mptcp(&mut self, states: StateFilter) -> Result<Vec<DiagSocket>, NetlinkError> {
        self.list(libc::IPPROTO_MPTCP, states, "list MPTCP sockets")
    }

    fn list(
        &mut self,
        protocol: i32,
        states: StateFilter,
        action: &str,
    ) -> Result<Vec<DiagSocket>, NetlinkError> {
        let mut sockets = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            // `struct inet_diag_req_v2` with a zero socket identity matches any socket. Its
            // protocol field is too narrow for MPTCP; the attribute overrides it.
            let short_protocol = libc::IPPROTO_TCP as u8;
            let payload = MessageBuilder::new(&[family as u8, short_protocol, EXTENSIONS, 0])
                .raw(&states.0.to_ne_bytes())
                .raw(&[0; 48])
                .u32(REQ_PROTOCOL, protocol as u32);
            let parse = |message: &Message<'_>| DiagSocket::parse(message);
            let action = format_args!("{action}");
            sockets.extend(self.requests.dump(BY_FAMILY, &payload, action, parse)?);
        }
        Ok(sockets)
    }
}

impl DestroyedSockets {
    /// Subscribes to the TCP sockets of the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let action = "subscribe to destroyed sockets";
        let events = EventSocket::open(NETLINK_SOCK_DIAG, &DESTROY_GROUPS, action)?;
        Ok(Self { events })
    }

    /// Reads what has arrived; never blocks.
    pub fn drain(&mut self) -> Result<EventBatch<DiagSocket>, NetlinkError> {
        self.events.drain("read destroyed sockets", DiagSocket::parse)
    }
}

impl AsFd for DestroyedSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for DestroyedSockets {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

impl DiagSocket {
    /// Reads `struct inet_diag_msg` and its attributes; `None` for a message of another type.
    fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        if message.kind != BY_FAMILY {
            return Ok(None);
        }
        let mut reader = StructReader::new(message.body, "inet_diag_msg");
        let [family, state, _timer, _retransmits] = reader.take()?;
        let (local_port, remote_port) = (reader.be16()?, reader.be16()?);
        let mut address = || reader.take::<16>().map(|octets| ip(family, octets));
        let (local, remote) = (address()?, address()?);
        let link_index = Some(reader.u32()?).filter(|&index| index != 0);
        let (cookie_low, cookie_high) = (reader.u32()?, reader.u32()?);
        let _expires = reader.u32()?;
        let mut socket = Self {
            state: TcpState::from_kernel(state),
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
            link_index,
            cookie: u64::from(cookie_high) << 32 | u64::from(cookie_low),
            receive_queue: reader.u32()?,
            send_queue: reader.u32()?,
            uid: reader.u32()?,
            inode: reader.u32()?,
            info: Vec::new(),
            congestion: None,
            send_buffer: (0, 0),
            subflow: None,
        };
        for attribute in Attributes::new(reader.rest()) {
            let attribute = attribute?;
            match attribute.kind {
                INFO => socket.info = attribute.value.to_vec(),
                SKMEMINFO => socket.send_buffer = send_buffer(attribute.value),
                CONG => socket.congestion = Some(attribute.text()),
                ULP_INFO => socket.subflow = SubflowInfo::find(attribute)?,
                _ => {}
            }
        }
        Ok(Some(socket))
    }
}

/// Returns the bytes in the send buffer and their limit.
fn send_buffer(memory: &[u8]) -> (u64, u64) {
    let word = |index: usize| u64::from(u32_at(memory, index * 4));
    (word(SK_MEMINFO_WMEM_QUEUED), word(SK_MEMINFO_SNDBUF))
}

impl SubflowInfo {
    /// Looks for MPTCP in the description of an upper layer protocol.
    fn find(ulp: Attribute<'_>) -> Result<Option<Self>, Malformed> {
        for attribute in ulp.nested() {
            let attribute = attribute?;
            if attribute.kind == ULP_MPTCP {
                return Self::parse(attribute.nested()).map(Some);
            }
        }
        Ok(None)
    }

    fn parse(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut info = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                SUBFLOW_TOKEN_REM => info.token_remote = Some(attribute.u32()?).filter(|&t| t != 0),
                SUBFLOW_TOKEN_LOC => info.token_local = Some(attribute.u32()?),
                SUBFLOW_RELWRITE_SEQ => info.relative_write_sequence = Some(attribute.u32()?),
                SUBFLOW_MAP_SEQ => info.map_sequence = Some(attribute.u64()?),
                SUBFLOW_MAP_SFSEQ => info.map_subflow_sequence = Some(attribute.u32()?),
                SUBFLOW_SSN_OFFSET => info.subflow_sequence_offset = Some(attribute.u32()?),
                SUBFLOW_MAP_DATALEN => info.map_length = Some(attribute.u16()?),
                SUBFLOW_FLAGS => info.flags = SubflowFlags(attribute.u32()?),
                SUBFLOW_ID_REM => info.remote_id = Some(attribute.u8()?),
                SUBFLOW_ID_LOC => info.local_id = Some(attribute.u8()?),
                _ => {}
            }
        }
        Ok(info)
    }
}

impl TcpState {
    /// Maps the numbers `TCP_*` of `net/tcp_states.h`.
    const fn from_kernel(state: u8) -> Self {
        match state {
            1 => Self::Established,
            2 => Self::SynSent,
            3 | 12 => Self::SynReceived, // 12: a request that has no socket of its own yet
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            other => Self::Other(other),
        }
    }
}

/// Returns the address in a socket's identity; IPv4 uses the first four bytes.
fn ip(family: u8, octets: [u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = octets;
    if i32::from(family) == libc::AF_INET {
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        Ipv6Addr::from(octets).into()
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("recorded/sockets.hex");

    #[test]
    fn recorded_sockets_are_understood() {
        let sockets = parse_all(RECORDED, |message| DiagSocket::parse(message).unwrap().unwrap());
        let [server, client, subflow, destroyed @ ..] = &sockets[..] else { panic!() };
        let (local, remote) = (client.local.to_string(), client.remote.to_string());
        assert_eq!((local.as_str(), remote.as_str()), ("10.0.0.1:44283", "10.0.1.1:38785"));
        assert_eq!((server.local, server.remote), (client.remote, client.local));
        assert_eq!((client.state, client.info.len()), (TcpState::Established, 96));
        assert_eq!((client.subflow, client.congestion.as_ref()), (None, None));

        assert_eq!((subflow.local, subflow.inode), (client.local, client.inode));
        assert_eq!((subflow.info.len(), subflow.congestion.as_deref()), (280, Some("bbr")));
        let flow = subflow.subflow.unwrap();
        assert_eq!(flow.token_local, Some(0xd320_90b2));
        assert_eq!(flow.token_remote, None, "not told for the first subflow");
        assert_eq!((flow.local_id, flow.remote_id), (Some(0), Some(0)));
        let flags = SubflowFlags::CAPABLE_LOCAL | SubflowFlags::FULLY_ESTABLISHED;
        assert!(flow.flags.contains(flags | SubflowFlags::CONNECTED), "{flow:?}");
        assert!(!flow.flags.contains(SubflowFlags::JOIN_LOCAL));

        assert_eq!(destroyed.len(), 4);
        for socket in destroyed {
            assert_eq!((socket.state, socket.info.len()), (TcpState::Closed, 280));
            assert_eq!(socket.subflow, None);
        }
    }

    #[test]
    fn no_socket_message_panics() {
        never_panics(RECORDED, DiagSocket::parse);
    }
}
