//! The crates: systems they build on, and those of ours that each may use.

/// Systems that a crate builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    /// Every system that Rust's standard library supports.
    Any,
    /// Linux only.
    Linux,
}

/// Rule of one crate.
#[derive(Debug)]
pub(super) struct CrateRule {
    /// Name of the package, which is also that of its folder.
    pub(super) name: &'static str,
    /// Systems that it builds on.
    pub(super) platform: Platform,
    /// Crates of ours that it may use, also in tests.
    pub(super) may_use: &'static [&'static str],
    /// Topics that the crate does not know, which explain why others are not in `may_use`.
    pub(super) must_not_know: &'static str,
}

/// Packages that a portable crate may depend on for some systems only.
pub(super) const SYSTEM_PACKAGES: [&str; 4] = ["libc", "nix", "socket2", "netlink-sys"];

/// Returns the rule of the crate with this name.
pub(super) fn rule(name: &str) -> Option<&'static CrateRule> {
    CRATES.iter().find(|rule| rule.name == name)
}

/// The crates in an order in which each uses only earlier ones.
///
/// The order is that of ARCHITECTURE.md. No crate uses the command or `xtask`.
pub(super) const CRATES: &[CrateRule] = &[
    CrateRule {
        name: "towpath-net",
        platform: Platform::Any,
        may_use: &[],
        must_not_know: "protocols and clocks",
    },
    CrateRule {
        name: "towpath-os",
        platform: Platform::Any,
        may_use: &["towpath-net"],
        must_not_know: "scenarios, packets and netlink",
    },
    CrateRule {
        name: "towpath-wire",
        platform: Platform::Any,
        may_use: &["towpath-net"],
        must_not_know: "connections and scenarios",
    },
    CrateRule {
        name: "towpath-multipath",
        platform: Platform::Any,
        may_use: &["towpath-net"],
        must_not_know: "wire formats and clocks",
    },
    CrateRule {
        name: "towpath-mptcp",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-wire", "towpath-multipath"],
        must_not_know: "sockets, scenarios and QUIC",
    },
    CrateRule {
        name: "towpath-quic",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-multipath"],
        must_not_know: "scenarios, subflows and TCP",
    },
    CrateRule {
        name: "towpath-scenario",
        platform: Platform::Any,
        may_use: &["towpath-net"],
        must_not_know: "results, sockets and protocol stacks",
    },
    CrateRule {
        name: "towpath-result",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-scenario"],
        must_not_know: "worlds, protocol stacks and threads",
    },
    CrateRule {
        name: "towpath-run",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-scenario", "towpath-result"],
        must_not_know: "sockets, clocks and protocol stacks",
    },
    CrateRule {
        name: "towpath-sim",
        platform: Platform::Any,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
            "towpath-os",
        ],
        must_not_know: "sockets, clocks and threads",
    },
    CrateRule {
        name: "towpath-trace",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-wire", "towpath-scenario", "towpath-result"],
        must_not_know: "pages and protocol stacks",
    },
    CrateRule {
        name: "towpath-report",
        platform: Platform::Any,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-scenario",
            "towpath-result",
            "towpath-trace",
        ],
        must_not_know: "worlds and protocol stacks",
    },
    CrateRule {
        name: "towpath-script",
        platform: Platform::Any,
        may_use: &["towpath-net", "towpath-wire", "towpath-mptcp"],
        must_not_know: "worlds",
    },
    CrateRule {
        name: "towpath-study",
        platform: Platform::Any,
        may_use: &[
            "towpath-net",
            "towpath-os",
            "towpath-scenario",
            "towpath-result",
            "towpath-report",
        ],
        must_not_know: "worlds",
    },
    CrateRule {
        name: "towpath-python",
        platform: Platform::Any,
        may_use: &[
            "towpath-net",
            "towpath-os",
            "towpath-multipath",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
            "towpath-sim",
            "towpath-trace",
            "towpath-report",
            "towpath-study",
        ],
        must_not_know: "sockets and namespaces",
    },
    CrateRule {
        name: "towpath-analysis",
        platform: Platform::Any,
        may_use: &["towpath-scenario", "towpath-result", "towpath-report"],
        must_not_know: "databases and protocol stacks",
    },
    CrateRule {
        name: "towpath-campaign",
        platform: Platform::Any,
        may_use: &["towpath-scenario", "towpath-result"],
        must_not_know: "worlds, sockets and databases",
    },
    CrateRule {
        name: "towpath-collect",
        platform: Platform::Linux,
        may_use: &[
            "towpath-scenario",
            "towpath-result",
            "towpath-campaign",
            "towpath-report",
            "towpath-analysis",
        ],
        must_not_know: "how a run is made",
    },
    CrateRule {
        name: "towpath-netlink",
        platform: Platform::Linux,
        may_use: &["towpath-net"],
        must_not_know: "scenarios and processes",
    },
    CrateRule {
        name: "towpath-kernel",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-os",
            "towpath-netlink",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
        ],
        must_not_know: "our protocol stacks",
    },
    CrateRule {
        name: "towpath-host",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-os",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
        ],
        must_not_know: "worlds, servers and our protocol stacks",
    },
    CrateRule {
        name: "towpath-sockets",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-os",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
        ],
        must_not_know: "networks of scenarios, and records of results",
    },
    CrateRule {
        name: "towpath-emu",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-os",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-sockets",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
            "towpath-script",
        ],
        must_not_know: "other hosts, and the setup of this one",
    },
    CrateRule {
        name: "towpath-live",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-os",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-sockets",
            "towpath-host",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
            "towpath-campaign",
        ],
        must_not_know: "namespaces and the emulator",
    },
    CrateRule {
        name: "towpath-doctor",
        platform: Platform::Linux,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-quic",
            "towpath-os",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-sockets",
            "towpath-host",
            "towpath-live",
            "towpath-result",
            "towpath-run",
        ],
        must_not_know: "the emulator",
    },
    CrateRule {
        name: "towpath",
        platform: Platform::Any,
        may_use: &[
            "towpath-net",
            "towpath-wire",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-scenario",
            "towpath-result",
            "towpath-run",
            "towpath-sim",
            "towpath-trace",
            "towpath-report",
            "towpath-os",
            "towpath-study",
            "towpath-netlink",
            "towpath-kernel",
            "towpath-host",
            "towpath-sockets",
            "towpath-emu",
            "towpath-live",
            "towpath-doctor",
            "towpath-campaign",
            "towpath-analysis",
            "towpath-collect",
        ],
        must_not_know: "how anything is measured or simulated",
    },
    CrateRule {
        name: "xtask",
        platform: Platform::Any,
        may_use: &[],
        must_not_know: "the product's code",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_uses_only_earlier_ones() {
        for (index, rule) in CRATES.iter().enumerate() {
            for used in rule.may_use {
                let is_earlier = CRATES[..index].iter().any(|earlier| earlier.name == *used);
                assert!(is_earlier, "{} may use {used}, which is later or unknown", rule.name);
            }
        }
    }

    #[test]
    fn portable_crates_use_no_linux_crate_and_none_uses_the_command() {
        for user in CRATES.iter().filter(|rule| rule.name != "towpath") {
            assert!(!user.may_use.contains(&"towpath") && !user.may_use.contains(&"xtask"));
            for used in user.may_use.iter().filter_map(|name| rule(name)) {
                let is_linux = used.platform == Platform::Linux;
                assert!(
                    !is_linux || user.platform == Platform::Linux,
                    "{} uses {}",
                    user.name,
                    used.name
                );
            }
        }
    }

    #[test]
    fn real_clock_crates_do_not_use_the_simulator() {
        for user in CRATES.iter().filter(|rule| rule.platform == Platform::Linux) {
            assert!(!user.may_use.contains(&"towpath-sim"), "{}", user.name);
        }
    }
}
