//! Monitor of one connection of our own: its subflows and its events.

use towpath_host::snapshot::take::canonical_address;
use towpath_kernel::sample::TcpInfo;
use towpath_net::Instant;
use towpath_netlink::u32_at;
use towpath_netlink::{
    DiagSocket, MptcpEvent, MptcpEventKind, MptcpEvents, SocketDiag, StateFilter, SubflowFlags,
    TcpState,
};
use towpath_os::clock::Clock;

use super::observation::{ObservedSubflow, RecordedEvent, TcpStats};

/// A connection of our own under observation.
#[derive(Debug)]
pub(super) struct ConnectionWatch {
    diag: Option<SocketDiag>,
    events: Option<MptcpEvents>,
    /// Token of the connection on this host, as in `ip mptcp monitor`.
    token: u32,
    clock: Clock,
    started: Instant,
    /// Subflows by socket cookie.
    subflows: Vec<(u64, ObservedSubflow)>,
    recorded_events: Vec<RecordedEvent>,
    /// Time of the last change of a subflow, or of the last event.
    last_change: Instant,
}

impl ConnectionWatch {
    /// Monitors the connection with this local token. `events` were subscribed to before it began.
    pub(super) fn new(token: u32, events: Option<MptcpEvents>, clock: Clock) -> Self {
        let (diag, now) = (SocketDiag::open().ok(), clock.now());
        let (subflows, recorded_events) = (Vec::new(), Vec::new());
        Self {
            diag,
            events,
            token,
            clock,
            started: now,
            subflows,
            recorded_events,
            last_change: now,
        }
    }

    /// Polls the subflows and receives pending events.
    pub(super) fn poll(&mut self) {
        self.drain_events();
        let sockets = self.diag.as_mut().and_then(|diag| diag.tcp(StateFilter::CONNECTED).ok());
        let Some(sockets) = sockets else { return };
        let is_of_connection = |socket: &&DiagSocket| {
            socket.subflow.and_then(|flow| flow.token_local) == Some(self.token)
        };
        let now = self.clock.now();
        let open_sockets: Vec<_> = sockets.iter().filter(is_of_connection).collect();
        for (cookie, subflow) in &mut self.subflows {
            let gone = !open_sockets.iter().any(|socket| socket.cookie == *cookie);
            if gone && !subflow.gone {
                subflow.gone = true;
                self.last_change = now;
            }
        }
        for socket in open_sockets {
            let current = observed_subflow(socket);
            let previous = self.subflows.iter_mut().find(|(cookie, _)| *cookie == socket.cookie);
            let Some((_, previous)) = previous else {
                self.subflows.push((socket.cookie, current));
                self.last_change = now;
                continue;
            };
            if previous.state != current.state {
                self.last_change = now;
            }
            let established = previous.established || current.established;
            *previous = ObservedSubflow { established, ..current };
        }
    }

    /// Returns true if events report even subflows that close between two polls.
    pub(super) fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Returns true while a subflow is being set up.
    pub(super) fn is_connecting(&self) -> bool {
        self.subflows.iter().any(|(_, subflow)| !subflow.gone && !subflow.established)
    }

    /// Returns true if some subflow has unacknowledged data.
    pub(super) fn has_unacked_data(&self) -> bool {
        self.subflows
            .iter()
            .any(|(_, subflow)| !subflow.gone && subflow.established && subflow.tcp.unacked > 0)
    }

    /// Returns the time of the last change of a subflow, or of the last event.
    pub(super) fn last_change(&self) -> Instant {
        self.last_change
    }

    /// Returns the smoothed round-trip time of the first subflow, in microseconds; 0 if unknown.
    pub(super) fn srtt_us(&self) -> u32 {
        self.subflows.first().map_or(0, |(_, subflow)| subflow.tcp.srtt_us)
    }

    /// Returns the subflows, and the events, or `None` without the privilege for them.
    pub(super) fn finish(mut self) -> (Vec<ObservedSubflow>, Option<Vec<RecordedEvent>>) {
        self.poll();
        let has_events = self.events.is_some();
        let subflows = self.subflows.into_iter().map(|(_, subflow)| subflow).collect();
        (subflows, has_events.then_some(self.recorded_events))
    }

