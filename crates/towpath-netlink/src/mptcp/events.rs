//! Path manager events: connections, subflows and addresses (`linux/mptcp_pm.h`).

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::protocols::NETLINK_GENERIC;

use super::{resolve_family, split_command};
use crate::error::{NetlinkError, NetlinkErrorKind};
use crate::socket::{EventBatch, EventSocket, RequestSocket};
use crate::wire::{Attribute, Malformed, Message};

/// Name of the multicast group.
pub(super) const GROUP: &str = "mptcp_pm_events";

/// `MPTCP_ATTR_*` attributes of an event (`linux/mptcp_pm.h`).
const TOKEN: u16 = 1;
const LOC_ID: u16 = 3;
const REM_ID: u16 = 4;
const SADDR4: u16 = 5;
const SADDR6: u16 = 6;
const DADDR4: u16 = 7;
const DADDR6: u16 = 8;
const SPORT: u16 = 9;
const DPORT: u16 = 10;
const BACKUP: u16 = 11;
const ERROR: u16 = 12;
const FLAGS: u16 = 13;
const TIMEOUT: u16 = 14;
const IF_IDX: u16 = 15;
const RESET_REASON: u16 = 16;
const RESET_FLAGS: u16 = 17;
const SERVER_SIDE: u16 = 18;

/// Bits of [`MptcpEvent::flags`], `MPTCP_PM_EV_FLAG_*`.
const FLAG_DENY_JOIN_ID0: u16 = 1;
const FLAG_SERVER_SIDE: u16 = 1 << 1;

/// Type of an event (`enum mptcp_event_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MptcpEventKind {
    /// A connection exists; a fallback to TCP is still possible.
    Created,
    /// A connection is established: subflows may be added.
    Established,
    /// A connection is closed.
    Closed,
    /// The peer has announced an address (ADD_ADDR).
    Announced,
    /// The peer has withdrawn an address (REMOVE_ADDR).
    Removed,
    /// A subflow beyond the first is established.
    SubflowEstablished,
    /// A subflow is closed.
    SubflowClosed,
    /// A subflow has become a backup or is no longer one.
    SubflowPriority,
    /// The kernel listens on the port of an endpoint.
    ListenerCreated,
    /// The kernel stopped listening on the port of an endpoint.
    ListenerClosed,
    /// Event that this version does not know, by its number.
    Other(u8),
}

/// Event of the path manager; its details depend on its kind and on the kernel's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MptcpEvent {
    /// Type of the event.
    pub kind: MptcpEventKind,
    /// Local token of the connection; the same as in the socket's `MPTCP_INFO`.
    pub token: Option<u32>,
    /// Address ID of our address.
    pub local_id: Option<u8>,
    /// Address ID of the peer's address.
    pub remote_id: Option<u8>,
    /// Our address of the subflow.
    pub local: Option<IpAddr>,
    /// Address of the peer, or the address that it announces.
    pub remote: Option<IpAddr>,
    /// Our port, in host byte order.
    pub local_port: Option<u16>,
    /// Port of the peer, in host byte order.
    pub remote_port: Option<u16>,
    /// True if the peer asked to use the subflow as a backup; our own request is not reported.
    pub backup: Option<bool>,
    /// Error number that ended the subflow, such as `libc::ETIMEDOUT`.
    pub error: Option<u8>,
    /// Bit mask of `MPTCP_PM_EV_FLAG_*`.
    pub flags: Option<u16>,
    /// Timeout of the path manager, in the kernel's unit; no event has it as of Linux 6.18.
    pub timeout: Option<u32>,
    /// Index of the interface that the subflow is bound to.
    pub link_index: Option<u32>,
    /// Reason in the peer's `MP_TCPRST` option (RFC 8684 §3.6).
    pub reset_reason: Option<u32>,
    /// Flags in the peer's `MP_TCPRST` option.
    pub reset_flags: Option<u32>,
    /// True if we accepted the connection; use [`MptcpEvent::is_server_side`] instead.
    pub server_side: Option<bool>,
}

/// Stream of [`MptcpEvent`]s; needs `CAP_NET_ADMIN` in the namespace. The descriptor polls
/// readable when events are pending.
///
/// A path that fails (link down, black hole) causes no event: see [`LinkEvents`] for links.
///
/// [`LinkEvents`]: crate::LinkEvents
#[derive(Debug)]
pub struct MptcpEvents {
    events: EventSocket,
    family: u16,
}

