//! The same configuration as files that outlive a restart.

use std::fmt::Write as _;
use std::net::IpAddr;

use towpath_netlink::EndpointFlags;

use super::change::{ConfigChange, NamedEndpoint};
use super::plan::{PlanStep, SetupPlan};

/// Program that reads the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistTarget {
    /// `NetworkManager`: commands for its connections, and a dispatcher script.
    NetworkManager,
    /// systemd: a unit that runs a script.
    Systemd,
    /// A shell script for any other init system.
    Script,
}

/// A file to install on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Absolute path at which the file belongs.
    pub place: &'static str,
    /// True if the file is executable.
    pub is_executable: bool,
    /// Text of the file.
    pub content: String,
}

const SCRIPT_PATH: &str = "/usr/local/sbin/towpath-mptcp";
const UNIT_PATH: &str = "/etc/systemd/system/towpath-mptcp.service";
const DISPATCHER_PATH: &str = "/etc/NetworkManager/dispatcher.d/50-towpath-mptcp";
const CONNECTION_SCRIPT_PATH: &str = "/usr/local/sbin/towpath-mptcp-connections";

/// Returns the steps to make at each start: correct settings, earlier changes, and the missing
/// ones.
pub fn boot_steps(plan: &SetupPlan, applied: &[ConfigChange]) -> Vec<PlanStep> {
    let earlier = applied.iter().filter(|change| {
        matches!(
            change,
            ConfigChange::Sysctl { .. } | ConfigChange::AddRoute(_) | ConfigChange::AddRule(_)
        )
    });
    let reason = "set up earlier";
    let earlier =
        earlier.map(|change| PlanStep { change: change.clone(), reason: reason.to_owned() });
    // At boot, there is nothing to delete or flush.
    let is_needed_at_boot = |step: &&PlanStep| {
        !matches!(
            step.change,
            ConfigChange::DeleteEndpoint(_) | ConfigChange::ForgetNeighbours { .. }
        )
    };
    let mut steps: Vec<_> = earlier.collect();
    steps.extend(plan.kept_steps.iter().chain(&plan.steps).filter(is_needed_at_boot).cloned());
    steps
}

/// Returns files that make `steps` at each start. `title` names their origin.
pub fn generate_files(
    target: PersistTarget,
    title: &str,
    steps: &[PlanStep],
) -> Vec<GeneratedFile> {
    let generated_file =
        |place, is_executable, content| GeneratedFile { place, is_executable, content };
    match target {
        PersistTarget::Script => vec![generated_file(SCRIPT_PATH, true, script(title, steps, &[]))],
        PersistTarget::Systemd => {
            vec![
                generated_file(SCRIPT_PATH, true, script(title, steps, &[])),
                generated_file(UNIT_PATH, false, unit(title)),
            ]
        }
        PersistTarget::NetworkManager => {
            let links = links(steps);
            let is_set_by_network_manager = |change: &ConfigChange| {
                endpoint(change).and_then(|e| e.link.as_ref()).is_some_and(|name| {
                    links.iter().any(|link| link.name == name && link.flags.is_some())
                })
            };
            let script_steps = steps.iter().filter(|step| !is_set_by_network_manager(&step.change));
            let script_steps: Vec<PlanStep> = script_steps.cloned().collect();
            let event_filter =
                ["case \"$2\" in up|dhcp4-change|dhcp6-change) ;; *) exit 0 ;; esac"];
            let enables_mptcp = steps.iter().any(|step| {
                let ConfigChange::Sysctl { sysctl, .. } = &step.change else { return false };
                sysctl.to_string() == "net.mptcp.enabled"
            });
            vec![
                generated_file(
                    CONNECTION_SCRIPT_PATH,
                    true,
                    connection_script(title, &links, enables_mptcp),
                ),
                generated_file(DISPATCHER_PATH, true, script(title, &script_steps, &event_filter)),
            ]
        }
    }
}

/// Builds a script that is harmless when run again.
fn script(title: &str, steps: &[PlanStep], prologue: &[&str]) -> String {
    let mut text = format!(
        "#!/bin/sh\n# {title}\n# Settings that exist already are refused and stay unchanged.\n"
    );
    for line in prologue {
        let _ = writeln!(text, "{line}");
    }
    let mut reason = "";
    for step in steps {
        if step.reason != reason {
            reason = &step.reason;
            let _ = writeln!(text, "# {reason}");
        }
        let command = step.change.command();
        let _ = writeln!(text, "{command}{}", laminar_fallback(&step.change));
    }
    text.push_str("exit 0\n");
    text
}

