//! Two hosts with our stack and a few lossy paths between them, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{
    ConnectionError, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice,
};
use towpath_mptcp::subflow::TcpState;
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::Packet;

/// Port of the listening host.
pub(crate) const PORT: u16 = 80;

/// One direction of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathDirection {
    pub(crate) delay: Duration,
    /// Maximum extra delay, drawn for each packet: it causes reordering.
    pub(crate) jitter: Duration,
    /// Loss probability, in packets per thousand.
    pub(crate) loss: u32,
    /// Duplication probability, in packets per thousand.
    pub(crate) duplication: u32,
    /// Transmission time of a byte in nanoseconds.
    pub(crate) byte_nanos: u64,
    /// Maximum queueing delay; packets that would wait longer are dropped.
    pub(crate) queue: Duration,
    pub(crate) up: bool,
}

impl Default for PathDirection {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            loss: 0,
            duplication: 0,
            byte_nanos: 100,
            queue: Duration::from_millis(100),
            up: true,
        }
    }
}

/// Function applied to a packet on its path: an empty vector drops it.
pub(crate) type Middlebox = Box<dyn FnMut(Packet) -> Vec<Packet>>;

/// Application of one host: its data to send, and the received data.
#[derive(Debug, Default)]
pub(crate) struct TestApp {
    pub(crate) connection: Option<ConnectionId>,
    to_send: Bytes,
    write_closed: bool,
    close_when_sent: bool,
    pub(crate) received: Vec<u8>,
    /// Set when the end of the other's data was read.
    pub(crate) received_end: bool,
    /// Set while the application does not read.
    pub(crate) paused: bool,
    pub(crate) closed: Option<Result<(), ConnectionError>>,
    pub(crate) notices: Vec<StackNotice>,
}

impl TestApp {
    /// Sends this data and then the end.
    pub(crate) fn send(&mut self, data: impl Into<Bytes>) {
        self.to_send = data.into();
        self.close_when_sent = true;
    }

    /// Sends this data and leaves the stream open.
    pub(crate) fn send_without_end(&mut self, data: impl Into<Bytes>) {
        self.to_send = data.into();
    }

    /// Appends data to send and leaves the stream open.
    pub(crate) fn append(&mut self, data: &[u8]) {
        self.to_send = [&self.to_send, data].concat().into();
    }

    /// Returns the bytes that the stack has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.to_send.len()
    }

    /// Returns true if the stream ends after its data.
    pub(crate) fn ends_stream(&self) -> bool {
        self.close_when_sent
    }

    /// Ends the stream when all data is sent.
    pub(crate) fn end_stream(&mut self) {
        self.close_when_sent = true;
    }
}

/// Two hosts: 0 opens the connection, 1 listens.
pub(crate) struct TestNetwork {
    pub(crate) now: Instant,
    pub(crate) stacks: [Stack; 2],
    pub(crate) apps: [TestApp; 2],
    /// Directions by path; 0: from host 0 to 1, 1: the reverse.
    pub(crate) directions: Vec<[PathDirection; 2]>,
    /// By path and host: set while the driver's queue is full.
    driver_full: Vec<[bool; 2]>,
    /// Time at which each direction of a path has sent its queue.
    free_at: Vec<[Instant; 2]>,
    /// Packets in flight by arrival time and number: receiver, path, packet.
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Packet)>,
    packet_count: u64,
    random: Pcg32,
    pub(crate) middleboxes: Vec<Option<Middlebox>>,
    /// Number of packets sent.
    pub(crate) packets: u64,
    /// Packets that were lost or dropped by a full queue.
    pub(crate) dropped: u64,
    /// Extra copies of packets.
    pub(crate) duplicated: u64,
    /// Set to print every packet.
    trace: bool,
    /// Maximum bytes that an application reads.
    pub(crate) read_limit: usize,
    /// Time when each host last read data or the end of data.
    pub(crate) ended_at: [Instant; 2],
    /// Limit of steps, which detects an endless run.
    pub(crate) step_limit: u64,
    v6: bool,
}

impl TestNetwork {
    pub(crate) fn new(
        seed: u64,
        directions: Vec<[PathDirection; 2]>,
        configs: [ConnectionConfig; 2],
    ) -> Self {
        Self::with_family(false, seed, directions, configs)
    }

