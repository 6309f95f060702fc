//! Warnings about limits of a scenario's network that are known before a run.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_net::Rate;
use towpath_net::config::{DirectionConfig, Shaper};
use towpath_scenario::network::{self, MAX_ENDPOINTS, families};
use towpath_scenario::{
    Host, LinkSide, Profile, Scenario, SegmentationMode, StackKind, TimelineChange, TimelineTarget,
    Transport, World,
};

use crate::{Warning, format};

/// Rate below which a full-size packet takes about as long as the minimum retransmission timeout.
const SLOW_RATE_BPS: u64 = 64_000;
/// Size of a full-size packet with its Ethernet header, in bytes.
const FULL_PACKET_BYTES: u64 = 1_514;

/// Returns warnings about limits of the network, for runs over `transports` in `worlds`.
pub fn warnings(scenario: &Scenario, transports: &[Transport], worlds: &[World]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let is_mptcp = |transport: &Transport| *transport == Transport::Mptcp;
    let flow_transports = scenario.flows.iter().filter_map(|flow| flow.transport);
    if transports.iter().copied().chain(flow_transports).any(|transport| is_mptcp(&transport)) {
        let hosts = 0..scenario.hosts.len();
        warnings.extend(hosts.filter_map(|host| idle_paths(scenario, host, transports, worlds)));
    }
    for link in links(scenario) {
        warnings.extend(link.packet_limit());
        warnings.extend(link.slow_rate());
    }
    warnings
}

/// Warns of paths that Multipath TCP cannot use on a host, because Linux takes no more endpoints.
fn idle_paths(
    scenario: &Scenario,
    index: usize,
    transports: &[Transport],
    worlds: &[World],
) -> Option<Warning> {
    let host = scenario.hosts.get(index)?;
    if !has_endpoint_limit(host, worlds) {
        return None;
    }
    let requested = network::endpoints(scenario, index);
    let accepted = network::kernel_endpoints(scenario, index);
    // A flow's first subflow needs no endpoint.
    let first_paths: BTreeSet<_> = { scenario.flows.iter() }
        .filter(|flow| match flow.transport {
            Some(transport) => transport == Transport::Mptcp,
            None => transports.contains(&Transport::Mptcp),
        })
        .map(|flow| flow.via)
        .collect();
    let is_idle = |path: usize| {
        accepted.iter().all(|endpoint| endpoint.path != path) && !first_paths.contains(&path)
    };
    let idle: Vec<_> = { requested.iter() }
        .filter(|endpoint| is_idle(endpoint.path))
        .filter_map(|endpoint| scenario.paths.get(endpoint.path))
        .map(|path| path.name.as_str())
        .collect();
    if idle.is_empty() {
        return None;
    }
    let usable = requested.len() - idle.len();
    let (paths, stays) = (requested.len(), if idle.len() == 1 { "stays" } else { "stay" });
    let each = if families(scenario).len() > 1 { ", and each path needs two" } else { "" };
    let text = format!(
        "Multipath TCP can use {usable} of the {paths} paths of host `{}`, because Linux takes \
         {MAX_ENDPOINTS} endpoints{each}; {} {stays} idle",
        host.name,
        format::list(&idle)
    );
    let hint = format!("choose the paths by `endpoints` in `[hosts.{}.mptcp]`", host.name);
    Some(Warning { text, hint: Some(hint) })
}

/// Returns true if a host has Linux's limit of endpoints in one of these worlds.
fn has_endpoint_limit(host: &Host, worlds: &[World]) -> bool {
    let has_kernel = host.stack.stack == StackKind::Kernel;
    host.stack.profile != Profile::Ideal || (has_kernel && worlds.contains(&World::Emu))
}

/// One direction of a path or bottleneck, with the extremes that its timeline events set.
struct LinkLimits<'a> {
    /// Name for people, such as ``path `wifi` up``.
    name: String,
    config: &'a DirectionConfig,
    /// Bytes of a full-size packet, with the link's overhead.
    packet_bytes: u64,
    /// True if super-segments cross the link whole.
    whole_segments: bool,
    max_delay: Duration,
    min_rate: Option<Rate>,
}

/// Returns all link directions; equal directions of a link are one entry.
fn links(scenario: &Scenario) -> Vec<LinkLimits<'_>> {
    let mut links = Vec::new();
    for (index, path) in scenario.paths.iter().enumerate() {
        let whole_segments = !network::split(index, scenario);
        let target = (TimelineTarget::Path(index), format!("path `{}`", path.name));
        let configs = [&path.up, &path.down];
        add_link(scenario, target, configs, (path.mtu_bytes, whole_segments), &mut links);
    }
    for (index, bottleneck) in scenario.bottlenecks.iter().enumerate() {
        let paths = scenario.paths.iter().filter(|path| path.through.contains(&index));
        let mtu_bytes = paths.clone().map(|path| path.mtu_bytes).max().unwrap_or(1_500);
        let coalesced = SegmentationMode::Coalesced;
        let whole_segments = paths.clone().any(|path| path.segmentation == coalesced);
        let target =
            (TimelineTarget::Bottleneck(index), format!("bottleneck `{}`", bottleneck.name));
        let configs = [&bottleneck.up, &bottleneck.down];
        add_link(scenario, target, configs, (mtu_bytes, whole_segments), &mut links);
    }
    links
}

