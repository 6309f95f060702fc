//! When slow start ends before packets are lost: `HyStart++` (RFC 9406), and what Linux's CUBIC does
//! in its place ([`classic`]).

mod classic;

use std::time::Duration;

use super::AckSample;

pub(super) use classic::Classic;

/// Samples that a round needs to be judged (`N_RTT_SAMPLE`).
const SAMPLES: u32 = 8;
/// Bounds of the delay that counts as growth (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`).
const THRESHOLD: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
/// Growth by this part of the round-trip time counts (`MIN_RTT_DIVISOR`).
const RTT_DIVISOR: u32 = 8;
/// Rounds of conservative slow start before congestion avoidance (`CSS_ROUNDS`).
const SLOW_ROUNDS: u32 = 5;

/// Which rule ends slow start early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HyStartRule {
    /// None: slow start goes on until packets are lost.
    #[default]
    Off,
    /// `HyStart++` (RFC 9406), with every control.
    Rfc9406,
    /// Linux's: `HyStart` of 2008 (Ha and Rhee), with CUBIC only.
    Linux,
}

/// How slow start goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// By what was acknowledged.
    Full,
    /// By a quarter of it: conservative slow start.
    Slow,
    /// Not at all: congestion avoidance begins.
    Leave,
}

/// The rounds of the first slow start of a path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HyStart {
    /// Smallest round-trip time of the round before this one.
    last: Option<Duration>,
    /// Smallest of this round.
    current: Option<Duration>,
    samples: u32,
    slow: Option<SlowRounds>,
}

/// Conservative slow start: the delay that caused it, and for how many rounds it has lasted.
#[derive(Debug, Clone, Copy)]
struct SlowRounds {
    baseline: Duration,
    ended: u32,
}

impl HyStart {
    /// `CSS_GROWTH_DIVISOR`.
    pub(super) const GROWTH_DIVISOR: u64 = 4;

    /// Takes in an acknowledgement in slow start (RFC 9406 §4.2).
    pub(super) fn on_ack(&mut self, sample: &AckSample) -> Pace {
        if let Some(rtt) = sample.rtt {
            self.current = Some(self.current.map_or(rtt, |least| least.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            self.judge();
        }
        if sample.round_ended {
            self.end_round();
        }
        match self.slow {
            None => Pace::Full,
            Some(slow) if slow.ended >= SLOW_ROUNDS => Pace::Leave,
            Some(_) => Pace::Slow,
        }
    }

    fn judge(&mut self) {
        let Some(current) = self.current else { return };
        match (self.slow, self.last) {
            (None, Some(last)) => {
                let growth = (last / RTT_DIVISOR).clamp(THRESHOLD.0, THRESHOLD.1);
                if current >= last.saturating_add(growth) {
                    self.slow = Some(SlowRounds { baseline: current, ended: 0 });
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