    pub(crate) fn with_family(
        v6: bool,
        seed: u64,
        directions: Vec<[PathDirection; 2]>,
        configs: [ConnectionConfig; 2],
    ) -> Self {
        let mtus = vec![1_500; directions.len()];
        Self::with_mtus(v6, seed, directions, &mtus, configs)
    }

    /// Creates the network with `mtus` by path, the same at both ends.
    pub(crate) fn with_mtus(
        v6: bool,
        seed: u64,
        directions: Vec<[PathDirection; 2]>,
        mtus: &[u32],
        configs: [ConnectionConfig; 2],
    ) -> Self {
        let stack = |host: u64| {
            let config =
                stack::StackConfig { seed: seed * 2 + host, ..stack::StackConfig::default() };
            Stack::new(config)
        };
        let mut network = Self {
            now: Instant::ZERO,
            stacks: [stack(0), stack(1)],
            apps: <[TestApp; 2]>::default(),
            free_at: vec![[Instant::ZERO; 2]; directions.len()],
            middleboxes: directions.iter().map(|_| None).collect(),
            driver_full: vec![[false; 2]; directions.len()],
            directions,
            in_flight: BTreeMap::new(),
            packet_count: 0,
            random: Pcg32::seed_from_u64(seed),
            packets: 0,
            dropped: 0,
            duplicated: 0,
            trace: std::env::var_os("WORLD_TRACE").is_some(),
            read_limit: usize::MAX,
            ended_at: [Instant::ZERO; 2],
            step_limit: 20_000_000,
            v6,
        };
        for (path, mtu) in mtus.iter().enumerate() {
            for host in 0..2 {
                network.stacks[host].add_interface(InterfaceId(path as u32), *mtu);
                let address =
                    LocalAddress { subflow: host == 0, ..network.local_address(host, path) };
                network.stacks[host].set_address(network.now, address);
            }
        }
        let [client, server] = configs;
        network.stacks[1].listen(PORT, server).unwrap();
        let remote = SocketAddr::new(network.address(1, 0), PORT);
        let id = network.stacks[0].connect(network.now, None, remote, client).unwrap();
        network.apps[0].connection = Some(id);
        network
    }

    pub(crate) fn set_address(&mut self, host: usize, path: usize, subflow: bool, signal: bool) {
        let address = self.local_address(host, path);
        self.stacks[host].set_address(self.now, LocalAddress { subflow, signal, ..address });
    }

    /// Adds another address to this path, for subflows.
    pub(crate) fn add_address(
        &mut self,
        host: usize,
        path: usize,
        address: IpAddr,
        address_id: u8,
    ) {
        let address =
            LocalAddress { address_id, address, subflow: true, ..self.local_address(host, path) };
        self.stacks[host].set_address(self.now, address);
    }

    pub(crate) fn address(&self, host: usize, path: usize) -> IpAddr {
        let (host, path) = (host as u8 + 1, path as u8);
        if self.v6 {
            Ipv6Addr::new(0xfd00, u16::from(path), 0, 0, 0, 0, 0, u16::from(host)).into()
        } else {
            Ipv4Addr::new(10, 64, path, host).into()
        }
    }

    /// Returns a host's address on a path, without any flag.
    pub(crate) fn local_address(&self, host: usize, path: usize) -> LocalAddress {
        LocalAddress {
            address_id: path as u8 + 1,
            address: self.address(host, path),
            port: None,
            interface: InterfaceId(path as u32),
            up: true,
            subflow: false,
            signal: false,
            backup: false,
            fullmesh: false,
            laminar: false,
        }
    }

    /// Sends the given number of bytes from each host and checks that all arrive in time.
    pub(crate) fn deliver(&mut self, bytes: [usize; 2], limit: Duration, label: &str) {
        let data = [pattern(bytes[0], 1), pattern(bytes[1], 2)];
        for (app, data) in self.apps.iter_mut().zip(&data) {
            app.send(data.clone());
        }
        self.run(limit, Self::is_finished);
        self.assert_delivered(&data, label);
    }

