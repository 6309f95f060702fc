//! Half-open subflows: peers have begun to open them (RFC 8684 §3.2) and are not authenticated yet.
//!
//! The third packet has neither the token nor the peer's nonce, so state must be kept. As in Linux
//! (`mptcp_join_store_state`), it is an entry in a table of fixed size. The connection has no
//! subflow until the peer's HMAC is verified. All entries of one source lie in one bucket. A source
//! can therefore displace only its own entries, and those of the few sources in its bucket that
//! exceed an equal share.

use std::time::Duration;

use arrayvec::ArrayVec;
use towpath_net::{Instant, SourcePrefix};
use towpath_wire::ConnectionId;

use super::demultiplexer::FourTuple;
use super::syn_options::SynOptions;

/// Number of buckets, each with [`BUCKET_SLOTS`] entries: 4,096 subflows in less than a mebibyte.
const BUCKETS: usize = 512;
const BUCKET_SLOTS: usize = 8;
/// Lifetime of an entry, as long as three SYN/ACK retransmissions would take; here the peer
/// retransmits its SYN.
const PENDING_JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Subflow that is half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingJoin {
    pub(super) tuple: FourTuple,
    pub(super) connection: ConnectionId,
    pub(super) peer_isn: u32,
    pub(super) isn: u32,
    /// Nonces of both ends, ours first.
    pub(super) nonces: (u32, u32),
    /// Identifiers of our address and the peer's.
    pub(super) address_ids: (u8, u8),
    pub(super) backup: bool,
    pub(super) offer: SynOptions,
    /// Time of the last SYN/ACK.
    pub(super) syn_ack_sent_at: Instant,
    /// Set when the SYN came more than once.
    pub(super) syn_repeated: bool,
}

impl PendingJoin {
    fn source(&self) -> SourcePrefix {
        SourcePrefix::of(self.tuple.1.ip())
    }

    fn is_expired(&self, now: Instant) -> bool {
        now.saturating_since(self.syn_ack_sent_at) > PENDING_JOIN_TIMEOUT
    }
}

type JoinBucket = ArrayVec<PendingJoin, BUCKET_SLOTS>;

/// Table of all half-open subflows. The caller computes a keyed hash of the source, which selects
/// the bucket; other hosts must not know it.
#[derive(Debug, Default)]
pub(super) struct PendingJoinTable {
    /// Buckets; empty before the first join.
    buckets: Vec<JoinBucket>,
}

impl PendingJoinTable {
    /// Returns the entry between these addresses.
    pub(super) fn get(&self, hash: u64, tuple: FourTuple, now: Instant) -> Option<PendingJoin> {
        let bucket = self.buckets.get(bucket_index(hash))?;
        bucket.iter().find(|join| join.tuple == tuple && !join.is_expired(now)).copied()
    }

    /// Adds an entry and replaces an earlier one between the same addresses. In a full bucket it
    /// replaces the oldest entry of the source that has most.
    pub(super) fn insert(&mut self, hash: u64, join: PendingJoin, now: Instant) {
        if self.buckets.is_empty() {
            self.buckets = vec![JoinBucket::new(); BUCKETS];
        }
        let Some(bucket) = self.buckets.get_mut(bucket_index(hash)) else { return };
        bucket.retain(|existing| existing.tuple != join.tuple && !existing.is_expired(now));
        if bucket.is_full() {
            let share = |entry: &PendingJoin| {
                let source = entry.source();
                let entries = bucket.iter().filter(|existing| existing.source() == source).count();
                entries + usize::from(source == join.source())
            };
            // Entries are in the order of insertion, so the oldest of that source is evicted.
            let max_share = bucket.iter().map(share).max();
            if let Some(index) = bucket.iter().position(|entry| Some(share(entry)) == max_share) {
                bucket.remove(index);
            }
        }
        let _ = bucket.try_push(join);
    }

    pub(super) fn remove(&mut self, hash: u64, tuple: FourTuple) {
        if let Some(bucket) = self.buckets.get_mut(bucket_index(hash)) {
            bucket.retain(|join| join.tuple != tuple);
        }
    }

    /// Returns the number of entries that have not expired.
    pub(super) fn len(&self, now: Instant) -> usize {
        self.buckets.iter().flatten().filter(|join| !join.is_expired(now)).count()
    }
}

fn bucket_index(hash: u64) -> usize {
    (hash % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending_join(host: u8, port: u16, secs: u64) -> PendingJoin {
        PendingJoin {
            tuple: (([10, 0, 0, 1], 80).into(), ([10, 0, 0, host], port).into()),
            connection: ConnectionId(1),
            peer_isn: 0,
            isn: 0,
            nonces: (0, 0),
            address_ids: (0, 0),
            backup: false,
            offer: SynOptions {
                mss: None,
                window_scale: None,
                sack: false,
                ecn: false,
                timestamp: None,
                window: 0,
            },
            syn_ack_sent_at: at_secs(secs),
            syn_repeated: false,
        }
    }

    fn at_secs(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn contains(joins: &PendingJoinTable, host: u8, port: u16, secs: u64) -> bool {
        joins.get(0, pending_join(host, port, 0).tuple, at_secs(secs)).is_some()
    }

    #[test]
    fn the_table_takes_less_than_a_mebibyte() {
        assert!(
            BUCKETS * size_of::<JoinBucket>() < 1 << 20,
            "{} bytes",
            BUCKETS * size_of::<JoinBucket>()
        );
        assert_eq!(BUCKETS * BUCKET_SLOTS, 4_096);
    }

    #[test]
    fn one_source_evicts_only_its_own_entries() {
        let mut joins = PendingJoinTable::default();
        joins.insert(0, pending_join(2, 1, 0), at_secs(0));
        for port in 1..1_000 {
            joins.insert(0, pending_join(3, port, 1), at_secs(1));
        }
        assert!(contains(&joins, 2, 1, 1), "the other one in its row");
        assert!(
            contains(&joins, 3, 999, 1) && !contains(&joins, 3, 1, 1),
            "its latest, and not its first"
        );
        assert_eq!(joins.len(at_secs(1)), BUCKET_SLOTS);
        // The other source also displaces an entry of the source with most.
        joins.insert(0, pending_join(2, 2, 1), at_secs(1));
        assert!(contains(&joins, 2, 1, 1) && contains(&joins, 2, 2, 1));
    }

    #[test]
    fn of_many_sources_the_oldest_goes_first() {
        let mut joins = PendingJoinTable::default();
        for host in 1..=9 {
            joins.insert(0, pending_join(host, 1, 0), at_secs(0));
        }
        assert!(!contains(&joins, 1, 1, 0));
        assert!((2..=9).all(|host| contains(&joins, host, 1, 0)));
    }

    #[test]
    fn a_repeated_join_takes_no_second_entry_and_all_entries_expire() {
        let mut joins = PendingJoinTable::default();
        for _ in 0..20 {
            joins.insert(0, pending_join(2, 1, 0), at_secs(0));
        }
        assert_eq!(joins.len(at_secs(15)), 1);
        assert_eq!(joins.len(at_secs(16)), 0);
        assert!(!contains(&joins, 2, 1, 16));
        joins.insert(0, pending_join(2, 1, 0), at_secs(0));
        joins.remove(0, pending_join(2, 1, 0).tuple);
        assert_eq!(joins.len(at_secs(0)), 0);
    }
}
