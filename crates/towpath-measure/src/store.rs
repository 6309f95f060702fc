//! Results as JSON Lines: one record a line, readable for ever.

use std::io::{self, BufRead, Read as _, Write};

mod variety;

use serde::Deserialize;

use crate::format;
use crate::input::{DEFAULT_RESULT_LIMIT, InputError, ReadBudget};
use crate::result::{Meta, Record, SCHEMA_VERSION, Summary};

pub use variety::CardinalityError;
pub(crate) use variety::{CardinalityLimiter, MAX_SUBFLOWS};

/// A line counts as at least so many bytes: about what its record takes in memory.
pub(crate) const MIN_LINE_BYTES: u64 = 256;
/// What a part of a record counts for beside its text: an empty text of three bytes takes as much.
const PART_BYTES: u64 = 32;

/// Why a result could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The source failed.
    #[error("cannot read the result: {0}")]
    Io(#[from] io::Error),
    /// A line is not a record.
    #[error("line {line}: {source}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong, with the column.
        source: serde_json::Error,
    },
    /// The result does not say what it is.
    #[error("line {line}: expected a `meta` record first; this is not a result of towpath")]
    NoMeta {
        /// Number of the line, from 1.
        line: usize,
    },
    /// Two results in one file.
    #[error("line {line}: a second result begins here; keep one result in a file")]
    SecondMeta {
        /// Number of the line, from 1.
        line: usize,
    },
    /// There is more than may be read.
    #[error("line {line}: {source}")]
    TooMuch {
        /// Number of the line, from 1.
        line: usize,
        /// The limit.
        source: InputError,
    },
    /// A single line is longer than any record of ours.
    #[error("line {line}: the line has more than {}, which no record has", format::bytes(*most))]
    LongLine {
        /// Number of the line, from 1.
        line: usize,
        /// Most bytes of a line.
        most: u64,
    },
    /// There is more of something than in any run of ours: its readers keep a series of each.
    #[error("line {line}: {source}")]
    TooMany {
        /// Number of the line, from 1.
        line: usize,
        /// Of what.
        source: CardinalityError,
    },
    /// The format is from the future.
    #[error(
        "line {line}: result format {found} was written by a newer towpath; this one reads up to \
         {SCHEMA_VERSION}"
    )]
    Newer {
        /// Number of the line, from 1.
        line: usize,
        /// The result's version.
        found: u32,
    },
}

/// A result as it was stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Conditions.
    pub meta: Meta,
    /// Everything between `meta` and `summary`, in file order.
    pub records: Vec<Record>,
    /// The figures; absent when the run was interrupted.
    pub summary: Option<Summary>,
    /// Whether the end is missing: no summary, or a line cut off.
    pub truncated: bool,
    /// Lines with a record type that this version does not know.
    pub skipped: usize,
}

/// Writes one record as one line.
pub fn write_record(out: &mut impl Write, record: &Record) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Reads all records; of a file that was cut off, as many as there are.
pub fn read_records(input: impl BufRead) -> Result<Vec<Record>, StoreError> {
    let run = read_run(input)?;
    let meta = [Record::Meta(Box::new(run.meta))];
    let summary = run.summary.map(|summary| Record::Summary(Box::new(summary)));
    Ok(meta.into_iter().chain(run.records).chain(summary).collect())
}

/// Reads one result, of at most the usual size.
pub fn read_run(input: impl BufRead) -> Result<RunResult, StoreError> {
    read_run_within(input, &ReadBudget::new(DEFAULT_RESULT_LIMIT)?)
}

