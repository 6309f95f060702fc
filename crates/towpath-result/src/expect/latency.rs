//! Expectations about latency under load.

use towpath_scenario::Load;

use super::MetricUnit;
use crate::FlowSummary;

/// Metric of `latency` under a load. Over several flows, the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyMetric {
    /// `latency.rise.down` and other loads: seconds above the idle latency.
    Rise(Load),
    /// `latency.rpm.down` and other loads: round trips per minute.
    RoundTripsPerMinute(Load),
}

impl LatencyMetric {
    /// Returns the metric with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (metric, load) = name.strip_prefix("latency.")?.split_once('.')?;
        let load = match load {
            "down" => Load::Down,
            "up" => Load::Up,
            "both" => Load::Both,
            _ => return None,
        };
        match metric {
            "rise" => Some(Self::Rise(load)),
            "rpm" => Some(Self::RoundTripsPerMinute(load)),
            _ => None,
        }
    }

    pub(super) fn unit(self) -> MetricUnit {
        match self {
            Self::Rise(_) => MetricUnit::Time,
            Self::RoundTripsPerMinute(_) => MetricUnit::Count,
        }
    }

    pub(super) fn value(self, flows: &[FlowSummary]) -> Option<f64> {
        let (Self::Rise(load) | Self::RoundTripsPerMinute(load)) = self;
        let messages = flows.iter().filter_map(|flow| flow.messages.as_ref());
        let load_phases =
            messages.flat_map(|stats| &stats.phases).filter(|phase| phase.load == load);
        match self {
            Self::Rise(_) => {
                let increases = load_phases
                    .filter_map(|phase| phase.delay_increase_ns)
                    .map(|ns| ns as f64 / 1e9);
                increases.max_by(f64::total_cmp)
            }
            Self::RoundTripsPerMinute(_) => {
                load_phases.filter_map(|phase| phase.round_trips_per_minute).min_by(f64::total_cmp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_metrics_have_names_and_other_names_are_refused() {
        assert_eq!(LatencyMetric::parse("latency.rise.up"), Some(LatencyMetric::Rise(Load::Up)));
        assert_eq!(
            LatencyMetric::parse("latency.rpm.both"),
            Some(LatencyMetric::RoundTripsPerMinute(Load::Both))
        );
        for name in ["latency.rise", "latency.rise.idle", "latency.p50.down", "latency.rpm."] {
            assert_eq!(LatencyMetric::parse(name), None, "{name}");
        }
        assert_eq!(LatencyMetric::Rise(Load::Down).value(&[]), None);
    }
}
