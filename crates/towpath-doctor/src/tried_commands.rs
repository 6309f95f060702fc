//! Commands of a finding that were tried: advice that is not repeated.
//!
//! A command was tried if its effect is in place although the problem remains, or if `--fix`
//! executed it since this machine started.

use towpath_host::setup::ConfigChange;
use towpath_host::snapshot::{EndpointSnapshot, HostSnapshot, LinkSnapshot};
use towpath_os::sysctl::Sysctl;

use crate::finding::Finding;
use crate::fix_step::{FixStep, acts_when_written, is_raised, numbers};
use crate::observation::{Observation, PeerSnapshots};

/// Comment of a command for the other host.
const OTHER_HOST_COMMENT: &str = "# on the other host";

/// Moves the commands that were tried from the fixes of a finding to its list of tried ones. If none
/// remains, the hint says what to do next.
pub(super) fn separate_tried_commands(finding: &mut Finding, observation: &Observation) {
    for command in std::mem::take(&mut finding.fix) {
        match trial_note(&command, observation) {
            Some(note) => finding.tried.push(format!("{command}{note}")),
            None => finding.fix.push(command),
        }
    }
    if finding.fix.is_empty() && !finding.tried.is_empty() {
        let next = next_evidence(observation);
        finding.hint = Some(match finding.hint.take() {
            Some(hint) => format!("{hint}. Next: {next}"),
            None => next.to_owned(),
        });
    }
}

/// Returns the result of an earlier trial of the command; `None` if it was not tried.
fn trial_note(command: &str, observation: &Observation) -> Option<&'static str> {
    const IN_EFFECT: &str = ": already in effect, and the problem remains";
    let (text, comment) = match command.split_once('#') {
        Some((text, _)) => (text.trim_end(), command.get(text.len()..)),
        None => (command, None),
    };
    if comment.is_some() {
        let peer = observation.peer.as_ref().map(PeerSnapshots::latest);
        let peer = peer.filter(|peer| comment == Some(OTHER_HOST_COMMENT) && !peer.partial)?;
        return is_in_effect(text, peer).then_some(IN_EFFECT);
    }
    let in_effect = is_in_effect(text, &observation.here);
    let recorded = FixStep::parse(text).filter(|step| {
        observation.applied_fixes.iter().any(|change| step.was_made(change, &observation.here))
    });
    match recorded {
        Some(step) if step.acts_when_repeated() => Some(" (by --fix): the problem is back"),
        Some(_) if in_effect => Some(" (by --fix): the problem remains"),
        Some(_) => Some(" (by --fix): another program has changed it since"),
        None => in_effect.then_some(IN_EFFECT),
    }
}

/// Returns the evidence that would help after all commands were tried.
fn next_evidence(observation: &Observation) -> &'static str {
    if observation.trial.is_none() {
        "test a connection, with --connect HOST:PORT"
    } else if !(observation.rights.events && observation.rights.raw) {
        "run the doctor as root, which shows why a subflow closed and where packets are lost"
    } else if observation.peer.is_none() {
        "run `towpath server` on the other host, and ask it with --peer HOST:PORT"
    } else {
        "report this with the output of `towpath doctor --observation`"
    }
}

