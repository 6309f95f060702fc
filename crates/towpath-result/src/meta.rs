//! First record of a result: the part that the scenario defines.

use towpath_net::Rate;
use towpath_net::config::{DirectionConfig, JitterDistribution, Loss, Queue, QueueLimit, Shaper};
use towpath_scenario::flow_plan::{directions, request_directions, streams};
use towpath_scenario::{DataDirection, Path, Pattern, Scenario, Transport, World};

use crate::format;
use crate::metrics::disruption::describe;
use crate::{Meta, MetaEvent, MetaFlow, MetaPath, SCHEMA_VERSION};

impl Meta {
    /// Builds the record from the scenario; the world adds stack, kernel and conditions.
    pub fn of(
        scenario: &Scenario,
        world: World,
        (transport, repeat): (Transport, u32),
        seed: u64,
    ) -> Self {
        let end = scenario.flows.iter().map(|flow| flow.start + flow.pattern.duration()).max();
        Self {
            schema: SCHEMA_VERSION,
            run: format!("{}-{world}-{transport}-{repeat}", scenario.name),
            scenario: scenario.name.clone(),
            description: scenario.description.clone(),
            scenario_toml: scenario.source.clone(),
            world,
            stack: String::new(),
            transport,
            repeat,
            seed,
            towpath: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: String::new(),
            started_us: None,
            duration_ns: end.unwrap_or_default().as_nanos() as u64,
            sample_ns: scenario.run.sample.as_nanos() as u64,
            congestion_control: scenario.run.congestion_control.clone(),
            hosts: scenario.hosts.iter().map(|host| host.name.clone()).collect(),
            paths: scenario.paths.iter().map(|path| meta_path(scenario, path)).collect(),
            flows: meta_flows(scenario),
            timeline: meta_timeline(scenario),
            order: None,
            conditions: scenario.remarks.clone(),
        }
    }
}

fn meta_path(scenario: &Scenario, path: &Path) -> MetaPath {
    let host =
        |index: usize| scenario.hosts.get(index).map_or_else(String::new, |h| h.name.clone());
    let rate = |config: &DirectionConfig| nominal_rate(config).map(Rate::as_bps);
    let [first, second] = path.between;
    MetaPath {
        name: path.name.clone(),
        between: [host(first), host(second)],
        up_rate_bps: rate(&path.up),
        down_rate_bps: rate(&path.down),
        up_delay_ns: path.up.delay.base.as_nanos() as u64,
        down_delay_ns: path.down.delay.base.as_nanos() as u64,
        backup: path.backup,
        text: path_text(scenario, path),
    }
}

fn nominal_rate(config: &DirectionConfig) -> Option<Rate> {
    match config.shaper {
        Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
            Some(rate)
        }
        Shaper::Unlimited | Shaper::Trace(_) => config.delay.rate,
    }
}

/// Formats a path: `40 Mbit/s, 15 ms, queue 80 ms, through wan (50 Mbit/s, 10 ms, queue 100 ms)`.
pub fn path_text(scenario: &Scenario, path: &Path) -> String {
    let through = path.through.iter().filter_map(|index| scenario.bottlenecks.get(*index));
    let through = through.map(|bottleneck| {
        format!(
            ", through {} ({})",
            bottleneck.name,
            directions_text(&bottleneck.up, &bottleneck.down)
        )
    });
    directions_text(&path.up, &path.down) + &through.collect::<String>()
}

fn directions_text(up: &DirectionConfig, down: &DirectionConfig) -> String {
    let (up, down) = (direction_text(up), direction_text(down));
    if up == down { up } else { format!("up {up}; down {down}") }
}

