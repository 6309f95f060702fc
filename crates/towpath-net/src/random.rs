//! Independent streams of random numbers, one for each element and purpose.
//!
//! A stream depends on the seed of the scenario and on names only. Adding a link, or loss to a
//! link, therefore does not change the numbers that others draw.

use rand_core::Rng;
use rand_pcg::Pcg32;

use crate::config::Probability;

/// Returns the seed of one element's random numbers for one purpose.
///
/// FNV-1a over both names, mixed with `scenario_seed` by `SplitMix64`.
pub fn stream_seed(scenario_seed: u64, element_name: &str, purpose: &str) -> u64 {
    // 0xff never occurs in UTF-8, so ("ab", "c") and ("a", "bc") differ.
    let name_bytes = element_name.bytes().chain([0xff]).chain(purpose.bytes());
    let name_hash = name_bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(mix(scenario_seed) ^ name_hash)
}

/// One step of `SplitMix64` (Steele, Lea and Flood 2014).
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The random numbers of one purpose.
#[derive(Debug, Clone)]
pub(crate) struct RngStream(Pcg32);

impl RngStream {
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let seed = stream_seed(seed, "", purpose);
        Self(Pcg32::new(seed, mix(seed)))
    }

    #[inline]
    pub(crate) fn draw(&mut self) -> u32 {
        self.0.next_u32()
    }

    pub(crate) fn draw_wide(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns true with this chance; draws nothing when the chance is zero.
    #[inline]
    pub(crate) fn happens(&mut self, chance: Probability) -> bool {
        chance != Probability::NEVER
            && (self.draw() < chance.as_raw() || chance == Probability::ALWAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_names_differ_and_equal_names_agree() {
        let seed = stream_seed(1, "wifi", "loss");
        assert_eq!(seed, stream_seed(1, "wifi", "loss"));
        assert_ne!(seed, stream_seed(2, "wifi", "loss"));
        assert_ne!(seed, stream_seed(1, "wifi", "jitter"));
        assert_ne!(stream_seed(1, "ab", "c"), stream_seed(1, "a", "bc"));
    }

    #[test]
    fn splitmix_gives_its_published_first_output() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn never_and_always_are_exact() {
        let mut stream = RngStream::new(1, "test");
        assert!((0..10_000).all(|_| stream.happens(Probability::ALWAYS)));
        assert!(!(0..10_000).any(|_| stream.happens(Probability::NEVER)));
    }
}
