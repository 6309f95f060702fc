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
use towpath_mptcp::stack::{
    self, ConnectionError, ConnectionId, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice,
};
use towpath_mptcp::wire::Packet;
use towpath_net::Instant;

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

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
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
    /// Set when it ends its data only after it has received the other's end.
    pub(crate) ends_last: bool,
    /// Maximum bytes read per [`READ_INTERVAL`]; `None`: everything immediately.
    pub(crate) reads: Option<usize>,
    /// Set when it may end its data.
    pub(crate) may_end: bool,
    may_read: usize,
    pub(crate) write_closed: bool,
    pub(crate) received: Vec<u8>,
    pub(crate) ended: bool,
}

/// Subflow as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientSubflow {
    pub(crate) id: SubflowId,
    pub(crate) path: usize,
    pub(crate) remote: SocketAddr,
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
    pub(crate) lines: Vec<PathParams>,
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
    free_at: Vec<[Instant; 2]>,
    /// Packets in flight by time; to the server (1) or the client (0), over this path.
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Bytes)>,
    sequence: u64,
    random: Random,
    read_at: Instant,
    trace: bool,
}

pub(crate) fn client_address(path: usize) -> IpAddr {
    Ipv4Addr::new(10, 1, path as u8, 1).into()
}

pub(crate) fn server_address(number: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 2, number as u8, 1), PORT).into()
}

fn foreign(at: Instant) -> mptcp_rs::Instant {
    mptcp_rs::Instant::from_nanos(at.as_nanos())
}

