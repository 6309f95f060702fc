//! Rate limit of SYNs to addresses that peers announced and that have not answered, over all
//! connections of the stack (RFC 8684 §5).
//!
//! Peers may announce the address of one victim on many connections. A SYN beyond the limit is lost,
//! and its subflow retransmits it. An address that answers has no limit.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use towpath_net::{Instant, SourcePrefix};

/// SYNs to one IPv4 address or IPv6 /64: some at once, then one in each interval.
const PREFIX_BURST: u32 = 8;
const PREFIX_INTERVAL: Duration = Duration::from_secs(8);
/// SYNs to all of them: some at once, then 64 per second.
const TOTAL_BURST: u32 = 256;
const TOTAL_INTERVAL: Duration = Duration::from_micros(15_625);
/// Number of prefixes at which unused ones are forgotten. In the 64 s in which a bucket fills, at
/// most 4,352 SYNs are sent, so fewer remain.
const MAX_PREFIXES: usize = 8_192;

/// Token buckets, each stored as the time at which it is full.
#[derive(Debug, Default)]
pub(super) struct JoinSynLimit {
    by_prefix: BTreeMap<SourcePrefix, Instant>,
    total_full_at: Instant,
}

impl JoinSynLimit {
    /// Returns true if a SYN may be sent now, which then counts.
    pub(super) fn consume(&mut self, now: Instant, destination: IpAddr) -> bool {
        let prefix = SourcePrefix::of(destination);
        if self.by_prefix.len() >= MAX_PREFIXES {
            self.by_prefix.retain(|_, full_at| *full_at > now);
        }
        let full_at = self.by_prefix.get(&prefix).copied().unwrap_or_default();
        let prefix_full_at = take_token(full_at, now, PREFIX_INTERVAL, PREFIX_BURST);
        let total_full_at = take_token(self.total_full_at, now, TOTAL_INTERVAL, TOTAL_BURST);
        let (Some(prefix_full_at), Some(total_full_at)) = (prefix_full_at, total_full_at) else {
            return false;
        };
        self.by_prefix.insert(prefix, prefix_full_at);
        self.total_full_at = total_full_at;
        true
    }

    /// Forgets the SYNs to an address that has answered.
    pub(super) fn on_answered(&mut self, remote: IpAddr) {
        self.by_prefix.remove(&SourcePrefix::of(remote));
    }
}

/// Returns the time at which the bucket is full again after one token is taken, or `None` if it is
/// empty.
fn take_token(full_at: Instant, now: Instant, interval: Duration, burst: u32) -> Option<Instant> {
    let full_at = full_at.max(now) + interval;
    (full_at.saturating_since(now) <= interval * burst).then_some(full_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_secs(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn sent(limit: &mut JoinSynLimit, secs: u64, addresses: &[u32], attempts: usize) -> usize {
        let addresses = addresses.iter().cycle().take(attempts);
        addresses
            .filter(|address| limit.consume(at_secs(secs), IpAddr::from(address.to_be_bytes())))
            .count()
    }

    #[test]
    fn one_address_gets_a_burst_and_then_one_in_eight_seconds() {
        let mut limit = JoinSynLimit::default();
        assert_eq!(sent(&mut limit, 0, &[1], 100), 8);
        assert_eq!(sent(&mut limit, 7, &[1], 100), 0);
        assert_eq!(sent(&mut limit, 8, &[1], 100), 1);
        assert_eq!(sent(&mut limit, 8, &[2], 100), 8, "another address");
        assert_eq!(sent(&mut limit, 1_000, &[1], 100), 8);
        limit.on_answered(IpAddr::from([0, 0, 0, 1]));
        assert_eq!(sent(&mut limit, 1_000, &[1], 100), 8);
    }

    #[test]
    fn all_addresses_together_get_64_per_second_and_bounded_memory() {
        let mut limit = JoinSynLimit::default();
        let addresses: Vec<u32> = (0..400).collect();
        assert_eq!(sent(&mut limit, 0, &addresses, 400), 256);
        assert_eq!(sent(&mut limit, 1, &addresses, 400), 64);
        for secs in 2..400 {
            let first = secs as u32 * 1_000;
            let addresses: Vec<u32> = (first..first + 100).collect();
            sent(&mut limit, secs, &addresses, 100);
            assert!(limit.by_prefix.len() <= MAX_PREFIXES);
        }
    }
}
