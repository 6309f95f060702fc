//! Datagrams that share a port with QUIC.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use towpath_net::Instant;
use towpath_quic::{IncomingDatagrams, OutgoingDatagrams};

/// The answer to a datagram of somebody, if it gets one.
pub(super) type NonQuicReply = Box<dyn Fn(&[u8], (SocketAddr, SocketAddr)) -> Option<Bytes> + Send>;

/// The bit that is set in the first byte of all packets of QUIC (RFC 9000 §17.2, §17.3).
const FIXED_BIT: u8 = 0x40;

/// Whether it is no packet of QUIC.
pub(super) fn is_non_quic(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first & FIXED_BIT == 0)
}

/// Datagrams that came in at once, of which the first is not QUIC's.
pub(super) fn handle_non_quic(
    now: Instant,
    host: &mut towpath_quic::QuicStack,
    (arrival, mut payload): (IncomingDatagrams, BytesMut),
    answer: &NonQuicReply,
    answers: &mut Vec<(OutgoingDatagrams, Bytes)>,
) {
    while !payload.is_empty() {
        let length = arrival.segment_bytes.clamp(1, payload.len());
        let one = payload.split_to(length);
        if !is_non_quic(&one) {
            host.receive(now, arrival, one);
        } else if let Some(answer) = answer(&one, (arrival.remote, arrival.local)) {
            let IncomingDatagrams { local, remote, .. } = arrival;
            let departure = OutgoingDatagrams { local, remote, ecn: 0, segment_bytes: None };
            answers.push((departure, answer));
        }
    }
}
