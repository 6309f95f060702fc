//! Congestion control: `towpath-multipath`'s and the library's, behind the library's interface.
//!
//! A [`CongestionFactory`] belongs to one connection. The library requests a controller for each
//! path, and all of them share one [`PathGroup`]. This lets LIA, OLIA, BALIA and wVegas see the
//! other paths. The group also records metrics that the library does not expose: bytes in flight on
//! each path, the age of the oldest packet, and the round-trip variation. The path policies depend
//! on them.
//!
//! The library does not tell which path a controller is for. A path's metrics are therefore found
//! in reverse: the path exposes its controller, which knows its place in the group.

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
/// Age beyond an acknowledged packet at which a packet is no longer waited for: the library
/// silently abandons path MTU probes.
const MAX_UNACKED_AGE: Duration = Duration::from_millis(100);

/// Controls of the library: name and description.
const NOQ_CONTROLLERS: &[(&str, &str)] = &[
    ("newreno", "the library's NewReno (RFC 9002)"),
    ("noq-cubic", "the library's CUBIC"),
    ("bbr", "the library's BBR, version 3; draws random numbers of its own, so not simulated"),
];

/// Returns every congestion control: name, and a one-line description.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = congestion::ALL.iter().map(|entry| (entry.name, entry.about));
    own.chain(NOQ_CONTROLLERS.iter().copied())
}

/// Returns true if the control behaves the same in every run with the same seed.
pub fn is_deterministic(name: &str) -> bool {
    name != "bbr"
}

/// Error: no congestion control has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown congestion control `{name}`, expected one of: {}", listed())]
pub struct UnknownCongestionControl {
    name: String,
}

