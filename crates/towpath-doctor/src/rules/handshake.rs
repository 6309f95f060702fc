//! Checks that our own connection is Multipath TCP, and remains so.

use std::net::{IpAddr, SocketAddr};

use towpath_host::snapshot::AddressSnapshot;

use super::failed::no_reply::{find_late_answers, find_silent_gateway};
use super::first_path::find_unusable_first_path;
use super::parallel_links::find_silent_link;
use super::view::ObservationView;
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{
    ConnectAttempt, ConnectOutcome, HopProbe, PlainTcpCheck, ProbeOption, SocketProtocol,
    SocketRole, TargetReply, TestConnection,
};
use crate::text;

/// Result of hop-by-hop probes if no router answers.
pub(super) const NO_HOP: &str = "no hop answers";

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let Some(trial) = view.trial else { return Vec::new() };
    let finding = if let Some(finding) = find_rewritten_payload(trial) {
        Some(finding)
    } else if !trial.connected(true) {
        Some(explain_connect_failure(view, trial))
    } else if trial.multipath {
        find_fallback(view, trial)
    } else {
        Some(explain_plain_tcp(view, trial))
    };
    finding.into_iter().collect()
}

/// Finds the cause of a failed Multipath TCP connection; plain TCP is the control.
fn explain_connect_failure(view: &ObservationView<'_>, trial: &TestConnection) -> Finding {
    let target = trial.target;
    let outcome = |multipath| {
        trial.attempts(multipath).map(|attempt: &ConnectAttempt| attempt.outcome).next()
    };
    let outcome_text = |multipath| outcome(multipath).map_or_else(String::new, text::outcome);
    let with_outcomes = |finding: Finding| {
        finding
            .with_evidence(format!("plain TCP to {target}: {}", outcome_text(false)))
            .with_evidence(format!("Multipath TCP to {target}: {}", outcome_text(true)))
    };
    let at_target =
        |cause, sentence: String| with_outcomes(Finding::new(cause, sentence).at_location(target));
    let route_errno = view.route_lookup(target.ip(), None, None).and_then(|lookup| lookup.errno);
    // A listener that has closed by now refuses plain TCP as well, over any path.
    let connects = |check: &PlainTcpCheck| {
        check.remote == target && check.outcome == ConnectOutcome::Connected
    };
    let later_connects = trial.controls.iter().any(connects);
    if let Some(finding) = find_failed_path(view, trial) {
        return with_outcomes(finding);
    }
    match (trial.connected(false), outcome(true).unwrap_or(ConnectOutcome::Silent), route_errno) {
        (true, ConnectOutcome::Silent, _) => report_dropped_syn(view, trial),
        (true, ConnectOutcome::Failed(_), _) => {
            with_outcomes(report_refused_option(view, trial, "forbids"))
        }
        (true, ConnectOutcome::Refused, _) if later_connects => {
            with_outcomes(report_refused_option(view, trial, "resets"))
        }
        (true, ConnectOutcome::Refused, _) => at_target(
            Cause::ListenerClosedAfterAccept,
            format!("{target} accepts one connection and refuses the next"),
        )
        .with_confidence(Confidence::Likely)
        .hint(
            "a program that closes its listener after it accepts a connection also refuses further subflows, which arrive at the same port: keep the listener open, or \
             announce an endpoint with a port of its own",
        ),
        (_, ConnectOutcome::Failed(errno), _) | (_, _, Some(errno)) => with_outcomes(
            Finding::new(
                Cause::NoRoute,
                format!("this host has no route to {}: {}", target.ip(), text::error(errno)),
            )
            .at_location(target.ip()),
        )
        .hint("a default route or an interface is missing: see `ip route get`"),
        (false, ConnectOutcome::Refused, None) => at_target(
            Cause::RemoteRefused,
            format!("no program listens on {target}, with or without Multipath TCP"),
        )
        .hint("start the server, or give the right port"),
        (false, ConnectOutcome::Silent, None) | (_, ConnectOutcome::Connected, None) => {
            with_outcomes(report_silent_server(trial, later_connects))
        }
    }
}

