//! Limit of failed attempts to join, so that codes cannot be guessed.
//!
//! A code has 60 random bits, so the limit only has to keep the number of guesses small:
//!
//! - A network (IPv4 /24 or IPv6 /48) has 10 failed attempts in 10 minutes.
//! - All networks together have 300. Above them, only networks without a failed attempt may try,
//!   so a few attackers do not lock out all others.
//! - Behind a reverse proxy, the collector sees the proxy's address, which is local or private. Such
//!   addresses share the limit of 300 only: 10 wrong codes of one client must not stop all others.
//!   300 wrong codes do stop them, for at most 10 minutes. At this rate, a guess finds one of
//!   1,000 open codes once in millions of years. A proxy can set a stricter limit for each client.
//!
//! The attempts are in memory: a restart forgets them, and at most 300 are kept.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Failed attempts of one network in a [`WINDOW`].
const MAX_NETWORK_FAILURES: usize = 10;
/// Failed attempts of all networks in a [`WINDOW`].
const MAX_FAILURES: usize = 300;
/// Time for which a failed attempt counts.
const WINDOW: Duration = Duration::from_mins(10);

/// Origin of attempts that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientNetwork {
    /// Local or private addresses, which may be those of a reverse proxy.
    Local,
    /// First 24 bits of an IPv4 address.
    Ipv4([u8; 3]),
    /// First 48 bits of an IPv6 address.
    Ipv6([u16; 3]),
}

impl ClientNetwork {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) if v4.is_loopback() || v4.is_private() || v4.is_link_local() => {
                Self::Local
            }
            IpAddr::V4(v4) => {
                let [a, b, c, _] = v4.octets();
                Self::Ipv4([a, b, c])
            }
            IpAddr::V6(v6)
                if v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local() =>
            {
                Self::Local
            }
            IpAddr::V6(v6) => {
                let [a, b, c, ..] = v6.segments();
                Self::Ipv6([a, b, c])
            }
        }
    }

    fn may_try(self, own: usize, all: usize) -> bool {
        match self {
            Self::Local => own < MAX_FAILURES,
            Self::Ipv4(_) | Self::Ipv6(_) => {
                own == 0 || (own < MAX_NETWORK_FAILURES && all < MAX_FAILURES)
            }
        }
    }
}

/// Attempt that counts as failed until it is withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JoinAttempt {
    number: u64,
    at_us: i64,
    network: ClientNetwork,
}

/// Recent failed attempts to join.
#[derive(Debug, Default)]
pub(crate) struct JoinLimit(Mutex<FailedAttempts>);

#[derive(Debug, Default)]
struct FailedAttempts {
    attempts: VecDeque<JoinAttempt>,
    next_number: u64,
}

impl JoinLimit {
    /// Begins an attempt, which counts as failed from now on; if the limit is reached, returns the
    /// time until the next one.
    pub(crate) fn begin(&self, address: IpAddr, now_us: i64) -> Result<JoinAttempt, Duration> {
        let network = ClientNetwork::of(address);
        let window_us = i64::try_from(WINDOW.as_micros()).unwrap_or(i64::MAX);
        let mut failed = self.lock();
        // A clock that is set back must not keep attempts for longer.
        failed.attempts.retain(|attempt| now_us.abs_diff(attempt.at_us) < window_us.unsigned_abs());
        let of_network = failed.attempts.iter().filter(|attempt| attempt.network == network);
        let (own, all) = (of_network.clone().count(), failed.attempts.len());
        if !network.may_try(own, all) {
            let oldest_us = of_network.map(|attempt| attempt.at_us).min().unwrap_or(now_us);
            let wait_us = oldest_us.saturating_add(window_us).saturating_sub(now_us);
            return Err(Duration::from_micros(wait_us.unsigned_abs()).min(WINDOW));
        }
        if all >= MAX_FAILURES {
            failed.attempts.pop_front();
        }
        let attempt = JoinAttempt { number: failed.next_number, at_us: now_us, network };
        failed.next_number += 1;
        failed.attempts.push_back(attempt);
        Ok(attempt)
    }

    /// Forgets an attempt that did not fail because of its code.
    pub(crate) fn withdraw(&self, attempt: JoinAttempt) {
        self.lock().attempts.retain(|other| *other != attempt);
    }

    fn lock(&self) -> MutexGuard<'_, FailedAttempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: i64 = 1_000_000;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn begin(limit: &JoinLimit, from: &str, at_s: i64) -> Result<JoinAttempt, Duration> {
        limit.begin(address(from), at_s * SECOND_US)
    }

    #[test]
    fn a_network_has_ten_failed_attempts_in_ten_minutes() {
        for (first, same_network, other_network) in [
            ("192.0.2.1", "192.0.2.254", "192.0.3.1"),
            ("::ffff:192.0.2.1", "192.0.2.2", "2001:db8::1"),
            ("2001:db8:1::1", "2001:db8:1:ffff::2", "2001:db8:2::1"),
        ] {
            let limit = JoinLimit::default();
            for second in 0..10 {
                begin(&limit, first, second).unwrap();
            }
            assert_eq!(begin(&limit, same_network, 10), Err(Duration::from_secs(590)));
            begin(&limit, other_network, 10).unwrap();
            assert!(begin(&limit, same_network, 599).is_err());
            begin(&limit, same_network, 600).unwrap();
            assert_eq!(begin(&limit, same_network, 600), Err(Duration::from_secs(1)));
        }
    }

    #[test]
    fn an_attempt_with_a_valid_code_does_not_count() {
        let limit = JoinLimit::default();
        for _ in 0..100 {
            let attempt = begin(&limit, "192.0.2.1", 0).unwrap();
            limit.withdraw(attempt);
        }
        assert!(limit.lock().attempts.is_empty());
    }

    #[test]
    fn the_limit_of_all_networks_does_not_stop_a_new_one() {
        let limit = JoinLimit::default();
        for network in 0..1_000 {
            let from = format!("198.{}.{}.1", network / 250, network % 250);
            begin(&limit, &from, 0).unwrap();
        }
        assert_eq!(limit.lock().attempts.len(), MAX_FAILURES);
        assert!(begin(&limit, "198.3.249.1", 1).is_err(), "it failed once");
        begin(&limit, "192.0.2.1", 1).unwrap();
        assert_eq!(limit.lock().attempts.len(), MAX_FAILURES);
    }

    #[test]
    fn clients_behind_a_proxy_share_the_larger_limit() {
        for proxy in ["127.0.0.1", "::1", "10.1.2.3", "fd00::1", "192.168.1.1", "fe80::1"] {
            let limit = JoinLimit::default();
            for _ in 0..MAX_FAILURES {
                begin(&limit, proxy, 0).unwrap();
            }
            assert_eq!(begin(&limit, proxy, 0), Err(WINDOW), "{proxy}");
            begin(&limit, "192.0.2.1", 0).unwrap();
            begin(&limit, proxy, 600).unwrap();
        }
    }

    #[test]
    fn a_clock_that_is_set_back_ends_the_limit() {
        let limit = JoinLimit::default();
        for _ in 0..10 {
            begin(&limit, "192.0.2.1", 100_000).unwrap();
        }
        begin(&limit, "192.0.2.1", 0).unwrap();
    }
}
