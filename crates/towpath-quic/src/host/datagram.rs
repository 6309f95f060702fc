//! Datagrams between a host's sockets and the network.

use std::net::SocketAddr;

use bytes::Bytes;

/// Payload and addresses of one send or receive call of the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Our address and UDP port.
    pub local: SocketAddr,
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The ECN field of the IP header (RFC 3168 §5): two bits.
    pub ecn: u8,
    /// UDP payload, of several datagrams if there is a segment size.
    pub payload: Bytes,
    /// Length of each datagram but the last, which may be shorter; `None` is a single datagram.
    pub segment_bytes: Option<usize>,
}

/// Header of datagrams received at once between two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncomingDatagrams {
    /// Our address and UDP port.
    pub local: SocketAddr,
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The ECN field of the IP header: two bits.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter.
    pub segment_bytes: usize,
}

/// Header of datagrams sent at once between two addresses: as [`Datagram`], without the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutgoingDatagrams {
    /// Our address and UDP port.
    pub local: SocketAddr,
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// The ECN field of the IP header: two bits.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter; `None` is a single datagram.
    pub segment_bytes: Option<usize>,
}

/// Returns true if a datagram is a single Handshake packet of QUIC version 1 (RFC 9000 §17.2.4).
pub(super) fn is_handshake_packet(datagram: &[u8]) -> bool {
    parse_handshake_packet(datagram).is_some_and(<[u8]>::is_empty)
}

/// Returns what follows a Handshake packet at the start of a datagram.
fn parse_handshake_packet(datagram: &[u8]) -> Option<&[u8]> {
    let (&[first, v0, v1, v2, v3], rest) = datagram.split_first_chunk::<5>()?;
    if first & 0xf0 != 0xe0 || u32::from_be_bytes([v0, v1, v2, v3]) != 1 {
        return None;
    }
    let (destination_bytes, rest) = rest.split_first()?;
    let (source_bytes, rest) = rest.get(usize::from(*destination_bytes)..)?.split_first()?;
    let rest = rest.get(usize::from(*source_bytes)..)?;
    // A variable-length integer (RFC 9000 §16).
    let length_bytes = 1_usize << (rest.first()? >> 6);
    let (length, rest) = rest.split_at_checked(length_bytes)?;
    let number = length.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let packet_bytes = number & (u64::MAX >> (64 - 8 * length_bytes + 2));
    rest.get(usize::try_from(packet_bytes).ok()?..)
}

impl Datagram {
    /// Returns each datagram of the payload.
    pub fn split(&self) -> impl Iterator<Item = Bytes> + '_ {
        let size = self.segment_bytes.unwrap_or(usize::MAX).max(1);
        let mut rest = self.payload.clone();
        std::iter::from_fn(move || (!rest.is_empty()).then(|| rest.split_to(size.min(rest.len()))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a packet with an empty destination identifier and a source identifier of two bytes.
    fn packet(first: u8, version: u8, length: &[u8], payload_bytes: usize) -> Vec<u8> {
        let header = [&[first, 0, 0, 0, version, 0, 2, 7, 7], length].concat();
        [header, vec![9; payload_bytes]].concat()
    }

    #[test]
    fn a_single_handshake_packet_is_recognised() {
        assert!(is_handshake_packet(&packet(0xe3, 1, &[0x3f], 63)));
        assert!(is_handshake_packet(&packet(0xe0, 1, &[0x44, 0xb0], 1_200)));
        assert!(is_handshake_packet(&packet(0xe0, 1, &[0xc0, 0, 0, 0, 0, 0, 0, 5], 5)));
        assert!(!is_handshake_packet(&packet(0xe0, 1, &[0x3f], 64)), "another packet follows");
        assert!(!is_handshake_packet(&packet(0xe0, 1, &[0x3f], 62)), "it is cut");
        assert!(!is_handshake_packet(&packet(0xc0, 1, &[0x3f], 63)), "an Initial packet");
        assert!(!is_handshake_packet(&packet(0x60, 1, &[0x3f], 63)), "a short header");
        assert!(!is_handshake_packet(&packet(0xe0, 2, &[0x3f], 63)), "another version");
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            start in prop::sample::select(vec![vec![], vec![0xe0, 0, 0, 0, 1]]),
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = is_handshake_packet(&[start, rest].concat());
        }
    }
}