/// Finds a path that fails, while the server may work.
fn find_failed_path(view: &ObservationView<'_>, trial: &TestConnection) -> Option<Finding> {
    let (source, target) = (first_source(view, trial), trial.target.ip());
    if let Some(finding) = find_silent_link(view, trial, (source, target)) {
        return Some(finding);
    }
    if trial.connected(false) {
        return find_unusable_first_path(view, trial);
    }
    source
        .and_then(|local| find_late_answers(view, trial, local, target))
        .or_else(|| find_unusable_first_path(view, trial))
        .or_else(|| find_silent_first_gateway(view, trial))
}

/// Reports a server that answered none of the attempts, or only a later test.
fn report_silent_server(trial: &TestConnection, later_connects: bool) -> Finding {
    let target = trial.target;
    let report = |sentence: String| Finding::new(Cause::RemoteSilent, sentence).at_location(target);
    if later_connects {
        let sentence = format!(
            "{target} did not answer new connections at first, and answered plain TCP later"
        );
        return report(sentence).with_confidence(Confidence::Likely).hint(
            "the server has started meanwhile, or the first packets were lost: repeat the test",
        );
    }
    report(format!("{target} does not answer, with or without Multipath TCP"))
        .with_optional_evidence(last_hop(trial, None).map(|hops| format!("hop by hop: {hops}")))
        .hint("the host is down, or a firewall drops packets to this port")
}

/// Reports a server that is not reached, as the next hop of the first path does not answer.
fn find_silent_first_gateway(
    view: &ObservationView<'_>,
    trial: &TestConnection,
) -> Option<Finding> {
    let target = trial.target;
    let failure = trial.attempts.iter().find_map(|attempt| match attempt.outcome {
        ConnectOutcome::Failed(errno) => Some(errno),
        ConnectOutcome::Connected | ConnectOutcome::Refused | ConnectOutcome::Silent => None,
    });
    let path = (first_source(view, trial), target.ip());
    let gateway = find_silent_gateway(view, trial, path, failure)?;
    let sentence = format!("no answer from {target}: {}", gateway.sentence());
    Some(gateway.explain(Finding::new(Cause::RemoteSilent, sentence).at_location(target)))
}

/// Returns the address from which new connections start.
fn first_source(view: &ObservationView<'_>, trial: &TestConnection) -> Option<IpAddr> {
    let target = trial.target.ip();
    let link = view.route_lookup(target, None, None)?.link?;
    let mut addresses = view.here.addresses.iter();
    let is_source = |entry: &&AddressSnapshot| {
        entry.link == link && entry.address.is_ipv4() == target.is_ipv4()
    };
    addresses.find(is_source).map(|entry| entry.address)
}

/// Reports a middlebox that refuses Multipath TCP while plain TCP connects.
fn report_refused_option(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    verb: &str,
) -> Finding {
    let (target, path) = (trial.target, first_path_text(view, trial));
    Finding::new(
        Cause::SynOptionDropped,
        format!("something on {path} {verb} connections that ask for Multipath TCP"),
    )
    .at_location(target.ip())
    .hint("probably a firewall: try another port, another first path, or a tunnel")
    .with_optional_evidence(
        option_loss_hop(trial, ProbeOption::Capable, None)
            .map(|hops| format!("hop by hop: {hops}")),
    )
}

