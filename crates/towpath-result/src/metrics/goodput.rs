//! Goodput, and the payload capacity of a path.

use std::time::Duration;

use towpath_net::Rate;
use towpath_scenario::{Family, Transport};

/// Returns the goodput in bit/s; 0 when no time has passed.
pub fn bits_per_second(bytes: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { bytes as f64 * 8.0 / span.as_secs_f64() }
}

/// Headers and packet size that determine a path's payload capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Transport protocol, for its header sizes.
    pub transport: Transport,
    /// Address family, for the size of the IP header.
    pub family: Family,
    /// Size of the largest IP packet (MTU).
    pub mtu_bytes: u32,
    /// Link overhead added to each packet.
    pub overhead_bytes: u32,
}

impl Framing {
    /// Returns the payload of a full-size packet.
    ///
    /// IP takes 20 bytes (IPv6: 40). TCP takes 20, plus 12 for timestamps. Multipath TCP takes 20
    /// more for a DSS option with 64-bit data sequence number and data ACK (RFC 8684 §3.3), as
    /// Linux sends it. QUIC is assumed to use 8 bytes of UDP, 13 of header, 16 of AEAD tag and 8 of
    /// STREAM frame. This is an approximation, since header fields vary in length.
    pub fn payload_bytes(self) -> u32 {
        let ip = match self.family {
            Family::V4 => 20,
            Family::V6 => 40,
        };
        let transport = match self.transport {
            Transport::Tcp => 32,
            Transport::Mptcp => 52,
            Transport::Quic | Transport::Mpquic => 45,
        };
        self.mtu_bytes.saturating_sub(ip + transport)
    }

    /// Returns the payload in bit/s that a link of this rate can carry.
    pub fn payload_bps(self, rate: Rate) -> f64 {
        let wire_bytes = self.mtu_bytes.saturating_add(self.overhead_bytes).max(1);
        rate.as_bps() as f64 * f64::from(self.payload_bytes()) / f64::from(wire_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_of_a_100_mbit_link_matches_kernel_measurements() {
        let rate = Rate::from_bps(100_000_000).unwrap();
        let framing = |transport| Framing {
            transport,
            family: Family::V4,
            mtu_bytes: 1_500,
            overhead_bytes: 14,
        };
        // Measured through tbf: 95.5 (TCP), 187.3 to 187.8 on two links (Multipath TCP).
        assert!((framing(Transport::Tcp).payload_bps(rate) / 1e6 - 95.5).abs() < 0.3);
        assert!((framing(Transport::Mptcp).payload_bps(rate) / 1e6 * 2.0 - 187.5).abs() < 1.5);
    }

    #[test]
    fn no_time_gives_no_goodput_instead_of_infinity() {
        assert!(bits_per_second(1_000, Duration::ZERO).abs() < f64::EPSILON);
        assert!((bits_per_second(1_000, Duration::from_secs(1)) - 8_000.0).abs() < 1e-9);
    }
}
