//! Two hosts with our stack and a few lossy paths between them, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{
    self, ConnectionError, ConnectionId, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice,
};
use towpath_mptcp::subflow::TcpState;
use towpath_mptcp::wire::Packet;
use towpath_net::Instant;

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

/// Application of one end: its data to send, and the received data.
#[derive(Debug, Default)]
pub(crate) struct TestApp {
    pub(crate) connection: Option<ConnectionId>,
    to_send: Bytes,
    write_closed: bool,
    close_when_sent: bool,
    pub(crate) received: Vec<u8>,
    pub(crate) ended: bool,
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
    pub(crate) fn leave_open(&mut self, data: impl Into<Bytes>) {
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

    /// Returns true if the stream must end after its data.
    pub(crate) fn finishes(&self) -> bool {
        self.close_when_sent
    }

    /// Ends the stream when everything is sent.
    pub(crate) fn finish(&mut self) {
        self.close_when_sent = true;
    }
}

/// Two hosts: 0 opens the connection, 1 listens.
pub(crate) struct TestNetwork {
    pub(crate) now: Instant,
    pub(crate) stacks: [Stack; 2],
    pub(crate) ends: [TestApp; 2],
    /// Directions by path; 0: from host 0 to 1, 1: the reverse.
    pub(crate) lines: Vec<[PathDirection; 2]>,
    /// By path and host: set when the driver takes nothing.
    full: Vec<[bool; 2]>,
    free_at: Vec<[Instant; 2]>,
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Packet)>,
    sequence: u64,
    random: Pcg32,
    pub(crate) middleboxes: Vec<Option<Middlebox>>,
    pub(crate) packets: u64,
    /// Packets that were lost, dropped by a full queue, or duplicated.
    pub(crate) dropped: u64,
    pub(crate) duplicated: u64,
    /// Set to print every packet.
    trace: bool,
    pub(crate) read_limit: usize,
    /// Time when each end had read everything.
    pub(crate) ended_at: [Instant; 2],
    /// Limit of steps, which detects an endless run.
    pub(crate) step_limit: u64,
    v6: bool,
}

impl TestNetwork {
    pub(crate) fn new(
        seed: u64,
        lines: Vec<[PathDirection; 2]>,
        configs: [ConnectionConfig; 2],
    ) -> Self {
        Self::of_family(false, seed, lines, configs)
    }

    pub(crate) fn of_family(
        v6: bool,
        seed: u64,
        lines: Vec<[PathDirection; 2]>,
        configs: [ConnectionConfig; 2],
    ) -> Self {
        let mtus = vec![1_500; lines.len()];
        Self::with_mtus(v6, seed, lines, &mtus, configs)
    }

