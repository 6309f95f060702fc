//! Network interfaces.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::wire::{Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader};

/// `VETH_INFO_PEER` (`linux/veth.h`): the other end, as `struct ifinfomsg` and attributes.
const VETH_INFO_PEER: u16 = 1;
/// `AF_UNSPEC`: the family of messages about links themselves, not about a bridge's ports.
const UNSPECIFIED: u8 = 0;

/// One end of a pair of virtual Ethernet interfaces that is to be created.
#[derive(Debug, Clone, Copy, Default)]
pub struct VethEnd<'a> {
    /// Name of the interface, at most 15 bytes.
    pub name: &'a str,
    /// Hardware address; the kernel takes a random one otherwise.
    pub mac: Option<[u8; 6]>,
    /// Maximum IP packet size, in bytes; the driver's default otherwise.
    pub mtu: Option<u32>,
    /// Length of the transmit queue, in packets; the kernel's default otherwise.
    pub tx_queue_len: Option<u32>,
    /// Network namespace in which to create the end; the socket's own otherwise.
    pub namespace: Option<BorrowedFd<'a>>,
}

/// Network interface as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Number of the interface, unique in its namespace.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Bit mask of `IFF_*` flags (`linux/if.h`).
    pub flags: u32,
    /// State of operation (RFC 2863).
    pub state: OperationalState,
    /// True if the link has a carrier; `None` if the kernel does not report it.
    pub carrier: Option<bool>,
    /// Maximum IP packet size, in bytes.
    pub mtu: u32,
    /// Length of the transmit queue, in packets.
    pub tx_queue_len: u32,
    /// Ethernet address, if the interface has one.
    pub mac: Option<[u8; 6]>,
    /// Kind of a virtual interface, such as `veth` or `bridge`; `None` for hardware.
    pub kind: Option<String>,
    /// Index of the bridge or bond that the interface is a port of.
    pub master: Option<u32>,
    /// Counters since the interface was created.
    pub stats: LinkStats,
}

/// Counters of an interface (`struct rtnl_link_stats64`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names; packets and bytes with link headers")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// State of operation of an interface (RFC 2863 `ifOperStatus`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the states of RFC 2863")]
pub enum OperationalState {
    /// The driver reports no state, as for the loopback interface.
    #[default]
    Unknown,
    NotPresent,
    Down,
    LowerLayerDown,
    Testing,
    Dormant,
    Up,
}

