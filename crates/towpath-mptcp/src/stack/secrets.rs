//! Unpredictable random numbers: keys, nonces, initial sequence numbers, cookies.
//!
//! Numbers come from a hash over a counter, or over their purpose. For tests the hash key
//! is a seed, so that equal seeds give equal runs. Otherwise it is 128 bits of the system's random
//! numbers, with HMAC-SHA256 as the hash (RFC 6528 §3, RFC 4086): too many keys to try.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use towpath_net::{Instant, SourcePrefix};

/// Bytes of the secret key (RFC 6528 §3).
pub const SECRET_BYTES: usize = 16;
/// Bytes of an input block of SHA-256, to which HMAC pads its key with zeros (RFC 2104 §2).
const BLOCK_BYTES: usize = 64;
/// Bytes of two addresses of 16 bytes with their ports.
const TUPLE_BYTES: usize = 36;

/// Generator of a host's secrets.
pub(super) struct SecretGenerator {
    key: SecretKey,
    counter: u64,
}

enum SecretKey {
    Seed(u64),
    /// HMAC-SHA256, initialised with its key.
    Secret(Box<Hmac<Sha256>>),
}

impl fmt::Debug for SecretGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretGenerator").finish_non_exhaustive()
    }
}

impl SecretGenerator {
    /// Creates a generator for reproducible runs.
    pub(super) fn from_seed(seed: u64) -> Self {
        Self { key: SecretKey::Seed(seed), counter: 0 }
    }

    /// Creates a generator from a secret, for a stack with unauthenticated clients.
    pub(super) fn from_secret(secret: &[u8; SECRET_BYTES]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        for (byte, secret_byte) in block.iter_mut().zip(secret) {
            *byte = *secret_byte;
        }
        Self { key: SecretKey::Secret(Box::new(Hmac::new(&block.into()))), counter: 0 }
    }
    /// Returns the next number of the generator's sequence.
    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        self.hash(b"towpath secret", &self.counter.to_be_bytes())
    }

    /// Returns an initial sequence number (RFC 6528 §3): a clock of 4 µs plus a keyed hash of the
    /// addresses.
    pub(super) fn isn(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> u32 {
        let clock = (now.as_nanos() / 4_000) as u32;
        clock.wrapping_add(self.hash(b"towpath isn", &octets(local, remote)) as u32)
    }

    /// Returns a number derived from `input` and two addresses; `label` names its purpose.
    pub(super) fn keyed_hash(
        &self,
        label: &'static [u8],
        (local, remote): (SocketAddr, SocketAddr),
        input: [u8; 16],
    ) -> u64 {
        let family = u8::from(local.is_ipv6());
        let mut message: ArrayVec<u8, { TUPLE_BYTES + 17 }> = input.into_iter().collect();
        message.push(family);
        message.extend(octets(local, remote));
        self.hash(label, &message)
    }

    /// Returns a number derived from the source of a packet.
    pub(super) fn source_hash(&self, source: SourcePrefix) -> u64 {
        match source.network() {
            IpAddr::V4(network) => self.hash(b"towpath source", &network.octets()),
            IpAddr::V6(network) => self.hash(b"towpath source", &network.octets()),
        }
    }

    /// Hashes a label and a message. No label may be a prefix of another one with its message.
    fn hash(&self, label: &'static [u8], message: &[u8]) -> u64 {
        match &self.key {
            SecretKey::Seed(seed) => {
                let hash = Sha256::new_with_prefix(label).chain_update(seed.to_be_bytes());
                first_64(&hash.chain_update(message).finalize())
            }
            SecretKey::Secret(keyed) => {
                let hmac = Hmac::clone(keyed).chain_update(label).chain_update(message);
                first_64(&hmac.finalize().into_bytes())
            }
        }
    }
}

fn octets(local: SocketAddr, remote: SocketAddr) -> ArrayVec<u8, TUPLE_BYTES> {
    let mut octets = ArrayVec::new();
    for address in [local, remote] {
        match address.ip() {
            IpAddr::V4(ip) => octets.extend(ip.octets()),
            IpAddr::V6(ip) => octets.extend(ip.octets()),
        }
        octets.extend(address.port().to_be_bytes());
    }
    octets
}

fn first_64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_pair() -> [SocketAddr; 2] {
        ["10.0.0.1:1", "10.0.0.2:2"].map(|text| text.parse().unwrap())
    }

    #[test]
    fn equal_seeds_give_equal_secrets_and_others_do_not() {
        let [mut a, mut b, mut c] = [1, 1, 2].map(SecretGenerator::from_seed);
        let first_number = a.next();
        assert_eq!(first_number, b.next());
        assert_ne!(first_number, c.next());
        assert_ne!(first_number, a.next());
    }

    #[test]
    fn the_output_of_a_seed_is_stable() {
        let mut secrets = SecretGenerator::from_seed(7);
        assert_eq!(
            [secrets.next(), secrets.next()],
            [FIRST_NUMBERS_OF_SEED_7.0, FIRST_NUMBERS_OF_SEED_7.1]
        );
        let [a, b] = address_pair();
        assert_eq!(secrets.isn(Instant::ZERO, a, b), ISN_OF_SEED_7);
    }

    /// Values from before the introduction of 128-bit secrets.
    const FIRST_NUMBERS_OF_SEED_7: (u64, u64) = (0x2c68_9b2e_db67_84c8, 0x6d2f_8eca_a4f2_65b5);
    const ISN_OF_SEED_7: u32 = 0x4114_1c90;

    #[test]
    fn sequence_numbers_of_one_pair_grow_with_time() {
        for secrets in
            [SecretGenerator::from_seed(7), SecretGenerator::from_secret(&[7; SECRET_BYTES])]
        {
            let [a, b] = address_pair();
            let at_micros = |micros: u64| Instant::from_nanos(micros * 1_000);
            let grown =
                secrets.isn(at_micros(4_000), a, b).wrapping_sub(secrets.isn(at_micros(0), a, b));
            assert_eq!(grown, 1_000);
            assert_ne!(secrets.isn(at_micros(0), a, b), secrets.isn(at_micros(0), b, a));
        }
    }

    #[test]
    fn every_bit_of_a_secret_counts() {
        let [a, b] = address_pair();
        let draw_numbers = |secret: &[u8; SECRET_BYTES]| {
            let mut secrets = SecretGenerator::from_secret(secret);
            let hash = secrets.keyed_hash(b"a label", (a, b), [0; 16]);
            (secrets.next(), secrets.isn(Instant::ZERO, a, b), hash)
        };
        let of_zero_secret = draw_numbers(&[0; SECRET_BYTES]);
        for bit in 0..8 * SECRET_BYTES {
            let mut secret = [0; SECRET_BYTES];
            secret[bit / 8] = 1 << (bit % 8);
            let (next, isn, hash) = draw_numbers(&secret);
            assert!(
                next != of_zero_secret.0 && isn != of_zero_secret.1 && hash != of_zero_secret.2,
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(
            format!("{:?}", SecretGenerator::from_secret(&[0xab; SECRET_BYTES])),
            "SecretGenerator { .. }"
        );
    }
}
