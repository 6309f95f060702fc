//! Maps the keys of a link to its link model, by the exact rules of each tool.

use std::sync::Arc;
use std::time::Duration;

use towpath_net::config::{
    Delay, DirectionConfig, Jitter, JitterDistribution, LinkTrace, Loss, PipelineOrder,
    Probability, Queue, QueueLimit, QueuePosition, Shaper, WhenDown,
};
use towpath_net::{Rate, presets};

/// Default droptail limit of a link with a rate.
const DEFAULT_QUEUE: Duration = Duration::from_millis(100);
/// Maximum rate: larger ones would give a trace of more than a million lines.
const MAHIMAHI_MAX_BPS: u64 = 1_000_000_000;

/// Keys of one direction, as parsed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DirectionKeys {
    pub(super) preset: Option<Preset>,
    pub(super) rate: Option<RateSource>,
    pub(super) delay: Duration,
    pub(super) jitter: Option<JitterKeys>,
    pub(super) loss: Loss,
    pub(super) duplicate: Probability,
    pub(super) corrupt: Probability,
    pub(super) queue: Option<QueueKeys>,
    pub(super) position: Option<QueuePosition>,
    pub(super) overhead_bytes: Option<u32>,
    pub(super) mtu_bytes: u32,
    pub(super) when_down: WhenDown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preset {
    Tbf,
    Netem,
    HtbNetem,
    Mininet,
    Mahimahi,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum RateSource {
    Rate(Rate),
    Trace(Arc<LinkTrace>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JitterKeys {
    pub(super) distribution: JitterDistribution,
    pub(super) sd: Duration,
    pub(super) reorder: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueKeys {
    /// Plain droptail limit, which a preset may adopt.
    Limit(QueueLimit),
    Tbf {
        burst_bytes: u64,
        limit: QueueLimit,
    },
    Htb {
        burst_bytes: Option<u64>,
        cburst_bytes: Option<u64>,
        limit_packets: Option<u64>,
    },
    CoDel {
        target: Duration,
        interval: Duration,
        limit: QueueLimit,
    },
    Pie {
        target: Duration,
        update: Duration,
        limit: QueueLimit,
    },
}

/// Conflicting keys: the key to mark, the problem, and the expected input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyConflict {
    pub(super) key: &'static str,
    pub(super) message: &'static str,
    pub(super) expected: &'static str,
}

const fn clash<T>(
    key: &'static str,
    message: &'static str,
    expected: &'static str,
) -> Result<T, KeyConflict> {
    Err(KeyConflict { key, message, expected })
}

/// A queue without a rate, which can never fill.
pub(super) const QUEUE_WITHOUT_RATE: KeyConflict = KeyConflict {
    key: "queue",
    message: "a link without `rate` never queues",
    expected: "add a `rate`, or remove it",
};

/// Builds the configuration of one link direction.
pub(super) fn assemble(parts: &DirectionKeys) -> Result<DirectionConfig, KeyConflict> {
    let mut config = DirectionConfig {
        loss: parts.loss,
        duplicate: parts.duplicate,
        corrupt: parts.corrupt,
        position: parts.position.unwrap_or(QueuePosition::Network),
        delay: Delay { base: parts.delay, jitter: None, rate: None },
        mtu_bytes: parts.mtu_bytes,
        when_down: parts.when_down,
        ..DirectionConfig::default()
    };
    match parts.preset {
        None => plain_router(parts, &mut config)?,
        Some(preset) => {
            let limit = match parts.queue {
                None => None,
                Some(QueueKeys::Limit(limit)) => Some(limit),
                Some(_) => {
                    return clash(
                        "queue",
                        "the preset already says which kind of queue it is",
                        "expected only its limit, such as `80 ms` or `100 packets`",
                    );
                }
            };
            apply(preset, parts, limit, &mut config)?;
        }
    }
    // With its own rate, netem keeps packets in order despite jitter; without it, it reorders.
    let netem = matches!(parts.preset, Some(Preset::Netem | Preset::HtbNetem | Preset::Mininet));
    config.delay.jitter = parts.jitter.map(|jitter| Jitter {
        distribution: jitter.distribution,
        sd: jitter.sd,
        reorder: jitter.reorder.unwrap_or(netem && config.delay.rate.is_none()),
    });
    config.overhead_bytes = parts.overhead_bytes.unwrap_or(config.overhead_bytes);
    Ok(config)
}

/// Model of a plain router: queue and shaper, then delay.
fn plain_router(parts: &DirectionKeys, config: &mut DirectionConfig) -> Result<(), KeyConflict> {
    let Some(server) = &parts.rate else {
        return match parts.queue {
            None | Some(QueueKeys::Limit(QueueLimit::Unlimited)) => Ok(()),
            Some(_) => Err(QUEUE_WITHOUT_RATE),
        };
    };
    config.shaper = match server {
        RateSource::Rate(rate) => Shaper::Line(*rate),
        RateSource::Trace(trace) => Shaper::Trace(Arc::clone(trace)),
    };
    match parts.queue {
        None => config.queue = Queue::DropTail(QueueLimit::Time(DEFAULT_QUEUE)),
        Some(QueueKeys::Limit(limit)) => config.queue = Queue::DropTail(limit),
        Some(QueueKeys::CoDel { target, interval, limit }) => {
            config.queue = Queue::CoDel { target, interval, limit };
        }
        Some(QueueKeys::Pie { target, update, limit }) => {
            config.queue = Queue::Pie { target, update, limit };
        }
        Some(QueueKeys::Tbf { burst_bytes, limit }) => {
            config.shaper = Shaper::TokenBucket { rate: constant(parts)?, burst_bytes };
            config.queue = Queue::DropTail(limit);
        }
        Some(QueueKeys::Htb { burst_bytes, cburst_bytes, limit_packets }) => {
            let burst_bytes = burst_bytes.unwrap_or(presets::TC_HTB_BURST_BYTES);
            let cburst_bytes = cburst_bytes.unwrap_or(presets::TC_HTB_BURST_BYTES);
            config.shaper = Shaper::Htb { rate: constant(parts)?, burst_bytes, cburst_bytes };
            config.order = PipelineOrder::DelayThenServer;
            let packets = limit_packets.and_then(|n| usize::try_from(n).ok());
            config.limit_packets = Some(packets.unwrap_or(presets::DEFAULT_LIMIT_PACKETS));
        }
    }
    Ok(())
}

/// Models a tool with the given rate, delay and queue limit.
fn apply(
    preset: Preset,
    parts: &DirectionKeys,
    limit: Option<QueueLimit>,
    config: &mut DirectionConfig,
) -> Result<(), KeyConflict> {
    match preset {
        Preset::Tbf => {
            // limit = rate × latency + burst (as tc computes it), or bytes.
            let limit = limit.unwrap_or(QueueLimit::Time(DEFAULT_QUEUE));
            if matches!(limit, QueueLimit::Packets(_) | QueueLimit::Unlimited) {
                return clash(
                    "queue",
                    "tbf limits its queue by time or by bytes",
                    "expected a limit such as `80 ms` or `100 KB`",
                );
            }
            let burst_bytes = presets::MININET_TBF_BURST_BYTES;
            let base = presets::tbf(constant(parts)?, burst_bytes, DEFAULT_QUEUE);
            adopt(config, DirectionConfig { queue: Queue::DropTail(limit), ..base });
        }
        Preset::Netem => {
            require_network_position(parts)?;
            adopt(config, presets::netem(parts.delay, None, Loss::None, netem_limit(limit)?));
            if parts.rate.is_some() {
                config.delay.rate = Some(constant(parts)?);
            }
        }
        Preset::HtbNetem => {
            require_network_position(parts)?;
            let limit = netem_limit(limit)?;
            adopt(config, presets::htb_netem(constant(parts)?, parts.delay, limit));
        }
        Preset::Mininet => {
            require_network_position(parts)?;
            let limit = netem_limit(limit)?;
            adopt(config, presets::mininet(constant(parts)?, parts.delay, Some(limit), false));
        }
        Preset::Mahimahi => mahimahi(parts, limit, config)?,
    }
    Ok(())
}

/// Adopts the properties that a tool determines; the rest follows the keys.
fn adopt(config: &mut DirectionConfig, tool: DirectionConfig) {
    config.order = tool.order;
    config.shaper = tool.shaper;
    config.queue = tool.queue;
    config.limit_packets = tool.limit_packets;
    config.overhead_bytes = tool.overhead_bytes;
    config.delay.rate = tool.delay.rate;
}

/// mm-link inside mm-delay: delivery opportunities of 1,504 bytes, unlimited queue by default.
fn mahimahi(
    parts: &DirectionKeys,
    limit: Option<QueueLimit>,
    config: &mut DirectionConfig,
) -> Result<(), KeyConflict> {
    require_network_position(parts)?;
    let trace = match &parts.rate {
        Some(RateSource::Trace(trace)) => Arc::clone(trace),
        Some(RateSource::Rate(rate)) if rate.as_bps() > MAHIMAHI_MAX_BPS => {
            return clash(
                "rate",
                "this is too fast for a mahimahi trace",
                "expected at most 1 Gbit/s, or a trace file",
            );
        }
        Some(RateSource::Rate(rate)) => Arc::new(LinkTrace::of_rate(*rate)),
        None => return no_rate(),
    };
    let limit = limit.unwrap_or(QueueLimit::Unlimited);
    if matches!(limit, QueueLimit::Time(_)) {
        return clash(
            "queue",
            "mahimahi limits its queue by packets or by bytes",
            "expected a limit such as `50 packets` or `100 KB`",
        );
    }
    adopt(config, presets::mahimahi(trace, parts.delay, Queue::DropTail(limit)));
    Ok(())
}

/// netem's limit counts packets, both delayed and waiting; the default is 1,000.
fn netem_limit(limit: Option<QueueLimit>) -> Result<usize, KeyConflict> {
    match limit {
        None => Ok(presets::DEFAULT_LIMIT_PACKETS),
        Some(QueueLimit::Packets(packets)) => Ok(usize::try_from(packets).unwrap_or(usize::MAX)),
        Some(QueueLimit::Time(_) | QueueLimit::Bytes(_) | QueueLimit::Unlimited) => clash(
            "queue",
            "netem limits its queue by packets",
            "expected a limit such as `100 packets`",
        ),
    }
}

/// netem orphans packets from the sender's socket, so no queue below it causes backpressure.
fn require_network_position(parts: &DirectionKeys) -> Result<(), KeyConflict> {
    match parts.position {
        None | Some(QueuePosition::Network) => Ok(()),
        Some(QueuePosition::Host) => clash(
            "queue-position",
            "this preset never pushes back on the sender, wherever it stands",
            "expected no `queue-position`, or `network`",
        ),
    }
}

fn constant(parts: &DirectionKeys) -> Result<Rate, KeyConflict> {
    match &parts.rate {
        Some(RateSource::Rate(rate)) => Ok(*rate),
        Some(RateSource::Trace(_)) => {
            clash("rate", "this kind of queue cannot follow a trace", "expected a constant rate")
        }
        None => no_rate(),
    }
}

fn no_rate<T>() -> Result<T, KeyConflict> {
    clash("preset", "this preset needs a `rate`", "add one, such as `rate = \"40 Mbit/s\"`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(preset: Option<Preset>) -> DirectionKeys {
        DirectionKeys {
            preset,
            rate: Rate::from_bps(8_000_000).map(RateSource::Rate),
            delay: Duration::from_millis(75),
            jitter: None,
            loss: Loss::None,
            duplicate: Probability::NEVER,
            corrupt: Probability::NEVER,
            queue: None,
            position: None,
            overhead_bytes: None,
            mtu_bytes: u32::MAX,
            when_down: WhenDown::Drop,
        }
    }

    fn jitter() -> JitterKeys {
        let sd = Duration::from_millis(2);
        JitterKeys { distribution: JitterDistribution::Pareto, sd, reorder: None }
    }

    #[test]
    fn a_rate_without_queue_gets_a_tenth_of_a_second() {
        let config = assemble(&parts(None)).unwrap();
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Time(Duration::from_millis(100))));
        assert_eq!(config.shaper, Shaper::Line(Rate::from_bps(8_000_000).unwrap()));
        assert_eq!((config.order, config.overhead_bytes), (PipelineOrder::ServerThenDelay, 14));
    }

    #[test]
    fn mininet_is_htb_above_netem_with_a_thousand_packets() {
        let config = assemble(&parts(Some(Preset::Mininet))).unwrap();
        let rate = Rate::from_bps(8_000_000).unwrap();
        let htb = Shaper::Htb { rate, burst_bytes: 15_360, cburst_bytes: 1_600 };
        assert_eq!((config.shaper, config.order), (htb, PipelineOrder::DelayThenServer));
        assert_eq!(config.limit_packets, Some(1_000));
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Unlimited));
    }

    #[test]
    fn netem_serialises_in_its_delay_line_and_then_keeps_the_order() {
        let mut with_rate = parts(Some(Preset::Netem));
        with_rate.jitter = Some(jitter());
        with_rate.queue = Some(QueueKeys::Limit(QueueLimit::Packets(50)));
        let config = assemble(&with_rate).unwrap();
        assert_eq!(config.delay.rate, Rate::from_bps(8_000_000));
        assert_eq!((config.shaper, config.limit_packets), (Shaper::Unlimited, Some(50)));
        assert!(!config.delay.jitter.unwrap().reorder);
        let without_rate = DirectionKeys { rate: None, ..with_rate };
        assert!(assemble(&without_rate).unwrap().delay.jitter.unwrap().reorder);
    }

    #[test]
    fn tbf_starts_with_a_bucket_of_ten_packets_and_adds_latency() {
        let mut tbf = parts(Some(Preset::Tbf));
        tbf.queue = Some(QueueKeys::Limit(QueueLimit::Time(Duration::from_millis(80))));
        tbf.position = Some(QueuePosition::Host);
        let config = assemble(&tbf).unwrap();
        let rate = Rate::from_bps(8_000_000).unwrap();
        assert_eq!(config.shaper, Shaper::TokenBucket { rate, burst_bytes: 15_000 });
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Time(Duration::from_millis(80))));
        assert_eq!(config.position, QueuePosition::Host);
    }

    #[test]
    fn mahimahi_has_opportunities_and_no_limit() {
        let config = assemble(&parts(Some(Preset::Mahimahi))).unwrap();
        assert!(matches!(config.shaper, Shaper::Trace(_)));
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Unlimited));
        assert_eq!(config.overhead_bytes, 4);
    }

    #[test]
    fn settings_that_a_tool_does_not_support_are_refused() {
        let refuse = |preset, limit| {
            let mut parts = parts(Some(preset));
            parts.queue = Some(QueueKeys::Limit(limit));
            assemble(&parts).unwrap_err().key
        };
        assert_eq!(refuse(Preset::Netem, QueueLimit::Bytes(1_000)), "queue");
        assert_eq!(refuse(Preset::Tbf, QueueLimit::Packets(10)), "queue");
        assert_eq!(refuse(Preset::Mahimahi, QueueLimit::Time(DEFAULT_QUEUE)), "queue");
        let host =
            DirectionKeys { position: Some(QueuePosition::Host), ..parts(Some(Preset::Netem)) };
        assert_eq!(assemble(&host).unwrap_err().key, "queue-position");
        let ideal = DirectionKeys { rate: None, ..parts(Some(Preset::Tbf)) };
        assert_eq!(assemble(&ideal).unwrap_err().key, "preset");
    }
}
