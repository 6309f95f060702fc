//! The kernel's MPTCP path manager: endpoints, limits and events.
//!
//! Generic netlink family `mptcp_pm` (`linux/mptcp_pm.h`); each network namespace has its own
//! endpoints and limits.

mod events;

use std::fmt;
use std::net::IpAddr;
use std::ops::BitOr;

pub use events::{MptcpEvent, MptcpEventKind, MptcpEvents};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::error::{NetlinkError, NetlinkErrorKind};
use super::prefix::family;
use super::socket::RequestSocket;
use super::wire::{Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader};

/// Name and version of the generic netlink family.
const FAMILY: &str = "mptcp_pm";
const VERSION: u8 = 1;

/// Commands of the family.
const ADD_ADDR: u8 = 1;
const DEL_ADDR: u8 = 2;
const GET_ADDR: u8 = 3;
const FLUSH_ADDRS: u8 = 4;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;
const SET_FLAGS: u8 = 7;

/// `MPTCP_PM_ATTR_*`, the top-level attributes (`linux/mptcp_pm.h`).
const ATTR_ADDR: u16 = 1;
const ATTR_RCV_ADD_ADDRS: u16 = 2;
const ATTR_SUBFLOWS: u16 = 3;

/// `MPTCP_PM_ADDR_ATTR_*`, nested in [`ATTR_ADDR`].
const ADDR_FAMILY: u16 = 1;
const ADDR_ID: u16 = 2;
const ADDR_V4: u16 = 3;
const ADDR_V6: u16 = 4;
const ADDR_PORT: u16 = 5;
const ADDR_FLAGS: u16 = 6;
const ADDR_IF_IDX: u16 = 7;

/// Address that the path manager may use for subflows or announce to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Local address of the endpoint.
    pub address: IpAddr,
    /// Endpoint ID, 1 to 255; always set in a listing. With `None`, the kernel assigns a free ID
    /// to a new endpoint.
    pub id: Option<u8>,
    /// Port to announce and to listen on; only with [`EndpointFlags::SIGNAL`].
    pub port: Option<u16>,
    /// Purposes of the endpoint: announce, open subflows, backup.
    pub flags: EndpointFlags,
    /// Index of the interface that subflows from this endpoint are bound to.
    pub link_index: Option<u32>,
}

/// Flags of an endpoint (`MPTCP_PM_ADDR_FLAG_*`); join them by `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointFlags(u32);

/// Limits of the path manager for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MptcpLimits {
    /// Maximum number of subflows beyond the first, at most 8.
    pub subflows: u32,
    /// Maximum number of the peer's announced addresses to connect to, at most 8.
    pub add_addr_accepted: u32,
}

/// Requests to the path manager of one network namespace.
///
/// Changes need `CAP_NET_ADMIN` in the namespace; reading needs no privilege.
#[derive(Debug)]
pub struct MptcpPm {
    requests: RequestSocket,
    family: u16,
}

impl EndpointFlags {
    /// Announces the address to peers (ADD_ADDR, RFC 8684 §3.4.1).
    pub const SIGNAL: Self = Self(1);
    /// Opens subflows from the address.
    pub const SUBFLOW: Self = Self(1 << 1);
    /// Asks the peer to use such subflows only if all other subflows fail.
    pub const BACKUP: Self = Self(1 << 2);
    /// Opens subflows to every address of the peer; only with [`EndpointFlags::SUBFLOW`].
    pub const FULLMESH: Self = Self(1 << 3);
    /// Created by the kernel itself for an address that a subflow uses; only occurs in a listing.
    pub const IMPLICIT: Self = Self(1 << 4);
    /// Opens one subflow from here to each address that the peer announces (Linux 6.18).
    pub const LAMINAR: Self = Self(1 << 5);

    /// Returns true if all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the kernel's number, an OR of `MPTCP_PM_ADDR_FLAG_*`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Converts the kernel's number, including bits that this version does not know.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns these flags with `flags` cleared.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl fmt::Display for EndpointFlags {
    /// Formats the flags like `ip mptcp endpoint`: `subflow fullmesh`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::SIGNAL, "signal"),
            (Self::SUBFLOW, "subflow"),
            (Self::LAMINAR, "laminar"),
            (Self::BACKUP, "backup"),
            (Self::FULLMESH, "fullmesh"),
            (Self::IMPLICIT, "implicit"),
        ];
        let set = names.iter().filter(|(flag, _)| self.contains(*flag));
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join(" "))
    }
}

impl BitOr for EndpointFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl MptcpPm {
    /// Opens a socket in the calling thread's network namespace, which it keeps.
    pub fn open() -> Result<Self, NetlinkError> {
        let action = "open the MPTCP path manager";
        let mut requests = RequestSocket::open(NETLINK_GENERIC, action)?;
        let family = resolve_family(&mut requests, action)?.id;
        Ok(Self { requests, family })
    }