/// Returns a fallback for an `ip` older than `laminar`: `subflow`, which every version supports.
fn laminar_fallback(change: &ConfigChange) -> String {
    let Some(new) = endpoint(change).filter(|e| e.flags().contains(EndpointFlags::LAMINAR)) else {
        return String::new();
    };
    let mut old = new.clone();
    old.flags = (new.flags().without(EndpointFlags::LAMINAR) | EndpointFlags::SUBFLOW).bits();
    let probe_command = "ip mptcp endpoint help 2>&1 | grep -q laminar";
    format!(" ||\n    {probe_command} || {}", ConfigChange::AddEndpoint(old).command())
}

fn unit(title: &str) -> String {
    format!(
        "# {title}\n[Unit]\nDescription=Multipath TCP endpoints, limits and routes\n\
         Wants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\n\
         RemainAfterExit=yes\nExecStart={SCRIPT_PATH}\n\n[Install]\nWantedBy=multi-user.target\n"
    )
}

/// An interface with endpoints, as `NetworkManager` can express them.
#[derive(Debug, PartialEq, Eq)]
struct LinkFlags<'a> {
    name: &'a str,
    /// Names of the flags; `None` if it cannot create these endpoints.
    flags: Option<Vec<&'static str>>,
}

fn endpoint(change: &ConfigChange) -> Option<&NamedEndpoint> {
    let ConfigChange::AddEndpoint(endpoint) = change else { return None };
    Some(endpoint)
}

/// Returns the interfaces that have endpoints. A connection has one set of flags for all of its
/// addresses.
fn links(steps: &[PlanStep]) -> Vec<LinkFlags<'_>> {
    let mut links: Vec<LinkFlags<'_>> = Vec::new();
    for endpoint in steps.iter().filter_map(|step| endpoint(&step.change)) {
        let Some(name) = endpoint.link.as_deref() else { continue };
        let flags = network_manager_flags(endpoint);
        match links.iter_mut().find(|link| link.name == name) {
            Some(link) if link.flags == flags => {}
            Some(link) => link.flags = None,
            None => links.push(LinkFlags { name, flags }),
        }
    }
    links
}

/// Returns the flags of `connection.mptcp-flags` that make an endpoint; `None` if none do.
/// `NetworkManager` has no flag for `laminar` and ports, and skips addresses of local scope.
fn network_manager_flags(endpoint: &NamedEndpoint) -> Option<Vec<&'static str>> {
    let flags = endpoint.flags();
    let supported = [
        (EndpointFlags::SIGNAL, "signal"),
        (EndpointFlags::SUBFLOW, "subflow"),
        (EndpointFlags::BACKUP, "backup"),
        (EndpointFlags::FULLMESH, "fullmesh"),
    ];
    let supported_flags =
        supported.iter().fold(EndpointFlags::default(), |flags, (flag, _)| flags | *flag);
    let is_skipped = match endpoint.address {
        IpAddr::V4(address) => address.is_link_local() || address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address.is_unique_local() || address.is_loopback()
        }
    };
    let is_supported = flags.without(supported_flags) == EndpointFlags::default()
        && endpoint.port.is_none()
        && !is_skipped;
    let names = supported.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name);
    is_supported.then(|| names.collect())
}

