//! Keys, tokens, initial data sequence numbers, HMACs and the DSS checksum (RFC 8684 §3.1–§3.4).
//!
//! The duration of a comparison with a secret must not reveal how much of a guess was correct.
//! HMACs are therefore compared here, in constant time. Keys and tokens are integers, compared by
//! instruction. Token lookups use a keyed hash of the token.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::Payload;
use crate::checksum::PartialChecksum;

/// Bytes of an input block of SHA-256, to which HMAC pads its key with zeros (RFC 2104 §2).
const BLOCK_BYTES: usize = 64;

/// Returns the token of a key: the most significant 32 bits of its SHA-256 (§3.2).
pub fn token(key: u64) -> u32 {
    let [a, b, c, d, ..] = hash(key);
    u32::from_be_bytes([a, b, c, d])
}

/// Returns the initial data sequence number: the least significant 64 bits of the key's SHA-256
/// (§3.1). The first data byte has the next number.
pub fn initial_dsn(key: u64) -> u64 {
    last_64_bits(hash(key))
}

/// Returns the HMAC that the owner of `own_key` and `own_nonce` sends in MP_JOIN (§3.2): SHA-256,
/// key `own_key || peer_key`, message `own_nonce || peer_nonce`.
pub fn join_hmac(own_key: u64, peer_key: u64, own_nonce: u32, peer_nonce: u32) -> [u8; 32] {
    join_mac(own_key, peer_key, own_nonce, peer_nonce).finalize().into_bytes().into()
}

/// Returns true if `tag`, as received, is a prefix of its sender's [`join_hmac`]: 64 or 160 bits
/// (§3.2). The arguments are those of the sender.
pub fn verify_join_hmac(
    own_key: u64,
    peer_key: u64,
    own_nonce: u32,
    peer_nonce: u32,
    tag: &[u8],
) -> bool {
    join_mac(own_key, peer_key, own_nonce, peer_nonce).verify_truncated_left(tag).is_ok()
}

fn join_mac(own_key: u64, peer_key: u64, own_nonce: u32, peer_nonce: u32) -> Hmac<Sha256> {
    keyed_hmac(own_key, peer_key)
        .chain_update(own_nonce.to_be_bytes())
        .chain_update(peer_nonce.to_be_bytes())
}

/// Returns the rightmost 64 bits of the HMAC in ADD_ADDR (§3.4.1), sent by the owner of `own_key`.
/// A missing port counts as 0.
pub fn add_address_hmac(
    own_key: u64,
    peer_key: u64,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
) -> u64 {
    let hmac = address_mac(own_key, peer_key, address_id, address, port);
    last_64_bits(hmac.finalize().into_bytes().into())
}

/// Returns true if `tag`, as received, is its sender's [`add_address_hmac`]. The arguments are
/// those of the sender.
pub fn verify_add_addr_hmac(
    own_key: u64,
    peer_key: u64,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
    tag: u64,
) -> bool {
    let hmac = address_mac(own_key, peer_key, address_id, address, port);
    hmac.verify_truncated_right(&tag.to_be_bytes()).is_ok()
}

fn address_mac(
    own_key: u64,
    peer_key: u64,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
) -> Hmac<Sha256> {
    let hmac = keyed_hmac(own_key, peer_key).chain_update([address_id]);
    let hmac = match address {
        IpAddr::V4(address) => hmac.chain_update(address.octets()),
        IpAddr::V6(address) => hmac.chain_update(address.octets()),
    };
    hmac.chain_update(port.unwrap_or(0).to_be_bytes())
}

/// Returns the DSS checksum in wire format (§3.3.1): pseudo header of 64-bit `dsn`, relative `ssn`,
/// `len` and zero, then the payload.
pub fn dss_checksum(dsn: u64, ssn: u32, len: u16, payload: &Payload) -> u16 {
    dss_sum(dsn, ssn, len, payload).finish()
}

/// Returns true if `checksum`, as received, matches the mapping and its data. In one's complement,
/// 0 and 0xffff are the same number, so either is accepted for the other.
pub fn verify_dss_checksum(dsn: u64, ssn: u32, len: u16, payload: &Payload, checksum: u16) -> bool {
    let computed = dss_checksum(dsn, ssn, len, payload);
    computed == checksum || (computed == 0 && checksum == 0xffff)
}

fn dss_sum(dsn: u64, ssn: u32, len: u16, payload: &Payload) -> PartialChecksum {
    let header =
        PartialChecksum::default().bytes(&dsn.to_be_bytes()).bytes(&ssn.to_be_bytes()).word(len);
    payload.chunks().fold(header, |sum, chunk| sum.bytes(chunk))
}

fn hash(key: u64) -> [u8; 32] {
    Sha256::digest(key.to_be_bytes()).into()
}

fn keyed_hmac(own_key: u64, peer_key: u64) -> Hmac<Sha256> {
    let mut block = [0; BLOCK_BYTES];
    for (byte, key_byte) in
        block.iter_mut().zip(own_key.to_be_bytes().into_iter().chain(peer_key.to_be_bytes()))
    {
        *byte = key_byte;
    }
    Hmac::new(&block.into())
}

