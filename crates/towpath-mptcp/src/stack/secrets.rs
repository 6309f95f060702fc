//! Random numbers that nobody can guess: keys, nonces, initial sequence numbers.
//!
//! They come from SHA-256 over the seed and a counter, so equal seeds give equal runs; who talks to
//! real hosts seeds from the system's random numbers.

use std::net::{IpAddr, SocketAddr};

use sha2::{Digest, Sha256};
use towpath_net::Instant;

/// A host's source of secrets.
#[derive(Debug)]
pub(super) struct Secrets {
    seed: u64,
    counter: u64,
}

impl Secrets {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, counter: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        let mut hash = Sha256::new();
        hash.update(b"towpath secret");
        hash.update(self.seed.to_be_bytes());
        hash.update(self.counter.to_be_bytes());
        first_64(&hash.finalize())
    }

    /// An initial sequence number (RFC 6528 §3): a clock of 4 µs plus a keyed hash of the addresses.
    pub(super) fn isn(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> u32 {
        let mut hash = Sha256::new();
        hash.update(b"towpath isn");
        hash.update(self.seed.to_be_bytes());
        for address in [local, remote] {
            match address.ip() {
                IpAddr::V4(ip) => hash.update(ip.octets()),
                IpAddr::V6(ip) => hash.update(ip.octets()),
            }
            hash.update(address.port().to_be_bytes());
        }
        let clock = (now.as_nanos() / 4_000) as u32;
        clock.wrapping_add(first_64(&hash.finalize()) as u32)
    }
}

fn first_64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_secrets_and_others_do_not() {
        let [mut a, mut b, mut c] = [1, 1, 2].map(Secrets::new);
        let first = a.next();
        assert_eq!(first, b.next());
        assert_ne!(first, c.next());
        assert_ne!(first, a.next());
    }

    #[test]
    fn sequence_numbers_of_one_pair_grow_with_time() {
        let secrets = Secrets::new(7);
        let [a, b] = ["10.0.0.1:1", "10.0.0.2:2"].map(|text| text.parse().unwrap());
        let at = |micros: u64| Instant::from_nanos(micros * 1_000);
        let grown = secrets.isn(at(4_000), a, b).wrapping_sub(secrets.isn(at(0), a, b));
        assert_eq!(grown, 1_000);
        assert_ne!(secrets.isn(at(0), a, b), secrets.isn(at(0), b, a));
    }
}
