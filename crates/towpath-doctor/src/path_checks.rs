//! Plain TCP over single paths: separates a broken path from a path that only breaks Multipath TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_kernel::sample::is_multipath;
use towpath_net::Instant;
use towpath_netlink::u32_at;
use towpath_os::clock::Clock;
use towpath_os::sys;

use super::attempt::{self, ConnectOptions};
use super::echo::{EchoTest, await_echo};
use super::observation::{
    ConnectAttempt, ConnectOutcome, Observation, ObservedSubflow, PlainTcpCheck, TestConnection,
};
use super::route_lookups;
use super::server_session;

/// Limit on paths tested in parallel.
const MAX_PATHS: usize = 8;
/// Timeout of the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_250);
/// Delay before the extra attempts, as a single SYN may be lost by chance.
const RETRY_AFTER: Duration = Duration::from_millis(350);
/// Number of extra connections to the same address.
const EXTRA_CONNECTIONS: usize = 2;
/// Number of connections from different ports over a path with trouble. Parallel links (ECMP) are
/// chosen by ports, so each connection may use another link.
const PORT_ATTEMPTS: usize = 16;
/// Minimum timeout of these connections, after which a single lost SYN was retransmitted.
const MIN_PORT_TIMEOUT: Duration = Duration::from_millis(1_100);
/// Time after which Linux retransmits a SYN.
const SYN_RETRANSMITTED_MS: u64 = 1_000;
/// Timeout of the attempt over Multipath TCP.
const MPTCP_TIMEOUT: Duration = Duration::from_millis(600);
/// Timeout of the extra connections for data.
const RETRY_CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout of the echo of small and of large packets.
const ECHO_TIMEOUT: Duration = Duration::from_millis(500);
/// Data that fits into one small packet.
const SMALL_BYTES: u64 = 64;
/// Several packets of full size on any link.
const LARGE_BYTES: u64 = 12_000;
/// Minimum echo of these packets that shows that they pass: two of full size.
const MIN_LARGE_BYTES: u64 = 3_000;
/// Number of small packets with pauses between them, so that losses are not due to a full queue.
const PACKETS: u32 = 40;
/// Time between two of these small packets.
const PACKET_INTERVAL: Duration = Duration::from_millis(12);
/// Increase of the round-trip time, in microseconds, from which a queue of the path holds packets.
const MAX_QUEUE_DELAY_US: u32 = 60_000;
/// Payload of each of these small packets.
const PACKET_BYTES: u64 = 100;

/// A path to be tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CandidatePath {
    pub(super) local: Option<IpAddr>,
    pub(super) bound_to: Option<u32>,
    pub(super) remote: SocketAddr,
}

