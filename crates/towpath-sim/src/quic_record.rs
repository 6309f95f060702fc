//! What results say of QUIC's paths, where that is not what they say of subflows.

use towpath_measure::network::path_of;
use towpath_measure::result::{Event, EventKind, Multipath, Warning};
use towpath_measure::scenario::Transport;
use towpath_mptcp::subflow::State;
use towpath_net::Instant;
use towpath_quic::{Config, MULTIPATH_DRAFT, Notice, Status};

use crate::quic_flow::is_quic;
use crate::record::{Recorder, event};
use crate::world::World;

impl Recorder<'_> {
    /// Something about the paths of a QUIC connection.
    pub(crate) fn quic_notice(
        &mut self,
        now: Instant,
        host: &str,
        status: Option<&Status>,
        notice: &Notice,
    ) {
        let (kind, counter, number, what) = match notice {
            Notice::Established { path } => {
                (EventKind::Subflow, "PathsEstablished", Some(*path), "established".to_owned())
            }
            Notice::Abandoned { path, why } => {
                (EventKind::Subflow, "PathsAbandoned", Some(*path), format!("abandoned: {why}"))
            }
            Notice::Switched { path, backup, why } => {
                let text = if *backup { "is a backup now" } else { "is used now" };
                (EventKind::Subflow, "PathSwitches", Some(*path), format!("{text}: {why}"))
            }
            Notice::Migrated { local } => {
                (EventKind::Subflow, "Migrations", None, format!("path 0 goes on from {local}"))
            }
            Notice::SinglePath => {
                let text = format!("the peer does not speak {MULTIPATH_DRAFT}: one path only");
                (EventKind::Fallback, "Fallbacks", None, text)
            }
        };
        *self.notices.entry((host.to_owned(), counter)).or_default() += 1;
        let known = number.and_then(|n| status?.paths.iter().find(|path| path.number == n));
        let place = known.and_then(|path| path_of(path.local.ip(), path.remote.ip()));
        let name = place.and_then(|path| self.path_name(path));
        let text = match (number, name) {
            (Some(number), Some(name)) => format!("path {number} on {name} {what}"),
            (Some(number), None) => format!("path {number} {what}"),
            (None, _) => what,
        };
        let mut told = Event { host: Some(host.to_owned()), ..event(kind, text) };
        if let Some(path) = known {
            told.detail.insert("local".to_owned(), path.local.to_string());
            told.detail.insert("remote".to_owned(), path.remote.to_string());
        }
        self.add_event(now, place, told);
    }
}

/// The states of a path.
pub(crate) fn path_state(state: State) -> &'static str {
    match state {
        State::SynSent | State::SynReceived => "validating",
        State::Established
        | State::FinWait1
        | State::FinWait2
        | State::CloseWait
        | State::Closing
        | State::LastAck
        | State::TimeWait => "established",
        State::Closed => "abandoned",
    }
}

/// Proof that Multipath QUIC was used, or the reason why not.
pub(crate) fn quic_proof(world: &World<'_>, transport: Transport) -> Multipath {
    let meant = |flow: usize| {
        let flow = world.scenario.flows.get(flow);
        flow.is_some_and(|flow| flow.transport_in(transport) == Transport::Mpquic)
    };
    let (mut all, mut good, mut lost) = (0_u32, 0_u32, 0);
    let mut evidence = Vec::new();
    for host in &world.hosts {
        let own = host.quic.flows.iter().filter(|(_, flow)| meant(**flow));
        let own: Vec<_> = own.filter_map(|(id, _)| host.quic.seen.get(id)).collect();
        all += own.len() as u32;
        good += own.iter().filter(|status| status.multipath).count() as u32;
        lost += own.iter().flat_map(|s| &s.paths).map(|path| path.lost_packets).sum::<u64>();
        let count = |name| world.recorder.notices.get(&(host.name.clone(), name)).copied();
        for (name, what) in [("PathsEstablished", "established"), ("PathsAbandoned", "abandoned")] {
            if let Some(count) = count(name) {
                evidence.push(format!("{count} paths beside the first {what} on {}", host.name));
            }
        }
    }
    let spoke = format!("{good} of {all} ends of connections negotiated {MULTIPATH_DRAFT}");
    evidence.insert(0, spoke);
    evidence.push(format!("{lost} packets were taken for lost; their data was sent again"));
    let used = all > 0 && good == all;
    let reason = || {
        if all == 0 {
            "no connection was opened".to_owned()
        } else {
            "a connection did not negotiate it".to_owned()
        }
    };
    let fallback = (!used).then(reason);
    Multipath { requested: true, used, fallback, paths_used: Vec::new(), evidence }
}

/// What to know before a result over QUIC is trusted.
pub(crate) fn quic_warnings(world: &World<'_>) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |text: String, hint: &str| {
        all.push(Warning { text, hint: Some(hint.to_owned()) });
    };
    let flows = world.scenario.flows.iter().enumerate();
    let used: Vec<_> =
        flows.filter(|(_, flow)| is_quic(flow.transport_in(world.transport))).collect();
    if used.is_empty() {
        return all;
    }
    if world.transport == Transport::Mpquic {
        warn(
            "Multipath QUIC has no scheduler to choose, and repeats data on another path only when \
             the old path is given up"
                .to_owned(),
            "docs/quic.md says what the library does; compare failover times with that in mind",
        );
    }
    for host in &world.hosts {
        let config: &Config = &host.quic.config;
        if config.receive_window_bytes > config.window_bytes() {
            warn(
                format!(
                    "the QUIC window of `{}` is {} bytes, not {}",
                    host.name,
                    config.window_bytes(),
                    config.receive_window_bytes
                ),
                "with a larger one, the library closes connections; see docs/quic.md",
            );
        }
    }
    if !world.scenario.middleboxes.is_empty() {
        warn(
            "middleboxes let QUIC's packets pass as they are".to_owned(),
            "they stand in the way of TCP only",
        );
    }
    for (index, flow) in used {
        let opener = world.hosts.get(flow.from);
        let paths = opener.map_or(0, |host| {
            let ends = host.ends.keys().filter_map(|socket| host.status(*socket));
            ends.map(|status| status.subflows.len()).max().unwrap_or(0)
        });
        let both =
            world.scenario.paths.iter().filter(|path| {
                path.between.contains(&flow.from) && path.between.contains(&flow.to)
            });
        let multipath = flow.transport_in(world.transport) == Transport::Mpquic;
        if multipath && paths == 1 && both.count() > 1 {
            warn(
                format!("flow {index} had a single path"),
                "only the host that opens a connection can add paths, from addresses with the flag \
                 `subflow`; addresses cannot be announced",
            );
        }
    }
    all
}
