//! Test network: a server, five honest clients with two addresses each, and unauthenticated
//! senders.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{
    ConnectionError, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice, SynFloodProtection,
};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::{
    Ecn, Flags, MpCapable, MptcpOption, Options, Packet, Payload, Segment, Timestamps,
};

pub(crate) const PORT: u16 = 80;
pub(crate) const CLIENTS: usize = 5;
/// One-way delay between honest clients and the server.
const DELAY: Duration = Duration::from_millis(10);
const WIRE: InterfaceId = InterfaceId(1);

pub(crate) const ACK: Flags = Flags::ACK;
pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const RST: Flags = Flags::RST;

/// Function that returns an attacker's reaction to a reply of the server.
pub(crate) type AttackerReply = Box<dyn FnMut(&Segment) -> Option<Segment>>;

/// Honest client: sends data, and expects to receive the same data.
pub(crate) struct Client {
    pub(crate) stack: Stack,
    pub(crate) id: Option<ConnectionId>,
    data: Bytes,
    /// End of `data` that is not written yet.
    unsent: Bytes,
    pub(crate) received: Vec<u8>,
    pub(crate) closed: Option<Result<(), ConnectionError>>,
    pub(crate) served_at: Option<Instant>,
    pub(crate) notices: Vec<StackNotice>,
}

/// One connection at the server, which echoes everything.
#[derive(Default)]
struct Echo {
    /// Received data that is not sent back yet.
    unsent: VecDeque<Bytes>,
    /// Set when the client has sent all its data.
    received_fin: bool,
    /// Set when the echo service has shut down its direction.
    shut_down: bool,
}

pub(crate) struct TestNetwork {
    pub(crate) now: Instant,
    pub(crate) server: Stack,
    pub(crate) clients: Vec<Client>,
    echoes: BTreeMap<ConnectionId, Echo>,
    /// Number of connections that the server has accepted.
    pub(crate) accepted: usize,
    /// Packets in flight by arrival time, to the client with this number; `None`: to the server.
    in_flight: BTreeMap<(Instant, u64), (Option<usize>, Packet)>,
    /// Number of packets so far, which orders packets of the same time.
    packet_count: u64,
    /// Segments of attackers, by arrival time at the server.
    attacks: BTreeMap<(Instant, u64), Segment>,
    pub(crate) attacker_reply: Option<AttackerReply>,
    /// Packets from the server to addresses other than the honest clients'.
    pub(crate) stray_replies: u64,
    pub(crate) server_sent: u64,
    /// Recorded segments between the server and clients, in both directions.
    pub(crate) recorded_segments: Vec<Segment>,
    pub(crate) max_half_open: usize,
    /// Time at which clients shut down their connections.
    pub(crate) clients_end_at: Instant,
    pub(crate) random: Pcg32,
}

pub(crate) fn server_address() -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1).into()
}

pub(crate) fn server() -> SocketAddr {
    SocketAddr::new(server_address(), PORT)
}

/// Returns a client's address on one of its two paths.
pub(crate) fn client_address(client: usize, path: u8) -> IpAddr {
    Ipv4Addr::new(10, 1 + path, client as u8, 1).into()
}

