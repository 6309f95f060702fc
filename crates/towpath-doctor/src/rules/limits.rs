//! Commands that raise limits and buffers, and never lower them.

use towpath_host::snapshot::MptcpLimits;

use crate::finding::Finding;

/// The kernel's maximum of both limits (`MPTCP_PM_ADDR_MAX`).
const MAX_LIMIT: u32 = 8;
/// Limits that are enough for every connection.
pub(super) const MAX_LIMITS: MptcpLimits =
    MptcpLimits { subflows: MAX_LIMIT, add_addr_accepted: MAX_LIMIT };
/// Smallest, default and largest receive buffer in bytes, as in Linux.
const RECEIVE_BUFFER_BYTES: [u64; 3] = [4_096, 131_072, 6_291_456];

/// Adds the command that raises the limits of a host to `needed`, capped at the kernel's maximum.
///
/// A limit of 0 in `needed` is not important. No value is below the current one. If a needed limit
/// is at the maximum already, a hint says so instead. `comment` follows the command.
pub(super) fn raise_limits(
    mut finding: Finding,
    current: Option<MptcpLimits>,
    needed: MptcpLimits,
    comment: &str,
) -> Finding {
    let from = current.unwrap_or(MptcpLimits { subflows: 0, add_addr_accepted: 0 });
    let raised = |from: u32, needed: u32| from.max(needed.min(MAX_LIMIT));
    let subflows = raised(from.subflows, needed.subflows);
    let accepted = raised(from.add_addr_accepted, needed.add_addr_accepted);
    let is_at_maximum = |from: u32, needed: u32| from >= MAX_LIMIT && needed >= MAX_LIMIT;
    if (subflows, accepted) == (from.subflows, from.add_addr_accepted)
        && (is_at_maximum(from.subflows, needed.subflows)
            || is_at_maximum(from.add_addr_accepted, needed.add_addr_accepted))
    {
        let maximum =
            format!("the limit is at the kernel's maximum, {MAX_LIMIT}: use fewer endpoints");
        finding.hint = Some(match finding.hint.take() {
            Some(hint) => format!("{maximum}. {hint}"),
            None => maximum,
        });
        return finding;
    }
    let accepted = match (needed.add_addr_accepted, comment) {
        (0, comment) if !comment.is_empty() => String::new(),
        _ => format!(" add_addr_accepted {accepted}"),
    };
    finding.fix(format!("ip mptcp limits set subflows {subflows}{accepted}{comment}"))
}

/// Returns a limit that is higher than the exhausted one: `needed` if that is higher, else the
/// maximum.
pub(super) fn above_exhausted(limit: u32, needed: u32) -> u32 {
    if needed > limit { needed } else { MAX_LIMIT }
}

/// Returns the command that raises the receive buffers; `current` is `net.ipv4.tcp_rmem`.
pub(super) fn raise_receive_buffer(current: Option<&str>, comment: &str) -> String {
    let mut current = current.unwrap_or_default().split_whitespace();
    let raised = RECEIVE_BUFFER_BYTES.map(|needed| {
        let current = current.next().and_then(|word| word.parse::<u64>().ok());
        current.unwrap_or(0).max(needed)
    });
    let [min, default, max] = raised;
    format!("sysctl -w net.ipv4.tcp_rmem=\"{min} {default} {max}\"{comment}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::finding::Cause;

    fn limits(subflows: u32, add_addr_accepted: u32) -> MptcpLimits {
        MptcpLimits { subflows, add_addr_accepted }
    }

    fn raised(current: Option<MptcpLimits>, needed: MptcpLimits) -> Finding {
        raise_limits(Finding::new(Cause::SubflowLimit, "x"), current, needed, "")
    }

    #[test]
    fn limits_are_raised_to_the_maximum_and_not_beyond() {
        let fix = raised(Some(limits(5, 0)), limits(3, 20)).fix;
        assert_eq!(fix, ["ip mptcp limits set subflows 5 add_addr_accepted 8"]);
        let fix = raised(None, limits(2, 0)).fix;
        assert_eq!(fix, ["ip mptcp limits set subflows 2 add_addr_accepted 0"]);
        let there = " # there";
        let finding = Finding::new(Cause::PeerLimit, "x");
        let fix = raise_limits(finding, Some(limits(2, 4)), limits(8, 0), there).fix;
        assert_eq!(fix, ["ip mptcp limits set subflows 8 # there"]);
    }

    #[test]
    fn a_limit_at_the_maximum_gets_a_hint() {
        let finding = raised(Some(limits(8, 2)), limits(above_exhausted(8, 5), 2));
        assert!(finding.fix.is_empty(), "{finding:?}");
        assert!(finding.hint.unwrap().contains("the kernel's maximum, 8"));
        assert_eq!([above_exhausted(2, 5), above_exhausted(5, 5)], [5, 8]);
    }

    #[test]
    fn each_receive_buffer_is_only_raised() {
        let command = raise_receive_buffer(Some("8192 16384 65536"), "");
        assert_eq!(command, "sysctl -w net.ipv4.tcp_rmem=\"8192 131072 6291456\"");
        let command = raise_receive_buffer(Some("x; reboot"), "   # there");
        assert_eq!(command, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"   # there");
    }

    proptest! {
        #[test]
        fn no_limit_is_ever_lowered(
            current in (0..20_u32, 0..20_u32),
            needed in (0..20_u32, 0..20_u32),
        ) {
            let finding = raised(Some(limits(current.0, current.1)), limits(needed.0, needed.1));
            for command in finding.fix {
                let values: Vec<u32> =
                    command.split(' ').filter_map(|word| word.parse().ok()).collect();
                prop_assert!(values[0] >= current.0 && values[1] >= current.1, "{}", command);
                prop_assert!(values[0] <= current.0.max(8) && values[1] <= current.1.max(8));
            }
        }
    }
}