    /// Adds an endpoint; existing connections also use it.
    pub fn add_endpoint(&mut self, endpoint: &Endpoint) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::generic(ADD_ADDR, VERSION)
            .nest(ATTR_ADDR, |payload| endpoint.attributes(payload));
        self.change(&payload, format_args!("add {endpoint}"))
    }

    /// Deletes the endpoint with ID `id` and closes its subflows.
    pub fn delete_endpoint(&mut self, id: u8) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::generic(DEL_ADDR, VERSION)
            .nest(ATTR_ADDR, |payload| payload.u8(ADDR_ID, id));
        self.change(&payload, format_args!("delete MPTCP endpoint {id}"))
    }

    /// Changes [`EndpointFlags::BACKUP`] and [`EndpointFlags::FULLMESH`] of the endpoint with ID
    /// `id`. Its existing subflows change also; other flags keep their values.
    pub fn set_endpoint_flags(&mut self, id: u8, flags: EndpointFlags) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::generic(SET_FLAGS, VERSION)
            .nest(ATTR_ADDR, |payload| payload.u8(ADDR_ID, id).u32(ADDR_FLAGS, flags.bits()));
        self.change(&payload, format_args!("set flags of MPTCP endpoint {id}"))
    }

    /// Deletes all endpoints of the namespace.
    pub fn flush_endpoints(&mut self) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::generic(FLUSH_ADDRS, VERSION);
        self.change(&payload, format_args!("delete all MPTCP endpoints"))
    }

    /// Lists all endpoints of the namespace.
    pub fn endpoints(&mut self) -> Result<Vec<Endpoint>, NetlinkError> {
        let payload = MessageBuilder::generic(GET_ADDR, VERSION);
        let action = format_args!("list MPTCP endpoints");
        self.requests
            .dump(self.family, &payload, action, |message| Endpoint::parse(message).map(Some))
    }

    /// Sets both limits of the namespace.
    pub fn set_limits(&mut self, limits: MptcpLimits) -> Result<(), NetlinkError> {
        let MptcpLimits { subflows, add_addr_accepted } = limits;
        let payload = MessageBuilder::generic(SET_LIMITS, VERSION)
            .u32(ATTR_RCV_ADD_ADDRS, add_addr_accepted)
            .u32(ATTR_SUBFLOWS, subflows);
        let action = format_args!(
            "set MPTCP limits to {subflows} subflows and {add_addr_accepted} accepted addresses"
        );
        self.change(&payload, action)
    }

    /// Returns the limits in force.
    pub fn limits(&mut self) -> Result<MptcpLimits, NetlinkError> {
        let payload = MessageBuilder::generic(GET_LIMITS, VERSION);
        self.requests.get(
            self.family,
            &payload,
            format_args!("get MPTCP limits"),
            MptcpLimits::parse,
        )
    }

    fn change(
        &mut self,
        payload: &MessageBuilder,
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        self.requests.change(self.family, 0, payload, action)
    }
}

impl Endpoint {
    fn attributes(&self, payload: MessageBuilder) -> MessageBuilder {
        let Self { address, id, port, flags, link_index } = *self;
        payload
            .u16(ADDR_FAMILY, family(address).into())
            .ip(if address.is_ipv4() { ADDR_V4 } else { ADDR_V6 }, address)
            .u32(ADDR_FLAGS, flags.bits())
            .maybe(id, |payload, id| payload.u8(ADDR_ID, id))
            .maybe(port, |payload, port| payload.u16(ADDR_PORT, port))
            .maybe(link_index, |payload, index| payload.u32(ADDR_IF_IDX, index))
    }

    /// Reads one row of a listing.
    fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let (mut address, mut id, mut port) = (None, None, None);
        let (mut flags, mut link_index) = (EndpointFlags::default(), None);
        for attribute in split_command(message)?.1 {
            let attribute = attribute?;
            if attribute.kind != ATTR_ADDR {
                continue;
            }
            for attribute in attribute.nested() {
                let attribute = attribute?;
                match attribute.kind {
                    ADDR_ID => id = Some(attribute.u8()?),
                    ADDR_V4 | ADDR_V6 => address = Some(attribute.ip()?),
                    ADDR_PORT => port = Some(attribute.u16()?).filter(|&port| port != 0),
                    ADDR_FLAGS => flags = EndpointFlags(attribute.u32()?),
                    ADDR_IF_IDX => link_index = Some(attribute.u32()?).filter(|&index| index != 0),
                    _ => {}
                }
            }
        }
        let address = address.ok_or(Malformed::Missing("endpoint address"))?;
        Ok(Self { address, id, port, flags, link_index })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MPTCP endpoint ")?;
        self.id.map_or(Ok(()), |id| write!(f, "{id} "))?;
        write!(f, "{}", self.address)?;
        self.port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

impl MptcpLimits {
    fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let (mut subflows, mut accepted) = (None, None);
        for attribute in split_command(message)?.1 {
            let attribute = attribute?;
            match attribute.kind {
                ATTR_RCV_ADD_ADDRS => accepted = Some(attribute.u32()?),
                ATTR_SUBFLOWS => subflows = Some(attribute.u32()?),
                _ => {}
            }
        }
        Ok(Self {
            subflows: subflows.ok_or(Malformed::Missing("subflow limit"))?,
            add_addr_accepted: accepted.ok_or(Malformed::Missing("accepted address limit"))?,
        })
    }
}

