//! Capture files, read as a stream: pcap in both byte orders and both resolutions, and pcapng
//! (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).
//!
//! A frame is a slice of one reused buffer. A file that ends in the middle of a record is read up
//! to there, and the truncation is noted. Other invalid input is an error.

use std::io::{self, Read};

/// Longest plausible record. Captures of 64 KiB super-segments are far below.
const MAX_RECORD_BYTES: usize = 16 << 20;
const BUFFER_BYTES: usize = 1 << 18;

const PCAP_MICRO: u32 = 0xa1b2_c3d4;
const PCAP_NANO: u32 = 0xa1b2_3c4d;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;
const EPB_FLAGS: u16 = 2;

/// Maximum number of distinct interfaces of one file.
const MAX_INTERFACES: usize = 4_096;

/// Reason for an unreadable capture file.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Reading from the source failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// First four bytes of an unknown file format.
    #[error("neither pcap nor pcapng (it begins with {0:02x?})")]
    Magic([u8; 4]),
    /// Compressed file, with the name of the format and the program that unpacks it.
    #[error(
        "compressed with {0}, expected pcap or pcapng: `{1} -dc FILE | towpath trace -` reads it"
    )]
    Compressed(&'static str, &'static str),
    /// Empty file, or one shorter than a capture's header.
    #[error("too short for a capture")]
    Short,
    /// A record that contradicts its header.
    #[error("bad {field} at byte {at}")]
    Malformed {
        /// Name of the invalid field.
        field: &'static str,
        /// Byte offset in the file.
        at: u64,
    },
}

/// One captured frame of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct CapturedFrame<'a> {
    /// Nanoseconds since 1970, or since the file's own epoch; `None` where the format has no time.
    pub(super) at_ns: Option<u64>,
    /// LINKTYPE of its interface.
    pub(super) link_type: u16,
    /// Number of its interface in the file, from 0.
    pub(super) interface: u32,
    /// Captured bytes of the frame, possibly cut off.
    pub(super) bytes: &'a [u8],
    /// Length of the frame on the wire, in bytes.
    pub(super) wire_bytes: u32,
    /// True if the capturing host sent it; `None` if the file does not contain the direction.
    pub(super) outbound: Option<bool>,
}

/// An interface of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CaptureInterface {
    /// Name of the interface, if the file has it.
    pub(super) name: Option<String>,
    /// LINKTYPE value of its frames.
    pub(super) link_type: u16,
    /// Length of a tick in nanoseconds, as a fraction.
    tick_ns: (u64, u64),
    offset_ns: i64,
}

/// File format of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Pcap { nanos: bool },
    Pcapng,
}

/// A capture that is being read.
#[derive(Debug)]
pub(super) struct CaptureReader<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the file before `start`.
    passed: u64,
    format: Format,
    big_endian: bool,
    /// Index of the first interface of the current section.
    section: usize,
    interfaces: Vec<CaptureInterface>,
    truncated: bool,
    invalid_times: u64,
}

/// Position of a frame in the buffer.
#[derive(Debug, Clone, Copy)]
struct FrameSpan {
    at_ns: Option<u64>,
    interface: usize,
    from: usize,
    len: usize,
    wire_bytes: u32,
    outbound: Option<bool>,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file header and detects the format.
    pub(super) fn open(input: R) -> Result<Self, CaptureError> {
        let mut reader = Self {
            input,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            passed: 0,
            format: Format::Pcapng,
            big_endian: false,
            section: 0,
            interfaces: Vec::new(),
            truncated: false,
            invalid_times: 0,
        };
        let Some(&magic) = reader.peek(4)?.and_then(|head| head.first_chunk::<4>()) else {
            return Err(CaptureError::Short);
        };
        let (le, be) = (u32::from_le_bytes(magic), u32::from_be_bytes(magic));
        let nanos = match (le, be) {
            (PCAP_MICRO, _) | (_, PCAP_MICRO) => false,
            (PCAP_NANO, _) | (_, PCAP_NANO) => true,
            (SECTION_HEADER, _) => return Ok(reader),
            _ => return Err(unknown_format(magic)),
        };
        reader.format = Format::Pcap { nanos };
        reader.big_endian = matches!(be, PCAP_MICRO | PCAP_NANO);
        let big_endian = reader.big_endian;
        let Some(header) = reader.peek(24)? else { return Err(CaptureError::Short) };
        // The upper half flags a frame check sequence, which lies after the IP packet's end.
        let link_type = word(header, 20, big_endian).unwrap_or(0) as u16;
        let tick_ns = if nanos { (1, 1) } else { (1_000, 1) };
        reader.interfaces.push(CaptureInterface { name: None, link_type, tick_ns, offset_ns: 0 });
        reader.consume(24);
        Ok(reader)
    }

