//! Connections of commands: towpath does not own their sockets, but the kernel lists them on each
//! host.
//!
//! A connection is identified by the addresses of its subflows, which both hosts list, and by the
//! token of its Multipath TCP socket. The kernel's destroy events cover connections that close
//! between two polls. Payload over other protocols than TCP is not visible here; the interfaces
//! count it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use towpath_kernel::sample::{ConnectionSample, MptcpInfo, SubflowSample, TcpInfo};
use towpath_kernel::subflow::canonical_addresses;
use towpath_net::Instant;
use towpath_netlink::{DestroyedSockets, DiagSocket, SocketDiag, StateFilter, TcpState};
use towpath_os::sys;
use towpath_result::metrics::DeliveryLog;
use towpath_scenario::network::path_and_end;
use towpath_scenario::{DataDirection, Pattern, Scenario};

use crate::network::EmulatedNetwork;
use crate::traffic;
use crate::traffic::{SampledStream, StreamEndpoint, TrafficContext};

/// Time between two polls, unless their CPU time is too high.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time between two polls; rarer polls would blur the series.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After a poll, the thread sleeps for the poll's CPU time multiplied by this, within the limits
/// above. The sleep is never shorter than [`MIN_SLEEP_FACTOR`] times the CPU time.
const SLEEP_FACTOR: u32 = 50;
const MIN_SLEEP_FACTOR: u32 = 4;
/// Time after the end of a connection's last socket in which the kernel may still report on it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// A direction with less than this part of the other direction's bytes is omitted.
const MINOR_DIRECTION_DIVISOR: u64 = 100;
/// Connections shown individually; the bytes of further ones are only counted.
const MAX_CONNECTIONS: usize = 100;

/// Local and remote address of a subflow, seen from one end.
type AddressPair = (SocketAddr, SocketAddr);

/// Last state of one end of a connection, as reported by the kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramEndpoint(Arc<Mutex<ProgramEndpointState>>);

#[derive(Debug, Default)]
struct ProgramEndpointState {
    subflows: BTreeMap<AddressPair, ProgramSubflow>,
    /// State of its Multipath TCP socket, if it has one.
    mptcp: Option<MptcpInfo>,
    /// Directions in which that socket is open.
    mptcp_open: OpenDirections,
    /// Duplicate bytes that arrived on several subflows.
    duplicate_bytes: u64,
    received_bytes: u64,
}

/// Directions in which an endpoint may still carry payload.
#[derive(Debug, Clone, Copy, Default)]
struct OpenDirections {
    send: bool,
    receive: bool,
}

impl OpenDirections {
    /// Derives the directions from a socket's state (RFC 9293 §3.3.2). A socket that has sent FIN
    /// may still retransmit; a closed one reads no more.
    fn from_socket(socket: &DiagSocket) -> Self {
        use TcpState::{CloseWait, Closing, Established, FinWait1, FinWait2, LastAck};
        let half_closed = matches!(socket.state, FinWait1 | FinWait2);
        Self {
            send: matches!(socket.state, Established | CloseWait | FinWait1 | LastAck | Closing),
            receive: socket.state == Established || half_closed && socket.inode != 0,
        }
    }

    fn union(self, other: Self) -> Self {
        Self { send: self.send || other.send, receive: self.receive || other.receive }
    }
}

#[derive(Debug)]
struct ProgramSubflow {
    sample: SubflowSample,
    open: OpenDirections,
    alive: bool,
    /// Set when the latest sample was returned.
    reported: bool,
}

impl ProgramEndpoint {
    fn state(&self) -> MutexGuard<'_, ProgramEndpointState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the connection has had no Multipath TCP socket: it uses plain TCP.
    pub(crate) fn is_plain(&self) -> bool {
        self.state().mptcp.is_none()
    }

    /// Returns the latest sample of the subflows that exist.
    pub(crate) fn sample(&self) -> io::Result<ConnectionSample> {
        self.connection_sample(|subflow| subflow.alive)
    }

    /// Returns the latest sample of the subflows that exist, and once the last sample of each
    /// subflow that was closed since the previous call.
    pub(crate) fn sample_last(&self) -> io::Result<ConnectionSample> {
        self.connection_sample(|subflow| {
            let is_new = !subflow.reported;
            subflow.reported = true;
            subflow.alive || is_new
        })
    }

