//! Live capture of this machine's packets, as a pcap file.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use towpath_net::Instant;
use towpath_netlink::{NetlinkError, RouteSocket};
use towpath_os::clock::Clock;
use towpath_os::{interrupt, sys};

/// Captured bytes of each packet: IPv6 with extension headers, and TCP with all options.
const SNAPLEN: usize = 192;
/// Header of the file: pcap with nanoseconds, `LINKTYPE_LINUX_SLL2` (draft-ietf-opsawg-pcap).
const PCAP_MAGIC: u32 = 0xa1b2_3c4d;
const PCAP_VERSION: (u16, u16) = (2, 4);
const SLL2: u32 = 276;
const SLL2_BYTES: usize = 20;
const PCAP_RECORD_HEADER_BYTES: usize = 16;
/// Interval at which the capture checks for its end time or an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Errors that prevent a live capture.
#[derive(Debug, thiserror::Error)]
pub enum LiveCaptureError {
    /// Netlink request for the interfaces failed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(#[from] NetlinkError),
    /// No interface of this host has the requested name.
    #[error("this host has no interface `{name}`")]
    Unknown {
        /// Interface name that was requested.
        name: String,
        /// Interfaces of this host.
        interfaces: Vec<String>,
    },
    /// Opening the packet socket failed, mostly for lack of `CAP_NET_RAW`.
    #[error("cannot capture: {0}")]
    Open(#[source] io::Error),
}

impl LiveCaptureError {
    /// Returns advice on how to resolve the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { interfaces, .. } => Some(format!(
                "its interfaces are: {}; or `any` for all of them",
                interfaces.join(", ")
            )),
            Self::Open(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(
                "capturing needs CAP_NET_RAW: run it as root, or in a lab (`towpath lab`)"
                    .to_owned(),
            ),
            Self::Interfaces(_) | Self::Open(_) => None,
        }
    }
}

/// A live capture, read like a file. Ends at its time limit, or at an interrupt.
#[derive(Debug)]
pub struct LiveCapture {
    socket: OwnedFd,
    clock: Clock,
    end: Option<Instant>,
    /// Encoded pcap bytes that the reader has not taken yet.
    encoded: Vec<u8>,
    /// Bytes of `encoded` that the reader has taken.
    taken_bytes: usize,
    /// Packets that the kernel dropped so far.
    drops: u64,
}

impl LiveCapture {
    /// Begins to capture on the interface `name`, or on all with `any`.
    pub fn open(name: &str, duration: Option<Duration>) -> Result<Self, LiveCaptureError> {
        let index = if name == "any" { 0 } else { link_index(name)? };
        let socket = sys::packet::open_listening_socket(index).map_err(LiveCaptureError::Open)?;
        let clock = Clock::start();
        let end = duration.map(|duration| clock.now() + duration);
        let encoded = file_header();
        Ok(Self { socket, clock, end, encoded, taken_bytes: 0, drops: 0 })
    }

    /// Returns how many packets the kernel dropped because the socket's buffer was full.
    pub fn missed_packets(&mut self) -> u64 {
        self.drops += sys::packet_socket_drops(self.socket.as_fd());
        self.drops
    }

    fn is_over(&self) -> bool {
        interrupt::is_interrupted() || self.end.is_some_and(|end| self.clock.now() >= end)
    }

    /// Reads queued packets, until `max_bytes` are encoded.
    fn fill(&mut self, max_bytes: usize) -> io::Result<()> {
        self.encoded.clear();
        self.taken_bytes = 0;
        let mut packet = [0; SNAPLEN];
        while self.encoded.len() < max_bytes {
            match sys::packet::next_packet(self.socket.as_fd(), &mut packet) {
                // The loopback interface shows every packet twice, sent and received.
                Ok(packet_info)
                    if packet_info.is_sent() && packet_info.hardware == libc::ARPHRD_LOOPBACK => {}
                Ok(packet_info) => {
                    let captured = packet.get(..packet_info.captured_bytes).unwrap_or_default();
                    write_record(&mut self.encoded, &packet_info, captured);
                }
                // The interface went down; it may come up again.
                Err(error) if error.kind() == io::ErrorKind::NetworkDown => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Read for LiveCapture {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken_bytes >= self.encoded.len() {
            if self.is_over() {
                return Ok(0);
            }
            self.fill(buffer.len())?;
            if self.encoded.is_empty() {
                let mut fds = [sys::input_pollfd(&self.socket)];
                sys::poll(&mut fds, Some(POLL_INTERVAL))?;
            }
        }
        let rest = self.encoded.get(self.taken_bytes..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        if let (Some(target), Some(bytes)) = (buffer.get_mut(..length), rest.get(..length)) {
            target.copy_from_slice(bytes);
        }
        self.taken_bytes += length;
        Ok(length)
    }
}

fn link_index(name: &str) -> Result<u32, LiveCaptureError> {
    let links = RouteSocket::open()?.links()?;
    let index = links.iter().find(|link| link.name == name).map(|link| link.index);
    index.ok_or_else(|| LiveCaptureError::Unknown {
        name: name.to_owned(),
        interfaces: links.into_iter().map(|link| link.name).collect(),
    })
}

fn file_header() -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(PCAP_MAGIC.to_le_bytes());
    header.extend(PCAP_VERSION.0.to_le_bytes());
    header.extend(PCAP_VERSION.1.to_le_bytes());
    header.extend([0; 8]);
    header.extend(((SNAPLEN + SLL2_BYTES) as u32).to_le_bytes());
    header.extend(SLL2.to_le_bytes());
    header
}

fn write_record(out: &mut Vec<u8>, packet_info: &sys::packet::CapturedPacket, captured: &[u8]) {
    let (seconds, nanos) =
        (packet_info.unix_ns / 1_000_000_000, packet_info.unix_ns % 1_000_000_000);
    out.reserve(PCAP_RECORD_HEADER_BYTES + SLL2_BYTES + captured.len());
    for field in [
        seconds as u32,
        nanos as u32,
        (captured.len() + SLL2_BYTES) as u32,
        (packet_info.original_bytes + SLL2_BYTES) as u32,
    ] {
        out.extend(field.to_le_bytes());
    }
    // The header is in network order, without link-layer addresses.
    out.extend(packet_info.protocol.to_be_bytes());
    out.extend([0; 2]);
    out.extend(packet_info.index.to_be_bytes());
    out.extend(packet_info.hardware.to_be_bytes());
    out.extend([packet_info.kind, 0]);
    out.extend([0; 8]);
    out.extend(captured);
}
