//! Congestion control: `towpath-multipath`'s and the library's, behind the library's interface.
//!
//! A [`CongestionFactory`] belongs to one connection. The library requests a controller for each
//! path, and all of them share one [`PathGroup`]. This lets LIA, OLIA, BALIA and wVegas see the
//! other paths. The group also records metrics that the library does not expose: bytes in flight on
//! each path, the age of the oldest packet, and the round-trip variation. The path policies depend
//! on them.
//!
//! The library does not tell which path a controller is for. A path's metrics are therefore found
//! in reverse: the path exposes its controller, which knows its slot in the group.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{self, Duration};

use noq_proto::RttEstimator;
use noq_proto::congestion::{
    Bbr3Config, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use thiserror::Error;
use towpath_multipath::PathId;
use towpath_multipath::congestion::{
    self, AckSample, CongestionConfig, CongestionControl, HyStartRule, Sibling,
};
use towpath_net::Instant;

use self::unacked::UnackedPackets;
use crate::time::TimeConverter;

#[cfg(test)]
mod tests;
mod unacked;

/// Initial window in packets (RFC 9002 §7.2).
const INITIAL_PACKETS: u32 = 10;
/// Minimum window in packets (RFC 9002 §7.2).
const MIN_WINDOW_PACKETS: u64 = 2;
/// Age, relative to an acknowledged packet, at which an unacknowledged packet is forgotten: the
/// library silently abandons path MTU probes.
const MAX_UNACKED_AGE: Duration = Duration::from_millis(100);

/// Controls of the library: name and description.
const NOQ_CONTROLLERS: &[(&str, &str)] = &[
    ("newreno", "the library's NewReno (RFC 9002)"),
    ("noq-cubic", "the library's CUBIC"),
    ("bbr", "the library's BBR, version 3; draws random numbers of its own, so not simulated"),
];

/// Returns every congestion control: name, and a one-line description.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let multipath_controls = congestion::ALL.iter().map(|entry| (entry.name, entry.about));
    multipath_controls.chain(NOQ_CONTROLLERS.iter().copied())
}

/// Returns true if the control behaves the same in every run with the same seed.
pub fn is_deterministic(name: &str) -> bool {
    name != "bbr"
}

/// Error: no congestion control has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown congestion control `{name}`, expected one of: {}", control_names())]
pub struct UnknownCongestionControl {
    name: String,
}

fn control_names() -> String {
    names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Kind of control that a connection's paths get.
#[derive(Clone)]
enum ControllerKind {
    /// A control of `towpath-multipath`.
    Towpath(fn(CongestionConfig) -> Box<dyn CongestionControl>),
    Library(Arc<dyn ControllerFactory + Send + Sync>),
}

impl ControllerKind {
    fn by_name(name: &str) -> Result<Self, UnknownCongestionControl> {
        let entry = congestion::ALL.iter().find(|entry| entry.name == name);
        Ok(match (entry, name) {
            (Some(entry), _) => Self::Towpath(entry.make),
            (None, "newreno") => Self::Library(Arc::new(NewRenoConfig::default())),
            (None, "noq-cubic") => Self::Library(Arc::new(CubicConfig::default())),
            (None, "bbr") => Self::Library(Arc::new(Bbr3Config::default())),
            (None, _) => return Err(UnknownCongestionControl { name: name.to_owned() }),
        })
    }

    fn make(&self, now: time::Instant, mtu_bytes: u16) -> PathController {
        match self {
            Self::Towpath(make) => PathController::Towpath(make(CongestionConfig {
                mss_bytes: u32::from(mtu_bytes),
                initial_packets: INITIAL_PACKETS,
                hystart: HyStartRule::Rfc9406,
            })),
            Self::Library(factory) => {
                PathController::Library(Arc::clone(factory).build(now, mtu_bytes))
            }
        }
    }
}

/// Factory of the controllers of one connection.
#[derive(Clone)]
pub(crate) struct CongestionFactory {
    clock: TimeConverter,
    group: PathGroup,
}

impl fmt::Debug for CongestionFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CongestionFactory").field("group", &self.group).finish_non_exhaustive()
    }
}

