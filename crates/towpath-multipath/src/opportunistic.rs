//! Reactions to a slow path whose data blocks the connection: opportunistic retransmission (M1) and
//! penalisation (M2). They are two independent switches (Raiciu et al., NSDI 2012, §4.2).
//!
//! M1 reinjects the oldest data on the path that could send now. M2 halves the window of the path
//! that holds that data, which also ends its slow start. It does so at most once per round trip of
//! that path. Both help against a slower path only. (The path that could send now may well be the
//! slow one, when the fast one's window is full.)
//!
//! mptcp.org's later versions restrict both. M1 requires that the slow path has at most four
//! packets of window or more than four times the srtt. M2 acts at most once per round trip of the
//! fast path and does not end slow start. It requires that the slow path is not in recovery. When
//! the send buffer is the limit, M2 also requires that the application is waiting for it.

use std::fmt;

use towpath_net::Instant;

use crate::path::{ConnectionView, DataRange, PathId, PathSet, PathView, RecoveryPhase};

/// M1 always relieves a slow path with at most this window.
const SMALL_WINDOW_PACKETS: u64 = 4;
/// Ratio of the two smoothed round-trip times above which M1 acts.
const SLOWDOWN_RATIO: u32 = 4;

/// Condition under which a switch acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpportunisticMode {
    /// The switch is never active.
    #[default]
    Off,
    /// As in the paper: whenever data that a slower path holds up blocks the connection.
    Nsdi12,
    /// As in mptcp.org's later versions, with its guards.
    MptcpOrg,
}

/// Modes of M1 and M2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpportunisticConfig {
    /// M1: opportunistic retransmission on the fast path.
    pub retransmission: OpportunisticMode,
    /// M2: penalisation of the slow path.
    pub penalisation: OpportunisticMode,
}

/// Reason for sending no new data although a path has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockReason {
    /// The peer's connection-level window is full.
    Window,
    /// The send buffer is full of sent data and holds nothing new.
    SendBuffer,
}

/// Actions that M1 and M2 request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpportunisticActions {
    /// M1: reinject this range on this path.
    pub retransmit: Option<(PathId, DataRange)>,
    /// M2: halve the congestion window of this path.
    pub penalise: Option<PathId>,
}

/// State of M1 and M2 for one connection.
#[derive(Debug, Clone, Default)]
pub struct Opportunistic {
    config: OpportunisticConfig,
    /// Times of the last penalties, by the path whose round trips limit them: the slow one (paper)
    /// or the fast one (mptcp.org).
    last_penalties: Vec<(PathId, Instant)>,
}

impl Opportunistic {
    /// Creates the state for these modes.
    pub fn new(config: OpportunisticConfig) -> Self {
        Self { config, last_penalties: Vec::new() }
    }

    /// Returns true if both switches are off.
    pub fn is_off(&self) -> bool {
        self.config == OpportunisticConfig::default()
    }

    /// Returns true if the window that M2 leaves is also the new slow start threshold.
    pub fn ends_slow_start(&self) -> bool {
        self.config.penalisation == OpportunisticMode::Nsdi12
    }

    /// Decides when no new data can be sent because of `reason`; `fast` is the path that the
    /// scheduler would use now.
    pub fn on_blocked(
        &mut self,
        view: &ConnectionView<'_>,
        reason: BlockReason,
        fast: PathId,
    ) -> OpportunisticActions {
        let (Some(fast), Some((head, sent_on))) = (view.path(fast), view.head) else {
            return OpportunisticActions::default();
        };
        OpportunisticActions {
            retransmit: self.retransmit(view, fast, head, sent_on),
            penalise: self.penalise(view, reason, fast, sent_on),
        }
    }

    fn retransmit(
        &self,
        view: &ConnectionView<'_>,
        fast: &PathView,
        head: DataRange,
        sent_on: PathSet,
    ) -> Option<(PathId, DataRange)> {
        let worthwhile = match self.config.retransmission {
            OpportunisticMode::Off => false,
            OpportunisticMode::Nsdi12 => {
                slowest_holder(view, fast, sent_on).is_some_and(|slow| slow.srtt > fast.srtt)
            }
            OpportunisticMode::MptcpOrg => {
                slowest_holder(view, fast, sent_on).is_some_and(|slow| {
                    let small_window_bytes =
                        SMALL_WINDOW_PACKETS.saturating_mul(u64::from(slow.mss_bytes));
                    slow.cwnd_bytes <= small_window_bytes
                        || slow.srtt > fast.srtt.saturating_mul(SLOWDOWN_RATIO)
                })
            }
        };
        // Do not reinject on the same path: its own recovery repairs the loss.
        if !worthwhile || sent_on.contains(fast.id) || fast.room_bytes == 0 {
            return None;
        }
        let bytes = head.bytes.min(fast.room_bytes.max(u64::from(fast.mss_bytes)));
        Some((fast.id, DataRange { bytes, ..head }))
    }