/// Tests every path that was used, or could be, until `end` at the latest.
pub(super) fn check_paths(
    observation: &Observation,
    clock: Clock,
    end: Instant,
) -> Vec<PlainTcpCheck> {
    let Some(trial) = &observation.trial else { return Vec::new() };
    let shared_paths =
        route_lookups::shared_links(observation).into_iter().map(|(link, local, remote)| {
            CandidatePath {
                local: Some(local),
                bound_to: Some(link.index),
                remote: SocketAddr::new(remote, trial.target.port()),
            }
        });
    let is_plain = trial.connected(true) && !trial.multipath;
    let other_port = observation.peer.as_ref().map(|peer| peer.address);
    let other_port = other_port
        .filter(|peer| is_plain && is_other_port(*peer, trial.target))
        .map(|remote| CandidatePath { local: None, bound_to: None, remote });
    let paths: Vec<_> = suspect_paths(observation)
        .into_iter()
        .chain(shared_paths.take(MAX_PATHS))
        .chain(other_port)
        .collect();
    let (echoes, is_towpath) = (trial.echoes, trial.is_towpath);
    let peer = |path: &CandidatePath| {
        let echoes = echoes && Some(*path) != other_port;
        PeerBehaviour { echoes, is_towpath, is_plain }
    };
    let device = |path: &CandidatePath| {
        let link = path.bound_to.and_then(|index| observation.here.link(index));
        link.map(|link| link.name.clone())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = paths
            .iter()
            .map(|path| {
                let (peer, path, device) = (peer(path), *path, device(path));
                let is_doubtful = has_silent_attempt(trial, path);
                scope.spawn(move || check_path((path, device), peer, is_doubtful, (clock, end)))
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Returns true if a packet over the path was not answered, while others may be.
fn has_silent_attempt(trial: &TestConnection, path: CandidatePath) -> bool {
    let is_on_path = |subflow: &&ObservedSubflow| {
        Some(subflow.local.ip()) == path.local && subflow.remote.ip() == path.remote.ip()
    };
    let is_silent = |subflow: &ObservedSubflow| {
        subflow.tcp.backoff > 0 || (!subflow.established && !subflow.gone)
    };
    trial.subflows.iter().filter(is_on_path).any(is_silent)
        || trial.attempts.iter().any(|attempt| attempt.outcome == ConnectOutcome::Silent)
}

/// Number of connections from different ports, and of answers.
#[derive(Debug, Clone, Copy, Default)]
struct PortResults {
    attempts: u32,
    answered: u32,
    /// Answered only after a retransmission of the SYN.
    answered_late: u32,
}

/// Connections from different ports over one path, started when there is a reason for doubt.
#[derive(Debug)]
struct PortCheck<'a> {
    remote: SocketAddr,
    options: &'a ConnectOptions,
    thread: Option<thread::JoinHandle<PortResults>>,
}

impl PortCheck<'_> {
    /// Starts the connections in the background, unless they run or too little time is left.
    fn start(&mut self, (clock, end): (Clock, Instant)) {
        let timeout = CONNECT_TIMEOUT.min(end.saturating_since(clock.now()));
        if self.thread.is_some() || timeout < MIN_PORT_TIMEOUT {
            return;
        }
        let (remote, options) = (self.remote, ConnectOptions { timeout, ..self.options.clone() });
        self.thread = Some(thread::spawn(move || try_ports(remote, &options, clock)));
    }

    fn finish(self) -> PortResults {
        self.thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// Connects from several ports at once.
fn try_ports(remote: SocketAddr, options: &ConnectOptions, clock: Clock) -> PortResults {
    let attempts: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..PORT_ATTEMPTS)
            .map(|_| scope.spawn(|| attempt::connect(remote, options, clock).0))
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // An error reported by a router is not an answer of the server; nor is it silence.
    let attempts: Vec<_> = attempts
        .into_iter()
        .filter(|attempt| !matches!(attempt.outcome, ConnectOutcome::Failed(_)))
        .collect();
    let answered = || attempts.iter().filter(|attempt| attempt.outcome != ConnectOutcome::Silent);
    let late = answered().filter(|attempt| attempt.took_ms >= SYN_RETRANSMITTED_MS);
    PortResults {
        attempts: attempts.len() as u32,
        answered: answered().count() as u32,
        answered_late: late.count() as u32,
    }
}

/// Returns true if an address differs from the target in the port alone.
fn is_other_port(address: SocketAddr, target: SocketAddr) -> bool {
    address.ip() == target.ip() && address.port() != target.port()
}

/// Behaviour of the peer, as seen on the test connection.
#[derive(Debug, Clone, Copy)]
struct PeerBehaviour {
    /// Set when the peer echoes data.
    echoes: bool,
    /// Set when the peer expects a preamble first.
    is_towpath: bool,
    /// Set when our test connection to the peer became plain TCP instead of Multipath TCP.
    is_plain: bool,
}

/// Tests one path. Further ports are tried if `is_doubtful`, or if this test gives a reason.
fn check_path(
    (path, device): (CandidatePath, Option<String>),
    peer: PeerBehaviour,
    is_doubtful: bool,
    (clock, end): (Clock, Instant),
) -> PlainTcpCheck {
    let options = ConnectOptions { source: path.local, device, ..ConnectOptions::tcp() };
    let mut port_check = PortCheck { remote: path.remote, options: &options, thread: None };
    if is_doubtful {
        port_check.start((clock, end));
    }
    let (attempt, socket) = connect(path.remote, &options, (clock, end));
    if attempt.outcome == ConnectOutcome::Silent || attempt.took_ms > RETRY_AFTER.as_millis() as u64
    {
        port_check.start((clock, end));
    }
    let local_address = socket.as_ref().and_then(|socket| socket.local_addr().ok()?.as_socket());
    let local = path.local.or(local_address.map(|address| address.ip().to_canonical()));
    let mut check = PlainTcpCheck {
        local: local.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        bound_to: path.bound_to,
        remote: path.remote,
        outcome: attempt.outcome,
        refused: attempt.refused,
        small: None,
        large: None,
        small_retry: None,
        large_retry: None,
        packets: 0,
        resent: 0,
        answers: 0,
        behind_gap: 0,
        min_rtt_us: 0,
        port_attempts: 0,
        ports_answered: 0,
        ports_answered_late: 0,
        multipath: None,
    };
    // The sample of the handshake, until data give a smaller one.
    check.min_rtt_us = socket.as_ref().map_or(0, |socket| TcpCounts::of(socket).min_rtt_us);
    if peer.is_plain && socket.is_some() {
        let options = ConnectOptions { multipath: true, timeout: MPTCP_TIMEOUT, ..options.clone() };
        let (_, socket) = attempt::connect(path.remote, &options, clock);
        check.multipath = socket.as_ref().map(is_multipath);
    }
    if let Some(socket) = socket.filter(|_| peer.echoes) {
        let mut connections = open_connections((path.remote, &options), socket, peer, (clock, end));
        if connections.len() <= EXTRA_CONNECTIONS {
            port_check.start((clock, end));
        }
        send_packets(&mut check, &mut connections, (clock, end));
    }
    let PortResults { attempts, answered, answered_late } = port_check.finish();
    (check.port_attempts, check.ports_answered) = (attempts, answered);
    check.ports_answered_late = answered_late;
    check
}

/// Opens further connections over the path of the first one; those that are slow are missing.
fn open_connections(
    (remote, options): (SocketAddr, &ConnectOptions),
    first: Socket,
    peer: PeerBehaviour,
    (clock, end): (Clock, Instant),
) -> Vec<CheckConnection> {
    let timeout = RETRY_CONNECT_TIMEOUT.min(end.saturating_since(clock.now()));
    let options = ConnectOptions { timeout, ..options.clone() };
    let mut connections = vec![CheckConnection::open(first, peer.is_towpath, clock)];
    thread::scope(|scope| {
        let extra_sockets: Vec<_> = (0..EXTRA_CONNECTIONS)
            .map(|_| scope.spawn(|| attempt::connect(remote, &options, clock).1))
            .collect();
        let extra_sockets =
            extra_sockets.into_iter().filter_map(|thread| thread.join().ok().flatten());
        let open = |socket| CheckConnection::open(socket, peer.is_towpath, clock);
        connections.extend(extra_sockets.map(open));
    });
    connections.into_iter().flatten().collect()
}

/// One of a path's connections: if one waits for a retransmission, others continue.
#[derive(Debug)]
struct CheckConnection {
    socket: Socket,
    echo_test: EchoTest,
}

impl CheckConnection {
    fn open(mut socket: Socket, is_towpath: bool, clock: Clock) -> Option<Self> {
        let _ = socket.set_tcp_nodelay(true); // best effort
        if is_towpath {
            io::Write::write(&mut socket, &server_session::echo_preamble()).ok()?;
        }
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, echo_test: EchoTest::new(clock) })
    }

    /// Reads and writes without waiting, with `bytes` more to send.
    fn step(&mut self, bytes: u64) {
        self.echo_test.step(&self.socket, self.echo_test.sent().saturating_add(bytes));
    }

    fn await_echo(&mut self, bytes: u64, timeout: Duration) -> bool {
        await_echo(&mut self.echo_test, &self.socket, bytes, timeout)
    }

    /// Sends large packets; returns true if the echo of some arrives in time, as a slow path needs
    /// longer for all of them. The data arrive in order, so a lost large packet delays the rest.
    fn await_large_echo(&mut self, timeout: Duration) -> bool {
        let echoed_before = self.echo_test.result().returned;
        let all_echoed = self.await_echo(LARGE_BYTES, timeout);
        let echoed = self.echo_test.result().returned.saturating_sub(echoed_before);
        all_echoed || echoed >= MIN_LARGE_BYTES
    }
}

/// Connects; starts extra attempts if the first is slow, as one packet may be lost by chance.
fn connect(
    remote: SocketAddr,
    options: &ConnectOptions,
    (clock, end): (Clock, Instant),
) -> (ConnectAttempt, Option<Socket>) {
    let started = clock.now();
    let (results_tx, results_rx) = mpsc::channel();
    let start_attempt = |reply_timeout: Duration| {
        let timeout = reply_timeout.min(end.saturating_since(clock.now()));
        let (options, results_tx) =
            (ConnectOptions { timeout, ..options.clone() }, results_tx.clone());
        // A late attempt finds the channel closed.
        thread::spawn(move || results_tx.send(attempt::connect(remote, &options, clock)));
    };
    start_attempt(CONNECT_TIMEOUT);
    let (outcome, refused) = (ConnectOutcome::Silent, None);
    let silent_attempt = |took_ms| ConnectAttempt { multipath: false, outcome, took_ms, refused };
    let mut last_result = match results_rx.recv_timeout(RETRY_AFTER) {
        Ok(result) => return result,
        Err(_) => (silent_attempt(0), None),
    };
    (0..EXTRA_CONNECTIONS).for_each(|_| start_attempt(CONNECT_TIMEOUT.saturating_sub(RETRY_AFTER)));
    for _ in 0..=EXTRA_CONNECTIONS {
        let remaining = CONNECT_TIMEOUT.saturating_sub(clock.now().saturating_since(started));
        match results_rx.recv_timeout(remaining) {
            Ok((attempt, socket)) if attempt.outcome != ConnectOutcome::Silent => {
                return (attempt, socket);
            }
            Ok(result) => last_result = result,
            Err(_) => break,
        }
    }
    last_result
}

/// Sends one small packet, then many with pauses between them, then large ones.
fn send_packets(
    check: &mut PlainTcpCheck,
    connections: &mut [CheckConnection],
    (clock, end): (Clock, Instant),
) {
    let timeout = || ECHO_TIMEOUT.min(end.saturating_since(clock.now()));
    check.small = Some(echo_all(connections, SMALL_BYTES, timeout(), clock));
    let before: Vec<_> =
        connections.iter().map(|connection| TcpCounts::of(&connection.socket)).collect();
    let connection_count = connections.len().max(1);
    for packet_index in 0..PACKETS as usize {
        let next = clock.now() + PACKET_INTERVAL;
        if next > end {
            break;
        }
        for (index, connection) in connections.iter_mut().enumerate() {
            let is_turn = packet_index % connection_count == index;
            connection.step(if is_turn { PACKET_BYTES } else { 0 });
        }
        clock.sleep_until(next);
    }
    let any_complete = echo_all(connections, 0, timeout(), clock);
    for (connection, before) in connections.iter().zip(before) {
        let after = TcpCounts::of(&connection.socket);
        let min_rtt_us = Some(check.min_rtt_us).filter(|time| *time > 0);
        check.min_rtt_us =
            min_rtt_us.map_or(after.min_rtt_us, |min_rtt_us| min_rtt_us.min(after.min_rtt_us));
        // Other traffic may fill a queue of the path. Losses then say nothing about its links.
        if after.srtt_us > check.min_rtt_us.saturating_add(MAX_QUEUE_DELAY_US) {
            continue;
        }
        let (packets, lost) = after.lost_since(before);
        check.packets = check.packets.saturating_add(packets);
        check.resent = check.resent.saturating_add(lost);
        let answers = after.received_packets.saturating_sub(before.received_packets);
        check.answers = check.answers.saturating_add(answers);
        let behind_gap = after.out_of_order.saturating_sub(before.out_of_order);
        check.behind_gap = check.behind_gap.saturating_add(behind_gap);
    }
    let idle_index = connections
        .iter()
        .position(|connection| connection.echo_test.all_echoed())
        .filter(|_| any_complete);
    let Some((index, connection)) =
        idle_index.and_then(|index| Some((index, connections.get_mut(index)?)))
    else {
        return;
    };
    check.small = Some(true);
    let large = connection.await_large_echo(timeout());
    check.large = Some(large);
    if large {
        return;
    }
    let is_other_idle = |(other, connection): &(usize, &mut CheckConnection)| {
        *other != index && connection.echo_test.all_echoed()
    };
    if let Some((_, other)) = connections.iter_mut().enumerate().find(is_other_idle) {
        check.small_retry = Some(other.await_echo(SMALL_BYTES, timeout()));
    }
    check.large_retry = retry_large(connections, index, timeout);
}

/// Sends the large packets again over every idle connection, as one random loss delays them. The
/// first ones may arrive meanwhile.
fn retry_large(
    connections: &mut [CheckConnection],
    first_index: usize,
    timeout: impl Fn() -> Duration,
) -> Option<bool> {
    let mut tried = false;
    for (index, connection) in connections.iter_mut().enumerate().rev() {
        if index == first_index || !connection.echo_test.all_echoed() || timeout().is_zero() {
            continue;
        }
        tried = true;
        if connection.await_large_echo(timeout()) {
            return Some(true);
        }
    }
    let late_echo = connections
        .get_mut(first_index)
        .is_some_and(|connection| connection.await_echo(0, Duration::ZERO));
    (tried || late_echo).then_some(late_echo)
}

/// Sends `bytes` over each connection and waits for all echoes; returns true if any is complete.
fn echo_all(
    connections: &mut [CheckConnection],
    bytes: u64,
    timeout: Duration,
    clock: Clock,
) -> bool {
    let deadline = clock.now() + timeout;
    for connection in connections.iter_mut() {
        connection.step(bytes);
    }
    for connection in connections.iter_mut() {
        connection.await_echo(0, deadline.saturating_since(clock.now()));
    }
    connections.iter().any(|connection| connection.echo_test.all_echoed())
}

/// Kernel counters of a connection.
#[derive(Debug, Clone, Copy)]
struct TcpCounts {
    /// Packets with data, including retransmissions.
    packets: u32,
    retransmissions: u32,
    /// Segments that the peer reported as duplicates (D-SACK, RFC 2883).
    duplicates: u32,
    /// Consecutive timeouts at present.
    backoff: u32,
    /// Received packets with data.
    received_packets: u32,
    /// Packets received out of order.
    out_of_order: u32,
    min_rtt_us: u32,
    /// Smoothed round-trip time, in microseconds.
    srtt_us: u32,
}

impl TcpCounts {
    fn of(socket: &Socket) -> Self {
        let mut bytes = [0; 256];
        let read = sys::get_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes);
        let info = bytes.get(..read.unwrap_or(0)).unwrap_or_default();
        let field = |offset| u32_at(info, offset);
        // tcpi_data_segs_out, tcpi_total_retrans, tcpi_dsack_dups
        let [packets, retransmissions, duplicates] = [156, 100, 216].map(field);
        // tcpi_data_segs_in, tcpi_rcv_ooopack, tcpi_min_rtt
        let [received_packets, out_of_order, min_rtt_us] = [152, 224, 148].map(field);
        let min_rtt_us = if min_rtt_us == u32::MAX { 0 } else { min_rtt_us }; // not yet measured
        let srtt_us = field(68); // tcpi_rtt
        let backoff = info.get(4).copied().unwrap_or(0).into(); // tcpi_backoff
        Self {
            packets,
            retransmissions,
            duplicates,
            backoff,
            received_packets,
            out_of_order,
            min_rtt_us,
            srtt_us,
        }
    }

    /// Returns the new packets since `before`, and the losses: retransmissions that were necessary
    /// and answered.
    fn lost_since(self, before: Self) -> (u32, u32) {
        let retransmitted = self.retransmissions.saturating_sub(before.retransmissions);
        let spurious = self.duplicates.saturating_sub(before.duplicates);
        // The tail-loss probe and the timeouts may still be unanswered.
        let unanswered = if self.backoff > 0 { self.backoff.saturating_add(1) } else { 0 };
        let sent = self.packets.saturating_sub(before.packets);
        (
            sent.saturating_sub(retransmitted),
            retransmitted.saturating_sub(spurious.saturating_add(unanswered)),
        )
    }
}