    fn drain_events(&mut self) {
        let Some(events) = &mut self.events else { return };
        let Ok(received) = events.drain() else { return };
        let now = self.clock.now();
        for event in &received.events {
            if event.token == Some(self.token) {
                let at_ms = now.saturating_since(self.started).as_millis() as u64;
                self.recorded_events.push(recorded_event(event, at_ms));
                self.last_change = now;
            }
        }
    }
}

/// Converts a subflow of a socket dump.
pub(super) fn observed_subflow(socket: &DiagSocket) -> ObservedSubflow {
    let info = TcpInfo::parse(&socket.info);
    let flow = socket.subflow.unwrap_or_default();
    let has_flag = |flag: SubflowFlags| flow.flags.contains(flag);
    let is_first = has_flag(SubflowFlags::CAPABLE_LOCAL) || has_flag(SubflowFlags::CAPABLE_REMOTE);
    let established = matches!(
        socket.state,
        TcpState::Established | TcpState::CloseWait | TcpState::FinWait1 | TcpState::FinWait2
    );
    ObservedSubflow {
        local: canonical_address(socket.local),
        remote: canonical_address(socket.remote),
        local_id: flow.local_id,
        remote_id: flow.remote_id,
        first: is_first,
        opened_here: has_flag(SubflowFlags::CAPABLE_LOCAL) || has_flag(SubflowFlags::JOIN_LOCAL),
        backup_here: has_flag(SubflowFlags::BACKUP_LOCAL),
        backup_there: has_flag(SubflowFlags::BACKUP_REMOTE),
        established,
        state: info.state_name().to_owned(),
        gone: false,
        tcp: TcpStats {
            srtt_us: info.srtt_us,
            // Without a sample, the kernel returns the largest number.
            min_rtt_us: Some(info.min_rtt_us).filter(|time| *time != u32::MAX).unwrap_or(0),
            backoff: info.backoff.into(),
            retransmissions: info.total_retrans,
            unacked: info.unacked,
            mss_bytes: info.mss_bytes,
            bytes_sent: info.bytes_sent,
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            // tcpi_last_data_recv, tcpi_last_ack_recv, tcpi_pmtu
            silent_ms: u32_at(&socket.info, 52).min(u32_at(&socket.info, 56)),
            path_mtu: u32_at(&socket.info, 60),
            out_of_order: u32_at(&socket.info, 224), // tcpi_rcv_ooopack
        },
    }
}

fn recorded_event(event: &MptcpEvent, at_ms: u64) -> RecordedEvent {
    let kind = match event.kind {
        MptcpEventKind::Created => "CREATED".to_owned(),
        MptcpEventKind::Established => "ESTABLISHED".to_owned(),
        MptcpEventKind::Closed => "CLOSED".to_owned(),
        MptcpEventKind::Announced => "ANNOUNCED".to_owned(),
        MptcpEventKind::Removed => "REMOVED".to_owned(),
        MptcpEventKind::SubflowEstablished => "SF_ESTABLISHED".to_owned(),
        MptcpEventKind::SubflowClosed => "SF_CLOSED".to_owned(),
        MptcpEventKind::SubflowPriority => "SF_PRIO".to_owned(),
        MptcpEventKind::ListenerCreated => "LISTENER_CREATED".to_owned(),
        MptcpEventKind::ListenerClosed => "LISTENER_CLOSED".to_owned(),
        MptcpEventKind::Other(number) => number.to_string(),
    };
    RecordedEvent {
        at_ms,
        kind,
        local_id: event.local_id,
        remote_id: event.remote_id,
        local: event.local.map(|address| address.to_canonical()),
        remote: event.remote.map(|address| address.to_canonical()),
        local_port: event.local_port,
        remote_port: event.remote_port,
        error: event.error.map(i32::from).filter(|error| *error != 0),
        reset_reason: event.reset_reason,
        denies_first_address: event.denies_join_to_first_address(),
    }
}
