//! Subflows that peers have begun to open (RFC 8684 §3.2) and have not proven to be theirs.
//!
//! The third packet has neither the token nor the peer's random number, so that something must be kept.
//! As in Linux (`mptcp_join_store_state`), that is a place in a table of fixed size, and the connection
//! has no subflow before the peer's HMAC is right. One source's places lie together in one row, so that
//! it can only take them from itself, and from the few that share its row only what is theirs beyond an
//! equal share.

use std::time::Duration;

use arrayvec::ArrayVec;
use towpath_net::Instant;

use super::ConnectionId;
use super::demultiplexer::FourTuple;
use super::half_open::SourcePrefix;
use super::offer::SynOptions;

/// Rows, and places in one: 4,096 subflows in less than a mebibyte.
const BUCKETS: usize = 512;
const BUCKET_SLOTS: usize = 8;
/// As long as three repetitions of a SYN/ACK would take; here the peer repeats its SYN.
const PENDING_JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingJoin {
    pub(super) tuple: FourTuple,
    pub(super) connection: ConnectionId,
    pub(super) peer_isn: u32,
    pub(super) isn: u32,
    /// Ours and the peer's.
    pub(super) nonces: (u32, u32),
    /// Identifiers of our address and of the peer's.
    pub(super) address_ids: (u8, u8),
    pub(super) backup: bool,
    pub(super) offer: SynOptions,
    /// When the SYN was last answered.
    pub(super) answered_at: Instant,
    /// The SYN came more than once.
    pub(super) repeated: bool,
}

impl PendingJoin {
    fn source(&self) -> SourcePrefix {
        SourcePrefix::of(self.tuple.1.ip())
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_since(self.answered_at) > PENDING_JOIN_TIMEOUT
    }
}

type JoinBucket = ArrayVec<PendingJoin, BUCKET_SLOTS>;

/// All of them. Who shares a row with whom is decided by a keyed hash of the source, which the caller
/// makes: nobody else must know.
#[derive(Debug, Default)]
pub(super) struct PendingJoinTable {
    /// None before the first one comes.
    rows: Vec<JoinBucket>,
}

impl PendingJoinTable {
    /// The one between these addresses.
    pub(super) fn get(&self, hash: u64, tuple: FourTuple, now: Instant) -> Option<PendingJoin> {
        let row = self.rows.get(bucket(hash))?;
        row.iter().find(|known| known.tuple == tuple && !known.is_over(now)).copied()
    }

    /// Keeps it, in place of an earlier one between the same addresses; if there is no place, in that of
    /// the oldest one of the source that has most.
    pub(super) fn insert(&mut self, hash: u64, half: PendingJoin, now: Instant) {
        if self.rows.is_empty() {
            self.rows = vec![JoinBucket::new(); BUCKETS];
        }
        let Some(row) = self.rows.get_mut(bucket(hash)) else { return };
        row.retain(|known| known.tuple != half.tuple && !known.is_over(now));
        if row.is_full() {
            let share = |of: &PendingJoin| {
                let source = of.source();
                let others = row.iter().filter(|known| known.source() == source).count();
                others + usize::from(source == half.source())
            };
            // In each row, the oldest come first.
            let most = row.iter().map(share).max();
            if let Some(index) = row.iter().position(|known| Some(share(known)) == most) {
                row.remove(index);
            }
        }
        let _ = row.try_push(half);
    }

    pub(super) fn remove(&mut self, hash: u64, tuple: FourTuple) {
        if let Some(row) = self.rows.get_mut(bucket(hash)) {
            row.retain(|known| known.tuple != tuple);
        }
    }

    /// How many there are, of which none is over.
    pub(super) fn len(&self, now: Instant) -> usize {
        self.rows.iter().flatten().filter(|known| !known.is_over(now)).count()
    }
}

fn bucket(hash: u64) -> usize {
    (hash % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(host: u8, port: u16, secs: u64) -> PendingJoin {
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
            answered_at: at(secs),
            repeated: false,
        }
    }

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn has(joins: &PendingJoinTable, host: u8, port: u16, secs: u64) -> bool {
        joins.get(0, half(host, port, 0).tuple, at(secs)).is_some()
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
        joins.insert(0, half(2, 1, 0), at(0));
        for port in 1..1_000 {
            joins.insert(0, half(3, port, 1), at(1));
        }
        assert!(has(&joins, 2, 1, 1), "the other one in its row");
        assert!(has(&joins, 3, 999, 1) && !has(&joins, 3, 1, 1), "its latest, and not its first");
        assert_eq!(joins.len(at(1)), BUCKET_SLOTS);
        // The other one takes from who has most, too.
        joins.insert(0, half(2, 2, 1), at(1));
        assert!(has(&joins, 2, 1, 1) && has(&joins, 2, 2, 1));
    }

    #[test]
    fn of_many_sources_the_oldest_goes_first() {
        let mut joins = PendingJoinTable::default();
        for host in 1..=9 {
            joins.insert(0, half(host, 1, 0), at(0));
        }
        assert!(!has(&joins, 1, 1, 0));
        assert!((2..=9).all(|host| has(&joins, host, 1, 0)));
    }

    #[test]
    fn a_repeated_join_takes_no_second_entry_and_all_entries_expire() {
        let mut joins = PendingJoinTable::default();
        for _ in 0..20 {
            joins.insert(0, half(2, 1, 0), at(0));
        }
        assert_eq!(joins.len(at(15)), 1);
        assert_eq!(joins.len(at(16)), 0);
        assert!(!has(&joins, 2, 1, 16));
        joins.insert(0, half(2, 1, 0), at(0));
        joins.remove(0, half(2, 1, 0).tuple);
        assert_eq!(joins.len(at(0)), 0);
    }
}