impl RouteSocket {
    /// Creates a pair of connected interfaces with one queue each; both are down.
    pub fn add_veth(
        &mut self,
        left: &VethEnd<'_>,
        right: &VethEnd<'_>,
    ) -> Result<(), NetlinkError> {
        let action = format_args!("add veth pair `{}` and `{}`", left.name, right.name);
        let payload = put_veth_end(MessageBuilder::new(&ifinfomsg(0, 0)), left).nest(
            libc::IFLA_LINKINFO,
            |kind| {
                kind.text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |peer| {
                        put_veth_end(peer.raw(&ifinfomsg(0, 0)), right)
                    })
                })
            },
        );
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.requests.change(libc::RTM_NEWLINK, flags, &payload, action)
    }

    /// Adds a bridge: a switch in the kernel.
    pub fn add_bridge(&mut self, name: &str) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::new(&ifinfomsg(0, 0)).text(libc::IFLA_IFNAME, name);
        let payload =
            payload.nest(libc::IFLA_LINKINFO, |kind| kind.text(libc::IFLA_INFO_KIND, "bridge"));
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let action = format_args!("add bridge `{name}`");
        self.requests.change(libc::RTM_NEWLINK, flags, &payload, action)
    }

    /// Makes `link` a port of `bridge`.
    pub fn set_bridge(&mut self, link: &str, bridge: &str) -> Result<(), NetlinkError> {
        let action = format_args!("make `{link}` a port of `{bridge}`");
        let index = self.get_link(bridge, action)?.index;
        let attribute = MessageBuilder::default().u32(libc::IFLA_MASTER, index);
        self.set_attribute(link, &attribute, action)
    }

    /// Deletes `link`; for a virtual Ethernet pair, both ends.
    pub fn delete_link(&mut self, link: &str) -> Result<(), NetlinkError> {
        let payload = MessageBuilder::new(&ifinfomsg(0, 0)).text(libc::IFLA_IFNAME, link);
        let action = format_args!("delete `{link}`");
        self.requests.change(libc::RTM_DELLINK, 0, &payload, action)
    }

    /// Sets `link` up, so that it carries packets.
    pub fn set_up(&mut self, link: &str) -> Result<(), NetlinkError> {
        self.set_flag(link, libc::IFF_UP, true, format_args!("set `{link}` up"))
    }

    /// Sets `link` down; the kernel removes its IPv6 addresses and the routes over it.
    pub fn set_down(&mut self, link: &str) -> Result<(), NetlinkError> {
        self.set_flag(link, libc::IFF_UP, false, format_args!("set `{link}` down"))
    }

    /// Switches address resolution (ARP, neighbour discovery) on or off.
    pub fn set_arp(&mut self, link: &str, on: bool) -> Result<(), NetlinkError> {
        let action = format_args!("set ARP of `{link}` {}", if on { "on" } else { "off" });
        self.set_flag(link, libc::IFF_NOARP, !on, action)
    }

    /// Sets the maximum IP packet size, in bytes.
    pub fn set_mtu(&mut self, link: &str, mtu: u32) -> Result<(), NetlinkError> {
        let attribute = MessageBuilder::default().u32(libc::IFLA_MTU, mtu);
        self.set_attribute(link, &attribute, format_args!("set MTU of `{link}` to {mtu}"))
    }

    /// Sets the length of the transmit queue, in packets.
    pub fn set_tx_queue_len(&mut self, link: &str, packets: u32) -> Result<(), NetlinkError> {
        let attribute = MessageBuilder::default().u32(libc::IFLA_TXQLEN, packets);
        let action = format_args!("set transmit queue of `{link}` to {packets} packets");
        self.set_attribute(link, &attribute, action)
    }

    /// Sets the hardware address.
    pub fn set_mac(&mut self, link: &str, mac: [u8; 6]) -> Result<(), NetlinkError> {
        let attribute = MessageBuilder::default().attribute(libc::IFLA_ADDRESS, &mac);
        self.set_attribute(link, &attribute, format_args!("set hardware address of `{link}`"))
    }

    /// Moves `link` into another network namespace; there it is down and has no addresses.
    pub fn move_to(&mut self, link: &str, namespace: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let attribute =
            MessageBuilder::default().u32(libc::IFLA_NET_NS_FD, namespace_fd(namespace));
        self.set_attribute(link, &attribute, format_args!("move `{link}` to another namespace"))
    }

    /// Returns the interface called `name`.
    pub fn link(&mut self, name: &str) -> Result<Link, NetlinkError> {
        self.get_link(name, format_args!("look up `{name}`"))
    }

    /// Lists all interfaces of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let payload = MessageBuilder::new(&ifinfomsg(0, 0));
        self.requests.dump(libc::RTM_GETLINK, &payload, format_args!("list links"), Link::parse)
    }

    pub(super) fn get_link(
        &mut self,
        name: &str,
        action: fmt::Arguments<'_>,
    ) -> Result<Link, NetlinkError> {
        let payload = MessageBuilder::new(&ifinfomsg(0, 0)).text(libc::IFLA_IFNAME, name);
        self.requests.get(libc::RTM_GETLINK, &payload, action, |message| {
            Link::parse(message)?.ok_or(Malformed::Missing("link"))
        })
    }

    fn set_flag(
        &mut self,
        link: &str,
        flag: i32,
        on: bool,
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let flag = flag as u32;
        let payload = MessageBuilder::new(&ifinfomsg(if on { flag } else { 0 }, flag));
        let payload = payload.text(libc::IFLA_IFNAME, link);
        self.requests.change(libc::RTM_NEWLINK, 0, &payload, action)
    }

    fn set_attribute(
        &mut self,
        link: &str,
        attribute: &MessageBuilder,
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let payload =
            MessageBuilder::new(&ifinfomsg(0, 0)).text(libc::IFLA_IFNAME, link).append(attribute);
        self.requests.change(libc::RTM_NEWLINK, 0, &payload, action)
    }
}

impl Link {
    /// Returns true if the administrator has set the interface up.
    pub const fn is_up(&self) -> bool {
        self.has_flag(libc::IFF_UP)
    }

    /// Returns true if the interface can carry packets: it is up and so are the layers below.
    pub const fn is_running(&self) -> bool {
        self.has_flag(libc::IFF_RUNNING)
    }

    /// Returns true for the loopback interface.
    pub const fn is_loopback(&self) -> bool {
        self.has_flag(libc::IFF_LOOPBACK)
    }

    /// Returns true if the interface resolves addresses (ARP, neighbour discovery).
    pub const fn has_arp(&self) -> bool {
        !self.has_flag(libc::IFF_NOARP)
    }

    const fn has_flag(&self, flag: i32) -> bool {
        self.flags & flag as u32 != 0
    }

