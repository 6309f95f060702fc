//! Early end of slow start, before packets are lost: `HyStart++` (RFC 9406), and the variant of
//! Linux's CUBIC ([`linux`]).

mod linux;

use std::time::Duration;

use super::AckSample;

pub(super) use linux::LinuxHyStart;

/// Samples that a round needs before its delay counts (`N_RTT_SAMPLE`).
const N_RTT_SAMPLE: u32 = 8;
/// Bounds of the delay that counts as growth (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`).
const RTT_THRESH_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(4), Duration::from_millis(16));
/// Growth by this part of the round-trip time counts (`MIN_RTT_DIVISOR`).
const MIN_RTT_DIVISOR: u32 = 8;
/// Rounds of conservative slow start before congestion avoidance (`CSS_ROUNDS`).
const CSS_ROUNDS: u32 = 5;

/// Rule that ends slow start early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HyStartRule {
    /// No rule: slow start continues until packets are lost.
    #[default]
    Off,
    /// `HyStart++` (RFC 9406), with every control.
    Rfc9406,
    /// Linux's `HyStart` of 2008 (Ha and Rhee), with CUBIC only.
    Linux,
}

/// Growth of the window in slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlowStartMode {
    /// Growth by the acknowledged bytes.
    Exponential,
    /// Conservative slow start: growth by a quarter of the acknowledged bytes.
    Conservative,
    /// No growth: congestion avoidance begins.
    Exit,
}

/// The rounds of the first slow start of a path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HyStart {
    /// Smallest round-trip time of the round before this one.
    last: Option<Duration>,
    /// Smallest round-trip time of this round.
    current: Option<Duration>,
    samples: u32,
    slow: Option<ConservativeSlowStart>,
}

/// Conservative slow start: the round-trip time that caused it, and its number of completed rounds.
#[derive(Debug, Clone, Copy)]
struct ConservativeSlowStart {
    baseline: Duration,
    ended: u32,
}

impl HyStart {
    /// Growth divisor of conservative slow start (RFC 9406's `CSS_GROWTH_DIVISOR`).
    pub(super) const CSS_GROWTH_DIVISOR: u64 = 4;

    /// Processes an acknowledgement in slow start (RFC 9406 §4.2).
    pub(super) fn on_ack(&mut self, sample: &AckSample) -> SlowStartMode {
        if let Some(rtt) = sample.rtt {
            self.current = Some(self.current.map_or(rtt, |least| least.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            self.check_round_rtt();
        }
        if sample.round_ended {
            self.end_round();
        }
        match self.slow {
            None => SlowStartMode::Exponential,
            Some(slow) if slow.ended >= CSS_ROUNDS => SlowStartMode::Exit,
            Some(_) => SlowStartMode::Conservative,
        }
    }

    fn check_round_rtt(&mut self) {
        let Some(current) = self.current else { return };
        match (self.slow, self.last) {
            (None, Some(last)) => {
                let growth =
                    (last / MIN_RTT_DIVISOR).clamp(RTT_THRESH_BOUNDS.0, RTT_THRESH_BOUNDS.1);
                if current >= last.saturating_add(growth) {
                    self.slow = Some(ConservativeSlowStart { baseline: current, ended: 0 });
                }
            }
            // The delay has gone again: it was jitter, not a queue.
            (Some(slow), _) if current < slow.baseline => self.slow = None,
            (Some(_), _) | (None, None) => {}
        }
    }

    fn end_round(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.ended = slow.ended.saturating_add(1);
        }
        self.last = self.current;
        self.current = None;
        self.samples = 0;
    }
}
