//! Routing tables.

use std::fmt;
use std::net::IpAddr;

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::prefix::{Prefix, family};
use crate::wire::{Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader};

/// `RTAX_MTU`, nested in `RTA_METRICS`.
const METRIC_MTU: u16 = 2;
/// Bytes of `struct rtnexthop`.
const RTNEXTHOP_BYTES: usize = 8;
/// `RTM_F_LOOKUP_TABLE`: a lookup reports the table that the route was found in.
const LOOKUP_TABLE: u32 = 0x1000;

/// Route that is to be added or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec<'a> {
    /// Destination; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] are default routes.
    pub to: Prefix,
    /// Name of the outgoing interface.
    pub link: &'a str,
    /// Next hop; `None` if the destination is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Source address for packets that do not have one yet.
    pub source: Option<IpAddr>,
    /// Number of the routing table, the main table otherwise.
    pub table: Option<u32>,
    /// Metric: among equal prefixes, the lowest is preferred.
    pub metric: Option<u32>,
}

/// Request for the route that a packet would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery<'a> {
    /// Destination of the packet.
    pub to: IpAddr,
    /// Source address of the packet, if it is already known.
    pub from: Option<IpAddr>,
    /// Interface that the packet's socket is bound to.
    pub link: Option<&'a str>,
}

/// Route as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destination addresses that match the route.
    pub to: Prefix,
    /// Source addresses that match the route; all if `None` (IPv6 only).
    pub from: Option<Prefix>,
    /// Treatment of packets that match the route.
    pub kind: RouteKind,
    /// Index of the outgoing interface; `None` for a route with several next hops.
    pub link_index: Option<u32>,
    /// Next hop; an IPv6 address for IPv4 over IPv6.
    pub gateway: Option<IpAddr>,
    /// Source address for packets that do not have one yet.
    pub source: Option<IpAddr>,
    /// Number of the routing table.
    pub table: u32,
    /// Metric: among equal prefixes, the lowest is preferred.
    pub metric: Option<u32>,
    /// Origin of the route (`RTPROT_*`), such as `libc::RTPROT_KERNEL`.
    pub protocol: u8,
    /// Distance to the destination (`RT_SCOPE_*`), such as `libc::RT_SCOPE_LINK`.
    pub scope: u8,
    /// `RTNH_F_*`, such as `RTNH_F_LINKDOWN`, and `RTM_F_*`.
    pub flags: u32,
    /// Path MTU stored in the route, in bytes.
    pub mtu: Option<u32>,
    /// Next hops of a multipath route; empty if the route has only one.
    pub next_hops: Vec<NextHop>,
}

/// Treatment of packets that match a route (`RTN_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub enum RouteKind {
    Unicast,
    Local,
    Broadcast,
    Anycast,
    Multicast,
    Blackhole,
    Unreachable,
    Prohibit,
    Throw,
    /// Kind that this version does not know, by its number.
    Other(u8),
}

/// One of several next hops of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Index of the interface.
    pub link_index: u32,
    /// Address of the router; `None` if the destination is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Weight of the next hop, 1 to 256: its share of the traffic.
    pub weight: u16,
    /// Bit mask of `RTNH_F_*` (`linux/rtnetlink.h`).
    pub flags: u8,
}

impl RouteSocket {
    /// Adds a route; an error if it exists.
    pub fn add_route(&mut self, route: &RouteSpec<'_>) -> Result<(), NetlinkError> {
        let scope = if route.gateway.is_none() && route.to.address().is_ipv4() {
            libc::RT_SCOPE_LINK
        } else {
            libc::RT_SCOPE_UNIVERSE
        };
        let protocol_scope_kind = [libc::RTPROT_STATIC, scope, libc::RTN_UNICAST];
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.change_route(
            libc::RTM_NEWROUTE,
            flags,
            route,
            protocol_scope_kind,
            format_args!("add {route}"),
        )
    }

