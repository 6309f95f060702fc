//! Trial of changes in a network namespace with a copy of this host's configuration.
//!
//! The copy has the same interface names, addresses, endpoints, limits and settings. It has neither
//! routes nor neighbours, and its interfaces lead nowhere. So a trial shows that the kernel accepts
//! the changes in this order, and not that a path works. The kernel deletes the namespace with its
//! last handle.

use std::collections::BTreeSet;
use std::net::IpAddr;

use towpath_netlink::{EndpointFlags, Link, NetlinkError, RouteSocket, VethEnd};
use towpath_os::Namespace;
use towpath_os::sandbox::without_number;
use towpath_os::sysctl::Sysctl;

use super::change::{ChangeError, ConfigChange, ConfigHandles, NamedEndpoint};
use super::host::HostState;

/// Maximum number of copied interfaces; those of endpoints and changes come first.
const MAX_LINKS: usize = 64;

/// Reason why a trial failed.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The namespace or the copy could not be made, so nothing was tried.
    #[error("{0}")]
    Unavailable(String),
    /// The kernel refused a change in the copy.
    #[error("`{command}`: {source}")]
    Refused {
        /// The change as a command.
        command: String,
        /// Error that the kernel returned.
        source: ChangeError,
    },
}

/// Applies `changes` in order to a copy of `host` in a new network namespace.
///
/// `settings` are further settings of the host with their values. Needs `CAP_SYS_ADMIN` in the
/// user namespace of this process.
pub fn try_changes(
    host: &HostState,
    settings: &[(Sysctl, String)],
    changes: &[ConfigChange],
) -> Result<(), TrialError> {
    let refused = |source| {
        let reason = without_number(&source);
        TrialError::Unavailable(format!("no network namespace can be created: {reason}"))
    };
    let namespace = Namespace::create().map_err(refused)?;
    let run = || {
        let unavailable =
            |error: NetlinkError| TrialError::Unavailable(format!("no copy of this host: {error}"));
        let mut handles = ConfigHandles::open().map_err(unavailable)?;
        copy(host, settings, changes, &mut handles).map_err(unavailable)?;
        changes.iter().try_for_each(|change| {
            let refused = |source| TrialError::Refused { command: change.command(), source };
            change.apply(&mut handles).map_err(refused)
        })
    };
    namespace.run(run).map_err(refused)?
}

/// Makes the copy in the calling thread's namespace, which must be new.
fn copy(
    host: &HostState,
    settings: &[(Sysctl, String)],
    changes: &[ConfigChange],
    handles: &mut ConfigHandles,
) -> Result<(), NetlinkError> {
    copy_links(host, changes, &mut handles.route)?;
    handles.manager.set_limits(host.limits)?;
    // The kernel makes implicit endpoints itself.
    let configured =
        host.endpoints.iter().filter(|endpoint| !endpoint.flags.contains(EndpointFlags::IMPLICIT));
    for endpoint in configured {
        let name = endpoint.link_index.and_then(|index| host.link(index)).map(|link| &link.name);
        let link_index = name.map(|name| handles.route.link(name)).transpose()?;
        let link_index = link_index.map(|link| link.index);
        handles.manager.add_endpoint(&towpath_netlink::Endpoint { link_index, ..*endpoint })?;
    }
    // Written last: without Multipath TCP, no endpoint can have a port.
    for (sysctl, value) in settings {
        let _ = sysctl.write(value); // the kernel may have it for the first namespace only
    }
    for change in changes {
        if let ConfigChange::Sysctl { sysctl, from, .. } = change {
            let _ = sysctl.write(from); // if it cannot be written, the change is refused below
        }
    }
    Ok(())
}

fn copy_links(
    host: &HostState,
    changes: &[ConfigChange],
    route: &mut RouteSocket,
) -> Result<(), NetlinkError> {
    // The kernel creates some by itself, such as `lo`.
    let existing: BTreeSet<String> = route.links()?.into_iter().map(|link| link.name).collect();
    let names: BTreeSet<&str> = host.links.iter().map(|link| link.name.as_str()).collect();
    let mut far_names = (0_u32..)
        .map(|number| format!("trial{number}"))
        .filter(|name| !names.contains(name.as_str()) && !existing.contains(name));
    for link in selected_links(host, changes) {
        let name = link.name.as_str();
        if !existing.contains(name) {
            let far_name = far_names.next().unwrap_or_default();
            let [near, far] = [name, &far_name].map(|name| VethEnd { name, ..VethEnd::default() });
            route.add_veth(&near, &far)?;
            route.set_up(&far_name)?;
        }
        if link.is_up() {
            route.set_up(name)?;
        }
        let _ = Sysctl::ipv6(name, "disable_ipv6").write("0"); // kernels without IPv6 lack it
        let addresses = host.addresses.iter().filter(|address| address.link_index == link.index);
        for address in addresses.filter(|address| !is_generated(address.local.address())) {
            match route.add_address(name, address.local) {
                Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Returns the interfaces to copy: first those that endpoints or changes name.
fn selected_links<'a>(host: &'a HostState, changes: &[ConfigChange]) -> Vec<&'a Link> {
    let is_named = |link: &Link| {
        let in_endpoints = host.endpoints.iter().any(|endpoint| {
            let has_address = host.addresses.iter().any(|address| {
                address.link_index == link.index && address.local.address() == endpoint.address
            });
            endpoint.link_index == Some(link.index) || has_address
        });
        in_endpoints || changes.iter().any(|change| names_link(change, &link.name))
    };
    let mut links: Vec<_> = host.links.iter().collect();
    links.sort_by_key(|link| !is_named(link));
    links.truncate(MAX_LINKS);
    links
}

fn names_link(change: &ConfigChange, name: &str) -> bool {
    let of_endpoint = |endpoint: &NamedEndpoint| endpoint.link.as_deref() == Some(name);
    match change {
        ConfigChange::Sysctl { sysctl, .. } => sysctl.parts().contains(&name),
        ConfigChange::AddEndpoint(endpoint)
        | ConfigChange::DeleteEndpoint(endpoint)
        | ConfigChange::SetEndpointFlags { endpoint, .. } => of_endpoint(endpoint),
        ConfigChange::AddRoute(route) | ConfigChange::DeleteRoute(route) => route.link == name,
        ConfigChange::ForgetNeighbours { link } => link == name,
        ConfigChange::AddRule(_) | ConfigChange::DeleteRule(_) | ConfigChange::Limits { .. } => {
            false
        }
    }
}

/// Returns true for an address that the kernel makes itself.
fn is_generated(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_loopback(),
    }
}