/// Formats a direction: `40 Mbit/s, 15 ms, queue 80 ms`.
fn direction_text(config: &DirectionConfig) -> String {
    let mut parts = vec![match (&config.shaper, nominal_rate(config)) {
        (Shaper::Trace(trace), _) => match trace.mean_rate() {
            Some(mean) => {
                format!("rate from a trace (mean {})", format::rate(mean.as_bps() as f64))
            }
            None => "rate from a trace".to_owned(),
        },
        (_, Some(rate)) => rate.to_string(),
        (_, None) => "no rate limit".to_owned(),
    }];
    parts.push(delay_text(config));
    let limit = match config.queue {
        Queue::DropTail(limit) => Some(limit).filter(|limit| *limit != QueueLimit::Unlimited),
        Queue::CoDel { limit, .. } | Queue::Pie { limit, .. } => Some(limit),
    };
    parts.extend(limit.map(|limit| match limit {
        QueueLimit::Unlimited => "queue without limit".to_owned(),
        QueueLimit::Bytes(bytes) => format!("queue {}", format::bytes(bytes)),
        QueueLimit::Packets(packets) => format!("queue {packets} packets"),
        QueueLimit::Time(span) => format!("queue {}", format::time(span)),
    }));
    match config.loss {
        Loss::None => {}
        Loss::Random(chance) => parts.push(format!("loss {:.3} %", chance.as_f64() * 100.0)),
        Loss::GilbertElliott { .. } | Loss::Burst { .. } => parts.push("bursty loss".to_owned()),
    }
    parts.join(", ")
}

/// Formats a delay: `15 ms`, `15 ms, jitter 5 ms (normal)`.
fn delay_text(config: &DirectionConfig) -> String {
    let base = format::time(config.delay.base);
    let Some(jitter) = config.delay.jitter else { return base };
    let shape = match jitter.distribution {
        JitterDistribution::Uniform => "uniform",
        JitterDistribution::Normal => "normal",
        JitterDistribution::Pareto => "pareto",
        JitterDistribution::ParetoNormal => "pareto-normal",
    };
    format!("{base}, jitter {} ({shape})", format::time(jitter.sd))
}

fn meta_flows(scenario: &Scenario) -> Vec<MetaFlow> {
    let host =
        |index: usize| scenario.hosts.get(index).map_or_else(String::new, |h| h.name.clone());
    let flows = scenario.flows.iter().enumerate();
    flows
        .map(|(index, flow)| MetaFlow {
            flow: index as u32,
            from: host(flow.from),
            to: host(flow.to),
            pattern: flow.pattern.name().to_owned(),
            direction: match (request_directions(&flow.pattern), directions(&flow.pattern)) {
                ([direction], _) | ([], [direction]) => *direction,
                _ => DataDirection::Both,
            },
            streams: streams(&flow.pattern),
            via: scenario.paths.get(flow.via).map_or_else(String::new, |path| path.name.clone()),
            video: match &flow.pattern {
                Pattern::Video(video) => Some(video.plan()),
                Pattern::Bulk { .. }
                | Pattern::Iperf { .. }
                | Pattern::Exchange(_)
                | Pattern::Web(_)
                | Pattern::Udping(_)
                | Pattern::Udp(_)
                | Pattern::Run { .. } => None,
            },
        })
        .collect()
}

fn meta_timeline(scenario: &Scenario) -> Vec<MetaEvent> {
    let events = scenario.timeline.iter().map(|event| {
        let (target, text) = describe(scenario, event);
        MetaEvent { at_ns: event.at.as_nanos() as u64, target, text }
    });
    events.collect()
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    #[test]
    fn the_text_of_a_path_names_its_jitter_and_bottlenecks() {
        let text = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[bottlenecks.wan]\nrate = \"50 Mbit/s\"\n\
            delay = \"10 ms\"\nqueue = \"100 ms\"\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
            rate = \"100 Mbit/s\"\ndelay = \"5 ms\"\nqueue = \"80 ms\"\n\
            jitter = { distribution = \"uniform\", sd = \"2 ms\" }\nthrough = [\"wan\"]\n";
        let scenario = Scenario::parse("t.toml", text, &no_files).unwrap();
        let meta = Meta::of(&scenario, World::Sim, (Transport::Tcp, 1), 1);
        assert_eq!(
            meta.paths[0].text,
            "100 Mbit/s, 5 ms, jitter 2 ms (uniform), queue 80 ms, through wan (50 Mbit/s, 10 ms, \
             queue 100 ms)"
        );
    }
}
