//! Packet capture of all hosts as pcapng: the emulator records packets, another thread writes
//! them.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use towpath_net::{Instant, Packet as _};
use towpath_os::clock::Clock;
use towpath_os::files::Dir;
use towpath_scenario::Scenario;
use towpath_scenario::network::end_of;
use towpath_sockets::frame::GsoSegment;
use towpath_wire::pcapng::{PacketDirection, PcapngWriter};

/// Maximum number of packets that wait to be written; further ones are only counted.
const MAX_QUEUED_PACKETS: usize = 50_000;

/// Destination and options of a run's captures.
#[derive(Debug, Clone)]
pub struct PcapOptions {
    /// Folder of the files; created if it is missing.
    pub folder: PathBuf,
    /// Prefix of the file names; the host's name follows.
    pub file_prefix: String,
    /// Maximum bytes kept of each packet; all if `None`.
    pub snaplen: Option<u32>,
}

impl PcapOptions {
    /// Returns the file name for one host.
    fn file_name(&self, host: &str) -> String {
        format!("{}-{host}.pcapng", self.file_prefix)
    }
}

/// Error of a capture file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`: {source}", path.display())]
pub struct PcapError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the system call.
    pub source: io::Error,
}

/// Packet as it crossed an interface.
#[derive(Debug)]
struct PacketRecord {
    unix_ns: u64,
    host: usize,
    interface: u32,
    direction: PacketDirection,
    data: Vec<u8>,
    original_bytes: usize,
}

/// Recorder of packets, used by the emulator's thread.
#[derive(Debug)]
pub(crate) struct PacketRecorder {
    queue: SyncSender<PacketRecord>,
    /// Host and interface number at both ends of each path.
    interface_ids: Vec<[(usize, u32); 2]>,
    /// Offset from emulator time to nanoseconds since 1970.
    epoch_ns: u64,
    snaplen: Option<u32>,
    missed: Arc<AtomicU64>,
}

/// Handle of the thread that writes the files.
#[derive(Debug)]
pub(crate) struct CaptureWriter {
    thread: JoinHandle<Result<(), PcapError>>,
    missed: Arc<AtomicU64>,
}

/// Creates the files and the thread that writes them.
pub(crate) fn begin(
    pcap: &PcapOptions,
    scenario: &Scenario,
    clock: Clock,
) -> Result<(PacketRecorder, CaptureWriter), PcapError> {
    let pcap_error = |path: &Path| {
        let path = path.to_owned();
        move |source| PcapError { path, source }
    };
    let folder = Dir::make(&pcap.folder).map_err(pcap_error(&pcap.folder))?;
    let mut captures = Vec::new();
    for (index, host) in scenario.hosts.iter().enumerate() {
        let name = pcap.file_name(&host.name);
        let path = folder.path().join(&name);
        let file = folder.create(&name).map_err(pcap_error(&path))?;
        let host_paths = scenario.paths.iter().filter(|path| end_of(path, index).is_some());
        let names: Vec<_> = host_paths.map(|path| path.name.as_str()).collect();
        captures.push((path, PcapngWriter::begin(BufWriter::new(file), names, pcap.snaplen)));
    }
    let (packet_sender, packet_receiver) = mpsc::sync_channel(MAX_QUEUED_PACKETS);
    let missed = Arc::new(AtomicU64::new(0));
    let recorder = PacketRecorder {
        queue: packet_sender,
        interface_ids: interface_ids(scenario),
        epoch_ns: clock.epoch_ns(),
        snaplen: pcap.snaplen,
        missed: Arc::clone(&missed),
    };
    let thread = thread::Builder::new().name("capture".into());
    let thread = thread
        .spawn(move || write_packets(captures, &packet_receiver))
        .map_err(pcap_error(&pcap.folder))?;
    Ok((recorder, CaptureWriter { thread, missed }))
}

/// Numbers each host's interfaces in the order of the paths.
fn interface_ids(scenario: &Scenario) -> Vec<[(usize, u32); 2]> {
    let interface_number = |host: usize, path_count: usize| {
        let earlier_paths = scenario.paths.iter().take(path_count);
        earlier_paths.filter(|path| path.between.contains(&host)).count() as u32
    };
    let paths = scenario.paths.iter().enumerate();
    paths
        .map(|(index, path)| path.between.map(|host| (host, interface_number(host, index))))
        .collect()
}

fn write_packets(
    mut captures: Vec<(PathBuf, PcapngWriter<BufWriter<File>>)>,
    inbox: &Receiver<PacketRecord>,
) -> Result<(), PcapError> {
    for PacketRecord { unix_ns, host, interface, direction, data, original_bytes } in inbox {
        if let Some((_, capture)) = captures.get_mut(host) {
            capture.packet(unix_ns, (interface, direction), &data, original_bytes);
        }
    }
    captures.into_iter().try_for_each(|(path, capture)| {
        capture.finish().map(drop).map_err(|source| PcapError { path, source })
    })
}

impl PacketRecorder {
    /// Records each packet of a segment at one end of a path. Never blocks.
    pub(crate) fn record(
        &self,
        (path, end): (usize, usize),
        direction: PacketDirection,
        time: Instant,
        segment: &GsoSegment,
    ) {
        let Some(&(host, interface)) = self.interface_ids.get(path).and_then(|ends| ends.get(end))
        else {
            return;
        };
        let unix_ns = self.epoch_ns + time.as_nanos();
        for packet in segment.single_packets() {
            let original_bytes = packet.len_bytes() as usize;
            let data = match self.snaplen {
                Some(snaplen) if (snaplen as usize) < original_bytes => {
                    packet.to_truncated_bytes(snaplen as usize)
                }
                Some(_) | None => packet.to_bytes(),
            };
            let record = PacketRecord { unix_ns, host, interface, direction, data, original_bytes };
            if self.queue.try_send(record).is_err() {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl CaptureWriter {
    /// Waits until all packets are written; returns a warning if some are missing. The
    /// [`PacketRecorder`] must have been dropped before.
    pub(crate) fn finish(self) -> Result<Option<String>, PcapError> {
        let panicked = |_| {
            Err(PcapError {
                path: PathBuf::new(),
                source: io::Error::other("the writer of captures panicked"),
            })
        };
        self.thread.join().unwrap_or_else(panicked)?;
        let missed = self.missed.load(Ordering::Relaxed);
        Ok((missed > 0).then(|| {
            format!("{missed} packets are missing in the captures: they arrived faster than they could be written")
        }))
    }
}