    fn penalise(
        &mut self,
        view: &ConnectionView<'_>,
        reason: BlockReason,
        fast: &PathView,
        sent_on: PathSet,
    ) -> Option<PathId> {
        let slow = slowest_holder(view, fast, sent_on)?;
        let (justified, period_path) = match self.config.penalisation {
            OpportunisticMode::Off => return None,
            OpportunisticMode::Nsdi12 => (is_slower(slow, fast), slow),
            OpportunisticMode::MptcpOrg => {
                let really_blocked = reason == BlockReason::Window || view.send_buffer_full;
                (really_blocked && slow.srtt > fast.srtt && slow.phase == RecoveryPhase::Open, fast)
            }
        };
        (justified && self.is_due(view.now, period_path)).then(|| {
            self.last_penalties.retain(|(path, _)| *path != period_path.id);
            self.last_penalties.push((period_path.id, view.now));
            slow.id
        })
    }

    /// Returns true if a round trip of `period_path` has passed since the last penalty.
    fn is_due(&self, now: Instant, period_path: &PathView) -> bool {
        let last_penalty = self.last_penalties.iter().find(|(path, _)| *path == period_path.id);
        last_penalty
            .is_none_or(|(_, penalised_at)| now.saturating_since(*penalised_at) >= period_path.srtt)
    }
}

/// Returns true if `slow` has less throughput than `fast`, by window per round-trip time.
fn is_slower(slow: &PathView, fast: &PathView) -> bool {
    // Both rates are multiplied by both round-trip times, which avoids a division.
    let scaled_rate = |path: &PathView, other: &PathView| {
        u128::from(path.cwnd_bytes).saturating_mul(other.srtt.as_nanos())
    };
    scaled_rate(slow, fast) < scaled_rate(fast, slow)
}

/// Returns the slowest path that has sent the oldest data, except `fast`.
fn slowest_holder<'a>(
    view: &ConnectionView<'a>,
    fast: &PathView,
    sent_on: PathSet,
) -> Option<&'a PathView> {
    let holders = view.paths.iter().filter(|path| path.id != fast.id && sent_on.contains(path.id));
    holders.max_by_key(|path| (path.srtt, path.id))
}