    /// Checks that both ends have all data of the other, and its end.
    pub(crate) fn assert_delivered(&self, data: &[Bytes; 2], label: &str) {
        for (host, data) in [(1, &data[0]), (0, &data[1])] {
            let app = &self.apps[host];
            let (received_bytes, now) = (app.received.len(), self.now);
            assert_eq!(
                received_bytes,
                data.len(),
                "{label}: at {now} {:?} {:#?}",
                app.closed,
                self.statuses()
            );
            assert!(app.received == data[..], "{label}: other bytes");
            assert_eq!(app.closed, Some(Ok(())), "{label}: at {now} {:#?}", self.statuses());
        }
    }

    fn statuses(&self) -> [Option<stack::ConnectionStatus>; 2] {
        [0, 1].map(|host| self.stacks[host].status(self.apps[host].connection?))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now.saturating_since(Instant::ZERO)
    }

    /// Runs until `until`, `done`, or no event is left.
    pub(crate) fn run(&mut self, until: Duration, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::ZERO + until;
        for _ in 0..self.step_limit {
            self.run_applications();
            self.send_packets();
            self.assert_deadlines();
            if done(self) {
                return;
            }
            let Some(event_at) = self.next_event_at() else { return };
            if event_at > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(event_at);
            self.deliver_arrivals();
            for stack in &mut self.stacks {
                if stack.poll_timeout().is_some_and(|(time, _)| time <= self.now) {
                    stack.handle_timeout(self.now);
                }
            }
        }
        panic!("no end at {} after {} packets", self.now, self.packets);
    }