/// Reports that plain TCP connects, while Multipath TCP gets no reply.
fn report_dropped_syn(view: &ObservationView<'_>, trial: &TestConnection) -> Finding {
    let (target, path) = (trial.target, first_path_text(view, trial));
    let count = |multipath| trial.attempts(multipath).count() as u64;
    let finding = Finding::new(
        Cause::SynOptionDropped,
        format!("something on {path} drops connections that ask for Multipath TCP"),
    )
    .at_location(target.ip())
    .with_evidence(format!("{} over plain TCP: answered", text::count(count(false), "attempt")))
    .with_evidence(format!("{} over Multipath TCP: no answer", text::count(count(true), "attempt")))
    .hint(
        "try another port, another first path, or a tunnel. After the first such connection, Linux disables Multipath TCP for the entire host for an hour \
         (net.mptcp.blackhole_timeout)",
    );
    let finding =
        if count(true) > 1 { finding } else { finding.with_confidence(Confidence::Likely) };
    finding.with_optional_evidence(
        option_loss_hop(trial, ProbeOption::Capable, None)
            .map(|hops| format!("hop by hop: {hops}")),
    )
}

/// Compares probes with and without the option, and describes the hop at which one of them ends.
pub(super) fn option_loss_hop(
    trial: &TestConnection,
    option: ProbeOption,
    local: Option<IpAddr>,
) -> Option<String> {
    let find_probe = |option| {
        let is_wanted = |probe: &&HopProbe| {
            probe.option == option && local.is_none_or(|local| probe.local == local)
        };
        trial.probes.iter().find(is_wanted)
    };
    let (with_option, without_option) = (find_probe(option)?, find_probe(ProbeOption::Plain)?);
    if let Some(text) = stripped_at(with_option) {
        return Some(text);
    }
    let last_answer = |probe: &HopProbe| probe.hops.iter().rposition(|hop| hop.address.is_some());
    let hop_count = |probe: &HopProbe| last_answer(probe).map_or(0, |last_answer| last_answer + 1);
    let goes_further =
        without_option.answer.is_some() || hop_count(without_option) > hop_count(with_option);
    if with_option.answer.is_some() || !goes_further {
        return None;
    }
    let hop_address = |index: usize| without_option.hops.get(index).and_then(|hop| hop.address);
    let before = hop_count(with_option).checked_sub(1).and_then(hop_address);
    let beyond = hop_address(hop_count(with_option));
    Some(match (before, beyond) {
        (Some(before), Some(beyond)) => {
            format!("the SYN is lost between {before} and {beyond}; without the option it passes")
        }
        (Some(before), None) => {
            format!("the SYN is lost behind {before}; without the option it passes")
        }
        (None, Some(beyond)) => {
            format!("the SYN is lost before {beyond}; without the option it passes")
        }
        (None, None) => "the SYN is lost before the first hop that answers".to_owned(),
    })
}

/// Describes the last hop of a packet without any option, if it does not arrive.
pub(super) fn last_hop(trial: &TestConnection, local: Option<IpAddr>) -> Option<String> {
    let is_plain = |probe: &&HopProbe| {
        probe.option == ProbeOption::Plain && local.is_none_or(|local| probe.local == local)
    };
    let probe = trial.probes.iter().find(is_plain).filter(|probe| probe.answer.is_none())?;
    // This host itself reports a failed neighbour resolution.
    let mut routers = probe.hops.iter().rev().filter_map(|hop| hop.address);
    match routers.find(|address| *address != probe.local) {
        Some(address) => Some(format!("{address} is the last hop that answers")),
        None => Some(NO_HOP.to_owned()),
    }
}

/// Describes the hops between which the option disappears.
fn stripped_at(probe: &HopProbe) -> Option<String> {
    let mut last_with_option = None;
    for hop in &probe.hops {
        match (hop.address, hop.has_option) {
            (Some(address), Some(true)) => last_with_option = Some(address),
            (Some(address), Some(false)) => {
                return Some(match last_with_option {
                    Some(last_with_option) => {
                        format!("the option disappears between {last_with_option} and {address}")
                    }
                    None => format!("the option disappears before {address}"),
                });
            }
            _ => {}
        }
    }
    None
}

