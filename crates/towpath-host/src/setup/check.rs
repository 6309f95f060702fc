//! Check that a stored change is one that its command can make; any other content is never reverted.

use std::fmt;
use std::net::IpAddr;

use towpath_netlink::{EndpointFlags, Prefix};
use towpath_os::sysctl::Sysctl;

use super::change::{ConfigChange, NamedEndpoint, SourceRule, StoredLimits, TableRoute};
use super::plan::{FIRST_TABLE, RULE_PRIORITY_LIMIT};

/// Longest name of an interface (`IFNAMSIZ` without the terminating zero).
const MAX_INTERFACE_NAME: usize = 15;
/// Upper bound of the path manager's limits on any kernel; most accept 8.
const MAX_LIMIT: u32 = 255;
/// Sysctls that a plan sets for a whole host.
const HOST_SYSCTLS: [[&str; 3]; 3] =
    [["net", "mptcp", "enabled"], ["net", "mptcp", "path_manager"], ["net", "mptcp", "pm_type"]];
/// Sysctls under `net.ipv4.conf` that a plan sets for an interface.
const INTERFACE_SYSCTLS: [&str; 3] = ["arp_ignore", "arp_announce", "rp_filter"];

/// Longest text of a setting that `doctor --fix` changes: three numbers of 32 bits.
const MAX_NUMBERS_LENGTH: usize = 32;
/// Sysctls that `doctor --fix` sets for a whole host.
const FIX_HOST_SYSCTLS: [[&str; 3]; 6] = [
    ["net", "mptcp", "enabled"],
    ["net", "mptcp", "pm_type"],
    ["net", "mptcp", "blackhole_timeout"],
    ["net", "ipv4", "tcp_rmem"],
    ["net", "ipv4", "tcp_mtu_probing"],
    ["net", "ipv4", "ip_default_ttl"],
];

/// Command whose changes a state file records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateOwner {
    /// `towpath setup --apply`.
    Setup,
    /// `towpath doctor --fix`.
    Doctor,
}

impl fmt::Display for StateOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setup => "towpath setup",
            Self::Doctor => "towpath doctor --fix",
        })
    }
}

/// Error for a change that the owner of the state never makes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{owner}` never changes {kind}: {command}")]
pub struct ForeignChange {
    owner: StateOwner,
    kind: &'static str,
    command: String,
}

/// Refuses a change that `owner` never makes.
pub(super) fn check(owner: StateOwner, change: &ConfigChange) -> Result<(), ForeignChange> {
    let (is_setup, is_doctor) = (owner == StateOwner::Setup, owner == StateOwner::Doctor);
    let (kind, is_allowed) = match change {
        ConfigChange::Sysctl { sysctl, from, to } => (
            "this setting",
            match owner {
                StateOwner::Setup => is_allowed_sysctl(sysctl) && is_value(from) && is_value(to),
                StateOwner::Doctor => {
                    is_fixable_sysctl(sysctl) && are_numbers(from) && are_numbers(to)
                }
            },
        ),
        ConfigChange::AddRoute(route) => ("this route", is_setup && is_route(route)),
        ConfigChange::AddRule(rule) => ("this rule", is_setup && is_rule(rule)),
        // No command deletes routes and rules that existed before.
        ConfigChange::DeleteRoute(_) => ("a route that was there", false),
        ConfigChange::DeleteRule(_) => ("a rule that was there", false),
        ConfigChange::Limits { from, to } => ("this limit", are_limits(*from) && are_limits(*to)),
        ConfigChange::AddEndpoint(endpoint) | ConfigChange::DeleteEndpoint(endpoint) => {
            ("this endpoint", is_endpoint(endpoint))
        }
        ConfigChange::SetEndpointFlags { endpoint, to } => {
            let after = NamedEndpoint { flags: *to, ..endpoint.clone() };
            ("these flags", is_doctor && is_endpoint(endpoint) && is_endpoint(&after))
        }
        ConfigChange::ForgetNeighbours { link } => {
            ("this interface", is_setup && is_interface_name(link))
        }
    };
    // Escaped, so that no control character reaches the terminal.
    if is_allowed {
        Ok(())
    } else {
        Err(ForeignChange { owner, kind, command: format!("{:?}", change.command()) })
    }
}

/// Returns true if the kernel permits `name` as an interface name.
pub fn is_interface_name(name: &str) -> bool {
    let is_forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=MAX_INTERFACE_NAME).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(is_forbidden)
}