    /// Runs for this time, regardless of events.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        self.run(end.saturating_since(Instant::ZERO), |_| false);
        self.now = end;
    }

    /// Checks that a host with data and a subflow for it always has a deadline. The host must retry
    /// even if the peer stays silent.
    fn assert_deadlines(&self) {
        for host in 0..2 {
            let stack = &self.stacks[host];
            let waits_for_room = self.driver_full.iter().any(|queue_full| queue_full[host]);
            if stack.poll_timeout().is_some() || waits_for_room {
                continue;
            }
            let app = &self.apps[host];
            let Some(status) = app.connection.and_then(|id| stack.status(id)) else { continue };
            if matches!(app.closed, Some(Err(_))) {
                continue;
            }
            let is_closed = |flow: &&stack::SubflowStatus| {
                let is_reported = |notice: &StackNotice| matches!(notice, StackNotice::SubflowClosed { number, .. } if *number == flow.number);
                app.notices.iter().any(is_reported)
            };
            let mut open =
                status.subflows.iter().filter(|flow| !is_closed(flow)).map(|flow| flow.state);
            let has_unacked_data =
                status.written_bytes > status.acked_bytes && app.closed.is_none();
            let has_no_deadline =
                open.any(|state| awaits_ack(state) || (has_unacked_data && is_open(state)));
            assert!(!has_no_deadline, "host {host} sleeps at {}: {status:#?}", self.now);
        }
    }

    /// Marks the driver's queue of an interface as full, or as ready again.
    pub(crate) fn set_tx_ready(&mut self, host: usize, path: usize, ready: bool) {
        self.stacks[host].set_tx_ready(self.now, InterfaceId(path as u32), ready);
        if let Some(queue_full) = self.driver_full.get_mut(path) {
            queue_full[host] = !ready;
        }
    }

    fn next_event_at(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|(time, _)| *time);
        let timeouts = self.stacks.iter().filter_map(Stack::poll_timeout);
        timeouts.map(|(time, _)| time).chain(arrival).min()
    }

    fn run_applications(&mut self) {
        for host in 0..2 {
            while let Some(event) = self.stacks[host].poll_event() {
                self.on_event(host, &event);
            }
            let Some(id) = self.apps[host].connection else { continue };
            let (app, stack) = (&mut self.apps[host], &mut self.stacks[host]);
            if !app.to_send.is_empty() {
                stack.write(self.now, id, &mut app.to_send);
            }
            if app.to_send.is_empty() && app.close_when_sent && !app.write_closed {
                app.write_closed = true;
                stack.shutdown(self.now, id);
            }
            while !app.paused && !app.received_end && app.received.len() < self.read_limit {
                let Some(bytes) = stack.read(self.now, id) else { break };
                app.received_end = bytes.is_empty();
                self.ended_at[host] = self.now;
                app.received.extend_from_slice(&bytes);
            }
        }
    }

    fn on_event(&mut self, host: usize, event: &StackEvent) {
        let app = &mut self.apps[host];
        match event {
            StackEvent::Accepted { connection, .. } if app.connection.is_none() => {
                app.connection = Some(*connection);
            }
            // A middlebox caused it, such as one that strips MP_JOIN from a SYN.
            StackEvent::Accepted { connection, .. } => {
                self.stacks[host].release(self.now, *connection);
            }
            StackEvent::Closed { connection, .. } if Some(*connection) != app.connection => {}
            StackEvent::Closed { error, .. } => app.closed = Some(error.map_or(Ok(()), Err)),
            StackEvent::Notice { notice, .. } => app.notices.push(*notice),
            StackEvent::Connected(_) | StackEvent::Readable(_) | StackEvent::Writable(_) => {}
            StackEvent::Trace { .. } => {}
        }
    }

    fn send_packets(&mut self) {
        for host in 0..2 {
            while let Some((interface, packet)) = self.stacks[host].poll_transmit(self.now) {
                let packets: Vec<Packet> = packet.split().collect();
                for packet in packets {
                    let path = interface.0 as usize;
                    let packets_out = match &mut self.middleboxes[path] {
                        Some(middlebox) => middlebox(packet),
                        None => vec![packet],
                    };
                    for packet in packets_out {
                        self.send(host, path, &packet);
                    }
                }
            }
        }
    }

    fn send(&mut self, host: usize, path: usize, packet: &Packet) {
        self.packets += 1;
        if self.trace {
            println!("{} {host} path {path}: {}", self.now, describe(packet));
        }
        let params = self.directions[path][host];
        let lost = self.random.next_u32() % 1_000 < params.loss;
        let copies = 1 + u32::from(self.random.next_u32() % 1_000 < params.duplication);
        let free_at = &mut self.free_at[path][host];
        let departure = self.now.max(*free_at);
        if lost || !params.up || departure.saturating_since(self.now) > params.queue {
            self.dropped += 1;
            return;
        }
        self.duplicated += u64::from(copies - 1);
        *free_at = departure + Duration::from_nanos(packet.len() as u64 * params.byte_nanos);
        for _ in 0..copies {
            let max_jitter_ns = params.jitter.as_nanos() as u64;
            let extra_ns =
                if max_jitter_ns == 0 { 0 } else { self.random.next_u64() % max_jitter_ns };
            let arrival = *free_at + params.delay + Duration::from_nanos(extra_ns);
            self.packet_count += 1;
            self.in_flight.insert((arrival, self.packet_count), (1 - host, path, packet.clone()));
        }
    }

    fn deliver_arrivals(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (host, path, packet) = entry.remove();
            if self.directions[path][1 - host].up {
                self.stacks[host].handle_packet(self.now, InterfaceId(path as u32), packet);
            }
        }
    }

    /// Returns true if the connection has ended at both hosts.
    pub(crate) fn is_finished(&self) -> bool {
        self.apps.iter().all(|app| app.closed.is_some())
    }

    pub(crate) fn status(&self, host: usize) -> stack::ConnectionStatus {
        self.stacks[host].status(self.apps[host].connection.unwrap()).unwrap()
    }
}

/// Returns true if data may be sent.
fn is_open(state: TcpState) -> bool {
    matches!(state, TcpState::Established | TcpState::CloseWait)
}

/// Returns true if a SYN or FIN of ours is not acknowledged yet.
fn awaits_ack(state: TcpState) -> bool {
    matches!(
        state,
        TcpState::SynSent
            | TcpState::SynReceived
            | TcpState::FinWait1
            | TcpState::Closing
            | TcpState::LastAck
    )
}

/// Describes a packet in one line, for `WORLD_TRACE=1`.
fn describe(packet: &Packet) -> String {
    match packet.parse() {
        Ok(segment) => format!(
            "{:?} seq {} ack {} len {} win {} {:?} {:?}",
            segment.flags,
            segment.seq,
            segment.ack,
            segment.payload.len(),
            segment.window,
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
