//! Maps a link of the account of capacity to directions and routes of the emulator.

use towpath_net::topology::{DirectionId, RouteId};
use towpath_result::accounting::AccountedLink;
use towpath_scenario::DataDirection;

use super::EmulatedNetwork;

/// Index in a pair of up and down.
fn direction_index(direction: DataDirection) -> usize {
    usize::from(direction == DataDirection::Down)
}

impl EmulatedNetwork {
    /// Returns the direction whose shaper counts, and the routes through it.
    pub(crate) fn accounted_routes(
        &self,
        link: &AccountedLink,
    ) -> Option<(DirectionId, Vec<RouteId>)> {
        let side = direction_index(link.direction);
        let pair = match (link.bottleneck, link.paths.as_slice()) {
            (Some(index), _) => self.links.bottlenecks.get(index)?,
            (None, [path, ..]) => self.links.paths.get(*path)?,
            (None, []) => return None,
        };
        let routes = link.paths.iter().filter_map(|path| self.links.routes.get(*path)?.get(side));
        Some((*pair.get(side)?, routes.copied().collect()))
    }

    /// Returns the overhead in bytes that the link adds to each packet.
    pub(crate) fn overhead_bytes(&self, link: &AccountedLink) -> u32 {
        let pair = match (link.bottleneck, link.paths.as_slice()) {
            (Some(index), _) => self.scenario.bottlenecks.get(index).map(|b| [&b.up, &b.down]),
            (None, [path, ..]) => self.scenario.paths.get(*path).map(|p| [&p.up, &p.down]),
            (None, []) => None,
        };
        let config = pair.and_then(|pair| pair.get(direction_index(link.direction)).copied());
        config.map_or(0, |config| config.overhead_bytes)
    }

    /// Returns all emulator directions that packets pass in one direction of a path.
    pub(crate) fn directions_of(
        &self,
        path: usize,
        direction: DataDirection,
    ) -> impl Iterator<Item = DirectionId> + '_ {
        let side = direction_index(direction);
        let through = self.scenario.paths.get(path).map_or(&[][..], |path| &path.through);
        let shared = through.iter().filter_map(|index| self.links.bottlenecks.get(*index));
        let access_link = self.links.paths.get(path).into_iter();
        access_link.chain(shared).filter_map(move |pair| pair.get(side).copied())
    }
}