fn is_allowed_sysctl(sysctl: &Sysctl) -> bool {
    is_listed_sysctl(sysctl, &HOST_SYSCTLS)
}

/// Returns true for a setting that `doctor --fix` may change.
pub fn is_fixable_sysctl(sysctl: &Sysctl) -> bool {
    is_listed_sysctl(sysctl, &FIX_HOST_SYSCTLS)
}

/// Returns true for one of `host_sysctls`, or a listed setting of an interface.
fn is_listed_sysctl(sysctl: &Sysctl, host_sysctls: &[[&str; 3]]) -> bool {
    let parts = sysctl.parts();
    match parts.as_slice() {
        ["net", "ipv4", "conf", link, name] => {
            INTERFACE_SYSCTLS.contains(name) && is_interface_name(link)
        }
        other => host_sysctls.iter().any(|allowed| allowed.as_slice() == other),
    }
}

/// Accepts numbers, separated as the kernel or as `sysctl` separates them.
fn are_numbers(value: &str) -> bool {
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    (1..=MAX_NUMBERS_LENGTH).contains(&value.len()) && value.split(['\t', ' ']).all(is_number)
}

/// Accepts numbers and names of path managers.
fn is_value(value: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=16).contains(&value.len()) && value.chars().all(plain)
}

fn is_table(table: u32) -> bool {
    table >= FIRST_TABLE
}

fn is_route(route: &TableRoute) -> bool {
    let to = route.to.parse::<Prefix>();
    // Only the canonical spelling, as the command is also shown to be pasted.
    to.is_ok_and(|to| to.to_string() == route.to)
        && is_table(route.table)
        && is_interface_name(&route.link)
}

fn is_rule(rule: &SourceRule) -> bool {
    is_table(rule.table)
        && (1..=RULE_PRIORITY_LIMIT).contains(&rule.priority)
        && is_host_address(rule.from)
}

