//! Reply delays of request-reply flows.

use towpath_net::Instant;
use towpath_scenario::{DataDirection, Pattern};

use super::Histogram;
use super::playout::Playout;
use crate::{DelayStats, Message, MessageStats, PageStats};

/// Returns the metrics of one direction's requests; `None` without any request. Requests without a
/// reply count as waiting until `until`.
pub fn message_stats(
    messages: &[Message],
    direction: DataDirection,
    pattern: &Pattern,
    until: Instant,
) -> Option<MessageStats> {
    let requests: Vec<_> =
        messages.iter().filter(|m| m.direction == direction && !m.warm_up).copied().collect();
    let until_ns = until.as_nanos();
    let delay_ns = |m: &Message, end_ns: u64| end_ns.saturating_sub(m.due_ns);
    let delay = delays(
        requests.iter().map(|m| delay_ns(m, m.answered_ns.unwrap_or(until_ns.max(m.due_ns)))),
    )?;
    let first_due =
        Instant::from_nanos(requests.iter().map(|m| m.due_ns).min().unwrap_or_default());
    let mut reply_times: Vec<_> = requests.iter().filter_map(|m| m.answered_ns).collect();
    reply_times.sort_unstable();
    let video = match pattern {
        Pattern::Video(video) => {
            let mut playout = Playout::new(video.plan(), first_due);
            for reply_ns in &reply_times {
                playout.segment(Instant::from_nanos(*reply_ns));
            }
            Some(playout.finish(until))
        }
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Exchange(_)
        | Pattern::Web(_)
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => None,
    };
    let page = match pattern {
        Pattern::Web(web) => {
            // One reply for the page itself, and one for each object.
            let is_complete = reply_times.len() as u64 > u64::from(web.objects);
            let last_reply = reply_times.last().filter(|_| is_complete);
            let load_ns =
                last_reply.map(|last_reply| last_reply.saturating_sub(first_due.as_nanos()));
            Some(PageStats { load_ns })
        }
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Exchange(_)
        | Pattern::Video(_)
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => None,
    };
    Some(MessageStats {
        count: requests.len() as u64,
        answered: reply_times.len() as u64,
        delay,
        delivery: delays(requests.iter().filter_map(|m| Some(delay_ns(m, m.delivered_ns?)))),
        reply: delays(requests.iter().filter_map(|m| Some(delay_ns(m, m.replied_ns?)))),
        video,
        page,
        phases: Vec::new(),
    })
}

/// Returns the distribution of some times; `None` without any.
pub fn delays(nanos: impl Iterator<Item = u64>) -> Option<DelayStats> {
    let mut histogram = Histogram::default();
    // Welford's method: a sum of squared nanoseconds would lose significant digits.
    let (mut count, mut mean, mut squared_sum, mut min) = (0.0_f64, 0.0_f64, 0.0_f64, u64::MAX);
    for value in nanos {
        histogram.record(value);
        count += 1.0;
        min = min.min(value);
        let difference = value as f64 - mean;
        mean += difference / count;
        squared_sum += difference * (value as f64 - mean);
    }
    let std_dev = if count > 1.0 { (squared_sum / (count - 1.0)).max(0.0).sqrt() } else { 0.0 };
    (count > 0.0).then(|| DelayStats {
        mean_ns: mean.round() as u64,
        stddev_ns: std_dev.round() as u64,
        min_ns: min,
        p50_ns: histogram.percentile(50.0),
        p90_ns: histogram.percentile(90.0),
        p95_ns: histogram.percentile(95.0),
        p99_ns: histogram.percentile(99.0),
        p999_ns: histogram.percentile(99.9),
        max_ns: histogram.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_a_hundred_have_the_expected_distribution() {
        let delays = delays((1..=100).map(|n| n * 10)).unwrap();
        assert_eq!((delays.min_ns, delays.max_ns, delays.mean_ns), (10, 1_000, 505));
        // Standard deviation of 10, 20, …, 1000.
        assert_eq!(delays.stddev_ns, 290);
        assert!(delays.p50_ns.abs_diff(500) < 5 && delays.p999_ns.abs_diff(1_000) < 8);
        assert_eq!(super::delays(std::iter::empty()), None);
    }
}
