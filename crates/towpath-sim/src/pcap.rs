//! Packet captures in virtual time.

use std::io::Write;
use std::time::Duration;

use towpath_net::Instant;
use towpath_wire::pcapng;

pub(crate) use towpath_wire::pcapng::PacketDirection;

/// Start of virtual time: 2026-01-01 00:00:00 UTC, fixed so that equal runs give equal files.
pub const CAPTURE_EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// Writers for the packets of a run, as pcapng.
#[derive(Default)]
pub struct CaptureOutputs<'a> {
    /// One writer for each host, in the scenario's order; empty if nothing is captured.
    pub writers: Vec<&'a mut (dyn Write + Send)>,
    /// Bytes kept of each packet; `None` keeps all.
    pub snap_bytes: Option<u32>,
    /// Set when only headers are needed, with checksums that may be wrong.
    pub headers_only: bool,
}

impl std::fmt::Debug for CaptureOutputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captures").field("hosts", &self.writers.len()).finish_non_exhaustive()
    }
}

/// Capture of one host in pcapng.
pub(crate) type PcapWriter<'a> = pcapng::PcapngWriter<&'a mut (dyn Write + Send)>;

/// Converts a virtual time to nanoseconds since 1970.
pub(crate) fn unix_ns(now: Instant) -> u64 {
    (CAPTURE_EPOCH + now.saturating_since(Instant::ZERO)).as_nanos() as u64
}
