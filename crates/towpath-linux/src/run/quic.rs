//! QUIC results apart from the series: evidence of multipath use, counters, warnings.

use towpath_measure::result::{Counter, MultipathUse, Warning};
use towpath_measure::scenario::Transport;
use towpath_quic::evidence::{self, ConnectionEvidence, HostEvidence, MultipathEvidence};
use towpath_quic::{ConnectionStatus, QuicConfig};

use crate::traffic::quic::{self, QuicConnection};
use crate::traffic::{StreamEndpoint, TrafficContext, is_quic};

/// State of one end of a connection at the end of the run.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    flow: u32,
    opener: bool,
    host: String,
    connection: QuicConnection,
    status: Option<ConnectionStatus>,
}

/// Returns both ends of all connections.
pub(super) fn connections(stage: &TrafficContext) -> Vec<ConnectionEnd> {
    let mut all = Vec::new();
    for stream in stage.streams() {
        for (end, opener) in [(&stream.client, true), (&stream.server, false)] {
            let StreamEndpoint::Quic(end) = end else { continue };
            if end.is_first() {
                let (flow, connection) = (stream.flow, end.connection.clone());
                let (host, status) = (connection.host.name().to_owned(), connection.status());
                all.push(ConnectionEnd { flow, opener, host, connection, status });
            }
        }
    }
    all
}

fn count(seen: &[ConnectionEnd], host: &str, name: &str) -> Option<u64> {
    let own = seen.iter().filter(|seen| seen.host == host);
    let counts: Vec<u64> =
        own.filter_map(|seen| seen.connection.counts().get(name).copied()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// Returns our own counters, as in a simulation; counters at zero are left out.
pub(super) fn counters(seen: &[ConnectionEnd]) -> Vec<Counter> {
    let mut all: Vec<Counter> = Vec::new();
    for end in seen {
        for (name, count) in end.connection.counts() {
            let name = format!("Towpath.{name}");
            let known = all.iter_mut().find(|known| known.host == end.host && known.name == name);
            if let Some(known) = known {
                known.after += count;
            } else {
                let host = end.host.clone();
                all.push(Counter { host, name, before: 0, after: count });
            }
        }
    }
    all
}

/// Returns the evidence that Multipath QUIC was used, or the reason why not.
pub(super) fn proof(stage: &TrafficContext, seen: &[ConnectionEnd]) -> MultipathUse {
    let hosts = &stage.network.hosts;
    let counts: Vec<_> =
        hosts.iter().map(|host| move |name: &'static str| count(seen, &host.name, name)).collect();
    let meant = |seen: &&ConnectionEnd| stage.transport_of(seen.flow) == Transport::Mpquic;
    let witnesses: Vec<HostEvidence<'_>> = hosts
        .iter()
        .zip(&counts)
        .map(|(host, count)| {
            let own = seen.iter().filter(meant).filter(|seen| seen.host == host.name);
            let ends =
                own.filter_map(|seen| seen.status.as_ref()).map(ConnectionEvidence::from).collect();
            HostEvidence { host: &host.name, ends, count }
        })
        .collect();
    let MultipathEvidence { used, fallback, evidence } = evidence::multipath_evidence(&witnesses);
    MultipathUse { requested: true, used, fallback, paths_used: Vec::new(), evidence }
}

/// Returns warnings that limit the validity of a result over QUIC.
pub(super) fn warnings(stage: &TrafficContext, seen: &[ConnectionEnd]) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |(text, hint): evidence::WarningText| {
        all.push(Warning { text, hint: Some(hint.to_owned()) });
    };
    let scenario = &stage.network.scenario;
    let flows = scenario.flows.iter().enumerate();
    let used: Vec<_> =
        flows.filter(|(_, flow)| is_quic(flow.transport_in(stage.transport))).collect();
    if used.is_empty() {
        return all;
    }
    if stage.transport == Transport::Mpquic {
        warn(evidence::no_scheduler());
    }
    for (index, host) in scenario.hosts.iter().enumerate() {
        let config: Option<QuicConfig> = quic::config(scenario, index, stage.transport).ok();
        if let Some(small) = config.and_then(|config| evidence::small_window(&host.name, &config)) {
            warn(small);
        }
    }
    for (index, flow) in used {
        let own = seen.iter().filter(|seen| seen.opener && seen.flow == index as u32);
        let paths = own.filter_map(|seen| Some(seen.status.as_ref()?.paths.len())).max();
        let between = |path: &&towpath_measure::scenario::Path| {
            path.between.contains(&flow.from) && path.between.contains(&flow.to)
        };
        let multipath = flow.transport_in(stage.transport) == Transport::Mpquic;
        if multipath && paths == Some(1) && scenario.paths.iter().filter(between).count() > 1 {
            warn(evidence::single_path(index));
        }
    }
    all
}
