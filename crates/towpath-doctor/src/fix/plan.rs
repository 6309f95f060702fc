//! Changes of the commands, with the values before them.

use std::collections::BTreeMap;

use towpath_host::setup::{
    ConfigChange, HostState, KernelQueries, NamedEndpoint, PlanStep, SetupPlan, StoredLimits,
};
use towpath_netlink::{Endpoint, EndpointFlags};
use towpath_os::sysctl::Sysctl;

use super::FixAction;
use crate::fix_step::{FixStep, acts_when_written, is_raised, numbers};

/// Configuration of this host as the changes so far leave it.
struct Planner<'a> {
    host: &'a HostState,
    queries: &'a mut dyn KernelQueries,
    limits: StoredLimits,
    endpoints: Vec<Endpoint>,
    settings: BTreeMap<Sysctl, String>,
}

/// Returns the changes of `actions` from the present state of this host, in order.
///
/// Limits and buffers are never lowered, whatever the command says. A change without an effect is
/// left out. The reason of each step has the values before and after it.
pub fn plan_fixes(
    actions: &[FixAction],
    host: &HostState,
    queries: &mut dyn KernelQueries,
) -> SetupPlan {
    let mut planner = Planner {
        host,
        queries,
        limits: host.limits.into(),
        endpoints: host.endpoints.clone(),
        settings: BTreeMap::new(),
    };
    let changes = actions.iter().filter_map(|action| planner.change(&action.step));
    let steps = changes.map(|change| PlanStep { reason: change.effect(), change });
    SetupPlan { steps: steps.collect(), ..SetupPlan::default() }
}

