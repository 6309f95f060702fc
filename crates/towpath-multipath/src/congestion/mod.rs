//! Congestion control: the limit of bytes in flight on a path. Loss detection and recovery are in
//! the protocol crates and are the same for all controls.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use towpath_net::Instant;

use crate::path::PathId;

mod balia;
mod cubic;
mod hystart;
mod lia;
mod olia;
mod reno;
#[cfg(test)]
mod tests;
mod window;
mod wvegas;

pub use hystart::HyStartRule;
pub use window::{CoupledPaths, Coupling, CwndState, WindowBased};

/// Acknowledgement of new data on a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AckSample {
    /// Time of the acknowledgement.
    pub now: Instant,
    /// Bytes newly acknowledged or selectively acknowledged.
    pub acked_bytes: u64,
    /// Bytes in flight before this acknowledgement.
    pub in_flight_bytes: u64,
    /// Round-trip time measured by this acknowledgement; `None` without a sample.
    pub rtt: Option<Duration>,
    /// Smoothed round-trip time of the path.
    pub srtt: Duration,
    /// Smallest round-trip time of the path.
    pub min_rtt: Duration,
    /// True if the window, not the application, limited sending in the last round trip (RFC 7661,
    /// RFC 9438 §5.8).
    pub cwnd_limited: bool,
    /// True if this acknowledgement ends a round trip: everything sent when the round began is
    /// acknowledged.
    pub round_ended: bool,
    /// True during fast recovery: windows do not grow then, but round trips count. False after a
    /// timeout, when the window restarts by slow start.
    pub in_recovery: bool,
}

/// View of a path that coupled controls use; the group includes the control's own path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sibling {
    /// Slot of the path.
    pub id: PathId,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Smoothed round-trip time of the path.
    pub srtt: Duration,
    /// Bytes acknowledged since the last loss, and between the last two losses (OLIA §4).
    pub between_losses: (u64, u64),
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// True if the path is in slow start.
    pub slow_start: bool,
}

/// A path's congestion control. Windows are bytes.
///
/// In recovery the protocol limits what is sent by proportional rate reduction towards
/// [`CongestionControl::ssthresh_bytes`] and sets the window to it at the end.
pub trait CongestionControl: fmt::Debug + Send {
    /// Returns the name used in scenarios.
    fn name(&self) -> &'static str;
    /// Returns the congestion window.
    fn cwnd_bytes(&self) -> u64;
    /// Returns the slow start threshold; `u64::MAX` at first.
    fn ssthresh_bytes(&self) -> u64;
    /// Records that new data was acknowledged. `group` holds all paths of the connection that may
    /// carry data; may be empty unless [`CongestionControl::is_coupled`].
    fn on_ack(&mut self, sample: &AckSample, own: PathId, group: &[Sibling]);
    /// Sets threshold and window after loss or an ECN mark; called once per window.
    fn on_congestion(&mut self, now: Instant, in_flight_bytes: u64, own: PathId, group: &[Sibling]);
    /// Ends recovery: the window becomes `cwnd_bytes`.
    fn on_recovered(&mut self, now: Instant, cwnd_bytes: u64);
    /// Resets the window to one packet after a retransmission timeout (RFC 5681 §3.1). Called once
    /// for a series of timeouts of the same data.
    fn on_timeout(&mut self, now: Instant, in_flight_bytes: u64);
    /// Discards knowledge of the path after a timeout during which the threshold of an earlier loss
    /// still holds; the threshold stays.
    fn on_further_timeout(&mut self) {}
    /// Restores the state before the last congestion event or timeout, which was spurious.
    fn undo(&mut self, now: Instant);
    /// Records that nothing was sent for `idle`: restart from `restart_window_bytes`
    /// (RFC 5681 §4.1), or half the window for each timeout that passed.
    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration);
    /// Records that sending resumes with nothing in flight after `idle`, however short that is.
    fn on_start(&mut self, idle: Duration) {
        let _ = idle;
    }
    /// M2: halves the window, but not below one packet. The threshold is halved unless in slow
    /// start, or becomes the window if that `ends_slow_start`.
    fn penalise(&mut self, now: Instant, ends_slow_start: bool);
    /// Sets a new packet size.
    fn set_mss(&mut self, mss_bytes: u32);
    /// Returns [`Sibling::between_losses`] of this path.
    fn between_losses(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Returns true if the control considers the other paths.
    fn is_coupled(&self) -> bool {
        false
    }
    /// Returns the pacing rate in percent of window per smoothed round trip. Linux uses 200 % in
    /// slow start and 120 % otherwise.
    fn pacing_percent(&self) -> u32 {
        if self.cwnd_bytes() < self.ssthresh_bytes() / 2 { 200 } else { 120 }
    }
}

