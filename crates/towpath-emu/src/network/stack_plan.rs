//! Settings of a scenario's host for towpath's own stack.

use towpath_mptcp::connection;
use towpath_mptcp::path_manager::{InterfaceId, LocalAddress};
use towpath_mptcp::settings::{HostSettings, SettingError};
use towpath_scenario::flow_plan::request_directions;
use towpath_scenario::network::profile_endpoints;
use towpath_scenario::{Family, Flow, Scenario, StackKind, Transport};

use crate::network::address::address;
use crate::network::end_of;

/// Returns true if the host uses the own stack.
pub(crate) fn is_own(scenario: &Scenario, host: usize) -> bool {
    scenario.hosts.get(host).is_some_and(|host| host.stack.stack == StackKind::Towpath)
}

/// Returns the name of the stacks of a run, for its first record.
pub(crate) fn stack_name(scenario: &Scenario) -> &'static str {
    let own_stacks = (0..scenario.hosts.len()).filter(|host| is_own(scenario, *host)).count();
    match own_stacks {
        0 => "kernel",
        own_stacks if own_stacks == scenario.hosts.len() => "towpath",
        _ => "towpath+kernel",
    }
}

/// Returns the interface of a path, which has the same number.
pub(crate) fn interface(path: usize) -> InterfaceId {
    InterfaceId(path as u32)
}

/// Returns the host's addresses and their permitted use, which its endpoints define.
pub(crate) fn addresses(
    scenario: &Scenario,
    host: usize,
    families: &[Family],
) -> Vec<LocalAddress> {
    let mut addresses = Vec::new();
    for (path_index, path) in scenario.paths.iter().enumerate() {
        let Some(end) = end_of(path, host) else { continue };
        for family in families {
            addresses.push(local_address(
                scenario,
                host,
                (path_index, end),
                *family,
                0,
                addresses.len() as u8 + 1,
            ));
        }
    }
    addresses
}

/// Returns the address of a path after `generation` address changes.
pub(crate) fn local_address(
    scenario: &Scenario,
    host: usize,
    (path, end): (usize, usize),
    family: Family,
    generation: u8,
    address_id: u8,
) -> LocalAddress {
    let endpoint =
        profile_endpoints(scenario, host).into_iter().find(|endpoint| endpoint.path == path);
    LocalAddress {
        address_id,
        address: address(path, end, family, generation),
        port: None,
        interface: interface(path),
        up: true,
        subflow: endpoint.is_some_and(|endpoint| endpoint.subflow),
        signal: endpoint.is_some_and(|endpoint| endpoint.signal),
        backup: endpoint.is_some_and(|endpoint| endpoint.backup),
        fullmesh: endpoint.is_some_and(|endpoint| endpoint.fullmesh),
        laminar: endpoint.is_some_and(|endpoint| endpoint.laminar),
    }
}

/// Returns warnings about settings of the own stack that only affect simulations.
///
/// TCP small queues of profiles cause no warning. The emulator accepts every packet immediately, so
/// no queue builds up at the host.
pub(crate) fn ignored_settings(scenario: &Scenario, host: usize) -> Vec<String> {
    let Some(host) = scenario.hosts.get(host) else { return Vec::new() };
    let switches = &host.stack.switches;
    let costs = switches.cpu_per_packet.filter(|cost| !cost.is_zero());
    let reasons = [
        costs.map(|_| ("cpu-per-packet", "packets use real processor time")),
        switches.tsq.filter(|on| *on).map(|_| ("tsq", "no packets wait at the host")),
    ];
    let text = |(key, reason)| {
        format!("`{key}` of host `{}` works in the simulated world only; here {reason}", host.name)
    };
    reasons.into_iter().flatten().map(text).collect()
}

/// Returns the configuration of a flow's connection on one of its hosts.
pub(crate) fn flow_connection(
    scenario: &Scenario,
    flow: &Flow,
    host: usize,
    transport: Transport,
) -> Result<connection::ConnectionConfig, SettingError> {
    let mut config = connection(scenario, host, transport)?;
    // A message does not wait for the next one (`TCP_NODELAY`).
    config.subflow.nagle &= request_directions(&flow.pattern).is_empty();
    Ok(config)
}

/// Returns the configuration of the host's connections.
pub(crate) fn connection(
    scenario: &Scenario,
    host: usize,
    transport: Transport,
) -> Result<connection::ConnectionConfig, SettingError> {
    let settings = scenario.hosts.get(host).map(|host| scenario.stack_settings(host));
    let settings = settings.unwrap_or_default();
    let texts = settings.iter().map(|(name, value)| (*name, value.as_str()));
    let mut config = HostSettings::from_texts(texts)?.connection;
    config.multipath = transport == Transport::Mptcp;
    // The peer may be a kernel.
    config.cautious_joins = true;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    #[test]
    fn flows_of_messages_send_without_nagle() {
        let nagle_of = |pattern: &str| {
            let text = format!(
                "name = \"t\"\n[hosts.a]\nstack = \"towpath\"\n[hosts.b]\n[paths.p]\n\
                 between = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n[[flows]]\n\
                 from = \"a\"\nto = \"b\"\npattern = \"{pattern}\"\n"
            );
            let scenario = Scenario::parse("t.toml", &text, &no_files).unwrap();
            let config = flow_connection(&scenario, &scenario.flows[0], 0, Transport::Mptcp);
            config.unwrap().subflow.nagle
        };
        assert!(nagle_of("iperf"));
        assert!(!nagle_of("ping") && !nagle_of("web"));
    }

    #[test]
    fn settings_for_the_simulated_world_only_are_named() {
        let warnings_for = |keys: &str| {
            let text = format!(
                "name = \"t\"\n[hosts.a]\nstack = \"towpath\"\n{keys}\n[hosts.b]\n[paths.p]\n\
                 between = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n"
            );
            ignored_settings(&Scenario::parse("t.toml", &text, &no_files).unwrap(), 0)
        };
        assert_eq!(warnings_for(""), Vec::<String>::new());
        let warnings = warnings_for("profile-switches = { cpu-per-packet = \"2 us\" }");
        assert!(
            warnings.len() == 1 && warnings[0].contains("`cpu-per-packet` of host `a`"),
            "{warnings:?}"
        );
    }
}