    /// Creates the network with `mtus` by path, the same at both ends.
    pub(crate) fn with_mtus(
        v6: bool,
        seed: u64,
        lines: Vec<[PathDirection; 2]>,
        mtus: &[u32],
        configs: [ConnectionConfig; 2],
    ) -> Self {
        let stack = |host: u64| {
            let config =
                stack::StackConfig { seed: seed * 2 + host, ..stack::StackConfig::default() };
            Stack::new(config)
        };
        let mut world = Self {
            now: Instant::ZERO,
            stacks: [stack(0), stack(1)],
            ends: <[TestApp; 2]>::default(),
            free_at: vec![[Instant::ZERO; 2]; lines.len()],
            middleboxes: lines.iter().map(|_| None).collect(),
            full: vec![[false; 2]; lines.len()],
            lines,
            in_flight: BTreeMap::new(),
            sequence: 0,
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
                world.stacks[host].add_interface(InterfaceId(path as u32), *mtu);
                let local = LocalAddress { subflow: host == 0, ..world.local(host, path) };
                world.stacks[host].set_address(world.now, local);
            }
        }
        let [client, server] = configs;
        world.stacks[1].listen(PORT, server).unwrap();
        let remote = SocketAddr::new(world.address(1, 0), PORT);
        let id = world.stacks[0].connect(world.now, None, remote, client).unwrap();
        world.ends[0].connection = Some(id);
        world
    }

    pub(crate) fn give_address(&mut self, host: usize, path: usize, subflow: bool, signal: bool) {
        let local = self.local(host, path);
        self.stacks[host].set_address(self.now, LocalAddress { subflow, signal, ..local });
    }

    /// Adds another address to this path, for subflows.
    pub(crate) fn give_other_address(
        &mut self,
        host: usize,
        path: usize,
        address: IpAddr,
        address_id: u8,
    ) {
        let local = LocalAddress { address_id, address, subflow: true, ..self.local(host, path) };
        self.stacks[host].set_address(self.now, local);
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
    pub(crate) fn local(&self, host: usize, path: usize) -> LocalAddress {
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

    /// Sends the given bytes from both ends and checks that all of it arrives in time.
    pub(crate) fn deliver(&mut self, bytes: [usize; 2], limit: Duration, what: &str) {
        let sent = [pattern(bytes[0], 1), pattern(bytes[1], 2)];
        for (end, sent) in self.ends.iter_mut().zip(&sent) {
            end.send(sent.clone());
        }
        self.run(limit, Self::finished);
        self.check(&sent, what);
    }

    /// Checks that both ends have all data of the other, and its end.
    pub(crate) fn check(&self, sent: &[Bytes; 2], what: &str) {
        for (host, sent) in [(1, &sent[0]), (0, &sent[1])] {
            let end = &self.ends[host];
            let (got, now) = (end.received.len(), self.now);
            assert_eq!(got, sent.len(), "{what}: at {now} {:?} {:#?}", end.closed, self.both());
            assert!(end.received == sent[..], "{what}: other bytes");
            assert_eq!(end.closed, Some(Ok(())), "{what}: at {now} {:#?}", self.both());
        }
    }

    fn both(&self) -> [Option<stack::ConnectionStatus>; 2] {
        [0, 1].map(|host| self.stacks[host].status(self.ends[host].connection?))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now.saturating_since(Instant::ZERO)
    }

    /// Runs until `until`, `done`, or no event is left.
    pub(crate) fn run(&mut self, until: Duration, mut done: impl FnMut(&Self) -> bool) {
        let until = Instant::ZERO + until;
        for _ in 0..self.step_limit {
            self.applications();
            self.transmit();
            self.check_deadlines();
            if done(self) {
                return;
            }
            let Some(next) = self.next() else { return };
            if next > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
            self.arrive();
            for stack in &mut self.stacks {
                if stack.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                    stack.handle_timeout(self.now);
                }
            }
        }
        panic!("no end at {} after {} packets", self.now, self.packets);
    }

    /// Runs for this time, regardless of events.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        self.run(until.saturating_since(Instant::ZERO), |_| false);
        self.now = until;
    }

    /// Checks that an end with data and a subflow for it always has a deadline. It must retry even
    /// if the peer stays silent.
    fn check_deadlines(&self) {
        for host in 0..2 {
            let stack = &self.stacks[host];
            let waits_for_room = self.full.iter().any(|full| full[host]);
            if stack.poll_timeout().is_some() || waits_for_room {
                continue;
            }
            let end = &self.ends[host];
            let Some(status) = end.connection.and_then(|id| stack.status(id)) else { continue };
            if matches!(end.closed, Some(Err(_))) {
                continue;
            }
            let gone = |flow: &&stack::SubflowStatus| {
                let is_reported = |notice: &StackNotice| matches!(notice, StackNotice::SubflowClosed { number, .. } if *number == flow.number);
                end.notices.iter().any(is_reported)
            };
            let mut open = status.subflows.iter().filter(|flow| !gone(flow)).map(|flow| flow.state);
            let waiting = status.written_bytes > status.acked_bytes && end.closed.is_none();
            let sleeps = open.any(|state| waits_for_answer(state) || (waiting && is_open(state)));
            assert!(!sleeps, "host {host} sleeps at {}: {status:#?}", self.now);
        }
    }

    /// Marks the driver's queue of an interface as full, or as ready again.
    pub(crate) fn set_room(&mut self, host: usize, path: usize, room: bool) {
        self.stacks[host].set_tx_ready(self.now, InterfaceId(path as u32), room);
        if let Some(full) = self.full.get_mut(path) {
            full[host] = !room;
        }
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
        let timeouts = self.stacks.iter().filter_map(Stack::poll_timeout);
        timeouts.map(|(at, _)| at).chain(arrival).min()
    }

    fn applications(&mut self) {
        for host in 0..2 {
            while let Some(event) = self.stacks[host].poll_event() {
                self.on_event(host, &event);
            }
            let Some(id) = self.ends[host].connection else { continue };
            let (end, stack) = (&mut self.ends[host], &mut self.stacks[host]);
            if !end.to_send.is_empty() {
                stack.write(self.now, id, &mut end.to_send);
            }
            if end.to_send.is_empty() && end.close_when_sent && !end.write_closed {
                end.write_closed = true;
                stack.shutdown(self.now, id);
            }
            while !end.paused && !end.ended && end.received.len() < self.read_limit {
                let Some(bytes) = stack.read(self.now, id) else { break };
                end.ended = bytes.is_empty();
                self.ended_at[host] = self.now;
                end.received.extend_from_slice(&bytes);
            }
        }
    }

    fn on_event(&mut self, host: usize, event: &StackEvent) {
        let end = &mut self.ends[host];
        match event {
            StackEvent::Accepted { connection, .. } if end.connection.is_none() => {
                end.connection = Some(*connection);
            }
            // A middlebox caused it, such as one that strips MP_JOIN from a SYN.
            StackEvent::Accepted { connection, .. } => {
                self.stacks[host].release(self.now, *connection);
            }
            StackEvent::Closed { connection, .. } if Some(*connection) != end.connection => {}
            StackEvent::Closed { error, .. } => end.closed = Some(error.map_or(Ok(()), Err)),
            StackEvent::Notice { notice, .. } => end.notices.push(*notice),
            StackEvent::Connected(_) | StackEvent::Readable(_) | StackEvent::Writable(_) => {}
            StackEvent::Trace { .. } => {}
        }
    }

    fn transmit(&mut self) {
        for host in 0..2 {
            while let Some((interface, packet)) = self.stacks[host].poll_transmit(self.now) {
                let packets: Vec<Packet> = packet.split().collect();
                for packet in packets {
                    let path = interface.0 as usize;
                    let changed = match &mut self.middleboxes[path] {
                        Some(middlebox) => middlebox(packet),
                        None => vec![packet],
                    };
                    for packet in changed {
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
        let line = self.lines[path][host];
        let lost = self.random.next_u32() % 1_000 < line.loss;
        let copies = 1 + u32::from(self.random.next_u32() % 1_000 < line.duplication);
        let free = &mut self.free_at[path][host];
        let begin = self.now.max(*free);
        if lost || !line.up || begin.saturating_since(self.now) > line.queue {
            self.dropped += 1;
            return;
        }
        self.duplicated += u64::from(copies - 1);
        *free = begin + Duration::from_nanos(packet.len() as u64 * line.byte_nanos);
        for _ in 0..copies {
            let jitter = line.jitter.as_nanos() as u64;
            let extra = if jitter == 0 { 0 } else { self.random.next_u64() % jitter };
            let at = *free + line.delay + Duration::from_nanos(extra);
            self.sequence += 1;
            self.in_flight.insert((at, self.sequence), (1 - host, path, packet.clone()));
        }
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (host, path, packet) = entry.remove();
            if self.lines[path][1 - host].up {
                self.stacks[host].handle_packet(self.now, InterfaceId(path as u32), packet);
            }
        }
    }

    /// Returns true if both applications have all data and its end.
    pub(crate) fn finished(&self) -> bool {
        self.ends.iter().all(|end| end.closed.is_some())
    }

    pub(crate) fn status(&self, host: usize) -> stack::ConnectionStatus {
        self.stacks[host].status(self.ends[host].connection.unwrap()).unwrap()
    }
}

/// Returns true if data may be sent.
fn is_open(state: TcpState) -> bool {
    matches!(state, TcpState::Established | TcpState::CloseWait)
}

/// Returns true if a SYN or FIN of ours is not acknowledged yet.
fn waits_for_answer(state: TcpState) -> bool {
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
    let word = |at: usize| (at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (0..len).map(|at| (word(at) >> (at % 8 * 8)) as u8).collect::<Vec<u8>>().into()
}