fn last_64_bits(hash: [u8; 32]) -> u64 {
    u64::from_be_bytes(hash.last_chunk().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    const OWN_KEY: u64 = 0x0102_0304_0506_0708;
    const PEER_KEY: u64 = 0xf1f2_f3f4_f5f6_f7f8;

    // The expected values were computed with Python's hashlib and hmac; those of Linux are in
    // tests/golden.rs.

    #[test]
    fn token_and_initial_number_are_the_two_ends_of_the_hash() {
        assert_eq!(token(OWN_KEY), 0x6684_0dda);
        assert_eq!(initial_dsn(OWN_KEY), 0xf5a1_01d3_d29d_6f72);
    }

    #[test]
    fn the_hmac_of_mp_join_is_that_of_an_independent_implementation() {
        let expected = [
            0x1e, 0x5d, 0xb9, 0x9f, 0x39, 0x8c, 0x08, 0x0d, 0x93, 0x47, 0x75, 0x17, 0xe5, 0xf9,
            0xee, 0xb6, 0xcd, 0x2a, 0x2a, 0x7e, 0x63, 0xe4, 0x09, 0xdf, 0x95, 0xac, 0xf3, 0x57,
            0x6d, 0xe2, 0x4a, 0x2e,
        ];
        assert_eq!(join_hmac(OWN_KEY, PEER_KEY, 0xa1a2_a3a4, 0x1112_1314), expected);
    }

    #[test]
    fn the_hmac_of_add_addr_covers_identifier_address_and_port() {
        let v4 = add_address_hmac(OWN_KEY, PEER_KEY, 3, [192, 0, 2, 7].into(), None);
        assert_eq!(v4, 0x20bc_0190_fb73_e3e4);
        let v6 =
            add_address_hmac(OWN_KEY, PEER_KEY, 3, "2001:db8::7".parse().unwrap(), Some(8_080));
        assert_eq!(v6, 0x3cf8_73bc_a8fe_010f);
    }

    #[test]
    fn the_dss_checksum_does_not_depend_on_how_data_is_cut() {
        let data = Bytes::from_static(b"an odd number of bytes, in pieces");
        for (first, second) in [(0, 0), (1, 2), (3, 18), (5, 5), (8, 33)] {
            let mut payload = Payload::EMPTY;
            for range in [0..first, first..second, second..data.len()] {
                payload.push(data.slice(range));
            }
            let checksum = dss_checksum(0x1122_3344_5566_7788, 0x0102_0304, 33, &payload);
            assert_eq!(checksum, 0x3566);
        }
    }

    #[test]
    fn both_zeros_of_ones_complement_are_right() {
        // The length and this word add up to 0xffff, whose complement is 0.
        let payload = Payload::from(Bytes::from_static(&[0xff, 0xfd]));
        assert_eq!(dss_checksum(0, 0, 2, &payload), 0);
        assert!(verify_dss_checksum(0, 0, 2, &payload, 0));
        assert!(verify_dss_checksum(0, 0, 2, &payload, 0xffff));
        assert!(!verify_dss_checksum(0, 0, 2, &payload, 1));
    }

    proptest! {
        #[test]
        fn an_hmac_is_valid_only_if_every_byte_matches(
            keys: (u64, u64), nonces: (u32, u32), id: u8, port: Option<u16>, index in 0..20_usize, mask in 1..=255_u8,
        ) {
            let ((own_key, peer_key), (own_nonce, peer_nonce)) = (keys, nonces);
            let hmac = join_hmac(own_key, peer_key, own_nonce, peer_nonce);
            let verify_join = |tag: &[u8]| verify_join_hmac(own_key, peer_key, own_nonce, peer_nonce, tag);
            prop_assert!(verify_join(&hmac[..8]) && verify_join(&hmac[..20]));
            let mut changed = hmac;
            changed[index] ^= mask;
            prop_assert!(!verify_join(&changed[..20]) && !verify_join(&[]));
            let address = IpAddr::from([192, 0, 2, id]);
            let tag = add_address_hmac(own_key, peer_key, id, address, port);
            let verify_address = |tag| verify_add_addr_hmac(own_key, peer_key, id, address, port, tag);
            prop_assert!(verify_address(tag));
            prop_assert!(!verify_address(tag ^ u64::from(mask) << (index % 8 * 8)));
        }

        #[test]
        fn a_changed_byte_is_noticed(
            dsn: u64, ssn: u32,
            data in proptest::collection::vec(any::<u8>(), 1..100), index: usize, mask in 1..=255_u8,
        ) {
            let len = data.len() as u16;
            let mut changed = data.clone();
            changed[index % data.len()] ^= mask;
            let checksum = dss_checksum(dsn, ssn, len, &Bytes::from(data).into());
            let changed = Payload::from(Bytes::from(changed));
            prop_assert!(!verify_dss_checksum(dsn, ssn, len, &changed, checksum));
        }
    }
}
