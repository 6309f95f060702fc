//! Result files in JSON Lines: one record per line, readable by all later versions.

use std::io::{self, BufRead, Read as _, Write};

mod cardinality;
mod stored_run;

use serde::Deserialize;

use crate::format;
use crate::input::{DEFAULT_RESULT_LIMIT, InputError, ReadBudget};
use crate::{Meta, Record, SCHEMA_VERSION, Summary};

pub use cardinality::CardinalityError;
pub use cardinality::{CardinalityLimiter, MAX_SUBFLOWS};
pub use stored_run::{StoredRun, result_files};

/// Minimum cost of a line in bytes: about the memory of its record.
pub const MIN_LINE_BYTES: u64 = 256;
/// Cost of each field of a record on top of its text, about the memory of an empty string.
const FIELD_BYTES: u64 = 32;

/// Reason why a result could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened, or is not compressed as its name says.
    #[error("{0}")]
    Open(#[source] io::Error),
    /// The source returned an I/O error.
    #[error("cannot read the result: {0}")]
    Io(#[from] io::Error),
    /// A line is not a valid record.
    #[error("line {line}: {source}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// JSON error with the column.
        source: serde_json::Error,
    },
    /// The first record is not `meta`.
    #[error("line {line}: expected a `meta` record first; this is not a result of towpath")]
    NoMeta {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The file holds a second result.
    #[error("line {line}: a second result begins here; keep one result in a file")]
    SecondMeta {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The result exceeds the read budget.
    #[error("line {line}: {source}")]
    TooMuch {
        /// Number of the line, from 1.
        line: usize,
        /// Error of the read budget.
        source: InputError,
    },
    /// A line is longer than any record can be.
    #[error("line {line}: the line has more than {}, which no record has", format::bytes(*max_bytes))]
    LongLine {
        /// Number of the line, from 1.
        line: usize,
        /// Maximum length of a line in bytes.
        max_bytes: u64,
    },
    /// The result has more distinct items than any run, and its readers keep a series for each.
    #[error("line {line}: {source}")]
    TooMany {
        /// Number of the line, from 1.
        line: usize,
        /// Kind of item, with the limit.
        source: CardinalityError,
    },
    /// The format version is newer than this program's.
    #[error(
        "line {line}: result format {found} was written by a newer towpath; this one reads up to \
         {SCHEMA_VERSION}"
    )]
    Newer {
        /// Number of the line, from 1.
        line: usize,
        /// Format version of the result.
        found: u32,
    },
}

/// One result, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Conditions of the run.
    pub meta: Meta,
    /// Everything between `meta` and `summary`, in file order.
    pub records: Vec<Record>,
    /// Metrics of the run; `None` if it was interrupted.
    pub summary: Option<Summary>,
    /// True if the end is missing: no summary, or a line cut off.
    pub truncated: bool,
    /// Number of lines with an unknown record type.
    pub skipped: usize,
}

/// Writes one record as one line.
pub fn write_record(out: &mut impl Write, record: &Record) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Reads all records; of a truncated file, the complete ones.
pub fn read_records(input: impl BufRead) -> Result<Vec<Record>, StoreError> {
    let run = read_run(input)?;
    let meta = [Record::Meta(Box::new(run.meta))];
    let summary = run.summary.map(|summary| Record::Summary(Box::new(summary)));
    Ok(meta.into_iter().chain(run.records).chain(summary).collect())
}

/// Reads one result, up to the default size limit.
pub fn read_run(input: impl BufRead) -> Result<RunResult, StoreError> {
    read_run_within(input, &ReadBudget::new(DEFAULT_RESULT_LIMIT)?)
}

