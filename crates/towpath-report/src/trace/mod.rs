//! What a capture says: connections, subflows and their figures, in one pass with bounded memory.
//!
//! Reading order: [`file`] (pcap and pcapng), [`layers`] (from a frame to a segment), [`tracker`]
//! (from segments to connections) with [`handshake`] and [`connection`], [`direction`] (one direction of a
//! subflow) with [`held`] (what held its sender back), [`data`] (one direction of a connection),
//! [`interval`] and [`figures`] (what both are made of), [`sequence`] and [`sequences`] (their
//! pictures), [`summary`] (what is said of it), [`account`] (where the capacity went), [`records`] (as
//! a result), [`feed`] (a capture that is still being written), [`text`] (for people), [`delay`] (what
//! two captures tell together).

mod account;
mod connection;
mod data;
mod delay;
mod feed;
mod figures;
mod file;
mod handshake;
mod held;
mod interval;
mod layers;
mod records;
mod sequence;
mod sequences;
mod summary;
mod text;
mod tracker;
mod way;

use std::collections::BTreeMap;
use std::io::Read;

use towpath_measure::result::CapturedConnection;

use file::{CaptureReader, CapturedFrame};
use layers::SkipReason;
use tracker::Tracker;

pub use delay::CaptureClockOffset;
pub use feed::CaptureFeed;
pub use file::CaptureError;

/// Where a capture was taken, when its reader knows better than the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenAt {
    /// At the host that opened the connections.
    Opener,
    /// At the other.
    Acceptor,
    /// On the way.
    Between,
}

/// A capture, understood.
#[derive(Debug)]
pub struct CaptureAnalysis {
    tracker: Tracker,
    taken_at: Option<TakenAt>,
    /// Names of the capture's interfaces.
    interfaces: Vec<Option<String>>,
    /// Frames of the file.
    pub frames: u64,
    /// Bytes of all frames on the wire.
    pub wire_bytes: u64,
    /// When it began, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// From its first frame to its last.
    pub duration_ns: u64,
    /// Whether the file ended in the middle of a frame.
    pub truncated: bool,
    /// Frames that were not looked at, and why.
    skipped: BTreeMap<SkipReason, u64>,
    /// Every connection with its figures, those with most payload first.
    pub connections: Vec<CapturedConnection>,
}

/// Reads a capture to its end.
pub fn read(input: impl Read, taken_at: Option<TakenAt>) -> Result<CaptureAnalysis, CaptureError> {
    let mut reader = CaptureReader::open(input)?;
    let mut so_far = AnalysisBuilder::default();
    while let Some(frame) = reader.next_frame()? {
        so_far.add_frame(&frame);
    }
    let truncated = reader.truncated();
    Ok(so_far.finish(&reader, (taken_at, truncated)))
}

/// What the frames before have shown.
#[derive(Debug, Default)]
struct AnalysisBuilder {
    tracker: Tracker,
    skipped: BTreeMap<SkipReason, u64>,
    frames: u64,
    wire_bytes: u64,
    begin_ns: Option<u64>,
    now_ns: u64,
    duration_ns: u64,
}

impl AnalysisBuilder {
    fn add_frame(&mut self, frame: &CapturedFrame<'_>) {
        self.frames += 1;
        self.wire_bytes += u64::from(frame.wire_bytes);
        if let Some(at_ns) = frame.at_ns {
            // Several interfaces may be a little out of order.
            self.now_ns = at_ns.saturating_sub(*self.begin_ns.get_or_insert(at_ns));
            self.duration_ns = self.now_ns.max(self.duration_ns);
        }
        match layers::segment(frame) {
            Ok(segment) => self.tracker.take(&segment, frame.interface, self.now_ns),
            Err(why) => *self.skipped.entry(why).or_default() += 1,
        }
    }

    fn finish<R: Read>(
        mut self,
        reader: &CaptureReader<R>,
        (taken_at, truncated): (Option<TakenAt>, bool),
    ) -> CaptureAnalysis {
        self.tracker.close();
        let mut trace = CaptureAnalysis {
            tracker: self.tracker,
            taken_at,
            interfaces: reader.interfaces().iter().map(|one| one.name.clone()).collect(),
            frames: self.frames,
            wire_bytes: self.wire_bytes,
            begin_ns: self.begin_ns.unwrap_or(0),
            duration_ns: self.duration_ns,
            truncated,
            skipped: self.skipped,
            connections: Vec::new(),
        };
        trace.connections = summary::connections(&trace);
        trace
    }
}

/// Body of the fuzz target: any bytes are read without harm.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Ok(trace) = read(data, None) else { return };
    let run = trace.run("fuzz", 3);
    let _ = (trace.table(&[], 100, 3), crate::html(&[run]));
}
