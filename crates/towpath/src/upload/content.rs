//! Content of a result file: its hash, its sizes and the start of its run.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use towpath_result::format;
use towpath_result::frames::FrameReader;
use towpath_result::input::{self, ReadBudget};
use towpath_result::prefix;
use towpath_result::store::{StoreError, read_run_within};
use towpath_result::upload::{MAX_COMPRESSED_BYTES, MAX_EXPANDED_BYTES, content_hash};

/// Reason why a file cannot be uploaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContentError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is not a result: {0}")]
    Result(#[from] StoreError),
    #[error("it has more than {}, and collectors accept no more", format::bytes(*.0))]
    TooLarge(u64),
}

/// Result that is ready to be sent.
#[derive(Debug)]
pub(super) struct PackedResult {
    pub(super) facts: ContentFacts,
    /// Content, compressed with zstd.
    pub(super) bytes: Vec<u8>,
    /// Modification time of the file, in microseconds since 1970.
    pub(super) modified_us: Option<u64>,
}

/// Properties of a result's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentFacts {
    /// SHA-256 of the uncompressed content, in hexadecimal digits.
    pub(super) hash: String,
    pub(super) expanded_bytes: u64,
    /// Start of the run in microseconds since 1970; `None` if the result does not say it.
    pub(super) started_us: Option<u64>,
}

/// Form of the IP addresses in an uploaded result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressForm {
    /// Addresses as measured.
    Full,
    /// Network prefixes: /24 of IPv4, /48 of IPv6.
    Prefix,
}

/// Reads a result file, and compresses it unless it is compressed.
pub(super) fn pack(path: &Path, addresses: AddressForm) -> Result<PackedResult, ContentError> {
    let file = input::open(path)?;
    let modified_us = file.metadata()?.modified().ok().and_then(to_unix_us);
    let is_compressed = path.extension().is_some_and(|extension| extension == "zst");
    let max_bytes = if is_compressed { MAX_COMPRESSED_BYTES } else { MAX_EXPANDED_BYTES };
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(ContentError::TooLarge(max_bytes));
    }
    if addresses == AddressForm::Prefix {
        bytes = shorten(&bytes, is_compressed)?;
    } else if !is_compressed {
        bytes = compress_to_vec(&bytes[..], CompressionLevel::Fastest);
    }
    if bytes.len() as u64 > MAX_COMPRESSED_BYTES {
        return Err(ContentError::TooLarge(MAX_COMPRESSED_BYTES));
    }
    Ok(PackedResult { facts: inspect(&bytes)?, bytes, modified_us })
}

/// Shortens all addresses, and compresses the result.
fn shorten(bytes: &[u8], is_compressed: bool) -> Result<Vec<u8>, ContentError> {
    let mut text = String::new();
    let limit = MAX_EXPANDED_BYTES + 1;
    if is_compressed {
        BufReader::new(FrameReader::new(bytes)?).take(limit).read_to_string(&mut text)?;
    } else {
        bytes.take(limit).read_to_string(&mut text)?;
    }
    if text.len() as u64 > MAX_EXPANDED_BYTES {
        return Err(ContentError::TooLarge(MAX_EXPANDED_BYTES));
    }
    Ok(compress_to_vec(prefix::shorten_all(&text).as_bytes(), CompressionLevel::Fastest))
}

/// Reads the properties of a compressed result, of which only the first record is parsed.
pub(super) fn inspect(compressed: &[u8]) -> Result<ContentFacts, ContentError> {
    inspect_within(compressed, MAX_EXPANDED_BYTES)
}

fn inspect_within(compressed: &[u8], max_bytes: u64) -> Result<ContentFacts, ContentError> {
    let mut content = BufReader::new(FrameReader::new(compressed)?).take(max_bytes + 1);
    let mut first_line = Vec::new();
    content.read_until(b'\n', &mut first_line)?;
    let budget = ReadBudget::of(MAX_EXPANDED_BYTES);
    let started_us = read_run_within(&first_line[..], &budget)?.meta.started_us;
    let (hash, expanded_bytes) = content_hash(Cursor::new(first_line).chain(content))?;
    if expanded_bytes > max_bytes {
        return Err(ContentError::TooLarge(max_bytes));
    }
    Ok(ContentFacts { hash, expanded_bytes, started_us })
}