impl fmt::Display for OpportunisticMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Nsdi12 => "nsdi12",
            Self::MptcpOrg => "mptcp-org",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scheduler::fixture::{ConnectionFixture, path};

    const FAST: PathId = PathId(0);
    const SLOW: PathId = PathId(1);
    const HEAD: DataRange = DataRange { start: 50, bytes: 3_000 };

    /// Wi-Fi at 20 ms and 3G at 150 ms, which had the oldest data.
    fn blocked_connection() -> ConnectionFixture {
        let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 150)]);
        fixture.head = Some((HEAD, PathSet::only(SLOW)));
        fixture
    }

    fn with_both_modes(mode: OpportunisticMode) -> Opportunistic {
        Opportunistic::new(OpportunisticConfig { retransmission: mode, penalisation: mode })
    }

    fn on_blocked(
        mode: OpportunisticMode,
        fixture: &ConnectionFixture,
        reason: BlockReason,
    ) -> OpportunisticActions {
        with_both_modes(mode).on_blocked(&fixture.view(), reason, FAST)
    }

    #[test]
    fn both_variants_retransmit_the_head_and_penalise_the_path_that_holds_it() {
        let expected =
            OpportunisticActions { retransmit: Some((FAST, HEAD)), penalise: Some(SLOW) };
        for mode in [OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg] {
            assert_eq!(
                on_blocked(mode, &blocked_connection(), BlockReason::Window),
                expected,
                "{mode}"
            );
        }
        assert_eq!(
            on_blocked(OpportunisticMode::Off, &blocked_connection(), BlockReason::Window),
            OpportunisticActions::default()
        );
    }

    #[test]
    fn the_switches_are_independent() {
        let (off, on) = (OpportunisticMode::Off, OpportunisticMode::Nsdi12);
        let mut only_m1 =
            Opportunistic::new(OpportunisticConfig { retransmission: on, penalisation: off });
        let mut only_m2 =
            Opportunistic::new(OpportunisticConfig { retransmission: off, penalisation: on });
        let (m1, m2) = (
            only_m1.on_blocked(&blocked_connection().view(), BlockReason::Window, FAST),
            only_m2.on_blocked(&blocked_connection().view(), BlockReason::Window, FAST),
        );
        assert_eq!(m1, OpportunisticActions { retransmit: Some((FAST, HEAD)), penalise: None });
        assert_eq!(m2, OpportunisticActions { retransmit: None, penalise: Some(SLOW) });
    }

    #[test]
    fn m1_does_not_retransmit_data_on_the_same_path() {
        let mut fixture = blocked_connection();
        fixture.head = Some((HEAD, PathSet::only(SLOW).with(FAST)));
        for mode in [OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg] {
            assert_eq!(on_blocked(mode, &fixture, BlockReason::Window).retransmit, None);
        }
    }

    #[test]
    fn no_action_when_the_fast_path_holds_the_data_and_has_no_room() {
        let mut fixture = blocked_connection();
        fixture.head = Some((HEAD, PathSet::only(FAST)));
        fixture.paths[0].room_bytes = 0;
        for mode in [OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg] {
            let actions =
                with_both_modes(mode).on_blocked(&fixture.view(), BlockReason::Window, SLOW);
            assert_eq!(actions, OpportunisticActions::default(), "{mode}");
        }
    }

    #[test]
    fn m1_fills_the_window_and_sends_at_least_a_packet() {
        for (room, expected_bytes) in
            [(0, None), (10, Some(1_000)), (2_000, Some(2_000)), (9_000, Some(3_000))]
        {
            let mut fixture = blocked_connection();
            fixture.paths[0].room_bytes = room;
            let reinjection =
                on_blocked(OpportunisticMode::Nsdi12, &fixture, BlockReason::Window).retransmit;
            assert_eq!(
                reinjection.map(|(_, range)| range.bytes),
                expected_bytes,
                "room for {room}"
            );
        }
    }

    #[test]
    fn m1_is_guarded_by_four_times_the_srtt_or_four_packets() {
        for (srtt_ms, packets, guarded_acts) in [(80, 10, false), (81, 10, true), (80, 4, true)] {
            let mut fixture = blocked_connection();
            fixture.paths[1].srtt = Duration::from_millis(srtt_ms);
            fixture.paths[1].cwnd_bytes = packets * 1_000;
            let [paper, guarded] = [OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
                .map(|mode| on_blocked(mode, &fixture, BlockReason::Window).retransmit.is_some());
            assert_eq!((paper, guarded), (true, guarded_acts), "{srtt_ms} ms, {packets} packets");
        }
    }

    #[test]
    fn m2_is_guarded_by_srtt_phase_and_a_send_buffer_that_is_really_full() {
        type Change = fn(&mut ConnectionFixture);
        let equal_srtt =
            |fixture: &mut ConnectionFixture| fixture.paths[1].srtt = Duration::from_millis(20);
        let recovering =
            |fixture: &mut ConnectionFixture| fixture.paths[1].phase = RecoveryPhase::Recovery;
        let unchanged = |_: &mut ConnectionFixture| {};
        let buffer_full = |fixture: &mut ConnectionFixture| fixture.send_buffer_full = true;
        let cases: [(Change, BlockReason, [bool; 2]); 5] = [
            (unchanged, BlockReason::Window, [true, true]),
            (equal_srtt, BlockReason::Window, [false, false]),
            (recovering, BlockReason::Window, [true, false]),
            (unchanged, BlockReason::SendBuffer, [true, false]),
            (buffer_full, BlockReason::SendBuffer, [true, true]),
        ];
        for (case, (change, reason, expected)) in cases.into_iter().enumerate() {
            let mut fixture = blocked_connection();
            change(&mut fixture);
            let [paper, guarded] = [OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
                .map(|mode| on_blocked(mode, &fixture, reason).penalise.is_some());
            assert_eq!([paper, guarded], expected, "case {case}");
        }
    }

    #[test]
    fn m2_acts_once_in_a_round_trip_of_the_slow_path_and_later_of_the_fast_one() {
        for (mode, period_ms) in
            [(OpportunisticMode::Nsdi12, 150), (OpportunisticMode::MptcpOrg, 20)]
        {
            let mut opportunistic = with_both_modes(mode);
            let mut fixture = blocked_connection();
            let mut times = Vec::new();
            for ms in 0..3 * period_ms {
                fixture.now = Instant::ZERO + Duration::from_millis(ms);
                let actions = opportunistic.on_blocked(&fixture.view(), BlockReason::Window, FAST);
                times.extend(actions.penalise.map(|_| ms));
            }
            assert_eq!(times, [0, period_ms, 2 * period_ms], "{mode}");
        }
    }

    #[test]
    fn no_action_without_outstanding_data_on_the_slow_path() {
        let mut fixture = blocked_connection();
        fixture.head = None;
        assert_eq!(
            on_blocked(OpportunisticMode::Nsdi12, &fixture, BlockReason::Window),
            OpportunisticActions::default()
        );
        fixture.head = Some((HEAD, PathSet::only(FAST)));
        assert_eq!(
            on_blocked(OpportunisticMode::Nsdi12, &fixture, BlockReason::Window),
            OpportunisticActions::default()
        );
        assert_eq!(
            with_both_modes(OpportunisticMode::Nsdi12).on_blocked(
                &blocked_connection().view(),
                BlockReason::Window,
                PathId(9)
            ),
            OpportunisticActions::default()
        );
    }
}