/// Reads one result, line by line; what its records take comes from `budget`.
///
/// A record type that is unknown is counted and passed over, so that an older towpath reads a newer
/// result of the same format version. A last line that is cut off is left out.
pub fn read_run_within(input: impl BufRead, budget: &ReadBudget) -> Result<RunResult, StoreError> {
    let mut lines = ResultReader {
        input,
        budget,
        variety: CardinalityLimiter::default(),
        number: 0,
        cut: false,
        skipped: 0,
    };
    let Some(Record::Meta(meta)) = lines.next_record()? else {
        return Err(StoreError::NoMeta { line: lines.number.max(1) });
    };
    let (mut records, mut summary) = (Vec::new(), None);
    while let Some(record) = lines.next_record()? {
        match record {
            Record::Meta(_) => return Err(StoreError::SecondMeta { line: lines.number }),
            Record::Summary(last) => summary = Some(*last),
            Record::Interval(_)
            | Record::Subflow(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Message(_)
            | Record::Probe(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Timing(_) => records.push(record),
        }
    }
    let truncated = lines.cut || summary.is_none();
    Ok(RunResult { meta: *meta, records, summary, truncated, skipped: lines.skipped })
}

/// JSON Schema of one line of a result.
pub fn result_schema() -> serde_json::Value {
    schemars::schema_for!(Record).to_value()
}

struct ResultReader<'a, R> {
    input: R,
    budget: &'a ReadBudget,
    variety: CardinalityLimiter,
    number: usize,
    /// Whether the last line was cut off.
    cut: bool,
    skipped: usize,
}

/// Whether a record may have any number of parts.
fn has_lists(record: &Record) -> bool {
    match record {
        Record::Meta(_)
        | Record::Account(_)
        | Record::Event(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Summary(_) => true,
        Record::Interval(_)
        | Record::Subflow(_)
        | Record::Link(_)
        | Record::Message(_)
        | Record::Probe(_)
        | Record::Datagrams(_)
        | Record::Counter(_)
        | Record::Interface(_)
        | Record::Timing(_) => false,
    }
}

/// At least as many as there are parts in a line.
fn max_fields(line: &[u8]) -> u64 {
    line.split(|byte| *byte == b',').count() as u64
}

/// The part of a record that every version has.
#[derive(Deserialize)]
struct RecordHead {
    #[serde(rename = "type")]
    kind: String,
    schema: Option<u32>,
}

const KINDS: [&str; 14] = [
    "meta",
    "interval",
    "subflow",
    "link",
    "account",
    "event",
    "message",
    "probe",
    "capture",
    "sequence",
    "counter",
    "interface",
    "noise",
    "summary",
];

impl<R: BufRead> ResultReader<'_, R> {
    /// The next record that is known; `None` at the end.
    fn next_record(&mut self) -> Result<Option<Record>, StoreError> {
        let mut bytes = Vec::new();
        loop {
            if !self.next_line(&mut bytes)? {
                return Ok(None);
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match self.parse(&bytes)? {
                Some(record) => {
                    let line = self.number;
                    let known = self.variety.take(&record);
                    known.map_err(|source| StoreError::TooMany { line, source })?;
                    let parts = if has_lists(&record) { max_fields(&bytes) } else { 0 };
                    let taken = self.budget.take(parts.saturating_mul(PART_BYTES));
                    taken.map_err(|source| StoreError::TooMuch { line, source })?;
                    return Ok(Some(record));
                }
                None if self.cut => return Ok(None),
                None => self.skipped += 1,
            }
        }
    }

    /// Reads a line, which replaces what is in `bytes`; `false` at the end.
    fn next_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool, StoreError> {
        bytes.clear();
        let most = self.budget.line_bytes();
        let mut limited = (&mut self.input).take(most.saturating_add(1));
        let length = limited.read_until(b'\n', bytes)? as u64;
        if length == 0 {
            return Ok(false);
        }
        self.number += 1;
        let line = self.number;
        if length > most {
            return Err(StoreError::LongLine { line, most });
        }
        // What is kept of an empty line is nothing, but to read it takes time, too.
        let taken = self.budget.take(length.max(MIN_LINE_BYTES));
        taken.map(|()| true).map_err(|source| StoreError::TooMuch { line, source })
    }

    /// A record, or `None` for one to pass over (or cut off).
    fn parse(&mut self, bytes: &[u8]) -> Result<Option<Record>, StoreError> {
        let line = self.number;
        let source = match serde_json::from_slice(bytes) {
            Ok(Record::Meta(meta)) if meta.schema > SCHEMA_VERSION => {
                return Err(StoreError::Newer { line, found: meta.schema });
            }
            Ok(record) => return Ok(Some(record)),
            Err(source) => source,
        };
        let Ok(head) = serde_json::from_slice::<RecordHead>(bytes) else {
            // A whole line ends with a line feed; a file that was cut off ends anywhere.
            self.cut = !bytes.ends_with(b"\n") && line > 1;
            return if self.cut { Ok(None) } else { Err(StoreError::Line { line, source }) };
        };
        match head.schema {
            Some(found) if head.kind == "meta" && found > SCHEMA_VERSION => {
                Err(StoreError::Newer { line, found })
            }
            _ if line > 1 && !KINDS.contains(&head.kind.as_str()) => Ok(None),
            _ if line == 1 && head.kind != "meta" => Err(StoreError::NoMeta { line }),
            _ => Err(StoreError::Line { line, source }),
        }
    }
}