/// Converts to microseconds since 1970; `None` for earlier times.
pub(super) fn to_unix_us(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|span| span.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::upload::fixtures::{RESULT, TestFolder, result};

    const FULL: AddressForm = AddressForm::Full;

    #[test]
    fn a_plain_and_a_compressed_file_have_the_same_content() {
        let folder = TestFolder::new("content-equal");
        let (plain, packed) = (folder.path("a.jsonl"), folder.path("a.jsonl.zst"));
        fs::write(&plain, RESULT).unwrap();
        fs::write(&packed, compress_to_vec(RESULT.as_bytes(), CompressionLevel::Fastest)).unwrap();
        let (plain, packed) = (pack(&plain, FULL).unwrap(), pack(&packed, FULL).unwrap());
        assert_eq!(plain.facts, packed.facts);
        assert_eq!(content_hash(RESULT.as_bytes()).unwrap(), {
            (plain.facts.hash.clone(), plain.facts.expanded_bytes)
        });
        assert_eq!(inspect(&plain.bytes).unwrap(), plain.facts);
        assert!(plain.modified_us.is_some());
    }

    #[test]
    fn the_result_of_a_device_has_prefixes_only() {
        let folder = TestFolder::new("content-prefix");
        let (plain, packed) = (folder.path("a.jsonl"), folder.path("a.jsonl.zst"));
        let text = RESULT.replacen("\"seed\":", "\"text\":\"203.0.113.7:443\",\"seed\":", 1);
        assert_ne!(text, RESULT);
        fs::write(&plain, &text).unwrap();
        fs::write(&packed, compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)).unwrap();
        let expected = content_hash(prefix::shorten_all(&text).as_bytes()).unwrap();
        for path in [&plain, &packed] {
            let short = pack(path, AddressForm::Prefix).unwrap();
            assert_eq!((short.facts.hash.clone(), short.facts.expanded_bytes), expected);
            assert_eq!(inspect(&short.bytes).unwrap(), short.facts);
            assert_ne!(pack(path, FULL).unwrap().facts.hash, short.facts.hash);
        }
        fs::write(&packed, b"no frame").unwrap();
        assert!(pack(&packed, AddressForm::Prefix).is_err());
    }

    #[test]
    fn the_start_of_a_run_is_read_from_its_first_record() {
        let with_start =
            result(1).replacen("\"seed\":", "\"started_us\":1700000000000000,\"seed\":", 1);
        let bytes = compress_to_vec(with_start.as_bytes(), CompressionLevel::Fastest);
        assert_eq!(inspect(&bytes).unwrap().started_us, Some(1_700_000_000_000_000));
    }

    #[test]
    fn other_files_are_refused() {
        let folder = TestFolder::new("content-other");
        let other = folder.path("other.jsonl");
        for content in ["", "text\n", "{\"type\":\"meta\"}\n"] {
            fs::write(&other, content).unwrap();
            assert!(pack(&other, FULL).is_err(), "{content}");
        }
        let broken = folder.path("broken.jsonl.zst");
        let whole = compress_to_vec(RESULT.as_bytes(), CompressionLevel::Fastest);
        for length in [0, 3, whole.len() / 2, whole.len() - 1] {
            fs::write(&broken, &whole[..length]).unwrap();
            assert!(pack(&broken, FULL).is_err(), "{length}");
        }
        assert!(matches!(pack(&folder.path("none.jsonl"), FULL), Err(ContentError::Io(_))));
    }

    #[test]
    fn a_result_that_expands_beyond_the_limit_is_refused() {
        let compressed = compress_to_vec(RESULT.as_bytes(), CompressionLevel::Fastest);
        let length = RESULT.len() as u64;
        assert!(inspect_within(&compressed, length).is_ok());
        let refused = inspect_within(&compressed, length - 1);
        assert!(matches!(refused, Err(ContentError::TooLarge(_))));
    }
}
