//! The same set-up as files that outlive a restart.

use std::fmt::Write as _;

use super::change::{Change, NamedEndpoint};
use super::plan::{Plan, Step};
use crate::netlink::EndpointFlags;

/// Who reads the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `NetworkManager`: commands for its connections, and a dispatcher script.
    NetworkManager,
    /// systemd: a unit that runs a script.
    Systemd,
    /// A script for whatever runs scripts.
    Script,
}

/// A file to be put somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Where it belongs.
    pub place: &'static str,
    /// Whether it is run.
    pub is_executable: bool,
    /// What is in it.
    pub content: String,
}

const SCRIPT: &str = "/usr/local/sbin/towpath-mptcp";
const UNIT: &str = "/etc/systemd/system/towpath-mptcp.service";
const DISPATCHER: &str = "/etc/NetworkManager/dispatcher.d/50-towpath-mptcp";
const CONNECTIONS: &str = "/usr/local/sbin/towpath-mptcp-connections";

/// What is to be made at each start: what is right already, what was applied earlier, and what is
/// still to be done.
pub fn at_each_start(plan: &Plan, applied: &[Change]) -> Vec<Step> {
    let earlier = applied.iter().filter(|change| {
        matches!(change, Change::Sysctl { .. } | Change::AddRoute(_) | Change::AddRule(_))
    });
    let reason = "set up earlier";
    let earlier = earlier.map(|change| Step { change: change.clone(), reason: reason.to_owned() });
    let is_made = |step: &&Step| !matches!(step.change, Change::DeleteEndpoint(_));
    let mut steps: Vec<_> = earlier.collect();
    steps.extend(plan.keeps.iter().chain(&plan.steps).filter(is_made).cloned());
    steps
}

/// Files that make `steps` at each start. `title` says what made them.
pub fn stored(form: Form, title: &str, steps: &[Step]) -> Vec<StoredFile> {
    let file = |place, is_executable, content| StoredFile { place, is_executable, content };
    match form {
        Form::Script => vec![file(SCRIPT, true, script(title, steps, &[]))],
        Form::Systemd => {
            vec![file(SCRIPT, true, script(title, steps, &[])), file(UNIT, false, unit(title))]
        }
        Form::NetworkManager => {
            let (theirs, ours): (Vec<&Step>, Vec<&Step>) =
                steps.iter().partition(|step| known_to_network_manager(&step.change).is_some());
            let ours: Vec<Step> = ours.into_iter().cloned().collect();
            let only_when_up =
                ["case \"$2\" in up|dhcp4-change|dhcp6-change) ;; *) exit 0 ;; esac"];
            vec![
                file(CONNECTIONS, true, connections(title, &theirs)),
                file(DISPATCHER, true, script(title, &ours, &only_when_up)),
            ]
        }
    }
}

/// A script that does no harm when it runs again.
fn script(title: &str, steps: &[Step], first: &[&str]) -> String {
    let mut text =
        format!("#!/bin/sh\n# {title}\n# What is there already is refused and stays as it is.\n");
    for line in first {
        let _infallible = writeln!(text, "{line}");
    }
    let mut reason = "";
    for step in steps {
        if step.reason != reason {
            reason = &step.reason;
            let _infallible = writeln!(text, "# {reason}");
        }
        let _infallible = writeln!(text, "{}", step.change.command());
    }
    text.push_str("exit 0\n");
    text
}

fn unit(title: &str) -> String {
    format!(
        "# {title}\n[Unit]\nDescription=Multipath TCP endpoints, limits and routes\n\
         Wants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\n\
         RemainAfterExit=yes\nExecStart={SCRIPT}\n\n[Install]\nWantedBy=multi-user.target\n"
    )
}

