//! Address prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Address and the length of its network part, such as `10.0.0.1/24`.
///
/// The host bits are kept: an interface's address has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Error for a text or a pair that does not form a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid prefix, expected one such as 10.0.0.1/24 or fd00::1/64")]
pub struct InvalidPrefix(String);

impl Prefix {
    /// Every IPv4 address: the destination of a default route.
    pub const ALL_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 };
    /// Every IPv6 address: the destination of a default route.
    pub const ALL_V6: Self = Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 };

    /// Returns the default prefix of the kernel's `family`; `None` if it is not IPv4 or IPv6.
    pub(crate) fn all(family: u8) -> Option<Self> {
        match i32::from(family) {
            libc::AF_INET => Some(Self::ALL_V4),
            libc::AF_INET6 => Some(Self::ALL_V6),
            _ => None,
        }
    }

    /// Returns true if `address` lies within the prefix; false for the other address family.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self { address, ..self }.network() == self.network()
    }

    /// Creates a prefix of `length` bits; an error if the address has fewer.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, InvalidPrefix> {
        if length > Self::host(address).length {
            return Err(InvalidPrefix(format!("{address}/{length}")));
        }
        Ok(Self { address, length })
    }

    /// Returns the prefix that holds only `address`.
    pub const fn host(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }

    /// Returns the address, including its host bits.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the length of the network part, in bits.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Returns the kernel's number of the address family.
    pub(crate) const fn family(self) -> u8 {
        family(self.address)
    }

    /// Clears the host bits, as routes and rules require.
    #[must_use]
    pub fn network(self) -> Self {
        let host_bits = u32::from(Self::host(self.address).length - self.length);
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, ..self }
    }
}

/// Returns the kernel's number of an address's family.
pub(crate) const fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let invalid = || InvalidPrefix(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(invalid)?;
        let address = address.parse().map_err(|_| invalid())?;
        Self::new(address, length.parse().map_err(|_| invalid())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_reads_back_what_it_prints() {
        for text in ["10.0.0.1/24", "fd00::1/64", "0.0.0.0/0", "::/0", "::1/128"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_prefix_contains_its_own_addresses_only() {
        let prefix: Prefix = "10.1.2.3/24".parse().unwrap();
        for (address, inside) in [("10.1.2.9", true), ("10.1.3.3", false), ("::1", false)] {
            assert_eq!(prefix.contains(address.parse().unwrap()), inside, "{address}");
        }
        assert!(Prefix::ALL_V6.contains("fd00::1".parse().unwrap()));
    }

    #[test]
    fn an_invalid_prefix_is_named_in_the_error() {
        for text in ["10.0.0.1", "10.0.0.1/33", "::/129", "x/8", "10.0.0.1/"] {
            let error = text.parse::<Prefix>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn the_network_has_no_host_bits() {
        let network = |text: &str| text.parse::<Prefix>().unwrap().network().to_string();
        assert_eq!(network("10.1.2.3/16"), "10.1.0.0/16");
        assert_eq!(network("10.1.2.3/0"), "0.0.0.0/0");
        assert_eq!(network("10.1.2.3/32"), "10.1.2.3/32");
        assert_eq!(network("fd00::1:1/112"), "fd00::1:0/112");
        assert_eq!(network("fd00::1/0"), "::/0");
    }
}
