//! Network of a scenario, identical in every world: addresses, links, routes and endpoints.

mod address;
mod links;

use crate::{Endpoint, Flow, Scenario};

pub use address::{address, end_of, families, path_and_end, path_of, prefix_bits};
pub use links::{LinkDirections, ReportedDirection, split, topology};

/// Returns the indices of the paths between a flow's hosts.
pub fn joined_by<'a>(scenario: &'a Scenario, flow: &Flow) -> impl Iterator<Item = usize> + 'a {
    let (from, to) = (flow.from, flow.to);
    let paths = scenario.paths.iter().enumerate();
    let connecting =
        paths.filter(move |(_, path)| [[from, to], [to, from]].contains(&path.between));
    connecting.map(|(index, _)| index)
}

/// Returns a host's endpoints: those of the scenario, or one for each path whose first end it is.
pub fn endpoints(scenario: &Scenario, host: usize) -> Vec<Endpoint> {
    let configured = scenario.hosts.get(host).and_then(|host| host.mptcp.endpoints.clone());
    configured.unwrap_or_else(|| {
        let own_paths =
            scenario.paths.iter().enumerate().filter(|(_, path)| path.between[0] == host);
        own_paths
            .map(|(index, path)| Endpoint {
                path: index,
                subflow: true,
                signal: false,
                backup: path.backup,
                fullmesh: false,
                laminar: false,
            })
            .collect()
    })
}
