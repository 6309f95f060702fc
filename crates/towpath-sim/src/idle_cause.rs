//! Causes of idle links: the reason why no sender uses a link now.

use towpath_mptcp::connection::{SendLimit, SubflowLimit};
use towpath_net::Instant;
use towpath_result::accounting::IdleCause;
use towpath_result::{Part, PartGroup};
use towpath_scenario::flow_plan::{directions, request_directions};
use towpath_scenario::network::path_of;
use towpath_scenario::{DataDirection, Scenario, Transport};
use towpath_wire::ConnectionId;

use crate::account::LinkLedger;
use crate::host::SimHost;
use crate::socket::StreamSocket;
use crate::traffic::{AppEnd, FlowRun, SimStream};

/// State of the simulation that determines idle causes.
#[derive(Clone, Copy)]
pub(crate) struct SimView<'a> {
    pub(crate) now: Instant,
    pub(crate) scenario: &'a Scenario,
    pub(crate) hosts: &'a [SimHost],
    pub(crate) streams: &'a [SimStream],
    pub(crate) flows: &'a [FlowRun],
}

/// Returns a link's idle cause: the most severe one among its senders.
pub(crate) fn idle_cause(link: &LinkLedger, view: &SimView<'_>) -> IdleCause {
    let mut worst = IdleCause::from(Part::Application);
    let mut consider = |cause: IdleCause| {
        if severity(cause.part) > severity(worst.part) {
            worst = cause;
        }
    };
    for stream in view.streams {
        let is_over = view.flows.get(stream.flow).is_none_or(|flow| flow.over);
        let Some(flow) = view.scenario.flows.get(stream.flow).filter(|_| !is_over) else {
            continue;
        };
        let [opener, acceptor] = &stream.ends;
        for direction in directions(&flow.pattern) {
            let (end, peer_end) = match direction {
                DataDirection::Down => (acceptor, opener),
                DataDirection::Up | DataDirection::Both => (opener, acceptor),
            };
            for path in &link.paths {
                let between = view.scenario.paths.get(*path).map(|path| path.between);
                let ends = if link.side == 0 { [end, peer_end] } else { [peer_end, end] };
                if between == Some(ends.map(|end| end.host)) {
                    consider(path_idle_cause(*path, (stream, flow.via), (end, peer_end), view));
                }
            }
        }
    }
    worst
}

/// Ranks causes: a blocked sender over an unusable path, and both over a sender without data.
fn severity(part: Part) -> u8 {
    match part.group() {
        PartGroup::Application => 0,
        PartGroup::Unusable => 1,
        PartGroup::Delivered
        | PartGroup::Headers
        | PartGroup::Undelivered
        | PartGroup::Wasted
        | PartGroup::Window
        | PartGroup::Congestion
        | PartGroup::SendBuffer
        | PartGroup::Pacing
        | PartGroup::Scheduler
        | PartGroup::Cpu
        | PartGroup::Unknown => 2,
    }
}

/// Returns the idle cause of one end of a stream on one of the paths that it might use.
fn path_idle_cause(
    path: usize,
    (stream, via): (&SimStream, usize),
    (end, peer_end): (&AppEnd, &AppEnd),
    view: &SimView<'_>,
) -> IdleCause {
    let single_path = matches!(stream.transport, Transport::Tcp | Transport::Quic);
    if single_path && path != via {
        return Part::SinglePath.into();
    }
    let (Some(socket), true) = (end.socket, end.open) else { return Part::Handshake.into() };
    let Some(host) = view.hosts.get(end.host) else { return Part::Unknown.into() };
    let cause = match socket {
        StreamSocket::Tcp(connection) => tcp_cause(host, connection, path),
        StreamSocket::Quic(..) => quic_cause((host, socket), (path, stream), view),
    };
    if severity(cause.part) < 2 {
        return cause;
    }
    if view.hosts.get(peer_end.host).is_some_and(SimHost::has_cpu_backlog) {
        return Part::ReceiverCpu.into();
    }
    if host.is_cpu_busy(view.now) {
        return Part::SenderCpu.into();
    }
    cause
}

fn tcp_cause(host: &SimHost, connection: ConnectionId, path: usize) -> IdleCause {
    let path_between =
        |between: (std::net::IpAddr, std::net::IpAddr)| path_of(between.0, between.1);
    let limits = host
        .stack
        .subflow_limits(connection)
        .filter(|limit| path_between(limit.addresses) == Some(path));
    let causes = limits.map(|SubflowLimit { limit, waits_for, .. }| IdleCause {
        part: limit_part(limit),
        waits_for: waits_for.and_then(path_between),
    });
    causes.max_by_key(|cause| severity(cause.part)).unwrap_or_else(|| {
        if host.stack.has_nothing_to_send(connection) {
            Part::Application.into()
        } else {
            Part::NoSubflow.into()
        }
    })
}

fn limit_part(limit: SendLimit) -> Part {
    match limit {
        SendLimit::Application => Part::Application,
        SendLimit::Handshake => Part::Handshake,
        SendLimit::HostQueue => Part::Unknown,
        SendLimit::Pacing => Part::Pacing,
        SendLimit::SlowStart => Part::SlowStart,
        SendLimit::AfterLoss => Part::AfterLoss,
        SendLimit::CongestionAvoidance => Part::CongestionAvoidance,
        SendLimit::Backup => Part::Backup,
        SendLimit::Stale => Part::Stale,
        SendLimit::HeadOfLineBlocking => Part::HeadOfLineBlocking,
        SendLimit::PeerWindow => Part::PeerWindow,
        SendLimit::SendBuffer => Part::SendBuffer,
        SendLimit::Scheduler => Part::Scheduler,
    }
}

/// Estimates the idle cause of a QUIC path from its last polled status: the library does not report
/// send limits.
fn quic_cause(
    (host, socket): (&SimHost, StreamSocket),
    (path, stream): (usize, &SimStream),
    view: &SimView<'_>,
) -> IdleCause {
    let StreamSocket::Quic(connection, _) = socket else { return Part::Unknown.into() };
    debug_assert!(stream.transport.is_quic());
    let flow = view.scenario.flows.get(stream.flow);
    if flow.is_some_and(|flow| !request_directions(&flow.pattern).is_empty()) {
        return Part::Application.into();
    }
    let Some(status) = host.quic.last_status.get(&connection) else {
        return Part::Handshake.into();
    };
    let is_live_path = |path_status: &&towpath_quic::PathStatus| {
        path_of(path_status.local.ip(), path_status.remote.ip()) == Some(path)
            && !matches!(path_status.state, towpath_quic::PathState::Abandoned { .. })
    };
    let Some(path_status) = status.paths.iter().find(is_live_path) else {
        return Part::NoSubflow.into();
    };
    let cwnd_full =
        path_status.in_flight_bytes + u64::from(path_status.mtu_bytes) > path_status.cwnd_bytes;
    let validating = matches!(path_status.state, towpath_quic::PathState::Validating);
    let slow_start =
        path_status.ssthresh_bytes.is_none_or(|threshold| path_status.cwnd_bytes < threshold);
    let part = if validating {
        Part::Handshake
    } else if path_status.backup {
        Part::Backup
    } else if !cwnd_full {
        Part::Unknown
    } else if path_status.lost_packets > 0 {
        Part::AfterLoss
    } else if slow_start {
        Part::SlowStart
    } else {
        Part::CongestionAvoidance
    };
    part.into()
}