impl Planner<'_> {
    fn change(&mut self, step: &FixStep) -> Option<ConfigChange> {
        match step {
            FixStep::Set { sysctl, value } => self.set(sysctl, value),
            FixStep::Limits(limits) => {
                let from = self.limits;
                let to = StoredLimits {
                    subflows: from.subflows.max(limits.subflows),
                    add_addr_accepted: from.add_addr_accepted.max(limits.add_addr_accepted),
                };
                self.limits = to;
                (from != to).then_some(ConfigChange::Limits { from, to })
            }
            FixStep::Add { address, device, flags } => {
                let has_flags = |endpoint: &Endpoint| {
                    endpoint.address == *address && endpoint.flags.contains(*flags)
                };
                if self.endpoints.iter().any(has_flags) {
                    return None;
                }
                Some(ConfigChange::AddEndpoint(NamedEndpoint {
                    address: *address,
                    id: None,
                    port: None,
                    flags: flags.bits(),
                    link: device.clone(),
                }))
            }
            FixStep::Delete { id } => {
                let position = self.endpoints.iter().position(|e| e.id == Some(*id))?;
                let endpoint = self.endpoints.remove(position);
                Some(ConfigChange::DeleteEndpoint(self.named(&endpoint)))
            }
            FixStep::NoBackup { id } => {
                let position = self.endpoints.iter().position(|e| e.id == Some(*id))?;
                let before = *self.endpoints.get(position)?;
                let to = before.flags.without(EndpointFlags::BACKUP);
                self.endpoints.get_mut(position)?.flags = to;
                let endpoint = self.named(&before);
                let to = to.bits();
                (endpoint.flags != to).then_some(ConfigChange::SetEndpointFlags { endpoint, to })
            }
        }
    }

    fn set(&mut self, sysctl: &Sysctl, value: &str) -> Option<ConfigChange> {
        let current = self.settings.get(sysctl).cloned();
        let from = current.or_else(|| self.queries.setting(sysctl))?;
        let (before, wanted) = (numbers(&from), numbers(value));
        let to = if is_raised(sysctl) && before.len() == wanted.len() {
            let raised = before.iter().zip(&wanted).map(|(before, wanted)| before.max(wanted));
            raised.map(u64::to_string).collect::<Vec<_>>().join(" ")
        } else {
            value.to_owned()
        };
        if before == numbers(&to) && !acts_when_written(sysctl) {
            return None;
        }
        self.settings.insert(sysctl.clone(), to.clone());
        Some(ConfigChange::Sysctl { sysctl: sysctl.clone(), from, to })
    }

    fn named(&self, endpoint: &Endpoint) -> NamedEndpoint {
        let Endpoint { address, id, port, flags, link_index } = *endpoint;
        let link = link_index.and_then(|index| self.host.link(index));
        let (flags, link) = (flags.bits(), link.map(|link| link.name.clone()));
        NamedEndpoint { address, id, port, flags, link }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use towpath_netlink::{MptcpLimits, RouteEntry};

    use super::*;

    /// Settings of a host without routes.
    struct Settings(&'static [(&'static str, &'static str)]);

    impl KernelQueries for Settings {
        fn route(&mut self, _: IpAddr, _: IpAddr, _: Option<&str>) -> Option<RouteEntry> {
            None
        }

        fn setting(&mut self, sysctl: &Sysctl) -> Option<String> {
            let found = self.0.iter().find(|(name, _)| *name == sysctl.to_string());
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    fn host(endpoints: Vec<Endpoint>) -> HostState {
        HostState {
            links: vec![],
            addresses: vec![],
            routes: vec![],
            rules: vec![],
            endpoints,
            limits: MptcpLimits { subflows: 5, add_addr_accepted: 1 },
            kernel: (6, 18),
            managers: BTreeSet::new(),
        }
    }

    fn endpoint(id: u8, flags: EndpointFlags) -> Endpoint {
        let address = format!("10.0.0.{id}").parse().unwrap();
        Endpoint { address, id: Some(id), port: None, flags, link_index: None }
    }

    /// Returns the effects of the changes for these commands.
    fn effects(commands: &[&str], endpoints: Vec<Endpoint>) -> Vec<String> {
        let mut settings = Settings(&[
            ("net.ipv4.tcp_rmem", "8192\t16384\t65536"),
            ("net.mptcp.enabled", "1"),
            ("net.mptcp.blackhole_timeout", "3600"),
            ("net.ipv4.tcp_mtu_probing", "2"),
        ]);
        let action = |command: &&str| FixAction {
            command: (*command).to_owned(),
            step: FixStep::parse(command).unwrap(),
        };
        let actions: Vec<_> = commands.iter().map(action).collect();
        let plan = plan_fixes(&actions, &host(endpoints), &mut settings);
        plan.steps.into_iter().map(|step| step.reason).collect()
    }

    #[test]
    fn no_executed_command_lowers_a_value() {
        let commands = [
            "ip mptcp limits set subflows 2 add_addr_accepted 8",
            "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"",
            "sysctl -w net.ipv4.tcp_mtu_probing=1",
        ];
        let expected = [
            "limits: add_addr_accepted 1 -> 8",
            "net.ipv4.tcp_rmem: 8192 16384 65536 -> 8192 131072 6291456",
        ];
        assert_eq!(effects(&commands, vec![]), expected);
    }

    #[test]
    fn a_command_without_effect_is_not_executed_unless_writing_is_the_effect() {
        let commands = ["sysctl -w net.mptcp.enabled=1", "ip mptcp limits set subflows 4"];
        assert_eq!(effects(&commands, vec![]), Vec::<String>::new());
        let rewrite = ["sysctl -w net.mptcp.blackhole_timeout=3600"];
        assert_eq!(effects(&rewrite, vec![]), ["net.mptcp.blackhole_timeout: 3600 -> 3600"]);
        let gone = ["ip mptcp endpoint delete id 4", "sysctl -w net.ipv4.ip_default_ttl=64"];
        assert_eq!(effects(&gone, vec![]), Vec::<String>::new(), "neither exists");
    }

    #[test]
    fn each_change_starts_from_the_one_before_it() {
        let commands = [
            "ip mptcp limits set subflows 6 add_addr_accepted 1",
            "ip mptcp limits set subflows 8 add_addr_accepted 1",
            "ip mptcp endpoint delete id 3",
            "ip mptcp endpoint add 10.0.0.3 subflow",
            "ip mptcp endpoint change id 4 nobackup fullmesh",
        ];
        let flags = EndpointFlags::SUBFLOW | EndpointFlags::BACKUP | EndpointFlags::FULLMESH;
        let endpoints = vec![endpoint(3, EndpointFlags::SIGNAL), endpoint(4, flags)];
        let expected = [
            "limits: subflows 5 -> 6",
            "limits: subflows 6 -> 8",
            "endpoint 3 (10.0.0.3): signal -> none",
            "endpoint 10.0.0.3: none -> subflow",
            "endpoint 4 (10.0.0.4): subflow backup fullmesh -> subflow fullmesh",
        ];
        assert_eq!(effects(&commands, endpoints), expected);
    }
}