impl CongestionFactory {
    /// Creates the factory of one connection; its paths are coupled with each other only.
    pub(crate) fn new(name: &str, clock: TimeConverter) -> Result<Self, UnknownCongestionControl> {
        let kind = Arc::new(Mutex::new(ControllerKind::by_name(name)?));
        Ok(Self { clock, group: PathGroup { members: Arc::default(), kind } })
    }
}

impl ControllerFactory for CongestionFactory {
    fn build(self: Arc<Self>, now: time::Instant, current_mtu: u16) -> Box<dyn Controller> {
        let control = self.group.kind().make(now, current_mtu);
        let slot = self.group.add(PathCongestion::new(control, current_mtu));
        Box::new(PathControllerHandle { group: self.group.clone(), slot, clock: self.clock })
    }
}

/// Controls of all paths of one connection.
#[derive(Clone)]
struct PathGroup {
    members: Arc<Mutex<Vec<Option<PathCongestion>>>>,
    /// Kind of control that new paths get.
    kind: Arc<Mutex<ControllerKind>>,
}

impl fmt::Debug for PathGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.members).finish()
    }
}

impl PathGroup {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<PathCongestion>>> {
        // A poisoned lock is fine: the panic is reported elsewhere.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kind(&self) -> MutexGuard<'_, ControllerKind> {
        self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, member: PathCongestion) -> usize {
        let mut members = self.lock();
        members.push(Some(member));
        members.len() - 1
    }
}

/// Control of one path: of `towpath-multipath` or of the library.
#[derive(Debug)]
enum PathController {
    Towpath(Box<dyn CongestionControl>),
    Library(Box<dyn Controller>),
}

/// Congestion control and metrics of one path.
#[derive(Debug)]
struct PathCongestion {
    control: PathController,
    /// Number of controllers for this path: the library clones them when it tries a new address.
    handle_count: usize,
    /// Set when the path carries no more data. Coupled controls ignore it then.
    abandoned: bool,
    mtu_bytes: u16,
    in_flight_bytes: u64,
    unacked: UnackedPackets,
    acked_bytes: u64,
    last_ack: Option<time::Instant>,
    /// Sending time of the newest acknowledged packet.
    newest_acked: Option<time::Instant>,
    srtt: Duration,
    rttvar: Duration,
    min_rtt: Duration,
    /// Data of the acknowledgement that is being processed.
    batch: AckBatch,
    /// End of the current round trip: packets sent until this time belong to it.
    round_end: Option<time::Instant>,
    /// Time of the last window reduction: losses of packets sent until then do not reduce it again.
    recovery_start: Option<time::Instant>,
}

/// Totals of one acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
struct AckBatch {
    bytes: u64,
    newest_sent: Option<time::Instant>,
}

impl PathCongestion {
    fn new(control: PathController, mtu_bytes: u16) -> Self {
        Self {
            control,
            handle_count: 1,
            abandoned: false,
            mtu_bytes,
            in_flight_bytes: 0,
            unacked: UnackedPackets::default(),
            acked_bytes: 0,
            last_ack: None,
            newest_acked: None,
            srtt: Duration::ZERO,
            rttvar: Duration::ZERO,
            min_rtt: Duration::ZERO,
            batch: AckBatch::default(),
            round_end: None,
            recovery_start: None,
        }
    }

    fn cwnd_bytes(&self) -> u64 {
        match &self.control {
            PathController::Towpath(control) => {
                control.cwnd_bytes().max(MIN_WINDOW_PACKETS * u64::from(self.mtu_bytes.max(1)))
            }
            PathController::Library(library) => library.window(),
        }
    }

    fn sibling(&self, slot: usize) -> Sibling {
        let (between_losses, slow_start) = match &self.control {
            PathController::Towpath(control) => {
                (control.between_losses(), control.cwnd_bytes() < control.ssthresh_bytes())
            }
            PathController::Library(_) => ((0, 0), false),
        };
        Sibling {
            id: path_id(slot),
            cwnd_bytes: self.cwnd_bytes(),
            srtt: self.srtt,
            between_losses,
            mss_bytes: u32::from(self.mtu_bytes),
            slow_start,
        }
    }

