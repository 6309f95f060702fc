//! Address plan: path number *n* has the subnets `10.64+n/256.n%256.0/24` and `fd74:6f77:0:n::/64`.
//! Its first host is `.1`, its second `.2`; each address change adds 10.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Family, Path, Scenario};

/// Number of address changes after which addresses are reused.
const MAX_GENERATIONS: u8 = 24;

/// Returns the address of one end (0 or 1) of a path.
pub fn address(path: usize, end: usize, family: Family, generation: u8) -> IpAddr {
    let number = path as u16;
    let [high, low] = number.to_be_bytes();
    let host = 1 + end as u8 + 10 * (generation % MAX_GENERATIONS);
    match family {
        Family::V4 => Ipv4Addr::new(10, 64 + high, low, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd74, 0x6f77, 0, number, 0, 0, 0, u16::from(host)).into(),
    }
}

/// Returns the prefix length of a path's subnet in bits.
pub const fn prefix_bits(family: Family) -> u8 {
    match family {
        Family::V4 => 24,
        Family::V6 => 64,
    }
}

/// Returns the path and end that an address belongs to; `None` for foreign addresses.
pub fn path_and_end(address: IpAddr) -> Option<(usize, usize)> {
    let (path, host) = match address {
        IpAddr::V4(v4) => match v4.octets() {
            [10, high, low, host] if high >= 64 => (u16::from_be_bytes([high - 64, low]), host),
            _ => return None,
        },
        IpAddr::V6(v6) => match v6.segments() {
            [0xfd74, 0x6f77, 0, path, 0, 0, 0, host] => (path, u8::try_from(host).ok()?),
            _ => return None,
        },
    };
    let end = host.checked_sub(1)? % 10;
    (end < 2).then_some((usize::from(path), usize::from(end)))
}

/// Returns the path of a subflow between two addresses, preferably from its first host's address.
pub fn path_of(local: IpAddr, remote: IpAddr) -> Option<usize> {
    let ends = [path_and_end(local), path_and_end(remote)];
    let first_host = ends.iter().flatten().find(|(_, end)| *end == 0);
    first_host.or(ends.iter().flatten().next()).map(|(path, _)| *path)
}

/// Returns the address families that flows use; both for a scenario without flows.
pub fn families(scenario: &Scenario) -> Vec<Family> {
    let is_used = |family| scenario.flows.iter().any(|flow| flow.family == family);
    let without_flows = scenario.flows.is_empty();
    [Family::V4, Family::V6]
        .into_iter()
        .filter(|family| without_flows || is_used(*family))
        .collect()
}

/// Returns the end (0 or 1) of `path` at `host`; `None` if it is not an end.
pub fn end_of(path: &Path, host: usize) -> Option<usize> {
    path.between.iter().position(|end| *end == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_maps_back_to_its_path_and_end() {
        for family in [Family::V4, Family::V6] {
            for (path, end, generation) in [(0, 0, 0), (1, 1, 0), (300, 0, 3), (63, 1, 23)] {
                let address = address(path, end, family, generation);
                assert_eq!(path_and_end(address), Some((path, end)), "{address}");
            }
        }
        assert_eq!(path_and_end("127.0.0.1".parse().unwrap()), None);
        assert_eq!(path_and_end("::1".parse().unwrap()), None);
    }
}
