//! SYN cookies (RFC 4987 §3.6): an initial sequence number that encodes the listener's state and
//! that only the listener can create.
//!
//! One bit holds the period of 64 seconds and three bits the segment size. The other 28 bits are a
//! keyed hash over these, the addresses and ports, the peer's sequence number and the other
//! options. One guess in 2²⁸ is right. As in Linux, the other options (window scale, SACK, ECN) are
//! the last six bits of our timestamp in the SYN/ACK, which the peer echoes. A peer without
//! timestamps gets none of these options. MP_CAPABLE needs no space: the third packet repeats it
//! with both keys (RFC 8684 §3.1), and ours follows from the cookie.

use std::time::Duration;

use towpath_net::Instant;

use super::demultiplexer::FourTuple;
use super::secrets::SecretGenerator;
use super::syn_options::SynOptions;

/// Period of a cookie, which is valid until the end of the next period: for one to two of them.
const COOKIE_PERIOD: Duration = Duration::from_secs(64);
/// Lifetime of a cookie, after which it is invalid.
pub(super) const COOKIE_LIFETIME: Duration = Duration::from_secs(128);

/// Segment sizes that a cookie can encode: a peer gets the next smaller one. Old minima, tunnels,
/// Ethernet without and with small overhead, large frames.
const MSS_TABLE: [u16; 8] = [216, 536, 1_220, 1_300, 1_380, 1_440, 1_460, 8_940];
/// MSS of a peer that sends no MSS option (RFC 9293 §3.7.1).
const DEFAULT_MSS: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1_220;

const HASH_BITS: u32 = 28;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;
const MSS_MASK: u32 = 0b111;

/// Timestamp bits that encode options: the lowest six.
const TIMESTAMP_BITS: u32 = 0b11_1111;
const NO_SCALE: u8 = 0b1111;
const SACK: u8 = 1 << 4;
const ECN: u8 = 1 << 5;

impl SynOptions {
    /// Returns the options that a cookie can encode, or `None` if the peer's MSS is below the
    /// table. `timestamps_enabled`: our SYN/ACK has timestamps.
    pub(super) fn cookie_subset(self, timestamps_enabled: bool, ipv6: bool) -> Option<Self> {
        let default_mss = if ipv6 { DEFAULT_MSS_V6 } else { DEFAULT_MSS };
        let mss = self.mss.unwrap_or(default_mss);
        let encodable_mss = MSS_TABLE.into_iter().rfind(|size| *size <= mss)?;
        let subset = Self { mss: Some(encodable_mss), ..self };
        Some(if timestamps_enabled && self.timestamp.is_some() {
            subset
        } else {
            Self { window_scale: None, sack: false, ecn: false, timestamp: None, ..subset }
        })
    }

    fn timestamp_bits(&self) -> u8 {
        let (sack, ecn) = (if self.sack { SACK } else { 0 }, if self.ecn { ECN } else { 0 });
        self.window_scale.unwrap_or(NO_SCALE) | sack | ecn
    }
}

/// Returns the cookie for a SYN with the sequence number `peer_isn`. `offer` is the
/// [`SynOptions::cookie_subset`] of its options.
pub(super) fn build(
    secrets: &SecretGenerator,
    now: Instant,
    tuple: FourTuple,
    peer_isn: u32,
    offer: &SynOptions,
) -> u32 {
    let mss_index = MSS_TABLE.iter().rposition(|mss| Some(*mss) <= offer.mss).unwrap_or(0) as u8;
    let bits = offer.timestamp.map(|_| offer.timestamp_bits());
    encode(secrets, period_at(now), tuple, peer_isn, mss_index, bits)
}

/// Returns our timestamp for the SYN/ACK, never ahead of the real clock.
pub(super) fn stamp(clock: u32, offer: &SynOptions) -> u32 {
    let stamp = clock & !TIMESTAMP_BITS | u32::from(offer.timestamp_bits());
    if stamp & TIMESTAMP_BITS > clock & TIMESTAMP_BITS {
        stamp.wrapping_sub(TIMESTAMP_BITS + 1)
    } else {
        stamp
    }
}

/// Returns the options of the SYN if `cookie` is ours and still valid. `timestamps` are the value
/// and echo of the segment that returns it.
pub(super) fn read(
    secrets: &SecretGenerator,
    now: Instant,
    tuple: FourTuple,
    (peer_isn, cookie): (u32, u32),
    timestamps: Option<(u32, u32)>,
    window: u16,
) -> Option<SynOptions> {
    let mss_index = (cookie >> HASH_BITS & MSS_MASK) as u8;
    let bits = timestamps.map(|(_, echo)| (echo & TIMESTAMP_BITS) as u8);
    let (parity, current) = (cookie >> 31, period_at(now));
    let created = if current as u32 & 1 == parity { current } else { current.checked_sub(1)? };
    if encode(secrets, created, tuple, peer_isn, mss_index, bits) != cookie {
        return None;
    }
    let scale = bits.map_or(NO_SCALE, |bits| bits & NO_SCALE);
    Some(SynOptions {
        mss: MSS_TABLE.get(usize::from(mss_index)).copied(),
        window_scale: (scale != NO_SCALE).then_some(scale),
        sack: bits.is_some_and(|bits| bits & SACK != 0),
        ecn: bits.is_some_and(|bits| bits & ECN != 0),
        timestamp: timestamps.map(|(timestamp, _)| timestamp),
        window,
    })
}