    /// Records one acknowledged packet; `srtt` and `min_rtt` are the library's.
    fn on_ack(
        &mut self,
        now: time::Instant,
        (sent, pn): (time::Instant, u64),
        bytes: u64,
        (srtt, min_rtt): (Duration, Duration),
    ) {
        self.unacked.on_acked(sent, pn);
        self.acked_bytes = self.acked_bytes.saturating_add(bytes);
        self.last_ack = Some(now);
        self.newest_acked = self.newest_acked.max(Some(sent));
        self.batch.bytes = self.batch.bytes.saturating_add(bytes);
        self.batch.newest_sent = self.batch.newest_sent.max(Some(sent));
        let sample = now.saturating_duration_since(sent);
        // RFC 9002 §5.3, as the library computes it but does not expose.
        self.rttvar = if self.srtt.is_zero() {
            sample / 2
        } else {
            (3 * self.rttvar + self.srtt.abs_diff(sample)) / 4
        };
        self.srtt = srtt;
        self.min_rtt = min_rtt;
    }

    /// Returns the whole acknowledgement as a sample for the controls of `towpath-multipath`.
    fn sample(
        &mut self,
        now: Instant,
        std_now: time::Instant,
        cwnd_limited: bool,
    ) -> Option<AckSample> {
        let batch = std::mem::take(&mut self.batch);
        let newest_sent = batch.newest_sent?;
        let round_ended = self.round_end.is_none_or(|end| newest_sent >= end);
        if round_ended {
            self.round_end = Some(std_now);
        }
        Some(AckSample {
            now,
            acked_bytes: batch.bytes,
            in_flight_bytes: self.in_flight_bytes.saturating_add(batch.bytes),
            rtt: Some(std_now.saturating_duration_since(newest_sent)),
            srtt: self.srtt,
            min_rtt: self.min_rtt,
            cwnd_limited,
            round_ended,
            in_recovery: self.recovery_start.is_some_and(|start| newest_sent <= start),
        })
    }

    fn drop_old_unacked(&mut self, newest_acked: time::Instant) {
        let max_age = MAX_UNACKED_AGE + 2 * self.srtt;
        self.unacked.drop_older(|sent| newest_acked.saturating_duration_since(sent) > max_age);
    }
}

fn path_id(slot: usize) -> PathId {
    PathId(u8::try_from(slot).unwrap_or(u8::MAX))
}

/// Metrics of a path that the library does not expose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PathMetrics {
    pub(crate) cwnd_bytes: u64,
    pub(crate) ssthresh_bytes: Option<u64>,
    pub(crate) in_flight_bytes: u64,
    pub(crate) acked_bytes: u64,
    /// Sending time of the oldest unacknowledged packet.
    pub(crate) oldest_unacked_sent_at: Option<Instant>,
    /// Sending time of the newest acknowledged packet, when the path worked. The acknowledgement
    /// may have come late and on another path.
    pub(crate) newest_acked_sent_at: Option<Instant>,
    pub(crate) srtt: Duration,
    pub(crate) rttvar: Duration,
    pub(crate) min_rtt: Duration,
}

/// The library's controller of a path: a slot in the group.
#[derive(Debug)]
pub(crate) struct PathControllerHandle {
    group: PathGroup,
    slot: usize,
    clock: TimeConverter,
}

impl PathControllerHandle {
    /// Returns the handle behind `controller`, if it is one of ours.
    pub(crate) fn of(controller: &dyn Controller) -> Option<Box<Self>> {
        controller.clone_box().into_any().downcast().ok()
    }

    fn with_path<R>(&self, action: impl FnOnce(&mut PathCongestion) -> R) -> Option<R> {
        let mut members = self.group.lock();
        members.get_mut(self.slot).and_then(Option::as_mut).map(action)
    }

