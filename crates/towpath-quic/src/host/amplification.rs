//! Limit of the bytes sent to addresses that have not been validated (RFC 9000 §8 and §9.3).
//!
//! The library limits bytes per path and may exceed the limit by one datagram. A datagram with a
//! forged source address therefore brought up to 1,200 bytes, also for 29. This limit counts what
//! the host as a whole sends to an address.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Bytes that may be sent for each byte received (RFC 9000 §8.1).
const FACTOR: u64 = 3;
/// Limit of the unused bytes that an address keeps.
const MAX_UNUSED_BYTES: u64 = 65_536;
/// Limit of the addresses with unused bytes; the one that was silent longest loses them.
const MAX_ADDRESSES: usize = 4_096;

/// Unused bytes of each unvalidated address.
#[derive(Debug, Default)]
pub(super) struct AmplificationLimit {
    by_address: BTreeMap<SocketAddr, UnusedBytes>,
    /// Addresses by the number of their last datagram.
    by_age: BTreeMap<u64, SocketAddr>,
    datagrams: u64,
}

/// Bytes that may still be sent to an address.
#[derive(Debug, Clone, Copy, Default)]
struct UnusedBytes {
    bytes: u64,
    /// Number of the last datagram received from the address.
    last_datagram: u64,
}

impl AmplificationLimit {
    /// Counts a datagram received from an unvalidated address.
    pub(super) fn on_received(&mut self, remote: SocketAddr, bytes: usize) {
        self.datagrams += 1;
        let unused = self.by_address.entry(remote).or_default();
        self.by_age.remove(&unused.last_datagram);
        let allowance = (bytes as u64).saturating_mul(FACTOR);
        unused.bytes = unused.bytes.saturating_add(allowance).min(MAX_UNUSED_BYTES);
        unused.last_datagram = self.datagrams;
        self.by_age.insert(self.datagrams, remote);
        if self.by_address.len() > MAX_ADDRESSES
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_address.remove(&oldest);
        }
    }

    /// Returns how many of `bytes` may be sent to an unvalidated address, and counts these as sent.
    /// With several datagrams of `segment_bytes` in one transmission, only whole ones are sent.
    pub(super) fn take(
        &mut self,
        remote: SocketAddr,
        bytes: usize,
        segment_bytes: Option<usize>,
    ) -> usize {
        let Some(unused) = self.by_address.get_mut(&remote) else { return 0 };
        let available = usize::try_from(unused.bytes).unwrap_or(usize::MAX);
        let allowed = match segment_bytes {
            _ if bytes <= available => bytes,
            Some(segment_bytes) => available / segment_bytes.max(1) * segment_bytes.max(1),
            None => 0,
        };
        unused.bytes -= allowed as u64;
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn remote(number: u16) -> SocketAddr {
        (Ipv6Addr::LOCALHOST, number).into()
    }

    #[test]
    fn an_address_gets_three_times_its_bytes() {
        let mut limit = AmplificationLimit::default();
        assert_eq!(limit.take(remote(1), 1, None), 0);
        limit.on_received(remote(1), 29);
        assert_eq!(limit.take(remote(1), 1_200, None), 0);
        assert_eq!(limit.take(remote(2), 10, None), 0, "another port is another address");
        assert_eq!(limit.take(remote(1), 80, None), 80);
        assert_eq!(limit.take(remote(1), 8, None), 0);
        limit.on_received(remote(1), 1_200);
        assert_eq!(limit.take(remote(1), 6_000, Some(1_200)), 3_600);
        assert_eq!(limit.take(remote(1), 7, None), 7);
    }

    #[test]
    fn unused_bytes_and_addresses_are_limited() {
        let mut limit = AmplificationLimit::default();
        for _ in 0..100 {
            limit.on_received(remote(1), 1_200);
        }
        assert_eq!(limit.take(remote(1), 100_000, Some(1)), 65_536);
        for number in 1..=5_000 {
            limit.on_received(remote(number), 1_200);
        }
        assert_eq!(limit.by_address.len(), MAX_ADDRESSES);
        assert_eq!(limit.by_age.len(), MAX_ADDRESSES);
        assert_eq!(limit.take(remote(1), 10, None), 0, "the oldest is forgotten");
        assert_eq!(limit.take(remote(5_000), 10, None), 10);
    }
}
