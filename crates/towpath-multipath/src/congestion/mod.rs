//! Congestion control: how many bytes a path may have in flight. Loss detection and recovery live
//! in the protocols and are the same for all of them.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;
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

/// New data was acknowledged on a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AckSample {
    /// Now.
    pub now: Instant,
    /// Bytes newly acknowledged or selectively acknowledged.
    pub acked_bytes: u64,
    /// In flight before this acknowledgement.
    pub in_flight_bytes: u64,
    /// Round-trip time measured by it.
    pub rtt: Option<Duration>,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Smallest round-trip time of the path.
    pub min_rtt: Duration,
    /// Whether the window, and not the application, limited what was sent in the last round trip
    /// (RFC 7661, RFC 9438 §5.8).
    pub cwnd_limited: bool,
    /// Whether a round trip has ended with it: everything that was sent when it began is
    /// acknowledged.
    pub round_ended: bool,
    /// Whether fast recovery is going on: windows do not grow then, but round trips count. Not
    /// after a timeout, when the window begins anew by slow start.
    pub in_recovery: bool,
}

/// What a coupled control knows of each path of the connection, its own among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sibling {
    /// Which.
    pub id: PathId,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Bytes acknowledged since the last loss, and between the last two losses (OLIA §4).
    pub between_losses: (u64, u64),
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// Whether it is in slow start.
    pub slow_start: bool,
}

/// A path's congestion control. Windows are bytes.
///
/// In recovery the protocol limits what is sent by proportional rate reduction towards
/// [`CongestionControl::ssthresh_bytes`] and sets the window to it at the end.
pub trait CongestionControl: fmt::Debug + Send {
    /// Name in scenarios.
    fn name(&self) -> &'static str;
    /// The window.
    fn cwnd_bytes(&self) -> u64;
    /// The slow start threshold; `u64::MAX` at first.
    fn ssthresh_bytes(&self) -> u64;
    /// New data was acknowledged. `group` holds all paths of the connection that may carry data, and
    /// may be empty unless [`CongestionControl::is_coupled`].
    fn on_ack(&mut self, sample: &AckSample, own: PathId, group: &[Sibling]);
    /// Loss or an ECN mark: the first of a window. Sets the threshold and the window.
    fn on_congestion(&mut self, now: Instant, in_flight_bytes: u64, own: PathId, group: &[Sibling]);
    /// Recovery is over: the window becomes `cwnd_bytes`.
    fn on_recovered(&mut self, now: Instant, cwnd_bytes: u64);
    /// A retransmission timeout: one packet again (RFC 5681 §3.1). Called once for a series of timeouts of the same data.
    fn on_timeout(&mut self, now: Instant, in_flight_bytes: u64);
    /// A timeout while the threshold of an earlier loss still holds: what is known of the path is
    /// forgotten, the threshold stays.
    fn on_further_timeout(&mut self) {}
    /// The last congestion event or timeout was spurious: everything as before it.
    fn undo(&mut self, now: Instant);
    /// Nothing was sent for `idle`: restart from `restart_window_bytes` (RFC 5681 §4.1), or half the window for each timeout that passed
    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration);
    /// Nothing was in flight, and something is sent again after `idle`, however short that is.
    fn on_start(&mut self, idle: Duration) {
        let _ = idle;
    }
    /// M2: halve the window, but not below one packet. The threshold is halved unless in slow start,
    /// or becomes the window if that `ends_slow_start`.
    fn penalise(&mut self, now: Instant, ends_slow_start: bool);
    /// The packet size has changed.
    fn set_mss(&mut self, mss_bytes: u32);
    /// See [`Sibling::between_losses`].
    fn between_losses(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Whether it looks at the other paths.
    fn is_coupled(&self) -> bool {
        false
    }
    /// The window in packets' worth of pacing per smoothed round trip, in percent: Linux paces at
    /// 200 % of cwnd/srtt in slow start and at 120 % else.
    fn pacing_percent(&self) -> u32 {
        if self.cwnd_bytes() < self.ssthresh_bytes() / 2 { 200 } else { 120 }
    }
}

/// How a control begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionConfig {
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// Initial window in packets (10 by RFC 6928).
    pub initial_packets: u32,
    /// What ends slow start before packets are lost.
    pub hystart: HyStartRule,
}

/// One congestion control for users to choose.
#[derive(Debug, Clone, Copy)]
pub struct CongestionControlEntry {
    /// Name in scenarios.
    pub name: &'static str,
    /// One line for people, with its source.
    pub about: &'static str,
    /// Makes one for a path.
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

/// No congestion control has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control `{name}`, expected one of: {}", names())]
pub struct UnknownCongestionControl {
    name: String,
}

fn names() -> String {
    ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// The congestion control of this name.
pub fn by_name(
    name: &str,
    start: CongestionConfig,
) -> Result<Box<dyn CongestionControl>, UnknownCongestionControl> {
    let found = ALL.iter().find(|entry| entry.name == name);
    let unknown = || UnknownCongestionControl { name: name.to_owned() };
    found.map(|entry| (entry.make)(start)).ok_or_else(unknown)
}
