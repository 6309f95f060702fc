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

const fn conflict<T>(
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
pub(super) fn assemble(keys: &DirectionKeys) -> Result<DirectionConfig, KeyConflict> {
    let mut config = DirectionConfig {
        loss: keys.loss,
        duplicate: keys.duplicate,
        corrupt: keys.corrupt,
        position: keys.position.unwrap_or(QueuePosition::Network),
        delay: Delay { base: keys.delay, jitter: None, rate: None },
        mtu_bytes: keys.mtu_bytes,
        when_down: keys.when_down,
        ..DirectionConfig::default()
    };
    match keys.preset {
        None => plain_router(keys, &mut config)?,
        Some(preset) => {
            let limit = match keys.queue {
                None => None,
                Some(QueueKeys::Limit(limit)) => Some(limit),
                Some(_) => {
                    return conflict(
                        "queue",
                        "the preset already says which kind of queue it is",
                        "expected only its limit, such as `80 ms` or `100 packets`",
                    );
                }
            };
            apply_preset(preset, keys, limit, &mut config)?;
        }
    }
    // With its own rate, netem keeps packets in order despite jitter; without it, it reorders.
    let is_netem = matches!(keys.preset, Some(Preset::Netem | Preset::HtbNetem | Preset::Mininet));
    config.delay.jitter = keys.jitter.map(|jitter| Jitter {
        distribution: jitter.distribution,
        sd: jitter.sd,
        reorder: jitter.reorder.unwrap_or(is_netem && config.delay.rate.is_none()),
    });
    config.overhead_bytes = keys.overhead_bytes.unwrap_or(config.overhead_bytes);
    Ok(config)
}

/// Model of a plain router: queue and shaper, then delay.
fn plain_router(keys: &DirectionKeys, config: &mut DirectionConfig) -> Result<(), KeyConflict> {
    let Some(rate_source) = &keys.rate else {
        return match keys.queue {
            None | Some(QueueKeys::Limit(QueueLimit::Unlimited)) => Ok(()),
            Some(_) => Err(QUEUE_WITHOUT_RATE),
        };
    };
    config.shaper = match rate_source {
        RateSource::Rate(rate) => Shaper::Line(*rate),
        RateSource::Trace(trace) => Shaper::Trace(Arc::clone(trace)),
    };
    match keys.queue {
        None => config.queue = Queue::DropTail(QueueLimit::Time(DEFAULT_QUEUE)),
        Some(QueueKeys::Limit(limit)) => config.queue = Queue::DropTail(limit),
        Some(QueueKeys::CoDel { target, interval, limit }) => {
            config.queue = Queue::CoDel { target, interval, limit };
        }
        Some(QueueKeys::Pie { target, update, limit }) => {
            config.queue = Queue::Pie { target, update, limit };
        }
        Some(QueueKeys::Tbf { burst_bytes, limit }) => {
            config.shaper = Shaper::TokenBucket { rate: constant_rate(keys)?, burst_bytes };
            config.queue = Queue::DropTail(limit);
        }
        Some(QueueKeys::Htb { burst_bytes, cburst_bytes, limit_packets }) => {
            let burst_bytes = burst_bytes.unwrap_or(presets::TC_HTB_BURST_BYTES);
            let cburst_bytes = cburst_bytes.unwrap_or(presets::TC_HTB_BURST_BYTES);
            config.shaper = Shaper::Htb { rate: constant_rate(keys)?, burst_bytes, cburst_bytes };
            config.order = PipelineOrder::DelayThenServer;
            let packets = limit_packets.and_then(|n| usize::try_from(n).ok());
            config.limit_packets = Some(packets.unwrap_or(presets::DEFAULT_LIMIT_PACKETS));
        }
    }
    Ok(())
}

/// Models a tool with the given rate, delay and queue limit.
fn apply_preset(
    preset: Preset,
    keys: &DirectionKeys,
    limit: Option<QueueLimit>,
    config: &mut DirectionConfig,
) -> Result<(), KeyConflict> {
    match preset {
        Preset::Tbf => {
            // limit = rate × latency + burst (as tc computes it), or bytes.
            let limit = limit.unwrap_or(QueueLimit::Time(DEFAULT_QUEUE));
            if matches!(limit, QueueLimit::Packets(_) | QueueLimit::Unlimited) {
                return conflict(
                    "queue",
                    "tbf limits its queue by time or by bytes",
                    "expected a limit such as `80 ms` or `100 KB`",
                );
            }
            let burst_bytes = presets::MININET_TBF_BURST_BYTES;
            let base = presets::tbf(constant_rate(keys)?, burst_bytes, DEFAULT_QUEUE);
            adopt_tool_settings(config, DirectionConfig { queue: Queue::DropTail(limit), ..base });
        }
        Preset::Netem => {
            require_network_position(keys)?;
            adopt_tool_settings(
                config,
                presets::netem(keys.delay, None, Loss::None, netem_limit(limit)?),
            );
            if keys.rate.is_some() {
                config.delay.rate = Some(constant_rate(keys)?);
            }
        }
        Preset::HtbNetem => {
            require_network_position(keys)?;
            let limit = netem_limit(limit)?;
            adopt_tool_settings(
                config,
                presets::htb_netem(constant_rate(keys)?, keys.delay, limit),
            );
        }
        Preset::Mininet => {
            require_network_position(keys)?;
            let limit = netem_limit(limit)?;
            adopt_tool_settings(
                config,
                presets::mininet(constant_rate(keys)?, keys.delay, Some(limit), false),
            );
        }
        Preset::Mahimahi => mahimahi(keys, limit, config)?,
    }
    Ok(())
}

/// Adopts the properties that a tool determines; the rest follows the keys.
fn adopt_tool_settings(config: &mut DirectionConfig, tool: DirectionConfig) {
    config.order = tool.order;
    config.shaper = tool.shaper;
    config.queue = tool.queue;
    config.limit_packets = tool.limit_packets;
    config.overhead_bytes = tool.overhead_bytes;
    config.delay.rate = tool.delay.rate;
}

/// mm-link inside mm-delay: delivery opportunities of 1,504 bytes, unlimited queue by default.
fn mahimahi(
    keys: &DirectionKeys,
    limit: Option<QueueLimit>,
    config: &mut DirectionConfig,
) -> Result<(), KeyConflict> {
    require_network_position(keys)?;
    let trace = match &keys.rate {
        Some(RateSource::Trace(trace)) => Arc::clone(trace),
        Some(RateSource::Rate(rate)) if rate.as_bps() > MAHIMAHI_MAX_BPS => {
            return conflict(
                "rate",
                "this is too fast for a mahimahi trace",
                "expected at most 1 Gbit/s, or a trace file",
            );
        }
        Some(RateSource::Rate(rate)) => Arc::new(LinkTrace::of_rate(*rate)),
        None => return missing_rate_conflict(),
    };
    let limit = limit.unwrap_or(QueueLimit::Unlimited);
    if matches!(limit, QueueLimit::Time(_)) {
        return conflict(
            "queue",
            "mahimahi limits its queue by packets or by bytes",
            "expected a limit such as `50 packets` or `100 KB`",
        );
    }
    adopt_tool_settings(config, presets::mahimahi(trace, keys.delay, Queue::DropTail(limit)));
    Ok(())
}

/// netem's limit counts packets, both delayed and waiting; the default is 1,000.
fn netem_limit(limit: Option<QueueLimit>) -> Result<usize, KeyConflict> {
    match limit {
        None => Ok(presets::DEFAULT_LIMIT_PACKETS),
        Some(QueueLimit::Packets(packets)) => Ok(usize::try_from(packets).unwrap_or(usize::MAX)),
        Some(QueueLimit::Time(_) | QueueLimit::Bytes(_) | QueueLimit::Unlimited) => conflict(
            "queue",
            "netem limits its queue by packets",
            "expected a limit such as `100 packets`",
        ),
    }
}

/// netem orphans packets from the sender's socket, so no queue below it causes backpressure.
fn require_network_position(keys: &DirectionKeys) -> Result<(), KeyConflict> {
    match keys.position {
        None | Some(QueuePosition::Network) => Ok(()),
        Some(QueuePosition::Host) => conflict(
            "queue-position",
            "this preset never applies back-pressure to the sender, in any position",
            "expected no `queue-position`, or `network`",
        ),
    }
}

fn constant_rate(keys: &DirectionKeys) -> Result<Rate, KeyConflict> {
    match &keys.rate {
        Some(RateSource::Rate(rate)) => Ok(*rate),
        Some(RateSource::Trace(_)) => {
            conflict("rate", "this kind of queue cannot follow a trace", "expected a constant rate")
        }
        None => missing_rate_conflict(),
    }
}

fn missing_rate_conflict<T>() -> Result<T, KeyConflict> {
    conflict("preset", "this preset needs a `rate`", "add one, such as `rate = \"40 Mbit/s\"`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction_keys(preset: Option<Preset>) -> DirectionKeys {
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
        let config = assemble(&direction_keys(None)).unwrap();
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Time(Duration::from_millis(100))));
        assert_eq!(config.shaper, Shaper::Line(Rate::from_bps(8_000_000).unwrap()));
        assert_eq!((config.order, config.overhead_bytes), (PipelineOrder::ServerThenDelay, 14));
    }

    #[test]
    fn mininet_is_htb_above_netem_with_a_thousand_packets() {
        let config = assemble(&direction_keys(Some(Preset::Mininet))).unwrap();
        let rate = Rate::from_bps(8_000_000).unwrap();
        let htb = Shaper::Htb { rate, burst_bytes: 15_360, cburst_bytes: 1_600 };
        assert_eq!((config.shaper, config.order), (htb, PipelineOrder::DelayThenServer));
        assert_eq!(config.limit_packets, Some(1_000));
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Unlimited));
    }

    #[test]
    fn netem_with_a_rate_keeps_packets_in_order() {
        let mut with_rate = direction_keys(Some(Preset::Netem));
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
        let mut tbf = direction_keys(Some(Preset::Tbf));
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
        let config = assemble(&direction_keys(Some(Preset::Mahimahi))).unwrap();
        assert!(matches!(config.shaper, Shaper::Trace(_)));
        assert_eq!(config.queue, Queue::DropTail(QueueLimit::Unlimited));
        assert_eq!(config.overhead_bytes, 4);
    }

    #[test]
    fn settings_that_a_tool_does_not_support_are_refused() {
        let conflicting_key = |preset, limit| {
            let mut keys = direction_keys(Some(preset));
            keys.queue = Some(QueueKeys::Limit(limit));
            assemble(&keys).unwrap_err().key
        };
        assert_eq!(conflicting_key(Preset::Netem, QueueLimit::Bytes(1_000)), "queue");
        assert_eq!(conflicting_key(Preset::Tbf, QueueLimit::Packets(10)), "queue");
        assert_eq!(conflicting_key(Preset::Mahimahi, QueueLimit::Time(DEFAULT_QUEUE)), "queue");
        let host_position = DirectionKeys {
            position: Some(QueuePosition::Host),
            ..direction_keys(Some(Preset::Netem))
        };
        assert_eq!(assemble(&host_position).unwrap_err().key, "queue-position");
        let without_rate = DirectionKeys { rate: None, ..direction_keys(Some(Preset::Tbf)) };
        assert_eq!(assemble(&without_rate).unwrap_err().key, "preset");
    }
}
