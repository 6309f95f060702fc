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
    /// Keeps or replaces the primary and returns it; a backup only while no regular path exists.
    fn update<'a>(&mut self, view: &ConnectionView<'a>) -> Option<&'a PathView> {
        let current = self.id.and_then(|id| view.paths.iter().find(|path| path.id == id));
        let first_regular = || view.paths.iter().find(|path| !path.backup);
        let primary = current.filter(|path| !path.backup).or_else(first_regular);
        let primary = primary.or(current).or_else(|| view.paths.first());
        self.id = primary.map(|path| path.id);
        self.was_regular |= primary.is_some_and(|path| !path.backup);
        primary
    }

    /// Returns true if a backup has replaced a regular primary.
    fn is_gone(self, primary: &PathView) -> bool {
        self.was_regular && primary.backup
    }
}

/// Chooses the primary, unless `reason_to_switch` names a reason for another path with room. Also
/// returns that reason.
fn choose(
    view: &ConnectionView<'_>,
    primary: &PathView,
    reason_to_switch: impl Fn(&PathView) -> Option<SwitchReason>,
) -> (Decision, Option<SwitchReason>) {
    let with_room = |path: &&PathView| path.room_bytes > 0;
    let better_paths =
        view.paths.iter().filter(|path| path.id != primary.id && reason_to_switch(path).is_some());
    let better_path = fastest(better_paths.filter(with_room));
    let decision = Decision::send_or_idle(better_path.or(Some(primary).filter(with_room)));
    (decision, better_path.and_then(reason_to_switch))
}

/// `interactive`: the primary, unless it performs badly and another path does not. Bad is an srtt
/// above 600 ms, a timeout above 1500 ms, or a fired timer with nothing received since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interactive {
    primary: Primary,
    /// Limits of an acceptable primary.
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
        let Some(primary) = self.primary.update(view) else { return Decision::Idle };
        let (decision, departure_reason) = choose(view, primary, |candidate| {
            let primary_slow = primary.srtt > self.max_srtt && candidate.srtt <= self.max_srtt;
            let rto_too_long = primary.rto > self.max_rto && candidate.rto <= self.max_rto;
            let primary_silent = primary.stale || primary.timeouts > 0;
            let reason = if primary_slow {
                Some(SwitchReason::SlowRoundTrip)
            } else if primary_silent {
                Some(SwitchReason::Timeout)
            } else {
                rto_too_long.then_some(SwitchReason::LongTimeout)
            };
            reason.filter(|_| !candidate.stale && candidate.timeouts == 0)
        });
        let gone_reason = self.primary.is_gone(primary).then_some(SwitchReason::Gone);
        self.switch_reason = departure_reason.or(gone_reason);
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
        let Some(primary) = self.primary.update(view) else { return Decision::Idle };
        let has_failed = |path: &PathView| path.stale || path.timeouts >= FAILED_TIMEOUTS;
        let (decision, departure_reason) = choose(view, primary, |candidate| {
            (has_failed(primary) && !has_failed(candidate)).then_some(SwitchReason::Timeout)
        });
        let gone_reason = self.primary.is_gone(primary).then_some(SwitchReason::Gone);
        self.switch_reason = departure_reason.or(gone_reason);
        decision
    }

    fn switch_reason(&self) -> Option<SwitchReason> {
        self.switch_reason
    }
}
