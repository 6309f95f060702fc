//! Network of a scenario, identical in every world: addresses, links, routes and endpoints.

mod address;
mod links;

use crate::{Endpoint, Flow, Profile, Scenario};

pub use address::{address, end_of, families, path_and_end, path_of, prefix_bits};
pub use links::{LinkDirections, ReportedDirection, split, topology};

/// Maximum number of MPTCP endpoints of a host (Linux's `MPTCP_PM_ADDR_MAX`), and of subflows after
/// the first. An IPv4 and an IPv6 address on the same path are two endpoints.
pub const MAX_ENDPOINTS: usize = 8;

/// Returns the indices of the paths between a flow's hosts.
pub fn joined_by<'a>(scenario: &'a Scenario, flow: &Flow) -> impl Iterator<Item = usize> + 'a {
    let (from, to) = (flow.from, flow.to);
    let paths = scenario.paths.iter().enumerate();
    let connecting =
        paths.filter(move |(_, path)| [[from, to], [to, from]].contains(&path.between));
    connecting.map(|(index, _)| index)
}

/// Returns the endpoints that Linux accepts on a host: the first of [`endpoints`], on as many paths
/// as fit. Linux refuses a ninth address (`ERANGE`).
pub fn kernel_endpoints(scenario: &Scenario, host: usize) -> Vec<Endpoint> {
    let max_paths = MAX_ENDPOINTS / families(scenario).len().max(1);
    let mut endpoints = endpoints(scenario, host);
    endpoints.truncate(max_paths);
    endpoints
}

/// Returns the endpoints of a host with towpath's own stack. Every profile of Linux has Linux's
/// limit; `ideal` has none.
pub fn profile_endpoints(scenario: &Scenario, host: usize) -> Vec<Endpoint> {
    match scenario.hosts.get(host).map(|host| host.stack.profile) {
        Some(Profile::Ideal) => endpoints(scenario, host),
        Some(Profile::Linux6 | Profile::Linux618 | Profile::Linux32Mptcp) | None => {
            kernel_endpoints(scenario, host)
        }
    }
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
