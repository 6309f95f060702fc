//! Captures as pcapng files (draft-ietf-opsawg-pcapng), one for each host: who sees a packet leave one
//! host and reach the other in the same file takes it for a retransmission, as Wireshark does.

use std::io::{self, Write};
use std::time::Duration;

use towpath_mptcp::wire::Packet;
use towpath_net::Instant;

/// Virtual time begins here: 2026-01-01 00:00:00 UTC, so that equal runs give equal files.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Raw IP: the first nibble tells the version.
const LINKTYPE_RAW: u16 = 101;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Which way a packet crosses its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

/// A capture that is being written.
pub(crate) struct Capture<'a> {
    out: &'a mut (dyn Write + Send),
    /// The first failure; nothing is written after it.
    failed: io::Result<()>,
    block: Vec<u8>,
}

impl std::fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<'a> Capture<'a> {
    /// A capture of these interfaces, which are numbered from 0.
    pub(crate) fn begin<'n>(
        out: &'a mut (dyn Write + Send),
        interfaces: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let mut capture = Self { out, failed: Ok(()), block: Vec::new() };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        body.extend(u64::MAX.to_le_bytes()); // the section's length is not given
        capture.write(SECTION_HEADER, &body);
        for name in interfaces {
            let mut body = Vec::new();
            body.extend(LINKTYPE_RAW.to_le_bytes());
            body.extend([0; 2]);
            body.extend(0_u32.to_le_bytes()); // no limit of length
            option(&mut body, IF_NAME, name.as_bytes());
            option(&mut body, IF_TSRESOL, &[9]);
            option(&mut body, 0, &[]);
            capture.write(INTERFACE_DESCRIPTION, &body);
        }
        capture
    }

    /// Adds a packet, with its complete checksum.
    pub(crate) fn packet(&mut self, now: Instant, interface: u32, way: Way, packet: &Packet) {
        let data = packet.to_vec();
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let at = (EPOCH + now.saturating_since(Instant::ZERO)).as_nanos() as u64;
        let mut body = std::mem::take(&mut self.block);
        body.clear();
        body.extend(interface.to_le_bytes());
        body.extend(((at >> 32) as u32).to_le_bytes());
        body.extend((at as u32).to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend(&data);
        pad(&mut body);
        let direction: u32 = if way == Way::In { 1 } else { 2 };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        option(&mut body, 0, &[]);
        self.write(ENHANCED_PACKET, &body);
        self.block = body;
    }

    /// Writes what is left; the first error there was.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.failed?;
        self.out.flush()
    }

    fn write(&mut self, kind: u32, body: &[u8]) {
        if self.failed.is_err() {
            return;
        }
        let total = u32::try_from(body.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
        self.failed = (|| {
            self.out.write_all(&kind.to_le_bytes())?;
            self.out.write_all(&total)?;
            self.out.write_all(body)?;
            self.out.write_all(&total)
        })();
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend(u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    while !body.len().is_multiple_of(4) {
        body.push(0);
    }
}
