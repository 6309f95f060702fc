//! Who has given a wrong secret: each source gets slower with every wrong one.
//!
//! A source is an IPv4 address, or an IPv6 network of 64 bits, in which one host has as many
//! addresses as it likes. Nothing waits for a source that is too fast: it is refused.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use towpath_net::Instant;

/// So many wrong ones in a row cost nothing: people mistake a file.
const FREE: u32 = 3;
/// What the first one after that costs; each one more costs twice as much,
const FIRST: Duration = Duration::from_secs(1);
/// up to this.
const LONGEST: Duration = Duration::from_secs(60);
/// Without a wrong one for so long, a source begins anew.
const MEMORY: Duration = Duration::from_secs(600);
/// Sources that are remembered; the one that was quiet longest is forgotten first.
const MOST_SOURCES: usize = 4_096;
/// Not more than one line in so long tells of wrong ones.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// A source's wrong ones.
#[derive(Debug, Clone, Copy)]
struct Wrong {
    count: u32,
    last: Instant,
}

impl Wrong {
    fn until(self) -> Instant {
        let doubled = self.count.checked_sub(FREE).map(|over| FIRST * (1 << over.min(16)));
        self.last + doubled.unwrap_or_default().min(LONGEST)
    }
}

/// All sources that have been wrong.
#[derive(Debug, Default)]
pub struct Guesses {
    sources: BTreeMap<IpAddr, Wrong>,
    /// When somebody was last told, and how many wrong ones nobody was told of.
    told: Option<Instant>,
    untold: u64,
}

/// What counts as one source.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Guesses {
    /// Whether a source may try now; or how long it has to wait.
    pub fn may_try(&self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let left = self.sources.get(&source(from)).map(|wrong| wrong.until().saturating_since(now));
        left.filter(|left| !left.is_zero()).map_or(Ok(()), Err)
    }

    /// A source was wrong. Returns how many others nobody was told of, if it is time to tell.
    pub fn wrong(&mut self, from: IpAddr, now: Instant) -> Option<u64> {
        self.sources.retain(|_, wrong| now.saturating_since(wrong.last) < MEMORY);
        let from = source(from);
        if self.sources.len() >= MOST_SOURCES && !self.sources.contains_key(&from) {
            let quiet = self.sources.iter().min_by_key(|(_, wrong)| wrong.last);
            let quiet = quiet.map(|(from, _)| *from);
            quiet.and_then(|quiet| self.sources.remove(&quiet));
        }
        let wrong = self.sources.entry(from).or_insert(Wrong { count: 0, last: now });
        *wrong = Wrong { count: wrong.count.saturating_add(1), last: now };
        self.note(now)
    }

    /// A source was right: it has only mistaken the secret before.
    pub fn right(&mut self, from: IpAddr) {
        self.sources.remove(&source(from));
    }

    /// Somebody was wrong, or too fast. Returns how many others nobody was told of, if it is time.
    pub fn note(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.saturating_since(told) < BETWEEN_LINES) {
            self.untold = self.untold.saturating_add(1);
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn who_guesses_gets_slower_and_others_do_not() {
        let mut guesses = Guesses::default();
        let (tireless, other): (IpAddr, IpAddr) =
            ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let (mut tried, mut told) = (0, 0);
        // A thousand a second, for ten minutes.
        for millis in 0..600_000 {
            assert_eq!(guesses.may_try(other, at(millis)), Ok(()));
            if guesses.may_try(tireless, at(millis)).is_ok() {
                tried += 1;
                told += u32::from(guesses.wrong(tireless, at(millis)).is_some());
            } else {
                told += u32::from(guesses.note(at(millis)).is_some());
            }
        }
        assert!(tried < 25, "{tried} guesses were heard");
        assert!((100..=121).contains(&told), "{told} lines");
        assert_eq!(guesses.sources.len(), 1);
        assert!(guesses.may_try(tireless, at(600_000)).is_err());
        assert_eq!(guesses.may_try(tireless, at(700_000)), Ok(()));
    }

    #[test]
    fn a_mistaken_file_costs_nothing_and_the_right_one_ends_it() {
        let mut guesses = Guesses::default();
        let from = "2001:db8::1".parse().unwrap();
        assert_eq!(guesses.wrong(from, at(0)), Some(0));
        assert_eq!(guesses.wrong(from, at(1)), None);
        assert_eq!(guesses.may_try(from, at(2)), Ok(()));
        guesses.right(from);
        assert_eq!(guesses.wrong(from, at(3)), None);
        assert_eq!(guesses.wrong(from, at(5_000)), Some(2), "those that nobody was told of");
    }

    #[test]
    fn one_network_is_one_source_and_many_sources_take_no_more_room() {
        let mut guesses = Guesses::default();
        let host = |net: u64, host: u64| -> IpAddr {
            Ipv6Addr::from((u128::from(net) << 64) | u128::from(host)).into()
        };
        for number in 0..20 {
            guesses.wrong(host(7, number), at(number));
        }
        assert!(guesses.may_try(host(7, 99), at(20)).is_err());
        assert_eq!(guesses.may_try(host(8, 99), at(20)), Ok(()));
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(source(mapped), "192.0.2.1".parse::<IpAddr>().unwrap());
        for net in 0..10_000 {
            guesses.wrong(host(net, 1), at(net));
        }
        assert_eq!(guesses.sources.len(), MOST_SOURCES);
    }
}
