//! Address identifiers: contradictions between announcements and joins (RFC 8684 §3.4).

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_wire::AddAddr;

use super::connection::{NoteContext, NoteKind, TracedConnection};
use super::tracker::{LocatedSegment, Tracker};

/// Maximum number of identifiers that are remembered for each end.
const MAX_IDS: usize = 64;

impl Tracker {
    /// Records an announced address, and notes a second one under the same identifier. An echo
    /// announces nothing.
    pub(super) fn on_announced_address(&mut self, located: &LocatedSegment<'_>, add: &AddAddr) {
        if add.hmac.is_none() && !self.subflows.get(located.subflow).is_some_and(|s| s.is_v0) {
            return;
        }
        let Some((_, connection)) = self.subflow_and_connection(located.subflow) else { return };
        let Some(ids) = connection.addresses.get_mut(located.side) else { return };
        if ids.announced.len() >= MAX_IDS {
            return;
        }
        let previous = ids.announced.insert(add.address_id, add.address);
        self.note_conflict(located, add.address_id, previous, add.address);
    }

    /// Records the source of a join, and notes a second one under the same identifier.
    pub(super) fn on_joined_address(&mut self, located: &LocatedSegment<'_>, address_id: u8) {
        let address = located.segment.source.ip();
        let side = self.side(located.subflow, located.segment.source);
        let Some((_, connection)) = self.subflow_and_connection(located.subflow) else { return };
        let Some(ids) = side.and_then(|side| connection.addresses.get_mut(side)) else { return };
        if ids.joined.len() >= MAX_IDS {
            return;
        }
        let previous = ids.joined.insert(address_id, address);
        self.note_conflict(located, address_id, previous, address);
    }

    /// Forgets removed identifiers, which may then have another address.
    pub(super) fn on_removed_addresses(&mut self, located: &LocatedSegment<'_>, ids: &[u8]) {
        let Some((_, connection)) = self.subflow_and_connection(located.subflow) else { return };
        let Some(addresses) = connection.addresses.get_mut(located.side) else { return };
        addresses.announced.retain(|id, _| !ids.contains(id));
        addresses.joined.retain(|id, _| !ids.contains(id));
    }

    fn note_conflict(
        &mut self,
        located: &LocatedSegment<'_>,
        id: u8,
        previous: Option<IpAddr>,
        address: IpAddr,
    ) {
        let Some(previous) = previous.filter(|previous| *previous != address) else { return };
        let text = format!("identifier {id} has two addresses: {previous} and {address}");
        self.add_note(located, NoteKind::PathManager, text);
    }

    /// Notes announced private addresses whose SYNs got no answer.
    pub(super) fn note_unreachable_announcements(&mut self) {
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get(index) else { continue };
            let notes = self.unreachable_announcements(connection);
            if let Some(connection) = self.connections.get_mut(index) {
                for (note, text) in notes {
                    connection.add_note(note, text);
                }
            }
        }
    }

    fn unreachable_announcements(
        &self,
        connection: &TracedConnection,
    ) -> Vec<(NoteContext, String)> {
        let announced = || {
            let by_side = connection.addresses.iter().enumerate();
            let all =
                by_side.flat_map(|(side, ids)| ids.announced.iter().map(move |id| (side, id)));
            all.filter(|(_, (_, address))| is_private(**address))
        };
        let mut attempts: BTreeMap<IpAddr, Option<ConnectAttempts>> =
            announced().map(|(_, (_, address))| (*address, None)).collect();
        if attempts.is_empty() {
            return Vec::new();
        }
        for subflow in self.subflows_of(connection) {
            let remote = subflow.ends.get(1 - subflow.opened_by.min(1));
            let Some(entry) = remote.and_then(|remote| attempts.get_mut(&remote.ip())) else {
                continue;
            };
            let first = (subflow.first_ns, subflow.number);
            let to_address =
                entry.get_or_insert(ConnectAttempts { first, syns: 0, is_answered: false });
            to_address.syns = to_address.syns.saturating_add(subflow.syns);
            to_address.is_answered |= subflow.answered_ns.is_some() || !subflow.saw_syn;
        }
        let unanswered = announced().filter_map(|(side, (id, address))| {
            let attempts = attempts.get(address)?.as_ref().filter(|to| !to.is_answered)?;
            let (now_ns, subflow) = attempts.first;
            let note = NoteContext { now_ns, subflow, side, kind: NoteKind::PathManager };
            let syns = attempts.syns;
            Some((note, format!(
                "ADD_ADDR {id} announces the private address {address}: no answer to {syns} SYNs"
            )))
        });
        unanswered.collect()
    }
}

/// Subflows of a connection to one address.
#[derive(Debug)]
struct ConnectAttempts {
    /// Time and number of the first subflow.
    first: (u64, u16),
    syns: u32,
    is_answered: bool,
}

/// Returns true for addresses of private networks (RFC 1918, RFC 4193) and links.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