    fn with_library(&self, action: impl FnOnce(&mut (dyn Controller + 'static))) {
        self.with_path(|member| {
            if let PathController::Library(library) = &mut member.control {
                action(&mut **library);
            }
        });
    }

    /// Returns the metrics of the path.
    pub(crate) fn path_metrics(&self) -> PathMetrics {
        let clock = self.clock;
        let metrics = self.with_path(|member| PathMetrics {
            cwnd_bytes: member.cwnd_bytes(),
            ssthresh_bytes: match &member.control {
                PathController::Towpath(control) => Some(control.ssthresh_bytes()),
                PathController::Library(library) => library.metrics().ssthresh,
            },
            in_flight_bytes: member.in_flight_bytes,
            acked_bytes: member.acked_bytes,
            oldest_unacked_sent_at: member.unacked.oldest().map(|sent| clock.to_virtual(sent)),
            newest_acked_sent_at: member.newest_acked.map(|sent| clock.to_virtual(sent)),
            srtt: member.srtt,
            rttvar: member.rttvar,
            min_rtt: member.min_rtt,
        });
        metrics.unwrap_or_default()
    }

    /// Gives all paths of the connection another control, as if they were new. Used when an
    /// accepted connection's purpose becomes known.
    pub(crate) fn switch(
        &self,
        name: &str,
        now: time::Instant,
    ) -> Result<(), UnknownCongestionControl> {
        let kind = ControllerKind::by_name(name)?;
        for member in self.group.lock().iter_mut().flatten() {
            member.control = kind.make(now, member.mtu_bytes);
        }
        *self.group.kind() = kind;
        Ok(())
    }

    /// Clears the handshake's packets. They have their own packet numbers, and the library silently
    /// forgets the unacknowledged ones.
    pub(crate) fn end_handshake(&self) {
        self.with_path(|member| member.unacked.clear());
    }

    /// Marks the path as abandoned: the others no longer count it.
    pub(crate) fn abandon(&self) {
        self.with_path(|member| {
            member.abandoned = true;
            member.unacked.clear();
        });
    }

    /// Calls `action` with this path's control and all paths that carry data.
    fn with_siblings(&self, action: impl FnOnce(&mut PathCongestion, &[Sibling])) {
        let mut members = self.group.lock();
        let siblings: Vec<Sibling> = members
            .iter()
            .enumerate()
            .filter_map(|(slot, member)| Some((slot, member.as_ref()?)))
            // A path without a round-trip time has not carried anything yet.
            .filter(|(slot, member)| {
                *slot == self.slot || (!member.abandoned && !member.srtt.is_zero())
            })
            .map(|(slot, member)| member.sibling(slot))
            .collect();
        if let Some(member) = members.get_mut(self.slot).and_then(Option::as_mut) {
            action(member, &siblings);
        }
    }
}

impl Drop for PathControllerHandle {
    fn drop(&mut self) {
        let mut members = self.group.lock();
        if let Some(slot) = members.get_mut(self.slot) {
            let was_last_handle = slot.as_mut().is_some_and(|member| {
                member.handle_count -= 1;
                member.handle_count == 0
            });
            if was_last_handle {
                *slot = None;
            }
        }
    }
}

impl Controller for PathControllerHandle {
    fn on_sent(&mut self, now: time::Instant, bytes: u64, largest_pn: u64) {
        self.with_library(|library| library.on_sent(now, bytes, largest_pn));
    }

    fn on_packet_sent(&mut self, now: time::Instant, bytes: u16, pn: u64) {
        self.with_path(|member| {
            member.in_flight_bytes = member.in_flight_bytes.saturating_add(u64::from(bytes));
            member.unacked.on_sent(now, pn);
            if let PathController::Library(library) = &mut member.control {
                library.on_packet_sent(now, bytes, pn);
            }
        });
    }

    fn on_cwnd_limited(&mut self) {
        self.with_library(Controller::on_cwnd_limited);
    }

    fn on_ack(
        &mut self,
        now: time::Instant,
        sent: time::Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.with_path(|member| {
            member.on_ack(now, (sent, pn), bytes, (rtt.get(), rtt.min()));
            if let PathController::Library(library) = &mut member.control {
                library.on_ack(now, sent, bytes, pn, app_limited, rtt);
            }
        });
    }

    fn on_end_acks(
        &mut self,
        now: time::Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.with_library(|library| {
            library.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        });
        let (virtual_now, slot) = (self.clock.to_virtual(now), path_id(self.slot));
        self.with_siblings(|member, siblings| {
            member.in_flight_bytes = in_flight;
            if let Some(newest_sent) = member.batch.newest_sent {
                member.drop_old_unacked(newest_sent);
            }
            // RFC 9002 §7.8: a window that pacing leaves unused for a moment still counts as used.
            let Some(sample) = member.sample(virtual_now, now, !app_limited) else { return };
            if let PathController::Towpath(control) = &mut member.control {
                control.on_ack(&sample, slot, siblings);
            }
        });
    }

    fn on_congestion_event(
        &mut self,
        now: time::Instant,
        sent: time::Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        let persistent = is_persistent_congestion;
        self.with_library(|library| {
            library.on_congestion_event(now, sent, persistent, is_ecn, lost_bytes, largest_lost_pn);
        });
        let (virtual_now, slot) = (self.clock.to_virtual(now), path_id(self.slot));
        self.with_siblings(|member, siblings| {
            // RFC 9002 §7.3.2: only one reduction for all losses of a window.
            if member.recovery_start.is_some_and(|start| sent <= start) {
                return;
            }
            member.recovery_start = Some(now);
            let in_flight = member.in_flight_bytes;
            let PathController::Towpath(control) = &mut member.control else { return };
            if persistent {
                // RFC 9002 §7.6.2: persistent congestion acts like a TCP timeout.
                control.on_timeout(virtual_now, in_flight);
            } else {
                control.on_congestion(virtual_now, in_flight, slot, siblings);
            }
        });
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: time::Instant) {
        self.with_path(|member| {
            let lost = u64::from(lost_bytes);
            member.in_flight_bytes = member.in_flight_bytes.saturating_sub(lost);
            member.unacked.on_lost(pn);
            if let PathController::Library(library) = &mut member.control {
                library.on_packet_lost(lost_bytes, pn, now);
            }
        });
    }

    fn on_spurious_congestion_event(&mut self) {
        self.with_library(Controller::on_spurious_congestion_event);
        let clock = self.clock;
        self.with_path(|member| {
            let now = member.last_ack.map_or(Instant::ZERO, |time| clock.to_virtual(time));
            member.recovery_start = None;
            if let PathController::Towpath(control) = &mut member.control {
                control.undo(now);
            }
        });
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.with_path(|member| {
            member.mtu_bytes = new_mtu;
            match &mut member.control {
                PathController::Towpath(control) => control.set_mss(u32::from(new_mtu)),
                PathController::Library(library) => library.on_mtu_update(new_mtu),
            }
        });
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, max_ack_delay: Duration) {
        self.with_library(|library| library.on_ack_frequency_update(threshold, max_ack_delay));
    }

    fn window(&self) -> u64 {
        self.with_path(|member| member.cwnd_bytes()).unwrap_or(0)
    }

    fn metrics(&self) -> ControllerMetrics {
        let metrics = self.with_path(|member| match &member.control {
            PathController::Library(library) => library.metrics(),
            PathController::Towpath(control) => {
                let mut metrics = ControllerMetrics::default();
                metrics.congestion_window = member.cwnd_bytes();
                metrics.ssthresh = Some(control.ssthresh_bytes());
                metrics
            }
        });
        metrics.unwrap_or_default()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        self.with_path(|member| member.handle_count += 1);
        Box::new(Self { group: self.group.clone(), slot: self.slot, clock: self.clock })
    }

    fn initial_window(&self) -> u64 {
        let window = self.with_path(|member| match &member.control {
            PathController::Library(library) => library.initial_window(),
            PathController::Towpath(_) => u64::from(INITIAL_PACKETS) * u64::from(member.mtu_bytes),
        });
        window.unwrap_or(0)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