    fn connection_sample(
        &self,
        include: impl Fn(&mut ProgramSubflow) -> bool,
    ) -> io::Result<ConnectionSample> {
        let mut state = self.state();
        let subflows = state.subflows.values_mut();
        let samples: Vec<_> =
            subflows.filter_map(|subflow| include(subflow).then_some(subflow.sample)).collect();
        match (state.mptcp, samples.as_slice()) {
            (_, []) => Err(io::ErrorKind::NotConnected.into()),
            (Some(info), _) if !info.fallback => Ok(ConnectionSample::Multipath(info, samples)),
            (_, [first, ..]) => Ok(ConnectionSample::Single(*first, None)),
        }
    }
}

impl ProgramEndpointState {
    fn is_alive(&self) -> bool {
        self.subflows.values().any(|subflow| subflow.alive)
    }

    /// Returns the directions in which the existing sockets of the endpoint are open.
    fn open_directions(&self) -> OpenDirections {
        let existing = self.subflows.values().filter(|subflow| subflow.alive);
        let subflows =
            existing.fold(OpenDirections::default(), |union, subflow| union.union(subflow.open));
        match self.mptcp.filter(|mptcp| !mptcp.fallback) {
            Some(_) => OpenDirections {
                send: subflows.send && self.mptcp_open.send,
                receive: subflows.receive && self.mptcp_open.receive,
            },
            None => subflows,
        }
    }

    fn update_subflow(&mut self, socket: &DiagSocket, alive: bool) {
        let info = TcpInfo::parse(&socket.info);
        let (local, remote) = canonical_addresses(socket);
        let sample = SubflowSample {
            number: 0,
            local,
            remote,
            backup: None,
            stream_frames: None,
            congestion_control: None,
            info,
        };
        let subflow = self.subflows.entry((local, remote));
        let open = OpenDirections::from_socket(socket);
        let subflow = subflow.or_insert(ProgramSubflow { sample, open, alive, reported: false });
        subflow.open = open;
        let previous = &subflow.sample.info;
        subflow.alive = alive;
        // Linux clears the counters of a connection's first subflow before it is destroyed.
        if info.bytes_received >= previous.bytes_received
            && info.bytes_acked >= previous.bytes_acked
        {
            (subflow.sample, subflow.reported) = (sample, false);
        }
    }

    /// Returns the payload that has arrived at this end, each byte once; never decreases.
    ///
    /// `is_fresh` means that the subflows and the Multipath TCP socket were read together.
    fn count_received(&mut self, is_fresh: bool) -> u64 {
        let sum: u64 =
            self.subflows.values().map(|subflow| subflow.sample.info.bytes_received).sum();
        let mptcp = self.mptcp.filter(|mptcp| mptcp.bytes_received + mptcp.bytes_acked > 0);
        if let Some(mptcp) = mptcp.filter(|_| is_fresh) {
            self.duplicate_bytes = sum.saturating_sub(mptcp.bytes_received);
            self.received_bytes = self.received_bytes.max(mptcp.bytes_received);
        }
        self.received_bytes = self.received_bytes.max(sum.saturating_sub(self.duplicate_bytes));
        self.received_bytes
    }
}

/// A connection between two hosts.
#[derive(Debug)]
struct ProgramConnection {
    flow: u32,
    /// First and second host of the flow, by index.
    hosts: [usize; 2],
    ends: [ProgramEndpoint; 2],
    /// Bytes received in direction up and down.
    received: [Arc<AtomicU64>; 2],
    /// Time at which its last socket was closed.
    ended: Option<Instant>,
    /// Set when no more reports are expected.
    settled: bool,
}

/// Netlink sockets that query one host's kernel.
#[derive(Debug)]
struct HostDiag {
    diag: SocketDiag,
    destroyed: Option<DestroyedSockets>,
}

/// Snapshot of one host's sockets.
#[derive(Debug, Default)]
struct HostSocketSnapshot {
    tcp: Vec<DiagSocket>,
    mptcp: Vec<DiagSocket>,
    listening: Vec<u16>,
    destroyed: Vec<DiagSocket>,
}

/// A flow that runs a command.
#[derive(Debug, Clone, Copy)]
struct CommandFlow {
    flow: u32,
    hosts: [usize; 2],
}

/// Follows the connections of all commands of a run.
#[derive(Debug)]
pub(crate) struct ProgramTracker {
    diags: Vec<Option<HostDiag>>,
    flows: Vec<CommandFlow>,
    /// Ports of towpath's own traffic.
    own_ports: BTreeSet<u16>,
    /// Hosts and ports on which programs have listened.
    listened_ports: BTreeSet<(usize, u16)>,
    connections: Vec<ProgramConnection>,
    by_ends: BTreeMap<AddressPair, usize>,
    by_token: BTreeMap<(usize, u32), usize>,
    /// Connections by host and socket cookie, which the kernel never reuses.
    by_cookie: BTreeMap<(usize, u64), usize>,
    delivery_logs: BTreeMap<(u32, DataDirection), DeliveryLog>,
    last_poll: Instant,
}