/// Splits a generic netlink message into its command and attributes.
fn split_command<'a>(message: &Message<'a>) -> Result<(u8, Attributes<'a>), Malformed> {
    let mut reader = StructReader::new(message.body, "genlmsghdr");
    let [command, _version, _, _] = reader.take()?;
    Ok((command, Attributes::new(reader.rest())))
}

/// Numbers that the kernel assigned to the family and to its multicast group of events.
#[derive(Debug, PartialEq, Eq)]
struct GenlFamily {
    id: u16,
    events: Option<u32>,
}

/// Requests the family's numbers; they can differ after each boot.
fn resolve_family(requests: &mut RequestSocket, action: &str) -> Result<GenlFamily, NetlinkError> {
    let payload = MessageBuilder::generic(libc::CTRL_CMD_GETFAMILY as u8, 1)
        .text(libc::CTRL_ATTR_FAMILY_NAME as u16, FAMILY);
    let kind = libc::GENL_ID_CTRL as u16;
    let answer = requests.get(kind, &payload, format_args!("{action}"), GenlFamily::parse);
    answer.map_err(|error| match error.errno() {
        Some(libc::ENOENT) => {
            NetlinkError::new(action, NetlinkErrorKind::Unsupported("MPTCP path manager"))
        }
        _ => error,
    })
}

impl GenlFamily {
    fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let (mut id, mut events) = (None, None);
        for attribute in split_command(message)?.1 {
            let attribute = attribute?;
            match i32::from(attribute.kind) {
                libc::CTRL_ATTR_FAMILY_ID => id = Some(attribute.u16()?),
                libc::CTRL_ATTR_MCAST_GROUPS => events = event_group(attribute)?,
                _ => {}
            }
        }
        Ok(Self { id: id.ok_or(Malformed::Missing("family number"))?, events })
    }
}

fn event_group(groups: Attribute<'_>) -> Result<Option<u32>, Malformed> {
    for group in groups.nested() {
        let (mut name, mut id) = (String::new(), None);
        for attribute in group?.nested() {
            let attribute = attribute?;
            match i32::from(attribute.kind) {
                libc::CTRL_ATTR_MCAST_GRP_NAME => name = attribute.text(),
                libc::CTRL_ATTR_MCAST_GRP_ID => id = Some(attribute.u32()?),
                _ => {}
            }
        }
        if name == events::GROUP {
            return Ok(id);
        }
    }
    Ok(None)
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    #[test]
    fn a_recorded_family_is_understood() {
        let recorded = include_str!("recorded/mptcp_family.hex");
        let family = GenlFamily { id: 28, events: Some(9) };
        assert_eq!(parse_all(recorded, GenlFamily::parse), [Ok(family)]);
        never_panics(recorded, GenlFamily::parse);
    }

    #[test]
    fn recorded_endpoints_are_understood() {
        let recorded = include_str!("recorded/mptcp_endpoints.hex");
        let wifi = Endpoint {
            address: "10.0.0.1".parse().unwrap(),
            id: Some(7),
            port: None,
            flags: EndpointFlags::SUBFLOW | EndpointFlags::FULLMESH,
            link_index: Some(3),
        };
        let v6 = Endpoint {
            address: "fd00::1".parse().unwrap(),
            id: Some(8),
            port: Some(8_080),
            flags: EndpointFlags::SIGNAL,
            link_index: None,
        };
        assert_eq!(parse_all(recorded, Endpoint::parse), [Ok(wifi), Ok(v6)]);
        never_panics(recorded, Endpoint::parse);
    }

    #[test]
    fn every_endpoint_flag_is_parsed_and_named() {
        let recorded = include_str!("recorded/mptcp_endpoint_flags.hex");
        let endpoints = parse_all(recorded, |message| Endpoint::parse(message).unwrap());
        let lines = endpoints.iter().map(|endpoint| {
            let link = endpoint.link_index.map(|_| " dev").unwrap_or_default();
            format!("{endpoint}{link} {}", endpoint.flags)
        });
        let expected = [
            "MPTCP endpoint 1 10.0.0.1 dev subflow backup",
            "MPTCP endpoint 2 10.0.0.2 subflow fullmesh",
            "MPTCP endpoint 3 10.0.0.3 port 443 signal",
            "MPTCP endpoint 4 10.0.0.4 signal subflow",
            "MPTCP endpoint 5 10.0.0.5 laminar",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        never_panics(recorded, Endpoint::parse);
    }

    #[test]
    fn recorded_limits_are_understood() {
        let recorded = include_str!("recorded/mptcp_limits.hex");
        let limits = MptcpLimits { subflows: 4, add_addr_accepted: 3 };
        assert_eq!(parse_all(recorded, MptcpLimits::parse), [Ok(limits)]);
        never_panics(recorded, MptcpLimits::parse);
    }
}
