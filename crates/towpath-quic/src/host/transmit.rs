//! Datagrams that a host sends: replies of its endpoints first, then connections in turn.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use bytes::Bytes;
use towpath_net::Instant;

use super::{Datagram, OutgoingDatagrams, QuicStack};
use crate::status::ConnectionId;

/// Limit of transmissions to unvalidated addresses that are dropped before a connection's turn ends.
const MAX_DROPPED_TRANSMITS: usize = 64;

impl QuicStack {
    /// Returns the next datagram to send; connections take turns.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Datagram> {
        let mut buffer = std::mem::take(&mut self.outgoing);
        let header = self.poll_transmit_into(now, &mut buffer);
        let datagram = header.map(|header| Datagram {
            local: header.local,
            remote: header.remote,
            ecn: header.ecn,
            payload: Bytes::copy_from_slice(&buffer),
            segment_bytes: header.segment_bytes,
        });
        self.outgoing = buffer;
        datagram
    }

    /// Returns the next datagram as [`QuicStack::poll_transmit`] does, but writes its bytes to
    /// `payload`, whose old content is lost.
    pub fn poll_transmit_into(
        &mut self,
        now: Instant,
        payload: &mut Vec<u8>,
    ) -> Option<OutgoingDatagrams> {
        payload.clear();
        if let Some(reply) = self.replies.pop_front() {
            payload.extend_from_slice(&reply.payload);
            let Datagram { local, remote, ecn, payload: _, segment_bytes } = reply;
            return Some(OutgoingDatagrams { local, remote, ecn, segment_bytes });
        }
        loop {
            let next_in_turn = self.ready.range(self.next_sender..).next();
            let id = next_in_turn.or_else(|| self.ready.first()).copied()?;
            if let Some(header) = self.transmit(now, id, payload) {
                self.next_sender = ConnectionId(id.0.saturating_add(1));
                return Some(header);
            }
            self.ready.remove(&id);
        }
    }

    fn transmit(
        &mut self,
        now: Instant,
        id: ConnectionId,
        payload: &mut Vec<u8>,
    ) -> Option<OutgoingDatagrams> {
        let connection = self.connections.get_mut(&id)?;
        let max_segments =
            NonZeroUsize::new(connection.config.segments).unwrap_or(NonZeroUsize::MIN);
        let std_now = connection.clock.to_std(now);
        let mut transmit = None;
        for _ in 0..MAX_DROPPED_TRANSMITS {
            payload.clear();
            transmit = connection.inner.poll_transmit(std_now, max_segments, payload);
            let Some(next) = &mut transmit else { break };
            if !connection.has_validated(next.destination) {
                let (remote, bytes) = (next.destination, next.size);
                next.size = self.amplification.take(remote, bytes, next.segment_size);
            }
            if next.size > 0 {
                break;
            }
            transmit = None;
        }
        let (source, is_opener) = (connection.source, connection.opener);
        let port = connection.local.port();
        self.drive(now, id);
        let transmit = transmit?;
        payload.truncate(transmit.size);
        // A datagram that was in flight makes the library use its destination again, although this
        // host no longer has that address.
        let has_address = |ip: &IpAddr| self.addresses.iter().any(|a| a.address == *ip);
        let library_source = transmit.src_ip.filter(|ip| !is_opener || has_address(ip));
        Some(OutgoingDatagrams {
            local: SocketAddr::new(library_source.unwrap_or(source), port),
            remote: transmit.destination,
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
            segment_bytes: transmit.segment_size,
        })
    }
}
