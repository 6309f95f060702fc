//! Monitor of one connection of our own: its subflows and its events.

use towpath_net::Instant;

use super::observation::{ObservedSubflow, RecordedEvent, TcpStats};
use super::snapshot::plain_end;
use crate::clock::Clock;
use crate::netlink::{
    DiagSocket, MptcpEvent, MptcpEventKind, MptcpEvents, SocketDiag, StateFilter, SubflowFlags,
    TcpState,
};
use crate::sample::{TcpInfo, u32_at};

/// A connection of our own under observation.
#[derive(Debug)]
pub(super) struct ConnectionWatch {
    diag: Option<SocketDiag>,
    events: Option<MptcpEvents>,
    token: u32,
    clock: Clock,
    began: Instant,
    /// Subflows by socket cookie.
    seen: Vec<(u64, ObservedSubflow)>,
    recorded: Vec<RecordedEvent>,
    /// Time of the last change of a subflow, or of the last event.
    changed: Instant,
}

impl ConnectionWatch {
    /// Monitors the connection with this local token. `events` were subscribed to before it began.
    pub(super) fn new(token: u32, events: Option<MptcpEvents>, clock: Clock) -> Self {
        let (diag, now) = (SocketDiag::open().ok(), clock.now());
        let (seen, recorded) = (Vec::new(), Vec::new());
        Self { diag, events, token, clock, began: now, seen, recorded, changed: now }
    }

    /// Polls the subflows and receives pending events.
    pub(super) fn poll(&mut self) {
        self.drain_events();
        let listed = self.diag.as_mut().and_then(|diag| diag.tcp(StateFilter::CONNECTED).ok());
        let Some(listed) = listed else { return };
        let ours = |socket: &&DiagSocket| {
            socket.subflow.and_then(|flow| flow.token_local) == Some(self.token)
        };
        let now = self.clock.now();
        let mine: Vec<_> = listed.iter().filter(ours).collect();
        for (cookie, seen) in &mut self.seen {
            let gone = !mine.iter().any(|socket| socket.cookie == *cookie);
            if gone && !seen.gone {
                seen.gone = true;
                self.changed = now;
            }
        }
        for socket in mine {
            let fresh = subflow(socket);
            let known = self.seen.iter_mut().find(|(cookie, _)| *cookie == socket.cookie);
            let Some((_, known)) = known else {
                self.seen.push((socket.cookie, fresh));
                self.changed = now;
                continue;
            };
            if known.state != fresh.state {
                self.changed = now;
            }
            let established = known.established || fresh.established;
            *known = ObservedSubflow { established, ..fresh };
        }
    }

    /// Returns true if events report even subflows that close between two polls.
    pub(super) fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Returns true while a subflow is being set up.
    pub(super) fn is_trying(&self) -> bool {
        self.seen.iter().any(|(_, one)| !one.gone && !one.established)
    }

    /// Returns true if some subflow has unacknowledged data.
    pub(super) fn is_waiting(&self) -> bool {
        self.seen.iter().any(|(_, one)| !one.gone && one.established && one.tcp.unacked > 0)
    }

    /// Returns the time of the last change.
    pub(super) fn changed(&self) -> Instant {
        self.changed
    }

    /// Returns the round-trip time of the first subflow, in microseconds; 0 if unknown.
    pub(super) fn srtt_us(&self) -> u32 {
        self.seen.first().map_or(0, |(_, one)| one.tcp.srtt_us)
    }

    /// Returns the subflows, and the events, or `None` without the privilege for them.
    pub(super) fn end(mut self) -> (Vec<ObservedSubflow>, Option<Vec<RecordedEvent>>) {
        self.poll();
        let hears = self.events.is_some();
        let subflows = self.seen.into_iter().map(|(_, one)| one).collect();
        (subflows, hears.then_some(self.recorded))
    }

    fn drain_events(&mut self) {
        let Some(events) = &mut self.events else { return };
        let Ok(received) = events.drain() else { return };
        let now = self.clock.now();
        for event in &received.events {
            if event.token == Some(self.token) {
                let at_ms = now.saturating_since(self.began).as_millis() as u64;
                self.recorded.push(self::event(event, at_ms));
                self.changed = now;
            }
        }
    }
}

/// Converts a subflow of a socket dump.
pub(super) fn subflow(socket: &DiagSocket) -> ObservedSubflow {
    let info = TcpInfo::parse(&socket.info);
    let flow = socket.subflow.unwrap_or_default();
    let has = |flag: SubflowFlags| flow.flags.contains(flag);
    let first = has(SubflowFlags::CAPABLE_LOCAL) || has(SubflowFlags::CAPABLE_REMOTE);
    let established = matches!(
        socket.state,
        TcpState::Established | TcpState::CloseWait | TcpState::FinWait1 | TcpState::FinWait2
    );
    ObservedSubflow {
        local: plain_end(socket.local),
        remote: plain_end(socket.remote),
        local_id: flow.local_id,
        remote_id: flow.remote_id,
        first,
        opened_here: has(SubflowFlags::CAPABLE_LOCAL) || has(SubflowFlags::JOIN_LOCAL),
        backup_here: has(SubflowFlags::BACKUP_LOCAL),
        backup_there: has(SubflowFlags::BACKUP_REMOTE),
        established,
        state: info.state_name().to_owned(),
        gone: false,
        tcp: TcpStats {
            srtt_us: info.srtt_us,
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

fn event(event: &MptcpEvent, at_ms: u64) -> RecordedEvent {
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
