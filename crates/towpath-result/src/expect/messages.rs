//! Expectations about messages: reply delays, video playback and page loads.

use super::MetricUnit;
use crate::{DelayStats, FlowSummary, MessageStats};

/// Metric of message flows. Over several flows and directions, the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageMetric {
    /// `delay.p50` and other percentiles: seconds.
    Delay(Percentile),
    /// `unanswered`: requests without a reply, of all flows together.
    Unanswered,
    /// `video.startup`: seconds; infinite if playback never started.
    VideoStartup,
    /// `video.stalls`: number of stalls, of all videos together.
    VideoStalls,
    /// `video.rebuffer`: seconds spent rebuffering.
    VideoRebuffer,
    /// `web.load`: seconds; infinite if the page never loaded completely.
    WebLoad,
}

/// Percentile of a delay distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Percentile {
    /// Median, the 50th percentile.
    P50,
    /// Value at the 90th percentile.
    P90,
    /// Value at the 99th percentile.
    P99,
    /// Value at the 99.9th percentile.
    P999,
    /// Maximum of the distribution.
    Max,
}

impl Percentile {
    pub(super) fn of(self, delays: &DelayStats) -> u64 {
        match self {
            Self::P50 => delays.p50_ns,
            Self::P90 => delays.p90_ns,
            Self::P99 => delays.p99_ns,
            Self::P999 => delays.p999_ns,
            Self::Max => delays.max_ns,
        }
    }
}

impl MessageMetric {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "delay.p50" => Self::Delay(Percentile::P50),
            "delay.p90" => Self::Delay(Percentile::P90),
            "delay.p99" => Self::Delay(Percentile::P99),
            "delay.p999" => Self::Delay(Percentile::P999),
            "delay.max" => Self::Delay(Percentile::Max),
            "unanswered" => Self::Unanswered,
            "video.startup" => Self::VideoStartup,
            "video.stalls" => Self::VideoStalls,
            "video.rebuffer" => Self::VideoRebuffer,
            "web.load" => Self::WebLoad,
            _ => return None,
        })
    }

    pub(super) fn unit(self) -> MetricUnit {
        match self {
            Self::Delay(_) | Self::VideoStartup | Self::VideoRebuffer | Self::WebLoad => {
                MetricUnit::Time
            }
            Self::Unanswered | Self::VideoStalls => MetricUnit::Count,
        }
    }

    pub(super) fn value(self, flows: &[FlowSummary]) -> Option<f64> {
        let message_stats: Vec<_> =
            flows.iter().filter_map(|flow| flow.messages.as_ref()).collect();
        let videos = || message_stats.iter().filter_map(|messages| messages.video);
        let sum = |counts: &mut dyn Iterator<Item = u64>| {
            counts.map(|amount| amount as f64).reduce(|sum, count| sum + count)
        };
        match self {
            Self::Delay(percentile) => {
                let with_requests = message_stats.iter().filter(|messages| messages.count > 0);
                max_seconds(with_requests.map(|messages| Some(percentile.of(&messages.delay))))
            }
            Self::Unanswered => {
                sum(&mut message_stats.iter().map(|messages| messages.unanswered()))
            }
            Self::VideoStartup => max_seconds(videos().map(|video| video.startup_ns)),
            Self::VideoStalls => sum(&mut videos().map(|video| u64::from(video.stalls))),
            Self::VideoRebuffer => max_seconds(videos().map(|video| Some(video.rebuffer_ns))),
            Self::WebLoad => max_seconds(
                message_stats.iter().filter_map(|messages| messages.page).map(|page| page.load_ns),
            ),
        }
    }
}

impl MessageStats {
    /// Returns the number of requests without a reply.
    pub fn unanswered(&self) -> u64 {
        self.count.saturating_sub(self.answered)
    }
}

/// Returns the maximum time in seconds; `None` entries count as infinite.
fn max_seconds(times: impl Iterator<Item = Option<u64>>) -> Option<f64> {
    let seconds = times.map(|time| time.map_or(f64::INFINITY, |nanos| nanos as f64 / 1e9));
    seconds.reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use towpath_scenario::DataDirection;

    use super::*;
    use crate::{PageStats, Stall, VideoStats};

    fn flow(messages: Option<MessageStats>) -> FlowSummary {
        FlowSummary {
            flow: 0,
            direction: DataDirection::Up,
            bytes: 1_000,
            duration_ns: 1_000_000_000,
            goodput_bps: 8_000.0,
            completed: true,
            failure: None,
            connect_ns: None,
            stall: Stall::default(),
            recoveries: vec![],
            congestion_control: vec![],
            retransmissions: 0,
            stack: None,
            messages,
            datagrams: None,
        }
    }

    #[test]
    fn the_worst_direction_counts_and_one_without_requests_does_not() {
        let stats_with = |p99_ns, answered| MessageStats {
            count: 10,
            answered,
            delay: DelayStats { p99_ns, ..DelayStats::default() },
            ..MessageStats::default()
        };
        let flows = [
            flow(Some(stats_with(30_000_000, 10))),
            flow(Some(stats_with(410_000_000, 8))),
            flow(Some(MessageStats::default())),
            flow(None),
        ];
        let value = |name| MessageMetric::parse(name).unwrap().value(&flows);
        assert_eq!(value("delay.p99"), Some(0.41));
        assert_eq!(value("unanswered"), Some(2.0));
        assert_eq!((value("video.stalls"), value("web.load")), (None, None));
    }

    #[test]
    fn replies_that_never_arrive_miss_every_bound() {
        let video = VideoStats { stalls: 2, rebuffer_ns: 500_000_000, ..VideoStats::default() };
        let page = PageStats { load_ns: None };
        let messages = MessageStats { video: Some(video), page: Some(page), ..Default::default() };
        let flows = [flow(Some(messages))];
        let value = |name| MessageMetric::parse(name).unwrap().value(&flows);
        assert_eq!(
            (value("video.startup"), value("web.load")),
            (Some(f64::INFINITY), Some(f64::INFINITY))
        );
        assert_eq!((value("video.stalls"), value("video.rebuffer")), (Some(2.0), Some(0.5)));
    }
}
