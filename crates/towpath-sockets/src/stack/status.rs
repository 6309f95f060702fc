//! Connection statistics of towpath's own stack in the kernel's format.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use towpath_kernel::sample;
use towpath_kernel::sample::{MptcpInfo, SubflowSample, TcpInfo};
use towpath_mptcp::connection::SubflowLimit;
use towpath_mptcp::stack::{ConnectionStatus, StackNotice, SubflowStatus};
use towpath_mptcp::subflow::TcpState;
use towpath_net::Instant;
use towpath_result::{ConnectionState, Event, ReinjectionCause};
use towpath_scenario::Scenario;
use towpath_scenario::network::path_of;
use towpath_wire::ConnectionId;

use super::StackHandle;

/// Endpoint of a connection on a host with the own stack.
#[derive(Debug, Clone)]
pub struct StackConnection {
    /// Stack of the host.
    pub host: Arc<StackHandle>,
    /// Connection within the stack.
    pub id: ConnectionId,
}

impl StackConnection {
    /// Returns the statistics that [`sample::connection`] reads from kernel sockets.
    pub fn sample(&self) -> io::Result<sample::ConnectionSample> {
        let id = self.id;
        let status = self.host.call(move |context| context.stack.status(id))?;
        status
            .map(|status| connection_sample(&status))
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns the current limit of each subflow, and true if the connection has nothing to send.
    pub fn send_limits(&self) -> Option<(Vec<SubflowLimit>, bool)> {
        let id = self.id;
        let result = self.host.call(move |context| {
            let limits = context.stack.subflow_limits(id).collect();
            (limits, context.stack.has_nothing_to_send(id))
        });
        result.ok()
    }

    /// Returns the connection's state and the decisions since the last call, for traffic that
    /// started at `start`. `None` if the connection is closed.
    pub fn sample_stack(&self, scenario: &Arc<Scenario>, start: Instant) -> Option<StackSample> {
        let (id, scenario) = (self.id, Arc::clone(scenario));
        let result = self.host.call(move |context| {
            let status = context.stack.status(id)?;
            let path_name = |number: u32| {
                let subflow = status.subflows.iter().find(|subflow| subflow.number == number)?;
                let path = path_of(subflow.local.ip(), subflow.remote.ip())?;
                scenario.paths.get(path).map(|path| path.name.clone())
            };
            let trace = context.decisions(id);
            let blocked = std::mem::take(&mut trace.blocked);
            let blocked_events = blocked.into_iter().map(|period| period.event(start)).collect();
            let decision_events = trace.decisions.take(path_name);
            let switches = trace.decisions.switches();
            Some(StackSample { status, switches, blocked_events, decision_events })
        });
        result.ok().flatten()
    }
}

/// Sample of one endpoint of a connection.
#[derive(Debug)]
pub struct StackSample {
    /// Status of the connection and its subflows.
    pub status: ConnectionStatus,
    /// Scheduler switches since the start.
    pub(crate) switches: u64,
    /// Periods of a full window, as events.
    pub blocked_events: Vec<Event>,
    /// Decisions since the last sample, as events without their time.
    pub decision_events: Vec<Event>,
}

/// Returns the state of the direction from `sender` to `receiver`, as far as they use the own
/// stack. `blocked_before` is the sender's total time with a full window at the end of the previous
/// period.
pub fn direction_state(
    sender: Option<&StackSample>,
    receiver: Option<&StackSample>,
    blocked_before: Duration,
) -> Option<ConnectionState> {
    sender.or(receiver)?;
    let mut state = ConnectionState::default();
    if let Some(StackSample { status, .. }) = receiver {
        state.reorder_bytes = Some(status.reorder_bytes);
        state.receive_buffer_bytes = Some(status.receive_buffer_bytes);
        state.reorder_peak_bytes = Some(status.reorder_peak_bytes);
        state.discarded_bytes = Some(status.discarded_bytes);
    }
    if let Some(StackSample { status, switches, .. }) = sender {
        let by_cause = ReinjectionCause::ALL.into_iter().zip(status.reinjected_bytes);
        let blocked = status.window_blocked.saturating_sub(blocked_before);
        state.reinjected_bytes = Some(status.reinjected_bytes.iter().sum());
        state.reinjected_by_cause = by_cause.filter(|(_, bytes)| *bytes > 0).collect();
        state.window_blocked_ns = Some(blocked.as_nanos() as u64);
        state.penalisations = Some(status.penalisations);
        state.switches = Some(*switches);
    }
    Some(state)
}

fn connection_sample(status: &ConnectionStatus) -> sample::ConnectionSample {
    let open = status.subflows.iter().filter(|subflow| subflow.state != TcpState::Closed);
    let mut subflows: Vec<SubflowSample> = open.map(subflow_sample).collect();
    if status.multipath {
        let bytes_retrans = status.reinjected_bytes.iter().sum();
        let info = MptcpInfo { bytes_retrans, ..MptcpInfo::default() };
        return sample::ConnectionSample::Multipath(info, subflows);
    }
    let single = subflows.pop().unwrap_or(SubflowSample {
        number: 0,
        backup: None,
        stream_frames: None,
        local: status.local,
        remote: status.remote,
        congestion_control: None,
        info: TcpInfo::default(),
    });
    let reason = status.fallback.map(|reason| reason.to_string());
    sample::ConnectionSample::Single(single, reason)
}

fn subflow_sample(status: &SubflowStatus) -> SubflowSample {
    let tcp = &status.tcp;
    let mss = u64::from(tcp.mss_bytes.max(1));
    let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    let packets = |bytes: u64| u32::try_from(bytes / mss).unwrap_or(u32::MAX);
    SubflowSample {
        number: 0,
        backup: None,
        stream_frames: None,
        local: status.local,
        remote: status.remote,
        congestion_control: Some(status.congestion_control),
        info: TcpInfo {
            state: kernel_state(status.state),
            backoff: u8::try_from(tcp.timeouts).unwrap_or(u8::MAX),
            rto_us: micros(tcp.rto),
            mss_bytes: tcp.mss_bytes,
            unacked: packets(tcp.in_flight_bytes.saturating_add(mss - 1)),
            srtt_us: micros(tcp.srtt),
            rttvar_us: micros(tcp.rttvar),
            // The kernel represents "not yet" by a very large number of packets.
            ssthresh: packets(tcp.ssthresh_bytes).min(i32::MAX as u32),
            cwnd: packets(tcp.cwnd_bytes),
            total_retrans: u32::try_from(tcp.retransmissions).unwrap_or(u32::MAX),
            bytes_acked: tcp.acked_bytes,
            bytes_received: tcp.received_bytes,
            bytes_sent: tcp.sent_bytes,
            ..TcpInfo::default()
        },
    }
}

/// Returns the kernel's number of a state (`include/net/tcp_states.h`).
fn kernel_state(state: TcpState) -> u8 {
    match state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        TcpState::TimeWait => 6,
        TcpState::Closed => 7,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Closing => 11,
    }
}

/// Returns a notice in the format of `ip mptcp monitor`, with the number of its subflow.
pub fn notice_text(notice: StackNotice) -> (String, Option<u32>) {
    match notice {
        StackNotice::SubflowEstablished { number, path: _ } => {
            ("SF_ESTABLISHED".into(), Some(number))
        }
        StackNotice::SubflowClosed { number, reason, path: _ } => {
            (format!("SF_CLOSED: {reason:?}"), Some(number))
        }
        StackNotice::Priority { number, backup } => {
            (format!("SF_PRIO: {}", if backup { "backup" } else { "regular" }), Some(number))
        }
        StackNotice::Stale { number, stale: true } => ("SF_STALE".into(), Some(number)),
        StackNotice::Stale { number, stale: false } => ("SF_ALIVE".into(), Some(number)),
        StackNotice::AddressAnnounced { address, address_id: _ } => {
            (format!("ANNOUNCED {}", address.ip()), None)
        }
        StackNotice::AddressWithdrawn { address_id } => (format!("REMOVED id {address_id}"), None),
        StackNotice::Fallback(reason) => (format!("FALLBACK: {reason}"), None),
    }
}
