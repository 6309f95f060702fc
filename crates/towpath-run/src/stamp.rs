//! Constant-rate datagrams (`udp`), and the client's subscription to them.
//!
//! All begin with 40 bytes: kind, `tp`, a version, the test's public ID, flow, number and time. A
//! server sends only what a plan requested over a control connection, and only to an address that
//! has proved it receives. The client subscribes, gets a challenge of the same length, and echoes
//! it repeatedly while it listens (return routability, as in RFC 9000 §8.2). So datagrams cannot be
//! directed at a spoofed address.
//!
//! The port is shared with QUIC, whose packets all set the fixed bit 0x40 in the first byte (RFC
//! 9000 §17.2, §17.3). These datagrams clear it.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};
use towpath_net::Instant;
use towpath_scenario::flow_plan::MIN_DATAGRAM_BYTES;

use super::token::TestToken;

/// Type of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramKind {
    /// Measured datagram with number and time of sending.
    Data,
    /// Subscription of the client; the number is the challenge, or zero.
    Subscribe,
    /// Challenge from the server, in the number.
    Challenge,
}

const KINDS: [(DatagramKind, u8); 3] =
    [(DatagramKind::Data, 0x03), (DatagramKind::Subscribe, 0x04), (DatagramKind::Challenge, 0x05)];

/// Header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Type of the datagram.
    pub kind: DatagramKind,
    /// Public ID of the test; [`TestToken::NONE`] where there is only one.
    pub token: TestToken,
    /// Number of the flow.
    pub flow: u32,
    /// Sequence number, or the challenge.
    pub number: u64,
    /// Time of sending in nanoseconds since the start of the traffic.
    pub sent_ns: u64,
}

impl DatagramHeader {
    /// Header length in bytes; [`DatagramKind::Subscribe`] and [`DatagramKind::Challenge`] have no
    /// more.
    pub const BYTES: usize = MIN_DATAGRAM_BYTES as usize;

    /// Serializes the header to network byte order.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(0, |(_, byte)| *byte);
        let mut bytes = [0; Self::BYTES];
        let parts = [kind, b't', b'p', 1].into_iter().chain(self.token.0);
        let parts = parts.chain(self.flow.to_be_bytes()).chain(self.number.to_be_bytes());
        let parts = parts.chain(self.sent_ns.to_be_bytes());
        for (slot, byte) in bytes.iter_mut().zip(parts) {
            *slot = byte;
        }
        bytes
    }

    /// Parses the header of a datagram; `None` for other datagrams.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[kind, b't', b'p', 1], rest) = bytes.split_first_chunk()? else { return None };
        let (kind, _) = KINDS.iter().find(|(_, byte)| *byte == kind)?;
        let (token, rest) = rest.split_first_chunk()?;
        let (flow, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (sent_ns, _) = rest.split_first_chunk()?;
        // Subscriptions and challenges have the same length, to prevent amplification.
        let is_valid_length = *kind == DatagramKind::Data || bytes.len() == Self::BYTES;
        is_valid_length.then(|| Self {
            kind: *kind,
            token: TestToken(*token),
            flow: u32::from_be_bytes(*flow),
            number: u64::from_be_bytes(*number),
            sent_ns: u64::from_be_bytes(*sent_ns),
        })
    }

    /// Returns the time of sending.
    pub fn sent_at(&self) -> Instant {
        Instant::from_nanos(self.sent_ns)
    }
}

/// Returns the challenge that an address must echo before anything is sent there. Only a host that
/// receives at the address can know it.
pub fn challenge(key: &[u8; 16], peer: SocketAddr) -> u64 {
    let digest = Sha256::new()
        .chain_update(b"towpath live datagrams")
        .chain_update(key)
        .chain_update(peer.to_string())
        .finalize();
    let number = digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    // Zero means that the client does not know the challenge yet.
    number.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_address_gets_a_unique_challenge() {
        let address = |text: &str| text.parse().unwrap();
        let (first, second) = (address("192.0.2.1:5000"), address("192.0.2.1:5001"));
        assert_eq!(challenge(&[1; 16], first), challenge(&[1; 16], first));
        assert_ne!(challenge(&[1; 16], first), challenge(&[1; 16], second));
        assert_ne!(challenge(&[1; 16], first), challenge(&[2; 16], first));
    }

    proptest! {
        #[test]
        fn a_header_round_trips(
            kind in 0_usize..3, token: [u8; 16], flow: u32, number: u64, sent_ns: u64,
            padding in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let header = DatagramHeader { kind: KINDS[kind].0, token: TestToken(token), flow, number, sent_ns };
            let mut bytes = header.to_bytes().to_vec();
            prop_assert_eq!(DatagramHeader::parse(&bytes), Some(header));
            prop_assert_eq!(bytes[0] & 0x40, 0, "no packet of QUIC");
            bytes.extend(&padding);
            let may_be_longer = header.kind == DatagramKind::Data || padding.is_empty();
            prop_assert_eq!(DatagramHeader::parse(&bytes), Some(header).filter(|_| may_be_longer));
            prop_assert_eq!(super::super::datagram::reply(&bytes, |_| true), None);
        }

        #[test]
        fn a_parsed_header_serializes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(header) = DatagramHeader::parse(&bytes) {
                prop_assert!(bytes.starts_with(&header.to_bytes()));
            }
        }
    }
}
