//! One safe command of a finding, parsed from its text.

use std::net::IpAddr;

use towpath_host::setup::is_fixable_sysctl;
use towpath_netlink::{EndpointFlags, MptcpLimits};
use towpath_os::sysctl::Sysctl;

/// Effect of a command on settings, limits or endpoints of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FixStep {
    Set { sysctl: Sysctl, value: String },
    Limits(MptcpLimits),
    Add { address: IpAddr, device: Option<String>, flags: EndpointFlags },
    Delete { id: u8 },
    NoBackup { id: u8 },
}

impl FixStep {
    /// Parses a command; `None` if it has a comment or is not among the safe ones.
    pub(super) fn parse(command: &str) -> Option<Self> {
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
                Some(Self::Set { sysctl: parse_sysctl(name)?, value: value.to_owned() })
                    .filter(|_| is_valid)
            }
            ["ip", "mptcp", "limits", "set", "subflows", subflows] => {
                let subflows = subflows.parse().ok()?;
                Some(Self::Limits(MptcpLimits { subflows, add_addr_accepted: 0 }))
            }
            [
                "ip",
                "mptcp",
                "limits",
                "set",
                "subflows",
                subflows,
                "add_addr_accepted",
                accepted,
            ] => {
                let (subflows, add_addr_accepted) =
                    (subflows.parse().ok()?, accepted.parse().ok()?);
                Some(Self::Limits(MptcpLimits { subflows, add_addr_accepted }))
            }
            ["ip", "mptcp", "endpoint", "delete", "id", id] => {
                Some(Self::Delete { id: id.parse().ok()? })
            }
            ["ip", "mptcp", "endpoint", "change", "id", id, "nobackup"]
            | ["ip", "mptcp", "endpoint", "change", "id", id, "nobackup", "fullmesh"] => {
                Some(Self::NoBackup { id: id.parse().ok()? })
            }
            ["ip", "mptcp", "endpoint", "add", address, "dev", device, ref flag_names @ ..] => {
                let (address, flags) = (address.parse().ok()?, parse_flags(flag_names)?);
                Some(Self::Add { address, device: Some(device.to_owned()), flags })
            }
            ["ip", "mptcp", "endpoint", "add", address, ref flag_names @ ..] => {
                let (address, flags) = (address.parse().ok()?, parse_flags(flag_names)?);
                Some(Self::Add { address, device: None, flags })
            }
            _ => None,
        }
    }
}

/// Parses a setting that findings fix, with the separators of `sysctl`: slashes if the interface's
/// name has dots.
fn parse_sysctl(name: &str) -> Option<Sysctl> {
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    Sysctl::try_from(path).ok().filter(is_fixable_sysctl)
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

/// Returns true for a setting that a fix only raises. Of several numbers, each is raised.
///
/// The others: 0 is the kernel's own path manager, and any write to `blackhole_timeout` enables
/// Multipath TCP again.
pub(super) fn is_raised(sysctl: &Sysctl) -> bool {
    !matches!(sysctl.parts().last(), Some(&("pm_type" | "blackhole_timeout")))
}

/// Returns true if writing the setting has an effect even with its old value.
pub(super) fn acts_when_written(sysctl: &Sysctl) -> bool {
    sysctl.parts().last() == Some(&"blackhole_timeout")
}

/// Returns the numbers of a setting; empty if one is not a number.
pub(super) fn numbers(value: &str) -> Vec<u64> {
    let parsed: Result<Vec<_>, _> = value.split_whitespace().map(str::parse).collect();
    parsed.unwrap_or_default()
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
            ("ip mptcp endpoint change id 3 nobackup fullmesh", FixStep::NoBackup { id: 3 }),
            (
                "ip mptcp endpoint add 10.0.0.1 dev wifi subflow fullmesh",
                FixStep::Add {
                    address: "10.0.0.1".parse().unwrap(),
                    device: Some("wifi".into()),
                    flags: EndpointFlags::SUBFLOW | EndpointFlags::FULLMESH,
                },
            ),
        ] {
            assert_eq!(FixStep::parse(command), Some(step), "{command}");
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
            assert_eq!(FixStep::parse(command), None, "{command}");
        }
    }
}