pub(crate) fn at_ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub(crate) fn local_address(address: IpAddr, address_id: u8, subflow: bool) -> LocalAddress {
    LocalAddress {
        address_id,
        address,
        port: None,
        interface: WIRE,
        up: true,
        subflow,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

fn protected_stack(number: u8, addresses: &[LocalAddress]) -> Stack {
    let config = stack::StackConfig::default();
    let mut stack =
        Stack::with_syn_flood_protection(config, &SynFloodProtection::new([number; 16]));
    stack.add_interface(WIRE, 1_500);
    for address in addresses {
        stack.set_address(Instant::ZERO, *address);
    }
    stack
}

impl TestNetwork {
    /// Creates a server with this configuration, and idle clients.
    pub(crate) fn new(config: ConnectionConfig) -> Self {
        let mut server = protected_stack(0, &[local_address(server_address(), 1, false)]);
        server.listen(PORT, config).unwrap();
        Self::with_server(server)
    }

    /// Creates the network around a given server.
    pub(crate) fn with_server(server: Stack) -> Self {
        let client = |number: usize| Client {
            stack: protected_stack(
                number as u8 + 1,
                &[0, 1].map(|path| local_address(client_address(number, path), path + 1, true)),
            ),
            id: None,
            data: Bytes::new(),
            unsent: Bytes::new(),
            received: Vec::new(),
            closed: None,
            served_at: None,
            notices: Vec::new(),
        };
        Self {
            now: Instant::ZERO,
            server,
            clients: (0..CLIENTS).map(client).collect(),
            echoes: BTreeMap::new(),
            accepted: 0,
            in_flight: BTreeMap::new(),
            packet_count: 0,
            attacks: BTreeMap::new(),
            attacker_reply: None,
            stray_replies: 0,
            server_sent: 0,
            recorded_segments: Vec::new(),
            max_half_open: 0,
            clients_end_at: Instant::ZERO,
            random: Pcg32::seed_from_u64(1),
        }
    }

    /// Opens a client's connection now, with `bytes` to send.
    pub(crate) fn open(&mut self, number: usize, config: ConnectionConfig, bytes: usize) {
        let client = &mut self.clients[number];
        let data: Bytes = (0..bytes).map(|index| (index * 7 + number) as u8).collect();
        (client.data, client.unsent) = (data.clone(), data);
        let source = Some(client_address(number, 0));
        client.id = Some(client.stack.connect(self.now, source, server(), config).unwrap());
        self.poll_hosts();
    }

    /// Schedules a segment from an arbitrary sender to the server.
    pub(crate) fn attack(&mut self, arrival: Instant, segment: Segment) {
        self.packet_count += 1;
        self.attacks.insert((arrival, self.packet_count), segment);
    }

    /// Runs the network until the given time.
    pub(crate) fn run(&mut self, until: Instant) {
        self.poll_hosts();
        while let Some(event_at) = self.next_event_at().filter(|event_at| *event_at <= until) {
            self.now = self.now.max(event_at);
            while let Some(((arrival, _), _)) = self.attacks.first_key_value() {
                if *arrival > self.now {
                    break;
                }
                let (_, segment) = self.attacks.pop_first().unwrap();
                self.deliver_to_server(&segment);
            }
            while let Some(((arrival, _), _)) = self.in_flight.first_key_value() {
                if *arrival > self.now {
                    break;
                }
                let (_, (destination, packet)) = self.in_flight.pop_first().unwrap();
                match destination {
                    None => self.server.handle_packet(self.now, WIRE, packet),
                    Some(number) => {
                        self.clients[number].stack.handle_packet(self.now, WIRE, packet);
                    }
                }
            }
            for stack in self.clients.iter_mut().map(|client| &mut client.stack) {
                stack.handle_timeout(self.now);
            }
            self.server.handle_timeout(self.now);
            self.poll_hosts();
        }
        self.now = until;
    }

    fn deliver_to_server(&mut self, segment: &Segment) {
        self.server.handle_packet(self.now, WIRE, Packet::emit(segment, 0));
        self.max_half_open = self.max_half_open.max(self.server.half_open_connections());
        self.poll_server();
    }

    fn next_event_at(&self) -> Option<Instant> {
        let stacks = self.clients.iter().map(|client| &client.stack).chain([&self.server]);
        let deadlines = stacks.filter_map(Stack::next_deadline);
        let packets = self.in_flight.keys().next().map(|(time, _)| *time);
        let attacks = self.attacks.keys().next().map(|(time, _)| *time);
        let clients_end = Some(self.clients_end_at).filter(|time| *time > self.now);
        deadlines.chain(packets).chain(attacks).chain(clients_end).min()
    }

    fn poll_hosts(&mut self) {
        for number in 0..self.clients.len() {
            self.poll_client(number);
        }
        self.poll_server();
    }

    fn poll_client(&mut self, number: usize) {
        let now = self.now;
        let client = &mut self.clients[number];
        while let Some(event) = client.stack.poll_event() {
            match event {
                StackEvent::Closed { error, .. } => client.closed = Some(error.map_or(Ok(()), Err)),
                StackEvent::Notice { notice, .. } => client.notices.push(notice),
                _ => {}
            }
        }
        if let Some(id) = client.id {
            client.stack.write(now, id, &mut client.unsent);
            if client.unsent.is_empty() && !client.data.is_empty() && now >= self.clients_end_at {
                client.stack.shutdown(now, id);
            }
            while let Some(bytes) = client.stack.read(now, id) {
                if bytes.is_empty() {
                    client.served_at.get_or_insert(now);
                    break;
                }
                client.received.extend_from_slice(&bytes);
            }
        }
        while let Some((_, packet)) = client.stack.poll_transmit(now) {
            for packet in packet.split() {
                self.packet_count += 1;
                self.recorded_segments.extend(handshake_segment(&packet));
                self.in_flight.insert((now + DELAY, self.packet_count), (None, packet));
            }
        }
    }

    fn poll_server(&mut self) {
        loop {
            self.run_echo_service();
            let mut attacker_segments = Vec::new();
            while let Some((_, packet)) = self.server.poll_transmit(self.now) {
                self.server_sent += 1;
                let destination = packet.destination().unwrap();
                let client = (0..CLIENTS).find(|number| {
                    [0, 1].map(|path| client_address(*number, path)).contains(&destination)
                });
                if client.is_none() {
                    self.stray_replies += 1;
                    let attacker_reply = self.attacker_reply.as_mut();
                    attacker_segments.extend(
                        attacker_reply
                            .and_then(|attacker_reply| attacker_reply(&packet.parse().unwrap())),
                    );
                    continue;
                }
                for packet in packet.split() {
                    self.packet_count += 1;
                    self.recorded_segments.extend(handshake_segment(&packet));
                    self.in_flight.insert((self.now + DELAY, self.packet_count), (client, packet));
                }
            }
            if attacker_segments.is_empty() {
                return;
            }
            for segment in attacker_segments {
                self.server.handle_packet(self.now, WIRE, Packet::emit(&segment, 0));
            }
        }
    }

    /// Runs the server's application, an echo service.
    fn run_echo_service(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                StackEvent::Accepted { connection, .. } => {
                    self.accepted += 1;
                    self.echoes.insert(connection, Echo::default());
                }
                StackEvent::Closed { connection, .. } => {
                    self.echoes.remove(&connection);
                    self.server.release(self.now, connection);
                }
                _ => {}
            }
        }
        for (id, echo) in &mut self.echoes {
            while let Some(bytes) = self.server.read(self.now, *id) {
                if bytes.is_empty() {
                    echo.received_fin = true;
                    break;
                }
                echo.unsent.push_back(bytes);
            }
            while let Some(mut data) = echo.unsent.pop_front() {
                self.server.write(self.now, *id, &mut data);
                if !data.is_empty() {
                    echo.unsent.push_front(data);
                    break;
                }
            }
            if echo.received_fin
                && echo.unsent.is_empty()
                && !std::mem::replace(&mut echo.shut_down, true)
            {
                self.server.shutdown(self.now, *id);
            }
        }
    }

    /// Returns true if a client got back all it sent, and the connection ended regularly.
    pub(crate) fn is_served(&self, number: usize) -> bool {
        let client = &self.clients[number];
        let all_received = !client.data.is_empty() && client.received == client.data[..];
        all_received && client.served_at.is_some()
    }

    pub(crate) fn assert_all_served(&self) {
        for (number, client) in self.clients.iter().enumerate() {
            let received_bytes = client.received.len();
            let (counters, closed) = (self.server.counters(), client.closed);
            let status = client.id.and_then(|id| client.stack.status(id));
            assert!(
                self.is_served(number),
                "client {number}: {received_bytes} bytes, {closed:?} {counters:?} {status:#?}"
            );
        }
    }

    /// Lets clients open connections during the attack, 150 ms apart. Each has five seconds to
    /// complete.
    pub(crate) fn serve_clients(&mut self, config: &ConnectionConfig) {
        for number in 0..CLIENTS {
            self.run(at_ms(200 + 150 * number as u64));
            self.open(number, config.clone(), 100_000);
        }
        self.run(self.now + Duration::from_secs(5));
        self.assert_all_served();
    }

    /// Returns a random source address that belongs to no client.
    pub(crate) fn forged_source(&mut self) -> SocketAddr {
        let host = self.random.next_u32() & 0x00ff_ffff;
        let port = (self.random.next_u32() >> 16) as u16 | 1;
        SocketAddr::new(Ipv4Addr::from(0x5500_0000 | host).into(), port)
    }

    /// Returns the first recorded segment that meets a condition.
    pub(crate) fn find_segment(&self, condition: impl Fn(&Segment) -> bool) -> Segment {
        self.recorded_segments
            .iter()
            .find(|segment| condition(segment))
            .expect("such a segment was sent")
            .clone()
    }

    /// Returns the keys of client and server in a client's connection.
    pub(crate) fn keys(&self, number: usize) -> (u64, u64) {
        let client = client_address(number, 0);
        let third_packet = self.find_segment(|segment| {
            let has_both_keys =
                capable_of(segment).is_some_and(|option| option.receiver_key.is_some());
            segment.source.ip() == client && has_both_keys
        });
        let MpCapable { sender_key, receiver_key, .. } = capable_of(&third_packet).unwrap();
        (sender_key.unwrap(), receiver_key.unwrap())
    }
}