impl MptcpEvents {
    /// Subscribes to the path manager of the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let action = "subscribe to MPTCP events";
        let family = resolve_family(&mut RequestSocket::open(NETLINK_GENERIC, action)?, action)?;
        let missing = || NetlinkError::new(action, NetlinkErrorKind::Unsupported("MPTCP events"));
        let group = family.events.ok_or_else(missing)?;
        let events = EventSocket::open(NETLINK_GENERIC, &[group], action)?;
        Ok(Self { events, family: family.id })
    }

    /// Reads the pending events; never blocks.
    pub fn drain(&mut self) -> Result<EventBatch<MptcpEvent>, NetlinkError> {
        let family = self.family;
        self.events.drain("read MPTCP events", |message| {
            if message.kind == family { MptcpEvent::parse(message).map(Some) } else { Ok(None) }
        })
    }
}

impl AsFd for MptcpEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for MptcpEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

impl MptcpEvent {
    /// Returns true if we accepted the connection instead of opening it.
    ///
    /// `None` unless the event is [`MptcpEventKind::Created`] or [`MptcpEventKind::Established`].
    /// For later events, look the connection up by its token.
    pub fn is_server_side(&self) -> Option<bool> {
        use MptcpEventKind::{Created, Established};
        if !matches!(self.kind, Created | Established) {
            return None;
        }
        // Linux sent an attribute at first, and since 6.18 also a flag. Neither is sent if false.
        let flag = self.flags.is_some_and(|flags| flags & FLAG_SERVER_SIDE != 0);
        Some(flag || self.server_side == Some(true))
    }

    /// Returns true if the peer refuses subflows to its initial address (RFC 8684 §3.1, flag "C").
    pub fn denies_join_to_first_address(&self) -> bool {
        self.flags.is_some_and(|flags| flags & FLAG_DENY_JOIN_ID0 != 0)
    }

    fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let (number, attributes) = split_command(message)?;
        let mut event = Self::new(MptcpEventKind::from_kernel(number));
        for attribute in attributes {
            event.set(attribute?)?;
        }
        Ok(event)
    }

    const fn new(kind: MptcpEventKind) -> Self {
        Self {
            kind,
            token: None,
            local_id: None,
            remote_id: None,
            local: None,
            remote: None,
            local_port: None,
            remote_port: None,
            backup: None,
            error: None,
            flags: None,
            timeout: None,
            link_index: None,
            reset_reason: None,
            reset_flags: None,
            server_side: None,
        }
    }

    fn set(&mut self, attribute: Attribute<'_>) -> Result<(), Malformed> {
        match attribute.kind {
            TOKEN => self.token = Some(attribute.u32()?),
            LOC_ID => self.local_id = Some(attribute.u8()?),
            REM_ID => self.remote_id = Some(attribute.u8()?),
            SADDR4 | SADDR6 => self.local = Some(attribute.ip()?),
            DADDR4 | DADDR6 => self.remote = Some(attribute.ip()?),
            SPORT => self.local_port = Some(attribute.be16()?),
            DPORT => self.remote_port = Some(attribute.be16()?),
            BACKUP => self.backup = Some(attribute.u8()? != 0),
            ERROR => self.error = Some(attribute.u8()?),
            FLAGS => self.flags = Some(attribute.u16()?),
            TIMEOUT => self.timeout = Some(attribute.u32()?),
            IF_IDX => self.link_index = Some(attribute.u32()?).filter(|&index| index != 0),
            RESET_REASON => self.reset_reason = Some(attribute.u32()?),
            RESET_FLAGS => self.reset_flags = Some(attribute.u32()?),
            SERVER_SIDE => self.server_side = Some(attribute.u8()? != 0),
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Display for MptcpEvent {
    /// Formats the event like `ip mptcp monitor` of iproute2 6.18 and later.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, token, local_id, remote_id, local, remote, local_port, .. } = self;
        let Self { remote_port, backup, error, timeout, link_index, .. } = self;
        if let MptcpEventKind::Other(number) = kind {
            return write!(f, "[UNKNOWN {number}]");
        }
        write!(f, "[{:>14}]", kind.name())?;
        let version = |address: &IpAddr| if address.is_ipv4() { '4' } else { '6' };
        let write_field = |f: &mut fmt::Formatter<'_>, name: &str, value: Option<u64>| {
            value.map_or(Ok(()), |value| write!(f, " {name}={value}"))
        };
        token.map_or(Ok(()), |token| write!(f, " token={token:08x}"))?;
        write_field(f, "remid", remote_id.map(u64::from))?;
        write_field(f, "locid", local_id.map(u64::from))?;
        for (name, address) in [("saddr", local), ("daddr", remote)] {
            if let Some(address) = address {
                write!(f, " {name}{}={address}", version(address))?;
            }
        }
        write_field(f, "sport", local_port.map(u64::from))?;
        write_field(f, "dport", remote_port.map(u64::from))?;
        write_field(f, "backup", backup.map(u64::from))?;
        write_field(f, "error", error.map(u64::from))?;
        write_field(f, "timeout", timeout.map(u64::from))?;
        write_field(f, "ifindex", link_index.map(u64::from))?;
        write_field(f, "reset_reason", self.reset_reason.map(u64::from))?;
        self.reset_flags.map_or(Ok(()), |flags| write!(f, " reset_flags=0x{flags:x}"))?;
        let flags = self.flags.unwrap_or(0);
        if flags & FLAG_SERVER_SIDE != 0 || self.server_side == Some(true) {
            f.write_str(" server_side")?;
        }
        if flags & FLAG_DENY_JOIN_ID0 != 0 {
            f.write_str(" deny_join_id0")?;
        }
        match flags & !(FLAG_SERVER_SIDE | FLAG_DENY_JOIN_ID0) {
            0 => Ok(()),
            unknown => write!(f, " flags=0x{unknown:x}"),
        }
    }
}

