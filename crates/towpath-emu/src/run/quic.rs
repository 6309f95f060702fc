//! QUIC results apart from the series: evidence of multipath use, counters, warnings.

use towpath_quic::evidence::{self, ConnectionEvidence, HostEvidence, MultipathEvidence};
use towpath_quic::{ConnectionStatus, QuicConfig};
use towpath_result::{Counter, MultipathUse, Warning};
use towpath_scenario::Transport;
use towpath_sockets::stream::quic::QuicConnection;

use crate::traffic::quic;
use crate::traffic::{StreamEndpoint, TrafficContext};

/// State of one end of a connection at the end of the run.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    flow: u32,
    is_opener: bool,
    host: String,
    connection: QuicConnection,
    status: Option<ConnectionStatus>,
}

/// Returns both ends of all connections.
pub(super) fn connections(context: &TrafficContext) -> Vec<ConnectionEnd> {
    let mut ends = Vec::new();
    for stream in context.streams() {
        for (end, is_opener) in [(&stream.client, true), (&stream.server, false)] {
            let StreamEndpoint::Quic(end) = end else { continue };
            if end.is_first() {
                let (flow, connection) = (stream.flow, end.connection.clone());
                let (host, status) = (connection.host.name().to_owned(), connection.status());
                ends.push(ConnectionEnd { flow, is_opener, host, connection, status });
            }
        }
    }
    ends
}

fn sum_counter(ends: &[ConnectionEnd], host: &str, name: &str) -> Option<u64> {
    let host_ends = ends.iter().filter(|end| end.host == host);
    let counts: Vec<u64> =
        host_ends.filter_map(|end| end.connection.counts().get(name).copied()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// Returns our own counters, as in a simulation; counters at zero are left out.
pub(super) fn counters(ends: &[ConnectionEnd]) -> Vec<Counter> {
    let mut counters: Vec<Counter> = Vec::new();
    for end in ends {
        for (name, count) in end.connection.counts() {
            let name = format!("Towpath.{name}");
            let counter = counters
                .iter_mut()
                .find(|counter| counter.host == end.host && counter.name == name);
            if let Some(counter) = counter {
                counter.after += count;
            } else {
                let host = end.host.clone();
                counters.push(Counter { host, name, before: 0, after: count });
            }
        }
    }
    counters
}

/// Returns the evidence that Multipath QUIC was used, or the reason why not.
pub(super) fn multipath_use(context: &TrafficContext, ends: &[ConnectionEnd]) -> MultipathUse {
    let hosts = &context.network.hosts;
    let counts: Vec<_> = hosts
        .iter()
        .map(|host| move |name: &'static str| sum_counter(ends, &host.name, name))
        .collect();
    let is_mpquic = |end: &&ConnectionEnd| context.transport_of(end.flow) == Transport::Mpquic;
    let host_evidence: Vec<HostEvidence<'_>> = hosts
        .iter()
        .zip(&counts)
        .map(|(host, count)| {
            let host_ends = ends.iter().filter(is_mpquic).filter(|end| end.host == host.name);
            let ends = host_ends
                .filter_map(|end| end.status.as_ref())
                .filter(|status| status.established)
                .map(ConnectionEvidence::from)
                .collect();
            HostEvidence { host: &host.name, ends, count }
        })
        .collect();
    let MultipathEvidence { used, fallback, evidence } =
        evidence::multipath_evidence(&host_evidence);
    MultipathUse { requested: true, used, fallback, evidence, ..MultipathUse::default() }
}

/// Returns warnings that limit the validity of a result over QUIC.
pub(super) fn warnings(context: &TrafficContext, ends: &[ConnectionEnd]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut add_warning = |(text, hint): evidence::WarningText| {
        warnings.push(Warning { text, hint: Some(hint.to_owned()) });
    };
    let scenario = &context.network.scenario;
    let flows = scenario.flows.iter().enumerate();
    let quic_flows: Vec<_> =
        flows.filter(|(_, flow)| flow.transport_in(context.transport).is_quic()).collect();
    if quic_flows.is_empty() {
        return warnings;
    }
    if context.transport == Transport::Mpquic {
        add_warning(evidence::no_scheduler());
    }
    for (index, host) in scenario.hosts.iter().enumerate() {
        let config: Option<QuicConfig> = quic::config(scenario, index, context.transport).ok();
        if let Some(warning) = config.and_then(|config| evidence::small_window(&host.name, &config))
        {
            add_warning(warning);
        }
    }
    for (index, flow) in quic_flows {
        let openers = ends.iter().filter(|end| end.is_opener && end.flow == index as u32);
        let paths = openers.filter_map(|end| Some(end.status.as_ref()?.paths.len())).max();
        let connects_hosts = |path: &&towpath_scenario::Path| {
            path.between.contains(&flow.from) && path.between.contains(&flow.to)
        };
        let multipath = flow.transport_in(context.transport) == Transport::Mpquic;
        if multipath && paths == Some(1) && scenario.paths.iter().filter(connects_hosts).count() > 1
        {
            add_warning(evidence::single_path(index));
        }
    }
    warnings
}
