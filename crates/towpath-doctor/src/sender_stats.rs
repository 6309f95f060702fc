//! Causes that limit the sending rate of programs' connections, sampled for a second while data waits
//! to be sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_host::monitor;
use towpath_host::monitor::{LimitHistory, MonitoredConnection, SocketInternals};
use towpath_host::snapshot::take::canonical_address;
use towpath_kernel::sample::{MptcpInfo, TcpInfo};
use towpath_kernel::send_limit::ConnectionSendState;
use towpath_net::Instant;
use towpath_netlink::{DiagSocket, SocketDiag, StateFilter, TcpState};
use towpath_os::clock::Clock;
use towpath_result::Part;

use super::observation::{ProgramSocket, SenderStats};
use super::programs::ProcessScope;

/// Length of the observation.
const OBSERVATION_TIME: Duration = Duration::from_secs(1);
/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(40);
/// A list of more sockets takes too long to be sampled at this rate.
const MAX_SOCKETS: usize = 2_000;

/// Local and remote address of a connection.
type ConnectionAddresses = (SocketAddr, SocketAddr);

/// A connection under observation.
#[derive(Debug)]
struct WatchedConnection {
    /// Last sample of each subflow, by its cookie.
    previous: Vec<(u64, TcpInfo)>,
    /// Limits of each subflow over time, by its cookie.
    limit_histories: BTreeMap<u64, LimitHistory>,
    /// Time for which each limit held the sender back.
    limit_seconds: BTreeMap<Part, f64>,
    stats: SenderStats,
    /// Acknowledged bytes at the first sample; `stats` counts from here.
    acked_bytes: u64,
    last_sample: Instant,
}

/// Samples until `end` at the latest; empty if no connection sends.
pub(super) fn watch(
    scope: ProcessScope,
    clock: Clock,
    end: Instant,
) -> BTreeMap<ConnectionAddresses, SenderStats> {
    let mut watched: BTreeMap<ConnectionAddresses, WatchedConnection> = BTreeMap::new();
    let end = end.min(clock.now() + OBSERVATION_TIME);
    let Ok(mut diag) = SocketDiag::open() else { return BTreeMap::new() };
    loop {
        let now = clock.now();
        let Some(connections) = connections(&mut diag, scope) else { break };
        let is_sending = |connection: &MonitoredConnection| {
            connection.subflows.iter().any(|subflow| {
                subflow.internals.tcp.unacked > 0 || subflow.internals.tcp.notsent_bytes > 0
            })
        };
        if watched.is_empty() && !connections.iter().any(is_sending) {
            break;
        }
        for connection in &connections {
            let addresses =
                (canonical_address(connection.local), canonical_address(connection.remote));
            let watched_connection =
                watched.entry(addresses).or_insert_with(|| WatchedConnection::new(connection, now));
            watched_connection.sample(connection, now);
        }
        if now + SAMPLE_INTERVAL > end {
            break;
        }
        clock.sleep_until(now + SAMPLE_INTERVAL);
    }
    watched
        .into_iter()
        .map(|(addresses, connection)| (addresses, connection.into_stats()))
        .collect()
}

/// Returns the connections to sample; `None` if there are too many sockets.
fn connections(diag: &mut SocketDiag, scope: ProcessScope) -> Option<Vec<MonitoredConnection>> {
    let tcp = diag.tcp(StateFilter::CONNECTED).ok()?;
    let mptcp = diag.mptcp(StateFilter::CONNECTED).unwrap_or_default();
    if tcp.len() + mptcp.len() > MAX_SOCKETS {
        return None;
    }
    let mut connections = monitor::assemble_connections(&mptcp, &tcp);
    if scope != ProcessScope::Multipath {
        let tokens: Vec<u32> =
            mptcp.iter().map(|socket| MptcpInfo::parse(&socket.info).token).collect();
        let is_subflow = |socket: &DiagSocket| {
            socket
                .subflow
                .and_then(|flow| flow.token_local)
                .is_some_and(|token| tokens.contains(&token))
        };
        connections.extend(tcp.iter().filter(|socket| !is_subflow(socket)).map(plain_connection));
    }
    connections.retain(|connection| connection.state == TcpState::Established);
    Some(connections)
}

