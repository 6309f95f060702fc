//! Routing tables and the rules that choose between them.

use std::fmt;
use std::net::IpAddr;

use super::Route;
use crate::netlink::error::NetlinkError;
use crate::netlink::prefix::{Prefix, family};
use crate::netlink::wire::{Attributes, Malformed, Message, Payload, Reader};

/// Attributes of rules (`linux/fib_rules.h`).
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
/// `FR_ACT_TO_TBL`: the rule leads to a table.
const TO_TABLE: u8 = 1;
/// `RTM_F_LOOKUP_TABLE`: a look-up tells the table that the route was found in.
const LOOKUP_TABLE: u32 = 0x1000;

/// A route that is to be added or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSpec<'a> {
    /// Destination; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] are default routes.
    pub to: Prefix,
    /// Name of the interface that leads there.
    pub link: &'a str,
    /// Next hop; the destination is on the link itself otherwise.
    pub gateway: Option<IpAddr>,
    /// Source address for packets that have none yet.
    pub source: Option<IpAddr>,
    /// Number of the routing table, the main table otherwise.
    pub table: Option<u32>,
    /// Preference, lower first.
    pub metric: Option<u32>,
}

/// A rule that leads some packets to a routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleSpec {
    /// Source addresses that the rule is for; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] are all.
    pub from: Prefix,
    /// Destination addresses that the rule is for.
    pub to: Option<Prefix>,
    /// Number of the routing table.
    pub table: u32,
    /// Rules are tried in ascending order; the kernel chooses one before its own otherwise.
    pub priority: Option<u32>,
}

/// A question for the kernel: which way would a packet go?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery<'a> {
    /// Destination of the packet.
    pub to: IpAddr,
    /// Source address of the packet, if it has one already.
    pub from: Option<IpAddr>,
    /// Interface that the packet's socket is bound to.
    pub link: Option<&'a str>,
}

/// A route as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destination.
    pub to: Prefix,
    /// Index of the interface; a route with several next hops has none here.
    pub link_index: Option<u32>,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Source address for packets that have none yet.
    pub source: Option<IpAddr>,
    /// Number of the routing table.
    pub table: u32,
    /// Preference, lower first.
    pub metric: Option<u32>,
}

impl Route {
    /// Adds a route.
    pub fn add_route(&mut self, route: &RouteSpec<'_>) -> Result<(), NetlinkError> {
        let scope = if route.gateway.is_none() && route.to.address().is_ipv4() {
            libc::RT_SCOPE_LINK
        } else {
            libc::RT_SCOPE_UNIVERSE
        };
        let how = [libc::RTPROT_STATIC, scope, libc::RTN_UNICAST];
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.change_route(libc::RTM_NEWROUTE, flags, route, how, format_args!("add {route}"))
    }

    /// Deletes the first route that agrees with what `route` says.
    pub fn delete_route(&mut self, route: &RouteSpec<'_>) -> Result<(), NetlinkError> {
        let any = [libc::RTPROT_UNSPEC, libc::RT_SCOPE_NOWHERE, libc::RTN_UNSPEC];
        self.change_route(libc::RTM_DELROUTE, 0, route, any, format_args!("delete {route}"))
    }

    /// All routes of the namespace, of every table and both families.
    pub fn routes(&mut self) -> Result<Vec<RouteEntry>, NetlinkError> {
        let payload = Payload::new(&[0; 12]);
        let action = format_args!("list routes");
        self.requests.dump(libc::RTM_GETROUTE, &payload, action, RouteEntry::parse)
    }

    /// Asks which way a packet would go; the error tells why it would go nowhere.
    pub fn lookup(&mut self, query: &RouteQuery<'_>) -> Result<RouteEntry, NetlinkError> {
        let RouteQuery { to, from, link } = *query;
        let action = format_args!("look up the {query}");
        let link = link.map(|link| self.index(link, action)).transpose()?;
        let length = |address| Prefix::host(address).length();
        let header = RouteHeader {
            family: family(to),
            to_length: length(to),
            from_length: from.map_or(0, length),
            how: [0; 3],
            flags: LOOKUP_TABLE,
        };
        let payload = Payload::new(&header.bytes())
            .ip(libc::RTA_DST, to)
            .maybe(from, |payload, from| payload.ip(libc::RTA_SRC, from))
            .maybe(link, |payload, index| payload.u32(libc::RTA_OIF, index));
        self.requests.get(libc::RTM_GETROUTE, &payload, action, |message| {
            RouteEntry::parse(message)?.ok_or(Malformed::Missing("route"))
        })
    }