    /// Returns the next frame; `None` at the end.
    pub(super) fn next_frame(&mut self) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
        let span = match self.format {
            Format::Pcap { nanos } => self.next_pcap(nanos)?,
            Format::Pcapng => self.next_pcapng()?,
        };
        let Some(span) = span else { return Ok(None) };
        let bytes = self.buffer.get(span.from..span.from + span.len).unwrap_or_default();
        let link_type = self.interfaces.get(span.interface).map_or(0, |i| i.link_type);
        let FrameSpan { at_ns, wire_bytes, outbound, .. } = span;
        let interface = span.interface as u32;
        Ok(Some(CapturedFrame { at_ns, link_type, interface, bytes, wire_bytes, outbound }))
    }

    /// Returns the source of the bytes.
    pub(super) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// Returns the interfaces found so far.
    pub(super) fn interfaces(&self) -> &[CaptureInterface] {
        &self.interfaces
    }

    /// Returns the number of frames with an impossible time.
    pub(super) fn invalid_times(&self) -> u64 {
        self.invalid_times
    }

    /// Returns true if the file ended in the middle of a record.
    pub(super) fn truncated(&self) -> bool {
        self.truncated
    }

    fn next_pcap(&mut self, nanos: bool) -> Result<Option<FrameSpan>, CaptureError> {
        let big_endian = self.big_endian;
        let Some(header) = self.peek(16)? else { return Ok(self.end_of_file()) };
        let field = |offset| word(header, offset, big_endian).unwrap_or(0);
        let (seconds, fraction, captured_bytes, wire_bytes) =
            (field(0), field(4), field(8), field(12));
        if captured_bytes == 0 && wire_bytes == 0 {
            // No packet is empty, but a sparse file contains terabytes of zeros.
            return Err(self.malformed("length of a record"));
        }
        let len = self.check_length(captured_bytes as usize)?;
        if self.peek(16 + len)?.is_none() {
            return Ok(self.end_of_file());
        }
        let unit = if nanos { 1 } else { 1_000 };
        self.invalid_times += u64::from(u64::from(fraction) * unit >= 1_000_000_000);
        let at_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit;
        let start = self.start + 16;
        self.consume(16 + len);
        let wire_bytes = wire_bytes.max(captured_bytes);
        Ok(Some(FrameSpan {
            at_ns: Some(at_ns),
            interface: 0,
            from: start,
            len,
            wire_bytes,
            outbound: None,
        }))
    }

    fn next_pcapng(&mut self) -> Result<Option<FrameSpan>, CaptureError> {
        loop {
            let big_endian = self.big_endian;
            let Some(head) = self.peek(12)? else { return Ok(self.end_of_file()) };
            let kind = word(head, 0, big_endian).unwrap_or(0);
            if kind == SECTION_HEADER {
                self.big_endian = match word(head, 8, true) {
                    Some(BYTE_ORDER) => true,
                    Some(order) if order.swap_bytes() == BYTE_ORDER => false,
                    _ => return Err(self.malformed("byte order of a section")),
                };
                self.section = self.interfaces.len();
            }
            let big_endian = self.big_endian;
            let total =
                self.peek(12)?.and_then(|head| word(head, 4, big_endian)).unwrap_or(0) as usize;
            let total = self.check_length(total)?;
            if total < 12 || total % 4 != 0 {
                return Err(self.malformed("length of a block"));
            }
            if self.peek(total)?.is_none() {
                return Ok(self.end_of_file());
            }
            let start = self.start;
            self.consume(total);
            if let Some(span) = self.block(kind, start, total) {
                self.invalid_times += u64::from(span.at_ns == Some(u64::MAX));
                return Ok(Some(span));
            }
        }
    }

    /// Parses the block at `from`, whose length includes both length fields.
    fn block(&mut self, kind: u32, start: usize, total: usize) -> Option<FrameSpan> {
        let big_endian = self.big_endian;
        let body = self.buffer.get(start + 8..start + total - 4)?;
        let body_start = start + 8;
        match kind {
            INTERFACE_DESCRIPTION => {
                let interface = describe(body, big_endian)?;
                if self.interfaces.len() < MAX_INTERFACES {
                    self.interfaces.push(interface);
                }
                None
            }
            ENHANCED_PACKET => {
                let interface = self.section + word(body, 0, big_endian)? as usize;
                let len = word(body, 12, big_endian)? as usize;
                let options = body.get(20_usize.checked_add(len)?.next_multiple_of(4)..);
                let flags = options.and_then(|options| option(options, EPB_FLAGS, big_endian));
                let flags = flags.and_then(|value| word(value, 0, big_endian)).unwrap_or(0);
                let outbound = match flags & 3 {
                    1 => Some(false),
                    2 => Some(true),
                    _ => None,
                };
                let at_ns =
                    self.time(interface, word(body, 4, big_endian)?, word(body, 8, big_endian)?);
                let wire_bytes = word(body, 16, big_endian)?;
                body.get(20..20 + len)?;
                Some(FrameSpan {
                    at_ns,
                    interface,
                    from: body_start + 20,
                    len,
                    wire_bytes,
                    outbound,
                })
            }
            OBSOLETE_PACKET => {
                let interface = self.section + usize::from(short(body, 0, big_endian)?);
                let len = word(body, 12, big_endian)? as usize;
                let at_ns =
                    self.time(interface, word(body, 4, big_endian)?, word(body, 8, big_endian)?);
                let wire_bytes = word(body, 16, big_endian)?;
                body.get(20..20_usize.checked_add(len)?)?;
                let start = body_start + 20;
                Some(FrameSpan { at_ns, interface, from: start, len, wire_bytes, outbound: None })
            }
            SIMPLE_PACKET => {
                let wire_bytes = word(body, 0, big_endian)?;
                let len = (body.len() - 4).min(wire_bytes as usize);
                let (interface, start) = (self.section, body_start + 4);
                Some(FrameSpan {
                    at_ns: None,
                    interface,
                    from: start,
                    len,
                    wire_bytes,
                    outbound: None,
                })
            }
            _ => None,
        }
    }

    fn time(&self, interface: usize, high: u32, low: u32) -> Option<u64> {
        Some(self.interfaces.get(interface)?.nanoseconds(high, low))
    }
}

