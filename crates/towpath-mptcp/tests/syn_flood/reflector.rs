//! Attacker who uses a server as a reflector: it forges source addresses, and its own connections
//! announce addresses of victims.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{InterfaceId, Stack, StackConfig, StackEvent, SynFloodProtection};
use towpath_net::Instant;
use towpath_wire::{
    AddAddr, ConnectionId, Dss, Flags, IcmpKind, MpJoin, MptcpOption, Packet, Segment, keys,
};

use crate::network::*;

const WIRE: InterfaceId = InterfaceId(1);
/// Addresses of victims, of each IP version.
pub(crate) const VICTIMS: u8 = 3;

/// One step of the attacker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AttackStep {
    /// Time passes, in milliseconds.
    Wait(u32),
    /// A segment arrives from a victim's address.
    Forge(ForgedSegment),
    /// The attacker opens a connection from its own address.
    Connect,
    /// The attacked host opens a connection to the attacker.
    ConnectToAttacker,
    /// One of its connections announces a victim's address (ADD_ADDR).
    Announce { connection: u8, address_id: u8, victim: Victim },
    /// One of its connections withdraws an address (REMOVE_ADDR).
    Withdraw { connection: u8, address_id: u8 },
    /// One of its connections sends so many bytes.
    Write { connection: u8, bytes: u16 },
    /// An ICMP error about the server's last packet to a victim arrives.
    Icmp { kind: u8 },
}

/// Address and port of a victim, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) ipv6: bool,
    pub(crate) host: u8,
    pub(crate) port: u16,
}

impl Victim {
    pub(crate) fn address(self) -> SocketAddr {
        let host = self.host % VICTIMS;
        let ip: IpAddr = if self.ipv6 {
            Ipv6Addr::new(0x2001, 0xdb8, 1, host.into(), 0, 0, 0, 1).into()
        } else {
            Ipv4Addr::new(198, 51, 100, host).into()
        };
        SocketAddr::new(ip, self.port)
    }
}

/// Segment with a forged source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForgedSegment {
    pub(crate) source: Victim,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) options: ForgedOptions,
    pub(crate) bytes: u16,
    /// Destination: 0 is the listener, 1 the last local port that was used towards a victim, and
    /// others are closed ports.
    pub(crate) port: u8,
}

/// Options of a forged segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForgedOptions {
    None,
    Mss,
    Usual,
    Capable,
    /// MP_JOIN for one of the attacker's connections.
    Join,
    /// MP_JOIN with a token of no connection.
    UnknownJoin,
    /// MP_FAIL and MP_FASTCLOSE.
    Failure,
    /// DSS with a DATA_ACK.
    Dss,
}

/// One connection of the attacker, as a template for forged segments.
#[derive(Debug, Clone)]
struct AttackerConnection {
    template: Option<Segment>,
    /// Keys of the attacker and of the server.
    keys: (u64, u64),
    /// Bytes of the packets with ADD_ADDR.
    announce_bytes: u64,
    /// Bytes that the server sent in SYNs to announced addresses.
    join_bytes: u64,
}

pub(crate) struct Reflector {
    pub(crate) now: Instant,
    pub(crate) server: Stack,
    attacker: Stack,
    /// Configuration of the attacked host's connections.
    config: ConnectionConfig,
    ids: Vec<ConnectionId>,
    /// Connections by the addresses of the attacker and of the attacked host.
    connections: BTreeMap<(SocketAddr, SocketAddr), AttackerConnection>,
    /// Bytes that the server has received from each address, forged or not.
    received_bytes: BTreeMap<SocketAddr, u64>,
    /// Bytes that the server has sent to each victim, without SYNs that it sends on its own.
    reply_bytes: BTreeMap<SocketAddr, u64>,
    /// Times of the SYNs that the server sends on its own, by victim.
    pub(crate) syns: BTreeMap<IpAddr, Vec<Instant>>,
    /// Number of ADD_ADDR that the attacked host has echoed.
    pub(crate) echoes: usize,
    /// Set while the attacked host's packets wait, as if its driver were busy.
    pub(crate) driver_busy: bool,
    last_to_victim: Option<Packet>,
    last_port: u16,
}

fn server_ipv6() -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
}

fn attacker_address() -> IpAddr {
    Ipv4Addr::new(10, 9, 0, 1).into()
}