/// Returns our key for the connection that this cookie begins.
pub(super) fn key(secrets: &SecretGenerator, tuple: FourTuple, peer_isn: u32, cookie: u32) -> u64 {
    let message = u128::from(peer_isn) << 32 | u128::from(cookie);
    secrets.keyed_hash(b"towpath key of a cookie", tuple, message.to_be_bytes())
}

fn period_at(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_PERIOD.as_nanos() as u64
}

fn encode(
    secrets: &SecretGenerator,
    period: u64,
    tuple: FourTuple,
    peer_isn: u32,
    mss_index: u8,
    bits: Option<u8>,
) -> u32 {
    let options = bits.map_or(0, |bits| 0x100 | u16::from(bits));
    let message = u128::from(peer_isn) << 96
        | u128::from(period) << 32
        | u128::from(options) << 16
        | u128::from(mss_index);
    let hash = secrets.keyed_hash(b"towpath syn cookie", tuple, message.to_be_bytes());
    (period as u32 & 1) << 31 | u32::from(mss_index) << HASH_BITS | hash as u32 & HASH_MASK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stack::secrets::SECRET_BYTES;

    fn secrets() -> SecretGenerator {
        SecretGenerator::from_secret(&[9; SECRET_BYTES])
    }

    fn tuple(port: u16) -> FourTuple {
        (([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], port).into())
    }

    fn at_secs(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    fn offers() -> impl Strategy<Value = SynOptions> {
        let stamp = any::<Option<u32>>();
        let scale = prop::option::of(0_u8..=14);
        (any::<Option<u16>>(), scale, any::<bool>(), any::<bool>(), stamp, any::<u16>()).prop_map(
            |(mss, window_scale, sack, ecn, timestamp, window)| SynOptions {
                mss,
                window_scale,
                sack,
                ecn,
                timestamp,
                window,
            },
        )
    }

    proptest! {
        #[test]
        fn a_cookie_returns_its_encoded_values(
            offer in offers(), peer_isn: u32, clock: u32, created_secs in 0_u64..10_000, age_secs in 0_u64..64,
        ) {
            let Some(subset) = offer.cookie_subset(true, false) else {
                prop_assert!(offer.mss.is_some_and(|mss| mss < MSS_TABLE[0]));
                return Ok(());
            };
            let cookie = build(&secrets(), at_secs(created_secs), tuple(1), peer_isn, &subset);
            let timestamp = stamp(clock, &subset);
            prop_assert!(clock.wrapping_sub(timestamp) <= TIMESTAMP_BITS, "behind by less than 64 ms");
            let timestamps = subset.timestamp.map(|value| (value, timestamp));
            let decoded = read(&secrets(), at_secs(created_secs + age_secs), tuple(1), (peer_isn, cookie), timestamps, offer.window);
            prop_assert_eq!(decoded, Some(subset));
            prop_assert!(subset.mss <= Some(offer.mss.unwrap_or(DEFAULT_MSS)));
            if offer.timestamp.is_some() {
                prop_assert_eq!(SynOptions { mss: offer.mss, ..subset }, offer);
            }
        }

        #[test]
        fn a_cookie_is_valid_for_one_to_two_periods(offer in offers(), created_secs in 0_u64..10_000, age_secs in 0_u64..300) {
            let Some(subset) = offer.cookie_subset(true, false) else { return Ok(()) };
            let cookie = build(&secrets(), at_secs(created_secs), tuple(1), 5, &subset);
            let timestamps = subset.timestamp.map(|value| (value, stamp(77, &subset)));
            let decoded = read(&secrets(), at_secs(created_secs + age_secs), tuple(1), (5, cookie), timestamps, 0);
            let is_valid = (created_secs + age_secs) / 64 - created_secs / 64 <= 1;
            prop_assert_eq!(decoded.is_some(), is_valid);
            prop_assert!(is_valid || age_secs >= 64);
            prop_assert!(!is_valid || age_secs < 128);
        }

        #[test]
        fn a_cookie_is_invalid_with_any_other_input(
            offer in offers(), other_port in 2_u16.., isn_offset in 1_u32.., flipped_bit in 0_u32..32,
        ) {
            let Some(subset) = offer.cookie_subset(true, true) else { return Ok(()) };
            let cookie = build(&secrets(), at_secs(9), tuple(1), 5, &subset);
            let timestamps = subset.timestamp.map(|value| (value, stamp(77, &subset)));
            let accepts = |secrets: &SecretGenerator, tuple, numbers, timestamps| {
                read(secrets, at_secs(9), tuple, numbers, timestamps, 0).is_some()
            };
            prop_assert!(accepts(&secrets(), tuple(1), (5, cookie), timestamps));
            prop_assert!(!accepts(&secrets(), tuple(other_port), (5, cookie), timestamps));
            prop_assert!(!accepts(&secrets(), tuple(1), (5_u32.wrapping_add(isn_offset), cookie), timestamps));
            prop_assert!(!accepts(&secrets(), tuple(1), (5, cookie ^ 1 << flipped_bit), timestamps));
            prop_assert!(!accepts(&SecretGenerator::from_secret(&[8; SECRET_BYTES]), tuple(1), (5, cookie), timestamps));
            let changed_echo = timestamps.map(|(value, echo)| (value, echo ^ 1 << (flipped_bit % 6)));
            prop_assert!(changed_echo.is_none() || !accepts(&secrets(), tuple(1), (5, cookie), changed_echo));
        }
    }

    #[test]
    fn keys_of_two_cookies_differ() {
        let key = |cookie| key(&secrets(), tuple(1), 5, cookie);
        assert_ne!(key(6), key(7));
    }
}
