//! Text of a server's report, written in chunks while the test runs.

use std::io;

use serde::Serialize;
use towpath_result::Record;
use towpath_sockets::memory_account::MemoryCharge;

use crate::protocol::{HostReport, ReportLineRef};

/// Size of a chunk in bytes. A text in chunks grows without copies and leaves no free gaps.
const CHUNK_BYTES: usize = 64 * 1024;

/// Text in chunks. Each chunk is valid UTF-8.
#[derive(Debug, Default)]
pub(super) struct ReportWriter {
    chunks: Vec<Vec<u8>>,
    length: u64,
}

impl ReportWriter {
    /// Appends a record; returns the bytes of its text.
    pub(super) fn append_record(&mut self, record: &Record) -> u64 {
        let before = self.length;
        self.append_line(&ReportLineRef::Record(record));
        self.length - before
    }

    /// Appends a whole report. Each part is freed once it is written.
    pub(super) fn append_report(&mut self, report: HostReport) {
        report.into_lines(&mut |line| self.append_line(&line));
    }

    /// Returns the text, which holds `charge` until it is dropped.
    pub(super) fn finish(self, charge: MemoryCharge) -> ReportText {
        charge.set(self.length);
        ReportText { chunks: self.chunks, length: self.length, _charge: charge }
    }

    fn append_line(&mut self, line: &impl Serialize) {
        // Cannot fail: the lines hold only numbers, strings and lists of them.
        let _ = serde_json::to_writer(&mut *self, line);
        let _ = io::Write::write_all(self, b"\n");
    }
}

impl io::Write for ReportWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let room = self.chunks.last().map_or(0, |chunk| CHUNK_BYTES.saturating_sub(chunk.len()));
        let mut length = char_boundary(text, room);
        if length == 0 {
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES));
            length = char_boundary(text, CHUNK_BYTES);
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.extend_from_slice(text.get(..length).unwrap_or_default());
            self.length += length as u64;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the most bytes of a UTF-8 text, up to `max_bytes`, that do not end within a character.
fn char_boundary(text: &[u8], max_bytes: usize) -> usize {
    let mut length = text.len().min(max_bytes);
    while length > 0 && text.get(length).is_some_and(|byte| byte & 0xc0 == 0x80) {
        length -= 1;
    }
    length
}

/// Text of a report. Its memory is charged to the server's account until it is freed.
#[derive(Debug)]
pub(super) struct ReportText {
    chunks: Vec<Vec<u8>>,
    length: u64,
    _charge: MemoryCharge,
}

impl ReportText {
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Returns up to `max_bytes` bytes from `offset`. Returns an empty part at the end, and `None`
    /// if the offset is beyond it or within a character.
    pub(super) fn part(&self, offset: u64, max_bytes: usize) -> Option<&str> {
        let mut offset = usize::try_from(offset).ok()?;
        for chunk in &self.chunks {
            if offset < chunk.len() {
                let rest = chunk.get(offset..)?;
                let part = rest.get(..char_boundary(rest, max_bytes))?;
                return std::str::from_utf8(part).ok();
            }
            offset -= chunk.len();
        }
        (offset == 0).then_some("")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use towpath_sockets::memory_account::MemoryAccount;

    use super::*;

    fn write(texts: &[String]) -> ReportText {
        let mut writer = ReportWriter::default();
        for text in texts {
            writer.append_line(text);
        }
        writer.finish(MemoryAccount::new(0).charge(0))
    }

    /// Returns the text, read in parts of at most `max_bytes`.
    fn read(text: &ReportText, max_bytes: usize) -> String {
        let mut whole = String::new();
        while whole.len() < text.len() as usize {
            let part = text.part(whole.len() as u64, max_bytes).unwrap();
            assert!(!part.is_empty() && part.len() <= max_bytes);
            whole.push_str(part);
        }
        assert_eq!(text.part(text.len(), max_bytes), Some(""));
        assert_eq!(text.part(text.len() + 1, max_bytes), None);
        whole
    }

    proptest! {
        #[test]
        fn a_text_in_chunks_is_read_as_it_was_written(
            parts in prop::collection::vec(("[a-z→é𝄞\"]{0,9}", 1_usize..30_000), 0..6),
            max_bytes in 4_usize..100_000,
        ) {
            let texts: Vec<String> = parts.iter().map(|(text, count)| text.repeat(*count)).collect();
            let expected: String =
                texts.iter().map(|text| serde_json::to_string(text).unwrap() + "\n").collect();
            let text = write(&texts);
            prop_assert_eq!(text.len(), expected.len() as u64);
            prop_assert!(read(&text, max_bytes) == expected);
        }
    }
}