/// Returns a plain TCP connection as its only subflow.
fn plain_connection(socket: &DiagSocket) -> MonitoredConnection {
    let subflow = monitor::monitored_subflow(socket);
    let send_state =
        ConnectionSendState { buffer: socket.send_buffer, ..ConnectionSendState::default() };
    MonitoredConnection {
        token: 0,
        state: socket.state,
        fallback: true,
        local: socket.local,
        remote: socket.remote,
        inode: socket.inode,
        uid: socket.uid,
        processes: Vec::new(),
        bytes_received: subflow.bytes_received,
        bytes_acked: subflow.bytes_acked,
        bytes_reinjected: 0,
        cookie: socket.cookie,
        subflows: vec![subflow],
        internals: SocketInternals { send_state, ..SocketInternals::default() },
    }
}

impl WatchedConnection {
    fn new(connection: &MonitoredConnection, now: Instant) -> Self {
        Self {
            previous: Vec::new(),
            limit_histories: BTreeMap::new(),
            limit_seconds: BTreeMap::new(),
            stats: SenderStats { min_window_bytes: u64::MAX, ..SenderStats::default() },
            acked_bytes: acked_bytes(connection),
            last_sample: now,
        }
    }

    fn sample(&mut self, connection: &MonitoredConnection, now: Instant) {
        let span = now.saturating_since(self.last_sample);
        let previous_infos: Vec<Option<TcpInfo>> = { connection.subflows.iter() }
            .map(|subflow| {
                let is_same_subflow = |(cookie, _): &&(u64, TcpInfo)| *cookie == subflow.cookie;
                self.previous.iter().find(is_same_subflow).map(|(_, info)| *info)
            })
            .collect();
        let mut histories: Vec<LimitHistory> = { connection.subflows.iter() }
            .map(|subflow| self.limit_histories.remove(&subflow.cookie).unwrap_or_default())
            .collect();
        let at = Duration::from_nanos(now.as_nanos());
        monitor::record_limits(
            connection,
            &previous_infos,
            &mut histories,
            (at, span),
            Duration::ZERO,
        );
        if !span.is_zero() {
            for (part, seconds) in histories.iter().flat_map(LimitHistory::latest) {
                *self.limit_seconds.entry(part).or_default() += seconds;
            }
        }
        let stats = &mut self.stats;
        for (subflow, history) in connection.subflows.iter().zip(histories) {
            let info = &subflow.internals.tcp;
            if let Some(window) = info.snd_wnd_bytes.map(u64::from) {
                stats.max_window_bytes = stats.max_window_bytes.max(window);
                stats.min_window_bytes = stats.min_window_bytes.min(window);
            }
            stats.max_srtt_us = stats.max_srtt_us.max(info.srtt_us);
            self.limit_histories.insert(subflow.cookie, history);
        }
        stats.buffer_bytes = stats.buffer_bytes.max(connection.internals.send_state.buffer.1);
        stats.acked_bytes = acked_bytes(connection).saturating_sub(self.acked_bytes);
        stats.span_ms += span.as_millis() as u64;
        let infos =
            connection.subflows.iter().map(|subflow| (subflow.cookie, subflow.internals.tcp));
        (self.previous, self.last_sample) = (infos.collect(), now);
    }

    fn into_stats(self) -> SenderStats {
        let sum_ms = |parts: &[Part]| -> u64 {
            let times = self.limit_seconds.iter().filter(|(part, _)| parts.contains(part));
            (times.map(|(_, seconds)| seconds).sum::<f64>() * 1e3) as u64
        };
        let idle_parts = [Part::Application, Part::Backup, Part::Scheduler, Part::Handshake];
        let total: f64 = self.limit_seconds.values().sum();
        SenderStats {
            busy_ms: ((total * 1e3) as u64).saturating_sub(sum_ms(&idle_parts)),
            receive_window_ms: sum_ms(&[Part::PeerWindow, Part::HeadOfLineBlocking]),
            send_buffer_ms: sum_ms(&[Part::SendBuffer]),
            ..self.stats
        }
    }
}

fn acked_bytes(connection: &MonitoredConnection) -> u64 {
    connection.subflows.iter().map(|subflow| subflow.bytes_acked).sum()
}

/// Attaches the result to each program's connection.
pub(super) fn attach_stats(
    programs: &mut [ProgramSocket],
    stats: &BTreeMap<ConnectionAddresses, SenderStats>,
) {
    for program in programs {
        program.sender = stats.get(&(program.local, program.remote)).copied();
    }
}
