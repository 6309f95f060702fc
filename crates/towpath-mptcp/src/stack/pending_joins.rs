//! Half-open subflows: peers have begun to open them (RFC 8684 §3.2) and are not authenticated yet.
//!
//! The third packet has neither the token nor the peer's nonce, so state must be kept. As in Linux
//! (`mptcp_join_store_state`), it is an entry in a table of fixed size. The connection has no
//! subflow until the peer's HMAC is verified. All entries of one source lie in one bucket. A source
//! can therefore displace only its own entries, and those of the few sources in its bucket that
//! exceed an equal share.

use std::time::Duration;

use arrayvec::ArrayVec;
use towpath_net::Instant;

use super::ConnectionId;
use super::demultiplexer::FourTuple;
use super::half_open::SourcePrefix;
use super::syn_options::SynOptions;

/// Buckets, and entries in one: 4,096 subflows in less than a mebibyte.
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
        let row = self.buckets.get(bucket(hash))?;
        row.iter().find(|known| known.tuple == tuple && !known.is_expired(now)).copied()
    }

    /// Adds an entry and replaces an earlier one between the same addresses. In a full bucket it
    /// replaces the oldest entry of the source that has most.
    pub(super) fn insert(&mut self, hash: u64, report: PendingJoin, now: Instant) {
        if self.buckets.is_empty() {
            self.buckets = vec![JoinBucket::new(); BUCKETS];
        }
        let Some(row) = self.buckets.get_mut(bucket(hash)) else { return };
        row.retain(|known| known.tuple != report.tuple && !known.is_expired(now));
        if row.is_full() {
            let share = |of: &PendingJoin| {
                let source = of.source();
                let others = row.iter().filter(|known| known.source() == source).count();
                others + usize::from(source == report.source())
            };
            // In each bucket, the oldest come first.
            let most = row.iter().map(share).max();
            if let Some(index) = row.iter().position(|known| Some(share(known)) == most) {
                row.remove(index);
            }
        }
        let _ = row.try_push(report);
    }

    pub(super) fn remove(&mut self, hash: u64, tuple: FourTuple) {
        if let Some(row) = self.buckets.get_mut(bucket(hash)) {
            row.retain(|known| known.tuple != tuple);
        }
    }

    /// Returns the number of entries that have not expired.
    pub(super) fn len(&self, now: Instant) -> usize {
        self.buckets.iter().flatten().filter(|known| !known.is_expired(now)).count()
    }
}

fn bucket(hash: u64) -> usize {
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
            syn_ack_sent_at: at(secs),
            syn_repeated: false,
        }
    }

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn has(joins: &PendingJoinTable, host: u8, port: u16, secs: u64) -> bool {
        joins.get(0, pending_join(host, port, 0).tuple, at(secs)).is_some()
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
        joins.insert(0, pending_join(2, 1, 0), at(0));
        for port in 1..1_000 {
            joins.insert(0, pending_join(3, port, 1), at(1));
        }
        assert!(has(&joins, 2, 1, 1), "the other one in its row");
        assert!(has(&joins, 3, 999, 1) && !has(&joins, 3, 1, 1), "its latest, and not its first");
        assert_eq!(joins.len(at(1)), BUCKET_SLOTS);
        // The other source also displaces an entry of the source with most.
        joins.insert(0, pending_join(2, 2, 1), at(1));
        assert!(has(&joins, 2, 1, 1) && has(&joins, 2, 2, 1));
    }

    #[test]
    fn of_many_sources_the_oldest_goes_first() {
        let mut joins = PendingJoinTable::default();
        for host in 1..=9 {
            joins.insert(0, pending_join(host, 1, 0), at(0));
        }
        assert!(!has(&joins, 1, 1, 0));
        assert!((2..=9).all(|host| has(&joins, host, 1, 0)));
    }

    #[test]
    fn a_repeated_join_takes_no_second_entry_and_all_entries_expire() {
        let mut joins = PendingJoinTable::default();
        for _ in 0..20 {
            joins.insert(0, pending_join(2, 1, 0), at(0));
        }
        assert_eq!(joins.len(at(15)), 1);
        assert_eq!(joins.len(at(16)), 0);
        assert!(!has(&joins, 2, 1, 16));
        joins.insert(0, pending_join(2, 1, 0), at(0));
        joins.remove(0, pending_join(2, 1, 0).tuple);
        assert_eq!(joins.len(at(0)), 0);
    }
}
