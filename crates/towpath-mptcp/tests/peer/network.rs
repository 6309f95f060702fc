//! A client of another implementation, our server, and lossy paths between them, in virtual time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use mptcp_rs::{CloseReason, ConnectConfig, ConnectionHandle, Endpoint, ReadError, SubflowId};
use rand_core::{Rng, SeedableRng, TryCryptoRng, TryRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{
    ConnectionError, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice,
};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::Packet;

/// Port of the listening server.
const PORT: u16 = 80;
const MTU_BYTES: u16 = 1_500;
/// Limit of the steps at one time, which detects an endless loop.
const MAX_STEPS_AT_ONE_TIME: u32 = 100_000;

/// Random numbers, reproducible for a seed; nothing is secret here.
#[derive(Debug)]
pub(crate) struct Random(Pcg32);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg32::seed_from_u64(seed))
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn millis(&mut self, min: u64, max: u64) -> Duration {
        Duration::from_millis(min + self.below(max - min))
    }
}

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill_bytes(out);
        Ok(())
    }
}

impl TryCryptoRng for Random {}

/// Both directions of the path behind one address of the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathParams {
    pub(crate) delay: Duration,
    /// Maximum extra delay, drawn for each packet: it causes reordering.
    pub(crate) jitter: Duration,
    /// Loss probability, in packets per thousand.
    pub(crate) loss: u64,
    /// Duplication probability, in packets per thousand.
    pub(crate) duplication: u64,
    /// Transmission time of a byte in nanoseconds.
    pub(crate) byte_nanos: u64,
    /// Maximum queueing delay; packets that would wait longer are dropped.
    pub(crate) queue: Duration,
    pub(crate) up: bool,
}

/// Reading and writing behaviour of one end's application.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes and facts")]
pub(crate) struct Application {
    pub(crate) to_send: Bytes,
    /// Set if the application closes only after it has received the other's end of data.
    pub(crate) closes_last: bool,
    /// Maximum bytes read per [`READ_INTERVAL`]; `None`: no limit.
    pub(crate) read_limit_bytes: Option<usize>,
    /// Set when the application may close its direction.
    pub(crate) may_close: bool,
    /// Bytes that may still be read in this interval.
    read_budget_bytes: usize,
    pub(crate) write_closed: bool,
    pub(crate) received: Vec<u8>,
    /// Set when the end of the other's data was read.
    pub(crate) read_eof: bool,
}

/// Subflow as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientSubflow {
    pub(crate) id: SubflowId,
    pub(crate) path: usize,
    pub(crate) remote: SocketAddr,
    /// True if the handshake is complete and the client has not closed the subflow.
    pub(crate) up: bool,
}

/// Interval between reads of a slow reader.
const READ_INTERVAL: Duration = Duration::from_millis(40);

pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) client: Endpoint<Random>,
    pub(crate) handle: ConnectionHandle,
    pub(crate) server: Stack,
    pub(crate) connection: Option<ConnectionId>,
    /// Paths, by the client's address.
    pub(crate) paths: Vec<PathParams>,
    /// Applications of the client and the server.
    pub(crate) applications: [Application; 2],
    pub(crate) client_connected: Option<bool>,
    pub(crate) client_closed: Option<CloseReason>,
    pub(crate) client_fell_back: bool,
    /// The client's subflows that are open or being opened.
    pub(crate) subflows: Vec<ClientSubflow>,
    /// Number of joins that succeeded.
    pub(crate) joined: usize,
    /// Addresses that the server announced.
    pub(crate) announced: Vec<SocketAddr>,
    pub(crate) server_closed: Option<Result<(), ConnectionError>>,
    pub(crate) notices: Vec<StackNotice>,
    pub(crate) packets: u64,
    /// Time at which each path has sent its queue, by receiver.
    free_at: Vec<[Instant; 2]>,
    /// Packets in flight by arrival time and number: receiver (0: client, 1: server), path, packet.
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Bytes)>,
    packet_count: u64,
    random: Random,
    /// Time of the next read of slow readers.
    next_read_at: Instant,
    trace: bool,
}

pub(crate) fn client_address(path: usize) -> IpAddr {
    Ipv4Addr::new(10, 1, path as u8, 1).into()
}

pub(crate) fn server_address(number: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 2, number as u8, 1), PORT).into()
}

