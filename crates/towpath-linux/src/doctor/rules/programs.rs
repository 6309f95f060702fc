//! Checks that programs use Multipath TCP.

use super::view::{ObservationView, works};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::doctor::observation::{ObservedSubflow, ProgramSocket, SocketProtocol, SocketRole};
use crate::doctor::text;
use crate::setup::quoted;

/// Programs listed by name; the others are only counted.
const MAX_NAMED: usize = 6;
/// Silence of a connection that waits for an acknowledgement, after which it is reported.
const SILENT_AFTER_MS: u32 = 1_500;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let Some(programs) = &view.all.programs else { return Vec::new() };
    let mut findings = Vec::new();
    if view.all.asked_for_programs {
        findings.extend(plain(programs));
        findings.extend(fallen_back(view, programs));
    }
    for program in programs.iter().filter(|one| one.speaks == SocketProtocol::Multipath) {
        findings.extend(program.subflows.iter().filter_map(|one| silent(view, program, one)));
        findings.extend(not_recreated(view, program));
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
fn plain(programs: &[ProgramSocket]) -> Option<Finding> {
    let plain = || programs.iter().filter(|one| one.speaks == SocketProtocol::Tcp);
    let connected: Vec<_> = plain().filter(|one| one.role == SocketRole::Connected).collect();
    let listening: Vec<_> = plain().filter(|one| one.role == SocketRole::Listens).collect();
    let (cause, all, what) = if connected.is_empty() {
        (Cause::ListenerPlainTcp, &listening, "listening socket")
    } else {
        (Cause::ApplicationPlainTcp, &connected, "connection")
    };
    let first = all.first()?;
    let mut names: Vec<String> = all.iter().map(|one| program_label(one)).collect();
    names.dedup();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut whom = names.join(", ");
    if more > 0 {
        whom = format!("{whom} and {more} more");
    }
    let count = text::count(all.len() as u64, what);
    let mut finding = Finding::new(
        cause,
        format!(
            "{count} of programs of this host: plain TCP, as they asked for nothing else: {whom}"
        ),
    )
    .at_location(program_label(first));
    for one in all.iter().take(MAX_NAMED) {
        finding = finding.with_evidence(match one.role {
            SocketRole::Connected => {
                format!("{}: {} -> {}", program_label(one), one.local, one.remote)
            }
            SocketRole::Listens => format!("{}: listens on {}", program_label(one), one.local),
        });
    }
    let program = if first.name.is_empty() { "PROGRAM".to_owned() } else { quoted(&first.name) };
    Some(
        finding
            .fix(format!("towpath exec -- {program}"))
            .hint("or the program's own switch; Go programs have GODEBUG=multipathtcp=1"),
    )
}

/// Programs that requested Multipath TCP and have plain TCP.
fn fallen_back(view: &ObservationView<'_>, programs: &[ProgramSocket]) -> Option<Finding> {
    let all: Vec<_> =
        programs.iter().filter(|one| one.speaks == SocketProtocol::FellBack).collect();
    let first = all.first()?;
    let counted = |name: &str| view.here.counter(&format!("MPTcpExt.{name}"));
    let (cause, name_of_it) = if counted("MPCapableSYNTXDisabled") > 0 {
        (Cause::BlackholeFallbackActive, "MPCapableSYNTXDisabled")
    } else if counted("MPCapableDataFallback") > 0 {
        (Cause::OptionStrippedAfterHandshake, "MPCapableDataFallback")
    } else {
        (Cause::ListenerPlainTcp, "MPCapableFallbackSYNACK")
    };
    let count = text::count(all.len() as u64, "connection");
    Some(
        Finding::new(
            cause,
            format!(
                "{count} asked for Multipath TCP and fell back to plain TCP: {}",
                program_label(first)
            ),
        )
        .at_location(first.remote)
        .with_confidence(Confidence::Possible)
        .with_evidence(format!("{}: {} -> {}", program_label(first), first.local, first.remote))
        .with_evidence(format!(
            "counted since this host was started: {name_of_it} {}",
            counted(name_of_it)
        ))
        .hint(format!("`towpath doctor --connect {}` finds out why", first.remote)),
    )
}

/// Reports a subflow of a program that waits for acknowledgements without success.
fn silent(
    view: &ObservationView<'_>,
    program: &ProgramSocket,
    one: &ObservedSubflow,
) -> Option<Finding> {
    let tcp = one.tcp;
    if !works(one) || tcp.unacked == 0 || tcp.backoff < 2 || tcp.silent_ms < SILENT_AFTER_MS {
        return None;
    }
    let (local, remote) = (one.local.ip(), one.remote.ip());
    let link = view.here.link_of(local);
    let interface = link.map_or_else(|| local.to_string(), |link| link.name.clone());
    let down = link.is_none_or(|link| !link.up || !link.running);
    // A new connection works over the same path, so the path is not dead: a device on it has lost
    // the old connection's state.
    let same = |other: &ObservedSubflow| (other.local.ip(), other.remote.ip()) == (local, remote);
    let anew = view.trial.and_then(|trial| {
        let mut all = trial.subflows.iter();
        all.find(|other| works(other) && same(other) && other.tcp.backoff == 0)
    });
    let whose = program_label(program);
    let (cause, sentence) = match (down, anew) {
        (true, _) => (
            Cause::LinkDown,
            format!("a connection of {whose} has a dead subflow: the link of {interface} is down"),
        ),
        (false, Some(_)) => (
            Cause::NatTimeout,
            format!(
                "something on the way of {interface} has forgotten a subflow of {whose}: nothing \
                 comes back over it, and over a new one it does"
            ),
        ),
        (false, None) => (
            Cause::PathSilent,
            format!(
                "a connection of {whose} has a dead subflow: nothing comes back over {interface}"
            ),
        ),
    };
    let hint = if cause == Cause::NatTimeout {
        "a NAT or firewall forgets connections that are idle, or was restarted: let the program send \
         now and then (SO_KEEPALIVE, net.ipv4.tcp_keepalive_time), or begin the connection anew"
    } else {
        "the kernel sends no event for that; data goes over the other subflows"
    };
    Some(
        Finding::new(cause, sentence)
            .at_location(format!("{interface} ({local}) -> {remote}"))
            .with_evidence(format!(
                "{} not acknowledged, {} in a row, nothing heard for {} ms",
                text::count(tcp.unacked.into(), "packet"),
                text::count(tcp.backoff.into(), "timeout"),
                tcp.silent_ms
            ))
            .with_optional_evidence(
                anew.map(|anew| format!("a new subflow over the same path: {}", anew.state)),
            )
            .hint(hint),
    )
}

/// Reports a connection that lost a subflow, while a new connection to the same server has it.
fn not_recreated(view: &ObservationView<'_>, program: &ProgramSocket) -> Option<Finding> {
    let trial = view.trial.filter(|trial| trial.target == program.remote)?;
    let has = |one: &ObservedSubflow| {
        let ends = (one.local.ip(), one.remote.ip());
        program.subflows.iter().any(|other| (other.local.ip(), other.remote.ip()) == ends)
    };
    let further = view.joined().find(|one| one.opened_here && !has(one));
    // The first subflow rarely has an endpoint; its absence shows that it was lost.
    let lost = !program.subflows.is_empty() && program.subflows.iter().all(|one| !one.first);
    let first = trial.first().filter(|one| lost && works(one) && !has(one));
    let missing = further.or(first)?;
    let local = missing.local.ip();
    let again = match (view.endpoint(local), view.here.link_of(local)) {
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
            "a connection of {} has no subflow from {}, and a new connection to {} has one",
            program_label(program),
            missing.local.ip(),
            trial.target
        ),
    )
    .at_location(program_label(program))
    .with_evidence(format!("it has {}", text::count(program.subflows.len() as u64, "subflow")))
    .with_evidence("Linux does not open a subflow again that it has lost, or that was refused");
    finding.fix = again;
    Some(finding)
}
