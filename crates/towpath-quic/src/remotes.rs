//! The addresses of a connection's peer, and which of them have been validated (RFC 9000 §8).

use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;

/// Limit of remembered validated addresses, and of unvalidated ones. Beyond it, the oldest is
/// forgotten.
const MAX_REMOTES: usize = 16;
/// Number of new addresses that a connection may use at once.
const NEW_ADDRESS_BURST: u32 = 8;
/// Interval after which a connection may use one more new address.
const NEW_ADDRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Addresses from which a peer has sent.
#[derive(Debug)]
pub(crate) struct RemoteAddresses {
    /// False if every address counts as validated.
    limited: bool,
    /// Addresses that have answered, oldest first.
    validated: Vec<SocketAddr>,
    /// Addresses that have not answered yet, oldest first.
    unvalidated: Vec<SocketAddr>,
    /// Number of new addresses that may be used now.
    new_addresses: u32,
    /// Time since which `new_addresses` has not grown.
    counted_from: Instant,
}

impl RemoteAddresses {
    /// Creates the record of a connection without limits.
    pub(crate) fn unlimited() -> Self {
        let (validated, unvalidated) = (Vec::new(), Vec::new());
        let (new_addresses, counted_from) = (0, Instant::ZERO);
        Self { limited: false, validated, unvalidated, new_addresses, counted_from }
    }

    /// Creates the record of an accepted connection; `remote` sent its first datagram.
    pub(crate) fn limited(now: Instant, remote: SocketAddr) -> Self {
        let unvalidated = vec![remote];
        let new_addresses = NEW_ADDRESS_BURST;
        Self { limited: true, unvalidated, new_addresses, counted_from: now, ..Self::unlimited() }
    }

    pub(crate) fn are_limited(&self) -> bool {
        self.limited
    }

    pub(crate) fn has_validated(&self, remote: SocketAddr) -> bool {
        !self.limited || self.validated.contains(&remote)
    }

    /// Returns true if a datagram from an unvalidated address may be processed. A connection may
    /// use only a few new addresses per second, because each one costs a path validation.
    pub(crate) fn admits(&mut self, now: Instant, remote: SocketAddr) -> bool {
        if self.unvalidated.contains(&remote) {
            return true;
        }
        self.count_new_addresses(now);
        let Some(left) = self.new_addresses.checked_sub(1) else { return false };
        self.new_addresses = left;
        if self.unvalidated.len() >= MAX_REMOTES {
            self.unvalidated.remove(0);
        }
        self.unvalidated.push(remote);
        true
    }

    fn count_new_addresses(&mut self, now: Instant) {
        let intervals =
            now.saturating_since(self.counted_from).as_millis() / NEW_ADDRESS_INTERVAL.as_millis();
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        if intervals > 0 {
            self.new_addresses =
                self.new_addresses.saturating_add(intervals).min(NEW_ADDRESS_BURST);
            self.counted_from = now;
        }
    }

    /// Records that the peer has answered from this address. Addresses of current paths, which are
    /// `in_use`, are not forgotten.
    pub(crate) fn on_validated(&mut self, remote: SocketAddr, in_use: &[SocketAddr]) {
        if !self.limited || self.validated.contains(&remote) {
            return;
        }
        self.unvalidated.retain(|unvalidated| *unvalidated != remote);
        if self.validated.len() >= MAX_REMOTES {
            self.validated.retain(|validated| in_use.contains(validated));
        }
        self.validated.push(remote);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn remote(number: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, number).into()
    }

    #[test]
    fn few_new_addresses_per_second_are_admitted() {
        let mut now = Instant::ZERO;
        let mut remotes = RemoteAddresses::limited(now, remote(0));
        assert!(remotes.admits(now, remote(0)));
        let admitted = (1..100).filter(|number| remotes.admits(now, remote(*number))).count();
        assert_eq!(admitted, 8);
        assert!(remotes.admits(now, remote(3)), "a known address needs no new place");
        now += Duration::from_secs(10);
        let mut admitted = 0;
        for number in 200..1_200 {
            now += Duration::from_millis(10);
            admitted += u32::from(remotes.admits(now, remote(number)));
        }
        assert!((27..=28).contains(&admitted), "8 at once and 2 per second: {admitted}");
        assert!(remotes.unvalidated.len() <= MAX_REMOTES);
    }

    #[test]
    fn addresses_of_paths_in_use_stay_validated() {
        let mut remotes = RemoteAddresses::limited(Instant::ZERO, remote(0));
        assert!(!remotes.has_validated(remote(0)));
        for number in 0..100 {
            remotes.on_validated(remote(number), &[remote(0), remote(number)]);
            assert!(remotes.has_validated(remote(0)) && remotes.has_validated(remote(number)));
        }
        assert!(remotes.validated.len() <= MAX_REMOTES);
        assert!(RemoteAddresses::unlimited().has_validated(remote(5)));
    }
}