fn listed() -> String {
    names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Source of the controls of paths.
#[derive(Clone)]
enum ControllerKind {
    Ours(fn(CongestionConfig) -> Box<dyn CongestionControl>),
    Library(Arc<dyn ControllerFactory + Send + Sync>),
}

impl ControllerKind {
    fn named(name: &str) -> Result<Self, UnknownCongestionControl> {
        let own = congestion::ALL.iter().find(|entry| entry.name == name);
        Ok(match (own, name) {
            (Some(entry), _) => Self::Ours(entry.make),
            (None, "newreno") => Self::Library(Arc::new(NewRenoConfig::default())),
            (None, "noq-cubic") => Self::Library(Arc::new(CubicConfig::default())),
            (None, "bbr") => Self::Library(Arc::new(Bbr3Config::default())),
            (None, _) => return Err(UnknownCongestionControl { name: name.to_owned() }),
        })
    }

    fn make(&self, now: time::Instant, mtu_bytes: u16) -> PathController {
        match self {
            Self::Ours(make) => PathController::Ours(make(CongestionConfig {
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
        f.debug_struct("Factory").field("group", &self.group).finish_non_exhaustive()
    }
}

impl CongestionFactory {
    /// Creates the factory of one connection; its paths are coupled with each other only.
    pub(crate) fn new(name: &str, clock: TimeConverter) -> Result<Self, UnknownCongestionControl> {
        let kind = Arc::new(Mutex::new(ControllerKind::named(name)?));
        Ok(Self { clock, group: PathGroup { members: Arc::default(), kind } })
    }
}

impl ControllerFactory for CongestionFactory {
    fn build(self: Arc<Self>, now: time::Instant, current_mtu: u16) -> Box<dyn Controller> {
        let control = self.group.kind().make(now, current_mtu);
        let place = self.group.add(PathCongestion::new(control, current_mtu));
        Box::new(PathControllerHandle { group: self.group.clone(), slot: place, clock: self.clock })
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

/// Control of one path, ours or the library's.
#[derive(Debug)]
enum PathController {
    Ours(Box<dyn CongestionControl>),
    Library(Box<dyn Controller>),
}

/// Congestion control and metrics of one path.
#[derive(Debug)]
struct PathCongestion {
    control: PathController,
    /// Number of controllers for this path: the library clones them when it tries a new address.
    handle_count: usize,
    /// Set when the path carries no more data and does not count for the others.
    abandoned: bool,
    mtu_bytes: u16,
    in_flight_bytes: u64,
    waiting: UnackedPackets,
    acked_bytes: u64,
    last_ack: Option<time::Instant>,
    /// Sending time of the newest acknowledged packet.
    newest_acked: Option<time::Instant>,
    srtt: Duration,
    rttvar: Duration,
    min_rtt: Duration,
    /// Data of the acknowledgement that is being processed.
    batch: AckBatch,
    /// Packets sent until then belong to the current round trip.
    round_end: Option<time::Instant>,
    /// Packets sent until then were sent before the last reduction.
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
            waiting: UnackedPackets::default(),
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
            PathController::Ours(own) => {
                own.cwnd_bytes().max(MIN_WINDOW_PACKETS * u64::from(self.mtu_bytes.max(1)))
            }
            PathController::Library(library) => library.window(),
        }
    }

    fn sibling(&self, place: usize) -> Sibling {
        let (between_losses, slow_start) = match &self.control {
            PathController::Ours(own) => {
                (own.between_losses(), own.cwnd_bytes() < own.ssthresh_bytes())
            }
            PathController::Library(_) => ((0, 0), false),
        };
        Sibling {
            id: path_id(place),
            cwnd_bytes: self.cwnd_bytes(),
            srtt: self.srtt,
            between_losses,
            mss_bytes: u32::from(self.mtu_bytes),
            slow_start,
        }
    }

    /// Records one acknowledged packet; `smoothed` and `least` are the library's round-trip times.
    fn on_ack(
        &mut self,
        now: time::Instant,
        (sent, pn): (time::Instant, u64),
        bytes: u64,
        (smoothed, least): (Duration, Duration),
    ) {
        self.waiting.acknowledged(sent, pn);
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
        self.srtt = smoothed;
        self.min_rtt = least;
    }

    /// Returns the whole acknowledgement as a sample for our own controls.
    fn sample(&mut self, now: Instant, at: time::Instant, limited: bool) -> Option<AckSample> {
        let batch = std::mem::take(&mut self.batch);
        let newest = batch.newest_sent?;
        let round_ended = self.round_end.is_none_or(|end| newest >= end);
        if round_ended {
            self.round_end = Some(at);
        }
        Some(AckSample {
            now,
            acked_bytes: batch.bytes,
            in_flight_bytes: self.in_flight_bytes.saturating_add(batch.bytes),
            rtt: Some(at.saturating_duration_since(newest)),
            srtt: self.srtt,
            min_rtt: self.min_rtt,
            cwnd_limited: limited,
            round_ended,
            in_recovery: self.recovery_start.is_some_and(|start| newest <= start),
        })
    }

    fn forget_old(&mut self, newest_acked: time::Instant) {
        let max_age = MAX_UNACKED_AGE + 2 * self.srtt;
        self.waiting.drop_older(|sent| newest_acked.saturating_duration_since(sent) > max_age);
    }
}

fn path_id(place: usize) -> PathId {
    PathId(u8::try_from(place).unwrap_or(u8::MAX))
}

/// Metrics of a path that the library does not expose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PathMetrics {
    pub(crate) cwnd_bytes: u64,
    pub(crate) ssthresh_bytes: Option<u64>,
    pub(crate) in_flight_bytes: u64,
    pub(crate) acked_bytes: u64,
    /// Sending time of the oldest unacknowledged packet.
    pub(crate) waiting_since: Option<Instant>,
    /// Sending time of the newest acknowledged packet, when the path worked. The acknowledgement
    /// may have come late and on another path.
    pub(crate) newest_acked_sent_at: Option<Instant>,
    pub(crate) srtt: Duration,
    pub(crate) rttvar: Duration,
    pub(crate) min_rtt: Duration,
}

/// The library's controller of a path: a place in the group.
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

    fn with<R>(&self, act: impl FnOnce(&mut PathCongestion) -> R) -> Option<R> {
        let mut members = self.group.lock();
        members.get_mut(self.slot).and_then(Option::as_mut).map(act)
    }

    fn library(&self, act: impl FnOnce(&mut (dyn Controller + 'static))) {
        self.with(|member| {
            if let PathController::Library(library) = &mut member.control {
                act(&mut **library);
            }
        });
    }

    /// Returns the metrics of the path.
    pub(crate) fn path_metrics(&self) -> PathMetrics {
        let clock = self.clock;
        let figures = self.with(|member| PathMetrics {
            cwnd_bytes: member.cwnd_bytes(),
            ssthresh_bytes: match &member.control {
                PathController::Ours(own) => Some(own.ssthresh_bytes()),
                PathController::Library(library) => library.metrics().ssthresh,
            },
            in_flight_bytes: member.in_flight_bytes,
            acked_bytes: member.acked_bytes,
            waiting_since: member.waiting.oldest().map(|sent| clock.to_virtual(sent)),
            newest_acked_sent_at: member.newest_acked.map(|at| clock.to_virtual(at)),
            srtt: member.srtt,
            rttvar: member.rttvar,
            min_rtt: member.min_rtt,
        });
        figures.unwrap_or_default()
    }

    /// Gives all paths of the connection another control, as if they were new. Used when an
    /// accepted connection's purpose becomes known.
    pub(crate) fn switch(
        &self,
        name: &str,
        now: time::Instant,
    ) -> Result<(), UnknownCongestionControl> {
        let kind = ControllerKind::named(name)?;
        for member in self.group.lock().iter_mut().flatten() {
            member.control = kind.make(now, member.mtu_bytes);
        }
        *self.group.kind() = kind;
        Ok(())
    }

    /// Clears the handshake's packets. They have their own packet numbers, and the library silently
    /// forgets the unacknowledged ones.
    pub(crate) fn end_handshake(&self) {
        self.with(|member| member.waiting.clear());
    }

    /// Marks the path as abandoned: the others no longer count it.
    pub(crate) fn abandon(&self) {
        self.with(|member| {
            member.abandoned = true;
            member.waiting.clear();
        });
    }

    /// Calls `act` with this path's control and all paths that carry data.
    fn with_group(&self, act: impl FnOnce(&mut PathCongestion, &[Sibling])) {
        let mut members = self.group.lock();
        let views: Vec<Sibling> = members
            .iter()
            .enumerate()
            .filter_map(|(place, member)| Some((place, member.as_ref()?)))
            // A path without a round-trip time has not carried anything yet.
            .filter(|(place, m)| *place == self.slot || (!m.abandoned && !m.srtt.is_zero()))
            .map(|(place, member)| member.sibling(place))
            .collect();
        if let Some(member) = members.get_mut(self.slot).and_then(Option::as_mut) {
            act(member, &views);
        }
    }
}

impl Drop for PathControllerHandle {
    fn drop(&mut self) {
        let mut members = self.group.lock();
        if let Some(slot) = members.get_mut(self.slot) {
            let last = slot.as_mut().is_some_and(|member| {
                member.handle_count -= 1;
                member.handle_count == 0
            });
            if last {
                *slot = None;
            }
        }
    }
}

impl Controller for PathControllerHandle {
    fn on_sent(&mut self, now: time::Instant, bytes: u64, largest_pn: u64) {
        self.library(|library| library.on_sent(now, bytes, largest_pn));
    }

    fn on_packet_sent(&mut self, now: time::Instant, bytes: u16, pn: u64) {
        self.with(|member| {
            member.in_flight_bytes = member.in_flight_bytes.saturating_add(u64::from(bytes));
            member.waiting.sent(now, pn);
            if let PathController::Library(library) = &mut member.control {
                library.on_packet_sent(now, bytes, pn);
            }
        });
    }

    fn on_cwnd_limited(&mut self) {
        self.library(Controller::on_cwnd_limited);
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
        self.with(|member| {
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
        self.library(|library| {
            library.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        });
        let (ours, place) = (self.clock.to_virtual(now), path_id(self.slot));
        self.with_group(|member, views| {
            member.in_flight_bytes = in_flight;
            if let Some(newest) = member.batch.newest_sent {
                member.forget_old(newest);
            }
            // RFC 9002 §7.8: a window that pacing leaves unused for a moment still counts as used.
            let Some(sample) = member.sample(ours, now, !app_limited) else { return };
            if let PathController::Ours(own) = &mut member.control {
                own.on_ack(&sample, place, views);
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
        self.library(|library| {
            library.on_congestion_event(now, sent, persistent, is_ecn, lost_bytes, largest_lost_pn);
        });
        let (ours, place) = (self.clock.to_virtual(now), path_id(self.slot));
        self.with_group(|member, views| {
            // RFC 9002 §7.3.2: once for all packets of a window.
            if member.recovery_start.is_some_and(|start| sent <= start) {
                return;
            }
            member.recovery_start = Some(now);
            let in_flight = member.in_flight_bytes;
            let PathController::Ours(own) = &mut member.control else { return };
            if persistent {
                // RFC 9002 §7.6.2: as after a timeout of TCP.
                own.on_timeout(ours, in_flight);
            } else {
                own.on_congestion(ours, in_flight, place, views);
            }
        });
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: time::Instant) {
        self.with(|member| {
            let lost = u64::from(lost_bytes);
            member.in_flight_bytes = member.in_flight_bytes.saturating_sub(lost);
            member.waiting.lost(pn);
            if let PathController::Library(library) = &mut member.control {
                library.on_packet_lost(lost_bytes, pn, now);
            }
        });
    }

    fn on_spurious_congestion_event(&mut self) {
        self.library(Controller::on_spurious_congestion_event);
        let clock = self.clock;
        self.with(|member| {
            let now = member.last_ack.map_or(Instant::ZERO, |at| clock.to_virtual(at));
            member.recovery_start = None;
            if let PathController::Ours(own) = &mut member.control {
                own.undo(now);
            }
        });
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.with(|member| {
            member.mtu_bytes = new_mtu;
            match &mut member.control {
                PathController::Ours(own) => own.set_mss(u32::from(new_mtu)),
                PathController::Library(library) => library.on_mtu_update(new_mtu),
            }
        });
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, max_ack_delay: Duration) {
        self.library(|library| library.on_ack_frequency_update(threshold, max_ack_delay));
    }

    fn window(&self) -> u64 {
        self.with(|member| member.cwnd_bytes()).unwrap_or(0)
    }

    fn metrics(&self) -> ControllerMetrics {
        let metrics = self.with(|member| match &member.control {
            PathController::Library(library) => library.metrics(),
            PathController::Ours(own) => {
                let mut metrics = ControllerMetrics::default();
                metrics.congestion_window = member.cwnd_bytes();
                metrics.ssthresh = Some(own.ssthresh_bytes());
                metrics
            }
        });
        metrics.unwrap_or_default()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        self.with(|member| member.handle_count += 1);
        Box::new(Self { group: self.group.clone(), slot: self.slot, clock: self.clock })
    }

    fn initial_window(&self) -> u64 {
        let window = self.with(|member| match &member.control {
            PathController::Library(library) => library.initial_window(),
            PathController::Ours(_) => u64::from(INITIAL_PACKETS) * u64::from(member.mtu_bytes),
        });
        window.unwrap_or(0)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
