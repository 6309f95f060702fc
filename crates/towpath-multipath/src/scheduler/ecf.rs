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

/// β is one fourth: the advantage that the slow path needs before waiting ends.
const INVERSE_BETA: u128 = 4;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ecf {
    waiting: bool,
}

impl Ecf {
    fn waits(&mut self, unsent: u64, fast: &PathView, slow: &PathView) -> bool {
        let [k, cwnd_f, cwnd_s] =
            [unsent, fast.cwnd_bytes.max(1), slow.cwnd_bytes.max(1)].map(u128::from);
        // Nanoseconds below 2⁴⁰ and bytes below 2⁶⁴: no product overflows.
        let nanos = |time: Duration| time.as_nanos().min(1 << 40);
        let delta = nanos(fast.rttvar.max(slow.rttvar));

        let by_fast = nanos(fast.srtt) * (k.max(cwnd_f) + cwnd_f);
        let by_slow = cwnd_f * (nanos(slow.srtt) + delta);
        let margin = INVERSE_BETA + u128::from(self.waiting);
        if by_fast * INVERSE_BETA >= by_slow * margin {
            self.waiting = false;
            return false;
        }
        let slow_needs = nanos(slow.srtt) * k.max(cwnd_s);
        let pause = cwnd_s * (2 * nanos(fast.srtt) + delta);
        let waits = slow_needs >= pause;
        self.waiting |= waits;
        waits
    }
}

impl Scheduler for Ecf {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let best = fastest(eligible(view).filter(|path| path.room_bytes > 0));
        let (Some(slow), Some(fast)) = (best, fastest(eligible(view))) else {
            return Decision::Idle;
        };
        if slow.id != fast.id && self.waits(view.unsent_bytes, fast, slow) {
            return Decision::Wait { until: Some(view.now + fast.srtt) };
        }
        Decision::send_or_idle(Some(slow))
    }
}
