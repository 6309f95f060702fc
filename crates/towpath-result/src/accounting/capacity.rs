//! Capacity of links: the scenario's rates as its timeline changes them.
//!
//! Capacity belongs to the narrowest link. If a bottleneck is slower than the paths through it
//! together, the capacity is the bottleneck's and is counted once.

use std::sync::Arc;

use towpath_net::Rate;
use towpath_net::config::{DirectionConfig, LinkTrace, Shaper};
use towpath_net::link_trace::OPPORTUNITY_BYTES;
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{
    DataDirection, LinkSide, Scenario, TimelineChange, TimelineTarget, Transport,
};

/// Direction of a path or bottleneck whose capacity is accounted for.
#[derive(Debug, Clone)]
pub struct AccountedLink {
    /// Name of the path or bottleneck.
    pub name: String,
    /// Direction of the link: `up` or `down`.
    pub direction: DataDirection,
    /// Indices of the paths whose packets the link carries.
    pub paths: Vec<usize>,
    /// Index of the bottleneck; `None` for a path.
    pub bottleneck: Option<usize>,
    capacity: Capacity,
}

/// Bytes that a link could have carried from the beginning of the run until some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OfferedCapacity {
    /// Capacity as if the link were never down.
    pub capacity_bytes: u64,
    /// Capacity lost while the link was down, included in `capacity_bytes`.
    pub down_bytes: u64,
}

impl AccountedLink {
    /// Creates a path with a constant rate.
    pub fn constant_rate(
        name: String,
        direction: DataDirection,
        path: usize,
        rate_bps: u64,
    ) -> Self {
        let rate = LinkRate::Rate(rate_bps);
        let pieces = vec![CapacityPiece { from_ns: 0, nominal: rate.clone(), usable: rate }];
        let capacity = Capacity { pieces };
        Self { name, direction, paths: vec![path], bottleneck: None, capacity }
    }

    /// Returns the capacity from the beginning of the run until `at_ns`.
    pub fn offered_until(&self, at_ns: u64) -> OfferedCapacity {
        self.capacity.offered_until(at_ns)
    }

    /// Returns the link's largest mean rate, for advice.
    pub fn max_rate_bps(&self) -> u64 {
        self.capacity.pieces.iter().map(|piece| piece.nominal.mean_bps()).max().unwrap_or(0)
    }
}

/// Returns the links of a scenario to account for, in the directions in which flows send data. Also
/// returns the names of paths without any rate limit, and so without a capacity.
pub fn accounted_links(
    scenario: &Scenario,
    transport: Transport,
) -> (Vec<AccountedLink>, Vec<String>) {
    let (mut links, mut unlimited) = (Vec::new(), Vec::new());
    for direction in [DataDirection::Up, DataDirection::Down] {
        let mut unassigned_paths = used_paths(scenario, transport, direction);
        let mut bottlenecks: Vec<_> = (0..scenario.bottlenecks.len())
            .filter_map(|index| bottleneck_link(scenario, (index, direction), &unassigned_paths))
            .collect();
        bottlenecks.sort_by_key(|link| (link.max_rate_bps(), link.bottleneck));
        for candidate in bottlenecks {
            if candidate.paths.iter().all(|path| unassigned_paths.contains(path)) {
                unassigned_paths.retain(|path| !candidate.paths.contains(path));
                links.push(candidate);
            }
        }
        for index in unassigned_paths {
            let Some(path) = scenario.paths.get(index) else { continue };
            let rate_steps = rate_steps(scenario, TimelineTarget::Path(index), direction);
            let name = path.name.clone();
            match Capacity::of_path(&rate_steps) {
                Some(capacity) => links.push(AccountedLink {
                    name,
                    direction,
                    paths: vec![index],
                    bottleneck: None,
                    capacity,
                }),
                None if unlimited.contains(&name) => {}
                None => unlimited.push(name),
            }
        }
    }
    links.sort_by_key(|link| (link.direction, link.paths.first().copied()));
    (links, unlimited)
}

/// Returns the paths between the two ends of a flow that sends data in this direction of the path.
fn used_paths(
    scenario: &Scenario,
    default_transport: Transport,
    direction: DataDirection,
) -> Vec<usize> {
    let carries = |path: &towpath_scenario::Path| {
        scenario.flows.iter().any(|flow| {
            let _ = flow.transport_in(default_transport);
            directions(&flow.pattern).iter().any(|data_direction| {
                let [from, to] = match data_direction {
                    DataDirection::Down => [flow.to, flow.from],
                    DataDirection::Up | DataDirection::Both => [flow.from, flow.to],
                };
                match direction {
                    DataDirection::Down => path.between == [to, from],
                    DataDirection::Up | DataDirection::Both => path.between == [from, to],
                }
            })
        })
    };
    { scenario.paths.iter().enumerate() }
        .filter(|(_, path)| carries(path))
        .map(|(index, _)| index)
        .collect()
}

