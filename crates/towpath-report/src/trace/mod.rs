//! What a capture says: connections, subflows and their figures, in one pass with bounded memory.
//!
//! Reading order: [`file`] (pcap and pcapng), [`layers`] (from a frame to a segment), [`tracker`]
//! (from segments to connections) with [`handshake`] and [`connection`], [`way`] (one direction of a
//! subflow), [`data`] (one direction of a connection), [`interval`] and [`figures`] (what both are
//! made of), [`summary`] (what is said of it), [`records`] (as a result), [`text`] (for people), [`delay`] (what two captures tell together).

mod connection;
mod data;
mod delay;
mod figures;
mod file;
mod handshake;
mod interval;
mod layers;
mod records;
mod summary;
mod text;
mod tracker;
mod way;

use std::collections::BTreeMap;
use std::io::Read;

use towpath_measure::result::CapturedConnection;

use file::CaptureReader;
use layers::Skipped;
use tracker::Tracker;

pub use delay::Clocks;
pub use file::CaptureError;

/// Where a capture was taken, when its reader knows better than the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenAt {
    /// At the host that opened the connections.
    Opener,
    /// At the other.
    Accepter,
    /// On the way.
    Between,
}

/// A capture, understood.
#[derive(Debug)]
pub struct Trace {
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
    skipped: BTreeMap<Skipped, u64>,
    /// Every connection with its figures, those with most payload first.
    pub connections: Vec<CapturedConnection>,
}

/// Reads a capture to its end.
pub fn read(input: impl Read, taken_at: Option<TakenAt>) -> Result<Trace, CaptureError> {
    let mut reader = CaptureReader::open(input)?;
    let mut tracker = Tracker::default();
    let mut skipped = BTreeMap::new();
    let (mut frames, mut wire_bytes) = (0, 0);
    let mut begin_ns: Option<u64> = None;
    let mut now_ns = 0;
    let mut duration_ns = 0;
    while let Some(frame) = reader.next_frame()? {
        frames += 1;
        wire_bytes += u64::from(frame.wire_bytes);
        if let Some(at_ns) = frame.at_ns {
            // Several interfaces may be a little out of order.
            now_ns = at_ns.saturating_sub(*begin_ns.get_or_insert(at_ns));
            duration_ns = now_ns.max(duration_ns);
        }
        match layers::segment(&frame) {
            Ok(segment) => tracker.take(&segment, frame.interface, now_ns),
            Err(why) => *skipped.entry(why).or_default() += 1,
        }
    }
    tracker.close();
    let mut trace = Trace {
        tracker,
        taken_at,
        interfaces: reader.interfaces().iter().map(|interface| interface.name.clone()).collect(),
        frames,
        wire_bytes,
        begin_ns: begin_ns.unwrap_or(0),
        duration_ns,
        truncated: reader.truncated(),
        skipped,
        connections: Vec::new(),
    };
    trace.connections = summary::connections(&trace);
    Ok(trace)
}

/// Body of the fuzz target: any bytes are read without harm.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Ok(trace) = read(data, None) else { return };
    let run = trace.run("fuzz", 3);
    let _ = (trace.table(&[], 100, 3), crate::html(&[run]));
}