/// The flags of `connection.mptcp-flags` that make an endpoint; it has none for `laminar`, ports and
/// numbers.
fn known_to_network_manager(change: &Change) -> Option<(&NamedEndpoint, String)> {
    let Change::AddEndpoint(endpoint) = change else { return None };
    let flags = endpoint.flags();
    let known = [
        (EndpointFlags::SIGNAL, "signal"),
        (EndpointFlags::SUBFLOW, "subflow"),
        (EndpointFlags::BACKUP, "backup"),
        (EndpointFlags::FULLMESH, "fullmesh"),
    ];
    let all = known.iter().fold(EndpointFlags::default(), |all, (flag, _)| all | *flag);
    if flags.without(all) != EndpointFlags::default() || endpoint.link.is_none() {
        return None;
    }
    let names = known.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name);
    // Ours may be where no default route is.
    let names = ["enabled", "also-without-default-route"].into_iter().chain(names);
    Some((endpoint, names.collect::<Vec<_>>().join(",")))
}

fn connections(title: &str, steps: &[&Step]) -> String {
    let mut text = format!("#!/bin/sh\n# {title}\n# Run it once: NetworkManager keeps it.\n");
    let mut done = Vec::new();
    for step in steps {
        let Some((endpoint, flags)) = known_to_network_manager(&step.change) else { continue };
        let Some(link) = &endpoint.link else { continue };
        // A connection has one set of flags for all of its addresses.
        if done.contains(&link) {
            continue;
        }
        done.push(link);
        let device = super::change::quoted(link);
        let _infallible = writeln!(text, "# {}", step.reason);
        let _infallible = writeln!(
            text,
            "nmcli connection modify \"$(nmcli -g GENERAL.CONNECTION device show {device})\" \
             connection.mptcp-flags {flags}"
        );
        let _infallible = writeln!(text, "nmcli device reapply {device}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::change::Limits;

    fn steps() -> Vec<Step> {
        let endpoint = |address: &str, link: &str, flags: EndpointFlags| Step {
            change: Change::AddEndpoint(NamedEndpoint {
                address: address.parse().unwrap(),
                id: None,
                port: None,
                flags: flags.bits(),
                link: Some(link.to_owned()),
            }),
            reason: format!("open a subflow from {address}"),
        };
        let from = Limits { subflows: 2, add_addr_accepted: 0 };
        let change = Change::Limits { from, to: Limits { subflows: 4, add_addr_accepted: 2 } };
        vec![
            Step { change, reason: "room for subflows".to_owned() },
            endpoint("10.0.0.1", "wifi", EndpointFlags::SUBFLOW | EndpointFlags::BACKUP),
            endpoint("10.1.0.1", "cellular", EndpointFlags::LAMINAR),
        ]
    }

    #[test]
    fn a_unit_runs_the_script_when_the_network_is_there() {
        let files = stored(Form::Systemd, "made by a test", &steps());
        let [script, unit] = &files[..] else { panic!("{files:?}") };
        assert!(
            script.is_executable && script.content.starts_with("#!/bin/sh\n# made by a test\n")
        );
        assert!(script.content.contains("\nip mptcp limits set subflows 4 add_addr_accepted 2\n"));
        assert!(script.content.contains("\nip mptcp endpoint add 10.1.0.1 dev cellular laminar\n"));
        assert!(unit.content.contains(&format!("ExecStart={}\n", script.place)));
        assert!(unit.content.contains("After=network-online.target"));
    }

    #[test]
    fn network_manager_gets_what_it_has_words_for() {
        let files = stored(Form::NetworkManager, "made by a test", &steps());
        let [connections, dispatcher] = &files[..] else { panic!("{files:?}") };
        let flags = "connection.mptcp-flags enabled,also-without-default-route,subflow,backup\n";
        assert!(connections.content.contains(flags), "{}", connections.content);
        assert!(connections.content.contains("device show wifi"), "{}", connections.content);
        assert!(!connections.content.contains("cellular"), "it knows no laminar");
        assert!(dispatcher.content.contains("10.1.0.1 dev cellular laminar\n"));
        assert!(!dispatcher.content.contains("10.0.0.1"), "{}", dispatcher.content);
    }
}
