//! Early end of slow start, before packets are lost: `HyStart++` (RFC 9406), and the variant of
//! Linux's CUBIC ([`linux`]).

mod linux;

use std::time::Duration;

use super::AckSample;

pub(super) use linux::LinuxHyStart;

/// Samples that a round needs before its round-trip time counts.
const N_RTT_SAMPLE: u32 = 8;
/// Bounds of the growth of the round-trip time that ends slow start (`MIN_RTT_THRESH`,
/// `MAX_RTT_THRESH`).
const RTT_THRESH_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(4), Duration::from_millis(16));
/// Growth by this fraction of the round-trip time ends slow start, within the bounds above.
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
    /// Smallest round-trip time of the previous round.
    last_round_min_rtt: Option<Duration>,
    /// Smallest round-trip time of this round.
    round_min_rtt: Option<Duration>,
    /// Round-trip time samples of this round.
    samples: u32,
    css: Option<ConservativeSlowStart>,
}

/// Conservative slow start: the round-trip time that caused it, and its number of completed rounds.
#[derive(Debug, Clone, Copy)]
struct ConservativeSlowStart {
    baseline_rtt: Duration,
    ended_rounds: u32,
}

impl HyStart {
    /// Growth divisor of conservative slow start (RFC 9406's `CSS_GROWTH_DIVISOR`).
    pub(super) const CSS_GROWTH_DIVISOR: u64 = 4;

    /// Processes an acknowledgement in slow start (RFC 9406 §4.2).
    pub(super) fn on_ack(&mut self, sample: &AckSample) -> SlowStartMode {
        if let Some(rtt) = sample.rtt {
            self.round_min_rtt = Some(self.round_min_rtt.map_or(rtt, |least| least.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            self.check_round_rtt();
        }
        if sample.round_ended {
            self.end_round();
        }
        match self.css {
            None => SlowStartMode::Exponential,
            Some(css) if css.ended_rounds >= CSS_ROUNDS => SlowStartMode::Exit,
            Some(_) => SlowStartMode::Conservative,
        }
    }

    fn check_round_rtt(&mut self) {
        let Some(round_min_rtt) = self.round_min_rtt else { return };
        match (self.css, self.last_round_min_rtt) {
            (None, Some(last_round_min_rtt)) => {
                let threshold = (last_round_min_rtt / MIN_RTT_DIVISOR)
                    .clamp(RTT_THRESH_BOUNDS.0, RTT_THRESH_BOUNDS.1);
                if round_min_rtt >= last_round_min_rtt.saturating_add(threshold) {
                    self.css = Some(ConservativeSlowStart {
                        baseline_rtt: round_min_rtt,
                        ended_rounds: 0,
                    });
                }
            }
            // The delay has gone again: it was jitter, not a queue.
            (Some(css), _) if round_min_rtt < css.baseline_rtt => self.css = None,
            (Some(_), _) | (None, None) => {}
        }
    }

    fn end_round(&mut self) {
        if let Some(css) = &mut self.css {
            css.ended_rounds = css.ended_rounds.saturating_add(1);
        }
        self.last_round_min_rtt = self.round_min_rtt;
        self.round_min_rtt = None;
        self.samples = 0;
    }
}
