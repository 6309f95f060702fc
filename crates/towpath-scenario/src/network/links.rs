//! Topology of the scenario's links, with a map from paths and bottlenecks to its directions.

use towpath_net::config::{DirectionConfig, Loss, Probability, Queue, QueueLimit, Shaper};
use towpath_net::topology::{DirectionId, RouteError, RouteId};
use towpath_net::{Packet, Topology, stream_seed};

use crate::{
    DataDirection, LinkSide, Path, Scenario, SegmentationMode, TimelineChange, TimelineTarget,
};

/// Minimum rate of links that carry super-segments whole, unless the scenario overrides it.
const COALESCE_FROM_BPS: u64 = 1_000_000_000;

/// A link direction that the result reports.
#[derive(Debug, Clone)]
pub struct ReportedDirection {
    /// Direction in the topology.
    pub id: DirectionId,
    /// Name of the path or bottleneck.
    pub name: String,
    /// Direction: `up` or `down`.
    pub direction: DataDirection,
}

/// Topology directions and routes of each path and bottleneck.
#[derive(Debug, Default, Clone)]
pub struct LinkDirections {
    /// Own directions of each path: up, down.
    pub paths: Vec<[DirectionId; 2]>,
    /// Directions of each bottleneck: up, down.
    pub bottlenecks: Vec<[DirectionId; 2]>,
    /// Routes of each path: from the first host, and back to it.
    pub routes: Vec<[RouteId; 2]>,
}

impl LinkDirections {
    /// Returns the directions that a timeline event changes.
    pub fn of(&self, target: TimelineTarget, side: LinkSide) -> Vec<DirectionId> {
        let directions = match target {
            TimelineTarget::Path(index) => self.paths.get(index),
            TimelineTarget::Bottleneck(index) => self.bottlenecks.get(index),
        };
        let Some([up, down]) = directions.copied() else { return Vec::new() };
        match side {
            LinkSide::Both => vec![up, down],
            LinkSide::Up => vec![up],
            LinkSide::Down => vec![down],
        }
    }

    /// Returns all directions that a result reports.
    pub fn reported(&self, scenario: &Scenario) -> Vec<ReportedDirection> {
        let paths = scenario.paths.iter().map(|path| &path.name).zip(&self.paths);
        let bottlenecks =
            scenario.bottlenecks.iter().map(|bottleneck| &bottleneck.name).zip(&self.bottlenecks);
        paths
            .chain(bottlenecks)
            .flat_map(|(name, [up, down])| {
                [(up, DataDirection::Up), (down, DataDirection::Down)].map(|(id, direction)| {
                    ReportedDirection { id: *id, name: name.clone(), direction }
                })
            })
            .collect()
    }
}

/// Builds the topology. The sending host's kernel shapes the directions in `shaped_by_host`, so that the
/// emulator omits their rate and queue.
pub fn topology<P: Packet>(
    scenario: &Scenario,
    seed: u64,
    shaped_by_host: &[[bool; 2]],
) -> Result<(Topology<P>, LinkDirections), RouteError> {
    let mut topology = Topology::new();
    let add = |topology: &mut Topology<P>, config: DirectionConfig, element: &str| {
        topology.add_direction(config, stream_seed(seed, element, "link"))
    };
    let mut links = LinkDirections::default();
    for bottleneck in &scenario.bottlenecks {
        let name = format!("bottleneck/{}", bottleneck.name);
        let up = add(&mut topology, bottleneck.up.clone(), &format!("{name}/up"));
        let down = add(&mut topology, bottleneck.down.clone(), &format!("{name}/down"));
        links.bottlenecks.push([up, down]);
    }
    for (index, path) in scenario.paths.iter().enumerate() {
        let [up_by_host, down_by_host] = shaped_by_host.get(index).copied().unwrap_or_default();
        let name = format!("path/{}", path.name);
        let up = emulated_config(&path.up, up_by_host);
        let up = add(&mut topology, up, &format!("{name}/up"));
        let down = emulated_config(&path.down, down_by_host);
        let down = add(&mut topology, down, &format!("{name}/down"));
        links.paths.push([up, down]);
    }
    for (path, [up, down]) in scenario.paths.iter().zip(&links.paths) {
        let through = |side: usize| {
            path.through
                .iter()
                .filter_map(|index| links.bottlenecks.get(*index)?.get(side).copied())
                .collect::<Vec<_>>()
        };
        // From the first host: its access link, then the bottlenecks in order. The reverse route
        // mirrors this, so that the path's own delay is on the first host's side.
        let forward: Vec<_> = [*up].into_iter().chain(through(0)).collect();
        let backward: Vec<_> = through(1).into_iter().rev().chain([*down]).collect();
        links.routes.push([topology.add_route(&forward)?, topology.add_route(&backward)?]);
    }
    Ok((topology, links))
}

fn emulated_config(config: &DirectionConfig, shaped_by_host: bool) -> DirectionConfig {
    let mut config = config.clone();
    if shaped_by_host {
        config.shaper = Shaper::Unlimited;
        config.queue = Queue::DropTail(QueueLimit::Unlimited);
    }
    config
}

/// Returns true if the emulator splits super-segments on this path.
pub fn split(index: usize, scenario: &Scenario) -> bool {
    let Some(path) = scenario.paths.get(index) else { return true };
    match path.segmentation {
        SegmentationMode::Split => true,
        SegmentationMode::Coalesced => false,
        SegmentationMode::Auto => {
            let bottlenecks =
                path.through.iter().filter_map(|index| scenario.bottlenecks.get(*index));
            [&path.up, &path.down]
                .into_iter()
                .chain(bottlenecks.flat_map(|bottleneck| [&bottleneck.up, &bottleneck.down]))
                .any(needs_packet_granularity)
                || timeline_needs_packet_granularity(index, path, scenario)
        }
    }
}

fn timeline_needs_packet_granularity(index: usize, path: &Path, scenario: &Scenario) -> bool {
    let affects_path = |target: TimelineTarget| match target {
        TimelineTarget::Path(path) => path == index,
        TimelineTarget::Bottleneck(bottleneck) => path.through.contains(&bottleneck),
    };
    scenario.timeline.iter().filter(|event| affects_path(event.target)).any(|event| {
        match &event.change {
            TimelineChange::Rate(_, rate) => rate.as_bps() < COALESCE_FROM_BPS,
            TimelineChange::Loss(_, loss) => *loss != Loss::None,
            TimelineChange::Delay(_, delay) => delay.jitter.is_some(),
            TimelineChange::Down(_) | TimelineChange::Up | TimelineChange::Address { .. } => false,
        }
    })
}

fn needs_packet_granularity(config: &DirectionConfig) -> bool {
    let is_slow = match &config.shaper {
        Shaper::Unlimited => false,
        Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
            rate.as_bps() < COALESCE_FROM_BPS
        }
        Shaper::Trace(_) => true,
    };
    is_slow
        || config.loss != Loss::None
        || config.duplicate != Probability::NEVER
        || config.corrupt != Probability::NEVER
        || config.mtu_bytes < 65_536
        || config.delay.jitter.is_some()
        || config.delay.rate.is_some_and(|rate| rate.as_bps() < COALESCE_FROM_BPS)
}
