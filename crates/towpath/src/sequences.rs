//! Time–sequence plots of a run, from its hosts' captures.
//!
//! The simulator's captures are read while they are written, the emulator's after the run.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use towpath_result::input;
use towpath_result::{Meta, Record, Summary};
use towpath_scenario::Transport;
use towpath_trace as trace;
use towpath_trace::{CaptureAnalysis, CaptureFeed};

use crate::error::CliError;
use crate::options::CaptureSpec;

/// Key of the condition that holds time 0 in nanoseconds since 1970.
const TIME_ZERO_KEY: &str = "time 0 of captures";

/// Returns true if packets of this transport can be plotted. QUIC packets are encrypted.
pub(crate) fn is_readable(transport: Transport) -> bool {
    matches!(transport, Transport::Tcp | Transport::Mptcp)
}

/// Writer that stores a capture, analyses it, or both.
#[derive(Debug)]
pub(crate) struct CaptureSink {
    pub(crate) file: Option<BufWriter<File>>,
    pub(crate) feed: Option<CaptureFeed>,
}

impl Write for CaptureSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        if let Some(feed) = &mut self.feed {
            feed.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// Returns the plots of all hosts as records.
pub(crate) fn sequence_records<'a>(
    traces: impl IntoIterator<Item = &'a CaptureAnalysis>,
    zero_ns: u64,
    summary: &Summary,
) -> Vec<Record> {
    let sequences =
        traces.into_iter().flat_map(|trace| trace.sequences_of_run(zero_ns, &summary.subflows));
    sequences.map(|sequence| Record::Sequence(Box::new(sequence))).collect()
}

/// Delays the summary of an emulated run until its plots are written before it. The captures are
/// complete only after the run.
#[derive(Debug)]
pub(crate) struct DelayedSummary {
    spec: Option<CaptureSpec>,
    meta: Option<Box<Meta>>,
    summary_line: Option<(Box<Summary>, String)>,
}

impl DelayedSummary {
    /// Creates the filter for a run whose packets `spec` captures; `None` delays nothing.
    pub(crate) fn of(spec: Option<CaptureSpec>) -> Self {
        Self { spec, meta: None, summary_line: None }
    }

    /// Takes a record and its line. Returns true if the line is delayed.
    pub(crate) fn intercept(&mut self, record: Option<&Record>, line: &str) -> bool {
        match record {
            Some(Record::Meta(meta)) => self.meta = Some(meta.clone()),
            Some(Record::Summary(summary)) if self.spec.is_some() => {
                self.summary_line = Some((summary.clone(), line.to_owned()));
                return true;
            }
            _ => {}
        }
        false
    }

    /// Returns the plots' lines, then the delayed line.
    pub(crate) fn finish(self) -> Result<Vec<String>, CliError> {
        let Self { spec: Some(spec), meta, summary_line: Some((summary, line)) } = self else {
            return Ok(Vec::new());
        };
        let sequences = meta.map(|meta| emulated_sequences(&spec, &meta, &summary));
        let lines = sequences.unwrap_or_default().into_iter().map(|record| {
            let text = serde_json::to_string(&record);
            text.map(|text| text + "\n").map_err(|error| CliError::Internal(error.to_string()))
        });
        lines.chain([Ok(line)]).collect()
    }
}

/// Returns the plots of an emulated run that kept its packets.
///
/// Unreadable captures give no plot, as the run itself is still valid.
fn emulated_sequences(spec: &CaptureSpec, meta: &Meta, summary: &Summary) -> Vec<Record> {
    let zero_text = meta.conditions.get(TIME_ZERO_KEY).and_then(|text| text.split(' ').next());
    let Some(zero_ns) = zero_text.and_then(|number| number.parse().ok()) else { return Vec::new() };
    if !is_readable(meta.transport) {
        return Vec::new();
    }
    let read_capture = |host: &String| {
        let file = input::open(&spec.folder.join(format!("{}-{host}.pcapng", spec.name))).ok()?;
        trace::read(file, None).ok()
    };
    let traces: Vec<CaptureAnalysis> = meta.hosts.iter().filter_map(read_capture).collect();
    sequence_records(&traces, zero_ns, summary)
}
