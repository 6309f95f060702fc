//! Expectations about paths, measured by echo datagrams.

use super::{MetricUnit, Percentile};
use crate::PathStats;

/// Metric of one path. Over several flows, the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMetric {
    /// `udping.lost.PATH`: share of datagrams without an echo, 0 to 1.
    Lost,
    /// `udping.p50.PATH` and other percentiles: seconds from due time to echo.
    Delay(Percentile),
    /// `udping.silence.PATH`: seconds of the longest silence.
    Silence,
}

impl PathMetric {
    /// Returns the metric and its path.
    pub(super) fn parse(name: &str) -> Option<(Self, String)> {
        let (metric, path) = name.strip_prefix("udping.")?.split_once('.')?;
        let metric = match metric {
            "lost" => Self::Lost,
            "p50" => Self::Delay(Percentile::P50),
            "p99" => Self::Delay(Percentile::P99),
            "max" => Self::Delay(Percentile::Max),
            "silence" => Self::Silence,
            _ => return None,
        };
        (!path.is_empty()).then(|| (metric, path.to_owned()))
    }

    pub(super) fn unit(self) -> MetricUnit {
        match self {
            Self::Lost => MetricUnit::Share,
            Self::Delay(_) | Self::Silence => MetricUnit::Time,
        }
    }

    pub(super) fn value(self, path: &str, paths: &[PathStats]) -> Option<f64> {
        let metric_value = |stats: &PathStats| match self {
            Self::Lost => stats.lost() as f64 / stats.count.max(1) as f64,
            Self::Delay(percentile) => percentile.of(&stats.delay) as f64 / 1e9,
            Self::Silence => stats.silence_ns as f64 / 1e9,
        };
        paths.iter().filter(|stats| stats.path == path).map(metric_value).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DelayStats;

    #[test]
    fn a_path_is_measured_by_its_own_datagrams_and_by_the_worst_flow() {
        let path_stats = |path: &str, answered, silence_ns| PathStats {
            path: path.into(),
            count: 100,
            answered,
            silence_ns,
            delay: DelayStats {
                p50_ns: 30_000_000,
                max_ns: 3_000_000_000,
                ..DelayStats::default()
            },
            ..PathStats::default()
        };
        let paths = [
            path_stats("wifi", 90, 7),
            path_stats("wifi", 60, 2_000_000_000),
            path_stats("lte", 100, 0),
        ];
        let value = |name: &str| {
            let (metric, path) = PathMetric::parse(name).unwrap();
            metric.value(&path, &paths)
        };
        assert_eq!(value("udping.lost.wifi"), Some(0.4));
        assert_eq!(value("udping.silence.wifi"), Some(2.0));
        assert_eq!(value("udping.p50.lte"), Some(0.03));
        assert_eq!(value("udping.max.lte"), Some(3.0));
        assert_eq!(value("udping.lost.eth"), None);
        for name in ["udping.lost", "udping.lost.", "udping.p51.wifi", "lost.wifi"] {
            assert_eq!(PathMetric::parse(name), None);
        }
    }
}