/// Finds the cause of a connection that was established as plain TCP.
fn explain_plain_tcp(view: &ObservationView<'_>, trial: &TestConnection) -> Finding {
    let target = trial.target;
    if trial.counter_delta("MPCapableSYNTXDisabled") > 0 {
        return report_blackhole_fallback(view, trial);
    }
    let capable_probe = trial.probes.iter().find(|probe| probe.option == ProbeOption::Capable);
    let stripped_text = capable_probe.and_then(stripped_at);
    let with_syn_evidence = |finding: Finding| {
        let answer = "the SYN/ACK came without the option (MPCapableFallbackSYNACK)";
        finding.with_evidence(answer).with_optional_evidence(
            stripped_text.as_ref().map(|hops| format!("hop by hop: {hops}")),
        )
    };
    let report_on_path = |cause, sentence: String| {
        with_syn_evidence(Finding::new(cause, sentence).at_location(target.ip()))
            .hint("try another port or another first path; a tunnel works")
    };
    let forward_finding = with_syn_evidence(report_stripped_syn(view, trial));
    let mut checks = trial.controls.iter().filter(|check| check.remote == target);
    let multipath_check = checks.find(|check| check.multipath == Some(true));
    let Some(peer) = view.peer.filter(|peer| peer.latest().listener.is_some()) else {
        if let Some(check) = multipath_check {
            let source = check.local;
            return forward_finding
                .with_evidence(format!("from {source}, the same listener accepts Multipath TCP"));
        }
        return if stripped_text.is_some() {
            forward_finding
        } else {
            with_syn_evidence(report_likely_plain_listener(trial, capable_probe))
        };
    };
    let (snapshot, received_syns) = (peer.latest(), peer.counter_delta("MPCapableSYNRX"));
    let listener = snapshot.listener.unwrap_or_default();
    if snapshot.socket_errno != 0 {
        let sentence = "the other host does not support Multipath TCP, or it is disabled there";
        let error_text = text::error(snapshot.socket_errno);
        return with_syn_evidence(Finding::new(Cause::ListenerPlainTcp, sentence))
            .at_location(target)
            .with_evidence(format!("socket(IPPROTO_MPTCP) there: {error_text}"))
            .fix("sysctl -w net.mptcp.enabled=1   # on the other host");
    }
    if listener.plain && !listener.multipath {
        return with_syn_evidence(report_plain_listener(trial))
            .with_evidence(format!("the other host: port {} is plain TCP", target.port()));
    }
    if !listener.multipath {
        return if stripped_text.is_some() {
            forward_finding
        } else {
            with_syn_evidence(report_likely_plain_listener(trial, capable_probe))
        };
    }
    if received_syns == 0 {
        return forward_finding.with_evidence(
            "the other host listens with Multipath TCP and received a SYN without the option",
        );
    }
    let sentence = format!("something on the path back from {target} removes the MPTCP option");
    report_on_path(Cause::SynackOptionStripped, sentence)
        .with_evidence("the other host received the SYN with the option (MPCapableSYNRX)")
}

/// Reports a path that removes the option from the SYN, on one port only if another one passes.
fn report_stripped_syn(view: &ObservationView<'_>, trial: &TestConnection) -> Finding {
    let target = trial.target;
    let path = first_path_text(view, trial);
    let Some(port) = passing_port(view, trial) else {
        let sentence = format!("something on {path} removes the Multipath TCP option");
        return Finding::new(Cause::SynOptionStripped, sentence)
            .at_location(target.ip())
            .hint("try another port or another first path; a tunnel works");
    };
    let stripped_port = target.port();
    Finding::new(
        Cause::SynOptionStripped,
        format!(
            "something on {path} removes the Multipath TCP option from connections to port \
             {stripped_port}, but not to port {port}"
        ),
    )
    .at_location(target.ip())
    .with_evidence(format!(
        "a connection from here to {} is Multipath TCP",
        SocketAddr::new(target.ip(), port)
    ))
    .hint(format!(
        "a proxy for port {stripped_port} is on that path: use port {port}, another first path or a \
         tunnel, or ask the operator of that path to exempt the server"
    ))
}