/// Returns true if the command would change nothing on the host of the snapshot.
fn is_in_effect(command: &str, host: &HostSnapshot) -> bool {
    if let Some(step) = FixStep::parse(command) {
        return step.is_in_effect(host);
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let link = |name: &str| host.links.iter().find(|link| link.name == name);
    match *words.as_slice() {
        ["ip", "link", "set", name, "up"] => link(name).is_some_and(|link| link.up),
        ["ip", "link", "set", name, "mtu", mtu] => {
            let mtu = mtu.parse::<u32>().ok();
            link(name).is_some_and(|link| Some(link.mtu_bytes) == mtu)
        }
        ["sysctl", "-w", setting] => setting
            .split_once('=')
            .and_then(|(name, value)| Some((host.settings.get(name.strip_prefix("net.")?)?, value)))
            .is_some_and(|(current, value)| current == value),
        _ => false,
    }
}

impl FixStep {
    fn is_in_effect(&self, host: &HostSnapshot) -> bool {
        match self {
            Self::Set { sysctl, value } => is_set(sysctl, value, host),
            Self::Limits(limits) => host.limits.is_some_and(|current| {
                current.subflows >= limits.subflows
                    && current.add_addr_accepted >= limits.add_addr_accepted
            }),
            Self::Add { address, device, flags } => host.endpoints.iter().any(|endpoint| {
                let link = endpoint.link.and_then(|index| host.link(index));
                let is_bound = link.is_none_or(|link| device.as_ref() == Some(&link.name));
                endpoint.address == *address
                    && endpoint.port.is_none()
                    && endpoint.flags & flags.bits() == flags.bits()
                    && is_bound
            }),
            // Printed only for endpoints that exist.
            Self::Delete { .. } => false,
            Self::NoBackup { id } => {
                endpoint(host, *id).is_some_and(|endpoint| !endpoint.is_backup())
            }
        }
    }

    /// Returns true if `change` is what this step does to an object of the host.
    fn was_made(&self, change: &ConfigChange, host: &HostSnapshot) -> bool {
        // The kernel gives the identifier of a deleted endpoint to another one.
        let is_of = |id: u8, address| endpoint(host, id).is_some_and(|e| e.address == address);
        match (self, change) {
            (Self::Set { sysctl, value }, ConfigChange::Sysctl { sysctl: changed, to, .. }) => {
                sysctl == changed && numbers(value) == numbers(to)
            }
            (Self::Limits(limits), ConfigChange::Limits { to, .. }) => {
                to.subflows >= limits.subflows && to.add_addr_accepted >= limits.add_addr_accepted
            }
            (Self::Add { address, flags, .. }, ConfigChange::AddEndpoint(added)) => {
                added.address == *address && added.flags().contains(*flags)
            }
            (Self::Delete { id }, ConfigChange::DeleteEndpoint(deleted)) => {
                is_of(*id, deleted.address)
            }
            (Self::NoBackup { id }, ConfigChange::SetEndpointFlags { endpoint, .. }) => {
                is_of(*id, endpoint.address)
            }
            (
                Self::Set { .. }
                | Self::Limits(_)
                | Self::Add { .. }
                | Self::Delete { .. }
                | Self::NoBackup { .. },
                _,
            ) => false,
        }
    }

    fn acts_when_repeated(&self) -> bool {
        match self {
            Self::Set { sysctl, .. } => acts_when_written(sysctl),
            Self::Limits(_) | Self::Add { .. } | Self::Delete { .. } | Self::NoBackup { .. } => {
                false
            }
        }
    }
}

fn endpoint(host: &HostSnapshot, id: u8) -> Option<&EndpointSnapshot> {
    host.endpoints.iter().find(|endpoint| endpoint.id == id)
}

/// Returns true if the host has the value, or a higher one where a fix only raises it.
fn is_set(sysctl: &Sysctl, value: &str, host: &HostSnapshot) -> bool {
    if acts_when_written(sysctl) {
        return false;
    }
    let wanted = numbers(value);
    let is_reached = |current: &[u64]| {
        let mut pairs = current.iter().zip(&wanted);
        current.len() == wanted.len()
            && pairs.all(
                |(current, wanted)| {
                    if is_raised(sysctl) { current >= wanted } else { current == wanted }
                },
            )
    };
    match sysctl.parts().as_slice() {
        ["net", "ipv4", "conf", link, name] => {
            let effective = |link: &LinkSnapshot| match *name {
                "rp_filter" => is_reached(&[link.rp_filter.into()]),
                "arp_ignore" => is_reached(&[link.arp_ignore.into()]),
                "arp_announce" => is_reached(&[link.arp_announce.into()]),
                _ => false,
            };
            // The kernel uses the larger value of `all` and of the interface.
            let mut links =
                host.links.iter().filter(|entry| *link == "all" || entry.name == *link).peekable();
            links.peek().is_some() && links.all(effective)
        }
        ["net", rest @ ..] => {
            host.settings.get(&rest.join(".")).is_some_and(|current| is_reached(&numbers(current)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use towpath_host::setup::{NamedEndpoint, StoredLimits};
    use towpath_host::snapshot::MptcpLimits;

    use super::*;
    use crate::finding::Cause;

    const LIMITS: &str = "ip mptcp limits set subflows 4 add_addr_accepted 2";

    fn snapshot(limits: (u32, u32)) -> HostSnapshot {
        let (subflows, add_addr_accepted) = limits;
        let link = |index, name: &str, arp_ignore| LinkSnapshot {
            index,
            name: name.to_owned(),
            arp_ignore,
            mtu_bytes: 1_280,
            ..LinkSnapshot::default()
        };
        let address = "10.0.0.3".parse().unwrap();
        HostSnapshot {
            limits: Some(MptcpLimits { subflows, add_addr_accepted }),
            links: vec![link(2, "a", 1), link(3, "b", 2)],
            endpoints: vec![EndpointSnapshot { id: 3, address, port: None, link: None, flags: 2 }],
            settings: [
                ("ipv4.tcp_rmem", "4096 131072 9000000"),
                ("mptcp.enabled", "1"),
                ("mptcp.pm_type", "1"),
                ("mptcp.blackhole_timeout", "3600"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..HostSnapshot::default()
        }
    }

    /// Returns a finding with this command, after the check of what was tried.
    fn checked(command: &str, observation: &Observation) -> Finding {
        let mut finding = Finding::new(Cause::SubflowLimit, "x").fix(command).hint("a hint");
        separate_tried_commands(&mut finding, observation);
        finding
    }

    #[test]
    fn a_command_that_is_in_effect_is_not_repeated() {
        let here = snapshot((4, 8));
        let observation = Observation { here, ..Observation::default() };
        for command in [
            LIMITS,
            "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"",
            "sysctl -w net.mptcp.enabled=1",
            "sysctl -w net.ipv4.conf.all.arp_ignore=1",
            "sysctl -w net.ipv4.conf.b.arp_ignore=2",
            "ip mptcp endpoint add 10.0.0.3 dev a subflow",
            "ip mptcp endpoint change id 3 nobackup",
            "ip link set a mtu 1280",
        ] {
            let finding = checked(command, &observation);
            let tried = format!("{command}: already in effect, and the problem remains");
            assert_eq!((finding.fix, finding.tried), (vec![], vec![tried]));
            let hint = "a hint. Next: test a connection, with --connect HOST:PORT";
            assert_eq!(finding.hint.as_deref(), Some(hint));
        }
    }

    #[test]
    fn a_command_that_would_change_something_stays() {
        let here = snapshot((4, 1));
        let observation = Observation { here, ..Observation::default() };
        for command in [
            LIMITS,
            "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 9000001\"",
            "sysctl -w net.mptcp.pm_type=0",
            "sysctl -w net.mptcp.blackhole_timeout=3600",
            "sysctl -w net.ipv4.conf.all.arp_ignore=2",
            "sysctl -w net.ipv4.conf.none.arp_ignore=0",
            "ip mptcp endpoint add 10.0.0.3 dev a signal",
            "ip mptcp endpoint delete id 3",
            "ip link set a mtu 1500",
            "ip rule add from 10.0.0.1 table 102",
            "sysctl -w net.mptcp.enabled=1   # on the other host",
        ] {
            let finding = checked(command, &observation);
            assert_eq!((finding.fix, finding.tried), (vec![command.to_owned()], vec![]));
            assert_eq!(finding.hint.as_deref(), Some("a hint"));
        }
    }

    #[test]
    fn the_other_hosts_report_decides_about_its_own_commands_only() {
        let address = "10.9.0.1:5210".parse().unwrap();
        let peer = PeerSnapshots { address, before: snapshot((8, 8)), after: None };
        let here = snapshot((0, 0));
        let observation = Observation { here, peer: Some(peer), ..Observation::default() };
        let remote = "ip mptcp limits set subflows 8   # on the other host";
        assert_eq!(checked(remote, &observation).fix, Vec::<String>::new());
        assert_eq!(checked(LIMITS, &observation).fix, [LIMITS]);
    }

    #[test]
    fn a_command_that_fix_executed_is_not_repeated() {
        let from = StoredLimits { subflows: 0, add_addr_accepted: 0 };
        let to = StoredLimits { subflows: 4, add_addr_accepted: 2 };
        let delete = |address: &str| {
            let address = address.parse().unwrap();
            ConfigChange::DeleteEndpoint(NamedEndpoint {
                address,
                id: Some(1),
                port: None,
                flags: 2,
                link: None,
            })
        };
        let changes = vec![ConfigChange::Limits { from, to }, delete("10.0.0.3")];
        let observation = |limits, applied_fixes| Observation {
            here: snapshot(limits),
            applied_fixes,
            ..Observation::default()
        };
        let sysctl = Sysctl::new("net.mptcp.blackhole_timeout");
        let (from, to) = ("3600".to_owned(), "3600".to_owned());
        let rewritten = vec![ConfigChange::Sysctl { sysctl, from, to }];
        let rewrite = "sysctl -w net.mptcp.blackhole_timeout=3600";
        let back = checked(rewrite, &observation((4, 2), rewritten)).tried;
        assert_eq!(back, [format!("{rewrite} (by --fix): the problem is back")]);
        let remaining = checked(LIMITS, &observation((4, 2), changes.clone())).tried;
        assert_eq!(remaining, [format!("{LIMITS} (by --fix): the problem remains")]);
        let reverted = checked(LIMITS, &observation((2, 0), changes.clone())).tried;
        let text = format!("{LIMITS} (by --fix): another program has changed it since");
        assert_eq!(reverted, [text]);
        // The kernel gives an identifier to another endpoint later.
        let deletion = "ip mptcp endpoint delete id 3";
        assert_eq!(checked(deletion, &observation((4, 2), changes)).tried.len(), 1);
        let other = vec![delete("10.0.0.9")];
        assert_eq!(checked(deletion, &observation((4, 2), other)).fix, [deletion]);
    }
}
