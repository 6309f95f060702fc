//! Lookup of the connection that a packet belongs to.

use std::collections::HashMap;
use std::net::SocketAddr;

use towpath_wire::ConnectionId;

/// Local and remote address of a subflow, each with its port.
pub(super) type FourTuple = (SocketAddr, SocketAddr);

/// Number of cached lookups: a power of two, so that a slot is a part of the hash.
const CACHE_SLOTS: usize = 16;

/// Connection of every subflow, by its four-tuple. Only used for lookups, never iterated.
///
/// The map's hash is keyed, because peers choose the input, and therefore slow. Recent results are
/// cached.
#[derive(Debug)]
pub(super) struct Demultiplexer {
    connections: HashMap<FourTuple, ConnectionId>,
    cache: [Option<(FourTuple, ConnectionId)>; CACHE_SLOTS],
}

impl Demultiplexer {
    pub(super) fn new() -> Self {
        Self { connections: HashMap::new(), cache: [None; CACHE_SLOTS] }
    }

    pub(super) fn get(&mut self, tuple: &FourTuple) -> Option<ConnectionId> {
        let slot = self.cache.get_mut(cache_slot(tuple))?;
        if let Some((_, id)) = slot.as_ref().filter(|(cached_tuple, _)| cached_tuple == tuple) {
            return Some(*id);
        }
        let id = *self.connections.get(tuple)?;
        *slot = Some((*tuple, id));
        Some(id)
    }

    pub(super) fn contains(&self, tuple: &FourTuple) -> bool {
        self.connections.contains_key(tuple)
    }

    pub(super) fn insert(&mut self, tuple: FourTuple, id: ConnectionId) {
        self.evict(&tuple);
        self.connections.insert(tuple, id);
    }

    pub(super) fn remove(&mut self, tuple: &FourTuple) {
        self.evict(tuple);
        self.connections.remove(tuple);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn evict(&mut self, tuple: &FourTuple) {
        if let Some(slot) = self.cache.get_mut(cache_slot(tuple)) {
            *slot = None;
        }
    }
}

/// Returns the cache slot. Subflows of one host differ in one of their ports, usually by a little.
fn cache_slot((local, remote): &FourTuple) -> usize {
    usize::from(local.port().wrapping_add(remote.port())) % CACHE_SLOTS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tuple(port: u16) -> FourTuple {
        (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into())
    }

    proptest! {
        #[test]
        fn the_demultiplexer_agrees_with_a_map(steps in prop::collection::vec((0_u8..4, 0_u16..40, 0_u32..9), 1..200)) {
            let (mut demultiplexer, mut model) = (Demultiplexer::new(), HashMap::new());
            for (operation, port, id) in steps {
                let (tuple, id) = (tuple(port), ConnectionId(id));
                match operation {
                    0 => {
                        demultiplexer.insert(tuple, id);
                        model.insert(tuple, id);
                    }
                    1 => {
                        demultiplexer.remove(&tuple);
                        model.remove(&tuple);
                    }
                    _ => prop_assert_eq!(demultiplexer.get(&tuple), model.get(&tuple).copied()),
                }
                prop_assert_eq!(demultiplexer.contains(&tuple), model.contains_key(&tuple));
                prop_assert_eq!(demultiplexer.is_empty(), model.is_empty());
            }
        }
    }
}