    /// Adds a route with several next hops: interface, gateway unless the destination is on the
    /// link, and weight. The kernel distributes flows over them in proportion to the weights.
    pub fn add_multipath_route(
        &mut self,
        to: Prefix,
        next_hops: &[(&str, Option<IpAddr>, u8)],
    ) -> Result<(), NetlinkError> {
        let action = format_args!("add a multipath route to {to}");
        let on_link = next_hops.iter().all(|(_, gateway, _)| gateway.is_none());
        let mut hops = MessageBuilder::default();
        for (link, gateway, weight) in next_hops {
            let gateway = MessageBuilder::default()
                .maybe(*gateway, |hop, gateway| hop.ip(libc::RTA_GATEWAY, gateway));
            let length = (RTNEXTHOP_BYTES + gateway.len()) as u16;
            let [length_0, length_1] = length.to_ne_bytes();
            let [index_0, index_1, index_2, index_3] = self.index(link, action)?.to_ne_bytes();
            // After the length: flags, and the weight less one.
            let weight = weight.saturating_sub(1);
            let hop = [length_0, length_1, 0, weight, index_0, index_1, index_2, index_3];
            hops = hops.raw(&hop).append(&gateway);
        }
        let header = RouteHeader {
            family: to.family(),
            to_length: to.length(),
            from_length: 0,
            protocol_scope_kind: [
                libc::RTPROT_STATIC,
                if on_link { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE },
                libc::RTN_UNICAST,
            ],
            flags: 0,
        };
        let payload = MessageBuilder::new(&header.bytes())
            .ip(libc::RTA_DST, to.network().address())
            .u32(libc::RTA_TABLE, u32::from(libc::RT_TABLE_MAIN))
            .enclose(libc::RTA_MULTIPATH, &hops);
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.requests.change(libc::RTM_NEWROUTE, flags, &payload, action)
    }

    /// Makes the host accept packets to foreign addresses that are looked up in `table`, as a
    /// transparent proxy does.
    pub fn add_local_route(&mut self, to: Prefix, table: u32) -> Result<(), NetlinkError> {
        let gateway = None;
        let route =
            RouteSpec { to, link: "lo", gateway, source: None, table: Some(table), metric: None };
        let protocol_scope_kind = [libc::RTPROT_STATIC, libc::RT_SCOPE_HOST, libc::RTN_LOCAL];
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.change_route(
            libc::RTM_NEWROUTE,
            flags,
            &route,
            protocol_scope_kind,
            format_args!("add a local route to {to}"),
        )
    }

    /// Deletes the first route that matches `route`.
    pub fn delete_route(&mut self, route: &RouteSpec<'_>) -> Result<(), NetlinkError> {
        let any = [libc::RTPROT_UNSPEC, libc::RT_SCOPE_NOWHERE, libc::RTN_UNSPEC];
        self.change_route(libc::RTM_DELROUTE, 0, route, any, format_args!("delete {route}"))
    }

    /// Lists all routes of the namespace, of every table and both families.
    pub fn routes(&mut self) -> Result<Vec<RouteEntry>, NetlinkError> {
        let payload = MessageBuilder::new(&[0; 12]);
        let action = format_args!("list routes");
        self.requests.dump(libc::RTM_GETROUTE, &payload, action, RouteEntry::parse)
    }

    /// Returns the route that a packet would take; an error explains why none exists.
    pub fn lookup(&mut self, query: &RouteQuery<'_>) -> Result<RouteEntry, NetlinkError> {
        let RouteQuery { to, from, link } = *query;
        let action = format_args!("look up the {query}");
        let link = link.map(|link| self.index(link, action)).transpose()?;
        let length = |address| Prefix::host(address).length();
        let header = RouteHeader {
            family: family(to),
            to_length: length(to),
            from_length: from.map_or(0, length),
            protocol_scope_kind: [0; 3],
            flags: LOOKUP_TABLE,
        };
        let payload = MessageBuilder::new(&header.bytes())
            .ip(libc::RTA_DST, to)
            .maybe(from, |payload, from| payload.ip(libc::RTA_SRC, from))
            .maybe(link, |payload, index| payload.u32(libc::RTA_OIF, index));
        self.requests.get(libc::RTM_GETROUTE, &payload, action, |message| {
            RouteEntry::parse(message)?.ok_or(Malformed::Missing("route"))
        })
    }

    fn change_route(
        &mut self,
        kind: u16,
        flags: i32,
        route: &RouteSpec<'_>,
        protocol_scope_kind: [u8; 3],
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let RouteSpec { to, link, gateway, source, table, metric } = *route;
        let index = self.index(link, action)?;
        let (family, to_length) = (to.family(), to.length());
        let header =
            RouteHeader { family, to_length, from_length: 0, protocol_scope_kind, flags: 0 };
        let payload = MessageBuilder::new(&header.bytes())
            .ip(libc::RTA_DST, to.network().address())
            .u32(libc::RTA_OIF, index)
            .u32(libc::RTA_TABLE, table.unwrap_or(u32::from(libc::RT_TABLE_MAIN)))
            .maybe(gateway, |payload, gateway| payload.ip(libc::RTA_GATEWAY, gateway))
            .maybe(source, |payload, source| payload.ip(libc::RTA_PREFSRC, source))
            .maybe(metric, |payload, metric| payload.u32(libc::RTA_PRIORITY, metric));
        self.requests.change(kind, flags, &payload, action)
    }
}

