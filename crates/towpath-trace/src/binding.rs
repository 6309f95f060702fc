//! Connection of a subflow whose handshake was not captured (RFC 8684 §3.3).

use std::net::IpAddr;

use towpath_wire::{DataAck, Dss};

use super::connection::TracedConnection;
use super::tracker::{LocatedSegment, Tracker};

/// Number of recent connections that a subflow without handshake may belong to.
const RECENT_CONNECTIONS: usize = 256;
/// Maximum distance of data numbers that belong to one connection, for 64 and for 32 bits.
const MAX_DSN_DISTANCE: u64 = 1 << 28;
const MAX_SHORT_DSN_DISTANCE: u64 = 1 << 22;

impl Tracker {
    /// Assigns the subflow to a connection if enough is known; returns its index.
    pub(super) fn bind(&mut self, located: &LocatedSegment<'_>) -> Option<usize> {
        let subflow = self.subflows.get(located.subflow)?;
        if let Some(connection) = subflow.connection {
            return Some(connection as usize);
        }
        match &located.options.dss {
            Some(dss) => self.bind_by_numbers(located, dss),
            None if located.segment.payload_bytes > 0 && subflow.token.is_none() => {
                let connection = self.connect(located.subflow, located.now_ns);
                self.fall_back(connection, located.subflow, None, located.now_ns);
                Some(connection)
            }
            None => None,
        }
    }

    /// Assigns a subflow whose handshake was not captured. Data numbers that continue another's
    /// belong to the same connection.
    fn bind_by_numbers(&mut self, located: &LocatedSegment<'_>, dss: &Dss) -> Option<usize> {
        let side = located.side;
        let addresses = [located.segment.source.ip(), located.segment.destination.ip()];
        let is_near = |index: usize, connection: &TracedConnection, is_swapped: bool| {
            let own_side = if is_swapped { 1 - side } else { side };
            let [sent_data, acked_data] =
                [own_side, 1 - own_side].map(|side_index| connection.data.get(side_index));
            let sent_distance = dss.mapping.and_then(|mapping| sent_data?.distance(mapping.dsn));
            let acked_distance = dss.data_ack.and_then(|ack| acked_data?.distance(ack));
            let known = || [sent_distance, acked_distance].into_iter().flatten();
            // 32 bits can agree by chance, so the connection must also have one of the addresses.
            let has_long = known().any(|distance| distance.is_64_bit);
            let all_near = known().all(|distance| {
                let is_long = distance.is_64_bit;
                let max = if is_long { MAX_DSN_DISTANCE } else { MAX_SHORT_DSN_DISTANCE };
                distance.bytes < max || (has_long && !is_long)
            });
            known().next().is_some() && all_near && (has_long || self.has_address(index, addresses))
        };
        let recent = self.connections.len().saturating_sub(RECENT_CONNECTIONS);
        let candidates = self.connections.iter().enumerate().skip(recent).rev();
        let matching =
            candidates.filter(|(_, c)| c.is_multipath()).find_map(|(index, connection)| {
                [false, true]
                    .into_iter()
                    .find(|is_swapped| is_near(index, connection, *is_swapped))
                    .map(|is_swapped| (index, is_swapped))
            });
        let token = self.subflows.get(located.subflow)?.token;
        // A short DATA_ACK alone decides nothing: data will follow.
        let is_vague = dss.mapping.is_none() && matches!(dss.data_ack, Some(DataAck::Short(_)));
        if matching.is_none() && is_vague && located.segment.payload_bytes == 0 {
            return None;
        }
        let (connection, end) = if let Some((connection, is_swapped)) = matching {
            self.attach(located.subflow, connection, is_swapped);
            let opener = self.subflows.get(located.subflow)?.opened_by;
            (connection, 1 - opener)
        } else {
            let connection = self.connect(located.subflow, located.now_ns);
            let state = self.connections.get_mut(connection)?;
            (state.late, state.multipath) = (true, true);
            (connection, 1)
        };
        if let Some(token) = token {
            self.tokens.entry(token).or_insert((connection as u32, end));
        }
        Some(connection)
    }

    /// Returns true if a subflow of the connection has one of these addresses.
    fn has_address(&self, connection: usize, addresses: [IpAddr; 2]) -> bool {
        let count_of = |address| self.address_counts.get(&(connection as u32, address));
        addresses.into_iter().any(|address| count_of(address).is_some_and(|count| *count > 0))
    }
}
