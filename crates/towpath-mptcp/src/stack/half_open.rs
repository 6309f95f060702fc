//! Half-open connections: accepted, but not established yet. Counted by listener and by source.

use std::collections::{BTreeMap, HashMap};

use towpath_net::SourcePrefix;
use towpath_wire::ConnectionId;

use super::ListenerId;

/// Half-open connections by connection, listener and source.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    connections: BTreeMap<ConnectionId, (ListenerId, SourcePrefix)>,
    by_listener: BTreeMap<ListenerId, usize>,
    /// Only used for lookups, never iterated.
    by_source: HashMap<SourcePrefix, usize>,
}

impl HalfOpen {
    pub(super) fn insert(&mut self, id: ConnectionId, listener: ListenerId, source: SourcePrefix) {
        self.remove(id);
        self.connections.insert(id, (listener, source));
        *self.by_listener.entry(listener).or_default() += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    /// Removes a connection; returns its listener if it was half open.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<ListenerId> {
        let (listener, source) = self.connections.remove(&id)?;
        if let Some(count) = self.by_listener.get_mut(&listener) {
            *count -= 1;
        }
        let remaining = self.by_source.get_mut(&source).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if remaining == 0 {
            self.by_source.remove(&source);
        }
        Some(listener)
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    pub(super) fn listener_count(&self, listener: ListenerId) -> usize {
        self.by_listener.get(&listener).copied().unwrap_or(0)
    }

    pub(super) fn source_count(&self, source: SourcePrefix) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn source(host: u8) -> SourcePrefix {
        SourcePrefix::of(IpAddr::from([host; 4]))
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_list(
            operations in prop::collection::vec((any::<bool>(), 0_u32..20, 0_u32..3, 0_u8..4), 1..200),
        ) {
            let mut half_open = HalfOpen::default();
            let mut model: BTreeMap<u32, (u32, u8)> = BTreeMap::new();
            for (insert, id, listener, host) in operations {
                if insert {
                    half_open.insert(ConnectionId(id), ListenerId(listener), source(host));
                    model.insert(id, (listener, host));
                } else {
                    let removed = half_open.remove(ConnectionId(id));
                    prop_assert_eq!(removed, model.remove(&id).map(|(listener, _)| ListenerId(listener)));
                }
                prop_assert_eq!((half_open.len(), half_open.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(half_open.contains(ConnectionId(id)), model.contains_key(&id));
                let count = |matches: &dyn Fn(&(u32, u8)) -> bool| model.values().filter(|entry| matches(entry)).count();
                prop_assert_eq!(half_open.listener_count(ListenerId(listener)), count(&|entry| entry.0 == listener));
                prop_assert_eq!(half_open.source_count(source(host)), count(&|entry| entry.1 == host));
            }
            prop_assert!(half_open.by_source.len() <= half_open.connections.len(), "nothing is kept of who is gone");
        }
    }
}