/// Returns a phrase for the path of a first subflow, with its interface.
fn first_path_text(view: &ObservationView<'_>, trial: &TestConnection) -> String {
    let target = trial.target;
    let link = view.route_lookup(target.ip(), None, None).and_then(|lookup| lookup.link);
    let link = link.map(|index| format!(" over {}", view.interface_name(index)));
    format!("the path to {target}{}", link.unwrap_or_default())
}

/// Returns another port of the server to which a connection over the same first interface is
/// Multipath TCP: one of a program, or of a further check.
fn passing_port(view: &ObservationView<'_>, trial: &TestConnection) -> Option<u16> {
    let target = trial.target;
    let first_link = view.route_lookup(target.ip(), None, None).and_then(|lookup| lookup.link);
    let starts_first = |local: IpAddr| {
        let link = view.here.link_of(local.to_canonical()).map(|link| link.index);
        link.is_some() && link == first_link
    };
    let programs = view.observation.programs.iter().flatten();
    let programs = programs.filter(|socket| {
        socket.role == SocketRole::Connected && socket.speaks == SocketProtocol::Multipath
    });
    let programs = programs.map(|socket| (socket.local.ip(), socket.remote));
    let checks = trial.controls.iter().filter(|check| check.multipath == Some(true));
    let checks = checks.map(|check| (check.local, check.remote));
    let is_other_port = |remote: SocketAddr| {
        remote.ip().to_canonical() == target.ip().to_canonical() && remote.port() != target.port()
    };
    programs
        .chain(checks)
        .find(|(local, remote)| starts_first(*local) && is_other_port(*remote))
        .map(|(_, remote)| remote.port())
}

/// Reports the listener as the likely cause, as the evidence does not exclude the path.
fn report_likely_plain_listener(
    trial: &TestConnection,
    capable_probe: Option<&HopProbe>,
) -> Finding {
    let finding = report_plain_listener(trial).with_confidence(Confidence::Likely).hint(
        "if it listens with Multipath TCP, something on the path removes the option: `towpath server` there and --peer distinguish the two",
    );
    let option_arrives = capable_probe.is_some_and(|probe| {
        probe.answer == Some(TargetReply::SynAck { option: false })
            && probe.hops.iter().any(|hop| hop.has_option == Some(true))
    });
    if option_arrives {
        finding.with_evidence("the option reaches the last hop that answers")
    } else {
        finding
    }
}

fn report_plain_listener(trial: &TestConnection) -> Finding {
    let target = trial.target;
    Finding::new(
        Cause::ListenerPlainTcp,
        format!("the program that listens on {target} uses plain TCP"),
    )
    .at_location(target)
    .fix("towpath exec -- PROGRAM   # on the other host")
    .hint("or use the program's own option; systemd sockets have SocketProtocol=mptcp")
}

fn report_blackhole_fallback(view: &ObservationView<'_>, trial: &TestConnection) -> Finding {
    let seconds = view.here.number("mptcp.blackhole_timeout").unwrap_or(3_600);
    let counter = |name: &str| view.here.counter(&format!("MPTcpExt.{name}"));
    let finding = Finding::new(
        Cause::BlackholeFallbackActive,
        format!(
            "Linux has disabled Multipath TCP for all destinations for {seconds} s or more, because an earlier connection was answered only without the option"
        ),
    )
    .with_evidence(format!(
        "{} not requested Multipath TCP (MPCapableSYNTXDisabled)",
        if trial.counter_delta("MPCapableSYNTXDisabled") == 1 {
            "the connection has".to_owned()
        } else {
            format!("{} connections have", trial.counter_delta("MPCapableSYNTXDisabled"))
        }
    ))
    .with_evidence(format!(
        "since this host was started: MPCapableSYNTXDrop {}, Blackhole {}",
        counter("MPCapableSYNTXDrop"),
        counter("Blackhole")
    ))
    .fix(format!("sysctl -w net.mptcp.blackhole_timeout={seconds}"));
    let finding = finding.hint(
        "writing this setting, even with its old value, enables Multipath TCP immediately. Then run the doctor again: it finds whatever still drops the option",
    );
    finding.with_optional_evidence(
        option_loss_hop(trial, ProbeOption::Capable, None)
            .map(|hops| format!("hop by hop: {hops}")),
    )
}