fn is_host_address(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn are_limits(limits: StoredLimits) -> bool {
    limits.subflows <= MAX_LIMIT && limits.add_addr_accepted <= MAX_LIMIT
}

fn is_endpoint(endpoint: &NamedEndpoint) -> bool {
    // A plan never changes the kernel's implicit endpoints. Later kernels may add flags.
    endpoint.flags < 1 << 8
        && !endpoint.flags().contains(EndpointFlags::IMPLICIT)
        && is_host_address(endpoint.address)
        && endpoint.link.as_deref().is_none_or(is_interface_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from_json(text: &str) -> Result<ConfigChange, String> {
        let change: ConfigChange = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(StateOwner::Setup, &change).map(|()| change).map_err(|error| error.to_string())
    }

    fn fix_from_json(text: &str) -> Result<(), String> {
        let change: ConfigChange = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(StateOwner::Doctor, &change).map_err(|error| error.to_string())
    }

    #[test]
    fn only_changes_that_fixes_make_are_accepted_in_their_record() {
        for text in [
            r#"{"do":"sysctl","sysctl":"net/ipv4/tcp_rmem","from":"4096\t8192\t8192","to":"4096 131072 6291456"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/conf/all/rp_filter","from":"0","to":"2"}"#,
            r#"{"do":"limits","from":{"subflows":2,"add_addr_accepted":0},"to":{"subflows":8,"add_addr_accepted":8}}"#,
            r#"{"do":"set_endpoint_flags","endpoint":{"address":"10.0.0.2","id":1,"port":null,"flags":6,"link":"eth0"},"to":2}"#,
            r#"{"do":"delete_endpoint","address":"fd00::1","id":3,"port":443,"flags":1,"link":null}"#,
        ] {
            assert_eq!(fix_from_json(text), Ok(()), "{text}");
        }
        for text in [
            r#"{"do":"sysctl","sysctl":"net/ipv4/ip_forward","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/tcp_rmem","from":"4096\n1","to":"4096 131072 6291456"}"#,
            r#"{"do":"sysctl","sysctl":"net/mptcp/enabled","from":"","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/mptcp/path_manager","from":"userspace","to":"kernel"}"#,
            r#"{"do":"add_route","to":"0.0.0.0/0","link":"eth0","gateway":null,"table":1003}"#,
            r#"{"do":"add_rule","from":"10.0.0.2","table":1003,"priority":999}"#,
            r#"{"do":"set_endpoint_flags","endpoint":{"address":"10.0.0.2","id":1,"port":null,"flags":6,"link":"eth0"},"to":18}"#,
            r#"{"do":"forget_neighbours","link":"wlan0"}"#,
        ] {
            assert!(fix_from_json(text).is_err(), "{text}");
        }
        let flags = r#"{"do":"set_endpoint_flags","endpoint":{"address":"10.0.0.2","id":1,"port":null,"flags":6,"link":null},"to":2}"#;
        assert!(from_json(flags).is_err(), "setup never changes the flags of an endpoint");
    }

    #[test]
    fn changes_made_by_plans_are_accepted() {
        for text in [
            r#"{"do":"sysctl","sysctl":"net/mptcp/enabled","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/mptcp/path_manager","from":"userspace","to":"kernel"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/conf/eth0.100/rp_filter","from":"1","to":"2"}"#,
            r#"{"do":"add_route","to":"0.0.0.0/0","link":"a;b","gateway":"10.0.0.1","table":1003}"#,
            r#"{"do":"add_route","to":"fd00::/64","link":"eth0","gateway":null,"table":1003}"#,
            r#"{"do":"add_rule","from":"10.0.0.2","table":1003,"priority":999}"#,
            r#"{"do":"limits","from":{"subflows":2,"add_addr_accepted":0},"to":{"subflows":8,"add_addr_accepted":8}}"#,
            r#"{"do":"add_endpoint","address":"10.0.0.2","id":1,"port":null,"flags":34,"link":"eth0"}"#,
            r#"{"do":"delete_endpoint","address":"fd00::1","id":null,"port":443,"flags":1,"link":null}"#,
            r#"{"do":"forget_neighbours","link":"wlan0"}"#,
        ] {
            assert!(from_json(text).is_ok(), "{text}: {:?}", from_json(text));
        }
    }

    #[test]
    fn changes_that_no_plan_makes_are_refused_from_any_source() {
        for text in [
            r#"{"do":"sysctl","sysctl":"net/../kernel/core_pattern","from":"core","to":"|/bin/sh"}"#,
            r#"{"do":"sysctl","sysctl":"kernel/panic","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/ip_forward","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/conf/../rp_filter","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/ipv4/conf/eth0/forwarding","from":"0","to":"1"}"#,
            r#"{"do":"sysctl","sysctl":"net/mptcp/enabled","from":"0","to":"1\n2"}"#,
            r#"{"do":"add_route","to":"0.0.0.0/0","link":"eth0","gateway":null,"table":254}"#,
            r#"{"do":"add_route","to":"0.0.0.0/0; reboot","link":"eth0","gateway":null,"table":1003}"#,
            r#"{"do":"add_route","to":"10.0.0.0/8","link":"eth0 x","gateway":null,"table":1003}"#,
            r#"{"do":"delete_route","to":"10.0.0.0/8","link":"eth0","gateway":null,"table":1003}"#,
            r#"{"do":"add_rule","from":"10.0.0.2","table":254,"priority":999}"#,
            r#"{"do":"add_rule","from":"0.0.0.0","table":1003,"priority":999}"#,
            r#"{"do":"add_rule","from":"10.0.0.2","table":1003,"priority":32766}"#,
            r#"{"do":"delete_rule","from":"10.0.0.2","table":1003,"priority":999}"#,
            r#"{"do":"limits","from":{"subflows":2,"add_addr_accepted":0},"to":{"subflows":256,"add_addr_accepted":8}}"#,
            r#"{"do":"add_endpoint","address":"10.0.0.2","id":1,"port":null,"flags":16,"link":"eth0"}"#,
            r#"{"do":"add_endpoint","address":"10.0.0.2","id":1,"port":null,"flags":2,"link":"../eth0"}"#,
            r#"{"do":"forget_neighbours","link":""}"#,
            r#"{"do":"run","command":"reboot"}"#,
        ] {
            assert!(from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refused_changes_are_printed_without_terminal_escapes() {
        let text = r#"{"do":"forget_neighbours","link":"a\u001b[2Jb"}"#;
        let error = from_json(text).unwrap_err();
        assert!(!error.contains('\u{1b}') && error.contains("this interface"), "{error}");
    }

    proptest! {
        #[test]
        fn only_listed_settings_are_accepted(path in "(net/)?[a-z0-9./]{0,24}(/rp_filter)?") {
            let Ok(sysctl) = Sysctl::try_from(path.clone()) else { return Ok(()) };
            if is_allowed_sysctl(&sysctl) {
                let suffix = path.strip_prefix("net/ipv4/conf/").unwrap_or(&path);
                prop_assert!(suffix.split('/').count() == 2 || path.starts_with("net/mptcp/"));
                prop_assert!(!path.split('/').any(|part| part == ".." || part == "."));
            }
        }
    }
}