/// Parses a packet and returns it if tests record it: only handshakes.
fn handshake_segment(packet: &Packet) -> Option<Segment> {
    let segment = packet.parse().unwrap();
    let has_join =
        segment.options.mptcp.iter().any(|option| matches!(option, MptcpOption::Join(_)));
    (segment.flags.contains(SYN) || capable_of(&segment).is_some() || has_join).then_some(segment)
}

pub(crate) fn capable_of(segment: &Segment) -> Option<MpCapable> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(*capable),
        _ => None,
    })
}

/// Returns a segment to the server.
pub(crate) fn segment(source: SocketAddr, flags: Flags, seq: u32, ack: u32) -> Segment {
    Segment {
        source,
        destination: server(),
        seq,
        ack,
        flags,
        window: 60_000,
        ecn: Ecn::NotCapable,
        options: Options::default(),
        payload: Payload::EMPTY,
        segment_bytes: 0,
    }
}

/// Returns the option MP_CAPABLE of a SYN.
pub(crate) fn capable_syn() -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum: false,
        extensibility: false,
        no_join_to_source: false,
        hmac_sha256: true,
        sender_key: None,
        receiver_key: None,
        data: None,
    })
}

/// Returns a SYN as hosts send it.
pub(crate) fn syn(source: SocketAddr, seq: u32, multipath: bool) -> Segment {
    let mut syn = segment(source, SYN, seq, 0);
    syn.options.mss = Some(1_460);
    syn.options.window_scale = Some(7);
    syn.options.sack_permitted = true;
    syn.options.timestamps = Some(Timestamps { value: seq, echo: 0 });
    syn.options.mptcp.extend(multipath.then(capable_syn));
    syn
}
