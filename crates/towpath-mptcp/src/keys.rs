//! Keys, tokens, initial data sequence numbers, HMACs and the DSS checksum (RFC 8684 §3.1–§3.4).

use std::net::IpAddr;

use crate::wire::Payload;

/// Most significant 32 bits of SHA-256 of the key (§3.2).
pub fn token(key: u64) -> u32 {
    let _ = key;
    todo!()
}

/// Least significant 64 bits of SHA-256 of the key (§3.1); the first data byte has the next number.
pub fn initial_dsn(key: u64) -> u64 {
    let _ = key;
    todo!()
}

/// The HMAC that the owner of `own_key` and `own_nonce` sends in MP_JOIN (§3.2): SHA-256, key
/// `own_key || peer_key`, message `own_nonce || peer_nonce`.
pub fn join_hmac(own_key: u64, peer_key: u64, own_nonce: u32, peer_nonce: u32) -> [u8; 32] {
    let _ = (own_key, peer_key, own_nonce, peer_nonce);
    todo!()
}

/// The rightmost 64 bits of the HMAC in ADD_ADDR (§3.4.1), sent by the owner of `own_key`. A missing port counts as 0
pub fn add_address_hmac(
    own_key: u64,
    peer_key: u64,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
) -> u64 {
    let _ = (own_key, peer_key, address_id, address, port);
    todo!()
}

/// The DSS checksum as it goes on the wire (§3.3.1): pseudo header of 64-bit `dsn`, relative `ssn`,
/// `len` and zero, then the payload.
pub fn dss_checksum(dsn: u64, ssn: u32, len: u16, payload: &Payload) -> u16 {
    let _ = (dsn, ssn, len, payload);
    todo!()
}