/// Converts a time to the type of the client's implementation.
fn peer_instant(time: Instant) -> mptcp_rs::Instant {
    mptcp_rs::Instant::from_nanos(time.as_nanos())
}

impl Network {
    /// Creates the network; the client's SYN is due.
    pub(crate) fn new(
        seed: u64,
        paths: Vec<PathParams>,
        servers: usize,
        client: ConnectConfig,
        server: ConnectionConfig,
    ) -> Self {
        let mut endpoint = Endpoint::new(Random::new(seed ^ 0x5eed));
        let start = peer_instant(Instant::ZERO);
        let remote = server_address(0);
        let handle = endpoint.connect_mptcp(start, client_address(0), remote, client).unwrap();
        let mut network = Self {
            now: Instant::ZERO,
            client: endpoint,
            handle,
            server: Stack::new(stack::StackConfig { seed, ..stack::StackConfig::default() }),
            connection: None,
            free_at: vec![[Instant::ZERO; 2]; paths.len()],
            paths,
            applications: <[Application; 2]>::default(),
            client_connected: None,
            client_closed: None,
            client_fell_back: false,
            subflows: vec![ClientSubflow { id: SubflowId::INITIAL, path: 0, remote, up: true }],
            joined: 0,
            announced: Vec::new(),
            server_closed: None,
            notices: Vec::new(),
            packets: 0,
            in_flight: BTreeMap::new(),
            packet_count: 0,
            random: Random::new(seed),
            next_read_at: Instant::ZERO,
            trace: std::env::var_os("PEER_TRACE").is_some(),
        };
        for number in 0..servers {
            network.server.add_interface(InterfaceId(number as u32), MTU_BYTES.into());
            network.set_server_address(number, false, false);
        }
        network.server.listen(PORT, server).unwrap();
        network
    }

    pub(crate) fn set_server_address(&mut self, number: usize, signal: bool, backup: bool) {
        let address = LocalAddress {
            address_id: number as u8 + 1,
            address: server_address(number).ip(),
            port: None,
            interface: InterfaceId(number as u32),
            up: true,
            subflow: false,
            signal,
            backup,
            fullmesh: false,
            laminar: false,
        };
        self.server.set_address(self.now, address);
    }

    /// Opens a subflow of the client; returns false if that is not permitted.
    pub(crate) fn join(&mut self, path: usize, remote: SocketAddr, backup: bool) -> bool {
        let (now, address) = (peer_instant(self.now), client_address(path));
        let result = self.client.add_subflow(now, self.handle, address, remote, MTU_BYTES, backup);
        self.print_trace(format_args!("join from path {path} to {remote}: {result:?}"));
        if let Ok(subflow) = result {
            self.subflows.push(ClientSubflow { id: subflow, path, remote, up: false });
        }
        result.is_ok()
    }

    pub(crate) fn remove_client_address(&mut self, path: usize) {
        let (now, address) = (peer_instant(self.now), client_address(path));
        let result = self.client.remove_address(now, self.handle, address);
        self.print_trace(format_args!("client removes address of path {path}: {result:?}"));
    }

    pub(crate) fn close_subflow(&mut self, subflow: SubflowId) {
        let result = self.client.close_subflow(peer_instant(self.now), self.handle, subflow);
        // The client sends no more data on it, so it is not counted as up.
        for entry in self.subflows.iter_mut().filter(|entry| entry.id == subflow && result.is_ok())
        {
            entry.up = false;
        }
        self.print_trace(format_args!("client closes {subflow:?}: {result:?}"));
    }

    pub(crate) fn set_backup(&mut self, subflow: SubflowId, backup: bool) {
        let result = self.client.set_backup(peer_instant(self.now), self.handle, subflow, backup);
        self.print_trace(format_args!("client sets backup of {subflow:?} to {backup}: {result:?}"));
    }

    pub(crate) fn abort_client(&mut self) {
        self.print_trace(format_args!("client aborts"));
        if let Some(connection) = self.client.connection(self.handle) {
            connection.abort();
        }
    }

    pub(crate) fn abort_server(&mut self) {
        self.print_trace(format_args!("server aborts"));
        if let Some(connection) = self.connection {
            self.server.abort(self.now, connection);
        }
    }

    pub(crate) fn print_trace(&self, message: std::fmt::Arguments<'_>) {
        if self.trace {
            println!("{} {message}", self.now);
        }
    }

