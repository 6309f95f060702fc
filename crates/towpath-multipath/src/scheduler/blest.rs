//! BLEST (Ferlin et al., IFIP Networking 2016), with mptcp.org's constants: avoids head-of-line
//! blocking by a slow path. The slow path is skipped if its data would occupy window that the fast
//! path needs before the slow acknowledgement arrives.
//!
//! While the slow path's data is in flight, the fast path makes `n` round trips. It would send `X =
//! λ · (cwnd + (n - 1) / 2) · n` in them (`cwnd · (2ⁿ - 1)` in slow start). If `X` and the slow
//! path's bytes exceed the window, wait. λ grows by 0.04 when the window still became full in the
//! slow path's last round trip, else it falls by 0.01.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_net::Instant;

use super::eligible::{eligible, fastest};
use super::{Decision, Scheduler, SchedulerEvent};
use crate::path::{ConnectionView, PathId, PathView};

/// Initial λ, in thousandths.
const INITIAL_LAMBDA: u64 = 1_200;
/// Smallest and largest λ, in thousandths.
const LAMBDA_BOUNDS: (u64, u64) = (1_000, 1_300);
/// Step up of λ when the window was full, in thousandths.
const LAMBDA_INCREASE: u64 = 40;
/// Step down of λ when the window was not full, in thousandths.
const LAMBDA_DECREASE: u64 = 10;
/// Limit of predicted slow start round trips.
const MAX_DOUBLINGS: u32 = 16;

/// Smallest and largest srtt of a path.
#[derive(Debug, Clone, Copy)]
struct SrttRange {
    min: Duration,
    max: Duration,
}

#[derive(Debug, Clone)]
pub(super) struct Blest {
    /// λ in thousandths.
    lambda: u64,
    last_adapted_at: Instant,
    /// Set when the peer's window was full since the last adaptation.
    window_was_full: bool,
    srtt_ranges: BTreeMap<PathId, SrttRange>,
}

impl Default for Blest {
    fn default() -> Self {
        Self {
            lambda: INITIAL_LAMBDA,
            last_adapted_at: Instant::ZERO,
            window_was_full: false,
            srtt_ranges: BTreeMap::new(),
        }
    }
}

impl Blest {
    fn record_srtts(&mut self, view: &ConnectionView<'_>) {
        for path in view.paths {
            let current = SrttRange { min: path.srtt, max: path.srtt };
            let range = self.srtt_ranges.entry(path.id).or_insert(current);
            *range = SrttRange { min: range.min.min(path.srtt), max: range.max.max(path.srtt) };
        }
    }

    fn srtt_range(&self, path: &PathView) -> SrttRange {
        let current = SrttRange { min: path.srtt, max: path.srtt };
        self.srtt_ranges.get(&path.id).copied().unwrap_or(current)
    }

    /// Adapts λ once per round trip of the slow path.
    fn adapt(&mut self, now: Instant, slow: &PathView) {
        if now.saturating_since(self.last_adapted_at) < self.srtt_range(slow).min {
            return;
        }
        let lambda = if std::mem::take(&mut self.window_was_full) {
            self.lambda.saturating_add(LAMBDA_INCREASE)
        } else {
            self.lambda.saturating_sub(LAMBDA_DECREASE)
        };
        self.lambda = lambda.clamp(LAMBDA_BOUNDS.0, LAMBDA_BOUNDS.1);
        self.last_adapted_at = now;
    }

    /// Estimates the time until data sent on the slow path now is acknowledged: longer, the fuller
    /// its window.
    fn ack_delay(&self, slow: &PathView) -> Duration {
        let SrttRange { min, max } = self.srtt_range(slow);
        let spread = nanos(max.saturating_sub(min));
        let in_flight = slow.in_flight_bytes.saturating_add(u64::from(slow.mss_bytes));
        let occupied = in_flight.min(slow.cwnd_bytes);
        let extra = u128::from(spread) * u128::from(occupied) / u128::from(slow.cwnd_bytes.max(1));
        let extra = Duration::from_nanos(u64::try_from(extra).unwrap_or(u64::MAX));
        min.saturating_add(extra).max(slow.srtt)
    }

    /// Predicts the bytes that the fast path would send in `time`.
    fn predicted_bytes(&self, fast: &PathView, time: Duration) -> u64 {
        let SrttRange { min, max } = self.srtt_range(fast);
        let round_trip = nanos(min.saturating_add(max) / 2).max(1);
        let rounds = nanos(time) / round_trip + 1;
        let bytes = if fast.slow_start {
            let doublings = u32::try_from(rounds).unwrap_or(u32::MAX).min(MAX_DOUBLINGS);
            fast.cwnd_bytes.saturating_mul((1_u64 << doublings) - 1)
        } else {
            let growth = u64::from(fast.mss_bytes).saturating_mul((rounds - 1) / 2);
            fast.cwnd_bytes.saturating_add(growth).saturating_mul(rounds)
        };
        u64::try_from(u128::from(bytes) * u128::from(self.lambda) / 1_000).unwrap_or(u64::MAX)
    }

    /// Returns true if sending on `slow` would take window from `fast`.
    fn would_block(&self, view: &ConnectionView<'_>, fast: &PathView, slow: &PathView) -> bool {
        let window = view.window_bytes.saturating_add(view.unacked_bytes);
        let slow_bytes = slow.in_flight_bytes.saturating_add(slow.queued_bytes);
        let slow_bytes = slow_bytes.saturating_add(u64::from(slow.mss_bytes));
        self.predicted_bytes(fast, self.ack_delay(slow)) > window.saturating_sub(slow_bytes)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Scheduler for Blest {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        self.record_srtts(view);
        // If the fastest path has no room, the best one with room is the slow path.
        let fastest_with_room = fastest(eligible(view).filter(|path| path.room_bytes > 0));
        let (Some(slow), Some(fast)) = (fastest_with_room, fastest(eligible(view))) else {
            return Decision::Idle;
        };
        if slow.id != fast.id {
            self.adapt(view.now, slow);
            if self.would_block(view, fast, slow) {
                return Decision::Wait { until: Some(view.now + fast.srtt) };
            }
        }
        Decision::send_or_idle(Some(slow))
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::WindowBlocked => self.window_was_full = true,
            SchedulerEvent::Opened { path } | SchedulerEvent::Closed { path } => {
                self.srtt_ranges.remove(&path);
            }
            SchedulerEvent::Sent { .. }
            | SchedulerEvent::Acked { .. }
            | SchedulerEvent::Lost { .. }
            | SchedulerEvent::Timeout { .. } => {}
        }
    }
}