const DIRECTIONS: [DataDirection; 2] = [DataDirection::Up, DataDirection::Down];

impl ProgramTracker {
    /// Opens the sockets before any program starts; `None` if no flow runs a command.
    pub(crate) fn open(network: &EmulatedNetwork) -> Option<Self> {
        let scenario = &network.scenario;
        let flows = command_flows(scenario);
        if flows.is_empty() {
            return None;
        }
        let host_diags = network.hosts.iter().map(|host| {
            let open = || Some(HostDiag { diag: SocketDiag::open().ok()?, destroyed: None });
            let mut host_diag = host.namespace.run(open).ok()??;
            let destroyed = host.namespace.run(DestroyedSockets::open);
            // Without destroy events, connections that close between two polls stay invisible.
            host_diag.destroyed = destroyed.ok().and_then(Result::ok);
            host.stack.is_none().then_some(host_diag)
        });
        let diags = host_diags.collect();
        Some(Self {
            diags,
            flows,
            own_ports: traffic::flow_ports(scenario),
            listened_ports: BTreeSet::new(),
            connections: Vec::new(),
            by_ends: BTreeMap::new(),
            by_token: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            delivery_logs: BTreeMap::new(),
            last_poll: Instant::ZERO,
        })
    }

    /// Polls until `done` is set, and once more.
    pub(crate) fn run(&mut self, context: &TrafficContext, done: &AtomicBool) {
        loop {
            let is_last_poll = done.load(Ordering::Acquire);
            let cpu_start = sys::thread_cpu_time();
            self.poll(context);
            if is_last_poll {
                return;
            }
            let cost = sys::thread_cpu_time().saturating_sub(cpu_start);
            thread::sleep(
                (cost * SLEEP_FACTOR)
                    .clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
                    .max(cost * MIN_SLEEP_FACTOR),
            );
        }
    }

    /// Returns the delivery log of a flow for each direction. A direction with few bytes, such as a
    /// program's own control messages, is omitted: its pauses mean nothing.
    pub(crate) fn logs(&self, flow: u32) -> Vec<(DataDirection, &DeliveryLog)> {
        let logs = DIRECTIONS.iter().filter_map(|direction| {
            let log = self.delivery_logs.get(&(flow, *direction))?;
            Some((*direction, log))
        });
        let mut logs: Vec<_> = logs.collect();
        let max_bytes = logs.iter().map(|(_, log)| log.total_bytes()).max().unwrap_or_default();
        logs.retain(|(_, log)| log.total_bytes() > max_bytes / MINOR_DIRECTION_DIVISOR);
        logs
    }

    /// Returns a warning for people if some connections are not shown individually.
    pub(crate) fn warning(&self) -> Option<String> {
        let count = self.connections.len();
        (count > MAX_CONNECTIONS).then(|| {
            format!(
                "the programs opened {count} connections; the first {MAX_CONNECTIONS} are shown individually, the others only in the sum of bytes"
            )
        })
    }

    fn poll(&mut self, context: &TrafficContext) {
        // The kernel's replies describe this moment, even if they take time.
        let now = context.now();
        let snapshots: Vec<_> = self.diags.iter_mut().map(HostDiag::snapshot).collect();
        for (host, snapshot) in snapshots.iter().enumerate() {
            self.update(host, snapshot, context);
        }
        self.count_delivered(now);
    }

    fn update(&mut self, host: usize, snapshot: &HostSocketSnapshot, context: &TrafficContext) {
        let mut present = BTreeSet::new();
        self.listened_ports.extend(snapshot.listening.iter().map(|port| (host, *port)));
        for (socket, alive) in snapshot
            .tcp
            .iter()
            .map(|s| (s, true))
            .chain(snapshot.destroyed.iter().map(|s| (s, false)))
        {
            let Some(id) = self.connection_of(host, socket, context) else { continue };
            let Some(end) = self.endpoint(id, host) else { continue };
            end.state().update_subflow(socket, alive);
            if alive {
                present.insert((id, canonical_addresses(socket)));
            }
        }
        for socket in &snapshot.mptcp {
            let info = MptcpInfo::parse(&socket.info);
            let id = self.by_token.get(&(host, info.token)).or_else(|| {
                let (local, remote) = canonical_addresses(socket);
                self.by_ends.get(&(local, remote))
            });
            let Some(end) = id.and_then(|id| self.endpoint(*id, host)) else { continue };
            let mut state = end.state();
            // A connection that fell back to TCP never becomes Multipath TCP again.
            let fallback = info.fallback || state.mptcp.is_some_and(|mptcp| mptcp.fallback);
            state.mptcp = Some(MptcpInfo { fallback, ..info });
            state.mptcp_open = OpenDirections::from_socket(socket);
            state.count_received(true);
        }
        for (id, connection) in self.connections.iter().enumerate() {
            let Some(end) = connection.endpoint_at(host) else { continue };
            for (addresses, subflow) in &mut end.state().subflows {
                subflow.alive &= present.contains(&(id, *addresses));
            }
        }
    }