/// Initial parameters of a congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionConfig {
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// Initial window in packets (10 by RFC 6928).
    pub initial_packets: u32,
    /// Rule that ends slow start before packets are lost.
    pub hystart: HyStartRule,
}

/// Constructor of a congestion control that is not in [`ALL`].
#[derive(Clone)]
pub struct CongestionControlFactory(
    Arc<dyn Fn(CongestionConfig) -> Box<dyn CongestionControl> + Send + Sync>,
);

impl CongestionControlFactory {
    /// Creates a factory that calls `make` for each path.
    pub fn new(
        make: impl Fn(CongestionConfig) -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    /// Creates a control for one path.
    pub fn make(&self, config: CongestionConfig) -> Box<dyn CongestionControl> {
        (self.0)(config)
    }
}

impl fmt::Debug for CongestionControlFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CongestionControlFactory")
    }
}

/// Registry entry of one congestion control.
#[derive(Debug, Clone, Copy)]
pub struct CongestionControlEntry {
    /// Name used in scenarios.
    pub name: &'static str,
    /// One-line description for users, with its source.
    pub about: &'static str,
    /// Creates a control for one path.
    pub make: fn(CongestionConfig) -> Box<dyn CongestionControl>,
}

/// Every congestion control, the default first.
pub const ALL: &[CongestionControlEntry] = &[
    CongestionControlEntry {
        name: "cubic",
        about: "CUBIC with the Reno-friendly region and fast convergence (RFC 9438)",
        make: |start| {
            let as_linux = start.hystart == HyStartRule::Linux;
            Box::new(WindowBased::new(start, cubic::Cubic::new(as_linux)))
        },
    },
    CongestionControlEntry {
        name: "reno",
        about: "Reno: a packet more in each round trip, half after loss (RFC 5681)",
        make: |start| Box::new(WindowBased::new(start, reno::Reno)),
    },
    CongestionControlEntry {
        name: "lia",
        about: "linked increases: together as aggressive as one Reno flow (RFC 6356)",
        make: |start| Box::new(WindowBased::new(start, lia::Lia)),
    },
    CongestionControlEntry {
        name: "olia",
        about: "opportunistic linked increases (draft-khalili-mptcp-congestion-control-05)",
        make: |start| Box::new(WindowBased::new(start, olia::Olia)),
    },
    CongestionControlEntry {
        name: "balia",
        about: "balanced linked adaptation (draft-walid-mptcp-congestion-control-04)",
        make: |start| Box::new(WindowBased::new(start, balia::Balia)),
    },
    CongestionControlEntry {
        name: "wvegas",
        about: "weighted Vegas: a few packets queued on each path, by delay (Cao et al. 2012)",
        make: |start| Box::new(WindowBased::new(start, wvegas::Wvegas::default())),
    },
];

/// Error: no congestion control has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control `{name}`, expected one of: {}", control_names())]
pub struct UnknownCongestionControl {
    name: String,
}

fn control_names() -> String {
    ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// Creates the congestion control of this name.
pub fn by_name(
    name: &str,
    config: CongestionConfig,
) -> Result<Box<dyn CongestionControl>, UnknownCongestionControl> {
    let entry = ALL.iter().find(|entry| entry.name == name);
    let unknown = || UnknownCongestionControl { name: name.to_owned() };
    entry.map(|entry| (entry.make)(config)).ok_or_else(unknown)
}