/// Returns a bottleneck that is at some time slower than the paths through it together.
fn bottleneck_link(
    scenario: &Scenario,
    (index, direction): (usize, DataDirection),
    used: &[usize],
) -> Option<AccountedLink> {
    let through =
        |path: &usize| scenario.paths.get(*path).is_some_and(|path| path.through.contains(&index));
    let paths: Vec<usize> = used.iter().copied().filter(through).collect();
    let bottleneck_steps = rate_steps(scenario, TimelineTarget::Bottleneck(index), direction);
    let path_steps: Vec<_> = paths
        .iter()
        .map(|path| rate_steps(scenario, TimelineTarget::Path(*path), direction))
        .collect();
    let capacity = Capacity::of_bottleneck(&bottleneck_steps, &path_steps)?;
    let name = scenario.bottlenecks.get(index)?.name.clone();
    (!paths.is_empty()).then_some(AccountedLink {
        name,
        direction,
        paths,
        bottleneck: Some(index),
        capacity,
    })
}

/// Rate of a link from some time on.
#[derive(Debug, Clone)]
struct RateStep {
    from_ns: u64,
    shape: LinkRate,
    up: bool,
}

/// Rate limit of a link.
#[derive(Debug, Clone)]
enum LinkRate {
    Unlimited,
    Rate(u64),
    /// Recorded trace, and the time at which it started.
    Trace(Arc<LinkTrace>, u64),
}

impl LinkRate {
    fn of(shaper: &Shaper, netem_bps: Option<u64>, from_ns: u64) -> Self {
        let rate = match shaper {
            Shaper::Unlimited => return netem_bps.map_or(Self::Unlimited, Self::Rate),
            Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
                rate.as_bps()
            }
            Shaper::Trace(trace) => match (netem_bps, trace.mean_rate()) {
                (Some(netem_bps), Some(mean)) if netem_bps < mean.as_bps() => netem_bps,
                _ => return Self::Trace(Arc::clone(trace), from_ns),
            },
        };
        Self::Rate(netem_bps.map_or(rate, |netem_bps| netem_bps.min(rate)))
    }

    fn mean_bps(&self) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Rate(bps) => *bps,
            Self::Trace(trace, _) => trace.mean_rate().map_or(0, Rate::as_bps),
        }
    }

    /// Returns the bits times 10⁹ that pass in `from_ns..to_ns`.
    fn bit_nanos(&self, from_ns: u64, to_ns: u64) -> u128 {
        match self {
            Self::Unlimited => 0,
            Self::Rate(bps) => u128::from(*bps) * u128::from(to_ns.saturating_sub(from_ns)),
            Self::Trace(trace, start_ns) => {
                let opportunities_until =
                    |at_ns: u64| opportunities(trace, at_ns.saturating_sub(*start_ns));
                let count = opportunities_until(to_ns).saturating_sub(opportunities_until(from_ns));
                u128::from(count) * u128::from(OPPORTUNITY_BYTES) * 8_000_000_000
            }
        }
    }
}

/// Returns the delivery opportunities up to `nanos` after the start of a trace.
fn opportunities(trace: &LinkTrace, nanos: u64) -> u64 {
    let ms = nanos / 1_000_000;
    let times_ms = &trace.opportunities_ms;
    let Some(period) = times_ms.last().copied().filter(|period| *period > 0) else { return 0 };
    let count_until = |ms: u64| times_ms.partition_point(|at| *at <= ms) as u64;
    (ms / period).saturating_mul(times_ms.len() as u64).saturating_add(count_until(ms % period))
}