impl Reflector {
    pub(crate) fn new(backlog: usize, path_manager: &str) -> Self {
        let config = StackConfig { syn_backlog: backlog, ..StackConfig::default() };
        let protection = SynFloodProtection::new([5; 16]);
        Self::with_server(Stack::with_syn_flood_protection(config, &protection), path_manager)
    }

    pub(crate) fn with_server(mut server: Stack, path_manager: &str) -> Self {
        server.add_interface(WIRE, 1_500);
        server.set_address(Instant::ZERO, local_address(server_address(), 1, true));
        server.set_address(Instant::ZERO, local_address(server_ipv6(), 2, true));
        let path_manager = path_manager.to_owned();
        let config = ConnectionConfig { path_manager, ..ConnectionConfig::linux() };
        server.listen(PORT, config.clone()).unwrap();
        let mut attacker = Stack::new(StackConfig::default());
        attacker.add_interface(WIRE, 1_500);
        attacker.set_address(Instant::ZERO, local_address(attacker_address(), 1, true));
        attacker.listen(PORT, ConnectionConfig::linux()).unwrap();
        Self {
            now: at_ms(1),
            server,
            attacker,
            config,
            ids: Vec::new(),
            connections: BTreeMap::new(),
            received_bytes: BTreeMap::new(),
            reply_bytes: BTreeMap::new(),
            syns: BTreeMap::new(),
            echoes: 0,
            driver_busy: false,
            last_to_victim: None,
            last_port: PORT,
        }
    }

    pub(crate) fn step(&mut self, step: AttackStep) {
        match step {
            AttackStep::Wait(ms) => self.wait(Duration::from_millis(ms.into())),
            AttackStep::Forge(forged) => self.forge(&forged),
            AttackStep::Connect => self.connect(),
            AttackStep::ConnectToAttacker => self.connect_to_attacker(),
            AttackStep::Announce { connection, address_id, victim } => {
                self.announce(connection.into(), address_id, victim.address());
            }
            AttackStep::Withdraw { connection, address_id } => {
                let ids = std::iter::once(address_id).collect();
                self.send_option(connection.into(), MptcpOption::RemoveAddress(ids));
            }
            AttackStep::Write { connection, bytes } => {
                if let Some(id) = pick(&self.ids, connection.into()) {
                    let mut data = Bytes::from(vec![7; bytes.into()]);
                    self.attacker.write(self.now, *id, &mut data);
                }
            }
            AttackStep::Icmp { kind } => self.send_icmp(kind),
        }
        self.exchange();
    }