    fn endpoint(&self, id: usize, host: usize) -> Option<&ProgramEndpoint> {
        self.connections.get(id)?.endpoint_at(host)
    }

    /// Returns the connection of a TCP socket; adds it if it is new.
    fn connection_of(
        &mut self,
        host: usize,
        socket: &DiagSocket,
        context: &TrafficContext,
    ) -> Option<usize> {
        let (local, remote) = canonical_addresses(socket);
        if self.own_ports.contains(&local.port()) || self.own_ports.contains(&remote.port()) {
            return None;
        }
        let path = EmulatedNetwork::path_of(local.ip(), remote.ip())?;
        let token = socket.subflow.and_then(|subflow| subflow.token_local);
        let by_cookie = self.by_cookie.get(&(host, socket.cookie));
        let by_token = || self.by_token.get(&(host, token?));
        let by_ends = || self.by_ends.get(&(local, remote));
        let existing_id = by_cookie.or_else(by_token).or_else(by_ends).copied();
        let id = if let Some(id) = existing_id {
            id
        } else {
            let paths = &context.network.scenario.paths;
            let [first, second] = paths.get(path)?.between;
            let owner = |(path, end): (usize, usize)| paths.get(path)?.between.get(end).copied();
            // Behind a router that is a host of the scenario, the peer is on another path.
            let peer = path_and_end(remote.ip()).and_then(owner).filter(|peer| *peer != host);
            let peer = peer.unwrap_or(if host == first { second } else { first });
            let accepted = self.listened_ports.contains(&(host, local.port()));
            self.add(if accepted { [peer, host] } else { [host, peer] }, context)?
        };
        if self.by_cookie.insert((host, socket.cookie), id) == Some(id) {
            return Some(id);
        }
        self.by_ends.insert((local, remote), id);
        self.by_ends.insert((remote, local), id);
        if let Some(token) = token {
            self.by_token.insert((host, token), id);
        }
        Some(id)
    }

