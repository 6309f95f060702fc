//! Random numbers that are the same on every machine.
//!
//! Uses integers, and only the floating-point operations that IEEE 754 rounds exactly:
//! `+ - * / sqrt`.

/// A stream of random numbers for one question about one scenario.
///
/// Each question has a stream of its own, so that a change in one distribution leaves all other
/// draws unchanged.
#[derive(Debug, Clone)]
pub(super) struct RngStream {
    state: u64,
}

/// Bits of the exponent in a logarithmic draw.
const EXPONENT_BITS: u32 = 24;

impl RngStream {
    /// Makes the random stream for a question about scenario `number` of `seed`.
    pub(super) fn new(seed: u64, number: u32, question: &str) -> Self {
        let mut state = mix(seed ^ 0x7457_494e_5f31_3400).wrapping_add(u64::from(number));
        for byte in question.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self { state }
    }

    /// Returns the next number, by `SplitMix64` (Steele, Lea and Flood, *Fast splittable
    /// pseudorandom number generators*, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Draws evenly from `0` to `end - 1`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: no division, and a negligible bias for such small numbers.
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Draws evenly from `min` to `max`, both included.
    pub(super) fn even(&mut self, [min, max]: [u64; 2]) -> u64 {
        min + self.below(max - min + 1)
    }

    /// Returns true in `percent` of all draws.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Draws evenly by logarithm from `min` to `max`, to three significant digits.
    pub(super) fn log_even(&mut self, [min, max]: [u64; 2]) -> u64 {
        let exponent = self.next() >> (64 - EXPONENT_BITS);
        let mut root = max as f64 / min as f64;
        let mut factor = 1.0;
        for bit in (0..EXPONENT_BITS).rev() {
            root = root.sqrt();
            if exponent >> bit & 1 == 1 {
                factor *= root;
            }
        }
        round_to_three_digits((min as f64 * factor) as u64).clamp(min, max)
    }

    /// Draws one of the entries, by its weight.
    pub(super) fn weighted<'a, T>(&mut self, entries: &'a [(u32, T)]) -> Option<&'a T> {
        let total = entries.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut remaining = self.below(total);
        for (weight, value) in entries {
            match remaining.checked_sub(u64::from(*weight)) {
                Some(rest) => remaining = rest,
                None => return Some(value),
            }
        }
        None
    }
}

/// Mixes a value with the finaliser of `SplitMix64`.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn round_to_three_digits(value: u64) -> u64 {
    let mut unit = 1;
    while value / unit >= 1_000 {
        unit *= 10;
    }
    value / unit * unit
}

/// Hashes with FNV-1a: names stored files, without any security.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let start: u64 = 0xcbf2_9ce4_8422_2325;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    parts.into_iter().fold(start, |hash, part| part.iter().fold(hash, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_draw_keys_give_equal_values_and_others_differ() {
        let first = RngStream::new(1, 0, "rate").next();
        assert_eq!(first, RngStream::new(1, 0, "rate").next());
        for other in
            [RngStream::new(2, 0, "rate"), RngStream::new(1, 1, "rate"), RngStream::new(1, 0, "r")]
        {
            assert_ne!(first, other.clone().next());
        }
    }

    #[test]
    fn a_draw_by_logarithm_fills_each_decade_alike() {
        let mut stream = RngStream::new(7, 0, "x");
        let mut decades = [0; 3];
        for _ in 0..3_000 {
            let value = stream.log_even([1_000, 1_000_000]);
            assert!((1_000..=1_000_000).contains(&value));
            decades[usize::from(value >= 10_000) + usize::from(value >= 100_000)] += 1;
        }
        assert!(decades.iter().all(|count| (900..1_100).contains(count)), "{decades:?}");
    }

    #[test]
    fn weights_are_respected() {
        let mut stream = RngStream::new(7, 0, "x");
        let drawn: Vec<_> =
            (0..1_000).filter_map(|_| stream.weighted(&[(20, 'a'), (80, 'b')])).collect();
        let first = drawn.iter().filter(|letter| ***letter == 'a').count();
        assert_eq!(drawn.len(), 1_000);
        assert!((150..250).contains(&first), "{first}");
    }
}