    /// Runs until the time `wake`, until `done`, or until no event is left; returns true if `done`.
    pub(crate) fn run(&mut self, wake: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        let mut steps = 0;
        loop {
            self.run_client();
            self.run_server();
            self.send_packets();
            if done(self) {
                return true;
            }
            let event_at = self.next_event_at().filter(|event_at| *event_at <= wake);
            let Some(event_at) = event_at else {
                self.now = self.now.max(wake);
                return false;
            };
            steps = if event_at > self.now { 0 } else { steps + 1 };
            assert!(steps < MAX_STEPS_AT_ONE_TIME, "runs in a circle at {}", self.now);
            self.now = self.now.max(event_at);
            self.deliver_arrivals();
            if self.client.poll_timeout().is_some_and(|time| time <= peer_instant(self.now)) {
                self.client.handle_timeout(peer_instant(self.now));
            }
            if self.server.poll_timeout().is_some_and(|(time, _)| time <= self.now) {
                self.server.handle_timeout(self.now);
            }
            if self.next_read_at <= self.now {
                self.next_read_at = self.now + READ_INTERVAL;
                for application in &mut self.applications {
                    application.read_budget_bytes =
                        application.read_limit_bytes.unwrap_or(usize::MAX);
                }
            }
        }
    }

    fn next_event_at(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|(time, _)| *time);
        let client = self.client.poll_timeout().map(|time| Instant::from_nanos(time.as_nanos()));
        let server = self.server.poll_timeout().map(|(time, _)| time);
        let has_slow_reader = self
            .applications
            .iter()
            .any(|application| application.read_limit_bytes.is_some() && !application.read_eof);
        let read = (has_slow_reader || self.now == Instant::ZERO).then_some(self.next_read_at);
        [arrival, client, server, read].into_iter().flatten().min()
    }

    fn run_client(&mut self) {
        while let Some((_, event)) = self.client.poll_event() {
            self.print_trace(format_args!("client: {event:?}"));
            self.on_client_event(&event);
        }
        let Some(connection) = self.client.connection(self.handle) else { return };
        let application = &mut self.applications[0];
        let mut buffer = [0; 16_384];
        while !application.read_eof
            && (application.read_limit_bytes.is_none() || application.read_budget_bytes > 0)
        {
            let room = if application.read_limit_bytes.is_some() {
                application.read_budget_bytes.min(16_384)
            } else {
                16_384
            };
            match connection.read(&mut buffer[..room]) {
                Ok(0) => application.read_eof = true,
                Ok(len) => {
                    application.received.extend_from_slice(&buffer[..len]);
                    application.read_budget_bytes =
                        application.read_budget_bytes.saturating_sub(len);
                }
                Err(ReadError::WouldBlock | ReadError::Reset | _) => break,
            }
        }
        if self.client_connected.is_some() && !application.write_closed {
            if !application.to_send.is_empty() {
                let written = connection.write(&application.to_send).unwrap_or(0);
                let _ = application.to_send.split_to(written);
            }
            if application.to_send.is_empty()
                && application.may_close
                && (application.read_eof || !application.closes_last)
            {
                application.write_closed = true;
                connection.close();
            }
        }
    }

    fn on_client_event(&mut self, event: &mptcp_rs::Event) {
        use mptcp_rs::Event as ClientEvent;
        match *event {
            ClientEvent::Connected { mptcp } => self.client_connected = Some(mptcp),
            ClientEvent::FellBack => self.client_fell_back = true,
            ClientEvent::Closed { reason } => self.client_closed = Some(reason),
            ClientEvent::SubflowUp { subflow } => {
                self.joined += 1;
                for entry in self.subflows.iter_mut().filter(|entry| entry.id == subflow) {
                    entry.up = true;
                }
            }
            ClientEvent::SubflowDown { subflow, .. } => {
                self.subflows.retain(|entry| entry.id != subflow);
            }
            ClientEvent::AddressAnnounced { addr, .. } => self.announced.push(addr),
            _ => {}
        }
    }

    fn run_server(&mut self) {
        while let Some(event) = self.server.poll_event() {
            if !matches!(event, StackEvent::Readable(_)) {
                self.print_trace(format_args!("server: {event:?}"));
            }
            match event {
                StackEvent::Accepted { connection, .. } => self.connection = Some(connection),
                StackEvent::Closed { error, .. } => {
                    assert_eq!(self.server_closed, None, "told twice that it is over");
                    self.server_closed = Some(error.map_or(Ok(()), Err));
                }
                StackEvent::Notice { notice, .. } => self.notices.push(notice),
                StackEvent::Connected(_) | StackEvent::Readable(_) | StackEvent::Writable(_) => {}
                StackEvent::Trace { .. } => {}
            }
        }
        let Some(id) = self.connection else { return };
        let application = &mut self.applications[1];
        while !application.read_eof
            && (application.read_limit_bytes.is_none() || application.read_budget_bytes > 0)
        {
            let Some(bytes) = self.server.read(self.now, id) else { break };
            application.read_eof = bytes.is_empty();
            application.read_budget_bytes =
                application.read_budget_bytes.saturating_sub(bytes.len());
            application.received.extend_from_slice(&bytes);
        }
        if !application.to_send.is_empty() {
            self.server.write(self.now, id, &mut application.to_send);
        }
        let may_shut_down = application.to_send.is_empty()
            && application.may_close
            && (application.read_eof || !application.closes_last);
        if may_shut_down && !application.write_closed {
            application.write_closed = true;
            self.server.shutdown(self.now, id);
        }
    }

    fn send_packets(&mut self) {
        let mut buffer = [0; MTU_BYTES as usize];
        while let Some(count) = self.client.poll_transmit(peer_instant(self.now), &mut buffer) {
            self.send(1, &Bytes::copy_from_slice(&buffer[..count]));
        }
        while let Some((_, packet)) = self.server.poll_transmit(self.now) {
            for packet in packet.split() {
                self.send(0, &packet.to_vec().into());
            }
        }
    }

    /// Sends a packet to the client (0) or the server (1); the client's address selects the path.
    fn send(&mut self, receiver: usize, packet: &Bytes) {
        self.packets += 1;
        let path = usize::from(packet[if receiver == 1 { 14 } else { 18 }]);
        let params = self.paths[path];
        let free_at = &mut self.free_at[path][receiver];
        let departure = self.now.max(*free_at);
        let lost = self.random.below(1_000) < params.loss
            || !params.up
            || departure.saturating_since(self.now) > params.queue;
        if self.trace {
            let (sender, lost) = (["server", "client"][receiver], if lost { " LOST" } else { "" });
            println!("{} {sender} path {path}:{lost} {}", self.now, describe(packet));
        }
        if lost {
            return;
        }
        *free_at = departure + Duration::from_nanos(packet.len() as u64 * params.byte_nanos);
        let free_at = *free_at;
        let copies = 1 + u32::from(self.random.below(1_000) < params.duplication);
        for _ in 0..copies {
            let jitter = Duration::from_nanos(self.random.below(params.jitter.as_nanos() as u64));
            self.packet_count += 1;
            let arrival = free_at + params.delay + jitter;
            self.in_flight.insert((arrival, self.packet_count), (receiver, path, packet.clone()));
        }
    }

    fn deliver_arrivals(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (receiver, path, packet) = entry.remove();
            if !self.paths[path].up {
                continue;
            }
            if receiver == 0 {
                self.client.handle_packet(peer_instant(self.now), &packet);
            } else {
                let interface = InterfaceId(packet[18].into());
                let packet = Packet::from_bytes(&packet, false, 0).unwrap();
                self.server.handle_packet(self.now, interface, packet);
            }
        }
    }

    pub(crate) fn status(&self) -> Option<stack::ConnectionStatus> {
        self.server.status(self.connection?)
    }
}

/// Describes a packet in one line, for `PEER_TRACE=1`.
fn describe(packet: &Bytes) -> String {
    match Packet::from_bytes(packet, false, 0).and_then(|packet| packet.parse()) {
        Ok(segment) => format!(
            "{}>{} {:#04x} seq {} ack {} len {} win {} sack {:?} {:?} {:?}",
            segment.source,
            segment.destination,
            segment.flags.0,
            segment.seq,
            segment.ack,
            segment.payload.len(),
            segment.window,
            segment.options.sack,
            segment.options.dss,
            segment.options.mptcp,
        ),
        Err(error) => error.to_string(),
    }
}

/// Returns bytes that reveal their position.
pub(crate) fn pattern(len: usize, salt: u64) -> Bytes {
    let word = |index: usize| (index as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (0..len).map(|index| (word(index) >> (index % 8 * 8)) as u8).collect::<Vec<u8>>().into()
}