impl MptcpEventKind {
    /// Returns iproute2's name of the event.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Established => "ESTABLISHED",
            Self::Closed => "CLOSED",
            Self::Announced => "ANNOUNCED",
            Self::Removed => "REMOVED",
            Self::SubflowEstablished => "SF_ESTABLISHED",
            Self::SubflowClosed => "SF_CLOSED",
            Self::SubflowPriority => "SF_PRIO",
            Self::ListenerCreated => "LISTENER_CREATED",
            Self::ListenerClosed => "LISTENER_CLOSED",
            Self::Other(_) => "UNKNOWN",
        }
    }

    const fn from_kernel(number: u8) -> Self {
        match number {
            1 => Self::Created,
            2 => Self::Established,
            3 => Self::Closed,
            6 => Self::Announced,
            7 => Self::Removed,
            10 => Self::SubflowEstablished,
            11 => Self::SubflowClosed,
            13 => Self::SubflowPriority,
            15 => Self::ListenerCreated,
            16 => Self::ListenerClosed,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};
    use crate::wire::{MessageBuilder, Messages};

    const RECORDED: &str = include_str!("../recorded/mptcp_events.hex");

    fn recorded() -> Vec<MptcpEvent> {
        parse_all(RECORDED, |message| MptcpEvent::parse(message).unwrap())
    }

    #[test]
    fn recorded_events_are_understood() {
        use MptcpEventKind::{
            Announced, Closed, Created, Established, ListenerClosed, ListenerCreated, Removed,
            SubflowClosed, SubflowEstablished, SubflowPriority,
        };
        let events = recorded();
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        let (connected, rest) = kinds.split_at(5);
        assert_eq!(connected, [ListenerCreated, Created, Created, Established, Established]);
        let (second, rest) = rest.split_at(7);
        let joined = [SubflowClosed, SubflowEstablished, SubflowEstablished, SubflowPriority];
        assert_eq!(second, [&joined[..], &[Removed, SubflowClosed, SubflowClosed]].concat());
        assert_eq!(rest, [Closed, Closed, ListenerClosed, SubflowClosed, Announced]);
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let created = &events[1];
        assert_eq!((created.local, created.remote), (address("10.0.0.1"), address("10.0.1.1")));
        assert_eq!((created.local_port, created.remote_port), (Some(0xacfb), Some(0x9781)));
        assert_eq!((created.local_id, created.remote_id), (Some(0), Some(0)));
        assert_eq!(events[6].backup, Some(false));
        assert_eq!(events[7].backup, Some(true));
        assert_eq!(events[15].error, Some(libc::ECONNREFUSED as u8));
        assert_eq!((events[16].remote, events[16].remote_id), (address("10.0.1.2"), Some(9)));
    }

    #[test]
    fn both_ends_of_a_connection_are_distinguished() {
        let events = recorded();
        let sides: Vec<_> = events[1..6].iter().map(MptcpEvent::is_server_side).collect();
        assert_eq!(sides, [Some(false), Some(true), Some(true), Some(false), None]);
        // The attribute that Linux sent before the flag existed.
        let older =
            MptcpEvent { server_side: Some(true), ..MptcpEvent::new(MptcpEventKind::Established) };
        assert_eq!(older.is_server_side(), Some(true));
        let flags = Some(FLAG_DENY_JOIN_ID0);
        let denied = MptcpEvent { flags, ..MptcpEvent::new(MptcpEventKind::Established) };
        assert!(denied.denies_join_to_first_address());
        assert_eq!(denied.is_server_side(), Some(false));
    }

    #[test]
    fn events_are_written_as_iproute2_writes_them() {
        let events = recorded();
        let lines: Vec<_> = events.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines[1],
            "[       CREATED] token=d32090b2 remid=0 locid=0 saddr4=10.0.0.1 daddr4=10.0.1.1 \
             sport=44283 dport=38785"
        );
        assert_eq!(
            lines[3],
            "[   ESTABLISHED] token=c3038cde remid=0 locid=0 saddr4=10.0.1.1 daddr4=10.0.0.1 \
             sport=38785 dport=44283 server_side"
        );
        assert_eq!(
            lines[5],
            "[     SF_CLOSED] token=c3038cde remid=0 locid=5 saddr4=10.0.2.1 daddr4=10.0.0.1 \
             sport=54349 dport=44283 backup=0 error=111"
        );
        assert_eq!(lines[16], "[     ANNOUNCED] token=e6b7e4b2 remid=9 daddr4=10.0.1.2 dport=4321");
        let reset = MptcpEvent {
            token: Some(1),
            flags: Some(FLAG_DENY_JOIN_ID0 | 8),
            link_index: Some(3),
            reset_reason: Some(6),
            reset_flags: Some(1),
            local: Some("fd00::1".parse().unwrap()),
            ..MptcpEvent::new(MptcpEventKind::SubflowClosed)
        };
        assert_eq!(
            reset.to_string(),
            "[     SF_CLOSED] token=00000001 saddr6=fd00::1 ifindex=3 reset_reason=6 \
             reset_flags=0x1 deny_join_id0 flags=0x8"
        );
        assert_eq!(MptcpEvent::new(MptcpEventKind::Other(77)).to_string(), "[UNKNOWN 77]");
    }

    #[test]
    fn every_attribute_of_an_event_is_read() {
        let payload = MessageBuilder::generic(11, 1)
            .u32(TOKEN, 0xdead_beef)
            .u8(LOC_ID, 3)
            .u8(REM_ID, 4)
            .ip(SADDR6, "fd00::1".parse().unwrap())
            .ip(DADDR6, "fd00::2".parse().unwrap())
            .attribute(SPORT, &443_u16.to_be_bytes())
            .attribute(DPORT, &8_080_u16.to_be_bytes())
            .u8(BACKUP, 1)
            .u8(ERROR, libc::ECONNRESET as u8)
            .u16(FLAGS, FLAG_DENY_JOIN_ID0)
            .u32(TIMEOUT, 9)
            .u32(IF_IDX, 7)
            .u32(RESET_REASON, 6)
            .u32(RESET_FLAGS, 1)
            .u8(SERVER_SIDE, 1);
        let bytes = payload.message(28, 0, 1);
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        let text = MptcpEvent::parse(&message).unwrap().to_string();
        assert_eq!(
            text,
            "[     SF_CLOSED] token=deadbeef remid=4 locid=3 saddr6=fd00::1 daddr6=fd00::2 \
             sport=443 dport=8080 backup=1 error=104 timeout=9 ifindex=7 reset_reason=6 \
             reset_flags=0x1 server_side deny_join_id0"
        );
    }

    #[test]
    fn no_event_panics() {
        never_panics(RECORDED, MptcpEvent::parse);
    }
}
