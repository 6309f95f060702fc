//! Compared metrics, under the names that expectations use.

use towpath_result::expect::{Metric, MetricInputs, MetricUnit};
use towpath_result::store::StoredRun;

use self::BetterDirection::{Less, More};

/// Direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BetterDirection {
    More,
    Less,
}

impl BetterDirection {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::More => "higher is better",
            Self::Less => "lower is better",
        }
    }
}

/// A metric of a run, all its flows taken together.
#[derive(Debug)]
pub(crate) struct RunMetric {
    /// Metric name as in `[expect]`.
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// Short sentence that explains the metric.
    pub(crate) about: &'static str,
    pub(crate) better: BetterDirection,
    /// Set for metrics of bulk transfers. Message flows send only as much as their pattern needs.
    pub(crate) of_transfers: bool,
}

const fn run_metric(
    name: &'static str,
    label: &'static str,
    about: &'static str,
    better: BetterDirection,
) -> RunMetric {
    RunMetric { name, label, about, better, of_transfers: false }
}

/// All metrics, in the order in which they are shown.
pub(crate) static METRICS: [RunMetric; 14] = [
    RunMetric {
        of_transfers: true,
        ..run_metric("goodput", "Goodput", "bytes that the receivers read, over the time", More)
    },
    run_metric("delay.p50", "Delay, median", "from due time to reply", Less),
    run_metric("delay.p90", "Delay, 90 %", "from due time to reply", Less),
    run_metric("delay.p99", "Delay, 99 %", "from due time to reply", Less),
    run_metric("delay.p999", "Delay, 99.9 %", "from due time to reply", Less),
    run_metric("delay.max", "Delay, max", "from due time to reply", Less),
    run_metric(
        "video.startup",
        "Startup delay",
        "from the request to play to the first frame",
        Less,
    ),
    run_metric("video.rebuffer", "Rebuffer time", "time for which playback was stopped", Less),
    run_metric("web.load", "Page load time", "until all objects of the page had arrived", Less),
    run_metric(
        "stall.longest",
        "Longest stall",
        "longest time without a byte at the receiver",
        Less,
    ),
    run_metric("stall.total", "Total stall time", "sum of all gaps of 100 ms and more", Less),
    run_metric(
        "recovery",
        "Recovery to 90 %",
        "from the slowest event until goodput was back (t90)",
        Less,
    ),
    run_metric("connect", "Connect time", "until the connection was open", Less),
    run_metric("cpu_per_gb", "CPU per GB", "processor time of both ends for 10⁹ bytes", Less),
];

impl RunMetric {
    fn metric(&self) -> Option<Metric> {
        Metric::parse(self.name)
    }

    /// Returns the value in base units. `None` if it was not measured, infinite for never.
    pub(crate) fn value(&self, run: &StoredRun) -> Option<f64> {
        self.metric()?.value(&MetricInputs::from(run.summary.as_ref()?))
    }

    pub(crate) fn unit(&self) -> MetricUnit {
        self.metric().map_or(MetricUnit::Count, |metric| metric.unit())
    }

    pub(crate) fn text(&self, value: f64) -> String {
        self.unit().text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compared_value_is_a_metric() {
        for metric in &METRICS {
            assert!(metric.metric().is_some(), "{}", metric.name);
        }
    }
}