    /// Reads `RTM_NEWLINK` and `RTM_DELLINK`; `None` if the message is about a bridge's port.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let mut reader = StructReader::new(message.body, "ifinfomsg");
        let (family, _pad, _type) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let (index, flags, _change) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if family != UNSPECIFIED {
            return Ok(None);
        }
        let mut link = Self {
            index,
            name: String::new(),
            flags,
            state: OperationalState::Unknown,
            carrier: None,
            mtu: 0,
            tx_queue_len: 0,
            mac: None,
            kind: None,
            master: None,
            stats: LinkStats::default(),
        };
        for attribute in Attributes::new(reader.rest()) {
            link.set(attribute?)?;
        }
        if link.name.is_empty() {
            return Err(Malformed::Missing("link name"));
        }
        Ok(Some(link))
    }

    fn set(&mut self, attribute: Attribute<'_>) -> Result<(), Malformed> {
        match attribute.kind {
            libc::IFLA_IFNAME => self.name = attribute.text(),
            libc::IFLA_OPERSTATE => self.state = OperationalState::from_kernel(attribute.u8()?),
            libc::IFLA_CARRIER => self.carrier = Some(attribute.u8()? != 0),
            libc::IFLA_MTU => self.mtu = attribute.u32()?,
            libc::IFLA_TXQLEN => self.tx_queue_len = attribute.u32()?,
            libc::IFLA_ADDRESS => self.mac = attribute.value.try_into().ok(),
            libc::IFLA_MASTER => self.master = Some(attribute.u32()?),
            libc::IFLA_LINKINFO => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    if attribute.kind == libc::IFLA_INFO_KIND {
                        self.kind = Some(attribute.text());
                    }
                }
            }
            libc::IFLA_STATS64 => self.stats = LinkStats::parse(attribute.value)?,
            _ => {}
        }
        Ok(())
    }
}

impl LinkStats {
    /// Parses the first fields; newer kernels append more.
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = StructReader::new(bytes, "rtnl_link_stats64");
        Ok(Self {
            rx_packets: reader.u64()?,
            tx_packets: reader.u64()?,
            rx_bytes: reader.u64()?,
            tx_bytes: reader.u64()?,
            rx_errors: reader.u64()?,
            tx_errors: reader.u64()?,
            rx_dropped: reader.u64()?,
            tx_dropped: reader.u64()?,
        })
    }
}

impl OperationalState {
    /// Maps the numbers `IF_OPER_*` of `linux/if.h`.
    const fn from_kernel(state: u8) -> Self {
        match state {
            1 => Self::NotPresent,
            2 => Self::Down,
            3 => Self::LowerLayerDown,
            4 => Self::Testing,
            5 => Self::Dormant,
            6 => Self::Up,
            _ => Self::Unknown,
        }
    }
}

/// Returns a `struct ifinfomsg` without an index: the attribute `IFLA_IFNAME` names the link.
fn ifinfomsg(flags: u32, change: u32) -> [u8; 16] {
    let [f0, f1, f2, f3] = flags.to_ne_bytes();
    let [c0, c1, c2, c3] = change.to_ne_bytes();
    [UNSPECIFIED, 0, 0, 0, 0, 0, 0, 0, f0, f1, f2, f3, c0, c1, c2, c3]
}

fn put_veth_end(payload: MessageBuilder, end: &VethEnd<'_>) -> MessageBuilder {
    let VethEnd { name, mac, mtu, tx_queue_len, namespace } = *end;
    payload
        .text(libc::IFLA_IFNAME, name)
        .u32(libc::IFLA_NUM_TX_QUEUES, 1)
        .u32(libc::IFLA_NUM_RX_QUEUES, 1)
        .maybe(mac, |payload, mac| payload.attribute(libc::IFLA_ADDRESS, &mac))
        .maybe(mtu, |payload, mtu| payload.u32(libc::IFLA_MTU, mtu))
        .maybe(tx_queue_len, |payload, packets| payload.u32(libc::IFLA_TXQLEN, packets))
        .maybe(namespace, |payload, fd| payload.u32(libc::IFLA_NET_NS_FD, namespace_fd(fd)))
}

/// Returns the descriptor as the kernel expects it; a borrowed one is never negative.
fn namespace_fd(namespace: BorrowedFd<'_>) -> u32 {
    namespace.as_raw_fd().unsigned_abs()
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/link.hex");

    #[test]
    fn a_recorded_link_is_understood() {
        let links = parse_all(RECORDED, |message| Link::parse(message).unwrap().unwrap());
        let [link] = &links[..] else { panic!("{links:?}") };
        assert_eq!((link.index, link.name.as_str(), link.mtu), (3, "wifi", 1500));
        assert_eq!((link.state, link.carrier), (OperationalState::Up, Some(true)));
        assert!(link.is_up() && link.is_running() && !link.has_arp());
        assert_eq!(link.tx_queue_len, 1000);
        assert_eq!((link.kind.as_deref(), link.master), (Some("veth"), None));
        assert!(!link.is_loopback());
        assert!(link.mac.is_some() && link.stats.tx_packets >= 10, "{link:?}");
    }

    #[test]
    fn a_bridge_port_is_not_a_link() {
        let bridge = |message: &Message<'_>| {
            let mut body = message.body.to_vec();
            body[0] = libc::AF_BRIDGE as u8;
            Link::parse(&Message { body: &body, ..*message })
        };
        assert_eq!(parse_all(RECORDED, bridge), [Ok(None)]);
    }

    #[test]
    fn no_link_message_panics() {
        never_panics(RECORDED, Link::parse);
    }
}
