//! Internet checksum (RFC 1071) over data in several pieces.

/// One's complement sum in progress.
///
/// Sums are kept in the machine's byte order, which RFC 1071 §2 (B) allows: only the result is
/// swapped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartialChecksum {
    /// Sum of 16-bit words; carries accumulate in the upper bits.
    total: u64,
    /// Set after an odd number of bytes: the next byte is the second of a word.
    odd: bool,
}

impl PartialChecksum {
    /// Adds bytes that follow the previous ones.
    #[must_use]
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<16>();
        let mut lanes = [0_u64; 4];
        for [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] in blocks {
            let words = [
                [*a0, *a1, *a2, *a3],
                [*b0, *b1, *b2, *b3],
                [*c0, *c1, *c2, *c3],
                [*d0, *d1, *d2, *d3],
            ];
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(word)));
            }
        }
        let mut sum = lanes.into_iter().fold(0, u64::wrapping_add);
        let (pairs, last) = rest.as_chunks::<2>();
        for pair in pairs {
            sum = sum.wrapping_add(u64::from(u16::from_ne_bytes(*pair)));
        }
        if let [last] = last {
            sum = sum.wrapping_add(u64::from(u16::from_ne_bytes([*last, 0])));
        }
        // At an odd position, every byte is in the other byte of its word (RFC 1071 §2 (B)).
        let sum = if self.odd { u64::from(fold(sum).swap_bytes()) } else { sum };
        Self { total: self.total.wrapping_add(sum), odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// Adds whole 32-bit words; only at even positions. For headers, which are too short for
    /// [`PartialChecksum::bytes`] to pay off.
    #[must_use]
    #[inline]
    pub(crate) fn words32(self, bytes: &[u8]) -> Self {
        let words = bytes.as_chunks::<4>().0.iter();
        let sum = words.fold(0_u64, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
        Self { total: self.total.wrapping_add(sum), ..self }
    }

    /// Adds a 16-bit field; only at even positions.
    #[must_use]
    pub(crate) fn word(self, word: u16) -> Self {
        Self { total: self.total.wrapping_add(u64::from(word.to_be())), ..self }
    }

    /// Returns the sum, folded to 16 bits, not inverted: 0xffff if the bytes contain their own
    /// checksum.
    pub(crate) fn folded(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// Returns the complemented sum, for the checksum field.
    pub(crate) fn finish(self) -> u16 {
        !self.folded()
    }
}

/// Adds the carries until none is left. The result is zero only for zero.
fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while let carry @ 1.. = sum >> 16 {
        sum = (sum & 0xffff) + carry;
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the sum as defined in RFC 1071 §1, word by word.
    fn rfc1071_checksum(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_gives_its_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(PartialChecksum::default().bytes(&bytes).folded(), 0xddf2);
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_give_the_sum_of_the_whole(
            pieces in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xff)], 0..70), 0..6),
        ) {
            let sum = pieces.iter().fold(PartialChecksum::default(), |sum, piece| sum.bytes(piece));
            prop_assert_eq!(sum.finish(), rfc1071_checksum(&pieces.concat()));
        }

        #[test]
        fn words_give_the_sum_of_their_bytes(words: Vec<[u8; 4]>) {
            let bytes = words.as_flattened();
            prop_assert_eq!(PartialChecksum::default().words32(bytes).finish(), rfc1071_checksum(bytes));
        }
    }
}