impl Network {
    /// Creates the network; the client's SYN is due.
    pub(crate) fn new(
        seed: u64,
        lines: Vec<PathParams>,
        servers: usize,
        client: ConnectConfig,
        server: ConnectionConfig,
    ) -> Self {
        let mut endpoint = Endpoint::new(Random::new(seed ^ 0x5eed));
        let begin = foreign(Instant::ZERO);
        let to = server_address(0);
        let handle = endpoint.connect_mptcp(begin, client_address(0), to, client).unwrap();
        let mut network = Self {
            now: Instant::ZERO,
            client: endpoint,
            handle,
            server: Stack::new(stack::StackConfig { seed, ..stack::StackConfig::default() }),
            connection: None,
            free_at: vec![[Instant::ZERO; 2]; lines.len()],
            lines,
            applications: <[Application; 2]>::default(),
            client_connected: None,
            client_closed: None,
            client_fell_back: false,
            subflows: vec![ClientSubflow { id: SubflowId::INITIAL, path: 0, remote: to, up: true }],
            joined: 0,
            announced: Vec::new(),
            server_closed: None,
            notices: Vec::new(),
            packets: 0,
            in_flight: BTreeMap::new(),
            sequence: 0,
            random: Random::new(seed),
            read_at: Instant::ZERO,
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
        let local = LocalAddress {
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
        self.server.set_address(self.now, local);
    }

    /// Opens a subflow of the client; returns false if that is not permitted.
    pub(crate) fn join(&mut self, path: usize, to: SocketAddr, backup: bool) -> bool {
        let (now, local) = (foreign(self.now), client_address(path));
        let joined = self.client.add_subflow(now, self.handle, local, to, MTU_BYTES, backup);
        self.print_trace(format_args!("join from path {path} to {to}: {joined:?}"));
        if let Ok(subflow) = joined {
            self.subflows.push(ClientSubflow { id: subflow, path, remote: to, up: false });
        }
        joined.is_ok()
    }

    pub(crate) fn remove_client_address(&mut self, path: usize) {
        let (now, local) = (foreign(self.now), client_address(path));
        let done = self.client.remove_address(now, self.handle, local);
        self.print_trace(format_args!("client removes address of path {path}: {done:?}"));
    }

    pub(crate) fn close_subflow(&mut self, subflow: SubflowId) {
        let done = self.client.close_subflow(foreign(self.now), self.handle, subflow);
        // The client sends no more data on it, so it does not count as a refuge.
        for known in self.subflows.iter_mut().filter(|known| known.id == subflow && done.is_ok()) {
            known.up = false;
        }
        self.print_trace(format_args!("client closes {subflow:?}: {done:?}"));
    }

    pub(crate) fn set_backup(&mut self, subflow: SubflowId, backup: bool) {
        let done = self.client.set_backup(foreign(self.now), self.handle, subflow, backup);
        self.print_trace(format_args!("client sets backup of {subflow:?} to {backup}: {done:?}"));
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

    pub(crate) fn print_trace(&self, what: std::fmt::Arguments<'_>) {
        if self.trace {
            println!("{} {what}", self.now);
        }
    }

    /// Runs until `wake`, `done`, or no event is left; returns true if `done`.
    pub(crate) fn run(&mut self, wake: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        let mut steps = 0;
        loop {
            self.run_client();
            self.run_server();
            self.transmit();
            if done(self) {
                return true;
            }
            let next = self.next().filter(|next| *next <= wake);
            let Some(next) = next else {
                self.now = self.now.max(wake);
                return false;
            };
            steps = if next > self.now { 0 } else { steps + 1 };
            assert!(steps < MAX_STEPS_AT_ONE_TIME, "runs in a circle at {}", self.now);
            self.now = self.now.max(next);
            self.arrive();
            if self.client.poll_timeout().is_some_and(|at| at <= foreign(self.now)) {
                self.client.handle_timeout(foreign(self.now));
            }
            if self.server.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                self.server.handle_timeout(self.now);
            }
            if self.read_at <= self.now {
                self.read_at = self.now + READ_INTERVAL;
                for application in &mut self.applications {
                    application.may_read = application.reads.unwrap_or(usize::MAX);
                }
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
        let client = self.client.poll_timeout().map(|at| Instant::from_nanos(at.as_nanos()));
        let server = self.server.poll_timeout().map(|(at, _)| at);
        let slow = self.applications.iter().any(|one| one.reads.is_some() && !one.ended);
        let read = (slow || self.now == Instant::ZERO).then_some(self.read_at);
        [arrival, client, server, read].into_iter().flatten().min()
    }

    fn run_client(&mut self) {
        while let Some((_, event)) = self.client.poll_event() {
            self.print_trace(format_args!("client: {event:?}"));
            self.on_client_event(&event);
        }
        let Some(connection) = self.client.connection(self.handle) else { return };
        let end = &mut self.applications[0];
        let mut buffer = [0; 16_384];
        while !end.ended && (end.reads.is_none() || end.may_read > 0) {
            let room = if end.reads.is_some() { end.may_read.min(16_384) } else { 16_384 };
            match connection.read(&mut buffer[..room]) {
                Ok(0) => end.ended = true,
                Ok(count) => {
                    end.received.extend_from_slice(&buffer[..count]);
                    end.may_read = end.may_read.saturating_sub(count);
                }
                Err(ReadError::WouldBlock | ReadError::Reset | _) => break,
            }
        }
        if self.client_connected.is_some() && !end.write_closed {
            if !end.to_send.is_empty() {
                let taken = connection.write(&end.to_send).unwrap_or(0);
                let _ = end.to_send.split_to(taken);
            }
            if end.to_send.is_empty() && end.may_end && (end.ended || !end.ends_last) {
                end.write_closed = true;
                connection.close();
            }
        }
    }

    fn on_client_event(&mut self, event: &mptcp_rs::Event) {
        use mptcp_rs::Event as E;
        match *event {
            E::Connected { mptcp } => self.client_connected = Some(mptcp),
            E::FellBack => self.client_fell_back = true,
            E::Closed { reason } => self.client_closed = Some(reason),
            E::SubflowUp { subflow } => {
                self.joined += 1;
                for known in self.subflows.iter_mut().filter(|known| known.id == subflow) {
                    known.up = true;
                }
            }
            E::SubflowDown { subflow, .. } => self.subflows.retain(|known| known.id != subflow),
            E::AddressAnnounced { addr, .. } => self.announced.push(addr),
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
        let end = &mut self.applications[1];
        while !end.ended && (end.reads.is_none() || end.may_read > 0) {
            let Some(bytes) = self.server.read(self.now, id) else { break };
            end.ended = bytes.is_empty();
            end.may_read = end.may_read.saturating_sub(bytes.len());
            end.received.extend_from_slice(&bytes);
        }
        if !end.to_send.is_empty() {
            self.server.write(self.now, id, &mut end.to_send);
        }
        let over = end.to_send.is_empty() && end.may_end && (end.ended || !end.ends_last);
        if over && !end.write_closed {
            end.write_closed = true;
            self.server.shutdown(self.now, id);
        }
    }

    fn transmit(&mut self) {
        let mut buffer = [0; MTU_BYTES as usize];
        while let Some(count) = self.client.poll_transmit(foreign(self.now), &mut buffer) {
            self.send(1, &Bytes::copy_from_slice(&buffer[..count]));
        }
        while let Some((_, packet)) = self.server.poll_transmit(self.now) {
            for packet in packet.split() {
                self.send(0, &packet.to_vec().into());
            }
        }
    }

    /// Sends a packet; the client's address selects the path.
    fn send(&mut self, to: usize, packet: &Bytes) {
        self.packets += 1;
        let path = usize::from(packet[if to == 1 { 14 } else { 18 }]);
        let line = self.lines[path];
        let free = &mut self.free_at[path][to];
        let begin = self.now.max(*free);
        let lost = self.random.below(1_000) < line.loss
            || !line.up
            || begin.saturating_since(self.now) > line.queue;
        if self.trace {
            let (who, lost) = (["server", "client"][to], if lost { " LOST" } else { "" });
            println!("{} {who} path {path}:{lost} {}", self.now, describe(packet));
        }
        if lost {
            return;
        }
        *free = begin + Duration::from_nanos(packet.len() as u64 * line.byte_nanos);
        let free = *free;
        let copies = 1 + u32::from(self.random.below(1_000) < line.duplication);
        for _ in 0..copies {
            let extra = Duration::from_nanos(self.random.below(line.jitter.as_nanos() as u64));
            self.sequence += 1;
            let at = free + line.delay + extra;
            self.in_flight.insert((at, self.sequence), (to, path, packet.clone()));
        }
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, path, packet) = entry.remove();
            if !self.lines[path].up {
                continue;
            }
            if to == 0 {
                self.client.handle_packet(foreign(self.now), &packet);
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
    let word = |at: usize| (at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (0..len).map(|at| (word(at) >> (at % 8 * 8)) as u8).collect::<Vec<u8>>().into()
}
