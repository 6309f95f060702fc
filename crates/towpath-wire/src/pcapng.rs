//! Packet captures in pcapng (draft-ietf-opsawg-pcapng), one file for each host. With both ends in
//! one file, Wireshark would take the second sighting of a packet for a retransmission.

use std::io::{self, Write};

// Block types.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Magic number from which a reader derives the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// IP with a protocol family header. Raw IP would be shorter, but libpcap (so `tcpdump`) rejects
/// files with several interfaces of that type.
const LINKTYPE_NULL: u16 = 0;
/// Families of IPv4 and of IPv6 (BSD's), in the file's byte order.
const FAMILIES: [u32; 2] = [2, 24];
/// Length of the family header in bytes.
const FAMILY_BYTES: u32 = 4;
// Option codes of the interface and packet blocks.
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
    /// First write error, after which nothing more is written.
    write_result: io::Result<()>,
    /// Reused buffer for the body of a packet block.
    block: Vec<u8>,
}

impl<W> std::fmt::Debug for PcapngWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("failed", &self.write_result).finish_non_exhaustive()
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
        let mut capture = Self { out, snap_bytes, write_result: Ok(()), block: Vec::new() };
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
            let snap_limit = snap_bytes.map_or(0, |bytes| bytes.saturating_add(FAMILY_BYTES));
            body.extend(snap_limit.to_le_bytes()); // 0: no snapshot limit
            append_option(&mut body, IF_NAME, name.as_bytes());
            append_option(&mut body, IF_TSRESOL, &[9]);
            append_option(&mut body, 0, &[]);
            capture.write(INTERFACE_DESCRIPTION, &body);
        }
        capture
    }

    /// Adds a packet: its Unix time in nanoseconds, and its bytes from the IP header with complete
    /// checksums. `original_bytes` is the length before truncation of a truncated packet.
    pub fn packet(
        &mut self,
        unix_ns: u64,
        (interface, direction): (u32, PacketDirection),
        data: &[u8],
        original_bytes: usize,
    ) {
        let captured_bytes =
            self.snap_bytes.map_or(data.len(), |snap| data.len().min(snap as usize));
        let data = data.get(..captured_bytes).unwrap_or(data);
        let le_length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        let mut body = std::mem::take(&mut self.block);
        body.clear();
        body.extend(interface.to_le_bytes());
        body.extend(((unix_ns >> 32) as u32).to_le_bytes());
        body.extend((unix_ns as u32).to_le_bytes());
        body.extend(le_length(data.len() + FAMILY_BYTES as usize));
        body.extend(le_length(original_bytes + FAMILY_BYTES as usize));
        let [v4, v6] = FAMILIES;
        let family = if data.first().is_some_and(|first| first >> 4 == 6) { v6 } else { v4 };
        body.extend(family.to_le_bytes());
        body.extend(data);
        pad_to_32_bits(&mut body);
        let direction_flag: u32 = if direction == PacketDirection::Inbound { 1 } else { 2 };
        append_option(&mut body, EPB_FLAGS, &direction_flag.to_le_bytes());
        append_option(&mut body, 0, &[]);
        self.write(ENHANCED_PACKET, &body);
        self.block = body;
    }

    /// Flushes the capture and returns the output, or the first write error.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_result?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, kind: u32, body: &[u8]) {
        if self.write_result.is_err() {
            return;
        }
        let total = u32::try_from(body.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
        self.write_result = (|| {
            self.out.write_all(&kind.to_le_bytes())?;
            self.out.write_all(&total)?;
            self.out.write_all(body)?;
            self.out.write_all(&total)
        })();
    }
}

fn append_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend(u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    body.extend(value);
    pad_to_32_bits(body);
}

fn pad_to_32_bits(body: &mut Vec<u8>) {
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
            let read_u32 =
                |offset: usize| u32::from_le_bytes(out[offset..][..4].try_into().unwrap());
            (read_u32(start + 4), read_u32(start + 20), read_u32(start + 24))
        };
        let first =
            out.windows(4).position(|bytes| bytes == ENHANCED_PACKET.to_le_bytes()).unwrap();
        let (block, captured, original) = lengths(first);
        assert_eq!((captured, original), (104, 1_504));
        let (_, captured, original) = lengths(first + block as usize);
        assert_eq!((captured, original), (44, 44));
    }
}
