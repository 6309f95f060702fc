//! Captures of virtual time.

use std::io::Write;
use std::time::Duration;

use towpath_measure::pcapng;
use towpath_net::Instant;

pub(crate) use towpath_measure::pcapng::PacketDirection;

/// Virtual time begins here: 2026-01-01 00:00:00 UTC, so that equal runs give equal files.
pub const CAPTURE_EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// Where the packets of a run are written as pcapng.
#[derive(Default)]
pub struct CaptureOutputs<'a> {
    /// One for each of the scenario's hosts, in this order, or none.
    pub writers: Vec<&'a mut (dyn Write + Send)>,
    /// Bytes of each packet that are kept; all when `None`.
    pub snap_bytes: Option<u32>,
    /// Whether headers will do, and their checksums need not be right.
    pub headers_only: bool,
}

impl std::fmt::Debug for CaptureOutputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captures").field("hosts", &self.writers.len()).finish_non_exhaustive()
    }
}

/// The capture of one host.
pub(crate) type PcapWriter<'a> = pcapng::PcapngWriter<&'a mut (dyn Write + Send)>;

/// A moment of virtual time as nanoseconds since 1970.
pub(crate) fn unix_ns(now: Instant) -> u64 {
    (CAPTURE_EPOCH + now.saturating_since(Instant::ZERO)).as_nanos() as u64
}
