//! Limits of the senders of program connections, sampled for a second while they have data to send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::result::Part;
use towpath_net::Instant;

use super::observation::{ProgramSocket, SenderStats};
use super::programs::ProcessScope;
use super::snapshot::plain_end;
use crate::clock::Clock;
use crate::monitor::{self, LimitHistory, MonitoredConnection, SocketInternals};
use crate::netlink::{DiagSocket, SocketDiag, StateFilter, TcpState};
use crate::sample::{MptcpInfo, TcpInfo};
use crate::send_limit::ConnectionSendState;

/// Length of the observation, and the time between two samples.
const OBSERVATION_TIME: Duration = Duration::from_secs(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(40);
/// A list of more sockets takes too long to be sampled at this rate.
const MAX_SOCKETS: usize = 2_000;

/// Local and remote address of a connection.
type ConnectionAddresses = (SocketAddr, SocketAddr);

/// A connection under observation.
#[derive(Debug)]
struct WatchedConnection {
    before: Vec<(u64, TcpInfo)>,
    limit_histories: BTreeMap<u64, LimitHistory>,
    limit_seconds: BTreeMap<Part, f64>,
    stats: SenderStats,
    acked_bytes: u64,
    last_sample: Instant,
}

/// Samples until `end` at the latest; empty if no connection sends.
pub(super) fn watch(
    whose: ProcessScope,
    clock: Clock,
    end: Instant,
) -> BTreeMap<ConnectionAddresses, SenderStats> {
    let mut known: BTreeMap<ConnectionAddresses, WatchedConnection> = BTreeMap::new();
    let end = end.min(clock.now() + OBSERVATION_TIME);
    let Ok(mut diag) = SocketDiag::open() else { return BTreeMap::new() };
    loop {
        let now = clock.now();
        let Some(connections) = connections(&mut diag, whose) else { break };
        let sends = |one: &MonitoredConnection| {
            one.subflows.iter().any(|subflow| {
                subflow.internals.tcp.unacked > 0 || subflow.internals.tcp.notsent_bytes > 0
            })
        };
        if known.is_empty() && !connections.iter().any(sends) {
            break;
        }
        for connection in &connections {
            let ends = (plain_end(connection.local), plain_end(connection.remote));
            let one = known.entry(ends).or_insert_with(|| WatchedConnection::new(connection, now));
            one.sample(connection, now);
        }
        if now + SAMPLE_INTERVAL > end {
            break;
        }
        clock.sleep_until(now + SAMPLE_INTERVAL);
    }
    known.into_iter().map(|(ends, one)| (ends, one.into_stats())).collect()
}

/// Returns the connections to sample; `None` if there are too many sockets.
fn connections(diag: &mut SocketDiag, whose: ProcessScope) -> Option<Vec<MonitoredConnection>> {
    let tcp = diag.tcp(StateFilter::CONNECTED).ok()?;
    let mptcp = diag.mptcp(StateFilter::CONNECTED).unwrap_or_default();
    if tcp.len() + mptcp.len() > MAX_SOCKETS {
        return None;
    }
    let mut all = monitor::assemble_connections(&mptcp, &tcp);
    if whose != ProcessScope::Multipath {
        let tokens: Vec<u32> =
            mptcp.iter().map(|whole| MptcpInfo::parse(&whole.info).token).collect();
        let is_part = |part: &DiagSocket| {
            part.subflow.and_then(|flow| flow.token_local).is_some_and(|one| tokens.contains(&one))
        };
        all.extend(tcp.iter().filter(|one| !is_part(one)).map(plain_connection));
    }
    all.retain(|one| one.state == TcpState::Established);
    Some(all)
}

/// Returns a plain TCP connection as its only subflow.
fn plain_connection(socket: &DiagSocket) -> MonitoredConnection {
    let subflow = monitor::subflow(socket);
    let above =
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
        internals: SocketInternals { send_state: above, ..SocketInternals::default() },
    }
}

impl WatchedConnection {
    fn new(connection: &MonitoredConnection, now: Instant) -> Self {
        Self {
            before: Vec::new(),
            limit_histories: BTreeMap::new(),
            limit_seconds: BTreeMap::new(),
            stats: SenderStats { min_window_bytes: u64::MAX, ..SenderStats::default() },
            acked_bytes: acked_bytes(connection),
            last_sample: now,
        }
    }

    fn sample(&mut self, connection: &MonitoredConnection, now: Instant) {
        let span = now.saturating_since(self.last_sample);
        let before: Vec<Option<TcpInfo>> = { connection.subflows.iter() }
            .map(|subflow| {
                let same = |(cookie, _): &&(u64, TcpInfo)| *cookie == subflow.cookie;
                self.before.iter().find(same).map(|(_, info)| *info)
            })
            .collect();
        let mut spent: Vec<LimitHistory> = { connection.subflows.iter() }
            .map(|subflow| self.limit_histories.remove(&subflow.cookie).unwrap_or_default())
            .collect();
        let at = Duration::from_nanos(now.as_nanos());
        monitor::record_limits(connection, &before, &mut spent, (at, span), Duration::ZERO);
        if !span.is_zero() {
            for (part, seconds) in spent.iter().flat_map(LimitHistory::latest) {
                *self.limit_seconds.entry(part).or_default() += seconds;
            }
        }
        let held = &mut self.stats;
        for (subflow, spent) in connection.subflows.iter().zip(spent) {
            let info = &subflow.internals.tcp;
            if let Some(window) = info.snd_wnd_bytes.map(u64::from) {
                held.max_window_bytes = held.max_window_bytes.max(window);
                held.min_window_bytes = held.min_window_bytes.min(window);
            }
            held.max_srtt_us = held.max_srtt_us.max(info.srtt_us);
            self.limit_histories.insert(subflow.cookie, spent);
        }
        held.buffer_bytes = held.buffer_bytes.max(connection.internals.send_state.buffer.1);
        held.acked_bytes = acked_bytes(connection).saturating_sub(self.acked_bytes);
        held.span_ms += span.as_millis() as u64;
        let cookie = connection.subflows.iter().map(|it| (it.cookie, it.internals.tcp));
        (self.before, self.last_sample) = (cookie.collect(), now);
    }

    fn into_stats(self) -> SenderStats {
        let of = |parts: &[Part]| -> u64 {
            let own = self.limit_seconds.iter().filter(|(part, _)| parts.contains(part));
            (own.map(|(_, seconds)| seconds).sum::<f64>() * 1e3) as u64
        };
        let idle = [Part::Application, Part::Backup, Part::Scheduler, Part::Handshake];
        let all: f64 = self.limit_seconds.values().sum();
        SenderStats {
            busy_ms: ((all * 1e3) as u64).saturating_sub(of(&idle)),
            receive_window_ms: of(&[Part::PeerWindow, Part::HeadOfLineBlocking]),
            send_buffer_ms: of(&[Part::SendBuffer]),
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
    held: &BTreeMap<ConnectionAddresses, SenderStats>,
) {
    for program in programs {
        program.sender = held.get(&(program.local, program.remote)).copied();
    }
}