impl CaptureInterface {
    /// Converts a number of ticks to nanoseconds since 1970; `u64::MAX` if they do not fit.
    fn nanoseconds(&self, high: u32, low: u32) -> u64 {
        let ticks = (u64::from(high) << 32) | u64::from(low);
        let ns = match self.tick_ns {
            (1, 1) => ticks,
            (numerator, 1) => ticks.saturating_mul(numerator),
            (numerator, denominator) => {
                let ns = u128::from(ticks) * u128::from(numerator) / u128::from(denominator.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        };
        ns.saturating_add_signed(self.offset_ns)
    }
}

impl<R: Read> CaptureReader<R> {
    fn end_of_file(&mut self) -> Option<FrameSpan> {
        self.truncated |= self.start < self.end;
        None
    }

    fn check_length(&self, len: usize) -> Result<usize, CaptureError> {
        if len > MAX_RECORD_BYTES { Err(self.malformed("length of a record")) } else { Ok(len) }
    }

    fn malformed(&self, field: &'static str) -> CaptureError {
        CaptureError::Malformed { field, at: self.passed }
    }

    /// Returns the next `len` bytes without consuming them; `None` when there are fewer.
    fn peek(&mut self, len: usize) -> Result<Option<&[u8]>, CaptureError> {
        if self.end - self.start < len && !self.fill(len)? {
            return Ok(None);
        }
        Ok(self.buffer.get(self.start..self.start + len))
    }

    #[cold]
    fn fill(&mut self, len: usize) -> Result<bool, CaptureError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < len {
            self.buffer.resize(len.next_power_of_two(), 0);
        }
        while self.end < len {
            let Some(free) = self.buffer.get_mut(self.end..) else { return Ok(false) };
            match self.input.read(free) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end = (self.end + count).min(self.buffer.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.passed += len as u64;
    }
}

/// Returns the error for a file that begins with these bytes.
fn unknown_format(magic: [u8; 4]) -> CaptureError {
    match magic {
        [0x1f, 0x8b, ..] => CaptureError::Compressed("gzip", "gzip"),
        [0xfd, b'7', b'z', b'X'] => CaptureError::Compressed("xz", "xz"),
        [0x28, 0xb5, 0x2f, 0xfd] => CaptureError::Compressed("zstd", "zstd"),
        [b'B', b'Z', b'h', _] => CaptureError::Compressed("bzip2", "bzip2"),
        [0x04, 0x22, 0x4d, 0x18] => CaptureError::Compressed("lz4", "lz4"),
        _ => CaptureError::Magic(magic),
    }
}

/// Parses an interface description block.
fn describe(body: &[u8], big_endian: bool) -> Option<CaptureInterface> {
    let link_type = short(body, 0, big_endian)?;
    let options = body.get(8..).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let name = option(options, IF_NAME, big_endian).map(text).filter(|name| !name.is_empty());
    let resolution =
        option(options, IF_TSRESOL, big_endian).and_then(|value| value.first().copied());
    let tick_ns = tick(resolution.unwrap_or(6));
    let offset = option(options, IF_TSOFFSET, big_endian).and_then(|value| {
        let &bytes = value.first_chunk::<8>()?;
        Some(if big_endian { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) })
    });
    let offset_ns = offset.unwrap_or(0).saturating_mul(1_000_000_000);
    Some(CaptureInterface { name, link_type, tick_ns, offset_ns })
}

/// Returns a tick in nanoseconds: `if_tsresol` is a negative power of 10, or of 2 with its highest
/// bit set.
fn tick(resolution: u8) -> (u64, u64) {
    let power = u32::from(resolution & 0x7f);
    if resolution & 0x80 != 0 {
        // A tick finer than 2^-63 s would not fit; no clock is that precise.
        return (1_000_000_000, 1_u64 << power.min(63));
    }
    match power {
        0..=9 => (10_u64.pow(9 - power), 1),
        _ => (1, 10_u64.saturating_pow(power - 9)),
    }
}

/// Returns the value of the first option with this code.
fn option(mut options: &[u8], code: u16, big_endian: bool) -> Option<&[u8]> {
    loop {
        let (found_code, len) =
            (short(options, 0, big_endian)?, usize::from(short(options, 2, big_endian)?));
        let value = options.get(4..4 + len)?;
        if found_code == code {
            return Some(value);
        }
        if found_code == 0 {
            return None;
        }
        options = options.get((4 + len).next_multiple_of(4)..)?;
    }
}

fn short(bytes: &[u8], offset: usize, big_endian: bool) -> Option<u16> {
    let &field = bytes.get(offset..)?.first_chunk::<2>()?;
    Some(if big_endian { u16::from_be_bytes(field) } else { u16::from_le_bytes(field) })
}

fn word(bytes: &[u8], offset: usize, big_endian: bool) -> Option<u32> {
    let &field = bytes.get(offset..)?.first_chunk::<4>()?;
    Some(if big_endian { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) })
}
