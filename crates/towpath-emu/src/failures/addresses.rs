//! Addresses of the hosts of a failure case.
//!
//! Each network has an IPv4 and an IPv6 prefix. Functions that return both return IPv4 first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_netlink::Prefix;

use super::case::{PRIVATE_SERVERS, PUBLIC_SERVERS};

/// Returns the IPv4 and IPv6 address of a host in the network of the client's interface `number`.
pub(super) fn client_addresses(number: usize, host_octet: u8) -> [Prefix; 2] {
    [
        prefix(Ipv4Addr::new(10, 1, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, 1, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

/// Returns the addresses of a host in the network of the client's interface `number`: those of
/// [`client_addresses`], or with identical modems 192.168.8.100 (client, 2) and .1 (gateway, 1).
pub(super) fn lan_addresses(identical: bool, number: usize, host_octet: u8) -> [Prefix; 2] {
    let [v4, v6] = client_addresses(number, host_octet);
    if !identical {
        return [v4, v6];
    }
    let host_octet = if host_octet == 2 { 100 } else { host_octet };
    [prefix(Ipv4Addr::new(192, 168, 8, host_octet).into(), 24), v6]
}

pub(super) fn client_networks(number: usize) -> [Prefix; 2] {
    client_addresses(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1), middlebox (2) and core (3).
pub(super) fn wan_addresses(number: usize, host_octet: u8) -> [Prefix; 2] {
    [
        prefix(Ipv4Addr::new(100, 64, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, 0xff, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

pub(super) fn wan_networks(number: usize) -> [Prefix; 2] {
    wan_addresses(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1), second middlebox (3) and provider (2), if there
/// is a provider; there may be two such links.
pub(super) fn provider_addresses(number: usize, link: ProviderLink, host_octet: u8) -> [Prefix; 2] {
    let (v4_block, v6_block) = match link {
        ProviderLink::First => (65, 0xfe),
        ProviderLink::Second => (66, 0xfd),
    };
    [
        prefix(Ipv4Addr::new(100, v4_block, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, v6_block, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

/// Link between a gateway and a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderLink {
    First,
    Second,
}

pub(super) fn provider_networks(number: usize) -> [Prefix; 2] {
    provider_addresses(number, ProviderLink::First, 0).map(Prefix::network)
}

/// Returns addresses of the network of core (1) and server (2). They look public unless the server is
/// behind a translation, which IPv6 does not have.
pub(super) fn server_addresses(private: bool, index: usize, host_octet: u8) -> [Prefix; 2] {
    let servers = if private { PRIVATE_SERVERS } else { PUBLIC_SERVERS };
    let [a, b, c, _] = servers.get(index).unwrap_or(&Ipv4Addr::UNSPECIFIED).octets();
    let v4_address = Ipv4Addr::new(a, b, c, host_octet);
    let v6_address = v6([0x2001, 0xdb8, 2, index as u16 + 1, 0, 0, 0, host_octet.into()]);
    [prefix(v4_address.into(), 24), prefix(v6_address.into(), 64)]
}

pub(super) fn prefix(address: IpAddr, bits: u8) -> Prefix {
    Prefix::new(address, bits).unwrap_or(Prefix::host(address))
}

pub(super) fn v6(words: [u16; 8]) -> Ipv6Addr {
    words.into()
}

pub(super) fn octet(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Returns the IPv6 address of the core (1) or of the server of a tunnel (2) in their network.
pub(super) fn tunnel_server_address(number: usize, host_octet: u8) -> Prefix {
    prefix(v6([0x2001, 0xdb8, 0xfc, number as u16, 0, 0, 0, host_octet.into()]).into(), 64)
}
