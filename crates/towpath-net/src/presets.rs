//! Directions as familiar tools configure them, with the kernel's rules, defaults and limits.
//!
//! The position of the queue decides results. A plain `tbf` at the sending host pushes back on its
//! sockets ([`QueuePosition::Host`]). netem returns a packet's memory to the socket before
//! transmission (`skb_orphan_partial`). The sender therefore never notices a queue with netem
//! ([`QueuePosition::Network`]). Change `position` for a qdisc on a router.

use std::sync::Arc;
use std::time::Duration;

use crate::Rate;
use crate::config::{
    Delay, DirectionConfig, Jitter, LinkTrace, Loss, PipelineOrder, Queue, QueueLimit,
    QueuePosition, Shaper,
};

/// Mininet's `burst 15k`; `tc`'s k is 1,024.
const MININET_HTB_BURST_BYTES: u64 = 15 * 1_024;
/// Mininet's `burst 15000` for tbf.
pub const MININET_TBF_BURST_BYTES: u64 = 15_000;
/// Default of `tc` for HTB's `burst` and `cburst`.
pub const TC_HTB_BURST_BYTES: u64 = 1_600;
/// netem's default `limit`; also the default queue length of a veth.
pub const DEFAULT_LIMIT_PACKETS: usize = 1_000;
/// Mahimahi counts the TUN header instead of the Ethernet header.
const TUN_HEADER_BYTES: u32 = 4;

/// `tc qdisc add … root tbf rate … burst … latency …`, at the sending host.
///
/// The limit is rate · latency + burst. A packet leaves when the tokens cover it; an idle link
/// passes a whole burst at once. Packets larger than the burst are dropped.
pub fn tbf(rate: Rate, burst_bytes: u64, latency: Duration) -> DirectionConfig {
    DirectionConfig {
        shaper: Shaper::TokenBucket { rate, burst_bytes },
        queue: Queue::DropTail(QueueLimit::Time(latency)),
        position: QueuePosition::Host,
        ..DirectionConfig::default()
    }
}

/// `tc qdisc add … root netem delay … loss … limit …`, without back-pressure on the sender.
///
/// `limit` counts every packet that is still delayed; with jitter that may reorder, packets leave
/// in order of their times.
pub fn netem(
    delay: Duration,
    jitter: Option<Jitter>,
    loss: Loss,
    limit_packets: usize,
) -> DirectionConfig {
    DirectionConfig {
        loss,
        limit_packets: Some(limit_packets),
        delay: Delay { base: delay, jitter, rate: None },
        ..DirectionConfig::default()
    }
}

/// An HTB class with `tc`'s default bursts and netem as its child, without back-pressure on the
/// sender.
///
/// netem delays first, HTB then paces what is due; `limit_packets` counts both together.
pub fn htb_netem(rate: Rate, delay: Duration, limit_packets: usize) -> DirectionConfig {
    DirectionConfig {
        order: PipelineOrder::DelayThenServer,
        limit_packets: Some(limit_packets),
        shaper: Shaper::Htb {
            rate,
            burst_bytes: TC_HTB_BURST_BYTES,
            cburst_bytes: TC_HTB_BURST_BYTES,
        },
        delay: Delay { base: delay, ..Delay::default() },
        ..DirectionConfig::default()
    }
}

/// A link of Mininet's `TCLink` with `bw`, `delay`, `max_queue_size` and `use_tbf`.
///
/// A delay or a queue size adds a netem child, without back-pressure on the sender. netem replaces
/// tbf's own queue, so Mininet's `latency_ms` has no effect. `max_queue` (default 1,000) then
/// bounds delayed and waiting packets together. Without both, the queue is HTB's default of 1,000
/// packets or tbf's of 30,000 bytes, and is at the host.
pub fn mininet(
    rate: Rate,
    delay: Duration,
    max_queue: Option<usize>,
    use_tbf: bool,
) -> DirectionConfig {
    let shaper = if use_tbf {
        Shaper::TokenBucket { rate, burst_bytes: MININET_TBF_BURST_BYTES }
    } else {
        Shaper::Htb { rate, burst_bytes: MININET_HTB_BURST_BYTES, cburst_bytes: TC_HTB_BURST_BYTES }
    };
    if delay.is_zero() && max_queue.is_none() {
        let limit = if use_tbf {
            // Mininet's default latency is the time of 15,000 bytes.
            QueueLimit::Bytes(2 * MININET_TBF_BURST_BYTES)
        } else {
            QueueLimit::Packets(DEFAULT_LIMIT_PACKETS as u64)
        };
        let queue = Queue::DropTail(limit);
        return DirectionConfig {
            shaper,
            queue,
            position: QueuePosition::Host,
            ..Default::default()
        };
    }
    DirectionConfig {
        order: PipelineOrder::DelayThenServer,
        limit_packets: Some(max_queue.unwrap_or(DEFAULT_LIMIT_PACKETS)),
        shaper,
        delay: Delay { base: delay, ..Delay::default() },
        ..DirectionConfig::default()
    }
}

/// `mm-delay` around `mm-link`, in the network: the queue, the trace, then the delay.
pub fn mahimahi(trace: Arc<LinkTrace>, delay: Duration, queue: Queue) -> DirectionConfig {
    DirectionConfig {
        shaper: Shaper::Trace(trace),
        queue,
        delay: Delay { base: delay, ..Delay::default() },
        overhead_bytes: TUN_HEADER_BYTES,
        ..DirectionConfig::default()
    }
}