/// Reads one result line by line and charges its memory to `budget`.
///
/// Unknown record types are counted and skipped, so that older versions can read newer results of
/// the same format version. A last line that is cut off is dropped.
pub fn read_run_within(input: impl BufRead, budget: &ReadBudget) -> Result<RunResult, StoreError> {
    let mut reader = ResultReader {
        input,
        budget,
        cardinality: CardinalityLimiter::default(),
        line_number: 0,
        truncated: false,
        skipped: 0,
    };
    let Some(Record::Meta(meta)) = reader.next_record()? else {
        return Err(StoreError::NoMeta { line: reader.line_number.max(1) });
    };
    let (mut records, mut summary) = (Vec::new(), None);
    while let Some(record) = reader.next_record()? {
        match record {
            Record::Meta(_) => return Err(StoreError::SecondMeta { line: reader.line_number }),
            Record::Summary(run_summary) => summary = Some(*run_summary),
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
    let truncated = reader.truncated || summary.is_none();
    Ok(RunResult { meta: *meta, records, summary, truncated, skipped: reader.skipped })
}

/// Returns the JSON Schema of one result line.
pub fn result_schema() -> serde_json::Value {
    schemars::schema_for!(Record).to_value()
}

/// Parses a frequent kind of record whose type is its first field, as [`write_record`] writes it.
/// `None` for every other line, valid or not.
///
/// The general parser copies all fields of a line, because the type may come last.
fn parse_sample(line: &[u8]) -> Option<Record> {
    let kind = line.strip_prefix(b"{\"type\":\"")?.split(|byte| *byte == b'"').next()?;
    let record = match kind {
        b"interval" => Record::Interval(serde_json::from_slice(line).ok()?),
        b"subflow" => Record::Subflow(serde_json::from_slice(line).ok()?),
        b"link" => Record::Link(serde_json::from_slice(line).ok()?),
        b"message" => Record::Message(serde_json::from_slice(line).ok()?),
        b"probe" => Record::Probe(serde_json::from_slice(line).ok()?),
        b"datagrams" => Record::Datagrams(serde_json::from_slice(line).ok()?),
        _ => return None,
    };
    Some(record)
}

struct ResultReader<'a, R> {
    input: R,
    budget: &'a ReadBudget,
    cardinality: CardinalityLimiter,
    /// Number of the last line read, from 1; 0 at the start.
    line_number: usize,
    /// Set if the last line was cut off.
    truncated: bool,
    /// Number of lines with an unknown record type.
    skipped: usize,
}

/// Returns true if a record may have any number of fields.
fn has_unbounded_fields(record: &Record) -> bool {
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

/// Returns an upper bound on the number of fields in a line.
fn max_fields(line: &[u8]) -> u64 {
    line.split(|byte| *byte == b',').count() as u64
}

/// Fields common to the records of every version.
#[derive(Deserialize)]
struct RecordHead {
    #[serde(rename = "type")]
    kind: String,
    schema: Option<u32>,
}

/// Tags of [`Record`]: a line of another kind was written by a newer version and is skipped.
const KINDS: [&str; 16] = [
    "meta",
    "interval",
    "subflow",
    "link",
    "account",
    "event",
    "message",
    "probe",
    "datagrams",
    "capture",
    "sequence",
    "counter",
    "interface",
    "timing",
    // Name of `timing` in earlier versions.
    "noise",
    "summary",
];

impl<R: BufRead> ResultReader<'_, R> {
    /// Returns the next known record; `None` at the end.
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
                    let line = self.line_number;
                    let within_limits = self.cardinality.add_record(&record);
                    within_limits.map_err(|source| StoreError::TooMany { line, source })?;
                    let fields = if has_unbounded_fields(&record) { max_fields(&bytes) } else { 0 };
                    let charged = self.budget.take(fields.saturating_mul(FIELD_BYTES));
                    charged.map_err(|source| StoreError::TooMuch { line, source })?;
                    return Ok(Some(record));
                }
                None if self.truncated => return Ok(None),
                None => self.skipped += 1,
            }
        }
    }

    /// Reads a line into `bytes`, replacing its content; returns false at the end.
    fn next_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool, StoreError> {
        bytes.clear();
        let max_bytes = self.budget.line_bytes();
        let mut limited = (&mut self.input).take(max_bytes.saturating_add(1));
        let length = limited.read_until(b'\n', bytes)? as u64;
        if length == 0 {
            return Ok(false);
        }
        self.line_number += 1;
        let line = self.line_number;
        if length > max_bytes {
            return Err(StoreError::LongLine { line, max_bytes });
        }
        // An empty line takes no memory, but reading it takes time.
        let charged = self.budget.take(length.max(MIN_LINE_BYTES));
        charged.map(|()| true).map_err(|source| StoreError::TooMuch { line, source })
    }

    /// Parses a record; `None` if it is to be skipped or was cut off.
    fn parse(&mut self, bytes: &[u8]) -> Result<Option<Record>, StoreError> {
        let line = self.line_number;
        if let Some(record) = parse_sample(bytes) {
            return Ok(Some(record));
        }
        let source = match serde_json::from_slice(bytes) {
            Ok(Record::Meta(meta)) if meta.schema > SCHEMA_VERSION => {
                return Err(StoreError::Newer { line, found: meta.schema });
            }
            Ok(record) => return Ok(Some(record)),
            Err(source) => source,
        };
        let Ok(head) = serde_json::from_slice::<RecordHead>(bytes) else {
            // A complete line ends with a line feed; a truncated file ends anywhere.
            self.truncated = !bytes.ends_with(b"\n") && line > 1;
            return if self.truncated { Ok(None) } else { Err(StoreError::Line { line, source }) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_records_are_those_of_the_general_parser() {
        let results = [
            include_str!("../tests/fixtures/result-v1.jsonl"),
            include_str!("../tests/fixtures/result-v1-former-names.jsonl"),
        ];
        let mut samples = 0;
        for line in results.iter().flat_map(|result| result.lines()) {
            let general: Record = serde_json::from_str(line).unwrap();
            if let Some(record) = parse_sample(line.as_bytes()) {
                assert_eq!(record, general);
                samples += 1;
            }
            let (start, _) = line.split_at(line.len() - 1);
            assert_eq!(parse_sample(start.as_bytes()), None, "a cut line: {start}");
        }
        assert!(samples > 40, "only {samples} lines took the short way");
    }

    #[test]
    fn other_lines_are_left_to_the_general_parser() {
        let interval = "{\"type\":\"interval\",\"t_ns\":1,\"span_ns\":1,\"flow\":0,\"stream\":0,\
                        \"direction\":\"up\",\"bytes\":1}";
        assert!(parse_sample(interval.as_bytes()).is_some());
        for other in [
            &interval.replace("interval", "intervals"),
            &interval.replace("\"t_ns\":1,", ""),
            &interval
                .replace("{\"type\":\"interval\",", "{")
                .replace('}', ",\"type\":\"interval\"}"),
            &interval.replace("\"interval\"", "\"summary\""),
            "{\"type\":\"",
            "",
        ] {
            assert_eq!(parse_sample(other.as_bytes()), None, "{other}");
        }
    }
}