/// Returns the rates of one direction of a path or bottleneck, as the timeline changes them.
fn rate_steps(
    scenario: &Scenario,
    target: TimelineTarget,
    direction: DataDirection,
) -> Vec<RateStep> {
    let config = match target {
        TimelineTarget::Path(index) => scenario.paths.get(index).map(|path| [&path.up, &path.down]),
        TimelineTarget::Bottleneck(index) => {
            scenario.bottlenecks.get(index).map(|item| [&item.up, &item.down])
        }
    };
    let Some([up, down]) = config else { return Vec::new() };
    let config: &DirectionConfig = if direction == DataDirection::Down { down } else { up };
    let is_affected = |side: LinkSide| match side {
        LinkSide::Both => true,
        LinkSide::Up => direction != DataDirection::Down,
        LinkSide::Down => direction == DataDirection::Down,
    };
    let (mut shaper, mut shaper_since_ns) = (config.shaper.clone(), 0);
    let (mut netem_bps, mut is_up) = (config.delay.rate.map(Rate::as_bps), true);
    let mut steps =
        vec![RateStep { from_ns: 0, shape: LinkRate::of(&shaper, netem_bps, 0), up: true }];
    for event in scenario.timeline.iter().filter(|event| event.target == target) {
        let at_ns = u64::try_from(event.at.as_nanos()).unwrap_or(u64::MAX);
        match &event.change {
            TimelineChange::Down(_) => is_up = false,
            TimelineChange::Up => is_up = true,
            TimelineChange::Rate(side, rate) if is_affected(*side) => {
                (shaper, shaper_since_ns) = (Shaper::Line(*rate), at_ns);
            }
            TimelineChange::Delay(side, delay) if is_affected(*side) => {
                netem_bps = delay.rate.map(Rate::as_bps);
            }
            TimelineChange::Rate(..)
            | TimelineChange::Delay(..)
            | TimelineChange::Loss(..)
            | TimelineChange::Address { .. } => {
                continue;
            }
        }
        steps.push(RateStep {
            from_ns: at_ns,
            shape: LinkRate::of(&shaper, netem_bps, shaper_since_ns),
            up: is_up,
        });
    }
    steps
}

/// Capacity over time, piecewise constant.
#[derive(Debug, Clone)]
struct Capacity {
    pieces: Vec<CapacityPiece>,
}

/// Capacity from some time until the next piece.
#[derive(Debug, Clone)]
struct CapacityPiece {
    from_ns: u64,
    /// Rate as if nothing were down.
    nominal: LinkRate,
    /// Rate with links that are down counted as zero.
    usable: LinkRate,
}

impl Capacity {
    /// Returns the capacity of a path on its own; `None` if its rate is ever unlimited.
    fn of_path(steps: &[RateStep]) -> Option<Self> {
        // A rate that comes later would leave the time before it without a capacity.
        if steps.is_empty() || steps.iter().any(|step| matches!(step.shape, LinkRate::Unlimited)) {
            return None;
        }
        let pieces = steps.iter().map(|step| CapacityPiece {
            from_ns: step.from_ns,
            nominal: step.shape.clone(),
            usable: if step.up { step.shape.clone() } else { LinkRate::Rate(0) },
        });
        Some(Self { pieces: pieces.collect() })
    }

    /// Returns the capacity of a bottleneck with the paths through it. `None` if the paths never
    /// exceed it.
    fn of_bottleneck(bottleneck_steps: &[RateStep], path_steps: &[Vec<RateStep>]) -> Option<Self> {
        let mut times: Vec<u64> =
            path_steps.iter().flatten().chain(bottleneck_steps).map(|step| step.from_ns).collect();
        times.sort_unstable();
        times.dedup();
        let rates_at = |steps: &[RateStep], time: u64| {
            let step = steps.iter().rfind(|step| step.from_ns <= time);
            step.map_or((0, 0), |step| {
                let bps = step.shape.mean_bps();
                (bps, if step.up { bps } else { 0 })
            })
        };
        let (mut pieces, mut is_limiting) = (Vec::new(), false);
        for time in times {
            let (nominal, usable) = rates_at(bottleneck_steps, time);
            let path_rates = path_steps.iter().map(|steps| rates_at(steps, time));
            let (sum, sum_up) =
                path_rates.fold((0_u64, 0_u64), |(sum, sum_up), (path_nominal, path_usable)| {
                    (sum.saturating_add(path_nominal), sum_up.saturating_add(path_usable))
                });
            is_limiting |= nominal < sum;
            if nominal.min(sum) == u64::MAX {
                return None;
            }
            pieces.push(CapacityPiece {
                from_ns: time,
                nominal: LinkRate::Rate(nominal.min(sum)),
                usable: LinkRate::Rate(usable.min(sum_up)),
            });
        }
        (is_limiting && !pieces.is_empty()).then_some(Self { pieces })
    }

    /// Returns the capacity from the beginning of the run until `at_ns`.
    fn offered_until(&self, at_ns: u64) -> OfferedCapacity {
        let (mut nominal, mut usable) = (0_u128, 0_u128);
        for (index, piece) in self.pieces.iter().enumerate() {
            let next_ns = self.pieces.get(index + 1).map_or(u64::MAX, |next| next.from_ns);
            let to_ns = next_ns.min(at_ns);
            if to_ns <= piece.from_ns {
                continue;
            }
            nominal += piece.nominal.bit_nanos(piece.from_ns, to_ns);
            usable += piece.usable.bit_nanos(piece.from_ns, to_ns);
        }
        let bytes = |bit_nanos: u128| u64::try_from(bit_nanos / 8_000_000_000).unwrap_or(u64::MAX);
        let capacity_bytes = bytes(nominal);
        OfferedCapacity { capacity_bytes, down_bytes: capacity_bytes.saturating_sub(bytes(usable)) }
    }
}
