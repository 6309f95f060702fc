//! The upload of a result to a collector: names that both ends use, and the replies.
//!
//! A client sends `PUT /api/v1/runs/HASH` with the result, compressed with zstd. `HASH` is the
//! [`content_hash`] of the uncompressed result, so an upload that is repeated has no effect.
//!
//! While a run is in progress, a client may send `POST /api/v1/live/ID` with the conditions and the newest
//! records as JSON Lines. `ID` is the [`live_id`] of the run. The collector shows these records
//! until the result arrives, and stores none of them.

use std::fmt::Write as _;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Meta;

/// Path of the collector's interface for runs.
pub const RUNS_PATH: &str = "/api/v1/runs";
/// Media type of a compressed result.
pub const RESULT_MEDIA_TYPE: &str = "application/zstd";
/// Header with the number of bytes of the uncompressed result.
pub const SIZE_HEADER: &str = "towpath-size";
/// Header with the name of the host that made the run.
pub const HOST_HEADER: &str = "towpath-host";
/// Header with the start of a run whose result does not say it, in microseconds since 1970.
pub const TIME_HEADER: &str = "towpath-time";
/// Path of the collector's interface for runs in progress.
pub const LIVE_PATH: &str = "/api/v1/live";
/// Media type of the records of a run in progress.
pub const LIVE_MEDIA_TYPE: &str = "application/jsonl";
/// Header with the number of records that were sent before, without the conditions.
pub const FIRST_HEADER: &str = "towpath-first";
/// Maximum number of bytes of the records in one request.
pub const MAX_LIVE_BYTES: usize = 1_000_000;
/// Maximum number of bytes of an uploaded result, compressed.
pub const MAX_COMPRESSED_BYTES: u64 = 32_000_000;
/// Maximum number of bytes of an uploaded result, uncompressed.
pub const MAX_EXPANDED_BYTES: u64 = 256_000_000;
/// Maximum length of a host's name in bytes (RFC 1035 §3.1).
pub const MAX_HOST_BYTES: usize = 255;

/// Returns the identifier of a run in progress: 20 hexadecimal digits. Host and collector
/// compute it from the conditions that the final result has as well.
///
/// `None` for a run without a start, such as a simulated one.
pub fn live_id(meta: &Meta, host: &str) -> Option<String> {
    let started_us = meta.started_us?;
    let (world, transport, repeat) = (meta.world, meta.transport, meta.repeat);
    let text = format!("{host}\n{}\n{started_us} {world} {transport} {repeat}", meta.run);
    Some(hex(&Sha256::digest(text.as_bytes())).chars().take(20).collect())
}

/// Reply to an upload: status 201 if the run is new, 200 if the collector already had it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadReply {
    /// Identifier of the run: the first 20 digits of its content hash.
    pub id: String,
    /// Permanent address of the run's page.
    pub url: String,
    /// True if the run is new.
    pub created: bool,
}

/// Reply to a refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Reason of the refusal, for people.
    pub error: String,
    /// Suggested action, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Returns SHA-256 of all bytes that `content` yields, in 64 hexadecimal digits, and their number.
pub fn content_hash(mut content: impl Read) -> io::Result<(String, u64)> {
    let (mut hasher, mut length) = (Sha256::new(), 0_u64);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = content.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex(&hasher.finalize()), length));
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
        length += count as u64;
    }
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // cannot fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_sha_256_of_the_whole_content() {
        // NIST FIPS 180-4, example "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(content_hash(&b"abc"[..]).unwrap(), (abc.to_owned(), 3));
        let long = vec![b'x'; 200_000];
        assert_eq!(content_hash(&long[..]).unwrap().1, 200_000);
    }
}
