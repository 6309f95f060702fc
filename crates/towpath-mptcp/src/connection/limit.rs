//! Reason that limits each subflow's sending.
//!
//! Whenever a connection has nothing more to hand to the network, each subflow is in exactly one
//! state. The state is computed on demand and not stored: the caller queries it and adds up the
//! times. States are checked in the order of `docs/reference/metrics.md`, *Account of capacity*.

use std::net::IpAddr;

use towpath_multipath::PathId;
use towpath_net::Instant;

use crate::stack::InterfaceId;
use crate::subflow::TcpSendLimit;

use super::subflow_context::SubflowContext;
use super::{Connection, ConnectionMode, TxReadiness};

/// Reason why a subflow sends no more at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SendLimit {
    /// The application has no more data to send.
    #[default]
    Application,
    /// The subflow's handshake is not complete.
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
    /// The subflow is a backup, and regular subflows exist.
    Backup,
    /// The subflow is stale, that is, assumed dead.
    Stale,
    /// The connection's window is full of data that has arrived but waits for another path.
    HeadOfLineBlocking,
    /// The peer's TCP window is full.
    PeerWindow,
    /// The send buffer is full, and all of it is in flight.
    SendBuffer,
    /// The scheduler did not assign the available data to this subflow.
    Scheduler,
}

/// Subflow that may carry data, with the reason that limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowLimit {
    /// Address pair of the subflow, ours first.
    pub addresses: (IpAddr, IpAddr),
    /// Reason that limits the subflow now.
    pub limit: SendLimit,
    /// Addresses of the blocking subflow if the reason is [`SendLimit::HeadOfLineBlocking`].
    pub waits_for: Option<(IpAddr, IpAddr)>,
}

/// State of the connection's send window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendWindowState {
    Open,
    /// The window blocks new data. `Some`: more than half of it waits for this path.
    Closed(Option<PathId>),
}

/// Send state that all subflows of a connection share.
#[derive(Debug, Clone, Copy)]
struct SendState {
    /// Set when neither the application nor the connection has data to send.
    idle: bool,
    /// Set when the connection has unsent data.
    unsent: bool,
    window: SendWindowState,
    /// Set when a subflow exists that is neither backup nor stale.
    has_regular_path: bool,
}

impl Connection {
    fn send_state(&self) -> SendState {
        let unsent = self.send.unsent_bytes();
        let idle = unsent == 0 && !self.writer.blocked && self.reinjections.is_empty();
        let mut state = SendState {
            idle,
            unsent: unsent > 0,
            window: SendWindowState::Open,
            has_regular_path: false,
        };
        if idle || self.mode == ConnectionMode::Offered {
            return state;
        }
        let is_regular = |flow: &SubflowContext| flow.usable() && !flow.backup() && !flow.stale;
        state.has_regular_path = self.flows.iter().any(is_regular);
        let min_mss = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).min();
        if unsent > 0 && self.send.window_bytes() < unsent.min(min_mss.unwrap_or(1)) {
            state.window = SendWindowState::Closed(self.blocking_path());
        }
        state
    }

    /// Returns the path that most of the window waits for.
    fn blocking_path(&self) -> Option<PathId> {
        if self.flows.len() < 2 {
            return None;
        }
        let outstanding: u64 = self.flows.iter().map(|flow| flow.tcp.outstanding_bytes()).sum();
        let unacked = self.send.unacked_bytes();
        // Data that the subflows have delivered waits for an earlier byte.
        let mostly_delivered = unacked.saturating_sub(outstanding) * 2 > unacked;
        self.send.head().filter(|_| mostly_delivered).and_then(|head| head.sent_on.iter().next())
    }

    /// Returns true if all data of the application was sent and the writer is not blocked.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.send.unsent_bytes() == 0 && !self.writer.blocked
    }

    /// Returns the subflows that may carry data, now or later, and their limits at `now`.
    /// Meaningful when no more can be sent.
    pub(crate) fn subflow_limits<'a>(
        &'a self,
        now: Instant,
        tx_readiness: impl Fn(InterfaceId) -> TxReadiness + 'a,
    ) -> impl Iterator<Item = SubflowLimit> + 'a {
        let address_pair = |flow: &SubflowContext| (flow.local.ip(), flow.remote.ip());
        let state = self.send_state();
        let open_subflows =
            self.flows.iter().filter(|flow| !flow.closed_locally && flow.closed.is_none());
        open_subflows.map(move |flow| {
            let (limit, waits_for) = state.subflow_limit(flow, now, &tx_readiness);
            let blocking = self.flows.iter().find(|blocking| Some(blocking.path) == waits_for);
            SubflowLimit {
                addresses: address_pair(flow),
                limit,
                waits_for: blocking.map(address_pair),
            }
        })
    }

    /// Returns the largest window that the peer ever offered.
    pub(crate) fn max_peer_window_bytes(&self) -> u64 {
        let windows = self.flows.iter().map(|flow| flow.tcp.max_peer_window_bytes());
        windows.max().unwrap_or(0)
    }
}

impl SendState {
    fn subflow_limit(
        self,
        flow: &SubflowContext,
        now: Instant,
        tx_readiness: &impl Fn(InterfaceId) -> TxReadiness,
    ) -> (SendLimit, Option<PathId>) {
        let queued = flow.tcp.has_queued_data();
        if self.idle && !queued {
            return (SendLimit::Application, None);
        }
        if !flow.usable() {
            return (SendLimit::Handshake, None);
        }
        if tx_readiness(flow.interface) == TxReadiness::Blocked {
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

    /// Returns the limit of a subflow that has room: the connection gives it no data.
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
