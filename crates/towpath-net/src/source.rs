//! Sources of traffic, for limits that apply to each client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Key for per-client limits: an IPv4 address or an IPv6 /64, in which one host has as many
/// addresses as it likes. The default is the source of all peers without a known address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePrefix(IpAddr);

impl SourcePrefix {
    /// Returns the source of an address. An IPv4-mapped IPv6 address is the IPv4 address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// Returns the lowest address of the source.
    pub fn network(self) -> IpAddr {
        self.0
    }
}

impl Default for SourcePrefix {
    fn default() -> Self {
        Self(Ipv4Addr::UNSPECIFIED.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_64_bits_is_one_source() {
        let source = |text: &str| SourcePrefix::of(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("2001:db8::1").network(), "2001:db8::".parse::<IpAddr>().unwrap());
    }
}