/// Reports data that were changed on the path.
fn find_rewritten_payload(trial: &TestConnection) -> Option<Finding> {
    let target = trial.target;
    let names = ["DataCsumErr", "MPFailTx", "MPFailRx"];
    let counter_name = names.into_iter().find(|name| trial.counter_delta(name) > 0);
    let was_reset = trial.events.iter().flatten().any(|event| event.reset_reason == Some(6));
    let changed_at = trial.exchange.and_then(|exchange| exchange.changed_at);
    if counter_name.is_none() && !was_reset && changed_at.or(trial.plain_changed_at).is_none() {
        return None;
    }
    let mut finding = Finding::new(
        Cause::PayloadRewritten,
        format!("something on the path to {target} modifies the data"),
    )
    .at_location(target.ip());
    if let Some(offset) = changed_at {
        finding = finding.with_evidence(format!("byte {offset} came back modified"));
    }
    if let Some(offset) = trial.plain_changed_at {
        finding =
            finding.with_evidence(format!("byte {offset} also came back modified over plain TCP"));
    }
    if let Some(name) = counter_name {
        finding = finding.with_evidence(format!("the checksum of the data is wrong ({name})"));
    }
    if was_reset {
        finding = finding
            .with_evidence("a subflow was reset because of middlebox interference (reason 6)");
    }
    Some(finding.hint(
        "an application gateway (FTP, SIP) or a proxy modifies the stream: use another port, or encrypt",
    ))
}

/// Reports a connection that was Multipath TCP at first and fell back later.
fn find_fallback(view: &ObservationView<'_>, trial: &TestConnection) -> Option<Finding> {
    let target = trial.target;
    let names = [
        "MPCapableDataFallback",
        "DssFallback",
        "DSSCorruptionFallback",
        "InfiniteMapRx",
        "InfiniteMapTx",
    ];
    let counter_name = names.into_iter().find(|name| trial.counter_delta(name) > 0);
    if trial.multipath_at_end || (trial.closed_by_peer && counter_name.is_none()) {
        return None;
    }
    // With checksums, changed data end Multipath TCP. The server then closed because it did not
    // understand the changed data over plain TCP.
    let has_checksums = view.here.number("mptcp.checksum_enabled") == Some(1);
    if has_checksums && trial.closed_by_peer && !trial.echoes && !trial.is_towpath {
        return Some(
            Finding::new(
                Cause::PayloadRewritten,
                format!("something on the path to {target} modifies the data"),
            )
            .at_location(target.ip())
            .with_confidence(Confidence::Likely)
            .with_optional_evidence(
                counter_name
                    .map(|name| format!("the connection fell back with its first data ({name})")),
            )
            .with_evidence(
                "checksums are on, and the server closed this connection and the one over TCP",
            )
            .hint("try another port or another first path; encryption or a tunnel works"),
        );
    }
    Some(
        Finding::new(
            Cause::OptionStrippedAfterHandshake,
            format!(
                "the connection to {target} begins as Multipath TCP and falls back to plain TCP: \
                 something on the path removes the option from packets with data"
            ),
        )
        .at_location(target.ip())
        .with_confidence(if counter_name.is_some() {
            Confidence::Certain
        } else {
            Confidence::Likely
        })
        .with_evidence("the handshake had the option both ways")
        .with_evidence(counter_name.map_or_else(
            || "later the kernel reports plain TCP".to_owned(),
            |name| format!("the kernel counts {name}"),
        ))
        .hint("try another port or another first path; a tunnel works"),
    )
}
