//! Evidence that a multipath transport was used between two real hosts, and related warnings.

use std::collections::BTreeMap;

use towpath_quic::evidence::{self, ConnectionEvidence, HostEvidence, MultipathEvidence};
use towpath_result::{MultipathUse, Warning};
use towpath_run::decisions::StackTotals;
use towpath_run::evidence::Totals;
use towpath_scenario::{Scenario, Transport};

use crate::protocol::{HOSTS, HostReport, MergedRun};

/// Derives the multipath use from both hosts' reports.
pub(super) fn multipath_use(
    scenario: &Scenario,
    transport: Transport,
    merged: &MergedRun,
    (client, server): (&HostReport, Option<&HostReport>),
) -> MultipathUse {
    let mut multipath_use = if transport == Transport::Mpquic {
        quic_multipath_use(merged, [Some(client), server])
    } else {
        let totals = Totals {
            subflows: Vec::new(),
            reinjected_bytes: merged.reinjected_bytes,
            multipath: merged.multipath,
            single: merged.single,
            connections: merged.connections.clone(),
            plain_tcp: 0,
            reason: merged.reason.clone(),
            stack: StackTotals::default(),
        };
        towpath_run::evidence::multipath_use(transport, &totals, &merged.counters)
    };
    multipath_use.paths_used.clone_from(&merged.paths_used);
    let mut multipath_use = multipath_use.set_flows(scenario, transport, &merged.connections);
    for flow in &mut multipath_use.flows {
        if let Some(paths) = merged.flow_paths.get(&flow.flow) {
            flow.paths_used.clone_from(paths);
        }
    }
    multipath_use
}

fn quic_multipath_use(merged: &MergedRun, reports: [Option<&HostReport>; 2]) -> MultipathUse {
    let count = |host: &'static str| {
        move |name: &'static str| {
            let name = format!("Towpath.{name}");
            let counter =
                merged.counters.iter().find(|counter| counter.host == host && counter.name == name);
            counter.map(|counter| counter.after)
        }
    };
    let counts = HOSTS.map(count);
    let mut hosts = Vec::new();
    for ((host, report), count) in HOSTS.into_iter().zip(reports).zip(&counts) {
        let ends = report.map(connection_evidence).unwrap_or_default();
        hosts.push(HostEvidence { host, ends, count });
    }
    let MultipathEvidence { used, fallback, evidence } = evidence::multipath_evidence(&hosts);
    MultipathUse { requested: true, used, fallback, evidence, ..MultipathUse::default() }
}

/// Returns the evidence of a host's connections.
fn connection_evidence(report: &HostReport) -> Vec<ConnectionEvidence> {
    let mut lost: BTreeMap<u32, u64> = BTreeMap::new();
    for subflow in &report.subflows {
        let sum = lost.entry(subflow.flow).or_default();
        *sum = sum.saturating_add(subflow.retransmissions);
    }
    let connections = report.connections.iter().map(|connection| ConnectionEvidence {
        multipath: connection.multipath,
        lost_packets: lost.get(&connection.flow).copied().unwrap_or_default(),
    });
    connections.collect()
}

/// Returns the warnings about a Multipath QUIC result.
pub(super) fn warnings(
    scenario: &Scenario,
    transport: Transport,
    client: &HostReport,
) -> Vec<Warning> {
    if transport != Transport::Mpquic {
        return Vec::new();
    }
    let mut texts = vec![evidence::no_scheduler()];
    for flow in 0..scenario.flows.len() {
        let paths = client.subflows.iter().filter(|subflow| subflow.flow as usize == flow).count();
        if paths == 1 && scenario.paths.len() > 1 {
            texts.push(evidence::single_path(flow));
        }
    }
    let warning =
        |(text, hint): evidence::WarningText| Warning { text, hint: Some(hint.to_owned()) };
    texts.into_iter().map(warning).collect()
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;
    use crate::protocol::{ConnectionReport, merge};

    fn scenario(flows: usize) -> Scenario {
        let flow = "[[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"iperf\"\n";
        let text = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.wifi]\n\
             between = [\"client\", \"server\"]\n{}",
            flow.repeat(flows)
        );
        Scenario::parse("t", &text, &no_files).unwrap()
    }

    /// Returns the report of a host with one connection for each flow except `absent`.
    fn report(flows: u32, absent: u32, single: u32, reason: Option<&str>) -> HostReport {
        let connections = (0..flows).filter(|flow| *flow != absent).map(|flow| ConnectionReport {
            flow,
            stream: 0,
            multipath: flow != single,
            reinjected_bytes: 0,
            reason: reason.filter(|_| flow == single).map(str::to_owned),
        });
        HostReport { connections: connections.collect(), ..HostReport::default() }
    }

    #[test]
    fn each_flow_has_its_own_evidence_of_both_hosts() {
        const NONE: u32 = u32::MAX;
        for transport in [Transport::Mptcp, Transport::Mpquic] {
            for (flows, absent, single) in [(2, 0, NONE), (2, 1, NONE), (3, 1, 2), (4, NONE, 3)] {
                let scenario = scenario(flows as usize);
                // Only the server noticed the fallback; the client has no report of the reason.
                let client = report(flows, absent, NONE, None);
                let server = report(flows, absent, single, Some("no key"));
                let merged = merge(&scenario, &client, Ok(&server));
                let proof = multipath_use(&scenario, transport, &merged, (&client, Some(&server)));
                assert_eq!(proof.used, single == NONE, "{transport}: {proof:?}");
                assert_eq!(proof.flows.len(), flows as usize);
                for flow in &proof.flows {
                    let is_used = flow.flow != absent && flow.flow != single;
                    let reason = match flow.flow {
                        number if number == absent => Some("no connection was opened"),
                        number if number == single => Some("no key (seen by server)"),
                        _ => None,
                    };
                    assert_eq!((flow.used, flow.fallback.as_deref()), (is_used, reason));
                }
            }
        }
    }
}
