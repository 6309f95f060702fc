//! Two of Apple's modes, as observed by De Coninck and Bonaventure (`MultipathTester`, TMA 2019,
//! §II-B). One path is the primary (Wi-Fi); others carry data only when it performs badly.
//!
//! The primary is the first regular path that was established, as long as it exists.

use std::time::Duration;

use super::eligible::fastest;
use super::{Decision, Scheduler, SwitchReason};
use crate::path::{ConnectionView, PathId, PathView};

/// Longest smoothed round-trip time of an acceptable primary.
const MAX_PRIMARY_SRTT: Duration = Duration::from_millis(600);
/// Longest retransmission timeout of an acceptable primary.
const MAX_PRIMARY_RTO: Duration = Duration::from_millis(1_500);
/// Consecutive timeouts after which a primary has failed. A single one may be a lost packet.
const FAILED_TIMEOUTS: u32 = 2;

/// The primary of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Primary {
    id: Option<PathId>,
    /// Set when the primary has been a regular path.
    was_regular: bool,
}

impl Primary {
    /// Returns the primary; a backup only while every regular path is missing.
    fn of<'a>(&mut self, view: &ConnectionView<'a>) -> Option<&'a PathView> {
        let kept = self.id.and_then(|id| view.paths.iter().find(|path| path.id == id));
        let regular = || view.paths.iter().find(|path| !path.backup);
        let primary = kept.filter(|path| !path.backup).or_else(regular);
        let primary = primary.or(kept).or_else(|| view.paths.first());
        self.id = primary.map(|path| path.id);
        self.was_regular |= primary.is_some_and(|path| !path.backup);
        primary
    }

    /// Returns true if a backup has replaced a regular primary.
    fn is_gone(self, primary: &PathView) -> bool {
        self.was_regular && primary.backup
    }
}

/// Chooses the primary, unless another path that `better` admits has room. Also returns the reason
/// for leaving it.
fn choose(
    view: &ConnectionView<'_>,
    primary: &PathView,
    better: impl Fn(&PathView) -> Option<SwitchReason>,
) -> (Decision, Option<SwitchReason>) {
    let with_room = |path: &&PathView| path.room_bytes > 0;
    let others = view.paths.iter().filter(|path| path.id != primary.id && better(path).is_some());
    let other = fastest(others.filter(with_room));
    let decision = Decision::send_or_idle(other.or(Some(primary).filter(with_room)));
    (decision, other.and_then(better))
}

/// `interactive`: the primary, unless it performs badly and another path does not. Bad is an srtt
/// above 600 ms, a timeout above 1500 ms, or a fired timer with nothing received since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interactive {
    primary: Primary,
    max_srtt: Duration,
    max_rto: Duration,
    switch_reason: Option<SwitchReason>,
}

impl Default for Interactive {
    fn default() -> Self {
        Self {
            primary: Primary::default(),
            max_srtt: MAX_PRIMARY_SRTT,
            max_rto: MAX_PRIMARY_RTO,
            switch_reason: None,
        }
    }
}

impl Interactive {
    /// Halves both limits, as Darwin does while its WifiAssist rates Wi-Fi as bad.
    pub(super) fn wifi_assist() -> Self {
        Self { max_srtt: MAX_PRIMARY_SRTT / 2, max_rto: MAX_PRIMARY_RTO / 2, ..Self::default() }
    }
}

impl Scheduler for Interactive {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let Some(primary) = self.primary.of(view) else { return Decision::Idle };
        let (decision, departure) = choose(view, primary, |other| {
            let slow = primary.srtt > self.max_srtt && other.srtt <= self.max_srtt;
            let late = primary.rto > self.max_rto && other.rto <= self.max_rto;
            let silent = primary.stale || primary.timeouts > 0;
            let why = if slow {
                Some(SwitchReason::SlowRoundTrip)
            } else if silent {
                Some(SwitchReason::Timeout)
            } else {
                late.then_some(SwitchReason::LongTimeout)
            };
            why.filter(|_| !other.stale && other.timeouts == 0)
        });
        let gone = self.primary.is_gone(primary).then_some(SwitchReason::Gone);
        self.switch_reason = departure.or(gone);
        decision
    }

    fn switch_reason(&self) -> Option<SwitchReason> {
        self.switch_reason
    }
}

/// `handover`: only the primary until it fails, and the primary again when it responds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handover {
    primary: Primary,
    switch_reason: Option<SwitchReason>,
}

impl Scheduler for Handover {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let Some(primary) = self.primary.of(view) else { return Decision::Idle };
        let failed = |path: &PathView| path.stale || path.timeouts >= FAILED_TIMEOUTS;
        let (decision, departure) = choose(view, primary, |other| {
            (failed(primary) && !failed(other)).then_some(SwitchReason::Timeout)
        });
        let gone = self.primary.is_gone(primary).then_some(SwitchReason::Gone);
        self.switch_reason = departure.or(gone);
        decision
    }

    fn switch_reason(&self) -> Option<SwitchReason> {
        self.switch_reason
    }
}
