//! Records about QUIC's paths, as far as they differ from those about subflows.

use towpath_mptcp::subflow::TcpState;
use towpath_net::Instant;
use towpath_quic::evidence::{self, ConnectionEvidence, HostEvidence, MultipathEvidence};
use towpath_quic::{ConnectionStatus, PathNotice};
use towpath_result::{ConnectionUse, Event, EventKind, MultipathUse, Warning};
use towpath_scenario::Transport;
use towpath_scenario::network::path_of;

use crate::record::{SimRecorder, event};
use crate::simulation::Simulation;

impl SimRecorder<'_> {
    /// Records a notice about the paths of a QUIC connection.
    pub(crate) fn quic_notice(
        &mut self,
        now: Instant,
        host: &str,
        status: Option<&ConnectionStatus>,
        notice: &PathNotice,
    ) {
        let kind = match notice {
            PathNotice::SinglePath => EventKind::Fallback,
            PathNotice::Established { .. }
            | PathNotice::Abandoned { .. }
            | PathNotice::Switched { .. }
            | PathNotice::Migrated { .. } => EventKind::Subflow,
        };
        *self.notices.entry((host.to_owned(), notice.counter())).or_default() += 1;
        let number = notice.path();
        let path_status = number.and_then(|n| status?.paths.iter().find(|path| path.number == n));
        let path = path_status.and_then(|path| path_of(path.local.ip(), path.remote.ip()));
        let text = notice.text(path.and_then(|path| self.path_name(path)));
        let mut record = Event { host: Some(host.to_owned()), ..event(kind, text) };
        if let Some(path) = path_status {
            record.detail.insert("local".to_owned(), path.local.to_string());
            record.detail.insert("remote".to_owned(), path.remote.to_string());
        }
        if let Some((backup, reason)) = notice.switch() {
            record.detail.insert("backup".to_owned(), backup.to_string());
            record.detail.insert("why".to_owned(), reason.to_owned());
        }
        self.add_event(now, path, record);
    }
}

/// Returns the state of a QUIC path for a TCP state.
pub(crate) fn path_state(state: TcpState) -> &'static str {
    match state {
        TcpState::SynSent | TcpState::SynReceived => "validating",
        TcpState::Established
        | TcpState::FinWait1
        | TcpState::FinWait2
        | TcpState::CloseWait
        | TcpState::Closing
        | TcpState::LastAck
        | TcpState::TimeWait => "established",
        TcpState::Closed => "abandoned",
    }
}

/// Returns the evidence that Multipath QUIC was used, or the reason why not.
pub(crate) fn quic_proof(simulation: &Simulation<'_>, transport: Transport) -> MultipathUse {
    let should_use_mpquic = |flow: usize| {
        let flow = simulation.scenario.flows.get(flow);
        flow.is_some_and(|flow| flow.transport_in(transport) == Transport::Mpquic)
    };
    let count = |host: &str| {
        let name = host.to_owned();
        move |counter| simulation.recorder.notices.get(&(name.clone(), counter)).copied()
    };
    let counts: Vec<_> = simulation.hosts.iter().map(|host| count(&host.name)).collect();
    let hosts: Vec<HostEvidence<'_>> = simulation
        .hosts
        .iter()
        .zip(&counts)
        .map(|(host, count)| {
            let connections = host.quic.flows.iter().filter(|(_, flow)| should_use_mpquic(**flow));
            let ends = connections
                .filter_map(|(id, _)| host.quic.last_status.get(id))
                // A connection that was never established is no evidence: its flow has failed.
                .filter(|status| status.established)
                .map(ConnectionEvidence::from)
                .collect();
            HostEvidence { host: &host.name, ends, count }
        })
        .collect();
    let MultipathEvidence { used, fallback, evidence } = evidence::multipath_evidence(&hosts);
    MultipathUse { requested: true, used, fallback, evidence, ..MultipathUse::default() }
}

/// Returns the established connections, as their openers and all other ends of the flow report them.
pub(crate) fn quic_connections(simulation: &Simulation<'_>) -> Vec<ConnectionUse> {
    let ends: Vec<_> = { simulation.hosts.iter() }
        .flat_map(|host| {
            let flows = host.quic.flows.iter();
            flows.filter_map(|(id, flow)| Some((*flow, host.quic.last_status.get(id)?)))
        })
        .filter(|(_, status)| status.established)
        .collect();
    let opened = ends.iter().filter(|(_, status)| status.opener);
    let connections = opened.map(|(flow, _)| ConnectionUse {
        flow: *flow as u32,
        multipath: ends.iter().all(|(other, status)| other != flow || status.multipath),
        reason: None,
    });
    connections.collect()
}

/// Returns warnings that a reader needs before trusting a result over QUIC.
pub(crate) fn quic_warnings(simulation: &Simulation<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |(text, hint): evidence::WarningText| {
        warnings.push(Warning { text, hint: Some(hint.to_owned()) });
    };
    let flows = simulation.scenario.flows.iter().enumerate();
    let quic_flows: Vec<_> =
        flows.filter(|(_, flow)| flow.transport_in(simulation.transport).is_quic()).collect();
    if quic_flows.is_empty() {
        return warnings;
    }
    if simulation.transport == Transport::Mpquic {
        warn(evidence::no_scheduler());
    }
    for host in &simulation.hosts {
        if let Some(warning) = evidence::small_window(&host.name, &host.quic.config) {
            warn(warning);
        }
    }
    if !simulation.scenario.middleboxes.is_empty() {
        let text = "middleboxes do not change QUIC packets".to_owned();
        warn((text, "middleboxes affect TCP only"));
    }
    for (index, flow) in quic_flows {
        let opener = simulation.hosts.get(flow.from);
        let paths = opener.map_or(0, |host| {
            let ends = host.ends.keys().filter_map(|socket| host.status(*socket));
            ends.map(|status| status.subflows.len()).max().unwrap_or(0)
        });
        let joining_paths =
            simulation.scenario.paths.iter().filter(|path| {
                path.between.contains(&flow.from) && path.between.contains(&flow.to)
            });
        let multipath = flow.transport_in(simulation.transport) == Transport::Mpquic;
        if multipath && paths == 1 && joining_paths.count() > 1 {
            warn(evidence::single_path(index));
        }
    }
    warnings
}
