//! Checks that programs use Multipath TCP.

use towpath_host::setup::quoted;

use super::view::{ObservationView, is_closing, is_working};
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{ObservedSubflow, ProgramSocket, SocketProtocol, SocketRole, TcpStats};
use crate::text;

/// Programs listed by name; the others are only counted.
const MAX_NAMED: usize = 6;
/// Silence of a connection that waits for an acknowledgement, after which it is reported.
const SILENT_AFTER_MS: u32 = 1_500;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let Some(programs) = &view.observation.programs else { return Vec::new() };
    let mut findings = Vec::new();
    if view.observation.asked_for_programs {
        findings.extend(find_plain_tcp(programs));
        findings.extend(find_fallbacks(view, programs));
    }
    for program in programs.iter().filter(|program| program.speaks == SocketProtocol::Multipath) {
        findings.extend(
            program
                .subflows
                .iter()
                .filter_map(|subflow| find_silent_subflow(view, program, subflow)),
        );
        findings.extend(find_lost_subflow(view, program));
    }
    findings
}

/// Returns the label of a program.
pub(super) fn program_label(program: &ProgramSocket) -> String {
    match (program.id, program.name.as_str()) {
        (Some(id), name) => format!("{name} ({id})"),
        (None, _) => "a program of another user".to_owned(),
    }
}

/// Programs that never requested Multipath TCP.
fn find_plain_tcp(programs: &[ProgramSocket]) -> Option<Finding> {
    let plain_sockets = || programs.iter().filter(|socket| socket.speaks == SocketProtocol::Tcp);
    let connections: Vec<_> =
        plain_sockets().filter(|socket| socket.role == SocketRole::Connected).collect();
    let listeners: Vec<_> =
        plain_sockets().filter(|socket| socket.role == SocketRole::Listens).collect();
    let (cause, sockets, noun) = if connections.is_empty() {
        (Cause::ListenerPlainTcp, &listeners, "listening socket")
    } else {
        (Cause::ApplicationPlainTcp, &connections, "connection")
    };
    let first = sockets.first()?;
    let mut names: Vec<String> = sockets.iter().map(|socket| program_label(socket)).collect();
    names.dedup();
    let more_count = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut program_list = names.join(", ");
    if more_count > 0 {
        program_list = format!("{program_list} and {more_count} more");
    }
    let count = text::count(sockets.len() as u64, noun);
    let mut finding = Finding::new(
        cause,
        format!(
            "{count} of local programs use plain TCP, because they do not request Multipath TCP: {program_list}"
        ),
    )
    .at_location(program_label(first));
    for socket in sockets.iter().take(MAX_NAMED) {
        finding = finding.with_evidence(match socket.role {
            SocketRole::Connected => {
                format!("{}: {} -> {}", program_label(socket), socket.local, socket.remote)
            }
            SocketRole::Listens => {
                format!("{}: listens on {}", program_label(socket), socket.local)
            }
        });
    }
    let program = if first.name.is_empty() { "PROGRAM".to_owned() } else { quoted(&first.name) };
    Some(
        finding
            .fix(format!("towpath exec -- {program}"))
            .hint("or use the program's own option; Go programs have GODEBUG=multipathtcp=1"),
    )
}

/// Programs that requested Multipath TCP and have plain TCP.
fn find_fallbacks(view: &ObservationView<'_>, programs: &[ProgramSocket]) -> Option<Finding> {
    let sockets: Vec<_> =
        programs.iter().filter(|socket| socket.speaks == SocketProtocol::FellBack).collect();
    let first = sockets.first()?;
    let counter = |name: &str| view.here.counter(&format!("MPTcpExt.{name}"));
    let (cause, counter_name) = if counter("MPCapableSYNTXDisabled") > 0 {
        (Cause::BlackholeFallbackActive, "MPCapableSYNTXDisabled")
    } else if counter("MPCapableDataFallback") > 0 {
        (Cause::OptionStrippedAfterHandshake, "MPCapableDataFallback")
    } else {
        (Cause::ListenerPlainTcp, "MPCapableFallbackSYNACK")
    };
    let count = text::count(sockets.len() as u64, "connection");
    Some(
        Finding::new(
            cause,
            format!(
                "{count} requested Multipath TCP and fell back to plain TCP: {}",
                program_label(first)
            ),
        )
        .at_location(first.remote)
        .with_confidence(Confidence::Possible)
        .with_evidence(format!("{}: {} -> {}", program_label(first), first.local, first.remote))
        .with_evidence(format!(
            "counted since this host was started: {counter_name} {}",
            counter(counter_name)
        ))
        .hint(format!("`towpath doctor --connect {}` finds the cause", first.remote)),
    )
}