fn add_link<'a>(
    scenario: &Scenario,
    (target, name): (TimelineTarget, String),
    configs: [&'a DirectionConfig; 2],
    (mtu_bytes, whole_segments): (u32, bool),
    links: &mut Vec<LinkLimits<'a>>,
) {
    let sides = configs.into_iter().zip(["up", "down"]).enumerate();
    let mut directions: Vec<_> = sides
        .map(|(side, (config, direction))| {
            let mut link = LinkLimits {
                name: format!("{name} {direction}"),
                config,
                packet_bytes: u64::from(mtu_bytes) + u64::from(config.overhead_bytes),
                whole_segments,
                max_delay: config.delay.base,
                min_rate: mean_rate(config),
            };
            let events = scenario.timeline.iter().filter(|event| event.target == target);
            events.for_each(|event| link.apply(side, &event.change));
            link
        })
        .collect();
    if let [up, down] = directions.as_mut_slice()
        && (up.config, up.max_delay, up.min_rate) == (down.config, down.max_delay, down.min_rate)
    {
        up.name = name;
        directions.truncate(1);
    }
    links.append(&mut directions);
}

impl LinkLimits<'_> {
    /// Applies a timeline event to direction number `side`.
    fn apply(&mut self, side: usize, change: &TimelineChange) {
        match change {
            TimelineChange::Rate(link_side, rate) if affects(*link_side, side) => {
                self.min_rate = Some(self.min_rate.map_or(*rate, |min| min.min(*rate)));
            }
            TimelineChange::Delay(link_side, delay) if affects(*link_side, side) => {
                self.max_delay = self.max_delay.max(delay.base);
            }
            TimelineChange::Rate(..)
            | TimelineChange::Delay(..)
            | TimelineChange::Loss(..)
            | TimelineChange::Down(_)
            | TimelineChange::Up
            | TimelineChange::Address { .. } => {}
        }
    }

    /// Warns of a limit of netem that bounds the rate: its packets include those in the delay.
    fn packet_limit(&self) -> Option<Warning> {
        let packets = self.config.limit_packets? as u64;
        let nanos = u64::try_from(self.max_delay.as_nanos()).ok().filter(|nanos| *nanos > 0)?;
        let bits = u128::from(packets) * u128::from(self.packet_bytes) * 8;
        let max_bps = u64::try_from(bits * 1_000_000_000 / u128::from(nanos)).ok()?;
        let rate = mean_rate(self.config);
        if rate.is_some_and(|rate| rate.as_bps() <= max_bps) {
            return None;
        }
        let (speed, delay) = (format::rate(max_bps as f64), format::time(self.max_delay));
        let text = format!(
            "the limit of {packets} packets of netem bounds {} to {speed}, because it includes the \
             packets of {} bytes within {delay}",
            self.name, self.packet_bytes
        );
        let needed = rate.map(|rate| {
            let bits = u128::from(rate.as_bps()) * u128::from(nanos) / 1_000_000_000;
            bits.div_ceil(u128::from(self.packet_bytes) * 8)
        });
        let mut hint = match needed {
            Some(needed) => format!(
                "raise the packet limit of `queue` above {needed}: at the full rate, the delay alone \
                 holds as many"
            ),
            None => "raise the packet limit of `queue`, or set a `rate`".to_owned(),
        };
        if self.whole_segments {
            hint.push_str("; here a super-segment of up to 64 KiB counts as one packet");
        }
        Some(Warning { text, hint: Some(hint) })
    }

    /// Warns of a rate at which retransmission timeouts become spurious.
    fn slow_rate(&self) -> Option<Warning> {
        let rate = self.min_rate?;
        let bps = rate.as_bps();
        let is_slow = u128::from(bps) * u128::from(FULL_PACKET_BYTES)
            < u128::from(SLOW_RATE_BPS) * u128::from(self.packet_bytes);
        if !is_slow {
            return None;
        }
        let seconds = self.packet_bytes as f64 * 8.0 / bps as f64;
        let time = format::time(Duration::try_from_secs_f64(seconds).ok()?);
        let text = format!(
            "{} has {rate}: a packet of {} bytes takes {time}, so retransmission timeouts may be \
             spurious",
            self.name, self.packet_bytes
        );
        let hint = "expect retransmissions without loss; a smaller `mtu` makes packets shorter";
        Some(Warning { text, hint: Some(hint.to_owned()) })
    }
}

/// Returns true if an event for `link_side` changes direction number `side`: 0 is up, 1 is down.
fn affects(link_side: LinkSide, side: usize) -> bool {
    match link_side {
        LinkSide::Both => true,
        LinkSide::Up => side == 0,
        LinkSide::Down => side == 1,
    }
}

/// Returns the rate of a direction; the mean of a trace.
fn mean_rate(config: &DirectionConfig) -> Option<Rate> {
    match &config.shaper {
        Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
            Some(*rate)
        }
        Shaper::Trace(trace) => trace.mean_rate(),
        Shaper::Unlimited => config.delay.rate,
    }
}