    /// Adds a connection from the first of two hosts to the second.
    fn add(&mut self, hosts: [usize; 2], context: &TrafficContext) -> Option<usize> {
        let [opener, acceptor] = hosts;
        let flow_between = |hosts: [usize; 2]| {
            self.flows.iter().find(move |command_flow| command_flow.hosts == hosts)
        };
        let command_flow = flow_between(hosts).or_else(|| flow_between([acceptor, opener]));
        let hosts = command_flow.map_or(hosts, |command_flow| command_flow.hosts);
        let command_flow = command_flow.or(self.flows.first())?;
        let connection = ProgramConnection {
            flow: command_flow.flow,
            hosts,
            ends: Default::default(),
            received: Default::default(),
            ended: None,
            settled: false,
        };
        if self.connections.len() < MAX_CONNECTIONS {
            let number = self
                .connections
                .iter()
                .filter(|existing| existing.flow == command_flow.flow)
                .count() as u32;
            let [client, server] = connection.ends.clone().map(StreamEndpoint::Program);
            let received = DIRECTIONS.into_iter().zip(connection.received.clone()).collect();
            let stream =
                SampledStream { flow: command_flow.flow, number, client, server, received };
            context.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
        self.connections.push(connection);
        Some(self.connections.len() - 1)
    }

    /// Adds up the payload that has arrived since the last poll.
    fn count_delivered(&mut self, now: Instant) {
        let span = now.saturating_since(self.last_poll);
        self.last_poll = now;
        let (mut settled_ids, mut byte_sums) = (BTreeSet::new(), BTreeMap::new());
        for (id, connection) in
            self.connections.iter_mut().enumerate().filter(|(_, connection)| !connection.settled)
        {
            let [client, server] = &connection.ends;
            let alive = [client, server].iter().any(|end| end.state().is_alive());
            connection.ended = if alive { None } else { Some(connection.ended.unwrap_or(now)) };
            connection.settled =
                connection.ended.is_some_and(|ended| now >= ended + SETTLE_TIMEOUT);
            if connection.settled {
                settled_ids.insert(id);
            }
            for ((direction, [sender, receiver]), counter) in DIRECTIONS
                .into_iter()
                .zip([[client, server], [server, client]])
                .zip(&connection.received)
            {
                let total = receiver.state().count_received(false);
                let bytes = total.saturating_sub(counter.swap(total, Ordering::Relaxed));
                let (sum, open) =
                    byte_sums.entry((connection.flow, direction)).or_insert((0, false));
                *sum += bytes;
                // A server may leave a connection open after the client has gone.
                *open |= sender.state().open_directions().send
                    && receiver.state().open_directions().receive;
            }
        }
        for (key, (bytes, open)) in byte_sums {
            if bytes > 0 {
                // The time until a program's first byte is not an interruption.
                let log = self.delivery_logs.entry(key);
                let log = log.or_insert_with(|| DeliveryLog::new(now - span));
                log.record_evenly(bytes, (now, span));
            }
            if let Some(log) = self.delivery_logs.get_mut(&key).filter(|_| open) {
                // An open connection without payload counts as an interruption.
                log.watch_until(now);
            }
        }
        // The kernel may reuse the addresses for a new connection.
        self.by_ends.retain(|_, id| !settled_ids.contains(id));
        self.by_token.retain(|_, id| !settled_ids.contains(id));
    }
}

impl ProgramConnection {
    fn endpoint_at(&self, host: usize) -> Option<&ProgramEndpoint> {
        let index = self.hosts.iter().position(|candidate| *candidate == host)?;
        self.ends.get(index)
    }
}

impl HostDiag {
    fn snapshot(host_diag: &mut Option<Self>) -> HostSocketSnapshot {
        let Some(Self { diag, destroyed }) = host_diag else {
            return HostSocketSnapshot::default();
        };
        // TCP first, so that a connection's totals are not older than those of its subflows.
        let tcp = diag.tcp(StateFilter::ALL).unwrap_or_default();
        let listens = |socket: &DiagSocket| socket.state == TcpState::Listen;
        let listening = tcp.iter().filter(|socket| listens(socket));
        let listening = listening.map(|socket| socket.local.port()).collect();
        let mptcp = diag.mptcp(StateFilter::CONNECTED).unwrap_or_default();
        let closed = destroyed.as_mut().and_then(|sockets| sockets.drain().ok());
        let has_info = |socket: &DiagSocket| !socket.info.is_empty();
        let is_connected = |socket: &DiagSocket| {
            let is_closed = matches!(socket.state, TcpState::Closed | TcpState::TimeWait);
            has_info(socket) && !is_closed && !listens(socket)
        };
        HostSocketSnapshot {
            tcp: tcp.into_iter().filter(is_connected).collect(),
            mptcp: mptcp.into_iter().filter(has_info).collect(),
            listening,
            destroyed: closed.map(|closed| closed.events).unwrap_or_default(),
        }
    }
}

fn command_flows(scenario: &Scenario) -> Vec<CommandFlow> {
    let flows = (0_u32..).zip(&scenario.flows);
    let command_flows = flows.filter(|(_, flow)| matches!(flow.pattern, Pattern::Run { .. }));
    command_flows
        .map(|(number, flow)| CommandFlow { flow: number, hosts: [flow.from, flow.to] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_directions(state: TcpState, inode: u32) -> (bool, bool) {
        let address = "10.64.0.1:80".parse().unwrap();
        let socket = DiagSocket {
            state,
            local: address,
            remote: address,
            link_index: None,
            cookie: 1,
            inode,
            uid: 0,
            receive_queue: 0,
            send_queue: 0,
            send_buffer: (0, 0),
            info: Vec::new(),
            congestion: None,
            subflow: None,
        };
        let OpenDirections { send, receive } = OpenDirections::from_socket(&socket);
        (send, receive)
    }

    #[test]
    fn a_closed_socket_receives_no_more_but_a_half_closed_one_does() {
        use TcpState::{CloseWait, Established, FinWait1, FinWait2, LastAck, TimeWait};
        // A socket in the `accept` queue has no inode yet.
        assert_eq!(
            [open_directions(Established, 7), open_directions(Established, 0)],
            [(true, true); 2]
        );
        assert_eq!(open_directions(FinWait2, 7), (false, true));
        assert_eq!(open_directions(FinWait2, 0), (false, false));
        // Unacknowledged data may still have to be retransmitted.
        assert_eq!(open_directions(FinWait1, 0), (true, false));
        assert_eq!(
            [open_directions(CloseWait, 7), open_directions(LastAck, 0)],
            [(true, false); 2]
        );
        assert_eq!(open_directions(TimeWait, 0), (false, false));
    }
}
