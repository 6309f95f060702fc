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
            let at = position % PATTERN_PERIOD;
            // Low byte of the position, mixed with the high byte.
            (at ^ (at >> 8).wrapping_mul(37)) as u8
        };
        Self { buffer: (0..WRITE_BYTES + PATTERN_PERIOD).map(byte).collect::<Vec<u8>>().into() }
    }

    /// Returns at most `most` bytes of the stream from `position` on.
    pub(crate) fn from(&self, position: u64, most: u64) -> Bytes {
        let start = phase(position);
        let len = usize::try_from(most).unwrap_or(WRITE_BYTES).min(WRITE_BYTES);
        self.buffer.slice(start..start + len)
    }

    /// Returns true if `data` equals the pattern at `position`. A slice of the buffer at the right
    /// offset was not modified in transit, so its bytes are not compared.
    pub(crate) fn matches(&self, position: u64, data: &[u8]) -> bool {
        let offset = (data.as_ptr() as usize).wrapping_sub(self.buffer.as_ptr() as usize);
        let inside = offset.saturating_add(data.len()) <= self.buffer.len();
        if inside && offset % PATTERN_PERIOD == phase(position) {
            return true;
        }
        let mut at = position;
        data.chunks(WRITE_BYTES).all(|part| {
            let start = phase(at);
            at = at.wrapping_add(part.len() as u64);
            self.buffer.get(start..start + part.len()) == Some(part)
        })
    }
}

fn phase(position: u64) -> usize {
    (position % PATTERN_PERIOD as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_bytes_at_each_offset_are_accepted() {
        let content = TestPattern::new();
        for position in [0, 1, 8_190, 8_191, 1_000_000_007] {
            let data = content.from(position, 3_000);
            let copied = data.to_vec();
            assert!(content.matches(position, &data) && content.matches(position, &copied));
            assert!(
                !content.matches(position + 1, &data) && !content.matches(position + 1, &copied)
            );
            let mut changed = data.to_vec();
            changed[1_234] ^= 1;
            assert!(!content.matches(position, &changed));
        }
        assert!(content.matches(5, &content.from(5, u64::MAX)));
        assert_eq!(content.from(9, u64::MAX).len(), WRITE_BYTES);
    }
}
