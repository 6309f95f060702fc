//! Packet captures in pcapng (draft-ietf-opsawg-pcapng), one file for each host. With both ends in
//! one file, Wireshark would take the second sighting of a packet for a retransmission.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// IP with a protocol family header. Raw IP would be shorter, but libpcap (so `tcpdump`) rejects
/// files with several interfaces of that type.
const LINKTYPE_NULL: u16 = 0;
/// Families of IPv4 and of IPv6 (BSD's), in the file's byte order.
const FAMILIES: [u32; 2] = [2, 24];
/// Length of the family header in bytes.
const FAMILY_BYTES: u32 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Minimum snapshot length in bytes: IPv6 and TCP headers with all options.
pub const MIN_SNAP_BYTES: u32 = 100;

/// Direction of a packet at its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketDirection {
    /// Inbound: the host receives the packet.
    Inbound,
    /// Outbound: the host sends the packet.
    Outbound,
}

/// Writer of a capture file.
pub struct PcapngWriter<W> {
    out: W,
    /// Snapshot length in bytes; `None` keeps whole packets.
    snap_bytes: Option<u32>,
    /// First write error; nothing is written after it.
    failed: io::Result<()>,
    block: Vec<u8>,
}

impl<W> std::fmt::Debug for PcapngWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a capture of these interfaces, numbered from 0. `snap_bytes` is the snapshot length
    /// of each packet; `None` keeps whole packets.
    pub fn begin<'n>(
        out: W,
        interfaces: impl IntoIterator<Item = &'n str>,
        snap_bytes: Option<u32>,
    ) -> Self {
        let mut capture = Self { out, snap_bytes, failed: Ok(()), block: Vec::new() };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        body.extend(u64::MAX.to_le_bytes()); // section length not specified
        capture.write(SECTION_HEADER, &body);
        for name in interfaces {
            let mut body = Vec::new();
            body.extend(LINKTYPE_NULL.to_le_bytes());
            body.extend([0; 2]);
            let most = snap_bytes.map_or(0, |bytes| bytes.saturating_add(FAMILY_BYTES));
            body.extend(most.to_le_bytes()); // 0: no snapshot limit
            option(&mut body, IF_NAME, name.as_bytes());
            option(&mut body, IF_TSRESOL, &[9]);
            option(&mut body, 0, &[]);
            capture.write(INTERFACE_DESCRIPTION, &body);
        }
        capture
    }

    /// Adds a packet: its Unix time in nanoseconds, and its bytes from the IP header with complete
    /// checksums. `whole_bytes` is the original length of a truncated packet.
    pub fn packet(
        &mut self,
        unix_ns: u64,
        (interface, way): (u32, PacketDirection),
        data: &[u8],
        whole_bytes: usize,
    ) {
        let kept = self.snap_bytes.map_or(data.len(), |snap| data.len().min(snap as usize));
        let data = data.get(..kept).unwrap_or(data);
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        let mut body = std::mem::take(&mut self.block);
        body.clear();
        body.extend(interface.to_le_bytes());
        body.extend(((unix_ns >> 32) as u32).to_le_bytes());
        body.extend((unix_ns as u32).to_le_bytes());
        body.extend(length(data.len() + FAMILY_BYTES as usize));
        body.extend(length(whole_bytes + FAMILY_BYTES as usize));
        let [v4, v6] = FAMILIES;
        let family = if data.first().is_some_and(|first| first >> 4 == 6) { v6 } else { v4 };
        body.extend(family.to_le_bytes());
        body.extend(data);
        pad(&mut body);
        let direction: u32 = if way == PacketDirection::Inbound { 1 } else { 2 };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        option(&mut body, 0, &[]);
        self.write(ENHANCED_PACKET, &body);
        self.block = body;
    }

    /// Flushes the capture and returns the output, or the first write error.
    pub fn finish(mut self) -> io::Result<W> {
        self.failed?;
        self.out.flush()?;
        Ok(self.out)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snap_length_cuts_packets_but_records_their_length() {
        let mut out = Vec::new();
        let mut capture = PcapngWriter::begin(&mut out, ["wifi"], Some(100));
        capture.packet(1, (0, PacketDirection::Outbound), &[7; 1_500], 1_500);
        capture.packet(2, (0, PacketDirection::Inbound), &[7; 40], 40);
        let _ = capture.finish().unwrap();
        let lengths = |start: usize| {
            let number = |at: usize| u32::from_le_bytes(out[at..][..4].try_into().unwrap());
            (number(start + 4), number(start + 20), number(start + 24))
        };
        let first = out.windows(4).position(|four| four == ENHANCED_PACKET.to_le_bytes()).unwrap();
        let (block, kept, whole) = lengths(first);
        assert_eq!((kept, whole), (104, 1_504));
        let (_, kept, whole) = lengths(first + block as usize);
        assert_eq!((kept, whole), (44, 44));
    }
}
