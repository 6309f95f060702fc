//! Keys, tokens, initial data sequence numbers, HMACs and the DSS checksum (RFC 8684 §3.1–§3.4).

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::wire::Payload;
use crate::wire::checksum::Sum;

/// Bytes of an input block of SHA-256, to which HMAC pads its key with zeros (RFC 2104 §2).
const BLOCK_BYTES: usize = 64;

/// Most significant 32 bits of SHA-256 of the key (§3.2).
pub fn token(key: u64) -> u32 {
    let [a, b, c, d, ..] = hash(key);
    u32::from_be_bytes([a, b, c, d])
}

/// Least significant 64 bits of SHA-256 of the key (§3.1); the first data byte has the next number.
pub fn initial_dsn(key: u64) -> u64 {
    rightmost(hash(key))
}

/// The HMAC that the owner of `own_key` and `own_nonce` sends in MP_JOIN (§3.2): SHA-256, key
/// `own_key || peer_key`, message `own_nonce || peer_nonce`.
pub fn join_hmac(own_key: u64, peer_key: u64, own_nonce: u32, peer_nonce: u32) -> [u8; 32] {
    keyed(own_key, peer_key)
        .chain_update(own_nonce.to_be_bytes())
        .chain_update(peer_nonce.to_be_bytes())
        .finalize()
        .into_bytes()
        .into()
}

/// The rightmost 64 bits of the HMAC in ADD_ADDR (§3.4.1), sent by the owner of `own_key`. A
/// missing port counts as 0.
pub fn add_address_hmac(
    own_key: u64,
    peer_key: u64,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
) -> u64 {
    let hmac = keyed(own_key, peer_key).chain_update([address_id]);
    let hmac = match address {
        IpAddr::V4(address) => hmac.chain_update(address.octets()),
        IpAddr::V6(address) => hmac.chain_update(address.octets()),
    };
    let hmac = hmac.chain_update(port.unwrap_or(0).to_be_bytes());
    rightmost(hmac.finalize().into_bytes().into())
}

/// The DSS checksum as it goes on the wire (§3.3.1): pseudo header of 64-bit `dsn`, relative `ssn`,
/// `len` and zero, then the payload.
pub fn dss_checksum(dsn: u64, ssn: u32, len: u16, payload: &Payload) -> u16 {
    dss_sum(dsn, ssn, len, payload).finish()
}

/// Whether `checksum`, as received, is that of the mapping and its data. In one's complement, 0 and
/// 0xffff are the same number: either is right when the other is.
pub fn dss_checksum_is_right(
    dsn: u64,
    ssn: u32,
    len: u16,
    payload: &Payload,
    checksum: u16,
) -> bool {
    let computed = dss_checksum(dsn, ssn, len, payload);
    computed == checksum || (computed == 0 && checksum == 0xffff)
}

fn dss_sum(dsn: u64, ssn: u32, len: u16, payload: &Payload) -> Sum {
    let header = Sum::default().bytes(&dsn.to_be_bytes()).bytes(&ssn.to_be_bytes()).word(len);
    payload.chunks().fold(header, |sum, chunk| sum.bytes(chunk))
}

fn hash(key: u64) -> [u8; 32] {
    Sha256::digest(key.to_be_bytes()).into()
}

fn keyed(own_key: u64, peer_key: u64) -> Hmac<Sha256> {
    let mut block = [0; BLOCK_BYTES];
    for (byte, key) in
        block.iter_mut().zip(own_key.to_be_bytes().into_iter().chain(peer_key.to_be_bytes()))
    {
        *byte = key;
    }
    Hmac::new(&block.into())
}

fn rightmost(hash: [u8; 32]) -> u64 {
    u64::from_be_bytes(hash.last_chunk().copied().unwrap_or_default())
}
