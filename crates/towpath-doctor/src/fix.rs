//! Execution of the safe commands of a diagnosis.
//!
//! A command of a finding is text to be pasted. The executed action is parsed from that same text,
//! so that nothing is done that was not shown. Only a few settings, limits and endpoints of this
//! host are changed: nothing that could disconnect it. The source is an [`LocalCommand`], which
//! never depends on another host's report.

use std::net::IpAddr;

use thiserror::Error;
use towpath_host::setup::is_interface_name;
use towpath_netlink::{Endpoint, EndpointFlags, MptcpLimits, MptcpPm, NetlinkError, RouteSocket};
use towpath_os::sysctl::{Sysctl, SysctlError};

use super::local_findings::{LocalCommand, LocalFindings};
use super::observation::Observation;
use super::rules::diagnose;

/// Settings of the host that findings fix, below `/proc/sys`.
const HOST_SYSCTLS: [&str; 6] = [
    "net.mptcp.enabled",
    "net.mptcp.pm_type",
    "net.mptcp.blackhole_timeout",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.ip_default_ttl",
];
/// Settings of interfaces that findings fix, below `net.ipv4.conf.NAME`.
const INTERFACE_SYSCTLS: [&str; 3] = ["rp_filter", "arp_ignore", "arp_announce"];

/// One command of a finding, ready to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixAction {
    /// Shell command with the same effect.
    pub command: String,
    step: FixStep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FixStep {
    Set { sysctl: Sysctl, value: String },
    Limits(MptcpLimits),
    Add { address: IpAddr, device: Option<String>, flags: EndpointFlags },
    Delete { id: u8 },
    NoBackup { id: u8 },
}

