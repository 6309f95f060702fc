//! Test pattern: an endless stream in which each byte depends on its position. A receiver can
//! verify it without a copy.

use bytes::Bytes;

/// Bytes after which the pattern repeats. A prime, so that a shift by whole packets, mappings or
/// buffers is detected.
const PATTERN_PERIOD: usize = 8_191;
/// Bytes per write call, as `iperf3` and the emulated world use.
pub(crate) const WRITE_BYTES: usize = 128 * 1_024;

/// Test pattern as one buffer; everything that is sent is a slice of it.
#[derive(Debug, Clone)]
pub(crate) struct TestPattern {
    buffer: Bytes,
}

impl TestPattern {
    pub(crate) fn new() -> Self {
        let byte = |position: usize| {
            let offset = position % PATTERN_PERIOD;
            // Low byte of the position, mixed with the high byte.
            (offset ^ (offset >> 8).wrapping_mul(37)) as u8
        };
        Self { buffer: (0..WRITE_BYTES + PATTERN_PERIOD).map(byte).collect::<Vec<u8>>().into() }
    }

    /// Returns at most `max_bytes` bytes of the stream from `position` on.
    pub(crate) fn slice_from(&self, position: u64, max_bytes: u64) -> Bytes {
        let start = pattern_offset(position);
        let len = usize::try_from(max_bytes).unwrap_or(WRITE_BYTES).min(WRITE_BYTES);
        self.buffer.slice(start..start + len)
    }

    /// Returns true if `data` equals the pattern at `position`. A slice of the buffer at the right
    /// offset was not modified in transit, so its bytes are not compared.
    pub(crate) fn matches(&self, position: u64, data: &[u8]) -> bool {
        let offset = (data.as_ptr() as usize).wrapping_sub(self.buffer.as_ptr() as usize);
        let is_own_slice = offset.saturating_add(data.len()) <= self.buffer.len();
        if is_own_slice && offset % PATTERN_PERIOD == pattern_offset(position) {
            return true;
        }
        let mut chunk_position = position;
        data.chunks(WRITE_BYTES).all(|chunk| {
            let start = pattern_offset(chunk_position);
            chunk_position = chunk_position.wrapping_add(chunk.len() as u64);
            self.buffer.get(start..start + chunk.len()) == Some(chunk)
        })
    }
}

/// Returns the offset in the pattern's period at a position of the stream.
fn pattern_offset(position: u64) -> usize {
    (position % PATTERN_PERIOD as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_bytes_at_each_offset_are_accepted() {
        let pattern = TestPattern::new();
        for position in [0, 1, 8_190, 8_191, 1_000_000_007] {
            let data = pattern.slice_from(position, 3_000);
            let copied = data.to_vec();
            assert!(pattern.matches(position, &data) && pattern.matches(position, &copied));
            assert!(
                !pattern.matches(position + 1, &data) && !pattern.matches(position + 1, &copied)
            );
            let mut changed = data.to_vec();
            changed[1_234] ^= 1;
            assert!(!pattern.matches(position, &changed));
        }
        assert!(pattern.matches(5, &pattern.slice_from(5, u64::MAX)));
        assert_eq!(pattern.slice_from(9, u64::MAX).len(), WRITE_BYTES);
    }
}
