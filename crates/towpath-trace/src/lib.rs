//! Analysis of a capture: connections, subflows and their metrics, in one pass with bounded memory.
//!
//! Reading order:
//! - [`file`]: pcap and pcapng; [`link`] and [`layers`]: from a frame to a segment.
//! - [`copies`]: packets that the capture contains twice.
//! - [`tracker`]: from segments to connections, with [`handshake`], [`binding`],
//!   [`addresses`], [`connection`] and [`cut_options`].
//! - [`direction`]: one direction of a subflow, with [`send_limits`]: limits of its sender.
//! - [`data_stream`]: one direction of a connection.
//! - [`ranges`] and [`stats`]: ranges and statistics for both.
//! - [`sequence`] and [`sequences`]: time–sequence pictures.
//! - [`summary`]: metrics at the end, with [`handover`]; [`account`]: capacity accounting;
//!   [`records`]: the result.
//! - [`verdict`]: verdict and warnings.
//! - [`feed`]: a capture that is still being written; [`text`]: output for people.
//! - [`delay`]: one-way delays from two captures.

mod account;
mod addresses;
mod binding;
mod connection;
mod copies;
mod cut_options;
mod data_stream;
mod delay;
mod direction;
mod feed;
mod file;
mod handover;
mod handshake;
mod layers;
mod link;
mod ranges;
mod records;
mod send_limits;
mod sequence;
mod sequences;
mod stats;
mod summary;
mod text;
mod tracker;
mod verdict;

use std::collections::{BTreeMap, HashSet};
use std::io::Read;

use towpath_result::CapturedConnection;
use towpath_result::store::StoredRun;

use file::{CaptureReader, CapturedFrame};
use layers::SocketKey;
use link::SkipReason;
use tracker::Tracker;

pub use delay::CaptureClockOffset;
pub use feed::CaptureFeed;
pub use file::CaptureError;

/// Place where the capture was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenAt {
    /// Host that opened the connections.
    Opener,
    /// Host that accepted the connections.
    Acceptor,
    /// Place between the two hosts.
    Between,
}

/// Analysis of a whole capture.
#[derive(Debug)]
pub struct CaptureAnalysis {
    tracker: Tracker,
    taken_at: Option<TakenAt>,
    /// Names of the capture's interfaces.
    interfaces: Vec<Option<String>>,
    /// Number of frames in the file.
    pub frames: u64,
    /// Bytes of all frames on the wire.
    pub wire_bytes: u64,
    /// Time of the first frame, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// Nanoseconds from the first frame to the last.
    pub duration_ns: u64,
    /// True if the file ended in the middle of a frame.
    pub truncated: bool,
    /// Number of frames that were skipped, by reason.
    skipped: BTreeMap<SkipReason, u64>,
    /// Frames whose time is missing or wrong.
    timing: TimestampCounts,
    /// Every connection with its metrics, those with most payload first.
    pub connections: Vec<CapturedConnection>,
}

/// Reads a capture to its end.
pub fn read(input: impl Read, taken_at: Option<TakenAt>) -> Result<CaptureAnalysis, CaptureError> {
    let mut reader = CaptureReader::open(input)?;
    let mut builder = AnalysisBuilder::default();
    while let Some(frame) = reader.next_frame()? {
        builder.add_frame(&frame);
    }
    let truncated = reader.truncated();
    Ok(builder.finish(&reader, (taken_at, truncated)))
}

/// Numbers of frames whose time is missing or wrong.
#[derive(Debug, Clone, Copy, Default)]
struct TimestampCounts {
    /// Frames of a format without times.
    missing: u64,
    /// Times that no clock has, such as 1,200,000 µs within a second.
    invalid: u64,
    /// Frames that are more than [`MAX_CLOCK_STEP_NS`] older than an earlier one.
    backward: u64,
}

/// Largest plausible disorder of the frames of several interfaces.
const MAX_CLOCK_STEP_NS: u64 = 1_000_000_000;
/// Maximum number of pairs of ends that are remembered as QUIC.
const MAX_QUIC_FLOWS: usize = 1 << 16;

/// State accumulated from the frames so far.
#[derive(Debug, Default)]
struct AnalysisBuilder {
    tracker: Tracker,
    skipped: BTreeMap<SkipReason, u64>,
    frames: u64,
    wire_bytes: u64,
    begin_ns: Option<u64>,
    now_ns: u64,
    duration_ns: u64,
    timing: TimestampCounts,
    /// Pairs of ends that sent a long header of QUIC. Only for lookups, never iterated.
    quic_flows: HashSet<(SocketKey, SocketKey)>,
}

impl AnalysisBuilder {
    fn add_frame(&mut self, frame: &CapturedFrame<'_>) {
        self.frames += 1;
        self.wire_bytes += u64::from(frame.wire_bytes);
        if let Some(at_ns) = frame.at_ns {
            // Frames of several interfaces may be slightly out of order.
            let begin_ns = *self.begin_ns.get_or_insert(at_ns);
            self.now_ns = at_ns.saturating_sub(begin_ns);
            let latest_ns = begin_ns.saturating_add(self.duration_ns);
            self.timing.backward += u64::from(at_ns.saturating_add(MAX_CLOCK_STEP_NS) < latest_ns);
            self.duration_ns = self.now_ns.max(self.duration_ns);
        } else {
            self.timing.missing += 1;
        }
        match layers::segment(frame) {
            Ok(segment) => self.tracker.on_segment(&segment, frame.interface, self.now_ns),
            Err(SkipReason::Udp) if self.is_quic(frame) => self.skip(SkipReason::Quic),
            Err(reason) => self.skip(reason),
        }
    }

    fn skip(&mut self, reason: SkipReason) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    /// Returns true if a datagram has a long header of QUIC, or belongs to ends that sent one.
    fn is_quic(&mut self, frame: &CapturedFrame<'_>) -> bool {
        let Some(datagram) = layers::datagram(frame) else { return false };
        if datagram.has_quic_long_header() && self.quic_flows.len() < MAX_QUIC_FLOWS {
            self.quic_flows.insert(datagram.ends);
        }
        self.quic_flows.contains(&datagram.ends)
    }

    fn finish<R: Read>(
        mut self,
        reader: &CaptureReader<R>,
        (taken_at, truncated): (Option<TakenAt>, bool),
    ) -> CaptureAnalysis {
        self.tracker.close();
        let mut analysis = CaptureAnalysis {
            tracker: self.tracker,
            taken_at,
            interfaces: reader.interfaces().iter().map(|i| i.name.clone()).collect(),
            frames: self.frames,
            wire_bytes: self.wire_bytes,
            begin_ns: self.begin_ns.unwrap_or(0),
            duration_ns: self.duration_ns,
            truncated,
            skipped: self.skipped,
            timing: TimestampCounts { invalid: reader.invalid_times(), ..self.timing },
            connections: Vec::new(),
        };
        analysis.connections = summary::connections(&analysis);
        analysis
    }
}

/// Runs the fuzz target: arbitrary bytes must be read without a panic. Returns the records, so that
/// the caller can make a page of them.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) -> Option<StoredRun> {
    let trace = read(data, None).ok()?;
    let _ = trace.table(&[], 100, 3);
    Some(trace.run("fuzz", 3))
}
