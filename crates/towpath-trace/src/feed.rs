//! Analysis of a capture while it is being written; none of it is stored.

use std::io::{self, Read, Write};

use super::file::CaptureReader;
use super::{AnalysisBuilder, CaptureAnalysis};

/// Number of unread bytes at which they are parsed.
const CHUNK_BYTES: usize = 1 << 16;
/// Maximum number of packets that are analysed, so that a run does not take much longer.
const MAX_FRAMES: u64 = 3_000_000;

/// Writer that takes a capture file as it is written.
#[derive(Debug, Default)]
pub struct CaptureFeed {
    reader: Option<CaptureReader<UnreadBytes>>,
    waiting: UnreadBytes,
    builder: AnalysisBuilder,
    /// True if the input is not a valid capture; the rest is skipped.
    failed: bool,
}

/// Bytes that were written and not yet read.
#[derive(Debug, Default)]
struct UnreadBytes {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for UnreadBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let unread = self.bytes.get(self.read..).unwrap_or_default();
        let count = unread.len().min(buffer.len());
        let (Some(source), Some(target)) = (unread.get(..count), buffer.get_mut(..count)) else {
            return Ok(0);
        };
        target.copy_from_slice(source);
        self.read += count;
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
        }
        Ok(count)
    }
}

impl Write for CaptureFeed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_over() {
            let waiting = self.reader.as_mut().map_or(&mut self.waiting, CaptureReader::input);
            waiting.bytes.extend_from_slice(bytes);
            if waiting.bytes.len() >= CHUNK_BYTES {
                self.parse_available();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.parse_available();
        Ok(())
    }
}

impl CaptureFeed {
    /// Returns true if further input would change nothing.
    fn is_over(&self) -> bool {
        self.failed || self.builder.frames >= MAX_FRAMES
    }

    /// Parses the frames that are complete.
    fn parse_available(&mut self) {
        if self.reader.is_none() {
            match CaptureReader::open(std::mem::take(&mut self.waiting)) {
                Ok(reader) => self.reader = Some(reader),
                Err(_) => self.failed = true,
            }
        }
        let Some(reader) = &mut self.reader else { return };
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => self.builder.add_frame(&frame),
                Ok(None) => return,
                Err(_) => {
                    self.failed = true;
                    return;
                }
            }
        }
    }

    /// Returns the analysis; `None` without any frame.
    pub fn finish(mut self) -> Option<CaptureAnalysis> {
        self.parse_available();
        let reader = self.reader.filter(|_| self.builder.frames > 0)?;
        Some(self.builder.finish(&reader, (None, false)))
    }
}
