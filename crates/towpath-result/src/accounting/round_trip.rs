//! Longest possible round trip over a link, when nothing limits the senders.

use std::time::Duration;

use towpath_net::config::{DirectionConfig, Queue, QueueLimit};
use towpath_scenario::{DataDirection, Scenario};

use super::capacity::AccountedLink;

/// Longest queueing delay considered; a longer queue does not fill within most runs.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(2);
/// Size of a full Ethernet frame, for queues that count packets.
const PACKET_BYTES: u64 = 1_514;

/// Returns the longest round trip over the link: all delays, plus its full queue.
pub(super) fn max_round_trip(scenario: &Scenario, link: &AccountedLink) -> Duration {
    let path_delay = |path: &usize| {
        let path = scenario.paths.get(*path)?;
        let through = path.through.iter().filter_map(|index| scenario.bottlenecks.get(*index));
        let bottleneck_delays = through.map(|item| item.up.delay.base + item.down.delay.base);
        Some(path.up.delay.base + path.down.delay.base + bottleneck_delays.sum::<Duration>())
    };
    let delay = link.paths.iter().filter_map(path_delay).max().unwrap_or_default();
    let config = match link.bottleneck {
        Some(index) => scenario.bottlenecks.get(index).map(|item| [&item.up, &item.down]),
        None => { link.paths.first().and_then(|path| scenario.paths.get(*path)) }
            .map(|path| [&path.up, &path.down]),
    };
    let queue = config.map_or(Duration::ZERO, |[up, down]| {
        let config = if link.direction == DataDirection::Down { down } else { up };
        drain_time(config, link.max_rate_bps())
    });
    delay + queue
}

/// Returns the time that a full queue takes to drain. Active queue management counts as zero.
fn drain_time(config: &DirectionConfig, rate_bps: u64) -> Duration {
    let bytes = match config.queue {
        Queue::DropTail(QueueLimit::Time(span)) => return span.min(MAX_QUEUE_TIME),
        Queue::DropTail(QueueLimit::Bytes(bytes)) => bytes,
        Queue::DropTail(QueueLimit::Packets(packets)) => packets.saturating_mul(PACKET_BYTES),
        Queue::DropTail(QueueLimit::Unlimited) => return MAX_QUEUE_TIME,
        Queue::CoDel { .. } | Queue::Pie { .. } => return Duration::ZERO,
    };
    let seconds = bytes as f64 * 8.0 / rate_bps.max(1) as f64;
    Duration::from_secs_f64(seconds.min(MAX_QUEUE_TIME.as_secs_f64()))
}
