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

impl Datagram {
    /// Returns each datagram of the payload.
    pub fn split(&self) -> impl Iterator<Item = Bytes> + '_ {
        let size = self.segment_bytes.unwrap_or(usize::MAX).max(1);
        let mut rest = self.payload.clone();
        std::iter::from_fn(move || (!rest.is_empty()).then(|| rest.split_to(size.min(rest.len()))))
    }
}