/// Reason why an action failed.
#[derive(Debug, Error)]
pub enum FixError {
    /// The kernel refused a netlink request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused to write a setting.
    #[error(transparent)]
    Setting(#[from] SysctlError),
}

/// Returns the actions for problems that this host observed itself. They keep the order of the
/// diagnosis, and only actions that it shows are included.
pub fn actions(observation: &Observation) -> Vec<FixAction> {
    let (diagnosis, local_findings) = (diagnose(observation), LocalFindings::of(observation));
    let mut actions: Vec<FixAction> = Vec::new();
    for command in local_findings.commands(&diagnosis) {
        let step = parse(command);
        let new_step = step.filter(|step| !actions.iter().any(|action| action.step == *step));
        actions.extend(new_step.map(|step| FixAction { command: command.text().to_owned(), step }));
    }
    actions
}

impl FixAction {
    /// Executes the action on this host.
    pub fn apply(&self) -> Result<(), FixError> {
        match &self.step {
            FixStep::Set { sysctl, value } => sysctl.write(value)?,
            FixStep::Limits(limits) => MptcpPm::open()?.set_limits(*limits)?,
            FixStep::Add { address, device, flags } => {
                let link =
                    device.as_ref().map(|name| RouteSocket::open()?.link(name)).transpose()?;
                MptcpPm::open()?.add_endpoint(&Endpoint {
                    address: *address,
                    id: None,
                    port: None,
                    flags: *flags,
                    link_index: link.map(|link| link.index),
                })?;
            }
            FixStep::Delete { id } => MptcpPm::open()?.delete_endpoint(*id)?,
            FixStep::NoBackup { id } => {
                let mut manager = MptcpPm::open()?;
                let endpoints = manager.endpoints()?;
                let flags = endpoints
                    .iter()
                    .find(|endpoint| endpoint.id == Some(*id))
                    .map(|endpoint| endpoint.flags);
                let is_fullmesh =
                    flags.is_some_and(|flags| flags.contains(EndpointFlags::FULLMESH));
                let flags =
                    if is_fullmesh { EndpointFlags::FULLMESH } else { EndpointFlags::default() };
                manager.set_endpoint_flags(*id, flags)?;
            }
        }
        Ok(())
    }
}

/// Parses a command; `None` if it is for another host or not among the safe ones.
fn parse(command: LocalCommand<'_>) -> Option<FixStep> {
    let command = command.text();
    // A command for the other host, with a placeholder, or with a name that needs quotes.
    if command.contains(['#', '\'']) {
        return None;
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    match *words.as_slice() {
        ["sysctl", "-w", _, ..] => {
            let (name, value) = command.strip_prefix("sysctl -w ")?.split_once('=')?;
            let value = value.trim_matches('"');
            let is_number = |word: &str| word.parse::<u32>().is_ok();
            let is_valid = !value.is_empty() && value.split(' ').all(is_number);
            Some(FixStep::Set { sysctl: parse_sysctl(name)?, value: value.to_owned() })
                .filter(|_| is_valid)
        }
        ["ip", "mptcp", "limits", "set", "subflows", subflows, "add_addr_accepted", accepted] => {
            let (subflows, add_addr_accepted) = (subflows.parse().ok()?, accepted.parse().ok()?);
            Some(FixStep::Limits(MptcpLimits { subflows, add_addr_accepted }))
        }
        ["ip", "mptcp", "endpoint", "delete", "id", id] => {
            Some(FixStep::Delete { id: id.parse().ok()? })
        }
        ["ip", "mptcp", "endpoint", "change", "id", id, "nobackup"] => {
            Some(FixStep::NoBackup { id: id.parse().ok()? })
        }
        ["ip", "mptcp", "endpoint", "add", address, "dev", device, ref flag_names @ ..] => {
            let (address, flags) = (address.parse().ok()?, parse_flags(flag_names)?);
            Some(FixStep::Add { address, device: Some(device.to_owned()), flags })
        }
        ["ip", "mptcp", "endpoint", "add", address, ref flag_names @ ..] => {
            let (address, flags) = (address.parse().ok()?, parse_flags(flag_names)?);
            Some(FixStep::Add { address, device: None, flags })
        }
        _ => None,
    }
}

/// Parses a setting that findings fix, with the separators of `sysctl`: slashes if the interface's
/// name has dots.
fn parse_sysctl(name: &str) -> Option<Sysctl> {
    if HOST_SYSCTLS.contains(&name) {
        return Some(Sysctl::new(name));
    }
    let (separator, rest) = match name.strip_prefix("net.ipv4.conf.") {
        Some(rest) => ('.', rest),
        None => ('/', name.strip_prefix("net/ipv4/conf/")?),
    };
    let (link, name) = rest.split_once(separator)?;
    let is_known = INTERFACE_SYSCTLS.contains(&name) && is_interface_name(link);
    is_known.then(|| Sysctl::ipv4(link, name))
}

fn parse_flags(flag_names: &[&str]) -> Option<EndpointFlags> {
    flag_names.iter().try_fold(EndpointFlags::default(), |combined, name| {
        Some(
            combined
                | match *name {
                    "signal" => EndpointFlags::SIGNAL,
                    "subflow" => EndpointFlags::SUBFLOW,
                    "backup" => EndpointFlags::BACKUP,
                    "fullmesh" => EndpointFlags::FULLMESH,
                    "laminar" => EndpointFlags::LAMINAR,
                    _ => return None,
                },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_commands_are_the_executed_ones() {
        let limits = MptcpLimits { subflows: 4, add_addr_accepted: 2 };
        for (command, step) in [
            (
                "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"",
                FixStep::Set {
                    sysctl: Sysctl::new("net.ipv4.tcp_rmem"),
                    value: "4096 131072 6291456".into(),
                },
            ),
            (
                "sysctl -w net/ipv4/conf/eth0.100/rp_filter=2",
                FixStep::Set { sysctl: Sysctl::ipv4("eth0.100", "rp_filter"), value: "2".into() },
            ),
            ("ip mptcp limits set subflows 4 add_addr_accepted 2", FixStep::Limits(limits)),
            ("ip mptcp endpoint delete id 3", FixStep::Delete { id: 3 }),
            ("ip mptcp endpoint change id 3 nobackup", FixStep::NoBackup { id: 3 }),
            (
                "ip mptcp endpoint add 10.0.0.1 dev wifi subflow fullmesh",
                FixStep::Add {
                    address: "10.0.0.1".parse().unwrap(),
                    device: Some("wifi".into()),
                    flags: EndpointFlags::SUBFLOW | EndpointFlags::FULLMESH,
                },
            ),
        ] {
            assert_eq!(parse(LocalCommand::for_test(command)), Some(step), "{command}");
        }
    }

    #[test]
    fn risky_and_remote_fixes_are_left_to_the_user() {
        for command in [
            "ip rule add from 10.0.0.1 table 102",
            "ip route add default via 10.0.0.254 dev wifi table 102",
            "ip link set wifi up",
            "sysctl -w kernel.panic=1",
            "sysctl -w net.ipv4.ip_forward=1",
            "sysctl -w net.ipv4.conf.a.forwarding=1",
            "sysctl -w net.ipv4.conf.a.b.rp_filter=1",
            "sysctl -w net/ipv4/conf/../rp_filter=1",
            "sysctl -w net.ipv4.conf.a=b.rp_filter=2",
            "sysctl -w net.mptcp.enabled=1\n2",
            "sysctl -w net.mptcp.enabled=",
            "ip mptcp endpoint add 10.0.0.1 dev 'a;b' subflow",
            "sysctl -w net.mptcp.enabled=1   # on the other host",
            "ip mptcp endpoint add 10.0.0.1 dev wifi strange",
            "towpath exec -- curl",
        ] {
            assert_eq!(parse(LocalCommand::for_test(command)), None, "{command}");
        }
    }
}
