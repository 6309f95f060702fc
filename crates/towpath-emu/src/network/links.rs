//! Links of the scenario, as for simulated runs, except those that the sending host's kernel
//! shapes.

use std::time::Duration;

use towpath_net::config::{DirectionConfig, Queue, QueueLimit, QueuePosition, Shaper};
use towpath_netlink::Tbf;

pub(crate) use towpath_scenario::network::{LinkDirections, split, topology};

/// Returns the kernel shaper for a queue at the sending host.
///
/// `None` for queues in the network, and for shapers that the kernel lacks.
pub(crate) fn host_shaper(config: &DirectionConfig, mtu_bytes: u32) -> Option<Tbf> {
    if config.position != QueuePosition::Host {
        return None;
    }
    let packet = u64::from(mtu_bytes) + u64::from(config.overhead_bytes);
    let (rate, burst) = match config.shaper {
        // tbf needs a bucket; two packets are the minimum for the full rate.
        Shaper::Line(rate) => (rate, 2 * packet),
        Shaper::TokenBucket { rate, burst_bytes } => (rate, burst_bytes.max(packet)),
        Shaper::Unlimited | Shaper::Htb { .. } | Shaper::Trace(_) => return None,
    };
    let limit = match config.queue {
        Queue::DropTail(QueueLimit::Bytes(bytes)) => bytes,
        Queue::DropTail(QueueLimit::Packets(packets)) => packets.saturating_mul(packet),
        Queue::DropTail(QueueLimit::Time(span)) => rate.bytes_in(span) + burst,
        Queue::DropTail(QueueLimit::Unlimited) => rate.bytes_in(Duration::from_secs(60)),
        Queue::CoDel { .. } | Queue::Pie { .. } => return None,
    };
    let clamp = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    Some(Tbf { rate, burst_bytes: clamp(burst), limit_bytes: clamp(limit) })
}