/// `struct rtmsg`; the table goes into an attribute, which has room for large numbers.
struct RouteHeader {
    family: u8,
    to_length: u8,
    from_length: u8,
    /// Protocol, scope and type.
    protocol_scope_kind: [u8; 3],
    flags: u32,
}

impl RouteHeader {
    fn bytes(&self) -> [u8; 12] {
        let Self {
            family,
            to_length,
            from_length,
            protocol_scope_kind: [protocol, scope, kind],
            flags,
        } = *self;
        let [f0, f1, f2, f3] = flags.to_ne_bytes();
        [family, to_length, from_length, 0, 0, protocol, scope, kind, f0, f1, f2, f3]
    }
}

impl RouteEntry {
    /// Returns true for a default route: every destination matches.
    pub fn is_default(&self) -> bool {
        self.to.length() == 0
    }

    /// Reads `RTM_NEWROUTE` and `RTM_DELROUTE`; `None` for a family other than IP.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let mut reader = StructReader::new(message.body, "rtmsg");
        let [family, to_length, from_length, _, table, protocol, scope, kind] = reader.take()?;
        let flags = reader.u32()?;
        let Some(any_address) = Prefix::all(family) else { return Ok(None) };
        let mut entry = Self {
            to: any_address,
            from: None,
            kind: RouteKind::from_kernel(kind),
            link_index: None,
            gateway: None,
            source: None,
            table: u32::from(table),
            metric: None,
            protocol,
            scope,
            flags,
            mtu: None,
            next_hops: Vec::new(),
        };
        for attribute in Attributes::new(reader.rest()) {
            entry.set(attribute?, to_length, from_length)?;
        }
        Ok(Some(entry))
    }

    fn set(
        &mut self,
        attribute: Attribute<'_>,
        to_length: u8,
        from_length: u8,
    ) -> Result<(), Malformed> {
        match attribute.kind {
            libc::RTA_DST => self.to = attribute.prefix(to_length)?,
            libc::RTA_SRC => self.from = Some(attribute.prefix(from_length)?),
            libc::RTA_OIF => self.link_index = Some(attribute.u32()?),
            libc::RTA_GATEWAY => self.gateway = Some(attribute.ip()?),
            libc::RTA_VIA => self.gateway = Some(parse_via(attribute)?),
            libc::RTA_PREFSRC => self.source = Some(attribute.ip()?),
            libc::RTA_TABLE => self.table = attribute.u32()?,
            libc::RTA_PRIORITY => self.metric = Some(attribute.u32()?),
            libc::RTA_METRICS => {
                for metric in attribute.nested() {
                    let metric = metric?;
                    if metric.kind == METRIC_MTU {
                        self.mtu = Some(metric.u32()?);
                    }
                }
            }
            libc::RTA_MULTIPATH => self.next_hops = NextHop::parse_all(attribute.value)?,
            _ => {}
        }
        Ok(())
    }
}

/// Parses `struct rtvia`: a family, then an address of it.
fn parse_via(attribute: Attribute<'_>) -> Result<IpAddr, Malformed> {
    let address = attribute.value.get(2..).unwrap_or_default();
    Attribute { kind: attribute.kind, value: address }.ip()
}

