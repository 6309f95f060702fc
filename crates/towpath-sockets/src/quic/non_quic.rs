//! Datagrams other than QUIC on a QUIC port.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use towpath_net::Instant;
use towpath_quic::{IncomingDatagrams, OutgoingDatagrams};

/// Reply function: takes a datagram, and the peer's and local address; returns the reply, if any.
pub(super) type NonQuicReply = Box<dyn Fn(&[u8], (SocketAddr, SocketAddr)) -> Option<Bytes> + Send>;

/// Bit that is set in the first byte of all QUIC packets (RFC 9000 §17.2, §17.3).
const FIXED_BIT: u8 = 0x40;

/// Returns true if the datagram is not a QUIC packet.
pub(super) fn is_non_quic(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first & FIXED_BIT == 0)
}

/// Splits a batch of datagrams whose first one is not QUIC; passes QUIC packets to `host` and
/// appends replies to `replies`.
pub(super) fn handle_non_quic(
    now: Instant,
    host: &mut towpath_quic::QuicStack,
    (incoming, mut payload): (IncomingDatagrams, BytesMut),
    reply: &NonQuicReply,
    replies: &mut Vec<(OutgoingDatagrams, Bytes)>,
) {
    while !payload.is_empty() {
        let length = incoming.segment_bytes.clamp(1, payload.len());
        let datagram = payload.split_to(length);
        if !is_non_quic(&datagram) {
            host.receive(now, incoming, datagram);
        } else if let Some(reply) = reply(&datagram, (incoming.remote, incoming.local)) {
            let IncomingDatagrams { local, remote, .. } = incoming;
            let outgoing = OutgoingDatagrams { local, remote, ecn: 0, segment_bytes: None };
            replies.push((outgoing, reply));
        }
    }
}
