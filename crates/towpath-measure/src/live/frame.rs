//! Frames: a length of four bytes, then so many bytes of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// No frame is longer.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Why a connection's frames cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// It announces more than any frame holds.
    #[error("a frame of {0} bytes; none is longer than {MAX_FRAME_BYTES}")]
    TooLong(usize),
    /// It does not hold what is expected.
    #[error("a frame that is not understood: {0}")]
    NotUnderstood(String),
}

/// Frames out of bytes as they come.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
}

impl FrameDecoder {
    /// Takes bytes. Who reads a connection calls [`Self::take`] until there is none before more are
    /// taken, so that no more than one frame and one read's bytes are kept.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are kept.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The next frame, if it is there as a whole.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let read = serde_json::from_slice(content);
        let read = read.map_err(|error| FrameError::NotUnderstood(error.to_string()))?;
        self.buffer.drain(..length.saturating_add(4));
        Ok(Some(read))
    }
}

/// A frame as it is sent.
pub fn to_bytes<T: Serialize>(content: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, content)
        .map_err(|error| FrameError::NotUnderstood(error.to_string()))?;
    let length = bytes.len().saturating_sub(4);
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length));
    }
    if let Some(head) = bytes.first_chunk_mut() {
        *head = (length as u32).to_be_bytes();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_are_read_however_they_are_cut(
            texts in proptest::collection::vec(".{0,200}", 1..8), cut in 1_usize..50,
        ) {
            let all: Vec<u8> = texts.iter().flat_map(|text| to_bytes(text).unwrap()).collect();
            let (mut frames, mut found) = (FrameDecoder::default(), Vec::new());
            for piece in all.chunks(cut) {
                frames.push(piece);
                while let Some(text) = frames.take::<String>().unwrap() {
                    found.push(text);
                }
            }
            prop_assert_eq!(found, texts);
            prop_assert_eq!(frames.buffered(), 0);
        }

        #[test]
        fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut frames = FrameDecoder::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.take::<serde_json::Value>() {}
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
        let mut frames = FrameDecoder::default();
        frames.push(&u32::MAX.to_be_bytes());
        assert_eq!(frames.take::<String>(), Err(FrameError::TooLong(u32::MAX as usize)));
        let long = "x".repeat(MAX_FRAME_BYTES);
        assert_eq!(to_bytes(&long), Err(FrameError::TooLong(MAX_FRAME_BYTES + 2)));
    }
}
