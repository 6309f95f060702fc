//! Expectations about constant-rate datagrams.

use super::MetricUnit;
use crate::{DatagramStats, DelayStats, FlowSummary};

/// Metric of `udp` or `call`. Over several flows and directions, the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramMetric {
    /// `udp.lost`: share of sent datagrams that did not arrive, 0 to 1.
    Lost,
    /// `udp.burst`: maximum number lost in a row.
    Burst,
    /// `udp.jitter`: mean jitter in seconds.
    Jitter,
    /// `udp.delay.p99`: one-way delay in seconds; requires comparable clocks.
    Delay,
    /// `udp.variation.p99`: one-way delay minus its minimum, in seconds.
    Variation,
    /// `call.score`: mean opinion score of the call.
    Score,
    /// `call.frames`: share of frames complete in time, 0 to 1.
    Frames,
}

impl DatagramMetric {
    /// Returns the metric with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "udp.lost" => Self::Lost,
            "udp.burst" => Self::Burst,
            "udp.jitter" => Self::Jitter,
            "udp.delay.p99" => Self::Delay,
            "udp.variation.p99" => Self::Variation,
            "call.score" => Self::Score,
            "call.frames" => Self::Frames,
            _ => return None,
        })
    }

    pub(super) fn unit(self) -> MetricUnit {
        match self {
            Self::Lost | Self::Frames => MetricUnit::Share,
            Self::Burst => MetricUnit::Count,
            Self::Score => MetricUnit::Score,
            Self::Jitter | Self::Delay | Self::Variation => MetricUnit::Time,
        }
    }

    pub(super) fn value(self, flows: &[FlowSummary]) -> Option<f64> {
        let metric_value = |stats: &DatagramStats| {
            let p99 = |delays: Option<DelayStats>| delays.map(|delays| delays.p99_ns as f64 / 1e9);
            match self {
                Self::Lost => Some(stats.lost_share()),
                Self::Burst => Some(stats.longest_loss_run as f64),
                Self::Jitter => Some(stats.jitter_mean_ns as f64 / 1e9),
                Self::Delay => p99(stats.delay),
                Self::Variation => p99(stats.variation),
                Self::Score => stats.call.as_ref()?.score,
                Self::Frames => {
                    let call = stats.call.as_ref().filter(|call| call.score.is_none())?;
                    Some(1.0 - call.unplayed_share())
                }
            }
        };
        let values = flows.iter().filter_map(|flow| metric_value(flow.datagrams.as_ref()?));
        match self {
            Self::Score | Self::Frames => values.min_by(f64::total_cmp),
            Self::Lost | Self::Burst | Self::Jitter | Self::Delay | Self::Variation => {
                values.max_by(f64::total_cmp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_name_and_other_names_are_refused() {
        let udp_names =
            ["udp.lost", "udp.burst", "udp.jitter", "udp.delay.p99", "udp.variation.p99"];
        for name in udp_names.into_iter().chain(["call.score", "call.frames"]) {
            assert!(DatagramMetric::parse(name).is_some(), "{name}");
        }
        for name in ["udp.", "udp.delay", "udp.lost.wifi", "call.", "call.lost"] {
            assert_eq!(DatagramMetric::parse(name), None);
        }
        assert_eq!(DatagramMetric::Lost.value(&[]), None);
    }
}
