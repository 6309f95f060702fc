//! Reader for zstd (RFC 8878): any number of frames, as `cat` and `pzstd` produce them.

use std::fmt;
use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const NO_FRAME: &str = "it is not compressed with zstd, as its name says";

/// Reads the content of all frames in sequence.
pub struct FrameReader<R> {
    input: R,
    decoder: FrameDecoder,
}

impl<R> fmt::Debug for FrameReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").finish_non_exhaustive()
    }
}

impl<R: BufRead> FrameReader<R> {
    /// Creates a reader. Fails if the input does not begin with a frame.
    pub fn new(input: R) -> io::Result<Self> {
        let mut this = Self { input, decoder: FrameDecoder::new() };
        if this.next_frame()? { Ok(this) } else { Err(io::Error::other(NO_FRAME)) }
    }

    /// Starts the next frame with content. Returns false at the end of the input.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => return Ok(true),
                // RFC 8878 §3.1.2: a decoder skips a skippable frame that it cannot interpret.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                }
                Err(_) => return Err(io::Error::other(NO_FRAME)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for FrameReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let one_block = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.input, one_block).map_err(io::Error::other)?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.decoder.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn compress_frame(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    fn decompress(bytes: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        FrameReader::new(bytes)?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn all_frames_are_read_and_empty_ones_are_skipped() {
        let skippable_frame = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
        let long = "line\n".repeat(100_000);
        let frames = [
            compress_frame("one\n"),
            skippable_frame.clone(),
            compress_frame(""),
            compress_frame(&long),
            compress_frame("two\n"),
            skippable_frame,
        ];
        assert_eq!(decompress(&frames.concat()).unwrap(), format!("one\n{long}two\n"));
    }

    #[test]
    fn trailing_data_after_a_frame_is_an_error() {
        let error =
            decompress(&[compress_frame("one\n"), b"{}\n{}\n".to_vec()].concat()).unwrap_err();
        assert_eq!(error.to_string(), NO_FRAME);
        assert!(decompress(&[]).is_err());
        let complete_frame = compress_frame("one\n");
        for length in 1..complete_frame.len() - 1 {
            assert!(decompress(complete_frame.get(..length).unwrap()).is_err(), "{length}");
        }
    }
}