impl NextHop {
    /// Parses a list of `struct rtnexthop`, each with attributes.
    fn parse_all(mut bytes: &[u8]) -> Result<Vec<Self>, Malformed> {
        let mut hops = Vec::new();
        while bytes.len() >= RTNEXTHOP_BYTES {
            let mut reader = StructReader::new(bytes, "rtnexthop");
            let length = usize::from(reader.u16()?);
            let (flags, weight_less_one, link_index) = (reader.u8()?, reader.u8()?, reader.u32()?);
            let short = Malformed::Short { item: "rtnexthop", need: length, got: bytes.len() };
            let attributes = bytes.get(RTNEXTHOP_BYTES..length).ok_or(short)?;
            let mut gateway = None;
            for attribute in Attributes::new(attributes) {
                let attribute = attribute?;
                match attribute.kind {
                    libc::RTA_GATEWAY => gateway = Some(attribute.ip()?),
                    libc::RTA_VIA => gateway = Some(parse_via(attribute)?),
                    _ => {}
                }
            }
            hops.push(Self { link_index, gateway, weight: u16::from(weight_less_one) + 1, flags });
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(hops)
    }
}

impl RouteKind {
    const fn from_kernel(number: u8) -> Self {
        match number {
            libc::RTN_UNICAST => Self::Unicast,
            libc::RTN_LOCAL => Self::Local,
            libc::RTN_BROADCAST => Self::Broadcast,
            libc::RTN_ANYCAST => Self::Anycast,
            libc::RTN_MULTICAST => Self::Multicast,
            libc::RTN_BLACKHOLE => Self::Blackhole,
            libc::RTN_UNREACHABLE => Self::Unreachable,
            libc::RTN_PROHIBIT => Self::Prohibit,
            libc::RTN_THROW => Self::Throw,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for RouteSpec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, link, gateway, source, table, metric } = *self;
        write!(f, "route to {to}")?;
        gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))?;
        write!(f, " on `{link}`")?;
        source.map_or(Ok(()), |source| write!(f, " from {source}"))?;
        table.map_or(Ok(()), |table| write!(f, " in table {table}"))?;
        metric.map_or(Ok(()), |metric| write!(f, " with metric {metric}"))
    }
}

impl fmt::Display for RouteQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, from, link } = *self;
        write!(f, "way to {to}")?;
        from.map_or(Ok(()), |from| write!(f, " from {from}"))?;
        link.map_or(Ok(()), |link| write!(f, " on `{link}`"))
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/routes.hex");
    const KINDS: &str = include_str!("../recorded/route_kinds.hex");

    #[test]
    fn recorded_routes_are_understood() {
        let routes = parse_all(RECORDED, |message| RouteEntry::parse(message).unwrap().unwrap());
        let summary = |entry: &RouteEntry| {
            let gateway = entry.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
            (entry.to.to_string(), gateway, entry.link_index.unwrap(), entry.table)
        };
        let expected = [
            ("192.0.2.1/32", "10.0.0.254", 3, 254),
            ("192.0.2.1/32", "10.1.0.254", 5, 1000),
            ("2001:db8::1/128", "fd00::fe", 3, 254),
            ("2001:db8::1/128", "fd01::fe", 5, 1000),
            ("0.0.0.0/0", "10.1.0.254", 5, 1000),
            ("10.0.0.0/24", "", 3, 254),
        ];
        let expected = expected.map(|(to, via, link, table)| (to.into(), via.into(), link, table));
        assert_eq!(routes.iter().map(summary).collect::<Vec<_>>(), expected);
        assert_eq!(routes[0].source, Some("10.0.0.1".parse().unwrap()));
        assert_eq!(routes[4].metric, Some(100));
    }

    #[test]
    fn routes_of_other_kinds_and_with_several_next_hops_are_understood() {
        let routes = parse_all(KINDS, |message| RouteEntry::parse(message).unwrap().unwrap());
        let find = |to: &str| routes.iter().find(|route| route.to == to.parse().unwrap()).unwrap();
        let multipath = find("192.0.2.0/24");
        assert_eq!((multipath.link_index, multipath.gateway), (None, None));
        let gateway = Some("10.0.0.254".parse().unwrap());
        let hops: Vec<_> =
            multipath.next_hops.iter().map(|hop| (hop.gateway, hop.weight)).collect();
        assert_eq!(hops, [(gateway, 3), (None, 1)]);
        assert_eq!(find("198.51.100.0/24").kind, RouteKind::Blackhole);
        let unreachable = find("203.0.113.0/24");
        assert_eq!((unreachable.kind, unreachable.metric), (RouteKind::Unreachable, Some(7)));
        let default = find("::/0");
        assert!(default.is_default() && !unreachable.is_default());
        assert_eq!((default.gateway, default.mtu), (Some("fd00::2".parse().unwrap()), Some(1_400)));
        let source_route = find("2001:db8::/32");
        assert_eq!(source_route.from, Some("fd00::1/128".parse().unwrap()));
        let kernel_route = find("10.0.0.0/24");
        assert_eq!(
            (kernel_route.protocol, kernel_route.scope),
            (libc::RTPROT_KERNEL, libc::RT_SCOPE_LINK)
        );
    }

    #[test]
    fn no_route_message_panics() {
        never_panics(RECORDED, RouteEntry::parse);
        never_panics(KINDS, RouteEntry::parse);
    }
}
