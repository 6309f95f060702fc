//! Addresses of interfaces.

use std::fmt;
use std::net::IpAddr;

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::prefix::Prefix;
use crate::wire::{Attributes, Malformed, Message, MessageBuilder, StructReader};

/// Address of an interface, as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Index of the interface.
    pub link_index: u32,
    /// Local address, with the length of its network part.
    pub local: Prefix,
    /// Address at the other end of a point-to-point interface; `None` for other interfaces.
    pub peer: Option<IpAddr>,
    /// `IFA_F_*` flags (`linux/if_addr.h`), such as `IFA_F_TENTATIVE`.
    pub flags: u32,
    /// Scope in which the address is valid (`RT_SCOPE_*`); see [`InterfaceAddress::is_global`].
    pub scope: u8,
}

impl RouteSocket {
    /// Adds an address; the kernel adds the route to its network when the link is up. An IPv6
    /// address is usable at once, without duplicate address detection.
    pub fn add_address(&mut self, link: &str, address: Prefix) -> Result<(), NetlinkError> {
        let action = format_args!("add address {address} to `{link}`");
        let local = address.address();
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.change_address(libc::RTM_NEWADDR, flags, link, local, address, action)
    }

    /// Adds the address `local` of a point-to-point link to `peer`, whose prefix is routed there.
    pub fn add_peer_address(
        &mut self,
        link: &str,
        local: IpAddr,
        peer: Prefix,
    ) -> Result<(), NetlinkError> {
        let action = format_args!("add address {local} with peer {peer} to `{link}`");
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.change_address(libc::RTM_NEWADDR, flags, link, local, peer, action)
    }

    /// Deletes an address, and with it the routes that prefer it as source.
    pub fn delete_address(&mut self, link: &str, address: Prefix) -> Result<(), NetlinkError> {
        let action = format_args!("delete address {address} of `{link}`");
        self.change_address(libc::RTM_DELADDR, 0, link, address.address(), address, action)
    }

    /// Lists all addresses of the namespace.
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let payload = MessageBuilder::new(&[0; 8]);
        let action = format_args!("list addresses");
        let parse = |message: &Message<'_>| InterfaceAddress::parse(message).map(Some);
        self.requests.dump(libc::RTM_GETADDR, &payload, action, parse)
    }

    fn change_address(
        &mut self,
        kind: u16,
        flags: i32,
        link: &str,
        local: IpAddr,
        address: Prefix,
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let [i0, i1, i2, i3] = self.index(link, action)?.to_ne_bytes();
        // `struct ifaddrmsg`; IPv4 has no duplicate address detection and ignores the flag.
        let no_dad = libc::IFA_F_NODAD as u8;
        let header = [address.family(), address.length(), no_dad, 0, i0, i1, i2, i3];
        let payload = MessageBuilder::new(&header)
            .ip(libc::IFA_LOCAL, local)
            .ip(libc::IFA_ADDRESS, address.address());
        self.requests.change(kind, flags, &payload, action)
    }
}

impl InterfaceAddress {
    /// Returns true if the address is valid beyond its link and its host.
    pub const fn is_global(&self) -> bool {
        self.scope == libc::RT_SCOPE_UNIVERSE
    }

    /// Returns true if a new connection may use the address as source.
    ///
    /// False during duplicate address detection, for a duplicate, and for a deprecated address.
    pub const fn is_usable(&self) -> bool {
        self.flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED | libc::IFA_F_DEPRECATED) == 0
    }

    /// Reads `RTM_NEWADDR` and `RTM_DELADDR`.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let mut reader = StructReader::new(message.body, "ifaddrmsg");
        let (_family, length) = (reader.u8()?, reader.u8()?);
        let (flags, scope, link_index) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let (mut local, mut address, mut flags) = (None, None, u32::from(flags));
        for attribute in Attributes::new(reader.rest()) {
            let attribute = attribute?;
            match attribute.kind {
                libc::IFA_LOCAL => local = Some(attribute.ip()?),
                libc::IFA_ADDRESS => address = Some(attribute.ip()?),
                libc::IFA_FLAGS => flags = attribute.u32()?,
                _ => {}
            }
        }
        // IFA_ADDRESS is the peer's address if there is a peer; IPv6 without one has no IFA_LOCAL.
        let local_address = local.or(address).ok_or(Malformed::Missing("address"))?;
        let peer = address.filter(|&address| address != local_address);
        let local =
            Prefix::new(local_address, length).map_err(|_| Malformed::Missing("prefix length"))?;
        Ok(Self { link_index, local, peer, flags, scope })
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/addresses.hex");

    #[test]
    fn recorded_addresses_are_understood() {
        let addresses = parse_all(RECORDED, |message| InterfaceAddress::parse(message).unwrap());
        let local_and_peer = |address: &InterfaceAddress| (address.local.to_string(), address.peer);
        let peer = |text: &str| Some(text.parse().unwrap());
        let expected = [
            ("127.0.0.1/8", None),
            ("10.9.0.1/32", peer("10.9.0.2")),
            ("10.0.0.1/24", None),
            ("::1/128", None),
            ("fd09::1/128", peer("fd09::2")),
            ("fd00::1/64", None),
        ];
        let expected = expected.map(|(local, peer)| (local.to_owned(), peer));
        assert_eq!(addresses.iter().map(local_and_peer).collect::<Vec<_>>(), expected);
        assert!(!addresses[0].is_global() && addresses[2].is_global());
        assert!(addresses.iter().all(InterfaceAddress::is_usable));
        assert_eq!(addresses[5].flags, libc::IFA_F_NODAD | libc::IFA_F_PERMANENT);
    }

    #[test]
    fn no_address_message_panics() {
        never_panics(RECORDED, InterfaceAddress::parse);
    }
}
