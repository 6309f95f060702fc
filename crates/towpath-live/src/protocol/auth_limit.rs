//! Rate limit for failed authentication: exponential backoff for each source.
//!
//! Requests during the backoff are refused at once, not delayed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use towpath_net::{Instant, SourcePrefix};

/// Number of attempts in a row without a wait, as users may name the wrong `--secret-file`. The
/// failure of the last one starts the backoff.
const FREE_ATTEMPTS: u32 = 3;
/// Backoff after failure number `FREE_ATTEMPTS`; each further failure doubles it.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Upper limit of the backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Time without failures after which a source starts afresh.
const RESET_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of tracked sources; the one with the oldest failure is evicted first.
const MAX_SOURCES: usize = 4_096;
/// Minimum interval between two log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Failures of one source.
#[derive(Debug, Clone, Copy)]
struct FailedAttempts {
    count: u32,
    last_failure: Instant,
}

impl FailedAttempts {
    fn backoff_end(self) -> Instant {
        let backoff = self
            .count
            .checked_sub(FREE_ATTEMPTS)
            .map(|doublings| INITIAL_BACKOFF * (1 << doublings.min(16)));
        self.last_failure + backoff.unwrap_or_default().min(MAX_BACKOFF)
    }
}

/// Rate limiter for authentication, with all sources that have failed.
#[derive(Debug, Default)]
pub struct AuthRateLimiter {
    sources: BTreeMap<SourcePrefix, FailedAttempts>,
    /// Time of the last log line.
    last_logged_at: Option<Instant>,
    /// Failures that were not logged since `last_logged_at`.
    unlogged: u64,
}

impl AuthRateLimiter {
    /// Checks that a source may try now; the error is the remaining backoff.
    pub fn check(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let remaining = self
            .sources
            .get(&SourcePrefix::of(address))
            .map(|failures| failures.backoff_end().saturating_since(now));
        remaining.filter(|remaining| !remaining.is_zero()).map_or(Ok(()), Err)
    }

    /// Records a failed attempt. Returns the number of unlogged ones if a log line is due.
    pub fn record_failure(&mut self, address: IpAddr, now: Instant) -> Option<u64> {
        self.sources
            .retain(|_, failures| now.saturating_since(failures.last_failure) < RESET_AFTER);
        let source = SourcePrefix::of(address);
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&source) {
            let oldest = self.sources.iter().min_by_key(|(_, failures)| failures.last_failure);
            let oldest = oldest.map(|(source, _)| *source);
            oldest.and_then(|oldest| self.sources.remove(&oldest));
        }
        let failures =
            self.sources.entry(source).or_insert(FailedAttempts { count: 0, last_failure: now });
        *failures = FailedAttempts { count: failures.count.saturating_add(1), last_failure: now };
        self.record_rejected(now)
    }

    /// Records a success and forgets the failures of the source.
    pub fn record_success(&mut self, address: IpAddr) {
        self.sources.remove(&SourcePrefix::of(address));
    }

    /// Records a failed or refused attempt. Returns the number of unlogged ones if a log line is
    /// due.
    pub fn record_rejected(&mut self, now: Instant) -> Option<u64> {
        if self
            .last_logged_at
            .is_some_and(|logged_at| now.saturating_since(logged_at) < LOG_INTERVAL)
        {
            self.unlogged = self.unlogged.saturating_add(1);
            return None;
        }
        self.last_logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn guessing_clients_are_slowed_down_and_others_are_not() {
        let mut limiter = AuthRateLimiter::default();
        let (guesser, other): (IpAddr, IpAddr) =
            ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let (mut attempts, mut logged) = (0, 0);
        // A thousand attempts a second for ten minutes.
        for millis in 0..600_000 {
            assert_eq!(limiter.check(other, at_ms(millis)), Ok(()));
            if limiter.check(guesser, at_ms(millis)).is_ok() {
                attempts += 1;
                logged += u32::from(limiter.record_failure(guesser, at_ms(millis)).is_some());
            } else {
                logged += u32::from(limiter.record_rejected(at_ms(millis)).is_some());
            }
        }
        assert!(attempts < 25, "{attempts} guesses were heard");
        assert!((100..=121).contains(&logged), "{logged} lines");
        assert_eq!(limiter.sources.len(), 1);
        assert!(limiter.check(guesser, at_ms(600_000)).is_err());
        assert_eq!(limiter.check(guesser, at_ms(700_000)), Ok(()));
    }

    #[test]
    fn a_wrong_secret_file_costs_nothing_and_the_right_resets_it() {
        let mut limiter = AuthRateLimiter::default();
        let address = "2001:db8::1".parse().unwrap();
        assert_eq!(limiter.record_failure(address, at_ms(0)), Some(0));
        assert_eq!(limiter.record_failure(address, at_ms(1)), None);
        assert_eq!(limiter.check(address, at_ms(2)), Ok(()));
        limiter.record_success(address);
        assert_eq!(limiter.record_failure(address, at_ms(3)), None);
        assert_eq!(
            limiter.record_failure(address, at_ms(5_000)),
            Some(2),
            "failures that were not reported"
        );
    }

    #[test]
    fn one_network_is_one_source_and_memory_is_bounded() {
        let mut limiter = AuthRateLimiter::default();
        let host = |net: u64, host: u64| -> IpAddr {
            std::net::Ipv6Addr::from((u128::from(net) << 64) | u128::from(host)).into()
        };
        for number in 0..20 {
            limiter.record_failure(host(7, number), at_ms(number));
        }
        assert!(limiter.check(host(7, 99), at_ms(20)).is_err());
        assert_eq!(limiter.check(host(8, 99), at_ms(20)), Ok(()));
        for net in 0..10_000 {
            limiter.record_failure(host(net, 1), at_ms(net));
        }
        assert_eq!(limiter.sources.len(), MAX_SOURCES);
    }
}
