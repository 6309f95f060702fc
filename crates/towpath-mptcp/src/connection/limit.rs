//! What holds each subflow back.
//!
//! Whenever a connection has nothing more to hand to the network, each of its subflows is in exactly
//! one state. Nothing of it is kept: whoever keeps accounts asks when it matters, and adds up the
//! times. The order in which states are tried is that of `docs/metrics.md`, *Account of capacity*.

use std::net::IpAddr;

use towpath_multipath::PathId;
use towpath_net::Instant;

use crate::stack::InterfaceId;
use crate::subflow::TcpSendLimit;

use super::flow::SubflowContext;
use super::{Connection, ConnectionMode, TxReadiness};

/// What holds a subflow back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SendLimit {
    /// The application has nothing more.
    #[default]
    Application,
    /// Its handshake is not complete.
    Handshake,
    /// The interface's own queue is full.
    HostQueue,
    /// The next packet is not due yet.
    Pacing,
    /// The congestion window, in slow start, before any loss.
    SlowStart,
    /// The congestion window, after a loss.
    AfterLoss,
    /// The congestion window, in congestion avoidance, before any loss.
    CongestionAvoidance,
    /// It is a backup, and others are not.
    Backup,
    /// It is taken for dead.
    Stale,
    /// The connection's window is full of data that has arrived and waits for another path.
    HeadOfLineBlocking,
    /// The peer's window.
    PeerWindow,
    /// All of a full send buffer is under way.
    SendBuffer,
    /// The scheduler did not give it what there is.
    Scheduler,
}

/// A subflow that may carry data, and what holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowLimit {
    /// Its addresses, ours first.
    pub addresses: (IpAddr, IpAddr),
    /// State.
    pub limit: SendLimit,
    /// Where [`SendLimit::HeadOfLineBlocking`]: the addresses of the subflow that is waited for.
    pub waits_for: Option<(IpAddr, IpAddr)>,
}

/// The connection's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendWindowState {
    Open,
    /// It holds new data back; half of it and more waits for this path.
    Closed(Option<PathId>),
}

/// What is the same for all subflows of a connection.
#[derive(Debug, Clone, Copy)]
struct SendState {
    /// Neither the application nor the connection has anything to send.
    idle: bool,
    unsent: bool,
    window: SendWindowState,
    /// There is a subflow that is neither backup nor stale.
    has_regular_path: bool,
}

impl Connection {
    fn send_state(&self) -> SendState {
        let unsent = self.send.unsent_bytes();
        let idle = unsent == 0 && !self.writer.blocked && self.reinjections.is_empty();
        let mut whole = SendState {
            idle,
            unsent: unsent > 0,
            window: SendWindowState::Open,
            has_regular_path: false,
        };
        if idle || self.mode == ConnectionMode::Offered {
            return whole;
        }
        let regular = |flow: &SubflowContext| flow.usable() && !flow.backup() && !flow.stale;
        whole.has_regular_path = self.flows.iter().any(regular);
        let packet = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).min();
        if unsent > 0 && self.send.window_bytes() < unsent.min(packet.unwrap_or(1)) {
            whole.window = SendWindowState::Closed(self.blocking_path());
        }
        whole
    }

    /// The path that most of the window waits for.
    fn blocking_path(&self) -> Option<PathId> {
        if self.flows.len() < 2 {
            return None;
        }
        let under_way: u64 = self.flows.iter().map(|flow| flow.tcp.outstanding_bytes()).sum();
        let unacked = self.send.unacked_bytes();
        // What the subflows have delivered waits for an earlier byte.
        let waits = unacked.saturating_sub(under_way) * 2 > unacked;
        self.send.head().filter(|_| waits).and_then(|head| head.sent_on.iter().next())
    }

    /// Whether the application has given nothing that is not sent.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.send.unsent_bytes() == 0 && !self.writer.blocked
    }

    /// Subflows that may carry data, or will, and what holds them back at `now`, when nothing more can be
    /// sent.
    pub(crate) fn subflow_limits<'a>(
        &'a self,
        now: Instant,
        room: impl Fn(InterfaceId) -> TxReadiness + 'a,
    ) -> impl Iterator<Item = SubflowLimit> + 'a {
        let between = |flow: &SubflowContext| (flow.local.ip(), flow.remote.ip());
        let whole = self.send_state();
        let open = self.flows.iter().filter(|flow| !flow.closing && flow.closed.is_none());
        open.map(move |flow| {
            let (limit, waits_for) = whole.subflow_limit(flow, now, &room);
            let other = self.flows.iter().find(|other| Some(other.path) == waits_for);
            SubflowLimit { addresses: between(flow), limit, waits_for: other.map(between) }
        })
    }

    /// The largest window that the peer ever offered.
    pub(crate) fn max_peer_window_bytes(&self) -> u64 {
        let told = self.flows.iter().map(|flow| flow.tcp.max_peer_window_bytes());
        told.max().unwrap_or(0)
    }
}

impl SendState {
    fn subflow_limit(
        self,
        flow: &SubflowContext,
        now: Instant,
        room: &impl Fn(InterfaceId) -> TxReadiness,
    ) -> (SendLimit, Option<PathId>) {
        let queued = flow.tcp.has_queued_data();
        if self.idle && !queued {
            return (SendLimit::Application, None);
        }
        if !flow.usable() {
            return (SendLimit::Handshake, None);
        }
        if room(flow.interface) == TxReadiness::Blocked {
            return (SendLimit::HostQueue, None);
        }
        let limit = match flow.tcp.tcp_send_limit(now) {
            Some(TcpSendLimit::Pacing) => SendLimit::Pacing,
            Some(TcpSendLimit::SlowStart) => SendLimit::SlowStart,
            Some(TcpSendLimit::AfterLoss) => SendLimit::AfterLoss,
            Some(TcpSendLimit::CongestionAvoidance) => SendLimit::CongestionAvoidance,
            Some(TcpSendLimit::PeerWindow) => return self.window_limit(flow),
            None => return self.connection_limit(flow),
        };
        (limit, None)
    }

    /// It has room: what the connection does not give.
    fn connection_limit(self, flow: &SubflowContext) -> (SendLimit, Option<PathId>) {
        if flow.stale {
            (SendLimit::Stale, None)
        } else if flow.backup() && self.has_regular_path {
            (SendLimit::Backup, None)
        } else if self.window != SendWindowState::Open {
            self.window_limit(flow)
        } else if self.unsent {
            (SendLimit::Scheduler, None)
        } else if self.idle {
            (SendLimit::Application, None)
        } else {
            (SendLimit::SendBuffer, None)
        }
    }

    fn window_limit(self, flow: &SubflowContext) -> (SendLimit, Option<PathId>) {
        match self.window {
            SendWindowState::Closed(Some(path)) if path != flow.path => {
                (SendLimit::HeadOfLineBlocking, Some(path))
            }
            SendWindowState::Open | SendWindowState::Closed(_) => (SendLimit::PeerWindow, None),
        }
    }
}