    pub(crate) fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let deadlines = [&self.server, &self.attacker].map(Stack::next_deadline);
            let next = deadlines.into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.server.handle_timeout(self.now);
            self.attacker.handle_timeout(self.now);
            self.exchange();
        }
        self.now = end;
    }

    fn connect(&mut self) {
        let config = ConnectionConfig::linux();
        let id = self.attacker.connect(self.now, None, server(), config).unwrap();
        self.ids.push(id);
        self.exchange();
        // The first data carries the keys; the next confirms Multipath TCP.
        for _ in 0..2 {
            let mut data = Bytes::from_static(b"?");
            self.attacker.write(self.now, id, &mut data);
            self.exchange();
        }
    }

    fn connect_to_attacker(&mut self) {
        let remote = SocketAddr::new(attacker_address(), PORT);
        let config = self.config.clone();
        let id = self.server.connect(self.now, None, remote, config).unwrap();
        self.exchange();
        for _ in 0..2 {
            let mut data = Bytes::from_static(b"!");
            self.server.write(self.now, id, &mut data);
            self.exchange();
            if let Some(id) = self.ids.last() {
                self.attacker.write(self.now, *id, &mut Bytes::from_static(b"?"));
            }
            self.exchange();
        }
    }

    pub(crate) fn announce(&mut self, connection: usize, address_id: u8, address: SocketAddr) {
        let Some(entry) = self.pick_connection(connection) else { return };
        let (own_key, server_key) = self.connections[&entry].keys;
        let (address, port) = (address.ip(), Some(address.port()));
        let hmac = keys::add_address_hmac(own_key, server_key, address_id, address, port);
        let option = AddAddr { address_id, address, port, hmac: Some(hmac) };
        self.send_option(connection, MptcpOption::AddAddress(option));
    }

    fn pick_connection(&self, number: usize) -> Option<(SocketAddr, SocketAddr)> {
        self.connections.keys().copied().nth(number % self.connections.len().max(1))
    }

    /// Sends an acknowledgement with an option on a connection of the attacker.
    fn send_option(&mut self, connection: usize, option: MptcpOption) {
        let Some(entry) = self.pick_connection(connection) else { return };
        let Some(mut segment) = self.connections[&entry].template.clone() else { return };
        segment.flags = ACK;
        segment.seq = segment.seq.wrapping_add(segment.payload.len() as u32);
        segment.payload = towpath_wire::Payload::EMPTY;
        // The smallest packet that carries the option.
        segment.options.dss = None;
        segment.options.sack.clear();
        segment.options.mptcp = vec![option];
        self.deliver_to_server(Packet::emit(&segment, 0));
    }

    fn forge(&mut self, forged: &ForgedSegment) {
        let source = forged.source.address();
        let mut segment = segment(source, Flags(forged.flags), forged.seq, forged.ack);
        let port = match forged.port {
            0 => PORT,
            1 => self.last_port,
            _ => 9,
        };
        let ip = if forged.source.ipv6 { server_ipv6() } else { server_address() };
        segment.destination = SocketAddr::new(ip, port);
        let usual = syn(source, forged.seq, false).options;
        match forged.options {
            ForgedOptions::None => {}
            ForgedOptions::Mss => segment.options.mss = usual.mss,
            ForgedOptions::Dss => segment.options.dss = Some(Dss::default()),
            ForgedOptions::Failure => {
                let key = forged.ack.into();
                segment.options.mptcp =
                    vec![MptcpOption::Fail { dsn: key }, MptcpOption::FastClose { key }];
            }
            _ => segment.options = usual,
        }
        let join = |token| {
            let nonce = forged.ack;
            MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 9, token, nonce })
        };
        let known = self.connections.values().next();
        let token = known.map_or(1, |connection| keys::token(connection.keys.1));
        segment.options.mptcp.extend(match forged.options {
            ForgedOptions::Capable => Some(capable_syn()),
            ForgedOptions::Join => Some(join(token)),
            ForgedOptions::UnknownJoin => Some(join(7)),
            _ => None,
        });
        segment.payload = Bytes::from(vec![1; forged.bytes.into()]).into();
        self.deliver_to_server(Packet::emit(&segment, 0));
    }

    fn send_icmp(&mut self, kind: u8) {
        let Some(packet) = &self.last_to_victim else { return };
        let kind = match kind % 3 {
            0 => IcmpKind::TooBig { mtu: 600 },
            1 => IcmpKind::Unreachable { hard: false },
            _ => IcmpKind::Unreachable { hard: true },
        };
        let router = packet.destination().unwrap();
        if let Some(error) = kind.emit(router, packet) {
            self.server.handle_packet(self.now, WIRE, error);
        }
    }

    fn deliver_to_server(&mut self, packet: Packet) {
        let segment = packet.parse().unwrap();
        *self.received_bytes.entry(segment.source).or_default() += packet.len() as u64;
        if segment.source.ip() == attacker_address() {
            self.record_template(segment, packet.len() as u64);
        }
        self.server.handle_packet(self.now, WIRE, packet);
        self.poll_server();
    }

    /// Records the attacker's own segments, which later ones resemble.
    fn record_template(&mut self, segment: Segment, bytes: u64) {
        let ends = (segment.source, segment.destination);
        self.record_keys(ends, &segment, false);
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        let is_announcement = |option: &_| matches!(option, MptcpOption::AddAddress(_));
        if segment.options.mptcp.iter().any(is_announcement) {
            connection.announce_bytes += bytes;
        }
        if !segment.flags.contains(SYN) && segment.options.mptcp.is_empty() {
            connection.template = Some(segment);
        }
    }

    /// Records both keys of a connection from its third packet. `ends`: the attacker's first.
    fn record_keys(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        segment: &Segment,
        to_attacker: bool,
    ) {
        let Some(capable) = capable_of(segment) else { return };
        let (Some(sender), Some(receiver)) = (capable.sender_key, capable.receiver_key) else {
            return;
        };
        let keys = if to_attacker { (receiver, sender) } else { (sender, receiver) };
        self.connections.entry(ends).or_insert(AttackerConnection {
            template: None,
            keys,
            announce_bytes: 0,
            join_bytes: 0,
        });
    }

    pub(crate) fn exchange(&mut self) {
        loop {
            self.poll_server();
            let Some((_, packet)) = self.attacker.poll_transmit(self.now) else { break };
            for packet in packet.split() {
                self.deliver_to_server(packet);
            }
        }
        while let Some(event) = self.attacker.poll_event() {
            if let StackEvent::Accepted { connection, .. } = event {
                self.ids.push(connection);
            }
        }
    }

    fn poll_server(&mut self) {
        while self.server.poll_event().is_some() {}
        if self.driver_busy {
            return;
        }
        while let Some((_, packet)) = self.server.poll_transmit(self.now) {
            for packet in packet.split() {
                if packet.destination() == Some(attacker_address()) {
                    let segment = packet.parse().unwrap();
                    self.record_keys((segment.destination, segment.source), &segment, true);
                    let is_echo = |option: &&MptcpOption| {
                        matches!(option, MptcpOption::AddAddress(AddAddr { hmac: None, .. }))
                    };
                    self.echoes += segment.options.mptcp.iter().filter(is_echo).count();
                    self.attacker.handle_packet(self.now, WIRE, packet);
                } else {
                    self.on_reflected(packet);
                }
            }
        }
    }

    /// Counts a packet to a victim.
    fn on_reflected(&mut self, packet: Packet) {
        let (bytes, segment) = (packet.len() as u64, packet.parse().unwrap());
        self.last_port = segment.source.port();
        self.last_to_victim = Some(packet);
        let token = segment.options.mptcp.iter().find_map(|option| match option {
            MptcpOption::Join(MpJoin::Syn { token, .. }) => Some(*token),
            _ => None,
        });
        if let Some(token) = token {
            let mut connections = self.connections.values_mut();
            let connection = connections.find(|entry| keys::token(entry.keys.0) == token).unwrap();
            connection.join_bytes += bytes;
            self.syns.entry(segment.destination.ip()).or_default().push(self.now);
        } else {
            *self.reply_bytes.entry(segment.destination).or_default() += bytes;
        }
    }

    fn received_from(&self, source: SocketAddr) -> u64 {
        self.received_bytes.get(&source).copied().unwrap_or(0)
    }

    /// Returns the bytes that arrived from victims' addresses, and the bytes sent in reply.
    pub(crate) fn forged_bytes(&self) -> (u64, u64) {
        let received = self.received_bytes.iter();
        let forged = received.filter(|(source, _)| source.ip() != attacker_address());
        (forged.map(|(_, bytes)| bytes).sum(), self.reply_bytes.values().sum())
    }

    /// Returns the bytes of the packets with ADD_ADDR, and the bytes of SYNs that these caused.
    pub(crate) fn announced_bytes(&self) -> (u64, u64) {
        let sum = |sum: (u64, u64), entry: &AttackerConnection| {
            (sum.0 + entry.announce_bytes, sum.1 + entry.join_bytes)
        };
        self.connections.values().fold((0, 0), sum)
    }

    /// Returns the number of SYNs that announcements caused.
    pub(crate) fn syn_count(&self) -> usize {
        self.syns.values().map(Vec::len).sum()
    }

    /// Returns an error if an address got more than three times the bytes that caused it, or too
    /// many SYNs.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let replies = self.reply_bytes.iter();
        let replies = replies.map(|(victim, sent)| (*victim, self.received_from(*victim), *sent));
        let joins = self.connections.iter();
        let joins = joins.map(|(ends, entry)| (ends.0, entry.announce_bytes, entry.join_bytes));
        for (source, received, sent) in replies.chain(joins) {
            if sent > 3 * received {
                return Err(format!("{sent} bytes for {received} from {source}"));
            }
        }
        let max_syns = 8 + self.now.as_nanos() / 8_000_000_000;
        for (victim, syns) in &self.syns {
            if syns.len() as u64 > max_syns {
                return Err(format!("{} SYNs to {victim}", syns.len()));
            }
        }
        Ok(())
    }
}

fn pick<T>(list: &[T], number: usize) -> Option<&T> {
    list.get(number % list.len().max(1))
}
