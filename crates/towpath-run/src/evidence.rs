//! Evidence that Multipath TCP was used, or the reason why not.

use towpath_result::format;
use towpath_result::{ConnectionUse, Counter, MultipathUse, SubflowSummary};
use towpath_scenario::Transport;

use crate::decisions::StackTotals;

/// Counters of fallbacks and their meanings (`net/mptcp/mib.h`), most conclusive first.
pub const FALLBACKS: [(&str, &str); 8] = [
    (
        "MPCapableSYNTXDisabled",
        "the kernel disabled Multipath TCP for a while, because earlier attempts got no reply (net.mptcp.blackhole_timeout)",
    ),
    ("MPCapableSYNTXDrop", "the SYN with the Multipath TCP option got no reply, the plain SYN did"),
    (
        "MPCapableFallbackSYNACK",
        "the SYN/ACK had no Multipath TCP option: a plain listener, or a middlebox that removes the option",
    ),
    (
        "MPCapableFallbackACK",
        "the third packet of the handshake had no Multipath TCP option: a middlebox removes it",
    ),
    ("MPCapableDataFallback", "the option was removed from data packets"),
    ("MD5SigFallback", "TCP MD5 signatures exclude Multipath TCP"),
    ("DataCsumErr", "a middlebox changed the payload"),
    ("DSSCorruptionFallback", "a mapping of data to the connection was damaged"),
];

/// Totals of the series for the summary.
#[derive(Debug, Default)]
pub struct Totals {
    /// Summaries of all subflows.
    pub subflows: Vec<SubflowSummary>,
    /// Bytes that were reinjected on another subflow.
    pub reinjected_bytes: u64,
    /// Number of connections that used Multipath TCP in the last sample.
    pub multipath: usize,
    /// Number of connections that did not use Multipath TCP in the last sample.
    pub single: usize,
    /// Each of these connections, for the use by each flow.
    pub connections: Vec<ConnectionUse>,
    /// Number of connections of programs that requested plain TCP.
    pub plain_tcp: usize,
    /// Reason for a fallback, if an end reported one.
    pub reason: Option<String>,
    /// Totals that our own stack reports of its connections.
    pub stack: StackTotals,
}

/// Judges by the sockets' last state and by the kernel's counters.
pub fn multipath_use(transport: Transport, totals: &Totals, counters: &[Counter]) -> MultipathUse {
    let requested = transport == Transport::Mptcp;
    let mut evidence = Vec::new();
    if requested {
        let connections = totals.multipath + totals.single;
        evidence.push(format!(
            "{} of {} reported Multipath TCP without fallback on both hosts",
            totals.multipath,
            format::count(connections as u64, "connection")
        ));
        if totals.plain_tcp > 0 {
            let plain = totals.plain_tcp;
            let (s, be) = if plain == 1 { ("", "was") } else { ("s", "were") };
            evidence
                .push(format!("{plain} more connection{s} of programs {be} plain TCP by choice"));
        }
        evidence.extend(counters.iter().filter(|counter| is_conclusive(&counter.name)).map(
            |counter| {
                format!("{} +{} on {}", counter.name, counter.after - counter.before, counter.host)
            },
        ));
        evidence
            .push(format!("{} bytes were reinjected on another subflow", totals.reinjected_bytes));
    }
    let used = requested && totals.single == 0 && totals.multipath > 0;
    MultipathUse {
        requested,
        used,
        fallback: (requested && !used).then(|| reason(totals, counters)),
        paths_used: Vec::new(),
        evidence,
        flows: Vec::new(),
    }
}

fn is_conclusive(name: &str) -> bool {
    ["MPCapableSYNTX", "MPCapableSYNACKRX", "MPCapableACKRX", "MPJoinSynAckRx", "MPJoinAckRx"]
        .iter()
        .any(|counter| name.strip_prefix("MPTcpExt.") == Some(counter))
}

fn reason(totals: &Totals, counters: &[Counter]) -> String {
    if totals.multipath + totals.single == 0 {
        let text = match totals.plain_tcp {
            0 => "no connection was opened",
            _ => "the program opened plain TCP; `towpath exec -- PROGRAM` changes that",
        };
        return text.to_owned();
    }
    let has_grown = |name: &str| {
        counters
            .iter()
            .any(|c| c.name.strip_prefix("MPTcpExt.") == Some(name) && c.after > c.before)
    };
    // Our own stack reports the reason; for a kernel, only the counters show it.
    if let Some(reason) = &totals.reason {
        return reason.clone();
    }
    FALLBACKS.iter().find(|(name, _)| has_grown(name)).map_or_else(
        || "the connection fell back to TCP, and no kernel counter shows the cause".to_owned(),
        |(name, meaning)| format!("{meaning} (counter {name})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::StackTotals;

    fn totals(multipath: usize, single: usize) -> Totals {
        Totals {
            subflows: Vec::new(),
            reinjected_bytes: 0,
            multipath,
            single,
            connections: Vec::new(),
            plain_tcp: 0,
            reason: None,
            stack: StackTotals::default(),
        }
    }

    fn counter(name: &str) -> Counter {
        Counter { host: "phone".into(), name: format!("MPTcpExt.{name}"), before: 1, after: 2 }
    }

    #[test]
    fn a_plain_listener_is_named_as_the_reason() {
        let usage =
            multipath_use(Transport::Mptcp, &totals(0, 1), &[counter("MPCapableFallbackSYNACK")]);
        assert!(!usage.used);
        assert!(usage.fallback.unwrap().contains("plain listener"));
    }

    #[test]
    fn the_fallback_reason_of_our_stack_precedes_kernel_counters() {
        let reason = Some("the peer asked for it (seen by phone)".to_owned());
        let totals = Totals { reason: reason.clone(), ..totals(0, 1) };
        let usage = multipath_use(Transport::Mptcp, &totals, &[counter("MPCapableFallbackACK")]);
        assert_eq!(usage.fallback, reason);
    }

    #[test]
    fn one_fallback_means_multipath_was_not_used() {
        assert!(!multipath_use(Transport::Mptcp, &totals(3, 1), &[]).used);
        assert!(multipath_use(Transport::Mptcp, &totals(4, 0), &[]).used);
        assert!(!multipath_use(Transport::Tcp, &totals(0, 1), &[]).requested);
    }
}
