//! ECF, earliest completion first (Lim et al., `CoNEXT` 2017, algorithm 1). The slow path is
//! skipped when the fast one, now full, would complete everything earlier.
//!
//! With `k` bytes to send, `δ` the larger of both deviations and `waiting` 0 or 1: wait if `(1 + k
//! / cwnd_f) · rtt_f < (1 + waiting · β) · (rtt_s + δ)` and `k / cwnd_s · rtt_s ≥ 2 rtt_f + δ`;
//! both quotients are at least 1, as in mptcp.org's version.

use std::time::Duration;

use super::eligible::{eligible, fastest};
use super::{Decision, Scheduler};
use crate::path::{ConnectionView, PathView};

/// 1/β. β is the relative advantage that the slow path needs before waiting ends.
const INVERSE_BETA: u128 = 4;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ecf {
    /// True if the last comparison decided to wait (hysteresis).
    waiting: bool,
}

impl Ecf {
    fn should_wait(&mut self, unsent_bytes: u64, fast: &PathView, slow: &PathView) -> bool {
        let [k, cwnd_f, cwnd_s] =
            [unsent_bytes, fast.cwnd_bytes.max(1), slow.cwnd_bytes.max(1)].map(u128::from);
        // Nanoseconds below 2⁴⁰ and bytes below 2⁶⁴: no product overflows.
        let nanos = |time: Duration| time.as_nanos().min(1 << 40);
        let delta = nanos(fast.rttvar.max(slow.rttvar));

        // Both sides of the two inequalities are multiplied by the windows, which avoids divisions.
        let fast_completion = nanos(fast.srtt) * (k.max(cwnd_f) + cwnd_f);
        let slow_completion = cwnd_f * (nanos(slow.srtt) + delta);
        let margin = INVERSE_BETA + u128::from(self.waiting);
        if fast_completion * INVERSE_BETA >= slow_completion * margin {
            self.waiting = false;
            return false;
        }
        let slow_duration = nanos(slow.srtt) * k.max(cwnd_s);
        let wait_duration = cwnd_s * (2 * nanos(fast.srtt) + delta);
        let should_wait = slow_duration >= wait_duration;
        self.waiting |= should_wait;
        should_wait
    }
}

impl Scheduler for Ecf {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        // If the fastest path has no room, the best one with room is the slow path.
        let fastest_with_room = fastest(eligible(view).filter(|path| path.room_bytes > 0));
        let (Some(slow), Some(fast)) = (fastest_with_room, fastest(eligible(view))) else {
            return Decision::Idle;
        };
        if slow.id != fast.id && self.should_wait(view.unsent_bytes, fast, slow) {
            return Decision::Wait { until: Some(view.now + fast.srtt) };
        }
        Decision::send_or_idle(Some(slow))
    }
}
