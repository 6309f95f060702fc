//! What passes between a host's sockets and the network.

use std::net::SocketAddr;

use bytes::Bytes;

/// What one call of the socket sends or receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The ECN field of the IP header (RFC 3168 §5): two bits.
    pub ecn: u8,
    /// UDP payload, of several datagrams if there is a segment size.
    pub payload: Bytes,
    /// Length of each datagram but the last, which may be shorter.
    pub segment_bytes: Option<usize>,
}

/// What came in at once between two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncomingDatagrams {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The ECN field of the IP header.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter.
    pub segment_bytes: usize,
}

/// What goes out at once between two addresses: as [`Datagram`], with the payload elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutgoingDatagrams {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The ECN field of the IP header.
    pub ecn: u8,
    /// Length of each datagram but the last, which may be shorter.
    pub segment_bytes: Option<usize>,
}

impl Datagram {
    /// The datagrams on the wire.
    pub fn split(&self) -> impl Iterator<Item = Bytes> + '_ {
        let size = self.segment_bytes.unwrap_or(usize::MAX).max(1);
        let mut rest = self.payload.clone();
        std::iter::from_fn(move || (!rest.is_empty()).then(|| rest.split_to(size.min(rest.len()))))
    }
}
