//! Check of an uploaded result: sizes, content hash, format and times.

use std::io::{self, BufReader, Read};

use sha2::{Digest as _, Sha256};
use towpath_result::frames::FrameReader;
use towpath_result::input::ReadBudget;
use towpath_result::store::{StoreError, StoredRun, read_run_within};
use towpath_result::upload::{MAX_EXPANDED_BYTES, hex, live_id};

use crate::catalogue::FactsRow;
use crate::entry::{RunEntry, UploadFacts};
use crate::records::facts_row;
use crate::time::{self, DAY_US, MIN_TIME_US};

/// Statements of a client about its upload.
#[derive(Debug, Clone)]
pub(crate) struct UploadClaim {
    pub(crate) content_hash: String,
    /// Number of bytes of the uncompressed result.
    pub(crate) expanded_bytes: u64,
    pub(crate) host: String,
    /// Start of the run, for a result that does not contain it.
    pub(crate) started_us: Option<i64>,
}

/// Reason why an upload is not accepted. The client cannot repeat it with success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidUpload {
    #[error("the result is not valid: {0}")]
    Result(#[from] StoreError),
    #[error("the body is not compressed with zstd")]
    NotCompressed,
    #[error("the compressed data is damaged or ends early: {0}")]
    Damaged(io::Error),
    #[error("the result has more than the declared {0} bytes")]
    LongerThanDeclared(u64),
    #[error("the result has {found} bytes, not the declared {declared}")]
    OtherSize { found: u64, declared: u64 },
    #[error("the result has the hash {found}, not the declared one")]
    OtherHash { found: String },
    #[error("the run started at {0}, before towpath existed")]
    TooEarly(String),
    #[error("the run started at {0}, which is in the future: check the clock of its host")]
    InFuture(String),
    #[error("the result ends before its first record")]
    Empty,
}

/// A result that may be stored.
#[derive(Debug)]
pub(crate) struct CheckedUpload {
    /// Row of the catalogue.
    pub(crate) entry: RunEntry,
    /// Identifier that the run had while it was in progress.
    pub(crate) live_id: Option<String>,
    /// Facts of the run, if it belongs to a campaign.
    pub(crate) facts: Option<FactsRow>,
}

/// Reads and checks a compressed result.
pub(crate) fn check(
    claim: &UploadClaim,
    body: &[u8],
    now_us: i64,
) -> Result<CheckedUpload, InvalidUpload> {
    let frames = FrameReader::new(body).map_err(|_| InvalidUpload::NotCompressed)?;
    let mut content = CountedContent {
        input: frames,
        hasher: Sha256::new(),
        count: 0,
        max_bytes: claim.expanded_bytes.min(MAX_EXPANDED_BYTES),
    };
    let run = read_run_within(BufReader::new(&mut content), &ReadBudget::of(MAX_EXPANDED_BYTES));
    if content.count > content.max_bytes {
        return Err(InvalidUpload::LongerThanDeclared(claim.expanded_bytes));
    }
    if content.count == 0 && matches!(run, Err(StoreError::NoMeta { .. })) {
        return Err(InvalidUpload::Empty);
    }
    let run = run.map_err(|error| {
        if let StoreError::Io(source) = error {
            InvalidUpload::Damaged(source)
        } else {
            InvalidUpload::Result(error)
        }
    })?;
    if content.count != claim.expanded_bytes {
        let (found, declared) = (content.count, claim.expanded_bytes);
        return Err(InvalidUpload::OtherSize { found, declared });
    }
    let found = hex(&content.hasher.finalize());
    if found != claim.content_hash {
        return Err(InvalidUpload::OtherHash { found });
    }
    let run = StoredRun::new(run, None);
    let started_us = started_us(&run, claim, now_us)?;
    let facts = UploadFacts {
        content_hash: found,
        host: claim.host.clone(),
        received_us: now_us,
        started_us,
        stored_bytes: body.len() as u64,
        expanded_bytes: content.count,
    };
    let entry = RunEntry::of(&run, facts);
    let facts = facts_row(&run, &entry.id).filter(|facts| !facts.campaign.is_empty());
    Ok(CheckedUpload { live_id: live_id(&run.meta, &claim.host), entry, facts })
}

/// Returns the start of a run: its own, else the client's, else the current time.
fn started_us(run: &StoredRun, claim: &UploadClaim, now_us: i64) -> Result<i64, InvalidUpload> {
    let own = run.meta.started_us.map(|start| i64::try_from(start).unwrap_or(i64::MAX));
    let started_us = own.or(claim.started_us).unwrap_or(now_us);
    if started_us < MIN_TIME_US {
        return Err(InvalidUpload::TooEarly(time::text(started_us)));
    }
    // Clocks and time zones of hosts may be wrong by hours.
    if started_us > now_us.saturating_add(DAY_US) {
        return Err(InvalidUpload::InFuture(time::text(started_us)));
    }
    Ok(started_us)
}

/// Content on its way to the reader: hashed, counted, and limited to the declared size.
struct CountedContent<R> {
    input: R,
    hasher: Sha256,
    count: u64,
    max_bytes: u64,
}

impl<R: Read> Read for CountedContent<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(buffer)?;
        self.count += length as u64;
        if self.count > self.max_bytes {
            return Err(io::Error::other("the result is longer than declared"));
        }
        self.hasher.update(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }
}
