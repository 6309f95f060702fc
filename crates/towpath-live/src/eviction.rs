//! Choice of the source that loses a connection when a server has too many of them.

use std::collections::BTreeMap;

use rand_core::Rng;
use rand_pcg::Pcg32;
use towpath_net::SourcePrefix;

/// Chooses the source with the most connections. Ties are broken at random, because any fixed order
/// would always exclude the same clients.
#[derive(Debug)]
pub(super) struct EvictionPolicy(Pcg32);

impl EvictionPolicy {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg32::new(seed, seed))
    }

    /// Creates a policy with a seed that clients cannot predict.
    pub(super) fn unpredictable() -> Self {
        Self::new(super::random().map_or(0, u64::from_le_bytes))
    }

    /// Returns the key of the oldest connection of the busiest source; `None` without a connection.
    /// `connections` are in order of age.
    pub(super) fn choose<K>(
        &mut self,
        connections: impl Iterator<Item = (K, SourcePrefix)> + Clone,
    ) -> Option<K> {
        let mut counts: BTreeMap<SourcePrefix, u32> = BTreeMap::new();
        connections.clone().for_each(|(_, source)| *counts.entry(source).or_default() += 1);
        let most = counts.values().copied().max()?;
        let mut tied = counts.iter().filter(|(_, count)| **count == most);
        let index = self.0.next_u32() as usize % tied.clone().count();
        let (busiest, _) = tied.nth(index)?;
        let (oldest, _) = { connections }.find(|(_, source)| source == busiest)?;
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use super::*;

    fn sources(last: &[u8]) -> Vec<SourcePrefix> {
        last.iter().map(|last| SourcePrefix::of(IpAddr::from([10, 0, 0, *last]))).collect()
    }

    #[test]
    fn the_busiest_source_loses_its_oldest_connection() {
        let mut policy = EvictionPolicy::new(1);
        let connections = sources(&[1, 2, 2, 3]);
        assert_eq!(policy.choose(connections.into_iter().enumerate()), Some(1));
        assert_eq!(policy.choose(std::iter::empty::<(u8, SourcePrefix)>()), None);
    }

    #[test]
    fn ties_fall_on_every_source_and_differ_between_seeds() {
        let connections = sources(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let draws = |seed| -> Vec<_> {
            let mut policy = EvictionPolicy::new(seed);
            (0..100).map(|_| policy.choose(connections.iter().copied().enumerate())).collect()
        };
        assert_eq!(draws(1).into_iter().collect::<BTreeSet<_>>().len(), 8);
        assert_ne!(draws(1), draws(2));
    }

    /// Regression: connections were counted by address, so that a crowd in one IPv6 /64 evicted
    /// clients of higher addresses.
    #[test]
    fn a_crowd_of_one_network_evicts_only_itself() {
        let mut policy = EvictionPolicy::new(1);
        let honest = SourcePrefix::of("2001:db8:0:8::1".parse().unwrap());
        let mut connections = vec![(0, honest)];
        for number in 1..1_000_u16 {
            let address = IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, number]);
            connections.push((number, SourcePrefix::of(address)));
            if connections.len() > 8 {
                let evicted = policy.choose(connections.iter().copied());
                assert_eq!(evicted, Some(number - 7));
                connections.retain(|(number, _)| Some(*number) != evicted);
            }
        }
        assert_eq!(connections.first(), Some(&(0, honest)));
    }
}
