//! The crate `mptcp-rs`: packet by packet, through a TUN device without virtio headers, as its own
//! TUN client.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant as StdInstant};

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use mptcp_rs::{ConnectConfig, ConnectionHandle, Endpoint, Event, Instant, ReadError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Protocol;

use crate::network::{MTU, Network, address, target};
use crate::{Case, Failure, Shared, TrialMetrics, kernel, observe};

const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of consecutive packets in each direction.
const BATCH: usize = 64;

pub(crate) fn trial(case: Case, length: Duration) -> Result<TrialMetrics, Failure> {
    let network = Network::plain(case.paths)?;
    let shared = Arc::new(Shared::default());
    let server = kernel::serve(&network.namespace, Protocol::MPTCP, case.sends, &shared)?;
    let mut client = MptcpRsClient {
        endpoint: Endpoint::new(ChaCha20Rng::seed_from_u64(1)),
        devices: network.plain_devices,
        case,
        shared: Arc::clone(&shared),
        origin: StdInstant::now(),
        connected: false,
    };
    let client_thread = thread::spawn(move || client.run().map_err(|error| error.to_string()));
    let metrics = observe(case, length, &shared);
    shared.over.store(true, Ordering::Relaxed);
    client_thread.join().map_err(|_| "mptcp-rs panicked")??;
    let _ = server.join(); // a panic has already been printed
    metrics
}

struct MptcpRsClient {
    endpoint: Endpoint<ChaCha20Rng>,
    devices: Vec<File>,
    case: Case,
    shared: Arc<Shared>,
    /// Time zero of the crate's clock.
    origin: StdInstant,
    connected: bool,
}

impl MptcpRsClient {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }

    fn run(&mut self) -> Result<(), Failure> {
        let now = self.now();
        let config = ConnectConfig::default();
        let handle = self.endpoint.connect_mptcp(now, address(0, 2), target(), config);
        let handle = handle.map_err(|error| format!("{error:?}"))?;
        let (data, mut buffer) = (vec![0x74; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        while !self.shared.is_over() {
            let mut is_active = self.receive(&mut buffer);
            let now = self.now();
            if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                self.endpoint.handle_timeout(now);
            }
            self.handle_events(handle)?;
            is_active |= self.move_data(handle, &data, &mut buffer);
            is_active |= self.transmit(&mut buffer)?;
            self.shared.store_cpu_time();
            if !is_active {
                self.wait()?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        let mut is_active = false;
        for device in 0..self.devices.len() {
            for _ in 0..BATCH {
                let result = self.devices.get(device).map(|mut device| device.read(buffer));
                let Some(Ok(length)) = result else { break };
                let now = self.now();
                self.endpoint.handle_packet(now, buffer.get(..length).unwrap_or(&[]));
                is_active = true;
            }
        }
        is_active
    }

    fn handle_events(&mut self, handle: ConnectionHandle) -> Result<(), Failure> {
        while let Some((_, event)) = self.endpoint.poll_event() {
            if matches!(event, Event::Connected { mptcp: true }) {
                self.connected = true;
                for path in 1..self.case.paths {
                    let (now, local) = (self.now(), address(path, 2));
                    let result =
                        self.endpoint.add_subflow(now, handle, local, target(), MTU, false);
                    result.map_err(|error| format!("{error:?}"))?;
                }
            } else if !matches!(event, Event::SubflowUp { .. }) {
                return Err(format!("unexpected: {event:?}").into());
            }
            self.shared.subflows.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn move_data(&mut self, handle: ConnectionHandle, data: &[u8], buffer: &mut [u8]) -> bool {
        let Some(connection) = self.endpoint.connection(handle) else { return false };
        let mut is_active = false;
        if self.case.sends && self.connected {
            while connection.write(data).is_ok_and(|written| written == data.len()) {
                is_active = true;
            }
        } else {
            loop {
                match connection.read(buffer) {
                    Ok(0) | Err(ReadError::WouldBlock) => break,
                    Ok(length) => {
                        self.shared.bytes.fetch_add(length as u64, Ordering::Relaxed);
                        is_active = true;
                    }
                    Err(_) => break,
                }
            }
        }
        is_active
    }

    fn transmit(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        for sent in 0..BATCH {
            let now = self.now();
            let packet_buffer = buffer.get_mut(..usize::from(MTU)).ok_or("no room")?;
            let Some(length) = self.endpoint.poll_transmit(now, packet_buffer) else {
                return Ok(sent > 0);
            };
            let packet = buffer.get(..length).unwrap_or(&[]);
            // Byte 14 of the IPv4 header, the third of the source address, is the path's number.
            let path = packet.get(14).copied().unwrap_or(0);
            if let Some(mut device) = self.devices.get(usize::from(path)) {
                let _ = device.write(packet); // a failed send counts as loss
            }
        }
        Ok(true)
    }

    fn wait(&self) -> Result<(), Failure> {
        let timeout = self.endpoint.poll_timeout().map(|due| due - self.now());
        let timeout = timeout.unwrap_or(Duration::from_millis(50)).min(Duration::from_millis(50));
        let mut fds: Vec<PollFd<'_>> = self
            .devices
            .iter()
            .map(|device| PollFd::new(device.as_fd(), PollFlags::POLLIN))
            .collect();
        // Rounded up: a timeout of zero before the deadline would spin.
        poll(&mut fds, PollTimeout::try_from(timeout.as_millis() as u32 + 1)?)?;
        Ok(())
    }
}
