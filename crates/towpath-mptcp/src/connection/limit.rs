//! What holds each subflow back.
//!
//! Whenever a connection has nothing more to hand to the network, each of its subflows is in exactly
//! one state. Nothing of it is kept: whoever keeps accounts asks when it matters, and adds up the
//! times. The order in which states are tried is that of `docs/metrics.md`, *Account of capacity*.

use std::net::IpAddr;

use towpath_multipath::PathId;
use towpath_net::Instant;

use crate::stack::InterfaceId;
use crate::subflow::HeldBy;

use super::flow::Flow;
use super::{Connection, Mode, Room};

/// What holds a subflow back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Limit {
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
    BelowProduct,
    /// It is a backup, and others are not.
    Backup,
    /// It is taken for dead.
    Stale,
    /// The connection's window is full of data that has arrived and waits for another path.
    Blocked,
    /// The peer's window.
    PeerWindow,
    /// All of a full send buffer is under way.
    SendBuffer,
    /// The scheduler did not give it what there is.
    Scheduler,
}

/// A subflow that may carry data, and what holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// Its addresses, ours first.
    pub between: (IpAddr, IpAddr),
    /// State.
    pub limit: Limit,
    /// Where [`Limit::Blocked`]: the addresses of the subflow that is waited for.
    pub waits_for: Option<(IpAddr, IpAddr)>,
}

/// The connection's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Open,
    /// It holds new data back; half of it and more waits for this path.
    Closed(Option<PathId>),
}

/// What is the same for all subflows of a connection.
#[derive(Debug, Clone, Copy)]
struct Whole {
    /// Neither the application nor the connection has anything to send.
    idle: bool,
    unsent: bool,
    window: Window,
    /// There is a subflow that is neither backup nor stale.
    regular: bool,
}

impl Connection {
    fn whole(&self) -> Whole {
        let unsent = self.send.unsent_bytes();
        let idle = unsent == 0 && !self.writer.blocked && self.reinjections.is_empty();
        let mut whole = Whole { idle, unsent: unsent > 0, window: Window::Open, regular: false };
        if idle || self.mode == Mode::Offered {
            return whole;
        }
        let regular = |flow: &Flow| flow.usable() && !flow.backup() && !flow.stale;
        whole.regular = self.flows.iter().any(regular);
        let packet = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).min();
        if unsent > 0 && self.send.window_bytes() < unsent.min(packet.unwrap_or(1)) {
            whole.window = Window::Closed(self.waits_for());
        }
        whole
    }

    /// The path that most of the window waits for.
    fn waits_for(&self) -> Option<PathId> {
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
    pub(crate) fn held_back<'a>(
        &'a self,
        now: Instant,
        room: impl Fn(InterfaceId) -> Room + 'a,
    ) -> impl Iterator<Item = HeldBack> + 'a {
        let between = |flow: &Flow| (flow.local.ip(), flow.remote.ip());
        let whole = self.whole();
        let open = self.flows.iter().filter(|flow| !flow.closing && flow.closed.is_none());
        open.map(move |flow| {
            let (limit, waits_for) = whole.limit_of(flow, now, &room);
            let other = self.flows.iter().find(|other| Some(other.path) == waits_for);
            HeldBack { between: between(flow), limit, waits_for: other.map(between) }
        })
    }

    /// The largest window that the peer ever offered.
    pub(crate) fn largest_window_bytes(&self) -> u64 {
        let told = self.flows.iter().map(|flow| flow.tcp.largest_peer_window_bytes());
        told.max().unwrap_or(0)
    }
}

impl Whole {
    fn limit_of(
        self,
        flow: &Flow,
        now: Instant,
        room: &impl Fn(InterfaceId) -> Room,
    ) -> (Limit, Option<PathId>) {
        let queued = flow.tcp.has_something_queued();
        if self.idle && !queued {
            return (Limit::Application, None);
        }
        if !flow.usable() {
            return (Limit::Handshake, None);
        }
        if room(flow.interface) == Room::Full {
            return (Limit::HostQueue, None);
        }
        let limit = match flow.tcp.held_by(now) {
            Some(HeldBy::Pacing) => Limit::Pacing,
            Some(HeldBy::SlowStart) => Limit::SlowStart,
            Some(HeldBy::Loss) => Limit::AfterLoss,
            Some(HeldBy::CongestionAvoidance) => Limit::BelowProduct,
            Some(HeldBy::PeerWindow) => return self.window(flow),
            None => return self.above(flow),
        };
        (limit, None)
    }

    /// It has room: what the connection does not give.
    fn above(self, flow: &Flow) -> (Limit, Option<PathId>) {
        if flow.stale {
            (Limit::Stale, None)
        } else if flow.backup() && self.regular {
            (Limit::Backup, None)
        } else if self.window != Window::Open {
            self.window(flow)
        } else if self.unsent {
            (Limit::Scheduler, None)
        } else if self.idle {
            (Limit::Application, None)
        } else {
            (Limit::SendBuffer, None)
        }
    }

    fn window(self, flow: &Flow) -> (Limit, Option<PathId>) {
        match self.window {
            Window::Closed(Some(path)) if path != flow.path => (Limit::Blocked, Some(path)),
            Window::Open | Window::Closed(_) => (Limit::PeerWindow, None),
        }
    }
}