/// Returns paths with trouble, those in use, and those never tested.
pub(super) fn suspect_paths(observation: &Observation) -> Vec<CandidatePath> {
    let Some(trial) = &observation.trial else { return Vec::new() };
    let here = &observation.here;
    let mut paths: Vec<CandidatePath> = Vec::new();
    let mut add = |path: CandidatePath| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    let binding = |address: IpAddr| {
        let endpoint = here.endpoints.iter().find(|endpoint| endpoint.address == address);
        endpoint.and_then(|endpoint| endpoint.link)
    };
    let is_working = |subflow: &ObservedSubflow| {
        subflow.established && !subflow.gone && subflow.tcp.backoff == 0
    };
    let path_of = |subflow: &ObservedSubflow| {
        let local = subflow.local.ip();
        CandidatePath { local: Some(local), bound_to: binding(local), remote: subflow.remote }
    };
    trial.subflows.iter().filter(|subflow| !is_working(subflow)).map(path_of).for_each(&mut add);
    for event in trial.events_of("SF_CLOSED") {
        if let (Some(local), Some(remote)) = (event.local, event.remote) {
            let remote = SocketAddr::new(remote, event.remote_port.unwrap_or(trial.target.port()));
            add(CandidatePath { local: Some(local), bound_to: binding(local), remote });
        }
    }
    let has_join = trial.subflows.iter().any(|subflow| !subflow.first && is_working(subflow));
    trial.subflows.iter().filter(|subflow| is_working(subflow)).map(path_of).for_each(&mut add);
    let is_used =
        |address: IpAddr| trial.subflows.iter().any(|subflow| subflow.local.ip() == address);
    for endpoint in here
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.opens_subflows() && !is_used(endpoint.address))
    {
        if endpoint.address.is_ipv4() == trial.target.is_ipv4() {
            let (local, bound_to) = (Some(endpoint.address), endpoint.link);
            add(CandidatePath { local, bound_to, remote: trial.target });
        }
    }
    for event in trial.events_of("ANNOUNCED") {
        let is_reached =
            |remote| trial.subflows.iter().any(|subflow| subflow.remote.ip() == remote);
        if let Some(remote) = event.remote.filter(|remote| !is_reached(*remote)) {
            let port = event.remote_port.filter(|port| *port != 0).unwrap_or(trial.target.port());
            let remote = SocketAddr::new(remote, port);
            add(CandidatePath { local: None, bound_to: None, remote });
        }
    }
    for source in route_lookups::sources(here) {
        let is_reachable =
            !trial.target.ip().is_loopback() && source.is_ipv4() == trial.target.is_ipv4();
        if !has_join && is_reachable && !is_used(source) {
            let bound_to = here.link_of(source).map(|link| link.index);
            add(CandidatePath { local: Some(source), bound_to, remote: trial.target });
        }
    }
    paths.truncate(MAX_PATHS);
    paths
}