/// Returns true if acknowledgements are missing for long.
fn is_silent(tcp: TcpStats) -> bool {
    tcp.unacked > 0 && tcp.backoff > 1 && tcp.silent_ms >= SILENT_AFTER_MS
}

/// Reports a subflow of a program that waits for acknowledgements without success.
fn find_silent_subflow(
    view: &ObservationView<'_>,
    program: &ProgramSocket,
    subflow: &ObservedSubflow,
) -> Option<Finding> {
    let tcp = subflow.tcp;
    if !is_working(subflow) || is_closing(subflow) || !is_silent(tcp) {
        return None;
    }
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let link = view.here.link_of(local);
    let interface = link.map_or_else(|| local.to_string(), |link| link.name.clone());
    let is_down = link.is_some_and(|link| !link.up || !link.running);
    // A new connection works over the same path, so the path is not dead: a device on it has lost
    // the old connection's state.
    let is_same_path =
        |other: &ObservedSubflow| (other.local.ip(), other.remote.ip()) == (local, remote);
    let new_subflow = view.trial.and_then(|trial| {
        let mut subflows = trial.subflows.iter();
        subflows.find(|other| is_working(other) && is_same_path(other) && other.tcp.backoff == 0)
    });
    let label = program_label(program);
    let (cause, sentence) = match (is_down, new_subflow) {
        _ if link.is_none() => (
            Cause::EndpointAddressMissing,
            format!(
                "a connection of {label} has a dead subflow: this host no longer has its address {local}"
            ),
        ),
        (true, _) => (
            Cause::LinkDown,
            format!("a connection of {label} has a dead subflow: the link of {interface} is down"),
        ),
        (false, Some(_)) => (
            Cause::NatTimeout,
            format!(
                "something on the path of {interface} has dropped the state of a subflow of {label}: it gets no answer, but a new subflow does"
            ),
        ),
        (false, None) => (
            Cause::PathSilent,
            format!("a connection of {label} has a dead subflow: no answer over {interface}"),
        ),
    };
    let hint = if cause == Cause::NatTimeout {
        "a NAT or firewall drops idle connections, or was restarted: use keepalives (SO_KEEPALIVE, net.ipv4.tcp_keepalive_time), or restart the connection"
    } else {
        "the kernel sends no event for this; data uses the other subflows"
    };
    Some(
        Finding::new(cause, sentence)
            .at_location(format!("{interface} ({local}) -> {remote}"))
            .with_evidence(format!(
                "{} not acknowledged, {} in a row, no packet received for {} ms",
                text::count(tcp.unacked.into(), "packet"),
                text::count(tcp.backoff.into(), "timeout"),
                tcp.silent_ms
            ))
            .with_optional_evidence(new_subflow.map(|new_subflow| {
                format!("a new subflow over the same path: {}", new_subflow.state)
            }))
            .hint(hint),
    )
}

/// Reports a connection that lost a subflow, while a new connection to the same server has it.
fn find_lost_subflow(view: &ObservationView<'_>, program: &ProgramSocket) -> Option<Finding> {
    let trial = view.trial.filter(|trial| trial.target == program.remote)?;
    let has_subflow = |subflow: &ObservedSubflow| {
        let ends = (subflow.local.ip(), subflow.remote.ip());
        program.subflows.iter().any(|other| (other.local.ip(), other.remote.ip()) == ends)
    };
    let further =
        view.joined_subflows().find(|subflow| subflow.opened_here && !has_subflow(subflow));
    // The first subflow rarely has an endpoint; its absence shows that it was lost.
    let first_is_lost =
        !program.subflows.is_empty() && program.subflows.iter().all(|subflow| !subflow.first);
    let first = trial
        .first()
        .filter(|subflow| first_is_lost && is_working(subflow) && !has_subflow(subflow));
    let missing = further.or(first)?;
    let local = missing.local.ip();
    let commands = match (view.endpoint(local), view.here.link_of(local)) {
        (Some(endpoint), _) => {
            let flags = endpoint.flag_names().join(" ");
            vec![
                format!("ip mptcp endpoint delete id {}", endpoint.id),
                format!("ip mptcp endpoint add {} {flags}", endpoint.address),
            ]
        }
        (None, Some(link)) => {
            vec![format!("ip mptcp endpoint add {local} dev {} subflow", quoted(&link.name))]
        }
        (None, None) => return None,
    };
    let mut finding = Finding::new(
        Cause::SubflowNotRecreated,
        format!(
            "a connection of {} has no subflow from {}, but a new connection to {} has one",
            program_label(program),
            missing.local.ip(),
            trial.target
        ),
    )
    .at_location(program_label(program))
    .with_evidence(format!("it has {}", text::count(program.subflows.len() as u64, "subflow")))
    .with_evidence("Linux does not reopen a subflow that was lost or refused");
    finding.fix = commands;
    Some(finding)
}