fn connection_script(title: &str, links: &[LinkFlags<'_>], enables_mptcp: bool) -> String {
    let mut text =
        format!("#!/bin/sh\n# {title}\n# Run it once; NetworkManager keeps the setting.\n");
    for LinkFlags { name, flags } in links {
        let device = super::change::quoted(name);
        let flags = if let Some(flags) = flags {
            let _ = writeln!(text, "# NetworkManager creates the endpoints of {device}");
            // Our endpoints may lack a default route, and precede the sysctl that enables MPTCP.
            let sysctl_setting = enables_mptcp.then_some("also-without-sysctl");
            let settings =
                ["enabled", "also-without-default-route"].into_iter().chain(sysctl_setting);
            settings.chain(flags.iter().copied()).collect::<Vec<_>>().join(",")
        } else {
            // Without a setting, NetworkManager uses `enabled,subflow`.
            let _ = writeln!(
                text,
                "# NetworkManager cannot express the endpoints of {device}: see {DISPATCHER_PATH}"
            );
            "disabled".to_owned()
        };
        let _ = writeln!(
            text,
            "nmcli connection modify \"$(nmcli -g GENERAL.CONNECTION device show {device})\" \
             connection.mptcp-flags {flags}"
        );
        let _ = writeln!(text, "nmcli device reapply {device}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::change::StoredLimits;

    fn steps() -> Vec<PlanStep> {
        let endpoint = |address: &str, link: &str, flags: EndpointFlags| PlanStep {
            change: ConfigChange::AddEndpoint(NamedEndpoint {
                address: address.parse().unwrap(),
                id: None,
                port: None,
                flags: flags.bits(),
                link: Some(link.to_owned()),
            }),
            reason: format!("open a subflow from {address}"),
        };
        let from = StoredLimits { subflows: 2, add_addr_accepted: 0 };
        let change =
            ConfigChange::Limits { from, to: StoredLimits { subflows: 4, add_addr_accepted: 2 } };
        vec![
            PlanStep { change, reason: "room for subflows".to_owned() },
            endpoint("10.0.0.1", "wifi", EndpointFlags::SUBFLOW | EndpointFlags::BACKUP),
            endpoint("10.1.0.1", "cellular", EndpointFlags::LAMINAR),
        ]
    }

    #[test]
    fn a_unit_runs_the_script_when_the_network_is_there() {
        let files = generate_files(PersistTarget::Systemd, "made by a test", &steps());
        let [script, unit] = &files[..] else { panic!("{files:?}") };
        assert!(
            script.is_executable && script.content.starts_with("#!/bin/sh\n# made by a test\n")
        );
        assert!(script.content.contains("\nip mptcp limits set subflows 4 add_addr_accepted 2\n"));
        let laminar = "\nip mptcp endpoint add 10.1.0.1 dev cellular laminar ||\n    \
                       ip mptcp endpoint help 2>&1 | grep -q laminar || \
                       ip mptcp endpoint add 10.1.0.1 dev cellular subflow\n";
        assert!(script.content.contains(laminar), "{}", script.content);
        assert!(unit.content.contains(&format!("ExecStart={}\n", script.place)));
        assert!(unit.content.contains("After=network-online.target"));
    }

    /// Returns each interface's flags in the `NetworkManager` commands, and the dispatcher script.
    fn for_network_manager(steps: &[PlanStep]) -> (Vec<(String, String)>, String) {
        let files = generate_files(PersistTarget::NetworkManager, "made by a test", steps);
        let [connections, dispatcher] = &files[..] else { panic!("{files:?}") };
        let flags = connections.content.lines().filter_map(|line| {
            let (_, rest) = line.split_once("device show ")?;
            let (link, flags) = rest.split_once(")\" connection.mptcp-flags ")?;
            Some((link.to_owned(), flags.to_owned()))
        });
        (flags.collect(), dispatcher.content.clone())
    }

    fn pair(link: &str, flags: &str) -> (String, String) {
        (link.to_owned(), flags.to_owned())
    }

    #[test]
    fn network_manager_gets_the_settings_it_supports() {
        let (flags, dispatcher) = for_network_manager(&steps());
        let wifi = pair("wifi", "enabled,also-without-default-route,subflow,backup");
        // Otherwise NetworkManager would create its own `subflow` endpoint there.
        assert_eq!(flags, [wifi, pair("cellular", "disabled")]);
        assert!(dispatcher.contains("10.1.0.1 dev cellular laminar ||\n"));
        assert!(!dispatcher.contains("10.0.0.1"), "{dispatcher}");
    }

    #[test]
    fn network_manager_gets_no_settings_that_it_ignores() {
        let endpoint_step = |address: &str, flags: EndpointFlags, port: Option<u16>| {
            let (address, link) = (address.parse().unwrap(), Some("wifi".to_owned()));
            let change = ConfigChange::AddEndpoint(NamedEndpoint {
                address,
                id: None,
                port,
                flags: flags.bits(),
                link,
            });
            PlanStep { change, reason: String::new() }
        };
        let signal = EndpointFlags::SIGNAL;
        for other in [
            endpoint_step("fd00::1", signal, None),
            endpoint_step("169.254.1.1", signal, None),
            endpoint_step("10.0.0.2", signal, Some(443)),
            endpoint_step("10.0.0.2", EndpointFlags::SUBFLOW, None),
        ] {
            let (flags, dispatcher) =
                for_network_manager(&[endpoint_step("10.0.0.1", signal, None), other]);
            assert_eq!(flags, [pair("wifi", "disabled")]);
            assert_eq!(dispatcher.matches("ip mptcp endpoint add").count(), 2, "{dispatcher}");
        }
        let (from, to) = ("0".to_owned(), "1".to_owned());
        let sysctl = towpath_os::sysctl::Sysctl::new("net.mptcp.enabled");
        let enable_step =
            PlanStep { change: ConfigChange::Sysctl { sysctl, from, to }, reason: String::new() };
        let (flags, _) =
            for_network_manager(&[enable_step, endpoint_step("2001:db8::1", signal, None)]);
        let expected = "enabled,also-without-default-route,also-without-sysctl,signal";
        assert_eq!(flags, [pair("wifi", expected)]);
    }
}