    /// Adds a rule.
    pub fn add_rule(&mut self, rule: &RuleSpec) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let action = format_args!("add {rule}");
        self.requests.change(libc::RTM_NEWRULE, flags, &rule.payload(), action)
    }

    /// Deletes the first rule that agrees with `rule`.
    pub fn delete_rule(&mut self, rule: &RuleSpec) -> Result<(), NetlinkError> {
        let action = format_args!("delete {rule}");
        self.requests.change(libc::RTM_DELRULE, 0, &rule.payload(), action)
    }

    fn change_route(
        &mut self,
        kind: u16,
        flags: i32,
        route: &RouteSpec<'_>,
        how: [u8; 3],
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let RouteSpec { to, link, gateway, source, table, metric } = *route;
        let index = self.index(link, action)?;
        let (family, to_length) = (to.family(), to.length());
        let header = RouteHeader { family, to_length, from_length: 0, how, flags: 0 };
        let payload = Payload::new(&header.bytes())
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
    how: [u8; 3],
    flags: u32,
}

impl RouteHeader {
    fn bytes(&self) -> [u8; 12] {
        let Self { family, to_length, from_length, how: [protocol, scope, kind], flags } = *self;
        let [f0, f1, f2, f3] = flags.to_ne_bytes();
        [family, to_length, from_length, 0, 0, protocol, scope, kind, f0, f1, f2, f3]
    }
}

impl RouteEntry {
    /// Reads `RTM_NEWROUTE` and `RTM_DELROUTE`; `None` for a family other than IP.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader::new(message.body, "rtmsg");
        let [family, length, _, _, table, _, _, _] = reader.take()?;
        let _flags = reader.u32()?;
        let everything = match i32::from(family) {
            libc::AF_INET => Prefix::ALL_V4,
            libc::AF_INET6 => Prefix::ALL_V6,
            _ => return Ok(None),
        };
        let mut entry = Self {
            to: everything,
            link_index: None,
            gateway: None,
            source: None,
            table: u32::from(table),
            metric: None,
        };
        for attribute in Attributes::new(reader.rest()) {
            let attribute = attribute?;
            match attribute.kind {
                libc::RTA_DST => {
                    let to = Prefix::new(attribute.ip()?, length);
                    entry.to = to.map_err(|_| Malformed::Missing("prefix length"))?;
                }
                libc::RTA_OIF => entry.link_index = Some(attribute.u32()?),
                libc::RTA_GATEWAY => entry.gateway = Some(attribute.ip()?),
                libc::RTA_PREFSRC => entry.source = Some(attribute.ip()?),
                libc::RTA_TABLE => entry.table = attribute.u32()?,
                libc::RTA_PRIORITY => entry.metric = Some(attribute.u32()?),
                _ => {}
            }
        }
        Ok(Some(entry))
    }
}

impl RuleSpec {
    /// `struct fib_rule_hdr` and its attributes.
    fn payload(&self) -> Payload {
        let Self { from, to, table, priority } = *self;
        let to = to.filter(|to| to.length() > 0);
        let to_length = to.map_or(0, Prefix::length);
        let header = [from.family(), to_length, from.length(), 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0];
        Payload::new(&header)
            .u32(FRA_TABLE, table)
            .maybe(Some(from).filter(|from| from.length() > 0), |payload, from| {
                payload.ip(FRA_SRC, from.network().address())
            })
            .maybe(to, |payload, to| payload.ip(FRA_DST, to.network().address()))
            .maybe(priority, |payload, priority| payload.u32(FRA_PRIORITY, priority))
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

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, table, priority } = *self;
        write!(f, "rule from {from}")?;
        to.map_or(Ok(()), |to| write!(f, " to {to}"))?;
        write!(f, " for table {table}")?;
        priority.map_or(Ok(()), |priority| write!(f, " with priority {priority}"))
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
    use crate::netlink::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/routes.hex");

    #[test]
    fn recorded_routes_are_understood() {
        let routes = parse_all(RECORDED, |message| RouteEntry::parse(message).unwrap().unwrap());
        let way = |entry: &RouteEntry| {
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
        assert_eq!(routes.iter().map(way).collect::<Vec<_>>(), expected);
        assert_eq!(routes[0].source, Some("10.0.0.1".parse().unwrap()));
        assert_eq!(routes[4].metric, Some(100));
    }

    #[test]
    fn no_route_message_panics() {
        never_panics(RECORDED, RouteEntry::parse);
    }
}
